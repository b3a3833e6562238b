"""Results as tables and plots: Markdown for a page, or one self-contained HTML file.

A speedup compares superopt's best row with the best baseline, both from the same rounds, with the interval
of the ratios of those rounds. A prepared folder has no measurements: its tables say "predicted", and compare
what the model predicts for superopt's rows with what it predicts for the program as library kernels.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from superopt import __version__, cost, plots
from superopt.errors import BadInput
from superopt.measure.standalone import results, run
from superopt.measure.standalone.floor import peak_matrix_flops
from superopt.measure.standalone.intervals import paired_ratio
from superopt.page import filled

Record = dict[str, Any]
MODES = {"graph": "CUDA graph", "plain": "plain launches"}


@dataclass(frozen=True)
class Speedup:
    """Ours over the best baseline of one program in one mode: ratio, interval, and whose rows they are."""

    program: str
    mode: str
    ratio: float
    low: float
    high: float
    ours: Record
    baseline: Record
    missing: tuple[str, ...]  # baselines that were not ready in time


@dataclass
class Data:
    """What a page is made from: results, or the description of a prepared folder."""

    record: Record
    measured: bool
    programs: list[str] = field(default_factory=list[str])


def load(path: Path) -> Data:
    """Results in a file, or a prepared folder; raises BadInput for what is neither."""
    try:
        if path.is_dir():
            record, _ = run.read_prepared(path)
            return Data(record, measured=False, programs=[p["name"] for p in record["programs"]])
        if not path.exists():
            raise BadInput(f"expected results or a prepared folder, got no such file: {path}")
        if (predicted := _predicted_file(path)) is not None:
            return Data(predicted, measured=False, programs=[p["name"] for p in predicted["programs"]])
        record = results.read(path)
    except results.CannotMeasure as error:
        raise BadInput(str(error)) from None
    return Data(record, measured=True, programs=list(dict.fromkeys(r["program"] for r in record["rows"])))


def _predicted_file(path: Path) -> Record | None:
    """A `prepared.json` by itself, as it is kept where the folder is not."""
    try:
        record: Any = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return record if _is_record(record) and record.get("format") == run.PREPARED else None


def _is_record(value: Any) -> TypeGuard[Record]:
    return isinstance(value, dict)


def speedups(data: Data) -> list[Speedup]:
    """One for each program and mode where a row of ours and a baseline were measured and are right."""
    found: list[Speedup] = []
    for program in data.programs:
        for mode in MODES:
            rows = [
                r for r in data.record["rows"] if r["program"] == program and _seconds(r, mode) is not None
            ]
            ours = _fastest([r for r in rows if r["kind"] == "superopt"], mode)
            baseline = _fastest([r for r in rows if r["kind"] == "baseline"], mode)
            if ours is None or baseline is None:
                continue
            ratio = paired_ratio(baseline["modes"][mode]["samples"], ours["modes"][mode]["samples"])
            late = (
                r["label"] for r in data.record["rows"] if r["program"] == program and r["status"] == "late"
            )
            found.append(Speedup(program, mode, *ratio, ours, baseline, tuple(late)))
    return found


def _seconds(row: Record, mode: str) -> float | None:
    return row["modes"].get(mode, {}).get("seconds") if row["status"] == "ok" else None


def _fastest(rows: Sequence[Record], mode: str) -> Record | None:
    return min(rows, key=lambda r: r["modes"][mode]["seconds"], default=None)


# --- Markdown ------------------------------------------------------------------------------------------------


def markdown(data: Data) -> str:
    """The tables."""
    return "\n".join([*_heading(data), *([*_measured(data)] if data.measured else _predicted(data))]) + "\n"


def _heading(data: Data) -> list[str]:
    r = data.record
    if not data.measured:
        return [
            f"**Predicted, not measured**: what the {r['model'].split(' ')[0]} cost model says of {r['target']} "
            f"({r['gpu']}); {r['date']}, superopt {r['superopt']}, triton {r['versions'].get('triton', '?')}.",
            "",
        ]
    device, versions = r["device"], r["versions"]
    what = f"Measured on {device['name']}"
    if device["kind"] != "cuda":
        what = f"**These times say nothing about a GPU**: measured in {device['name']}"
    facts = [
        f"torch {versions.get('torch')}",
        f"triton {versions.get('triton')}",
        f"Python {versions.get('python')}",
    ]
    if "driver" in device:
        facts.append(f"driver {device['driver']}")
    return [
        f"{what}, {r.get('date', '?')}: {', '.join(facts)}." + ("" if r["complete"] else " Not complete."),
        "",
    ]


def _measured(data: Data) -> list[str]:
    out = [
        "| program | mode | superopt | best baseline | speedup | 95% interval |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for s in speedups(data):
        ours, base = s.ours["modes"][s.mode]["seconds"], s.baseline["modes"][s.mode]["seconds"]
        without = f"; not ready in time: {', '.join(s.missing)}" if s.missing else ""
        out.append(
            f"| {s.program} | {MODES[s.mode]} | {_us(ours)} ({s.ours['label'].removeprefix('superopt, ')}) "
            f"| {_us(base)} ({s.baseline['label']}{without}) | {s.ratio:.2f}x | {s.low:.2f} to {s.high:.2f} |"
        )
    for program in data.programs:
        rows = [r for r in data.record["rows"] if r["program"] == program]
        out += [
            "",
            f"### {program}",
            "",
            "| row | CUDA graph | plain launches | floor | error / allowed | |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for r in sorted(rows, key=_order):
            times = [
                _us(r["modes"][m]["seconds"]) if "seconds" in r.get("modes", {}).get(m, {}) else ""
                for m in MODES
            ]
            note = "" if r["status"] == "ok" else f"{r['status']}: {_short(str(r.get('error', '')))}"
            settings = _settings(r["parameters"])
            label = r["label"] + (f" ({settings})" if settings else "")
            error = f"{r['ratio']:.2f}" if "ratio" in r else ""
            out.append(
                f"| {label} | {times[0]} | {times[1]} | {_us(r['floor_seconds'])} | {error} "
                f"| {note.replace('|', '/')} |"
            )
    skipped = data.record.get("skipped", [])
    if skipped:
        out += ["", f"Not measured: {len(skipped)} rows, out of time."]
    return out


def _order(row: Record) -> tuple[bool, float]:
    times = [m["seconds"] for m in row.get("modes", {}).values() if "seconds" in m]
    return row["status"] != "ok", min(times, default=math.inf)


def _predicted(data: Data) -> list[str]:
    out = [
        "| program | library kernels | superopt | ratio | found by | parameters | registers, shared | proof |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for program in data.record["programs"]:
        rows = [r for r in program["rows"] if r["kind"] == "superopt"]
        before = program["predicted_seconds"]
        if not rows:
            out.append(f"| {program['name']} | {_us(before)} | none | | | | | |")
            continue
        row = min(rows, key=lambda r: min(p["predicted_seconds"] for p in r["points"]))
        point = min(row["points"], key=lambda p: p["predicted_seconds"])
        facts = "; ".join(f"{k['registers']}, {k['shared_bytes'] // 1024} KiB" for k in point["compiled"])
        settings = _settings(point["parameters"])
        delta = point["proof"]["delta"]
        proof = point["proof"]["guarantee"] + (f", delta {delta:.1e}" if delta is not None else "")
        now = point["predicted_seconds"]
        out.append(
            f"| {program['name']} | {_us(before)} | {_us(now)} | {before / now:.2f} "
            f"| {row['label'].removeprefix('superopt, ')} | {settings} | {facts} | {proof} |"
        )
    return out


def _settings(parameters: dict[str, int]) -> str:
    """Parameters as text; of those that are switches only the ones that are on."""
    switches = ("hints", "descriptors", "separate")
    shown = [k if k in switches else f"{k} {v}" for k, v in parameters.items() if v or k not in switches]
    return ", ".join(shown)


def _short(text: str) -> str:
    """The first line of a message, cut at a word."""
    return textwrap.shorten(text.strip().split("\n")[0], 90, placeholder=" ...")


def _us(seconds: float | None) -> str:
    if not seconds:
        return ""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-2 else f"{seconds * 1e3:.1f} ms"


def model_table(model: cost.Model) -> str:
    """How far the cost model is off, from what was measured, each program predicted without its own rows."""
    if not model.samples:
        return "no measured rows: the analytic model predicts, and its error is unknown\n"
    devices = sorted({s.device for s in model.samples})
    out = [
        f"{len(model.samples)} rows of {len(model.programs)} programs on {', '.join(devices)}; "
        f"predictions by: {model.source}",
        "",
        "| model | off by (median) | rank correlation within a program |",
        "| --- | --- | --- |",
    ]
    for name, found in (("analytic", model.analytic), ("learned, program left out", model.left_out)):
        if found is not None:
            rank = "" if found.rank is None else f"{found.rank:.2f}"
            out.append(f"| {name} | {100 * (math.exp(found.log_error) - 1):.0f}% | {rank} |")
    return "\n".join(out) + "\n"


# --- HTML ----------------------------------------------------------------------------------------------------


def html(data: Data) -> str:
    """One page with the tables and the plots."""
    from markupsafe import Markup

    title = "measured" if data.measured else "predicted, not measured"
    drawn = [
        (Markup(plots.svg(made, f"plot-{i}")), caption) for i, (made, caption) in enumerate(_plots(data))
    ]
    facts = {
        "title": title,
        "tables": Markup(_tables(markdown(data))),
        "plots": drawn,
        "superopt": __version__,
    }
    return filled("bench.html.j2", facts)


def _tables(text: str) -> str:
    """Our Markdown as HTML, in which numbers are set as such and our rows marked."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    for i, token in enumerate(tokens):
        row = token.type == "tr_open" and tokens[i + 1].type == "td_open"
        if row and tokens[i + 2].content.startswith("superopt,"):
            token.attrSet("class", "ours")
        if token.type == "td_open" and _is_number(tokens[i + 1].content):
            token.attrSet("class", "number")
    return str(parser.renderer.render(tokens, parser.options, {}))


