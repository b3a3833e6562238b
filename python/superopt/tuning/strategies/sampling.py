"""Random sampling: every choice with equal probability. What other strategies have to beat."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from superopt.tuning.space import Question
from superopt.tuning.strategies.strategy import Strategy, Trial


class Sampling(Strategy):
    """Independent random programs."""

    @override
    def ask(self, count: int) -> list[Question]:
        """`count` random programs."""
        return [self.sampled() for _ in range(count)]

    @override
    def tell(self, trials: Sequence[Trial]) -> None:
        """Learns nothing."""
