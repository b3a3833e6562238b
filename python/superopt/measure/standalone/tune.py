"""Which of a row's parameter points to measure, and in which order: one budget for every strategy.

A point is a finished, verified candidate; the space is the list of points that was prepared. Strategies
differ only in the order they ask for, so a comparison of them is one of search alone.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

# Points that the model likes best are measured first by the strategies that know it.
_SEEDED = 3
# After this many suggestions in a row that name no new point, the best predicted one is taken.
_ASKED = 20


class Strategy(Protocol):
    """Suggests points by their index; learns from their seconds, None for one that failed."""

    def ask(self, left: Sequence[int]) -> int:
        """The next of the points that are left."""
        ...

    def tell(self, index: int, seconds: float | None) -> None:
        """What the point took."""
        ...


class Exhaustive:
    """In the order they are listed."""

    def __init__(self, points: Sequence[dict[str, Any]], seed: int) -> None:
        del points, seed

    def ask(self, left: Sequence[int]) -> int:
        """The first."""
        return left[0]

    def tell(self, index: int, seconds: float | None) -> None:
        """Nothing is learned."""


class Random(Exhaustive):
    """In random order, by a seed."""

    def __init__(self, points: Sequence[dict[str, Any]], seed: int) -> None:
        super().__init__(points, seed)
        self.random = random.Random(seed)

    def ask(self, left: Sequence[int]) -> int:
        """A random one."""
        return self.random.choice(list(left))


class ByModel(Exhaustive):
    """Fastest predicted first, after what an earlier run measured to be best."""

    def __init__(self, points: Sequence[dict[str, Any]], seed: int) -> None:
        super().__init__(points, seed)
        self.points = points

    def ask(self, left: Sequence[int]) -> int:
        """The one predicted to be fastest; the earlier one among equals."""
        return min(
            left, key=lambda i: (not self.points[i].get("known"), self.points[i]["predicted_seconds"], i)
        )


class Optuna(ByModel):
    """Optuna's sampler over the parameters, begun with the points that the model likes best."""

    def __init__(self, points: Sequence[dict[str, Any]], seed: int) -> None:
        super().__init__(points, seed)
        self.optuna: Any = importlib.import_module("optuna")
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        names = sorted({name for p in points for name in p["parameters"]})
        self.space = {
            name: self.optuna.distributions.CategoricalDistribution(
                sorted({p["parameters"][name] for p in points if name in p["parameters"]}, key=str)
            )
            for name in names
        }
        self.index = {self._key(p["parameters"]): i for i, p in reversed(list(enumerate(points)))}
        sampler = self.optuna.samplers.TPESampler(seed=seed, n_startup_trials=_SEEDED)
        self.study = self.optuna.create_study(direction="minimize", sampler=sampler)
        self.trials: dict[int, Any] = {}
        self.asked = 0

    def _key(self, parameters: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        return tuple(sorted(parameters.items()))

    def ask(self, left: Sequence[int]) -> int:
        """What the sampler suggests, where it names one of the points that are left."""
        self.asked += 1
        remaining = set(left)
        if self.asked > _SEEDED:
            for _ in range(_ASKED):
                trial = self.study.ask(self.space)
                found = self.index.get(self._key(trial.params))
                if found in remaining:
                    self.trials[found] = trial
                    return found
                # Not a point, as memory or the verifier refused it, or one measured already: as bad as can be.
                self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        return super().ask(left)

    def tell(self, index: int, seconds: float | None) -> None:
        """Add the result to the study, also where the model had chosen the point."""
        trial = self.trials.pop(index, None)
        states = self.optuna.trial.TrialState
        if trial is not None:
            if seconds is None:
                self.study.tell(trial, state=states.FAIL)
            else:
                self.study.tell(trial, seconds)
        elif seconds is not None and set(self.points[index]["parameters"]) == set(self.space):
            made = self.optuna.trial.create_trial(
                params=self.points[index]["parameters"], distributions=self.space, value=seconds
            )
            self.study.add_trial(made)


STRATEGIES: dict[str, type[Exhaustive]] = {
    "exhaustive": Exhaustive,
    "random": Random,
    "model": ByModel,
    "optuna": Optuna,
}


@dataclass
class Tuned:
    """What a search measured: `tried` are (index, seconds or None, status) in their order."""

    strategy: str
    best: int | None = None
    seconds: float | None = None
    tried: list[tuple[int, float | None, str]] = field(default_factory=list[tuple[int, float | None, str]])


def available(name: str) -> str:
    """The strategy to use: `name`, or for "auto" optuna where it is installed, else the model's order."""
    if name != "auto":
        return name
    try:
        importlib.import_module("optuna")
    except ModuleNotFoundError:
        return "model"
    return "optuna"


def search(
    points: Sequence[dict[str, Any]],
    measure: Callable[[int], tuple[float | None, str]],
    *,
    strategy: str,
    most: int,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Tuned:
    """Measure at most `most` points, until `stop` says so; `measure(index)` gives (seconds or None, status)."""
    asked = STRATEGIES[strategy](points, seed)
    tuned = Tuned(strategy)
    left = list(range(len(points)))
    while left and len(tuned.tried) < most and not stop():
        index = asked.ask(left)
        left.remove(index)
        seconds, status = measure(index)
        asked.tell(index, seconds)
        tuned.tried.append((index, seconds, status))
        if seconds is not None and (tuned.seconds is None or seconds < tuned.seconds):
            tuned.best, tuned.seconds = index, seconds
    return tuned
