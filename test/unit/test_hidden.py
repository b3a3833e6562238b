"""The hidden model: its best is the best, its prices are fixed by the seed, and its space is large."""

from __future__ import annotations

import itertools

import pytest

from superopt.tuning.hidden import Hidden
from superopt.tuning.loop import SPENT, Trials, search
from superopt.tuning.space import Question


@pytest.mark.parametrize("seed", range(3))
def test_the_best_is_the_best(seed: int) -> None:
    space = Hidden(kernels=2, sites=3, choices=3, seed=seed)
    every = [space.seconds(taken) for taken in itertools.product(range(3), repeat=6)]
    assert len(every) == space.programs
    assert min(every) == pytest.approx(space.best)
    assert max(every) > 1.5 * space.best


def test_a_search_is_priced_by_its_choices_alone() -> None:
    space = Hidden()
    assert space.programs > 2**40
    found: list[float] = []
    for _ in range(2):
        trials = Trials(space, Hidden())
        best = search(trials, [Question({})], [frozenset({"hidden"})], evaluations=64, strategy="evolution")
        assert (trials.evaluations, trials.ended) == (64, SPENT)
        found.append(best.seconds)
        assert best.seconds < trials.done[0].seconds
        choices = [int(d.choice) for d in best.traced.decisions]
        assert best.seconds == space.seconds(choices) >= space.best
    assert found[0] == found[1]
