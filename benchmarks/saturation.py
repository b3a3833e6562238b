"""Trinity's programs through equality saturation: what the e-graphs hold, how long it takes, what comes out.

    python -m benchmarks.saturation                    the table, kept in benchmarks/results/saturation.json
    python -m benchmarks.saturation --deliver          also certifies and compiles what is found
    python -m benchmarks.saturation --samples 10000    also executes so many sampled programs of each
    python -m benchmarks.saturation --programs vanilla,pre_norm --write-mlir

Times are wall times on this machine, `cpu_seconds` what the process itself took (others may share the machine);
predicted times are those of the cost model.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.trinity.programs import CONFIGS, Config, build, names

from superopt.cost import cost, target, target_names
from superopt.program import KernelGraph
from superopt.transforms.tile_saturation.optimizer import SaturationOptimizer
from superopt.transforms.tile_saturation.saturate import Saturation, saturate
from superopt.transforms.tile_saturation.search import kernel_count, propose
from superopt.transforms.tile_saturation.terms import TermTensor, TermVar

RESULTS = Path(__file__).parent / "results" / "saturation.json"
# Candidates of a program that are tried, and whose predicted times are told.
MOST_TRIED = 8
# The program of fewest kernels is delivered, too, unless it is predicted to take so many times what the input
# takes: nobody would run it, and a certificate evaluates it.
FEWEST_AT_MOST = 10
DELIVERED = "sm_90"
SMALL = Config(hidden=128, heads=2, ffn=256, groups=1, tokens=16, prefix=112)
SMALL_GROUPED = Config(hidden=256, heads=4, ffn=256, groups=2, tokens=16, prefix=112)
# Sampled programs that are executed on the same numbers, with the same tile widths.
SAMPLES_TOGETHER = 10
# Saturation and extraction in the paper (Trinity, Table 2), seconds.
PAPER = {"vanilla": 61, "qk_norm": 177, "swiglu_ffn": 40, "pre_norm": 936, "roco": 652, "keyformer": 1354}


def _graph_row(found: Saturation) -> dict[str, Any]:
    g = found.encoder.graph
    return {
        "programs": float(f"{g.count(found.encoder.root):.3g}"),
        "classes": g.classes,
        "nodes": g.nodes,
        "iterations": g.iterations,
        "stopped": g.stopped,
        "seconds": round(g.seconds, 3),
        "graph_mb": round(g.memory_bytes / 2**20, 1),
    }


def measure(name: str, config: str, gpu: str, budget: float, nodes: int, *, deliver: bool) -> dict[str, Any]:
    """One row of the table."""
    graph = build(name, CONFIGS[config])
    hardware = target(gpu)
    start, cpu = time.perf_counter(), time.process_time()
    found = propose(graph, hardware, budget=budget, options=SaturationOptimizer(nodes=nodes))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    before = cost(graph, hardware).seconds
    worth = [n for n, them in found.by_kernels.items() if them[0].seconds < FEWEST_AT_MOST * before]
    fewest = min(worth, default=0)
    row = {
        "operators": len(graph.nodes),
        "graphs": {s.name: _graph_row(s) for s in found.saturations},
        "saturate_seconds": round(found.seconds["saturation"], 3),
        "extract_seconds": round(found.seconds.get("extraction", 0.0), 3),
        "total_seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "paper_seconds": PAPER.get(name),
        "input_predicted_us": round(before * 1e6, 2),
        "best_predicted_us": round(found.predicted[0] * 1e6, 2) if found.predicted else None,
        "best_kernels": kernel_count(found.graphs[0]) if found.graphs else None,
        "predicted_us_by_kernels": {
            str(n): round(found.by_kernels[n][0].seconds * 1e6, 2) for n in sorted(found.by_kernels)
        },
        "remark": found.remark,
    }
    if deliver and found.graphs:
        row["best"] = delivered(graph, *found.graphs)
        if fewest not in (0, row["best_kernels"]):
            row["fewest_kernels"] = {
                "kernels": fewest,
                **delivered(graph, *(p.graph for p in found.by_kernels[fewest])),
            }
    return row


def delivered(graph: KernelGraph, *candidates: KernelGraph) -> dict[str, Any]:
    """The first candidate that is certified at these sizes, within the numeric tolerance, and compiles.

    Seconds are processor seconds over all candidates tried; where none passed, the last one is told of.
    """
    from superopt.numerics import gate
    from superopt.transforms.lower import lower
    from superopt.verify import certify_lowered

    row: dict[str, Any] = {}
    spent = {"certify_cpu_seconds": 0.0, "numerics_cpu_seconds": 0.0}
    for number, candidate in enumerate(candidates[:MOST_TRIED], 1):
        lowered = lower(candidate)
        start = time.process_time()
        verdict, kept = certify_lowered(graph, candidate, lowered)
        certified = verdict.equivalent and kept.equivalent
        middle = time.process_time()
        measured = gate(graph, lowered) if certified else None
        spent["certify_cpu_seconds"] += middle - start
        spent["numerics_cpu_seconds"] += time.process_time() - middle
        row = {"tried": number, "kernels": kernel_count(candidate), "certified": certified}
        row["predicted_us"] = round(cost(candidate, target(DELIVERED)).seconds * 1e6, 2)
        if verdict.certificate is not None:
            row |= {"guarantee": verdict.certificate.guarantee, "delta": verdict.certificate.delta}
            row["extents"] = sorted({t.extents for t in verdict.certificate.tests})
        if measured is not None:
            row |= {"numerics": measured.summary, "numerics_passed": measured.passed}
            if measured.passed:
                row |= compiled(candidate)
                if DELIVERED in row["compiles_for"]:
                    break
    return row | {stage: round(seconds, 2) for stage, seconds in spent.items()}


def compiled(candidate: KernelGraph) -> dict[str, Any]:
    """For which targets a candidate's kernels compile."""
    from superopt.transforms.emit.compile import CompilationFailed, compile_all
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.lower import lower

    row: dict[str, Any] = {"compiles_for": []}
    for name in target_names():
        try:
            compile_all(emit_program(lower(candidate, name)).kernels, [name])
            row["compiles_for"].append(name)
        except CompilationFailed as error:
            row.setdefault("failures", {})[name] = error.message[:200]
    return row


