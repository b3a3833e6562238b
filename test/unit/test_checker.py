"""The independent checker: it accepts what holds, by its own arithmetic, and refuses certificates that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import programs
import pytest
from certify_support import program

from superopt.errors import BadInput
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.verify import certify
from superopt.verify.checker import Algebra, check_certificate, compare
from superopt.verify.checker.algebra import Element, TooMuchWork, is_prime, primes
from superopt.verify.hashing import canonical_text


def test_exponentials_are_formal():
    algebra = Algebra(0, primes("", ""))
    x, y = algebra.variable("x"), algebra.variable("y")
    product = algebra.mul(algebra.exp(x), algebra.exp(y))
    assert algebra.equal(product, algebra.exp(algebra.add(x, y)))
    assert not algebra.equal(product, algebra.exp(algebra.mul(x, y)))
    assert algebra.equal(algebra.div(algebra.mul(x, y), y), x)


def test_max_is_a_join_and_not_a_sum():
    algebra = Algebra(0, primes("", ""))
    x, y, z = (algebra.variable(n) for n in "xyz")
    left = algebra.join("max", [algebra.join("max", [x, y]), z])
    assert algebra.equal(left, algebra.join("max", [z, algebra.join("max", [y, x]), x]))
    assert algebra.equal(algebra.join("max", [x, algebra.constant(float("-inf"))]), x)
    assert not algebra.equal(left, algebra.join("max", [x, y]))


def test_primes_are_told_from_composites():
    assert [n for n in range(60) if is_prime(n)] == [
        2,
        3,
        5,
        7,
        11,
        13,
        17,
        19,
        23,
        29,
        31,
        37,
        41,
        43,
        47,
        53,
        59,
    ]
    assert is_prime(2305843009213688669)
    assert not is_prime(3215031751)  # a strong pseudoprime to the bases 2, 3, 5 and 7


def softmax(shift: bool, *, wrong: bool = False) -> KernelGraph:
    """A softmax over rows of six, with or without subtracting the maximum."""

    def t(*shape: int) -> TensorType:
        return TensorType(shape, "f32")

    x = Value(t(4, 6))
    nodes: list[Node] = []

    def node(op: str, operands: tuple[Value, ...], kind: TensorType, **attrs: Any) -> Value:
        nodes.append(Node(op, operands, (Value(kind),), attrs))
        return nodes[-1].result

    low = x
    if shift:
        low = node("sub", (x, node("reduce_max", (x,), t(4, 1), dims=(1,), keepdims=True)), t(4, 6))
    e = node("exp", (low,), t(4, 6))
    total = node("reduce_sum", (e,), t(4, 1), dims=(1,), keepdims=True)
    if wrong:
        total = node("add", (total, total), t(4, 1))
    out = node("div", (e, total), t(4, 6))
    return KernelGraph("softmax", [x], nodes, [out])


def test_programs_are_compared_by_elements():
    plain, shifted = canonical_text(softmax(shift=False)), canonical_text(softmax(shift=True))
    same = compare(plain, shifted)
    assert same.different is None
    assert (same.elements, same.skipped) == (4, 0)
    assert same.terms >= 6
    assert compare(plain, canonical_text(softmax(shift=True, wrong=True))).different == (0, (0, 0))


def test_work_is_bounded():
    text = canonical_text(softmax(shift=False))
    assert compare(text, text, budget=3).skipped == 4


def test_comparing_elements_is_work_too() -> None:
    """Of quotients of sums of exponentials the cross products take more than the quotients themselves."""
    algebra = Algebra(0, primes("", ""))

    def total(name: str) -> Element:
        made = algebra.exp(algebra.variable(f"{name} 0"))
        for i in range(1, 40):
            made = algebra.add(made, algebra.exp(algebra.variable(f"{name} {i}")))
        return made

    x, y = total("x"), total("y")
    two = algebra.constant(2.0)
    one, other = algebra.div(x, y), algebra.div(algebra.mul(x, two), algebra.mul(y, two))
    algebra.allow(1000)
    assert algebra.equal(one, one)
    with pytest.raises(TooMuchWork):
        algebra.equal(one, other)
    algebra.allow(2 * 40 * 40)
    assert algebra.equal(one, other)


@pytest.fixture(scope="module")
def certificate() -> dict[str, Any]:
    verdict = certify(softmax(shift=False), softmax(shift=True))
    assert verdict.certificate is not None
    return json.loads(verdict.certificate.model_dump_json())


def test_the_certifiers_certificates_hold(certificate: dict[str, Any]):
    check = check_certificate(json.dumps(certificate))
    assert check.faults == []
    assert check.comparison is not None
    assert check.delta == pytest.approx(certificate["delta"])
    assert check.paper_tests is not None
    assert check.paper_tests > len(certificate["tests"])


@pytest.mark.parametrize("name", ["attention_online", "fused_and_concat", "tiled_scale"])
def test_every_level_is_checked(name: str):
    pytest.importorskip("torch_mlir")
    from superopt.dialects.reader import read
    from superopt.transforms.lower import lower

    graph = read(programs.ALL_TEXTS[name])
    verdict = certify(graph, lower(graph))
    assert verdict.certificate is not None
    assert check_certificate(verdict.certificate.model_dump_json(), elements=2).faults == []


def test_lies_are_found(certificate: dict[str, Any]):
    def fault(**changes: Any) -> str:
        return "; ".join(check_certificate(json.dumps({**certificate, **changes})).faults)

    tests = certificate["tests"]
    assert "delta is claimed" in fault(delta=certificate["delta"] / 1e6)
    assert "a test claims" in fault(tests=[{**tests[0], "delta": tests[0]["delta"] / 2}, *tests[1:]])
    assert "its parts give" in fault(tests=[{**tests[0], "terms": 4 * tests[0]["terms"]}, *tests[1:]])
    assert "not primes" in fault(q=certificate["q"] + 2)
    assert "not primes" in fault(p=23, q=11)
    assert "its parts give None" in fault(tests=[])
    assert "second program is not" in fault(second={**certificate["second"], "sha256": "0" * 64})
    other = canonical_text(softmax(shift=True, wrong=True))
    from hashlib import sha256

    lie = {"text": other, "sha256": sha256(other.encode()).hexdigest()}
    assert "not the primes that the hash of both programs draws" in fault(second=lie)
    p, q = primes(certificate["first"]["text"], other)
    assert "the programs differ: output 0 at [0, 0]" in fault(
        second=lie, p=p, q=q, delta=None, tests=[{**tests[0], "delta": None}]
    )


def test_forged_guarantees_are_found():
    verdict = certify(
        program(
            [(4, 6)], lambda b, x: b("relu", b("mul", x, b("constant", value=2.0, shape=(), dtype="f32")))
        ),
        program([(4, 6)], lambda b, x: b("relu", b("add", x, x))),
    )
    assert verdict.certificate is not None
    honest = json.loads(verdict.certificate.model_dump_json())
    assert check_certificate(json.dumps(honest)).faults == []
    forgeries: list[tuple[dict[str, Any], str]] = [
        ({"guarantee": "bound"}, "a bound is guaranteed"),
        ({"guarantee": "bound", "uninterpreted": []}, "not listed: max"),
        ({"uninterpreted": ["erf"]}, "not listed: max"),
    ]
    for forged, fault in forgeries:
        assert fault in "; ".join(check_certificate(json.dumps({**honest, **forged})).faults)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"first": 1}', "[" * 5000, "\x00"])
def test_what_is_no_certificate_is_refused(text: str):
    with pytest.raises(BadInput, match="expected a certificate"):
        check_certificate(text)


def projected(*, order: bool = False, wrong: bool = False) -> KernelGraph:
    """sqrt(x w) u with long sums, so that an element takes n^2 operations from the inputs."""
    n = 80

    def t(*shape: int) -> TensorType:
        return TensorType(shape, "f32")

    x, w, u = Value(t(n, n)), Value(t(n, n)), Value(t(n, n))
    nodes: list[Node] = []

    def node(op: str, operands: tuple[Value, ...], kind: TensorType, **attrs: Any) -> Value:
        nodes.append(Node(op, operands, (Value(kind),), attrs))
        return nodes[-1].result

    if order:  # the same product with its sides turned
        wt, xt = (node("transpose", (v,), t(n, n), perm=(1, 0)) for v in (w, x))
        y = node("transpose", (node("matmul", (wt, xt), t(n, n)),), t(n, n), perm=(1, 0))
    else:
        y = node("matmul", (x, w), t(n, n))
    if wrong:
        y = node("add", (y, x), t(n, n))
    out = node("matmul", (node("sqrt", (y,), t(n, n)), u), t(n, n))
    return KernelGraph("projected", [x, w, u], nodes, [out])


def test_what_is_too_much_from_the_inputs_is_computed_from_values_between():
    plain, other = canonical_text(projected()), canonical_text(projected(order=True))
    from_inputs = compare(plain, other)
    assert (from_inputs.elements, from_inputs.from_values, from_inputs.values) == (4, 0, 0)
    between = compare(plain, other, budget=1500)
    assert between.different is None
    assert (between.elements, between.from_values, between.skipped, between.silent) == (4, 4, 0, 0)
    assert between.values == 1
    assert between.between == 3


def test_values_between_do_not_hide_a_difference():
    plain, wrong = canonical_text(projected()), canonical_text(projected(order=True, wrong=True))
    assert compare(plain, wrong).different == (0, (0, 0))
    between = compare(plain, wrong, budget=1500)
    assert (between.elements, between.from_values, between.skipped, between.silent) == (0, 0, 4, 1)


def test_out_of_time_is_said(certificate: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    from superopt.tools.superopt_verify import main

    path = tmp_path / "c.json"
    path.write_text(json.dumps(certificate))
    assert main(["--check", str(path)]) == 0
    assert ": holds: delta" in (said := capfd.readouterr().out)
    assert "; 4 of 4 elements recomputed\n" in said
    assert main(["--check", str(path), "--seconds", "1e-9"]) == 3
    said = capfd.readouterr().out
    assert ": undecided: delta" in said
    assert "; 0 of 4 elements recomputed; 4 not: too much work, or more than 1e-09 s" in said
