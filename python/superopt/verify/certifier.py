"""Decides whether two programs are equivalent, and says how sure that is.

Both programs are evaluated at one random point, exponentials kept formal (`superopt.verify.fields`). Each
output element is then a quotient of two sums of f [h]; the difference of the two programs' elements has the
numerator N = f_1 [h_1] + ... + f_k [h_k], where the f are polynomials over Z_p in the inputs' first components,
the h rational functions over Z_q in the second ones. Evaluation at a point is a homomorphism, so equal programs
give equal values. If N is not zero:

- some f_1 is not zero, and vanishes at a random point with probability at most deg_p / p (Schwartz, Zippel);
- if it does not, N vanishes only where h_1 meets another h_j: at most k deg_q / q.

k is that of N, not of what is left of it at the point, and is only seen through the latter. So fix a bound K in
advance: if N has more than K terms, at a random point more than K remain, unless one of the first K + 1
coefficients vanishes or two of their exponents meet, K deg_p / p + K^2 deg_q / q in all. Taking K as a power of
two at least twice what was seen makes the sum over all K that could have been reported less than

    delta = (K deg_p + K^2 deg_q) / q

(Theorem 3 of Mirage, section 5, bounds the test with [h] mapped to w^h by 1 - 1/k only: with k terms it takes
about k ln(1/delta) tests.) Uninterpreted operators add u^2 (deg_u + 1) / q for u applications below an output
element: two different arguments, of degree deg_u, may meet, and two random results. Independent tests multiply.

The identity proved is one over Z_p, of programs whose constants are small against p: constants are taken as the
rational numbers they are, and p is not chosen at random.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from superopt.errors import IllegalProgram, NotEquivalent
from superopt.program import KernelGraph
from superopt.spec import check_kernel
from superopt.verify.certificate import (
    Certificate,
    Counterexample,
    NormalFormRecord,
    ProgramRecord,
    TestRecord,
)
from superopt.verify.demand import feeds_exponential
from superopt.verify.evaluate import evaluate
from superopt.verify.fields import FormalField, ImageField, P, Q
from superopt.verify.hashing import canonical_text, parse, program_hash
from superopt.verify.infinities import Extended
from superopt.verify.reduce import reduce_extents, work
from superopt.verify.symbolic import prove

# Scalar operations up to which the formal test runs at full extents.
FORMAL_WORK = 50_000
# Beyond this max and min pick by a random order at full extents, where sets of leaves would take too long.
LATTICE_WORK = 5_000_000
MOST_TESTS = 8
ATTEMPTS = 4


@dataclass(frozen=True)
class Verdict:
    """The answer: a certificate where the programs are equivalent, a counterexample where they are not."""

    equivalent: bool
    certificate: Certificate | None = None
    counterexample: Counterexample | None = None


Extents = Literal["full", "reduced"]
Kind = Literal["formal", "image"]
Lattice = Literal["free", "order"]


@dataclass(frozen=True)
class _Outcome:
    """One test: its record and what it assumed, or where it failed."""

    record: TestRecord | None
    failure: Counterexample | None
    assumed: frozenset[str] = frozenset()
    imaged: bool = False


def certify(a: KernelGraph, b: KernelGraph, *, delta: float = 1e-9, seed: int = 0) -> Verdict:
    """Whether `a` and `b` compute the same outputs, in the same order, from the same inputs.

    Tests go on until different programs would pass with probability at most `delta`, or the formal argument
    does not apply (the certificate then says so, with `delta` null). Deterministic for a `seed`.
    """
    if mismatch := _interface(a, b):
        return Verdict(False, counterexample=Counterexample(reason=mismatch))
    notes: list[str] = []
    if canonical_text(a) == canonical_text(b):
        return Verdict(True, _certificate(a, b, [], delta, seed, ["the programs are the same"]))
    outcomes: list[_Outcome] = []
    small = max(work(a), work(b)) <= FORMAL_WORK
    pair = None if small else reduce_extents(a, b)
    extents: Extents = "reduced" if pair else "full"
    if small or pair:
        outcomes = _formal_tests(*(pair or (a, b)), extents, delta, seed)
    if failure := _failure(outcomes):
        if extents == "full":
            return Verdict(False, counterexample=failure)
        # A constant may stand for an extent, as in dividing a sum by 4096: only full extents decide.
        outcomes = []
        notes.append("the programs differ at reduced extents; tested at full extents only")
    if not (small and outcomes):
        outcomes += _full_tests(a, b, delta if not outcomes else 1.0, seed)
        if failure := _failure(outcomes):
            return Verdict(False, counterexample=failure)
    return Verdict(True, _certificate(a, b, outcomes, delta, seed, notes))


def replay(certificate: Certificate) -> list[str]:
    """What is wrong with a certificate: everything in it is computed again from its programs' texts.

    Empty where it holds; raises BadInput where a text is no program.
    """
    programs: list[KernelGraph] = []
    for name, record in (("first", certificate.first), ("second", certificate.second)):
        if hashlib.sha256(record.text.encode()).hexdigest() != record.sha256:
            return [f"the text of the {name} program does not have its hash"]
        graph = parse(record.text)
        check_kernel(graph)
        programs.append(graph)
    verdict = certify(*programs, delta=certificate.requested_delta, seed=certificate.seed)
    if verdict.certificate is None:
        return [f"not equivalent: {verdict.counterexample}"]
    again, stated = verdict.certificate.model_dump(), certificate.model_dump()
    return [f"{k}: stated {stated[k]}, found {again[k]}" for k in stated if stated[k] != again[k]]


def check_each(before: KernelGraph, after: KernelGraph, where: str) -> None:
    """Raise NotEquivalent, naming the pass `where`, unless it kept the program's meaning."""
    verdict = certify(before, after)
    if not verdict.equivalent:
        raise NotEquivalent(
            f"expected '{where}' to give an equivalent program, got {verdict.counterexample}", after.location
        )


