"""Strategies in a space beyond 2^40, whose seconds a hidden model gives (`superopt.tuning.hidden`).

python -m benchmarks.large_space [--seeds 30] [--evaluations 1024]

For each strategy, evaluations until a program is within 20 %, 10 % and 5 % of the best, which is known: median
and 90th percentile over the seeds, null where that is never; and how far the best program found is from it after
a quarter, half and all of the evaluations (median). About search only: nothing here has to do with speed. Results
are kept in benchmarks/results/large_space.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from typing import Any

from benchmarks.record import commit, keep

from superopt.tuning import strategies
from superopt.tuning.hidden import Hidden
from superopt.tuning.loop import Trials, search
from superopt.tuning.space import Question

SHARES = (1.2, 1.1, 1.05)


def course(method: str, seed: int, evaluations: int) -> list[float]:
    """The least seconds after each evaluation, over those of the best program."""
    space = Hidden()
    trials = Trials(space, space)
    search(
        trials, [Question({})], [frozenset({space.flag})], evaluations=evaluations, strategy=method, seed=seed
    )
    found, least = list[float](), math.inf
    for evaluation in trials.known.values():
        least = min(least, evaluation.seconds or math.inf)
        found.append(least / space.best)
    return found


def row(method: str, seeds: int, evaluations: int) -> dict[str, Any]:
    """The figures of one strategy."""
    courses = [course(method, seed, evaluations) for seed in range(1 if method == "exhaustive" else seeds)]
    found: dict[str, Any] = {"seeds": len(courses), "evaluations": evaluations, "commit": commit()}
    for share in SHARES:
        needed = sorted(next((i + 1 for i, s in enumerate(c) if s <= share), math.inf) for c in courses)
        at = statistics.median_high(needed), needed[math.ceil(0.9 * len(needed)) - 1]
        found[f"within_{share:.2f}"] = [None if n == math.inf else int(n) for n in at]
    for part in (4, 2, 1):
        found[f"after_{evaluations // part}"] = round(
            statistics.median(c[evaluations // part - 1] for c in courses), 4
        )
    return found


def main() -> None:
    """Search, print, store."""
    parser = argparse.ArgumentParser(description="Strategies in a space beyond 2^40.")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--evaluations", type=int, default=1024)
    given = parser.parse_args()
    space = Hidden()
    rows: dict[str, Any] = {}
    for method in strategies.names():
        rows[method] = row(method, given.seeds, given.evaluations)
        keep("large_space", rows, programs_in_space=f"2^{math.log2(space.programs):.1f}", by="a hidden model")
        print(f"{method:12} {json.dumps(rows[method])}", flush=True)


if __name__ == "__main__":
    main()
