"""Programs with slices and concatenations: told without them, searched, and put back."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np
import pytest
from search_programs import Array, Program, run, same

from superopt.cost import cost, target
from superopt.diagnostics import Diagnostics
from superopt.moves import moves_in_place
from superopt.numerics.interpreter import Interpreter
from superopt.program import BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.spec import check_kernel
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.transforms.lower.fold_moves import FoldMoves
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.named_axes.axis_table import Unsearchable
from superopt.transforms.named_axes.name_axes import name_axes
from superopt.transforms.named_axes.unfold import Unfolded, unfold
from superopt.transforms.partition.segments import partition
from superopt.verify import certify

TARGET = target("sm_90")


def cut(p: Program, x: Value, dim: int, offset: int, size: int) -> Value:
    offsets, sizes = [0] * len(x.shape), list(x.shape)
    offsets[dim], sizes[dim] = offset, size
    return p("slice", x, offsets=tuple(offsets), sizes=tuple(sizes), strides=(1,) * len(sizes))


def joined_depth(m: int = 16, k: int = 256, n: int = 512) -> KernelGraph:
    """Concatenated along what the product sums over."""
    p = Program("joined_depth")
    a, b, w = p.input(m, k, name="a"), p.input(m, k // 2, name="b"), p.input(k + k // 2, n, name="w")
    return p.graph(p("relu", p("matmul", p("concat", a, b, dim=1), w)))


def joined_columns(m: int = 16, k: int = 256, n: int = 128) -> KernelGraph:
    """Concatenated along columns, which the next product sums over."""
    p = Program("joined_columns")
    x, a, b = p.input(m, k, name="x"), p.input(k, n, name="a"), p.input(k, n, name="b")
    hidden = p("relu", p("matmul", x, p("concat", a, b, dim=1)))
    return p.graph(p("matmul", hidden, p.input(2 * n, 64, name="v")))


def joined_output(m: int = 16, k: int = 256, n: int = 64) -> KernelGraph:
    p = Program("joined_output")
    x, a, b = p.input(m, k, name="x"), p.input(k, n, name="a"), p.input(k, 2 * n, name="b")
    return p.graph(p("relu", p("matmul", x, p("concat", a, b, dim=1))))


def joined_lora(m: int = 16, k: int = 256, n: int = 512, r: int = 16) -> KernelGraph:
    """`(x || x a) (w ; b)`, as figure 9b of Mirage's paper has it."""
    p = Program("joined_lora")
    x, w = p.input(m, k, name="x"), p.input(k, n, name="w")
    low = p("matmul", x, p.input(k, r, name="a"))
    right = p("concat", w, p.input(r, n, name="b"), dim=0)
    return p.graph(p("matmul", p("concat", x, low, dim=1), right))


def fused_gate(m: int = 8, k: int = 256, n: int = 128) -> KernelGraph:
    """One projection, of which one half gates the other."""
    p = Program("fused_gate")
    y = p("matmul", p.input(m, k, name="x"), p.input(k, 2 * n, name="w"))
    return p.graph(p("mul", p("silu", cut(p, y, 1, 0, n)), cut(p, y, 1, n, n)))


def fused_heads(m: int = 16, heads: int = 4, d: int = 32) -> KernelGraph:
    """Queries, keys and values of one projection, cut into heads."""
    p = Program("fused_heads")
    width = heads * d
    y = p("matmul", p.input(m, width, name="x"), p.input(width, 3 * width, name="w"))
    q, k, v = (
        p("transpose", p("reshape", cut(p, y, 1, i * width, width), shape=(m, heads, d)), perm=(1, 0, 2))
        for i in range(3)
    )
    e = p("exp", p("matmul", q, k, transpose_b=True))
    return p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(2,), keepdims=True)), v))


