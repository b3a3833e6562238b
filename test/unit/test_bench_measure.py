"""The measure step in processes of its own, as it runs elsewhere: what a bad candidate costs, resuming, errors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import bench_folders
import pytest

pytest.importorskip("torch")


def measure(folder: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, output, *more), capture_output=True, text=True, check=False)


def command(folder: Path, output: Path, *more: str) -> list[str]:
    fast = ["--device=interpreter", "--rounds=4", "--repeats=2"]
    return [sys.executable, str(folder / "measure.py"), "-o", str(output), *fast, *more]


def rows(output: Path) -> dict[str, dict[str, Any]]:
    return {r["row"]: r for r in json.loads(output.read_text())["rows"]}


def test_a_bad_candidate_costs_its_own_row(tmp_path: Path) -> None:
    names = list(bench_folders.CANDIDATES)
    folder = bench_folders.write(tmp_path / "folder", {"p": names})
    done = measure(folder, tmp_path / "r.json", "--timeout=8", "--jobs=9")
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "r.json")
    assert {n: r["status"] for n, r in found.items()} == {
        "good": "ok", "crashes": "crashed", "wrong": "wrong", "wrong shape": "wrong", "hangs": "timeout",
        "raises": "failed", "no memory": "failed", "writes nothing": "wrong", "remembers": "wrong",
    }  # fmt: skip
    assert "SIGABRT" in found["crashes"]["error"]
    assert "no answer within 8 s" in found["hangs"]["error"]
    assert "no such kernel" in found["raises"]["error"]
    good = found["good"]["modes"]["plain"]
    assert len(good["samples"]) == 4
    assert good["low"] <= good["seconds"] <= good["high"]
    assert "not a GPU" in found["good"]["modes"]["graph"]["missing"]
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["complete"]
    assert data["device"]["kind"] == "interpreter"
    assert set(data["versions"]) == {"python", "torch", "triton"}


def test_killed_and_resumed(tmp_path: Path) -> None:
    """kill -9 in the second program: the first one's rows stay, the second is measured by the next run."""
    flag = tmp_path / "go"
    waits = f"import pathlib, time\n\ndef run(x):\n    while not pathlib.Path({str(flag)!r}).exists():\n        time.sleep(0.05)\n    return (x * 2,)\n"
    folder = bench_folders.write(tmp_path / "f", {"first": ["good"], "second": ["waits"]}, {"waits": waits})
    output = tmp_path / "r.json"
    running = subprocess.Popen(command(folder, output), stdout=subprocess.DEVNULL, start_new_session=True)
    for _ in range(1200):
        with contextlib.suppress(FileNotFoundError):
            if json.loads(output.read_text())["rows"]:
                break
        time.sleep(0.05)
    time.sleep(0.5)
    children = _descendants(running.pid)
    running.send_signal(signal.SIGKILL)
    running.wait(30)
    before = json.loads(output.read_text())
    assert [r["program"] for r in before["rows"]] == ["first"]
    assert not before["complete"]
    for _ in range(200):  # workers end with their parent, whatever they are doing
        if not any(Path(f"/proc/{c}/cmdline").exists() and _alive(c) for c in children):
            break
        time.sleep(0.05)
    else:
        pytest.fail("a worker outlived the run")
    flag.touch()
    assert measure(folder, output).returncode == 0
    after = json.loads(output.read_text())
    assert after["rows"][0] == before["rows"][0]
    assert [r["program"] for r in after["rows"]] == ["first", "second"]
    assert after["complete"]


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


def _alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text()
    return False


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("absent", "no such folder"),
        ("empty", "without prepared.json"),
        ("garbage", "got something else"),
        ("version", "expected superopt-bench prepared 1"),
        ("changed", "expected the file 'good/launch.py' as it was prepared"),
        ("missing", "expected the file 'good/launch.py' in the prepared folder"),
        ("program", "expected programs of p, got 'q'"),
        ("row", "expected rows of good, got 'bad'"),
        ("others", "expected results of the same prepared to resume"),
        ("no json", "got no JSON"),
        ("device", "expected a CUDA device"),
        ("output", "no such folder"),
    ],
)
def test_what_cannot_be_measured(
    damage: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from superopt.measure.standalone import run

    folder, output, more = tmp_path / "f", tmp_path / "r.json", ["--device=interpreter"]
    if damage != "absent":
        bench_folders.write(folder, {"p": ["good"]})
    if damage == "empty":
        (folder / "prepared.json").unlink()
    elif damage == "garbage":
        (folder / "prepared.json").write_bytes(b"\xff{")
    elif damage == "version":
        text = (folder / "prepared.json").read_text()
        (folder / "prepared.json").write_text(text.replace('"version": 1', '"version": 9'))
    elif damage == "changed":
        (folder / "good" / "launch.py").write_text("def run(x):\n    return (x * 2,)\n")
    elif damage == "missing":
        (folder / "good" / "launch.py").unlink()
    elif damage == "program":
        more += ["--programs=q"]
    elif damage == "row":
        more += ["--rows=bad"]
    elif damage == "others":
        output.write_text(json.dumps({"format": "superopt-bench results", "version": 1, "prepared": {}}))
    elif damage == "no json":
        output.write_text("{")
    elif damage == "device":
        more = ["--device=cuda"]
    elif damage == "output":
        output = tmp_path / "no" / "r.json"
    before = output.read_text() if output.exists() else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(run, "Processes", _NoProcesses if damage != "device" else run.Processes)
        assert run.main([str(folder), "-o", str(output), *more]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.startswith("superopt-bench: error: ")
    assert (output.read_text() if output.exists() else None) == before


class _NoProcesses:
    """Starts workers that only say what the device is."""

    def start(self, request: dict[str, Any]) -> _NoProcesses:
        return self

    def ask(self, question: dict[str, Any], timeout: float) -> dict[str, Any]:
        assert question == {"do": "facts"}
        return {"device": {"kind": "interpreter", "name": "none"}, "versions": {}}

    def close(self) -> None:
        pass


def test_nothing_of_superopt_is_needed(tmp_path: Path) -> None:
    """The measure step imports nothing of this package, by its own words."""
    folder = bench_folders.write(tmp_path / "f", {"p": ["good"]})
    for path in [folder / "measure.py", *(folder / "superopt_measure").glob("*.py")]:
        for line in path.read_text().splitlines():
            if line.lstrip().startswith(("import ", "from ")):
                assert "superopt." not in line.replace("superopt_measure.", "")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-I", str(folder / "measure.py"), "--help"],
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0
