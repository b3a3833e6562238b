"""The learned correction, the report and the store: on made-up results, which are nowhere called measured."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import bench_folders
import pytest
from test_bench_session import GPU

from superopt import cost
from superopt.cost.features import NAMES
from superopt.cost.learned import Sample, errors, samples
from superopt.diagnostics import Diagnostics
from superopt.errors import BadInput
from superopt.measure import report, tuned


def features(seconds: float, **more: float) -> dict[str, float]:
    return {**dict.fromkeys(NAMES, 0.0), "log_seconds": math.log(seconds), **more}


def made_up(programs: int, rows: int, noise: float = 0.02) -> list[Sample]:
    """The analytic model is off by what it does not look at: registers."""
    draw = random.Random(0)
    out: list[Sample] = []
    for p in range(programs):
        for _ in range(rows):
            seconds, registers = 10 ** draw.uniform(-6, -3), draw.choice([32.0, 64.0, 128.0, 255.0])
            truth = seconds * (1 + registers / 64) * math.exp(draw.gauss(0, noise))
            out.append(Sample(f"p{p}", "GPU", features(seconds, registers=registers), truth))
    return out


def test_without_data_it_is_the_analytic_model() -> None:
    for model in (cost.Model(), cost.load(Path(__file__).parent), cost.Model(made_up(2, 5))):
        found = model.predict(features(3e-6, registers=128.0))
        assert (found.seconds, found.low, found.high) == (pytest.approx(3e-6), None, None)
        assert found.source == "analytic"


def test_a_correction_is_learned_and_says_how_sure_it_is() -> None:
    pytest.importorskip("sklearn")
    model = cost.Model(made_up(4, 20))
    assert model.source == "learned from 80 rows of 4 programs"
    assert model.analytic is not None
    assert model.left_out is not None
    assert model.left_out.log_error < model.analytic.log_error / 3
    fresh = made_up(6, 20)[80:]
    held = 0
    for sample in fresh:
        found = model.predict(sample.features)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.seconds * 1.5
        held += found.low <= sample.seconds <= found.high
    assert held / len(fresh) >= 0.6


def test_a_correction_that_does_not_help_is_not_used() -> None:
    pytest.importorskip("sklearn")
    off = {f"p{i}": math.exp((-1) ** i) for i in range(4)}  # what three say of the fourth is wrong
    rows = [
        Sample(p, "GPU", features(1e-6 * (1 + i), kernels=float(j)), 1e-6 * (1 + i) * factor)
        for j, (p, factor) in enumerate(off.items())
        for i in range(8)
    ]
    model = cost.Model(rows)
    assert model.left_out is not None
    assert model.source == "analytic"


def test_errors_and_rank_correlation() -> None:
    rows = [Sample("p", "GPU", {}, float(s)) for s in (1, 2, 3, 4)]
    exact = errors(rows, [1.0, 2.0, 3.0, 4.0])
    assert (exact.log_error, exact.rank) == (0.0, pytest.approx(1.0))
    assert errors(rows, [4.0, 3.0, 2.0, 1.0]).rank == pytest.approx(-1.0)
    assert errors(rows, [2.0, 2.0, 2.0, 2.0]).rank is None
    assert errors(rows, [2.0, 4.0, 6.0, 8.0]).log_error == pytest.approx(math.log(2))


# --- results -------------------------------------------------------------------------------------------------


def results(tmp_path: Path, **more: Any) -> tuple[Path, Path]:
    """A results file made by a scripted session over a folder, and the folder."""
    import hashlib

    from test_bench_session import World

    from superopt.measure.standalone.clocks import Clocks
    from superopt.measure.standalone.results import ResultsFile
    from superopt.measure.standalone.session import Session, Settings

    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "reference.py").write_text(bench_folders.REFERENCE)
    mine = [bench_folders.point(f"x{i}", i, features=features(1e-5 * (i + 1))) for i in range(2)]
    rows = [
        bench_folders.row("eager", [bench_folders.point("eager", predicted_seconds=None)], "baseline"),
        {**bench_folders.row("mugraph-0", mine), "candidate": "c" * 64},
        bench_folders.row("broken", [bench_folders.point("broken")]),
    ]
    described = bench_folders.prepared([bench_folders.program("p", rows), bench_folders.program("q", rows)])
    bench_folders.seal(folder, described)
    digest = hashlib.sha256((folder / "prepared.json").read_bytes()).hexdigest()
    file = ResultsFile(
        tmp_path / "r.json",
        {
            "prepared": {"sha256": digest},
            "device": {**GPU, **more},
            "versions": {"torch": "2", "triton": "3", "python": "3"},
        },
    )
    from superopt.measure.standalone.processes import Ended

    world = World({"eager": 3e-4, "x0": 2e-4, "x1": 1e-4, "broken": 1.0})
    world.fails["broken", 0] = Ended("crashed", "its process ended with SIGSEGV | at once")
    settings = Settings(strategy="model", rounds=8, jobs=1)
    run = Session(
        "f", described["programs"], file, settings, world.start, Clocks(), now=world.now, say=lambda _: None
    )
    assert run.run()
    return tmp_path / "r.json", folder


def test_the_report_names_the_best_baseline_with_intervals(tmp_path: Path) -> None:
    path, _ = results(tmp_path)
    data = report.load(path)
    found = report.speedups(data)
    assert [(s.program, s.mode) for s in found] == [
        ("p", "graph"),
        ("p", "plain"),
        ("q", "graph"),
        ("q", "plain"),
    ]
    for s in found:
        assert s.low <= s.ratio <= s.high
        assert s.ratio == pytest.approx(3, rel=0.25)
        assert (s.ours["row"], s.baseline["row"]) == ("mugraph-0", "eager")
    text = report.markdown(data)
    assert "Measured on GPU" in text
    assert "| crashed: its process ended with SIGSEGV / at once |" in text
    assert "tile 1" in text
    path, _ = results(
        tmp_path / "other" if (tmp_path / "other").mkdir() is None else tmp_path, kind="interpreter"
    )
    assert report.markdown(report.load(path)).startswith("**These times say nothing about a GPU**")


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    path, _ = results(tmp_path)
    data = report.load(path)
    page = report.html(data)
    assert page == report.html(data)
    assert page.count("<svg") == page.count("</svg>") >= 3
    for outside in ('src="http', 'href="http', "<script", "@import"):
        assert outside not in page


def test_predictions_are_called_predictions(tmp_path: Path) -> None:
    _, folder = results(tmp_path)
    described = json.loads((folder / "prepared.json").read_text())
    for program in described["programs"]:
        for point in (p for r in program["rows"] if r["kind"] == "superopt" for p in r["points"]):
            point |= {"proof": {"guarantee": "bound", "delta": 1e-15, "ttir": "verified"}}
            point |= {"compiled": [{"registers": 32, "shared_bytes": 2048, "spill_bytes": 0, "name": "k"}]}
    (tmp_path / "predicted.json").write_text(json.dumps(described))
    data = report.load(tmp_path / "predicted.json")
    assert not data.measured
    text = report.markdown(data)
    assert text.startswith("**Predicted, not measured**")
    assert "| p | 2.0 us | 1.0 us | 2.00 |" in text


def test_the_page_on_measuring_has_the_predicted_table() -> None:
    root = Path(__file__).parents[2]
    text = report.markdown(report.load(root / "benchmarks" / "results" / "predicted_sm_90.json"))
    page = (root / "docs" / "benchmarking.md").read_text()
    assert text in page
    said = report.model_table(cost.load(root / "benchmarks" / "results"))
    assert f"$ superopt-bench model benchmarks/results\n{said}```" in page


def test_rows_become_samples(tmp_path: Path) -> None:
    path, _ = results(tmp_path)
    found = samples(path)
    assert {s.program for s in found} == {"p", "q"}
    assert all(s.features["log_seconds"] == pytest.approx(math.log(2e-5)) for s in found)
    assert "2 rows of 2 programs on GPU; predictions by: analytic" in report.model_table(cost.load(tmp_path))
    data = json.loads(path.read_text())
    data["device"]["kind"] = "interpreter"
    path.write_text(json.dumps(data))
    assert samples(path) == []
    assert samples(tmp_path / "none.json") == []


def test_measured_parameters_are_stored_and_found_by_program_and_target(tmp_path: Path) -> None:
    path, folder = results(tmp_path)
    store = tmp_path / "store"
    assert tuned.publish(path, folder, str(store)) == 2
    messages = Diagnostics()
    assert tuned.lookup("0" * 64, "sm_90", "c" * 64, messages, store) == {"tile": 1}
    assert tuned.lookup("0" * 64, "sm_80", "c" * 64, messages, store) is None
    assert tuned.lookup("1" * 64, "sm_90", "c" * 64, messages, store) is None
    assert messages.messages == []
    described = json.loads((folder / "prepared.json").read_text())
    (folder / "prepared.json").write_text(json.dumps({**described, "date": "2026-02-02"}))
    with pytest.raises(BadInput, match="got those of another"):
        tuned.publish(path, folder, str(store))
