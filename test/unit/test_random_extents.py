"""Programs with random extents through every optimizer; `make random` is the whole run."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[1] / "random"))

extents: Any = importlib.import_module("extents")


def test_a_campaign_goes_on_where_it_was_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Programs that are in the state are not made again; what was found in them counts."""
    state, record = tmp_path / "state.jsonl", tmp_path / "extents.json"
    before = {"commit": "older", "counts": {"programs": 1, "candidates": 7}, "faults": ["0 norm: is wrong"]}
    state.write_text(json.dumps(before) + "\n")
    tried: list[int] = []

    def examined(number: int, *_: Any) -> tuple[dict[str, int], list[str]]:
        tried.append(number)
        return {"programs": 1, "candidates": 2}, []

    monkeypatch.setattr(extents, "examined", examined)
    arguments = ["extents.py", "--count=3", f"--state={state}", f"--json={record}"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert extents.main() == 1
    assert tried == [1, 2]
    found = json.loads(record.read_text())
    assert found["counts"] == {"programs": 3, "candidates": 11, "wrong": 1}
    assert found["programs by commit"] == {"older": 1, found["commit"]: 2}
    assert extents.main() == 1
    assert tried == [1, 2]


def test_a_lowering_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its programs are right; where lowered ones are programs of another function, each is a fault."""
    _, faults = extents.examined(3, 0, 0.2, None)
    assert not faults
    other = extents.drawn(extents.random.Random("0 3"))[1]
    last = other.nodes[-1]

    def lower(_: Any) -> Any:
        return _negated(other, last.result)

    monkeypatch.setattr(extents, "lower", lower)
    counts, faults = extents.examined(3, 0, 0.2, None)
    assert counts["candidates"] > 0
    assert len([f for f in faults if "lowered is wrong" in f]) == counts["candidates"]


def _negated(graph: Any, result: Any) -> Any:
    build = extents.Builder()
    build.nodes += graph.nodes
    return extents.KernelGraph(graph.name, graph.inputs, build.nodes, [build("neg", result)])
