"""The calibration of a GPU, with calls that do nothing on a device whose clock the tests set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from superopt.measure.standalone.calibrate import LAUNCHES_OF_A_GRAPH, Figure, calibrate, figures, main
from superopt.measure.standalone.device import Unavailable
from superopt.measure.standalone.results import CannotMeasure, ResultsFile

FACTS = {"kind": "cuda", "name": "GPU", "multiprocessors": 100}


class Clock:
    """A device on which each call takes what `Calls` says, and the time of the whole."""

    name = "cuda"

    def __init__(self) -> None:
        self.time_spent, self.of_last = 0.0, 0.0

    def facts(self) -> dict[str, Any]:
        return FACTS

    def time(self, call: Callable[[], Any], repeats: int, before: Callable[[], None]) -> list[float]:
        found: list[float] = []
        for _ in range(repeats):
            before()
            self.of_last = 0.0
            call()
            found.append(self.of_last)
        self.time_spent += 1.0
        return found

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
        return call, None


class Calls:
    """2 us for an empty kernel, 1 GB/s for each block, 1 TFLOP/s for products; those of one row cannot be made."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def _takes(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.clock.of_last += seconds

        return call

    def null(self) -> Callable[[], Any]:
        return self._takes(2e-6)

    def copy(self, blocks: int, row: int) -> Callable[[], Any]:
        return self._takes(2 * (4 << 20) / 1e9)

    def product(self, rows: int, columns: int, depth: int) -> Callable[[], Any]:
        if rows == 1:
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nmore")
        return self._takes(2e-12 * rows * columns * depth)


def run(path: Path, seconds: float = float("inf")) -> tuple[bool, ResultsFile, Clock]:
    clock, file = Clock(), ResultsFile(path, {"device": FACTS})
    done = calibrate(
        clock, Calls(clock), file, seconds=seconds, now=lambda: clock.time_spent, say=lambda _: None
    )
    return done, file, clock


def test_each_figure_is_the_median_of_its_calls_over_what_it_moves(tmp_path: Path) -> None:
    done, file, _ = run(tmp_path / "c.json")
    rows = {r["figure"]: r for r in file.data["rows"]}
    assert done
    assert file.data["complete"]
    assert set(rows) == {f.name for f in figures(100)}
    assert len(rows) == len(file.data["rows"])
    assert rows["launch"]["seconds"] == pytest.approx(2e-6)
    assert rows["graph_launch"]["seconds"] == pytest.approx(2e-6)  # one of the graph's many
    assert LAUNCHES_OF_A_GRAPH > 1
    assert rows["product_8192_8192_8192"]["a_second"] == pytest.approx(1e12)
    assert rows["copy_1_4096"]["a_second"] == pytest.approx(1e9)
    assert rows["copy_100_32"]["a_second"] == pytest.approx(1e11)
    assert rows["product_1_4096_4096"]["error"] == "CUBLAS_STATUS_NOT_SUPPORTED"


def test_it_goes_on_where_its_minutes_ended(tmp_path: Path) -> None:
    done, file, _ = run(tmp_path / "c.json", seconds=5)
    assert not done
    first = list(file.data["rows"])
    assert [r["figure"] for r in first] == [f.name for f in list(figures(100))[:5]]  # most valuable first
    done, file, clock = run(tmp_path / "c.json")
    assert done
    assert file.data["rows"][:5] == first
    assert clock.time_spent == len(list(figures(100))) - 5 - 1  # one cannot be made


def test_figures_of_another_gpu_are_not_mixed(tmp_path: Path) -> None:
    run(tmp_path / "c.json", seconds=1)
    with pytest.raises(CannotMeasure, match="expected results of the same device"):
        ResultsFile(tmp_path / "c.json", {"device": {**FACTS, "name": "another"}})


def test_what_cannot_be_captured_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Clock, call: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
        raise Unavailable("no CUDA graph: not a GPU")

    monkeypatch.setattr(Clock, "capture", refuse)
    _, file, _ = run(tmp_path / "c.json", seconds=2)
    assert file.data["rows"][1] == {
        "figure": "graph_launch", "kind": "graph_launch", "sizes": [], "error": "no CUDA graph: not a GPU"
    }  # fmt: skip


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("has a GPU")
    assert main(["-o", str(tmp_path / "c.json")]) == 2
    assert "expected torch, triton and a GPU: expected a CUDA device, got none" in capsys.readouterr().err
    assert not (tmp_path / "c.json").exists()


COPIES = """
import torch
from superopt.measure.standalone.calibration_kernels import copy
for blocks, count, words, rows in ((3, 10, 16, 4), (2, 5, 1, 8)):
    x = torch.arange(blocks * count * 2 * words).to(torch.int16).reshape(blocks, count, 2, words)
    y = torch.full_like(x, -1)
    copy[(blocks,)](x, y, count, words, rows)
    assert (y[:, :, 0] == x[:, :, 0]).all()
    assert (y[:, :, 1] == -1).all()
"""


def test_the_copy_kernel_copies_every_other_row() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", COPIES], check=True, env=environment, timeout=120)


def test_figures_are_named_once() -> None:
    for units in (1, 7, 132):
        names = [f.name for f in figures(units)]
        assert len(set(names)) == len(names)
    assert Figure("copy", (4, 2)).name == "copy_4_2"
