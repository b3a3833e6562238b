"""Default tile extents of library operators, and how much of a product's depth one trip covers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt.operators import Nest
from superopt.program import DTYPE_BYTES, power_of_two
from superopt.transforms.schedule.triton_limits import SMALLEST_DOT

if TYPE_CHECKING:  # the cost model prices library operators with these tiles
    from superopt.cost.gpus import Target

# Elements in one tile of an elementwise kernel, and of a reduction.
_POINTS = 1024
_REDUCED = 4096
_COLUMNS = 64
# Elements in one tile of a copy that holds all of a dimension, and in a sector of 32 bytes.
_COPIED = 32 << 10
_SECTOR = 16
# Rows, columns and depth of a matrix product's tile, the largest first; f32 products run without tensor cores.
_MATMUL = (
    (128, 256, 64),
    (128, 128, 64),
    (128, 64, 64),
    (64, 64, 64),
    (64, 32, 64),
    (32, 32, 64),
    (16, 32, 128),
)
_MATMUL_F32 = ((64, 64, 32), (32, 64, 32), (32, 32, 32), (16, 32, 32))

# The share of multiprocessors that must get a block: smaller tiles would load their operands more often.
_BUSY = 0.9

# Operand tiles of a product that together exceed this are loaded part by part.
_DEEP_BYTES = 32 << 10

# Depth of one trip of a product; bytes that it may load, and bytes below which it may be deeper.
_DEPTH, _TRIP_BYTES, _NARROW_BYTES, _TRIPS = 64, 48 << 10, 24 << 10, 8


def default_tiles(nest: Nest, dtype: str, target: Target, *, contraction: bool) -> tuple[int, ...]:
    """Tile extent of every iteration dimension, at most the extent itself."""
    if contraction:
        return _matmul_tiles(nest, dtype, target)
    tiles = [1] * len(nest.extents)
    budget = _REDUCED if nest.reductions else _POINTS
    for dim in _by_contiguity(nest):
        want = budget // math.prod(map(power_of_two, tiles))
        if nest.reductions and dim not in nest.reductions:
            want = min(want, _COLUMNS)  # more blocks rather than wider ones
        if not nest.reductions and tiles[dim] == 1 and _transposed(nest):
            want = min(want, math.isqrt(_POINTS))
        tiles[dim] = min(nest.extents[dim], max(want, 1))
    return tuple(tiles)


def copy_tiles(extents: Sequence[int], dim: int, target: Target) -> list[int]:
    """Tile extents of a copy of `extents` elements in which each block copies all along `dim`.

    At once where a tile of rows of a sector or more holds all of it: then blocks alone take turns. Else trip by
    trip. The innermost dimensions are filled first; rows are shortened, to a sector or to 128 bytes or so, where
    a block for each multiprocessor would lack.
    """
    inner = len(extents) - 1
    width, least = min(extents[inner], _POINTS), _COLUMNS
    if dim != inner:
        rows = power_of_two(extents[dim])
        if rows * min(power_of_two(width), _SECTOR) <= _COPIED:
            least = _SECTOR
            width = min(width, max(_COPIED // rows, 1))
        blocks = math.prod(extents) // (extents[dim] * extents[inner])
        while width > least and blocks * math.ceil(extents[inner] / width) < target.multiprocessors:
            width = power_of_two(width) // 2
    tiles = [1] * len(extents)
    if least < _COLUMNS:
        tiles[dim] = extents[dim]
    tiles[inner] = width
    for d in dict.fromkeys((dim, *reversed(range(inner)))):
        if d != inner and tiles[d] == 1:
            tiles[d] = min(extents[d], max(_POINTS // math.prod(tiles), 1))
    return tiles


def _by_contiguity(nest: Nest) -> list[int]:
    """Iteration dimensions, innermost in memory first: by the operands, then by the result."""
    order: list[int] = []
    sides = [[i.dim for i in m] for m in nest.operands] + [list(nest.result)]
    if _transposed(nest):  # both sides' innermost dimensions come first
        order = [side[-1] for side in reversed(sides) if side and side[-1] is not None]
    for side in sides:
        order += [d for d in reversed(side) if d is not None]
    order += range(len(nest.extents))
    return list(dict.fromkeys(order))


def _transposed(nest: Nest) -> bool:
    inner = nest.result[-1] if nest.result else None
    return any(m and m[-1].dim not in (None, inner) for m in nest.operands) and not nest.reductions


def _matmul_tiles(nest: Nest, dtype: str, target: Target) -> tuple[int, ...]:
    """The largest tile that gives nearly every multiprocessor a block, or the smallest tile."""
    *batch, m, n, k = nest.extents
    tiles = (m, n, k)
    for rows, cols, depth in _MATMUL_F32 if dtype == "f32" else _MATMUL:
        rows, cols = min(rows, m), min(cols, n)
        if dtype != "f32" and k % _DEPTH == 0:
            depth = reduction_depth(k, k, (rows + cols) * DTYPE_BYTES[dtype])
        tiles = (rows, cols, min(depth, k))
        blocks = math.prod(batch) * math.ceil(m / tiles[0]) * math.ceil(n / tiles[1])
        if blocks >= _BUSY * target.multiprocessors:
            break
    return (*[1] * len(batch), *tiles)


def reduction_depth(depth: int, total: int, bytes_per_point: int) -> int:
    """How many of the `depth` points of a product one trip covers: a divisor of `depth`.

    64; less where the tiles of a trip would take too much shared memory; more for narrow tiles, which would
    keep too few bytes in flight, as long as several trips over all the `total` points remain.
    """
    if depth <= _DEPTH or (depth * bytes_per_point <= _NARROW_BYTES and total >= _TRIPS * depth):
        return depth
    deep = [
        d for d in (4 * _DEPTH, 2 * _DEPTH) if d * bytes_per_point <= _NARROW_BYTES and total >= _TRIPS * d
    ]
    plain = [d for d in (_DEPTH, _DEPTH // 2) if d * bytes_per_point <= _TRIP_BYTES]
    return next((d for d in (*deep, *plain, SMALLEST_DOT) if depth % d == 0), depth)


def product_step(depth: int, operand_bytes: int) -> int | None:
    """Depth of one trip of a product whose operands are loaded for it alone; None where one trip covers it."""
    if operand_bytes <= _DEEP_BYTES:
        return None
    steps = (_DEPTH, _DEPTH // 2, SMALLEST_DOT)
    return next((d for d in steps if depth % d == 0 and depth > d), None)
