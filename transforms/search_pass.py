"""The common part of passes that run one optimizer alone."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superopt import cost
from superopt.errors import UNKNOWN, BadOption, IllegalProgram
from superopt.run.settings import SearchSettings
from superopt.transforms.lower.choose_layouts import choose_layouts
from superopt.transforms.lower.join_parts import join_parts
from superopt.transforms.optimizers import Optimizer, Proposals
from superopt.transforms.partition.segments import stitch
from superopt.transforms.passes import GraphPass

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph
    from superopt.transforms.partition.segments import Segment


@dataclass(frozen=True)
class SearchPass(SearchSettings, GraphPass, Optimizer, ABC):
    """A pass that derives from this and from an optimizer takes what that proposes, as the pipeline would.

    Segments and the whole are searched like those of `superopt.run.propose`; the program that is predicted to be
    fastest is taken if it is certified. Nothing is compiled, and no numerics are checked: `--superoptimize` does.
    """

    max_values: int = 25
    """Maximum number of values in a segment."""

    certify: bool = True
    """Certify the result."""

    statistics: bool = False
    """Report how often each step of the search was taken."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_values < 1:
            raise BadOption(f"expected a positive max-values, got {self.max_values}")

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The best program found, or `graph` itself where none is predicted to be faster; remarks say which."""
        from superopt import clock, cost
        from superopt.run.propose import parts

        target = cost.target(self.target)
        end = clock.now() + self.budget
        *segments, whole = parts(graph, self.max_values)
        stitched = graph
        for number, segment in enumerate(segments):
            share = (end - clock.now()) / (len(segments) + 1 - number)
            better = self._searched(segment, number, share, target, diagnostics)
            if better is not None:
                stitched = stitch(stitched, segment, better)
        if stitched is not graph:
            stitched = join_parts(choose_layouts(stitched, target), target)
        better = self._searched(whole, None, end - clock.now(), target, diagnostics, stitched)
        return stitched if better is None else better

    def searched(self, found: Proposals, part: Segment, diagnostics: Diagnostics) -> None:
        """Called with what was found for each part."""

    def _searched(
        self,
        part: Segment,
        number: int | None,
        seconds: float,
        target: Target,
        diagnostics: Diagnostics,
        stitched: KernelGraph | None = None,
    ) -> KernelGraph | None:
        """The best of one part, if it beats the part and `stitched`; otherwise None."""
        from superopt.report import SearchReport
        from superopt.run.propose import untrusted

        where = part.graph.location if part.whole else part.graph.nodes[0].location
        place = "" if number is None else f"segment {number}: "
        before = cost.cost(part.graph, target).seconds
        with untrusted(self, part.graph):
            reason = self.refusal(part.graph)
        found = Proposals(remark=reason)
        if not reason:
            with untrusted(self, part.graph):
                found = self.propose(part.graph, target, budget=max(seconds, 0.0), seed=self.seed)
        for remark in found.remarks(statistics=self.statistics):
            diagnostics.remark(f"{place}{remark}", where)
        self.searched(found, part, diagnostics)
        least = before if stitched is None else cost.cost(stitched, target).seconds
        chosen = self._first_certified(found, part, least, diagnostics)
        remark = "" if chosen is not None else found.remark or "no candidate is predicted to be faster"
        diagnostics.searches.append(
            SearchReport(
                by=str(self),
                program=part.graph.name,
                segment=number,
                input_predicted_seconds=before,
                predicted=found.predicted,
                chosen=chosen,
                complete=found.complete,
                funnel=found.funnel,
                seconds=found.seconds,
                egraphs=found.egraphs(),
                remark=remark,
            )
        )
        if chosen is None:
            if stitched is None or stitched is part.graph:
                cause = where if found.location == UNKNOWN else found.location
                diagnostics.remark(f"{place or 'the program '}is kept: {remark}", cause)
            return None
        best = found.found[chosen]
        kernels = len(cost.cost(best.graph, target).kernels)
        diagnostics.remark(
            f"{place}{kernels} kernel{'s' * (kernels != 1)}, predicted {best.seconds * 1e6:.1f} us instead of "
            f"{before * 1e6:.1f} us",
            where,
        )
        return best.graph

    def _first_certified(
        self, found: Proposals, part: Segment, least: float, diagnostics: Diagnostics
    ) -> int | None:
        """The number of the first proposal that is cheaper than `least`, and certified if requested."""
        from superopt.verify import certify

        for number, proposal in enumerate(found.found):
            if proposal.seconds >= least:
                return None
            if not self.certify:
                return number
            try:
                verdict = certify(part.graph, proposal.graph, delta=self.delta, seed=self.seed)
                reason = "not equivalent"
                if verdict.certificate and not (reason := self.unbounded(verdict.certificate)):
                    return number
            except IllegalProgram as error:
                reason = f"illegal: {error.message}"
            diagnostics.warning(f"a candidate was dropped: it is {reason}", part.graph.location)
        return None
