"""Every program once, the defaults first: for small spaces, and to judge other strategies by."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from typing_extensions import override

from superopt.tuning.space import Question
from superopt.tuning.strategies.strategy import Strategy, Trial


class Exhaustive(Strategy):
    """Breadth first over the tree of decisions.

    A question fixes its first choices and leaves the rest to the defaults; each other choice at a later site is a
    branch, which fixes everything before it. So each program is asked for once, although sites depend on choices.
    """

    def __init__(self, start: Trial, movable: frozenset[str], seed: int) -> None:
        super().__init__(start, movable, seed)
        self._waiting = deque([(Question(self.fixed), 0)])
        self._asked: list[int] = []

    @override
    def ask(self, count: int) -> list[Question]:
        """The next branches; fewer than `count` near the end."""
        taken = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        self._asked = [fixed for _, fixed in taken]
        return [question for question, _ in taken]

    @override
    def tell(self, trials: Sequence[Trial]) -> None:
        """Queue the branches behind what was fixed."""
        for trial, fixed in zip(trials, self._asked, strict=True):
            sites = [d for d in trial.traced.decisions if d.flag in self.movable]
            for place in range(fixed, len(sites)):
                before = {**self.fixed}
                for decision in sites[:place]:
                    before[decision.flag] = {
                        **before.get(decision.flag, {}),
                        decision.site.at: decision.choice,
                    }
                here = sites[place]
                for choice in here.site.choices:
                    if choice != here.choice:
                        config = {**before, here.flag: {**before.get(here.flag, {}), here.site.at: choice}}
                        self._waiting.append((Question(config), place + 1))
