"""Verdicts and certificates: what other verifiers got wrong, attention in all variants, bounds, replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import pytest
from random_programs import Builder, attention, random_kernel, rewritten, value

from superopt.errors import BadInput, IllegalProgram, NotEquivalent
from superopt.program import BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.verify import Certificate, certify, check_each, program_hash
from superopt.verify import certifier as certifier_module
from superopt.verify import evaluate as evaluate_module
from superopt.verify import fields as fields_module
from superopt.verify.certifier import replay
from superopt.verify.fields import FormalField, ImageField
from superopt.verify.hashing import canonical_text, parse
from superopt.verify.reduce import reduce_extents, work

Built: TypeAlias = "Value | list[Value]"
Build1 = Callable[[Builder, Value], Built]
Build2 = Callable[[Builder, Value, Value], Built]
Build3 = Callable[[Builder, Value, Value, Value], Built]


def program(types: list[tuple[int, ...]], build: Build1 | Build2 | Build3) -> KernelGraph:
    """The program that `build(builder, *inputs)` writes."""
    inputs, b = [value(*shape) for shape in types], Builder()
    outputs: Built = cast(Any, build)(b, *inputs)
    return KernelGraph("main", inputs, b.nodes, outputs if isinstance(outputs, list) else [outputs])


SQUARE = [(4, 4)] * 3


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
        (_Forgetful, "sqrt(a)", "sqrt(b)"),
    ],
)
def test_the_tests_notice_weaker_operators(
    weak: type[FormalField], first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With either weakening a wrong pair passes: what the real field rejects, it rejects for that reason."""
    builds: dict[str, Build3] = {
        "max(a, b)": lambda f, a, b, c: f("max", a, b),
        "a": lambda f, a, b, c: f("mul", a, f.constant(1.0)),
        "sqrt(a)": lambda f, a, b, c: f("sqrt", a),
        "sqrt(b)": lambda f, a, b, c: f("sqrt", b),
    }
    pair = program(SQUARE, builds[first]), program(SQUARE, builds[second])
    assert not certify(*pair).equivalent
    monkeypatch.setattr(certifier_module, "FormalField", weak)
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


# --- bounds -----------------------------------------------------------------------------------------------


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
    """e^(e^x e^y) against e^(e^(x + y)): equal arguments, so equal, but the whole has no bound."""
    first = program(SQUARE, lambda f, a, b, c: f("exp", f("mul", f("exp", a), f("exp", b))))
    second = program(SQUARE, lambda f, a, b, c: f("exp", f("exp", f("add", a, b))))
    certificate = certify(first, second).certificate
    assert certificate
    assert certificate.uninterpreted == ["second exp on a path"]
    assert certificate.tests[0].delta is None
    assert all(t.piece is not None for t in certificate.tests[1:]), "a bound from pieces alone"
    assert certificate.notes
    other = program(SQUARE, lambda f, a, b, c: f("exp", f("exp", f("add", a, c))))
    assert not certify(first, other).equivalent


def test_a_cap_on_terms_costs_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certifier_module, "FormalField", partial(FormalField, cap=3))
    certificate = certify(attention("naive", 0.5), attention("stable", 0.5)).certificate
    assert certificate
    assert certificate.delta is None
    monkeypatch.undo()
    assert certify(attention("naive", 0.5), attention("stable", 0.5)).certificate.delta  # type: ignore[union-attr]


