"""A tuned result: never slower than without, proved, replayed; a price that lies changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from superopt.diagnostics import Diagnostics
from superopt.pipeline import Superoptimize, replay, superoptimize
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.report import TuningReport
from superopt.run import choose
from superopt.run.check import Accepted
from superopt.run.context import Run
from superopt.run.propose import Candidate
from superopt.transforms.partition.segments import Segment
from superopt.tuning.evaluators import ByKernels, ByTiles, Evaluation
from superopt.verify import program_hash

SETTINGS = Superoptimize(optimizers=("saturation",), against="operators", store=None, budget=20, tune=16)


def scaled_product() -> KernelGraph:
    shapes = {"x": (64, 128), "w": (128, 256), "y": (64, 256), "e": (64, 256)}
    x, w, y, e = (Value(TensorType(shape, "f16"), name) for name, shape in shapes.items())
    nodes = [Node("matmul", (x, w), (y,)), Node("exp", (y,), (e,))]
    return KernelGraph("f", [x, w], nodes, [e])


def slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pipeline find the program as it is, which costs two kernels."""

    def unchanged(
        run: Run, graph: KernelGraph, parts: Sequence[Segment], found: Sequence[Sequence[Candidate]]
    ) -> Accepted:
        from superopt.run.check import check

        accepted, reason = check(run, graph, graph)
        assert accepted is not None, reason
        return accepted

    monkeypatch.setattr(choose, "choose", unchanged)


def test_what_choosing_missed_is_found_proved_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    slower(monkeypatch)
    program = scaled_product()
    outcome = superoptimize(program, SETTINGS, Diagnostics())
    tuning = outcome.report.tuning
    assert tuning is not None
    assert tuning.after_seconds == outcome.report.predicted_seconds < 0.7 * tuning.before_seconds
    assert "plan" in tuning.config
    assert outcome.certificate.guarantee
    assert tuning.evaluations["tiles"] + tuning.evaluations["kernels"] <= 16 + 2
    assert tuning.evaluations.get("code", 0) <= tuning.evaluations["kernels"], "finalists"
    again = replay(program, outcome.schedule, Diagnostics())
    assert program_hash(again.lowered) == program_hash(outcome.lowered)
    assert again.report.predicted_seconds == outcome.report.predicted_seconds


def test_what_loses_to_what_a_user_has_is_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuned or not, a result needs no more than the input takes a user; who is told that it is returned gets it."""
    slower(monkeypatch)
    plain = superoptimize(scaled_product(), SETTINGS, Diagnostics())
    for least, improved in ((1.1, True), (0.9, False)):
        bar = least * plain.report.predicted_seconds
        monkeypatch.setattr(Run, "most_seconds", property(lambda run, bar=bar: bar))
        diagnostics = Diagnostics()
        outcome = superoptimize(scaled_product(), SETTINGS, diagnostics)
        assert outcome.report.improved == improved
        said = [m.message for m in diagnostics.messages if m.message.startswith("the input is returned")]
        assert len(said) == (not improved)


def test_a_program_that_takes_no_time(tmp_path: Path) -> None:
    x, y = Value(TensorType((64, 64), "f16"), "x"), Value(TensorType((4096,), "f16"), "y")
    program = KernelGraph("f", [x], [Node("reshape", (x,), (y,), {"shape": (4096,)})], [y])
    outcome = superoptimize(program, replace(SETTINGS, store=str(tmp_path)), Diagnostics())
    assert outcome.report.predicted_seconds == 0.0


def test_choices_are_remembered_with_what_the_program_took_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By kernels, too, it is what the untuned program took, and not the first program that tuning compiled."""
    slower(monkeypatch)
    outcome = superoptimize(scaled_product(), replace(SETTINGS, store=str(tmp_path)), Diagnostics())
    tuning = outcome.report.tuning
    assert tuning is not None
    found = [
        json.loads(path.read_bytes()) for path in tmp_path.rglob("*") if b'"before_seconds"' in data(path)
    ]
    of_kernels = [row for row in found if row.get("evaluator") == "kernels"]
    assert of_kernels
    assert {row["before_seconds"] for row in of_kernels} == {tuning.before_seconds}


def data(path: Path) -> bytes:
    """What a file holds, where it is an entry of remembered choices."""
    read = path.read_bytes() if path.is_file() else b""
    return read if read.startswith(b'{"before_seconds"') else b""


def test_a_price_that_lies_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ByKernels.evaluate

    def lies(self: ByKernels, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        """The slower, the cheaper."""
        return [replace(e, seconds=e.seconds and 1e-15 / e.seconds) for e in honest(self, programs)]

    def cheap(self: ByTiles, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        return [Evaluation(1e-9 * (i + 1), "priced", "tiles") for i, _ in enumerate(programs)]

    monkeypatch.setattr(ByKernels, "evaluate", lies)
    monkeypatch.setattr(ByTiles, "evaluate", cheap)
    plain = superoptimize(scaled_product(), replace(SETTINGS, tune=0), Diagnostics())
    tuned = superoptimize(scaled_product(), SETTINGS, Diagnostics())
    assert isinstance(tuned.report.tuning, TuningReport)
    assert tuned.report.tuning.evaluations["kernels"] > 0
    assert tuned.report.predicted_seconds <= plain.report.predicted_seconds
    assert plain.report.tuning is None


def test_a_run_that_was_killed_prices_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slower(monkeypatch)
    settings, honest = replace(SETTINGS, store=str(tmp_path)), ByTiles.evaluate
    priced: list[int] = []

    def counted(self: ByTiles, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        priced.append(len(programs))
        return honest(self, programs)

    def killed(self: ByKernels, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        raise KeyboardInterrupt

    monkeypatch.setattr(ByTiles, "evaluate", counted)
    with monkeypatch.context() as once:
        once.setattr(ByKernels, "evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            superoptimize(scaled_product(), settings, Diagnostics())
    assert sum(priced) > 4
    priced.clear()
    outcome = superoptimize(scaled_product(), settings, Diagnostics())
    assert sum(priced) == 0, "the log has them"
    assert outcome.report.tuning is not None
    assert outcome.report.tuning.evaluations["tiles"] > 4
    alone = superoptimize(scaled_product(), SETTINGS, Diagnostics())
    assert outcome.report.predicted_seconds == alone.report.predicted_seconds
