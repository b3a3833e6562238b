"""A program as a saturated e-graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from superopt.errors import UnsupportedProgram
from superopt.program import KernelGraph
from superopt.report import EGraphReport, RuleCounts
from superopt.transforms.tile_saturation.encode import Encoder
from superopt.transforms.tile_saturation.optimizer import SaturationOptimizer, enabled_rules
from superopt.transforms.tile_saturation.terms import TermProgram
from superopt.transforms.tile_saturation.tile_loops import Inline, tile_loops


@dataclass
class Saturation:
    """One saturated e-graph."""

    inline: Inline
    program: TermProgram
    encoder: Encoder
    stable: bool = False
    """Whether maxima were added to the program's exponentials."""
    shifts: bool = False
    """Whether the program's maxima are only subtracted, so that running ones may start at a finite number."""

    @property
    def name(self) -> str:
        """What distinguishes it from the others of one program."""
        return f"{self.inline}, stabilized" if self.stable else self.inline

    def report(self) -> EGraphReport:
        """Sizes, times, and the effects of the rules that matched."""
        g = self.encoder.graph
        return EGraphReport(
            name=self.name,
            nodes=g.nodes,
            classes=g.classes,
            iterations=g.iterations,
            stopped=g.stopped,
            programs=g.count(self.encoder.root),
            seconds=g.seconds,
            rules={
                name: RuleCounts(matched=matched, refused=refused, fired=fired)
                for name, matched, refused, fired in g.statistics
                if matched
            },
        )

    def rule_counts(self) -> list[str]:
        """A line for each rule that matched."""
        return [
            f"{self.name}: {rule}: matched {c.matched}, refused {c.refused}, fired {c.fired}"
            for rule, c in self.report().rules.items()
        ]

    def summary(self) -> str:
        """Sizes and times on one line."""
        g = self.encoder.graph
        return (
            f"{self.name}: {g.nodes} nodes in {g.classes} classes after {g.iterations} iterations "
            f"({g.stopped}), {g.count(self.encoder.root):.2g} programs, {g.seconds:.2f} s"
        )


def saturate(
    graph: KernelGraph,
    inline: Inline,
    options: SaturationOptimizer,
    seconds: float,
    stop: Callable[[], bool] | None = None,
) -> Saturation:
    """The e-graph of `graph`; raises UnsupportedProgram for what tile loops do not express."""
    program = tile_loops(graph, inline)
    try:
        encoder = Encoder(program)
    except (
        ValueError,
        IndexError,
    ) as error:  # more variables than a set can hold, shapes that do not fit
        raise UnsupportedProgram(f"tile loops do not express this program: {error}", graph.location) from None
    encoder.graph.saturate(
        enabled_rules(options.rules),
        options.iterations,
        options.nodes,
        options.memory_mb << 20,
        seconds,
        stop,
    )
    return Saturation(inline, program, encoder)
