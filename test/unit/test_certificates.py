"""What a certificate says: the bound and what costs it, and that it replays as it is and no other way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certify_support import SQUARE, program
from random_programs import Builder, attention, random_kernel, rewritten

from superopt.errors import BadInput, IllegalProgram
from superopt.program import KernelGraph, Value
from superopt.verify import Certificate, certify, lattices, one_point, program_hash
from superopt.verify import certifier as certifier_module
from superopt.verify.certifier import replay, replay_cheap
from superopt.verify.fields import FormalField
from superopt.verify.hashing import canonical_text, parse


def _softmax(f: Builder, a: Value, *, late: bool) -> Value:
    """Of square roots of exponentials: several terms, and applications of an uninterpreted operator."""
    e = f("sqrt", f("exp", a))
    total = f("reduce_sum", e, dims=(1,), keepdims=True)
    product = f("matmul", e if late else f("div", e, total), a)
    return f("div", product, total) if late else product


_ROOTS = (
    program([(16, 16)], lambda f, a: _softmax(f, a, late=False)),
    program([(16, 16)], lambda f, a: _softmax(f, a, late=True)),
)


def test_bound_of_a_polynomial_identity() -> None:
    first = program(SQUARE, lambda f, a, b, c: f("mul", a, f("add", b, c)))
    second = program(SQUARE, lambda f, a, b, c: f("add", f("mul", b, a), f("mul", c, a)))
    certificate = certify(first, second).certificate
    assert certificate
    (test,) = certificate.tests
    assert (test.kind, test.terms, test.degree_p, test.degree_q, test.applications) == ("formal", 1, 2, 0, 0)
    assert certificate.delta == pytest.approx(2 / certificate.q)
    assert (certificate.guarantee, certificate.uninterpreted) == ("bound", [])


def test_degrees_of_sums_of_quotients() -> None:
    """A row of a / b summed has a numerator and a denominator of degree 4 each; the difference of two, 8."""
    first = program(SQUARE, lambda f, a, b, c: f("reduce_sum", f("div", a, b), dims=(1,)))
    second = program(SQUARE, lambda f, a, b, c: f("reduce_sum", f("mul", f("reciprocal", b), a), dims=(1,)))
    certificate = certify(first, second).certificate
    assert certificate
    assert certificate.tests[0].degree_p == 8


def test_smaller_delta_takes_more_tests() -> None:
    first, second = attention("naive", 0.5), attention("stable", 0.5)
    one, more = certify(first, second).certificate, certify(first, second, delta=1e-30).certificate
    assert one
    assert more
    assert len(more.tests) > len(one.tests) == 1
    assert more.delta is not None
    assert more.delta <= 1e-30
    assert more.delta == pytest.approx(math.prod(t.delta or 1 for t in more.tests))
    assert len({t.seed for t in more.tests}) == len(more.tests)


def test_a_second_exp_is_uninterpreted() -> None:
    """e^(e^x e^y) against e^(e^(x + y)): equal arguments, so equal; exponents of arguments count in the bound."""
    first = program(SQUARE, lambda f, a, b, c: f("exp", f("mul", f("exp", a), f("exp", b))))
    second = program(SQUARE, lambda f, a, b, c: f("exp", f("exp", f("add", a, b))))
    certificate = certify(first, second).certificate
    assert certificate
    assert certificate.uninterpreted == ["second exp on a path"]
    (test,) = certificate.tests
    assert test.argument_q > 0
    assert test.delta is not None
    assert test.delta >= test.applications**2 * test.terms**2 * test.argument_q / certificate.q
    assert certificate.bound == f"delta {test.delta:.1e} at full extents"
    other = program(SQUARE, lambda f, a, b, c: f("exp", f("exp", f("add", a, c))))
    assert not certify(first, other).equivalent


def cross_entropy(f: Builder, a: Value, b: Value, c: Value, turned: bool) -> Value:
    """Minus the logarithm of softmax."""
    e = f("exp", f("add", b, a) if turned else f("add", a, b))
    return f("sub", f("add", a, b), f("log", f("reduce_sum", e, dims=(1,), keepdims=True)))


def normed(f: Builder, a: Value, b: Value, c: Value, stable: bool) -> Value:
    """Softmax times a matrix, and its root mean square norm."""
    scores = f("sub", a, f("reduce_max", a, dims=(1,), keepdims=True)) if stable else a
    e = f("exp", scores)
    o = f("matmul", f("div", e, f("reduce_sum", e, dims=(1,), keepdims=True)), b)
    return f("mul", o, f("rsqrt", f("reduce_mean", f("square", o), dims=(1,), keepdims=True)))


def larger_exponential(f: Builder, a: Value, b: Value, c: Value, split: bool) -> Value:
    e = f("mul", f("exp", b), f("exp", a)) if split else f("exp", f("add", a, b))
    return f("max", e, c)


@pytest.mark.parametrize("build", [cross_entropy, normed, larger_exponential])
def test_exponentials_below_other_functions_keep_the_bound(build: Any) -> None:
    """The argument of a logarithm or root is a quotient of sums of exponentials, and is compared as one."""

    def made(other: bool) -> KernelGraph:
        return program(SQUARE, lambda f, a, b, c: build(f, a, b, c, other))

    certificate = certify(made(False), made(True)).certificate
    assert certificate
    assert certificate.delta is not None
    assert certificate.delta <= 1e-9
    assert any(t.argument_q for t in certificate.tests)


def test_a_cap_on_terms_costs_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_point, "FormalField", partial(FormalField, cap=1))
    certificate = certify(attention("naive", 0.5), attention("stable", 0.5)).certificate
    assert certificate
    assert certificate.delta is None
    monkeypatch.undo()
    assert certify(attention("naive", 0.5), attention("stable", 0.5)).certificate.delta  # type: ignore[union-attr]


def test_programs_may_outgrow_the_cap_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program adds what exceeds the cap and takes it away again, the other never has it."""
    monkeypatch.setattr(one_point, "FormalField", partial(FormalField, cap=2))

    def there_and_back(f: Builder, a: Value, b: Value, c: Value) -> Value:
        x, y, z = (f("exp", v) for v in (a, b, c))
        return f("sub", f("add", f("add", x, y), z), z)

    first = program(SQUARE, there_and_back)
    second = program(SQUARE, lambda f, a, b, c: f("add", f("exp", b), f("exp", a)))
    third = program(SQUARE, lambda f, a, b, c: f("add", f("exp", b), f("exp", c)))
    assert certify(first, second).equivalent
    assert not certify(first, third).equivalent


