"""The programs of Mirage's evaluation (OSDI'25, section 7, and its public code), and some of our own, by name.

Each stands beside this file as `<name>.mlir`, written by `modules.py` from a PyTorch module at full size.

    mha gqa mqa + decode spec prefill   attention of 1, 32 and 512 queries to 4,096 keys (LLaMA-7B, LLaMA-2-70B on
                                        four GPUs, Falcon-7B)
    mlp moe lora                        adapter with ReLU and residual, experts, low-rank adaptation
    gqa qknorm mha mqa + public         attention of the shapes in Mirage's public code, `k` transposed, unscaled
    gated_mlp norm_transformer rmsnorm_linear
    ..._b1 ..._b8                       batch
    ..._safe                            softmax with its maximum, as frameworks compute it; otherwise without, as
                                        in the paper
"""

from __future__ import annotations

from pathlib import Path

from superopt.program import KernelGraph

FOLDER = Path(__file__).parent
BATCHES = (1, 8)
ATTENTION = [
    *(f"{heads}_{mode}" for heads in ("mha", "gqa", "mqa") for mode in ("decode", "spec", "prefill")),
    *(f"{heads}_public" for heads in ("gqa", "qknorm", "mha", "mqa")),
]
OTHERS = ["mlp", "moe", "lora", "gated_mlp", "norm_transformer", "rmsnorm_linear"]
FAMILIES = [*ATTENTION, *OTHERS]
# Larger programs, searched as long as the budget lasts.
BLOCKS = ["attention_block"]
# Small programs outside these families, for what the search finds where nobody looked before.
OWN = [
    "bilinear_form",
    "gated_attention",
    "linear_attention",
    "cosine_scores",
    "layernorm_linear",
    "pooled_mlp",
    "rbf_regression",
    "low_rank_chain",
    "squeeze_excite",
    "rational_features",
]


def names() -> list[str]:
    """The benchmarks proper: every family at both batches, attention with and without the maximum."""
    attention = [f"{f}_b{b}{safe}" for f in ATTENTION for b in BATCHES for safe in ("", "_safe")]
    return [*attention, *(f"{f}_b{b}" for f in OTHERS for b in BATCHES)]


def program(name: str) -> KernelGraph:
    """The kernel graph of `<name>.mlir`."""
    from superopt.diagnostics import Diagnostics
    from superopt.inputs.programs import read_program

    graph = read_program(FOLDER / f"{name}.mlir", Diagnostics())
    graph.name = name
    return graph
