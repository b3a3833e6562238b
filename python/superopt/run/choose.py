"""The cheapest candidate that passes every gate: of one part, of the parts together or the whole, or the input.

Candidates race in one queue. Each is priced by its tiles and, once it is compiled, by its kernels, which is never
less; the cheapest is compiled if it is not yet, else proved. So the first that is proved is the cheapest of all,
and proofs, which take longest, are few. The input takes part with its price for a user: what costs more is left.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt import clock, cost
from superopt.errors import NoKernels
from superopt.program import (
    BlockGraph,
    KernelGraph,
    Loop,
    Node,
    TileProgram,
    within_loops,
)
from superopt.report import CandidateReport
from superopt.run.check import BUILT, DRAFTED, LOWERED, PROVED, UNSAFE, Accepted, Attempt, check, passes
from superopt.run.context import Run
from superopt.run.lost_bits import lost_bits
from superopt.run.propose import Candidate, repeats
from superopt.run.settings import UNBOUNDED
from superopt.transforms.lower.choose_layouts import choose_layouts
from superopt.transforms.lower.join_parts import join_parts
from superopt.transforms.optimizers import SEGMENTS
from superopt.transforms.partition.segments import Segment, stitch

CHOSEN, NOT_FASTER = "chosen", "not predicted to be faster"
# Candidates that are alike fail alike: after so many that failed, or whose kernels cost so much more than they
# promised, the rest of them make room for others.
ENOUGH_FAILED, DEARER = 3, 1.2
# What loses the same bits is unsafe alike: after so many that were, no other is compiled.
ENOUGH_UNSAFE = 2
_DELAYED = "not tried: the proof of one of its kind made it dearer than what else there is"
_SAME = f"{ENOUGH_UNSAFE} that round and sum the same were numerically unsafe"


def choose(
    run: Run, graph: KernelGraph, parts: Sequence[Segment], found: Sequence[Sequence[Candidate]]
) -> Accepted:
    """The best of the candidates `found` for the `parts` of `graph`; `graph` itself where none passes or pays.

    Segments are considered only after every candidate for the whole that promises more than all of them
    together. What was found before an interrupt is still proved; an interrupt during the proofs leaves the
    remaining segments as they are, and so does the end of the budget. However late it is, the best candidate is
    checked, and `graph` itself where nothing passed.
    """
    segments = parts[:-1]
    *of_segments, of_whole = found
    race = _Race(run, graph)
    for candidate in of_whole:
        race.enter(candidate)
    if any(of_segments):
        promised = run.predicted(graph)
        for segment, candidates in zip(segments, of_segments, strict=True):
            if candidates:
                promised -= max(run.predicted(segment.graph) - candidates[0].seconds, 0.0)
        race.enter_later(promised, lambda: _of_segments(run, graph, segments, of_segments))
    return race.won(run.most_seconds) or _unchanged(run, graph)


def _of_segments(
    run: Run, graph: KernelGraph, segments: Sequence[Segment], found: Sequence[Sequence[Candidate]]
) -> Candidate | None:
    """`graph` with the best candidate of each segment; None where every segment stays as it is.

    Those that promise most come first, as the budget may not suffice for all.
    """
    searches_stopped = run.stopped()
    stitched = graph
    alike: dict[int, list[Segment]] = {}
    for first, segment in zip(repeats(segments), segments, strict=True):
        alike.setdefault(first, []).append(segment)

    def promised(number: int) -> float:
        saved = run.predicted(segments[number].graph) - min(c.seconds for c in found[number])
        return saved * len(alike[number])

    for number in sorted([n for n in alike if found[n]], key=promised, reverse=True):
        if run.stopped() and not searches_stopped:
            break
        if run.budget.late_for_the_whole():
            run.budget.missed["segment not optimized"] += len(alike[number])
            continue
        race = _Race(run, segments[number].graph, segment=number)
        for candidate in found[number]:
            race.enter(candidate)
        if (won := race.won()) is None:
            continue
        for segment in alike[number]:
            # A copy, as values are defined once.
            stitched = stitch(stitched, segment, copy.deepcopy(won.graph))
        run.earlier.keep_result(graph, stitched, None, finished=False)
    if stitched is graph:
        return None
    stitched = join_parts(choose_layouts(stitched, run.target), run.target)  # of values between segments
    return Candidate(stitched, run.predicted(stitched), SEGMENTS)


@dataclass(eq=False)
class _Entry:
    """A candidate in the race, and how far it has come; `find` makes it where that is left for later."""

    candidate: Candidate | None
    find: Callable[[], Candidate | None] | None = None
    attempt: Attempt | None = None
    expected: float = 0.0
    compiled_seconds: float | None = None
    compiled_after: float | None = None
    accepted: Accepted | None = None
    outcome: str = ""


class _Race:
    """The candidates for one program; `segment` is its number, None for the whole program."""

    def __init__(self, run: Run, graph: KernelGraph, segment: int | None = None) -> None:
        self._run, self._graph, self._segment = run, graph, segment
        self._entries: list[_Entry] = []
        self._queue: list[tuple[float, int, int, _Entry]] = []
        self._number = itertools.count()
        self._built = Counter[str]()  # by optimizer: the candidates of one may all promise what none keeps
        self._proved = 0
        self._failed = Counter[tuple[object, ...]]()  # by what is alike
        # By what is of one kind: how much dearer compilation made it, and its proof, which counts; the least.
        self._compiled, self._counted = dict[object, float](), dict[object, float]()
        self._inexact = Counter[object]()  # numerically unsafe ones, by the bits that they lose
        self._exact = set[object]()  # the bits that some lose who are exact on tiny inputs

    def enter(self, candidate: Candidate) -> None:
        """Let a candidate take part."""
        entry = _Entry(candidate)
        self._entries.append(entry)
        self._run.report.funnel.ranked += 1
        self._put(entry, candidate.seconds, 0)

    def enter_later(self, seconds: float, find: Callable[[], Candidate | None]) -> None:
        """Let what `find` makes take part, unless something that needs less than `seconds` wins before."""
        self._put(_Entry(None, find), seconds, 0)

    def won(self, least: float | None = None) -> Accepted | None:
        """The cheapest candidate that passes every gate; None where that needs more than `least` seconds.

        Without `least`, it must not need more than the kernels of the program itself.
        """
        own = _Entry(Candidate(self._graph, self._run.predicted(self._graph), "input"))
        assert own.candidate is not None
        if least is not None:
            own.attempt = Attempt(self._graph, self._graph)
        self._put(own, own.candidate.seconds if least is None else least, -1)
        winner: Accepted | None = None
        while self._queue:
            *_, entry = heapq.heappop(self._queue)
            if entry is own and own.attempt is not None:
                break
            if entry.accepted is not None:
                entry.outcome, winner = CHOSEN, entry.accepted
                break
            if entry.find is not None:
                if (found := entry.find()) is not None:
                    self.enter(found)
            elif self._later(entry):
                entry.outcome = _DELAYED
                self._put(entry, entry.expected, 0)
            elif entry.attempt is None:
                self._build(entry)
            else:
                self._prove(entry)
        self._report(NOT_FASTER if winner is None else "ranked below the chosen one")
        return winner

    def _put(self, entry: _Entry, seconds: float, stage: int) -> None:
        """Queue an entry; among equals, what has come furthest is first, and then what was first."""
        heapq.heappush(self._queue, (seconds, -stage, next(self._number), entry))

    def _later(self, entry: _Entry) -> bool:
        """Whether to try others first: by what became of those of its kind, this one will cost more.

        Of the splits of attention over 1,500 keys each promised 30 us and, once it was proved and its memory
        accesses counted, took 49, until the budget was spent.
        """
        assert entry.candidate is not None
        kind = _kind(entry.candidate)
        ratio = self._counted.get(kind, 1.0)
        if entry.expected or ratio <= DEARER or entry.candidate.graph is self._graph:
            return False
        compiled = entry.compiled_seconds or entry.candidate.seconds * self._compiled[kind]
        entry.expected = ratio * compiled
        return bool(self._queue) and self._queue[0][0] < entry.expected

    def _build(self, entry: _Entry) -> None:
        """Compile an entry: its price is then that of its kernels."""
        assert entry.candidate is not None
        entry.outcome = ""
        budget = self._run.budget
        own = entry.candidate.graph is self._graph
        optimizer = entry.candidate.optimizer
        if self._built[optimizer] == self._run.settings.candidates and not own:
            entry.outcome = "not compiled: enough candidates were"
        elif self._failed[self._alike(entry.candidate)] >= ENOUGH_FAILED and not own:
            entry.outcome = f"not compiled: {ENOUGH_FAILED} like it failed or cost more than they promised"
        elif self._built and budget.schedules_end and optimizer != SEGMENTS:  # whose kernels are compiled
            entry.outcome = "not compiled: the budget is spent"
            budget.missed["candidate not compiled"] += 1
        else:
            attempt = Attempt(self._graph, entry.candidate.graph)
            entry.outcome = passes(self._run, attempt, LOWERED)
            if not own and not entry.outcome:
                if self._as_unsafe(attempt):
                    entry.outcome = f"not compiled: {_SAME}"
                    return
                entry.outcome = self._draft(attempt)
            if not own and not entry.outcome:
                self._built[optimizer] += 1
            entry.outcome = entry.outcome or passes(self._run, attempt, BUILT)
            if attempt.scheduled is not None and not entry.outcome:
                entry.attempt, entry.compiled_seconds = attempt, self._run.price(attempt.scheduled)
                entry.compiled_after = round(budget.spent, 3)
                self._put(entry, entry.compiled_seconds, 1)
                _note(self._compiled, entry.candidate, entry.compiled_seconds, entry.candidate.seconds)
            if entry.outcome or (entry.compiled_seconds or 0.0) > DEARER * entry.candidate.seconds:
                self._failed[self._alike(entry.candidate)] += 1

    def _draft(self, attempt: Attempt) -> str:
        """Why an attempt need not be compiled; empty where what loses the same bits was found to be exact."""
        lost = _lost(attempt)
        if lost in self._exact:
            return ""
        if outcome := passes(self._run, attempt, DRAFTED):
            self._inexact[lost] += 1
        else:
            self._exact.add(lost)
        return outcome

    def _prove(self, entry: _Entry) -> None:
        """Put a compiled entry through the other gates."""
        assert entry.attempt is not None
        entry.outcome = ""
        budget = self._run.budget
        if self._proved and budget.late_for_another():
            entry.outcome = "not tried: the budget is spent"
            budget.missed["candidate not proved"] += 1
            return
        if self._as_unsafe(entry.attempt):
            entry.outcome = f"not tried: {_SAME}"
            return
        begun = clock.now()
        self._proved += 1
        entry.outcome = passes(self._run, entry.attempt, PROVED)
        if entry.outcome.startswith(UNSAFE):
            self._inexact[_lost(entry.attempt)] += 1
        budget.checks.append(clock.now() - begun)
        if entry.outcome:
            assert entry.candidate is not None
            self._failed[self._alike(entry.candidate)] += 1
        else:
            assert entry.candidate is not None
            entry.accepted, before = entry.attempt.accepted(), entry.compiled_seconds
            entry.compiled_seconds = self._run.price(entry.accepted.scheduled)
            _note(self._counted, entry.candidate, entry.compiled_seconds, before)
            self._put(entry, entry.compiled_seconds, 2)

    def _as_unsafe(self, attempt: Attempt) -> bool:
        """Whether enough that lose the same bits were numerically unsafe."""
        if not self._inexact or attempt.candidate is self._graph:
            return False
        return self._inexact[_lost(attempt)] >= ENOUGH_UNSAFE

    def _alike(self, candidate: Candidate) -> tuple[object, ...]:
        """Equal for candidates of the same loops and price: most likely the same kernels but for details."""
        loops = tuple(_loops(node) for node in candidate.graph.nodes)
        return candidate.optimizer, loops, f"{candidate.seconds:.1e}"

    def _report(self, others: str) -> None:
        """Add every candidate to the report; `others` is the outcome of those that were not refused."""
        report = self._run.report
        for rank, entry in enumerate(self._entries):
            assert entry.candidate is not None
            if entry.outcome not in ("", CHOSEN):
                report.funnel.reject(entry.outcome)
            elif not entry.outcome and others == NOT_FASTER:
                report.funnel.reject(others)
            report.candidates.append(
                CandidateReport(
                    segment=self._segment,
                    optimizer=entry.candidate.optimizer,
                    rank=rank,
                    kernels=len(cost.cost(entry.candidate.graph, self._run.target).kernels),
                    predicted_seconds=entry.candidate.seconds,
                    compiled_seconds=entry.compiled_seconds,
                    compiled_after=entry.compiled_after,
                    outcome=entry.outcome or others,
                )
            )


def _kind(candidate: Candidate) -> object:
    """Equal for candidates of one optimizer with as many nodes: kernels, and views between them."""
    return candidate.optimizer, len(candidate.graph.nodes)


def _note(ratios: dict[object, float], candidate: Candidate, seconds: float, before: float | None) -> None:
    kind = _kind(candidate)
    ratios[kind] = min(seconds / before if before else 1.0, ratios.get(kind, math.inf))


def _loops(node: Node) -> object:
    """The loops of a kernel: their trips, and which are inside which."""
    if isinstance(node.body, TileProgram):
        inside = within_loops(node.body.body)
        return tuple((len(around), s.parallel, s.trips) for s, around in inside if isinstance(s, Loop))
    return (node.body.grid, node.body.loops) if isinstance(node.body, BlockGraph) else node.op


def _lost(attempt: Attempt) -> object:
    assert attempt.lowered is not None
    return lost_bits(attempt.lowered)


def _unchanged(run: Run, graph: KernelGraph) -> Accepted:
    """The program as it is, compiled: what is returned where nothing better passed every gate."""
    if not run.settings.tune:  # which may find something yet
        say_unchanged(run, graph)
    accepted, outcome = check(run, graph, graph)
    if accepted is None:
        why = f"expected a program that can be compiled, got one where: {outcome}"
        run.report.remarks.append(why)
        raise NoKernels(why, graph.location, run.report)
    if refused := [c.outcome for c in run.report.candidates if c.outcome.startswith(UNBOUNDED)]:
        run.report.remarks.append(
            f"the program is kept, though a candidate is {refused[0]}; allow=congruence-without-bound accepts it"
        )
    return accepted


def say_unchanged(run: Run, graph: KernelGraph) -> None:
    """Remark that the program is returned as it is, and why."""
    baseline = run.baseline
    run.diagnostics.remark(
        f"the input is returned: {baseline.name} is predicted to take {baseline.seconds * 1e6:.1f} us"
        f"{_instead(run)}",
        graph.location,
    )


def _instead(run: Run) -> str:
    """Clauses on what became of the candidates for the whole program: why the cheaper ones were refused, and what
    the best of the others is predicted to take.
    """
    wholes = [c for c in run.report.candidates if c.segment is None]
    prices = {id(c): c.compiled_seconds or c.predicted_seconds for c in wholes}
    refused = sorted((c for c in wholes if c.outcome != NOT_FASTER), key=lambda c: prices[id(c)])
    dearer = [prices[id(c)] for c in wholes if c.outcome == NOT_FASTER]
    said = ""
    if refused:
        kinds = Counter(c.outcome.split(":")[0] for c in refused)
        first = refused[0].outcome.split("; ")[0]
        counts = ", ".join(f"{kind} ({count})" for kind, count in kinds.items())
        said += f", and what promises less ({prices[id(refused[0])] * 1e6:.1f} us at best) was refused: "
        said += first if len(refused) == 1 else counts if first in kinds else f"{counts}; the first: {first}"
    if dearer:
        least = min(dearer)
        said += f"{';' if refused else ','} the best {'other ' * bool(refused)}candidate {least * 1e6:.1f} us"
        if run.settings.against == "best" and least < run.report.input_predicted_seconds:
            said += "; against=operators takes what beats the operators one by one"
    return said or ", and nothing better was found"
