"""What every committed result says of the day, the code, the machine and the versions it came from."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess


def about() -> dict[str, object]:
    """As JSON; the machine may be shared, so that its load is told too."""
    versions = {n: importlib.metadata.version(n) for n in ("superopt", "numpy", "torch-mlir", "triton")}
    return {
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": versions,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
    }


def _commit() -> str:
    """Of the code that is tried; empty outside of a repository."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    folder = os.path.dirname(os.path.abspath(__file__))
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True).stdout.strip()
