"""The error of the cost model on published times, by kind and GPU: `python -m benchmarks.published`."""

from __future__ import annotations

import itertools
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


# Times, and prices, that differ by less than this do not say which alternative is faster.
_APART = 1.03
_SAME = ("source", "kind", "op", "target", "gpu", "shapes", "dtype", "timing")


def orders() -> dict[str, int]:
    """Of two implementations of the same work by one source: whether the faster one is priced lower.

    Those that are `alike` have one price: to the model, they are the same kernel, made better or worse.
    """
    counts: dict[str, int] = {"right": 0, "wrong": 0, "alike": 0}
    works: dict[str, list[Point]] = defaultdict(list)
    for point in load()[1]:
        works[json.dumps([point.get(k) for k in _SAME], sort_keys=True)].append(point)
    for a, b in (pair for points in works.values() for pair in itertools.combinations(points, 2)):
        published, priced = math.log(a["us"] / b["us"]), math.log(predicted(a) / predicted(b))
        if a["implementation"] != b["implementation"] and abs(published) > math.log(_APART):
            alike = abs(priced) < math.log(_APART)
            counts["alike" if alike else "right" if published * priced > 0 else "wrong"] += 1
    return counts


def table(rows: dict[str, dict[str, Any]], order: dict[str, int]) -> str:
    """The table of the page."""
    told = order["right"] + order["wrong"]
    lines = [
        f"Of two implementations of the same work, by one source, the faster one is priced lower in "
        f"{order['right']} of {told} cases; in {order['alike']} more they have one price.",
        "",
        "| | points | predicted / published | median error | 90th percentile |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {n} | {r['points']} | {r['ratio']} | {r['median']} | {r['p90']} |" for n, r in rows.items()]
    return "\n".join(lines)


def main() -> None:
    """Print the errors, and keep them in results and docs."""
    rows, order = errors(), orders()
    keep("published", rows, order=order)
    text = table(rows, order)
    print(text)
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
