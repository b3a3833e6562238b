"""The page of one run: everything about it in one HTML file, which needs nothing else to be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superopt import cost, draw, listings, plots, render
from superopt.again import commands
from superopt.errors import BadInput
from superopt.run.choose import CHOSEN
from superopt.verify.ranges import representatives

if TYPE_CHECKING:
    from superopt.run.outcome import Outcome
    from superopt.transforms.emit.compile import Compiled
    from superopt.transforms.emit.triton_source import TritonKernel
    from superopt.verify.ranges import Axis

MOST_BYTES = 2_000_000
MOST_SOURCE = 100_000
"""Characters of each listing of a kernel beyond which the page shows the beginning."""


def page(outcome: Outcome) -> str:
    """HTML: verdict, graphs, a card for each kernel, funnel, candidates, certificate, commands.

    Offline, below 2 MB: where a program is too large for that, listings and graphs are cut.
    Raises BadInput where even that does not suffice.
    """
    from markupsafe import Markup

    report, target = outcome.report, cost.target(outcome.report.target)
    compiled = list(zip(report.kernels, outcome.emitted.kernels, outcome.compiled, strict=True))
    whole = [_listings(kernel, made) for _, kernel, made in compiled]
    results = draw.names_of_outputs(outcome.original)
    facts: dict[str, Any] = {
        "outcome": outcome,
        "report": report,
        "superopt": report.superopt,
        "certificate": outcome.certificate,
        "range": outcome.ranged and outcome.ranged.record,
        "at": _searched(outcome),
        "target": target,
        "before": Markup(draw.graph_svg(outcome.original, results)),
        "after": Markup(draw.graph_svg(outcome.optimized, results)),
        "bodies": [(title, about, Markup(svg)) for title, about, svg in draw.bodies(outcome.optimized)],
        "best": Markup(plots.best_against_time(report)),
        "tuning_curve": Markup(plots.tuning_curve(report)),
        "again": commands(outcome),
        "infinite": math.inf,
        "candidates": sorted(report.candidates, key=lambda c: (c.segment is not None, c.outcome != CHOSEN)),
        "buckets": [
            {
                "range": " and ".join(map(_range, b.axes)),
                "report": b.outcome.report,
                "at": _searched(replace(b.outcome, buckets=(b,))),
            }
            for b in outcome.buckets
        ],
    }
    rooflines = [
        Markup(plots.roofline(made, target, f"roofline r{i}")) for i, made in enumerate(report.kernels)
    ]
    text = ""
    for most in (MOST_SOURCE, MOST_SOURCE // 10, MOST_SOURCE // 100):
        lowered, more = _cut([(line, None) for line in render.text(outcome.lowered).splitlines()], most)
        kernels = [
            {
                "report": made,
                "kernel": kernel,
                "roofline": roofline,
                "listings": [
                    (name, title, *_cut(lines, most, note)) for name, title, lines, note in all_of_it
                ],
            }
            for (made, kernel, _), all_of_it, roofline in zip(compiled, whole, rooflines, strict=True)
        ]
        shown = "\n".join(line for line, _ in lowered) + "\n" + more
        text = filled("run.html.j2", {**facts, "lowered": shown, "kernels": kernels})
        if len(text.encode()) <= MOST_BYTES:
            return text
    raise BadInput(f"expected a program whose page has at most {MOST_BYTES} bytes, got {len(text.encode())}")


def _searched(outcome: Outcome) -> str:
    """The extents at which a program for ranges of them was searched, and is drawn and priced; else empty."""
    fixed = outcome.buckets[-1].axes if outcome.buckets else ()
    found = {axis.name: axis.low for axis in fixed}
    if outcome.ranged is not None:
        axes = outcome.ranged.record.axes
        found |= zip((a.name for a in axes), representatives(axes), strict=True)
    return " and ".join(f"{name} = {extent}" for name, extent in found.items())


def _range(axis: Axis) -> str:
    return f"{axis.name} = {axis.low}" if axis.low == axis.high else str(axis)


def filled(template: str, facts: Mapping[str, Any]) -> str:
    """A template of the package with `facts` in it, each of them escaped but for markup."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("superopt", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(facts)


def _listings(kernel: TritonKernel, compiled: Compiled) -> list[tuple[str, str, listings.Listing, str]]:
    """Class, title and lines of a kernel's source and of what became of it, and why one is missing."""
    found: list[tuple[str, str, listings.Listing, str]] = [
        ("triton", "Triton", listings.source(kernel.source), ""),
        ("ttir", "TTIR", listings.ttir(compiled), ""),
        ("ptx", "PTX", listings.ptx(compiled), ""),
    ]
    try:
        found.append(("sass", "SASS", listings.sass(compiled), ""))
    except listings.NoDisassembly as error:
        found.append(("sass", "SASS", [], str(error)))
    return found


def _cut(lines: listings.Listing, most: int, note: str = "") -> tuple[listings.Listing, str]:
    """The first lines, of `most` characters together, and what is said below them."""
    kept, length = 0, 0
    while kept < len(lines) and length <= most:
        length += len(lines[kept][0]) + 1
        kept += 1
    if kept == len(lines):
        return lines, note
    return lines[:kept], f"... {len(lines) - kept} more lines: see the bundle\n"
