"""Every optimizer on programs that all of them take: best predicted cost of each.

python -m benchmarks.optimizers        printed, and kept in benchmarks/results/optimizers.json

`--superoptimize` asks all and takes the better one that passes all checks; here each is asked alone, and its
best candidate is priced by the whole cost model, as the pipeline ranks them. Nothing is certified here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.record import keep
from benchmarks.trinity.programs import CONFIGS, build

from superopt.cost import cost, target
from superopt.diagnostics import Diagnostics
from superopt.inputs.programs import read_program
from superopt.program import KernelGraph
from superopt.transforms import optimizers
from superopt.transforms.tile_saturation.search import kernel_count

ROOT = Path(__file__).resolve().parents[1]
BUDGET = 20.0
MIRAGE = ("gqa_decode_b1", "gqa_decode_b1_safe", "mlp_b8", "norm_transformer_b8")
TRINITY = ("vanilla", "pre_norm", "qk_norm", "roco", "keyformer", "swiglu_ffn")


def programs() -> Iterator[tuple[str, KernelGraph]]:
    """The examples, some of Mirage's programs, and those of Trinity's evaluation at LLaMA's sizes."""
    paths = sorted((ROOT / "examples").glob("*.mlir"))
    paths += [ROOT / "benchmarks" / "mugraph" / f"{name}.mlir" for name in MIRAGE]
    for path in paths:
        yield path.stem, read_program(path, Diagnostics())
    for name in TRINITY:
        yield name, build(name, CONFIGS["llama3_8b"])


def measure(graph: KernelGraph, gpu: str, budget: float) -> dict[str, Any]:
    """Predicted microseconds, kernels and CPU seconds of search, of each optimizer."""
    hardware = target(gpu)
    row: dict[str, Any] = {"input_us": round(cost(graph, hardware).seconds * 1e6, 2)}
    for name in optimizers.names():
        start = time.process_time()
        found = optimizers.load(name).propose(graph, hardware, budget=budget)
        seconds = round(time.process_time() - start, 2)
        best = min(found.graphs, key=lambda c: cost(c, hardware).seconds, default=None)
        row[name] = {
            "predicted_us": best and round(cost(best, hardware).seconds * 1e6, 2),
            "kernels": best and kernel_count(best),
            "cpu_seconds": seconds,
        }
    return row


def main() -> None:
    """Measure, print, store."""
    rows: dict[str, Any] = {}
    for name, graph in programs():
        rows[name] = measure(graph, "sm_90", BUDGET)
        print(f"{name:20} {json.dumps(rows[name])}", flush=True)
    keep("optimizers", rows, target="sm_90", budget_seconds=BUDGET)


if __name__ == "__main__":
    main()
