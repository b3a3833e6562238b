"""Mutation testing of the compiler, scaled down: `test/mutation/harness.py --count=3000` is the whole run."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

COUNT = int(os.environ.get("SUPEROPT_TEST_MUTANTS", "200"))
sys.path.insert(0, str(Path(__file__).parent.parent / "mutation"))


def test_no_fault_of_any_level_is_wrong_and_accepted():
    for module in ("torch_mlir", "triton"):
        pytest.importorskip(module)
    harness: Any = importlib.import_module("harness")
    subjects: Any = importlib.import_module("subjects")
    chosen = subjects.subjects(search_seconds=1.0)
    assert {s.level for s in chosen} == {"kernel", "block", "tile", "ttir"}
    tally = harness.run(COUNT, 0, chosen)
    assert tally.total == COUNT
    assert tally.wrong == []
    assert tally.crashes == []
    killed = sum(n for (_, fate), n in tally.fates.items() if fate.startswith("killed"))
    assert killed > 0.9 * COUNT, "most faults change what is computed"


def test_a_verifier_that_accepts_everything_is_found_out(monkeypatch: pytest.MonkeyPatch):
    """The harness itself can fail."""
    harness: Any = importlib.import_module("harness")
    subjects: Any = importlib.import_module("subjects")
    graph = subjects.gated_mlp()

    def accept(*_: object) -> Any:
        return type("Verdict", (), {"equivalent": True})

    def pass_all(*_: object) -> bool:
        return True

    monkeypatch.setattr(harness, "certify", accept)
    monkeypatch.setattr(harness, "_gate", pass_all)
    tally = harness.run(20, 0, [subjects.Subject("mlp", "kernel", graph, graph)])
    assert len(tally.wrong) > 5


def test_no_fault_in_ptx_is_wrong_and_accepted():
    """The campaign on PTX, scaled down to one program for three targets."""
    harness: Any = importlib.import_module("ptx_harness")
    found = harness.subjects(["linear_attention"], harness.TARGETS, 1)
    assert {s.name.split()[1] for s in found} == set(harness.TARGETS)
    result = harness.campaign(found, min(COUNT, 60), 0, 600)
    assert result["wrong"] == []
    assert "unexplained" not in result["fates"]
    killed = sum(result["fates"].get(fate, 0) for fate in ("refused", "illegal", "different"))
    assert killed > 0.7 * result["mutants"], "most faults change what is stored, or break the order"
