"""Operators of PyTorch that move data or make constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.operators import broadcast_shapes
from superopt.program import COMPUTE_DTYPES, NUMBER_DTYPES, Value
from superopt.transforms.ingest.aten.table import HANDLERS, Args, Handler, dim_of, handles, value_of
from superopt.transforms.ingest.builder import NotExpressible
from superopt.transforms.ingest.torch_dialect import TorchReader

# --- moving data ----------------------------------------------------------------------------------------


def _moved(r: TorchReader, held: Any) -> Value:
    if isinstance(held, Value) and held.dtype not in {"i1", *COMPUTE_DTYPES}:
        raise NotExpressible(f"tensors of element type {held.dtype}")
    return value_of(r, held)


def _reshaped(r: TorchReader, held: Any) -> Value:
    """An operand whose elements stay where they are: also integers."""
    whole = isinstance(held, Value) and held.dtype in NUMBER_DTYPES and held.dtype != "i1"
    return held if whole else _moved(r, held)


@handles("view", "reshape", "_unsafe_view", "view_copy", "_reshape_alias")
def _view(r: TorchReader, args: Args) -> Value:
    x, shape = _reshaped(r, args[0]), list(args[1])
    if -1 in shape:
        known = math.prod(e for e in shape if e != -1)
        shape[shape.index(-1)] = x.type.elements // known
    return r.build.reshape(x, shape)


@handles("flatten.using_ints")
def _flatten(r: TorchReader, args: Args) -> Value:
    x = _reshaped(r, args[0])
    start, end = dim_of(x, args[1]), dim_of(x, args[2])
    return r.build.reshape(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


@handles("unflatten.int")
def _unflatten(r: TorchReader, args: Args) -> Value:
    x = _reshaped(r, args[0])
    dim, sizes = dim_of(x, args[1]), list(args[2])
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape[dim] // math.prod(e for e in sizes if e != -1)
    return r.build.reshape(x, (*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))


@handles("unsqueeze")
def _unsqueeze(r: TorchReader, args: Args) -> Value:
    x = _reshaped(r, args[0])
    dim = args[1] + len(x.shape) + 1 if args[1] < 0 else args[1]
    return r.build.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))


@handles("squeeze", "squeeze.dim", "squeeze.dims")
def _squeeze(r: TorchReader, args: Args) -> Value:
    x = _reshaped(r, args[0])
    chosen = range(len(x.shape)) if len(args) == 1 else [args[1]] if isinstance(args[1], int) else args[1]
    gone = {dim_of(x, d) for d in chosen}
    return r.build.reshape(x, [e for d, e in enumerate(x.shape) if e != 1 or d not in gone])


def as_number(r: TorchReader, name: str, args: Args) -> Value | None:
    """What an operator of these gives for integers once they are numbers, None for other operators."""
    if name.removeprefix("aten.") not in _MOVES or not isinstance(args[0], Value):
        return None
    made = HANDLERS[name.removeprefix("aten.")](r, [r.as_float(args[0]), *args[1:]])
    return made if isinstance(made, Value) else None


_MOVES = frozenset({
    "permute", "permute_copy", "transpose.int", "t", "numpy_T", "expand", "broadcast_to", "expand_copy",
    "expand_as",
    "slice.Tensor", "select.int", "repeat",
})  # fmt: skip


@handles("permute", "permute_copy")
def _permute(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    return r.build.transpose(x, [dim_of(x, d) for d in args[1]])


@handles("transpose.int", "t", "numpy_T", "swapaxes", "swapdims")
def _transpose(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    perm = list(range(len(x.shape)))
    if len(args) == 1 or not perm:
        return r.build.transpose(x, perm[::-1])
    a, b = dim_of(x, args[1]), dim_of(x, args[2])
    perm[a], perm[b] = perm[b], perm[a]
    return r.build.transpose(x, perm)


@handles("expand", "broadcast_to", "expand_copy")
def _expand(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    lead = len(args[1]) - len(x.shape)
    return r.build.broadcast(x, [x.shape[i - lead] if e == -1 else e for i, e in enumerate(args[1])])


@handles("expand_as")
def _expand_as(r: TorchReader, args: Args) -> Value:
    return r.build.broadcast(_moved(r, args[0]), r.shape_of(args[1]))


@handles("broadcast_tensors")
def _broadcast_tensors(r: TorchReader, args: Args) -> tuple[list[Value]]:
    shape = broadcast_shapes([r.shape_of(a) for a in args[0]])
    return ([r.build.broadcast(_moved(r, a), shape) for a in args[0]],)


@handles("repeat")
def _repeat(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    x = r.build.reshape(x, (*(1 for _ in range(len(args[1]) - len(x.shape))), *x.shape))
    for dim, times in enumerate(args[1]):
        if times < 1:
            raise NotExpressible("a tensor repeated zero times")
        if times > 1:
            x = r.build.emit("repeat", x, dim=dim, times=int(times))
    return x


@handles("repeat_interleave.self_int")
def _repeat_interleave(r: TorchReader, args: Args) -> Value:
    """Each element `times` times in place: a unit dimension after `dim`, broadcast and merged with it."""
    x, times = _moved(r, args[0]), args[1]
    if len(args) < 3 or args[2] is None:
        x, dim = r.build.reshape(x, [x.type.elements]), 0
    else:
        dim = dim_of(x, args[2])
    before, extent, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
    spread = r.build.broadcast(
        r.build.reshape(x, (*before, extent, 1, *after)), (*before, extent, times, *after)
    )
    return r.build.reshape(spread, (*before, extent * times, *after))


@handles("cat", "concat")
def _cat(r: TorchReader, args: Args) -> Value:
    parts = [
        p for p in (r.tensor(a, r.element) for a in args[0] if 0 not in r.shape_of(a)) if p.type.elements
    ]
    return r.build.emit("concat", *parts, dim=dim_of(parts[0], args[1] if len(args) > 1 else 0))


@handles("slice_scatter", "slice_scatter_copy")
def _slice_scatter(r: TorchReader, args: Args) -> Value:
    """The form of an assignment to a slice: the base, with part of it replaced by the source."""
    base, source = r.tensor(args[0], r.element), r.tensor(args[1], r.element)
    dim = dim_of(base, args[2] if len(args) > 2 else 0)
    extent = base.shape[dim]
    start = 0 if len(args) < 4 or args[3] is None else args[3]
    start = min(max(start + extent if start < 0 else start, 0), extent)
    if len(args) > 5 and args[5] != 1:
        raise NotExpressible("an assignment to a slice with gaps")
    if source.shape[dim] == extent:
        return source
    return r.build.emit("update_slice", base, source, dim=dim, offset=start)


@handles("copy")
def _copy(r: TorchReader, args: Args) -> Value:
    """The form of an assignment to a whole tensor: the source, in the tensor's shape and dtype."""
    return r.build.broadcast(r.tensor(args[1], r.element), r.shape_of(args[0]))


