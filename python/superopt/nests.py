"""Loop nests of operators, and result shapes of those without one, from operand shapes and attributes.

Each raises IllegalProgram for shapes or attributes that its operator does not accept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from superopt.errors import IllegalProgram
from superopt.program import Attr

Shape: TypeAlias = tuple[int, ...]
Attrs: TypeAlias = Mapping[str, Attr]
Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Index:
    """One dimension of an index map: `offset + stride * dim`, or the constant `offset` where dim is None."""

    dim: int | None
    stride: int = 1
    offset: int = 0


@dataclass(frozen=True)
class Nest:
    """An affine loop nest: `result[result_map] = combine over reductions of body(operand[operand_maps]...)`.

    `extents` are those of the iteration space; `reductions` its reduced dimensions. The result's dimensions
    are given by `result`: an iteration dimension each, or None for a dimension of extent 1 (keepdims).
    """

    extents: Shape
    operands: tuple[tuple[Index, ...], ...]
    result: tuple[int | None, ...]
    reductions: tuple[int, ...] = ()

    @property
    def result_shape(self) -> Shape:
        """Shape of the result."""
        return tuple(1 if d is None else self.extents[d] for d in self.result)

    @property
    def reduced(self) -> int:
        """Product of the reduced extents."""
        return math.prod(self.extents[d] for d in self.reductions)


# --- attributes -------------------------------------------------------------------------------------------


def fail(message: str) -> IllegalProgram:
    """An error about operands or attributes; the caller knows where."""
    return IllegalProgram(message)


def int_attr(attrs: Attrs, name: str) -> int:
    """An attribute whose kind, int, has been checked."""
    value = attrs[name]
    assert isinstance(value, int)
    return value


def ints_attr(attrs: Attrs, name: str) -> tuple[int, ...]:
    """See `int_attr`."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def float_attr(attrs: Attrs, name: str) -> float:
    """See `int_attr`."""
    value = attrs[name]
    assert isinstance(value, int | float)
    return float(value)


# --- nests and shapes -------------------------------------------------------------------------------------


