"""Faults injected into PTX, as text: one instruction is changed, moved or dropped."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence

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
_GRID = re.compile(r"griddepcontrol\.(wait|launch_dependents)")
_TESTED = re.compile(r"mbarrier\.try_wait[^;]*;")
_AGAIN = re.compile(r"@!(%?\w+)\s+bra(?:\.uni)?\s+([\w$]+);")
_MOST_TESTS = 3
BOUNDED, EARLY, ONCE, MOVED = "bounded wait", "early start", "left out once", "moved order"
ORDERS = frozenset([*(kind for kind, _ in _ORDERS), BOUNDED, EARLY, ONCE, MOVED])
_LEAST_STRIDE = 512  # bytes; lanes and columns of a tile have smaller ones
_FARTHEST = 12  # lines by which an order is moved
_INSTRUCTION = re.compile(r"\s*(?:@!?%\w+\s+)?[a-z][\w.:]*\s[^;{}]*(?:\{[^}]*\}[^;{}]*)*;\s*(?://.*)?$")
_ACCESS = re.compile(r"\b(?:ld|st)\.|matrix|mma|cp\.|bar\.|mbarrier|fence|griddep|tcgen05")
_PLAIN = re.compile(r"\s*[a-z][\w.:]*(?:\s[^;@]*)?;\s*$")
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
    ("type", (".tf32.tf32.", ".f16.f16.", ".bf16.bf16.", ".e4m3.e4m3.", ".e5m2.e5m2.")),
    ("type", ("e4m3x2", "e5m2x2")),
    ("type", ("kind::tf32", "kind::f16", "kind::f8f6f4")),
    ("atomic", (".add.", ".min.", ".max.")),
    ("tensor map", tuple(f"tile.{field}." for field in ("box_dim", "global_dim", "element_stride"))),
    ("tensor map", tuple(f"tile.{field}." for field in ("rank", "elemtype", "swizzle_mode", "fill_mode"))),
)
_WIDE = re.compile(r"(mul\.wide|mad\.wide)\.([su])32\s+(%rd\d+), (%r\d+), ([^,;]+)(?:, ([^;]+))?;")
_EXTENDED = re.compile(r"cvt\.([su])64\.([su])32")
_PHASE = re.compile(r"(mbarrier\.(?:try_)?(?:test_)?wait\.parity[^;]*\], )(%r\d+|\d+)(;|,)")
_EXPECTED = re.compile(r"(mbarrier\.arrive\.expect_tx[^;]*, )(\d+)(\s*;)")
_FRAGMENTS = re.compile(r"\{(%r\w+(?:, ?%r\w+)+)\}")
_NAMED = re.compile(r"(bar(?:rier)?\.(?:cta\.)?(?:sync|arrive)[\w.]*\s+)(\d+)(?:\s*,\s*(\d+))?;")
_BULK = re.compile(
    r"cp\.(?:reduce\.)?async\.bulk|tensormap\.|mbarrier\.arrive\.expect_tx|fence\.proxy\.tensormap|red\.|atom\."
)
_ARGUMENT = re.compile(r"ld\.param\.b64\s+(%rd\d+), \[\w+_param_\d+\];")
_RESULT = re.compile(r"(?:add|sub|or|xor|and|mul\.lo|mad\.lo|shl)\.[bsu](?:32|64)\s+(%rd?\d+), ")


def without_orders(text: str) -> Iterator[str]:
    """A kernel without each of its waits, fences and barriers."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if any(pattern.search(line.partition("//")[0]) for _, pattern in _ORDERS):
            yield "\n".join([*lines[:at], "", *lines[at + 1 :]])


def _in_one_block(line: str, register: str, dimension: str, block: int) -> str:
    """A line and a fault of what it computes, in blocks of one number alone."""
    bits = "64" if register.startswith("%rd") else "32"
    return (
        f"{line}\n{{ .reg .pred %odd; .reg .b32 %at; mov.u32 %at, %ctaid.{dimension}; setp.eq.s32 %odd, %at, {block}; "
        f"@%odd add.s{bits} {register}, {register}, 16; }}"
    )


