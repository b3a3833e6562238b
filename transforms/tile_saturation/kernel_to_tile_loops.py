"""`--kernel-to-tile-loops`: the program as naive tile loops, from which saturation starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt import cost
from superopt.cost.gpus import DEFAULT_TARGET, TargetName, target
from superopt.errors import UnsupportedProgram
from superopt.transforms.passes import GraphPass

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph


@dataclass(frozen=True)
class KernelToTileLoops(GraphPass):
    """Write every operator whose result must be stored as a naive loop over tiles, one kernel each.

    Accumulators start from an explicit zero (minus infinity for maxima). Values with one user are inlined into
    it. Raises UnsupportedProgram for operators that tile loops cannot express.
    """

    flag: ClassVar[str] = "kernel-to-tile-loops"

    target: TargetName = DEFAULT_TARGET
    """The GPU whose cost model chooses tile widths."""

    inline: Literal["all", "single"] = "single"
    """Whether to store values with several users once (single) or to inline them into every user (all)."""

    bundle: bool = True
    """Write independent statements of the same form as one loop."""

    print_loops: bool = False
    """Show the loops, bundles and tile parameters as a remark."""

    def __post_init__(self) -> None:
        target(self.target)

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The loops as one `tiled` node each."""
        from superopt.transforms.tile_saturation.accesses import Rejected
        from superopt.transforms.tile_saturation.tile_loops import tile_loops
        from superopt.transforms.tile_saturation.to_kernels import to_kernels

        program = tile_loops(graph, self.inline, bundle=self.bundle)
        if self.print_loops:
            diagnostics.remark(f"tile loops of '{graph.name}':\n{program}", graph.location)
        try:
            return to_kernels(graph, program, program.body, cost.target(self.target))
        except Rejected as error:
            raise UnsupportedProgram(f"expected a program of tile loops: {error}", graph.location) from None
