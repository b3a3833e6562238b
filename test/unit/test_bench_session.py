"""Timing, tuning and verdicts of the measure step, by scripted workers and a clock that the tests set."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import bench_folders
import pytest

from superopt.measure.standalone.clocks import Clocks
from superopt.measure.standalone.floor import floor_seconds
from superopt.measure.standalone.intervals import interval, paired_ratio
from superopt.measure.standalone.processes import Ended
from superopt.measure.standalone.results import CannotWrite, ResultsFile, read
from superopt.measure.standalone.session import FEWEST_ROUNDS, Session, Settings
from superopt.measure.standalone.tune import STRATEGIES, search
from superopt.measure.standalone.worker import Candidate, repeats_for

GPU = {
    "kind": "cuda", "name": "GPU", "capability": 90, "multiprocessors": 100, "clock_hz": 1e9,
    "memory_bytes_per_second": 1e12, "l2_bytes": 1e6,
}  # fmt: skip


class World:
    """A clock, and workers whose times are given by row (or row and point); what they were asked, in order."""

    def __init__(self, seconds: dict[str, float], cost: float = 1.0) -> None:
        self.time, self.seconds, self.cost = 0.0, seconds, cost
        self.asked: list[tuple[str, str]] = []
        self.alive: set[str] = set()
        self.most_alive = 0
        self.fails: dict[tuple[str, int], Ended] = {}
        self.costs: dict[tuple[str, str], float] = {}  # seconds of an answer, where it is not `cost`

    def start(self, request: dict[str, Any]) -> Fake:
        return Fake(self, request["point"]["path"])

    def now(self) -> float:
        return self.time


class Fake:
    """One scripted worker."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.rounds = world, name, 0
        world.alive.add(name)
        world.most_alive = max(world.most_alive, len(world.alive))

    def ask(self, question: dict[str, Any], timeout: float) -> dict[str, Any]:
        world = self.world
        cost = world.costs.get((self.name, question["do"]), world.cost)
        world.time += min(cost, timeout)
        world.asked.append((self.name, question["do"]))
        if timeout < cost:
            raise Ended("timeout", f"no answer within {timeout} s")
        if question["do"] == "prepare":
            if (self.name, 0) in world.fails:
                raise world.fails[self.name, 0]
            return {
                "ratio": 0.5,
                "setup_seconds": 1.0,
                "seconds": world.seconds[self.name],
                "modes": {"plain": "", "graph": ""},
            }
        self.rounds += 1
        if (self.name, self.rounds) in world.fails:
            raise world.fails[self.name, self.rounds]
        drift = 1 + 0.1 * len(world.asked)  # all slow down; ratios within a round hardly do
        return {"times": [world.seconds[self.name] * drift] * 3, "ratio": 0.25}

    def close(self) -> None:
        self.world.alive.discard(self.name)


def session(tmp_path: Path, world: World, programs: list[dict[str, Any]], **settings: Any) -> Session:
    file = ResultsFile(tmp_path / "r.json", {"device": GPU, "versions": {}})
    made = Settings(strategy="model", rounds=8, jobs=1, **settings)
    return Session("folder", programs, file, made, world.start, Clocks(), now=world.now, say=lambda _: None)


def statuses(file: ResultsFile) -> dict[str, str]:
    return {r["row"]: r["status"] for r in file.data["rows"]}


def test_rows_of_a_program_are_timed_side_by_side_in_changing_order(tmp_path: Path) -> None:
    world = World({"a": 1e-3, "b": 2e-3, "c": 3e-3})
    programs = [bench_folders.program("p", [bench_folders.row(n, [bench_folders.point(n)]) for n in "abc"])]
    run = session(tmp_path, world, programs)
    assert run.run()
    assert world.most_alive == 3
    assert not world.alive
    rounds = [n for n, what in world.asked if what == "round"]
    orders = {tuple(dict.fromkeys(rounds[i : i + 6])) for i in range(0, len(rounds), 6)}
    assert all(sorted(o) == ["a", "b", "c"] for o in orders)
    assert len(orders) > 1
    by_name = {r["row"]: r["modes"]["plain"]["samples"] for r in run.file.data["rows"]}
    middle, low, high = paired_ratio(by_name["b"], by_name["a"])
    assert low <= middle <= high
    assert middle == pytest.approx(2, rel=0.2)