def bounded_waits(lines: Sequence[str]) -> Iterator[dict[int, str]]:
    """Loops that wait for an mbarrier, to end after some tests whatever these say: unrolled, or counted."""
    for at, line in enumerate(lines):
        back = _AGAIN.search(line)
        test = next((n for n in range(at - 1, max(at - 4, -1), -1) if _TESTED.search(lines[n])), None)
        if back is None or test is None:
            continue
        label = next(
            (n for n in range(test, -1, -1) if re.match(rf"\s*{re.escape(back[2])}:", lines[n])), None
        )
        tested = _TESTED.search(lines[test])
        if label is None or tested is None:
            continue
        for times in range(1, _MOST_TESTS + 1):
            yield {at: " ".join([tested[0]] * (times - 1))}
        counted = "add.s32 %tests, %tests, 1; setp.lt.s32 %more, %tests, {}; @%more bra {};"
        start = f"{{ .reg .pred %more; .reg .b32 %tests; mov.b32 %tests, 0;\n{lines[label]}"
        for times in range(2, _MOST_TESTS + 1):
            yield {label: start, at: counted.format(times, back[2]) + " }"}


def early_starts(lines: Sequence[str]) -> Iterator[dict[int, str]]:
    """A wait for the kernel before dropped, behind each access of device memory or in some threads; starts of the next."""
    found = {m[1]: at for at, line in enumerate(lines) if (m := _GRID.search(line.partition("//")[0]))}
    for at in found.values():
        yield {at: ""}
    if (wait := found.get("wait")) is None:
        return
    for at in range(wait + 1, len(lines)):
        if re.search(r"\b(?:ld|st|cp\.async\S*)\.\S*global", lines[at]) and "cvta" not in lines[at]:
            yield {wait: "", at: f"{lines[at]}\n{lines[wait]}"}
    for some in ("setp.lt.u32 %some, %at, 32", "setp.ne.u32 %some, %at, 0"):
        yield {
            wait: f"{{ .reg .pred %some; .reg .b32 %at; mov.u32 %at, %tid.x; {some}; @%some griddepcontrol.wait; }}"
        }
    yield {wait: "griddepcontrol.launch_dependents;"}
    yield {wait: f"griddepcontrol.launch_dependents;\n{lines[wait]}"}


def left_out_once(lines: Sequence[str], start: int, end: int) -> Iterator[dict[int, str]]:
    """Waits, fences and barriers that are left out when they come for the first, second or third time."""
    first = next(i for i in range(start, end) if _PLAIN.match(lines[i]) and ".reg" not in lines[i])
    for at in range(first + 1, end):
        if not _PLAIN.match(lines[at]) or not any(pattern.search(lines[at]) for _, pattern in _ORDERS):
            continue
        for turn in range(1, _MOST_TESTS + 1):
            counted = "{{ .reg .pred %due; add.s32 %turn, %turn, 1; setp.ne.s32 %due, %turn, {}; @%due {} }}"
            yield {
                first: f".reg .b32 %turn; mov.b32 %turn, 0;\n{lines[first]}",
                at: counted.format(turn, lines[at].strip()),
            }


def moved_orders(lines: Sequence[str], start: int, end: int) -> Iterator[dict[int, str]]:
    """Waits, fences and barriers that come later or earlier by some instructions, accesses or products among them."""
    for at in range(start, end):
        if not _INSTRUCTION.match(lines[at]) or not any(pattern.search(lines[at]) for _, pattern in _ORDERS):
            continue
        for step in (1, -1):
            passed = False
            for to in range(at + step, at + step * _FARTHEST, step):
                if not start < to < end or not _INSTRUCTION.match(lines[to]) or "bra" in lines[to]:
                    break
                passed |= bool(_ACCESS.search(lines[to]))
                both = (lines[to], lines[at]) if step > 0 else (lines[at], lines[to])
                if passed:
                    yield {at: "", to: "\n".join(both)}


def wrong_widths(line: str) -> Iterator[str]:
    """Offsets of 64 bits of the other sign, and those of a stride that are computed in 32 bits."""
    if found := _WIDE.search(line):
        stem, sign, to, by, times, plus = found.groups()
        yield line.replace(f"{stem}.{sign}32", f"{stem}.{'u' if sign == 's' else 's'}32")
        if times.isdigit() and int(times) < _LEAST_STRIDE:
            return
        added = f"add.s64 {to}, {to}, {plus};" if plus else ""
        narrow = f"mul.lo.s32 %low, {by}, {times}; cvt.{sign}64.{sign}32 {to}, %low; {added}"
        yield line.replace(found[0], f"{{ .reg .b32 %low; {narrow} }}")
    if found := _EXTENDED.search(line):
        yield line.replace(found[0], "cvt.u64.u32" if found[1] == "s" else "cvt.s64.s32")


