"""`--mugraph-search`: replace each segment by the best muGraph found, by predicted cost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt.cost.gpus import DEFAULT_TARGET, target
from superopt.errors import BadOption
from superopt.transforms.passes import GraphPass, TargetName

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph
    from superopt.transforms.mugraph_search.search import SearchOptions


@dataclass(frozen=True)
class MugraphSearch(GraphPass):
    """Search fused kernels for each segment of the program and take the one predicted to be fastest.

    What is taken has passed the screening evaluation, no more; `--superoptimize` also certifies, compiles and
    checks numerics.
    """

    flag: ClassVar[str] = "mugraph-search"

    target: TargetName = DEFAULT_TARGET
    """The GPU whose cost model and memory limits decide."""

    budget: float = 60.0
    """Seconds that all segments together may take; what was found by then is used."""

    seed: int = 0
    """Seed of the screening evaluation; the same seed gives the same result."""

    prune: Literal["normal-form", "smt", "none"] = "normal-form"
    """Who answers the pruning questions: the normal form of abstract expressions, z3, or nobody."""

    axis_test: bool = True
    """Also prune values whose axes nothing that remains could bind."""

    canonical: Literal["values", "graphs"] = "values"
    """What is told apart: values by what they evaluate to, or graphs by their operators, for comparison."""

    rescale: bool = True
    """Compute sums of exponentials relative to a running maximum where nothing depends on it (online softmax)."""

    max_block_operators: int = 24
    """Operators in one custom kernel at most."""

    max_custom: int = 2
    """Custom kernels for one segment at most."""

    max_loops: int = 2
    """Axes that one custom kernel loops over at most."""

    branch_and_bound: bool = True
    """Leave out what cannot be part of a plan as cheap as those that are known already."""

    margin: float = 0.25
    """Plans predicted to take up to this share longer than the best are looked for."""

    dominance: int = 4
    """Partial kernels with the same left to do that are continued, of those that others surpass; 0 for all."""

    threads: int = 0
    """Threads that choose the extents of kernels, or 0 for one a core."""

    max_attempts: int = 100_000
    """Derivations of values that are tried at most."""

    max_states: int = 2_000_000
    """States that one pass over the kernels may visit."""

    max_values: int = 25
    """Values in one segment at most."""

    def __post_init__(self) -> None:

        target(self.target)
        if not self.budget > 0:
            raise BadOption(f"expected a positive budget in seconds, got {self.budget}")
        if self.seed < 0:
            raise BadOption(f"expected no negative seed, got {self.seed}")
        if self.max_values < 1:
            raise BadOption(f"expected a positive max-values, got {self.max_values}")
        self._options()

    def _options(self) -> SearchOptions:
        from superopt.transforms.mugraph_search.search import SearchOptions

        return SearchOptions(
            prune=self.prune,
            axis_test=self.axis_test,
            canonical=self.canonical,
            rescale=self.rescale,
            max_block_operators=self.max_block_operators,
            max_custom=self.max_custom,
            max_loops=self.max_loops,
            max_attempts=self.max_attempts,
            max_states=self.max_states,
            branch_and_bound=self.branch_and_bound,
            margin=self.margin,
            dominance=self.dominance,
            threads=self.threads,
        )

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """Replace segments where that is predicted to be faster; remarks say what was found."""
        from superopt import cost
        from superopt.cost.model import VIEWS
        from superopt.report import SearchReport
        from superopt.transforms.mugraph_search.search import propose
        from superopt.transforms.partition.segments import partition, stitch

        target = cost.target(self.target)
        end = time.monotonic() + self.budget
        segments = partition(graph, self.max_values)
        for number, segment in enumerate(segments):
            share = max(end - time.monotonic(), 0.0) / (len(segments) - number)
            found = propose(segment.graph, target, budget=share, seed=self.seed, options=self._options())
            where = segment.graph.nodes[0].location
            before = cost.cost(segment.graph, target).seconds
            ranked = sorted(
                ((cost.cost(c, target).seconds, i) for i, c in enumerate(found.candidates)),
                key=lambda c: c[0],
            )
            kept = not ranked or ranked[0][0] >= before
            reason = (found.remark or "no candidate is predicted to be faster") if kept else ""
            diagnostics.searches.append(
                SearchReport(
                    by=str(self),
                    program=graph.name,
                    segment=number,
                    input_predicted_seconds=before,
                    predicted=[seconds for seconds, _ in ranked],
                    chosen=None if kept else 0,
                    complete=found.complete,
                    funnel=found.funnel,
                    seconds=found.seconds,
                    remark=reason,
                )
            )
            if kept:
                diagnostics.remark(f"segment {number} is kept: {reason}", where)
                continue
            seconds, best = ranked[0]
            candidate = found.candidates[best]
            kernels = sum(n.op not in VIEWS for n in candidate.nodes)
            diagnostics.remark(
                f"segment {number}: {kernels} kernel{'s' * (kernels != 1)}, predicted {seconds * 1e6:.1f} us "
                f"instead of {before * 1e6:.1f} us",
                where,
            )
            graph = stitch(graph, segment, candidate)
        return graph
