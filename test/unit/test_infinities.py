"""Infinities do not cancel: what is NaN on a GPU is no proof over a field."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from certify_support import program
from programs import ALL_TEXTS
from random_programs import Builder

from superopt.dialects.reader import read
from superopt.program import KernelGraph, Value
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.checker import compare
from superopt.verify.domains import Array, FloatDomain, Tensor
from superopt.verify.evaluate import evaluate
from superopt.verify.fields import FormalField, ImageField
from superopt.verify.hashing import canonical_text, parse
from superopt.verify.infinities import Extended

INF = float("inf")


def online() -> tuple[KernelGraph, str]:
    graph = read(ALL_TEXTS["attention_online"])
    return graph, canonical_text(lower(graph))


def test_the_running_maximum_starts_at_minus_infinity():
    graph, text = online()
    assert '"float":"-inf"' in text
    assert certify(graph, parse(text)).equivalent


@pytest.mark.parametrize(
    "fault",
    [
        ('"float":"-inf"', '"float":"inf"'),
        ('["compute","max",', '["compute","min",'),
        ('["compute","max",', '["compute","sub",'),
        ('["compute","max",', '["compute","add",'),
    ],
    ids=["a start at plus infinity", "a minimum", "a difference", "a sum"],
)
def test_faults_of_the_running_maximum_are_killed_by_the_certifier(fault: tuple[str, str]):
    """A softmax does not depend on what is subtracted: with unknowns that cancel, these would be equal."""
    graph, text = online()
    assert fault[0] in text
    assert not certify(graph, parse(text.replace(*fault))).equivalent


@pytest.fixture(params=[ImageField, FormalField])
def domain(request: pytest.FixtureRequest) -> Extended:
    return Extended(request.param((1, 2, 3)))


def kinds(t: Tensor) -> list[int]:
    return (t.planes[0] >> np.uint64(62)).ravel().tolist()


FINITE, MINUS, PLUS, UNDEFINED = 0, 1, 2, 3


@pytest.mark.parametrize(
    ("primitive", "operands", "kind"),
    [
        ("max", (-INF, "x"), FINITE), ("max", (INF, "x"), PLUS), ("min", ("x", INF), FINITE), ("min", ("x", -INF), MINUS),
        ("max", (-INF, -INF), MINUS), ("add", (-INF, "x"), MINUS), ("sub", ("x", -INF), PLUS), ("sub", (-INF, -INF), UNDEFINED),
        ("add", (INF, -INF), UNDEFINED), ("mul", (-INF, 0.5), MINUS), ("mul", (-2.0, -INF), PLUS), ("mul", (-INF, "x"), UNDEFINED),
        ("mul", (0.0, -INF), UNDEFINED), ("div", (-INF, 4.0), MINUS), ("exp", (-INF,), FINITE), ("exp", (INF,), PLUS),
        ("neg", (INF,), MINUS), ("sqrt", (INF,), PLUS), ("sqrt", (-INF,), UNDEFINED), ("log", (INF,), PLUS),
        ("log", (-INF,), UNDEFINED), ("log", (0.0,), MINUS), ("log", (-2.0,), UNDEFINED), ("sqrt", (-2.0,), UNDEFINED),
        ("sqrt", (0.0,), FINITE), ("erf", (-INF,), FINITE), ("sin", (INF,), UNDEFINED), ("mul", (-INF, -INF), PLUS),
        ("mul", (INF, -INF), MINUS), ("div", ("x", -INF), FINITE), ("div", (INF, -INF), UNDEFINED),
        ("div", (INF, "x"), UNDEFINED), ("div", (INF, -0.5), MINUS), ("pow", (INF, 1.5), PLUS), ("pow", (INF, -1.5), FINITE),
        ("pow", (-INF, 1.5), UNDEFINED), ("pow", (0.0, -1.5), UNDEFINED), ("pow", (-2.0, 1.5), UNDEFINED),
        ("pow", (INF, INF), UNDEFINED), ("pow", (INF, -INF), UNDEFINED), ("pow", (2.0, INF), UNDEFINED),
    ],
)  # fmt: skip
def test_arithmetic(domain: Extended, primitive: str, operands: tuple[float | str, ...], kind: int):
    x = domain.field.random(0, (3,))
    given = [x if o == "x" else domain.constant(float(o)) for o in operands]
    found = domain.apply(primitive, *given)
    assert set(kinds(found)) == {kind}
    if primitive in ("max", "min") and kind == FINITE:
        assert not domain.differs(found, x).any()
    limits = {"exp": 0.0, "div": 0.0, "pow": 0.0, "erf": -1.0}
    if kind == FINITE and primitive in limits:
        assert not domain.differs(found, domain.constant(np.full(found.shape, limits[primitive]))).any()


def test_reductions_and_products(domain: Extended):
    mixed = domain.constant(np.array([[-INF, 1.0], [-INF, -INF], [2.0, 3.0], [INF, -INF]]))
    assert kinds(domain.reduce("max", mixed)) == [FINITE, MINUS, FINITE, PLUS]
    assert kinds(domain.reduce("add", mixed)) == [MINUS, MINUS, FINITE, UNDEFINED]
    assert not domain.differs(domain.reduce("add", mixed), domain.constant(np.array([-INF, -INF, 5.0, 0.0])))[
        :3
    ].any()
    rows = domain.move(lambda x: x[None], mixed)
    columns = domain.field.random(1, (1, 2, 1))
    assert kinds(domain.contract(rows, columns)) == [UNDEFINED, UNDEFINED, FINITE, UNDEFINED]


def test_signs_of_what_is_made_of_constants_are_known(domain: Extended):
    half = domain.apply("div", domain.constant(4.0), domain.apply("sqrt", domain.constant(64.0)))
    assert set(kinds(domain.apply("mul", domain.constant(-INF), half))) == {MINUS}
    mixed = domain.move(lambda x, y: np.stack([x, y]), half, domain.constant(-3.0))
    assert kinds(domain.apply("mul", domain.constant(-INF), mixed)) == [MINUS, PLUS]
    nothing = domain.apply(
        "sub", domain.apply("add", domain.constant(0.1), domain.constant(0.2)), domain.constant(0.3)
    )
    assert kinds(domain.apply("mul", domain.constant(-INF), nothing)) == [UNDEFINED]


def test_signs_that_rounding_hides_are_not_known(domain: Extended):
    """Both are negative, and positive if constants are folded in fp64."""
    constant, apply = domain.constant, domain.apply
    product = apply("mul", constant(1.1), constant(1.51))
    left = apply("sub", apply("sub", product, constant(1.6609999958000004)), constant(4.199999848353286e-09))
    wave = apply("sin", apply("mul", constant(0.3), constant(1e17)))
    for number in (left, wave):
        assert kinds(apply("mul", number, constant(INF))) == [3]
    for number in (apply("exp", constant(-60.0)), apply("mul", constant(1e-16), constant(1e-16))):
        assert kinds(apply("mul", apply("mul", number, constant(3.0)), constant(INF))) == [2]


def test_undefined_stays_so_and_is_equal_to_nothing(domain: Extended):
    nothing = domain.apply("sub", domain.constant(-INF), domain.constant(-INF))
    still = domain.apply("mul", nothing, domain.constant(0.0))
    assert kinds(still) == [UNDEFINED]
    assert domain.differs(still, domain.constant(0.0)).all()
    assert domain.differs(still, nothing).all()
    assert domain.differs(nothing, nothing).all()
    assert domain.undefined(domain.opaque("f", [nothing], [(2,)])[0]).all()


# --- programs with masks ------------------------------------------------------------------------------------

N = 4
TRIANGLE = np.where(np.tril(np.ones((N, N))) > 0, 0.0, -INF)
MASKS: dict[str, Array] = {
    "causal": TRIANGLE,
    "padding": np.where(np.arange(N) < 2, 0.0, -INF)[None, :].repeat(N, 0),
    "a row": np.where(np.arange(N) == 1, -INF, 0.0)[:, None].repeat(N, 1),
    "upwards": np.where(TRIANGLE < 0, INF, 0.0),
    "both": np.where(TRIANGLE < 0, -INF, np.where(np.arange(N) == 0, INF, 1.0)),
}


def _softmax(b: Builder, x: Value, *, shift: bool) -> Value:
    if shift:
        x = b("sub", x, b("reduce_max", x, dims=(1,), keepdims=True))
    e = b("exp", x)
    return b("div", e, b("reduce_sum", e, dims=(1,), keepdims=True))


# What becomes of masked logits x; (form, another one that is equal where both are defined).
Form = Callable[[Builder, Value, Value], Value]
FORMS: dict[str, tuple[Form, Form]] = {
    op: (lambda b, x, w, op=op: b(op, x), lambda b, x, w, op=op: b("neg", b("neg", b(op, x))))
    for op in ("sigmoid", "tanh", "erf", "reciprocal", "exp", "relu", "silu", "gelu", "square", "sqrt", "sin")
}
FORMS.update({
    "softmax": (lambda b, x, w: _softmax(b, x, shift=True), lambda b, x, w: _softmax(b, x, shift=False)),
    "softmax times input": (
        lambda b, x, w: _softmax(b, b("mul", x, w), shift=True), lambda b, x, w: _softmax(b, b("mul", w, x), shift=False),
    ),
    "softmax over input": (
        lambda b, x, w: _softmax(b, b("div", x, w), shift=True), lambda b, x, w: _softmax(b, b("div", x, w), shift=False),
    ),
    "scaled": (
        lambda b, x, w: b("exp", b("mul", b.constant(0.125), x)), lambda b, x, w: b("exp", b("div", x, b.constant(8.0))),
    ),
    "turned": (lambda b, x, w: b("exp", b("neg", x)), lambda b, x, w: b("exp", b("mul", b.constant(-1.0), x))),
    "difference": (lambda b, x, w: b("sub", x, x), lambda b, x, w: b("sub", w, w)),
    "quotient": (lambda b, x, w: b("div", x, x), lambda b, x, w: b("div", w, w)),
    "an input over it": (lambda b, x, w: b("div", w, x), lambda b, x, w: b("mul", w, b("div", b.constant(1.0), x))),
    "itself": (lambda b, x, w: x, lambda b, x, w: b("max", x, x)),
    "root of its sigmoid": (lambda b, x, w: b("sqrt", b("sigmoid", x)), lambda b, x, w: b("sqrt", b("sigmoid", b("max", x, x)))),
})  # fmt: skip


def _masked(
    form: Form, mask: Array, *, product: bool, turned: bool = False, other: bool = False
) -> KernelGraph:
    def build(b: Builder, s: Value, v: Value, w: Value) -> Value:
        m = b("constant", value=mask, shape=(N, N), dtype="f32")
        y = form(b, b("add", m, s) if turned else b("add", s, m), w)
        return b("matmul", y, w if other else v) if product else b("mul", y, w if other else v)

    return program([(N, N)] * 3, build)


def _undefined(graph: KernelGraph) -> bool:
    """Whether IEEE arithmetic makes a NaN of positive inputs."""
    domain = FloatDomain()
    inputs = [np.random.default_rng(i).uniform(0.5, 1.5, (N, N)) for i in range(3)]
    return any(
        np.isnan(t.planes[0]).any() for t in evaluate(graph, [domain.tensor(x) for x in inputs], domain)
    )


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_masked_programs_are_equal_only_where_they_are_defined(form: str, mask: str):
    """Against numpy: a NaN is refused, by the certifier and the checker alike, and a difference always."""
    first, second = FORMS[form]
    for product in (False, True):
        a = _masked(first, MASKS[mask], product=product)
        b = _masked(second, MASKS[mask], product=product, turned=True)
        wrong = _masked(second, MASKS[mask], product=product, other=True)
        undefined = _undefined(a) or _undefined(b)
        verdict, compared = certify(a, b), compare(canonical_text(a), canonical_text(b), elements=16)
        assert not (undefined and verdict.equivalent)
        assert verdict.equivalent == (compared.different is None)
        assert compared.undefined <= (verdict.counterexample is not None)
        if not verdict.equivalent:
            assert "program is undefined" in str(verdict.counterexample)
        assert not certify(a, wrong).equivalent
        assert compare(canonical_text(a), canonical_text(wrong), elements=16).different is not None


@pytest.mark.parametrize(
    "form",
    ["sigmoid", "tanh", "erf", "exp", "relu", "softmax", "scaled", "reciprocal", "root of its sigmoid"],
)
def test_masked_programs_that_have_limits_are_proved(form: str):
    """Whichever of the two is the program: what the other one divides by vanishes nowhere, though zeros are added."""
    for product in (False, True):
        pair = [
            _masked(f, TRIANGLE, product=product, turned=t)
            for f, t in zip(FORMS[form], (False, True), strict=True)
        ]
        for either in (pair, pair[::-1]):
            assert certify(*either).equivalent
            assert compare(*map(canonical_text, either), elements=16).different is None


@pytest.mark.parametrize(
    "form", ["silu", "gelu", "difference", "quotient", "softmax times input", "softmax over input"]
)
def test_masked_programs_that_have_none_are_not(form: str):
    pair = [_masked(f, TRIANGLE, product=True) for f in FORMS[form]]
    verdict = certify(*pair)
    assert verdict.counterexample is not None
    assert "the first program is undefined" in verdict.counterexample.reason
    assert compare(*map(canonical_text, pair)).undefined


def test_where_only_the_second_is_undefined_it_is_named():
    def good(b: Builder, s: Value, v: Value, w: Value) -> Value:
        return b("mul", v, w)

    def lost(b: Builder, s: Value, v: Value, w: Value) -> Value:
        m = b("constant", value=TRIANGLE, shape=(N, N), dtype="f32")
        return b("add", b("mul", v, w), b("sub", m, m))

    verdict = certify(program([(N, N)] * 3, good), program([(N, N)] * 3, lost))
    assert verdict.counterexample is not None
    assert "the second program is undefined" in verdict.counterexample.reason