def wrong_phases(line: str) -> Iterator[str]:
    """Waits for an mbarrier's other phase, and other numbers of bytes that it expects."""
    if (found := _PHASE.search(line)) and "@" not in line:
        other = f"xor.b32 %phase, {found[2]}, 1;"
        changed = line.replace(found[0], f"{found[1]}%phase{found[3]}")
        yield f".reg .b32 %phase; {other} {changed.strip()}"
    if found := _EXPECTED.search(line):
        for expected in (int(found[2]) - 16, int(found[2]) + 16, int(found[2]) * 2, int(found[2]) // 2):
            yield line.replace(found[0], f"{found[1]}{expected}{found[3]}")


def swapped_fragments(line: str) -> Iterator[str]:
    """Two registers of one fragment of a product or of a matrix that is loaded or stored, and whole operands."""
    if not re.search(r"\b(?:mma|ldmatrix|stmatrix|wgmma\.mma|tcgen05\.(?:ld|st))", line):
        return
    lists = list(_FRAGMENTS.finditer(line))
    for found in lists:
        names = re.split(r",\s*", found[1])
        for i in range(min(len(names) - 1, 8)):
            other = [*names[:i], names[i + 1], names[i], *names[i + 2 :]]
            yield f"{line[: found.start(1)]}{', '.join(other)}{line[found.end(1) :]}"
    for a, b in itertools.pairwise(lists[1:]):
        if a[1].count(",") == b[1].count(","):
            yield f"{line[: a.start(1)]}{b[1]}{line[a.end(1) : b.start(1)]}{a[1]}{line[b.end(1) :]}"


def mutate(
    text: str,
    generator: random.Random,
    grid: tuple[int, int, int] = (1, 1, 1),
    kinds: frozenset[str] = frozenset(),
) -> tuple[str, str, str] | None:
    """One fault: its kind, what it is, and the text. Kinds are drawn first, so that rare ones are not drowned.

    In a `grid` of several blocks, some are faults of one block, or of those that have one of its numbers. None where
    the text has no place for any of `kinds`, if some are given.
    """
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if ".reg" in line)
    end = next(i for i, line in enumerate(lines) if line.strip().startswith("ret"))
    sites: dict[str, list[dict[int, str]]] = {}

    def site(kind: str, at: int, line: str) -> None:
        if line != lines[at]:
            sites.setdefault(kind, []).append({at: line})

    for kind, faults in (
        (BOUNDED, bounded_waits(lines)),
        (EARLY, early_starts(lines)),
        (ONCE, left_out_once(lines, start, end)),
        (MOVED, moved_orders(lines, start, end)),
    ):
        if some := list(faults):
            sites[kind] = some
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
        if _BULK.search(stripped):
            site("dropped copy, map or atomic", at, "")
        if (found := _NAMED.search(line)) and not order.startswith("dropped wait"):
            site(
                "named barrier",
                at,
                line.replace(found[0], f"{found[1]}{int(found[2]) + 1}{f', {found[3]}' * bool(found[3])};"),
            )
            count = int(found[3] or 128)
            site("named barrier", at, line.replace(found[0], f"{found[1]}{found[2]}, {count - 32};"))
        if (found := _ARGUMENT.search(line) or _RESULT.search(line)) and "@" not in line and max(grid) > 1:
            name, extent = generator.choice([(d, n) for d, n in zip("xyz", grid, strict=True) if n > 1])
            site("one block", at, _in_one_block(line, found[1], name, generator.randrange(extent)))
        for kind, faults in (
            ("width", wrong_widths(line)),
            ("phase", wrong_phases(line)),
            ("fragments", swapped_fragments(line)),
        ):
            for changed in faults:
                site(kind, at, changed)
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
    if kinds:
        sites = {kind: some for kind, some in sites.items() if kind in kinds}
    if not sites:
        return None
    kind = generator.choice(sorted(sites))
    changed = generator.choice(sites[kind])
    what = "; ".join(
        f"line {n + 1}: {lines[n].strip()} -> {' '.join(v.split()) or 'nothing'}" for n, v in changed.items()
    )
    return kind, what, "\n".join(changed.get(n, line) for n, line in enumerate(lines))
