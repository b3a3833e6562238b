"""Infinities do not cancel: what is NaN on a GPU is no proof over a field."""

from __future__ import annotations

import numpy as np
import pytest
from programs import ALL_TEXTS

from superopt.dialects.reader import read
from superopt.program import KernelGraph
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.domains import Tensor
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
        ("mul", (0.0, -INF), UNDEFINED), ("div", (-INF, 4.0), MINUS), ("exp", (-INF,), FINITE), ("exp", (INF,), UNDEFINED),
        ("neg", (INF,), MINUS), ("sqrt", (INF,), UNDEFINED),
    ],
)  # fmt: skip
def test_arithmetic(domain: Extended, primitive: str, operands: tuple[float | str, ...], kind: int):
    x = domain.field.random(0, (3,))
    given = [x if o == "x" else domain.constant(float(o)) for o in operands]
    found = domain.apply(primitive, *given)
    assert set(kinds(found)) == {kind}
    if primitive in ("max", "min") and kind == FINITE:
        assert not domain.differs(found, x).any()
    if primitive == "exp" and kind == FINITE:
        assert not domain.differs(found, domain.constant(0.0)).any()


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


def test_undefined_stays_so_and_differs_from_every_number(domain: Extended):
    nothing = domain.apply("sub", domain.constant(-INF), domain.constant(-INF))
    still = domain.apply("mul", nothing, domain.constant(0.0))
    assert kinds(still) == [UNDEFINED]
    assert domain.differs(still, domain.constant(0.0)).all()
    assert not domain.differs(still, nothing).any()
