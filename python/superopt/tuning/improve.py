"""The pipeline's result, tuned: choices are searched from it on, and what is found passes every gate.

First, programs are lowered and priced by their tiles. The best of them, and other launches and tiles of the best,
are compiled and priced by their kernels. Then the cheapest are proved, in order, until one passes that is cheaper
than what the pipeline found; else that stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt import __version__
from superopt.report import Schedule, TuningReport, launches
from superopt.run.check import Accepted, check
from superopt.run.choose import NOT_FASTER
from superopt.run.propose import Candidate
from superopt.transforms.lower.choose_layouts import ChooseLayouts
from superopt.transforms.partition.segments import Segment
from superopt.transforms.schedule.choose_launch import ChooseLaunch
from superopt.transforms.schedule.choose_tiles import ChooseTiles, parameters
from superopt.tuning import strategies
from superopt.tuning.evaluators import ByKernels, ByTiles
from superopt.tuning.loop import Trials, phases, search
from superopt.tuning.plan import Plan
from superopt.tuning.space import Lower, Space
from superopt.tuning.strategies.strategy import Trial

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.program import KernelGraph
    from superopt.run.context import Run

GRAPH, KERNEL = ("plan", "choose-layouts"), ("choose-tiles", "choose-launch")
# One program in so many is compiled, of the best by tiles so many first; so many are proved.
COMPILED, FINALISTS, PROVED = 8, 4, 3


def space_of(graph: KernelGraph, plan: Plan, target: Target) -> Space:
    """The decisions of the pipeline on one program, in their order."""
    return Space(
        graph,
        [
            plan,
            ChooseLayouts(target=target.name),
            Lower(target),
            ChooseTiles(target=target.name),
            ChooseLaunch(target=target.name),
        ],
    )


def improved(
    run: Run,
    graph: KernelGraph,
    parts: Sequence[Segment],
    candidates: Sequence[Sequence[Candidate]],
    accepted: Accepted,
) -> Accepted:
    """`accepted`, or a program that is predicted to be faster and passes the same gates.

    It prices `tune` programs by their tiles, and an eighth as many by their kernels.
    """
    before = run.price(accepted.scheduled)
    plan = Plan(parts, [_sound(run, found) for found in candidates], run.target)
    space = space_of(graph, plan, run.target)
    start = {plan.flag: plan.choices([accepted.graph, *_of_segments(run, parts, candidates)])}
    strategy, count, seed = strategies.names()[0], run.settings.tune, run.settings.seed
    with run.timed("tune"):
        by_tiles = Trials(space, ByTiles(run.target))
        search(
            by_tiles, start, phases("joint", GRAPH, KERNEL),
            evaluations=count, strategy=strategy, seed=seed, stop=run.stopped,
        )  # fmt: skip
        by_kernels = Trials(space, ByKernels(run.compiler))
        most = math.ceil(count / COMPILED)
        # A price by kernels is never less than that by tiles.
        finalists = [t for t in by_tiles.best() if t.seconds < before][: min(FINALISTS, most)]
        by_kernels.run([t.question for t in finalists])
        if best := by_kernels.best():
            search(
                by_kernels, best[0].traced.config, phases("all", (), KERNEL),
                evaluations=most - by_kernels.evaluations, strategy=strategy, seed=seed, stop=run.stopped,
            )  # fmt: skip
    better = [t for t in by_kernels.best() if t.seconds < before]
    report = TuningReport(
        strategy=strategy,
        evaluations={t.evaluator.name: t.evaluations for t in (by_tiles, by_kernels)},
        rejected=dict(by_tiles.rejected + by_kernels.rejected),
        before_seconds=before,
        after_seconds=before,
    )
    run.report.tuning = report
    for trial in better[:PROVED]:
        made, reason = check(run, graph, trial.traced.graphs["choose-layouts"], _schedule(run, trial))
        if made is not None and (seconds := run.price(made.scheduled)) < before:
            report.after_seconds, report.config = seconds, trial.traced.config
            said = f"{seconds * 1e6:.1f} us instead of {before * 1e6:.1f} us"
            run.report.remarks.append(f"tuned: predicted {said}, by {report.programs} prices")
            return made
        report.refused.append(reason if made is None else NOT_FASTER)
    return accepted


def _sound(run: Run, found: Sequence[Candidate]) -> list[Candidate]:
    """Those that no gate has refused, but for what other tiles may mend."""
    return [c for c in found if run.refused.get(c.graph, "does not compile").startswith("does not compile")]


def _of_segments(
    run: Run, parts: Sequence[Segment], candidates: Sequence[Sequence[Candidate]]
) -> list[KernelGraph]:
    """What was chosen for the segments."""
    chosen = [c for c in run.report.candidates if c.outcome == "chosen" and c.segment is not None]
    return [candidates[c.segment][c.rank].graph for c in chosen if c.segment is not None]


def _schedule(run: Run, trial: Trial) -> Schedule:
    """The tiles and launches of a trial, as replays and gates take them."""
    graphs = trial.traced.graphs
    program = trial.evaluation.program
    assert program is not None, "what was compiled was priced"
    return Schedule(
        superopt=__version__,
        target=run.target.name,
        seed=run.settings.seed,
        program_sha256="",
        optimized="",
        launches=launches(program),
        parameters=parameters(graphs["lower"], trial.traced.config.get("choose-tiles", {})),
        reason=f"tuned with {run.settings.tune} evaluations",
    )
