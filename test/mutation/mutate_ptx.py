"""Faults injected into PTX, as text: one instruction is changed, moved or dropped."""

from __future__ import annotations

import random
import re

_REGISTER = re.compile(r"%(?:rd|rs|r|p)\d+")
_ORDER = re.compile(
    r"bar\.|cp\.async\.(?:wait|commit)|fence\.|wgmma\.(?:fence|commit|wait)|tcgen05\.(?:wait|commit)|mbarrier\.|"
    r"@!complete"
)
_SWAPS = (
    ("operator", ("add.f32", "sub.f32", "mul.f32", "max.f32", "min.f32")),
    ("operator", ("ex2.approx.ftz.f32", "sqrt.approx.ftz.f32", "rsqrt.approx.ftz.f32", "lg2.approx.ftz.f32")),
    ("address", ("add.s32", "sub.s32")),
    ("address", ("and.b32", "or.b32", "xor.b32")),
    ("address", ("shl.b32", "shr.u32")),
    ("predicate", ("setp.lt", "setp.le", "setp.gt", "setp.ge", "setp.eq", "setp.ne")),
    ("predicate", ("and.pred", "or.pred")),
    ("fragment", (".trans.shared", ".shared")),
)


def mutate(text: str, generator: random.Random) -> tuple[str, str, str]:
    """One fault: its kind, what it is, and the text. Kinds are drawn first, so that rare ones are not drowned."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if ".reg" in line)
    end = next(i for i, line in enumerate(lines) if line.strip().startswith("ret"))
    sites: dict[str, list[tuple[int, str]]] = {}

    def site(kind: str, at: int, line: str) -> None:
        if line != lines[at]:
            sites.setdefault(kind, []).append((at, line))

    seen: dict[str, list[str]] = {}
    for at in range(start, end):
        line = lines[at].partition("//")[0]
        stripped = line.strip()
        if not stripped or stripped.startswith((".", "$", "{", "}")) or ";" not in stripped:
            continue
        if _ORDER.search(stripped):
            site("dropped order", at, "")
        elif re.match(r"(@!?%p\d+ )?(st\.|cp\.async|stmatrix|mma|wgmma\.mma|tcgen05\.(mma|st))", stripped):
            site("dropped", at, "")
        for kind, group in _SWAPS:
            for old in group:
                if old in line:
                    for new in group:
                        site(kind, at, line.replace(old, new, 1))
                    break
        if found := re.search(r"@(!?)(%p\d+)", line):
            site("predicate", at, line.replace(found[0], f"@{'' if found[1] else '!'}{found[2]}", 1))
            if "bra" not in line:
                site("predicate", at, line.replace(found[0], "", 1))
        for number in re.finditer(r"(?<=[\s,+])(-?\d+)(?=[\];,\s])", line):
            value = int(number[1])
            for new in (value + 1, value ^ 16, value * 2, value + 16, value ^ 128):
                site("number", at, f"{line[: number.start()]}{new}{line[number.end() :]}")
        if found := re.search(r"cp\.async\.wait_group\s+(\d+)", line):
            site("dropped order", at, line.replace(found[1], str(int(found[1]) + 1)))
        names = _REGISTER.findall(line)
        for i, name in enumerate(names):
            kind = name.rstrip("0123456789")
            for other in seen.get(kind, [])[-4:]:
                if other != name and i > 0:
                    place = [m.start() for m in _REGISTER.finditer(line)][i]
                    site("operand", at, line[:place] + other + line[place + len(name) :])
        if len(names) > 3 and "{" in line:
            a, b = names[1], names[2]
            swapped = line.replace(a, "%A", 1).replace(b, a, 1).replace("%A", b, 1)
            site("swapped", at, swapped)
        for name in names:
            seen.setdefault(name.rstrip("0123456789"), []).append(name)
    kind = generator.choice(sorted(sites))
    at, line = generator.choice(sites[kind])
    return (
        kind,
        f"line {at + 1}: {lines[at].strip()} -> {line.strip() or 'nothing'}",
        "\n".join([*lines[:at], line, *lines[at + 1 :]]),
    )
