"""The hot loop of a compiled kernel, and what its instructions are for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.listings import disassembled

# Opcodes of the machine, by their use; what none of these begins is "integer": addresses, counters, moves.
CLASSES = {
    "matrix": ("HMMA", "HGMMA", "UTCHMMA", "UTCQMMA", "FFMA2"),
    "copy": ("LDGSTS", "UTMALDG", "LDGDEPBAR", "UBLKCP"),
    "global": ("LDG", "STG", "LD.", "ST."),
    "shared": ("LDSM", "LDS", "STS", "STSM", "SHFL", "LDTM", "STTM", "LDT"),
    "float": ("FADD", "FMUL", "FFMA", "FMNMX", "FSETP", "FSEL", "MUFU", "HADD2", "HMUL2", "HFMA2", "FMNMX3",
              "F2F", "F2FP", "I2F", "F2I", "HMNMX2"),
    "wait": ("BAR", "DEPBAR", "WARPSYNC", "WARPGROUP", "WARPGROUPARRIVE", "WARPGROUPDEPBAR", "SYNCS", "FENCE",
             "NOP", "BSSY", "BSYNC", "NANOSLEEP", "ERRBAR", "MEMBAR", "CCTL", "UTCBAR"),
}  # fmt: skip
_OF = {op: name for name, ops in CLASSES.items() for op in ops}


@dataclass(frozen=True)
class Loop:
    """Instructions of one pass through the hot loop, by use; the whole kernel where it has no loop."""

    counts: dict[str, int]
    opcodes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def hot_loop(cubin: bytes) -> Loop:
    """The innermost loop with the most matrix instructions; without any, the one with the most instructions."""
    lines = _instructions(cubin)
    at = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    loops: list[tuple[int, int]] = []
    for i, line in enumerate(lines):
        jump = re.search(r"\bBRA\b.*`\((\S+)\)", line)
        if jump and jump[1] in at and (start := at[jump[1]]) < i and _reaches(lines[start : i + 1]):
            loops.append((start, i + 1))
    counted = {span: _counted(lines[slice(*span)]) for span in loops}
    busy = {span for span, body in counted.items() if body.counts["matrix"]} or set(loops)
    inner = [a for a in busy if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in busy)]
    return max([counted[a] for a in inner] or [_counted(lines)], key=lambda b: (b.counts["matrix"], b.total))


def _reaches(body: Sequence[str]) -> bool:
    """A loop of the program, not the endless one behind its end."""
    return sum(not line.endswith(":") for line in body) > 1


def _counted(lines: Sequence[str]) -> Loop:
    opcodes: Counter[str] = Counter()
    counts: Counter[str] = Counter(dict.fromkeys((*CLASSES, "integer"), 0))
    for line in lines:
        if line.endswith(":"):
            continue
        opcode = re.sub(r"^@!?U?P\w+\s+", "", line).split()[0].rstrip(";")
        opcodes[opcode] += 1
        counts[_OF.get(opcode.split(".")[0], "integer")] += 1
    counts["wait"] -= opcodes["NOP"]  # padding
    return Loop(dict(counts), dict(opcodes))


def _instructions(cubin: bytes) -> list[str]:
    """Instructions and labels of the kernel, as nvdisasm prints them."""
    out: list[str] = []
    for line in disassembled(cubin).splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            out.append(label[1] + ":")
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;", line):
            out.append(instruction[1])
    return out
