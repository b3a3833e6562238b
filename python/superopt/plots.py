"""Plots of the pages, by matplotlib, as SVG that stands in HTML."""

from __future__ import annotations

import io
import itertools
import math
import re
from typing import Any

from superopt.cost.gpus import Target
from superopt.report import KernelReport, Report


def axes(width: float, height: float, **labels: object) -> Any:
    """Empty axes in a figure of their own, in inches; `labels` are what `Axes.set` takes."""
    from matplotlib.figure import Figure  # it takes a third of a second to import

    made: Any = Figure(figsize=(width, height)).subplots()
    made.set(**labels)
    made.grid(alpha=0.3)
    return made


def svg(made: Any, kind: str) -> str:
    """The figure of these axes, of the CSS class `kind`; the same figure gives the same text."""
    import matplotlib as library

    matplotlib: Any = library  # its types are partly unknown
    text = io.StringIO()
    # Text stays text, and what one figure defines does not count for another one of the page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": kind, "mathtext.default": "regular"}):
        absent: dict[str, None] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        made.figure.savefig(text, format="svg", bbox_inches="tight", metadata=absent)
    drawing = text.getvalue()[text.getvalue().index("<svg") :]
    drawing = re.sub(r' (?:xmlns(?::\w+)?|version)="[^"]*"', "", drawing, count=3)
    return drawing.replace("<svg", f'<svg class="plot {kind}" role="img"', 1)


def roofline(kernel: KernelReport, target: Target, kind: str = "roofline") -> str:
    """Operations a second over operations a byte of device memory: the target's roof, and the predicted point.

    Empty for a kernel that moves or computes nothing. (Williams, Waterman and Patterson, 2009.)
    """
    flops = kernel.tensor_flops + kernel.vector_flops
    if not flops or not kernel.dram_bytes or not kernel.predicted_seconds:
        return ""
    peak = target.tensor_flops if kernel.tensor_flops else target.vector_flops
    bandwidth = target.dram_bytes_per_second
    intensity, rate, ridge = flops / kernel.dram_bytes, flops / kernel.predicted_seconds, peak / bandwidth
    made = axes(4, 2.6, xlabel="operations a byte of device memory", ylabel="operations a second")
    ends = min(intensity, ridge) / 10, max(intensity, ridge) * 10
    most = min(peak, intensity * bandwidth)
    made.plot(
        [ends[0], ridge, ends[1]], [ends[0] * bandwidth, peak, peak], label=f"the roof of {target.name}"
    )
    made.plot([intensity, intensity], [rate, most], ":", color="gray", linewidth=1)
    share = f"{rate / 1e12:.3g} of {most / 1e12:.3g} T/s"
    made.plot([intensity], [rate], "o", color="C3", label=f"predicted: {share}")
    made.set(xscale="log", yscale="log")
    made.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1))  # above: the point may be anywhere below
    return svg(made, kind)


def best_against_time(report: Report) -> str:
    """The cheapest program compiled so far, over the processor time of the run; empty where none was compiled."""
    found = sorted(
        (c.compiled_after, c.compiled_seconds * 1e6)
        for c in report.candidates
        if c.segment is None and c.compiled_after is not None and c.compiled_seconds is not None
    )
    if not found:
        return ""
    made = axes(
        7, 2.8, xlabel="seconds of processor time", ylabel="predicted, us", ylim=(0, _headroom(found, report))
    )
    seconds, name = report.best_before
    best = list(itertools.accumulate((price for _, price in found), min, initial=seconds * 1e6))
    times = [at for at, _ in found]
    made.step([0.0, *times, times[-1] * 1.05], [*best, best[-1]], where="post", label="the best so far")
    made.plot(times, [price for _, price in found], "o", markersize=4, color="C0", label="compiled programs")
    made.axhline(seconds * 1e6, color="C3", linewidth=1, label=f"the best a user has ({plain(name)})")
    made.set_xlim(left=0)
    made.legend(fontsize=8)
    return svg(made, "best")


def tuning_curve(report: Report) -> str:
    """The best price so far over the programs that the tuner's deciding evaluator priced; empty without any."""
    tuning = report.tuning
    if tuning is None or not any(price is not None for price in tuning.prices):
        return ""
    prices = [math.inf if price is None else price * 1e6 for price in tuning.prices]
    before = tuning.before_seconds * 1e6
    best = list(itertools.accumulate(prices, min, initial=before))
    counts = range(1, len(prices) + 1)
    shown = [(n, p) for n, p in zip(counts, prices, strict=True) if p <= 3 * min(best)]
    what = "measured on the CPU, us" if tuning.measured else "predicted, us"
    most = 1.15 * max([p for _, p in shown] + [p for p in (before,) if math.isfinite(p)])
    made = axes(7, 2.8, xlabel="programs priced by their kernels", ylabel=what, ylim=(0, most))
    made.step(
        [0, *counts],
        [p if math.isfinite(p) else math.nan for p in best],
        where="post",
        label="the best so far",
    )
    made.plot(
        [n for n, _ in shown], [p for _, p in shown], "o", markersize=4, color="C0", label="tuned programs"
    )
    if math.isfinite(before):
        made.axhline(before, color="gray", linewidth=1, linestyle=":", label="before tuning")
    made.set_xlim(left=0)
    made.legend(fontsize=8)
    return svg(made, "tuning")


def _headroom(found: list[tuple[float, float]], report: Report) -> float:
    """Above the first programs and the baseline; what costs far more is outside."""
    least = min(price for _, price in found)
    prices = [min(price, 3 * least) for _, price in found]
    baseline = report.best_before[0] * 1e6
    return 1.15 * max(*prices, baseline if math.isfinite(baseline) else 0.0)


def plain(text: str) -> str:
    """Text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")
