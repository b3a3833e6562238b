"""The parts of a program, and what each optimizer proposes for each of them.

Every optimizer sees every segment, and the whole program too where that is another thing and it takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt import clock
from superopt.program import KernelGraph
from superopt.run.budget import SEARCHES
from superopt.run.context import Run
from superopt.transforms import optimizers
from superopt.transforms.optimizers import Proposal
from superopt.transforms.partition.segments import MAX_VALUES, Segment, partition


@dataclass(frozen=True)
class Candidate(Proposal):
    """A proposal, and which optimizer it comes from."""

    optimizer: str


def parts(graph: KernelGraph, max_values: int = MAX_VALUES) -> list[Segment]:
    """The segments of `graph` in topological order, then the whole where it is none of them."""
    segments = partition(graph, max_values)
    return segments if any(s.whole for s in segments) else [*segments, Segment(graph, whole=True)]


def propose(
    run: Run, searched: Sequence[Segment], progress: Callable[[str, float | None], None]
) -> list[list[Candidate]]:
    """The candidates for each of the parts, fewest predicted seconds first, within the share of searches."""
    nominal = run.settings.budget * SEARCHES / len(searched)
    found: list[list[Candidate]] = []
    for number, part in enumerate(searched):
        progress(f"search {number + 1} of {len(searched)}", number / len(searched))
        share = run.budget.searches_left / (len(searched) - number)
        found.append(_propose_for(part, run, share, nominal))
    return found


def _propose_for(part: Segment, run: Run, seconds: float, nominal: float) -> list[Candidate]:
    """What the optimizers find within `seconds`, or until the run is stopped.

    A search that an earlier run did for `nominal` seconds, shared by all optimizers, is not done again.
    """
    funnel, earlier, asked = run.report.funnel, run.earlier, run.settings.optimizers
    end = clock.now() + seconds
    candidates: list[Candidate] = []
    for i, text in enumerate(asked):
        share = (end - clock.now()) / (len(asked) - i)
        if share <= 0 or run.stopped():
            break
        optimizer = optimizers.load(text)
        if reason := optimizer.refusal(part.graph):
            run.report.remarks.append(f"{optimizer.name} did not search {part.described}: {reason}")
            continue
        if (kept := earlier.candidates(part.graph, text, nominal / len(asked))) is not None:
            funnel.add({f"store.{optimizer.name}": len(kept)})
            graphs = kept
        else:
            start = clock.now()
            with run.timed(f"search: {optimizer.name}"):
                result = optimizer.propose(
                    part.graph, run.target, budget=share, seed=run.settings.seed, stop=run.stopped
                )
            used = clock.now() - start
            run.budget.searched += used
            funnel.add(result.funnel)
            graphs = result.graphs
            if not run.stopped():
                earlier.keep_candidates(part.graph, text, graphs, allowed=share, used=used)
        funnel.proposed += len(graphs)
        candidates += [Candidate(g, run.predicted(g), optimizer.name) for g in graphs]
    return sorted(candidates, key=lambda c: c.seconds)