def executed(name: str, samples: int) -> dict[str, Any]:
    """Sampled programs of both e-graphs at a small size, executed against the naive loops.

    Numbers and tile widths change every few programs, for which the naive loops run once.
    """
    sys.path.insert(0, str(Path(__file__).parents[1] / "test" / "rules"))  # where rules are judged, too
    from execute_terms import execute

    config = SMALL_GROUPED if "gqa" in name else SMALL
    wrong = done = distinct = 0
    for inline in ("all", "single"):
        found = saturate(build(name, config), inline, SaturationOptimizer(), 60.0)
        encoder, program = found.encoder, found.program
        rng = np.random.default_rng(0)
        terms: dict[Any, None] = {}
        start: dict[TermTensor, Any] = {}
        want: dict[TermTensor, Any] = {}
        steps: dict[TermVar, int] = {}
        for i in range(samples // 2):
            if i % SAMPLES_TOGETHER == 0:
                steps = {
                    v: int(rng.choice([w for w in (32, 64, 128) if v.end % w == 0]))
                    for v in program.vars
                    if not v.step
                }
                start = {t: 0.005 * rng.uniform(0.5, 1.5, t.shape) for t in program.tensors if not t.lanes}
                want = {t: x.copy() for t, x in start.items()}
                execute(program.body, want, steps)
            body = encoder.decode(encoder.graph.sample(encoder.root, i))
            terms[body] = None
            got = {t: x.copy() for t, x in start.items()}
            execute(body, got, steps)
            done += 1
            wrong += not all(np.allclose(want[t], got[t], rtol=1e-6, atol=1e-9) for t in program.outputs)
        distinct += len(terms)
    return {"samples": done, "distinct": distinct, "wrong": wrong}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", default=",".join(names()), help="comma-separated; default: all")
    parser.add_argument("--configs", default=",".join(CONFIGS))
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for each program")
    parser.add_argument("--nodes", type=int, default=20_000, help="nodes in one e-graph at most")
    parser.add_argument("--samples", type=int, default=0, help="sampled programs to execute, of each program")
    parser.add_argument("--deliver", action="store_true", help="also certify and compile what is found")
    parser.add_argument("--write-mlir", action="store_true", help="write the programs beside this file")
    arguments = parser.parse_args()
    rows: dict[str, Any] = json.loads(RESULTS.read_text())["programs"] if RESULTS.exists() else {}
    for name in arguments.programs.split(","):
        for config in arguments.configs.split(","):
            if arguments.write_mlir:
                write_mlir(name, config)
                continue
            row = measure(
                name, config, arguments.target, arguments.budget, arguments.nodes, deliver=arguments.deliver
            )
            key = f"{name} {config}"
            if arguments.samples:
                row["executed"] = executed(name, arguments.samples)
            elif "executed" in rows.get(key, {}):
                row["executed"] = rows[key]["executed"]
            rows[key] = row
            keep(rows, arguments.target)
            cpu = row["cpu_seconds"]
            none: dict[str, Any] = {}
            largest = max(row["graphs"].values(), key=lambda g: g["nodes"], default=none)
            print(
                f"{key:32} {largest.get('programs', 0):8.1e} programs {largest.get('nodes', 0):6} nodes "
                f"{row['saturate_seconds']:6.2f} + {row['extract_seconds']:5.2f} s (cpu {cpu:.2f})  "
                f"{row['input_predicted_us']} -> {row['best_predicted_us']} us in {row['best_kernels']}, "
                f"by kernels {row['predicted_us_by_kernels']}",
                flush=True,
            )


def keep(rows: dict[str, Any], gpu: str) -> None:
    """Write the table; after each row, so that nothing measured is lost."""
    data = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        },
        "target": gpu,
        "load_average": round(os.getloadavg()[0], 1),
        "peak_process_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "programs": rows,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(data, indent=1) + "\n")


def write_mlir(name: str, config: str) -> None:
    """The program in the kernel dialect, as benchmarks/trinity/<name>_<config>.mlir."""
    from superopt.dialects.writer import to_text

    path = Path(__file__).parent / "trinity" / f"{name.replace('+', '_')}_{config}.mlir"
    path.write_text(to_text(build(name, CONFIGS[config])))


if __name__ == "__main__":
    main()
