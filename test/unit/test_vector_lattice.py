"""What real numbers make equal of maxima and minima: identities, near misses, and random ones against fp64."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from certify_support import program
from random_programs import Builder

from superopt.program import KernelGraph, Value
from superopt.transforms.core import _field
from superopt.transforms.lower import lower
from superopt.verify import certifier as certifier_module
from superopt.verify import certify, certify_lowered, lattices
from superopt.verify.checker import compare
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.fields import P
from superopt.verify.hashing import canonical_text
from superopt.verify.reals import Reals

SHAPES = [(3, 4), (3, 4), (3, 4)]
Build = Callable[[Builder, Value, Value, Value], Value]


def clamp(f: Builder, x: Value, low: float, high: float, *, low_first: bool) -> Value:
    bounds = [("max", low), ("min", high)]
    for op, bound in bounds if low_first else bounds[::-1]:
        x = f(op, x, f.constant(bound))
    return x


def size(f: Builder, x: Value) -> Value:
    return f("max", x, f("neg", x))


def row(f: Builder, op: str, x: Value) -> Value:
    return f(op, x, dims=(1,), keepdims=True)


def logsumexp(f: Builder, x: Value, by: Value, sign: str = "add") -> Value:
    return f(sign, f("log", row(f, "reduce_sum", f("exp", f("sub", x, by)))), by)


EQUAL: dict[str, tuple[Build, Build]] = {
    "clamp in either order": (
        lambda f, x, y, z: clamp(f, x, -1.0, 2.0, low_first=True),
        lambda f, x, y, z: clamp(f, x, -1.0, 2.0, low_first=False),
    ),
    "clamp of a multiple": (
        lambda f, x, y, z: clamp(f, f("mul", x, f.constant(3.0)), -3.0, 6.0, low_first=True),
        lambda f, x, y, z: f("mul", clamp(f, x, -1.0, 2.0, low_first=False), f.constant(3.0)),
    ),
    "clamp of a shifted number": (
        lambda f, x, y, z: f("add", clamp(f, x, -1.0, 2.0, low_first=True), f.constant(1.0)),
        lambda f, x, y, z: clamp(f, f("add", x, f.constant(1.0)), 0.0, 3.0, low_first=False),
    ),
    "bounds that cross": (
        lambda f, x, y, z: f("add", clamp(f, x, 2.0, -1.0, low_first=True), y),
        lambda f, x, y, z: f("sub", y, f.constant(1.0)),
    ),
    "sum moved in": (
        lambda f, x, y, z: f("add", f("max", x, y), z),
        lambda f, x, y, z: f("max", f("add", x, z), f("add", y, z)),
    ),
    "row's sum moved out": (
        lambda f, x, y, z: row(f, "reduce_max", f("add", x, row(f, "reduce_sum", y))),
        lambda f, x, y, z: f("add", row(f, "reduce_max", x), row(f, "reduce_sum", y)),
    ),
    "maximum of a row of multiples": (
        lambda f, x, y, z: row(f, "reduce_max", f("mul", x, f.constant(-0.5))),
        lambda f, x, y, z: f("mul", row(f, "reduce_min", x), f.constant(-0.5)),
    ),
    "absorption": (
        lambda f, x, y, z: f("max", x, f("min", x, y)),
        lambda f, x, y, z: f("mul", x, f.constant(1.0)),
    ),
    "distributive": (
        lambda f, x, y, z: f("min", x, f("max", y, z)),
        lambda f, x, y, z: f("max", f("min", x, y), f("min", z, x)),
    ),
    "median": (
        lambda f, x, y, z: f("max", f("min", x, y), f("min", f("max", x, y), z)),
        lambda f, x, y, z: f("min", f("max", x, y), f("max", f("min", x, y), z)),
    ),
    "opposites": (
        lambda f, x, y, z: f("max", f("neg", x), f("min", f("neg", y), f("neg", z))),
        lambda f, x, y, z: f("neg", f("min", x, f("max", y, z))),
    ),
    "maximum and minimum, added": (
        lambda f, x, y, z: f("add", f("max", x, y), f("min", y, x)),
        lambda f, x, y, z: f("add", x, y),
    ),
    "maximum and minimum, multiplied": (
        lambda f, x, y, z: f("mul", f("max", x, y), f("min", y, x)),
        lambda f, x, y, z: f("mul", x, y),
    ),
    "relu of a difference": (
        lambda f, x, y, z: f("add", f("relu", f("sub", x, y)), y),
        lambda f, x, y, z: f("max", x, y),
    ),
    "relu of a multiple": (
        lambda f, x, y, z: f("relu", f("mul", x, f.constant(4.0))),
        lambda f, x, y, z: f("mul", f("relu", x), f.constant(4.0)),
    ),
    "relu and its opposite": (
        lambda f, x, y, z: f("sub", f("relu", x), f("relu", f("neg", x))),
        lambda f, x, y, z: f("mul", x, f.constant(1.0)),
    ),
    "half of the sum and the distance": (
        lambda f, x, y, z: f("mul", f("add", f("add", x, y), size(f, f("sub", x, y))), f.constant(0.5)),
        lambda f, x, y, z: f("max", x, y),
    ),
    "size of a product": (
        lambda f, x, y, z: size(f, f("mul", f("mul", x, y), z)),
        lambda f, x, y, z: f("mul", size(f, x), f("mul", size(f, y), size(f, z))),
    ),
    "root of a multiple": (
        lambda f, x, y, z: f("sqrt", f("mul", f("square", x), f.constant(2.25))),
        lambda f, x, y, z: f("mul", size(f, x), f.constant(1.5)),
    ),
    "root of an irrational multiple": (
        lambda f, x, y, z: f("sqrt", f("mul", f("square", x), f.constant(2.0))),
        lambda f, x, y, z: f("mul", f("sqrt", f.constant(2.0)), f("sqrt", f("square", x))),
    ),
    "logarithm of a sum, by its maximum": (
        lambda f, x, y, z: f("log", row(f, "reduce_sum", f("exp", x))),
        lambda f, x, y, z: logsumexp(f, x, row(f, "reduce_max", x)),
    ),
    "maxima in the exponent": (
        lambda f, x, y, z: f("exp", f("add", f("max", x, y), z)),
        lambda f, x, y, z: f("exp", f("max", f("add", z, y), f("add", x, z))),
    ),
}

DIFFERENT: dict[str, tuple[Build, Build]] = {
    "bounds that cross, in either order": (
        lambda f, x, y, z: clamp(f, x, 2.0, -1.0, low_first=True),
        lambda f, x, y, z: clamp(f, x, 2.0, -1.0, low_first=False),
    ),
    "another bound": (
        lambda f, x, y, z: clamp(f, x, -1.0, 2.0, low_first=True),
        lambda f, x, y, z: clamp(f, x, -1.0, 3.0, low_first=False),
    ),
    "sum moved into one": (
        lambda f, x, y, z: f("add", f("max", x, y), z),
        lambda f, x, y, z: f("max", f("add", x, z), y),
    ),
    "maximum of a negative multiple": (
        lambda f, x, y, z: f("max", f("mul", x, f.constant(-2.0)), f("mul", y, f.constant(-2.0))),
        lambda f, x, y, z: f("mul", f("max", x, y), f.constant(-2.0)),
    ),
    "maximum of multiples by an input": (
        lambda f, x, y, z: f("max", f("mul", x, z), f("mul", y, z)),
        lambda f, x, y, z: f("mul", f("max", x, y), z),
    ),
    "relu of a negative multiple": (
        lambda f, x, y, z: f("relu", f("mul", x, f.constant(-1.0))),
        lambda f, x, y, z: f("mul", f("relu", x), f.constant(-1.0)),
    ),
    "absorption by another": (
        lambda f, x, y, z: f("max", x, f("min", z, y)),
        lambda f, x, y, z: f("mul", x, f.constant(1.0)),
    ),
    "distributive over one": (
        lambda f, x, y, z: f("min", x, f("max", y, z)),
        lambda f, x, y, z: f("max", f("min", x, y), z),
    ),
    "maximum for median": (
        lambda f, x, y, z: f("max", f("min", x, y), f("min", f("max", x, y), z)),
        lambda f, x, y, z: f("max", f("min", x, y), z),
    ),
    "maximum twice, multiplied": (
        lambda f, x, y, z: f("mul", f("max", x, y), f("max", y, x)),
        lambda f, x, y, z: f("mul", x, y),
    ),
    "maximum and another minimum, multiplied": (
        lambda f, x, y, z: f("mul", f("max", x, y), f("min", x, z)),
        lambda f, x, y, z: f("mul", x, y),
    ),
    "size of a product is no product": (
        lambda f, x, y, z: size(f, f("mul", x, y)),
        lambda f, x, y, z: f("mul", size(f, x), y),
    ),
    "maximum of products": (
        lambda f, x, y, z: f("max", f("mul", x, y), z),
        lambda f, x, y, z: f("mul", size(f, x), size(f, y)),
    ),
    "root of another multiple": (
        lambda f, x, y, z: f("sqrt", f("mul", f("square", x), f.constant(4.0))),
        lambda f, x, y, z: f("mul", size(f, x), f.constant(4.0)),
    ),
    "logarithm of a sum, moved the other way": (
        lambda f, x, y, z: f("log", row(f, "reduce_sum", f("exp", x))),
        lambda f, x, y, z: logsumexp(f, x, row(f, "reduce_max", x), "sub"),
    ),
    "logarithm of another sum": (
        lambda f, x, y, z: logsumexp(f, x, row(f, "reduce_max", x)),
        lambda f, x, y, z: logsumexp(f, y, row(f, "reduce_max", x)),
    ),
    "maximum of exponentials, moved": (
        lambda f, x, y, z: f("add", f("max", f("exp", x), y), f("exp", z)),
        lambda f, x, y, z: f("max", f("exp", f("add", x, z)), f("add", y, f("exp", z))),
    ),
    "absorption of what may be undefined": (
        lambda f, x, y, z: f("mul", x, f.constant(1.0)),
        lambda f, x, y, z: f("max", x, f("min", x, f("log", y))),
    ),
}


def made(build: Build) -> KernelGraph:
    return program(SHAPES, build)


def accepted(name: str) -> bool:
    return certify(*map(made, DIFFERENT[name])).equivalent


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", EQUAL)
def test_equal(name: str, reduced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = map(made, EQUAL[name])
    if reduced:
        monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    verdict = certify(first, second)
    assert verdict.certificate, verdict.counterexample
    assert verdict.certificate.delta is not None
    found = compare(canonical_text(first), canonical_text(second), elements=3)
    assert found.different is None
    assert found.elements > 0


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", DIFFERENT)
def test_near_misses(name: str, reduced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if reduced:
        monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    assert not accepted(name)
    found = compare(*(canonical_text(made(b)) for b in DIFFERENT[name]), elements=3)
    assert found.different is not None


def test_identities_of_masked_numbers() -> None:
    """What is minus infinity takes no part in a maximum, moved or not; infinities that cancel stay undefined."""
    mask = np.array([[0.0, -np.inf, 0.0, -np.inf]] * 3)

    def masked(f: Builder, x: Value) -> Value:
        return f("add", x, f("constant", value=mask, shape=(3, 4), dtype="f32"))

    first = made(lambda f, x, y, z: row(f, "reduce_max", f("add", masked(f, x), row(f, "reduce_sum", y))))
    second = made(lambda f, x, y, z: f("add", row(f, "reduce_max", masked(f, x)), row(f, "reduce_sum", y)))
    unmasked = made(lambda f, x, y, z: f("add", row(f, "reduce_max", x), row(f, "reduce_sum", y)))
    assert certify(first, second).equivalent
    assert not certify(first, unmasked).equivalent
    undefined = made(lambda f, x, y, z: f("sub", f("max", masked(f, x), masked(f, y)), masked(f, x)))
    assert not certify(undefined, made(lambda f, x, y, z: f("relu", f("sub", y, x)))).equivalent


@pytest.mark.parametrize(
    "name", ["clamp in either order", "sum moved in", "root of a multiple", "relu of a difference"]
)
def test_equal_at_large_extents(name: str) -> None:
    """Where every element takes more operations than rules are used for."""
    large = [(4096, 4096)] * 3
    first, second = (program(large, build) for build in EQUAL[name])
    verdict = certify(first, second)
    assert verdict.certificate, verdict.counterexample
    assert "blocks" in {t.extents for t in verdict.certificate.tests}
    assert certify_lowered(first, second, lower(second))[1].equivalent
    assert not certify(*(program(large, b) for b in DIFFERENT["another bound"])).equivalent


# --- weakened guards --------------------------------------------------------------------------------------


def test_negative_scales_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a maximum moved out of any constant factor, that of negative multiples would be."""
    monkeypatch.setattr(lattices, "_scales", lambda numbers: {s for x in numbers for s in (x, 1 / x)})  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownVariableType]
    assert accepted("maximum of a negative multiple")