def test_programs_may_outgrow_the_cap_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program adds what exceeds the cap and takes it away again, the other never has it."""
    monkeypatch.setattr(certifier_module, "FormalField", partial(FormalField, cap=2))

    def there_and_back(f: Builder, a: Value, b: Value, c: Value) -> Value:
        x, y, z = (f("exp", v) for v in (a, b, c))
        return f("sub", f("add", f("add", x, y), z), z)

    first = program(SQUARE, there_and_back)
    second = program(SQUARE, lambda f, a, b, c: f("add", f("exp", b), f("exp", a)))
    third = program(SQUARE, lambda f, a, b, c: f("add", f("exp", b), f("exp", c)))
    assert certify(first, second).equivalent
    assert not certify(first, third).equivalent


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


# --- extents ----------------------------------------------------------------------------------------------


def _gated(f: Builder, x: Value, w: Value, v: Value) -> Value:
    return f("mul", f("silu", f("matmul", x, w)), f("matmul", x, v))


def _gated_otherwise(f: Builder, x: Value, w: Value, v: Value) -> Value:
    h, g = f("matmul", x, w), f("matmul", x, v)
    e = f("exp", h)
    return f("div", f("mul", f("mul", g, h), e), f("add", e, f.constant(1.0)))


LARGE = [(8, 512), (512, 384), (512, 384)]


def test_large_programs_are_tested_at_both_extents() -> None:
    certificate = certify(program(LARGE, _gated), program(LARGE, _gated_otherwise)).certificate
    assert certificate
    assert [(t.kind, t.extents) for t in certificate.tests] == [("formal", "reduced"), ("image", "full")]
    assert certificate.tests[0].inputs == [(2, 2), (2, 2), (2, 2)]
    assert (certificate.delta_extents, certificate.guarantee) == ("reduced", "bound")


def test_a_constant_may_stand_for_an_extent(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = [(4, 4096)]
    first = program(shape, lambda f, x: f("reduce_mean", x, dims=(1,)))

    def by(count: float, times: float = 1.0, op: str = "div") -> KernelGraph:
        return program(
            shape,
            lambda f, x: f(
                op, f("reduce_sum", f("mul", x, f.constant(times)), dims=(1,)), f.constant(count, (1,))
            ),
        )

    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 1000)
    for right in (by(4096.0), by(2.0**-12, op="mul")):
        certificate = certify(first, right).certificate
        assert certificate
        # All extents reduced they differ; with the number reduced too they do not.
        assert [t.extents for t in certificate.tests] == ["reduced", "full"]
        assert "numbers that a mean divides by were reduced with its extent" in certificate.notes
        assert certificate.delta is not None
        assert certificate.delta < 1e-9
        assert not replay(certificate)
    # Right at the reduced extents, wrong at the full ones; right where 4096 is 2, but not where it is not.
    for wrong in (by(2.0), by(4096.0, times=2.0), by(4095.0), by(4096.0, op="mul")):
        assert not certify(first, wrong).equivalent
    by_other = certify(first, by(4096.0 * 64, times=64.0)).certificate
    assert by_other
    assert [t.extents for t in by_other.tests] == ["full"]


def test_reduction_keeps_every_boundary() -> None:
    plain = program([(64, 512), (512, 384)], lambda f, x, w: f("matmul", x, w))

    def tiled(f: Builder, x: Value, w: Value) -> Value:
        def region(b: Builder, p: Value, q: Value) -> None:
            left = b.raw("iterator", [p], (16, 32), imap=(0, -1), fmap=(1,))
            right = b.raw("iterator", [q], (32, 64), imap=(-1, 1), fmap=(0,))
            part = b("matmul", left, right)
            b.save(b.raw("accumulate", [part], part.shape, kind="sum", loop=0), 0, 1)

        return f.custom((4, 6), (16,), [x, w], (64, 384), region)

    block = program([(64, 512), (512, 384)], tiled)
    pair = reduce_extents(plain, block)
    assert pair
    body: Any = pair[1].nodes[0].body
    assert (body.grid, body.loops) == ((2, 2), (2,))
    assert [v.shape for v in pair[0].inputs] == [(4, 4), (4, 4)]
    assert work(pair[1]) < work(block) / 1000
    assert certify(plain, block).equivalent


def test_reduction_through_views() -> None:
    def views(f: Builder, x: Value) -> Value:
        heads = f("transpose", f("reshape", x, shape=(16, 8, 64)), perm=(1, 0, 2))
        halves = [f("slice", heads, offsets=(0, 0, o), sizes=(8, 16, 32), strides=(1, 1, 1)) for o in (0, 32)]
        turned = f("concat", f("neg", halves[1]), halves[0], dim=2)
        return f("repeat", turned, dim=0, times=3)

    graph = program([(16, 512)], views)
    pair = reduce_extents(graph, parse(canonical_text(graph)))
    assert pair
    assert pair[0].inputs[0].shape == (2, 8)  # 16; 8 heads; 2 halves, fixed; 32
    assert pair[0].outputs[0].shape == (4, 2, 4)


def test_slices_keep_their_place() -> None:
    """The last of four blocks, which only exists where there are four."""
    graph = program([(128, 6)], lambda f, x: f("slice", x, offsets=(96, 0), sizes=(32, 6), strides=(1, 1)))
    pair = reduce_extents(graph, parse(canonical_text(graph)))
    assert pair
    assert pair[0].inputs[0].shape == (8, 2)
    assert pair[0].nodes[0].attrs["offsets"] == (6, 0)
    assert pair[0].nodes[0].attrs["sizes"] == (2, 2)


def test_cuts_that_do_not_fit_are_not_reduced() -> None:
    def cut(rows: int) -> KernelGraph:
        return program(
            [(12, 5)], lambda f, x: f("reshape", f("reshape", x, shape=(rows, 60 // rows)), shape=(60,))
        )

    assert reduce_extents(cut(10), cut(12)) is None


# --- certificates -----------------------------------------------------------------------------------------


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


def test_check_each() -> None:
    first, second = attention("naive", 0.5), attention("stable", 0.25)
    check_each(first, attention("stable", 0.5), "stabilize")
    with pytest.raises(NotEquivalent, match="expected 'stabilize' to give an equivalent program"):
        check_each(first, second, "stabilize")


def test_too_many_leaves_under_max_cost_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields_module, "MOST_LEAVES", 4)
    certificate = certify(attention("naive", 0.5), attention("online", 0.5)).certificate
    assert certificate
    assert certificate.delta is None


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


# --- a program, its candidate and what that is lowered to, at once ------------------------------------------


@pytest.mark.parametrize("size", [4, 64])
def test_lowering_is_certified_with_the_candidate(size: int) -> None:
    from superopt.transforms.lower import lower
    from superopt.verify import certify_lowered

    shapes: list[tuple[int, ...]] = [(size, size)] * 3
    first = program(shapes, lambda f, a, b, c: f("exp", f("add", f("matmul", a, b), f("matmul", c, b))))
    second = program(shapes, lambda f, a, b, c: f("exp", f("matmul", f("add", c, a), b)))
    wrong = program(shapes, lambda f, a, b, c: f("exp", f("matmul", f("sub", c, a), b)))
    verdict, kept = certify_lowered(first, second, lower(second))
    assert kept
    assert verdict == certify(first, second), "the certificate is the same, and replays"
    assert verdict.certificate is not None
    assert replay(verdict.certificate) == []
    verdict, kept = certify_lowered(first, second, lower(wrong))
    assert verdict.equivalent
    assert not kept
    verdict, kept = certify_lowered(first, wrong, lower(second))
    assert not verdict.equivalent
    assert not kept
    assert certify_lowered(first, wrong, lower(wrong)) == (certify(first, wrong), False)


def test_each_of_several_is_judged_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """At full extents alone, where all are evaluated at one point."""
    from superopt.transforms.lower import lower
    from superopt.verify import certifier, certify_lowered

    monkeypatch.setattr(certifier, "FORMAL_WORK", 0)
    monkeypatch.setattr(certifier, "reduce_extents", _irreducible)
    first = program(SQUARE, lambda f, a, b, c: f("max", f("exp", a), b))
    second = program(SQUARE, lambda f, a, b, c: f("max", b, f("exp", a)))
    undefined = program(SQUARE, lambda f, a, b, c: f("div", a, f("sub", b, b)))
    wrong = program(SQUARE, lambda f, a, b, c: f("max", b, a))
    verdict, kept = certify_lowered(first, second, lower(second))
    assert kept
    assert verdict == certify(first, second)
    for other in (undefined, wrong):
        assert certify_lowered(first, second, lower(other)) == (certify(first, second), False)
        assert not certify_lowered(first, other, lower(other))[0].equivalent


def _irreducible(a: KernelGraph, b: KernelGraph, *, numbers: bool = False, most_work: int = 0) -> None:
    return None


# --- large programs: two blocks along each dimension of the grids -----------------------------------------


def mean_of_products(divisor: float, *, cut: int) -> KernelGraph:
    """X W summed over 256 columns and divided by a number, by `cut` blocks of rows."""
    inputs = [value(64, 256), value(256, 16)]
    rows = 64 // cut
    tiles = [
        Value(TensorType(shape, "f32")) for shape in [(rows, 256), (256, 16), (rows, 16), (), (rows, 16)]
    ]
    result = Value(TensorType((64, 16), "f32"))
    nodes = [
        Node("iterator", (inputs[0],), (tiles[0],), {"imap": (0,), "fmap": ()}),
        Node("iterator", (inputs[1],), (tiles[1],), {"imap": (-1,), "fmap": ()}),
        Node("matmul", (tiles[0], tiles[1]), (tiles[2],), {"transpose_b": False}),
        Node("constant", (), (tiles[3],), {"value": divisor, "shape": (), "dtype": "f32"}),
        Node("div", (tiles[2], tiles[3]), (tiles[4],)),
        Node("save", (tiles[4],), (), {"omap": (0,)}),
    ]
    body = BlockGraph((cut,), (), inputs, nodes)
    return KernelGraph("main", inputs, [Node("custom", tuple(inputs), (result,), body=body)], [result])


def plain_mean_of_products(divisor: float) -> KernelGraph:
    def build(f: Builder, x: Value, w: Value) -> Value:
        return f("div", f("matmul", x, w), f.constant(divisor))

    return program([(64, 256), (256, 16)], build)


@pytest.mark.parametrize("limit", ["BLOCKS_WORK", "BLOCKS_ELEMENTS"])
def test_a_large_program_is_compared_on_a_few_of_its_blocks(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    monkeypatch.setattr(certifier_module, limit, 1)
    verdict = certify(plain_mean_of_products(256.0), mean_of_products(256.0, cut=16))
    assert verdict.certificate is not None
    last = verdict.certificate.tests[-1]
    assert (last.extents, last.inputs) == ("blocks", [(8, 256), (256, 16)])  # sums keep their extent
    assert "two blocks a grid dimension" in verdict.certificate.summary
    assert not replay(verdict.certificate)


def test_sums_stay_whole_on_a_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean is a division by the extent of its sum: where that shrank, the wrong number would be right."""
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    monkeypatch.setattr(certifier_module, "BLOCKS_WORK", 1)
    monkeypatch.setattr(certifier_module, "reduce_extents", _irreducible)  # what follows decides alone

    def mean(f: Builder, x: Value) -> Value:
        return f("reduce_mean", x, dims=(1,), keepdims=True)

    for divisor, right in ((256.0, True), (2.0, False), (255.0, False)):
        verdict = certify(program([(64, 256)], mean), blockwise_mean(divisor))
        assert verdict.equivalent == right
        tested = verdict.certificate.tests[-1] if verdict.certificate else verdict.counterexample
        assert tested is not None
        assert (tested.extents, tested.inputs) == ("blocks", [(8, 256)])


