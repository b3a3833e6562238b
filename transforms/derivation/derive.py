"""`--derive`: other expressions for convolutions, by rules that are named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from superopt.operators import is_windowed
from superopt.transforms.derivation.optimizer import chosen_rules
from superopt.transforms.passes import GraphPass

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph


@dataclass(frozen=True)
class Derive(GraphPass):
    """Rewrite each convolution by the first of the rules that fits, whatever it costs; say which did.

    `--superoptimize` applies the rules where they are predicted to pay.
    """

    flag: ClassVar[str] = "derive"

    rules: tuple[str, ...] = ()
    """The rules to try, in order; all of them where none is given."""

    def __post_init__(self) -> None:
        chosen_rules(self.rules)

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph after one rule at most for each node that it had."""
        rules = chosen_rules(self.rules)
        for result in [n.result for n in graph.nodes if is_windowed(n)]:
            node = next((n for n in graph.nodes if result in n.results), None)
            if node is None or not is_windowed(node):
                continue
            for name, rule in rules.items():
                if (made := rule(graph, node)) is not None:
                    diagnostics.remark(f"'{node.op}' is rewritten by '{name}'", node.location)
                    graph = made
                    break
            else:
                diagnostics.remark(f"no rule fits '{node.op}'", node.location)
        return graph
