"""Trips of a loop that a band hides: in causal attention, tiles of scores beyond the diagonal.

    for k in 0..keys:                                         for k in 0..min(keys, first row + rows):
      s = q k^T + band(k: +columns, rows)          ->           ...
      m = max(m, max s); sum, acc = ...

A trip may be left out where its whole tile of the band is `outside`, and a trip with such a tile changes nothing:
with outside = -inf its maximum is -inf, its exponentials are 0, and so is what they add. This is decided here and
nowhere else: the emitter writes the loops, the cost model counts their trips, and the checks of TTIR and PTX run
what was written. Tile programs keep all trips, so every other evaluation is that of the whole loop.

The argument holds where the program is defined: x + -inf is -inf, and 0 x is 0, for finite x. What is not finite
is undefined there, and no program is proved where it is undefined (`superopt.verify.infinities`). The first trip
always runs: after it, a running maximum is at least any number that every trip's is compared with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from superopt.operators import (
    OPERATORS,
    is_contraction,
    is_conversion,
    move_of,
    normalize_attrs,
    primitive_of,
    reduction_of,
    splat_of,
)
from superopt.program import Compute, Load, Loop, LoopVar, Statement, Store, TileProgram, Value, within_loops
from superopt.scalars import Scalar, arg, evaluate


@dataclass(frozen=True)
class Limit:
    """Beyond its first trip, a loop runs those in which scale * variable < base + the sum of its terms.

    `bounds` are the values that this sum takes, one for each value of the loops around that it depends on.
    """

    scale: int
    base: int
    terms: tuple[tuple[LoopVar, int], ...]
    bounds: tuple[int, ...]

    def trips(self, loop: Loop) -> list[int]:
        """How many trips of `loop` run, for each of the `bounds`."""
        stops = [-(-bound // self.scale) for bound in self.bounds]
        return [min(max(-((loop.start - stop) // loop.step), 1), loop.trips) for stop in stops]


def limits(program: TileProgram) -> dict[LoopVar, Limit]:
    """The sequential loops whose last trips a band hides, in some blocks at least."""
    numbers = {
        s.result: float(number)
        for s in program.statements()
        if isinstance(s, Compute) and (number := splat_of(s)) is not None
    }
    found: dict[LoopVar, Limit] = {}
    for loop, around in within_loops(program.body):
        if isinstance(loop, Loop) and not loop.parallel and loop.trips > 1:
            for statement in loop.body:
                if isinstance(statement, Load) and (limit := _limit(statement, loop, around)):
                    if not _changes_nothing(loop, statement, numbers):
                        continue
                    found[loop.var] = limit
                    break
    return found


def trips_of_limited(program: TileProgram) -> dict[LoopVar, list[int]]:
    """How many trips of each such loop run, for each value of its limit."""
    loops = {s.var: s for s in program.statements() if isinstance(s, Loop)}
    return {var: limit.trips(loops[var]) for var, limit in limits(program).items()}


def _limit(load: Load, loop: Loop, around: Sequence[Loop]) -> Limit | None:
    """Beyond which trips `load` has but what a band's upper side leaves out."""
    if (band := load.buffer.band) is None:
        return None
    rows, columns = load.windows[-2:]
    moves: dict[LoopVar, int] = {}
    for window, sign in ((columns, 1), (rows, -1)):
        for var, scale in window.terms:
            moves[var] = moves.get(var, 0) + sign * scale
    scale = moves.pop(loop.var, 0)
    ranges = {outer.var: range(outer.start, outer.stop, outer.step) for outer in around}
    if scale <= 0 or min(rows.stride, columns.stride) < 1 or not moves.keys() <= ranges.keys():
        return None
    # The least column - row of the tile is that of its first column and its last row.
    base = band.upper + 1 + rows.base + (rows.size - 1) * rows.stride - columns.base
    terms = tuple((var, -n) for var, n in moves.items() if n)
    places = itertools.product(*(ranges[var] for var, _ in terms))
    bounds = tuple(base + sum(n * at for (_, n), at in zip(terms, place, strict=True)) for place in places)
    limit = Limit(scale, base, terms, bounds)
    return limit if min(limit.trips(loop)) < loop.trips else None


# --- what a hidden trip does ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tile:
    """Some tile; those of one number are equal."""

    number: int


_Known: TypeAlias = "float | _Tile"
"""What is known of a value: the number that it is everywhere, or some tile."""
_ZERO, _ONE = 0.0, 1.0
# Numbers that leave the other operand as it is, on the right and on the left.
_RIGHT_UNITS = {"add": _ZERO, "sub": _ZERO, "mul": _ONE, "div": _ONE, "max": -math.inf, "min": math.inf}
_LEFT_UNITS = {"add": _ZERO, "mul": _ONE, "max": -math.inf, "min": math.inf}