def test_of_library_operators_alone_some_elements_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they reduce, and divide by, is as long as ever."""
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    monkeypatch.setattr(certifier_module, "BLOCKS_WORK", 1)
    monkeypatch.setattr(certifier_module, "reduce_extents", _irreducible)

    def mean(f: Builder, x: Value, w: Value) -> Value:
        return f("reduce_mean", f("matmul", x, w), dims=(1,), keepdims=True)

    for divisor, right in ((64.0, True), (2.0, False), (63.0, False)):

        def otherwise(f: Builder, x: Value, w: Value, divisor: float = divisor) -> Value:
            total = f("reduce_sum", w, dims=(1,), keepdims=True)
            return f("div", f("matmul", x, total), f.constant(divisor))

        verdict = certify(program([(32, 256), (256, 64)], mean), program([(32, 256), (256, 64)], otherwise))
        assert verdict.equivalent == right
        tested = verdict.certificate.tests[-1] if verdict.certificate else verdict.counterexample
        assert tested is not None
        assert (tested.extents, tested.inputs) == ("blocks", [(2, 256), (256, 64)])


def blockwise_mean(divisor: float) -> KernelGraph:
    """The rows' sums divided by a number, by 16 blocks of rows."""
    (x,) = inputs = [value(64, 256)]
    tile, total, number, mean = (Value(TensorType(shape, "f32")) for shape in [(4, 256), (4, 1), (), (4, 1)])
    result = Value(TensorType((64, 1), "f32"))
    nodes = [
        Node("iterator", (x,), (tile,), {"imap": (0,), "fmap": ()}),
        Node("reduce_sum", (tile,), (total,), {"dims": (1,), "keepdims": True}),
        Node("constant", (), (number,), {"value": divisor, "shape": (), "dtype": "f32"}),
        Node("div", (total, number), (mean,)),
        Node("save", (mean,), (), {"omap": (0,)}),
    ]
    body = BlockGraph((16,), (), inputs, nodes)
    return KernelGraph("main", inputs, [Node("custom", (x,), (result,), body=body)], [result])


def test_too_many_exponentials_leave_the_test_at_full_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    def formal(point: Any, lattice: Any) -> FormalField:
        return FormalField(point, lattice=lattice, work=5)

    monkeypatch.setattr(certifier_module, "FormalField", formal)
    first, second = program(LARGE, _gated), program(LARGE, _gated_otherwise)
    certificate = certify(first, second).certificate
    assert certificate
    assert [(t.kind, t.extents) for t in certificate.tests] == [("image", "full")]
    assert certificate.delta is None
    assert "too many exponentials" in " ".join(certificate.notes)
    wrong = program(LARGE, lambda f, x, w, v: f("neg", _gated(f, x, w, v)))
    assert not certify(first, wrong).equivalent


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
    outcomes = certifier_module._at_point(first, [second, third], "image", "full", point, "order")  # type: ignore[reportPrivateUsage]
    assert [o.assumed for o in outcomes] == [frozenset({"erf"})] * 2