def test_replay() -> None:
    certificate = certify(attention("naive", 0.5), attention("online", 0.5), seed=3).certificate
    assert certificate
    assert certificate.seed == 3
    again = Certificate.model_validate_json(certificate.model_dump_json())
    assert again == certificate
    assert replay(again) == []


@pytest.mark.parametrize("field", ["delta", "text", "guarantee", "seed", "sha256"])
def test_replay_refuses_what_was_changed(field: str) -> None:
    certificate = certify(attention("naive", 0.5), attention("online", 0.5)).certificate
    assert certificate
    first, second = certificate.first, certificate.second
    changed: dict[str, Any] = {
        "delta": {"delta": 1e-30},
        "text": {"second": second.model_copy(update={"text": second.text.replace("sub", "add")})},
        "guarantee": {"guarantee": "bound"},
        "seed": {"seed": 1},
        "sha256": {"first": first.model_copy(update={"sha256": "0" * 64})},
    }
    assert replay(certificate.model_copy(update=changed[field]))


def _of_tests(**figures: Any) -> Callable[[dict[str, Any]], object]:
    """Other figures in all tests, and a bound that they give."""

    def change(data: dict[str, Any]) -> None:
        for test in data["tests"]:
            test.update(figures)
        data["delta"] = data["delta"] and 1.0
        for test in data["tests"]:
            test["delta"] = test["delta"] and 1e-9

    return change


def _without_tests(kind: str) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> None:
        data["tests"] = [t for t in data["tests"] if t["kind"] != kind]

    return change


def _in_this_process(work: Callable[[], int], name: str) -> int:
    assert name
    return work()


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "degrees": _of_tests(degree_p=0, degree_q=0),
    "terms": _of_tests(terms=1),
    "applications": _of_tests(applications=0),
    "arguments": _of_tests(argument=0, argument_q=0),
    "extents of a test": _of_tests(inputs=[]),
    "seed of a test": _of_tests(seed=[9, 9, 9]),
    "formal tests left out": _without_tests("formal"),
    "all tests left out": lambda data: data.update(tests=[], delta=None, guarantee="congruence"),
    "a normal form": lambda data: data.update(
        normal_form={"extents": "all", "factors": 99, "terms": 99}
    ),
    "a relation": lambda data: data.update(relation={"sizes": ["in0.0"], "abstained": None}),
    "operators": lambda data: data.update(uninterpreted=[]),
    "notes": lambda data: data.update(notes=["the programs are the same"]),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("most_work", [1e9, 0])
