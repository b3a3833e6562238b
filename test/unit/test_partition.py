"""Segments: whole where possible, convex and connected otherwise, and put back without changing anything."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from search_programs import Program, rmsnorm_linear, run, same

from superopt import verify
from superopt.cost import cost, target
from superopt.diagnostics import Diagnostics
from superopt.errors import BadOption
from superopt.program import Attr, BlockGraph, KernelGraph, Node, Value
from superopt.spec import check_kernel
from superopt.transforms.mugraph_search.descend import propose as propose_in_parts
from superopt.transforms.mugraph_search.mugraph_search import MugraphSearch
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.partition import Segment, partition, stitch
from superopt.transforms.partition.partition import Partition
from superopt.transforms.partition.segments import before_products, counted
from superopt.verify import Verdict, certify


def operators(segment: Segment) -> list[str]:
    return [n.op for n in segment.graph.nodes if n.op != "constant"]


def test_a_program_that_fits_is_one_segment():
    graph = rmsnorm_linear(16, 256, 64)
    (segment,) = partition(graph)
    assert segment.whole
    assert segment.graph is graph


def two_halves(stride: int = 1) -> KernelGraph:
    p = Program("two_halves")
    x, w = p.input(16, 256, name="x"), p.input(256, 64, name="w")
    y = p("relu", p("matmul", x, w))
    left = p("slice", y, offsets=(0, 0), sizes=(16, 32), strides=(1, stride))
    right = p("slice", y, offsets=(0, 32 if stride == 1 else 1), sizes=(16, 32), strides=(1, stride))
    return p.graph(p("mul", p("silu", left), right))


def test_strided_slices_are_boundaries():
    first, second = partition(two_halves(stride=2))
    assert operators(first) == ["matmul", "relu"]
    assert operators(second) == ["silu", "mul"]
    assert not first.whole


def test_other_slices_are_none():
    (segment,) = partition(two_halves())
    assert segment.whole


def returning_path() -> KernelGraph:
    """From relu over a slice to the sum, and directly: both ends in one segment would not be convex."""
    p = Program("returning_path")
    y = p("relu", p.input(16, 64, name="x"))
    cut = p("slice", y, offsets=(0, 0), sizes=(16, 32), strides=(1, 2))
    return p.graph(p("mul", p("exp", y), p("reduce_sum", cut, dims=(1,), keepdims=True)))


def reaches(graph: KernelGraph, start: set[Node], goal: set[Node]) -> bool:
    """Whether a path leads from `start` through nodes outside of `goal` back into `goal`."""
    tainted: set[Value] = {v for n in start for v in n.results}
    outside: set[Value] = set()
    for node in graph.nodes:
        if node in goal:
            if any(v in outside for v in node.operands):
                return True
        elif any(v in tainted or v in outside for v in node.operands):
            outside.update(node.results)
    return False


def random_graph(seed: int, nodes: int = 60) -> KernelGraph:
    rng = random.Random(seed)
    p = Program("random")
    values = [p.input(8, 8) for _ in range(3)]
    for _ in range(nodes):
        a, b = rng.choices(values[-8:], k=2)
        kind = rng.randrange(6)
        if kind == 0:
            values.append(p("slice", a, offsets=(0, 0), sizes=(8, 8), strides=(1, 1)))
        elif kind == 1:
            values.append(p("tanh", p("matmul", a, b)))
        elif kind == 2:
            values.append(p("mul", a, p.constant(0.5)))
        else:
            values.append(p(["add", "mul", "sub"][kind - 3], a, b))
    return p.graph(*values[-3:])


@pytest.mark.parametrize("seed", range(6))
def test_segments_are_convex_disjoint_and_bounded(seed: int):
    graph = returning_path() if seed == 0 else random_graph(seed)
    segments = partition(graph, max_values=12)
    assert len(segments) > 1
    seen: set[Node] = set()
    for segment in segments:
        members = {n for n in segment.graph.nodes if n.op != "constant"}
        assert not members & seen
        seen |= members
        assert counted(members) <= 12
        assert not reaches(graph, members, members)
        check_kernel(segment.graph)


@pytest.mark.parametrize("seed", range(4))
def test_stitching_what_was_found_changes_nothing(seed: int):
    graph = two_halves() if seed == 0 else random_graph(seed, 30)
    stitched = graph
    replaced = 0
    for segment in partition(graph, max_values=10):
        candidates = search_plans(segment.graph, target("sm_90"), budget=5).graphs
        if candidates:
            stitched = stitch(stitched, segment, candidates[0])
            replaced += 1
    assert replaced
    assert any(n.op == "custom" for n in stitched.nodes)
    check_kernel(stitched)
    assert same(graph, stitched)


def test_cuts_fall_where_fusion_saves_nothing():
    """Two layers with large weights: the second would compute the first once for each of its column tiles."""
    p = Program("two_layers")
    x = p.input(16, 4096, name="x")
    h = p("silu", p("matmul", x, p.input(4096, 4096)))
    mean = p("reduce_mean", p("square", h), dims=(1,), keepdims=True)
    n = p("mul", h, p("rsqrt", mean))
    y = p("add", p("matmul", n, p.input(4096, 4096)), x)
    first, second = partition(p.graph(y), max_values=7)
    assert "silu" in operators(first)
    assert operators(first).count("matmul") == operators(second).count("matmul") == 1
    assert operators(second)[-2:] == ["matmul", "add"]


def rotary_attention(tokens: int = 16, width: int = 1024, heads: int = 8, d: int = 64) -> KernelGraph:
    """Norm, projections, rotary embeddings of queries and keys, softmax attention."""
    p = Program("rotary_attention")
    x, cos, sin = p.input(tokens, width, name="x"), p.input(tokens, d), p.input(tokens, d)
    mean = p("reduce_mean", p("square", x), dims=(1,), keepdims=True)
    y = p("mul", p("mul", x, p("rsqrt", p("add", mean, p.constant(1e-5)))), p.input(width, name="g"))

    def projected(name: str) -> Value:
        rows = p("reshape", p("matmul", y, p.input(width, heads * d, name=name)), shape=(tokens, heads, d))
        return p("transpose", rows, perm=(1, 0, 2))

    def rotated(t: Value) -> Value:
        half: dict[str, Attr] = {"sizes": (heads, tokens, d // 2), "strides": (1, 1, 1)}
        low, high = (p("slice", t, offsets=(0, 0, at), **half) for at in (0, d // 2))
        turned = p("concat", p("neg", high), low, dim=2)
        return p("add", p("mul", t, cos), p("mul", turned, sin))

    q, k, v = (projected(name) for name in ("wq", "wk", "wv"))
    s = p("matmul", rotated(q), rotated(k), transpose_b=True)
    e = p("exp", p("sub", s, p("reduce_max", s, dims=(2,), keepdims=True)))
    return p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(2,), keepdims=True)), v))


@pytest.mark.parametrize("sizes", [(16, 1024, 8, 64), (512, 4096, 32, 128)])
def test_rotary_embeddings_stay_with_the_attention_behind_them(sizes: tuple[int, int, int, int]):
    """As an expert cuts it: what normalises and projects, and one kernel that rotates and attends."""
    *before, last = partition(rotary_attention(*sizes))
    projected = [op for s in before for op in operators(s)]
    assert {"neg", "concat", "exp"}.isdisjoint(projected)
    assert projected.count("matmul") == 3
    assert projected.count("mul") == projected.count("square") + 1 == 2
    assert operators(last).count("slice") == 4
    assert operators(last).count("concat") == operators(last).count("neg") == 2
    assert operators(last)[-1] == "matmul"


def test_slices_that_nothing_computes_with_are_in_no_segment():
    p = Program("only_slices")
    x = p.input(8, 64, name="x")
    parts = [p("slice", x, offsets=(0, at), sizes=(8, 32), strides=(1, 1)) for at in (0, 32)]
    assert partition(p.graph(p("concat", *reversed(parts), dim=1)), max_values=1) == []


def test_scores_stay_with_their_softmax():
    """What crosses there is larger than what comes in and goes out."""
    p = Program("projected_attention")
    x, w, k, v, wo = (p.input(*s) for s in ((512, 1024), (1024, 64), (64, 2048), (2048, 64), (64, 1024)))
    e = p("exp", p("matmul", p("matmul", x, w), k))
    a = p("matmul", p("div", e, p("reduce_sum", e, dims=(1,), keepdims=True)), v)
    graph = p.graph(p("relu", p("matmul", a, wo)))
    together = next(s for s in partition(graph, max_values=5) if "exp" in operators(s))
    assert operators(together) == ["matmul", "exp", "reduce_sum", "div", "matmul"]


def test_a_search_that_meets_its_limit_is_done_again_in_parts():
    """Three layers, each one kernel, where a search may only make one."""
    p = Program("three_layers")
    x = p.input(16, 256, name="x")
    for k, n in ((256, 4096), (4096, 384), (384, 4096)):
        mean = p("reduce_mean", p("square", x), dims=(1,), keepdims=True)
        x = p("mul", x, p("rsqrt", p("add", mean, p.constant(1e-5))))
        x = p("silu", p("matmul", x, p.input(k, n)))
    graph, gpu = p.graph(x), target("sm_90")
    options = MugraphOptimizer(max_custom=1)
    alone = search_plans(graph, gpu, budget=20, options=options)
    found = propose_in_parts(graph, gpu, budget=20, options=options)
    assert found.predicted == sorted(found.predicted)
    assert found.predicted[0] < min([*alone.predicted, cost(graph, gpu).seconds])
    assert sum(n.op == "custom" for n in found.graphs[0].nodes) > 1
    check_kernel(found.graphs[0])
    assert same(graph, found.graphs[0])
    again = propose_in_parts(rmsnorm_linear(16, 256, 64), gpu, budget=20)
    once = search_plans(rmsnorm_linear(16, 256, 64), gpu, budget=20)
    assert len(again.found) == len(once.found) + 1  # cut in front of the product
    assert set(again.predicted) > set(once.predicted)


def projected_attention(rows: int, width: int, heads: int) -> KernelGraph:
    """Attention whose heads are cut out of projections: the library needs them moved, kernels of our own do not."""
    p = Program("projected_attention")
    x, *weights = p.input(rows, width, name="x"), *(p.input(width, width) for _ in range(3))
    shape = (rows, heads, width // heads)
    q, k, v = (p("transpose", p("reshape", p("matmul", x, w), shape=shape), perm=(1, 0, 2)) for w in weights)
    e = p("exp", p("matmul", q, k, transpose_b=True))
    return p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(2,), keepdims=True)), v))


def test_plans_are_ranked_by_what_is_priced_between_their_kernels():
    graph, gpu = projected_attention(256, 2048, 16), target("sm_90")
    found = propose_in_parts(graph, gpu, budget=300)
    assert found.predicted == sorted(cost(c, gpu).seconds for c in found.graphs)
    assert len(found.graphs) <= MugraphOptimizer().candidates + 1


def test_a_single_row_is_multiplied_element_by_element():
    """On matrix units it would be sixteen rows, and its operand as often in registers."""
    gpu = target("sm_90")
    for rows, products in ((1, 0), (16, 1)):
        found = propose_in_parts(rmsnorm_linear(rows, 256, 64), gpu, budget=60)
        blocks = [n.body for n in found.graphs[0].nodes if isinstance(n.body, BlockGraph)]
        assert blocks
        assert sum(n.op == "matmul" for b in blocks for n in b.nodes) == products
        assert same(rmsnorm_linear(rows, 256, 64), found.graphs[0])


def test_a_candidate_may_hand_back_an_input():
    p = Program("identity")
    x = p.input(4, 4, name="x")
    graph = p.graph(p("exp", p("neg", p("neg", x))))
    (segment,) = partition(graph)
    inner = Program("same")
    y = inner.input(4, 4, name="x")
    replaced = stitch(graph, segment, inner.graph(y))
    (out,) = run(replaced, [np.ones((4, 4))])
    assert (out == 1).all()


def test_a_candidate_may_keep_a_splat_that_other_segments_use():
    """As what is stitched of parts of a segment does."""
    p = Program("splats")
    x, half = p.input(4, 4, name="x"), p.constant(0.5)
    graph = p.graph(p("mul", p("matmul", p("mul", x, half), p.input(4, 4)), half))
    stitched = graph
    for segment in before_products(graph):
        stitched = stitch(stitched, segment, segment.graph)
    check_kernel(stitched)
    assert same(graph, stitched)


def test_a_long_program_is_cut_in_time():
    p = Program("long")
    x = p.input(16, 16, name="x")
    for i in range(5000):
        x = p("add", x, x) if i % 7 == 0 else p("exp", x)
    start = time.process_time()
    segments = partition(p.graph(x))
    assert time.process_time() - start < 10
    assert sum(len(s.graph.nodes) for s in segments) == 5000


def test_the_passes_remark_on_what_they_did():
    diagnostics = Diagnostics()
    graph = two_halves(stride=2)
    assert Partition().apply(graph, diagnostics) is graph
    text = "\n".join(map(str, diagnostics.messages))
    assert "segment 0: 1 matmul, 1 relu; 2 inputs, 1 outputs" in text
    assert "'slice' is in no segment" in text

    diagnostics = Diagnostics()
    found = MugraphSearch(target="sm_80", budget=10).apply(graph, diagnostics)
    assert same(graph, found)
    assert sum(n.op == "custom" for n in found.nodes) == 2
    assert "instead of" in str(diagnostics.messages[0])


def test_a_pass_takes_no_candidate_without_the_bound(monkeypatch: pytest.MonkeyPatch):
    """Unless it is told to."""

    def without_bound(*given: Any, **options: Any) -> Verdict:
        found = certify(*given, **options)
        assert found.certificate
        return Verdict(True, found.certificate.model_copy(update={"delta": None}))

    monkeypatch.setattr(verify, "certify", without_bound)
    graph, diagnostics = two_halves(stride=2), Diagnostics()
    assert MugraphSearch(target="sm_80", budget=10).apply(graph, diagnostics) is graph
    assert any("not proved with the bound asked for" in str(m) for m in diagnostics.messages)
    allowed = MugraphSearch(target="sm_80", budget=10, allow="congruence-without-bound")
    assert any(n.op == "custom" for n in allowed.apply(graph, Diagnostics()).nodes)
    with pytest.raises(BadOption, match="delta"):
        MugraphSearch(delta=0)


def test_bad_options_of_the_passes_are_told():
    with pytest.raises(BadOption, match="max-values"):
        Partition(max_values=0)
    with pytest.raises(BadOption, match="sm_80"):
        MugraphSearch(target="sm_12")
    with pytest.raises(BadOption, match="budget"):
        MugraphSearch(budget=0)
    with pytest.raises(BadOption, match="max-block-operators"):
        MugraphSearch(max_block_operators=0)
