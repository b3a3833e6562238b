"""Verdicts: what other verifiers got wrong, attention in all variants, laws that hold and laws that do not."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from certify_support import SQUARE, Build1, Build3, nothing_shrinks, program
from random_programs import Builder, attention, value

from superopt.errors import NotEquivalent
from superopt.program import BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.verify import certify, check_each, one_point, program_hash
from superopt.verify import evaluate as evaluate_module
from superopt.verify.certifier import replay
from superopt.verify.fields import FormalField, ImageField, P, Q
from superopt.verify.hashing import canonical_text, parse

# --- faults of a published verifier, each accepted there --------------------------------------------------

FAULTS: dict[str, tuple[Build3, Build3]] = {
    "A + C as 2 B, equal for inputs on a ramp": (
        lambda f, a, b, c: f("add", a, c),
        lambda f, a, b, c: f("mul", b, f.constant(2.0)),
    ),
    "A B + C B as 2 B B": (
        lambda f, a, b, c: f("add", f("matmul", a, b), f("matmul", c, b)),
        lambda f, a, b, c: f("mul", f.constant(2.0), f("matmul", b, b)),
    ),
    "A B as B A": (lambda f, a, b, c: f("matmul", a, b), lambda f, a, b, c: f("matmul", b, a)),
    "outputs permuted": (
        lambda f, a, b, c: [f("add", a, b), f("mul", a, b)],
        lambda f, a, b, c: [f("mul", a, b), f("add", a, b)],
    ),
    "clamps with other bounds": (
        lambda f, a, b, c: f("clamp", a, low=-1.0, high=6.0),
        lambda f, a, b, c: f("clamp", a, low=-2.0, high=6.0),
    ),
    "silu as x e^x": (
        lambda f, a, b, c: f("silu", a),
        lambda f, a, b, c: f("mul", a, f("exp", a)),
    ),
    "silu as x e^2x": (
        lambda f, a, b, c: f("silu", a),
        lambda f, a, b, c: f("mul", a, f("exp", f("mul", a, f.constant(2.0)))),
    ),
    "(A + B) A as (A + B) B": (
        lambda f, a, b, c: f("matmul", f("add", a, b), a),
        lambda f, a, b, c: f("matmul", f("add", a, b), b),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str) -> None:
    first, second = (program(SQUARE, build) for build in FAULTS[fault])
    verdict = certify(first, second)
    assert not verdict.equivalent
    assert verdict.counterexample is not None
    assert verdict.counterexample.output == 0
    assert certify(first, parse(canonical_text(first))).equivalent


def test_hashes_tell_operands_apart() -> None:
    first, second = (program(SQUARE, build) for build in FAULTS["(A + B) A as (A + B) B"])
    assert program_hash(first) != program_hash(second)


def test_hash_is_independent_of_names() -> None:
    first = program(SQUARE, lambda f, a, b, c: f("add", a, b))
    second = parse(canonical_text(first))
    second.name = second.inputs[0].name = second.nodes[0].result.name = "other"
    assert program_hash(first) == program_hash(second)


# --- one element tells clamps apart, whatever the order of random residues --------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_max_is_no_pick_by_an_order(seed: int) -> None:
    """One element and bounds that an order would confuse one time in three, or two for relu."""
    pairs: list[tuple[Build1, Build1]] = [
        (lambda f, a: f("clamp", a, low=-1.0, high=6.0), lambda f, a: f("clamp", a, low=-2.0, high=6.0)),
        (lambda f, a: f("relu", a), lambda f, a: f("mul", a, f.constant(1.0))),
        (lambda f, a: f("max", a, f("neg", a)), lambda f, a: f("neg", a)),
        (lambda f, a: f("max", a, f("neg", a)), lambda f, a: f("min", a, f("neg", a))),
    ]
    for first, second in pairs:
        assert not certify(program([(1, 1)], first), program([(1, 1)], second), seed=seed).equivalent


def test_max_laws() -> None:
    first = program(SQUARE, lambda f, a, b, c: f("max", f("max", a, b), f("max", c, a)))
    verdict = certify(first, program(SQUARE, lambda f, a, b, c: f("max", c, f("max", b, a))))
    assert verdict.certificate
    assert verdict.certificate.uninterpreted == ["max"]
    assert verdict.certificate.guarantee == "congruence"


class _FirstOperand(FormalField):
    """`max` weakened to its first operand."""

    def _join(self, kind: str, a: Any, b: Any) -> Any:
        return a


class _Forgetful(FormalField):
    """Uninterpreted operators weakened to one constant each."""

    def _uninterpreted(self, primitive: str, *operands: Any) -> Any:
        return self.move(lambda x: np.broadcast_to(x, operands[0].shape), self.constant(2.0))


@pytest.mark.parametrize(
    ("weak", "first", "second"),
    [
        (_FirstOperand, "max(a, b)", "a"),
        (_Forgetful, "erf(a)", "erf(b)"),
    ],
)
def test_the_tests_notice_weaker_operators(
    weak: type[FormalField], first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With either weakening a wrong pair passes: what the real field rejects, it rejects for that reason."""
    builds: dict[str, Build3] = {
        "max(a, b)": lambda f, a, b, c: f("max", a, b),
        "a": lambda f, a, b, c: f("mul", a, f.constant(1.0)),
        "erf(a)": lambda f, a, b, c: f("erf", a),
        "erf(b)": lambda f, a, b, c: f("erf", b),
    }
    pair = program(SQUARE, builds[first]), program(SQUARE, builds[second])
    assert not certify(*pair).equivalent
    monkeypatch.setattr(one_point, "FormalField", weak)
    assert certify(*pair).equivalent


