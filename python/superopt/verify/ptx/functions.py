"""Library functions in PTX: what compilers inline for erf, log, sin and cos is found by what it computes.

These functions choose between polynomials by comparing numbers, which a field cannot do. `fold` runs a kernel's
text over expressions, joins the two ways around a branch to one choice, and puts one instruction, such as `@erf`,
for an expression that is a template's for some argument (`templates`). Regions that reduce large arguments in
loops over local memory are run as a whole (`regions`). Whatever else reads what is computed on the way keeps the
text as it is, and `decode` refuses its comparisons by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from superopt.verify.ptx.blocks import in_order
from superopt.verify.ptx.parser import Kernel, Line
from superopt.verify.ptx.regions import NoRegion, Region, is_address
from superopt.verify.ptx.templates import TEMPLATES, Expression, X

_PURE = frozenset(
    (
        "abs", "add", "and", "cvt", "ex2", "fma", "mov", "mul",
        "neg", "not", "or", "selp", "setp", "shl", "shr", "sub", "xor",
    )
)  # fmt: skip
_ROUNDINGS = frozenset(("rn", "ftz", "approx"))
_REGISTER = re.compile(r"%[\w$@]+(?:\.[xyz]\b)?")
_Span: TypeAlias = tuple[int, int]
"""The lines of a branch and of its label."""
_Path: TypeAlias = tuple[tuple[int, bool], ...]
"""Choices made since the last loop began: conditions and whether they held."""


@dataclass
class _Edge:
    """A way to a label: the branch's line (-1 for none), and what registers hold on it."""

    branch: int
    path: _Path
    held: dict[str, int]


@dataclass(frozen=True)
class _Match:
    """A function found: the number of its result, of its argument, and of the expressions on the way.

    Before line `place`, `register` gets the function of `source`.
    """

    function: str
    result: int
    argument: int
    own: frozenset[int]
    place: int
    register: str
    source: str


def fold(kernel: Kernel) -> Kernel:
    """The kernel with one instruction for each library function that is inlined in it."""
    if not any(n.opcode.startswith("setp.") and n.opcode.endswith(".f32") for n in kernel.lines):
        return kernel
    ordered = in_order(kernel)
    expressions = _Expressions(ordered)
    expressions.run()
    matches = expressions.matches
    while matches:
        removed, wrong = expressions.removal(matches)
        if not wrong:
            return _without(ordered, removed, matches)
        matches = [m for m in matches if not wrong & m.own]
    return kernel


def _without(kernel: Kernel, removed: set[int], matches: Sequence[_Match]) -> Kernel:
    put: dict[int, list[Line]] = {}
    for m in matches:
        number = kernel.lines[min(m.place, len(kernel.lines) - 1)].number
        put.setdefault(m.place, []).append(
            Line(number, "", False, f"@{m.function}.f32", (m.register, m.source))
        )
    lines: list[Line] = []
    moved: list[int] = []
    for i in range(len(kernel.lines) + 1):
        moved.append(len(lines))
        lines += put.get(i, [])
        if i < len(kernel.lines) and i not in removed:
            lines.append(kernel.lines[i])
    return replace(kernel, lines=lines, labels={n: moved[p] for n, p in kernel.labels.items()})


