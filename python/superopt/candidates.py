"""The steps that one run repeats: candidates are proposed, ranked, and checked until one passes.

A candidate is taken only if it is predicted to be faster than what it replaces, proved equivalent to it, is
still so after lowering, compiles, and stays within the numeric tolerance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from superopt.program import KernelGraph

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.pipeline import Superoptimize
    from superopt.report import Report, Schedule
    from superopt.reuse import Earlier
    from superopt.transforms.schedule.fit import Scheduled
    from superopt.verify import Verdict


# Shares of the budget: what searches may take, and what may be spent until no other shape of a kernel is tried.
SEARCHES, SHAPES = 0.5, 0.7


@dataclass(frozen=True)
class Candidate:
    """A program that may replace another one: who proposed it, and the seconds it is predicted to take."""

    optimizer: str
    graph: KernelGraph
    seconds: float


@dataclass(frozen=True)
class Accepted:
    """A program that passed every check, with what the checks made of it."""

    graph: KernelGraph
    shaped: Scheduled
    verdict: Verdict
    numerics: str


@dataclass(frozen=True)
class Run:
    """What every step of one run knows, and the report that they write; `stopped` says that the user is.

    `checks` has the seconds that checks of candidates took.
    """

    settings: Superoptimize
    target: Target
    report: Report
    earlier: Earlier
    stopped: Callable[[], bool] = lambda: False
    started: float = field(default_factory=time.monotonic)
    checks: list[float] = field(default_factory=list[float])

    def predicted(self, graph: KernelGraph) -> float:
        """Seconds that `graph` is predicted to take."""
        from superopt import cost

        return cost.cost(graph, self.target).seconds

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        """Add the seconds that the block takes to the report's `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = self.report.seconds.get(stage, 0.0) + time.perf_counter() - start
            self.report.seconds[stage] = round(spent, 4)

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.settings.budget - (time.monotonic() - self.started)

    def search_budget_left(self) -> float:
        """Seconds that searches may still take; proofs and compilation have the rest of the budget."""
        searched = sum(t for stage, t in self.report.seconds.items() if stage.startswith("search"))
        return max(self.settings.budget * SEARCHES - searched, 0.0)

    def late_for_another(self) -> bool:
        """Whether a check that takes as long as the longest one so far would end after the budget."""
        return self.left < max(self.checks, default=0.0)

    def late_for_the_whole(self) -> bool:
        """Whether so would one that takes as long as all of them, as that of their results together does."""
        return bool(self.checks) and self.left < sum(self.checks)

    def propose(
        self, graph: KernelGraph, optimizers: Sequence[str], *, seconds: float, nominal: float
    ) -> list[Candidate]:
        """What the optimizers find within `seconds`, or until the run is stopped, fastest predicted first.

        A search that an earlier run did for `nominal` seconds, shared by all optimizers, is not done again.
        """
        from superopt.transforms import mugraph_search, partition, tile_saturation

        end = time.monotonic() + seconds
        funnel, seed = self.report.funnel, self.settings.seed
        found: list[Candidate] = []

        def add(optimizer: str, graphs: Sequence[KernelGraph]) -> None:
            funnel.proposed += len(graphs)
            found.extend(Candidate(optimizer, g, self.predicted(g)) for g in graphs)

        for i, optimizer in enumerate(optimizers):
            share = (end - time.monotonic()) / (len(optimizers) - i)
            if share <= 0 or self.stopped():
                break
            kept = self.earlier.candidates(graph, optimizer, nominal / len(optimizers))
            if kept is not None:
                funnel.add({f"store.{optimizer}": len(kept)})
                add(optimizer, kept)
                continue
            start = time.monotonic()
            with self.timed(f"search: {optimizer}"):
                if optimizer == "mugraph":
                    options = mugraph_search.SearchOptions(prune=self.settings.prune)
                    result = partition.propose(
                        graph, self.target, budget=share, seed=seed, options=options, stop=self.stopped
                    )
                else:
                    result = tile_saturation.propose(
                        graph, self.target, budget=share, seed=seed, stop=self.stopped
                    )
            funnel.add(result.funnel)
            add(optimizer, result.candidates)
            if not self.stopped():
                used = time.monotonic() - start
                self.earlier.keep_candidates(graph, optimizer, result.candidates, allowed=share, used=used)
        return sorted(found, key=lambda c: c.seconds)

    def choose(
        self, graph: KernelGraph, candidates: Sequence[Candidate], segment: int | None = None
    ) -> Accepted | None:
        """The first of the ranked candidates that passes every check; None if none does.

        `segment` is the number of the one that `graph` is, None for the whole program.
        """
        from superopt import cost
        from superopt.report import CandidateReport

        baseline = self.predicted(graph)
        self.report.funnel.ranked += len(candidates)
        best: Accepted | None = None
        tried = 0
        for rank, candidate in enumerate(candidates):
            if best is not None:
                outcome = "ranked below the chosen one"
            elif candidate.seconds >= baseline:
                outcome = "not predicted to be faster"
            elif tried == self.settings.candidates:
                outcome = "not tried: enough candidates failed"
            elif tried and self.late_for_another():
                outcome = "not tried: the budget is spent"
            else:
                tried += 1
                begun = time.monotonic()
                best, outcome = self.check(graph, candidate.graph)
                self.checks.append(time.monotonic() - begun)
            if best is None:
                self.report.funnel.reject(outcome)
            entry = CandidateReport(
                segment=segment,
                optimizer=candidate.optimizer,
                rank=rank,
                kernels=len(cost.cost(candidate.graph, self.target).kernels),
                predicted_seconds=candidate.seconds,
                outcome=outcome,
            )
            self.report.candidates.append(entry)
        return best

    def _shapes_end(self) -> bool:
        return self.left < (1 - SHAPES) * self.settings.budget

    def check(
        self, graph: KernelGraph, candidate: KernelGraph, schedule: Schedule | None = None
    ) -> tuple[Accepted | None, str]:
        """Prove, lower, compile and measure the error of one candidate; (result, what happened).

        The tiles and launches of a `schedule` take the place of what is chosen here.
        """
        from superopt.errors import IllegalProgram, SuperoptError, UnsupportedProgram
        from superopt.reuse import foreign_externs
        from superopt.spec import check_kernel
        from superopt.transforms.emit.compile import CompilationFailed
        from superopt.transforms.lower import lower
        from superopt.transforms.schedule.fit import as_scheduled, fit
        from superopt.verify import certify_lowered

        settings, target, funnel = self.settings, self.target, self.report.funnel
        try:
            check_kernel(candidate, target.shared_per_block)
        except IllegalProgram as error:
            return None, f"illegal: {error.message}"
        if foreign := foreign_externs(graph, candidate):
            return None, f"illegal: runs '{foreign[0]}', which the program does not"
        with self.timed("lower"):
            try:
                lowered = lower(candidate, target.name)
            except SuperoptError as error:
                return None, f"cannot be lowered: {error.message}"
            if schedule is not None and (lowered := as_scheduled(lowered, schedule, target)) is None:
                return None, "has not the tiles of the schedule"
        with self.timed("verify"):
            verdict, kept = certify_lowered(
                graph, candidate, lowered, delta=settings.delta, seed=settings.seed
            )
        if not verdict.equivalent:
            return None, "not equivalent"
        funnel.verified += 1
        if not kept:
            return None, "lowering changed it"
        try:
            with self.timed("compile"):
                shaped = fit(graph, lowered, target, fixed=schedule is not None, stop=self._shapes_end)
        except CompilationFailed as error:
            return None, f"does not compile: {error.message}"
        except UnsupportedProgram as error:
            return None, f"cannot be written as kernels: {error.message}"
        funnel.compiled += 1
        if shaped.parameters:
            with self.timed("verify"):
                again, kept = certify_lowered(
                    graph, candidate, shaped.lowered, delta=settings.delta, seed=settings.seed
                )
            if again.equivalent and kept:
                verdict = again
            else:
                shaped = fit(graph, lowered, target, fixed=True)
        if schedule is not None:
            shaped = replace(shaped, parameters=schedule.parameters, reason=schedule.reason)
        lowered = shaped.lowered
        numerics = "not checked"
        if settings.numerics:
            from superopt.numerics import gate

            with self.timed("numerics"):
                measured = gate(graph, lowered)
            numerics = measured.summary
            if not measured.passed:
                return None, f"numerically unsafe: {numerics}"
        return Accepted(candidate, shaped, verdict, numerics), "chosen"
