"""Large programs with max and min: one random order tells little, sets of leaves must have agreed before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from certify_support import nothing_shrinks, program
from random_programs import Builder, value

from superopt.program import BlockGraph, KernelGraph, Node, Value
from superopt.transforms.lower import lower
from superopt.verify import certifier as certifier_module
from superopt.verify import certify, one_point
from superopt.verify.evaluate import evaluate
from superopt.verify.fields import ImageField
from superopt.verify.infinities import Extended
from superopt.verify.maxima import takes_maxima

ROWS = [(4, 4096), (4, 1)]
Body = Callable[[Builder, Value, Value], Value]


def row_maximum(f: Builder, x: Value, y: Value) -> Value:
    return f("mul", f("reduce_max", x, dims=(1,), keepdims=True), y)


def in_halves(f: Builder, x: Value, y: Value) -> Value:
    halves = [f("slice", x, offsets=(0, at), sizes=(4, 2048), strides=(1, 1)) for at in (0, 2048)]
    tops = [f("reduce_max", half, dims=(1,), keepdims=True) for half in halves]
    return f("mul", f("max", *tops), y)


def not_below_zero(f: Builder, x: Value, y: Value) -> Value:
    return f("mul", f("relu", f("reduce_max", x, dims=(1,), keepdims=True)), y)


def without_the_first(f: Builder, x: Value, y: Value) -> Value:
    rest = f("slice", x, offsets=(0, 1), sizes=(4, 4095), strides=(1, 1))
    return f("mul", f("reduce_max", rest, dims=(1,), keepdims=True), y)


@pytest.fixture(autouse=True)
def many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many that max and min are compared by a random order at full extents."""
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    monkeypatch.setattr(one_point, "LATTICE_WORK", 0)


@pytest.mark.parametrize("reducible", [True, False])
@pytest.mark.parametrize("wrong", [not_below_zero, without_the_first])
def test_an_element_more_or_less_is_seen(
    wrong: Body, reducible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an order it would be in one test of 4096."""
    if not reducible:
        nothing_shrinks(monkeypatch)
    assert not certify(program(ROWS, row_maximum), program(ROWS, wrong)).equivalent
    assert certify(program(ROWS, row_maximum), program(ROWS, in_halves)).equivalent


def test_sets_are_compared_where_exponentials_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """At reduced extents, then by images of the exponentials."""

    def too_many(*_: object, **__: object) -> None:
        raise OverflowError

    def exponentials(body: Body) -> Body:
        return lambda f, x, y: f("exp", body(f, x, y))

    monkeypatch.setattr(one_point, "FormalField", too_many)
    first = program(ROWS, exponentials(row_maximum))
    assert certify(first, program(ROWS, exponentials(in_halves))).equivalent
    assert not certify(first, program(ROWS, exponentials(not_below_zero))).equivalent


WITHOUT: dict[str, Body] = {
    "gelu": lambda f, x, y: f("gelu", f("mul", x, y)),
    "sums": lambda f, x, y: f("reduce_mean", f("exp", f("sub", x, y)), dims=(1,)),
    "product": lambda f, x, y: f("matmul", f("transpose", x, perm=(1, 0)), f("sqrt", y)),
    "select": lambda f, x, y: f("select", x, y, other=2.0),
    "one": lambda f, x, y: f("mul", x, y),
}
WITH: dict[str, Body] = {
    "rows": row_maximum,
    "least": lambda f, x, y: f("mul", f("reduce_min", x, dims=(0,), keepdims=True), y),
    "relu": lambda f, x, y: f("relu", f("mul", x, y)),
    "clamp": lambda f, x, y: f("mul", f("clamp", x, low=-1.0, high=1.0), y),
    "two": lambda f, x, y: f("min", x, y),
}


@pytest.mark.parametrize("name", [*WITHOUT, *WITH])
def test_what_takes_maxima_says_is_what_an_evaluation_takes(name: str) -> None:
    """Else an order could pick, where nobody asked whether the programs agree by sets."""
    graph = program(ROWS, {**WITHOUT, **WITH}[name])
    for written in (graph, lower(graph)):
        field = ImageField(0, lattice="order")
        evaluate(written, [field.random(i, v.shape) for i, v in enumerate(graph.inputs)], Extended(field))
        taken = bool(field.assumed & {"max", "min"})
        assert taken is field.imaged or field.exponentials
        assert takes_maxima(written) is taken is (name in WITH)


def test_accumulated_maxima_are_maxima() -> None:
    x = value(8, 4)
    for node, taken in (
        (Node("accumulate", (x,), (value(8, 4),), {"kind": "sum", "loop": 0}), False),
        (Node("accumulate", (x,), (value(8, 4),), {"kind": "max", "loop": 0}), True),
        (Node("accumulate", (x, x), (value(8, 4),), {"kind": "rescaled", "loop": 0}), True),
        (Node("running_max", (x,), (value(8, 4),), {"loop": 0}), True),
    ):
        body = BlockGraph((1,), (2,), [x], [node])
        graph = KernelGraph("main", [x], [Node("custom", (x,), (value(8, 4),), {}, body=body)], [])
        assert takes_maxima(graph) is taken


@pytest.mark.parametrize("name", [*WITHOUT, *WITH])
def test_programs_without_maxima_are_not_compared_by_sets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At reduced extents; their certificates, and the bound in them, are what they are with that comparison."""
    nothing_shrinks(monkeypatch)
    monkeypatch.setattr(certifier_module, "LATTICE_WORK", 0)
    question, asked = certifier_module._Question, list[bool]()  # pyright: ignore[reportPrivateUsage]
    kept = question._agreed_when_reduced  # pyright: ignore[reportPrivateUsage]

    def counted(self: Any) -> Any:
        asked.append(True)
        return kept(self)

    monkeypatch.setattr(question, "_agreed_when_reduced", counted)
    graph = program(ROWS, {**WITHOUT, **WITH}[name])
    lowered = lower(graph)
    verdict = certify(graph, lowered)
    assert bool(asked) is (name in WITH)
    if len(graph.nodes) == 1:  # which has no pieces, however large it is
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(certifier_module, "BLOCKS_WORK", 0)
            assert certify(graph, lowered).equivalent
        assert bool(asked) is (name in WITH)
    monkeypatch.setattr(certifier_module, "takes_maxima", lambda _: True)  # pyright: ignore
    assert certify(graph, lowered) == verdict
