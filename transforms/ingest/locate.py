"""The location of an MLIR operation in the user's source."""

from __future__ import annotations

from typing import Any

from superopt.errors import UNKNOWN, Location


def locate(operation: Any, filename: str = "") -> Location:
    """The file, line and column of `operation`; `filename` names text that did not come from a file.

    From a chain of calls, as PyTorch's exporter records it, takes the innermost place outside PyTorch and this
    package, else the innermost in PyTorch.
    """
    places = _places(getattr(operation, "location", operation), filename)
    users = [p for p in places if not any(part in p.file for part in _LIBRARIES)]
    outside = [p for p in places if _OURS not in p.file]
    return (users or outside or [Location(filename) if filename else UNKNOWN])[0]


_OURS = "superopt/transforms/ingest/"
_LIBRARIES = ("site-packages/torch/", "site-packages/torch_mlir/", _OURS)


def _places(place: Any, filename: str) -> list[Location]:
    """Every place in a file that an MLIR location names, innermost first."""
    kind = type(place).__name__
    if kind == "FileLineColLoc":
        file = str(place.filename)
        named = filename if file in ("-", "") else file
        return [Location(named or file, int(place.start_line), max(int(place.start_col), 1))]
    if kind == "CallSiteLoc":
        return [*_places(place.callee, filename), *_places(place.caller, filename)]
    if kind == "NameLoc":
        return _places(place.child_loc, filename)
    return [p for part in place.locations for p in _places(part, filename)] if kind == "FusedLoc" else []
