"""Scratch as large as what one block uses of it.

    scratch[1048576, 2], each block at rows 64 * n .. 64 * n + 64   ->   scratch[64, 2], each block at row 0

A tile program's blocks share a buffer in device memory, each its own part. Kernels have one for each block, since
most are the block's alone: with the size of a whole tensor, these would soon fill the memory of a GPU.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from superopt.program import (
    Buffer,
    Compute,
    Load,
    Loop,
    LoopVar,
    Statement,
    Store,
    TensorType,
    TileProgram,
    Window,
    rebuild_statements,
)


def shrink_scratch(program: TileProgram) -> TileProgram:
    """`program` with its scratch cut to what each block uses, along dimensions where all accesses agree on it."""
    found: dict[Buffer, list[Sequence[Window]]] = {}
    for statement in program.statements():
        if isinstance(statement, Load | Store) and statement.buffer in program.locals:
            found.setdefault(statement.buffer, []).append(statement.windows)
    loops = [s for s in program.statements() if isinstance(s, Loop)]
    grid = {loop.var for loop in loops if loop.parallel}
    last = {loop.var: loop.start + (loop.trips - 1) * loop.step for loop in loops}
    shrunk: dict[Buffer, tuple[Buffer, tuple[int | None, ...]]] = {}
    for buffer, accesses in found.items():
        parts = [_part([w[d] for w in accesses], grid, last) for d in range(len(buffer.type.shape))]
        if buffer.placement == "device" and any(parts):
            shape = tuple(p[1] if p else e for p, e in zip(parts, buffer.type.shape, strict=True))
            small = Buffer(TensorType(shape, buffer.type.dtype), buffer.name, buffer.placement)
            shrunk[buffer] = small, tuple(p[0] if p else None for p in parts)

    def change(statement: Statement) -> list[Statement]:
        if isinstance(statement, Loop | Compute) or statement.buffer not in shrunk:
            return [statement]
        small, firsts = shrunk[statement.buffer]
        windows = tuple(
            w
            if first is None
            else replace(w, base=w.base - first, terms=tuple(t for t in w.terms if t[0] not in grid))
            for w, first in zip(statement.windows, firsts, strict=True)
        )
        return [replace(statement, buffer=small, windows=windows)]

    locals_ = [shrunk[b][0] if b in shrunk else b for b in program.locals]
    return replace(program, locals=locals_, body=rebuild_statements(program.body, change))


def _part(
    windows: Sequence[Window], grid: Container[LoopVar], last: Mapping[LoopVar, int]
) -> tuple[int, int] | None:
    """Where a block's windows along one dimension begin within its part, and how long that is.

    None where the blocks do not divide the dimension, or the windows do not agree how.
    """
    if len({frozenset(t for t in w.terms if t[0] in grid) for w in windows}) > 1:
        return None
    if not any(var in grid for w in windows for var, _ in w.terms):
        return None
    first = min(w.base for w in windows)
    end = max(
        w.base
        + sum(scale * last[var] for var, scale in w.terms if var not in grid)
        + (w.size - 1) * w.stride
        + 1
        for w in windows
    )
    return first, end - first
