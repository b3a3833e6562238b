"""The state that all steps of one run share."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from superopt import __version__, cost, log
from superopt.diagnostics import Diagnostics
from superopt.program import KernelGraph
from superopt.report import TIE, Report
from superopt.run.budget import Budget
from superopt.run.reuse import Earlier
from superopt.run.settings import Settings
from superopt.spec import check_kernel
from superopt.transforms.optimizers import never
from superopt.transforms.schedule.fit import Compiler, Scheduled


@dataclass(frozen=True)
class Run:
    """One run: its settings and target, the report that its steps write, and what earlier runs found.

    `baseline` is the fastest way that a user has to run the input. `stopped` says whether the user wants the run
    to end.
    """

    settings: Settings
    target: cost.Target
    report: Report
    earlier: Earlier
    budget: Budget
    compiler: Compiler
    baseline: cost.Baseline
    diagnostics: Diagnostics
    stopped: Callable[[], bool] = never
    refused: dict[KernelGraph, str] = field(default_factory=dict[KernelGraph, str])
    """Candidates that a gate refused, and its reason."""

    def predicted(self, graph: KernelGraph) -> float:
        """Seconds that `graph` is predicted to take by its tiles: what candidates are ranked by at first."""
        saved = sum(
            cost.kernel_cost(n, self.target).seconds - cost.contraction_cost(n, self.target).seconds
            for n in (graph.nodes[i] for i in self.library(graph))
        )
        return cost.cost(graph, self.target).seconds - saved

    def library(self, graph: KernelGraph) -> tuple[int, ...]:
        """The products of a candidate, by their places, that are left to a library, as the input's are."""
        return cost.left_to_library(graph, self.target) if self.settings.against == "best" else ()

    @property
    def most_seconds(self) -> float:
        """What a result may be predicted to take: what the input takes a user, or operator by operator."""
        best = self.settings.against == "best"
        return TIE * (self.baseline.seconds if best else self.report.input_predicted_seconds)

    def price(self, scheduled: Scheduled) -> float:
        """Seconds that compiled kernels are predicted to take: what is compared, printed and reported."""
        return cost.compiled_seconds(scheduled.lowered, scheduled.compiled, self.target)

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        """Add the wall seconds that the block takes to the report's `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.report.seconds[stage] = round(self.report.seconds.get(stage, 0.0) + spent, 4)
            log.event("stage", program=self.report.program, stage=stage, seconds=round(spent, 4))


def start(
    graph: KernelGraph, settings: Settings, diagnostics: Diagnostics, stopped: Callable[[], bool] = never
) -> Run:
    """A run with an empty report; raises IllegalProgram where `graph` is illegal."""
    target = cost.target(settings.target)
    check_kernel(graph, target.shared_per_block)
    baseline = cost.best_baseline(graph, target)
    report = Report(
        superopt=__version__,
        program=graph.name,
        target=settings.target,
        command=diagnostics.command,
        settings={o.name: getattr(settings, o.field) for o in settings.options() if o.field != "store"},
        input_predicted_seconds=cost.cost(graph, target).seconds,
        baseline=baseline.name,
        baseline_seconds=baseline.seconds,
    )
    earlier = Earlier(settings, target, diagnostics)
    budget = Budget(settings.budget)
    return Run(settings, target, report, earlier, budget, Compiler(target), baseline, diagnostics, stopped)
