"""Launches: the default warps and pipeline stages of a kernel, and the other choices."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.cost.gpus import WARP_THREADS, Target
from superopt.operators import is_contraction, primitive_of
from superopt.program import Compute, Load, Loop, Statement, Store, TileProgram, Value

# Elements of a tile that suit one warp; registers of a thread, of 255, that its tiles may take.
_ONE_WARP, _REGISTERS = 256, 112
MOST_WARPS = 16
MOST_STAGES = 6


def choose_launch(
    program: TileProgram, target: Target, num_warps: int | None, num_stages: int | None
) -> None:
    """Set the warps and pipeline stages of `program`; given ones are kept.

    One warp for tiles of at most 256 elements, four where the tiles leave a thread half of its registers, else
    eight; as many stages, up to four, as keep the tiles that a trip of a loop loads within shared memory.
    """
    program.num_warps = num_warps or _warps(program)
    program.num_stages = num_stages or _stages(program, target)


def _warps(program: TileProgram) -> int:
    return next((w for w in (1, 4) if _fits(program, w)), 8)


def _fits(program: TileProgram, warps: int) -> bool:
    """Whether `warps` warps have the registers for the tiles of `program`, and one warp not too many elements."""
    if warps == 1:
        return max((s.result.type.padded.elements for s in _results(program)), default=0) <= _ONE_WARP
    return registers(program, warps) <= _REGISTERS


def registers(program: TileProgram, warps: int) -> float:
    """32-bit registers of a thread that tiles take: all on chip, and the largest other one.

    Operands of products come from shared memory, and a product that is added to a tile on chip is summed there.
    """
    uses: dict[Value, list[Compute]] = {}
    for statement in program.statements():
        if isinstance(statement, Compute):
            for value in statement.operands:
                uses.setdefault(value, []).append(statement)
    on_chip: set[Value] = set()
    for statement in program.statements():
        if isinstance(statement, Load | Store) and statement.buffer.placement == "chip":
            on_chip.add(statement.result if isinstance(statement, Load) else statement.value)
    held = sum(b.type.padded.elements for b in program.locals if b.placement == "chip")
    largest = 0
    for statement in _results(program):
        used = uses.get(statement.result, [])
        from_memory = isinstance(statement, Load) and used and all(map(is_contraction, used))
        product = isinstance(statement, Compute) and is_contraction(statement)
        summed = product and len(used) == 1 and primitive_of(used[0]) == "add"
        if not (statement.result in on_chip or from_memory or (summed and held)):
            largest = max(largest, statement.result.type.padded.elements)
    return (held + largest) / (WARP_THREADS * warps)


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
                        if isinstance(s, Load) and s.buffer.in_memory
                    ),
                )
            most = max(most, inner)
    return most


def warp_choices(program: TileProgram) -> list[int]:
    """Powers of two for which the largest tile has enough elements."""
    largest = max((s.result.type.padded.elements for s in _results(program)), default=1)
    out = [1]
    while out[-1] < MOST_WARPS and 2 * out[-1] * WARP_THREADS <= largest:
        out.append(2 * out[-1])
    return out


def stage_choices(program: TileProgram, target: Target) -> list[int]:
    """The numbers that keep the loads of a trip within shared memory."""
    streamed = streamed_bytes(program.body)
    most = min(MOST_STAGES, target.shared_per_block // streamed) if streamed else 1
    return list(range(1, max(most, 1) + 1))
