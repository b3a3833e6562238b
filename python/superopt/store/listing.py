"""What `superopt-store list` shows of a store: one line for each result, for people.

Nothing of it is believed: it may be anybody's text, and is shown as text of one line.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from superopt.store.folder import Store
from superopt.store.records import Damaged, Manifest

RESULT, REGION = "result", "kernels of a region"
"""The kinds of entries that hold kernels; the others are what is kept on the way to them."""
_MOST = 60  # characters of a cell


@dataclass(frozen=True)
class Row:
    """One entry: whose kernels, what they are predicted to take, what is proved of them; empty where unknown.

    `used` is when it was written or last used, in seconds of `time.time()`; `size` in bytes.
    """

    key: dict[str, object]
    what: str
    program: str
    target: str
    predicted: float | None
    best: str
    proof: str
    used: float
    size: int

    @property
    def record(self) -> dict[str, object]:
        """The key and the row as JSON."""
        shown = {n: getattr(self, n) for n in ("what", "predicted", "best", "proof", "used", "size")}
        return self.key | shown | {"name": self.program}


def rows(store: Store) -> list[Row]:
    """Every whole entry, the last used first."""
    return sorted((_row(store, m, used) for m, used in store.manifests()), key=lambda r: -r.used)


def table(found: Sequence[Row], *, everything: bool = False) -> list[str]:
    """Lines of columns: results, or `everything`; none where there are none."""
    lines = [("LAST USED", "TARGET", "PREDICTED", "BEST OF A USER", "PROOF", "SIZE", "PROGRAM")]
    now = time.time()
    for row in found:
        if everything or row.what in (RESULT, REGION):
            took = "" if row.predicted is None else f"{row.predicted * 1e6:.1f} us"
            what = row.program if row.what == RESULT else f"{row.what}: {row.program}"
            line = (_ago(now - row.used), row.target, took, row.best, row.proof, _bytes(row.size), what)
            lines.append(cast("Any", tuple(map(_shown, line))))
    if len(lines) == 1:
        return []
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def summary(found: Iterable[Row]) -> str:
    """How many entries there are of each kind, and their bytes."""
    kinds = Counter(r.what for r in found)
    said = [f"{n} of '{_shown(what)}'" for what, n in sorted(kinds.items())]
    return f"{', '.join(said) or 'nothing'}; {_bytes(sum(r.size for r in found))}"


def _row(store: Store, manifest: Manifest, used: float) -> Row:
    report, certificate = (_json(store, manifest, f"{n}.json") for n in ("report", "certificate"))
    key = manifest.key
    policy = cast("dict[str, object]", key["policy"])
    size = sum(size for _, size in manifest.files.values())
    what, kept = str(policy.get("what", "")), str(key["program"])[:12]
    predicted = report.get("predicted_seconds")
    best, proof = "", str(report.get("guarantee", ""))
    if isinstance(seconds := report.get("baseline_seconds"), float):
        best = f"{seconds * 1e6:.1f} us ({report.get('baseline', '')})"
    if isinstance(delta := certificate.get("delta"), float):
        proof += f", delta {delta:.1e}"
    name = _called(str(report.get("program", "")), certificate) or kept
    if what == "search":
        name = f"{policy.get('optimizer', '')} of {kept}"
    took = predicted if isinstance(predicted, float) else None
    return Row(key, what, name, str(key["target"]), took, best, proof, used, size)


def _json(store: Store, manifest: Manifest, name: str) -> dict[str, Any]:
    """A file of an entry; empty where it has none, or none that can be read."""
    with contextlib.suppress(Damaged, ValueError, RecursionError):
        found = json.loads(store.file(manifest, name))
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return {}


def _called(name: str, certificate: dict[str, Any]) -> str:
    """The program's name and the types of its inputs, as its certificate has them."""
    with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
        inputs = json.loads(certificate["first"]["text"])["inputs"]
        types = ["x".join(map(str, [*shape, dtype])) for dtype, *shape in inputs]
        return f"{name}({', '.join(types)})"
    return name


def _shown(text: str) -> str:
    """Text of one line that a terminal shows as it is."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
