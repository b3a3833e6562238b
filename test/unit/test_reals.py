"""Identities of real numbers beyond a field's axioms, near misses, and what a candidate may leave undefined.

Each pair is compared formally at full extents, at reduced ones, and at elements by the independent checker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from certify_support import program
from random_programs import Builder

from superopt.program import KernelGraph, Value
from superopt.verify import certifier as certifier_module
from superopt.verify import certify, one_point
from superopt.verify.checker import compare
from superopt.verify.degrees import Degree, Sign
from superopt.verify.domains import Tensor
from superopt.verify.hashing import canonical_text
from superopt.verify.reals import Conditions, Reals

SHAPES = [(3, 4), (3, 4)]
Build = Callable[[Builder, Value, Value], Value]


def norm2(f: Builder, x: Value, y: Value) -> Value:
    """A sum of squares."""
    return f("add", f("mul", x, x), f("square", y))


def positive(f: Builder, x: Value) -> Value:
    return f("add", f("square", x), f.constant(0.5))


def kept(f: Builder, x: Value) -> Value:
    """The number by another operator, so that texts differ."""
    return f("mul", x, f.constant(1.0))


def cancelled(f: Builder, x: Value, extra: Value) -> Value:
    return f("sub", f("add", x, extra), extra)


def over_itself(f: Builder, x: Value, by: Value) -> Value:
    return f("div", f("mul", x, by), by)


def circle(f: Builder, x: Value) -> Value:
    """Zero, which a field does not know."""
    squares = f("add", f("square", f("sin", x)), f("square", f("cos", x)))
    return f("sub", squares, f.constant(1.0))


def log_sum(f: Builder, x: Value) -> Value:
    return f("log", f("reduce_sum", f("exp", x), dims=(1,), keepdims=True))


def shifted_log_sum(f: Builder, x: Value, back: str = "add") -> Value:
    top = f("reduce_max", x, dims=(1,), keepdims=True)
    return f(back, log_sum(f, f("sub", x, top)), top)


EQUAL: dict[str, tuple[Build, Build]] = {
    "square of root": (
        lambda f, x, y: f("square", f("sqrt", norm2(f, x, y))),
        lambda f, x, y: norm2(f, x, y),
    ),
    "square of reciprocal root": (
        lambda f, x, y: f("square", f("rsqrt", positive(f, x))),
        lambda f, x, y: f("reciprocal", positive(f, x)),
    ),
    "square of a normed number, summed": (
        lambda f, x, y: f("reduce_sum", f("square", f("mul", y, f("rsqrt", positive(f, x)))), dims=(1,)),
        lambda f, x, y: f("reduce_sum", f("div", f("square", y), positive(f, x)), dims=(1,)),
    ),
    "root of square": (
        lambda f, x, y: f("sqrt", f("square", x)),
        lambda f, x, y: f("max", x, f("neg", x)),
    ),
    "square of the absolute value": (
        lambda f, x, y: f("square", f("max", x, f("neg", x))),
        lambda f, x, y: f("mul", x, x),
    ),
    "maximum of exponentials": (
        lambda f, x, y: f("max", f("exp", x), f("exp", y)),
        lambda f, x, y: f("exp", f("max", x, y)),
    ),
    "minimum of exponentials": (
        lambda f, x, y: f("min", f("exp", x), f("exp", y)),
        lambda f, x, y: f("exp", f("min", y, x)),
    ),
    "maximum of a row of exponentials": (
        lambda f, x, y: f("reduce_max", f("exp", x), dims=(1,)),
        lambda f, x, y: f("exp", f("reduce_max", x, dims=(1,))),
    ),
    "maximum of roots": (
        lambda f, x, y: f("max", f("sqrt", positive(f, x)), f("sqrt", positive(f, y))),
        lambda f, x, y: f("sqrt", f("max", positive(f, y), positive(f, x))),
    ),
    "relu of a square": (lambda f, x, y: f("relu", f("square", x)), lambda f, x, y: f("mul", x, x)),
    "relu of an exponential": (lambda f, x, y: f("relu", f("exp", x)), lambda f, x, y: kept(f, f("exp", x))),
    "minimum of a square and 0": (
        lambda f, x, y: f("add", f("min", f("square", x), f.constant(0.0)), y),
        lambda f, x, y: kept(f, y),
    ),
    "logarithm of an exponential": (lambda f, x, y: f("log", f("exp", x)), lambda f, x, y: kept(f, x)),
    "logarithm of a sum, shifted": (lambda f, x, y: log_sum(f, x), lambda f, x, y: shifted_log_sum(f, x)),
    "logarithm of a sum, not shifted": (lambda f, x, y: shifted_log_sum(f, x), lambda f, x, y: log_sum(f, x)),
    "what a program may leave out": (
        lambda f, x, y: cancelled(f, x, f("sqrt", y)),
        lambda f, x, y: kept(f, x),
    ),
    "a root that is always defined": (
        lambda f, x, y: kept(f, x),
        lambda f, x, y: cancelled(f, x, f("sqrt", norm2(f, x, y))),
    ),
    "a quotient that is always defined": (
        lambda f, x, y: kept(f, x),
        lambda f, x, y: over_itself(f, x, f("add", f("exp", y), f.constant(1.0))),
    ),
    "product of norms": (
        lambda f, x, y: f("mul", f("div", x, f("sqrt", norm2(f, x, y))), f("div", y, f("sqrt", f("square", f("add", x, y))))),
        lambda f, x, y: f("div", f("mul", x, y), f("mul", f("sqrt", f("square", f("add", x, y))), f("sqrt", norm2(f, x, y)))),
    ),
}  # fmt: skip

# A program, and a candidate that is wrong or, under "defined less often", equal where it is defined.
DIFFERENT: dict[str, tuple[Build, Build]] = {
    "square of root, any sign": (lambda f, x, y: kept(f, x), lambda f, x, y: f("square", f("sqrt", x))),
    "square of root of a difference": (
        lambda f, x, y: f("sub", f("square", x), f("square", y)),
        lambda f, x, y: f("square", f("sqrt", f("sub", f("square", x), f("square", y)))),
    ),
    "square of reciprocal root, any sign": (
        lambda f, x, y: f("reciprocal", x),
        lambda f, x, y: f("square", f("rsqrt", x)),
    ),
    "square of another root": (
        lambda f, x, y: f("square", f("sqrt", norm2(f, x, y))),
        lambda f, x, y: f("add", norm2(f, x, y), f.constant(1.0)),
    ),
    "root of square is no number": (lambda f, x, y: f("sqrt", f("square", x)), lambda f, x, y: kept(f, x)),
    "root of square is no minimum": (
        lambda f, x, y: f("sqrt", f("square", x)),
        lambda f, x, y: f("min", x, f("neg", x)),
    ),
    "square of a maximum": (lambda f, x, y: f("square", f("max", x, y)), lambda f, x, y: f("mul", x, x)),
    "maximum of squares": (
        lambda f, x, y: f("max", f("square", x), f("square", y)),
        lambda f, x, y: f("square", f("max", x, y)),
    ),
    "maximum of sines": (
        lambda f, x, y: f("max", f("sin", x), f("sin", y)),
        lambda f, x, y: f("sin", f("max", x, y)),
    ),
    "maximum of falling exponentials": (
        lambda f, x, y: f("max", f("exp", f("neg", x)), f("exp", f("neg", y))),
        lambda f, x, y: f("exp", f("neg", f("max", x, y))),
    ),
    "maximum for minimum of exponentials": (
        lambda f, x, y: f("max", f("exp", x), f("exp", y)),
        lambda f, x, y: f("exp", f("min", x, y)),
    ),
    "relu of a number": (lambda f, x, y: f("relu", x), lambda f, x, y: kept(f, x)),
    "relu of a difference of squares": (
        lambda f, x, y: f("relu", f("sub", f("square", x), f("square", y))),
        lambda f, x, y: f("sub", f("square", x), f("mul", y, y)),
    ),
    "relu of a product": (lambda f, x, y: f("relu", f("mul", x, y)), lambda f, x, y: f("mul", y, x)),
    "maximum of a square and a number": (
        lambda f, x, y: f("max", f("square", x), y),
        lambda f, x, y: f("mul", x, x),
    ),
    "logarithm of a multiple": (
        lambda f, x, y: f("log", f("mul", f("exp", x), f.constant(2.0))),
        lambda f, x, y: kept(f, x),
    ),
    "logarithm of a sum, moved on": (
        lambda f, x, y: shifted_log_sum(f, x, "sub"),
        lambda f, x, y: log_sum(f, x),
    ),
    "defined less often: root": (
        lambda f, x, y: kept(f, x),
        lambda f, x, y: cancelled(f, x, f("sqrt", y)),
    ),
    "defined less often: logarithm": (
        lambda f, x, y: kept(f, x),
        lambda f, x, y: cancelled(f, x, f("log", y)),
    ),
    "defined less often: logarithm of a relu": (
        lambda f, x, y: kept(f, f("add", f("sqrt", f("relu", y)), x)),
        lambda f, x, y: f("add", x, cancelled(f, f("sqrt", f("relu", y)), f("log", f("relu", y)))),
    ),
    "defined less often: another root": (
        lambda f, x, y: cancelled(f, x, f("sqrt", x)),
        lambda f, x, y: cancelled(f, x, f("sqrt", y)),
    ),
    "defined less often: quotient by a relu": (
        lambda f, x, y: kept(f, x),
        lambda f, x, y: over_itself(f, x, f("relu", y)),
    ),
    "defined less often: quotient by a relu and 0": (
        lambda f, x, y: kept(f, x),
        lambda f, x, y: over_itself(f, x, f("add", f("relu", y), f.constant(0.0))),
    ),
    "defined less often: quotient by a relu and the square of 0": (
        lambda f, x, y: kept(f, x),
        lambda f, x, y: over_itself(f, x, f("add", f("square", f("sub", x, x)), f("relu", y))),
    ),
    "defined less often: quotient by 0 in disguise": (
        lambda f, x, y: kept(f, x),
        lambda f, x, y: over_itself(f, x, circle(f, y)),
    ),
    "defined less often: a root that nothing needs": (
        lambda f, x, y: (f("sqrt", y), kept(f, x))[1],
        lambda f, x, y: cancelled(f, x, f("sqrt", y)),
    ),
}  # fmt: skip


def made(build: Build) -> KernelGraph:
    return program(SHAPES, build)


def accepted(first: KernelGraph, second: KernelGraph) -> bool:
    return certify(first, second).equivalent


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", EQUAL)
def test_equal(name: str, reduced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = map(made, EQUAL[name])
    assert canonical_text(first) != canonical_text(second)
    if reduced:
        monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    verdict = certify(first, second)
    assert verdict.certificate, verdict.counterexample
    assert verdict.certificate.delta is not None
    found = compare(canonical_text(first), canonical_text(second), elements=3)
    assert found.different is None
    assert found.elements > 0


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", DIFFERENT)
def test_near_misses(name: str, reduced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = map(made, DIFFERENT[name])
    if reduced:
        monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    assert not accepted(first, second)
    if name.startswith("defined less often"):
        verdict = certify(first, second)
        assert verdict.counterexample
        assert "the second program" in verdict.counterexample.reason
    found = compare(canonical_text(first), canonical_text(second), elements=3)
    assert found.different is not None


def fell(names: list[str]) -> set[str]:
    return {name for name in names if accepted(*map(made, DIFFERENT[name]))}


def test_weaker_signs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were every sign taken for known, roots of anything would have squares."""
    monkeypatch.setattr(Degree, "sign", property(lambda self: Sign(2, True)))
    assert len(fell(["square of root, any sign", "relu of a number", "defined less often: root"])) == 3


