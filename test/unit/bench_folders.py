"""Prepared folders whose candidates are a few lines of Python: good ones, and one of every kind of bad one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from superopt.measure.prepare import seal
from superopt.measure.standalone.run import PREPARED, PREPARED_VERSION

REFERENCE = "def run(x, *, rounded, constants, externs):\n    return (rounded(x * 2, x.dtype),)\n"
CANDIDATES = {
    "good": "def run(x):\n    return (x + x,)\n",
    "crashes": "import os\n\ndef run(x):\n    print('about to fail')\n    os.abort()\n",
    "wrong": "def run(x):\n    return (x * 2.5,)\n",
    "wrong shape": "def run(x):\n    return (x[1:] * 2,)\n",
    "hangs": "import time\n\ndef run(x):\n    time.sleep(3600)\n",
    "raises": "def run(x):\n    raise ValueError('no such kernel')\n",
    "no memory": "def run(x):\n    raise MemoryError\n",
    "writes nothing": "import torch\n\nKEPT = []\n\ndef run(x):\n    if not KEPT:\n        KEPT.append(x * 2)\n    return (KEPT[0],)\n",
    "remembers": "KNOWN = {}\n\ndef run(x):\n    if x.data_ptr() not in KNOWN:\n        KNOWN[x.data_ptr()] = x * 2\n    return (KNOWN[x.data_ptr()].clone(),)\n",
}


def point(path: str, number: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "id": str(number), "path": path, "compile": None, "parameters": {"tile": number}, "features": {},
        "predicted_seconds": 1e-6 * (1 + number), "matrix_flops": 0.0, **more,
    }  # fmt: skip


def row(name: str, points: list[dict[str, Any]], kind: str = "superopt") -> dict[str, Any]:
    return {"id": name, "kind": kind, "label": name, "points": points}


def program(name: str, rows: list[dict[str, Any]], bytes_: int = 64) -> dict[str, Any]:
    return {
        "name": name, "sha256": "0" * 64, "reference": "reference.py", "rows": rows, "predicted_seconds": 2e-6,
        "inputs": [{"name": "x", "shape": [4, 8], "dtype": "f16", "scale": 1.0}], "funnel": {},
        "outputs": [{"name": "y", "shape": [4, 8], "dtype": "f16"}],
        "read_bytes": bytes_, "written_bytes": bytes_,
    }  # fmt: skip


def prepared(programs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "format": PREPARED, "version": PREPARED_VERSION, "superopt": "0", "versions": {}, "date": "2026-01-01",
        "target": "sm_90", "gpu": "none", "model": "analytic", "settings": {}, "programs": programs,
    }  # fmt: skip


def write(folder: Path, programs: dict[str, list[str]], extra: dict[str, str] | None = None) -> Path:
    """A folder with these programs, each with rows by the names of `CANDIDATES` (or of `extra`)."""
    sources = {**CANDIDATES, **(extra or {})}
    folder.mkdir(parents=True)
    (folder / "reference.py").write_text(REFERENCE)
    made: list[dict[str, Any]] = []
    for name, candidates in programs.items():
        for candidate in candidates:
            path = folder / candidate.replace(" ", "_")
            path.mkdir(exist_ok=True)
            (path / "launch.py").write_text(sources[candidate])
        made.append(program(name, [row(c, [point(c.replace(" ", "_"))]) for c in candidates]))
    seal(folder, prepared(made))
    return folder
