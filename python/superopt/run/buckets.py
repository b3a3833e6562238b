"""Ranges of extents in buckets: kernels for each part, where those for the whole are not to be had, or dearer.

Parts are given by their ends, or found by halving, which tries kernels for the whole first. A part without
kernels is left out: what a user falls back to takes it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from superopt import cost
from superopt.diagnostics import Diagnostics
from superopt.errors import BadOption, IllegalProgram, NotEquivalent, SuperoptError, UnsupportedProgram
from superopt.pipeline import first_interrupt_stops, superoptimize
from superopt.program import KernelGraph
from superopt.run.outcome import Bucket, Outcome
from superopt.run.ranged import AnotherProgram, axis, superoptimize_range
from superopt.run.settings import Settings
from superopt.transforms.ingest.at_extent import DynamicProgram
from superopt.verify.ranges import Axis, Family, Point, representatives

Buckets: TypeAlias = Mapping[str, Sequence[int]] | Literal["auto"] | None
"""The largest extents of buckets, by axis; "auto": halves where that is cheaper; None: if it has to be."""
MOST_HALVINGS = 2
CHEAPER = 0.8
"""What kernels of a part must take of the time of those for the whole."""

_Read: TypeAlias = Callable[[Point], KernelGraph]
_Part: TypeAlias = tuple[Axis, ...]


def superoptimize_buckets(
    read_at: _Read, over: Sequence[Axis], buckets: Buckets, settings: Settings, diagnostics: Diagnostics
) -> Outcome:
    """`superoptimize_range`, in buckets if asked, or where kernels for the whole range cannot be made or proved.

    Of several buckets the result is that of the last one, and names them all (`Outcome.buckets`). A warning says
    so where they lack some extents. Raises
    BadOption for ends that are none, and what `superoptimize_range` raises where there are kernels for no part.
    """
    maker = Maker(read_at, settings, diagnostics)
    with first_interrupt_stops():
        if buckets is None or buckets == "auto":
            found = maker.halved(tuple(over), MOST_HALVINGS, auto=buckets == "auto")
        else:
            parts = itertools.product(*(_cut(axis, buckets) for axis in over))
            found = [made for part in parts if (made := maker.tried(part)) is not None]
    if not found:
        raise maker.refused[0]
    last, lacking = found[-1], ""
    if sum(_points(bucket.axes) for bucket in found) < _points(over):
        within = ", or ".join(" and ".join(map(str, bucket.axes)) for bucket in found)
        lacking = (
            f"kernels do not take all of {' and '.join(map(str, over))}: only for {within}; "
            f"{maker.refused[0].message}"
        )
        diagnostics.warning(lacking)
        last.outcome.report.remarks.append(str(diagnostics.messages[-1]))
    if len(found) == 1 and last.outcome.ranged is not None:
        return replace(last.outcome, lacking=lacking)
    last.outcome.report.remarks += maker.said
    return replace(last.outcome, buckets=tuple(found), lacking=lacking)


def _points(part: Sequence[Axis]) -> int:
    return math.prod(axis.high - axis.low + 1 for axis in part)


def superoptimize_linalg(module: Any, settings: Settings, diagnostics: Diagnostics) -> Outcome:
    """`superoptimize_buckets` of a module in linalg whose tensors have dynamic extents, in `settings.dynamic`.

    Raises BadInput where no argument has one, or a result's does not follow from the arguments'.
    """
    bounds, heard_once = settings.bounds, [diagnostics]
    program = DynamicProgram(module)
    places = program.places(tuple(bounds))
    over = [axis(name, ends[0], ends[-1], places[name]) for name, ends in bounds.items()]
    buckets: Buckets = {name: ends[1:] for name, ends in bounds.items()}
    if all(len(ends) == 2 for ends in bounds.values()):
        buckets = "auto" if settings.halves else None
    check_ends(over, buckets)

    def source(extents: Point) -> KernelGraph:
        heard = heard_once.pop() if heard_once else Diagnostics()
        return program.at(dict(zip(bounds, extents, strict=True)), heard)

    return superoptimize_buckets(source, over, buckets, settings, diagnostics)


def check_ends(over: Sequence[Axis], buckets: Buckets) -> None:
    """Raise BadOption for buckets whose ends do not ascend within the bounds of an axis."""
    if isinstance(buckets, Mapping):
        for axis in over:
            _cut(axis, buckets)
        if unknown := sorted(buckets.keys() - {axis.name for axis in over}):
            raise BadOption(f"expected buckets of {', '.join(a.name for a in over)}, got '{unknown[0]}'")


def _cut(over: Axis, buckets: Mapping[str, Sequence[int]]) -> list[Axis]:
    """The parts of an axis whose largest extents are given; the last one ends where the axis does."""
    ends = [*buckets.get(over.name, ())]
    if any(type(n) is not int for n in ends) or ends != sorted(set(ends)):
        raise BadOption(f"expected ascending ends of buckets of {over.name}, got {ends}")
    if ends and not over.low <= ends[0] <= ends[-1] <= over.high:
        raise BadOption(f"expected buckets of {over} to end inside, got {ends}")
    if not ends or ends[-1] < over.high:
        ends.append(over.high)
    lows = [over.low, *(n + 1 for n in ends)]
    return [over.model_copy(update={"low": low, "high": high}) for low, high in zip(lows, ends, strict=False)]


class Maker:
    """Tries parts of ranges, and remembers why some have no kernels."""

    def __init__(self, read_at: _Read, settings: Settings, diagnostics: Diagnostics) -> None:
        self.read_at, self.settings, self.diagnostics = read_at, settings, diagnostics
        self.refused: list[SuperoptError] = []
        self.said: list[str] = []

    def halved(self, part: _Part, depth: int, *, auto: bool) -> list[Bucket]:
        """Kernels for the part, or for its halves where it lacks them, or where they are cheaper."""
        whole = self.tried(part)
        if depth == 0 or (whole is None and isinstance(self.refused[-1], AnotherProgram)):
            return [whole] if whole else []
        if whole is not None and not auto:
            return [whole]
        halves = _halves(part)
        if len(halves) < 2:
            return [whole] if whole else []
        found = [bucket for half in halves for bucket in self.halved(half, depth - 1, auto=auto)]
        if whole is not None and not any(self.cheaper(bucket, whole) for bucket in found):
            return [whole]
        return found

    def tried(self, part: _Part) -> Bucket | None:
        """Kernels for the part; None, and the reason in `refused`, where there are none."""
        varying = [axis for axis in part if axis.low < axis.high]

        def read(extents: Point) -> KernelGraph:
            given = iter(extents)
            return self.read_at(tuple(next(given) if a.low < a.high else a.low for a in part))

        try:
            if not varying:
                outcome = superoptimize(read(()), self.settings, self.diagnostics)
            else:
                outcome = superoptimize_range(read, varying, self.settings, self.diagnostics)
        except (UnsupportedProgram, NotEquivalent, IllegalProgram) as error:
            self.refused.append(error)
            self.said.append(f"no kernels for {' and '.join(map(str, part))}: {error.message}")
            return None
        self.said.append(f"kernels for {' and '.join(map(str, part))}")
        return Bucket(part, outcome)

    def cheaper(self, bucket: Bucket, whole: Bucket) -> bool:
        """Whether a part's kernels are predicted to be faster than those of the whole."""
        ranged = whole.outcome.ranged
        if ranged is None:
            return False
        family = Family(whole.outcome.original, whole.outcome.lowered, ranged.record.axes)
        varying = [a for a in bucket.axes if a.low < a.high]
        searched = {a.name: a.low for a in bucket.axes}
        searched |= zip((a.name for a in varying), representatives(varying), strict=True)
        _, lowered = family.at(tuple(searched[a.name] for a in family.axes))
        target = cost.target(self.settings.target)
        before = cost.compiled_seconds(lowered, whole.outcome.compiled, target)
        after = cost.compiled_seconds(bucket.outcome.lowered, bucket.outcome.compiled, target)
        return after < CHEAPER * before


def _halves(part: _Part) -> list[_Part]:
    """The part cut in two where an extent, that of the widest axis, is the mean of its bounds' logarithms."""
    widest = max(range(len(part)), key=lambda i: part[i].high / part[i].low)
    axis = part[widest]
    middle = max(axis.low, min(math.isqrt(axis.low * axis.high), axis.high - 1))
    if axis.low == axis.high:
        return [part]
    return [
        (*part[:widest], half, *part[widest + 1 :]) for half in _cut(axis, {axis.name: [middle, axis.high]})
    ]