def test_weaker_conditions_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [n for n in DIFFERENT if n.startswith("defined less often")]
    assert not fell(names)

    def nothing(self: Conditions, other: Conditions, labels: Any) -> None:
        return None

    monkeypatch.setattr(Conditions, "beyond", nothing)
    assert fell(names) == set(names)


def test_functions_that_do_not_grow_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Reals.function

    def any_function(self: Any, name: str, x: Any, result: Any) -> None:
        if name == "sin":
            self._functions.setdefault("sin", type(self._functions["exp"])(self._labels)).add(result, x)
        real(self, name, x, result)

    monkeypatch.setattr(Reals, "function", any_function)
    assert fell(["maximum of sines"])


def test_values_that_a_piece_begins_with_may_vanish() -> None:
    """x v / v for x, where v is a value that both programs share: it may be zero on an open set."""
    point = (0, 0, 0)
    first = made(lambda f, x, v: kept(f, x))
    second = made(lambda f, x, v: f("div", f("mul", x, v), v))
    for piece in (False, True):
        (outcome,) = one_point.at_point(
            first, [second], "formal", "full", point, "free", certifier_module.drawn("a", "b"), piece
        )
        assert (outcome.failure is not None) == piece


def test_conditions_are_compared_as_sets_in_whatever_order_and_tensors_they_come() -> None:
    """Against Python's sets; equal tensors, which are left out unsorted, do not hide what others need."""
    rng = np.random.default_rng(7)

    def labels(x: Tensor) -> np.ndarray[Any, Any]:
        return x.planes[0]

    def drawn() -> tuple[Conditions, list[tuple[np.ndarray[Any, Any], bool]]]:
        made: list[tuple[np.ndarray[Any, Any], bool]] = []
        conditions = Conditions()
        for _ in range(int(rng.integers(0, 4))):
            made.append(
                (rng.integers(0, 9, int(rng.integers(0, 5))).astype(np.uint64), bool(rng.integers(2)))
            )
            conditions.add("quotient", Tensor((made[-1][0],)), needed=made[-1][1])
        return conditions, made

    answers: set[bool] = set()
    for _ in range(400):
        (mine, ours), (other, theirs), (again, later) = drawn(), drawn(), drawn()
        for x, _ in theirs[: int(rng.integers(0, 2))]:  # an equal tensor in both
            mine.add("quotient", Tensor((x.copy(),)), needed=True)
            ours.append((x, True))
        given = {1, *(int(n) for x, _ in theirs for n in x)}
        first, second = ({int(n) for x, needed in found if needed for n in x} for found in (ours, later))
        assert mine.beyond(other, labels) == ("quotient" if first - given else None)
        assert mine.beyond(other, labels, again) == ("quotient" if (first & second) - given else None)
        answers.add(bool(first - given))
    assert answers == {True, False}
