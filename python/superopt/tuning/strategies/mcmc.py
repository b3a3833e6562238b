"""Markov chain Monte Carlo: one changed choice at a time, accepted by Metropolis' rule.

Metropolis et al., J. Chem. Phys. 21, 1953.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from typing_extensions import override

from superopt.tuning.space import Question
from superopt.tuning.strategies.strategy import Strategy, Trial


class Mcmc(Strategy):
    """A chain of programs; slower ones are accepted with probability exp(-log(after / before) / temperature).

    Of a batch, all start from one program, and are accepted or not in turn.
    """

    # Of the logarithm of seconds: 5 % more are accepted in a third of the cases.
    temperature = 0.05

    def __init__(self, start: Trial, movable: frozenset[str], seed: int) -> None:
        super().__init__(start, movable, seed)
        self.now = start

    @override
    def ask(self, count: int) -> list[Question]:
        """Neighbours of the current program."""
        return [self.mutated(self.now) for _ in range(count)]

    @override
    def tell(self, trials: Sequence[Trial]) -> None:
        """Move on, or stay."""
        for trial in trials:
            if math.isinf(trial.seconds):
                continue
            if trial.seconds <= self.now.seconds:
                self.now = trial
                continue
            worse = math.log(trial.seconds / self.now.seconds) if self.now.seconds else math.inf
            if self.random.random() < math.exp(-worse / max(self.temperature, 1e-9)):
                self.now = trial
