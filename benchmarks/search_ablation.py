"""What each means against the size of the search space is worth: Table 5 of Mirage's paper, and more of it.

    python -m benchmarks.search_ablation          printed, and kept in benchmarks/results/search_ablation.json

Each program is searched with at most 4, 5, ... 11 operators in a block, and with as many as by default: as it is,
without the test on axes, without branch and bound, without dominance, over graphs in place of values, with z3 in
place of the normal form, and without pruning (values of at most as many operators as a block then). Each run has
a process of its own and a limit; seconds are of that process, so that others on the machine matter less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.mugraph.programs import program
from benchmarks.record import keep, load
from benchmarks.search import search_commit

# GQA in minutes (Mirage, Table 5): with both means, without abstract expressions, without canonical form as well.
PAPER_MINUTES = {4: (0.15, 0.0, 0.0), 5: (2.3, 249, None), 6: (20, None, None), 7: (76, None, None)}
PROGRAMS = ["gqa_decode_b1", "qknorm_public_b1", "rmsnorm_linear_b8", "gated_mlp_b8", "norm_transformer_b8"]
OPERATORS = [*range(4, 12), 24]
VARIANTS: dict[str, dict[str, Any]] = {
    "normal form": {},
    "without axes": {"axis_test": False},
    "without bounds": {"branch_and_bound": False},
    "without dominance": {"dominance": 0},
    "graphs": {"canonical": "graphs", "max_attempts": 1_000_000_000},
    "z3": {"prune": "smt"},
    "none": {"prune": "none"},
}


def measure(name: str, variant: str, operators: int, limit: float) -> dict[str, Any]:
    """One search; `seconds` are those of the process, `complete` whether the space was searched to its end."""
    from superopt.cost import target
    from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
    from superopt.transforms.mugraph_search.plans import search_plans

    options = dict(VARIANTS[variant])
    if options.get("prune") == "none":
        options["max_value_operators"] = operators
    graph = program(name)
    start = time.process_time()
    found = search_plans(
        graph,
        target("sm_90"),
        budget=limit,
        options=MugraphOptimizer(max_block_operators=operators, **options),
    )
    return {
        "seconds": round(time.process_time() - start, 3),
        "complete": found.complete,
        "values": found.funnel.get("values.useful", 0),
        "attempted": found.funnel.get("values.attempted", 0),
        "states": found.funnel.get("kernels.states", 0),
        "best_us": round(found.predicted[0] * 1e6, 2) if found.predicted else None,
    }


def in_child(name: str, variant: str, operators: int, limit: float) -> dict[str, Any]:
    """`measure` in a process of its own, ended when it takes three times the limit."""
    command = [sys.executable, "-m", "benchmarks.search_ablation", "--child", name, variant, str(operators)]
    try:
        done = subprocess.run(
            [*command, "--limit", str(limit)], capture_output=True, text=True, timeout=3 * limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"seconds": None, "complete": False, "best_us": None}
    if done.returncode:
        return {"seconds": None, "complete": False, "best_us": None, "failed": done.stderr.splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="comma-separated")
    parser.add_argument("--operators", default=",".join(map(str, OPERATORS)), help="comma-separated")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds of each search")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, variant, operators = arguments.child
        print(json.dumps(measure(name, variant, int(operators), arguments.limit)))
        return
    rows = load("search_ablation")
    for name in arguments.programs.split(","):
        for variant in VARIANTS:
            row = rows.setdefault(name, {}).setdefault(variant, {})
            for operators in arguments.operators.split(","):
                row[operators] = in_child(name, variant, int(operators), arguments.limit)
                print(f"{name:20} {variant:12} {operators:>2}: {json.dumps(row[operators])}", flush=True)
                keep("search_ablation", rows, limit_seconds=arguments.limit, search_commit=search_commit())
                if not row[operators]["complete"] and variant != "normal form":
                    break  # more operators would take longer still


if __name__ == "__main__":
    main()
