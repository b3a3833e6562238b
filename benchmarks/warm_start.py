"""What a second process takes where the store holds what the first one found.

python -m benchmarks.warm_start [--runs 3]

Each run is two processes on a store of their own: the first searches, the second starts warm. Processor seconds
of the call, in all and without what torch.export and its imports take, which is not ours; compilers that run as
processes of their own are not counted. Results (the median of the runs) are kept in
benchmarks/results/warm_start.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.record import commit, keep

CALLS = ("explain", "optimize", "replace")


def _one(call: str, store: str) -> dict[str, float]:
    """The seconds of one call in this process, in all and without torch.export, and the kernels compiled."""
    import time

    import transformers

    import superopt
    from superopt.transforms.emit import compile as compiler
    from superopt.transforms.ingest import import_torch

    torch: Any = import_module("torch")
    start = time.process_time()
    import_module("torch._dynamo")  # what torch.export imports first
    exporting = [time.process_time() - start]
    kernels: list[str] = []
    importing: Any = import_torch
    compiling: Any = compiler
    exported, compiled = importing._exported, compiling._compiled_kernel

    def timed(*given: Any) -> Any:
        start = time.process_time()
        try:
            return exported(*given)
        finally:
            exporting.append(time.process_time() - start)

    def counted(kernel: Any, *given: Any) -> Any:
        kernels.append(kernel.name)
        return compiled(kernel, *given)

    importing._exported = timed
    compiling._compiled_kernel = counted
    torch.manual_seed(0)
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    settings: dict[str, Any] = {"budget": 5, "against": "operators", "store": store}

    def llama() -> Any:
        config = transformers.LlamaConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
            max_position_embeddings=64,
        )
        return transformers.LlamaForCausalLM(config).eval()

    if call == "optimize":
        norm_and_linear = torch.nn.Sequential(
            torch.nn.RMSNorm(64), torch.nn.Linear(64, 128, bias=False)
        ).eval()
        inputs = torch.randn(16, 64)
        start = time.process_time()
        superopt.optimize(norm_and_linear, (inputs,), **settings)
    elif call == "replace":
        model = llama()
        start = time.process_time()
        superopt.replace(model, "model.layers.*.mlp", tokens, **settings)
    else:
        model = llama()
        start = time.process_time()
        superopt.explain(model, {"input_ids": tokens}, **settings)
    ours = time.process_time() - start - sum(exporting[1:])
    return {
        "seconds": round(ours + sum(exporting), 2),
        "ours": round(ours, 2),
        "kernels_compiled": len(kernels),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="pairs of processes for each call (default: 3)")
    parser.add_argument("--one", choices=CALLS, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(_one(asked.one, asked.store)))
        return
    rows: dict[str, Any] = {}
    for call in CALLS:
        first: list[dict[str, float]] = []
        second: list[dict[str, float]] = []
        for _ in range(asked.runs):
            with tempfile.TemporaryDirectory() as folder:
                for found in (first, second):
                    done = subprocess.run(
                        [
                            sys.executable,
                            "-m",
                            "benchmarks.warm_start",
                            f"--one={call}",
                            f"--store={folder}/store",
                        ],
                        check=True,
                        stdout=subprocess.PIPE,
                        text=True,
                        cwd=Path(__file__).parents[1],
                    )
                    found.append(json.loads(done.stdout.splitlines()[-1]))
        rows[call] = {
            "commit": commit()[:7],
            **{
                process: {what: statistics.median(run[what] for run in runs) for what in runs[0]}
                for process, runs in (("first", first), ("second", second))
            },
        }
        print(call, rows[call], flush=True)
    keep("warm_start", rows, runs=asked.runs)


if __name__ == "__main__":
    main()
