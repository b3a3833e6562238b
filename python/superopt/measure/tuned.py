"""Measured results in the store, by what they depend on: program, GPU, versions; `prepare` measures them first.

What is read back is a tile assignment and a launch, not a program: it is applied to a candidate that is searched
again, proved again and measured again, so a wrong entry costs time and nothing else.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from superopt.diagnostics import Diagnostics
from superopt.errors import BadInput
from superopt.measure.standalone import results, run
from superopt.store import Key, Store, StoreUnavailable

KIND = "parameters"


def key(program_sha256: str, target: str, candidate: str) -> Key:
    """The key of one candidate's best parameters: the hash of its lowered program stands for how it was found."""
    versions = {name: _version(name) for name in ("superopt", "triton")}
    return Key(program_sha256, target, versions, {"kind": KIND, "candidate": candidate})


def publish(path: Path, folder: Path, store: str | None) -> int:
    """Store the best point of every row of ours in the results at `path`, measured from `folder`; their number.

    Raises BadInput where the results are not of this folder or not measured on a GPU; StoreUnavailable.
    """
    try:
        data = results.read(path)
        prepared, digest = run.read_prepared(folder)
    except results.CannotMeasure as error:
        raise BadInput(str(error)) from None
    if data["prepared"]["sha256"] != digest:
        raise BadInput(f"expected results of the folder {folder}, got those of another: {path}")
    if data["device"].get("kind") != "cuda":
        raise BadInput(
            f"expected results that were measured on a GPU, got those of {data['device'].get('name')}"
        )
    programs = {p["name"]: p for p in prepared["programs"]}
    kept = Store(store)
    count = 0
    for row in data["rows"]:
        if row["kind"] != "superopt" or row["status"] != "ok":
            continue
        program = programs[row["program"]]
        (described,) = [r for r in program["rows"] if r["id"] == row["row"]]
        seconds = min(m["seconds"] for m in row["modes"].values() if "seconds" in m)
        record = {"parameters": row["parameters"], "seconds": seconds, "gpu": data["device"]["name"]}
        where = key(program["sha256"], prepared["target"], described["candidate"])
        kept.publish(where, {"parameters.json": json.dumps(record).encode()}, seconds=seconds)
        count += 1
    return count


def lookup(
    program_sha256: str, target: str, candidate: str, diagnostics: Diagnostics, folder: Path | None = None
) -> dict[str, int] | None:
    """The parameters that were measured to be best, or None."""
    try:
        entry = Store(folder).lookup(key(program_sha256, target, candidate))
    except StoreUnavailable as error:
        diagnostics.warning(f"the store is not used: {error.message}")
        return None
    if entry is None:
        return None
    try:
        found: Any = json.loads(entry.files["parameters.json"])["parameters"]
        return {str(name): int(value) for name, value in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
