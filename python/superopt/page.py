"""The page of one run: everything about it in one HTML file, which needs nothing else to be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt import cost, draw, render
from superopt.errors import BadInput

if TYPE_CHECKING:
    from superopt.run.outcome import Outcome

MOST_BYTES = 2_000_000
MOST_SOURCE = 100_000
"""Characters of a kernel's source or PTX beyond which the page shows the beginning."""


def page(outcome: Outcome) -> str:
    """HTML: verdict, graphs, a card for each kernel, funnel, candidates, certificate, commands.

    Offline, without scripts, below 2 MB: where a program is too large for that, sources and graphs are cut.
    Raises BadInput where even that does not suffice.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("superopt", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    report, target = outcome.report, cost.target(outcome.report.target)
    for most in (MOST_SOURCE, MOST_SOURCE // 10, MOST_SOURCE // 100):
        kernels = [
            {
                "report": made,
                "kernel": kernel,
                "roofline": Markup(draw.roofline_svg(made, target)),
                "source": _cut(kernel.source, most),
                "ptx": _cut(compiled.ptx, most),
            }
            for made, kernel, compiled in zip(
                report.kernels, outcome.emitted.kernels, outcome.compiled, strict=True
            )
        ]
        text = environment.get_template("run.html.j2").render(
            outcome=outcome,
            report=report,
            certificate=outcome.certificate,
            target=target,
            before=Markup(draw.graph_svg(outcome.original)),
            after=Markup(draw.graph_svg(outcome.optimized)),
            bodies=[(title, about, Markup(svg)) for title, about, svg in draw.bodies(outcome.optimized)],
            lowered=_cut(render.text(outcome.lowered), most),
            kernels=kernels,
        )
        if len(text.encode()) <= MOST_BYTES:
            return text
    raise BadInput(f"expected a program whose page has at most {MOST_BYTES} bytes, got {len(text.encode())}")


def _cut(text: str, most: int) -> str:
    return (
        text
        if len(text) <= most
        else f"{text[:most]}\n... {len(text) - most} more characters: see the bundle\n"
    )
