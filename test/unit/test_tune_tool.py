"""`superopt-tune`: processes that die, hang or are killed, runs that go on, and what a user may get wrong."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from superopt.tools.superopt_tune import main
from superopt.tuning.pool import Answer, Job, LocalPool
from superopt.tuning.ray_pool import RayPool

PROGRAM = """
func.func @f(%x: tensor<Nx64xf16>, %w: tensor<64x64xf16>) -> tensor<Nx64xf16> {
  %y = "kernel.matmul"(%x, %w) : (tensor<Nx64xf16>, tensor<64x64xf16>) -> tensor<Nx64xf16>
  return %y : tensor<Nx64xf16>
}
"""
# A worker that dies, hangs or answers as its file says; it leaves a mark each time that it is begun.
FAKE = """
import json, os, pathlib, signal, sys, time
job = json.loads(sys.stdin.read())
marks = pathlib.Path(job["file"] + ".marks")
marks.write_text((marks.read_text() if marks.exists() else "") + "x")
what = pathlib.Path(job["file"]).read_text()
if what == "dies" or (what == "dies once" and marks.read_text() == "x"):
    os.kill(os.getpid(), signal.SIGKILL)
if what == "hangs":
    time.sleep(60)
if what == "babbles":
    print("a library says something")
print(json.dumps({"report": {"what": what}, "error": ""}))
"""


def pool(tmp_path: Path, workers: int = 2, timeout: float = 30.0) -> LocalPool:
    (tmp_path / "fake.py").write_text(FAKE)
    return LocalPool(workers, timeout, (sys.executable, str(tmp_path / "fake.py")))


def test_processes_that_die_are_tried_once_more(tmp_path: Path) -> None:
    for name in ("fine", "dies once", "dies"):
        (tmp_path / name).write_text(name)
    jobs = [Job(str(tmp_path / name)) for name in ("fine", "dies once", "dies")]
    found = {Path(a.job.file).name: a for a in pool(tmp_path).answers(jobs)}
    assert found["fine"].report == {"what": "fine"}
    assert (found["dies once"].report, found["dies once"].attempts) == ({"what": "dies once"}, 2)
    assert found["dies"].report is None
    assert "ended with -9" in found["dies"].error
    assert (tmp_path / "dies.marks").read_text() == "xx"


def test_a_process_that_hangs_is_ended(tmp_path: Path) -> None:
    (tmp_path / "hangs").write_text("hangs")
    (answer,) = pool(tmp_path, timeout=1.0).answers([Job(str(tmp_path / "hangs"))])
    assert answer.report is None
    assert "took longer than 1 s" in answer.error


def test_an_interrupt_ends_the_tool_and_its_processes(tmp_path: Path) -> None:
    """One of three jobs runs; the others do not begin, and nothing is waited for."""
    (tmp_path / "fake.py").write_text(FAKE)
    jobs = [tmp_path / f"{number}.mlir" for number in range(3)]
    for job in jobs:
        job.write_text("hangs")
    code = (
        "import sys; from superopt.tools import superopt_tune as tool; from superopt.tuning.pool import LocalPool;"
        f"tool._pool = lambda w, t: LocalPool(1, 60.0, (sys.executable, {str(tmp_path / 'fake.py')!r}));"
        f"sys.exit(tool.main({[str(job) for job in jobs]!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as tool:
        while not list(tmp_path.glob("*.marks")):
            time.sleep(0.05)
        begun = time.monotonic()
        tool.send_signal(signal.SIGINT)
        _, said = tool.communicate()
    assert said == "superopt-tune: interrupted; run again, it goes on where it ended\n"
    assert tool.returncode == 130
    assert time.monotonic() - begun < 30, "hangs for 60 s"
    assert [path.name for path in tmp_path.glob("*.marks")] == ["0.mlir.marks"]


def test_a_process_that_says_something_else_has_no_answer(tmp_path: Path) -> None:
    (tmp_path / "babbles").write_text("babbles")
    (answer,) = pool(tmp_path).answers([Job(str(tmp_path / "babbles"))])
    assert answer.report is None
    assert "expected an answer as JSON, got 'a library says" in answer.error


def test_files_that_hold_the_same_are_tuned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Fake:
        def answers(self, jobs: Sequence[Job]) -> Iterator[Answer]:
            for job in jobs:
                asked.append(job.file)
                yield Answer(job, {"predicted_seconds": 1e-6, "tuning": None})

    files = [str(tmp_path / name) for name in ("a.mlir", "b.mlir", "c.mlir")]
    for file, text in zip(files, (PROGRAM, PROGRAM, "other"), strict=True):
        Path(file).write_text(text)

    def fake(workers: str, timeout: float) -> Fake:
        return Fake()

    monkeypatch.setattr("superopt.tools.superopt_tune._pool", fake)
    assert main([*files, "-o", str(tmp_path / "out.json")]) == 0
    assert asked == [files[0], files[2]]
    (tmp_path / "out.json").write_text('{"tuned": 5}')
    assert main([*files, "-o", str(tmp_path / "out.json")]) == 1


def test_results_of_other_code_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Fake:
        def answers(self, jobs: Sequence[Job]) -> Iterator[Answer]:
            for job in jobs:
                asked.append(job.file)
                yield Answer(job, {"predicted_seconds": 1e-6, "tuning": None})

    def fake(workers: str, timeout: float) -> Fake:
        return Fake()

    monkeypatch.setattr("superopt.tools.superopt_tune._pool", fake)
    file, out = tmp_path / "f.mlir", tmp_path / "out.json"
    file.write_text(PROGRAM)
    with monkeypatch.context() as older:
        older.setattr("superopt.tools.superopt_tune.own_code", lambda: "an older version")
        assert main([str(file), "-o", str(out)]) == 0
    assert main([str(file), "-o", str(out)]) == 0
    assert main([str(file), "-o", str(out)]) == 0
    assert asked == [str(file)] * 2


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, store = tmp_path / "f.mlir", tmp_path / "store"
    file.write_text(PROGRAM.replace("N", "64"))
    store.write_text("no folder")
    settings = ["optimizers=saturation", "against=operators", "budget=5", f"store={store}"]
    arguments = [word for s in settings for word in ("--settings", s)]
    assert main([str(file), "--evaluations", "1", *arguments]) == 0
    assert f"{file}: warning: the result was not stored" in capsys.readouterr().err


def test_a_run_goes_on_where_it_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"{n}.mlir" for n in (64, 128)]
    for file in files:
        file.write_text(PROGRAM.replace("N", file.stem))
    store, out = tmp_path / "store", tmp_path / "out.json"
    settings = ["optimizers=saturation", "against=operators", "budget=10", f"store={store}"]
    arguments = ["--evaluations", "8", "--workers", "2", "-o", str(out)]
    arguments += [word for s in settings for word in ("--settings", s)]
    assert main([str(files[0]), *arguments]) == 0
    first = json.loads(out.read_text())["tuned"]
    assert main([*map(str, files), *arguments]) == 0
    said = capsys.readouterr().out
    assert said.count(f"{files[0]}: predicted") == 1, "what has a result is not tuned again"
    assert "2 of 2 programs are tuned" in said
    both = json.loads(out.read_text())["tuned"]
    assert first.items() <= both.items()
    for row in both.values():
        assert row["report"]["tuning"]["evaluations"]["tiles"] > 1
        assert row["report"]["predicted_seconds"] <= row["report"]["tuning"]["before_seconds"]
    assert main([*map(str, files), *arguments[:4], *arguments[6:]]) == 0
    assert "from the store" in capsys.readouterr().out


def test_two_runs_with_one_file_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins and ends while the first still works; both have their results in the end."""
    files = [tmp_path / f"{n}.mlir" for n in (64, 128)]
    for file in files:
        file.write_text(PROGRAM.replace("N", file.stem))
    rest = ["-o", str(tmp_path / "out.json")]

    class Meanwhile:
        def answers(self, jobs: Sequence[Job]) -> Iterator[Answer]:
            for job in jobs:
                if job.file == str(files[0]):
                    assert main([str(files[1]), *rest]) == 0
                yield Answer(job, {"predicted_seconds": 1e-6, "tuning": None})

    def meanwhile(workers: str, timeout: float) -> Meanwhile:
        return Meanwhile()

    monkeypatch.setattr("superopt.tools.superopt_tune._pool", meanwhile)
    assert main([str(files[0]), *rest]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["tuned"].values()
    assert {row["file"] for row in rows} == {str(file) for file in files}


def test_two_runs_of_one_program_share_its_trials(tmp_path: Path) -> None:
    """Two tools at once, one program, one store: the same result, and each trial is in the log once."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "kills"))
    tuning: Any = import_module("tuning")
    rounds = [tuning.Round(tmp_path / name, store=tmp_path / "store") for name in ("first", "second")]
    tools = [one.begun() for one in rounds]
    assert [tool.wait(tuning.PATIENCE) for tool in tools] == [0, 0]
    (first, _), (second, _) = (one.found() for one in rounds)
    assert first == second
    found = trials(tmp_path / "store")
    assert len(found) == len(set(found)) > 4


class Failing:
    def answers(self, jobs: Sequence[Job]) -> Iterator[Answer]:
        for job in jobs:
            yield Answer(job, None, "the moon is full")


def test_a_program_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.mlir"
    file.write_text("")

    def failing(workers: int, timeout: float) -> Failing:
        return Failing()

    monkeypatch.setattr("superopt.tools.superopt_tune.LocalPool", failing)
    assert main([str(file)]) == 1
    assert f"{file}: failed: the moon is full\n0 of 1 programs are tuned" in capsys.readouterr().out


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str, code: int = 2) -> str:
        assert main(arguments) == code
        return capsys.readouterr().err

    (tmp_path / "other.json").write_text("[]")
    (tmp_path / "f.mlir").write_text(PROGRAM.replace("N", "64"))
    program = str(tmp_path / "f.mlir")
    assert "cannot read: No such file" in said(str(tmp_path / "none.mlir"), code=1)
    assert "expected a setting as NAME=VALUE, got 'budget'" in said(program, "--settings", "budget")
    assert "has no option 'bugdet' (did you mean 'budget'?)" in said(program, "--settings", "bugdet=1")
    assert "as --evaluations, got tune=7" in said(program, "--settings", "tune=7")
    assert "cannot write: No such file" in said(program, "-o", str(tmp_path / "none" / "out.json"), code=1)
    assert said(str(tmp_path), code=1).startswith(f"{tmp_path}: error: cannot read: Is a directory")
    assert "expected results of superopt-tune, or no file" in said(
        program, "-o", str(tmp_path / "other.json"), code=1
    )
    for workers in ("0", "many", "ray:0"):
        assert "expected" in said(program, "--workers", workers)
    with pytest.raises(SystemExit, match="2"):
        main([program, "--evaluations", "0"])
    assert "expected a positive number, got '0'" in capsys.readouterr().err


def test_without_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.mlir"
    file.write_text(PROGRAM.replace("N", "64"))
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([str(file), "--workers", "ray:1"]) == 1
    assert "pip install 'superopt[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["ray:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_does_not_begin(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ray(ModuleType):
        down = 0

        def init(self, **settings: object) -> None:
            raise RuntimeError("Timed out waiting for file gcs_server_port\nand more")

        def shutdown(self) -> None:
            self.down += 1

    monkeypatch.setitem(sys.modules, "ray", ray := Ray("ray"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "f.mlir").write_text(PROGRAM.replace("N", "64"))
    assert main([str(tmp_path / "f.mlir"), "--workers", workers]) == 1
    said = (
        "superopt-tune: error: expected a Ray cluster, got none: Timed out waiting for file gcs_server_port\n"
    )
    assert capsys.readouterr().err == said
    assert ray.down == 1
    assert [p.name for p in tmp_path.iterdir()] == ["f.mlir"]


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_jobs_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real cluster on the loopback address: the same answers as processes, and nothing left in the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    jobs = [Job(str(tmp_path / name)) for name in ("fine", "dies once", "dies")]
    for job in jobs:
        Path(job.file).write_text(Path(job.file).name)
    command = pool(tmp_path).command
    found = {Path(a.job.file).name: a for a in RayPool(60.0, workers=2, command=command).answers(jobs)}
    assert found["fine"].report == {"what": "fine"}
    assert (found["dies once"].report, found["dies once"].attempts) == ({"what": "dies once"}, 2)
    assert "ended with -9" in found["dies"].error
    assert list((tmp_path / "home").iterdir()) == []


# A worker that is killed at a given moment of its first attempt.
KILLED = """
import pathlib, runpy, signal, sys
marks = pathlib.Path(sys.argv[2])
if not marks.exists():
    marks.write_text("x")
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
runpy.run_module("superopt.tuning.worker", run_name="__main__")
"""


def trials(store: Path) -> list[tuple[str, str]]:
    """What is in the logs of a store: evaluator and program of each trial."""
    lines = [line for path in (store / "trials").glob("*.jsonl") for line in path.read_bytes().splitlines()]
    found: list[tuple[str, str]] = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a line that a kill cut off
            row = json.loads(line)
            found.append((row["evaluator"], row["key"]))
    return found


def test_workers_that_are_killed_at_random_moments(tmp_path: Path) -> None:
    """The same result as without, by the same trials, none of which is lost or made twice."""
    file = tmp_path / "f.mlir"
    file.write_text(PROGRAM.replace("N", "64"))
    (tmp_path / "killed.py").write_text(KILLED)

    def tuned(
        name: str, command: tuple[str, ...] | None = None
    ) -> tuple[Answer, list[tuple[str, str]], float]:
        settings = {"tune": 24, "optimizers": ["saturation"], "against": "operators", "budget": 20.0}
        job = Job(str(file), {**settings, "store": str(tmp_path / name)})
        begun = time.monotonic()
        local = LocalPool(1, 300.0) if command is None else LocalPool(1, 300.0, command)
        (answer,) = local.answers([job])
        return answer, trials(tmp_path / name), time.monotonic() - begun

    alone, expected, seconds = tuned("alone")
    assert alone.report is not None, alone.error
    assert len(expected) == len(set(expected)) > 8
    rng = random.Random(5)
    for number in range(3):
        moment = rng.uniform(0.3, 1.0) * seconds
        marks = str(tmp_path / f"marks {number}")
        command = (sys.executable, str(tmp_path / "killed.py"), str(moment), marks)
        answer, found, _ = tuned(f"killed {number}", command)
        assert answer.report is not None, answer.error
        assert sorted(found) == sorted(expected)
        for key in ("predicted_seconds", "input_predicted_seconds"):
            assert answer.report[key] == alone.report[key]


def test_a_tool_that_is_killed_takes_its_workers_along_and_goes_on(tmp_path: Path) -> None:
    """SIGKILL at a random moment; run again, it has the same result by the same trials."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "kills"))
    tuning: Any = import_module("tuning")
    tally = tuning.campaign(tmp_path, workers=0, coordinators=1, seed=3)
    assert tally.losses == []
    assert tally.coordinators + tally.late >= 1
    assert tally.trials > 4


def test_what_a_killed_run_stored_is_its_result(tmp_path: Path) -> None:
    """A kill between the store and the file of results: the run after it is answered from the store."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "kills"))
    tuning: Any = import_module("tuning")
    one = tuning.Round(tmp_path)
    reports = [({"config": {"p": {"s": "c"}}}, '{"p": {"s": "c"}}'), (None, None)]
    for report, config in reports:
        row = {"report": {"predicted_seconds": 1.0, "tuning": report}}
        one.out.write_text(json.dumps({"tuned": {"key": row}}))
        assert one.found() == (1.0, config)
