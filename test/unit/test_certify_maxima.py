"""Large programs with max and min: one random order tells little, sets of leaves must have agreed before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from certify_support import nothing_shrinks, program
from random_programs import Builder

from superopt.program import Value
from superopt.verify import certifier as certifier_module
from superopt.verify import certify, one_point

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
