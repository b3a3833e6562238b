"""Generated programs through both entrances, scaled down: `make ingest` is the whole run."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

RUNS = int(os.environ.get("SUPEROPT_TEST_INGEST", "15"))
sys.path.insert(0, str(Path(__file__).parent.parent / "ingest"))


@pytest.mark.torch
def test_no_difference_is_silent() -> None:
    pytest.importorskip("torch")
    report = importlib.import_module("campaign").run(RUNS, seed=2)
    for kind in ("linalg", "torch"):
        assert "SILENT DIFFERENCE" not in report[kind], report[f"{kind} differences"]
        assert report[kind]["equal"] > RUNS / 2
