"""`--derive` and `--print-derivations`: other expressions for convolutions, by rules that are named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from superopt.cost import target
from superopt.cost.gpus import DEFAULT_TARGET, TargetName
from superopt.operators import is_windowed
from superopt.transforms.derivation.mutants.correction import (
    DIFFERENCE,
    Corrector,
    Difference,
    cheapest,
    predicted_seconds,
)
from superopt.transforms.derivation.mutants.derived import MUTANTS
from superopt.transforms.derivation.mutants.generated import AGREEMENT
from superopt.transforms.derivation.optimizer import checked_mutation, chosen_names, is_derived
from superopt.transforms.derivation.rules import RULES
from superopt.transforms.passes import GraphPass

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph, Node


@dataclass(frozen=True)
class Derive(GraphPass):
    """Rewrite each convolution by the first of the rules that fits, whatever it costs; say which did.

    A rule may be a mutant, which is right in places only: it is corrected, by the repair that is predicted to be
    fastest. `--superoptimize` applies the rules where they are predicted to pay.
    """

    flag: ClassVar[str] = "derive"

    rules: tuple[str, ...] = ()
    """The rules and mutants to try, in order; all rules and no mutants where none is given."""
    difference: Difference = DIFFERENCE
    """How it is decided where a mutant is wrong."""
    mutate: int = 0
    """Where no rule fits, mutants of up to as many operators are generated, as PET does; 0 generates none."""
    agreement: float = AGREEMENT
    """The share of positions at which such a mutant must be right."""
    target: TargetName = DEFAULT_TARGET
    """The GPU that repairs are chosen for."""

    def __post_init__(self) -> None:
        chosen_names(self.rules)
        checked_mutation(self.mutate, self.agreement)

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph after one rule at most for each node that it had."""
        for result in [n.result for n in graph.nodes if is_derived(n)]:
            node = next((n for n in graph.nodes if result in n.results), None)
            if node is not None and is_derived(node):
                before, (graph, said) = graph, self._rewritten(graph, node)
                if graph is not before or is_windowed(node):
                    diagnostics.remark(said, node.location)
        return graph

    def _rewritten(self, graph: KernelGraph, node: Node) -> tuple[KernelGraph, str]:
        for name in self.rules or RULES:
            if name in RULES and (made := RULES[name](graph, node)) is not None:
                return made, f"'{node.op}' is rewritten by '{name}'"
            if name in MUTANTS and (best := self._best(graph, node, Corrector(self.difference, (name,)))):
                return best
        corrector = Corrector(self.difference, (), self.mutate, self.agreement)
        return self._best(graph, node, corrector) or (graph, f"no rule fits '{node.op}'")

    def _best(self, graph: KernelGraph, node: Node, corrector: Corrector) -> tuple[KernelGraph, str] | None:
        best = cheapest(corrector.of(graph, node), target(self.target))
        return best and (best[1], f"'{node.op}' is rewritten: {best[0]}")


@dataclass(frozen=True)
class PrintDerivations(GraphPass):
    """Say of each convolution which rules and mutants fit, where mutants are wrong, and what repairs cost.

    The program stays as it is.
    """

    flag: ClassVar[str] = "print-derivations"

    difference: Difference = DIFFERENCE
    """How it is decided where a mutant is wrong."""
    mutate: int = 0
    """Also mutants of up to as many operators that are generated, as PET does."""
    agreement: float = AGREEMENT
    """The share of positions at which such a mutant must be right."""
    target: TargetName = DEFAULT_TARGET
    """The GPU that seconds are predicted for."""

    def __post_init__(self) -> None:
        checked_mutation(self.mutate, self.agreement)

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """`graph`; a remark for each program that is derived."""
        gpu = target(self.target)

        def us(made: KernelGraph) -> str:
            return f"{predicted_seconds(made, gpu) * 1e6:.1f} us"

        for node in filter(is_derived, graph.nodes):
            diagnostics.remark(f"'{node.op}': {us(graph)} as it is", node.location)
            for name, rule in RULES.items():
                if (made := rule(graph, node)) is not None:
                    diagnostics.remark(f"'{node.op}': {us(made)} by rule '{name}'", node.location)
            corrector = Corrector(self.difference, mutate=self.mutate, agreement=self.agreement)
            for found, made in corrector.of(graph, node):
                diagnostics.remark(f"'{node.op}': {us(made)}: {found}", node.location)
        return graph
