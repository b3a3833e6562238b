"""The attack on the certifier, scaled down: `make attack` is the whole run."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from superopt.verify.checker import Comparison

COUNT = int(os.environ.get("SUPEROPT_TEST_PAIRS", "500"))
sys.path.insert(0, str(Path(__file__).parent.parent / "attack"))


@pytest.fixture(scope="module")
def attack() -> Any:
    return importlib.import_module("attack")


def test_nothing_wrong_is_accepted_of_any_class(attack: Any) -> None:
    trials, _ = attack.campaign(COUNT, 1, processes=1)
    found = attack.table(trials)
    assert not any(found[fault] for fault in attack.FAULTS), [found[fault] for fault in attack.FAULTS]
    fates = Counter(t.fate for t in trials)
    assert fates["equal, accepted"] > COUNT / 5, "most pairs are decided, of either kind"
    assert fates["different, refused"] > COUNT / 3
    assert {t.family for t in trials} >= set(attack.FAMILIES)
    assert {t.path for t in trials} == set(attack.PATHS)


def test_a_certifier_that_accepts_everything_is_found_out(
    attack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(*_: object) -> Any:
        return type("Verdict", (), {"equivalent": True})

    monkeypatch.setattr(attack, "certify", accept)
    trials, _ = attack.campaign(100, 2, processes=1)
    assert len(attack.table(trials)["wrong and accepted"]) > 20


def test_a_checker_that_contradicts_the_certifier_is_found_out(
    attack: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def differs(*_: object, **__: object) -> Comparison:
        return Comparison(elements=1, different=(0, ()))

    monkeypatch.setattr(attack, "compare", differs)
    monkeypatch.setattr(sys, "argv", ["attack.py", "--count=60", "--seed=2", "--processes=1"])
    assert attack.main() == 1
    found = json.loads(capsys.readouterr().out)
    assert len(found["contradictions"]) == found["fates"]["contradiction"] > 10
    assert found["wrong and accepted"] == []


def test_a_run_goes_on_where_it_stopped(attack: Any, tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    first, _ = attack.campaign(30, 3, processes=1, state=state)
    lines = state.read_text()
    again, _ = attack.campaign(60, 3, processes=1, state=state)
    assert again[:30] == first
    assert state.read_text().startswith(lines)
    assert len(state.read_text().splitlines()) == 60
    assert attack.campaign(30, 3, processes=1)[0] == first, "a seed gives the same pairs"
