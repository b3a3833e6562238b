"""The oracle of the attack against values computed by hand: it must not err with what it judges."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.operators import OPERATORS
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate

sys.path.insert(0, str(Path(__file__).parent.parent / "attack"))
oracle: Any = importlib.import_module("oracle")
evaluator: Any = importlib.import_module("evaluator")
pairs: Any = importlib.import_module("pairs")


def program(body: Any, *shapes: tuple[int, ...]) -> KernelGraph:
    inputs, nodes = [Value(TensorType(s, "f32")) for s in shapes], list[Node]()
    return KernelGraph("f", inputs, nodes, [body(*(pairs.T(nodes, v) for v in inputs)).value])


X = ((2, 2), (2, 2))
INF = math.inf


Body = Callable[[Any, Any], Any]
CASES: list[tuple[Body, Body, str]] = [
    (lambda x, y: x + y, lambda x, y: y + x, "equal"),
    (lambda x, y: x @ y, lambda x, y: y @ x, "different"),
    (lambda x, y: x + y * 2.0**-900, lambda x, y: x * 1.0, "different"),
    (lambda x, y: (x + y * 2.0**-90).exp(), lambda x, y: x.exp(), "different"),
    (lambda x, y: x / y * y, lambda x, y: x * 1.0, "equal"),
    (lambda x, y: x / (y - y), lambda x, y: (x + y) / (y - y), "undefined"),
    (lambda x, y: x.f("square").f("sqrt"), lambda x, y: x * 1.0, "different"),
    (lambda x, y: x.f("square").f("sqrt"), lambda x, y: x.top(-x), "equal"),
    (lambda x, y: x + y.f("sqrt") - y.f("sqrt"), lambda x, y: x * 1.0, "domains"),
    (lambda x, y: x.const(-INF) * 0.0 + x, lambda x, y: x.const(-INF) * 0.0 + y, "undefined"),
    (lambda x, y: (x - INF).exp() + y, lambda x, y: y * 1.0, "equal"),
    (lambda x, y: (x - INF).f("sigmoid") + y, lambda x, y: y * 1.0, "equal"),
    (lambda x, y: (x - INF).f("silu") + y, lambda x, y: y * 1.0, "undecided"),
    (lambda x, y: x.softmax(1), lambda x, y: x.softmax(1, stable=True), "equal"),
    (lambda x, y: x.over("mean", 1) * y, lambda x, y: x.sum(1) * y * 0.5, "equal"),
    (lambda x, y: x.cut(1, 0, 1), lambda x, y: x.cut(1, 1, 1), "different"),
    (lambda x, y: x.extern("g", y), lambda x, y: x.extern("g", x), "different"),
    (lambda x, y: x.extern("g", y + x), lambda x, y: x.extern("g", x + y), "equal"),
]


@pytest.mark.parametrize(("first", "second", "answer"), CASES)
def test_answers(first: Any, second: Any, answer: str) -> None:
    for claim in ("equal", "near"):
        found = oracle.decide(program(first, *X), program(second, *X), claim, 5, careful=True).answer
        assert found == answer or (claim == "near" and answer == "equal" and found == "undecided")


def test_every_operator_against_numpy() -> None:
    """In fp64 and in 60 digits alike."""
    attrs: dict[str, dict[str, Any]] = {
        "clamp": {"low": -1.0, "high": 0.5}, "pow": {"exponent": 1.5}, "cast": {"dtype": "f16"},
        "select": {"other": -1.5},
        "broadcast": {"shape": (3, 2, 2)}, "transpose": {"perm": (1, 0)}, "reshape": {"shape": (4,)},
        "slice": {"offsets": (0, 1), "sizes": (2, 1), "strides": (1, 1)}, "repeat": {"dim": 0, "times": 2},
        "concat": {"dim": 1}, "update_slice": {"dim": 0, "offset": 0},
        "constant": {"value": 2.0, "shape": (2, 2), "dtype": "f32"},
    }  # fmt: skip
    numbers = [np.array([[0.5, 1.25], [2.0, 0.75]]), np.array([[1.5, 0.25], [0.5, 3.0]])]
    for name, entry in OPERATORS.items():
        if entry.windowed or "kernel" not in entry.levels:  # the attack's programs lack windows and masks
            continue
        given = attrs.get(name, {"dims": (0,)} if name.startswith("reduce_") else {})
        arity = 2 if entry.arity is None else entry.arity

        def body(x: Any, y: Any, name: str = name, given: dict[str, Any] = given, arity: int = arity) -> Any:
            if arity == 0:
                return x.const(2.0, 2, 2)
            return x.f(name, *([y] if arity == 2 else []), **given)

        graph, domain = program(body, *X), FloatDomain()
        (expected,) = evaluate(graph, [domain.tensor(v) for v in numbers], domain)
        for kind in ("float", "high"):
            n = evaluator.Numbers(kind)
            (found,) = evaluator.evaluate(graph, [n.array(v, v.shape) for v in numbers], n)
            np.testing.assert_allclose(
                np.asarray(found, np.float64), expected.planes[0], rtol=1e-12, err_msg=name
            )