def checked_dims(dims: Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """`dims` if they are distinct and within `rank`; `what` names them in the error."""
    if len(set(dims)) != len(dims) or any(d < 0 or d >= rank for d in dims):
        raise fail(f"expected distinct {what} in [0, {rank}), got {list(dims)}")
    return tuple(dims)


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """The shape that `shapes` broadcast to by numpy's rules."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    out: list[int] = []
    for column in zip(*padded, strict=True):
        extents = {e for e in column if e != 1}
        if len(extents) > 1:
            raise fail(f"expected operand shapes that broadcast, got {' and '.join(map(str, shapes))}")
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def _operand_map(shape: Shape, extents: Shape, dims: Sequence[int]) -> tuple[Index, ...]:
    """Index map of an operand whose dimensions follow `dims`; size 1 against a larger extent is held at 0."""
    return tuple(Index(None) if shape[i] == 1 and extents[d] != 1 else Index(d) for i, d in enumerate(dims))


def elementwise_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """Operands broadcast by numpy's rules."""
    extents = broadcast_shapes(shapes)
    maps = tuple(_operand_map(s, extents, range(len(extents) - len(s), len(extents))) for s in shapes)
    return Nest(extents, maps, tuple(range(len(extents))))


def reduction_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """One operand, reduced over `dims`."""
    (shape,) = shapes
    dims = checked_dims(ints_attr(attrs, "dims"), len(shape), "reduction dims")
    if not dims:
        raise fail("expected at least one reduction dim, got none")
    keep = bool(attrs["keepdims"])
    result = tuple(None if d in dims else d for d in range(len(shape)) if keep or d not in dims)
    return Nest(tuple(shape), (tuple(map(Index, range(len(shape)))),), result, tuple(sorted(dims)))


def matmul_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """(..., m, k) and (..., k, n), either transposed, to (..., m, n)."""
    a, b = shapes
    if len(a) < 2 or len(b) < 2:
        raise fail(f"expected matmul operands of rank 2 or more, got shapes {a} and {b}")
    m, k = (a[-1], a[-2]) if attrs["transpose_a"] else (a[-2], a[-1])
    k2, n = (b[-1], b[-2]) if attrs["transpose_b"] else (b[-2], b[-1])
    if k != k2:
        raise fail(f"expected equal contracted extents, got {k} and {k2} (shapes {a} and {b})")
    batch = broadcast_shapes([a[:-2], b[:-2]])
    r = len(batch)
    extents = (*batch, m, n, k)
    dm, dn, dk = r, r + 1, r + 2

    def operand(shape: Shape, rows: int, cols: int) -> tuple[Index, ...]:
        lead = len(shape) - 2
        batch_map = _operand_map(shape[:-2], extents, range(r - lead, r))
        return (*batch_map, Index(rows), Index(cols))

    maps = (
        operand(a, *((dk, dm) if attrs["transpose_a"] else (dm, dk))),
        operand(b, *((dn, dk) if attrs["transpose_b"] else (dk, dn))),
    )
    return Nest(extents, maps, (*range(r), dm, dn), (dk,))


def broadcast_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """One operand, to `shape`."""
    (shape,) = shapes
    target = ints_attr(attrs, "shape")
    if len(target) < len(shape) or broadcast_shapes([shape, target]) != target:
        raise fail(f"expected a shape that {tuple(shape)} broadcasts to, got {target}")
    dims = range(len(target) - len(shape), len(target))
    return Nest(target, (_operand_map(shape, target, dims),), tuple(range(len(target))))


def transpose_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """One operand, its dimensions in the order of `perm`."""
    (shape,) = shapes
    perm = checked_dims(ints_attr(attrs, "perm"), len(shape), "perm entries")
    if len(perm) != len(shape):
        raise fail(f"expected a permutation of {len(shape)} dimensions, got {list(perm)}")
    inverse = {source: d for d, source in enumerate(perm)}
    extents = tuple(shape[p] for p in perm)
    return Nest(extents, (tuple(Index(inverse[i]) for i in range(len(shape))),), tuple(range(len(shape))))


def slice_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """A strided window of one operand."""
    (shape,) = shapes
    offsets, sizes, strides = (ints_attr(attrs, n) for n in ("offsets", "sizes", "strides"))
    if not len(offsets) == len(sizes) == len(strides) == len(shape):
        raise fail(f"expected {len(shape)} offsets, sizes and strides, got {offsets}, {sizes}, {strides}")
    for o, n, s, e in zip(offsets, sizes, strides, shape, strict=True):
        if o < 0 or n < 1 or s < 1 or o + (n - 1) * s >= e:
            raise fail(f"expected a slice within extent {e}, got offset {o}, size {n}, stride {s}")
    maps = tuple(Index(d, strides[d], offsets[d]) for d in range(len(shape)))
    return Nest(sizes, (maps,), tuple(range(len(shape))))


def reshaped_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """`shape`, which must have as many elements."""
    (shape,) = shapes
    target = ints_attr(attrs, "shape")
    if math.prod(shape) != math.prod(target) or any(e < 1 for e in target):
        raise fail(f"expected a shape of {math.prod(shape)} elements, got {target}")
    return target


def repeated_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """The shape of `times` copies along `dim`."""
    (shape,) = shapes
    (dim,) = checked_dims((int_attr(attrs, "dim"),), len(shape), "dim")
    if int_attr(attrs, "times") < 1:
        raise fail(f"expected a positive number of times, got {attrs['times']}")
    return (*shape[:dim], shape[dim] * int_attr(attrs, "times"), *shape[dim + 1 :])


def concatenated_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """The sum of the extents along `dim`."""
    first = shapes[0]
    (dim,) = checked_dims((int_attr(attrs, "dim"),), len(first), "dim")
    for s in shapes:
        if len(s) != len(first) or any(s[d] != first[d] for d in range(len(first)) if d != dim):
            raise fail(f"expected shapes equal but for dimension {dim}, got {list(shapes)}")
    return (*first[:dim], sum(s[dim] for s in shapes), *first[dim + 1 :])


def updated_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """The shape of the first operand, into which the second must fit at `offset` along `dim`."""
    base, update = shapes
    (dim,) = checked_dims((int_attr(attrs, "dim"),), len(base), "dim")
    if len(update) != len(base) or any(update[d] != base[d] for d in range(len(base)) if d != dim):
        raise fail(f"expected shapes equal but for dimension {dim}, got {list(shapes)}")
    offset = int_attr(attrs, "offset")
    if not 0 <= offset <= base[dim] - update[dim]:
        raise fail(
            f"expected an offset within 0 and {base[dim] - update[dim]} along dimension {dim}, got {offset}"
        )
    return base


def updated(arrays: Sequence[Array], attrs: Attrs) -> Array:
    """The first array, a part of it replaced by the second."""
    base, update = arrays
    out, start = base.copy(), int_attr(attrs, "offset")
    dim = int_attr(attrs, "dim")
    out[(*(slice(None),) * dim, slice(start, start + update.shape[dim]))] = update
    return out


def repeated(arrays: Sequence[Array], attrs: Attrs) -> Array:
    """One array, repeated `times` times along `dim`."""
    (array,) = arrays
    times = [1] * array.ndim
    times[int_attr(attrs, "dim")] = int_attr(attrs, "times")
    return np.tile(array, times)