def _is_number(text: str) -> bool:
    return text.split(" ")[0].rstrip("x").replace(".", "", 1).isdigit() and len(text) < 16


def _plots(data: Data) -> list[tuple[Any, str]]:
    """The axes of a page's plots, with captions; those without data are left out."""
    if not data.measured:
        return _predictions(data)
    return [
        *_speedups(data),
        *_roofline(data),
        *_best_against_time(data),
        *_predicted_against_measured(data),
    ]


def _speedups(data: Data) -> list[tuple[Any, str]]:
    found = speedups(data)
    if not found:
        return []
    axes = plots.axes(8, 1 + 0.35 * len(found), xlabel="speedup over the best baseline")
    for i, s in enumerate(reversed(found)):
        errors = [[s.ratio - s.low], [s.high - s.ratio]]
        color = "#4878a8" if s.mode == "graph" else "#a8c4dc"
        axes.barh(i, s.ratio, xerr=errors, color=color, capsize=3, label=MODES[s.mode])
    axes.set_yticks(range(len(found)), [plots.plain(s.program) for s in reversed(found)])
    axes.axvline(1, color="black", linewidth=1, label="the best baseline")
    _legend(axes)
    return [(axes, "Speedup over the best baseline of the same rounds, with 95% intervals.")]


def _roofline(data: Data) -> list[tuple[Any, str]]:
    device = data.record["device"]
    bandwidth = device.get("memory_bytes_per_second")
    rows = [r for r in data.record["rows"] if r["status"] == "ok" and r["features"]]
    points = [(r, _best_seconds(r)) for r in rows]
    points = [(r, s) for r, s in points if s is not None]
    if not points or not bandwidth:
        return []
    axes = plots.axes(8, 4.5, xlabel="flops for each byte of device memory", ylabel="flop/s")
    for program in data.programs:
        mine = [(*_work(r), s) for r, s in points if r["program"] == program]
        mine = [(flops, moved, s) for flops, moved, s in mine if flops > 0]  # copies have no place here
        axes.scatter(
            [flops / max(moved, 1) for flops, moved, _ in mine],
            [flops / s for flops, _, s in mine],
            label=plots.plain(program),
        )
    low, high = axes.get_xlim()
    line = [max(low, 1e-2), max(high, 1e3)]
    peak = peak_matrix_flops(device) or math.inf
    if peak < math.inf:
        line.insert(1, min(max(peak / bandwidth, line[0]), line[1]))
    axes.plot(line, [min(x * bandwidth, peak) for x in line], color="black", linewidth=1, label="peaks")
    axes.set(xscale="log", yscale="log")
    _legend(axes)
    return [(axes, "Roofline: the peaks of device memory and of the matrix units.")]