def test_a_failure_in_a_round_costs_one_row_and_is_on_the_disk_at_once(tmp_path: Path) -> None:
    world = World({"a": 1e-3, "b": 2e-3})
    world.fails["b", 5] = Ended("crashed", "its process ended with SIGSEGV")
    programs = [bench_folders.program("p", [bench_folders.row(n, [bench_folders.point(n)]) for n in "ab"])]
    run = session(tmp_path, world, programs)
    assert run.run()
    assert statuses(run.file) == {"b": "crashed", "a": "ok"}
    assert len(run.file.data["rows"][1]["modes"]["plain"]["samples"]) == 8
    assert json.loads((tmp_path / "r.json").read_text()) == run.file.data


def test_impossible_times_are_flagged_and_are_no_result(tmp_path: Path) -> None:
    programs = [
        bench_folders.program(
            "p", [bench_folders.row(n, [bench_folders.point(n)]) for n in ("fast", "fair")], 10**8
        )
    ]
    run = session(tmp_path, World({"fast": 1e-5, "fair": 3e-4}), programs)
    assert run.run()
    assert statuses(run.file) == {"fast": "impossible", "fair": "ok"}
    (fast,) = [r for r in run.file.data["rows"] if r["row"] == "fast"]
    assert "where no program can take less than" in fast["error"]


def test_the_minutes_are_kept_and_the_next_run_does_the_rest(tmp_path: Path) -> None:
    names = ["p", "q", "r", "s"]
    programs = [bench_folders.program(n, [bench_folders.row("a", [bench_folders.point("a")])]) for n in names]
    world = World({"a": 1e-3}, cost=5.0)
    run = session(tmp_path, world, programs, minutes=2.0)
    assert not run.run()
    assert world.time <= 121
    done = [r["program"] for r in run.file.data["rows"]]
    assert run.file.data["skipped"]
    assert all(len(r["modes"]["plain"]["samples"]) >= FEWEST_ROUNDS for r in run.file.data["rows"])
    before = {r["program"]: r for r in run.file.data["rows"]}
    world = World({"a": 1e-3}, cost=0.1)
    again = session(tmp_path, world, programs)
    assert again.file.resumed
    assert again.run()
    after = {r["program"]: r for r in again.file.data["rows"]}
    assert set(after) == set(names)
    assert {n: after[n] for n in done} == before
    assert again.file.data["complete"]


def test_a_slow_baseline_does_not_keep_the_others_from_being_measured(tmp_path: Path) -> None:
    slow = bench_folders.point("slow", compile="max-autotune-no-cudagraphs")
    rows = [bench_folders.row("slow", [slow], "baseline"), bench_folders.row("a", [bench_folders.point("a")])]
    world = World({"a": 1e-3, "slow": 1e-3}, cost=1.0)
    world.costs["slow", "prepare"] = 1000.0
    run = session(tmp_path, world, [bench_folders.program("p", rows)], minutes=1.0)
    assert run.run()
    assert world.time <= 61
    assert statuses(run.file) == {"a": "ok", "slow": "late"}
    assert run.file.data["rows"][0]["modes"]["plain"]["samples"]

    world = World({"a": 1e-3, "slow": 2e-3}, cost=0.1)  # the next call has time for it, beside the others
    again = session(tmp_path, world, [bench_folders.program("p", rows)])
    assert again.run()
    assert statuses(again.file) == {"a": "ok", "slow": "ok"}
    assert len(again.file.data["rows"]) == 2
    world.asked.clear()
    assert session(tmp_path, world, [bench_folders.program("p", rows)]).run()
    assert not world.asked