@handles("index_copy")
def _index_copy(r: TorchReader, args: Args) -> Value:
    """Rows written at consecutive constant indices."""
    base, dim, index, source = r.tensor(args[0], r.element), args[1], args[2], r.tensor(args[3], r.element)
    if isinstance(index, Value):
        raise NotExpressible("an assignment at indices that are not constant")
    places: list[int] = index.reshape(-1).tolist()
    if not places or places != list(range(places[0], places[0] + len(places))):
        raise NotExpressible("an assignment at indices that are not consecutive")
    if len(places) == base.shape[dim_of(base, dim)]:
        return source
    return r.build.emit("update_slice", base, source, dim=dim_of(base, dim), offset=places[0])


@handles("stack")
def _stack(r: TorchReader, args: Args) -> Value:
    parts = [r.tensor(a, r.element) for a in args[0]]
    dim = args[1] + len(parts[0].shape) + 1 if args[1] < 0 else args[1]
    shape = (*parts[0].shape[:dim], 1, *parts[0].shape[dim:])
    return r.build.emit("concat", *(r.build.reshape(p, shape) for p in parts), dim=dim)


@handles("slice.Tensor", "slice_copy.Tensor")
def _slice(r: TorchReader, args: Args) -> Value:
    filled: Args = [*args, *(0, None, None, 1)[len(args) - 1 :]]
    _, dim, start, end, step = filled
    x = _moved(r, args[0])
    dim = dim_of(x, dim)
    first, last, step = slice(start, end, step).indices(x.shape[dim])
    if last <= first:
        raise NotExpressible("an empty slice")
    return r.build.slice(x, dim, first, -(-(last - first) // step), step)


@handles("select.int", "select_copy.int")
def _select(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    dim = dim_of(x, args[1])
    index = args[2] + x.shape[dim] if args[2] < 0 else args[2]
    return r.build.reshape(r.build.slice(x, dim, index, 1), (*x.shape[:dim], *x.shape[dim + 1 :]))


@handles("narrow")
def _narrow(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    dim = dim_of(x, args[1])
    start = args[2] + x.shape[dim] if args[2] < 0 else args[2]
    return r.build.slice(x, dim, start, args[3])


def _split_at(r: TorchReader, held: Any, dim: int, sizes: Sequence[int]) -> list[Value]:
    x = _moved(r, held) if isinstance(held, Value) else held
    starts = np.cumsum([0, *sizes]).tolist()
    return [r.build.slice(x, dim, start, size) for start, size in zip(starts, sizes, strict=False)]


def _splitting(by_count: bool) -> Handler:
    def handler(r: TorchReader, args: Args) -> tuple[list[Value]]:
        """Pieces of one size (the last may be smaller), of given sizes, or of a given number."""
        x, dim = args[0], dim_of(args[0], args[2] if len(args) > 2 else 0)
        extent, sizes = x.shape[dim], args[1]
        if isinstance(sizes, int):
            size = -(-extent // sizes) if by_count else sizes
            sizes = [min(size, extent - at) for at in range(0, extent, size)]
        return (_split_at(r, x, dim, sizes),)

    return handler


handles("split.Tensor", "split_with_sizes", "split.sizes", "unsafe_split.Tensor")(_splitting(False))
handles("chunk", "unsafe_chunk")(_splitting(True))


@handles("unbind.int")
def _unbind(r: TorchReader, args: Args) -> tuple[list[Value]]:
    x = _moved(r, args[0])
    dim = dim_of(x, args[1] if len(args) > 1 else 0)
    return ([_select(r, [x, dim, i]) for i in range(x.shape[dim])],)


@handles("flip")
def _flip(r: TorchReader, args: Args) -> Value:
    """One slice for each element, so short dimensions only."""
    x = _moved(r, args[0])
    for dim in (dim_of(x, d) for d in args[1]):
        x = r.build.take(x, dim, range(x.shape[dim])[::-1])
    return x


@handles("roll")
def _roll(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    if not args[2]:
        raise NotExpressible("a roll of all elements")
    for shift, d in zip(args[1], args[2], strict=True):
        dim = dim_of(x, d)
        cut = -shift % x.shape[dim]
        if cut:
            parts = r.build.slice(x, dim, cut, x.shape[dim] - cut), r.build.slice(x, dim, 0, cut)
            x = r.build.emit("concat", *parts, dim=dim)
    return x


@handles("constant_pad_nd", "pad")
def _pad(r: TorchReader, args: Args) -> Value:
    """Constant padding as concatenations; negative amounts as slices."""
    x, amounts = _moved(r, args[0]), args[1]
    mode, number = (args[2], args[3]) if isinstance(args[2], str) else ("constant", args[2])
    if mode != "constant":
        raise NotExpressible(f"padding of mode '{mode}'")
    for i in range(len(amounts) // 2):
        dim = len(x.shape) - 1 - i
        before, after = amounts[2 * i], amounts[2 * i + 1]
        start, size = max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0)
        parts = [r.build.slice(x, dim, start, size)]
        for extent, at in ((before, 0), (after, 2)):
            if extent > 0:
                shape = (*x.shape[:dim], extent, *x.shape[dim + 1 :])
                parts.insert(at, r.build.constant(float(number or 0), x.dtype, shape))
        x = r.build.emit("concat", *parts, dim=dim)
    return x


# --- gathers at constant indices ------------------------------------------------------------------------


@handles("unfold", "unfold_copy")
def _unfold(r: TorchReader, args: Args) -> Value:
    """Windows of `size` along a dimension, `step` apart, as a last dimension."""
    x, size, step = _moved(r, args[0]), args[2], args[3]
    if not x.shape or not size > 0:
        raise NotExpressible("windows of a number, or of nothing")
    dim = dim_of(x, args[1])
    count = (x.shape[dim] - size) // step + 1
    picked = r.build.take(x, dim, [i * step + j for i in range(count) for j in range(size)])
    apart = r.build.reshape(picked, (*x.shape[:dim], count, size, *x.shape[dim + 1 :]))
    order = [d for d in range(len(x.shape) + 1) if d != dim + 1]
    return r.build.transpose(apart, [*order, dim + 1])


@handles("index_select")
def _index_select(r: TorchReader, args: Args) -> Value:
    x = _moved(r, args[0])
    if isinstance(args[2], Value) or not x.shape:
        raise NotExpressible("a gather from a number, or at indices that are not constant")
    return r.build.take(x, dim_of(x, args[1]), args[2].reshape(-1).tolist())


@handles("index.Tensor", "index.Tensor_hacked_twin")
def _index(r: TorchReader, args: Args) -> Value:
    """x[:, indices, :] with constant indices, in one dimension or in several that are next to each other.

    In several, each index varies along an axis of its own, as in x[rows[:, None], columns], or they are places of
    what these dimensions are together.
    """
    x, indices = _moved(r, args[0]), args[1]
    given = [d for d, i in enumerate(indices) if i is not None]
    if any(isinstance(indices[d], Value) for d in given):
        raise NotExpressible("a gather at indices that are not constant")
    if any(str(indices[d].dtype) in ("torch.bool", "torch.uint8") for d in given):
        raise NotExpressible("a gather by a mask")
    picked, (first, *rest) = x, given
    if not rest:
        picked = r.build.take(x, first, indices[first].reshape(-1).tolist())
        return r.build.reshape(picked, (*x.shape[:first], *indices[first].shape, *x.shape[first + 1 :]))
    if given != list(range(first, first + len(given))):
        raise NotExpressible("a gather at places of dimensions that are not neighbours")
    shape = broadcast_shapes([tuple(indices[d].shape) for d in given])
    after = (*x.shape[:first], *shape, *x.shape[given[-1] + 1 :])
    aligned = [
        indices[d].reshape((1,) * (len(shape) - indices[d].dim()) + tuple(indices[d].shape)) for d in given
    ]
    axes = [axis for index in aligned for axis, extent in enumerate(index.shape) if extent != 1]
    if axes == [axis for axis, extent in enumerate(shape) if extent != 1]:
        for d, index in zip(given, aligned, strict=True):
            picked = r.build.take(picked, d, index.reshape(-1).tolist())
        return r.build.reshape(picked, after)
    places: Any = 0
    for d, index in zip(given, aligned, strict=True):
        places = places * x.shape[d] + index.expand(shape) % x.shape[d]
        if ((index < -x.shape[d]) | (index >= x.shape[d])).any():
            raise NotExpressible("a gather out of bounds")
    joined = math.prod(x.shape[d] for d in given)
    picked = r.build.reshape(x, (*x.shape[:first], joined, *x.shape[given[-1] + 1 :]))
    return r.build.reshape(r.build.take(picked, first, places.reshape(-1).tolist()), after)


@handles("embedding")
def _embedding(r: TorchReader, args: Args) -> Value:
    """Rows of a table at constant places, such as positions 0, 1, ...; one row for all is repeated."""
    table, index = _moved(r, args[0]), args[1]
    if isinstance(index, Value):
        raise NotExpressible("a gather at indices that are not constant")
    places, width = index.reshape(-1).tolist(), table.shape[1]
    if len({*places}) == 1:
        return r.build.broadcast(r.build.slice(table, 0, places[0], 1), (*index.shape, width))
    return r.build.reshape(r.build.take(table, 0, places), (*index.shape, width))


# --- constants shaped like a value ----------------------------------------------------------------------


@handles("zeros_like", "new_zeros")
def _zeros_like(r: TorchReader, args: Args) -> Any:
    return r.filled(0)


@handles("ones_like", "new_ones")
def _ones_like(r: TorchReader, args: Args) -> Any:
    return r.filled(1)


@handles("full_like")
def _full_like(r: TorchReader, args: Args) -> Any:
    return r.filled(args[1])


@handles("new_full")
def _new_full(r: TorchReader, args: Args) -> Any:
    return r.filled(args[2])


@handles("empty_like", "new_empty")
def _empty_like(r: TorchReader, args: Args) -> Any:
    """Memory that nobody may read: PyTorch leaves it undefined, so zeros will do."""
    return r.filled(0)
