"""Maxima for exponentials that are normalized: where they are subtracted, where not, and that nothing changes."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from superopt.cost import target
from superopt.numerics import gate
from superopt.operators import OPERATORS, infer_type, normalize_attrs
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.spec import check_kernel
from superopt.transforms.lower import lower
from superopt.transforms.stabilize_softmax import maxima_only_shift, stabilized
from superopt.transforms.tile_saturation.search import propose
from superopt.verify import certify, certify_lowered
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.trinity.programs import Config, build, names

TINY = Config(hidden=128, heads=2, ffn=256, groups=1, tokens=16, prefix=112)
GROUPED = Config(hidden=256, heads=4, ffn=256, groups=2, tokens=16, prefix=112)


class Program:
    """A graph under construction; calling it adds an operator of the table."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        inputs = [Value(TensorType(s, "f32"), f"x{i}") for i, s in enumerate(shapes)]
        self.graph = KernelGraph("program", inputs, [], [])

    def __call__(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        values = normalize_attrs(OPERATORS[op], attrs)
        result = Value(infer_type(op, [v.type for v in operands], values))
        self.graph.nodes.append(Node(op, operands, (result,), values))
        return result

    def returning(self, *outputs: Value) -> KernelGraph:
        self.graph.outputs = list(outputs)
        check_kernel(self.graph, 1 << 20)
        return self.graph


def values(graph: KernelGraph, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    domain = FloatDomain(faithful=False)
    tensors = [domain.tensor(scale * rng.standard_normal(v.shape), v.dtype) for v in graph.inputs]
    return [t.planes[0] for t in evaluate(graph, tensors, domain)]


def total(p: Program, e: Value, *dims: int) -> Value:
    return p("reduce_sum", e, dims=dims, keepdims=True)


def softmax(p: Program, x: Value, e: Value) -> list[Value]:
    return [p("div", e, total(p, e, 1))]


def product_first(p: Program, x: Value, e: Value) -> list[Value]:
    sums = p("reshape", p("reduce_sum", e, dims=(1,)), shape=(4, 1))
    return [p("div", p("matmul", e, x), sums)]


def by_reciprocal(p: Program, x: Value, e: Value) -> list[Value]:
    return [p("mul", p("reciprocal", total(p, e, 1)), e)]


def squared(p: Program, x: Value, e: Value) -> list[Value]:
    return [p("div", p("square", e), p("square", total(p, e, 1)))]


def columns(p: Program, x: Value, e: Value) -> list[Value]:
    turned = p("transpose", e, perm=(1, 0))
    return [p("div", turned, total(p, turned, 1))]


def everything(p: Program, x: Value, e: Value) -> list[Value]:
    return [p("div", e, total(p, e, 0, 1))]


def rows_then_all(p: Program, x: Value, e: Value) -> list[Value]:
    return [p("div", p("reduce_mean", e, dims=(1,), keepdims=True), total(p, e, 0, 1))]


TAKEN = [
    (softmax, (1,)), (product_first, (1,)), (by_reciprocal, (1,)), (squared, (1,)), (columns, (0,)),
    (everything, (0, 1)), (rows_then_all, (0, 1)),
]  # fmt: skip
Body = Callable[[Program, Value, Value], list[Value]]


@pytest.mark.parametrize(("body", "dims"), TAKEN, ids=lambda v: getattr(v, "__name__", ""))
def test_normalized_exponentials_get_a_maximum(body: Body, dims: tuple[int, ...]) -> None:
    p = Program((4, 4))
    (x,) = p.graph.inputs
    graph = p.returning(*body(p, x, p("exp", x)))
    stable = stabilized(graph)
    assert [n.attrs["dims"] for n in stable.nodes if n.op == "reduce_max"] == [dims]
    check_kernel(stable, 1 << 20)
    for a, b in zip(values(graph), values(stable), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert all(np.isfinite(v).all() for v in values(stable, 1e4))
    assert certify(graph, stable).equivalent
    assert stabilized(stable) is stable


def returned(p: Program, x: Value, e: Value) -> list[Value]:
    return [p("div", e, total(p, e, 1)), e]


def shifted_sum(p: Program, x: Value, e: Value) -> list[Value]:
    return [p("div", e, p("add", total(p, e, 1), p("constant", value=1.0, shape=(), dtype="f32")))]


def twice_over(p: Program, x: Value, e: Value) -> list[Value]:
    return [p("div", e, p("square", total(p, e, 1)))]


def of_another_row(p: Program, x: Value, e: Value) -> list[Value]:
    return [p("div", e, p("transpose", total(p, e, 1), perm=(1, 0)))]


def turned_sum(p: Program, x: Value, e: Value) -> list[Value]:
    both = p("add", e, p("transpose", e, perm=(1, 0)))
    return [p("div", both, total(p, both, 1))]


def of_a_slice(p: Program, x: Value, e: Value) -> list[Value]:
    low, high = (p("slice", e, offsets=(o, 0), sizes=(2, 4), strides=(1, 1)) for o in (0, 2))
    return [p("div", low, total(p, high, 1))]


def of_merged_rows(p: Program, x: Value, e: Value) -> list[Value]:
    sums = p("reshape", total(p, e, 1), shape=(2, 2))
    other = p("reshape", p("transpose", sums, perm=(1, 0)), shape=(4, 1))
    return [p("div", e, other)]


def through_a_maximum(p: Program, x: Value, e: Value) -> list[Value]:
    one = p("constant", value=1.0, shape=(), dtype="f32")
    return [p("div", p("max", e, one), total(p, e, 1))]


def never_summed(p: Program, x: Value, e: Value) -> list[Value]:
    return [p("div", e, e)]


REFUSED = [
    returned, shifted_sum, twice_over, of_another_row, turned_sum, of_a_slice, of_merged_rows,
    through_a_maximum, never_summed,
]  # fmt: skip


@pytest.mark.parametrize("body", REFUSED, ids=lambda v: v.__name__)
def test_others_are_left_alone(body: Body) -> None:
    p = Program((4, 4))
    (x,) = p.graph.inputs
    graph = p.returning(*body(p, x, p("exp", x)))
    assert stabilized(graph) is graph


def test_random_programs_keep_their_values() -> None:
    """Sums, products and quotients of exponentials in any order: whatever gets a maximum computes the same."""
    rng = random.Random(0)
    changed = 0
    for _ in range(2000):
        p = Program((3, 3), (3, 3))
        pool = [*p.graph.inputs, p("exp", p.graph.inputs[0])]
        for _ in range(rng.randint(2, 6)):
            a, b = rng.choice(pool), rng.choice(pool[1:])
            kind = rng.choice(("div", "mul", "add", "sum", "sum", "turn", "matmul", "flat"))
            if kind == "sum":
                pool.append(total(p, a, *rng.choice(((0,), (1,), (0, 1)))))
            elif kind == "turn":
                pool.append(p("transpose", a, perm=(1, 0)))
            elif kind == "flat":
                pool.append(p("reshape", a, shape=a.shape[::-1]))
            elif kind == "matmul":
                if a.shape[1] == b.shape[0]:
                    pool.append(p("matmul", a, b))
            else:
                pool.append(p(kind, a, b))
        graph = p.returning(pool[-1])
        stable = stabilized(graph)
        if stable is graph:
            continue
        changed += 1
        with np.errstate(all="ignore"):
            (a,), (b,) = values(graph), values(stable)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    assert changed > 100


def test_the_programs_without_maxima_become_those_with() -> None:
    for name in names():
        graph = build(name, GROUPED if "gqa" in name else TINY)
        expected = (
            0 if "safe" in name or name in ("swiglu_ffn", "layer") else 1 + name.startswith("keyformer")
        )
        stable = stabilized(graph)
        assert len(stable.nodes) - len(graph.nodes) == 2 * expected


def test_saturation_delivers_normalized_keys_in_one_kernel() -> None:
    """Without a maximum the kernel's logits, exact where f16 overflowed, overflow in turn."""
    graph = build("qk_norm", TINY)
    found = propose(graph, target("sm_90"), budget=300)
    passed: list[KernelGraph] = []
    for candidate in (p.graph for p in found.by_kernels[1]):
        lowered = lower(candidate)
        verdict, kept = certify_lowered(graph, candidate, lowered)
        assert verdict.equivalent
        assert kept.equivalent
        if gate(graph, lowered).passed:
            passed.append(candidate)
    assert passed


def attention(*, use: str = "", aligned: bool = True) -> KernelGraph:
    """softmax(q k' + mask) v with its maximum, which is something else's operand, too, for some `use`."""
    p = Program((16, 32), (16, 32) if not aligned else (256, 32), (256 if aligned else 16, 32))
    q, k, v = p.graph.inputs
    s = p("matmul", q, k, transpose_b=True)
    m = p("reduce_max", s, dims=(1,), keepdims=aligned)
    e = p("exp", p("sub", s, m))
    out = p("matmul", p("div", e, total(p, e, 1)), v)
    if use == "output":
        return p.returning(out, m)
    if use == "factor":
        out = p("mul", out, m)
    if use == "not normalized":
        out = p("matmul", e, v)
    if use == "logarithm":
        out = p("add", p("log", total(p, e, 1)), m)
    return p.returning(out)


def test_maxima_that_only_shift_are_told_from_others():
    assert maxima_only_shift(attention())
    for use in ("output", "factor", "not normalized", "logarithm"):
        assert not maxima_only_shift(attention(use=use))
    assert not maxima_only_shift(attention(aligned=False))  # subtracted along the columns


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_fused_kernels_take_tiles_and_rows_that_are_hidden(dtype: str):
    """A tile of minus infinity, the first one; and of f32 a row of the least number, as masks of padding have it."""
    pytest.importorskip("torch")
    from interpreter import interpret
    from search_programs import Program as Graph

    p = Graph("masked", dtype=dtype)
    q, k, v, mask = (
        p.input(*shape, name=name)
        for shape, name in (((16, 32), "q"), ((256, 32), "k"), ((256, 32), "v"), ((16, 256), "mask"))
    )
    s = p("add", p("matmul", q, k, transpose_b=True), mask)
    e = p("exp", p("sub", s, p("reduce_max", s, dims=(1,), keepdims=True)))
    graph = p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(1,), keepdims=True)), v))

    rng = np.random.default_rng(3)
    qs, ks, vs = (rng.standard_normal(v.shape).astype(np.float16) for v in graph.inputs[:3])
    hidden = np.zeros((16, 256), np.float32)
    hidden[:, :128] = -math.inf
    if dtype == "f32":
        hidden[3] = -3.4028234663852886e38
    logits = ((qs.astype(np.float64) @ ks.astype(np.float64).T).astype(np.float32) + hidden).astype(
        np.float64
    )
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ vs.astype(np.float64)
    found = propose(graph, target("sm_90"), budget=120).graphs
    assert found
    for candidate in found:
        (got,) = interpret(candidate, [qs, ks, vs, hidden])
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-2)
