"""What certification and gates cost beside an earlier commit, in CPU seconds, program by program.

    python -m benchmarks.verification_before FOLDER     the table: benchmarks/results/verification_before.json

FOLDER is a checkout of the earlier commit, built, with its own .venv. Each program goes through the whole flow in
both, in turns, `--times` times, each in a process of its own; the least of each counts, as the machine may be
shared. Counted are certificates, the numeric gate and the check of the TTIR. Where the search finds another
program than before, more or less is there to be proved.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.record import keep
from benchmarks.verification import PROGRAMS, ROOT

PARTS = ("certificates", "numerics", "ttir")
# Runs in either checkout, whose `benchmarks.verification` times the flow; without the independent checker.
_ROW = """
import json, sys, types
sys.path.insert(0, ".")
import benchmarks.verification as timed
timed.check_certificate = lambda text: types.SimpleNamespace(faults=[], comparison=None)
print(json.dumps(timed.row(timed.ROOT / (sys.argv[1] + ".mlir"))))
"""


def measured(folder: Path, name: str) -> float:
    """CPU seconds of certification and gates for a program, by the code in `folder`."""
    command = [str(folder / ".venv" / "bin" / "python"), "-c", _ROW, name]
    said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    row = json.loads(said.splitlines()[-1])
    return round(sum(row[part] for part in PARTS), 3)


def table(seconds: dict[str, tuple[list[float], list[float]]]) -> dict[str, Any]:
    """Of each program the least seconds before and now, and their ratio; of all together, too."""
    least = {name: (min(before), min(now)) for name, (before, now) in seconds.items()}
    least["all"] = (sum(b for b, _ in least.values()), sum(n for _, n in least.values()))
    return {
        name.removeprefix("benchmarks/"): {
            "before": round(before, 3),
            "now": round(now, 3),
            "ratio": round(now / before, 2),
        }
        for name, (before, now) in least.items()
    }


def commit(folder: Path) -> str:
    """That is checked out there."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="What verification costs beside an earlier commit.")
    parser.add_argument("folder", type=Path, help="a built checkout of the earlier commit")
    parser.add_argument("--times", type=int, default=2)
    args = parser.parse_args()
    folder = args.folder.resolve()
    seconds: dict[str, tuple[list[float], list[float]]] = {n: ([], []) for n in PROGRAMS}
    for _ in range(args.times):
        for name, (before, now) in seconds.items():
            before.append(measured(folder, name))
            now.append(measured(ROOT, name))
            sys.stderr.write(f"{name}: {before[-1]} s before, {now[-1]} s now\n")
    keep("verification_before", table(seconds), before=commit(folder), now=commit(ROOT))


if __name__ == "__main__":
    main()
