"""What the tests of the search share: a search with its options, what is asked of kernels, and small programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from search_programs import (
    Program,
    adapter_mlp,
    attention,
    gated_mlp,
    grouped_attention,
    lora,
    matmul_bias_gelu,
    rmsnorm_linear,
    safe_attention,
)

from superopt.cost import target
from superopt.program import BlockGraph, KernelGraph
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans

# Searches bound and size kernels one by one: which of them start early (`superopt.early`) is asked of whole programs.
TARGET = replace(target("sm_90"), early_seconds=0.0)


def search(graph: KernelGraph, budget: float = 120.0, seed: int = 0, **options: object):
    return search_plans(graph, TARGET, budget=budget, seed=seed, options=MugraphOptimizer(**options))  # type: ignore[arg-type]


def customs(graph: KernelGraph) -> list[BlockGraph]:
    return [n.body for n in graph.nodes if isinstance(n.body, BlockGraph)]


def only_kernel(graph: KernelGraph) -> BlockGraph:
    """The block graph of a program that is one kernel, but for views."""
    assert [n.op for n in graph.nodes if n.op != "reshape"] == ["custom"]
    return customs(graph)[0]


def loads(body: BlockGraph) -> dict[str, int]:
    """How often each input of a kernel is loaded."""
    counts = {v.name: 0 for v in body.inputs}
    for node in body.nodes:
        if node.op == "iterator":
            counts[node.operands[0].name] += 1
    return counts


def bilinear() -> KernelGraph:
    p = Program("bilinear")
    x, a, y = p.input(16, 128, name="x"), p.input(128, 32, name="a"), p.input(16, 32, name="y")
    left = p("matmul", x, a)
    return p.graph(
        p("div", p("reduce_sum", p("mul", left, y), dims=(1,)), p("reduce_sum", p("square", y), dims=(1,)))
    )


def softmax() -> KernelGraph:
    p = Program("softmax")
    e = p("exp", p.input(16, 256, name="x"))
    return p.graph(p("div", e, p("reduce_sum", e, dims=(1,), keepdims=True)))


def two_outputs() -> KernelGraph:
    p = Program("two_outputs")
    x, w = p.input(16, 256, name="x"), p.input(256, 64, name="w")
    y = p("matmul", x, w)
    return p.graph(p("relu", y), p("mul", y, p("sigmoid", y)))


def transposed_views() -> KernelGraph:
    p = Program("transposed_views")
    x, w = p.input(2, 16, 128, name="x"), p.input(64, 256, name="w")
    heads = p("reshape", p("transpose", x, perm=(1, 0, 2)), shape=(16, 256))
    return p.graph(p("tanh", p("matmul", heads, w, transpose_b=True)))


def gram() -> KernelGraph:
    """One input in two roles that cannot merge."""
    p = Program("gram")
    x = p.input(32, 256, name="x")
    return p.graph(p("exp", p("matmul", x, x, transpose_b=True)))


def maximum() -> KernelGraph:
    p = Program("maximum")
    x, w = p.input(16, 256, name="x"), p.input(256, 64, name="w")
    return p.graph(p("reduce_max", p("neg", p("matmul", x, w)), dims=(1,)))


def largest_of_long_rows() -> KernelGraph:
    p = Program("largest")
    x, y = p.input(32, 512, name="x"), p.input(32, 512, name="y")
    return p.graph(p("exp", p("reduce_max", p("sub", x, y), dims=(1,), keepdims=True)))


def repeated_output() -> KernelGraph:
    p = Program("repeated_output")
    x = p.input(16, 256, name="x")
    return p.graph(p("broadcast", p("exp", p("reduce_sum", x, dims=(1,), keepdims=True)), shape=(16, 8)))


def repeated_sum() -> KernelGraph:
    """Sums over what is repeated: a factor, or a sum that only one operand of a product has."""
    p = Program("repeated_sum")
    x, s, w = p.input(16, 64, name="x"), p.input(16, 1, name="s"), p.input(1, 32, name="w")
    scale = p("reduce_mean", p("broadcast", p("exp", s), shape=(16, 64)), dims=(1,), keepdims=True)
    top = p("reduce_max", p("broadcast", s, shape=(16, 64)), dims=(1,), keepdims=True)
    product = p("matmul", p("exp", x), p("broadcast", w, shape=(64, 32)))
    return p.graph(p("mul", product, p("add", scale, top)))


def mixed_precision() -> KernelGraph:
    p = Program("mixed")
    x, w = p.input(16, 256, name="x"), p.input(256, 64, name="w")
    wide = p("cast", x, dtype="f32")
    p.dtype = "f32"
    norm = p(
        "rsqrt", p("add", p("reduce_mean", p("square", wide), dims=(1,), keepdims=True), p.constant(1e-6))
    )
    narrow = p("cast", p("mul", wide, norm), dtype="f16")
    return p.graph(p("matmul", narrow, w))


def norm_mlp_residual() -> KernelGraph:
    """The input is reduced for the norm and added whole at the end: its features both split and kept."""
    p = Program("norm_mlp_residual")
    x, w = p.input(16, 256, name="x"), p.input(256, 64, name="w")
    norm = p("rsqrt", p("add", p("reduce_mean", p("square", x), dims=(1,), keepdims=True), p.constant(1e-5)))
    hidden = p("relu", p("matmul", p("mul", x, norm), w))
    return p.graph(p("add", x, p("matmul", hidden, p.input(64, 256, name="v"))))


SMALL: dict[str, Callable[[], KernelGraph]] = {
    "rmsnorm": lambda: rmsnorm_linear(4, 256, 64),
    "rmsnorm-weight": lambda: rmsnorm_linear(16, 256, 64, weight=True),
    "bias-gelu": lambda: matmul_bias_gelu(16, 256, 64),
    "lora": lambda: lora(16, 256, 64),
    "gated": lambda: gated_mlp(8, 256, 64),
    "adapter": lambda: adapter_mlp(16, 256),
    "attention": lambda: attention(2, 16, 256, 32),
    "safe-attention": lambda: safe_attention(2, 16, 256, 32),
    "grouped": lambda: grouped_attention(2, 4, 256, 32),
    "bilinear": bilinear,
    "softmax": softmax,
    "two-outputs": two_outputs,
    "views": transposed_views,
    "gram": gram,
    "maximum": maximum,
    "largest": largest_of_long_rows,
    "repeated-output": repeated_output,
    "repeated-sum": repeated_sum,
    "mixed": mixed_precision,
    "norm-mlp": norm_mlp_residual,
}
