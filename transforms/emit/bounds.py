"""The bounds of sequential loops, by what bands hide; and the loops that one is written as for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.hidden_trips import Limit, Whole
from superopt.program import Loop, LoopVar, Window
from superopt.transforms.emit.writer import Writer


@dataclass(frozen=True)
class Part:
    """Trips of a loop from `begin` to `stop`, which is text; `whole` ones end at trip `most` at the latest."""

    begin: Window
    stop: str
    whole: Whole | None = None
    most: int = 0


class Bounds:
    """Writes the bounds of loops; some get a name before the loop."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def begin(self, loop: Loop, limit: Limit | None) -> Window:
        """Where a loop begins: after the first trips that a band hides, as a name that is set before it."""
        if limit is None or limit.first is None or not any(skipped := limit.starts(loop)):
            return Window(1, loop.start)
        if not limit.terms:
            return Window(1, loop.start + skipped[0] * loop.step)
        reached = [limit.below(loop, limit.first + n) for n in limit.sums]
        text = self._trips(loop, limit, limit.first)
        if min(reached) < 0:  # where quotients are rounded up, too
            text = f"max({text}, 0)"
        if max(reached) >= loop.trips:
            text = f"min({text}, {loop.trips - 1})"
        return Window(1, 0, ((self._named(loop, limit, "first", self._element(loop, text)), 1),))

    def stop(self, loop: Loop, limit: Limit | None, start: str) -> str:
        """Where a loop ends whose last trips a band hides; one trip, from `start` on, always runs."""
        if limit is None or limit.last is None:
            return str(loop.stop)
        bounds = [limit.last + n for n in limit.sums]
        bound = self.writer.start(Window(1, limit.last, limit.terms))
        if limit.scale != 1:
            bound = f"({bound} + {limit.scale - 1}) // {limit.scale}"
        if max(bounds) > limit.scale * loop.stop:
            bound = f"min({bound}, {loop.stop})"
        begun = (limit.below(loop, b) > n for b, n in zip(bounds, limit.starts(loop), strict=True))
        if all(begun):
            return bound
        least = str(loop.start + 1) if start == str(loop.start) else f"{start} + 1"
        return f"max({bound}, {least})"

    def parts(self, loop: Loop, limit: Limit | None, whole: Whole | None) -> list[Part]:
        """The loops that `loop` is written as: the trips that are whole, and those before and behind them."""
        first = self.begin(loop, limit)
        start = self.writer.start(first)
        stop = self.stop(loop, limit, start)
        if whole is None:
            return [Part(first, stop)]
        parts = whole.parts(loop, limit)
        before: list[Part] = []
        behind: list[Part] = []
        if any(a > n for n, a, _, _ in parts):
            assert whole.limit.first is not None
            reached = self._reached(loop, whole.limit, whole.limit.first)
            least = start if any(r < n for r, (n, *_) in zip(reached, parts, strict=True)) else ""
            most = stop if any(r > n for r, (*_, n) in zip(reached, parts, strict=True)) else ""
            begin = self._border(loop, whole.limit, "whole", whole.limit.first, least, most)
            before = [Part(first, self.writer.start(begin))]
            first, start = begin, before[0].stop
        if any(b < n for *_, b, n in parts):
            assert whole.limit.last is not None
            reached = self._reached(loop, whole.limit, whole.limit.last)
            least = start if any(r < n for r, (_, n, *_) in zip(reached, parts, strict=True)) else ""
            most = stop if any(r > n for r, (*_, n) in zip(reached, parts, strict=True)) else ""
            end = self._border(loop, whole.limit, "masked", whole.limit.last, least, most)
            behind = [Part(end, stop)]
            stop = self.writer.start(end)
        return [*before, Part(first, stop, whole, max(n for _, _, n, _ in parts)), *behind]

    def _reached(self, loop: Loop, limit: Limit, bound: int) -> Sequence[int]:
        return [limit.below(loop, bound + n) for n in limit.sums]

    def _border(self, loop: Loop, limit: Limit, kind: str, bound: int, least: str, most: str) -> Window:
        """Where the trips begin that have at least `bound`, between `least` and `most`."""
        text = self._element(loop, self._trips(loop, limit, bound))
        text = f"max({text}, {least})" if least else text
        text = f"min({text}, {most})" if most else text
        return Window(1, 0, ((self._named(loop, limit, kind, text), 1),))

    def _trips(self, loop: Loop, limit: Limit, bound: int) -> str:
        """How many of the first trips have less than `bound`, if trips had no end on either side."""
        unit = limit.scale * loop.step
        text = self.writer.start(Window(1, bound + unit - 1 - limit.scale * loop.start, limit.terms))
        return f"({text}) // {unit}" if unit > 1 else text

    def _element(self, loop: Loop, trips: str) -> str:
        """The loop's variable in the trip after so many."""
        return (
            trips + (f" * {loop.step}" if loop.step > 1 else "") + (f" + {loop.start}" if loop.start else "")
        )

    def _named(self, loop: Loop, limit: Limit, kind: str, text: str) -> LoopVar:
        """A name for `text`: before all loops, if it is the same in every trip of those around."""
        made = LoopVar(f"{kind}_{loop.var.name}")
        line = f"{self.writer.index(made, kind)} = {text}"
        if any(var in self.writer.sequential for var, _ in limit.terms):
            self.writer.sequential.add(made)
            self.writer.line(line)
        else:
            self.writer.header.append(f"    {line}")
        return made