# --- attention --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"), [("naive", "stable"), ("stable", "online"), ("naive", "online")]
)
def test_attention_variants_are_equal(first: str, second: str) -> None:
    verdict = certify(attention(first, 0.5), attention(second, 0.5, trips=4))
    assert verdict.certificate
    assert verdict.certificate.delta is not None
    assert verdict.certificate.delta <= 1e-9


def _region(graph: KernelGraph) -> BlockGraph:
    (body,) = (n.body for n in graph.nodes)
    assert isinstance(body, BlockGraph)
    return body


@pytest.mark.parametrize("variant", ["naive", "stable", "online"])
def test_wrong_normalisers_are_rejected(variant: str) -> None:
    wrong = attention(variant, 0.5)
    nodes = wrong.nodes if variant != "online" else _region(wrong).nodes
    total = next(n for n in reversed(nodes) if n.op == "reduce_sum")
    total.op = "reduce_mean"
    assert not certify(attention("naive", 0.5), wrong).equivalent


def test_rescaling_is_needed() -> None:
    wrong = attention("online", 0.5)
    for node in _region(wrong).nodes:
        if node.attrs.get("kind") == "rescaled":
            node.attrs["kind"], node.operands = "sum", node.operands[:1]
    assert not certify(attention("naive", 0.5), wrong).equivalent


# --- types, divisions, infinities, constants --------------------------------------------------------------


def _scores(f: Builder, c: Value, power: int) -> list[Value]:
    """Sums over queries of the shares of a softmax and their squares, as caches score their keys."""
    e = f("exp", c)
    share = f("div", e, f("reduce_sum", e, dims=(1,), keepdims=True))
    square = f("mul", share, share) if power == 2 else share
    return [f("reduce_sum", x, dims=(0,)) for x in (share, square)]


def _scores_by_hand(f: Builder, c: Value, power: int) -> list[Value]:
    """The same, of logits that are shifted, divided behind the product."""
    e = f("exp", f("add", c, f.constant(-1.0)))
    total = f("reduce_sum", e, dims=(1,), keepdims=True)
    square = f("div", f("div", f("mul", e, e), total), total) if power == 2 else f("div", e, total)
    return [f("reduce_sum", x, dims=(0,)) for x in (f("div", e, total), square)]


