"""Writes the tables of docs/saturation.md from `saturation.json` and `optimizers.json` in `benchmarks/results`.

    python -m benchmarks.saturation_page

A table in the page is found by the first words of its header; what stands around it stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import load
from benchmarks.saturation import RESULTS
from benchmarks.trinity.programs import CONFIGS, names

PAGE = Path(__file__).parents[1] / "docs" / "saturation.md"
Rows = Mapping[str, Mapping[str, Any]]

MEASURED = (
    "program", "programs", "classes, nodes (all graphs)", "iterations", "saturate + extract", "paper", "graphs",
    "best: kernels, predicted, from", "in one kernel",
)  # fmt: skip
DELIVERED = (
    "program", "kernels, predicted", "certificate, delta", "within tolerance (tried)", "targets",
    "certify + numerics",
)  # fmt: skip
COMPARED = (
    "program", "input", "muGraph search: predicted, kernels, CPU s", "tile saturation: predicted, kernels, CPU s",
)  # fmt: skip


def measured(name: str, row: Mapping[str, Any]) -> Sequence[str]:
    """What the e-graphs of one program hold, and the best that comes out."""
    graphs = list(row["graphs"].values())
    one = row["predicted_us_by_kernels"].get("1")
    return (
        name,
        f"{max(g['programs'] for g in graphs):.0e}",
        f"{sum(g['classes'] for g in graphs)}, {sum(g['nodes'] for g in graphs)}",
        ", ".join(str(g["iterations"]) for g in graphs),
        f"{row['cpu_seconds']:.1f} s",
        f"{row['paper_seconds']} s" if row["paper_seconds"] else "",
        f"{sum(g['graph_mb'] for g in graphs):.0f} MB",
        f"{row['best_kernels']}, {row['best_predicted_us']} us, {row['input_predicted_us']} us",
        f"{one} us" if one else "none",
    )


def delivered(name: str, found: Mapping[str, Any]) -> Sequence[str]:
    """What became of the candidates of one program."""
    delta = found.get("delta")
    bound = f"{delta:.0e}" if delta is not None else "none"
    passed = bool(found.get("numerics_passed"))
    return (
        name,
        f"{found['kernels']}, {found['predicted_us']} us" if passed else "",
        f"{found['guarantee']}, {bound}" if found.get("guarantee") else "not certified",
        f"{'yes' if passed else 'no'} ({found['tried']})",
        str(len(found["compiles_for"])) if passed else "",
        f"{found['certify_cpu_seconds']:.1f} + {found['numerics_cpu_seconds']:.1f} s",
    )


def compared(name: str, row: Mapping[str, Any]) -> Sequence[str]:
    """What each optimizer finds alone."""

    def best(found: Mapping[str, Any]) -> str:
        if found["predicted_us"] is None:
            return "not whole"
        return f"{found['predicted_us']} us, {found['kernels']}, {found['cpu_seconds']}"

    return name, f"{row['input_us']} us", best(row["mugraph"]), best(row["saturation"])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def replaced(page: str, number: int, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The page with its table number `number` among those that begin with the header's first two cells.

    Raises ValueError where the page has no such table.
    """
    lines = page.split("\n")
    start = f"| {header[0]} | {header[1]} |"
    found = [i for i, line in enumerate(lines) if line.startswith(start)]
    if number >= len(found):
        raise ValueError(f"expected a table that begins with '{start}' in {PAGE.name}")
    first = last = found[number]
    while last < len(lines) and lines[last].startswith("|"):
        last += 1
    return "\n".join([*lines[:first], table(header, rows), *lines[last:]])


def main() -> None:
    """Rewrite the tables."""
    rows: Rows = json.loads(RESULTS.read_text())["programs"]
    order = [f"{name} {config}" for name in names() for config in CONFIGS if "+safe" not in name]
    shown = {name: rows[name] for name in order if name in rows}
    plain = {name: row for name, row in shown.items() if "+" not in name}
    page = PAGE.read_text()
    page = replaced(page, 0, MEASURED, [measured(n, r) for n, r in plain.items()])
    page = replaced(page, 1, MEASURED, [measured(n, r) for n, r in shown.items() if n not in plain])
    tried = [delivered(n, r["best"]) for n, r in shown.items() if r.get("best")]
    page = replaced(page, 0, DELIVERED, tried)
    both: Rows = load("optimizers")
    PAGE.write_text(replaced(page, 0, COMPARED, [compared(n, r) for n, r in both.items()]))


if __name__ == "__main__":
    main()
