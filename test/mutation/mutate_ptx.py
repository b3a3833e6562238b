"""Faults injected into PTX, as text: one instruction is changed, moved or dropped."""

from __future__ import annotations

import random
import re

_REGISTER = re.compile(r"%(?:rd|rs|r|p)\d+")
_ORDERS = (
    ("dropped barrier", re.compile(r"bar\.|mbarrier\.(?:init|inval)")),
    ("dropped fence", re.compile(r"fence\.|wgmma\.fence|tcgen05\.fence")),
    (
        "dropped wait",
        re.compile(
            r"cp\.async\.(?:wait|commit)|wgmma\.(?:commit|wait)|tcgen05\.(?:wait|commit)|mbarrier\.|@!complete"
        ),
    ),
)
ORDERS = frozenset(kind for kind, _ in _ORDERS)
_STORE = re.compile(r"(?:@!?%p\d+ )?(st\.(?:shared|global)[\w.:]*)\s+\[[^\]]*\], (.*);")
_SWIZZLED = re.compile(r"(?:xor|and|or)\.b(?:32|64)\s.*[\s,](-?\d+);|mov\.b64\s.*[\s,](\d{9,});")
_SWIZZLE_BITS = (4, 5, 6, 7)
_DESCRIPTOR_BITS = (14, 16, 32, 46, 61, 62)
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
    sites: dict[str, list[dict[int, str]]] = {}

    def site(kind: str, at: int, line: str) -> None:
        if line != lines[at]:
            sites.setdefault(kind, []).append({at: line})

    seen: dict[str, list[str]] = {}
    stores: dict[str, tuple[int, str]] = {}  # the last of each kind, and what it stores
    for at in range(start, end):
        line = lines[at].partition("//")[0]
        stripped = line.strip()
        if not stripped or stripped.startswith((".", "$", "{", "}")) or ";" not in stripped:
            continue
        order = next((kind for kind, pattern in _ORDERS if pattern.search(stripped)), "")
        if order:
            site(order, at, "")
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
        if found := _SWIZZLED.search(line):
            old = found[1] or found[2]
            bits = _SWIZZLE_BITS if len(old) < 9 else _DESCRIPTOR_BITS
            for bit in bits:
                new = int(old) ^ 1 << bit
                site("swizzle", at, f"{line[: found.start(found.lastindex or 0)]}{new};")
        if found := _STORE.match(stripped):
            before, value = stores.get(found[1], (at, found[2]))
            if value != found[2]:
                changed = {before: lines[before].replace(value, found[2]), at: line.replace(found[2], value)}
                sites.setdefault("swapped stores", []).append(changed)
            stores[found[1]] = at, found[2]
        if found := re.search(r"cp\.async\.wait_group\s+(\d+)", line):
            site("dropped wait", at, line.replace(found[1], str(int(found[1]) + 1)))
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
    changed = generator.choice(sites[kind])
    what = "; ".join(
        f"line {n + 1}: {lines[n].strip()} -> {v.strip() or 'nothing'}" for n, v in changed.items()
    )
    return kind, what, "\n".join(changed.get(n, line) for n, line in enumerate(lines))
