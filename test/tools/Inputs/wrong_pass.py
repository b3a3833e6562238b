"""superopt-opt with one pass more, which changes what the program means."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from superopt.diagnostics import Diagnostics
from superopt.driver.main import run
from superopt.program import KernelGraph
from superopt.transforms import registry
from superopt.transforms.passes import GraphPass


@dataclass(frozen=True)
class Halve(GraphPass):
    """Subtract where the program adds."""

    flag: ClassVar[str] = "halve"

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """add(a, b) -> sub(a, b)"""
        for node in graph.nodes:
            node.op = "sub" if node.op == "add" else node.op
        return graph


if __name__ == "__main__":
    sys.modules["wrong_pass"] = sys.modules["__main__"]
    registry.register("halve", "wrong_pass:Halve")
    sys.exit(run([sys.argv[1], "--halve", "--verify-each-equivalence"]))
