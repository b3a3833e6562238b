"""Cutting the trips of block graphs: same numbers, and no cut where parts would not join."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from test_interpreter import Build, tensor

from superopt.diagnostics import Diagnostics
from superopt.operators import OPERATORS, Move, infer_type, normalize_attrs
from superopt.program import Attr, BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.spec import check_kernel
from superopt.transforms.lower.refine_loops import Dependence, RefineLoops, dependence, refine
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate

M, N, K, TRIPS = 4, 8, 512, 2
Make = Callable[[Build, Value, Value], Value]


def program(make: Make, *, loop: bool) -> KernelGraph:
    """One block over x (M x K) and w (K x N), cut along K where there is a loop; `make` gives what is saved."""
    x, w = tensor((M, K), "f32", "x"), tensor((K, N), "f32", "w")
    build, part = Build(), K // TRIPS if loop else K
    xt = build.tile(x, (M, part), (-1,), (1,) if loop else ())
    wt = build.tile(w, (part, N), (-1,), (0,) if loop else ())
    saved = make(build, xt, wt)
    build.save(saved, 0)
    graph = build.custom([x, w], (1,), (TRIPS,) if loop else (), saved.shape)
    check_kernel(graph)
    return graph


def block(graph: KernelGraph) -> BlockGraph:
    body = graph.nodes[0].body
    assert isinstance(body, BlockGraph)
    return body


def values(graph: KernelGraph) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    rng, domain = np.random.default_rng(1), FloatDomain()
    inputs = [domain.tensor(rng.standard_normal(v.shape)) for v in graph.inputs]
    return evaluate(graph, inputs, domain)[0].planes[0]


def rows(build: Build, op: str, x: Value) -> Value:
    return build(op, x, dims=(1,), keepdims=True)


def product_and_sum(build: Build, x: Value, w: Value) -> Value:
    product = build.accumulate(build("matmul", x, w))
    return build("mul", product, build.accumulate(rows(build, "reduce_sum", build("square", x))))


def product_and_max(build: Build, x: Value, w: Value) -> Value:
    product = build.accumulate(build("matmul", x, w))
    return build("mul", product, build.accumulate(rows(build, "reduce_max", x), kind="max"))


def online(build: Build, x: Value, w: Value) -> Value:
    highest = build.running_max(rows(build, "reduce_max", x))
    e = build("exp", build("sub", x, highest))
    total = build.accumulate(rows(build, "reduce_sum", e), highest, kind="rescaled")
    product = build.accumulate(build("matmul", e, w), highest, kind="rescaled")
    return build("div", product, total)


def without_loop(build: Build, x: Value, w: Value) -> Value:
    product = build("relu", build("matmul", x, w))
    return build("add", product, rows(build, "reduce_max", build("transpose", x, perm=(0, 1))))


@pytest.mark.parametrize("make", [product_and_sum, product_and_max, online, without_loop])
def test_cut_programs_compute_the_same(make: Make) -> None:
    loop = make is not without_loop
    graph = program(make, loop=loop)
    cut = KernelGraph(
        graph.name, graph.inputs, RefineLoops().apply(graph, Diagnostics()).nodes, graph.outputs
    )
    check_kernel(cut)
    assert block(cut).loops[-1] > (TRIPS if loop else 1)
    np.testing.assert_allclose(values(cut), values(graph), rtol=1e-12, atol=1e-12)


def squares_of_parts(build: Build, x: Value, w: Value) -> Value:
    """A sum over trips of what is no sum over points."""
    return build.accumulate(build("square", build("matmul", x, w)))


def tiles_added(build: Build, x: Value, w: Value) -> Value:
    """The tiles themselves are added: their extent would change."""
    total = build.accumulate(x)
    return build("add", build.accumulate(build("matmul", x, w)), rows(build, "reduce_max", total))


def means(build: Build, x: Value, w: Value) -> Value:
    """A mean knows how many points a trip has."""
    mean = build.accumulate(rows(build, "reduce_mean", x))
    return build("add", build.accumulate(build("matmul", x, w)), mean)


def sum_of_maxima(build: Build, x: Value, w: Value) -> Value:
    return build(
        "add", build.accumulate(build("matmul", x, w)), build.accumulate(rows(build, "reduce_max", x))
    )


def max_of_sums(build: Build, x: Value, w: Value) -> Value:
    total = build.accumulate(rows(build, "reduce_sum", x), kind="max")
    return build("add", build.accumulate(build("matmul", x, w)), total)


def seen_maximum(build: Build, x: Value, w: Value) -> Value:
    """What is added depends on the maximum so far, and is not rescaled."""
    e = build("exp", build("sub", x, build.running_max(rows(build, "reduce_max", x))))
    return build.accumulate(build("matmul", e, w))


def halved_maximum(build: Build, x: Value, w: Value) -> Value:
    """Rescaled by exp(-m), but a multiple of exp(-2 m)."""
    highest = build.running_max(rows(build, "reduce_max", x))
    twice = build("mul", build("sub", x, highest), build("constant", value=2.0, shape=(), dtype="f32"))
    return build.accumulate(build("matmul", build("exp", twice), w), highest, kind="rescaled")


def unscaled_part(build: Build, x: Value, w: Value) -> Value:
    """Rescaled, though it does not depend on the maximum."""
    highest = build.running_max(rows(build, "reduce_max", x))
    return build.accumulate(build("matmul", x, w), highest, kind="rescaled")


def counted_trips(build: Build, x: Value, w: Value) -> Value:
    """The trips themselves are counted."""
    one = build("mul", rows(build, "reduce_sum", x), build("constant", value=0.0, shape=(), dtype="f32"))
    some = build("add", one, build("constant", value=1.0, shape=(), dtype="f32"))
    return build("add", build.accumulate(build("matmul", x, w)), build.accumulate(some))


def normalised(build: Build, x: Value, w: Value) -> Value:
    return build("matmul", build("div", x, rows(build, "reduce_sum", x)), w)


def saved_tile(build: Build, x: Value, w: Value) -> Value:
    return build("add", x, build("reshape", rows(build, "reduce_sum", build("matmul", x, w)), shape=(M, 1)))


REFUSED = [squares_of_parts, tiles_added, means, sum_of_maxima, max_of_sums, seen_maximum, halved_maximum,
           unscaled_part, counted_trips, normalised, saved_tile]  # fmt: skip


@pytest.mark.parametrize("make", REFUSED)
def test_what_would_change_is_not_cut(make: Make) -> None:
    graph = program(make, loop=make not in (normalised, saved_tile))
    assert refine(block(graph)) is block(graph)


def test_a_loop_that_walks_another_axis_too_is_not_cut() -> None:
    """Its trips would no longer be those of the other axis."""
    x, w, v = tensor((M, K), "f32"), tensor((K, N), "f32"), tensor((TRIPS * N,), "f32")
    build = Build()
    xt, wt = build.tile(x, (M, K // TRIPS), (-1,), (1,)), build.tile(w, (K // TRIPS, N), (-1,), (0,))
    vt = build.tile(v, (N,), (-1,), (0,))
    build.save(build.accumulate(build("mul", build("matmul", xt, wt), vt)), 0)
    graph = build.custom([x, w, v], (1,), (TRIPS,), (M, N))
    check_kernel(graph)
    assert refine(block(graph)) is block(graph)


# --- how values depend on a running maximum ---------------------------------------------------------------------

DEPENDENCES: tuple[Dependence | None, ...] = (None, "max", "less", "scaled")


def at(m: float, kind: Dependence | None, x: float) -> float:
    """A number that depends on the maximum `m` in this way."""
    return {None: x, "max": m, "less": x - m, "scaled": x * math.exp(-m)}[kind]


def computed(node: Node, numbers: Sequence[float]) -> float:
    domain = FloatDomain()
    graph = KernelGraph("f", list(node.operands), [node], list(node.results))
    tensors = [domain.tensor(np.full(v.shape, x)) for v, x in zip(node.operands, numbers, strict=True)]
    return float(evaluate(graph, tensors, domain)[0].planes[0].reshape(-1)[0])


@pytest.mark.parametrize("name", [name for name, entry in OPERATORS.items() if "block" in entry.levels])
def test_a_dependence_on_a_maximum_is_what_evaluation_shows(name: str) -> None:
    """By the table's bodies, for every entry and every way in which its operands may depend on m."""
    entry, square = OPERATORS[name], TensorType((2, 2), "f32")
    attrs = {"dims": (1,), "low": -1.0, "high": 1.0, "exponent": 3.0, "dtype": "f32", "perm": (1, 0)}
    attrs |= {"shape": (4,) if entry.move is Move.RESHAPE else (2, 2), "dim": 0, "times": 2, "offset": 0}
    attrs |= {"offsets": (0, 0), "sizes": (1, 1), "strides": (1, 1), "value": 1.0, "fill": 0.0, "other": -1.5}
    given = normalize_attrs(entry, {a.name: attrs[a.name] for a in entry.attrs if a.name in attrs})
    operands = tuple(Value(square) for _ in range(2 if entry.arity is None else entry.arity))
    node = Node(name, operands, (Value(infer_type(name, [v.type for v in operands], given)),), given)
    for kinds in itertools.product(DEPENDENCES, repeat=len(operands)):
        becomes = dependence(node, kinds)
        if becomes == "other" or not any(kinds):
            continue
        low, high = (
            computed(node, [at(m, k, x) for k, x in zip(kinds, (0.7, 0.3), strict=False)]) for m in (1.0, 2.5)
        )
        expected = {"max": high, "less": low - 1.5, "scaled": low * math.exp(-1.5)}[becomes]
        assert high == pytest.approx(expected), (kinds, becomes)


@pytest.mark.parametrize(
    ("name", "kinds", "becomes"),
    [
        ("sub", (None, "max"), "less"),
        ("exp", ("less",), "scaled"),
        ("matmul", ("scaled", None), "scaled"),
        ("reduce_sum", ("scaled",), "scaled"),
        ("reduce_mean", ("scaled",), "other"),
        ("gelu", ("scaled",), "other"),
        ("silu", ("less",), "other"),
        ("square", ("scaled",), "other"),
        ("cast", ("scaled",), "scaled"),
    ],
)
def test_a_dependence_by_the_body(
    name: str, kinds: tuple[Dependence | None, ...], becomes: Dependence
) -> None:
    attrs: dict[str, Attr] = {"dims": (1,)} if OPERATORS[name].reduction else {}
    attrs |= {"dtype": "f32"} if name == "cast" else {}
    operands = tuple(Value(TensorType((2, 2), "f32")) for _ in kinds)
    result = Value(infer_type(name, [v.type for v in operands], attrs))
    assert dependence(Node(name, operands, (result,), attrs), kinds) == becomes
