"""The analytic model, corrected by what a dearer evaluator said of other programs of the same space.

The correction is the logarithm of the dearer price over the analytic one, by gradient-boosted trees over what
lowering says of a program (`cost.features`), fitted again as prices come. It is used only where it ranks programs
that it was not fitted to better than the analytic model does (cross-validation); where it does not, the model
says so and is the analytic one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt import clock
from superopt.cost.features import LOWERED, lowered_features
from superopt.cost.gpus import Target
from superopt.cost.learned import COVERAGE, boosted_trees, spearman
from superopt.errors import UnsupportedProgram
from superopt.program import KernelGraph
from superopt.tuning.evaluators import PRICED, Evaluation

Features = Mapping[str, float]

# Prices before the first fit, the share of new ones that asks for another, and parts of the cross-validation.
FEWEST, _REFIT, _FOLDS = 16, 0.25, 4


@dataclass
class Learned:
    """Prices lowered programs by what it has learned; `describe` gives their features on the target.

    `said` is how it ranks programs that it was not fitted to, beside the analytic model. Seconds have an
    interval, which holds a share `COVERAGE` of the prices that it was not fitted to.
    """

    describe: Callable[[KernelGraph], Features | None]
    name: str = "learned"
    blind: frozenset[str] = frozenset()
    said: str = "analytic: nothing is learned yet"
    _rows: list[tuple[Features, float]] = field(default_factory=list[tuple[Features, float]])
    _trees: Any = None
    _off: tuple[float, float, float] | None = None
    _fitted: int = 0

    @classmethod
    def on(cls, target: Target) -> Learned:
        """For programs on a target."""

        def describe(program: KernelGraph) -> Features | None:
            found = lowered_features(program, target)
            return found if math.isfinite(found["log_seconds"]) else None

        return cls(describe)

    @property
    def used(self) -> bool:
        """Whether the correction is used: whether it was better than the analytic model when it was fitted."""
        return self._trees is not None

    def learn(self, programs: Sequence[KernelGraph], evaluations: Sequence[Evaluation]) -> None:
        """Take prices of the dearer evaluator; what was rejected teaches nothing."""
        for program, evaluation in zip(programs, evaluations, strict=True):
            # What runs nothing has no logarithm.
            if evaluation.seconds and (row := self.describe(program)) is not None:
                self._rows.append((row, math.log(evaluation.seconds)))
        if len(self._rows) >= max(FEWEST, (1 + _REFIT) * self._fitted):
            self._fit()

    def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        """Predicted seconds and, once something is learned, their interval."""
        begun = clock.now()
        found = [self.describe(program) for program in programs]
        known = [row for row in found if row is not None]
        seconds = iter(self._predicted(known))
        work = (clock.now() - begun) / max(len(programs), 1)
        made: list[Evaluation] = []
        for row in found:
            if row is None:
                made.append(Evaluation(None, "more than a block holds", self.name, work))
                continue
            value = next(seconds)
            interval = None
            if self._off is not None:
                low, middle, high = self._off
                value *= math.exp(middle)
                interval = value * math.exp(low - middle), value * math.exp(high - middle)
            made.append(Evaluation(value, PRICED, self.name, work, interval=interval))
        return made

    def _predicted(self, rows: Sequence[Features]) -> list[float]:
        analytic = [row["log_seconds"] for row in rows]
        if self._trees is None or not rows:
            return [math.exp(a) for a in analytic]
        corrections = self._trees.predict([_row(row) for row in rows])
        return [math.exp(a + float(c)) for a, c in zip(analytic, corrections, strict=True)]

    def _fit(self) -> None:
        """Fit to all prices, and judge by prices that were left out in turn."""
        self._fitted, self._trees = len(self._rows), None
        analytic = [row["log_seconds"] for row, _ in self._rows]
        prices = [price for _, price in self._rows]
        off = [price - a for price, a in zip(prices, analytic, strict=True)]
        try:
            left = list(analytic)
            for fold in range(_FOLDS):
                inside = [i for i in range(len(self._rows)) if i % _FOLDS != fold]
                trees = boosted_trees([_row(self._rows[i][0]) for i in inside], [off[i] for i in inside])
                for i in range(fold, len(self._rows), _FOLDS):
                    left[i] += float(trees.predict([_row(self._rows[i][0])])[0])
            fitted: Any = boosted_trees([_row(row) for row, _ in self._rows], off)
        except UnsupportedProgram as error:
            self.said = f"analytic: {error.message}"
            return
        ranks = [spearman(list(zip(prices, predicted, strict=True))) or 0.0 for predicted in (analytic, left)]
        better = ranks[1] > ranks[0]
        judged = left if better else analytic
        self._trees = fitted if better else None
        beyond = sorted(price - p for price, p in zip(prices, judged, strict=True))
        tail = (1 - COVERAGE) / 2
        last = len(beyond) - 1
        self._off = (
            beyond[math.floor(tail * last)],
            0.0 if better else statistics.median(beyond),
            beyond[math.ceil((1 - tail) * last)],
        )
        verdict = "learned" if better else "analytic: the learned model is worse"
        self.said = f"{verdict} (rank {ranks[1]:.2f} against {ranks[0]:.2f}, from {len(prices)} prices)"


def _row(features: Features) -> list[float]:
    return [features[name] for name in LOWERED]
