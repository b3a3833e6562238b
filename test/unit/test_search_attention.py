"""Softmax that stays safe: found online, in one kernel and split over two, whatever the logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from search_programs import Program, attention, grouped_attention, safe_attention

from superopt.cost import target
from superopt.numerics import gate
from superopt.program import BlockGraph, KernelGraph, Node, Value
from superopt.transforms.lower import lower
from superopt.transforms.mugraph_search.exponentials import relative_exponentials
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.named_axes.name_axes import name_axes
from superopt.verify import certify

TARGET = target("sm_90")
Kind = Callable[[KernelGraph], bool]


def candidates(graph: KernelGraph, **options: Any) -> list[KernelGraph]:
    return search_plans(graph, TARGET, budget=120, options=MugraphOptimizer(**options)).graphs


def bodies(graph: KernelGraph) -> list[BlockGraph]:
    return [n.body for n in graph.nodes if isinstance(n.body, BlockGraph)]


def nodes(body: BlockGraph, op: str, **attrs: object) -> list[Node]:
    return [n for n in body.nodes if n.op == op and all(n.attrs.get(k) == v for k, v in attrs.items())]


def online(candidate: KernelGraph) -> bool:
    return len(bodies(candidate)) == 1 and bool(nodes(bodies(candidate)[0], "accumulate", kind="rescaled"))


def split(candidate: KernelGraph) -> bool:
    found = bodies(candidate)
    return len(found) == 2 and any(v.name == "maximum" for v in found[1].inputs)


def first(found: list[KernelGraph], kind: Kind) -> KernelGraph:
    return next(c for c in found if kind(c))


# --- what is found ----------------------------------------------------------------------------------------


def test_attention_with_a_maximum_becomes_one_kernel_with_a_running_maximum():
    graph = safe_attention(32, 128, 1024, 64)
    best = candidates(graph)[0]
    (body,) = bodies(best)
    assert [n.op for n in best.nodes] == ["custom"]
    assert len(nodes(body, "iterator")) == 3  # Q, K and V once each
    assert len(nodes(body, "accumulate", kind="rescaled")) == 2
    (top,) = nodes(body, "running_max")
    assert all(n.operands[1] is top.result for n in nodes(body, "accumulate"))
    assert certify(graph, best).equivalent


def test_keys_are_split_with_the_maxima_of_the_parts_beside_them():
    graph = grouped_attention(4, 8, 4096, 64)
    best = candidates(graph)[0]
    partial, final = bodies(best)
    assert len(partial.savers) == 3
    (top,) = [v for v in final.inputs if v.name == "maximum"]
    assert top.dtype == "f32"  # rounded, it would not be the maximum that the parts were computed with
    assert certify(graph, best).equivalent


def fused(candidate: KernelGraph) -> bool:
    return len([n for n in candidate.nodes if n.op != "reshape"]) == len(bodies(candidate))


@pytest.mark.parametrize("build", [safe_attention, attention, grouped_attention])
@pytest.mark.parametrize("kind", [online, split])
def test_both_forms_are_equivalent_and_numerically_accepted(build: Callable[..., KernelGraph], kind: Kind):
    graph = build(keys=512)
    found = [c for c in candidates(graph, candidates=200, margin=100) if fused(c)]
    best = first(found, kind)
    assert certify(graph, best).equivalent
    report = gate(graph, lower(best))
    assert report.passed, report.summary


def test_without_maxima_the_fused_form_is_not_accepted():
    graph = attention(2, 16, 512, 64)
    best = candidates(graph, rescale=False)[0]
    (body,) = bodies(best)
    assert not nodes(body, "running_max")
    safe = safe_attention(2, 16, 512, 64, transposed=False)
    assert certify(safe, best).equivalent  # over the reals it is right
    assert not gate(safe, lower(best)).passed
    assert gate(safe, lower(candidates(graph)[0])).passed


@pytest.mark.parametrize("kind", [online, split])
def test_kernels_take_any_logits_and_masks(kind: Kind):
    pytest.importorskip("torch")
    from interpreter import interpret

    heads, rows, keys, d = 1, 16, 256, 32
    p = Program("masked")
    q, k, v = (p.input(heads, n, d, name=name) for n, name in ((rows, "q"), (keys, "k"), (keys, "v")))
    mask = p.input(rows, keys, name="mask")
    s = p("add", p("matmul", q, k, transpose_b=True), mask)
    e = p("exp", p("sub", s, p("reduce_max", s, dims=(2,), keepdims=True)))
    graph = p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(2,), keepdims=True)), v))
    best = first([c for c in candidates(graph, candidates=200, margin=100) if fused(c)], kind)

    rng = np.random.default_rng(3)
    qs, ks, vs = (rng.standard_normal((heads, n, d)).astype(np.float16) for n in (rows, keys, keys))
    hidden = np.zeros((rows, keys), np.float16)
    hidden[:, :128] = -math.inf  # whole tiles, from the first one on
    for scale in (1, 30, -30):
        inputs = [(qs * scale).astype(np.float16), ks, vs, hidden]
        logits = np.einsum("hqd,hkd->hqk", *(x.astype(np.float64) for x in inputs[:2])) + hidden
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        expected = weights / weights.sum(-1, keepdims=True) @ vs.astype(np.float64)
        (got,) = interpret(best, inputs)
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-2)


@pytest.mark.parametrize("kind", [online, split])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rows_that_the_least_number_hides_are_averaged(kind: Kind, dtype: str):
    pytest.importorskip("torch")
    from interpreter import interpret

    p = Program("hidden", dtype=dtype)
    scores, v = p.input(16, 256, name="scores"), p.input(256, 32, name="v")
    mask = p.input(16, 256, name="mask")
    s = p("add", scores, mask)
    e = p("exp", p("sub", s, p("reduce_max", s, dims=(1,), keepdims=True)))
    graph = p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(1,), keepdims=True)), v))
    best = first([c for c in candidates(graph, candidates=200, margin=100) if fused(c)], kind)
    assert gate(graph, lower(best)).passed

    least = {"f32": -3.4028234663852886e38, "bf16": -3.3895313892515355e38}[dtype]
    rng = np.random.default_rng(3)
    xs, vs = (rng.standard_normal(n).astype(np.float32) for n in ((16, 256), (256, 32)))
    hidden = np.zeros((16, 256), np.float32)
    hidden[3], hidden[5, :200] = least, least
    logits = (xs + hidden).astype(np.float64)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ vs.astype(np.float64)
    (got,) = interpret(best, [xs, vs, hidden])
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-2)


# --- when it may not be done ------------------------------------------------------------------------------


def relative(*outputs_of: str, unequal: bool = False, over_rows: bool = False) -> bool:
    """Whether an exponential of a program with these operators after it is made relative."""
    p = Program("degrees")
    x = p.input(16, 256, name="x")
    e = p("exp", p("sub", x, p("reduce_max", x, dims=(1,), keepdims=True)))
    if unequal:
        e = p("add", e, x)
    out: Value = p("reduce_sum", e, dims=(1,), keepdims=True)
    for op in outputs_of:
        out = p("div", e, out) if op == "div" else p(op, out)
    program = name_axes(p.graph(out))
    found = relative_exponentials(program)
    assert (found is program) == (not any(f.over for f in found.functions))
    return found is not program


def test_a_quotient_of_equal_degrees_does_not_depend_on_the_maximum():
    assert relative("div")


@pytest.mark.parametrize("after", [(), ("log",), ("sqrt",), ("square",)])
def test_an_output_or_a_function_of_another_degree_does(after: tuple[str, ...]):
    assert not relative(*after)


def test_so_does_a_sum_of_unequal_degrees():
    assert not relative("div", unequal=True)


def test_a_maximum_of_something_else_is_no_reference_point():
    p = Program("other")
    x, y = p.input(16, 256, name="x"), p.input(16, 256, name="y")
    e = p("exp", p("sub", x, p("reduce_max", y, dims=(1,), keepdims=True)))
    graph = p.graph(p("div", e, p("reduce_sum", e, dims=(1,), keepdims=True)))
    found = relative_exponentials(name_axes(graph))
    assert any(f.over for f in found.functions)
    # Its own maximum is put on top; the other one stays part of the logits.
    assert any(o.kind == "sub" and not o.aside for o in found.operations)
    assert all(certify(graph, c).equivalent for c in candidates(graph))


def test_two_softmaxes_in_one_program():
    p = Program("two")
    x, y = p.input(16, 256, name="x"), p.input(16, 256, name="y")

    def softmax(z: Value) -> Value:
        e = p("exp", p("sub", z, p("reduce_max", z, dims=(1,), keepdims=True)))
        return p("div", e, p("reduce_sum", e, dims=(1,), keepdims=True))

    graph = p.graph(p("reduce_sum", p("mul", softmax(x), softmax(y)), dims=(1,)))
    found = candidates(graph)
    assert found
    assert all(certify(graph, c).equivalent for c in found)


def test_the_program_itself_remains_a_way_to_do_it():
    """One custom kernel for another part, softmax by library operators."""
    p = Program("beside")
    x, w, v = p.input(16, 256, name="x"), p.input(256, 64, name="w"), p.input(16, 64, name="v")
    e = p("exp", p("sub", x, p("reduce_max", x, dims=(1,), keepdims=True)))
    s = p("div", e, p("reduce_sum", e, dims=(1,), keepdims=True))
    graph = p.graph(p("relu", p("add", p("matmul", s, w), v)))
    found = candidates(graph, max_custom=1, candidates=200)
    assert any("reduce_max" in [n.op for n in c.nodes] for c in found)
    assert all(certify(graph, c).equivalent for c in found[::10])