class _Expressions:
    """A kernel's text as expressions: equal ones have one number.

    Where two ways around a branch meet, a register that they set differently holds a choice. A loop's first line
    knows only the registers that are set once, before it.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.lines, self.labels, self.widths = kernel, kernel.lines, kernel.labels, kernel.widths
        self.matches: list[_Match] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._nodes: list[tuple[object, ...]] = []
        self._held: dict[str, int] = {}
        self._reads: list[list[int]] = []
        self._made: list[int | None] = []  # what a line computes; None for those that do more than that
        self._sites: dict[int, set[tuple[int, str]]] = {}  # where a number gets into which register
        self._spans: dict[int, set[_Span]] = {}  # of a choice
        self._regions: set[_Span] = set()  # those that were run as a whole
        self._holds: dict[str, set[int]] = {}  # whatever a register gets anywhere
        self._set = Counter(r for line in self.lines for r in _results(line))

    def run(self) -> None:
        """Number what every line computes, and find the functions."""
        at = set(self.labels.values())
        loops = {t for i, line in enumerate(self.lines) if 0 <= (t := self._target(line)) <= i}
        arriving: dict[int, list[_Edge]] = {}
        path: _Path | None = ()
        i = 0
        while i < len(self.lines):
            line = self.lines[i]
            if i in at:
                edges = arriving.pop(i, [])
                if path is not None:
                    edges.append(_Edge(-1, path, self._held))
                path = self._join(edges, i, loop=i in loops)
            if path is not None and (end := self._region(i, line)):
                i = end
                continue
            self._reads.append([self._operand(r) for r in _read(line, self.widths)])
            self._made.append(None)
            if line.opcode.startswith("bra"):
                path = self._branch(i, line, path, arriving)
            elif line.opcode == "ret" and not line.predicate:
                path = None
            else:
                self._line(i, line)
            i += 1

    def removal(self, matches: Sequence[_Match]) -> tuple[set[int], set[int]]:
        """The lines that these functions replace, and which of their expressions are needed all the same."""
        results = {m.result for m in matches}
        own = {n for m in matches for n in m.own}
        wrong = {
            n for n in results if self._sites[n] != {(m.place, m.register) for m in matches if m.result == n}
        }
        spans = {span for n in own for span in self._spans.get(n, ())}
        inside = {i for branch, label in spans for i in range(branch, label)}
        for n in own:
            for between in (range(*span) for span in self._spans.get(n, set()) - self._regions):
                if any(self._made[i] is None and not self.lines[i].opcode.startswith("bra") for i in between):
                    wrong.add(n)
        # What else is chosen by these branches loses what decides it.
        lost = {n for n, known in self._spans.items() if known & spans} - results
        removed = {i for i, made in enumerate(self._made) if made in own or self._helps(made, own)} | inside
        while True:
            read = {n for i, reads in enumerate(self._reads) if i not in removed for n in reads}
            read = self._needed(read | {m.argument for m in matches}, results)
            kept = {i for i in removed - inside if self._made[i] in read}
            if not kept:
                break
            removed -= kept
        computed = {self._made[i] for i in range(len(self.lines)) if i not in removed}
        wrong |= read & own - computed
        if read & lost:
            wrong |= own & self._spans.keys()
        return removed, wrong

    def _helps(self, made: int | None, own: set[int]) -> bool:
        """Whether a number is of use to removed lines only, where no other reads it: a condition, an address."""
        if made is None:
            return False
        head, *below = self._nodes[made]
        return (head == "not.pred" and below[0] in own) or is_address(self, made, self.kernel)

    def _needed(self, read: set[int], results: set[int]) -> set[int]:
        """These numbers, and what they may be: both ways of a choice, all that an unknown one's register gets.

        Not `results`, which are put into their registers whatever is removed.
        """
        found: set[int] = set()
        new = list(read)
        while new:
            n = new.pop()
            if n in found or n in results:
                continue
            found.add(n)
            match self._nodes[n]:
                case ("choice", _, int(yes), int(no)):
                    new += [yes, no]
                case ("unknown", str(register), _):
                    new += self._holds.get(register, ())
                case _:
                    pass
        return found

    def number(self, *node: object) -> int:
        """The number of an expression, which equal ones share: compilers negate conditions as they like."""
        match node:
            case (str(head), a, b) if ordered := _negated(head):
                return self.number("not.pred", self.number(ordered, a, b))
            case ("choice", int(c), yes, no) if (inner := self._inverse(c)) is not None:
                node = ("choice", inner, no, yes)
            case ("selp.b32", yes, no, int(c)) if (inner := self._inverse(c)) is not None:
                node = ("selp.b32", no, yes, inner)
            case _:
                pass
        if node not in self._numbers:
            self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
        return self._numbers[node]

    def _inverse(self, condition: int) -> int | None:
        """What a condition negates."""
        head, *below = self._nodes[condition]
        return below[0] if head == "not.pred" and isinstance(below[0], int) else None

    def node(self, number: int) -> tuple[object, ...]:
        """The expression that has a number."""
        return self._nodes[number]

    def _new(self, *node: object) -> int:
        self._nodes.append((*node, len(self._nodes)))
        return len(self._nodes) - 1

    def _operand(self, text: str) -> int:
        if text not in self.widths:
            return self.number(text)
        if text not in self._held:
            self._held[text] = self._new("unknown", text)
        return self._held[text]

    def _target(self, line: Line) -> int:
        return self.labels.get(line.operands[0], -1) if line.opcode.startswith("bra") else -1

    def _branch(
        self, i: int, line: Line, path: _Path | None, arriving: dict[int, list[_Edge]]
    ) -> _Path | None:
        target = self._target(line)
        condition, holds = self._condition(line) if line.predicate else (None, True)
        if path is not None and target > i:
            taken = path if condition is None else (*path, (condition, holds))
            arriving.setdefault(target, []).append(_Edge(i, taken, dict(self._held)))
        if condition is None or path is None:
            return None
        return (*path, (condition, not holds)) if target > i else path

    def _condition(self, line: Line) -> tuple[int, bool]:
        """What decides a line with a predicate, and whether it runs where that holds."""
        number, holds = self._operand(line.predicate), not line.negated
        while self._nodes[number][0] == "not.pred":
            (inner,) = self._nodes[number][1:]
            assert isinstance(inner, int)
            number, holds = inner, not holds
        return number, holds

    def _region(self, i: int, line: Line) -> int:
        """The end of the region that a branch starts, once what it computes is known; 0 where none was run."""
        if not line.predicate or self._target(line) <= i:
            return 0
        region = Region(self.kernel, i, self._target(line))
        if not region.loops_over_memory or not region.closed:
            return 0
        before = {r: self._operand(r) for n in region.lines for r in _read(n, self.widths)}
        try:
            found = region.run(self, self._operand, _name)
        except NoRegion:
            return 0
        span = (i, region.end)
        self._regions.add(span)
        self._reads += [list(before.values()), *([] for _ in region.lines[1:])]
        self._made += [None for _ in region.lines]
        for register, number in found.items():
            self._held[register] = number
            self._spans.setdefault(number, set()).add(span)
        for register, number in found.items():
            self._put(number, region.end, register)
        return region.end

    def _join(self, edges: Sequence[_Edge], position: int, *, loop: bool) -> _Path | None:
        """What registers hold where edges meet; a choice where they are the two ways around one branch."""
        if not edges:
            self._held = {}
            return () if loop else None
        names = {name for e in edges for name in e.held}
        found = {n: {e.held.get(n) for e in edges} for n in names}
        self._held = {
            n: v for n, (v, *more) in ((n, list(h)) for n, h in found.items()) if not more and v is not None
        }
        if loop:
            self._held = {n: v for n, v in self._held.items() if self._set[n] == 1}
            return ()
        common = 0
        while all(e.path[common : common + 1] == edges[0].path[common : common + 1] != () for e in edges):
            common += 1
        ends = sorted((e.path[common:] for e in edges), reverse=True)
        if len(edges) == 2 and [len(e) for e in ends] == [1, 1] and ends[0][0][0] == ends[1][0][0]:
            yes, no = sorted(edges, key=lambda e: not e.path[common][1])
            span = (min(e.branch for e in edges if e.branch >= 0), position)
            self._choose(ends[0][0][0], yes, no, span, sorted(names - self._held.keys()))
        return edges[0].path[:common]

    def _choose(
        self, condition: int, yes: _Edge, no: _Edge, span: tuple[int, int], names: Sequence[str]
    ) -> None:
        for name in names:
            ways = [e.held[name] if name in e.held else self._new("unknown", name) for e in (yes, no)]
            self._held[name] = self.number("choice", condition, *ways)
            self._spans.setdefault(self._held[name], set()).add(span)
        for name in names:
            self._put(self._held[name], span[1], name)

    def _line(self, i: int, line: Line) -> None:
        stem = line.opcode.split(".")[0]
        to = line.operands[0] if line.operands else ""
        if stem not in _PURE or to not in self.widths or any(o[0] in "{[" for o in line.operands):
            for register in _results(line):
                self._held[register] = self._new("result")
            return
        inputs = [self._operand(_word(o) if stem == "selp" else o) for o in line.operands[1:]]
        value = inputs[0] if stem == "mov" and inputs else self.number(_name(line), *inputs)
        if line.predicate:
            ways = [value, self._operand(to)]
            value = self.number("select", self._operand(line.predicate), *ways[:: -1 if line.negated else 1])
        self._held[to] = self._made[i] = value
        self._put(value, i, to)

    def _put(self, number: int, place: int, register: str) -> None:
        """A register gets a number before line `place`, or by it: the result of a function, perhaps."""
        self._sites.setdefault(number, set()).add((place, register))
        self._holds.setdefault(register, set()).add(number)
        for function, template in ((f, t) for f, templates in TEMPLATES.items() for t in templates):
            found: dict[int, int] = {}
            if template[0] != self._nodes[number][0] or not self._unify(template, number, found):
                continue
            argument = found[id(X)]
            source = next((n for n, held in self._held.items() if held == argument), None)
            if source is not None:
                own = frozenset(n for n in found.values() if n != argument and len(self._nodes[n]) > 1)
                self.matches.append(_Match(function, number, argument, own, place, register, source))

    def _unify(self, pattern: Expression, number: int, found: dict[int, int]) -> bool:
        """Whether the expression is the pattern's for some argument; `found` gets the numbers of its parts."""
        if id(pattern) in found:
            return found[id(pattern)] == number
        if pattern is not X:
            node = self._nodes[number]
            if node[0] != pattern[0] or len(node) != len(pattern):
                return False
            for part, inner in zip(pattern[1:], node[1:], strict=True):
                assert isinstance(part, tuple)
                assert isinstance(inner, int)
                if not self._unify(part, inner, found):
                    return False
        found[id(pattern)] = number
        return True