def _changes_nothing(loop: Loop, band: Load, numbers: Mapping[Value, float]) -> bool:
    """Whether a trip stores what is there already, if all that `band` loads is its `outside`.

    `numbers` are the values that are one number everywhere.
    """
    trip = _HiddenTrip(loop, band, numbers)
    return all(trip.run(s) for s in loop.body)


class _HiddenTrip:
    """What the statements of one trip of a loop compute, in order."""

    def __init__(self, loop: Loop, band: Load, numbers: Mapping[Value, float]) -> None:
        self.band, self.numbers = band, numbers
        self.known: dict[Value, _Known] = {**numbers}
        self.tiles: dict[object, _Tile] = {}
        self.made = {s.result: s for s in loop.body if isinstance(s, Compute | Load)}
        self.stores = [s for s in loop.body if isinstance(s, Store)]

    def run(self, statement: Statement) -> bool:
        """Whether the statement leaves all memory as it is."""
        if isinstance(statement, Loop):
            return False
        if isinstance(statement, Store):
            buffer = statement.buffer
            return buffer.placement == "chip" and self.of(statement.value) == self.tile("before", buffer)
        found = self.loaded(statement) if isinstance(statement, Load) else self.computed(statement)
        self.known[statement.result] = found
        return True

    def tile(self, *key: object) -> _Tile:
        return self.tiles.setdefault(key, _Tile(len(self.tiles)))

    def of(self, value: Value) -> _Known:
        return self.known[value] if value in self.known else self.tile("made before the loop", value)

    def loaded(self, load: Load) -> _Known:
        band = self.band.buffer.band
        if band is not None and (load.buffer.band, load.windows) == (band, self.band.windows):
            return float(band.outside)
        if load.buffer.placement == "chip":
            return self.tile("before", load.buffer)
        return self.tile("loaded", load)

    def computed(self, s: Compute) -> _Known:
        entry = OPERATORS[s.op]
        attrs = normalize_attrs(entry, s.attrs)
        operands = [self.of(v) for v in s.operands]
        first = operands[0] if operands else None
        if s.result in self.numbers:
            return self.numbers[s.result]
        if is_conversion(s):  # tiles on chip keep their bits
            return operands[0]
        if s.bounds and isinstance(first, float) and first == s.attrs["fill"]:  # a mask
            return first
        if move_of(s) is not None and isinstance(first, float) and set(operands) == {first}:
            return first
        if is_contraction(s) and _ZERO in [x for x in operands if isinstance(x, float)]:
            return _ZERO
        if (how := reduction_of(s)) is not None and isinstance(first, float) and entry.finish is None:
            body = entry.body(attrs) if entry.body is not None else None
            if body is not None and body.head == "arg" and (how != "add" or first == _ZERO):
                return first
        if primitive_of(s) == "max":
            for mine, other in ((0, 1), (1, 0)):
                if self.runs_above(s.operands[mine], operands[other]):
                    return operands[mine]
        if entry.elementwise and entry.body is not None:
            return self.scalar(entry.body(attrs), operands)
        return self.tile(s.op, tuple(operands), repr(sorted(s.attrs.items())), s.bounds)

    def runs_above(self, value: Value, other: _Known) -> bool:
        """Whether `value` is a running maximum that no trip leaves below the number `other`."""
        held = self.made.get(value)
        if not isinstance(other, float) or not isinstance(held, Load) or held.buffer.placement != "chip":
            return False
        stored = [self.made.get(s.value) for s in self.stores if s.buffer is held.buffer]
        return bool(stored) and all(s is not None and self.at_least(s.result) >= other for s in stored)

    def at_least(self, value: Value) -> float:
        """A number that no trip, hidden or not, leaves `value` below."""
        made = self.made.get(value)
        if value in self.numbers or not isinstance(made, Compute):
            return self.numbers.get(value, -math.inf)
        if is_conversion(made):
            return self.at_least(made.operands[0])
        return max(map(self.at_least, made.operands)) if primitive_of(made) == "max" else -math.inf

    def scalar(self, body: Scalar, operands: Sequence[_Known]) -> _Known:
        """A scalar body on what is known."""
        if body.head == "arg":
            return operands[int(body.payload)]
        if body.head == "const":
            return float(body.payload)
        parts = [self.scalar(a, operands) for a in body.args]
        if body.head == "where" and isinstance(parts[0], float):
            return parts[1] if parts[0] > 0 else parts[2]
        numbers = [p if isinstance(p, float) else None for p in parts]
        found = evaluate(Scalar(body.head, tuple(arg(i) for i in range(len(parts)))), numbers)
        if found is not None:
            return float(found)
        if len(parts) == 2:
            (a, b), (left, right) = parts, numbers
            if (body.head == "sub" and a == b) or (body.head == "mul" and _ZERO in (left, right)):
                return _ZERO
            if right is not None and right == _RIGHT_UNITS.get(body.head):
                return a
            if left is not None and left == _LEFT_UNITS.get(body.head):
                return b
        return self.tile(body.head, tuple(parts))
