"""A model that learns from prices: better where there is something to learn, honest where there is not."""

from __future__ import annotations

import math
import random

import pytest
from test_tunable import product
from test_tuning import Digits, Priced, digits, hills, space

from superopt.cost.features import LOWERED, lowered_features
from superopt.cost.gpus import target
from superopt.diagnostics import Diagnostics
from superopt.program import KernelGraph
from superopt.transforms.lower import lower
from superopt.transforms.schedule.choose_launch import ChooseLaunch
from superopt.transforms.schedule.choose_tiles import ChooseTiles
from superopt.tuning.evaluators import PRICED, ByTiles, Evaluation
from superopt.tuning.learned import FEWEST, Learned
from superopt.tuning.loop import Trials, search
from superopt.tuning.space import Question

H100 = target("sm_90")


def described(program: KernelGraph) -> dict[str, float]:
    """Features of programs of digits, whose analytic price says nothing."""
    found = digits(program)
    return dict.fromkeys(LOWERED, 0.0) | {"log_dram": float(found[0]), "log_l2": float(found[1])}


def programs(count: int, seed: int = 0) -> list[KernelGraph]:
    made = space(Digits("a", 3))
    found = [made.trace(Question({}, frozenset("a"), seed * 1000 + i)) for i in range(2 * count)]
    return [t.program for t in found if not t.error][:count]


def evaluations(given: list[KernelGraph], noise: random.Random | None) -> list[Evaluation]:
    prices = [noise.uniform(1, 2) if noise else hills(digits(p)[:2]) for p in given]
    return [Evaluation(p, PRICED, "test") for p in prices]


def test_what_can_be_learned_is() -> None:
    model = Learned(described)
    assert (model.used, model.said) == (False, "analytic: nothing is learned yet")
    known, unseen = programs(80), programs(40, seed=1)
    model.learn(known, evaluations(known, None))
    assert model.used
    assert model.said.startswith("learned (rank 0.9")
    off = inside = 0.0
    for program, found in zip(unseen, model.evaluate(unseen), strict=True):
        assert found.seconds is not None
        assert found.interval is not None
        off = max(off, abs(math.log(found.seconds / hills(digits(program)[:2]))))
        inside += found.interval[0] <= hills(digits(program)[:2]) * (1 + 1e-9) and hills(
            digits(program)[:2]
        ) <= (found.interval[1] * (1 + 1e-9))
    assert off < 0.2
    assert inside >= 0.5 * len(unseen)


@pytest.mark.parametrize("seed", range(4))
def test_what_only_fits_noise_is_not_used(seed: int) -> None:
    """The analytic model is right here, and the features say nothing more: the model says so."""
    rng, given = random.Random(seed), programs(60)
    truth = {id(p): rng.uniform(1, 9) for p in given}

    def described(program: KernelGraph) -> dict[str, float]:
        return dict.fromkeys(LOWERED, 0.0) | {"log_seconds": math.log(truth[id(program)])}

    model = Learned(described)
    prices = [Evaluation(3 * truth[id(p)] * rng.uniform(0.7, 1.4), PRICED, "test") for p in given]
    model.learn(given, prices)
    if model.used:
        return  # by luck
    assert model.said.startswith("analytic: the learned model is worse (rank ")
    found = [e.seconds or 0.0 for e in model.evaluate(given)]
    order = sorted(range(60), key=lambda i: found[i])
    assert order == sorted(range(60), key=lambda i: truth[id(given[i])]), "its order is the analytic model's"
    assert 2 < found[0] / truth[id(given[0])] < 4, "its seconds are scaled to the prices"


def test_rejections_teach_nothing() -> None:
    model = Learned(described)
    given = programs(2 * FEWEST)
    model.learn(given, [Evaluation(None, "too odd", "test") for _ in given])
    assert model.said == "analytic: nothing is learned yet"


def test_a_screen_saves_prices() -> None:
    """With the same prices, a screen that learns finds better programs; nothing is priced twice."""

    def run(seed: int, screen: Learned | None) -> float:
        trials = Trials(space(Digits("a", 3)), Priced(lambda d: hills(d[:2])), screen=screen)
        start = Question({"a": {"site 0": "0", "site 1": "5"}})
        best = search(trials, [start], [frozenset("a")], evaluations=48, strategy="random", seed=seed)
        assert trials.evaluations == 48
        return best.seconds

    alone, screened = (
        sum(run(s, make()) for s in range(4)) for make in (lambda: None, lambda: Learned(described))
    )
    assert screened <= alone
    again = [run(3, Learned(described)) for _ in range(2)]
    assert again[0] == again[1]


def test_features_of_lowered_programs() -> None:
    lowered = lower(product(), H100)
    found = lowered_features(lowered, H100)
    assert found.keys() == set(LOWERED)
    (priced,) = ByTiles(H100).evaluate([lowered])
    assert priced.seconds == pytest.approx(math.exp(found["log_seconds"]))
    tiles, launches = (p.sites(lowered, Diagnostics())[0] for p in (ChooseTiles(), ChooseLaunch()))
    tiled = ChooseTiles().applied(lowered, {tiles.at: tiles.choices[-1]}, Diagnostics())
    launched = ChooseLaunch().applied(lowered, {launches.at: launches.choices[-1]}, Diagnostics())
    for other in (tiled, launched):
        assert lowered_features(other, H100) != found
    assert Learned.on(H100).evaluate([lowered])[0].seconds == pytest.approx(priced.seconds)