def test_a_hang_at_the_end_of_the_minutes_is_not_blamed_on_the_candidate(tmp_path: Path) -> None:
    programs = [bench_folders.program("p", [bench_folders.row("a", [bench_folders.point("a")])])]
    run = session(tmp_path, World({"a": 1e-3}, cost=100.0), programs, minutes=1.0)
    assert not run.run()
    assert run.file.data["rows"] == []
    assert run.file.data["skipped"] == [{"program": "p", "row": "a", "why": "out of time"}]


def test_tuning_takes_the_best_point_and_is_not_done_again(tmp_path: Path) -> None:
    points = [bench_folders.point(f"x{i}", i) for i in range(5)]
    programs = [bench_folders.program("p", [bench_folders.row("x", points)])]
    world = World({f"x{i}": s for i, s in enumerate([3e-3, 2e-3, 1e-3, 4e-3, 5e-3])})
    world.fails["x1", 0] = Ended("crashed", "SIGSEGV")
    run = session(tmp_path, world, programs)
    assert run.run()
    (row,) = run.file.data["rows"]
    assert (row["point"], row["parameters"], row["status"]) == ("2", {"tile": 2}, "ok")
    (tuning,) = run.file.data["tuning"]
    assert [t["at"] for t in tuning["tried"]] == sorted(t["at"] for t in tuning["tried"])
    assert [t["status"] for t in tuning["tried"]] == ["ok", "crashed", "ok", "ok", "ok"]
    run.file.data["rows"].clear()
    run.file.save()
    world.asked.clear()
    assert session(tmp_path, world, programs).run()
    assert {n for n, _ in world.asked} == {"x2"}


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ResultsFile(tmp_path / "r.json", {"device": GPU})
    file.save()
    before = (tmp_path / "r.json").read_text()
    file.data["rows"].append({"row": "a"})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotWrite, match="No space left on device"):
        file.save()
    assert (tmp_path / "r.json").read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    monkeypatch.undo()
    file.save()
    assert read(tmp_path / "r.json")["rows"] == [{"row": "a"}]


def test_a_disk_that_fills_up_ends_the_run_and_prints_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from superopt.measure.standalone import run

    folder = bench_folders.write(tmp_path / "f", {"p": ["good"]})
    world = World({"good": 1e-3})

    def facts(question: dict[str, Any], timeout: float) -> dict[str, Any]:
        return {"device": GPU, "versions": {}}

    class Scripted:
        def start(self, request: dict[str, Any]) -> Any:
            worker: Any = world.start(request)
            if len(world.asked) == 0:
                worker.ask = facts
                world.asked.append(("probe", "facts"))
            return worker

        def close(self) -> None:
            pass

    saves = iter(range(10))

    def full(_: int) -> None:
        if next(saves) >= 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "Processes", Scripted)
    monkeypatch.setattr(os, "fsync", full)
    assert run.main([str(folder), "-o", str(tmp_path / "r.json")]) == 2
    out, err = capsys.readouterr()
    assert "No space left on device" in err
    assert read(tmp_path / "r.json")["rows"] == []
    printed = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    assert [r["row"] for r in printed["rows"]] == ["good"]


# --- numbers -------------------------------------------------------------------------------------------------


def test_intervals_of_medians() -> None:
    assert interval([3.0]) == (3.0, 3.0, 3.0)
    assert interval([1.0, 2.0, 9.0]) == (2.0, 1.0, 9.0)
    middle, low, high = interval([float(i) for i in range(20)])
    assert (middle, low, high) == (9.5, 5.0, 14.0)  # ranks 6 and 15 of 20: 95.9%
    with pytest.raises(ValueError, match="got none"):
        interval([])


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    import random

    draw = random.Random(1)
    held = 0
    for _ in range(2000):
        _, low, high = interval([draw.lognormvariate(0, 1) for _ in range(15)])
        held += low <= 1.0 <= high
    assert 0.94 <= held / 2000 <= 0.99