def _name(line: Line) -> str:
    """The opcode in expressions. A selection moves bits, whatever its type says."""
    name = ".".join(m for m in line.opcode.split(".") if m not in _ROUNDINGS)
    return "selp.b32" if name == "selp.f32" else name


def _word(text: str) -> str:
    """An immediate of 32 bits as it is written for fp32."""
    return f"0f{int(text) & 0xFFFFFFFF:08X}" if re.fullmatch(r"-?\d+", text) else text


_UNORDERED = {"ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt", "neu": "eq", "equ": "ne"}


def _negated(opcode: str) -> str:
    """The comparison that holds where this one, which holds for NaN, does not; empty for any other opcode."""
    stem, *parts = opcode.split(".")
    if stem != "setp" or len(parts) != 2 or parts[0] not in _UNORDERED:
        return ""
    return f"setp.{_UNORDERED[parts[0]]}.{parts[1]}"


def _results(line: Line) -> list[str]:
    """The registers that a line sets."""
    to = line.operands[0] if line.operands else ""
    return [] if to.startswith("[") or line.opcode.startswith("bra") else _REGISTER.findall(to)


def _read(line: Line, widths: Mapping[str, int]) -> list[str]:
    """The registers that a line may read: all that it names, but for the one that it surely only sets."""
    names = [r for o in line.operands for r in _REGISTER.findall(o) if r in widths]
    stem = line.opcode.split(".")[0]
    if names[:1] == list(line.operands[:1]) and not line.predicate and stem in {*_PURE, "ld", "shfl"}:
        names = names[1:]
    return [*names, line.predicate] if line.predicate else names
