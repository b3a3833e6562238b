"""The times of a run of passes, in the forms of MLIR's timing report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from superopt.driver.pipeline import MODULE, Step


def row(number: int, step: Step) -> str:
    """What the row of a step is called: its place, the operations that it is nested in, its name."""
    nested = "".join(f"'{anchor}' / " for anchor in step.anchors if anchor != MODULE)
    return f"{number + 1}: {nested}{step.name}"


def report(
    seconds: Mapping[str, float], display: Literal["list", "tree"], form: Literal["text", "json"]
) -> str:
    """The seconds of each row, and their sum; a list has one row for each name, the longest first."""
    rows = dict(seconds)
    if display == "list":
        rows = dict[str, float]()
        for name, spent in seconds.items():
            plain = name.rpartition(" ")[2]
            rows[plain] = rows.get(plain, 0.0) + spent
        rows = dict(sorted(rows.items(), key=lambda r: -r[1]))
    total = sum(rows.values())
    rows["Total"] = total
    if form == "json":
        listed = [
            {"wall": {"duration": round(s, 4), "percentage": round(100 * s / (total or 1), 1)}, "name": name}
            for name, s in rows.items()
        ]
        return "[\n" + ",\n".join(map(json.dumps, listed)) + "\n]\n"
    lines = [banner("Execution time report"), f"  Total Execution Time: {total:.4f} seconds\n"]
    lines.append("  ----Wall Time----  ----Name----")
    lines += [f"  {s:>8.4f} ({s / (total or 1):>6.1%})  {name}" for name, s in rows.items()]
    return "\n".join(lines) + "\n"


def banner(title: str) -> str:
    """A title between two rules."""
    rule = f"===-{'-' * 73}-==="
    return f"{rule}\n{f'... {title} ...':^{len(rule)}}\n{rule}".rstrip()
