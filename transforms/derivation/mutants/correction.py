"""From a node to complete programs: its mutants, where they differ from it, and what corrects that."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from superopt.cost import KernelCost, Target, cost
from superopt.operators import is_general, is_windowed
from superopt.program import KernelGraph, Node, TileProgram
from superopt.transforms.derivation.fold import Unfoldable, folded
from superopt.transforms.derivation.mutants import boxes, exact
from superopt.transforms.derivation.mutants.derived import MUTANTS, Mutant, alone, derived
from superopt.transforms.derivation.mutants.generated import AGREEMENT, MOST_WORK, chain, generated
from superopt.transforms.derivation.mutants.guards import guarded
from superopt.transforms.derivation.mutants.points import Undecided
from superopt.transforms.derivation.mutants.region import Region
from superopt.transforms.derivation.mutants.repairs import repairs
from superopt.transforms.derivation.rewrite import Rewrite
from superopt.transforms.lower.kernel_to_tile import fuse_windows
from superopt.transforms.optimizers import never
from superopt.verify.hashing import program_hash

# How it is decided which positions of the output differ; each raises Undecided where it does not say.
Difference: TypeAlias = Literal["relation", "boxes"]
DIFFERENCE: Difference = "relation"

DIFFERENCES: dict[Difference, Callable[[KernelGraph, KernelGraph], Region]] = {
    "relation": exact.difference,
    "boxes": boxes.difference,
}


@dataclass(frozen=True)
class Correction:
    """A mutant, where it is wrong, and a repair: a complete program of the types of the source."""

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

    Mutants are those of the rules `names`, and, where `mutate` is positive, those of PET's generator with up to
    as many operators that agree on a share `agreement` of positions; `limit` is the work of
    that for one source. `worthwhile` says of a source and a mutant that nobody has corrected yet, or a repair of
    one kernel, whether it may pay; `stop` is polled.
    """

    difference: Difference = DIFFERENCE
    names: tuple[str, ...] = tuple(MUTANTS)
    mutate: int = 0
    agreement: float = AGREEMENT
    limit: int = MOST_WORK
    worthwhile: Callable[[KernelGraph, KernelGraph], bool] = lambda source, mutant: True
    stop: Callable[[], bool] = never
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("mutants", "mutants dearer", "mutants undecided", "repairs"), 0
        )
    )
    known: dict[str, list[Correction]] = field(default_factory=dict[str, "list[Correction]"])

    def of(self, graph: KernelGraph, node: Node) -> Iterator[tuple[Correction, KernelGraph]]:
        """Every repair of every mutant of `node`, and of the chain that begins with it, and `graph` with it.

        Those of operators on windows alone: of others there are none.
        """
        if not is_windowed(node):
            return
        sources = [alone(node)]
        if self.mutate and (longer := chain(graph, node)):
            sources.append(longer)
        for source in sources:
            key = program_hash(source)
            if key not in self.known:
                self.known[key] = [*self._found(source)]
            yield from ((found, spliced(graph, source, found.graph)) for found in self.known[key])

    def _found(self, source: KernelGraph) -> Iterator[Correction]:
        tried: dict[tuple[int, ...], bool] = {}
        for mutant in self._mutants(source):
            if self.stop():
                return
            self.counts["mutants"] += 1
            if self.worthwhile(mutant.source, mutant.graph):
                yield from self._corrected(mutant)
            elif found := self._in_one_kernel(mutant, tried):
                yield from self._corrected(mutant, found)
            else:
                self.counts["mutants dearer"] += 1

    def _mutants(self, source: KernelGraph) -> Iterator[Mutant]:
        if len(source.nodes) == 1:
            yield from derived(source, self.names)
        if self.mutate:
            yield from generated(source, self.mutate, self.agreement, self.limit, self.stop)

    def _in_one_kernel(
        self, mutant: Mutant, tried: dict[tuple[int, ...], bool]
    ) -> list[tuple[str, KernelGraph]]:
        """Repairs of one kernel that may pay though the mutant does not: such a kernel moves nothing, it reads
        in place."""
        try:
            nest = folded(mutant.graph)
        except Unfoldable:
            return []
        if nest.extents not in tried:  # what it reads where hardly matters
            tried[nest.extents] = self.worthwhile(mutant.source, nest.program(mutant.source))
        if not tried[nest.extents]:
            return []
        found = guarded(mutant.source, mutant.graph)
        return [(name, graph) for name, graph in found if self.worthwhile(mutant.source, graph)]

    def _corrected(
        self, mutant: Mutant, found: Sequence[tuple[str, KernelGraph]] = ()
    ) -> Iterator[Correction]:
        """The repairs that were `found`; all of them where none was."""
        try:
            region = DIFFERENCES[self.difference](mutant.source, mutant.graph)
        except Undecided:
            self.counts["mutants undecided"] += 1
            return
        for name, graph in found or repairs(mutant, region):
            self.counts["repairs"] += 1
            yield Correction(mutant.name, region, name, graph)


def spliced(graph: KernelGraph, source: KernelGraph, made: KernelGraph) -> KernelGraph:
    """`graph` with the program `made` in place of `source`, which is a part of it."""
    write = Rewrite(graph, source.nodes[-1])
    names = dict(zip(made.inputs, source.inputs, strict=True))
    for n in made.nodes:
        names[n.result] = write.emit(n.op, *(names[v] for v in n.operands), **n.attrs)
    return write.instead({source.outputs[0]: names[made.outputs[0]]})


def cheapest(
    found: Iterable[tuple[Correction, KernelGraph]], target: Target
) -> tuple[Correction, KernelGraph] | None:
    """The one that is predicted to take the fewest seconds."""
    return min(found, key=lambda p: predicted_seconds(p[1], target), default=None)


def predicted_seconds(
    graph: KernelGraph,
    target: Target,
    known: dict[Hashable, KernelCost] | None = None,
    kernels: dict[Hashable, TileProgram] | None = None,
) -> float:
    """What `graph` is predicted to take: nests of general indices, which no library has, as the kernels that they
    become. `known` is that of `cost`, `kernels` that of `fuse_windows`."""
    own = fuse_windows(graph, target, kernels) if any(map(is_general, graph.nodes)) else graph
    return cost(own, target, known).seconds
