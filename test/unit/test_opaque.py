"""Programs with opaque operations are compared without them: what that accepts, and what it must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from random_programs import Builder, value

from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.verify import certify, certify_lowered
from superopt.verify.certifier import replay
from superopt.verify.opaque import without_opaque


class Program(Builder):
    """Adds opaque operations."""

    def opaque(self, *operands: Value, of: str = "gather", shape: tuple[int, ...] = (4, 4)) -> Value:
        made = Value(TensorType(shape, "f32"))
        self.nodes.append(Node("extern", operands, (made,), {"target": of, "reason": "no table operator"}))
        return made


Make = Callable[[Program, Value, Value], "Value | list[Value]"]


def built(make: Make, shape: tuple[int, ...] = (4, 4)) -> KernelGraph:
    x, y, f = value(*shape), value(*shape), Program()
    outputs = make(f, x, y)
    return KernelGraph("main", [x, y], f.nodes, outputs if isinstance(outputs, list) else [outputs])


def softmax(f: Program, x: Value, *, shift: bool) -> Value:
    over: dict[str, Any] = {"dims": (1,), "keepdims": True}
    if shift:
        x = f("sub", x, f("reduce_max", x, **over))
    e = f("exp", x)
    return f("div", e, f("reduce_sum", e, **over))


def loss(f: Program, x: Value, y: Value, *, shift: bool, scale: float = 1.0) -> Value:
    """A softmax, an opaque operation, and what follows it."""
    taken = f.opaque(softmax(f, x, shift=shift), y, shape=(512, 4))
    return f("mul", f("log", taken), f.constant(scale))


def test_what_surrounds_an_opaque_operation_is_compared_at_reduced_extents() -> None:
    """Sixteen million numbers under maxima were too many, and there was no bound."""
    large = (512, 32000)
    first = built(lambda f, x, y: loss(f, x, y, shift=False), large)
    second = built(lambda f, x, y: loss(f, x, y, shift=True), large)
    certificate = certify(first, second).certificate
    assert certificate is not None
    assert certificate.delta is not None
    assert certificate.delta_extents == "reduced"
    assert certificate.guarantee == "congruence"
    assert any(name.startswith("gather") for name in certificate.uninterpreted)
    assert "results of opaque operations are inputs, and their operands outputs" in certificate.notes
    wrong = built(lambda f, x, y: loss(f, x, y, shift=True, scale=2.0), large)
    assert not certify(first, wrong).equivalent


def test_certificates_replay() -> None:
    first = built(lambda f, x, y: loss(f, x, y, shift=False), (512, 4))
    second, third = (built(lambda f, x, y: loss(f, x, y, shift=True), (512, 4)) for _ in range(2))
    alone = certify(first, second).certificate
    beside = certify_lowered(first, second, third)[0].certificate
    assert alone is not None
    assert beside is not None
    assert replay(alone) == replay(beside) == []


def second_less_first(f: Program, x: Value, y: Value) -> Value:
    a, b = f.opaque(f("add", x, y)), f.opaque(f("add", y, x))
    return f("sub", b, f("exp", a))


CASES: dict[str, tuple[bool, Make, Make]] = {
    "other operands": (
        False,
        lambda f, x, y: f.opaque(f("add", x, y)),
        lambda f, x, y: f.opaque(f("sub", x, y)),
    ),
    "operands in another order": (
        False,
        lambda f, x, y: f.opaque(x, y),
        lambda f, x, y: f.opaque(y, x),
    ),
    "another operation": (
        False,
        lambda f, x, y: f.opaque(x),
        lambda f, x, y: f.opaque(x, of="scatter"),
    ),
    "operands of another shape": (
        False,
        lambda f, x, y: f.opaque(x),
        lambda f, x, y: f.opaque(f("reshape", x, shape=(2, 8))),
    ),
    "results exchanged": (
        False,
        lambda f, x, y: [f.opaque(x), f.opaque(y)],
        lambda f, x, y: [f.opaque(x), f.opaque(y)][::-1],
    ),
    "one operation on what another one gives": (
        True,
        lambda f, x, y: f.opaque(f("exp", f.opaque(f("add", x, y)))),
        lambda f, x, y: f.opaque(f("exp", f.opaque(f("add", y, x)))),
    ),
    "operations in another order": (
        True,
        lambda f, x, y: f("add", f.opaque(x), f.opaque(f("exp", y))),
        lambda f, x, y: f("add", f.opaque(f("exp", y)), f.opaque(x)),
    ),
    "an operation more": (
        True,
        lambda f, x, y: f("add", f.opaque(x), f.opaque(x)),
        lambda f, x, y: f("mul", f.opaque(x), f.constant(2.0)),
    ),
    "equal operands, and results exchanged": (
        True,
        lambda f, x, y: f("sub", f.opaque(f("add", x, y)), f("exp", f.opaque(f("add", y, x)))),
        second_less_first,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_of_operands(name: str) -> None:
    equal, first, second = CASES[name]
    assert certify(built(first), built(second)).equivalent == equal
    assert certify(built(second), built(first)).equivalent == equal


def test_a_result_may_vanish_on_more_than_single_points() -> None:
    """An input times itself over itself is that input but at 0; an opaque result may be 0 anywhere."""

    def quotient(f: Program, r: Value) -> Value:
        return f("div", f("mul", r, r), r)

    assert certify(built(lambda f, x, y: x), built(lambda f, x, y: quotient(f, x))).equivalent
    first = built(lambda f, x, y: f.opaque(x))
    assert not certify(first, built(lambda f, x, y: quotient(f, f.opaque(x)))).equivalent


def test_a_lowered_program_that_exchanges_results_is_refused() -> None:
    same = [built(lambda f, x, y: [f.opaque(x), f.opaque(y)]) for _ in range(2)]
    wrong = built(lambda f, x, y: [f.opaque(x), f.opaque(y)][::-1])
    first, second = certify_lowered(same[0], same[1], wrong)
    assert first.equivalent
    assert not second.equivalent
    first, second = certify_lowered(same[0], wrong, wrong)
    assert not first.equivalent
    assert not second.equivalent


def test_operands_that_all_programs_share_are_no_outputs() -> None:
    """Such as a table of 10^8 numbers that rows are taken from."""
    first, second = map(built, CASES["one operation on what another one gives"][1:])
    cut = without_opaque(first, second)
    assert [(len(g.inputs), len(g.outputs), len(g.nodes)) for g in cut] == [(4, 3, 2)] * 2
    alike = without_opaque(*(built(lambda f, x, y: f.opaque(f.opaque(x), y)) for _ in range(2)))
    assert [(len(g.inputs), len(g.outputs)) for g in alike] == [(4, 1)] * 2
    assert without_opaque(built(lambda f, x, y: f("add", x, y))) == []


def test_a_lowered_program_may_share_results() -> None:
    """Then it alone is compared with opaque operations; what certifies the candidate is the same."""
    for name in ("an operation more", "equal operands, and results exchanged"):
        _, first, second = CASES[name]

        def twice_negated(f: Program, x: Value, y: Value, make: Make = first) -> Value:
            made = make(f, x, y)
            assert isinstance(made, Value)
            return f("neg", f("neg", made))

        verdicts = certify_lowered(built(first), built(twice_negated), built(second))
        assert all(v.equivalent for v in verdicts), name
        certificates = [v.certificate for v in verdicts]
        assert [c and replay(c) for c in certificates] == [[], []], name
