"""The times of a run of passes, in the forms of MLIR's timing report."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from superopt.driver.pipeline import MODULE, Step


def row(number: int, step: Step) -> str:
    """What the row of a step is called: its place, the operations that it is nested in, its name."""
    nested = "".join(f"'{anchor}' / " for anchor in step.anchors if anchor != MODULE)
    return f"{number + 1}: {nested}{step.name}"


def report(
    seconds: Mapping[str, float], display: Literal["list", "tree"], form: Literal["text", "json"]
) -> str:
    """The seconds of each row, and their sum.

    A list has one row for each name, the longest first; a tree has passes below the operations that they are in.
    """
    total = sum(seconds.values())
    top = Timed("Total", total)
    if display == "tree":
        top.passes = _nested([_place(name, spent) for name, spent in seconds.items()])
    else:
        spent_by: dict[str, float] = {}
        for name, spent in seconds.items():
            plain = _place(name, spent)[1].name
            spent_by[plain] = spent_by.get(plain, 0.0) + spent
        top.passes = [Timed(name, spent) for name, spent in sorted(spent_by.items(), key=lambda r: -r[1])]
    if form == "json":
        rows = [_json(row, total, nested=display == "tree") for row in top.passes]
        return "[\n" + ",\n".join([*rows, _json(top, total, nested=False)]) + "\n]\n"
    lines = [banner("Execution time report"), f"  Total Execution Time: {total:.4f} seconds\n"]
    lines.append("  ----Wall Time----  ----Name----")
    for row in top.passes:
        lines += _lines(row, total)
    lines.append(_line(top, total))
    return "\n".join(lines) + "\n"


@dataclass
class Timed:
    """A row of the report, and those of the passes in it."""

    name: str
    seconds: float
    passes: list[Timed] = field(default_factory=list["Timed"])


def _place(name: str, seconds: float) -> tuple[list[str], Timed]:
    """The operations that what `row` names is nested in, and its row."""
    *anchors, plain = name.split(": ", maxsplit=1)[-1].split(" / ")
    return anchors, Timed(plain, seconds)


def _nested(placed: Sequence[tuple[list[str], Timed]]) -> list[Timed]:
    """The rows, with passes that follow each other in the same operations in one row, as MLIR runs them."""
    found: list[Timed] = []
    for anchor, group in itertools.groupby(placed, key=lambda p: p[0][0] if p[0] else ""):
        if not anchor:
            found += [timed for _, timed in group]
            continue
        inside = _nested([(anchors[1:], timed) for anchors, timed in group])
        found.append(Timed(f"{anchor} Pipeline", sum(r.seconds for r in inside), inside))
    return found


def _line(timed: Timed, total: float, indent: str = "") -> str:
    return f"  {timed.seconds:>8.4f} ({timed.seconds / (total or 1):>6.1%})  {indent}{timed.name}"


def _lines(timed: Timed, total: float, indent: str = "") -> list[str]:
    lines = [_line(timed, total, indent)]
    for inner in timed.passes:
        lines += _lines(inner, total, f"{indent}  ")
    return lines


def _json(timed: Timed, total: float, *, nested: bool) -> str:
    """As MLIR writes it: of a tree, each row lists what is in it, and an empty one at the end."""
    share = round(100 * timed.seconds / (total or 1), 1)
    row = json.dumps({"wall": {"duration": round(timed.seconds, 4), "percentage": share}, "name": timed.name})
    if not nested:
        return row
    inside = [_json(inner, total, nested=True) for inner in timed.passes]
    return f'{row[:-1]}, "passes": [\n' + ",\n".join([*inside, "{}"]) + "]}"


def banner(title: str) -> str:
    """A title between two rules."""
    rule = f"===-{'-' * 73}-==="
    return f"{rule}\n{f'... {title} ...':^{len(rule)}}\n{rule}".rstrip()
