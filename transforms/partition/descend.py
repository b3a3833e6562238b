"""A search that does not end is done again in parts: what two halves promise together may be better.

propose(segment)  complete ------------------------------> its candidates
                  cut off --> halves, each by propose ---> its candidates, and the halves' best, stitched
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from superopt.transforms.mugraph_search.search import SearchOptions, SearchResult
from superopt.transforms.mugraph_search.search import propose as search
from superopt.transforms.partition.segments import counted, partition, stitch

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.program import KernelGraph

# The share of the budget for a graph as a whole; the rest is for its parts, should they be needed.
WHOLE = 0.5
# Segments of fewer values are not cut again.
SMALLEST = 6


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
    each is one more candidate.
    """
    from superopt import cost

    start = time.monotonic()
    # What is found of a small graph is all there will be.
    whole = budget * WHOLE if counted(graph.nodes) >= SMALLEST else budget
    found = search(graph, target, budget=whole, seed=seed, options=options, stop=stop)
    if counted(graph.nodes) < SMALLEST or not _limited(found, options or SearchOptions()):
        return found
    parts = partition(graph, counted(graph.nodes) // 2)
    if len(parts) < 2:
        return found
    stitched = graph
    for i, part in enumerate(parts):
        left = budget - (time.monotonic() - start)
        if left <= 0 or (stop is not None and stop()):
            break
        better = propose(
            part.graph, target, budget=left / (len(parts) - i), seed=seed, options=options, stop=stop
        )
        found.funnel = dict(Counter(found.funnel) + Counter(better.funnel))
        if better.candidates and better.predicted[0] < cost.cost(part.graph, target).seconds:
            stitched = stitch(stitched, part, better.candidates[0])
    if stitched is not graph:
        _insert(found, stitched, cost.cost(stitched, target).seconds)
    return found


def _limited(found: SearchResult, options: SearchOptions) -> bool:
    """Whether the search could have found more; not where nothing can be searched at all."""
    best = found.candidates[0].nodes if found.candidates else []
    return not found.complete or sum(n.op == "custom" for n in best) >= options.max_custom


def _insert(found: SearchResult, candidate: KernelGraph, seconds: float) -> None:
    place = sum(s <= seconds for s in found.predicted)
    found.candidates.insert(place, candidate)
    found.predicted.insert(place, seconds)
