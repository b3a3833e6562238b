"""What the search finds, from plain programs only, and that all of it computes the same."""

from __future__ import annotations

import pytest
from search_programs import (
    Program,
    adapter_mlp,
    attention,
    gated_mlp,
    grouped_attention,
    lora,
    matmul_bias_gelu,
    rmsnorm_linear,
    same,
)
from search_support import SMALL, TARGET, customs, loads, only_kernel, search

from superopt.cost import cost, target
from superopt.errors import BadOption
from superopt.program import BlockGraph, KernelGraph, Node, Value
from superopt.spec import check_kernel
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans

# --- the four programs at full size -----------------------------------------------------------------------


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("name", ["sm_80", "sm_90", "sm_100"])
def test_rmsnorm_and_linear_become_one_kernel_that_reads_x_once(weight: bool, name: str):
    graph = rmsnorm_linear(weight=weight)
    best = search_plans(graph, target(name), budget=120).graphs[0]
    body = only_kernel(best)
    assert loads(body) == dict.fromkeys(["x", "w", "g"] if weight else ["x", "w"], 1)
    assert len(body.loops) == 1
    assert body.loops[0] >= 2
    # X streams through the loop, so the norm is known only after it: the division comes after the product.
    x = next(n for n in body.nodes if n.op == "iterator" and n.operands[0].name == "x")
    assert x.attrs["fmap"] == (1,)
    assert sum(n.op == "accumulate" for n in body.nodes) == 2
    assert cost(best, target(name)).seconds < 0.7 * cost(graph, target(name)).seconds


@pytest.mark.parametrize(
    ("graph", "inputs"),
    [
        (matmul_bias_gelu(), ["x", "w", "bias"]),
        (lora(), ["x", "w", "a", "b"]),
        (gated_mlp(8), ["x", "w1", "w2"]),
        (gated_mlp(16), ["x", "w1", "w2"]),
        (adapter_mlp(), ["x", "a", "b"]),
        (attention(32, 128, 1024, 64), ["q", "k", "v"]),
    ],
    ids=["bias-gelu", "lora", "gated-8", "gated-16", "adapter", "attention"],
)
def test_one_kernel_that_loads_every_input_once(graph: KernelGraph, inputs: list[str]):
    found = search(graph)
    body = only_kernel(found.graphs[0])
    assert loads(body) == dict.fromkeys(inputs, 1)
    assert found.predicted == sorted(found.predicted)
    assert cost(found.graphs[0], TARGET).seconds < cost(graph, TARGET).seconds


def test_heads_of_a_group_share_keys_and_values():
    graph = grouped_attention(64, 4, 1024, 64)
    body = only_kernel(search(graph).graphs[0])
    keys = next(v for v in body.inputs if v.name == "k")
    assert keys.shape == (64, 1024, 64)  # as it came, not repeated
    products = [n for n in body.nodes if n.op == "matmul"]
    # The heads of a group are the rows of a matrix product.
    assert all(p.result.shape[-2] == 4 for p in products)


def test_predictions_are_those_of_the_cost_model():
    for graph in (rmsnorm_linear(), gated_mlp(), matmul_bias_gelu()):
        found = search(graph)
        for candidate, predicted in list(zip(found.graphs, found.predicted, strict=True))[:1]:
            assert cost(candidate, TARGET).seconds == pytest.approx(predicted, rel=0.1)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_products_take_as_long_as_the_cost_model_says(dtype: str):
    # Those of f32 do not run on matrix units: tiles that are good for f16 are not for them.
    p = Program("program", dtype)
    x, w = p.input(512, 1024, name="x"), p.input(1024, 2048, name="w")
    graph = p.graph(p("relu", p("matmul", x, w)))
    found = search(graph, max_custom=1)
    assert len(customs(found.graphs[0])) == 1
    assert cost(found.graphs[0], TARGET).seconds == pytest.approx(found.predicted[0])
    assert found.predicted[0] < cost(graph, TARGET).seconds


def test_small_searches_end_by_themselves():
    for graph in (rmsnorm_linear(), rmsnorm_linear(weight=True), matmul_bias_gelu(), lora(), gated_mlp()):
        found = search(graph)
        assert found.complete
        assert found.funnel["values.found"] < 100


# --- everything it returns computes the same --------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_every_candidate_is_legal_and_computes_the_same(name: str):
    graph = SMALL[name]()
    found = search(graph, candidates=40)
    assert found.graphs
    assert found.funnel["plans.rejected.illegal"] == 0
    assert found.funnel["plans.rejected.not_buildable"] == 0
    for candidate in found.graphs:
        check_kernel(candidate, TARGET.shared_per_block)
        assert [v.type for v in candidate.outputs] == [v.type for v in graph.outputs]
        assert same(graph, candidate)


@pytest.mark.parametrize(
    "name",
    ["attention", "safe-attention", "grouped", "rmsnorm", "gated", "two-outputs", "bilinear", "norm-mlp"],
)
def test_candidates_with_two_custom_kernels_compute_the_same(name: str):
    graph = SMALL[name]()
    found = search(graph, candidates=12, max_custom=2, budget=4, margin=100)
    assert any(len(customs(c)) == 2 for c in found.graphs)
    assert found.funnel["plans.rejected.illegal"] == 0
    assert found.funnel["plans.rejected.not_buildable"] == 0
    assert all(same(graph, c) for c in found.graphs)


