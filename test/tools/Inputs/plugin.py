"""A pass from outside the package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from superopt.diagnostics import Diagnostics
from superopt.program import KernelGraph
from superopt.transforms.passes import GraphPass


@dataclass(frozen=True)
class DoubleToSum(GraphPass):
    """Write the double of a value as a sum."""

    flag: ClassVar[str] = "double-to-sum"

    limit: int = 1000
    """How many may be rewritten."""

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """mul(x, 2) -> add(x, x)"""
        twos = {n.result for n in graph.nodes if n.op == "constant" and n.attrs["value"] == 2.0}
        doubles = [n for n in graph.nodes if n.op == "mul" and n.operands[1] in twos][: self.limit]
        nodes = [
            replace(n, op="add", operands=(n.operands[0], n.operands[0])) if n in doubles else n
            for n in graph.nodes
        ]
        return replace(graph, nodes=nodes)
