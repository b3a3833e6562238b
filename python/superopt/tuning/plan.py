"""Which parts a program has and which candidate each becomes, as decisions: an optimizer's, or the library."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from superopt.cost import Target, cost
from superopt.program import KernelGraph
from superopt.run.propose import Candidate
from superopt.transforms.fingerprints import named
from superopt.transforms.partition.segments import Segment, partition, stitch
from superopt.transforms.tunable import Pick, Site
from superopt.verify import program_hash
from superopt.weights import main_part

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics

# Configurations have what is chosen for the parts under one name, and the cuts between them under the pass's.
PLAN, CUTS = "plan", "partition"
# A part that stays as it is.
LIBRARY = "library"
# Candidates of one part that are choices.
MOST = 64


@dataclass(frozen=True)
class _Part:
    """What a part may become: the candidates by name, and what the pipeline takes."""

    at: str
    default: str
    graphs: dict[str, KernelGraph]


def _nothing(segment: Segment) -> Sequence[Candidate]:
    return ()


@dataclass(frozen=True, eq=False)
class Plan:
    """The parts of a program, the whole last, and the candidates of each, fewest predicted seconds first.

    `search` finds those of a segment that other cuts make.
    """

    parts: Sequence[Segment]
    candidates: Sequence[Sequence[Candidate]]
    target: Target
    search: Callable[[Segment], Sequence[Candidate]] = _nothing

    def called(self) -> str:
        """plan"""
        return PLAN

    @cached_property
    def _known(self) -> dict[str, _Part | None]:
        """What each part may become, by the part's hash; None where it lacks candidates."""
        pairs = zip(self.parts, self.candidates, strict=True)
        return {program_hash(part.graph): self._part(part, found) for part, found in pairs}

    def _part(self, part: Segment, candidates: Sequence[Candidate]) -> _Part | None:
        if not candidates:
            return None
        graphs = {named(c.graph): c.graph for c in candidates[:MOST]}
        pays = candidates[0].seconds < cost(part.graph, self.target).seconds
        return _Part(named(part.graph), next(iter(graphs)) if pays else LIBRARY, graphs)

    def _found(self, segment: Segment) -> _Part | None:
        """What a segment may become: searched once, whatever the cuts that make it."""
        key = program_hash(segment.graph)
        if key not in self._known:
            self._known[key] = self._part(segment, self.search(segment))
        return self._known[key]

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """relu(matmul(x, w)) -> custom(x, w)"""
        whole = self.parts[-1]
        if (made := self._taken(whole, pick)) is not None:
            return made
        cuts = partition(main_part(graph), pick=lambda site: pick(replace(site, of=CUTS)))
        for segment in cuts:
            if not segment.whole and (made := self._taken(segment, pick)) is not None:
                graph = stitch(graph, segment, copy.deepcopy(made))  # equal segments take the same
        return graph

    def _taken(self, segment: Segment, pick: Pick) -> KernelGraph | None:
        """What `pick` chooses for a segment; None where that is to leave it as it is."""
        if (part := self._found(segment)) is None:
            return None
        site = Site(part.at, part.default, lambda: [LIBRARY, *part.graphs], segment.graph.location)
        return part.graphs.get(pick(site))

    def choices(self, taken: Sequence[KernelGraph]) -> dict[str, str]:
        """The choices that lead to the candidates `taken`; other parts stay as they are."""
        wanted = {id(graph) for graph in taken}
        return {
            part.at: next((name for name, graph in part.graphs.items() if id(graph) in wanted), LIBRARY)
            for part in self._known.values()
            if part is not None
        }