@pytest.mark.parametrize("name", ["attention", "safe-attention", "grouped", "lora", "norm-mlp"])
def test_every_plan_of_three_custom_kernels_can_be_built(name: str):
    """Parts of split axes and their maxima, stored by one kernel and read as a whole or in parts by others."""
    graph = SMALL[name]()
    found = search(graph, candidates=600, max_custom=3, margin=100)
    assert found.complete
    assert any(len(customs(c)) == 3 for c in found.graphs)
    assert found.funnel["plans.rejected.illegal"] == 0
    assert found.funnel["plans.rejected.not_buildable"] == 0
    assert all(same(graph, c) for c in found.graphs[::4])


def test_keys_are_split_over_blocks_where_one_kernel_leaves_the_gpu_idle():
    graph = grouped_attention(4, 8, 4096, 64)
    one, two = search(graph, max_custom=1).graphs[0], search(graph, max_custom=2).graphs[0]
    assert cost(two, TARGET).seconds < 0.8 * cost(one, TARGET).seconds
    partial, final = customs(two)
    assert len(partial.savers) == 3  # the sum of exponentials, the unnormalised output, and their maximum
    assert any(n.op == "div" for n in final.nodes)
    keys = next(v for v in partial.inputs if v.name == "k")
    assert keys.shape[0] == 4  # not repeated
    assert keys.shape[1] * keys.shape[2] == 4096  # split


def test_candidates_differ_in_structure():
    def structure(graph: KernelGraph) -> str:
        numbers: dict[Value, int] = {}

        def number(v: Value) -> int:
            return numbers.setdefault(v, len(numbers))

        def text(node: Node) -> str:
            body = node.body.nodes if isinstance(node.body, BlockGraph) else []
            value = node.attrs.get("value", "")
            return f"{node.op}{value}{[number(v) for v in (*node.operands, *node.results)]}({[text(n) for n in body]})"

        return ";".join(map(text, graph.nodes))

    found = search(rmsnorm_linear(16, 256, 64), candidates=40, max_custom=1)
    assert len({structure(c) for c in found.graphs}) == len(found.graphs) > 20


# --- labels, determinism, options -------------------------------------------------------------------------


def test_a_kernel_does_not_loop_over_an_axis_that_it_also_saves():
    for candidate in search(SMALL["softmax"](), candidates=40).graphs:
        for body in customs(candidate):
            saves_rows = any(n.op == "save" and n.operands[0].shape[-1] == 256 for n in body.nodes)
            assert not (saves_rows and body.loops)


def test_the_grid_cuts_only_what_every_output_has():
    for candidate in search(SMALL["two-outputs"](), candidates=40).graphs:
        for body in customs(candidate):
            for saver in body.savers:
                omap = saver.attrs["omap"]
                assert isinstance(omap, tuple)
                assert all(d >= 0 for d, extent in zip(omap, body.grid, strict=True) if extent > 1)


def test_tiles_of_matrix_products_are_large_enough_for_the_units():
    for graph in (rmsnorm_linear(), lora(), attention(32, 128, 1024, 64)):
        for body in customs(search(graph).graphs[0]):
            for node in body.nodes:
                if node.op == "matmul":
                    assert min(*node.result.shape[-2:], node.operands[0].shape[-1]) >= 16


def test_the_same_seed_gives_the_same_candidates():
    from superopt.dialects.writer import to_text

    first, second = (search(rmsnorm_linear(), seed=7) for _ in range(2))
    assert list(map(to_text, first.graphs)) == list(map(to_text, second.graphs))
    assert first.funnel == second.funnel
    other = search(rmsnorm_linear(), seed=8)
    assert list(map(to_text, first.graphs)) == list(map(to_text, other.graphs))


def test_the_result_does_not_depend_on_the_number_of_threads():
    from superopt.dialects.writer import to_text

    one, two = (search(SMALL["norm-mlp"](), threads=n, branch_and_bound=False) for n in (1, 2))
    assert one.funnel["kernels.size_points"] > 10_000
    assert list(map(to_text, one.graphs)) == list(map(to_text, two.graphs))
    assert one.funnel == two.funnel


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("op", ["max", "min"])
def test_a_maximum_at_one_element_is_not_taken_for_its_operand(op: str, seed: int):
    p = Program("one_element")
    x, y = p.input(1, name="x"), p.input(1, name="y")
    for result in (p(op, x, p("neg", x)), p(op, p("add", x, y), p("mul", x, y))):
        graph = p.graph(result)
        found = search(graph, seed=seed)
        assert found.graphs
        assert all(same(graph, c, seed=s) for c in found.graphs for s in range(4))


def test_programs_that_cannot_be_told_say_why():
    p = Program("slices")
    x = p.input(16, 64)
    graph = p.graph(p("exp", p("slice", x, offsets=(0, 0), sizes=(8, 64), strides=(2, 1))))
    found = search(graph)
    assert not found.graphs
    assert "strides" in found.remark

    p = Program("views")
    graph = p.graph(p("transpose", p.input(16, 64), perm=(1, 0)))
    assert search(graph).graphs == []


def test_bad_options_are_told():
    with pytest.raises(BadOption, match="prune"):
        MugraphOptimizer(prune="z4")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="canonical"):
        MugraphOptimizer(canonical="trees")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="max-custom"):
        MugraphOptimizer(max_custom=0)
