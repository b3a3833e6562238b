"""Quasi-affine expressions of iteration dimensions: what a nest without a name reads, and where.

    d0 + 2 * d3 - 1                     affine
    5 * (d2 floordiv 7) + d2 mod 7      floors by positive constants, nested as deep as need be

A `Read` is what is read at each point of a box: one expression for each dimension of an operand, and a guard, in
disjunctive form: `d2 >= 3 and 7 - d3 >= 0 or d2 mod 2 == 0`. Where the guard fails, or an index is outside of
the operand, it is 0. Expressions are linear in dimensions and in floors, which are numbered behind the
dimensions, each of those before it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from superopt.errors import IllegalProgram

# Floors of one read, and characters of a text.
MOST_FLOORS = 256
MOST_TEXT = 1 << 16


@dataclass(frozen=True)
class Linear:
    """`constant + sum of coefficient * (dimension or floor)`, by ascending number, without zeros."""

    constant: int = 0
    terms: tuple[tuple[int, int], ...] = ()

    def plus(self, other: Linear, times: int = 1) -> Linear:
        """`self + times * other`."""
        found = dict(self.terms)
        for d, c in other.terms:
            found[d] = found.get(d, 0) + times * c
        kept = tuple(sorted((d, c) for d, c in found.items() if c))
        return Linear(self.constant + times * other.constant, kept)

    def times(self, factor: int) -> Linear:
        """A multiple."""
        return Linear().plus(self, factor)

    def at(self, point: Mapping[int, Any]) -> Any:
        """Its value where dimensions and floors have these, numbers or arrays."""
        return sum((c * point[d] for d, c in self.terms), self.constant)


@dataclass(frozen=True)
class Floor:
    """`floor(of / divisor)`."""

    of: Linear
    divisor: int


@dataclass(frozen=True)
class Condition:
    """`of >= 0`, or `of == 0`."""

    of: Linear
    equal: bool = False


# Any of these holds, each of which is several that all hold: () is never, ((),) always.
Guard: TypeAlias = tuple[tuple[Condition, ...], ...]
ALWAYS: Guard = ((),)


@dataclass(frozen=True)
class Read:
    """Indices and a guard over `rank` dimensions; floors have the numbers from `rank` on."""

    rank: int
    floors: tuple[Floor, ...] = ()
    index: tuple[Linear, ...] = ()
    guard: Guard = ALWAYS

    def completed(self, point: Mapping[int, Any]) -> dict[int, Any]:
        """A point with the values of the floors, of those whose dimensions it has."""
        full = dict(point)
        for n, floor in enumerate(self.floors):
            if all(d in full for d, _ in floor.of.terms):
                full[self.rank + n] = floor.of.at(full) // floor.divisor
        return full

    def holds(self, full: Mapping[int, Any]) -> Any:
        """Whether the guard holds at a completed point."""
        held: Any = False
        for every in self.guard:
            all_: Any = True
            for c in every:
                value = c.of.at(full)
                all_ = all_ & ((value == 0) if c.equal else (value >= 0))
            held = held | all_
        return held

    @functools.cached_property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that it depends on, ascending."""
        linear = [*self.index, *(c.of for every in self.guard for c in every)]
        waiting, seen = [d for x in linear for d, _ in x.terms], set[int]()
        while waiting:
            if (d := waiting.pop()) not in seen:
                seen.add(d)
                waiting += [e for e, _ in self.floors[d - self.rank].of.terms] if d >= self.rank else []
        return tuple(sorted(d for d in seen if d < self.rank))

    def over(self, dims: Sequence[int]) -> Read:
        """The same over some dimensions, all that it depends on, in this order."""
        write = Expressions(len(dims))
        names = {d: Linear(0, ((n, 1),)) for n, d in enumerate(dims)}
        for n, floor in enumerate(self.floors):
            if all(d in names for d, _ in floor.of.terms):
                names[self.rank + n] = write.floor(_renamed(floor.of, names), floor.divisor)
        index = tuple(_renamed(x, names) for x in self.index)
        guard = tuple(tuple(Condition(_renamed(c.of, names), c.equal) for c in every) for every in self.guard)
        return write.read(index, guard)

    @property
    def place_text(self) -> str:
        """`(d0, d1 + 2 * (d2 floordiv 3))`."""
        return f"({', '.join(map(self.text, self.index))})"

    @property
    def guard_text(self) -> str:
        """`d0 - 3 >= 0 and d1 == 0 or ...`, or `true` or `false`."""
        if not all(self.guard):
            return "true"
        kept = (
            " and ".join(f"{self.text(c.of)} {'==' if c.equal else '>='} 0" for c in every)
            for every in self.guard
        )
        return " or ".join(kept) or "false"

    def text(self, x: Linear) -> str:
        """A linear expression of its dimensions and floors."""
        said = ""
        for d, c in x.terms:
            name = f"d{d}"
            if d >= self.rank:
                floor = self.floors[d - self.rank]
                name = f"(({self.text(floor.of)}) floordiv {floor.divisor})"
            part = name if abs(c) == 1 else f"{abs(c)} * {name}"
            said += (f" {'-' if c < 0 else '+'} " if said else "-" if c < 0 else "") + part
        if x.constant or not said:
            said += f" {'-' if x.constant < 0 else '+'} {abs(x.constant)}" if said else str(x.constant)
        return said


def _renamed(x: Linear, names: Mapping[int, Linear]) -> Linear:
    out = Linear(x.constant)
    for d, c in x.terms:
        out = out.plus(names[d], c)
    return out


