"""Functions that the certifier knows little of: what they are at 0 and 1 it knows, as denominators are made of them."""

from __future__ import annotations

import pytest
from certify_support import program
from random_programs import Builder

from superopt.program import Value
from superopt.verify import certify
from superopt.verify.checker import compare
from superopt.verify.hashing import canonical_text

SHAPES = [(2, 2), (2, 2)]


def nothing(f: Builder, x: Value) -> Value:
    return f("sub", x, x)


def over_itself(f: Builder, x: Value, y: Value) -> Value:
    return f("div", nothing(f, x), y)


@pytest.mark.parametrize("op", ["sqrt", "sin", "erf"])
def test_zero_over_what_is_zero_at_zero_is_not_zero(op: str) -> None:
    def wrong(f: Builder, x: Value, y: Value) -> Value:
        return f("div", nothing(f, y), f(op, nothing(f, x)))

    first, second = program(SHAPES, over_itself), program(SHAPES, wrong)
    assert not certify(first, second).equivalent
    assert compare(canonical_text(first), canonical_text(second)).elements == 0, (
        "no point where it is defined"
    )


@pytest.mark.parametrize(
    ("op", "at", "value"),
    [
        ("sqrt", 0.0, 0.0),
        ("sqrt", 1.0, 1.0),
        ("erf", 0.0, 0.0),
        ("sin", 0.0, 0.0),
        ("cos", 0.0, 1.0),
        ("log", 1.0, 0.0),
    ],
)
def test_known_values(op: str, at: float, value: float) -> None:
    def applied(f: Builder, x: Value, y: Value) -> Value:
        return f("add", y, f(op, f("add", nothing(f, x), f.constant(at))))

    def known(f: Builder, x: Value, y: Value) -> Value:
        return f("add", y, f.constant(value))

    def other(f: Builder, x: Value, y: Value) -> Value:
        return f("add", y, f.constant(value + 2))

    first, second, third = (program(SHAPES, body) for body in (applied, known, other))
    assert certify(first, second).equivalent
    assert not certify(first, third).equivalent
    assert compare(canonical_text(first), canonical_text(second)).different is None
    assert compare(canonical_text(first), canonical_text(third)).different is not None


def test_a_second_exponential_of_zero_is_one() -> None:
    def twice(f: Builder, x: Value, y: Value) -> Value:
        e = f("exp", x)
        return f("div", y, f("sub", f("exp", f("sub", e, e)), f.constant(1.0)))

    def otherwise(f: Builder, x: Value, y: Value) -> Value:
        return f(
            "mul",
            f("reciprocal", f("sub", f("exp", f("mul", f("exp", x), f.constant(0.0))), f.constant(1.0))),
            y,
        )

    assert not certify(program(SHAPES, twice), program(SHAPES, otherwise)).equivalent