def test_floor_counts_what_nobody_can_avoid() -> None:
    program = {"read_bytes": 10**9, "written_bytes": 10**6}
    assert floor_seconds(program, {}, GPU) == pytest.approx(1e-3)  # the output may still be in L2
    program["written_bytes"] = 10**9 + 10**6
    assert floor_seconds(program, {}, GPU) == pytest.approx(2e-3)
    flops = 100 * 4096 * 1e9  # a second of the matrix units
    assert floor_seconds(program, {"matrix_flops": flops}, GPU) == pytest.approx(1.0)
    assert floor_seconds(program, {}, {"kind": "interpreter"}) == 0
    unknown = {"kind": "cuda", "capability": 130, "multiprocessors": 1}
    assert 0 < floor_seconds(program, {}, unknown) < 1e-3


def test_repeats_fill_a_round() -> None:
    assert repeats_for(1e-6) == 200
    assert repeats_for(1e-3) == 30
    assert repeats_for(1.0) == 3


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_every_strategy_keeps_the_budget_and_finds_the_best_of_all(strategy: str) -> None:
    if strategy == "optuna":
        pytest.importorskip("optuna")
    points = [
        {"parameters": {"tile": t, "warps": w}, "predicted_seconds": 1.0 + abs(t - 32) + w}
        for t in (16, 32, 64, 128)
        for w in (1, 2, 4, 8)
    ]

    def seconds(i: int) -> float:
        p = points[i]["parameters"]
        assert isinstance(p, dict)
        return 1 + abs(math.log2(p["tile"] / 64)) + abs(math.log2(p["warps"] / 4))

    asked: list[int] = []

    def measure(i: int) -> tuple[float | None, str]:
        asked.append(i)
        return (None, "crashed") if i == 0 else (seconds(i), "ok")

    found = search(points, measure, strategy=strategy, most=6, seed=3)
    assert len(found.tried) == len(asked) == len(set(asked)) == 6
    assert found.seconds == min(s for _, s, _ in found.tried if s is not None)
    whole = search(points, measure, strategy=strategy, most=100, seed=3)
    assert len(whole.tried) == len(points)
    assert whole.best is not None
    assert points[whole.best]["parameters"] == {"tile": 64, "warps": 4}
    assert search(points, measure, strategy=strategy, most=9, stop=lambda: True).tried == []


# --- inside a worker -----------------------------------------------------------------------------------------


class FakeDevice:
    """The CPU, with a clock that the test sets."""

    name = "cpu"

    def __init__(self) -> None:
        self.before = self.calls = 0

    def facts(self) -> dict[str, Any]:
        return GPU

    def time(self, call: Any, repeats: int, before: Any) -> list[float]:
        for _ in range(repeats):
            before()
            self.before += 1
            call()
            self.calls += 1
        return [1e-3 * (i + 1) for i in range(repeats)]

    def capture(self, call: Any) -> tuple[Any, Any]:
        made = call()

        def replay() -> None:
            for old, new in zip(made, call(), strict=True):
                old.copy_(new)

        return replay, made


def candidate(tmp_path: Path, name: str) -> Candidate:
    folder = bench_folders.write(tmp_path / "f", {"p": [name]})
    path = name.replace(" ", "_")
    request = {
        "folder": str(folder), "program": bench_folders.program("p", []), "point": bench_folders.point(path),
        "device": "fake", "seed": 0,
    }  # fmt: skip
    return Candidate(request, FakeDevice())


def test_a_worker_checks_overwritten_memory_in_both_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.delitem(__import__("sys").modules, "launch", raising=False)
    one = candidate(tmp_path, "good")
    ready = one.prepare()
    assert ready["modes"] == {"plain": "", "graph": ""}
    assert ready["seconds"] == 1e-3
    for mode in ("plain", "graph"):
        made = one.round(mode, 5)
        assert made["times"] == [1e-3 * (i + 1) for i in range(5)]
        assert made["ratio"] <= 1
    assert isinstance(one.device, FakeDevice)
    assert one.device.before == one.device.calls == 13
    monkeypatch.delitem(__import__("sys").modules, "launch", raising=False)
