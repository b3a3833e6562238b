"""A search that does not end is done again in parts: what two halves promise together may be better.

propose(segment)  complete ------------------------------> its candidates
                  cut off --> halves, each by propose ---> its candidates, and the halves' best, stitched
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from superopt.transforms.mugraph_search.search import SearchOptions, SearchResult
from superopt.transforms.mugraph_search.search import propose as search
from superopt.transforms.partition.segments import Segment, counted, partition, stitch

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.program import KernelGraph

# The share of the budget for a graph as a whole; the rest is for its parts, should they be needed.
WHOLE = 0.5
# Segments of fewer values are not cut again.
SMALLEST = 6
# Plans to choose from where the search does not know what moving values between library kernels costs.
UNPRICED_PLANS = 256


def propose(
    graph: KernelGraph,
    target: Target,
    *,
    budget: float,
    seed: int = 0,
    options: SearchOptions | None = None,
    stop: Callable[[], bool] | None = None,
) -> SearchResult:
    """As `mugraph_search.propose`, which it asks first, within the same `budget` in seconds.

    Where a limit or the budget ended that search, or its best has as many custom kernels as it may have, the
    graph is cut in about two (`partition`), each part is searched likewise, and the program made of the best of
    each is one more candidate. So it is where values are computed twice for the sake of the search, which they
    need not be when they stand in device memory.
    """
    end = time.monotonic() + budget
    large = counted(graph.nodes) >= SMALLEST
    apart = partition(graph, counted(graph.nodes), copies=False)
    # What is found of a small graph is all there will be.
    whole = budget * WHOLE if large or len(apart) > 1 else budget
    options = options or SearchOptions()
    asked = _wider(options) if _moves_values(graph) else options
    found = search(graph, target, budget=whole, seed=seed, options=asked, stop=stop)
    _lay_out(found, target, options.candidates)

    def propose_parts(parts: Sequence[Segment], share: float) -> None:
        stitched = graph
        last = time.monotonic() + (end - time.monotonic()) * share
        for i, part in enumerate(parts):
            left = last - time.monotonic()
            if left <= 0 or (stop is not None and stop()):
                break
            better = propose(
                part.graph, target, budget=left / (len(parts) - i), seed=seed, options=options, stop=stop
            )
            found.funnel = dict(Counter(found.funnel) + Counter(better.funnel))
            if better.candidates and better.predicted[0] < cost.cost(part.graph, target).seconds:
                stitched = stitch(stitched, part, better.candidates[0])
        if stitched is not graph:
            stitched = choose_layouts(stitched, target)
            _insert(found, stitched, cost.cost(stitched, target).seconds)

    from superopt import cost
    from superopt.transforms.lower.choose_layouts import choose_layouts

    if len(apart) > 1:
        propose_parts(apart, 0.5)
    if large and _limited(found, options):
        halves = partition(graph, counted(graph.nodes) // 2)
        if len(halves) > 1:
            propose_parts(halves, 1.0)
    return found


def _moves_values(graph: KernelGraph) -> bool:
    """Whether dimensions of a value are reordered: nothing over named axes, so no plan is charged for it."""
    return any(n.op == "transpose" and n.operands[0] not in graph.inputs for n in graph.nodes)


def _wider(options: SearchOptions) -> SearchOptions:
    """The options of a search whose plans cost more than it knows: many, for `_lay_out` to choose from."""
    return replace(
        options, candidates=max(options.candidates, UNPRICED_PLANS), margin=max(options.margin, 1.0)
    )


def _lay_out(found: SearchResult, target: Target, most: int) -> None:
    """Keep the `most` cheapest candidates, with the layouts between their kernels that suit `target`."""
    from superopt import cost
    from superopt.transforms.lower.choose_layouts import choose_layouts

    made = [choose_layouts(candidate, target) for candidate in found.candidates]
    ranked = sorted(((cost.cost(graph, target).seconds, i) for i, graph in enumerate(made)))[:most]
    found.predicted, found.candidates = [s for s, _ in ranked], [made[i] for _, i in ranked]


def _limited(found: SearchResult, options: SearchOptions) -> bool:
    """Whether the search could have found more; not where nothing can be searched at all."""
    best = found.candidates[0].nodes if found.candidates else []
    return not found.complete or sum(n.op == "custom" for n in best) >= options.max_custom


def _insert(found: SearchResult, candidate: KernelGraph, seconds: float) -> None:
    place = sum(s <= seconds for s in found.predicted)
    found.candidates.insert(place, candidate)
    found.predicted.insert(place, seconds)
