"""The hot loop of a compiled kernel, and what its instructions are for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from superopt.cost import sass
from superopt.cost.sass import CLASSES, disassembled, instructions


@dataclass(frozen=True)
class Loop:
    """Instructions of one pass through the hot loop, by use; the whole kernel where it has no loop."""

    counts: dict[str, int]
    opcodes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def hot_loop(cubin: bytes) -> Loop:
    """What the hot loop is for; without one, the whole kernel, up to its end."""
    code = disassembled(cubin)
    body = sass.hot_loop(code) or instructions(code)
    opcodes = Counter(i.opcode for i in body)
    counts = {**dict.fromkeys((*CLASSES, "integer"), 0), **Counter(i.use for i in body)}
    counts["wait"] -= opcodes["NOP"]  # padding
    return Loop(counts, dict(opcodes))
