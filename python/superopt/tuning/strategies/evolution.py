"""Regularized evolution.

Real et al., Regularized Evolution for Image Classifier Architecture Search, AAAI 2019, algorithm 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from typing_extensions import override

from superopt.tuning.space import Question
from superopt.tuning.strategies.strategy import Strategy, Trial

_POPULATION, _SAMPLE = 24, 6
# A third of the first population is random, the rest has the start among its ancestors.
_RANDOM = 3


class Evolution(Strategy):
    """A population that the oldest leave; of a random sample, the best has a child with one other choice."""

    def __init__(self, start: Trial, movable: frozenset[str], seed: int) -> None:
        super().__init__(start, movable, seed)
        self._population = deque([start], maxlen=_POPULATION)
        self._asked = 0

    @override
    def ask(self, count: int) -> list[Question]:
        """Children, and random programs at first."""
        found: list[Question] = []
        for _ in range(count):
            self._asked += 1
            if self._asked < _POPULATION and self._asked % _RANDOM == 0:
                found.append(self.sampled())
                continue
            size = min(_SAMPLE, len(self._population))
            found.append(
                self.mutated(min(self.random.sample(self._population, size), key=lambda t: t.seconds))
            )
        return found

    @override
    def tell(self, trials: Sequence[Trial]) -> None:
        """The youngest join; programs without a price do not."""
        self._population.extend(t for t in trials if t.evaluation.seconds is not None)
