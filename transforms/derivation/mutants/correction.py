"""From a node to complete programs: its mutants, where they differ from it, and what corrects that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from superopt.operators import OPERATORS, is_windowed, normalize_attrs
from superopt.program import KernelGraph, Node, Value
from superopt.transforms.derivation.mutants import boxes, exact
from superopt.transforms.derivation.mutants.derived import MUTANTS, Mutant, derived
from superopt.transforms.derivation.mutants.points import Undecided
from superopt.transforms.derivation.mutants.region import Region
from superopt.transforms.derivation.mutants.repairs import repairs
from superopt.transforms.derivation.rewrite import Rewrite

if TYPE_CHECKING:
    from superopt.cost import Target

# How it is decided which positions of the output differ; each raises Undecided where it does not say.
Difference: TypeAlias = Literal["relation", "boxes"]
DIFFERENCE: Difference = "relation"

DIFFERENCES: dict[Difference, Callable[[KernelGraph, KernelGraph], Region]] = {
    "relation": exact.difference,
    "boxes": boxes.difference,
}


@dataclass(frozen=True)
class Correction:
    """A mutant of one node, where it is wrong, and a repair: a complete program of the types of the source."""

    mutant: str
    region: Region
    repair: str
    graph: KernelGraph

    def __str__(self) -> str:
        if not self.region.count:
            return f"mutant '{self.mutant}' differs nowhere"
        wrong, outputs = f"{self.region.count:,}", f"{self.region.size:,}"
        return f"mutant '{self.mutant}' differs in {wrong} of {outputs} outputs, repaired by '{self.repair}'"


@dataclass
class Corrector:
    """Corrections of nodes, each kind of node once: those of equal operators, attributes and types are alike.

    `worthwhile` says of a source and a mutant that nobody has corrected yet whether it may pay.
    """

    difference: Difference = DIFFERENCE
    names: tuple[str, ...] = tuple(MUTANTS)
    worthwhile: Callable[[KernelGraph, KernelGraph], bool] = lambda source, mutant: True
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("mutants", "mutants dearer", "mutants undecided", "repairs"), 0
        )
    )
    known: dict[str, list[Correction]] = field(default_factory=dict[str, "list[Correction]"])

    def of(self, node: Node) -> list[Correction]:
        """Every repair of every mutant of `node`, as programs of the first such node."""
        key = _key(node)
        if key not in self.known:
            self.known[key] = [*self._found(node)]
        return self.known[key]

    def _found(self, node: Node) -> Iterator[Correction]:
        for mutant in derived(node):
            if mutant.name not in self.names:
                continue
            self.counts["mutants"] += 1
            if not self.worthwhile(mutant.source, mutant.graph):
                self.counts["mutants dearer"] += 1
                continue
            yield from self._corrected(mutant)

    def _corrected(self, mutant: Mutant) -> Iterator[Correction]:
        try:
            region = DIFFERENCES[self.difference](mutant.source, mutant.graph)
        except Undecided:
            self.counts["mutants undecided"] += 1
            return
        for name, graph in repairs(mutant, region):
            self.counts["repairs"] += 1
            yield Correction(mutant.name, region, name, graph)


def spliced(graph: KernelGraph, node: Node, made: KernelGraph) -> KernelGraph:
    """`graph` with the program `made`, of the operands of `node` without repetition, in place of `node`."""
    write = Rewrite(graph, node)
    names = dict(zip(made.inputs, dict.fromkeys(node.operands), strict=True))
    for n in made.nodes:
        names[n.result] = write.emit(n.op, *(names[v] for v in n.operands), **n.attrs)
    return write.instead({node.result: names[made.outputs[0]]})


def cheapest(
    graph: KernelGraph, node: Node, found: Iterable[Correction], target: Target
) -> tuple[Correction, KernelGraph] | None:
    """The one with which `graph` is predicted to take the fewest seconds."""
    from superopt.cost import cost

    programs = [(c, spliced(graph, node, c.graph)) for c in found]
    return min(programs, key=lambda p: cost(p[1], target).seconds, default=None)


def _key(node: Node) -> str:
    attrs = sorted(normalize_attrs(OPERATORS[node.op], node.attrs).items()) if is_windowed(node) else []
    distinct: Sequence[Value] = list(dict.fromkeys(node.operands))
    return f"{node.op} {attrs} {[(distinct.index(v), v.type) for v in node.operands]}"