def _interface(a: KernelGraph, b: KernelGraph) -> str | None:
    for what, x, y in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)):
        if len(x) != len(y):
            return f"expected {len(x)} {what}, got {len(y)}"
        for i, (v, w) in enumerate(zip(x, y, strict=True)):
            if v.type != w.type:
                return f"expected {what[:-1]} {i} of type {v.type}, got {w.type}"
    return None


def _failure(outcomes: Sequence[_Outcome]) -> Counterexample | None:
    return next((o.failure for o in outcomes if o.failure), None)


def _enough(outcomes: Sequence[_Outcome], delta: float) -> bool:
    """Whether to stop: a failure, no bound to gain, or the bound reached."""
    bounds = [o.record.delta if o.record else None for o in outcomes]
    if any(o.failure or o.imaged for o in outcomes) or None in bounds or len(outcomes) == MOST_TESTS:
        return True
    return bool(bounds) and math.prod(b for b in bounds if b is not None) <= delta


def _formal_tests(
    a: KernelGraph, b: KernelGraph, extents: Extents, delta: float, seed: int
) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    while not _enough(outcomes, delta):
        outcomes.append(_test(a, b, "formal", extents, seed, len(outcomes)))
    return outcomes


def _full_tests(a: KernelGraph, b: KernelGraph, delta: float, seed: int) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    while not outcomes or not _enough(outcomes, delta):
        outcomes.append(_test(a, b, "image", "full", seed, MOST_TESTS + len(outcomes)))
    return outcomes


def _field(kind: Kind, point: tuple[int, int, int], lattice: Lattice) -> ImageField:
    if kind == "formal":
        return FormalField(point, lattice=lattice)
    return ImageField(point, lattice=lattice, threads=len(os.sched_getaffinity(0)))