def test_a_wrong_order_of_constants_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def both_ways(numbers: list[Fraction]) -> set[Fraction]:
        return {x - y for x in numbers for y in numbers if x != y}

    monkeypatch.setattr(lattices, "_gaps", both_ways)
    assert accepted("bounds that cross, in either order")


def test_sizes_of_what_is_no_opposite_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reals, "_opposite", lambda *_: True)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert accepted("maximum of products")


# --- against fp64 -----------------------------------------------------------------------------------------


def expression(f: Builder, rng: random.Random, xs: list[Value], depth: int) -> Value:
    """A random one of maxima, minima, sums and multiples."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice([*xs, f.constant(rng.choice([-1.0, 0.0, 2.0]))])
    op = rng.choice(["max", "max", "min", "min", "add", "sub", "scale", "mul"])
    first = expression(f, rng, xs, depth - 1)
    if op == "scale":
        return f("mul", first, f.constant(rng.choice([-2.0, -1.0, 0.5, 2.0])))
    return f(
        op, first, expression(f, rng, xs, depth - (2 if op == "mul" else 1)) if depth > 1 else rng.choice(xs)
    )


def values(graph: KernelGraph, inputs: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    domain = FloatDomain()
    return evaluate(graph, [domain.tensor(x) for x in inputs], domain)[0].planes[0]


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_against_fp64(seed: int) -> None:
    """Many short ones: what is found equal is equal on a grid of small integers, ties among them."""
    rng = random.Random(seed)
    grid = np.array(np.meshgrid(*[np.arange(-3.0, 4.0)] * 3)).reshape(3, 1, -1)
    shape = grid.shape[1:]
    buckets: dict[bytes, list[tuple[KernelGraph, KernelGraph]]] = {}

    def build(f: Builder, x: Value, y: Value, z: Value) -> Value:
        return f("add", expression(f, rng, [x, y, z], 3), x)

    for _ in range(400):
        state = rng.getstate()
        pair: list[KernelGraph] = []
        for extents in (shape, (1, 2)):
            rng.setstate(state)
            pair.append(program([extents] * 3, build))
        key = np.round(values(pair[0], list(grid)) * 1024).astype(np.int64).tobytes()
        buckets.setdefault(key, []).append((pair[0], pair[1]))
    equal = found = 0
    alike = [g for same in buckets.values() if len(same) > 1 for g in itertools.pairwise(same)]
    for (_, first), (_, second) in alike[:30]:
        equal += 1
        found += certify(first, second).equivalent
    assert equal >= 10
    assert found >= 0.8 * equal
    firsts = [same[0][1] for same in buckets.values()]
    for _ in range(60):
        first, second = rng.sample(firsts, 2)
        assert not certify(first, second).equivalent


def test_the_lattice_itself() -> None:
    """Random joins of constants with known order are the real ones."""
    rng = random.Random(1)
    numbers = [-3, -1, 0, 2, 5]
    gaps = sorted({b - a for a in numbers for b in numbers if b > a})
    lattice = _field.VectorLattice(P, 7, 12345, 10_000, gaps, [2, pow(2, -1, P)])

    def join(largest: bool, *xs: int) -> int:
        row = np.array([[x % P for x in xs]], np.uint64)
        return int(lattice.reduce(largest, row, None)[0])

    for _ in range(200):
        xs = rng.choices(numbers, k=rng.randrange(1, 5))
        assert join(True, *xs) == max(xs) % P
        assert join(False, *xs) == min(xs) % P
    x, y, z = (rng.randrange(P) for _ in range(3))
    top, low = join(True, x, y), join(False, x, y)
    assert (top + low - x - y) % P == 0
    assert join(True, x + z, y + z) == (top + z) % P
    assert join(True, 2 * x, 2 * y) == 2 * top % P
    assert join(False, -x, -y) == -top % P
    assert join(True, 3 * x, 3 * y) != 3 * top % P  # 3 is not known to be positive
    assert join(True, x, low) == x
    known, product = lattice.products(np.array([top], np.uint64), np.array([low], np.uint64))
    assert known[0]
    assert product[0] == x * y % P
    assert not lattice.products(np.array([top], np.uint64), np.array([top], np.uint64))[0][0]
    flat = np.array([[False, False]])
    opaque = [
        int(lattice.reduce(True, np.array([[a, b]], np.uint64), flat)[0])
        for a, b in ((x, y), ((x + 1) % P, (y + 1) % P))
    ]
    assert opaque[1] != (opaque[0] + 1) % P  # exponentials are neither shifted nor scaled


def test_the_lattice_is_bounded() -> None:
    lattice = _field.VectorLattice(P, 1, 0, 10, [], [])
    with pytest.raises(MemoryError):
        lattice.reduce(True, np.arange(1, 100, dtype=np.uint64).reshape(1, -1), None)
