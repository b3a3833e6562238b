"""One test: programs at one random point, and what it says about them.

The certifier (`superopt.verify.certifier`) decides which tests are made, at which extents, and what they prove.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from superopt.errors import IllegalProgram
from superopt.program import KernelGraph
from superopt.verify.certificate import Counterexample, Extents, TestRecord
from superopt.verify.degrees import VARIABLE
from superopt.verify.demand import feeds_exponential
from superopt.verify.domains import Tensor
from superopt.verify.evaluate import Shared, evaluate
from superopt.verify.fields import FormalField, ImageField, Seen
from superopt.verify.infinities import Extended
from superopt.verify.primes import Primes
from superopt.verify.reals import Condition, Conditions
from superopt.verify.reduce import work

# Beyond this, max and min pick by a random order at full extents, as sets of leaves would take too long. One of n
# numbers changes what an order picks with probability only 1/n, so this does not replace the test with sets.
LATTICE_WORK = 5_000_000
# Beyond this, the identities of real numbers (`superopt.verify.reals`) are not used: their tables take memory.
# Programs that need them are then compared by two blocks.
RULES_WORK = 5_000_000
ATTEMPTS = 4
# Describes an element of the first or second program; an undefined element equals nothing.
_UNDEFINED = (
    "the {} program is undefined (infinities that cancel, or one times zero or a number of unknown sign)"
)
_BEYOND: dict[Condition, str] = {
    "root": "the second program takes a root of numbers that may be negative, and the first one does not",
    "logarithm": "the second program takes a logarithm or power of numbers that may be negative, and the first "
    "one does not",
    "quotient": "the second program divides by numbers that may vanish, and the first one does not",
}

Kind = Literal["formal", "image"]
Lattice = Literal["free", "order"]
_Point = tuple[int, int, int]


@dataclass(frozen=True)
class Outcome:
    """One test: its record and its assumptions, or where it failed."""

    record: TestRecord | None
    failure: Counterexample | None
    assumed: frozenset[str] = frozenset()
    imaged: bool = False
    undefined: bool = False
    ruled: bool = False

    def of_piece(self, piece: int) -> Outcome:
        """This outcome, recorded as a test of one piece of the programs."""
        assert self.record is not None
        return replace(self, record=self.record.model_copy(update={"piece": piece}))


def failure_of(outcomes: Sequence[Outcome]) -> Counterexample | None:
    """The first place where one of them failed."""
    return next((o.failure for o in outcomes if o.failure), None)


def _field(kind: Kind, point: _Point, lattice: Lattice, primes: Primes, rules: bool) -> ImageField:
    if kind == "formal":
        return FormalField(point, lattice=lattice, primes=primes, rules=rules)
    threads = len(os.sched_getaffinity(0))
    return ImageField(point, lattice=lattice, threads=threads, primes=primes, rules=rules)


def outcomes_of(
    a: KernelGraph,
    others: Sequence[KernelGraph],
    kind: Kind,
    extents: Extents,
    seed: int,
    number: int,
    primes: Primes,
    arbitrary: int,
    agreed: bool = False,
) -> list[Outcome]:
    """Evaluate all at one random point, `a` once; stops at the first of `others` that differs from it.

    The last `arbitrary` inputs are values that something else computes.
    Takes another point where a denominator vanishes by chance. Programs that `agreed` on max and min by sets may
    be compared by a random order where that is faster. Raises OverflowError where a formal test needs too
    much memory.
    """
    small = max(map(work, [a, *others])) <= LATTICE_WORK
    lattice: Lattice = "free" if kind == "formal" or small or not agreed else "order"
    if len(others) > 1:
        with suppress(ZeroDivisionError, MemoryError, IllegalProgram):
            found = at_point(
                a, others, kind, extents, (seed, number, 0), lattice, primes, arbitrary, again=False
            )
            if not failure_of(found):
                return found
        alone: list[Outcome] = []  # one of them is at fault, or needs more rules: test each alone
        for b in others:
            alone += outcomes_of(a, [b], kind, extents, seed, number, primes, arbitrary, agreed)
            if alone[-1].failure:
                break
        return alone
    shapes = [v.shape for v in a.inputs]
    for attempt in range(ATTEMPTS):
        try:
            return at_point(a, others, kind, extents, (seed, number, attempt), lattice, primes, arbitrary)
        except ZeroDivisionError:
            continue
        except MemoryError:  # too many leaves under max or min to remember
            if kind == "formal":
                raise OverflowError from None
            if not agreed:
                reason = "max and min of too many numbers to tell them apart, and no test at reduced extents"
                return [Outcome(None, Counterexample(reason=reason, extents=extents, inputs=shapes))]
            lattice = "order"
        except IllegalProgram as error:
            found = Counterexample(reason=f"a program is undefined: {error.message}", extents=extents)
            return [Outcome(None, found, undefined=True)]
    reason = f"a denominator vanishes at {ATTEMPTS} random points"
    found = Counterexample(reason=reason, extents=extents, inputs=shapes)
    return [Outcome(None, found, undefined=True)]


def at_point(
    a: KernelGraph,
    others: Sequence[KernelGraph],
    kind: Kind,
    extents: Extents,
    point: _Point,
    lattice: Lattice,
    primes: Primes,
    arbitrary: int,
    again: bool = True,
) -> list[Outcome]:
    """The outcome of each of `others` at one point, until one differs.

    Programs that differ are evaluated `again` with the squares of all roots that they take, until these are
    known, and with what else real numbers make equal.
    """
    rules = max(map(work, [a, *others])) <= RULES_WORK
    field = _field(kind, point, lattice, primes, rules)
    domain = Extended(field)
    exponent = [any(column) for column in zip(*map(feeds_exponential, [a, *others]), strict=True)]
    shapes = [v.shape for v in a.inputs]
    # Computed values may be anything, such as zero wherever another one is positive.
    degrees = [VARIABLE] * (len(shapes) - arbitrary) + [replace(VARIABLE, opaque=1)] * arbitrary
    inputs = [
        field.random(i, s, exponent=e, degree=degree)
        for i, (s, e, degree) in enumerate(zip(shapes, exponent, degrees, strict=True))
    ]
    while True:
        outcomes: list[Outcome] = []
        shared = Shared(*others)
        field.seen, field.reals.conditions = Seen(), (conditions := Conditions())
        left = evaluate(a, inputs, domain, shared)
        seen = field.seen
        for b in others:
            field.seen = seen.copy()  # without what the others assumed
            field.reals.conditions = Conditions()
            right = evaluate(b, inputs, domain, shared)
            outcomes.append(_compared(left, right, domain, kind, extents, point, shapes))
            first = field.reals.conditions
            beyond = first.beyond(conditions, field.reals.labels)
            if beyond and not outcomes[-1].failure:
                # Perhaps of elements beyond the ends of tensors, which are other numbers another time.
                field.unknowns, field.reals.conditions = field.unknowns + 1, Conditions()
                evaluate(b, inputs, domain, Shared(*others))
                beyond = first.beyond(conditions, field.reals.labels, field.reals.conditions)
            if beyond and not outcomes[-1].failure:
                found = Counterexample(reason=_BEYOND[beyond], seed=point, extents=extents, inputs=shapes)
                outcomes[-1] = Outcome(None, found)
            if outcomes[-1].failure:
                break
        if not again or not failure_of(outcomes) or not field.renewed():
            return outcomes


def _compared(
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    domain: Extended,
    kind: Kind,
    extents: Extents,
    point: _Point,
    shapes: list[tuple[int, ...]],
) -> Outcome:
    """The record of a test that both programs passed, or the place where they differ."""
    field = domain.field
    degree_p = degree_q = opaque = 0
    for i, (x, y) in enumerate(zip(left, right, strict=True)):
        for reason, wrong in (
            (_UNDEFINED.format("first"), domain.undefined(x)),
            (_UNDEFINED.format("second"), domain.undefined(y)),
            ("the programs differ", domain.differs(x, y)),
        ):
            if wrong.any():
                position = tuple(int(n) for n in np.argwhere(wrong)[0])
                found = Counterexample(
                    reason=reason, seed=point, output=i, position=position, extents=extents, inputs=shapes
                )
                return Outcome(None, found, undefined=reason != "the programs differ")
        degree_p = max(degree_p, x.degree.p.plus(y.degree.p).num)
        degree_q = max(degree_q, x.degree.h.plus(y.degree.h).difference)
        opaque = max(opaque, x.degree.opaque + y.degree.opaque)
    terms = 2 << (field.terms - 1).bit_length() if field.exponentials else 1
    # What tables of other elements say counts for each (`superopt.verify.reals`).
    opaque = field.applications if field.lattices.vector else min(opaque, field.applications)
    argument = terms * field.argument + terms**2 * field.argument_q
    bound = (terms * degree_p + terms**2 * degree_q + opaque**2 * (argument + 1)) / field.fields[1].modulus
    record = TestRecord(
        kind=kind, seed=point, extents=extents, inputs=shapes, terms=terms, degree_p=degree_p,
        degree_q=degree_q, applications=opaque, argument=field.argument, argument_q=field.argument_q,
        delta=bound if bound < 1 and not field.imaged else None,
    )  # fmt: skip
    return Outcome(record, None, frozenset(field.assumed), field.imaged, ruled=field.ruled)
