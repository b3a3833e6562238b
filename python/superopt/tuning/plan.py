"""Which candidate each part of a program becomes, as decisions: those of all optimizers, or the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from superopt.cost import Target, cost
from superopt.program import KernelGraph
from superopt.run.propose import Candidate
from superopt.transforms.fingerprints import named
from superopt.transforms.partition.segments import Segment, stitch
from superopt.transforms.tunable import Pick, Site

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics

PLAN = "plan"
# A part that stays as it is.
LIBRARY = "library"
# Candidates of one part that are choices.
MOST = 64


@dataclass(frozen=True, eq=False)
class Plan:
    """The parts of a program, the whole last, and the candidates of each, fewest predicted seconds first."""

    parts: Sequence[Segment]
    candidates: Sequence[Sequence[Candidate]]
    target: Target

    def called(self) -> str:
        """plan"""
        return PLAN

    @cached_property
    def _known(self) -> list[tuple[Segment, str, str, dict[str, KernelGraph]]]:
        """The whole and then each segment, where they have candidates: fingerprint, default, candidates."""
        found: list[tuple[Segment, str, str, dict[str, KernelGraph]]] = []
        order = [len(self.parts) - 1, *range(len(self.parts) - 1)]
        for part, candidates in ((self.parts[i], self.candidates[i]) for i in order):
            if candidates:
                graphs = {named(c.graph): c.graph for c in candidates[:MOST]}
                pays = candidates[0].seconds < cost(part.graph, self.target).seconds
                default = next(iter(graphs)) if pays else LIBRARY
                found.append((part, named(part.graph), default, graphs))
        return found

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """relu(matmul(x, w)) -> custom(x, w)"""
        for part, at, default, graphs in self._known:
            taken = pick(Site(at, default, lambda graphs=graphs: [LIBRARY, *graphs], part.graph.location))
            if taken in graphs:
                if part.whole:
                    return graphs[taken]
                graph = stitch(graph, part, graphs[taken])
        return graph

    def choices(self, taken: Sequence[KernelGraph]) -> dict[str, str]:
        """The choices that lead to the candidates `taken`; other parts stay as they are."""
        wanted = {id(graph) for graph in taken}
        return {
            at: next((name for name, graph in graphs.items() if id(graph) in wanted), LIBRARY)
            for _, at, _, graphs in self._known
        }
