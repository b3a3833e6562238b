"""Ctrl-C during a search keeps the best found; a second one ends the run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from superopt import pipeline
from superopt.api import optimize
from superopt.dialects.reader import read
from superopt.driver.isolation import isolated
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer

PROGRAM = """
func.func @f(%x: tensor<16x64xf16>, %w: tensor<64x64xf16>) -> tensor<16x64xf16> {
  %0 = "kernel.matmul"(%x, %w) : (tensor<16x64xf16>, tensor<64x64xf16>) -> tensor<16x64xf16>
  %1 = "kernel.relu"(%0) : (tensor<16x64xf16>) -> tensor<16x64xf16>
  return %1 : tensor<16x64xf16>
}
"""


def test_the_first_interrupt_only_says_so_and_the_second_is_the_usual_error() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pipeline.first_interrupt_stops() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_one_interrupt_stops_all_runs_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    """A range in buckets, or the modules of a model, are many runs."""
    with pipeline.first_interrupt_stops() as outer:
        with pipeline.first_interrupt_stops() as first:
            signal.raise_signal(signal.SIGINT)
            assert first()
        with pipeline.first_interrupt_stops() as second:
            assert second()
        assert outer()
    assert capsys.readouterr().err == pipeline.STOPPING
    with pipeline.first_interrupt_stops() as stopped:
        assert not stopped()


def test_a_tool_called_from_python_leaves_the_signals_as_they_were() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(n) for n in numbers]
    assert isolated(lambda: 3, "tool") == 3
    assert [signal.getsignal(n) for n in numbers] == before


def test_other_threads_cannot_catch_signals() -> None:
    answers: list[bool] = []

    def run() -> None:
        with pipeline.first_interrupt_stops() as stopped:
            answers.append(stopped())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert answers == [False]


def test_what_was_found_by_then_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    search = MugraphOptimizer.propose
    asked: list[bool] = []

    def interrupted(*arguments: Any, stop: Callable[[], bool], **options: Any) -> Any:
        found = search(*arguments, stop=stop, **options)
        signal.raise_signal(signal.SIGINT)
        asked.append(stop())
        return found

    monkeypatch.setattr(MugraphOptimizer, "propose", interrupted)
    result = optimize(read(PROGRAM), numerics=False)
    assert asked == [True]
    assert "interrupted: this is the best result found by then" in result.report.remarks
    assert result.report.improved
    assert len(result.report.kernels) == 1
