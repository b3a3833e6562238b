"""Intermediates in two roles: computed in each where that is searched, and otherwise between two searches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from search_programs import Program, run, same
from search_support import TARGET

from superopt.cost import cost
from superopt.numerics.interpreter import Interpreter
from superopt.program import BlockGraph, KernelGraph, Node, Value
from superopt.spec import check_kernel
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.transforms.mugraph_search.descend import propose as propose_in_parts
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.named_axes.name_axes import name_axes
from superopt.transforms.named_axes.roles import without_twins
from superopt.transforms.partition.segments import partition
from superopt.verify import certify


def normalised(p: Program, x: Value) -> Value:
    mean = p("reduce_mean", p("square", x), dims=(1,), keepdims=True)
    return p("mul", x, p("rsqrt", p("add", mean, p.constant(1e-5))))


def cosines(m: int = 64, k: int = 128) -> KernelGraph:
    p = Program("cosines")
    y = normalised(p, p.input(m, k, name="x"))
    return p.graph(p("matmul", y, y, transpose_b=True))


def self_attention(m: int = 64, d: int = 32) -> KernelGraph:
    """Queries, keys and values are the same: rows of the scores and columns, then rows of what they weigh."""
    p = Program("self_attention")
    y = normalised(p, p.input(m, d, name="x"))
    e = p("exp", p("matmul", y, y, transpose_b=True))
    return p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(1,), keepdims=True)), y))


def hidden_products(m: int = 64, k: int = 128, n: int = 32) -> KernelGraph:
    p = Program("hidden_products")
    y = p("relu", p("matmul", p.input(m, k, name="x"), p.input(k, n, name="w")))
    return p.graph(p("exp", p("matmul", y, y, transpose_b=True)))


def covariance(m: int = 128, d: int = 16) -> KernelGraph:
    p = Program("covariance")
    x = p.input(m, d, name="x")
    centred = p("sub", x, p("reduce_mean", x, dims=(0,), keepdims=True))
    return p.graph(p("matmul", centred, centred, transpose_a=True))


def symmetric(m: int = 32) -> KernelGraph:
    p = Program("symmetric")
    y = p("exp", p.input(m, m, name="x"))
    return p.graph(p("add", y, p("transpose", y, perm=(1, 0))))


def two_uses(m: int = 32, k: int = 64) -> KernelGraph:
    """One role more in each of two nodes, and the value itself is an output."""
    p = Program("two_uses")
    y = p("sigmoid", p.input(m, k, name="x"))
    scores = p("matmul", y, y, transpose_b=True)
    return p.graph(p("matmul", scores, p("matmul", scores, y)), y)


PROGRAMS: dict[str, Callable[[], KernelGraph]] = {
    f.__name__: f for f in (cosines, self_attention, hidden_products, covariance, symmetric, two_uses)
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_candidates_compute_the_same(name: str):
    graph = PROGRAMS[name]()
    found = search_plans(graph, TARGET, budget=20)
    assert found.graphs, found.remark
    assert found.funnel["plans.rejected.illegal"] == 0
    for candidate in found.graphs:
        check_kernel(candidate, TARGET.shared_per_block)
        assert same(graph, candidate)
    assert found.predicted == sorted(found.predicted)
    assert cost(found.graphs[0], TARGET).seconds == pytest.approx(found.predicted[0])
    assert certify(graph, found.graphs[0]).equivalent


@pytest.mark.parametrize("name", PROGRAMS)
def test_copies_change_nothing(name: str):
    graph = PROGRAMS[name]()
    program = name_axes(graph)
    assert program.copies > 0
    assert same(graph, program.graph)


def test_a_normalised_product_with_itself_is_one_kernel_that_divides_last():
    graph = cosines(1024, 512)
    best = propose_in_parts(graph, TARGET, budget=120).graphs[0]
    (node,) = best.nodes
    assert isinstance(node.body, BlockGraph)
    assert node.operands == (best.inputs[0], best.inputs[0])  # its rows, and its rows as columns
    # The product sums plain inputs, norms are sums beside it.
    tiles = {n.result for n in node.body.nodes if n.op == "iterator"}
    (product,) = (n for n in node.body.nodes if n.op == "matmul")
    assert set(product.operands) == tiles
    assert sum(n.op == "accumulate" for n in node.body.nodes) == 3


def test_keys_and_values_that_are_one_are_loaded_once():
    best = search_plans(self_attention(256, 64), TARGET, budget=120).graphs[0]
    (body,) = (n.body for n in best.nodes if isinstance(n.body, BlockGraph))
    assert sum(n.op == "iterator" for n in body.nodes) == 2


@pytest.mark.parametrize("name", ["cosines", "self_attention", "symmetric"])
def test_the_kernels_are_right_in_the_interpreter(name: str):
    graph = PROGRAMS[name]()
    best = search_plans(graph, TARGET, budget=20).graphs[0]
    inputs = [
        np.random.default_rng(1).normal(size=v.shape).astype(np.float16).astype(np.float64)
        for v in graph.inputs
    ]
    interpreter = Interpreter()
    try:
        got = interpreter.run(emit_program(lower(best)), inputs, [v.dtype for v in graph.inputs])
    finally:
        interpreter.close()
    for x, y in zip(got, run(graph, inputs), strict=True):
        assert np.abs(x.reshape(y.shape) - y).max() < 0.01 * np.abs(y).max()


def test_what_stands_in_device_memory_is_computed_once():
    """Where a fused kernel would compute much twice, the value is written once and read in both roles."""
    graph = hidden_products(4096, 4096, 64)
    best = propose_in_parts(graph, TARGET, budget=120)
    first = best.graphs[0]
    assert [len(n.results) for n in first.nodes if n.op in ("custom", "matmul")] == [1, 1]
    makers = [n for n in first.nodes if first.inputs[1] in n.operands]
    assert len(makers) == 1  # one kernel multiplies with w
    assert best.predicted[0] < 0.9 * cost(graph, TARGET).seconds


def test_without_copies_such_a_value_stands_between_segments():
    first, second = partition(hidden_products(), 4, copies=False)
    assert [n.op for n in first.graph.nodes] == ["matmul", "relu"]
    assert [n.op for n in second.graph.nodes] == ["matmul", "exp"]
    (whole,) = partition(hidden_products())
    assert whole.whole


def test_twins_are_one():
    p = Program("twins")
    x = p.input(8, 8, name="x")
    graph = p.graph(p("add", p("exp", x), p("mul", p("exp", x), p("neg", x))))
    assert [n.op for n in without_twins(graph).nodes] == ["exp", "neg", "mul", "add"]
    assert same(graph, without_twins(graph))
    best = search_plans(cosines(), TARGET, budget=120).graphs[0]
    (node,) = best.nodes
    again = Node(node.op, node.operands, (Value(node.result.type),), node.attrs, body=node.body)
    twice = KernelGraph("twice", best.inputs, [node, again], [])
    total = Value(node.result.type)
    twice.nodes.append(Node("add", (node.result, again.result), (total,)))
    twice.outputs.append(total)
    assert [n.op for n in without_twins(twice).nodes] == ["custom", "add"]