def _test(
    a: KernelGraph,
    b: KernelGraph,
    kind: Kind,
    extents: Extents,
    seed: int,
    number: int,
) -> _Outcome:
    """Evaluate both at a random point; another one where a denominator happens to vanish."""
    shapes = [v.shape for v in a.inputs]
    exponent = [x or y for x, y in zip(feeds_exponential(a), feeds_exponential(b), strict=True)]
    lattice: Lattice = "free" if kind == "formal" or max(work(a), work(b)) <= LATTICE_WORK else "order"
    for attempt in range(ATTEMPTS):
        point = (seed, number, attempt)
        field = _field(kind, point, lattice)
        domain = Extended(field)
        inputs = [
            field.random(i, s, exponent=e) for i, (s, e) in enumerate(zip(shapes, exponent, strict=True))
        ]
        try:
            left = evaluate(a, inputs, domain)
            right = evaluate(b, inputs, domain)
        except ZeroDivisionError:
            continue
        except MemoryError:  # too many leaves under max or min to remember
            lattice = "order"
            continue
        except IllegalProgram as error:
            found = Counterexample(reason=f"a program is undefined: {error.message}", extents=extents)
            return _Outcome(None, found)
        degree_p = degree_q = opaque = 0
        for i, (x, y) in enumerate(zip(left, right, strict=True)):
            different = domain.differs(x, y)
            if different.any():
                position = tuple(int(n) for n in np.argwhere(different)[0])
                found = Counterexample(
                    reason="the programs differ", seed=point, output=i, position=position,
                    extents=extents, inputs=shapes,
                )  # fmt: skip
                return _Outcome(None, found)
            degree_p = max(degree_p, x.degree.p.plus(y.degree.p).num)
            degree_q = max(degree_q, x.degree.h.plus(y.degree.h).difference)
            opaque = max(opaque, x.degree.opaque + y.degree.opaque)
        terms = 2 << (field.terms - 1).bit_length() if field.exponentials else 1
        opaque = min(opaque, field.applications)
        bound = (terms * degree_p + terms**2 * degree_q + opaque**2 * (field.argument + 1)) / Q
        record = TestRecord(
            kind=kind, seed=point, extents=extents, inputs=shapes, terms=terms, degree_p=degree_p,
            degree_q=degree_q, applications=opaque, argument=field.argument,
            delta=bound if bound < 1 and not field.imaged else None,
        )  # fmt: skip
        return _Outcome(record, None, frozenset(field.assumed), field.imaged)
    reason = f"a denominator vanishes at {ATTEMPTS} random points"
    return _Outcome(None, Counterexample(reason=reason, extents=extents, inputs=shapes))


def _certificate(
    a: KernelGraph,
    b: KernelGraph,
    outcomes: Sequence[_Outcome],
    delta: float,
    seed: int,
    notes: list[str],
) -> Certificate:
    tests = [o.record for o in outcomes if o.record]
    at, bound = _best_bound(tests, delta) if tests else ("full", 0.0)
    if bound is None:
        notes.append(
            "no bound: exponentials were mapped to powers of a random root, max picked by a random order, "
            "or a sum outgrew the formal terms"
        )
    assumed = sorted(frozenset[str]().union(*(o.assumed for o in outcomes)))
    proof = prove(a, b)
    form = proof and NormalFormRecord(extents=proof.extents, factors=proof.factors, terms=proof.terms)
    return Certificate(
        first=ProgramRecord(sha256=program_hash(a), text=canonical_text(a)),
        second=ProgramRecord(sha256=program_hash(b), text=canonical_text(b)),
        p=P, q=Q, seed=seed, requested_delta=delta,
        delta=bound, delta_extents=at,
        guarantee="congruence" if assumed or bound is None else "bound",
        uninterpreted=assumed, tests=tests, normal_form=form, notes=notes,
    )  # fmt: skip


def _best_bound(tests: Sequence[TestRecord], delta: float) -> tuple[Extents, float | None]:
    """The bound over the tests at full extents, or else at reduced ones; tests of one kind multiply."""
    found: dict[Extents, float] = {}
    for test in tests:
        if test.delta is not None:
            found[test.extents] = found.get(test.extents, 1.0) * test.delta
    if "full" in found and (found["full"] <= delta or "reduced" not in found):
        return "full", found["full"]
    return ("reduced", found["reduced"]) if "reduced" in found else ("full", None)
