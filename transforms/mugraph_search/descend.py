"""Repeats a search in parts: two parts together may give something better.

propose(segment) --> its candidates
                 --> in front of its products, each part by propose ----> the parts' best, stitched
                 --> cut off: about two halves, each by propose --------> the halves' best, stitched
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from superopt import clock, cost
from superopt.program import NodeKind
from superopt.transforms.lower.choose_layouts import choose_layouts
from superopt.transforms.lower.join_parts import join_parts
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.optimizers import Proposal, Proposals, never
from superopt.transforms.partition.segments import Segment, before_products, counted, partition, stitch

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.program import KernelGraph

# The share of the budget for a graph as a whole; the rest is for its parts, if needed.
WHOLE = 0.5
# Segments with fewer values are not cut again.
SMALLEST = 6


def propose(
    graph: KernelGraph,
    target: Target,
    *,
    budget: float,
    seed: int = 0,
    options: MugraphOptimizer | None = None,
    stop: Callable[[], bool] = never,
) -> Proposals:
    """As `search_plans`, which it runs first, within the same `budget` in seconds of work.

    The graph is cut in front of its products, each part is searched likewise, and the program composed of the
    best of each is another candidate: products multiply what the program rounds, which is numerically safe where
    a norm that is applied behind them is not. Where a limit or the budget ended the search, or its best has as
    many custom kernels as it may have, the same is done with about two halves (`partition`). That is better where
    the search computes values twice that need not be once they are in device memory.
    """
    end = clock.now() + budget
    large = counted(graph.nodes) >= SMALLEST
    apart = partition(graph, counted(graph.nodes), copies=False)
    # A small graph is not cut, so these results are final.
    whole = budget * WHOLE if large or len(apart) > 1 else budget
    options = options or MugraphOptimizer()
    found = search_plans(graph, target, budget=whole, seed=seed, options=options, stop=stop)
    _lay_out(found, target, options.candidates)

    def propose_parts(parts: Sequence[Segment], share: float) -> None:
        stitched = graph
        last = clock.now() + (end - clock.now()) * share
        for i, part in enumerate(parts):
            left = last - clock.now()
            if left <= 0 or stop():
                break
            better = propose(
                part.graph, target, budget=left / (len(parts) - i), seed=seed, options=options, stop=stop
            )
            found.funnel = dict(Counter(found.funnel) + Counter(better.funnel))
            if better.found and better.found[0].seconds < cost.cost(part.graph, target).seconds:
                stitched = stitch(stitched, part, better.found[0].graph)
        if stitched is not graph:
            stitched = join_parts(choose_layouts(stitched, target), target)
            _insert(found, stitched, cost.cost(stitched, target).seconds)

    if len(apart) > 1:
        propose_parts(apart, 0.5)
    if large and (products := before_products(graph)):
        propose_parts(products, 0.5)
    if large and _limited(found, options):
        halves = partition(graph, counted(graph.nodes) // 2)
        if len(halves) > 1:
            propose_parts(halves, 1.0)
    return found


def _lay_out(found: Proposals, target: Target, most: int) -> None:
    """Keep the `most` cheapest candidates, with the layouts between their kernels that suit `target`."""
    made = [choose_layouts(graph, target) for graph in found.graphs]
    priced = [Proposal(graph, cost.cost(graph, target).seconds) for graph in made]
    found.found = sorted(priced, key=lambda p: p.seconds)[:most]


def _limited(found: Proposals, options: MugraphOptimizer) -> bool:
    """Whether the search could have found more; False where nothing can be searched."""
    if "unsearchable" in found.funnel:
        return False
    best = found.found[0].graph.nodes if found.found else []
    return not found.complete or sum(n.op == NodeKind.CUSTOM for n in best) >= options.max_custom


def _insert(found: Proposals, candidate: KernelGraph, seconds: float) -> None:
    found.found.insert(sum(s <= seconds for s in found.predicted), Proposal(candidate, seconds))
