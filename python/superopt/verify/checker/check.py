"""Comparing two canonical texts at sampled elements, and checking certificates."""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from superopt.errors import BadInput
from superopt.verify.checker.algebra import Algebra, Element, TooMuchWork, is_prime, primes
from superopt.verify.checker.between import Between
from superopt.verify.checker.elements import Evaluator, Index
from superopt.verify.checker.regions import sampled


@dataclass(frozen=True)
class Comparison:
    """What comparing sampled elements of outputs found. `different`: (output, index) of the first that differs;
    `undefined` says that one of the programs leaves it undefined (`Element.undefined`).

    Of the `elements` recomputed, `from_values` were computed not from the inputs but from `values` intermediate
    values that the programs share, of which `between` elements were compared. `skipped` were not recomputed;
    `silent` counts the outputs without any recomputed element.
    """

    elements: int = 0
    terms: int = 0
    different: tuple[int, Index] | None = None
    skipped: int = 0
    assumed: frozenset[str] = frozenset()
    from_values: int = 0
    values: int = 0
    between: int = 0
    silent: int = 0
    undefined: bool = False


def compare(
    first: str,
    second: str,
    *,
    seed: int = 0,
    elements: int = 4,
    budget: int = 20_000_000,
    seconds: float = math.inf,
) -> Comparison:
    """Compare `elements` of each output of two canonical texts at one random point: its corners, random ones, and
    more where there are more regions between cuts (`superopt.verify.checker.regions`).

    An element that takes more than a million scalar operations from the inputs is computed from intermediate
    values that the programs share, where there are any (superopt.verify.checker.between). One that takes more
    than `budget` either way, or is not done after `seconds`, is skipped and counted as skipped.
    """
    deadline = time.monotonic() + seconds
    outcome: list[Comparison | BaseException] = []

    def work() -> None:
        try:
            outcome.append(_Elements(first, second, seed, elements, budget, deadline).compare())
        except BaseException as error:
            outcome.append(error)

    # Elements are computed by recursion, whose depth is the number of trips of the loops.
    before, limit = threading.stack_size(512 << 20), sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
        sys.setrecursionlimit(limit)
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


# Operators whose use a certificate states, by their names here.
_NAMES = {name: name for name in ("max", "min", "sqrt", "log", "erf", "sin", "cos", "pow")}
_NAMES["exp"] = "second exp on a path"

_FEW = 1_000_000  # scalar operations: some seconds


