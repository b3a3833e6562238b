"""Candidates by equality saturation: the same protocol as the muGraph search.

    kernel graph -> naive tile loops -> e-graph, saturated -> k best terms -> kernels -> ranked by the cost model

The loops are written twice: with values that have several users stored once ("single"), and written into every
user ("all"), where what ends in one loop is computed once. The second graph is far smaller; the first holds
programs that compute less. A softmax without its maximum is a program of its own beside the same with one
(`stabilize_softmax.py`): no rule leads from one to the other, as only their quotients are equal. Each e-graph is
saturated within its own share of the budget.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from superopt.errors import BadOption, IllegalProgram, UnsupportedProgram
from superopt.program import KernelGraph
from superopt.transforms.stabilize_softmax import LOWEST, maxima_only_shift, stabilized
from superopt.transforms.tile_saturation.accesses import Rejected
from superopt.transforms.tile_saturation.extracted import canonical, opened, without_dead
from superopt.transforms.tile_saturation.library import library_seconds
from superopt.transforms.tile_saturation.saturate import Saturation, enabled_rules, saturate
from superopt.transforms.tile_saturation.terms import LoopTerm, StatementTerm, StoreTerm, TermProgram
from superopt.transforms.tile_saturation.tile_loops import Inline
from superopt.transforms.tile_saturation.to_kernels import Widths, to_kernels

if TYPE_CHECKING:
    from superopt.cost import Target

T = TypeVar("T")
Rough: TypeAlias = tuple[int, float, tuple[TermProgram, tuple[StatementTerm, ...]]]
"""Kernels, seconds by the rough cost, and the program itself."""


@dataclass(frozen=True)
class SearchOptions:
    """How far `propose` looks. Raises BadOption for values out of range or unknown rules."""

    iterations: int = 20
    """Iterations of all rules at most."""
    nodes: int = 20_000
    """Nodes in one e-graph at most."""
    memory_mb: int = 3072
    """Memory of one e-graph at most, in MiB."""
    inline: tuple[Inline, ...] = ("all", "single")
    """How values with several users start: written into each of them, or stored."""
    rules: tuple[str, ...] = ()
    """Rules besides the default ones, or, with a minus in front, without."""
    kernels: int = 12
    """Kernels in one candidate at most."""
    best: int = 12
    """Terms to extract for each number of kernels."""
    candidates: int = 8
    """Candidates to return at most, cheapest first."""

    def __post_init__(self) -> None:
        for name in ("iterations", "nodes", "memory_mb", "kernels", "best", "candidates"):
            if getattr(self, name) < 1:
                raise BadOption(f"expected a positive {name.replace('_', '-')}, got {getattr(self, name)}")
        enabled_rules(self.rules)


def kernel_count(graph: KernelGraph) -> int:
    """How many nodes are kernels; views are none."""
    from superopt.cost.model import VIEWS

    return sum(n.op not in VIEWS for n in graph.nodes)


@dataclass
class SearchResult:
    """Candidates, cheapest predicted first, and how the search went."""

    candidates: list[KernelGraph] = field(default_factory=list[KernelGraph])
    funnel: dict[str, int] = field(default_factory=dict[str, int])
    """Counts by stage and reason."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Time of saturation, of extraction, and of all."""
    predicted: list[float] = field(default_factory=list[float])
    """Predicted seconds of each candidate."""
    by_kernels: dict[int, list[tuple[float, KernelGraph]]] = field(
        default_factory=dict[int, "list[tuple[float, KernelGraph]]"]
    )
    """For each number of kernels the programs and their predicted seconds, fastest first."""
    remark: str = ""
    """Why there are no candidates."""
    saturations: list[Saturation] = field(default_factory=list[Saturation])


def propose(
    graph: KernelGraph,
    target: Target,
    *,
    budget: float,
    seed: int = 0,
    options: SearchOptions | None = None,
    stop: Callable[[], bool] | None = None,
) -> SearchResult:
    """Programs equal to `graph` by the rules, fewest predicted seconds first; `budget` is in seconds.

    `stop` is asked between graphs and between candidates; what was found when it says so is returned.

    Deterministic where the budget suffices; `seed` is there for the protocol's sake and changes nothing.
    """
    del seed
    options = options or SearchOptions()
    run = _Run(graph, target, time.monotonic() + budget, options, stop or (lambda: False))
    result = run.result
    start = time.monotonic()
    stable = stabilized(graph)
    programs = [graph] if stable is graph else [graph, stable]
    starts: list[tuple[KernelGraph, Inline]] = [
        (program, inline) for program in programs for inline in options.inline
    ]
    for i, (program, inline) in enumerate(starts):
        left = run.end - time.monotonic()
        if left <= 0 or run.stop():
            break
        try:
            share = left / (2 * (len(starts) - i))
            found = saturate(program, inline, options, share, stop)
            found.stable = program is not graph
            found.shifts = maxima_only_shift(program)
        except UnsupportedProgram as error:
            run.count[f"tiles.rejected.{error.message}"] += 1
            result.remark = error.message
            continue
        result.saturations.append(found)
        run.add(found)
    result.seconds["saturation"] = sum(s.encoder.graph.seconds for s in result.saturations)
    run.finish()
    result.seconds["all"] = time.monotonic() - start
    result.funnel.update(run.count)
    if result.candidates:
        result.remark = ""
    return result


