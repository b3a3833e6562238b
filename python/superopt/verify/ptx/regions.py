"""What a region of PTX that loops over local memory computes, for `superopt.verify.ptx.functions`.

A region is the lines from a branch to its label. It is run on expressions: constants are folded, so that loops of
a known number of trips are unrolled; both ways around a branch on something else are followed to the region's
end. Local memory is a map of offsets. Whatever does more than compute from registers, local memory and constant
tables is no such region.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from superopt.verify.ptx.parser import Kernel, Line

MOST_STEPS = 400
"""Instructions on the way through a region; the reduction of a large argument takes 90."""
_DEPOT = re.compile(r"__local_depot\d+")
_ADDRESS = re.compile(r"\[\s*(%?[\w$@]+)\s*(?:\+\s*(-?\d+)\s*)?\]")
_INTEGER = re.compile(r"-?\d+")
_WORD = 4  # bytes


class Table(Protocol):
    """Expressions with numbers: equal ones have one."""

    def number(self, *node: object) -> int:
        """The number of an expression: an opcode and the numbers that it is applied to."""
        ...

    def node(self, number: int) -> tuple[object, ...]:
        """The expression."""
        ...


@dataclass
class _State:
    """What registers and local memory hold on the way, and the instruction that set the carry last."""

    held: dict[str, int] = field(default_factory=dict[str, int])
    memory: dict[int, int] = field(default_factory=dict[int, int])
    carry: int = -1

    def copy(self) -> _State:
        return _State(dict(self.held), dict(self.memory), self.carry)


class NoRegion(Exception):
    """The lines do something that is not run here."""


def is_address(table: Table, number: int, kernel: Kernel) -> bool:
    """Whether an expression is an address of local memory or of a constant table, and nothing else."""
    head, *below = table.node(number)
    if not below:
        return head in kernel.tables or bool(_DEPOT.fullmatch(str(head)))
    opcode = str(head).split(".")[0]
    return opcode in ("add", "cvt") and isinstance(below[0], int) and is_address(table, below[0], kernel)


class Region:
    """The lines from `start`, a branch, up to `end`, its label."""

    def __init__(self, kernel: Kernel, start: int, end: int) -> None:
        self.kernel, self.start, self.end = kernel, start, end
        self.lines: Sequence[Line] = kernel.lines[start:end]

    @property
    def loops_over_memory(self) -> bool:
        """Whether it is worth running: others are joined as they are."""
        return any(n.opcode.startswith("st.local") for n in self.lines)

    @property
    def closed(self) -> bool:
        """Whether nothing branches into it."""
        inside = {n for n, p in self.kernel.labels.items() if self.start < p < self.end}
        return not any(
            n.opcode.startswith("bra") and n.operands[0] in inside
            for i, n in enumerate(self.kernel.lines)
            if not self.start <= i < self.end
        )

    def run(
        self, table: Table, outer: Callable[[str], int], name: Callable[[Line], str]
    ) -> Mapping[str, int]:
        """What the registers that it sets hold at its end.

        `outer` is the number of a register before it or of a constant, `name` an opcode's in expressions.
        Raises NoRegion.
        """
        return _Run(self, table, outer, name).follow(self.start, _State(), 0)


class _Run:
    def __init__(
        self, region: Region, table: Table, outer: Callable[[str], int], name: Callable[[Line], str]
    ) -> None:
        self.region, self.table, self.outer, self.name = region, table, outer, name

    def follow(self, at: int, state: _State, steps: int) -> dict[str, int]:
        """From a line to the end."""
        lines, labels = self.region.kernel.lines, self.region.kernel.labels
        while at != self.region.end:
            steps += 1
            line = lines[at]
            if steps > MOST_STEPS or not self.region.start <= at < self.region.end:
                raise NoRegion
            if not line.opcode.startswith("bra"):
                self.execute(line, state)
                at += 1
                continue
            target = labels[line.operands[0]]
            if not line.predicate:
                at = target
                continue
            condition = self.value(line.predicate, state)
            if (known := self.constant(condition)) is not None:
                at = target if bool(known) != line.negated else at + 1
                continue
            if target <= at:
                raise NoRegion
            taken = self.follow(target, state.copy(), steps)
            passed = self.follow(at + 1, state.copy(), steps)
            return self.chosen(condition, *((passed, taken) if line.negated else (taken, passed)))
        return state.held

    def chosen(self, condition: int, yes: Mapping[str, int], no: Mapping[str, int]) -> dict[str, int]:
        """What registers hold where two ways meet."""
        found: dict[str, int] = {}
        for register in {**yes, **no}:
            a, b = (way[register] if register in way else self.outer(register) for way in (yes, no))
            found[register] = a if a == b else self.table.number("choice", condition, a, b)
        return found

    def value(self, text: str, state: _State) -> int:
        return state.held[text] if text in state.held else self.outer(text)

    def constant(self, number: int) -> int | None:
        node = self.table.node(number)
        return int(str(node[0])) if len(node) == 1 and _INTEGER.fullmatch(str(node[0])) else None

    def execute(self, line: Line, state: _State) -> None:
        """One instruction, no branch."""
        if line.predicate:
            raise NoRegion
        opcode, *_ = parts = line.opcode.split(".")
        if parts[:2] == ["st", "local"] and parts[2:] in (["b32"], ["u32"]):
            root, offset = self.place(self.address(line.operands[0], state))
            if not _DEPOT.fullmatch(root):
                raise NoRegion
            state.memory[offset] = self.value(line.operands[1], state)
            return
        to, *operands = line.operands
        if to not in self.region.kernel.widths:
            raise NoRegion
        if opcode == "ld":
            state.held[to] = self.loaded(parts, self.address(operands[0], state), state)
            return
        inputs = [self.value(o, state) for o in operands]
        match opcode:
            case "mov":
                state.held[to] = inputs[0]
            case "madc":
                if parts[1:] != ["hi", "u32"] or state.carry < 0:
                    raise NoRegion
                state.held[to] = self.table.number("madc.hi.u32", *inputs, state.carry)
            case "mad" if "cc" in parts:
                state.held[to] = state.carry = self.table.number(self.name(line), *inputs)
            case "add" | "setp" if None not in (numbers := [self.constant(n) for n in inputs]):
                state.held[to] = self.folded(parts, numbers[0] or 0, numbers[1] or 0)
            case "abs" | "add" | "and" | "cvt" | "fma" | "mul" | "neg" | "not" | "or" | "selp" | "setp":
                state.held[to] = self.table.number(self.name(line), *inputs)
            case "shf" | "shl" | "shr" | "sub" | "xor":
                state.held[to] = self.table.number(self.name(line), *inputs)
            case _:
                raise NoRegion

    def folded(self, parts: Sequence[str], a: int, b: int) -> int:
        """Of the small numbers that count trips and bytes."""
        if min(a, b) < 0 or max(a, b) >= 1 << 30:
            raise NoRegion
        opcode, condition = parts[:2]
        if opcode == "add":
            return self.table.number(str(a + b))
        known = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
        if condition not in known:
            raise NoRegion
        return self.table.number(str(int(known[condition])))

    def address(self, text: str, state: _State) -> tuple[int, int]:
        """Base and offset."""
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise NoRegion
        return self.value(found[1], state), int(found[2] or 0)

    def place(self, address: tuple[int, int]) -> tuple[str, int]:
        """The name of the memory that an address is in, and the offset."""
        number, offset = address
        while True:
            head, *below = self.table.node(number)
            opcode = str(head).split(".")[0]
            if not below:
                return str(head), offset
            if opcode == "cvt" and isinstance(below[0], int):
                number = below[0]
            elif opcode == "add" and isinstance(below[0], int) and isinstance(below[1], int):
                step = self.constant(below[1])
                if step is None:
                    raise NoRegion
                number, offset = below[0], offset + step
            else:
                raise NoRegion

    def loaded(self, parts: Sequence[str], address: tuple[int, int], state: _State) -> int:
        """A word of a constant table, or of local memory: a known one, or one below a base."""
        if parts[1] == "global" and parts[-1] in ("b32", "u32"):
            root, offset = self.place(address)
            held = self.region.kernel.tables.get(root, b"")[offset : offset + _WORD]
            if offset < 0 or len(held) != _WORD:
                raise NoRegion
            return self.table.number(str(int.from_bytes(held, "little")))
        if parts[1:] not in (["local", "b32"], ["local", "u32"]):
            raise NoRegion
        head, *below = self.table.node(address[0])
        if head != "sub.s32" or not isinstance(below[0], int):
            root, offset = self.place(address)
            if not _DEPOT.fullmatch(root) or offset not in state.memory:
                raise NoRegion
            return state.memory[offset]
        root, base = self.place((below[0], 0))
        words: list[int] = []
        while (at := base + _WORD * len(words)) in state.memory:
            words.append(state.memory[at])
        if not _DEPOT.fullmatch(root) or not words:
            raise NoRegion
        return self.table.number("local", below[1], self.table.number(str(address[1])), *words)
