"""The pipeline's result, tuned: choices are searched from it on, and what is found passes every gate.

First, programs are lowered and priced by their tiles. The best of them, and other launches and tiles of the best,
are compiled and priced by their kernels. The cheapest of these are priced by their machine code, too, and proved
in that order, until one passes that is cheaper than what the pipeline found; else that stays.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt import __version__, cost
from superopt.cost import host
from superopt.report import CandidateReport, Schedule, TuningReport, launches
from superopt.run.check import Accepted, check
from superopt.run.choose import CHOSEN, NOT_FASTER
from superopt.run.propose import Candidate, propose_for
from superopt.run.reuse import own_code
from superopt.store import StoreUnavailable, versions
from superopt.transforms.fingerprints import named
from superopt.transforms.lower.choose_layouts import ChooseLayouts
from superopt.transforms.partition.segments import Segment
from superopt.transforms.schedule.choose_extents import ChooseExtents
from superopt.transforms.schedule.choose_launch import ChooseLaunch
from superopt.transforms.schedule.choose_splits import ChooseSplits, split_parameters
from superopt.transforms.schedule.choose_tiles import ChooseTiles, parameters
from superopt.tuning import strategies
from superopt.tuning.by_cpu import ByCpu
from superopt.tuning.confstore import ConfStore
from superopt.tuning.evaluators import PRICED, ByCode, ByKernels, ByTiles, Evaluation, Evaluator
from superopt.tuning.learned import Learned
from superopt.tuning.log import Log
from superopt.tuning.loop import Trials, phases, search
from superopt.tuning.plan import CUTS, PLAN, Plan
from superopt.tuning.space import Lower, Question, Space, Step
from superopt.tuning.strategies.strategy import Trial
from superopt.verify import program_hash

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.program import KernelGraph
    from superopt.run.context import Run

# What reports call the program that tuning found.
TUNING = "tuning"
GRAPH = (CUTS, PLAN, "choose-extents", "choose-layouts", "choose-splits")
KERNEL = ("choose-tiles", "choose-launch")
# One program in so many is compiled, of the best by tiles so many first; so many are proved.
COMPILED, FINALISTS, PROVED = 8, 4, 3


def steps_of(plan: Plan, target: Target) -> list[Step]:
    """The decisions of the pipeline on one program, in their order."""
    return [
        plan,
        ChooseExtents(target=target.name),
        ChooseLayouts(target=target.name),
        Lower(target),
        ChooseSplits(),
        ChooseTiles(target=target.name),
        ChooseLaunch(target=target.name),
    ]


def improved(
    run: Run,
    graph: KernelGraph,
    parts: Sequence[Segment],
    candidates: Sequence[Sequence[Candidate]],
    accepted: Accepted,
) -> Accepted:
    """`accepted`, or a program that is predicted to be faster and passes the same gates.

    It needs no more than any other result may: what the input takes a user (`Run.most_seconds`). It prices
    `tune` programs by their tiles, and an eighth as many by their kernels, or on the CPU. There, what differs by
    less than the noise is equal: the intervals of what is faster are apart.
    """
    on_cpu = run.settings.tune_by == "cpu"
    first = ByTiles(host(), "tiles on cpu") if on_cpu else ByTiles(run.target)
    last: Evaluator = ByCpu(graph) if on_cpu else ByKernels(run.compiler)

    def price(made: Accepted) -> Evaluation:
        """What the last evaluator says."""
        if not on_cpu:
            return Evaluation(run.price(made.scheduled), PRICED, last.name)
        (found,) = last.evaluate([made.scheduled.lowered])
        return found

    priced = price(accepted)
    before = math.inf if priced.seconds is None else priced.seconds
    least = _ends(priced)[0] if on_cpu else min(before, run.most_seconds)
    plan = Plan(parts, [_sound(run, f) for f in candidates], run.target, lambda s: of_other_cuts(run, s))
    steps, folder = steps_of(plan, run.target), run.earlier.folder
    store = ConfStore(folder, run.target.name, steps)
    space = Space(graph, steps, store.choice)
    program = program_hash(graph)
    log = Log(
        folder,
        hashlib.sha256(f"{program} {run.target.name} {own_code()} {versions()}".encode()).hexdigest()[:32],
    )
    now = {PLAN: plan.choices([accepted.graph, *_of_segments(run, parts, candidates)])}
    starts = [Question(now), Question(now, remembered=True), Question({}, remembered=True)]
    strategy, count, seed = strategies.names()[0], run.settings.tune, run.settings.seed
    with run.timed("tune"):
        by_tiles = Trials(space, first, log)
        search(
            by_tiles, starts, phases("all", GRAPH, KERNEL),
            evaluations=count, strategy=strategy, seed=seed, stop=run.stopped,
        )  # fmt: skip
        # What another machine measured, or this one under another load, is no answer.
        learned = Learned.on(host() if on_cpu else run.target)
        by_kernels = Trials(space, last, Log(None, "") if on_cpu else log, screen=learned)
        most = math.ceil(count / COMPILED)
        # A price by kernels is never less than that by tiles.
        finalists = [t for t in by_tiles.best() if on_cpu or t.seconds < least][: min(FINALISTS, most)]
        by_kernels.run([t.question for t in finalists])
        if best := by_kernels.best():
            search(
                by_kernels, [Question(best[0].traced.config)], phases("all", (), KERNEL),
                evaluations=most - by_kernels.evaluations, strategy=strategy, seed=seed, stop=run.stopped,
            )  # fmt: skip
        better = [t for t in by_kernels.best() if _ends(t.evaluation)[1] < least]
        by_code = Trials(space, ByCode(run.compiler), log)
        if not on_cpu and len(better) > 1:
            by_code.run([t.question for t in better[: 2 * PROVED]])
            code = {named(t.traced.program): t.seconds for t in by_code.best()}
            better.sort(key=lambda t: code.get(named(t.traced.program), math.inf))
    if not on_cpu:
        _remember(run, store, by_tiles, by_tiles.done[0].seconds, program)
        _remember(run, store, by_kernels, before, program)
    report = TuningReport(
        strategy=strategy,
        evaluations={
            t.evaluator.name: t.evaluations for t in (by_tiles, by_kernels, by_code) if t.evaluations
        },
        ended={t.evaluator.name: t.ended for t in (by_tiles, by_kernels) if t.ended},
        screen=learned.said,
        rejected=dict(by_tiles.rejected + by_kernels.rejected),
        prices=[e.seconds for e in by_kernels.known.values()],
        measured=on_cpu,
        before_seconds=before,
        after_seconds=before,
    )
    run.report.tuning = report
    for trial in better[:PROVED]:
        made, reason = check(run, graph, trial.traced.graphs["choose-layouts"], _schedule(run, trial))
        if made is not None and (found := price(made)).seconds is not None and _ends(found)[1] < least:
            seconds = report.after_seconds = found.seconds
            report.config = trial.traced.config
            said = f"{seconds * 1e6:.2f} us instead of {before * 1e6:.2f} us"
            _list(run, made)
            how = "measured on the CPU" if on_cpu else "predicted"
            run.report.remarks.append(f"tuned: {how} {said}, by {report.programs} prices")
            return made
        report.refused.append(reason if made is None else NOT_FASTER)
    return accepted


def _list(run: Run, made: Accepted) -> None:
    """List what tuning chose among the candidates, instead of what was chosen before."""
    wholes = [c for c in run.report.candidates if c.segment is None]
    for candidate in wholes:
        if candidate.outcome == CHOSEN:
            candidate.outcome = "ranked below the tuned one"
    priced = cost.cost(made.scheduled.lowered, run.target)
    run.report.candidates.append(
        CandidateReport(
            segment=None,
            optimizer=TUNING,
            rank=len(wholes),
            kernels=len(priced.kernels),
            predicted_seconds=priced.seconds,
            compiled_seconds=run.price(made.scheduled),
            compiled_after=round(run.budget.spent, 3),
            outcome=CHOSEN,
        )
    )


def _ends(of: Evaluation) -> tuple[float, float]:
    """The fewest and the most seconds that a price may stand for; infinite where there is none."""
    if of.seconds is None:
        return math.inf, math.inf
    return of.interval or (of.seconds, of.seconds)


def of_other_cuts(run: Run, segment: Segment) -> list[Candidate]:
    """The candidates of a segment that other cuts make, for half of what is left for searches."""
    seconds = run.budget.searches_left / 2
    return propose_for(segment, run, seconds, seconds)


def _remember(run: Run, store: ConfStore, trials: Trials, before: float, program: str) -> None:
    """Keep the choices of the best program, unless it takes longer than `before`, by the same evaluator."""
    if (best := trials.best()) and best[0].seconds <= before:
        try:
            store.keep(best[0], before, program=program, seed=run.settings.seed)
        except (StoreUnavailable, ValueError) as error:
            run.diagnostics.warning(f"the choices were not stored: {getattr(error, 'message', error)}")


def _sound(run: Run, found: Sequence[Candidate]) -> list[Candidate]:
    """Those that no gate has refused, but for what other tiles may mend."""
    return [c for c in found if run.refused.get(c.graph, "does not compile").startswith("does not compile")]


def _of_segments(
    run: Run, parts: Sequence[Segment], candidates: Sequence[Sequence[Candidate]]
) -> list[KernelGraph]:
    """What was chosen for the segments."""
    chosen = [c for c in run.report.candidates if c.outcome == CHOSEN and c.segment is not None]
    return [candidates[c.segment][c.rank].graph for c in chosen if c.segment is not None]


def _schedule(run: Run, trial: Trial) -> Schedule:
    """The tiles and launches of a trial, as replays and gates take them."""
    graphs, config = trial.traced.graphs, trial.traced.config
    # A price from the log lacks the program whose launches had to change.
    evaluated = (
        trial.evaluation.program or ByKernels(run.compiler).evaluate([trial.traced.program])[0].program
    )
    program = evaluated or trial.traced.program
    return Schedule(
        superopt=__version__,
        target=run.target.name,
        seed=run.settings.seed,
        program_sha256="",
        optimized="",
        launches=launches(program),
        parameters={
            **split_parameters(graphs["lower"], config.get("choose-splits", {})),
            **parameters(graphs["choose-splits"], config.get("choose-tiles", {})),
        },
        reason=f"tuned with {run.settings.tune} evaluations",
    )
