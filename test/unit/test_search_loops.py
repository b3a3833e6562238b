"""Loops in loops, and sums whose parts several blocks compute: found where they are worth it, and right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from search_programs import Program, attention, run, same

from superopt.cost import cost, target
from superopt.numerics.interpreter import Interpreter
from superopt.program import BlockGraph, KernelGraph
from superopt.spec import check_kernel
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.verify import certify

TARGET = target("sm_90")


def customs(graph: KernelGraph) -> list[BlockGraph]:
    return [n.body for n in graph.nodes if isinstance(n.body, BlockGraph)]


def checked(graph: KernelGraph, candidate: KernelGraph) -> None:
    """Equal in numpy, certified, and right in Triton's interpreter."""
    check_kernel(candidate, TARGET.shared_per_block)
    assert same(graph, candidate)
    assert certify(graph, candidate).equivalent
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=v.shape).astype(np.float16).astype(np.float64) / 8 for v in graph.inputs]
    interpreter = Interpreter()
    try:
        got = interpreter.run(emit_program(lower(candidate)), inputs, [v.dtype for v in graph.inputs])
    finally:
        interpreter.close()
    for x, y in zip(got, run(graph, inputs), strict=True):
        assert np.abs(x.reshape(y.shape) - y).max() < 0.01 * np.abs(y).max()


# --- loops in loops ---------------------------------------------------------------------------------------


def positive_sums(m: int, n: int, d: int) -> KernelGraph:
    """What relu leaves of a product, summed over its columns: the product need not be written."""
    p = Program("positive_sums")
    x, w = p.input(m, d, name="x"), p.input(d, n, name="w")
    return p.graph(p("reduce_sum", p("relu", p("matmul", x, w)), dims=(1,)))


def largest_logits(m: int, n: int, d: int) -> KernelGraph:
    p = Program("largest_logits")
    x, w = p.input(m, d, name="x"), p.input(n, d, name="w")
    return p.graph(p("reduce_max", p("matmul", x, w, transpose_b=True), dims=(1,)))


@pytest.mark.parametrize("build", [positive_sums, largest_logits])
def test_a_loop_over_columns_holds_a_loop_over_the_depth(build: Callable[[int, int, int], KernelGraph]):
    graph = build(65536, 65536, 1024)
    found = search_plans(graph, TARGET, budget=120)
    best = found.graphs[0]
    (body,) = customs(best)
    assert len(body.loops) == 2
    columns, depth = body.loops
    ends = [n.attrs["loop"] for n in body.nodes if n.op == "accumulate"]
    assert ends == [1, 0]  # the product first, then what is summed of it
    assert columns > 1
    assert depth > 1
    assert cost(best, TARGET).seconds == pytest.approx(found.predicted[0], rel=0.02)
    single = search_plans(graph, TARGET, budget=120, options=MugraphOptimizer(max_loops=1))
    assert found.predicted[0] < 0.85 * single.predicted[0]


@pytest.mark.parametrize("build", [positive_sums, largest_logits])
def test_nested_loops_are_right(build: Callable[[int, int, int], KernelGraph]):
    graph = build(32, 512, 256)
    options = MugraphOptimizer(max_custom=1, candidates=40, branch_and_bound=False)
    found = search_plans(graph, TARGET, budget=120, options=options)
    nested = [c for c in found.graphs if any(len(b.loops) == 2 for b in customs(c))]
    assert nested
    checked(graph, nested[0])


def test_every_nest_that_is_proposed_is_legal():
    for graph in (attention(2, 32, 256, 128), positive_sums(32, 256, 256)):
        options = MugraphOptimizer(candidates=60, branch_and_bound=False)
        found = search_plans(graph, TARGET, budget=120, options=options)
        assert found.funnel["plans.rejected.illegal"] == 0
        assert all(same(graph, c) for c in found.graphs)


# --- parts of sums ----------------------------------------------------------------------------------------


def total(n: int = 1 << 22) -> KernelGraph:
    p = Program("total")
    return p.graph(p("reduce_sum", p.input(n, name="x"), dims=(0,)))


def row_maxima(m: int = 4, n: int = 1 << 20) -> KernelGraph:
    p = Program("row_maxima")
    return p.graph(p("reduce_max", p.input(m, n, name="x"), dims=(1,)))


def deep_product(m: int = 16, k: int = 16384, n: int = 128) -> KernelGraph:
    """Few rows and columns, of which no block is left idle only if several share a column."""
    p = Program("deep_product")
    return p.graph(p("relu", p("matmul", p.input(m, k, name="x"), p.input(k, n, name="w"))))


def long_norm(m: int = 4, n: int = 1 << 18) -> KernelGraph:
    p = Program("long_norm")
    x = p.input(m, n, name="x")
    mean = p("reduce_mean", p("square", x), dims=(1,), keepdims=True)
    return p.graph(p("mul", x, p("rsqrt", p("add", mean, p.constant(1e-5)))))


def long_softmax(m: int = 4, n: int = 1 << 18) -> KernelGraph:
    p = Program("long_softmax")
    x = p.input(m, n, name="x")
    e = p("exp", p("sub", x, p("reduce_max", x, dims=(1,), keepdims=True)))
    return p.graph(p("div", e, p("reduce_sum", e, dims=(1,), keepdims=True)))


SPLIT: dict[str, Callable[..., KernelGraph]] = {
    f.__name__: f for f in (total, row_maxima, deep_product, long_norm, long_softmax)
}
SMALL: dict[str, tuple[int, ...]] = {
    "total": (1 << 18,),
    "row_maxima": (4, 1 << 18),
    "deep_product": (16, 1024, 32),
    "long_norm": (4, 1024),
    "long_softmax": (4, 1024),
}


@pytest.mark.parametrize("name", SPLIT)
def test_blocks_write_parts_of_sums_which_a_second_kernel_joins(name: str):
    graph = SPLIT[name]()
    found = search_plans(graph, TARGET, budget=120)
    first, second = customs(found.graphs[0])
    # The parts stand along a dimension of their own, which the grid of the first kernel has.
    part = first.savers[0].operands[0]
    parts = next(n for n in found.graphs[0].nodes if n.body is first).results[0]
    split = [d for d, (one, all_) in enumerate(zip(part.shape, parts.shape, strict=True)) if one < all_]
    assert split
    assert any(n.op in ("reduce_sum", "reduce_max") for n in second.nodes)
    assert cost(found.graphs[0], TARGET).seconds < 0.5 * cost(graph, TARGET).seconds


@pytest.mark.parametrize("name", SPLIT)
def test_parts_of_sums_are_right(name: str):
    graph = SPLIT[name](*SMALL[name])
    options = MugraphOptimizer(candidates=60, branch_and_bound=False)
    found = search_plans(graph, TARGET, budget=120, options=options)
    split = [c for c in found.graphs if len(customs(c)) == 2]
    assert split
    checked(graph, split[0])
