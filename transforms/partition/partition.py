"""`--partition`: show into which segments a program is cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from superopt.errors import BadOption
from superopt.operators import is_constant
from superopt.transforms.partition.segments import partition
from superopt.transforms.passes import GraphPass

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph


@dataclass(frozen=True)
class Partition(GraphPass):
    """Report as remarks the segments into which the searches cut the program; change nothing.

    Each remark stands at a segment's first node and counts its operators.
    """

    flag: ClassVar[str] = "partition"

    max_values: int = 25
    """Maximum number of values in a segment, not counting views and splat constants."""

    def __post_init__(self) -> None:
        if self.max_values < 1:
            raise BadOption(f"expected a positive max-values, got {self.max_values}")

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """Remark on every segment and every node that is in none."""
        segments = partition(graph, self.max_values)
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