def test_a_check_makes_the_figures_again(
    forgery: str, most_work: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the tests at full extents take too much: what those at reduced extents say is made again."""
    from superopt.tools import superopt_verify

    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    certificate = certify(*_ROOTS).certificate
    assert certificate
    assert {(t.kind, t.extents) for t in certificate.tests} == {("formal", "reduced"), ("image", "full")}
    assert replay_cheap(certificate, most_work=most_work).faults == ()
    data = certificate.model_dump(mode="json")
    FORGERIES[forgery](data)
    if data == certificate.model_dump(mode="json"):
        pytest.skip("nothing to forge")
    forged = Certificate.model_validate(data)
    assert replay(forged)
    if forgery == "notes" and not most_work:
        pytest.skip("some are of tests that are not made again")
    assert replay_cheap(forged, most_work=most_work).faults
    path = tmp_path / "c.json"
    path.write_text(json.dumps(data))
    monkeypatch.setattr(superopt_verify, "isolated", _in_this_process)
    assert superopt_verify.main(["--check", str(path)]) == 1


def test_a_check_without_a_test_at_full_extents_is_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    certificate = certify(*_ROOTS).certificate
    assert certificate
    data = certificate.model_dump()
    _without_tests("image")(data)
    forged = Certificate.model_validate(data)
    assert replay_cheap(forged, most_work=0).faults == ("no test at full extents",)


def test_a_check_says_what_it_did_not_make_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bound of a polynomial program is that of a test at full extents, which may take too much."""
    from superopt.tools import superopt_verify

    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    monkeypatch.setattr(superopt_verify, "isolated", _in_this_process)
    first = program([(8, 8)] * 3, lambda f, a, b, c: f("mul", a, f("add", b, c)))
    second = program([(8, 8)] * 3, lambda f, a, b, c: f("add", f("mul", b, a), f("mul", c, a)))
    for pair, bounding in (((first, second), True), (_ROOTS, False)):
        certificate = certify(*pair).certificate
        assert certificate
        path = tmp_path / "c.json"
        path.write_text(certificate.model_dump_json())
        assert replay_cheap(certificate, most_work=0).bounding == bounding
        assert superopt_verify.main(["--check", str(path)]) == 0
        assert f"{certificate.bound}, made again" in capsys.readouterr().out
        with monkeypatch.context() as patched:
            patched.setattr(replay_cheap, "__kwdefaults__", {"most_work": 0})
            assert superopt_verify.main(["--check", str(path)]) == 0
        rest = " by figures that take --replay" if bounding else ", made again but for 1 test that takes"
        assert certificate.bound + rest in capsys.readouterr().out


def test_replay_of_nonsense_is_bad_input() -> None:
    for text in (
        "",
        "[]",
        "{}",
        '{"inputs":[["f32",2]],"nodes":[["neg",[4],[["f32",2]],{},null]],"outputs":[0]}',
    ):
        with pytest.raises(BadInput):
            parse(text)


def test_replay_checks_the_programs() -> None:
    certificate = certify(attention("naive", 0.5), attention("online", 0.5)).certificate
    assert certificate
    graph = parse(certificate.first.text)
    graph.nodes[0].op = "no_such"
    text = canonical_text(graph)
    broken = certificate.first.model_copy(update={"text": text, "sha256": program_hash(graph)})
    with pytest.raises(IllegalProgram):
        replay(certificate.model_copy(update={"first": broken}))


def test_canonical_text_round_trips() -> None:
    import random

    rng = random.Random(5)
    for _ in range(20):
        graph = rewritten(random_kernel(rng), rng)
        assert canonical_text(parse(canonical_text(graph))) == canonical_text(graph)
    dense = program(
        [(2, 2)], lambda f, a: f("add", a, f("constant", value=np.eye(2), shape=(2, 2), dtype="f32"))
    )
    assert certify(dense, parse(canonical_text(dense))).equivalent


def test_more_leaves_under_max_than_can_be_told_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random order instead would miss one number of n but with probability 1/n."""
    monkeypatch.setattr(lattices, "MOST_LEAVES", 4)
    verdict = certify(attention("naive", 0.5), attention("online", 0.5))
    assert "too many numbers" in str(verdict.counterexample)
