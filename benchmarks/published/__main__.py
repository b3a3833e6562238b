"""The error of the cost model on published times, by kind and GPU: `python -m benchmarks.published`."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.published.predict import Point, predicted
from benchmarks.record import keep

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "benchmarking.md"
START, END = "<!-- published: by python -m benchmarks.published -->", "<!-- /published -->"


def load() -> tuple[dict[str, dict[str, str]], list[Point]]:
    """The sources and the points."""
    data = json.loads((HERE / "times.json").read_text())
    return data["sources"], data["points"]


def summary(errors: Sequence[float]) -> dict[str, Any]:
    """Of logarithms of predicted over published: the median ratio, and median and 90th percentile of the size."""
    sizes = sorted(map(abs, errors))
    return {
        "points": len(errors),
        "ratio": round(math.exp(statistics.median(errors)), 2),
        "median": round(statistics.median(sizes), 2),
        "p90": round(sizes[math.ceil(0.9 * len(sizes)) - 1], 2),
    }


def errors() -> dict[str, dict[str, Any]]:
    """The error for each half, and in it for each kind and GPU."""
    sources, points = load()
    grouped: dict[str, list[float]] = defaultdict(list)
    for point in points:
        error = math.log(predicted(point) / point["us"])
        half = sources[point["source"]]["half"]
        grouped[half].append(error)
        grouped[f"{half}: {point['kind'].replace('_', ' ')}, {point['target']}"].append(error)
    return {name: summary(found) for name, found in sorted(grouped.items())}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The table of the page."""
    lines = [
        "| | points | predicted / published | median error | 90th percentile |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {n} | {r['points']} | {r['ratio']} | {r['median']} | {r['p90']} |" for n, r in rows.items()]
    return "\n".join(lines)


def main() -> None:
    """Print the errors, and keep them in results and docs."""
    rows = errors()
    keep("published", rows)
    text = table(rows)
    print(text)
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
