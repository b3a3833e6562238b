"""Two workers against one, in processes and on a Ray cluster: wall time, processor time, efficiency.

python -m benchmarks.workers [--programs 8] [--evaluations 32] [--rounds 1] [--pools local,ray]

The same programs are tuned by one worker and by two, in turns, each time in an empty store. Each worker has a
core of its own, so that one of them does not compile on the core of the other. `speedup` is the wall time with
one worker over that with two, `efficiency` half of that, and `more_work` what two take of the processor over what
one takes. The wall time of Ray is told with and without the start of its cluster. Wall times mean something on an
idle machine only: `load_average` before and after is kept. Results are kept in benchmarks/results/workers.json.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import commit, keep, load, today

from superopt.tuning.pool import WORKER, Job, LocalPool, Pool
from superopt.tuning.ray_pool import RayPool

ROOT = Path(__file__).resolve().parent / "mugraph"
# Small ones of many kinds; longer runs take more of them, again with another seed.
PROGRAMS = (
    "mlp_b8", "lora_b8", "low_rank_chain", "pooled_mlp", "lora_b1", "gated_mlp_b8", "bilinear_form",
    "gqa_decode_b8",
)  # fmt: skip
TIMEOUT = 600.0


def stand_in(folder: Path) -> None:
    """Be a worker on a core that no other one has; say when it began and what it took of the processor."""
    begun, text = time.time(), sys.stdin.read()
    cores = sorted(os.sched_getaffinity(0))
    while True:
        for core in cores:
            lock = (folder / f"core {core}").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            os.sched_setaffinity(0, {core})
            job = json.dumps(json.loads(text) | {"parent": os.getpid()})
            done = subprocess.run(WORKER, input=job, text=True, check=False)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            row = {"begun": begun, "cpu_seconds": used.ru_utime + used.ru_stime}
            (folder / f"{os.getpid()}.json").write_text(json.dumps(row))
            sys.exit(done.returncode)
        time.sleep(0.05)


def tuned(kind: str, workers: int, programs: int, evaluations: int) -> dict[str, Any]:
    """What tuning the programs takes with so many workers."""
    with tempfile.TemporaryDirectory() as folder:
        here = ("env", f"PYTHONPATH={ROOT.parents[1]}", sys.executable, "-m", "benchmarks.workers")
        command = (*here, "--stand-in", folder)
        local: Pool = LocalPool(workers, TIMEOUT, command)
        pool = local if kind == "local" else RayPool(TIMEOUT, workers=workers, command=command)
        jobs = [
            Job(
                str(ROOT / f"{PROGRAMS[i % len(PROGRAMS)]}.mlir"),
                {"tune": evaluations, "budget": 6.0, "seed": i // len(PROGRAMS), "store": f"{folder}/store"},
            )
            for i in range(programs)
        ]
        begun = time.time()
        answers = list(pool.answers(jobs))
        ended = time.time()
        rows = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    first = min(row["begun"] for row in rows)
    return {
        "wall_seconds": round(ended - begun, 2),
        "wall_seconds_without_start": round(ended - first, 2),
        "cpu_seconds": round(sum(row["cpu_seconds"] for row in rows), 2),
        "failed": [a.error for a in answers if a.report is None],
        "attempts": sum(a.attempts for a in answers),
    }


def measure(kind: str, programs: int, evaluations: int, rounds: int) -> dict[str, Any]:
    """One worker and two, in turns."""
    runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    before = os.getloadavg()[0]
    for _ in range(rounds):
        for workers, kept in runs.items():
            took = tuned(kind, workers, programs, evaluations)
            kept.append(took)
            print(f"{kind}, {workers}: {json.dumps(took)}", flush=True)

    def median(workers: int, what: str) -> float:
        return statistics.median(run[what] for run in runs[workers])

    row: dict[str, Any] = {
        "commit": commit(),
        "date": today(),
        "programs": programs,
        "evaluations": evaluations,
        "rounds": rounds,
        "load_average": [round(before, 1), round(os.getloadavg()[0], 1)],
        "one": runs[1],
        "two": runs[2],
    }
    for suffix in ("", "_without_start"):
        speedup = median(1, f"wall_seconds{suffix}") / median(2, f"wall_seconds{suffix}")
        row |= {f"speedup{suffix}": round(speedup, 3), f"efficiency{suffix}": round(speedup / 2, 3)}
    more = median(2, "cpu_seconds") / median(1, "cpu_seconds")
    return row | {"more_work": round(more, 3)}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description="Two workers against one.")
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--evaluations", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--pools", default="local,ray")
    parser.add_argument("--stand-in", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stand_in:
        stand_in(given.stand_in)
    rows = load("workers")
    for kind in given.pools.split(","):
        rows[kind] = measure(kind, given.programs, given.evaluations, given.rounds)
        keep("workers", rows)
        print(f"{kind}: {rows[kind]['speedup_without_start']} times as fast with two workers")


if __name__ == "__main__":
    main()
