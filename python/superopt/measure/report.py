"""Results as tables and plots: Markdown for a page, or one self-contained HTML file.

A speedup compares superopt's best row with the best baseline, both from the same rounds, with the interval
of the ratios of those rounds. A prepared folder has no measurements: its tables say "predicted", and compare
what the model predicts for superopt's rows with what it predicts for the program as library kernels.
"""

from __future__ import annotations

import html as escape
import importlib
import io
import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from superopt import cost
from superopt.errors import BadInput, UnsupportedProgram
from superopt.measure.standalone import results, run
from superopt.measure.standalone.floor import peak_matrix_flops
from superopt.measure.standalone.intervals import paired_ratio

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
    switches = ("hints", "descriptors")
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

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>superopt: {title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums }}
td, th {{ border-bottom: 1px solid #ddd; padding: .25em .7em; text-align: left; vertical-align: top }}
.number {{ text-align: right; white-space: nowrap }}
.ours td {{ background: #eef4fa }}
svg {{ max-width: 100%; height: auto }}
figcaption {{ color: #555 }}
</style></head><body><h1>superopt: {title}</h1>
{body}
</body></html>
"""


def html(data: Data) -> str:
    """One page with the tables and the plots; raises UnsupportedProgram without matplotlib."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        matplotlib.use("svg")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError:
        raise UnsupportedProgram(
            "expected matplotlib for plots, got none: pip install 'superopt[bench]'"
        ) from None
    matplotlib.rcParams["svg.hashsalt"] = "superopt"  # the same results give the same page
    plots = _Plots(pyplot, data)
    body = [_tables(markdown(data))]
    for figure, caption in plots.all():
        text = io.StringIO()
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
        drawing = text.getvalue()[text.getvalue().index("<svg") :]
        body.append(f"<figure>{drawing}<figcaption>{escape.escape(caption)}</figcaption></figure>")
    title = "measured" if data.measured else "predicted, not measured"
    return _PAGE.format(title=title, body="\n".join(body))


def _tables(text: str) -> str:
    """Our own Markdown (headings, tables, paragraphs) as HTML."""
    out: list[str] = []
    rows: list[list[str]] = []

    def flush() -> None:
        if rows:
            head, *rest = rows
            cells = "".join(f"<th>{c}</th>" for c in head)
            lines = "".join(f"<tr{_class(r)}>" + "".join(map(_cell, r)) + "</tr>" for r in rest)
            out.append(f"<table><tr>{cells}</tr>{lines}</table>")
            rows.clear()

    for line in text.splitlines():
        if line.startswith("|"):
            cells = [escape.escape(c.strip()) for c in line.strip("|").split("|")]
            if not all(c.strip("- ") == "" and c for c in cells):
                rows.append(cells)
            continue
        flush()
        if line.startswith("### "):
            out.append(f"<h2>{escape.escape(line[4:])}</h2>")
        elif line.strip():
            parts = escape.escape(line).split("**")
            out.append("<p>" + "".join(f"<b>{p}</b>" if i % 2 else p for i, p in enumerate(parts)) + "</p>")
    flush()
    return "\n".join(out)


def _class(row: Sequence[str]) -> str:
    return ' class="ours"' if row[0].startswith("superopt,") else ""


def _cell(text: str) -> str:
    number = text.split(" ")[0].rstrip("x").replace(".", "", 1).isdigit() and len(text) < 16
    return f'<td class="number">{text}</td>' if number else f"<td>{text}</td>"


class _Plots:
    """The figures of a page; those without data are left out."""

    def __init__(self, pyplot: Any, data: Data) -> None:
        self.pyplot, self.data = pyplot, data

    def all(self) -> list[tuple[Any, str]]:
        if not self.data.measured:
            return self._predictions()
        return [
            *self._speedups(),
            *self._roofline(),
            *self._best_against_time(),
            *self._predicted_against_measured(),
        ]

    def _axes(self, height: float, **labels: str) -> tuple[Any, Any]:
        figure, axes = self.pyplot.subplots(figsize=(8, height))
        axes.set(**labels)
        axes.grid(alpha=0.3)
        return figure, axes

    def _speedups(self) -> list[tuple[Any, str]]:
        found = speedups(self.data)
        if not found:
            return []
        figure, axes = self._axes(1 + 0.35 * len(found), xlabel="speedup over the best baseline")
        for i, s in enumerate(reversed(found)):
            errors = [[s.ratio - s.low], [s.high - s.ratio]]
            axes.barh(i, s.ratio, xerr=errors, color="#4878a8" if s.mode == "graph" else "#a8c4dc", capsize=3)
        axes.set_yticks(range(len(found)), [f"{s.program}, {MODES[s.mode]}" for s in reversed(found)])
        axes.axvline(1, color="black", linewidth=1)
        return [(figure, "Speedup over the best baseline of the same rounds, with 95% intervals.")]

    def _roofline(self) -> list[tuple[Any, str]]:
        device = self.data.record["device"]
        bandwidth = device.get("memory_bytes_per_second")
        rows = [r for r in self.data.record["rows"] if r["status"] == "ok" and r["features"]]
        points = [(r, _best_seconds(r)) for r in rows]
        points = [(r, s) for r, s in points if s is not None]
        if not points or not bandwidth:
            return []
        figure, axes = self._axes(4.5, xlabel="flops for each byte of device memory", ylabel="flop/s")
        for program in self.data.programs:
            mine = [(r, s) for r, s in points if r["program"] == program]
            flops = [
                math.expm1(r["features"]["log_tensor"]) + math.expm1(r["features"]["log_vector"])
                for r, _ in mine
            ]
            moved = [math.expm1(r["features"]["log_dram"]) for r, _ in mine]
            axes.scatter(
                [f / max(b, 1) for f, b in zip(flops, moved, strict=True)],
                [f / s for f, (_, s) in zip(flops, mine, strict=True)],
                label=program,
            )
        low, high = axes.get_xlim()
        line = [max(low, 1e-2), max(high, 1e3)]
        peak = peak_matrix_flops(device) or math.inf
        if peak < math.inf:
            line.insert(1, min(max(peak / bandwidth, line[0]), line[1]))
        axes.plot(line, [min(x * bandwidth, peak) for x in line], color="black", linewidth=1)
        axes.set(xscale="log", yscale="log")
        axes.legend(fontsize=8)
        return [(figure, "Roofline: the peaks of device memory and of the matrix units.")]

    def _best_against_time(self) -> list[tuple[Any, str]]:
        tuning = [t for t in self.data.record["tuning"] if any(x["seconds"] for x in t["tried"])]
        if not tuning:
            return []
        figure, axes = self._axes(4, xlabel="seconds of tuning", ylabel="best so far, us")
        for t in tuning:
            best, line = math.inf, list[float]()
            for tried in t["tried"]:
                best = min(best, tried["seconds"] or math.inf)
                line.append(best * 1e6)
            axes.step(
                [tried["at"] for tried in t["tried"]],
                line,
                where="post",
                label=f"{t['program']}, {t['row']} ({t['strategy']})",
            )
        axes.set_yscale("log")
        axes.legend(fontsize=7)
        return [(figure, "Tuning: the best time of a row against the seconds spent.")]

    def _predicted_against_measured(self) -> list[tuple[Any, str]]:
        rows = [r for r in self.data.record["rows"] if r["status"] == "ok" and r["predicted_seconds"]]
        pairs = [(r, _best_seconds(r)) for r in rows]
        pairs = [(r, s) for r, s in pairs if s is not None]
        if not pairs:
            return []
        figure, axes = self._axes(4.5, xlabel="predicted, us", ylabel="measured, us")
        for kind in ("superopt", "baseline"):
            mine = [(r["predicted_seconds"] * 1e6, s * 1e6) for r, s in pairs if r["kind"] == kind]
            if mine:
                axes.scatter(*zip(*mine, strict=True), label=kind)
        line = [min(s for _, s in pairs) * 1e6, max(s for _, s in pairs) * 1e6]
        axes.plot(line, line, color="black", linewidth=1)
        axes.set(xscale="log", yscale="log")
        axes.legend()
        return [(figure, "Predicted against measured; on the line they are the same.")]

    def _predictions(self) -> list[tuple[Any, str]]:
        programs = self.data.record["programs"]
        figure, axes = self._axes(1 + 0.4 * len(programs), xlabel="predicted, us")
        for i, program in enumerate(reversed(programs)):
            axes.plot(program["predicted_seconds"] * 1e6, i, "k|", markersize=14)
            for row in (r for r in program["rows"] if r["kind"] == "superopt"):
                times = [p["predicted_seconds"] * 1e6 for p in row["points"]]
                axes.plot(times, [i] * len(times), "o", markersize=4, label=row["label"])
        axes.set_yticks(range(len(programs)), [p["name"] for p in reversed(programs)])
        axes.set_xscale("log")
        return [
            (
                figure,
                "Predicted, not measured: each parameter point; the bar is the program as library kernels.",
            )
        ]


def _best_seconds(row: Record) -> float | None:
    return next((s for mode in MODES if (s := _seconds(row, mode)) is not None), None)
