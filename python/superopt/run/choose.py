"""The best candidate that passes every gate: of one part, of the parts together or the whole, or the input."""

from __future__ import annotations

from collections.abc import Sequence

from superopt import clock, cost
from superopt.errors import UnsupportedProgram
from superopt.program import KernelGraph
from superopt.report import CandidateReport
from superopt.run.check import NOT_FASTER, Accepted, check
from superopt.run.context import Run
from superopt.run.propose import Candidate
from superopt.transforms.lower.choose_layouts import choose_layouts
from superopt.transforms.optimizers import SEGMENTS
from superopt.transforms.partition.segments import Segment, stitch


def choose(
    run: Run, graph: KernelGraph, parts: Sequence[Segment], found: Sequence[Sequence[Candidate]]
) -> Accepted:
    """The best of the candidates `found` for the `parts` of `graph`; `graph` itself where none passes.

    Segments are considered only after every candidate for the whole that promises more than all of them together
    has failed. What was found before an interrupt is still proved; an interrupt during the proofs leaves the
    remaining segments as they are, and so does the end of the budget. Two checks run however late it is: that of
    the best candidate, and that of `graph` itself where nothing passed.
    """
    segments = parts[:-1]
    *of_segments, of_whole = found
    searches_stopped = run.stopped()
    promised = run.predicted(graph)
    for segment, candidates in zip(segments, of_segments, strict=True):
        if candidates:
            promised -= max(run.predicted(segment.graph) - candidates[0].seconds, 0.0)
    accepted = _first(run, graph, [c for c in of_whole if not segments or c.seconds < promised])
    if accepted is None and segments:
        stitched = graph
        for number, (segment, candidates) in enumerate(zip(segments, of_segments, strict=True)):
            if (run.stopped() and not searches_stopped) or run.budget.late_for_the_whole():
                break
            if (better := _first(run, segment.graph, candidates, segment=number)) is not None:
                stitched = stitch(stitched, segment, better.graph)
                run.earlier.keep_result(graph, stitched, None, finished=False)
        rest = [c for c in of_whole if c.seconds >= promised]
        if stitched is not graph:
            stitched = choose_layouts(stitched, run.target)  # of values between segments
            rest.append(Candidate(stitched, run.predicted(stitched), SEGMENTS))
            rest.sort(key=lambda c: c.seconds)
        accepted = _first(run, graph, rest)
    return accepted or _unchanged(run, graph)


def _first(
    run: Run, graph: KernelGraph, candidates: Sequence[Candidate], segment: int | None = None
) -> Accepted | None:
    """The first of the ranked candidates that passes every gate; None if none does.

    `segment` is the number of the one that `graph` is, None for the whole program.
    """
    run.report.funnel.ranked += len(candidates)
    best: Accepted | None = None
    tried = 0
    for rank, candidate in enumerate(candidates):
        if best is not None:
            outcome = "ranked below the chosen one"
        elif tried == run.settings.candidates:
            outcome = "not tried: enough candidates failed"
        elif tried and run.budget.late_for_another():
            outcome = "not tried: the budget is spent"
        else:
            begun = clock.now()
            best, outcome = check(run, graph, candidate.graph)
            if outcome != NOT_FASTER:
                tried += 1
                run.budget.checks.append(clock.now() - begun)
        if best is None:
            run.report.funnel.reject(outcome)
        entry = CandidateReport(
            segment=segment,
            optimizer=candidate.optimizer,
            rank=rank,
            kernels=len(cost.cost(candidate.graph, run.target).kernels),
            predicted_seconds=candidate.seconds,
            outcome=outcome,
        )
        run.report.candidates.append(entry)
    return best


def _unchanged(run: Run, graph: KernelGraph) -> Accepted:
    """The program as it is, compiled: what is returned where nothing better passed every gate."""
    accepted, outcome = check(run, graph, graph)
    if accepted is None:
        raise UnsupportedProgram(f"expected a program that can be compiled, got one where: {outcome}")
    return accepted
