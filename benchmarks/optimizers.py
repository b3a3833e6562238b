"""The muGraph search against tile saturation, on programs that both take: best predicted cost of each.

python -m benchmarks.optimizers        printed, and kept in benchmarks/results/optimizers.json
"""

from __future__ import annotations

import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.trinity.programs import CONFIGS, build

from superopt.cost import cost, target
from superopt.program import KernelGraph
from superopt.transforms import mugraph_search, tile_saturation

RESULTS = Path(__file__).parent / "results" / "optimizers.json"
EXAMPLES = Path(__file__).parents[1] / "examples"


def programs() -> dict[str, KernelGraph]:
    """The examples, and the feed-forward network of Trinity's evaluation."""
    from superopt.diagnostics import Diagnostics
    from superopt.dialects import base
    from superopt.dialects.mlir import ir
    from superopt.transforms.ingest.ingest_linalg import read_linalg

    out: dict[str, KernelGraph] = {}
    for path in sorted(EXAMPLES.glob("*.mlir")):
        out[path.stem] = read_linalg(ir.Module.parse(path.read_text(), base.context()), Diagnostics())
    out["swiglu_ffn"] = build("swiglu_ffn", CONFIGS["llama3_8b"])
    return out


def measure(graph: KernelGraph, gpu: str, budget: float) -> dict[str, Any]:
    """Predicted microseconds, kernels and seconds of search, of each optimizer."""
    hardware = target(gpu)
    row: dict[str, Any] = {"input_us": round(cost(graph, hardware).seconds * 1e6, 2)}
    for name, optimizer in (("mugraph", mugraph_search), ("saturation", tile_saturation)):
        start = time.perf_counter()
        found: Any = optimizer.propose(graph, hardware, budget=budget)
        row[name] = {
            "predicted_us": round(found.predicted[0] * 1e6, 2) if found.candidates else None,
            "kernels": tile_saturation.search.kernel_count(found.candidates[0]) if found.candidates else None,
            "seconds": round(time.perf_counter() - start, 2),
        }
    return row


def main() -> None:
    """Measure, print, store."""
    rows = {name: measure(graph, "sm_90", 30.0) for name, graph in programs().items()}
    for name, row in rows.items():
        print(f"{name:20} {json.dumps(row)}")
    data = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {"cores": os.cpu_count()},
        "target": "sm_90",
        "programs": rows,
    }
    RESULTS.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