def test_squared_shares_of_several_queries_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each query has a denominator of its own, squared: multiplied out, two of 12 keys have 6,084 terms."""
    nothing_shrinks(monkeypatch)
    first, second = (program([(2, 12)], partial(of, power=2)) for of in (_scores, _scores_by_hand))
    certificate = certify(first, second).certificate
    assert certificate is not None
    assert certificate.delta is not None
    assert certificate.delta <= 1e-9
    assert all(t.piece is None for t in certificate.tests)  # one kernel cannot be cut
    assert replay(certificate) == []
    assert not certify(first, program([(2, 12)], partial(_scores_by_hand, power=1))).equivalent


def test_types_must_match() -> None:
    first = program([(4, 4)], lambda f, a: f("neg", a))
    for other in (
        program([(4, 4), (4, 4)], lambda f, a, b: f("neg", a)),
        program([(4, 2)], lambda f, a: f("neg", a)),
        program([(4, 4)], lambda f, a: [f("neg", a), a]),
        program([(4, 4)], lambda f, a: f("cast", f("neg", a), dtype="f16")),
    ):
        verdict = certify(first, other)
        assert not verdict.equivalent
        assert "expected" in str(verdict.counterexample)


def test_division_by_zero_everywhere_is_no_equivalence() -> None:
    first = program([(2, 2)], lambda f, a: f("div", a, f("sub", a, a)))
    second = program([(2, 2)], lambda f, a: f("div", f("neg", a), f("sub", a, a)))
    assert "denominator" in str(certify(first, second).counterexample)


def test_minus_infinity_is_neutral_for_max() -> None:
    first = program(SQUARE, lambda f, a, b, c: f("max", f.constant(-math.inf), f("max", a, b)))
    second = program(SQUARE, lambda f, a, b, c: f("max", b, a))
    third = program(SQUARE, lambda f, a, b, c: f("max", f.constant(math.inf), f("max", a, b)))
    assert certify(first, second).equivalent
    assert not certify(first, third).equivalent


def test_constants_are_exact() -> None:
    first = program([(2, 2)], lambda f, a: f("mul", a, f.constant(0.1)))
    second = program([(2, 2)], lambda f, a: f("div", a, f.constant(10.0)))
    third = program([(2, 2)], lambda f, a: f("mul", a, f.constant(0.25)))
    fourth = program([(2, 2)], lambda f, a: f("div", a, f.constant(4.0)))
    assert not certify(first, second).equivalent  # 0.1 is not a tenth
    assert certify(third, fourth).equivalent


def _extern(target: str, *operands: Value) -> Node:
    results = (Value(TensorType((4, 4), "f32")),)
    return Node("extern", operands, results, {"target": target, "reason": "no table operator"})


def test_extern_is_a_function_of_its_operands() -> None:
    def build(target: str, *, swap: bool = False, before: bool = False) -> KernelGraph:
        a, b = value(4, 4), value(4, 4)
        f = Builder()
        x = f("add", *((b, a) if before else (a, b)))
        f.nodes.append(_extern(target, b, x) if swap else _extern(target, x, b))
        return KernelGraph("main", [a, b], f.nodes, [f.nodes[-1].result])

    assert certify(build("cumsum"), build("cumsum", before=True)).equivalent
    assert not certify(build("cumsum"), build("cumprod")).equivalent
    assert not certify(build("cumsum"), build("cumsum", swap=True)).equivalent


# --- passes, and images -----------------------------------------------------------------------------------


def test_check_each() -> None:
    first, second = attention("naive", 0.5), attention("stable", 0.25)
    check_each(first, attention("stable", 0.5), "stabilize")
    with pytest.raises(NotEquivalent, match="expected 'stabilize' to give an equivalent program"):
        check_each(first, second, "stabilize")


@pytest.mark.parametrize("lattice", ["free", "order"])
def test_images_agree_on_equal_programs(lattice: Literal["free", "order"]) -> None:
    from superopt.verify.evaluate import evaluate

    field = ImageField(1, lattice=lattice)
    results: list[Any] = []
    for variant in ("naive", "stable", "online"):
        graph = attention(variant, 0.5)
        inputs = [field.random(i, v.shape) for i, v in enumerate(graph.inputs)]
        results += evaluate(graph, inputs, field)
    assert not field.differs(results[0], results[1]).any()
    assert not field.differs(results[0], results[2]).any()


# --- a program, its candidate and what that is lowered to, at once ----------------------------------------


@pytest.mark.parametrize("size", [4, 64])
def test_lowering_is_certified_with_the_candidate(size: int) -> None:
    from superopt.transforms.lower import lower
    from superopt.verify import certify_lowered

    shapes: list[tuple[int, ...]] = [(size, size)] * 3
    first = program(shapes, lambda f, a, b, c: f("exp", f("add", f("matmul", a, b), f("matmul", c, b))))
    second = program(shapes, lambda f, a, b, c: f("exp", f("matmul", f("add", c, a), b)))
    wrong = program(shapes, lambda f, a, b, c: f("exp", f("matmul", f("sub", c, a), b)))
    verdict, kept = certify_lowered(first, second, lower(second))
    assert kept.equivalent
    assert verdict == certify(first, second), "the certificate is the same, and replays"
    assert verdict.certificate is not None
    assert replay(verdict.certificate) == []
    verdict, kept = certify_lowered(first, second, lower(wrong))
    assert verdict.equivalent
    assert not kept.equivalent
    verdict, kept = certify_lowered(first, wrong, lower(second))
    assert not verdict.equivalent
    assert not kept.equivalent
    assert certify_lowered(first, wrong, lower(wrong)) == (certify(first, wrong), certify(first, wrong))


def test_each_of_several_is_judged_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """At full extents alone, where all are evaluated at one point."""
    from superopt.transforms.lower import lower
    from superopt.verify import certifier, certify_lowered

    monkeypatch.setattr(certifier, "FORMAL_WORK", 0)
    nothing_shrinks(monkeypatch)
    first = program(SQUARE, lambda f, a, b, c: f("max", f("exp", a), b))
    second = program(SQUARE, lambda f, a, b, c: f("max", b, f("exp", a)))
    undefined = program(SQUARE, lambda f, a, b, c: f("div", a, f("sub", b, b)))
    wrong = program(SQUARE, lambda f, a, b, c: f("max", b, a))
    verdict, kept = certify_lowered(first, second, lower(second))
    assert kept.equivalent
    assert verdict == certify(first, second)
    for other in (undefined, wrong):
        verdict, kept = certify_lowered(first, second, lower(other))
        assert verdict == certify(first, second)
        assert not kept.equivalent
        assert not certify_lowered(first, other, lower(other))[0].equivalent


# --- what programs have in common is computed once --------------------------------------------------------


def test_common_operators_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(f: Builder, x: Value, w: Value, v: Value) -> Value:
        return f("mul", f("matmul", x, w), f("matmul", x, v))

    def right(f: Builder, x: Value, w: Value, v: Value) -> Value:
        return f("mul", f("matmul", x, v), f("matmul", x, w))

    def swapped(f: Builder, x: Value, w: Value, v: Value) -> Value:
        return f("mul", f("matmul", x, v), f("matmul", x, v))

    calls: list[str] = []
    run = evaluate_module.evaluate_operator

    def counted(name: str, *rest: Any) -> Any:
        calls.append(name)
        return run(name, *rest)

    monkeypatch.setattr(evaluate_module, "evaluate_operator", counted)
    assert certify(program(SQUARE, left), program(SQUARE, right)).equivalent
    tests = calls.count("mul") // 2
    assert calls.count("matmul") == 2 * tests
    assert not certify(program(SQUARE, left), program(SQUARE, swapped)).equivalent


def test_what_only_the_others_assume_is_said_of_each_of_them() -> None:
    """The candidate and its lowered form compute the same `erf`, which the program does not: both assume it."""
    first = program(SQUARE, lambda f, a, b, c: f("add", a, b))

    def again(f: Builder, a: Value, b: Value, c: Value) -> Value:
        e = f("erf", c)
        return f("add", f("add", b, a), f("sub", e, e))

    second = program(SQUARE, again)
    third = program(SQUARE, lambda f, a, b, c: f("add", again(f, a, b, c), f("sub", c, c)))
    point = (0, 0, 0)
    outcomes = one_point.at_point(first, [second, third], "image", "full", point, "order", (P, Q), 0)
    assert [o.assumed for o in outcomes] == [frozenset({"erf"})] * 2