class _Elements:
    """The elements of a comparison, and what became of them."""

    def __init__(
        self, first: str, second: str, seed: int, elements: int, budget: int, deadline: float
    ) -> None:
        self.texts = first, second
        self.primes = primes(first, second)
        self.seed, self.budget, self.deadline = seed, budget, deadline
        self.compared: dict[int, int] = {}
        self.conditions: list[tuple[str, Element, bool]] = []
        self.terms, self.assumed = 0, set[str]()
        self.undefined = False
        self.places: list[tuple[int, int, Index]] = []
        inputs, shapes = _interface(first)
        self.same = (inputs, shapes) == _interface(second)
        self.outputs = len(shapes)
        drawn = random.Random(seed)
        programs = [json.loads(text) for text in self.texts]
        for n, shape in enumerate(shapes):
            chosen = sampled(programs, shape, elements, drawn)
            self.places += [(n, place, index) for place, index in enumerate(chosen)]

    def compare(self) -> Comparison:
        """Few operations from the inputs, else from shared values, else many."""
        if not self.same:
            return Comparison(different=(0, ()))
        left, different = self.from_inputs(self.places, min(self.budget, _FEW))
        from_values, between = 0, None
        if different is None and left:
            before = len(left)
            left, between = self.from_values(left)
            from_values = before - len(left)
        if different is None and left and self.budget > _FEW:
            left, different = self.from_inputs(left, self.budget)
        return Comparison(
            sum(self.compared.values()),
            self.terms,
            different,
            len(left),
            frozenset(self.assumed),
            from_values,
            between.count if between is not None and from_values else 0,
            between.elements if between is not None and from_values else 0,
            sum(not self.compared.get(n) for n in range(self.outputs)),
            self.undefined,
        )

    def from_inputs(
        self, places: Sequence[tuple[int, int, Index]], budget: int
    ) -> tuple[list[tuple[int, int, Index]], tuple[int, Index] | None]:
        """The places that took too much work, and one that differs."""
        left: list[tuple[int, int, Index]] = []
        for n, place, index in places:
            if any(n == m for m, _, _ in left):  # elements of one output take about as much work
                left.append((n, place, index))
                continue
            for attempt in range(4):
                try:
                    algebra = Algebra((self.seed, n, place, attempt), self.primes, budget, self.deadline)
                    pair = self.pair(algebra, n, index)
                    while not (same := self.alike(algebra, pair)) and algebra.renewed():
                        pair = self.pair(algebra, n, index)
                except ZeroDivisionError:
                    continue
                except TooMuchWork:
                    left.append((n, place, index))
                    break
                self.note(n, algebra)
                if not same:
                    self.undefined = any(x.undefined for x in pair)
                    return left, (n, index)
                break
            else:  # a denominator vanishes at every point
                self.undefined = True
                return left, (n, index)
        return left, None

    def pair(self, algebra: Algebra, output: int, index: Index) -> list[Element]:
        """The element in both programs; what the first one takes roots of and divides by is kept."""
        evaluator = Evaluator(algebra)
        algebra.reals.forget()
        first = evaluator.program(self.texts[0])[output].get(index)
        self.conditions = algebra.reals.forget()
        return [first, evaluator.program(self.texts[1])[output].get(index)]

    def alike(self, algebra: Algebra, pair: Sequence[Element]) -> bool:
        """Whether the elements are equal, and the second one is defined wherever the first one is."""
        return algebra.equal(*pair) and not algebra.beyond(self.conditions)

    def from_values(
        self, places: Sequence[tuple[int, int, Index]]
    ) -> tuple[list[tuple[int, int, Index]], Between | None]:
        """The places that took too much work, or differ as a shared value is not arbitrary."""
        algebra = Algebra((self.seed, "between"), self.primes, self.budget, self.deadline)
        try:
            between = Between(*self.texts, algebra, min(self.budget, _FEW), self.seed)
        except TooMuchWork:
            return list(places), None
        left: list[tuple[int, int, Index]] = []
        for n, place, index in places:
            algebra.allow(min(self.budget, _FEW))
            try:
                if between.count and algebra.equal(*(between.outputs(k)[n].get(index) for k in (0, 1))):
                    self.note(n, algebra)
                    continue
            except (TooMuchWork, ZeroDivisionError):
                pass
            left.append((n, place, index))
        return left, between

    def note(self, output: int, algebra: Algebra) -> None:
        """One more that was recomputed."""
        self.compared[output] = self.compared.get(output, 0) + 1
        self.terms = max(self.terms, algebra.widest)
        self.assumed |= algebra.assumed


def _interface(text: str) -> tuple[list[Any], list[Index]]:
    data = json.loads(text)
    types = [t[1:] for t in data["inputs"]]
    for node in data["nodes"]:
        types += [t[1:] for t in node[2]]
    return data["inputs"], [tuple(types[i]) for i in data["outputs"]]


@dataclass(frozen=True)
class Check:
    """The checker's findings on a certificate: `faults` is empty where it holds.

    `paper_tests` is how many tests Theorem 4 of Mirage asks for at this delta and number of terms, for
    comparison.
    """

    faults: list[str]
    comparison: Comparison | None
    delta: float | None
    paper_tests: int | None