def _work(row: Record) -> tuple[float, float]:
    """Flops of a row's kernels, and the bytes that they move."""
    found = row["features"]
    flops = math.expm1(found["log_tensor"]) + math.expm1(found["log_vector"])
    return flops, math.expm1(found["log_dram"])


def _best_against_time(data: Data) -> list[tuple[Any, str]]:
    tuning = [t for t in data.record["tuning"] if any(x["seconds"] for x in t["tried"])]
    if not tuning:
        return []
    axes = plots.axes(8, 4, xlabel="seconds of tuning", ylabel="best so far, us")
    for t in tuning:
        best, line = math.inf, list[float]()
        for tried in t["tried"]:
            best = min(best, tried["seconds"] or math.inf)
            line.append(best * 1e6)
        axes.step(
            [tried["at"] for tried in t["tried"]],
            line,
            where="post",
            label=plots.plain(f"{t['program']}, {t['row']} ({t['strategy']})"),
        )
    axes.set_yscale("log")
    _legend(axes)
    return [(axes, "Tuning: the best time of a row against the seconds spent.")]


def _predicted_against_measured(data: Data) -> list[tuple[Any, str]]:
    rows = [r for r in data.record["rows"] if r["status"] == "ok" and r["predicted_seconds"]]
    pairs = [(r, _best_seconds(r)) for r in rows]
    pairs = [(r, s) for r, s in pairs if s is not None]
    if not pairs:
        return []
    axes = plots.axes(8, 4.5, xlabel="predicted, us", ylabel="measured, us")
    for kind in ("superopt", "baseline"):
        mine = [(r["predicted_seconds"] * 1e6, s * 1e6) for r, s in pairs if r["kind"] == kind]
        if mine:
            axes.scatter(*zip(*mine, strict=True), label=kind)
    line = [min(s for _, s in pairs) * 1e6, max(s for _, s in pairs) * 1e6]
    axes.plot(line, line, color="black", linewidth=1, label="the same")
    axes.set(xscale="log", yscale="log")
    _legend(axes)
    return [(axes, "Predicted against measured; on the line they are the same.")]


