"""`--partition`: show into which segments a program is cut, and where else it might be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt.errors import BadOption
from superopt.operators import is_constant
from superopt.transforms.partition.segments import HOPS, partition
from superopt.transforms.tunable import Pick, Tunable

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph


@dataclass(frozen=True)
class Partition(Tunable):
    """Report as remarks the segments into which the searches cut the program; change nothing.

    Each remark stands at a segment's first node and counts its operators. Sites are the values between groups,
    which stay inside a segment or cross a cut, and programs that fit a search whole.
    """

    flag: ClassVar[str] = "partition"
    level: ClassVar[Literal["graph", "kernel"]] = "graph"
    hops: ClassVar[int] = HOPS

    max_values: int = 25
    """Maximum number of values in a segment, not counting views and splat constants."""

    def __post_init__(self) -> None:
        if self.max_values < 1:
            raise BadOption(f"expected a positive max-values, got {self.max_values}")

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """Remark on every segment and every node that is in none."""
        segments = partition(graph, self.max_values, pick=pick)
        taken: set[int] = set()
        for number, segment in enumerate(segments):
            taken |= set(map(id, segment.graph.nodes))
            counts = Counter(n.op for n in segment.graph.nodes if not is_constant(n))
            operators = ", ".join(f"{n} {op}" for op, n in sorted(counts.items()))
            inputs, outputs = len(segment.graph.inputs), len(segment.graph.outputs)
            diagnostics.remark(
                f"segment {number}: {operators}; {inputs} inputs, {outputs} outputs",
                segment.graph.nodes[0].location,
            )
        for node in graph.nodes:
            if id(node) not in taken and not is_constant(node):
                diagnostics.remark(f"'{node.op}' is in no segment", node.location)
        return graph
