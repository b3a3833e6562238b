"""A tree-structured Parzen estimator over choices.

Bergstra et al., Algorithms for Hyper-Parameter Optimization, NeurIPS 2011, section 4. It is written here, as
every site is a category: what is left of the estimator are counts, and a library would ask for all sites first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from typing_extensions import override

from superopt.tuning.space import Decision, Question
from superopt.tuning.strategies.strategy import Strategy, Trial

# The share of trials that counts as good, random trials before the first estimate, and draws for each question.
_GOOD, _FIRST, _DRAWS = 0.2, 16, 16


class Tpe(Strategy):
    """Choices in proportion to how often good programs have them; the likeliest of several draws is asked for."""

    def __init__(self, start: Trial, movable: frozenset[str], seed: int) -> None:
        super().__init__(start, movable, seed)
        self._told = [start]

    @override
    def ask(self, count: int) -> list[Question]:
        """Draws from the good programs that are rare among the others."""
        ranked = sorted(self._told, key=lambda t: t.seconds)
        cut = max(1, round(_GOOD * len(ranked)))
        good, bad = (self._counted(trials) for trials in (ranked[:cut], ranked[cut:]))
        sites = {d.key: d for t in self._told for d in self.sites(t)}
        return [
            self.sampled() if len(self._told) < _FIRST else self._drawn(sites, good, bad)
            for _ in range(count)
        ]

    @override
    def tell(self, trials: Sequence[Trial]) -> None:
        """Count their choices."""
        self._told += trials

    def _counted(self, trials: Sequence[Trial]) -> Counter[tuple[tuple[str, str], str]]:
        return Counter((d.key, d.choice) for t in trials for d in self.sites(t))

    def _drawn(
        self,
        sites: dict[tuple[str, str], Decision],
        good: Counter[tuple[tuple[str, str], str]],
        bad: Counter[tuple[tuple[str, str], str]],
    ) -> Question:
        config = {flag: dict(choices) for flag, choices in self.fixed.items()}
        for key, decision in sites.items():
            choices = decision.site.choices
            weights = [1 + good[key, c] for c in choices]
            drawn = self.random.choices(choices, weights, k=_DRAWS)
            taken = max(drawn, key=lambda c, key=key: (1 + good[key, c]) / (1 + bad[key, c]))
            config.setdefault(key[0], {})[key[1]] = taken
        return Question(config, self.movable, self.random.randrange(1 << 30))