def _predictions(data: Data) -> list[tuple[Any, str]]:
    programs = data.record["programs"]
    axes = plots.axes(8, 1 + 0.4 * len(programs), xlabel="predicted, us")
    ours = [(p["name"], r) for p in programs for r in p["rows"] if r["kind"] == "superopt"]
    colors = {r["label"]: f"C{i % 10}" for i, (_, r) in enumerate(ours)}
    for i, program in enumerate(reversed(programs)):
        bar = program["predicted_seconds"] * 1e6
        axes.plot(bar, i, "k|", markersize=14, label="library kernels")
        for row in (r for r in program["rows"] if r["kind"] == "superopt"):
            times = [p["predicted_seconds"] * 1e6 for p in row["points"]]
            label = plots.plain(row["label"])
            axes.plot(times, [i] * len(times), "o", color=colors[row["label"]], markersize=4, label=label)
    axes.set_yticks(range(len(programs)), [plots.plain(p["name"]) for p in reversed(programs)])
    axes.set_xscale("log")
    _legend(axes)
    return [(axes, "Predicted, not measured: each parameter point, and the program as library kernels.")]


def _legend(axes: Any) -> None:
    """What has a label, each label once."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    # Above the plot: inside, it would lie over bars and points.
    axes.legend(once.values(), once.keys(), fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


def _best_seconds(row: Record) -> float | None:
    return next((s for mode in MODES if (s := _seconds(row, mode)) is not None), None)
