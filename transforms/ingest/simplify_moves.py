"""Simplifications (`simplify_rules`) of operators that move data: reshapes, transpositions, slices and so on."""

from __future__ import annotations

import math

from superopt.axes import reshape_groups
from superopt.program import Value
from superopt.transforms.ingest.builder import GraphBuilder
from superopt.transforms.ingest.simplify_rules import Attrs, Operands, Rules, ints

MOVES = Rules()


@MOVES.rule("reshape")
def _reshape(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """reshape(x, x's shape) -> x; reshape(reshape(x)) -> reshape(x); reshape(reduce(x)) -> keepdims."""
    (x,) = operands
    shape = ints(attrs, "shape")
    if shape == x.shape:
        return x
    if (inner := build.defined_by(x, "reshape")) is not None:
        return build.reshape(inner.operands[0], shape)
    for op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"):
        inner = build.defined_by(x, op)
        if inner is not None and not inner.attrs["keepdims"]:
            (source,), dims = inner.operands, ints(inner.attrs, "dims")
            kept = tuple(1 if d in dims else e for d, e in enumerate(source.shape))
            if kept == shape:
                return build.emit(op, source, dims=dims, keepdims=True)
    return None


@MOVES.rule("reshape")
def _reshaped_slice(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """reshape(slice(x)) -> slice(reshape(x)) where the slice is of whole parts: kernels read it in place.

    The 1,600 columns of 4,800 that are 25 heads of 64 are 25 of 75 heads.
    """
    (x,), shape = operands, ints(attrs, "shape")
    if (inner := build.defined_by(x, "slice")) is None:
        return None
    (source,), offsets = inner.operands, ints(inner.attrs, "offsets")
    cut = [d for d, size in enumerate(x.shape) if size != source.shape[d]]
    if len(cut) != 1 or set(ints(inner.attrs, "strides")) != {1}:
        return None
    groups = [after for before, after in reshape_groups(x.shape, shape) if before == cut]
    if not groups:
        return None
    (dim,), ((first, *within),) = cut, groups
    part = math.prod(shape[d] for d in within)
    if offsets[dim] % part or source.shape[dim] % part:
        return None
    whole = build.reshape(
        source, [source.shape[dim] // part if d == first else n for d, n in enumerate(shape)]
    )
    return build.slice(whole, first, offsets[dim] // part, shape[first])


@MOVES.rule("transpose")
def _transpose(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """transpose(x, id) -> x; transpose(transpose(x)) -> transpose(x); moving unit extents -> reshape."""
    (x,) = operands
    perm = ints(attrs, "perm")
    if perm == tuple(range(len(perm))):
        return x
    if (inner := build.defined_by(x, "transpose")) is not None:
        first = ints(inner.attrs, "perm")
        return build.transpose(inner.operands[0], [first[p] for p in perm])
    moved = [p for p in perm if x.shape[p] != 1]
    shape = [x.shape[p] for p in perm]
    if moved == sorted(moved):
        return build.reshape(x, shape)
    # A reshape that only adds or drops unit extents moves after the transposition.
    inner = build.defined_by(x, "reshape")
    source = inner.operands[0] if inner is not None else x
    wide = [d for d, e in enumerate(source.shape) if e != 1]
    if source is not x and [source.shape[d] for d in wide] == [e for e in x.shape if e != 1]:
        rank = {d: i for i, d in enumerate(sorted(moved))}
        order = iter(wide[rank[p]] for p in moved)
        swapped = build.transpose(source, [next(order) if d in wide else d for d in range(len(source.shape))])
        return build.reshape(swapped, shape)
    return None


@MOVES.rule("broadcast")
def _broadcast(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """broadcast(x, x's shape) -> x; broadcast(broadcast(x)) -> broadcast(x)."""
    (x,) = operands
    shape = ints(attrs, "shape")
    if shape == x.shape:
        return x
    if math.prod(shape) == x.type.elements:
        return build.reshape(x, shape)
    if (inner := build.defined_by(x, "broadcast")) is not None:
        return build.broadcast(inner.operands[0], shape)
    return None


@MOVES.rule("slice")
def _slice(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """The slice of all of x -> x."""
    (x,) = operands
    return x if ints(attrs, "sizes") == x.shape else None


@MOVES.rule("conv")
def _pointwise(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """conv by a kernel of one position, which reads in place -> matmul, which every search knows."""
    x, w = operands
    windows = [*ints(attrs, "low"), *ints(attrs, "high"), *(s - 1 for s in ints(attrs, "strides"))]
    if math.prod(w.shape[2:]) != 1 or attrs.get("groups", 1) != 1 or any(windows):
        return None
    (n, c, *extents), columns = x.shape, w.shape[0]
    source = build.reshape(x, (n, c, math.prod(extents)))
    return build.reshape(build.emit("matmul", build.reshape(w, (columns, c)), source), (n, columns, *extents))


@MOVES.rule("concat")
def _concat(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """concat(x) -> x."""
    return operands[0] if len(operands) == 1 else None
