"""Where results are kept: JSON under `results/`, with the day, the machine and the versions they came from."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def load(name: str) -> dict[str, Any]:
    """What `results/<name>.json` holds under "programs"; empty where there is no such file."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text())["programs"] if path.exists() else {}


def commit() -> str:
    """The commit that is checked out; "unknown" outside of a repository."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout.strip() or "unknown"


def today() -> str:
    """The day, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def keep(name: str, rows: dict[str, Any], **more: Any) -> None:
    """Write `rows` as `results/<name>.json`, whole or not at all."""
    import numpy as np

    from superopt import __version__

    data = {
        "date": today(),
        "machine": {
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "load_average": round(os.getloadavg()[0], 1),
        },
        "versions": {"superopt": __version__, "numpy": np.__version__},
        **more,
        "programs": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    draft = RESULTS / f".{name}.json"
    draft.write_text(json.dumps(data, indent=1) + "\n")
    draft.replace(RESULTS / f"{name}.json")
