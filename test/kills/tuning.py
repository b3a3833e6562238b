"""Kills of tuning at random moments: the same best program, and no trial lost or made twice.

    python test/kills/tuning.py --workers=20 --coordinators=20 --seed=0 --json=FILE

Each round tunes one program with `superopt-tune` in a store of its own. Either the worker gets SIGKILL once, and the
tool begins another; or the tool itself does, and is run again with the same arguments, once its worker is gone. The
moment is a random one of the time that a run takes, and in every second round one behind a random trial, as most of
a run is over before there are any. Results and the log of trials are those of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from about import about

PROGRAM = """
func.func @f(%x: tensor<64x64xf16>, %w: tensor<64x64xf16>) -> tensor<64x64xf16> {
  %y = "kernel.matmul"(%x, %w) : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
  return %y : tensor<64x64xf16>
}
"""
SETTINGS = ("optimizers=saturation", "against=operators", "budget=20")
PATIENCE = 600.0
# The share of a run at which kills begin: what is before is the start of Python.
FIRST = 0.1


@dataclass
class Tally:
    """What became of the rounds; `losses` are the faults: none is allowed.

    `logged` has how many trials were in the log when a worker or a tool was killed.
    """

    workers: int = 0
    coordinators: int = 0
    late: int = 0
    trials: int = 0
    logged: dict[str, list[int]] = field(default_factory=lambda: {"workers": [], "coordinators": []})
    losses: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Round:
    """One program, tuned in `folder`, with a store in it or elsewhere."""

    folder: Path
    evaluations: int = 16
    store: Path | None = None

    @property
    def stored(self) -> Path:
        """The store."""
        return self.store or self.folder / "store"

    @property
    def out(self) -> Path:
        """Where results are."""
        return self.folder / "out.json"

    def begun(self) -> subprocess.Popen[bytes]:
        """`superopt-tune`, running."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "f.mlir").write_text(PROGRAM)
        command = [sys.executable, "-P", "-m", "superopt.tools.superopt_tune", "f.mlir", "-o", "out.json"]
        command += ["--evaluations", str(self.evaluations)]
        for setting in (*SETTINGS, f"store={self.stored}"):
            command += ["--settings", setting]
        return subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL)

    def found(self) -> tuple[float, str | None]:
        """The predicted seconds and the chosen configuration; None where the store answered.

        It does where the kill came after the result was stored, and before the answer was written.
        """
        (row,) = json.loads(self.out.read_text())["tuned"].values()
        report = row["report"]
        tuning = report["tuning"]
        return report["predicted_seconds"], tuning and json.dumps(tuning["config"], sort_keys=True)

    def trials(self) -> list[tuple[str, str]]:
        """Evaluator and program of each trial in the log."""
        found: list[tuple[str, str]] = []
        for path in (self.stored / "trials").glob("*.jsonl"):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):  # a line that a kill cut off
                    row = json.loads(line)
                    found.append((row["evaluator"], row["key"]))
        return sorted(found)


def children(process: int) -> Iterator[int]:
    """Processes that a process has begun."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            yield from map(int, (task / "children").read_text().split())


def gone(process: int) -> bool:
    """Whether a process has ended; one that nobody waited for has, too."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@dataclass(frozen=True)
class Moment:
    """When a kill comes: `seconds` after `trials` were logged, or after the run began."""

    seconds: float
    trials: int = 0

    def wait(self, of: Round, tool: subprocess.Popen[bytes]) -> None:
        """Wait for it, or for the end of the tool."""
        deadline = time.monotonic() + PATIENCE
        while len(of.trials()) < self.trials and tool.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tool.wait(self.seconds)


def kill_worker(of: Round, moment: Moment) -> tuple[bool, int]:
    """Tune, and kill the worker; whether there still was one, and the trials that were logged then."""
    tool, hit, before = of.begun(), False, 0
    deadline = time.monotonic() + PATIENCE
    while not (workers := list(children(tool.pid))) and tool.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    moment.wait(of, tool)
    for worker in workers if tool.poll() is None else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
            before, hit = len(of.trials()), True
    assert tool.wait(PATIENCE) == 0
    return hit, before


def kill_coordinator(of: Round, moment: Moment) -> tuple[bool, int]:
    """Tune, kill the tool, and tune again; whether it was killed in time, and the trials that were logged then."""
    tool = of.begun()
    moment.wait(of, tool)
    hit, workers = tool.poll() is None, list(children(tool.pid))
    tool.kill()
    tool.wait()
    deadline = time.monotonic() + 10
    while not all(map(gone, workers)):
        assert time.monotonic() < deadline, "a worker outlives the tool"
        time.sleep(0.02)
    before = len(of.trials())
    assert of.begun().wait(PATIENCE) == 0
    return hit, before


def campaign(
    folder: Path, workers: int, coordinators: int, seed: int, watch: Callable[[Tally], object] = print
) -> Tally:
    """Rounds with kills, compared with one without, until as many kills came in time, or twice as many did not."""
    tally, rng = Tally(), random.Random(seed)
    alone = Round(folder / "alone")
    begun = time.monotonic()
    assert alone.begun().wait(PATIENCE) == 0
    seconds = time.monotonic() - begun
    expected, trials = alone.found(), alone.trials()
    tally.trials = len(trials)
    if not trials or len(set(trials)) != len(trials):
        tally.losses.append(f"alone: {len(trials)} trials, {len(set(trials))} of them different")
    for number in itertools.count():
        if (tally.workers, tally.coordinators) == (workers, coordinators) or number > 2 * (
            workers + coordinators
        ):
            break
        one, moment = Round(folder / str(number)), Moment(rng.uniform(FIRST, 1.0) * seconds)
        if number % 2:
            moment = Moment(0.0, rng.randint(1, len(trials)))
        if tally.workers < workers:
            hit, before = kill_worker(one, moment)
            tally.workers += hit
            what = "workers"
        else:
            hit, before = kill_coordinator(one, moment)
            tally.coordinators += hit
            what = "coordinators"
        if hit:
            tally.logged[what].append(before)
        else:
            tally.late += 1
            if not moment.trials:  # the machine was busier before
                seconds = min(seconds, moment.seconds)
        best, config = one.found()
        if best != expected[0] or config not in (None, expected[1]):
            tally.losses.append(f"round {number}: another best program")
        if (found := one.trials()) != trials:
            lost, more = set(trials) - set(found), len(found) - len(set(found))
            tally.losses.append(f"round {number}: {len(lost)} trials lost, {more} made twice")
        watch(tally)
    return tally


def main() -> int:
    """Kill, print, store."""
    parser = argparse.ArgumentParser(description="Kills of tuning at random moments.")
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--coordinators", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    begun = time.monotonic()

    def kept(tally: Tally) -> None:
        seconds = round(time.monotonic() - begun, 1)
        record = {**about(), "seed": given.seed, "seconds": seconds, **asdict(tally)}
        print(json.dumps(record), flush=True)
        if given.json:
            given.json.write_text(json.dumps(record, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        tally = campaign(Path(folder), given.workers, given.coordinators, given.seed, kept)
    return 1 if tally.losses else 0


if __name__ == "__main__":
    sys.exit(main())