def _finite_starts(statement: StatementTerm) -> StatementTerm:
    """The statement with every maximum started from a number that is below all, but finite.

    A tile that is masked as a whole would otherwise leave the difference of two infinities, which is no number.
    """
    if isinstance(statement, StoreTerm):
        return statement
    starts = tuple((r, LOWEST[r.tensor.dtype] if n == -math.inf else n) for r, n in statement.starts)
    return LoopTerm(statement.var, starts, tuple(map(_finite_starts, statement.body)))


def interleaved(lists: Sequence[Sequence[T]]) -> list[T]:
    """The first of each, then the second of each, and so on."""
    longest = max(map(len, lists), default=0)
    return [items[i] for i in range(longest) for items in lists if i < len(items)]


class _Run:
    def __init__(
        self,
        graph: KernelGraph,
        target: Target,
        end: float,
        options: SearchOptions,
        stop: Callable[[], bool],
    ) -> None:
        self.stop = stop
        self.graph, self.target, self.end, self.options = graph, target, end, options
        self.result = SearchResult()
        self.count: Counter[str] = Counter()
        self.seen: set[tuple[StatementTerm, ...]] = set()
        self.widths = Widths()
        self.rough: dict[bool, list[Rough]] = {}

    def add(self, found: Saturation) -> None:
        """Extract terms, ranked by the cost formula at the widths that suit each kernel alone."""
        g = found.encoder.graph
        self.count["tiles.nodes"] += g.nodes
        self.count["tiles.classes"] += g.classes
        start = time.monotonic()
        terms = g.best(
            found.encoder.root,
            self.options.kernels,
            self.options.best,
            self.target.numbers(),
            max(self.end - start, 0.0) / 2,
            self.stop,
            library_seconds(found.program, self.target),
        )
        for kernels, seconds, term in self._promising(terms):
            self.count["tiles.extracted"] += 1
            body = canonical(without_dead(opened(found.encoder.decode(term)), found.program.outputs))
            if body in self.seen:
                self.count["tiles.rejected.equal up to order"] += 1
                continue
            self.seen.add(body)
            if found.shifts:
                body = tuple(map(_finite_starts, body))
            rough = self.rough.setdefault(found.stable, [])
            rough.append((kernels, seconds, (found.program, body)))
        spent = self.result.seconds.get("extraction", 0.0)
        self.result.seconds["extraction"] = spent + time.monotonic() - start

    def _promising(self, terms: list[tuple[int, float, T]]) -> list[tuple[int, float, T]]:
        """(kernels, seconds, program): the cheapest of all, and of each number of kernels, cheapest first."""
        ranked = sorted(terms, key=lambda t: (t[1], t[0]))
        of: Counter[int] = Counter()
        out: list[tuple[int, float, T]] = []
        for i, term in enumerate(ranked):
            of[term[0]] += 1
            if i < 2 * self.options.candidates or of[term[0]] <= 2:
                out.append(term)
        return out

    def finish(self) -> None:
        """Choose tile widths for the best and rank them by the cost model."""
        from superopt import cost
        from superopt.spec import check_kernel

        start = time.monotonic()
        ranked: dict[bool, list[tuple[float, int, KernelGraph]]] = {stable: [] for stable in self.rough}
        promising = [[(s, term) for _, _, term in self._promising(r)] for s, r in self.rough.items()]
        for i, (stable, (program, body)) in enumerate(interleaved(promising)):
            if any(ranked.values()) and (time.monotonic() > self.end or self.stop()):
                break
            try:
                kernels = to_kernels(self.graph, program, body, self.target, widths=self.widths, library=True)
                check_kernel(kernels, self.target.shared_per_block)
            except (Rejected, IllegalProgram) as error:
                self.count[f"tiles.rejected.{error}"] += 1
                continue
            ranked[stable].append((cost.cost(kernels, self.target).seconds, i, kernels))
        # Where predictions agree, to half a percent, programs with and without maxima take turns: certificates of
        # those without assume less, and those with maxima pass the numeric check on more inputs.
        turns = interleaved([sorted(r, key=lambda r: r[:2]) for r in ranked.values()])
        ordered = sorted(turns, key=lambda r: float(f"{r[0]:.2e}"))
        best = sorted(ordered[: self.options.candidates], key=lambda r: r[0])
        ordered.sort(key=lambda r: r[0])
        for seconds, _, kernels in ordered:
            self.result.by_kernels.setdefault(kernel_count(kernels), []).append((seconds, kernels))
        self.count["tiles.candidates"] = len(best)
        self.result.candidates = [k for _, _, k in best]
        self.result.predicted = [s for s, _, _ in best]
        if not best and not self.result.remark:
            self.result.remark = "no extracted program is one of kernels"
        spent = self.result.seconds.get("extraction", 0.0)
        self.result.seconds["extraction"] = spent + time.monotonic() - start
