"""Intermediate values that two programs share, so that elements need not be computed from the inputs.

An element of an attention block takes 10^9 operations or more from the inputs, but a few thousand from the
preceding values. So values of one shape whose sampled elements agree in both programs become one unknown tensor
in both, and later values are computed from it. Each agreement relies only on earlier unknowns: if each of these
values is equal as a whole, so are the programs, by induction along them. As only sampled elements are compared,
this samples that induction and is not a proof.
"""

from __future__ import annotations

import json
import math
import random
from typing import TypeAlias

from superopt.verify.checker.algebra import Algebra, TooMuchWork
from superopt.verify.checker.elements import Evaluator, Index, Lazy, unflatten

_ELEMENTS = 3  # of a value: two corners, and a random one
_WORTH = 256  # operations below which an element is computed from its operands
_Print: TypeAlias = "tuple[tuple[int, int | None], ...]"


class Between:
    """Two canonical texts with the values they share as unknowns, which the constructor finds.

    `budget` is per element. Raises TooMuchWork where the algebra is out of time.
    """

    def __init__(self, first: str, second: str, algebra: Algebra, budget: int, seed: int) -> None:
        self.algebra, self.budget = algebra, budget
        self.evaluator = Evaluator(algebra)
        self.drawn = random.Random(seed)
        self.data = [json.loads(text) for text in (first, second)]
        self.given: tuple[dict[int, Lazy], dict[int, Lazy]] = {}, {}
        self.elements = 0
        self.places: dict[Index, list[Index]] = {}
        self.values = [self._values(n) for n in (0, 1)]
        self._find()

    @property
    def count(self) -> int:
        """How many values are unknowns in both."""
        return len(self.given[0])

    def outputs(self, program: int) -> list[Lazy]:
        """The outputs, as functions of the unknowns."""
        return [self.values[program][i] for i in self.data[program]["outputs"]]

    def _values(self, program: int) -> list[Lazy]:
        data = self.data[program]
        inputs = self.evaluator.inputs(data["inputs"])
        return self.evaluator.nodes(data["nodes"], inputs, self.given[program])

    def _find(self) -> None:
        data = self.data[0]
        work: list[int] = [0] * len(data["inputs"])  # operations an element takes from the last unknowns
        shapes = [tuple(t[1:]) for t in self.data[1]["inputs"]]
        for node in self.data[1]["nodes"]:
            shapes += [tuple(t[1:]) for t in node[2]]
        for _, operands, types, _, _ in data["nodes"]:
            before = sum(work[int(i)] for i in operands)
            for t in types:
                number = len(work)
                mine, took = self._print(self.values[0][number])
                work.append(before + took)
                if mine is None or work[-1] < _WORTH or number in data["outputs"]:
                    continue
                for other, shape in enumerate(shapes):
                    if shape != tuple(t[1:]) or other < len(data["inputs"]) or other in self.given[1]:
                        continue
                    if self._print(self.values[1][other], mine)[0] == mine:
                        self._share(number, other, shape)
                        work[-1] = 0
                        break

    def _share(self, number: int, other: int, shape: Index) -> None:
        unknown = self.evaluator.unknown(shape, "between", number)
        self.given[0][number] = self.given[1][other] = unknown
        self.elements += len(self.places[shape])
        self.values = [self._values(n) for n in (0, 1)]

    def _print(self, value: Lazy, expected: _Print | None = None) -> tuple[_Print | None, int]:
        """The value's sampled elements and the work of one.

        None where they take too much work, are not finite, or differ from the expected ones.
        """
        if value.shape not in self.places:
            size = math.prod(value.shape)
            flat = sorted({0, size - 1, *(self.drawn.randrange(size) for _ in range(_ELEMENTS - 2))})
            self.places[value.shape] = [unflatten(i, value.shape) for i in flat]
        found: list[tuple[int, int | None]] = []
        took = 0
        for index in self.places[value.shape]:
            self.algebra.allow(self.budget)
            try:
                element = value.get(index)
                found.append((self.algebra.value(element), element.second))
            except (TooMuchWork, ZeroDivisionError):
                self.algebra.check_clock()
                return None, self.budget
            took = max(took, self.budget - self.algebra.left)
            unlike = expected is not None and found[-1] != expected[len(found) - 1]
            if element.infinite or element.undefined or unlike:
                return None, took
        return tuple(found), took