class Expressions:
    """Writes expressions over `rank` dimensions; equal floors are one.

    With `extents`, dimensions are within 0 and these: a floor that is a number is one then.
    """

    def __init__(self, rank: int, extents: Sequence[int] = ()) -> None:
        self.rank, self.floors = rank, list[Floor]()
        self.ranges: dict[int, tuple[int, int]] = {d: (0, e - 1) for d, e in enumerate(extents)}
        self.remainders: dict[Linear, int] = {}

    def dim(self, d: int) -> Linear:
        """A dimension; raises IllegalProgram where there is none of this number."""
        if not 0 <= d < self.rank:
            raise IllegalProgram(f"expected dimensions d0 to d{self.rank - 1}, got d{d}")
        return Linear(0, ((d, 1),))

    def floor(self, x: Linear, divisor: int) -> Linear:
        """`floor(x / divisor)`: what the divisor divides is taken out first."""
        if divisor < 1:
            raise IllegalProgram(f"expected a positive divisor, got {divisor}")
        outer = Linear(
            x.constant // divisor, tuple((d, c // divisor) for d, c in x.terms if c % divisor == 0)
        )
        rest = Linear(x.constant % divisor, tuple((d, c) for d, c in x.terms if c % divisor))
        if not rest.terms:
            return outer
        if (within := self.range(rest)) is not None and within[0] // divisor == within[1] // divisor:
            return outer.plus(Linear(within[0] // divisor))
        made = Floor(rest, divisor)
        if made not in self.floors:
            if len(self.floors) >= MOST_FLOORS:
                raise IllegalProgram(f"expected at most {MOST_FLOORS} floors, got more")
            self.floors.append(made)
        number = self.rank + self.floors.index(made)
        if within is not None:
            self.ranges[number] = within[0] // divisor, within[1] // divisor
        return outer.plus(Linear(0, ((number, 1),)))

    def mod(self, x: Linear, divisor: int) -> Linear:
        """What is left of `x` by a divisor, from 0 on."""
        rest = x.plus(self.floor(x, divisor), -divisor)
        if self.ranges:
            self.remainders[rest] = divisor
        return rest

    def range(self, x: Linear) -> tuple[int, int] | None:
        """The least and the largest value, at most; None where that is not known."""
        low = high = x.constant
        if (divisor := self.remainders.get(x)) is not None:
            return 0, divisor - 1
        for d, c in x.terms:
            if d not in self.ranges:
                return None
            ends = sorted(c * n for n in self.ranges[d])
            low, high = low + ends[0], high + ends[1]
        return low, high

    def read(self, index: Sequence[Linear], guard: Guard = ALWAYS) -> Read:
        """These indices where the guard holds."""
        return Read(self.rank, tuple(self.floors), tuple(index), guard)


@functools.lru_cache(1 << 12)
def parse(rank: int, places: str, guard: str) -> Read:
    """The read of a text of indices and one of a guard; raises IllegalProgram for others."""
    write = Expressions(rank)
    try:
        found = _tree(places)
        index = [_linear(x, write) for x in (found.elts if isinstance(found, ast.Tuple) else [found])]
        return write.read(index, _guard(_tree(guard), write))
    except RecursionError:
        raise IllegalProgram("expected expressions that are less deep") from None


def _tree(text: str) -> ast.expr:
    if len(text) > MOST_TEXT:
        raise IllegalProgram(f"expected expressions of at most {MOST_TEXT} characters, got {len(text)}")
    plain = text.replace(" floordiv ", " // ").replace(" mod ", " % ")
    try:
        return ast.parse(plain.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError):
        raise IllegalProgram(
            f"expected expressions such as '(d0, d1 floordiv 2 - 1)', got '{text}'"
        ) from None


def _linear(x: ast.expr, write: Expressions) -> Linear:
    match x:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return Linear(value)
        case ast.Name(id=name) if name[:1] == "d" and name[1:].isdecimal():
            return write.dim(int(name[1:]))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _linear(inner, write).times(-1)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _linear(left, write), _linear(right, write)
            if isinstance(op, ast.Add | ast.Sub):
                return a.plus(b, 1 if isinstance(op, ast.Add) else -1)
            if isinstance(op, ast.Mult) and not (a.terms and b.terms):
                return b.times(a.constant) if b.terms else a.times(b.constant)
            if isinstance(op, ast.FloorDiv) and not b.terms:
                return write.floor(a, b.constant)
            if isinstance(op, ast.Mod) and not b.terms:
                return write.mod(a, b.constant)
        case _:
            pass
    raise IllegalProgram(
        "expected sums of dimensions, multiples by numbers, floordiv and mod by positive numbers, got "
        f"'{ast.unparse(x)}'"
    )


def _guard(x: ast.expr, write: Expressions) -> Guard:
    match x:
        case ast.Name(id="true"):
            return ALWAYS
        case ast.Name(id="false"):
            return ()
        case ast.BoolOp(op=ast.Or(), values=values):
            return tuple(every for value in values for every in _guard(value, write))
        case ast.BoolOp(op=ast.And(), values=values):
            return (tuple(_condition(value, write) for value in values),)
        case _:
            return ((_condition(x, write),),)


def _condition(x: ast.expr, write: Expressions) -> Condition:
    match x:
        case ast.Compare(left=left, ops=[ast.GtE() | ast.Eq() as op], comparators=[right]):
            of = _linear(left, write).plus(_linear(right, write), -1)
            return Condition(of, isinstance(op, ast.Eq))
        case _:
            raise IllegalProgram(f"expected conditions with '>=' or '==', got '{ast.unparse(x)}'")
