"""Joint tuning against one pass after the other, by the analytic model, with the same number of evaluations.

python -m benchmarks.tuning [--programs a,b] [--evaluations 64] [--seeds 3] [--budget 6]
python -m benchmarks.tuning --reuse [--programs a,b] [--evaluations 16]

For each program, the searches run once. Then, of all programs that the choices of cuts, plan, extents, layouts,
splits and tiles make, lowered and priced by their tiles:

rules       what each pass chooses by itself
sequential  each pass tuned alone, in order
joint       cuts, plan, extents, layouts and splits together, then tiles
all         each pass alone with half of the evaluations, and then all of them together: what `tune` does
random      the same from random choices on
gain        sequential over the better of joint and all: what the same number of evaluations finds together only
best        the least that any of these found
after       the best after 1, 2, 4, ... evaluations

With --reuse, `all` starts from the rules or from random choices, and then from what the best of the other
programs in tuning.json chose, too.

Figures are medians over the seeds. Nothing is proved or compiled here, and no GPU has timed anything: these are
predictions. Results are kept in benchmarks/results/tuning.json or reuse.json, program by
program, so that a run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from benchmarks.record import commit, keep, load, today

from superopt import clock, cost
from superopt.diagnostics import Diagnostics
from superopt.inputs.programs import read_program
from superopt.run import context, propose
from superopt.run.settings import Settings
from superopt.tuning import strategies
from superopt.tuning.evaluators import ByTiles
from superopt.tuning.improve import GRAPH, KERNEL, of_other_cuts, steps_of
from superopt.tuning.log import Log
from superopt.tuning.loop import ScheduleName, Trials, phases, search
from superopt.tuning.plan import Plan
from superopt.tuning.space import Question, Space, nothing
from superopt.tuning.strategies.strategy import Trial

ROOT = Path(__file__).resolve().parent / "mugraph"
# What lost by choosing in turns when the decisions were first compared, what may be cut, and then all the others.
_FIRST = (
    "bilinear_form", "gated_attention", "pooled_mlp", "mlp_b8", "low_rank_chain", "lora_b1", "lora_b8",
    "rational_features", "attention_block", "norm_transformer_b1", "moe_b1",
)  # fmt: skip
_METHOD = strategies.names()[0]
# From the rules on and from random choices on, without and with what other programs taught.
WAYS = ("without", "with", "random_without", "random_with")
PROGRAMS = (*_FIRST, *sorted({path.stem for path in ROOT.glob("*.mlir")} - {*_FIRST}))


def searched(name: str, budget: float) -> tuple[Space, dict[str, Any]]:
    """The choices of one program, and what its searches found."""
    graph = read_program(ROOT / f"{name}.mlir", Diagnostics())
    run = context.start(graph, Settings(store=None, budget=2 * budget), Diagnostics())
    parts = propose.parts(graph)
    begun = clock.now()
    candidates = propose.propose(run, parts, lambda stage, share: None)
    counts = {"candidates": [len(c) for c in candidates], "search_cpu_seconds": round(clock.now() - begun, 2)}
    plan = Plan(parts, candidates, run.target, lambda segment: of_other_cuts(run, segment))
    return Space(graph, steps_of(plan, run.target)), counts


def measure(name: str, *, evaluations: int, seeds: int, budget: float) -> dict[str, Any]:
    """Predicted microseconds of one program by each schedule, from the rules on and from random choices."""
    space, row = searched(name, budget)
    log, begun = Log(None, ""), clock.now()  # each program is priced once for all schedules
    runs: dict[str, list[Trials]] = {}
    for schedule in get_args(ScheduleName):
        runs[schedule] = [_run(space, schedule, _METHOD, evaluations, seed, log) for seed in range(seeds)]
    runs["random"] = [
        _run(space, "all", _METHOD, evaluations, seed, log, [_random(seed)]) for seed in range(seeds)
    ]
    row["rules_us"] = round(runs["all"][0].done[0].seconds * 1e6, 3)
    for schedule, trials in runs.items():
        row[f"{schedule}_us"] = _microseconds([_course(t)[-1] for t in trials])
        row[f"{schedule}_after"] = _after(trials, evaluations)
    best = min((t.best()[0] for trials in runs.values() for t in trials if t.best()), key=lambda t: t.seconds)
    row["best_us"] = round(best.seconds * 1e6, 3)
    row["gain"] = round(row["sequential_us"] / min(row["joint_us"], row["all_us"]), 3)
    row["choices"] = _choices(best)
    row["tune_cpu_seconds"] = round(clock.now() - begun, 2)
    return row


def reuse(
    name: str, rows: dict[str, dict[str, Any]], *, evaluations: int, seeds: int, budget: float
) -> dict[str, Any]:
    """What `all` finds after few evaluations, from the rules and from random choices on, with and without what
    other programs taught.

    Of what was chosen for the others in `rows`, a site takes the choice that left the least share of its
    program's seconds, as `ConfStore` does.
    """
    space, row = searched(name, budget)
    shares = {other: r["best_us"] / r["rules_us"] for other, r in rows.items() if other != name}
    good: dict[tuple[str, str], str] = {}
    for other in sorted(shares, key=lambda o: -shares[o]):
        good |= {
            (flag, at): choice
            for flag, chosen in rows[other]["choices"].items()
            for at, choice in chosen.items()
        }

    def known(flag: str, at: str) -> str | None:
        return good.get((flag, at))

    log, seen = Log(None, ""), {d.key for d in space.trace(Question({})).decisions}
    row["known_sites"], row["sites"] = len(seen & set(good)), len(seen)
    good_before = Question({}, remembered=True)
    for way in WAYS:
        # What was good before is a start, and what sites choose that come with another choice.
        taught = way.endswith("with")
        space.known = known if taught else nothing
        runs: list[Trials] = []
        for seed in range(seeds):
            start = _random(seed) if way.startswith("random") else Question({})
            starts = [start, good_before] if taught else [start]
            runs.append(_run(space, "all", _METHOD, evaluations, seed, log, starts))
        row[f"{way}_us"] = _microseconds([_course(t)[-1] for t in runs])
        row[f"{way}_after"] = _after(runs, evaluations)
    return row


def _random(seed: int) -> Question:
    """A random choice everywhere."""
    return Question({}, frozenset((*GRAPH, *KERNEL)), seed)


def _microseconds(seconds: Sequence[float]) -> float | None:
    """The median; None where no program had a price."""
    found = statistics.median(seconds)
    return round(found * 1e6, 3) if math.isfinite(found) else None


def _after(runs: Sequence[Trials], evaluations: int) -> dict[int, float | None]:
    """The best after so many evaluations, which double: the median. A search may end before."""
    courses, at = [_course(t) for t in runs], [n for n in (1 << i for i in range(20)) if n < evaluations]
    return {
        n: _microseconds([course[min(n, len(course)) - 1] for course in courses]) for n in (*at, evaluations)
    }


def _choices(trial: Trial) -> dict[str, dict[str, str]]:
    """What was not left to the rules."""
    found: dict[str, dict[str, str]] = {}
    for d in trial.traced.decisions:
        if d.choice != d.site.default:
            found.setdefault(d.flag, {})[d.site.at] = d.choice
    return found


def _run(
    space: Space,
    schedule: ScheduleName,
    method: str,
    evaluations: int,
    seed: int,
    log: Log,
    starts: Sequence[Question] = (Question({}),),
) -> Trials:
    trials = Trials(space, ByTiles(cost.target("sm_90")), log)
    moving = phases(schedule, GRAPH, KERNEL)
    search(trials, starts, moving, evaluations=evaluations, strategy=method, seed=seed)
    return trials


def _course(trials: Trials) -> list[float]:
    """The least seconds after each evaluation."""
    seconds = [float("inf") if e.seconds is None else e.seconds for e in trials.known.values()]
    return [min(seconds[: i + 1]) for i in range(len(seconds))]


def main() -> None:
    """Measure what is missing, print, store."""
    parser = argparse.ArgumentParser(description="Joint tuning against one pass after the other.")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="names of files in benchmarks/mugraph")
    parser.add_argument("--evaluations", type=int, help="64; 16 with --reuse")
    parser.add_argument("--seeds", type=int, help="3")
    parser.add_argument(
        "--budget", type=float, default=6.0, help="seconds of work of the searches of a program"
    )
    parser.add_argument("--reuse", action="store_true", help="start from what other programs taught, too")
    given = parser.parse_args()
    kept, work, evaluations, seeds = "tuning", measure, 64, 3
    if given.reuse:
        kept, work, evaluations = "reuse", partial(reuse, rows=load("tuning")), 16
    evaluations, seeds = given.evaluations or evaluations, given.seeds or seeds
    settings = {
        "evaluations": evaluations,
        "seeds": seeds,
        "budget_seconds": given.budget,
    }
    settings |= {"passes": [*GRAPH, *KERNEL]}
    rows = load(kept)
    for name in given.programs.split(","):
        if {k: rows.get(name, {}).get(k) for k in settings} != settings:
            found = work(name, evaluations=evaluations, seeds=seeds, budget=given.budget)
            rows[name] = {**settings, "commit": commit(), "date": today(), **found}
            keep(kept, rows, target="sm_90")
        print(f"{name:24} {json.dumps(rows[name])}", flush=True)


if __name__ == "__main__":
    main()
