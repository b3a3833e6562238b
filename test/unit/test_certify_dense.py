"""Dense constants hold their extents at reduced ones, unless the programs are equal whatever they hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from certify_support import program
from random_programs import Builder

from superopt.program import KernelGraph, Value
from superopt.verify import certifier as certifier_module
from superopt.verify import certify
from superopt.verify.checker import check_certificate
from superopt.verify.dense import without_dense
from superopt.verify.one_point import Outcome, outcomes_of
from superopt.verify.reduce import ways_to_reduce

NUMBERS: Any = np.random.default_rng(0).normal(size=4096).astype(np.float32)


def softmax(form: str, numbers: Any = NUMBERS) -> KernelGraph:
    """Rows of 4096 logits with a bias for each, times 4096 x 64 values."""

    def build(b: Builder, x: Value, v: Value) -> Value:
        bias = b("constant", value=numbers, shape=numbers.shape, dtype="f32")
        s = b("add", x, bias)
        if form == "stable":
            s = b("sub", s, b("reduce_max", s, dims=(1,), keepdims=True))
        e = b("exp", s)
        total = b("reduce_sum", e, dims=(1,), keepdims=True)
        if form == "stable":
            return b("div", b("matmul", e, v), total)
        return b("matmul", b("div", e, b("add", total, total) if form == "twice" else total), v)

    return program([(64, numbers.size), (numbers.size, 64)], build)


def test_a_bias_of_4096_has_a_bound() -> None:
    certificate = certify(softmax("naive"), softmax("stable")).certificate
    assert certificate
    assert (certificate.guarantee, certificate.delta_extents) == ("congruence", "reduced")
    assert certificate.delta is not None
    assert "at reduced extents dense constants were inputs" in certificate.notes
    assert max(t.terms for t in certificate.tests if t.kind == "formal") < 100
    assert not check_certificate(certificate.model_dump_json(), elements=1, budget=300_000).faults


@pytest.mark.parametrize("wrong", ["twice", "other numbers", "one other number"])
def test_near_misses(wrong: str) -> None:
    other = NUMBERS.copy()
    other[-1] += 1.0
    numbers = {"other numbers": NUMBERS[::-1].copy(), "one other number": other}.get(wrong, NUMBERS)
    assert not certify(
        softmax("naive"), softmax("twice" if wrong == "twice" else "stable", numbers)
    ).equivalent


def test_constants_are_inputs_by_what_they_hold() -> None:
    """The same numbers are one input, infinities stay, and what is true of these numbers alone is not shown."""

    def build(second: bool) -> KernelGraph:
        def body(b: Builder, x: Value) -> Value:
            held = [b("constant", value=a, shape=(4,), dtype="f32") for a in arrays]
            return b("add", b("mul", x, held[0]), b("add", held[1], held[2]) if not second else held[3])

        two, four = np.full(4, 2.0, np.float32), np.full(4, 4.0, np.float32)
        hidden = np.array([0, -np.inf, 0, 0], np.float32)
        arrays = [two, two, two, four, hidden]
        return program([(4, 4)], body)

    general = without_dense(build(False), build(True))
    assert [len(g.inputs) for g in general] == [3, 3]
    assert certify(build(False), build(True)).equivalent
    assert not certify(*general).equivalent
    assert not without_dense(program([(4, 4)], lambda b, x: b("relu", x)))


def test_a_difference_at_reduced_extents_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> list[KernelGraph]:
        raise AssertionError("asked again")

    monkeypatch.setattr(certifier_module, "without_dense", never)
    small = np.arange(8, dtype=np.float32)
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    assert not certify(softmax("naive", small), softmax("twice", small)).equivalent


def test_they_agree_on_maxima_though_formal_tests_give_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What exponentials leave without a bound is compared at full extents by an order, as 1,500 keys are."""
    agreed: list[bool] = []

    def without_bound(*args: Any, **named: Any) -> list[Outcome]:
        if args[2] == "formal":
            return [replace(o, imaged=True) for o in outcomes_of(*args, **named)]
        agreed.append(args[-1])
        return outcomes_of(*args, **named)

    def only_with_the_constant_as_input(a: KernelGraph, b: KernelGraph, *rest: Any) -> Any:
        return ways_to_reduce(a, b, *rest) if len(a.inputs) > 2 else ()

    monkeypatch.setattr(certifier_module, "outcomes_of", without_bound)
    monkeypatch.setattr(certifier_module, "ways_to_reduce", only_with_the_constant_as_input)
    assert certify(softmax("stable"), softmax("naive")).equivalent
    assert agreed[-1] is True
    assert not certify(softmax("stable"), softmax("twice")).equivalent


def test_means_shrink_beside_constants_of_many_numbers() -> None:
    """The number that one program divides by is reduced with the extent that it stands for."""

    def build(mean: str, by: float = 4096.0) -> KernelGraph:
        def body(b: Builder, x: Value) -> Value:
            e = b("exp", b("add", x, b("constant", value=NUMBERS, shape=NUMBERS.shape, dtype="f32")))
            if mean == "mean":
                return b("reduce_mean", e, dims=(1,), keepdims=True)
            return b("div", b("reduce_sum", e, dims=(1,), keepdims=True), b.constant(by))

        return program([(64, NUMBERS.size)], body)

    certificate = certify(build("mean"), build("sum")).certificate
    assert certificate
    assert certificate.delta is not None
    assert {"at reduced extents dense constants were inputs", certifier_module.REDUCED_NUMBERS} <= {
        *certificate.notes
    }
    assert not certify(build("mean"), build("sum", 4095.0)).equivalent
