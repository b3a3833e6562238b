"""A decoder layer of Llama-3-8B, from transformers to running kernels, at full width.

    python -m benchmarks.layer                    the whole flow, kept in benchmarks/results/layer.json
    python -m benchmarks.layer --width 512        narrower, and printed only
    python -m benchmarks.layer --interpret        also every kernel, all blocks, in Triton's interpreter

The module is imported with random weights, cut, searched, proved, checked and written as a bundle. Then its
lowered program is run on the weights as its kernels compute it (`FloatDomain(faithful=True)`: every block and
trip, fp32 sums, a rounding wherever a kernel stores), and compared with the module itself in fp64; so is the
module in f16. Errors are shares of the largest number of the output.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Modules that derive from one of an untyped package.

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.record import keep
from threadpoolctl import threadpool_limits

from superopt.diagnostics import Diagnostics
from superopt.pipeline import Superoptimize, superoptimize
from superopt.run.outcome import Outcome
from superopt.transforms.emit import load_launcher, save_bundle
from superopt.transforms.ingest import from_torch
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate

WIDTH, TOKENS = 4096, 16


def layer(width: int, tokens: int) -> tuple[Any, Any]:
    """The module in f16 and an input: heads of 128, a fourth as many of keys, a network 7/2 as wide."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as llama

    heads = width // 128
    config: Any = LlamaConfig(
        hidden_size=width, num_attention_heads=heads, num_key_value_heads=max(heads // 4, 1),
        intermediate_size=width * 7 // 2, rms_norm_eps=1e-5,
    )  # fmt: skip
    config._attn_implementation = "eager"

    class Causal(torch.nn.Module):
        """The layer at positions 0, 1, ..., with a causal mask."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = llama.LlamaDecoderLayer(config, 0)
            self.rotary = llama.LlamaRotaryEmbedding(config)

        def forward(self, x: Any) -> Any:
            length = x.shape[1]
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            mask = torch.zeros(length, length, dtype=x.dtype).masked_fill(hidden, -1e4)[None, None]
            embeddings = self.rotary(x, torch.arange(length)[None])
            made = self.layer(x, position_embeddings=embeddings, attention_mask=mask)
            return made[0] if isinstance(made, tuple) else made

    torch.manual_seed(0)
    module = Causal().eval().half()
    return module, torch.randn(1, tokens, width).half()


def measure(width: int, tokens: int, budget: float, *, interpret: bool) -> Generator[dict[str, Any]]:
    """The row, and again with more in it: times in CPU seconds of this process, what was found, errors."""
    import torch

    module, x = layer(width, tokens)
    spent: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = work()
        spent[stage] = round(time.process_time() - start, 1)
        print(f"{stage}: {spent[stage]} s", file=sys.stderr, flush=True)
        return result

    start = time.perf_counter()
    imported = timed("import", lambda: from_torch(module, (x,)))
    settings = Superoptimize(budget=budget, store=None)
    outcome: Outcome = timed("optimize", lambda: superoptimize(imported.graph, settings, Diagnostics()))
    with tempfile.TemporaryDirectory() as folder:
        timed("bundle", lambda: save_bundle(Path(folder, "layer"), outcome))
    wall = time.perf_counter() - start
    report, certificate = outcome.report, outcome.certificate
    with torch.no_grad():
        eager = module(x).double().numpy()
        exact = module.double()(x.double()).numpy()
    values = [x, *imported.weights]
    found = timed("run", lambda: ran(outcome, [v.detach().float().numpy() for v in values]))
    row: dict[str, Any] = {
        "operators": len(outcome.original.nodes),
        "segments": report.segments,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": spent,
        "stages_wall_seconds": report.seconds,
        "input_predicted_us": round(report.input_predicted_seconds * 1e6, 2),
        "predicted_us": round(report.predicted_seconds * 1e6, 2),
        "kernels": len(report.kernels),
        "guarantee": certificate.guarantee,
        "delta": certificate.delta,
        "tests": [f"{t.kind}, {t.extents} extents" for t in certificate.tests],
        "numerics": report.numerics,
        "error": error(found, exact),
        "error_of_eager_f16": error(eager, exact),
    }
    yield row
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        launch = load_launcher(outcome)
        made = timed("interpret", lambda: launch(*[v.detach().half() for v in values]))
        row["error_of_interpreted_kernels"] = error(made.double().numpy(), exact)
        yield row


def ran(outcome: Outcome, values: Sequence[Any]) -> Any:
    """The output of the lowered program, every kernel computed as it will be."""
    domain = FloatDomain(faithful=True)
    with threadpool_limits(1, "blas"):
        inputs = [domain.tensor(x, v.dtype) for x, v in zip(values, outcome.lowered.inputs, strict=True)]
        return evaluate(outcome.lowered, inputs, domain)[0].planes[0]


def error(found: Any, exact: Any) -> float:
    """The largest deviation, as a share of the largest number."""
    return float(f"{np.abs(np.asarray(found, np.float64) - exact).max() / np.abs(exact).max():.3g}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A decoder layer from transformers, run.")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--interpret", action="store_true")
    args = parser.parse_args()
    for row in measure(args.width, args.tokens, args.budget, interpret=args.interpret):
        print(row, flush=True)
        if (args.width, args.tokens) == (WIDTH, TOKENS):
            keep("layer", {"llama3_8b": row})


if __name__ == "__main__":
    main()
