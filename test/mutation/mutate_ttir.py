"""Faults injected into Triton IR, as text: one line is changed, or dropped."""

from __future__ import annotations

import random
import re

_GROUPS = (
    ("operator", ("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.maxnumf", "arith.minnumf")),
    ("operator", ("math.exp", "math.sqrt", "math.rsqrt", "math.log", "math.erf", "math.exp2")),
    ("offset", ("arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.remsi")),
    ("mask", ("slt", "sle", "sgt", "sge", "eq", "ne")),
    ("mask", ("arith.andi", "arith.ori", "arith.xori")),
    ("map", ("get_program_id x", "get_program_id y", "get_program_id z")),
    ("map", ("axis = 0", "axis = 1")),
    ("dtype", (" f16", " f32", " bf16")),
    ("dtype", ("xf16>", "xf32>", "xbf16>")),
)
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")


def mutate(text: str, generator: random.Random) -> tuple[str, str, str]:
    """One fault: its kind, what it is, and the text."""
    lines = [re.sub(r" loc\(#?\w*\)", "", line) for line in text.splitlines() if not line.startswith("#loc")]
    sites: list[tuple[str, int, str]] = []
    seen: dict[str, list[str]] = {}
    for n, line in enumerate(lines):
        if n < 2 or "tt.return" in line:
            continue
        for kind, group in _GROUPS:
            for old in group:
                if old in line:
                    sites += [(kind, n, line.replace(old, new, 1)) for new in group if new != old]
        if re.search(r"tt\.store|(?:gpu|ttg)\.barrier", line):
            sites.append(("barrier" if "barrier" in line else "dropped", n, ""))
        if match := re.search(r"(tt\.load %\S+), .*( : .*)", line):
            sites.append(("mask", n, line[: match.start()] + match[1] + match[2]))
        if match := re.search(r"(tt\.store %\S+, %[^,\s]+), \S+( : .*)", line):
            sites.append(("mask", n, line[: match.start()] + match[1] + match[2]))
        if "arith.constant" in line and (number := re.search(r"(-?\d+(?:\.\d+E?[+-]?\d*)?)(?=>? :)", line)):
            integer = "." not in number[1]
            for new in [int(number[1]) + 1, int(number[1]) - 1, 0] if integer else ["0.0", "1.0", "-2.5"]:
                changed = line[: number.start(1)] + str(new) + line[number.end(1) :]
                sites.append(("offset" if integer else "start", n, changed))
        if match := re.search(r"(end|start) = (\d+)", line):
            for new in (int(match[2]) + 1, int(match[2]) + 2):
                sites.append(("offset", n, line[: match.start(2)] + str(new) + line[match.end(2) :]))
        kind_of_line = line.rpartition(" : ")[2]
        head, equals, tail = line.partition(" = ")
        used = _VALUE.findall(tail.partition(" : ")[0] if equals else line)
        for name in used:
            for other in seen.get(kind_of_line, [])[-6:]:
                if other != name:
                    place = line.index(name, len(head) if equals else 0)
                    sites.append(("operand", n, line[:place] + other + line[place + len(name) :]))
        if equals and ":" not in head:
            seen.setdefault(kind_of_line, []).append(head.strip())
    sites = [s for s in sites if lines[s[1]] != s[2]]
    groups: dict[str, list[tuple[str, int, str]]] = {}
    for site in sites:
        groups.setdefault(site[0], []).append(site)
    kind, n, changed = generator.choice(groups[generator.choice(sorted(groups))])
    what = f"{lines[n].strip()} -> {changed.strip() or 'dropped'}"
    lines[n] = changed
    return kind, what, "\n".join(lines) + "\n"
