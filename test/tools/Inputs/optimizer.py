"""An optimizer from outside the package: products of a value with itself become squares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from superopt.cost import Target, cost
from superopt.program import KernelGraph, Node
from superopt.transforms.optimizers import Optimizer, Proposal, Proposals, never


@dataclass(frozen=True)
class Squares(Optimizer):
    """Write products of a value with itself as squares, which read their operand once."""

    name: ClassVar[str] = "squares"

    wrong: bool = False
    """Propose square roots instead, which no gate may let through."""

    def refusal(self, program: KernelGraph) -> str:
        """Programs without such a product."""
        return "" if any(map(_is_square, program.nodes)) else "it multiplies nothing with itself"

    def propose(
        self,
        program: KernelGraph,
        target: Target,
        *,
        budget: float,
        seed: int = 0,
        stop: Callable[[], bool] = never,
    ) -> Proposals:
        """mul(x, x) -> square(x)"""
        op = "sqrt" if self.wrong else "square"
        nodes = [replace(n, op=op, operands=n.operands[:1]) if _is_square(n) else n for n in program.nodes]
        made = replace(program, nodes=nodes)
        return Proposals([Proposal(made, cost(made, target).seconds)])


def _is_square(node: Node) -> bool:
    return node.op == "mul" and node.operands[0] is node.operands[1]
