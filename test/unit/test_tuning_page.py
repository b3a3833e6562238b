"""The tables of docs/tuning.md are those of the results, and the simulated fleet keeps its books."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from test_tuning import Digits, Priced, hills, space

from superopt.tuning.space import Space

sys.path.insert(0, str(Path(__file__).parents[2]))


def test_the_page_has_the_tables_of_the_results() -> None:
    from benchmarks.tuning_page import PAGE, page

    text = PAGE.read_text()
    assert text.count("<!-- table ") == text.count("<!-- end -->") > 5
    assert page(text) == text, "python -m benchmarks.tuning_page"
    assert page("<!-- table kills -->\nten thousand\n<!-- end -->").count("ten thousand") == 0
    with pytest.raises(KeyError):
        page("<!-- table nobody -->\n<!-- end -->")


def test_only_the_taught_ways_know_what_others_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import tuning

    def searched(name: str, budget: float) -> tuple[Space, dict[str, Any]]:
        return space(Digits("choose-extents", 2)), {}

    def priced(target: object) -> Priced:
        return Priced(hills)

    monkeypatch.setattr(tuning, "searched", searched)
    monkeypatch.setattr(tuning, "ByTiles", priced)
    choices = {"choose-extents": {"site 0": "3", "site 1": "1"}}
    rows = {"other": {"best_us": 1.0, "rules_us": 2.0, "choices": choices}}
    row = tuning.reuse("f", rows, evaluations=2, seeds=3, budget=1.0)
    assert row["known_sites"] == 2
    assert row["with_us"] == row["random_with_us"] == 1e6
    assert row["without_us"] > 1e6
    assert row["random_without_us"] > 1e6


def test_a_fleet_without_mishaps_shares_its_work() -> None:
    from benchmarks.fleet import Fleet, simulated

    calm = Fleet(10, failure=1e12, slow=0.0)
    found = simulated(calm, [7.0] * 100, seed=0)
    assert found == {"wall_seconds": 70.0, "efficiency": 1.0, "failures": 0, "begun_again": 0}
    assert simulated(Fleet(100, failure=1e12, slow=0.0), [7.0] * 50, 0)["efficiency"] == 0.5


def test_what_befalls_a_fleet_costs_time_and_loses_no_job() -> None:
    from benchmarks.fleet import Fleet, simulated

    jobs = [10.0] * 500
    calm = simulated(Fleet(50, failure=1e12, slow=0.0), jobs, 0)
    failing = simulated(Fleet(50, failure=100.0, slow=0.0), jobs, 0)
    assert failing["failures"] > 10
    assert failing["wall_seconds"] > calm["wall_seconds"]
    late, twice = (
        simulated(Fleet(50, failure=1e12, slow=0.05, slower=20.0, twice=t), jobs, 0) for t in (False, True)
    )
    assert late["wall_seconds"] > twice["wall_seconds"] > calm["wall_seconds"]
    assert twice["begun_again"] > 5


def test_models_share_segments() -> None:
    from benchmarks.fleet import shared

    assert shared({"a": ["x", "y", "x"], "b": ["y", "z"]}) == {
        "a": {"parts": 3, "within": 2, "between": 2},
        "b": {"parts": 2, "within": 2, "between": 1},
    }
