"""Simulated annealing (Kirkpatrick et al., Science 220, 1983): Metropolis' rule at a falling temperature."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from superopt.tuning.strategies.mcmc import Mcmc
from superopt.tuning.strategies.strategy import Trial

# The temperature halves every so many trials, and the chain goes back to the best program as often.
_HALF = 64


class Annealing(Mcmc):
    """A chain that accepts fewer and fewer slower programs."""

    def __init__(self, start: Trial, movable: frozenset[str], seed: int) -> None:
        super().__init__(start, movable, seed)
        self.temperature, self._best, self._told = 0.2, start, 0

    @override
    def tell(self, trials: Sequence[Trial]) -> None:
        """Move on, or stay, and cool down."""
        super().tell(trials)
        for trial in trials:
            self._best = min(self._best, trial, key=lambda t: t.seconds)
            self._told += 1
            self.temperature *= 0.5 ** (1 / _HALF)
            if self._told % _HALF == 0:
                self.now = self._best
