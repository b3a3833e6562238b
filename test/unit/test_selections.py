"""Selections by comparisons: what is selected in floats, in fields and by the checker, and what nobody may assume."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from superopt.errors import NotEquivalent, UnsupportedProgram
from superopt.operators import infer_type
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.checker import compare
from superopt.verify.checker.algebra import Algebra
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.fields import FormalField, ImageField
from superopt.verify.hashing import canonical_text
from superopt.verify.infinities import Extended
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ttir import verify_ttir
from superopt.verify.ttir.artifact import kernel_texts

SIGNS = np.array([-2.0, 0.0, 1.0, 3.0])
FIELDS = [ImageField, FormalField]


class Program:
    """A kernel graph of operators on inputs of one shape."""

    def __init__(self, inputs: int, shape: tuple[int, ...] = (4, 8), dtype: str = "f32") -> None:
        self.type = TensorType(shape, dtype)
        self.inputs = [Value(self.type, f"x{i}") for i in range(inputs)]
        self.nodes: list[Node] = []

    def __call__(self, op: str, *xs: Value, **attrs: Attr) -> Value:
        result = Value(infer_type(op, [x.type for x in xs], attrs))
        self.nodes.append(Node(op, xs, (result,), attrs))
        return result

    def number(self, value: float) -> Value:
        return self("constant", value=value, shape=(), dtype=self.type.dtype)

    def graph(self, *outputs: Value) -> KernelGraph:
        return KernelGraph("main", self.inputs, self.nodes, list(outputs))


@pytest.mark.parametrize("field", FIELDS)
def test_a_known_comparison_selects_exactly(field: type[ImageField]) -> None:
    domain = Extended(field(1))
    x, hidden = domain.field.random("x", (4,)), domain.constant(-np.inf)
    t = domain.constant(SIGNS)
    expected = domain.move(lambda a, b: np.where(SIGNS > 0, a, b), x, domain.apply("neg", x))
    assert not domain.differs(domain.apply("where", t, x, domain.apply("neg", x)), expected).any()
    masked = domain.apply("where", t, x, hidden)
    assert not domain.differs(
        domain.apply("exp", masked), domain.apply("where", t, domain.apply("exp", x), domain.constant(0.0))
    ).any()
    lost = domain.apply("sub", hidden, hidden)
    assert list(domain.undefined(domain.apply("where", t, lost, x))) == list(SIGNS > 0)
    assert list(domain.undefined(domain.apply("where", t, x, lost))) == list(SIGNS <= 0)


@pytest.mark.parametrize("field", FIELDS)
def test_an_unknown_comparison_selects_by_an_unknown(field: type[ImageField]) -> None:
    domain = Extended(field(1))
    t, x, y = (domain.field.random(name, (4,)) for name in "txy")
    hidden = domain.constant(-np.inf)
    both = domain.apply("add", domain.apply("where", t, x, y), domain.apply("where", t, y, x))
    assert not domain.differs(both, domain.apply("add", x, y)).any()
    assert domain.differs(domain.apply("where", t, x, y), domain.apply("where", x, x, y)).all()
    assert domain.differs(domain.apply("where", t, x, y), x).all()
    assert domain.undefined(domain.apply("where", t, x, hidden)).all()  # nobody knows which
    assert not domain.undefined(domain.apply("where", t, hidden, hidden)).any()
    with pytest.raises(UnsupportedProgram, match="defined everywhere"):
        domain.apply("where", t, domain.apply("log", x), y)


@pytest.mark.parametrize("field", FIELDS)
def test_a_truth_value_decides_by_itself(field: type[ImageField]) -> None:
    """step(s) = s and step(1 - s) = 1 - s for s = step(t), and of nothing else."""
    domain = field(1)
    t, x, y = (domain.random(name, (4,)) for name in "txy")
    one = domain.constant(1.0)
    truth = domain.apply("where", t, one, domain.constant(0.0))
    hidden = domain.apply("sub", one, truth)
    assert domain.differs(truth, t).all()
    expected = domain.apply("where", t, x, y)
    before = domain.applications
    assert not domain.differs(domain.apply("where", truth, x, y), expected).any()
    assert not domain.differs(domain.apply("where", hidden, y, x), expected).any()
    assert domain.applications >= before + 2 * 3 * 4  # each look-up counts in the bound
    for other in (domain.apply("neg", truth), domain.apply("add", truth, one), domain.apply("mul", t, truth)):
        assert domain.differs(domain.apply("where", other, x, y), expected).all()
        assert domain.differs(domain.apply("where", other, y, x), expected).all()


def test_the_checker_takes_truth_values_for_themselves() -> None:
    algebra = Algebra(1, (4611686018427377339, 2305843009213688669))
    x, y, t = (algebra.variable(name) for name in "xyt")
    one, zero = algebra.constant(1.0), algebra.constant(0.0)
    truth = algebra.where(t, one, zero)
    assert not algebra.equal(truth, t)
    expected = algebra.where(t, x, y)
    assert algebra.equal(algebra.where(truth, x, y), expected)
    assert algebra.equal(algebra.where(algebra.add(one, truth, -1), y, x), expected)
    assert not algebra.equal(algebra.where(algebra.add(zero, truth, -1), y, x), expected)


def test_an_exponential_is_no_known_integer() -> None:
    field = ImageField(1)
    assert (
        field.truth(field.apply("exp", field.constant(SIGNS))) < 0
    ).sum() == 3  # exp(0) = 1 alone is known


def test_the_checker_selects_alike() -> None:
    algebra = Algebra(1, (4611686018427377339, 2305843009213688669))
    x, y, t = (algebra.variable(name) for name in "xyt")
    known = [algebra.where(algebra.constant(s), x, y) for s in SIGNS.tolist()]
    assert [e is x for e in known] == list(SIGNS > 0)
    made = algebra.apply("add", algebra.where(t, x, y), algebra.where(t, y, x))
    assert algebra.equal(made, algebra.add(x, y))
    assert not algebra.equal(algebra.where(t, x, y), algebra.where(x, x, y))
    assert algebra.where(t, x, algebra.constant(-np.inf)).undefined
    assert algebra.where(t, algebra.apply("log", x), y).undefined
    assert algebra.where(t, algebra.add(algebra.mul(algebra.apply("log", x), y), x), y).undefined
    assert algebra.where(algebra.constant(1.0), algebra.apply("log", x), y).num


def _guarded(protected: bool) -> KernelGraph:
    """log(y) where y > 0, plus x; the other one adds log(y) - log(y) without protection."""
    p = Program(2)
    x, y = p.inputs
    chosen = p("select", y, p("log", y), other=0.0)
    if protected:
        return p.graph(p("add", x, chosen))
    log = p("log", y)
    return p.graph(p("add", p("sub", p("add", x, log), log), chosen))


def test_what_a_selection_protects_from_may_not_be_computed_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedProgram, match="defined everywhere"):
        certify(_guarded(True), _guarded(False))
    # Without the guard, the two would be equal: the logarithm is a condition of both.
    real = dataclasses.replace

    def forgetful(x: object, **changes: object) -> object:
        changes.pop("partial", None)
        return real(x, **changes)  # type: ignore[type-var]

    monkeypatch.setattr("superopt.verify.fields.replace", forgetful)
    assert certify(_guarded(True), _guarded(False)).equivalent


def _asked(of: str) -> tuple[KernelGraph, KernelGraph]:
    """x where log(y) - log(y) + 1 > 0, else 0: numbers less than 0 give NaN, and 0; the other one is x."""
    p = Program(2)
    x, y = p.inputs
    log = p(of, y)
    asked = p("add", p("sub", log, log), p.number(1.0))
    return p.graph(p("select", asked, x, other=0.0)), p.graph(p("mul", x, p.number(1.0)))


@pytest.mark.parametrize("of", ["log", "sqrt", "rsqrt", "reciprocal"])
def test_a_comparison_may_not_ask_whether_a_number_is_defined(of: str) -> None:
    for pair in (_asked(of), _asked(of)[::-1]):
        with pytest.raises(UnsupportedProgram, match="a comparison of numbers that are defined everywhere"):
            certify(*pair)
        assert compare(*map(canonical_text, pair)).different is not None
    pair = _asked("sin")
    assert certify(*pair).equivalent
    assert compare(*map(canonical_text, pair)).different is None


def test_random_selections_are_what_numpy_selects() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        t, x = rng.integers(-2, 3, (2, 4, 8)).astype(np.float64)
        other = float(rng.choice([-np.inf, -1.0, 0.0, 3.0]))
        p = Program(2)
        out = p("add", p("select", *p.inputs, other=other), p("step", p("sub", *p.inputs)))
        domain = FloatDomain()
        (got,) = evaluate(p.graph(out), [domain.tensor(t), domain.tensor(x)], domain)
        assert np.array_equal(got.planes[0], np.where(t > 0, x, other) + (t - x > 0))


def _kernel(*, swapped: bool = False) -> KernelGraph:
    p = Program(2, (16, 32))
    t, x = p.inputs
    a = p("select", x, t, other=1.0) if swapped else p("select", t, x, other=1.0)
    return p.graph(p("mul", p("step", p("sub", x, t)), a))


def test_kernels_select_what_the_program_does() -> None:
    assert not certify(_kernel(), _kernel(swapped=True)).equivalent
    lowered = lower(_kernel())
    assert certify(_kernel(), lowered).equivalent
    emitted = emit_program(lowered)
    compiled = compile_all(emitted.kernels, ["sm_90"])
    kernels = kernel_texts(emitted, compiled)
    verify_ttir(_kernel(), lowered, kernels)
    assert " ogt, " in kernels[0].ttir
    wrong = [dataclasses.replace(k, ttir=k.ttir.replace(" ogt, ", " ole, ", 1)) for k in kernels]
    with pytest.raises(NotEquivalent):
        verify_ttir(_kernel(), lowered, wrong)
    texts = [PtxText(c.ptx, c.shared_bytes) for c in compiled]
    record = verify_ptx(lowered, kernels, texts)
    assert record.verified, record
    found = re.findall(r"setp\.(\w+)\.f32", texts[0].ptx)
    assert found, texts[0].ptx
    swapped = re.sub(r"setp\.\w+\.f32", "setp.lt.f32", texts[0].ptx)
    with pytest.raises(NotEquivalent):
        verify_ptx(lowered, kernels, [PtxText(swapped, texts[0].shared_bytes)])


def test_a_negated_comparison_that_llvm_folds_is_verified() -> None:
    """LLVM makes one comparison of 1 - step(t) > 0."""
    p = Program(2, (16, 32))
    t, x = p.inputs
    hidden = p("sub", p.number(1.0), p("step", t))
    graph = p.graph(p("add", p("select", t, x, other=0.0), p("select", hidden, t, other=0.0)))
    lowered = lower(graph)
    assert certify(graph, lowered).equivalent
    emitted = emit_program(lowered)
    compiled = compile_all(emitted.kernels, ["sm_90"])
    kernels = kernel_texts(emitted, compiled)
    verify_ttir(graph, lowered, kernels)
    assert verify_ptx(lowered, kernels, [PtxText(c.ptx, c.shared_bytes) for c in compiled]).verified
    swapped = re.sub(r"setp\.(\w+)\.f32", "setp.lt.f32", compiled[0].ptx)
    with pytest.raises(NotEquivalent):
        verify_ptx(lowered, kernels, [PtxText(swapped, compiled[0].shared_bytes)])


@pytest.mark.parametrize("swapped", [False, True])
def test_scalars_are_compared_and_selected(swapped: bool) -> None:
    """An array of one number stays one, whatever makes it contiguous."""

    def program(negated: bool, swapped: bool) -> KernelGraph:
        p = Program(3, ())
        x, y, z = p.inputs
        t = p("neg", p("neg", x)) if negated else x
        y, z = (z, y) if swapped else (y, z)
        return p.graph(p("add", p("mul", p("step", t), y), p("mul", p("step", p("neg", t)), z)), p("step", t))

    assert certify(program(False, False), program(True, swapped)).equivalent == (not swapped)
