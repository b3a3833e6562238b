"""What a strategy is, and the steps that several of them share."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.tuning.evaluators import Evaluation
from superopt.tuning.space import Decision, Question, Traced


@dataclass(frozen=True)
class Trial:
    """A question, the program that answers it, and its price."""

    question: Question
    traced: Traced
    evaluation: Evaluation

    @property
    def seconds(self) -> float:
        """Predicted seconds; infinite where the program was rejected."""
        return float("inf") if self.evaluation.seconds is None else self.evaluation.seconds


class Strategy(ABC):
    """Asks questions in batches and is told the trials that came of them, in the same order.

    It starts from a trial, and chooses at sites of the `movable` passes only; others keep the choices of `start`.
    The same seed and the same answers give the same questions, so that a run can be resumed from its log.
    """

    def __init__(self, start: Trial, movable: frozenset[str], seed: int) -> None:
        self.start, self.movable, self.seed = start, movable, seed
        self.random = random.Random(seed)
        self.fixed = {flag: choices for flag, choices in start.traced.config.items() if flag not in movable}

    @abstractmethod
    def ask(self, count: int) -> list[Question]:
        """At most `count` questions; none once nothing is left to ask."""

    @abstractmethod
    def tell(self, trials: Sequence[Trial]) -> None:
        """What came of the questions asked last."""

    def sampled(self) -> Question:
        """A random choice at every site."""
        return Question(self.fixed, self.movable, self.random.randrange(1 << 30))

    def sites(self, trial: Trial) -> list[Decision]:
        """The decisions of a trial that may be made otherwise."""
        return [d for d in trial.traced.decisions if d.flag in self.movable and len(d.site.choices) > 1]

    def mutated(self, trial: Trial) -> Question:
        """The trial with another choice at one site; sites that exist only then choose what was good before."""
        sites = [d for d in trial.traced.decisions if d.flag in self.movable]
        # To list the choices of a kernel's tiles takes longer than a price: they are asked of one site alone.
        while sites:
            changed = sites.pop(self.random.randrange(len(sites)))
            if others := [c for c in changed.site.choices if c != changed.choice]:
                return Question(with_choice(trial, changed, self.random.choice(others)), remembered=True)
        return self.sampled()


def with_choice(trial: Trial, changed: Decision, choice: str) -> dict[str, dict[str, str]]:
    """The configuration of a trial with another choice."""
    config = trial.traced.config
    config[changed.flag][changed.site.at] = choice
    return config