def check_certificate(
    text: str | bytes,
    *,
    seed: int = 1,
    elements: int = 4,
    budget: int = 20_000_000,
    seconds: float = math.inf,
) -> Check:
    """Check a certificate: hashes, primes, the arithmetic of its bound, and the programs at sampled elements.

    Raises BadInput for a text that is not a certificate.
    """
    try:
        data = json.loads(text)
        first, second, tests = data["first"], data["second"], data["tests"]
        p, q = int(data["p"]), int(data["q"])
        claimed: float | None = data["delta"]
        faults = [
            f"the {name} program is not the one of its hash"
            for name, record in (("first", first), ("second", second))
            if hashlib.sha256(record["text"].encode()).hexdigest() != record["sha256"]
        ]
        if p >> 60 == 0 or q >> 60 == 0 or p % q != 1 or not is_prime(p) or not is_prime(q):
            faults.append("p and q are not primes of 61 bits with q dividing p - 1")
        elif not faults and (p, q) != primes(first["text"], second["text"]):
            faults.append("p and q are not the primes that the hash of both programs draws")
        delta = _bound(tests, str(data["delta_extents"]), q, faults)
        if not tests:
            delta = 0.0 if first["text"] == second["text"] else None
        if claimed is not None and (delta is None or claimed < delta * (1 - 1e-9)):
            faults.append(f"delta is claimed as {claimed}, its parts give {delta}")
        uninterpreted = {str(name) for name in data["uninterpreted"]}
        comparison = None
        if not faults:
            texts = first["text"], second["text"]
            comparison = compare(*texts, seed=seed, elements=elements, budget=budget, seconds=seconds)
            if comparison.different is not None:
                output, index = comparison.different
                reason = "a program is undefined" if comparison.undefined else "the programs differ"
                faults.append(f"{reason}: output {output} at {list(index)}")
            # Programs and pieces of one text are not tested.
            whole = tests and all(t.get("piece") is None for t in tests)
            used = comparison.assumed & _NAMES.keys() if whole else ()
            if hidden := sorted({_NAMES[name] for name in used} - uninterpreted):
                faults.append(f"operators are uninterpreted, but not listed: {', '.join(hidden)}")
        if data["guarantee"] == "bound" and (uninterpreted or claimed is None):
            faults.append("a bound is guaranteed, beside uninterpreted operators or without one")
        terms = max([1, *(int(t["terms"]) for t in tests)])
        paper = math.ceil(terms * math.log(1 / claimed)) if claimed else None
        return Check(faults, comparison, delta, paper)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        OverflowError,
    ) as error:
        raise BadInput(
            f"expected a certificate, got something else ({type(error).__name__}: {error})"
        ) from None


def _bound(tests: Sequence[Any], extents: str, q: int, faults: list[str]) -> float | None:
    """The product of the tests' bounds at `extents`; notes a test whose figures do not give its bound.

    For tests of pieces it is the largest product of one piece, where every piece has one, at the smallest extents
    of any; pieces of the reduced programs are counted apart.
    """
    whole: float | None = None
    pieces: dict[int, float | None] = {}
    smallest = 0
    for test in tests:
        k = int(test["terms"])
        names = ("degree_p", "degree_q", "applications", "argument", "argument_q")
        figures = [int(test[name]) for name in names]
        if k < 1 or min(figures) < 0:
            faults.append("a test has negative figures")
        argument = k * figures[3] + k * k * figures[4]
        bound = (k * figures[0] + k * k * figures[1] + figures[2] ** 2 * (argument + 1)) / q
        if test["delta"] is not None and (float(test["delta"]) < bound * (1 - 1e-9) or bound >= 1):
            faults.append(f"a test claims delta {test['delta']}, its figures give {bound}")
        if (piece := test.get("piece")) is not None:
            if (test["extents"] == "reduced") != (extents == "reduced"):
                continue
            before = pieces.setdefault(int(piece), None)
            if test["delta"] is not None:
                pieces[int(piece)] = bound * (1.0 if before is None else before)
            smallest = max(smallest, ("full", "blocks", "reduced").index(test["extents"]))
        elif test["delta"] is not None and test["extents"] == extents:
            whole = (1.0 if whole is None else whole) * bound
    known = [bound for bound in pieces.values() if bound is not None]
    if known and len(known) == len(pieces) and ("full", "blocks", "reduced")[smallest] == extents:
        whole = max(known) if whole is None else min(whole, max(known))
    return whole
