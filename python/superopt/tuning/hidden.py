"""A space beyond 2^40 that is searched without running anything: seconds by a hidden model.

Strategies see sites, choices and prices, as of any space. The model behind the prices is fixed by a seed: each
choice multiplies the seconds of its kernel by a factor of its own, pairs of neighbours by one of the pair,
and a program is the sum of its kernels. So choices interact within a kernel, kernels do not, and the best program
is known exactly: by dynamic programming along the sites of each kernel. It says how strategies search a large
space, and nothing of speed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.transforms.tunable import Site
from superopt.tuning.evaluators import PRICED, Evaluation
from superopt.tuning.space import Decision, Question, Traced, nothing

# Seconds of a kernel before any choice, and how far (of the logarithm) choices and pairs move them.
_SECONDS, _ALONE, _PAIRS = 1e-5, 0.15, 0.15


@dataclass(frozen=True)
class Hidden:
    """A space of `kernels` with `sites` each, of `choices` each, and its evaluator."""

    kernels: int = 6
    sites: int = 4
    choices: int = 6
    seed: int = 0
    name: str = "hidden"
    blind: frozenset[str] = frozenset()
    flag: str = "hidden"

    @property
    def programs(self) -> int:
        """How many programs it has."""
        return self.choices ** (self.kernels * self.sites)

    @cached_property
    def _sites(self) -> list[Site]:
        names = tuple(map(str, range(self.choices)))
        ordered = itertools.product(range(self.kernels), range(self.sites))
        return [Site(f"{kernel}.{site}", names[0], lambda: names) for kernel, site in ordered]

    def _factor(self, *of: object) -> float:
        """A number from -1 to 1 that follows from the seed and what it belongs to."""
        return random.Random(f"{self.seed} {of}").uniform(-1, 1)

    @cached_property
    def _alone(self) -> list[list[list[float]]]:
        return [
            [
                [_ALONE * self._factor("alone", k, s, c) for c in range(self.choices)]
                for s in range(self.sites)
            ]
            for k in range(self.kernels)
        ]

    @cached_property
    def _pairs(self) -> list[list[list[list[float]]]]:
        def pairs(k: int, s: int) -> list[list[float]]:
            return [
                [_PAIRS * self._factor("pair", k, s, a, b) for b in range(self.choices)]
                for a in range(self.choices)
            ]

        return [[pairs(k, s) for s in range(self.sites - 1)] for k in range(self.kernels)]

    def trace(self, question: Question) -> Traced:
        """A program that stands for the choices."""
        decisions = [Decision(self.flag, s, question.pick(self.flag, s, nothing)) for s in self._sites]
        value = Value(TensorType((), "f32"))
        attrs: dict[str, Attr] = {
            "value": 0.0, "shape": (), "dtype": "f32", "choices": tuple(int(d.choice) for d in decisions)
        }  # fmt: skip
        graph = KernelGraph("point", [], [Node("constant", (), (value,), attrs)], [value])
        return Traced(tuple(decisions), {self.flag: graph})

    def seconds(self, taken: Sequence[int]) -> float:
        """What a program takes."""
        total = 0.0
        for k in range(self.kernels):
            mine = taken[k * self.sites : (k + 1) * self.sites]
            log = sum(self._alone[k][s][c] for s, c in enumerate(mine))
            log += sum(self._pairs[k][s][a][b] for s, (a, b) in enumerate(itertools.pairwise(mine)))
            total += _SECONDS * math.exp(log)
        return total

    def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        """Seconds by the hidden model."""
        found: list[Evaluation] = []
        for program in programs:
            taken = program.nodes[0].attrs["choices"]
            assert isinstance(taken, tuple)
            found.append(Evaluation(self.seconds([int(c) for c in taken]), PRICED, self.name))
        return found

    @cached_property
    def best(self) -> float:
        """The fewest seconds of all programs (Bellman, Dynamic Programming, 1957)."""
        total = 0.0
        for k in range(self.kernels):
            least = list(self._alone[k][0])
            for s in range(1, self.sites):
                pairs = self._pairs[k][s - 1]
                least = [
                    self._alone[k][s][b] + min(before + pairs[a][b] for a, before in enumerate(least))
                    for b in range(self.choices)
                ]
            total += _SECONDS * math.exp(min(least))
        return total
