"""A search ends where it is told to: budget, stop, signals."""

from __future__ import annotations

import ctypes
import itertools
import signal
import time
from typing import Literal

import pytest
from search_programs import (
    Program,
)
from search_support import TARGET, search

from superopt.program import KernelGraph
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans


def hard() -> KernelGraph:
    """A program whose unpruned space is far too large."""
    p = Program("hard")
    x = p.input(16, 256, name="x")
    y = p("add", p("exp", x), p("mul", x, p("sigmoid", x)))
    z = p("matmul", p("div", y, p("reduce_sum", y, dims=(1,), keepdims=True)), p.input(256, 64, name="w"))
    return p.graph(p("relu", p("add", z, p.input(64, name="b"))))


def test_the_budget_is_kept_and_what_was_found_is_returned():
    start = time.perf_counter()
    found = search(hard(), budget=0.5, prune="none")
    assert time.perf_counter() - start < 20
    assert not found.complete
    assert search(hard(), budget=300).complete


def test_a_search_can_be_stopped_and_interrupted():
    calls = itertools.count()
    found = search_plans(
        hard(), TARGET, budget=300, options=MugraphOptimizer(prune="none"), stop=lambda: next(calls) > 3
    )
    assert not found.complete

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search_plans(hard(), TARGET, budget=300, options=MugraphOptimizer(prune="none"), stop=interrupt)


def test_a_signal_interrupts_a_search_that_asks_z3():
    pytest.importorskip("z3")

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    start = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt):
            search(hard(), budget=120, prune="smt")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize("place", ["finalizer", "conversion of arguments", "query"])
def test_an_interrupt_in_the_middle_of_z3_is_not_lost(place: str):
    """Two of these places let no exception of a signal's handler out as it is."""
    pytest.importorskip("z3")
    from superopt.transforms.mugraph_search.smt import Solver

    class Released:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGALRM)

    class Converted:
        @property
        def _as_parameter_(self) -> int:
            signal.raise_signal(signal.SIGALRM)
            return 0

    class Interrupted(Solver):
        def decide(self, part: object, targets: object) -> Literal["yes", "no", "unknown"]:
            if place == "finalizer":
                Released()
            elif place == "query":
                signal.raise_signal(signal.SIGALRM)
            else:
                ctypes.CDLL(None).abs(Converted())
            return "yes"

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            Interrupted().subexpression(("input", 0, [], ()), ())
        assert signal.getsignal(signal.SIGALRM) is interrupt
    finally:
        signal.signal(signal.SIGALRM, before)


def test_programs_whose_expressions_do_not_fit_are_searched() -> None:
    """The sixteenth power of a sum of four has 969 terms: its parts are searched for, and it is one kernel."""
    p = Program("power", "f32")
    total = p.input(64, 64)
    for _ in range(3):
        total = p("add", total, p.input(64, 64))
    for _ in range(4):
        total = p("square", total)
    found = search_plans(p.graph(p("exp", total)), TARGET, budget=5)
    assert sorted(n.op for n in found.graphs[0].nodes if n.op != "reshape") == ["custom"]
