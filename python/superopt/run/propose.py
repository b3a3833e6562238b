"""The parts of a program, and what each optimizer proposes for each of them.

Every optimizer sees every segment, and also the whole program if that is not a segment and it takes it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from superopt import clock
from superopt.diagnostics import Diagnostic, counted
from superopt.errors import UNKNOWN, BadInput, Location
from superopt.inputs.python_files import blamed, file_of
from superopt.program import KernelGraph
from superopt.run.budget import SEARCHES
from superopt.run.check import illegal
from superopt.run.context import Run
from superopt.transforms import optimizers
from superopt.transforms.optimizers import Optimizer, Proposal
from superopt.transforms.partition.segments import MAX_VALUES, Segment, partition, stitch
from superopt.transforms.split_reductions import split
from superopt.verify import program_hash
from superopt.weights import main_part

# Of the equal share of each optimizer: what one has where others took more than theirs.
LEAST_SHARE = 0.5


@dataclass(frozen=True)
class Candidate(Proposal):
    """A proposal, and the optimizer that made it."""

    optimizer: str


@dataclass(frozen=True)
class Unsearched:
    """A part for which an optimizer has nothing, the cause and, where it is known, its place.

    `heard`: it is said on the console, too.
    """

    what: str
    part: Segment
    cause: str
    heard: bool
    location: Location = UNKNOWN

    @property
    def place(self) -> Location:
        """Where the cause is, else where the part begins."""
        known = (self.location, *(n.location for n in self.part.graph.nodes), self.part.graph.location)
        return next((place for place in known if place != UNKNOWN), UNKNOWN)


def parts(graph: KernelGraph, max_values: int = MAX_VALUES) -> list[Segment]:
    """The segments of `graph` in topological order, then the whole unless it is one of them.

    What is prepared of weights is in no segment.
    """
    segments = [s for s in partition(main_part(graph), max_values) if not s.whole]
    return [*segments, Segment(graph, whole=True)]


def propose(
    run: Run, searched: Sequence[Segment], progress: Callable[[str, float | None], None]
) -> list[list[Candidate]]:
    """The candidates for each of the parts, fewest predicted seconds first, within the share of searches.

    A part that is the same program as an earlier one, such as another layer, has the candidates of that one.
    """
    first = repeats(searched)
    distinct = len({*first})
    nominal = run.settings.budget * SEARCHES / distinct
    found: list[list[Candidate]] = []
    lacking: list[Unsearched] = []
    done = 0
    for number, part in enumerate(searched):
        if first[number] < number:
            found.append(found[first[number]])
            continue
        progress(f"search {done + 1} of {distinct}", done / distinct)
        share = run.budget.searches_left / (distinct - done)
        found.append(_proposed(part, run, share, nominal, lacking))
        done += 1
    tell(run, lacking)
    if repeated := len(searched) - done:
        others = (
            "repeats another and takes its result"
            if repeated == 1
            else "repeat others and take their results"
        )
        run.report.remarks.append(f"{counted(repeated, 'segment')} {others}")
    *_, (whole, of_whole) = zip(searched, found, strict=True)
    known = {program_hash(p.graph): c for p, c in zip(searched, found, strict=True)}
    if len(searched) > 1 and of_whole:
        found[-1] = sorted([*of_whole, *_completed(run, whole, of_whole[0], known)], key=lambda c: c.seconds)
    return found


def _completed(
    run: Run, whole: Segment, best: Candidate, known: dict[str, list[Candidate]]
) -> list[Candidate]:
    """A candidate for the whole program that leaves operators as they are, with these searched, too.

    An optimizer may know some operators only, as derivation does convolutions: then the others are partitioned
    again. `known` are the candidates of segments, by their hash. What has kernels of its own is complete.
    """
    if any(node.body is not None for node in best.graph.nodes):
        return []
    made, rest = best.graph, [s for s in partition(main_part(best.graph)) if not s.whole]
    for number, part in enumerate(rest):
        seconds = run.budget.searches_left / (len(rest) - number)
        name = program_hash(part.graph)
        found = known[name] if name in known else propose_for(part, run, seconds, seconds)
        if found and found[0].seconds < run.predicted(part.graph):
            made = stitch(made, part, copy.deepcopy(found[0].graph))
    return [] if made is best.graph else _ranked(run, whole.graph, [made], best.optimizer)


def repeats(parts: Sequence[Segment]) -> list[int]:
    """For each of the parts the number of the first that is the same program."""
    known: dict[str, int] = {}
    return [known.setdefault(program_hash(part.graph), number) for number, part in enumerate(parts)]


def propose_for(part: Segment, run: Run, seconds: float, nominal: float) -> list[Candidate]:
    """What the optimizers find within `seconds`, or until the run is stopped.

    A search that an earlier run did for `nominal` seconds, shared by all optimizers, is not repeated.
    """
    lacking: list[Unsearched] = []
    found = _proposed(part, run, seconds, nominal, lacking)
    tell(run, lacking)
    return found


def tell(run: Run, lacking: Sequence[Unsearched]) -> None:
    """Remark on what was not searched, or in vain: once for each cause, at the first part that has it."""
    causes: dict[tuple[str, str, bool], list[Unsearched]] = {}
    for each in lacking:
        causes.setdefault((each.what, each.cause, each.heard), []).append(each)
    for (what, cause, heard), of in causes.items():
        first, others = of[0], f" and {counted(len(of) - 1, 'other part')}" if len(of) > 1 else ""
        remark = f"{what} {first.part.described}{others}: {cause}"
        if heard:
            run.diagnostics.remark(remark, first.place)
        else:  # an optimizer that is for other programs: nothing to see on the console
            place = first.place.named(run.diagnostics.file)
            run.report.remarks.append(str(Diagnostic("remark", remark, place)))


def _proposed(
    part: Segment, run: Run, seconds: float, nominal: float, lacking: list[Unsearched]
) -> list[Candidate]:
    """What `propose_for` returns; adds to `lacking` the optimizers that have nothing.

    Takes from an earlier run what that found in `nominal` seconds, which all optimizers shared.
    """
    funnel, earlier, asked = run.report.funnel, run.earlier, run.settings.optimizers
    end = clock.now() + seconds
    candidates: list[Candidate] = []
    refused: list[tuple[str, str]] = []
    for i, text in enumerate(asked):
        # One that overran its share leaves the others a part of theirs.
        share = max((end - clock.now()) / (len(asked) - i), LEAST_SHARE * seconds / len(asked))
        if run.stopped():
            break
        optimizer = optimizers.load(text)
        if share <= 0 or run.budget.left < 0:
            run.budget.missed["search not made"] += 1
            refused.append((optimizer.name, "the budget is spent"))
            continue
        main = main_part(part.graph)
        searched = split(main)
        with untrusted(optimizer, part.graph):
            reason = optimizer.refusal(searched)
        if reason:
            refused.append((optimizer.name, reason))
            continue
        reason, place = "an earlier run found nothing", UNKNOWN
        if (kept := earlier.candidates(part.graph, text, nominal / len(asked))) is not None:
            funnel.add({f"store.{optimizer.name}": len(kept)})
            funnel.proposed += len(kept)
            found = _ranked(run, part.graph, kept, optimizer.name)
        else:
            start = clock.now()
            with run.timed(f"search: {optimizer.name}"), untrusted(optimizer, part.graph):
                result = optimizer.propose(
                    searched, run.target, budget=share, seed=run.settings.seed, stop=run.stopped
                )
                graphs, reason = result.graphs, result.remark or "it does not say why"
                place = result.location
                if main is not part.graph:
                    graphs = [stitch(part.graph, Segment(main), g) for g in graphs]
                funnel.add(result.funnel)
            used = clock.now() - start
            run.budget.searched += used
            funnel.proposed += len(graphs)
            found = _ranked(run, part.graph, graphs, optimizer.name)
            if not run.stopped():
                legal = [c.graph for c in found]
                earlier.keep_candidates(part.graph, text, legal, allowed=share, used=used)
        if not found and not run.stopped():
            what = f"{optimizer.name} proposes nothing for"
            lacking.append(Unsearched(what, part, reason, heard=True, location=place))
        candidates += found
    lacking += [
        Unsearched(f"{name} did not search", part, cause, heard=not candidates) for name, cause in refused
    ]
    return sorted(candidates, key=lambda c: c.seconds)


def _ranked(
    run: Run, original: KernelGraph, graphs: Sequence[KernelGraph], optimizer: str
) -> list[Candidate]:
    """The legal ones of `graphs`, fewest predicted seconds first; what is illegal cannot even be priced."""
    found: list[Candidate] = []
    for graph in graphs:
        if reason := illegal(run, original, graph):
            run.report.funnel.reject(reason)
        else:
            found.append(Candidate(graph, run.predicted(graph), optimizer))
    return sorted(found, key=lambda c: c.seconds)


@contextmanager
def untrusted(optimizer: Optimizer, program: KernelGraph) -> Generator[None]:
    """Within it, an optimizer looks at `program`.

    Raises BadInput where it changes the program, which proofs would then be about, and where one from outside the
    package raises, with the line of its file.
    """
    before = program_hash(program)
    with blamed(optimizer, f"the optimizer '{optimizer.name}'"):
        yield
    try:
        same = program_hash(program) == before
    except (LookupError, TypeError, AttributeError, ValueError):
        same = False
    if not same:
        raise BadInput(
            f"expected the optimizer '{optimizer.name}' to leave the program as it is, got a changed one",
            Location(str(file_of(optimizer))),
        )
