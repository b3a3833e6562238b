"""Published times: every point is a fact with its source, and the cost model stays as close to them as it was."""

from __future__ import annotations

import math

import pytest
from benchmarks.published.__main__ import errors, load, orders, summary
from benchmarks.published.predict import KINDS, OVERHEAD, predicted

from superopt.cost import target_names


def test_every_point_has_a_source_of_one_half_and_all_that_a_prediction_needs() -> None:
    sources, points = load()
    assert {p["source"] for p in points} == set(sources)
    assert {s["half"] for s in sources.values()} == {"fit", "held out"}
    for point in points:
        assert point["kind"] in KINDS
        assert point["timing"] in OVERHEAD
        assert point["target"] in target_names()
        assert sources[point["source"]]["address"].startswith("https://")
        assert 0 < predicted(point) < 1e6


def test_the_error_is_no_larger_than_what_the_page_says() -> None:
    found = errors()
    assert found["fit"]["median"] <= 0.13
    assert found["held out"]["median"] <= 0.2
    assert found["held out"]["p90"] <= 0.53


def test_the_faster_of_two_implementations_is_priced_lower() -> None:
    found = orders()
    assert found["right"] >= 20
    assert found["right"] >= 0.9 * (found["right"] + found["wrong"])


def test_summaries_are_of_logarithms() -> None:
    assert summary([math.log(2), -math.log(2), 0.0]) == {
        "points": 3,
        "ratio": 1.0,
        "median": 0.69,
        "p90": 0.69,
    }


@pytest.mark.parametrize("timing", ["loop", "graph"])
def test_events_add_to_small_kernels_most(timing: str) -> None:
    _, points = load()
    point = next(p for p in points if p["kind"] == "norm_tiny")
    assert predicted({**point, "timing": "events"}) > predicted({**point, "timing": timing})
