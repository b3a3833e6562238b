"""Kills of whole runs at random moments: what was whole stays whole, and the next run goes on.

    python test/kills/kills.py --count=500 --seed=0 --json=FILE

Each run of superopt-opt (search, proof, compiler processes, store, bundle) is a process of its own, forked from one that
has the modules loaded, and gets SIGINT, SIGTERM or SIGKILL at a random moment of the time that a run takes. All runs
share a store. After each kill every entry that was there is there still, and whole; a bundle is whole or absent.
After each fifth kill the run that was killed is done again, and must succeed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from about import about

PROGRAM = """
func.func @mlp(%x: tensor<8x64xf16>, %w: tensor<64x32xf16>, %v: tensor<64x32xf16>) -> tensor<8x32xf16> {
  %a = "kernel.matmul"(%x, %w) : (tensor<8x64xf16>, tensor<64x32xf16>) -> tensor<8x32xf16>
  %b = "kernel.matmul"(%x, %v) : (tensor<8x64xf16>, tensor<64x32xf16>) -> tensor<8x32xf16>
  %s = "kernel.silu"(%a) : (tensor<8x32xf16>) -> tensor<8x32xf16>
  %o = "kernel.mul"(%s, %b) : (tensor<8x32xf16>, tensor<8x32xf16>) -> tensor<8x32xf16>
  return %o : tensor<8x32xf16>
}
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
PERIOD = 5  # kills between two runs that are let go on
PATIENCE = 120.0


@dataclass
class Tally:
    """What became of the runs; `losses` are the faults: none is allowed."""

    kills: int = 0
    sent: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    late: int = 0
    completed: int = 0
    resumed: int = 0
    entries: int = 0
    losses: list[str] = field(default_factory=list[str])


def campaign(count: int, seed: int, watch: Callable[[Tally], object] = lambda tally: None) -> Tally:
    """Kill `count` runs; `watch` sees the tally now and then."""
    from superopt.store import Store

    _preload()
    generator, tally = random.Random(seed), Tally()
    with tempfile.TemporaryDirectory(prefix="superopt-kills-") as name:
        folder = Path(name)
        (folder / "program.mlir").write_text(PROGRAM)
        store = Store(folder / "store")
        start = time.monotonic()
        _finish(folder, "first", generator.randrange(1 << 30), tally)
        typical = time.monotonic() - start
        before: set[str] = set()
        while (kill := tally.kills) < count:
            out, run_seed = folder / f"bundle{kill}", seed + kill // PERIOD
            process = _start(folder, out, run_seed)
            time.sleep(generator.random() * typical)
            sent = generator.choice(SIGNALS)
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                os.waitpid(process, 0)
                tally.late += 1  # it had ended: no kill
                shutil.rmtree(out, ignore_errors=True)
                continue
            tally.kills += 1
            tally.sent[sent.name] += 1
            os.kill(process, sent)
            end = _wait(process)
            tally.ends[end] += 1
            before = _inspect(folder, out, store, before, sent, end, tally)
            if kill % PERIOD == PERIOD - 1:
                start = time.monotonic()
                _finish(folder, f"whole{kill}", run_seed, tally)
                typical = 0.8 * typical + 0.2 * (time.monotonic() - start)
                tally.entries = len(store.keys())
                watch(tally)
        tally.entries = len(store.keys())
    return tally


