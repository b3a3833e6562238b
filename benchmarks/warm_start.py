"""What a second process takes where the store holds what the first one found.

python -m benchmarks.warm_start [--runs 3]

Each run is two processes on a store of their own: the first searches, the second starts warm. Processor seconds
behind the imports of PyTorch and transformers: of the call, and of it superopt's own, without torch.export, and
without what torch.compile takes in `explain`. Compilers that run as processes of their own are not counted.
Results (the median of the runs) are kept in benchmarks/results/warm_start.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.record import commit, keep

CALLS = ("explain", "optimize", "replace")


def _watched(owner: Any, name: str) -> list[float]:
    """The processor seconds of each call of a function from here on."""
    seconds, function = list[float](), getattr(owner, name)

    def watched(*given: Any) -> Any:
        start = time.process_time()
        try:
            return function(*given)
        finally:
            seconds.append(time.process_time() - start)

    setattr(owner, name, watched)
    return seconds


def _one(call: str, store: str) -> dict[str, float]:
    """The seconds of one call in this process, in all and those of superopt, and the kernels compiled."""
    torch: Any = import_module("torch")
    import_module("torch._dynamo")  # takes seconds, and whoever exports or compiles a module needs it
    transformers: Any = import_module("transformers")
    superopt: Any = import_module("superopt")
    exporting = _watched(import_module("superopt.transforms.ingest.import_torch"), "_exported")
    compiling = _watched(import_module("superopt.transforms.emit.compile"), "_compiled_kernel")
    graphs = _watched(import_module("superopt.pytorch.backend").Backend, "__call__")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
    )
    llama = transformers.LlamaForCausalLM(config).eval()
    layers = torch.nn.Sequential(torch.nn.RMSNorm(64), torch.nn.Linear(64, 128, bias=False)).eval()
    tokens, inputs = torch.tensor([[3, 1, 4, 1, 5]]), torch.randn(16, 64)
    settings: dict[str, Any] = {"budget": 5, "against": "operators", "store": store}
    start = time.process_time()
    if call == "optimize":
        superopt.optimize(layers, (inputs,), **settings)
    elif call == "replace":
        superopt.replace(llama, "model.layers.*.mlp", tokens, **settings)
    else:
        superopt.explain(llama, {"input_ids": tokens}, **settings)
    seconds = time.process_time() - start
    ours = sum(graphs) if call == "explain" else seconds
    return {
        "seconds": round(seconds, 2),
        "ours": round(ours - sum(exporting), 2),
        "kernels_compiled": len(compiling),
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