def rotated_scores(heads: int = 4, m: int = 16, n: int = 64, d: int = 32) -> KernelGraph:
    """Rotary embeddings: halves turned against each other, then multiplied over both."""
    p = Program("rotated_scores")

    def rotated(x: Value, rows: int, name: str) -> Value:
        cos, sin = p.input(rows, d, name=f"cos_{name}"), p.input(rows, d, name=f"sin_{name}")
        turned = p("concat", p("neg", cut(p, x, 2, d // 2, d // 2)), cut(p, x, 2, 0, d // 2), dim=2)
        return p("add", p("mul", x, cos), p("mul", turned, sin))

    q, k = p.input(heads, m, d, name="q"), p.input(heads, n, d, name="k")
    return p.graph(p("matmul", rotated(q, m, "q"), rotated(k, n, "k"), transpose_b=True))


def statistics(m: int = 16, k: int = 64) -> KernelGraph:
    """Reductions over both parts: a mean, and a maximum."""
    p = Program("statistics")
    both = p("concat", p.input(m, k, name="a"), p.input(m, 2 * k, name="b"), dim=1)
    return p.graph(p("sub", p("reduce_mean", p("square", both), dims=(1,)), p("reduce_max", both, dims=(1,))))


PROGRAMS: dict[str, Callable[[], KernelGraph]] = {
    f.__name__: f
    for f in (
        joined_depth,
        joined_columns,
        joined_output,
        joined_lora,
        fused_gate,
        fused_heads,
        rotated_scores,
        statistics,
    )
}


def inputs_of(unfolded: Unfolded, inputs: list[Array]) -> list[Array]:
    """Those of the program, and the cut ones behind."""
    known = dict(zip(unfolded.program.inputs, inputs, strict=True))
    for node in unfolded.views:
        known[node.result] = known[node.operands[0]].reshape(node.result.shape)
    for value, c in unfolded.cuts.items():
        spans = tuple(slice(o, o + n) for o, n in zip(c.offsets, c.sizes, strict=True))
        known[value] = known[c.source][spans]
    return [known[v] for v in unfolded.graph.inputs]


def check_unfolded(graph: KernelGraph) -> Unfolded:
    """What is searched, and what folding makes of it, both compute what `graph` does."""
    unfolded = unfold(graph)
    check_kernel(unfolded.graph)
    assert not any(n.op in ("slice", "concat") for n in unfolded.graph.nodes)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=v.shape) for v in graph.inputs]
    wanted = run(graph, inputs)
    parts = iter(run(unfolded.graph, inputs_of(unfolded, inputs)))
    folded = unfolded.fold(unfolded.graph)
    check_kernel(folded)
    for value, join, again in zip(wanted, unfolded.joins, run(folded, inputs), strict=True):
        got = (
            next(parts)
            if isinstance(join, Value)
            else np.concatenate([next(parts) for _ in join.values], axis=join.dim)
        )
        np.testing.assert_allclose(got, value)
        np.testing.assert_allclose(again, value)
    return unfolded


@pytest.mark.parametrize("name", PROGRAMS)
def test_unfolding_changes_nothing(name: str):
    check_unfolded(PROGRAMS[name]())


def random_program(rng: random.Random) -> KernelGraph:
    """Any operators, with slices and concatenations between them."""
    p = Program("random", dtype="f32")
    values = [p.input(4, 6), p.input(4, 6), p.input(6, 4), p.input(2, 4, 6)]
    for _ in range(8):
        x = rng.choice(values)
        rank = len(x.shape)
        dim = rng.randrange(rank)
        same_shape = [v for v in values if v.shape == x.shape]
        beside = [v for v in values if len(v.shape) == rank]
        beside = [v for v in beside if all(v.shape[d] == x.shape[d] for d in range(rank) if d != dim)]
        match rng.randrange(9):
            case 0:
                y = p("exp", x)
            case 1:
                y = p(rng.choice(["add", "mul", "max"]), x, rng.choice(same_shape))
            case 2 if x.shape[dim] > 1:
                size = rng.randint(1, x.shape[dim] - 1)
                y = cut(p, x, dim, rng.randint(0, x.shape[dim] - size), size)
            case 3 | 4:
                y = p("concat", x, rng.choice(beside), dim=dim)
            case 5:
                op = rng.choice(["reduce_sum", "reduce_mean", "reduce_max"])
                y = p(op, x, dims=(dim,), keepdims=rng.random() < 0.7)
            case 6:
                y = p("transpose", x, perm=tuple(rng.sample(range(rank), rank)))
            case 7 if rank > 1:
                fitting = [v for v in values if len(v.shape) > 1 and v.shape[-1] == x.shape[-1]]
                fitting = [v for v in fitting if v.shape[:-2] == x.shape[:-2]]
                y = p("matmul", x, rng.choice(fitting), transpose_b=True)
            case 8 if x.shape[0] % 2 == 0:
                y = p("reshape", x, shape=(2, x.shape[0] // 2, *x.shape[1:]))
            case _:
                y = p("sigmoid", x)
        if y.shape and max(y.shape) < 20:
            values.append(y)
    return p.graph(*(p("exp", v) for v in values[-2:]))


def test_random_programs_unfold_to_the_same():
    unfolded = moved = 0
    for seed in range(300):
        graph = random_program(random.Random(seed))
        try:
            found = check_unfolded(graph)
        except Unsearchable:
            continue
        unfolded += 1
        moved += found.graph is not graph
    assert unfolded > 240
    assert moved > 200


def test_candidates_for_random_programs_compute_the_same():
    options = MugraphOptimizer(candidates=6, max_states=20_000)
    searched = checked = 0
    for seed in range(1000, 1060):
        graph = random_program(random.Random(seed))
        found = search_plans(graph, TARGET, budget=120, options=options)
        searched += bool(found.graphs)
        assert found.funnel.get("plans.rejected.illegal", 0) == 0
        for candidate in found.graphs:
            check_kernel(candidate, TARGET.shared_per_block)
            assert same(graph, candidate), seed
            checked += 1
    assert searched > 50
    assert checked > 200


@pytest.mark.parametrize("name", PROGRAMS)
def test_candidates_for_slices_and_concatenations_compute_the_same(name: str):
    graph = PROGRAMS[name]()
    found = search_plans(graph, TARGET, budget=20)
    assert found.graphs, found.remark
    assert found.predicted == sorted(found.predicted)
    assert found.funnel["plans.rejected.illegal"] == 0
    for candidate in found.graphs:
        check_kernel(candidate, TARGET.shared_per_block)
        assert [v.type for v in candidate.outputs] == [v.type for v in graph.outputs]
        assert same(graph, candidate)
    assert cost(found.graphs[0], TARGET).seconds == pytest.approx(found.predicted[0])


@pytest.mark.parametrize("build", [joined_depth, joined_columns, joined_lora, fused_gate, fused_heads])
def test_one_kernel_reads_moves_in_place(build: Callable[[], KernelGraph]):
    graph = build()
    best = search_plans(graph, TARGET, budget=120).graphs[0]
    kernels = [n for n in best.nodes if n.op not in ("reshape", "slice")]
    assert [n.op for n in kernels] == ["custom"]
    assert all(n.result in moves_in_place(best) for n in best.nodes if n.op == "slice")
    lowered = lower(best)
    assert [n.op for n in lowered.nodes if n.op != "reshape"] == ["tiled"]
    assert certify(graph, best).equivalent
    assert certify(best, lowered).equivalent
    assert cost(best, TARGET).seconds < 0.75 * cost(graph, TARGET).seconds


@pytest.mark.parametrize("build", [joined_depth, joined_lora, fused_gate, rotated_scores])
def test_the_kernels_that_read_slices_are_right_in_the_interpreter(build: Callable[[], KernelGraph]):
    graph = build()
    best = search_plans(graph, TARGET, budget=20).graphs[0]
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=v.shape).astype(np.float16).astype(np.float64) / 4 for v in graph.inputs]
    interpreter = Interpreter()
    try:
        got = interpreter.run(emit_program(lower(best)), inputs, [v.dtype for v in graph.inputs])
    finally:
        interpreter.close()
    for x, y in zip(got, run(graph, inputs), strict=True):
        assert np.abs(x.reshape(y.shape) - y).max() < 0.01 * np.abs(y).max()


def test_concatenated_products_are_summed_in_one_accumulator():
    """`(x || x a) (w ; b)`: the sum of both products, in the loop, is what is accumulated."""
    graph = joined_lora(16, 4096, 512, 16)
    found = search_plans(graph, TARGET, budget=120, options=MugraphOptimizer(candidates=40, max_custom=1))

    def summed_together(candidate: KernelGraph) -> bool:
        ops = [n.op for node in candidate.nodes if isinstance(node.body, BlockGraph) for n in node.body.nodes]
        return ops.count("accumulate") == 1 and ops.count("matmul") == 3

    best = next(c for c in found.graphs if summed_together(c))
    # The same time as two accumulators, whose additions `tl.dot` does: here they count as operations of their own.
    assert cost(best, TARGET).seconds == pytest.approx(found.predicted[0], rel=1e-3)
    lowered = lower(best)
    assert certify(best, lowered).equivalent
    (kernel,) = emit_program(lowered).kernels
    # One product continues the sum of the trip before, another one continues that.
    products = re.findall(r"(\w+) = tl\.dot\(.*?(?:, (\w+))?\)\n", kernel.source)
    total = next(name for name, _ in products if f"{name} = tl.zeros" in kernel.source)
    middle = dict(products)[total]
    assert dict(products)[middle] == total


def test_slices_are_kept_where_something_else_reads_them():
    p = Program("read_twice")
    x = p.input(16, 64, name="x")
    left = cut(p, x, 1, 0, 32)
    graph = p.graph(p("exp", left), left)
    assert moves_in_place(graph) == {}
    assert FoldMoves().apply(graph, Diagnostics()).nodes == graph.nodes
    p = Program("cut_twice")
    y = cut(p, cut(p, p.input(16, 64, name="x"), 1, 0, 32), 1, 8, 8)
    graph = p.graph(p("exp", y))
    assert list(moves_in_place(graph)) == [y]
    assert same(graph, lower_and_back(graph))


def lower_and_back(graph: KernelGraph) -> KernelGraph:
    """`graph`, having checked that what it is lowered to is the same."""
    lowered = lower(graph)
    assert certify(graph, lowered).equivalent
    return graph


def test_library_kernels_read_moves_in_place():
    p = Program("library")
    x, w = p.input(16, 64, name="x"), p.input(32, 48, name="w")
    graph = p.graph(p("matmul", cut(p, x, 1, 32, 32), cut(p, w, 1, 5, 16)))
    lowered = lower(graph)
    assert [n.op for n in lowered.nodes] == ["tiled"]
    assert certify(graph, lowered).equivalent


def test_what_cannot_be_unfolded_says_why():
    p = Program("strided")
    x = p.input(16, 64, name="x")
    every_other = p("slice", x, offsets=(0, 0), sizes=(16, 32), strides=(1, 2))
    with pytest.raises(Unsearchable, match="strides"):
        unfold(p.graph(p("exp", every_other)))
    p = Program("crossed")
    x, y = p.input(16, 8, name="x"), p.input(16, 8, name="y")
    both = p("concat", p("concat", x, y, dim=0), p("concat", x, y, dim=0), dim=1)
    with pytest.raises(Unsearchable, match="one dimension"):
        unfold(p.graph(p("exp", both)))


def test_no_slice_is_taken_out_of_what_is_opaque():
    """Rotary embeddings whose angles are looked up: half of them is no input, and nobody knows how to compute it."""
    p = Program("rotary")
    x, table = p.input(8, 16, name="x"), p.input(8, 16, name="angles")
    angles = Value(TensorType((8, 16), x.dtype), "angles")
    p.nodes.append(Node("extern", (table,), (angles,), {"target": "lookup", "reason": "test"}))
    turned = p("concat", cut(p, x, 1, 8, 8), cut(p, x, 1, 0, 8), dim=1)
    with pytest.raises(Unsearchable, match="got 'extern'"):
        unfold(p.graph(p("mul", turned, angles)))


def test_slices_and_concatenations_are_no_boundaries():
    for build in PROGRAMS.values():
        (segment,) = partition(build())
        assert segment.whole


def test_named_axes_know_nothing_of_slices():
    program = name_axes(unfold(fused_gate()).graph)
    assert [r.source.shape for r in program.roles] == [(8, 256), (256, 128), (256, 128)]


@pytest.mark.parametrize("results", [1, 2])
def test_opaque_operations_beside_slices_and_concatenations_are_named(results: int) -> None:
    """They are not in the operator table; those of two results have no one result."""
    p = Program("opaque")
    x = p.input(4, 8, name="x")
    both = p("concat", x, x, dim=0)
    made = tuple(Value(both.type, f"made{i}") for i in range(results))
    p.nodes.append(Node("extern", (both,), made, {"target": "lookup", "reason": "test"}))
    with pytest.raises(Unsearchable, match="got 'extern'"):
        unfold(p.graph(p("exp", cut(p, made[0], 0, 0, 4))))
