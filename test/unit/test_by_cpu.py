"""Programs measured on the CPU: right ones in seconds with an interval, wrong ones not at all; tables of spaces."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from test_improve import SETTINGS, scaled_product, slower
from test_tuning import Digits, Priced, hills, space

from superopt.diagnostics import Diagnostics
from superopt.pipeline import superoptimize
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.lower import lower
from superopt.tuning import strategies
from superopt.tuning.by_cpu import MEASURED, ByCpu
from superopt.tuning.evaluators import Evaluation
from superopt.tuning.loop import Trials, search
from superopt.tuning.space import Question
from superopt.tuning.table import read_table, recorded

TABLES = Path(__file__).parents[2] / "benchmarks" / "results" / "tuning"


def product(op: str = "exp") -> KernelGraph:
    graph = scaled_product()
    graph.nodes[1] = replace(graph.nodes[1], op=op)
    return graph


def test_right_programs_are_timed_and_wrong_ones_are_not() -> None:
    evaluator = ByCpu(product())
    right, wrong = evaluator.evaluate([lower(product()), lower(product("tanh"))])
    assert right.status == MEASURED
    assert right.seconds is not None
    assert right.interval is not None
    assert 0 < right.interval[0] <= right.seconds <= right.interval[1] < 1
    assert right.work > 0
    assert (wrong.seconds, wrong.status) == (None, "computes something else")


def test_what_cannot_run_is_a_reason() -> None:
    x, y = (Value(TensorType((4, 4), "f32")) for _ in range(2))
    opaque = KernelGraph("f", [x], [Node("extern", (x,), (y,), {"target": "t", "reason": "r"})], [y])
    (found,) = ByCpu(product()).evaluate([replace(opaque, inputs=product().inputs)])
    assert (found.seconds, found.status) == (None, "cannot be compiled for the CPU")


def test_what_does_more_takes_longer() -> None:
    """exp(log(exp(log(exp(x w))))) is exp(x w), by five functions an element instead of one."""
    graph = product()
    nodes, last = list(graph.nodes), graph.nodes[-1].result
    for op in ("log", "exp") * 2:
        nodes.append(Node(op, (last,), (Value(last.type),)))
        last = nodes[-1].result
    slow, fast = ByCpu(graph).evaluate([lower(replace(graph, nodes=nodes, outputs=[last])), lower(graph)])
    assert slow.interval is not None
    assert fast.interval is not None
    assert slow.interval[0] > fast.interval[1]


def test_tuning_by_the_cpu_delivers_what_every_gate_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    slower(monkeypatch)
    outcome = superoptimize(scaled_product(), replace(SETTINGS, tune_by="cpu"), Diagnostics())
    tuning = outcome.report.tuning
    assert tuning is not None
    assert tuning.measured
    assert tuning.after_seconds <= tuning.before_seconds
    assert set(tuning.evaluations) == {"tiles on cpu", "cpu"}
    assert outcome.certificate.guarantee


@pytest.mark.parametrize(("half", "found"), [(0.5, False), (0.001, True)])
def test_a_difference_within_the_noise_is_none(
    half: float, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every measurement says less than the one before, of whatever program."""
    rounds = itertools.count()

    class Drifting(ByCpu):
        def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
            taken = [1e-3 * 0.95 ** next(rounds) for _ in programs]
            return [Evaluation(s, MEASURED, "cpu", interval=(s * (1 - half), s * (1 + half))) for s in taken]

    monkeypatch.setattr("superopt.tuning.improve.ByCpu", Drifting)
    outcome = superoptimize(scaled_product(), replace(SETTINGS, tune_by="cpu"), Diagnostics())
    tuning = outcome.report.tuning
    assert tuning is not None
    assert (tuning.after_seconds < tuning.before_seconds) == found
    assert bool(tuning.config) == found


# --- tables -----------------------------------------------------------------------------------------------


def test_a_table_is_searched_like_its_space(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    here = space(Digits("a", 2))
    trials = Trials(here, Priced(hills))
    search(trials, [Question({})], [frozenset("a")], evaluations=1000, strategy="exhaustive")
    path.write_text(json.dumps(recorded(trials.done, {"a"})))
    table = read_table(path)
    assert table.best == min(e.seconds for e in trials.known.values() if e.seconds is not None)
    for name in strategies.names():
        again, own = Trials(table, table), Trials(here, Priced(hills))
        for found in (again, own):
            search(found, [Question({})], [frozenset("a")], evaluations=20, strategy=name, seed=3)
        assert [t.seconds for t in again.done] == [t.seconds for t in own.done]


def test_a_table_lacks_sites_that_did_not_move(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    trials = Trials(space(Digits("a", 2), Digits("b", 1)), Priced(hills))
    search(trials, [Question({})], [frozenset("a")], evaluations=1000, strategy="exhaustive")
    path.write_text(json.dumps(recorded(trials.done, {"a"})))
    table = read_table(path)
    assert {d.flag for d in table.trace(Question({})).decisions} == {"a"}
    assert len(table.evaluations) == trials.evaluations


def test_a_table_with_a_hole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    trials = Trials(space(Digits("a", 2)), Priced(hills))
    search(trials, [Question({})], [frozenset("a")], evaluations=1000, strategy="exhaustive")
    found = recorded(trials.done, {"a"})
    kept = [p for p in found["points"] if p[0] != len(found["programs"]) - 1]
    path.write_text(json.dumps({**found, "points": kept}))
    with pytest.raises(ValueError, match="expected every choice of site"):
        read_table(path)


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.json")), ids=lambda p: p.stem)
def test_kept_tables_are_whole_and_strategies_replay_them(path: Path) -> None:
    table, data = read_table(path), json.loads(path.read_bytes())
    assert len(data["programs"]) >= 150
    for row in data["programs"]:
        if row["seconds"] is not None:
            assert row["interval"][0] <= row["seconds"] <= row["interval"][1]
    moving = frozenset(s["pass"] for s in data["sites"])
    trials = Trials(table, table)
    best = search(trials, [Question({})], [moving], evaluations=64, strategy="evolution", seed=1)
    assert table.best <= best.seconds <= trials.done[0].seconds < math.inf
    assert trials.evaluations <= 64
