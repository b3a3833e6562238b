"""Loop nests of operators, and result shapes of those without one, from operand shapes and attributes.

Each raises IllegalProgram for shapes or attributes that its operator does not accept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from superopt.errors import IllegalProgram
from superopt.program import Attr
from superopt.quasi_affine import Read

Shape: TypeAlias = tuple[int, ...]
Attrs: TypeAlias = Mapping[str, Attr]
Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Atom:
    """A further term of an index: `scale * floor(dim / divisor)`."""

    dim: int
    scale: int
    divisor: int = 1


@dataclass(frozen=True)
class Index:
    """One dimension of an index map: `offset + stride * dim`, or the constant `offset` where dim is None.

    In a nest that is not plain, `atoms` are added, and the sum is divided by `divisor`: where a remainder is
    left, the index is outside of every extent.
    """

    dim: int | None
    stride: int = 1
    offset: int = 0
    atoms: tuple[Atom, ...] = ()
    divisor: int = 1

    @property
    def dims(self) -> tuple[int, ...]:
        """The iteration dimensions that it depends on."""
        return (*(() if self.dim is None else (self.dim,)), *(a.dim for a in self.atoms))

    def at(self, point: Mapping[int, Any]) -> tuple[Any, Any]:
        """The index at a point, which gives a number or an array for each of `dims`, and whether no remainder
        is left.
        """
        place = self.offset + (0 if self.dim is None else self.stride * point[self.dim])
        for atom in self.atoms:
            place = place + atom.scale * (point[atom.dim] // atom.divisor)
        return place // self.divisor, place % self.divisor == 0


@dataclass(frozen=True)
class Nest:
    """A quasi-affine loop nest: `result[result_map] = combine over reductions of body(operand[operand_maps]...)`.

    `extents` are those of the iteration space; `reductions` its reduced dimensions. The result's dimensions
    are given by `result`: an iteration dimension each, or None for a dimension of extent 1 (keepdims).
    What an operand holds outside of its extents is `outside`; None where nothing is read there.

    Where `reads` are given, operands are spread before: each, by its read, over the dimensions of that read, zero
    where its guard fails. `operands` are then the maps of what they are spread to, and where the guard `where`
    fails, which depends on the result's dimensions alone, the result is zero.
    """

    extents: Shape
    operands: tuple[tuple[Index, ...], ...]
    result: tuple[int | None, ...]
    reductions: tuple[int, ...] = ()
    outside: float | None = None
    reads: tuple[Read, ...] = ()
    where: Read | None = None

    @property
    def plain(self) -> bool:
        """Whether each index is one strided iteration dimension at most, and everything read is inside."""
        return self.outside is None

    @property
    def points(self) -> int:
        """Points of the iteration space, less those of which an index with a divisor leaves a remainder."""
        return math.prod(self.extents) // math.prod(i.divisor for maps in self.operands for i in maps)

    @property
    def product(self) -> tuple[int, int, int, int]:
        """Batch, rows, columns and depth of a sum of products as one matrix product of its spread operands.

        Rows vary with the first operand alone, columns with the second. `floor(dim / divisor)` is a batch
        dimension, along which the rest of the dimension are columns.
        """
        used = [{d: 1 for i in maps if (d := i.dim) is not None} for maps in self.operands]
        for maps, dims in zip(self.operands, used, strict=True):
            for atom in (a for i in maps for a in i.atoms if a.scale > 0):
                dims.setdefault(atom.dim, atom.divisor)
        batch = rows = columns = 1
        for d in (d for d in self.result if d is not None):
            extent, part = self.extents[d], used[0].get(d, 0)
            if part and d in used[1]:
                batch, columns = batch * (extent // part), columns * part
            elif part:
                rows *= extent
            else:
                columns *= extent
        return batch, rows, columns, max(1, self.points // (batch * rows * columns))

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
    return _elementwise(tuple(shapes))


@lru_cache(1 << 12)
def _elementwise(shapes: tuple[Shape, ...]) -> Nest:
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


# --- windows ----------------------------------------------------------------------------------------------

# Spatial dimensions that convolutions and pooling may have.
MOST_SPATIAL = 3


def _spatial(attrs: Attrs, rank: int, *names: str) -> list[tuple[int, ...]]:
    """Attributes with one number for each of `rank` spatial dimensions; strides and dilations are positive."""
    if not 1 <= rank <= MOST_SPATIAL:
        raise fail(f"expected 1 to {MOST_SPATIAL} spatial dimensions, got {rank}")
    found = [ints_attr(attrs, name) for name in names]
    for name, numbers in zip(names, found, strict=True):
        least = 0 if name in ("low", "high", "extra") else 1
        if len(numbers) != rank or any(n < least for n in numbers):
            raise fail(f"expected {rank} numbers of at least {least} as '{name}', got {numbers}")
    return found


def _placed(extents: Shape, sizes: Shape, low: Shape, high: Shape, strides: Shape, dilations: Shape) -> Shape:
    """How many windows of `sizes` each dimension has."""
    spans = [d * (k - 1) + 1 for k, d in zip(sizes, dilations, strict=True)]
    placed = tuple(
        (e + a + b - span) // s + 1
        for e, a, b, span, s in zip(extents, low, high, spans, strides, strict=True)
    )
    if min(placed) < 1:
        padded = [e + a + b for e, a, b in zip(extents, low, high, strict=True)]
        raise fail(f"expected windows that fit into the padded extents {padded}, got ones of {spans}")
    return placed


def conv_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """(n, c, x...) and (f, c / groups, k...) to (n, f, y...), with `x = strides * y + dilations * k - low`.

    Iteration dimensions: n, f, y..., then the reduced c and k...
    """
    x, w = shapes
    rank = len(x) - 2
    strides, dilations, low, high = _spatial(attrs, rank, "strides", "dilations", "low", "high")
    groups = int_attr(attrs, "groups")
    if len(w) != len(x) or groups < 1 or x[1] != w[1] * groups or w[0] % groups:
        raise fail(f"expected a weight of (f, {x[1]} / {groups} groups, {rank} sizes), f in groups, got {w}")
    placed = _placed(x[2:], w[2:], low, high, strides, dilations)
    c = 2 + rank
    taps = [c + 1 + i for i in range(rank)]
    windows = [Index(2 + i, strides[i], -low[i], (Atom(taps[i], dilations[i]),)) for i in range(rank)]
    source = (Index(0), _channel(groups, w[0] // groups, w[1], 1, c), *windows)
    weight = (Index(1), Index(c), *map(Index, taps))
    extents = (x[0], w[0], *placed, *w[1:])
    return Nest(extents, (source, weight), tuple(range(c)), (c, *taps), 0.0)


def _channel(groups: int, columns: int, depth: int, f: int, c: int) -> Index:
    """The input channel of output channel `f`, of which a group has `columns`, at depth `c`."""
    if groups == 1:
        return Index(c)
    if columns == depth == 1:
        return Index(f)
    return Index(c, atoms=(Atom(f, depth, columns),))


def conv_transpose_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """(n, c, x...) and (c, f / groups, k...) to (n, f, y...), with `strides * x = y - dilations * k + low`.

    `high` cuts the far border, as `low` does the near one; `extra` lengthens it. Iteration dimensions: n, f,
    y..., then the reduced c (within a group) and k...
    """
    x, w = shapes
    rank = len(x) - 2
    strides, dilations, low, high, extra = _spatial(
        attrs, rank, "strides", "dilations", "low", "high", "extra"
    )
    groups = int_attr(attrs, "groups")
    if len(w) != len(x) or groups < 1 or x[1] != w[0] or w[0] % groups:
        raise fail(f"expected a weight of ({x[1]}, f / {groups} groups, {rank} sizes), got {w}")
    placed = tuple(
        (e - 1) * s + d * (k - 1) + 1 - a - b + o
        for e, k, s, d, a, b, o in zip(x[2:], w[2:], strides, dilations, low, high, extra, strict=True)
    )
    if min(placed) < 1:
        raise fail(f"expected a result with elements, got extents {placed}")
    depth, columns, c = w[0] // groups, w[1], 2 + rank
    taps = [c + 1 + i for i in range(rank)]
    windows = [Index(2 + i, 1, low[i], (Atom(taps[i], -dilations[i]),), strides[i]) for i in range(rank)]
    source = (Index(0), _channel(groups, columns, depth, 1, c), *windows)
    rows = Index(c) if groups == 1 else Index(c, atoms=(Atom(1, depth, columns),))
    column = Index(1) if groups == 1 else Index(1, atoms=(Atom(1, -columns, columns),))
    column = Index(None) if columns == 1 else column
    weight = (rows, column, *map(Index, taps))
    extents = (x[0], columns * groups, *placed, depth, *w[2:])
    return Nest(extents, (source, weight), tuple(range(c)), (c, *taps), 0.0)


def pool_nest(outside: float) -> Callable[[Sequence[Shape], Attrs], Nest]:
    """(n, c, x...) to (n, c, y...), with `x = strides * y + dilations * k - low`; `outside` is neutral."""

    def nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
        (x,) = shapes
        rank = len(x) - 2
        sizes, strides, dilations, low, high = _spatial(
            attrs, rank, "sizes", "strides", "dilations", "low", "high"
        )
        placed = _placed(x[2:], sizes, low, high, strides, dilations)
        windows = [
            Index(2 + i, strides[i], -low[i], (Atom(2 + rank + i, dilations[i]),)) for i in range(rank)
        ]
        source = (Index(0), Index(1), *windows)
        taps = tuple(range(2 + rank, 2 + 2 * rank))
        return Nest((*x[:2], *placed, *sizes), (source,), tuple(range(2 + rank)), taps, outside)

    return nest


def shifted_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """(n, k..., c, x...) to (n, c, y...), with `x = strides * y + dilations * k - low`, summed over k."""
    (x,) = shapes
    rank = (len(x) - 2) // 2
    strides, dilations, low, high = _spatial(attrs, rank, "strides", "dilations", "low", "high")
    if len(x) != 2 * rank + 2:
        raise fail(
            f"expected as many kernel positions as spatial dimensions, got an operand of rank {len(x)}"
        )
    sizes = x[1 : 1 + rank]
    placed = _placed(x[2 + rank :], sizes, low, high, strides, dilations)
    taps = tuple(range(2 + rank, 2 + 2 * rank))
    windows = [Index(2 + i, strides[i], -low[i], (Atom(taps[i], dilations[i]),)) for i in range(rank)]
    source = (Index(0), *map(Index, taps), Index(1), *windows)
    extents = (x[0], x[1 + rank], *placed, *sizes)
    return Nest(extents, (source,), tuple(range(2 + rank)), taps, 0.0)


def g2bmm_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """(..., m, k) and (..., r, k) to (..., m, width): rows m by rows `m + dilation * w - low` of the second."""
    a, b = shapes
    batch, band, width = *_band(shapes, attrs, 1), int_attr(attrs, "width")
    if a[-1] != b[-1] or width < 1:
        raise fail(f"expected one contracted extent and a positive width, got {a[-1]}, {b[-1]} and {width}")
    lead, m = tuple(map(Index, range(len(batch)))), len(batch)
    maps = (*lead, Index(m), Index(m + 2)), (*lead, band, Index(m + 2))
    return Nest((*batch, a[-2], width, a[-1]), maps, tuple(range(m + 2)), (m + 2,), 0.0)


def gbmm_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """(..., m, w) and (..., r, n) to (..., m, n): rows `m + dilation * w - low` of the second, by row m."""
    a, b = shapes
    batch, band = _band(shapes, attrs, 2)
    lead, m = tuple(map(Index, range(len(batch)))), len(batch)
    maps = (*lead, Index(m), Index(m + 2)), (*lead, band, Index(m + 1))
    return Nest((*batch, a[-2], b[-1], a[-1]), maps, tuple(range(m + 2)), (m + 2,), 0.0)


def _band(shapes: Sequence[Shape], attrs: Attrs, behind: int) -> tuple[Shape, Index]:
    """The batch of a band product, and the row that it reads; `behind` the row's dimension is the band's."""
    a, b = shapes
    if not 2 <= len(a) == len(b) or a[:-2] != b[:-2]:
        raise fail(f"expected operands of one batch and of rank 2 or more, got shapes {a} and {b}")
    dilation, low, m = int_attr(attrs, "dilation"), int_attr(attrs, "low"), len(a) - 2
    if dilation < 1 or low < 0:
        raise fail(f"expected a dilation of at least 1 and a low of at least 0, got {dilation} and {low}")
    return a[:-2], Index(m, 1, -low, (Atom(m + behind, dilation),))


def pad_nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
    """One operand with `low` elements of `value` before it and `high` after it."""
    (x,) = shapes
    low, high = ints_attr(attrs, "low"), ints_attr(attrs, "high")
    if not len(low) == len(high) == len(x) or min((*low, *high, 0)) < 0:
        raise fail(f"expected {len(x)} numbers of at least 0 as 'low' and 'high', got {low} and {high}")
    extents = tuple(e + a + b for e, a, b in zip(x, low, high, strict=True))
    source = tuple(Index(d, 1, -a) for d, a in enumerate(low))
    return Nest(extents, (source,), tuple(range(len(x))), (), float_attr(attrs, "value"))


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
