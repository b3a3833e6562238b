"""Writes the tables of docs/tuning.md from the JSON files of the benchmarks.

python -m benchmarks.tuning_page

A table stands between `<!-- table NAME -->` and `<!-- end -->`; the rest of the page is written by hand.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS
from benchmarks.search_page import table
from benchmarks.tuning import PROGRAMS, WAYS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tuning.md"
_STRATEGIES = ("model", "evolution", "annealing", "mcmc", "tpe", "random", "exhaustive")


def page(text: str) -> str:
    """The page with its tables written again; raises KeyError for a table that nobody knows."""

    def written(found: re.Match[str]) -> str:
        name = found[1]
        file, command, make = _TABLES[name]
        path = RESULTS / f"{file}.json"
        said = make(json.loads(path.read_text())) if path.exists() else f"Not measured yet: `{command}`."
        return f"<!-- table {name} -->\n{said}\n<!-- end -->"

    return re.sub(r"<!-- table (\w+) -->\n.*?<!-- end -->", written, text, flags=re.DOTALL)


def _source(data: dict[str, Any], rows: Iterable[dict[str, Any]], command: str) -> str:
    """Where a table comes from."""
    commits = Counter(str(row.get("commit", data.get("commit", "unknown")))[:7] for row in rows)
    said = ", ".join(commit for commit, _ in commits.most_common())
    return f"`{command}`, {data['date']}, commit {said}."


def _joint(data: dict[str, Any]) -> str:
    rows: dict[str, Any] = data["programs"]
    ways = ("rules", "sequential", "joint", "all", "random", "best")
    lines = [[name, *(_us(row[f"{way}_us"]) for way in ways)] for name, row in rows.items()]
    gains = {name: row["rules_us"] / row["all_us"] for name, row in rows.items()}
    beats = [n for n, r in rows.items() if r["all_us"] < 0.995 * r["sequential_us"]]
    loses = [n for n, r in rows.items() if r["all_us"] > 1.001 * r["sequential_us"]]
    some = sum(gain > 1.005 for gain in gains.values())
    said = (
        f"{len(rows)} of {len(PROGRAMS)} programs. *All* is faster than the rules for {some} of {len(rows)}"
    )
    said += f", by {_mean(gains.values())} in the geometric mean of all. It beats *sequential* by more than "
    said += f"0.5 % for {_names(beats)}, and loses more than 0.1 % for {_names(loses)}."
    after = [
        [
            n,
            *(
                _mean(_over(r[f"{way}_after"].get(str(n)), r["best_us"]) for r in rows.values())
                for way in ways[1:5]
            ),
        ]
        for n in (1, 2, 4, 8, 16, 32, 64)
    ]
    head = ["program", *ways]
    return "\n\n".join(
        [
            said,
            table(head, lines),
            "After so many evaluations, over the best that any run found: geometric means of the medians.",
            table(["evaluations", *ways[1:5]], after),
            _source(data, rows.values(), "python -m benchmarks.tuning"),
        ]
    )


def _reuse(data: dict[str, Any]) -> str:
    rows: dict[str, Any] = data["programs"]
    known = sum(row["known_sites"] > 0 for row in rows.values())
    least = min(r["evaluations"] for r in rows.values())
    points = [n for n in (1, 2, 4, 8, 16) if n <= least]
    lines = [
        [
            way.replace("_", " "),
            *(
                _mean(_over(r[f"{way}_after"][str(n)], r["without_us"]) for r in rows.values())
                for n in points
            ),
        ]
        for way in WAYS
    ]
    said = f"Of {len(rows)} programs, {known} have a site that another one has, too."
    return "\n\n".join(
        [
            said,
            table(["", *points], lines),
            _source(data, rows.values(), "python -m benchmarks.tuning --reuse"),
        ]
    )


def _spaces(data: dict[str, Any]) -> str:
    rows: dict[str, Any] = data["programs"]
    head = ["space", "points", "programs", "rules, ms", "best", "median", "worst", "half interval", "rank"]
    lines = [
        [
            name, len(json.loads((RESULTS / "tuning" / f"{name}.json").read_bytes())["points"]), r["programs"],
            *(f"{r[f'{at}_ms']:.3g}" for at in ("rules", "best", "median", "worst")),
            f"{100 * r['half_interval']:.1f} %", f"{r['rank_correlation']:.2f}",
        ]
        for name, r in rows.items()
    ]  # fmt: skip
    return table(head, lines)


def _strategies(data: dict[str, Any]) -> str:
    rows: dict[str, Any] = data["programs"]
    shares = ("within_1.01", "within_1.05")
    head = ["strategy", *(f"{name}, {share}" for name in rows for share in ("1 %", "5 %"))]
    lines = [
        [way, *(_pair(row[way][share]) for row in rows.values() for share in shares)] for way in _STRATEGIES
    ]
    return table(head, lines) + f"\n\n`python -m benchmarks.tuning_tables`, {data['date']}."


def _rungs(data: dict[str, Any]) -> str:
    rows: dict[str, Any] = data["programs"]
    head = ["space", "analytic", "left out", "online", "alone", "screened"]
    lines = [
        [
            n, *(f"{r[k]:.2f}" for k in ("analytic", "left_out", "online")),
            _pair(r["within_5"]), _pair(r["within_5_screened"]),
        ]
        for n, r in rows.items()
    ]  # fmt: skip
    said = [table(head, lines), _source(data, rows.values(), "python -m benchmarks.rungs")]
    if compiled := {n: r for n, r in rows.items() if "price_seconds" in r}:
        rungs = ("tiles", "kernels", "code")
        lines = [
            [
                n,
                f"{r['priced']} of {r['compiled']}",
                *(f"{r['rank'][k]:.2f} ({r['price_seconds'][k]:.2g} s)" for k in rungs),
            ]
            for n, r in compiled.items()
        ]
        said += [
            "Prices for sm_90 of some programs of each table: rank correlation with the seconds on the CPU, and "
            "the processor seconds of one evaluation, of *code* beyond those of *kernels*. What is fast on a GPU "
            "need not be on a CPU, so ranks say how far a price carries over.",
            table(["space", "priced", *rungs], lines),
            _source(
                data,
                ({"commit": r["compiled_commit"]} for r in compiled.values()),
                "python -m benchmarks.rungs --compiled N",
            ),
        ]
    return "\n\n".join(said)


def _large(data: dict[str, Any]) -> str:
    rows: dict[str, Any] = data["programs"]
    last = f"after_{min(row['evaluations'] for row in rows.values())}"
    head = ["strategy", "20 %", "10 %", "5 %", last.replace("_", " ")]
    lines = [
        [n, *(_pair(r[f"within_{s:.2f}"]) for s in (1.2, 1.1, 1.05)), f"{r[last]:.2f}"]
        for n, r in rows.items()
    ]
    return table(head, lines) + "\n\n" + _source(data, rows.values(), "python -m benchmarks.large_space")


def _kills(data: dict[str, Any]) -> str:
    losses = (
        "; ".join(data["losses"]) or "each had the best program and the trials of a run that nobody disturbed"
    )
    said = {
        who: f"{sum(n > 0 for n in found)} of them after the first trial, "
        f"{sum(n == data['trials'] for n in found)} after the last"
        for who, found in data.get("logged", {}).items()  # earlier campaigns did not say
    }
    workers, tools = (f" ({said[who]})" if who in said else "" for who in ("workers", "coordinators"))
    return (
        f"A worker was killed at {data['workers']} random moments{workers}, and the tool at "
        f"{data['coordinators']}{tools}; {data['late']} more runs ended before. "
        f"{losses[0].upper() + losses[1:]}, of {data['trials']} trials. "
        f"`python test/kills/tuning.py`, {data['date']}, commit {data['commit'][:7]}."
    )


def _workers(data: dict[str, Any]) -> str:
    rows: dict[str, Any] = data["programs"]
    head = [
        "pool",
        "programs",
        "wall s, one",
        "two",
        "CPU s, one",
        "two",
        "speedup",
        "without the start",
        "load",
    ]
    lines = [
        [
            kind, r["programs"], *(_median(r[n], "wall_seconds") for n in ("one", "two")),
            *(_median(r[n], "cpu_seconds") for n in ("one", "two")), r["speedup"], r["speedup_without_start"],
            " to ".join(map(str, r["load_average"])),
        ]
        for kind, r in rows.items()
    ]  # fmt: skip
    return table(head, lines) + "\n\n" + _source(data, rows.values(), "python -m benchmarks.workers")


def _fleet(data: dict[str, Any]) -> str:
    rows: dict[str, Any] = data["programs"]
    low, middle, high = data["job_cpu_seconds"]
    f = data["fleet"]
    said = (
        f"Simulated, not run: {data['jobs']} jobs, drawn from the measured processor seconds of "
        f"{data['programs_measured']} programs ({low} to {high}, median {middle}). A worker fails after "
        f"{f['failure']:g} s on average and is replaced after {f['replaced']:g}; {100 * f['slow']:g} % of jobs "
        f"take {f['slower']:g} times as long; *twice* begins a job again after {f['patience']:g} medians."
    )
    ways = ("once", "twice")
    lines = [
        [n, *(r[w][k] for k in ("wall_seconds", "efficiency") for w in ways), r["once"]["failures"]]
        for n, r in rows.items()
    ]
    head = ["workers", "wall s, once", "twice", "efficiency, once", "twice", "failures"]
    return "\n\n".join([said, table(head, lines), _source(data, [{}], "python -m benchmarks.fleet")])


def _shared(data: dict[str, Any]) -> str:
    rows: dict[str, Any] = data["programs"]
    total = {k: sum(r[k] for r in rows.values()) for k in ("parts", "within", "between")}
    said = (
        f"{len(rows)} models, {data['layers']} layers of width {data['width']}: {total['parts']} segments, "
        f"{total['within']} once equal layers of a model share ({total['parts'] / total['within']:.1f} times "
        f"fewer), {total['between']} once models share, too ({total['parts'] / total['between']:.1f} times)."
    )
    lines = [[n, *r.values()] for n, r in rows.items()]
    return "\n\n".join(
        [said, table(["model", "segments", "its own", "that no model above has"], lines),
         f"`python -m benchmarks.fleet --models`, {data['date']}, commit {data['commit'][:7]}."]
    )  # fmt: skip


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _over(value: float | None, best: float) -> float | None:
    return None if value is None else value / best


def _mean(ratios: Iterable[float | None]) -> str:
    """The geometric mean of those that there are."""
    found = [math.log(r) for r in ratios if r is not None]
    return f"{math.exp(statistics.fmean(found)):.3f}" if found else "-"


def _median(runs: list[dict[str, Any]], what: str) -> str:
    return f"{statistics.median(run[what] for run in runs):.1f}"


def _pair(found: list[int | None]) -> str:
    return " / ".join("-" if n is None else str(n) for n in found)


def _names(found: list[str]) -> str:
    return ", ".join(found) if found else "none"


_TABLES: dict[str, tuple[str, str, Callable[[dict[str, Any]], str]]] = {
    "joint": ("tuning", "python -m benchmarks.tuning", _joint),
    "reuse": ("reuse", "python -m benchmarks.tuning --reuse", _reuse),
    "spaces": ("tuning_tables", "python -m benchmarks.tuning_tables", _spaces),
    "strategies": ("tuning_tables", "python -m benchmarks.tuning_tables", _strategies),
    "rungs": ("rungs", "python -m benchmarks.rungs", _rungs),
    "large": ("large_space", "python -m benchmarks.large_space", _large),
    "kills": ("kills_tuning", "python test/kills/tuning.py", _kills),
    "workers": ("workers", "python -m benchmarks.workers", _workers),
    "fleet": ("fleet", "python -m benchmarks.fleet", _fleet),
    "shared": ("shared", "python -m benchmarks.fleet --models", _shared),
}


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