def _inspect(
    folder: Path, out: Path, store: Any, before: set[str], sent: signal.Signals, end: str, tally: Tally
) -> set[str]:
    """Look at what the killed run left; gives the entries that are there."""
    from superopt.errors import SuperoptError
    from superopt.transforms.emit.bundle import read_bundle

    what = f"kill {tally.kills} ({sent.name}, {end})"
    tally.losses += [f"{what}: damaged entry {entry}" for entry in store.check()]
    there = {str(p.relative_to(store.folder)) for p in (store.folder / "entries").glob("*/*")}
    tally.losses += [f"{what}: lost entry {entry}" for entry in sorted(before - there)]
    if out.exists():
        try:
            read_bundle(out)
        except SuperoptError as error:
            tally.losses.append(f"{what}: {error.message}")
    elif end == "exit 0":
        tally.losses.append(f"{what}: no bundle of a run that says it succeeded")
    errors = (folder / "stderr").read_text()
    if "Traceback" in errors:
        tally.losses.append(f"{what}: {errors.strip().splitlines()[-1]}")
    if end == "hang":
        tally.losses.append(f"{what}: did not end in {PATIENCE:g} s")
    if sent != signal.SIGKILL and list(folder.glob(f".{out.name}*")):
        tally.losses.append(f"{what}: left a half-written bundle behind")
    return there


def _finish(folder: Path, name: str, seed: int, tally: Tally) -> None:
    """The run again, to its end."""
    end = _wait(_start(folder, folder / name, seed))
    report = folder / "report.json"
    if end != "exit 0":
        tally.losses.append(
            f"a run after {tally.kills} kills: {end}: {(folder / 'stderr').read_text()[-300:]}"
        )
        return
    tally.completed += 1
    found = json.loads(report.read_text())
    reused = any("from the store" in r for r in found["remarks"])
    tally.resumed += reused or any(k.startswith("store.") for k in found["funnel"]["search"])


def _preload() -> None:
    import importlib

    for name in (
        "driver.main", "driver.emission", "pipeline", "run.context", "run.propose", "run.check", "run.choose", "run.outcome", "numerics", "numerics.float_gate",
        "transforms.core._cost", "transforms.core._search", "transforms.core._egraph", "transforms.core._field",
        "transforms.emit.bundle", "transforms.ingest", "transforms.mugraph_search", "transforms.tile_saturation.search", "verify.certifier",
        "verify.ttir.artifact", "tools.superopt_opt",
    ):  # fmt: skip
        importlib.import_module(f"superopt.{name}")
    from superopt.dialects.reader import read

    read(PROGRAM)


def _start(folder: Path, out: Path, seed: int) -> int:
    """A run in a process group of its own; its process id."""
    child = os.fork()
    if child:
        return child
    code = 125
    try:
        os.setsid()
        handle = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_RDWR)
        for source, target in ((null, 0), (null, 1), (handle, 2)):
            os.dup2(source, target)
        sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.argv = [
            "superopt-opt", str(folder / "program.mlir"),
            f"--superoptimize=budget=20 seed={seed} store={folder / 'store'}",
            "--emit=bundle", "--report", str(folder / "report.json"), "-o", str(out),
        ]  # fmt: skip
        from superopt.tools.superopt_opt import main

        code = main()
    except KeyboardInterrupt:  # before the tool had its own handlers
        code = 128 + signal.SIGINT
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(process: int) -> str:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            if os.WIFSIGNALED(status):
                return signal.Signals(os.WTERMSIG(status)).name
            return f"exit {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.01)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "hang"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill whole runs of superopt-opt.")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    start = time.monotonic()

    def record(tally: Tally) -> str:
        text = json.dumps(_record(tally, args.seed, time.monotonic() - start), indent=1)
        if args.json:
            args.json.write_text(text + "\n")
        return text

    tally = campaign(args.count, args.seed, record)
    print(record(tally))
    return 1 if tally.losses else 0


def _record(tally: Tally, seed: int, seconds: float) -> dict[str, object]:
    return {
        **about(),
        "seed": seed,
        "seconds": round(seconds, 1),
        "kills": tally.kills,
        "ended before": tally.late,
        "sent": dict(tally.sent),
        "ends": dict(tally.ends.most_common()),
        "completed": tally.completed,
        "resumed": tally.resumed,
        "entries": tally.entries,
        "losses": tally.losses,
    }


if __name__ == "__main__":
    sys.exit(main())
