"""What is equal modulo one prime, by one order, or behind one unknown only is not equal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from certify_support import SQUARE, program
from random_programs import Builder

from superopt.program import KernelGraph, Value
from superopt.verify import certifier as certifier_module
from superopt.verify import certify, one_point
from superopt.verify.checker import check_certificate, compare
from superopt.verify.checker.algebra import primes as checked_primes
from superopt.verify.fields import P, Q
from superopt.verify.hashing import canonical_text
from superopt.verify.primes import drawn, is_prime

Made = Callable[[Builder, Value, Value, Value], Value]


def build(make: Made) -> KernelGraph:
    return program(SQUARE, make)


# --- the primes ---------------------------------------------------------------------------------------------


def test_primes_are_those_of_the_hash_of_both_texts():
    found = {drawn(str(i), "second") for i in range(40)}
    assert len(found) == 40
    for p, q in found:
        assert p == 2 * q + 1
        assert 15 << 57 <= q < 1 << 61
        for n in (p, q):
            assert all(n % d for d in range(2, 5000))
            assert all(pow(b, n - 1, n) == 1 for b in (2, 3, 5, 41, 43))
    assert drawn("a", "b") == drawn("a", "b") != drawn("b", "a")


def test_the_checker_draws_the_same_by_itself():
    for i in range(20):
        assert checked_primes(str(i), "text") == drawn(str(i), "text")


@pytest.mark.parametrize("n", [1, 0, 4, 561, 3215031751, 3825123056546413051, P * 3, (1 << 61) - 3])
def test_what_is_no_prime_is_none(n: int):
    assert not is_prime(n)


def test_certificates_record_the_primes_and_others_are_refused():
    a, b = build(lambda f, x, y, z: f("add", x, y)), build(lambda f, x, y, z: f("add", y, x))
    certificate = certify(a, b).certificate
    assert certificate is not None
    assert (certificate.p, certificate.q) == drawn(canonical_text(a), canonical_text(b))
    assert check_certificate(certificate.model_dump_json()).faults == []
    other = certificate.model_copy(update={"p": P, "q": Q, "delta": None})
    assert "not the primes that the hash" in "; ".join(check_certificate(other.model_dump_json()).faults)


# --- constants that meet modulo one prime ---------------------------------------------------------------------


def _as_before(*texts: str) -> tuple[int, int]:
    return P, Q


MODULO = (1 << 62) - 10565  # P, the prime of fields by default
assert MODULO == P


def times(f: Builder, x: Value, *numbers: float) -> Value:
    for n in numbers:
        x = f("mul", x, f.constant(n))
    return x


def _dense(f: Builder, *numbers: float) -> Value:
    return f("constant", value=np.asarray([numbers]), shape=(1, len(numbers)), dtype="f32")


HIGH, LOW = float(MODULO // 2**20 * 2**20), float(MODULO % 2**20)  # two numbers whose sum is the prime
MEETING: dict[str, tuple[Made, Made]] = {
    "one number": (lambda f, x, y, z: times(f, x, 2.0**62), lambda f, x, y, z: times(f, x, 10565.0)),
    "a product": (lambda f, x, y, z: times(f, x, 2.0**31, 2.0**31), lambda f, x, y, z: times(f, x, 10565.0)),
    "a square": (
        lambda f, x, y, z: f("mul", x, f("square", f.constant(2.0**31))), lambda f, x, y, z: times(f, x, 10565.0),
    ),
    "a small one": (
        lambda f, x, y, z: times(f, times(f, x, 2.0**-62), 10565.0), lambda f, x, y, z: f("add", x, f("sub", y, y)),
    ),
    "a sum": (
        lambda f, x, y, z: f("add", times(f, x, HIGH), times(f, x, LOW)), lambda f, x, y, z: f("sub", x, x),
    ),
    "a sum of a constant's": (
        lambda f, x, y, z: f("mul", x, f("reduce_sum", _dense(f, HIGH, LOW), dims=(1,), keepdims=True)),
        lambda f, x, y, z: f("sub", y, y),
    ),
    "in a maximum": (
        lambda f, x, y, z: f("max", f("add", x, times(f, y, 2.0**62)), y),
        lambda f, x, y, z: f("max", f("add", x, times(f, y, 10565.0)), y),
    ),
    "in a root": (lambda f, x, y, z: f("sqrt", times(f, x, 2.0**62)), lambda f, x, y, z: f("sqrt", times(f, x, 10565.0))),
    "in a denominator": (
        lambda f, x, y, z: f("div", y, f("add", x, f.constant(2.0**62))),
        lambda f, x, y, z: f("div", y, f("add", x, f.constant(10565.0))),
    ),
    "after a product": (
        lambda f, x, y, z: times(f, f("matmul", x, y), 2.0**62), lambda f, x, y, z: f("matmul", times(f, x, 10565.0), y),
    ),
}  # fmt: skip


def _unrelated(*_: object) -> None:
    """No relation is taken: it tells polynomials apart without any prime."""


@pytest.mark.parametrize("case", MEETING)
def test_constants_that_meet_modulo_a_prime_are_told_apart(case: str, monkeypatch: pytest.MonkeyPatch):
    first, second = map(build, MEETING[case])
    assert not certify(first, second).equivalent
    assert compare(canonical_text(first), canonical_text(second)).different is not None
    monkeypatch.setattr(certifier_module, "_related", _unrelated)
    assert not certify(first, second).equivalent
    monkeypatch.setattr(certifier_module, "drawn", _as_before)
    assert certify(first, second).equivalent, "this pair was chosen for that prime"


def test_exponents_that_meet_modulo_a_prime_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    rest = (1 << 61) - Q
    first = build(lambda f, x, y, z: f("exp", times(f, x, 2.0**61)))
    second = build(lambda f, x, y, z: f("exp", times(f, x, float(rest))))
    assert not certify(first, second).equivalent
    monkeypatch.setattr(certifier_module, "drawn", _as_before)
    assert certify(first, second).equivalent


def test_the_primes_of_a_pair_do_not_depend_on_what_else_is_compared():
    first = build(lambda f, x, y, z: times(f, x, 2.0, 2.0))
    second, third = (build(lambda f, x, y, z, n=n: times(f, x, *n)) for n in ((4.0,), (8.0, 0.5)))
    verdict, lowered_too = certifier_module.certify_lowered(first, second, third)
    assert lowered_too.equivalent
    assert verdict.certificate == certify(first, second).certificate


# --- denominators that are uninterpreted ------------------------------------------------------------------------

ZEROS: dict[str, Made] = {
    "sqrt": lambda f, x, y, z: f("sqrt", f("sub", x, x)),
    "erf": lambda f, x, y, z: f("erf", f("sub", x, x)),
    "sin": lambda f, x, y, z: f("sin", f("sub", y, y)),
    "log": lambda f, x, y, z: f("log", f("exp", f("sub", y, y))),
    "one less a cosine": lambda f, x, y, z: f("sub", f.constant(1.0), f("cos", f("sub", y, y))),
    "second exp": lambda f, x, y, z: f("sub", f.constant(1.0), f("exp", f("sub", e := f("exp", x), e))),
}


@pytest.mark.parametrize("zero", ZEROS)
def test_zero_over_a_hidden_zero_is_not_zero(zero: str):
    hidden = build(lambda f, x, y, z: f("add", z, f("div", f("sub", x, x), ZEROS[zero](f, x, y, z))))
    plain = build(lambda f, x, y, z: f("add", z, f("div", f("sub", x, x), x)))
    assert not certify(hidden, plain).equivalent
    assert compare(canonical_text(hidden), canonical_text(plain)).different is not None
    product = build(lambda f, x, y, z: f("add", z, f("mul", x, ZEROS[zero](f, x, y, z))))
    assert certify(product, build(lambda f, x, y, z: f("add", z, f("sub", x, x)))).equivalent


# --- one random order -------------------------------------------------------------------------------------------


def _row_maximum(change: str) -> KernelGraph:
    def make(f: Builder, x: Value, y: Value) -> Value:
        if change == "one less":
            x = f("slice", x, offsets=(0, 0), sizes=(4, 63), strides=(1, 1))
        m = f("reduce_max", x, dims=(1,), keepdims=True)
        if change == "relu":
            m = f("relu", m)
        return f("mul", y, m) if change == "turned" else f("mul", m, y)

    return program([(4, 64), (4, 1)], make)


@pytest.mark.parametrize(("change", "equal"), [("relu", False), ("one less", False), ("turned", True)])
def test_one_random_order_is_no_proof_of_a_maximum(
    change: str, *, equal: bool, monkeypatch: pytest.MonkeyPatch
):
    """An element more or less among 64 changes the pick in one order of 64: many seeds, none fooled."""
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    monkeypatch.setattr(one_point, "LATTICE_WORK", 0)
    for seed in range(8):
        assert certify(_row_maximum(""), _row_maximum(change), seed=seed).equivalent == equal


# --- pieces -------------------------------------------------------------------------------------------------------


def test_a_piece_of_the_same_text_hides_no_undefined_number(monkeypatch: pytest.MonkeyPatch):
    """A row of minus infinities less their maximum is in a piece that both share, and is not evaluated alone."""
    for name in ("FORMAL_WORK", "BLOCKS_WORK", "BLOCKS_ELEMENTS"):
        monkeypatch.setattr(certifier_module, name, 0)
    mask: Any = np.zeros((3, 3))
    mask[1] = -math.inf

    def make(f: Builder, s: Value, v: Value, w: Value, *, late: bool, lost: bool) -> Value:
        a = f("constant", value=mask if lost else np.zeros((3, 3)), shape=(3, 3), dtype="f32")
        x = f("add", s, a)
        e = f("exp", f("sub", x, f("reduce_max", x, dims=(1,), keepdims=True)))
        total = f("reduce_sum", e, dims=(1,), keepdims=True)
        y = f("div", f("mul", e, v), total) if late else f("mul", f("div", e, total), v)
        return f("matmul", f("square", f("reduce_sum", y, dims=(0,), keepdims=True)), w)

    for lost in (True, False):
        pair = [
            program([(3, 3)] * 3, lambda f, s, v, w, t=t, n=lost: make(f, s, v, w, late=t, lost=n))
            for t in (False, True)
        ]
        verdict = certify(*pair)
        assert verdict.equivalent != lost
        if verdict.counterexample is not None:
            assert "program is undefined" in verdict.counterexample.reason
