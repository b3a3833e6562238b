"""Default tile sizes and launch parameters: what a schedule decides when nobody decided it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from superopt.cost.gpus import Target
from superopt.operators import Nest
from superopt.program import (
    DTYPE_BYTES,
    Compute,
    Load,
    Loop,
    Statement,
    Store,
    TileProgram,
    Value,
    power_of_two,
)

# Elements that one tile of an elementwise kernel and of a reduction holds.
_POINTS = 1024
_REDUCED = 4096
_COLUMNS = 64
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

# Elements of a tile that one warp computes well; registers of a thread, of 255, that its tiles may take.
_ONE_WARP, _REGISTERS = 256, 112

# Depth of one trip of a product; bytes that it may load, and below which it may be deeper.
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


def _by_contiguity(nest: Nest) -> list[int]:
    """Iteration dimensions, those first that are innermost in memory: in operands, then in the result."""
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
    """The largest tile that gives every multiprocessor a block; the smallest where none does."""
    *batch, m, n, k = nest.extents
    tiles = (m, n, k)
    for rows, cols, depth in _MATMUL_F32 if dtype == "f32" else _MATMUL:
        rows, cols = min(rows, m), min(cols, n)
        if dtype != "f32" and k % _DEPTH == 0:
            depth = reduction_depth(k, k, (rows + cols) * DTYPE_BYTES[dtype])
        tiles = (rows, cols, min(depth, k))
        blocks = math.prod(batch) * math.ceil(m / tiles[0]) * math.ceil(n / tiles[1])
        if blocks >= target.multiprocessors:
            break
    return (*[1] * len(batch), *tiles)


def reduction_depth(depth: int, total: int, bytes_per_point: int) -> int:
    """How much of `depth` points of a product's depth one trip takes: a divisor of it.

    64, less where the tiles of a trip would take too much of shared memory; more for narrow tiles, of which too
    few bytes would be in flight, as long as there are some trips over all the `total` points.
    """
    if depth <= _DEPTH or (depth * bytes_per_point <= _NARROW_BYTES and total >= _TRIPS * depth):
        return depth
    deep = [
        d for d in (4 * _DEPTH, 2 * _DEPTH) if d * bytes_per_point <= _NARROW_BYTES and total >= _TRIPS * d
    ]
    plain = [d for d in (_DEPTH, _DEPTH // 2) if d * bytes_per_point <= _TRIP_BYTES]
    return next((d for d in (*deep, *plain, 16) if depth % d == 0), depth)


def choose_launch(
    program: TileProgram, target: Target, num_warps: int | None, num_stages: int | None
) -> None:
    """Set the warps and pipeline stages of `program`; those given are taken as they are.

    One warp for tiles of at most 256 elements, four where the tiles leave a thread half of its registers, else
    eight; as many stages, up to four, as keep the tiles that a trip of a loop loads within shared memory.
    """
    program.num_warps = num_warps or _warps(program)
    program.num_stages = num_stages or _stages(program, target)


def _warps(program: TileProgram) -> int:
    return next((w for w in (1, 4) if _fits(program, w)), 8)


def _fits(program: TileProgram, warps: int) -> bool:
    """Whether so many warps have the registers for the tiles of `program`, and one warp not too many elements."""
    if warps == 1:
        return max((s.result.type.padded.elements for s in _results(program)), default=0) <= _ONE_WARP
    return registers(program, warps) <= _REGISTERS


def registers(program: TileProgram, warps: int) -> float:
    """32-bit registers of a thread that tiles take: all on chip, and the largest other one.

    Operands of products come from shared memory, and a product that is added to a tile on chip is summed there.
    """
    uses: dict[Value, list[str]] = {}
    for statement in program.statements():
        if isinstance(statement, Compute):
            for value in statement.operands:
                uses.setdefault(value, []).append(statement.op)
    on_chip: set[Value] = set()
    for statement in program.statements():
        if isinstance(statement, Load | Store) and statement.buffer.placement == "chip":
            on_chip.add(statement.result if isinstance(statement, Load) else statement.value)
    held = sum(b.type.padded.elements for b in program.locals if b.placement == "chip")
    largest = 0
    for statement in _results(program):
        used = uses.get(statement.result, [])
        from_memory = isinstance(statement, Load) and set(used) == {"matmul"}
        summed = isinstance(statement, Compute) and statement.op == "matmul" and used == ["add"]
        if not (statement.result in on_chip or from_memory or (summed and held)):
            largest = max(largest, statement.result.type.padded.elements)
    return (held + largest) / (32 * warps)


def _results(program: TileProgram) -> list[Compute | Load]:
    return [s for s in program.statements() if isinstance(s, Compute | Load)]


def _stages(program: TileProgram, target: Target) -> int:
    streamed = streamed_bytes(program.body)
    return max(1, min(4, int(0.9 * target.shared_per_block) // streamed)) if streamed else 2


def streamed_bytes(body: Sequence[Statement]) -> int:
    """Bytes of the tiles that one trip of the innermost loops loads."""
    most = 0
    for statement in body:
        if isinstance(statement, Loop):
            inner = streamed_bytes(statement.body)
            if not statement.parallel:
                inner = max(
                    inner,
                    sum(
                        s.result.type.padded.bytes
                        for s in statement.body
                        if isinstance(s, Load) and s.buffer.placement == "device"
                    ),
                )
            most = max(most, inner)
    return most
