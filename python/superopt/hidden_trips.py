"""Trips of a loop that a band hides: in causal attention, tiles of scores beyond the diagonal.

    for k in 0..keys:                                         for k in first tile seen..last column seen + 1:
      s = q k^T + band(k: +columns, rows)          ->           ...
      m = max(m, max s); sum, acc = ...

A trip may be left out where its whole tile of the band is `outside`. Causal masks hide the last trips, sliding
windows the first ones, too. This is decided here and nowhere else: the emitters write the loops, the cost model
counts their trips, and the checks of TTIR and PTX run what was written. Tile programs keep all trips, so every
other evaluation is that of the whole loop.

- The last trips may go if a hidden trip changes nothing: with outside = -inf its maximum is -inf, its
  exponentials are 0, and so is what they add. At least one trip runs: after it, a running maximum is at least any
  number that every trip's is compared with.
- The first trips may go if a hidden one, from what the buffers hold before the loop, leads to a state (a maximum
  of -inf becomes the least that a trip's is compared with) from which any trip, hidden or not, stores the same.

The argument holds where the program is defined: x + -inf is -inf, and 0 x is 0, for finite x. What is not finite
is undefined there, and no program is proved where it is undefined (`superopt.verify.infinities`).

Other trips see the band `inside` alone: in causal attention those whose last column is at most the block's first
row. `whole_trips` finds them by the same indices. Where a program asks for it (`TileProgram.separate_masks`),
they run in a loop of their own, in which the band is that number, and no edge of a tensor lies in their tiles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from superopt.program import (
    UNBOUNDED,
    Buffer,
    Compute,
    Load,
    Loop,
    LoopVar,
    Statement,
    Store,
    TileProgram,
    Value,
    statements,
    within_loops,
)
from superopt.scalars import Scalar, arg, evaluate


@dataclass(frozen=True)
class Limit:
    """A loop runs the trips in which first <= scale * variable - the sum of its terms < last, and at least one.

    `first` and `last` are None where no trips are left out at that end. `sums` are the values that the sum
    takes, one for each value of the loops around that it depends on.
    """

    scale: int
    first: int | None
    last: int | None
    terms: tuple[tuple[LoopVar, int], ...]
    sums: tuple[int, ...]

    def starts(self, loop: Loop) -> list[int]:
        """The number of the first trip of `loop` that runs, for each of the `sums`."""
        if self.first is None:
            return [0] * len(self.sums)
        return [min(max(self.below(loop, self.first + n), 0), loop.trips - 1) for n in self.sums]

    def stops(self, loop: Loop) -> list[int]:
        """The number of the trip of `loop` before which it stops, likewise."""
        if self.last is None:
            return [loop.trips] * len(self.sums)
        ends = (min(self.below(loop, self.last + n), loop.trips) for n in self.sums)
        return [max(end, start + 1) for end, start in zip(ends, self.starts(loop), strict=True)]

    def trips(self, loop: Loop) -> list[int]:
        """How many trips of `loop` run, likewise."""
        return [b - a for a, b in zip(self.starts(loop), self.stops(loop), strict=True)]

    def below(self, loop: Loop, bound: int) -> int:
        """How many of the first trips have scale * variable < bound, if trips had no end on either side."""
        return -((self.scale * loop.start - bound) // (self.scale * loop.step))


def limits(program: TileProgram) -> dict[LoopVar, Limit]:
    """The sequential loops whose first or last trips a band hides, in some blocks at least."""
    numbers = {
        s.result: float(number)
        for s in program.statements()
        if isinstance(s, Compute) and (number := splat_of(s)) is not None
    }
    found: dict[LoopVar, Limit] = {}
    for loop, around in within_loops(program.body):
        if not isinstance(loop, Loop) or loop.parallel or loop.trips < 2:
            continue
        before = _held_before(around[-1].body if around else program.body, loop, numbers)
        for load in loop.body:
            if isinstance(load, Load) and (limit := _limit(load, loop, around)):
                kept = _Kept(loop, load, numbers)
                limit = replace(
                    limit,
                    first=limit.first if kept.with_first_trips(before) else None,
                    last=limit.last if kept.with_last_trips() else None,
                )
                if min(limit.trips(loop)) < loop.trips:
                    found[loop.var] = limit
                    break
    return found


@dataclass(frozen=True)
class Whole:
    """The trips of a loop in which the band that `loads` read is `inside` everywhere: those within `limit`."""

    limit: Limit
    loads: frozenset[Load]

    def parts(self, loop: Loop, run: Limit | None) -> list[tuple[int, int, int, int]]:
        """For each of the sums, numbers of trips: the first that runs, the first whole one, the first behind the
        whole ones, and where the loop stops; all of the loop runs but for what `run` leaves out."""
        found: list[tuple[int, int, int, int]] = []
        count = len(self.limit.sums)
        starts = run.starts(loop) if run is not None else [0] * count
        stops = run.stops(loop) if run is not None else [loop.trips] * count
        for n, start, stop in zip(self.limit.sums, starts, stops, strict=True):
            first, last = self.limit.first, self.limit.last
            begin = start if first is None else max(self.limit.below(loop, first + n), start)
            end = stop if last is None else min(self.limit.below(loop, last + n), stop)
            found.append((start, min(begin, stop), max(end, min(begin, stop)), stop))
        return found


def whole_trips(program: TileProgram, run: Mapping[LoopVar, Limit]) -> dict[LoopVar, Whole]:
    """The sequential loops of which a band leaves some trips whole, in some blocks; `run` are its `limits`.

    Not those that store to memory, whose trips barriers keep apart.
    """
    found: dict[LoopVar, Whole] = {}
    for loop, around in within_loops(program.body):
        if not isinstance(loop, Loop) or loop.parallel or loop.trips < 2:
            continue
        if any(isinstance(s, Store) and s.buffer.in_memory for s in statements(loop.body)):
            continue
        bands = [s for s in loop.body if isinstance(s, Load) and s.buffer.band is not None]
        for load in bands[:1]:
            limit, limited = _limit(load, loop, around, whole=True), run.get(loop.var)
            if limit is None or (limited is not None and limited.terms != limit.terms):
                continue
            same = [s for s in bands if (s.buffer.band, s.windows) == (load.buffer.band, load.windows)]
            made = Whole(limit, frozenset(same))
            if any(end > begin for _, begin, end, _ in made.parts(loop, limited)):
                found[loop.var] = made
    return found


def masked_shares(
    program: TileProgram,
) -> tuple[dict[LoopVar, tuple[float, float]], frozenset[Load | Compute]]:
    """For each loop with whole trips: which share of those that run sees the band, and how many loops beyond the
    first they are written as, on average over the blocks; and the statements that whole trips do without."""
    run, found, absent = limits(program), dict[LoopVar, tuple[float, float]](), set[Load | Compute]()
    loops = {s.var: s for s in program.statements() if isinstance(s, Loop)}
    for var, whole in whole_trips(program, run).items():
        loop = loops[var]
        parts = whole.parts(loop, run.get(var))
        running = sum(stop - start for start, _, _, stop in parts)
        inside = sum(end - begin for _, begin, end, _ in parts)
        more = sum((start < begin < end) + (begin < end < stop) for start, begin, end, stop in parts)
        found[var] = 1 - inside / running, more / len(parts)
        tiles = {load.result for load in whole.loads}
        absent |= whole.loads
        absent |= {s for s in loop.body if isinstance(s, Compute) and not tiles.isdisjoint(s.operands)}
    return found, frozenset(absent)


def trips_of_limited(program: TileProgram) -> dict[LoopVar, list[int]]:
    """How many trips of each such loop run, for each value of its limit."""
    loops = {s.var: s for s in program.statements() if isinstance(s, Loop)}
    return {var: limit.trips(loops[var]) for var, limit in limits(program).items()}


def _limit(load: Load, loop: Loop, around: Sequence[Loop], *, whole: bool = False) -> Limit | None:
    """The trips in which `load` has more than what a band leaves out; or, `whole`, nothing of that."""
    if (band := load.buffer.band) is None:
        return None
    rows, columns = load.windows[-2:]
    moves: dict[LoopVar, int] = {}
    for window, sign in ((columns, 1), (rows, -1)):
        for var, scale in window.terms:
            moves[var] = moves.get(var, 0) + sign * scale
    scale = moves.pop(loop.var, 0)
    ranges = {outer.var: range(outer.start, outer.stop, outer.step) for outer in around}
    if not scale or min(rows.stride, columns.stride) < 1 or not moves.keys() <= ranges.keys():
        return None
    # Column - row where all loops are at 0: of the first column and last row of the tile, and the reverse.
    least = columns.base - rows.base - (rows.size - 1) * rows.stride
    most = columns.base - rows.base + (columns.size - 1) * columns.stride
    if whole:  # the last element of a tile to pass a side decides, not the first
        least, most = most, least
    above = None if band.upper == UNBOUNDED else band.upper + 1 - least  # hidden from here on
    below = None if band.lower == -UNBOUNDED else band.lower - most  # hidden before
    if scale < 0:  # a loop over rows: what is above comes first
        above, below = (None if side is None else 1 - side for side in (below, above))
    sign = -1 if scale > 0 else 1
    terms = tuple((var, sign * n) for var, n in moves.items() if n)
    places = itertools.product(*(ranges[var] for var, _ in terms))
    sums = tuple(sum(n * at for (_, n), at in zip(terms, place, strict=True)) for place in places)
    limit = Limit(abs(scale), below, above, terms, sums)
    return limit if whole or min(limit.trips(loop)) < loop.trips else None


def _held_before(
    body: Sequence[Statement], loop: Loop, numbers: Mapping[Value, float]
) -> dict[Buffer, _Known]:
    """The buffers on chip that hold one number everywhere when `loop`, a statement of `body`, begins."""
    found: dict[Buffer, _Known] = {}
    for statement in statements(body[: body.index(loop)]):
        if isinstance(statement, Store):
            found.pop(statement.buffer, None)
            if statement.buffer.placement == "chip" and statement.value in numbers and statement in body:
                found[statement.buffer] = numbers[statement.value]
    return found


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


class _Kept:
    """What is known of the trips of a loop where all that `band` loads may be its `outside`.

    `numbers` are the values that are one number everywhere.
    """

    def __init__(self, loop: Loop, band: Load, numbers: Mapping[Value, float]) -> None:
        self.loop, self.band, self.numbers = loop, band, numbers
        self.tiles: dict[object, _Tile] = {}

    def with_last_trips(self) -> bool:
        """Whether a hidden trip after another one stores what is there already."""
        after = _Trip(self, {}, hidden=True, later=True).run()
        return after is not None and all(v == self.tile("before", b) for b, v in after.items())

    def with_first_trips(self, before: Mapping[Buffer, _Known]) -> bool:
        """Whether it does not matter to any trip if a hidden one ran, from what is there `before` the loop."""
        after = _Trip(self, before, hidden=True).run()
        if after is None:
            return False
        # Tiles that differ from trip to trip would go by one number.
        if not all(isinstance(v, float) or v == self.tile("before", b) for b, v in after.items()):
            return False
        return _Trip(self, before).run() == _Trip(self, after).run()

    def tile(self, *key: object) -> _Tile:
        """Some tile: the same for the same key."""
        return self.tiles.setdefault(key, _Tile(len(self.tiles)))


class _Trip:
    """What the statements of one trip compute, in order: of any trip, or of a `hidden` one.

    `held` is what buffers on chip hold before it. A `later` trip comes after another one.
    """

    def __init__(
        self, kept: _Kept, held: Mapping[Buffer, _Known], *, hidden: bool = False, later: bool = False
    ) -> None:
        self.band, self.numbers, self.tile = kept.band, kept.numbers, kept.tile
        self.body, self.held, self.hidden, self.later = kept.loop.body, dict(held), hidden, later
        self.known: dict[Value, _Known] = {**kept.numbers}
        self.made = {s.result: s for s in self.body if isinstance(s, Compute | Load)}
        self.stores = [s for s in self.body if isinstance(s, Store)]

    def run(self) -> dict[Buffer, _Known] | None:
        """What buffers on chip hold after it; None where it changes other memory, or may."""
        for statement in self.body:
            if isinstance(statement, Loop):
                return None
            if isinstance(statement, Store):
                if statement.buffer.placement != "chip":
                    return None
                self.held[statement.buffer] = self.of(statement.value)
            else:
                load = isinstance(statement, Load)
                self.known[statement.result] = self.loaded(statement) if load else self.computed(statement)
        return self.held

    def of(self, value: Value) -> _Known:
        return self.known[value] if value in self.known else self.tile("made before the loop", value)

    def loaded(self, load: Load) -> _Known:
        band = self.band.buffer.band
        if self.hidden and band is not None and (load.buffer.band, load.windows) == (band, self.band.windows):
            return float(band.outside)
        if load.buffer.placement == "chip":
            return self.held.get(load.buffer, self.tile("before", load.buffer))
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
                if self.is_above(s.operands[mine], operands[other]):
                    return operands[mine]
        if entry.elementwise and entry.body is not None:
            return self.scalar(entry.body(attrs), operands)
        return self.tile(s.op, tuple(operands), repr(sorted(s.attrs.items())), s.bounds)

    def is_above(self, value: Value, other: _Known) -> bool:
        """Whether `value` is at least the number `other`: in later trips, as a running maximum, too."""
        if not isinstance(other, float):
            return False
        held = self.made.get(value)
        if not self.later or not isinstance(held, Load) or held.buffer.placement != "chip":
            return self.at_least(value) >= other
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
