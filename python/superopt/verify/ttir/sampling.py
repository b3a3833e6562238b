"""Some blocks of a kernel in place of all: what its node says they compute, and the matching instances.

Kernels too large to be evaluated whole run by themselves, on their own operands: a kernel that computes its node
for all operands does so for those that the kernels before it leave. The blocks are those at the
corners of the grid, where offsets and tails go wrong, and random others; the check of all addresses has
found which instance stores which element.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from superopt.aliasing import pairs
from superopt.program import Loop, Statement, TileProgram
from superopt.verify.domains import Array
from superopt.verify.ttir.memory import Buffer

if TYPE_CHECKING:
    from superopt.verify.ttir.check import KernelText


def some_blocks(program: TileProgram, drawn: random.Random | None) -> TileProgram | None:
    """`program` with at most two values of each parallel loop: the ends, or random ones from `drawn`.

    None where it is not just a nest of parallel loops, or where elements that blocks leave alone are results too.
    """
    if pairs(program.aliases) or not program.body:
        return None
    body = _cut(program.body, drawn)
    return None if body is None else replace(program, body=body)


def _cut(body: Sequence[Statement], drawn: random.Random | None) -> list[Statement] | None:
    if any(isinstance(s, Loop) and s.parallel for s in body) and len(body) > 1:
        return None
    (loop,) = body if len(body) == 1 else (None,)
    if not isinstance(loop, Loop) or not loop.parallel:
        return list(body)
    inner = _cut(loop.body, drawn)
    if inner is None:
        return None
    trips = math.ceil((loop.stop - loop.start) / loop.step)
    picked = {0, trips - 1} if drawn is None else {drawn.randrange(trips), drawn.randrange(trips)}
    first, last = (loop.start + i * loop.step for i in (min(picked), max(picked)))
    return [replace(loop, start=first, stop=last + 1, step=max(last - first, 1), body=inner)]


def instances_of(stored: Sequence[Buffer], places: Sequence[Array]) -> list[int]:
    """The instances that stored the elements at flat `places` of each buffer, in the last launch."""
    found = [np.unique(b.writers(at)) for b, at in zip(stored, places, strict=True)]
    numbers = np.unique(np.concatenate(found))
    return [int(n) for n in numbers if n >= 0]


def blocks_of(kernel: KernelText, seed: int) -> list[int]:
    """Blocks to compare PTX with TTIR by: the last, the last along each dimension alone, the first, a random one.

    Those of one dimension tell the block's numbers apart: the first and the last have them alike.
    """
    (x, y, z), count = kernel.grid, math.prod(kernel.grid)
    corners = {0, count - 1, x - 1, (y - 1) * x, (z - 1) * x * y}
    drawn_one = random.Random(f"{seed} {kernel.name} ptx").randrange(count)
    return list(dict.fromkeys([*sorted(corners, reverse=True), drawn_one]))
