"""The muGraph search on the programs of `mugraph/`: how long, how far, how good, how sure.

    python -m benchmarks.search                          every program, kept in benchmarks/results/search.json
    python -m benchmarks.search --programs gqa_decode_b1,lora_b8
    python -m benchmarks.winners                         compiles, interprets and replays each winner

Each program has a process of its own, from its .mlir file to the certified plan. Times are wall times on this
machine, `cpu_seconds` what the process took (others may share the machine); predicted times are those of the cost
model. References are those of `mugraph/references.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.mugraph.programs import BLOCKS, OWN, names, program
from benchmarks.record import keep, load

if TYPE_CHECKING:
    from superopt.program import KernelGraph
    from superopt.transforms.optimizers import Proposals
    from superopt.verify import Certificate

# Candidates that the certifier may refuse before a program counts as not improved.
TRIES = 4


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 2)


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row of the table. The first target's winner is certified."""
    from benchmarks.mugraph.references import references

    from superopt.cost import cost, target

    start, cpu = time.perf_counter(), time.process_time()
    graph = program(name)
    targets = arguments.targets.split(",")
    row: dict[str, Any] = {"operators": sum(n.op != "constant" for n in graph.nodes)}
    for gpu in targets:
        hardware = target(gpu)
        found = proposed(graph, gpu, arguments.budget, json.loads(arguments.options))
        row[gpu] = _search_row(found, _microseconds(cost(graph, hardware).seconds))
        if gpu == targets[0]:
            row["search_peak_mb"] = _peak_mb()
            _, certificate = certified(graph, found, row)
            row["plan_seconds"] = round(time.perf_counter() - start, 3)
            row["plan_cpu_seconds"] = round(time.process_time() - cpu, 3)
            row["peak_mb"] = _peak_mb()
            if certificate is not None:
                row["winner_sha256"] = certificate.second.sha256
        row[gpu]["references_us"] = {
            label: _microseconds(cost(r, hardware).seconds)
            for label, r in references(graph, hardware).items()
        }
    return row


def proposed(graph: KernelGraph, gpu: str, budget: float, options: dict[str, Any]) -> Proposals:
    """What the search of `graph` finds for `gpu` within `budget` seconds."""
    from superopt.cost import target
    from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer

    return MugraphOptimizer(**options).propose(graph, target(gpu), budget=budget)


def _search_row(found: Proposals, input_us: float) -> dict[str, Any]:
    counts = found.funnel
    best = found.graphs[0] if found.graphs else None
    return {
        "input_us": input_us,
        "best_us": _microseconds(found.predicted[0]) if best else None,
        "kernels": sum(n.op not in ("reshape", "constant") for n in best.nodes) if best else None,
        "custom": sum(n.op == "custom" for n in best.nodes) if best else None,
        "complete": found.complete,
        "seconds": {stage: round(s, 4) for stage, s in found.seconds.items()},
        "states": counts.get("kernels.states", 0),
        "values": counts.get("values.useful", 0),
        "tests": sum(counts.get(f"values.{n}", 0) for n in ("found", "duplicates", "rejected.fingerprint")),
        "pruned": {n: c for n, c in counts.items() if c and (".pruned." in n or ".rejected." in n)},
        "remark": found.remark,
    }


def certified(
    graph: KernelGraph, found: Proposals, row: dict[str, Any]
) -> tuple[KernelGraph | None, Certificate | None]:
    """The first candidate that the certifier accepts; what it says goes to `row`."""
    from superopt.verify import certify

    start = time.perf_counter()
    for rank, candidate in enumerate(found.graphs[:TRIES]):
        verdict = certify(graph, candidate)
        if verdict.certificate is not None:
            row["certificate"] = {
                "rank": rank,
                "guarantee": verdict.certificate.guarantee,
                "delta": verdict.certificate.delta,
                "extents": verdict.certificate.delta_extents,
                "tested_at_full_extents": {t.extents for t in verdict.certificate.tests} != {"reduced"},
                "uninterpreted": verdict.certificate.uninterpreted,
                "seconds": round(time.perf_counter() - start, 3),
            }
            return candidate, verdict.certificate
    return None, None


def in_child(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """`measure` in a process of its own; a row with "failed" where that does not end well."""
    limit = 8 * arguments.budget
    command = [sys.executable, "-m", "benchmarks.search", "--child", "--programs", name]
    for option in ("targets", "budget", "options"):
        command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {limit:g} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"failed": last[0]}
    return json.loads(done.stdout.splitlines()[-1])


def search_commit() -> str:
    """The commit that last changed the search: rows of different ones do not compare as times."""
    folders = ["transforms/core/search", "transforms/mugraph_search"]
    command = ["git", "log", "-1", "--format=%h", "--", *folders]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    return done.stdout.strip() or "unknown"


def line(name: str, row: dict[str, Any], gpu: str) -> str:
    """A row for people."""
    if "failed" in row:
        return f"{name:26} failed: {row['failed']}"
    at, certificate = row[gpu], row.get("certificate", {})
    references = ", ".join(f"{label} {us}" for label, us in at["references_us"].items()) or "none"
    guarantee = f"{certificate.get('guarantee')} {certificate.get('delta')}"
    return (
        f"{name:26} {at['input_us']:9.2f} -> {at['best_us'] or 0:8.2f} us, {at['kernels']} kernels "
        f"(by hand: {references})  first {at['seconds'].get('first', 0):.2f} s, "
        f"all {at['seconds'].get('all', 0):.2f} s{'' if at['complete'] else ' (not complete)'}, "
        f"plan {row['plan_seconds']:.1f} s, {row['peak_mb']} MB, {at['states']} states; {guarantee}"
    )


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", default=",".join([*names(), *BLOCKS, *OWN]), help="comma-separated")
    parser.add_argument("--targets", default="sm_90,sm_80", help="the first one's winners are certified")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of each search")
    parser.add_argument("--options", default="{}", help="of the search, as JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.programs, arguments)))
        return
    rows = load("search")
    for name in arguments.programs.split(","):
        row = in_child(name, arguments)
        row["load_average"] = round(os.getloadavg()[0], 1)
        row["search_commit"] = search_commit()
        row["budget"] = arguments.budget
        rows[name] = row
        keep("search", rows, budget=arguments.budget, options=json.loads(arguments.options))
        print(line(name, row, arguments.targets.split(",")[0]), flush=True)


if __name__ == "__main__":
    main()
