"""Candidates by equality saturation: the same protocol as the muGraph search.

    kernel graph -> naive tile loops -> e-graph, saturated -> k best terms -> kernels -> ranked by the cost model

The loops are written twice: with values that have several users stored once ("single"), and written into every
user ("all"), where values that end in one loop are computed once. The second graph is far smaller; the first
contains programs that compute less. A softmax without its maximum and the same with one (`stabilize_softmax.py`)
are two programs: no rule leads from one to the other, as only their quotients are equal. Each e-graph is
saturated within its own share of the budget.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from superopt import clock, cost
from superopt.cost.model import is_view
from superopt.errors import IllegalProgram, Location, UnsupportedProgram
from superopt.program import KernelGraph, Node
from superopt.report import EGraphReport
from superopt.spec import check_kernel
from superopt.transforms.optimizers import Proposal, Proposals, in_turns, never
from superopt.transforms.schedule.widths import WIDTHS
from superopt.transforms.sink_concats import sunk
from superopt.transforms.stabilize_softmax import LOWEST, maxima_only_shift, stabilized
from superopt.transforms.tile_saturation.accesses import Rejected
from superopt.transforms.tile_saturation.constants import lifted, restored
from superopt.transforms.tile_saturation.extracted import canonical, opened, without_dead
from superopt.transforms.tile_saturation.kept_dims import with_kept_dims
from superopt.transforms.tile_saturation.library import library_seconds
from superopt.transforms.tile_saturation.optimizer import SaturationOptimizer
from superopt.transforms.tile_saturation.saturate import Saturation, saturate
from superopt.transforms.tile_saturation.terms import LoopTerm, StatementTerm, StoreTerm, TermProgram
from superopt.transforms.tile_saturation.tile_loops import Inline
from superopt.transforms.tile_saturation.to_kernels import Widths, to_kernels

if TYPE_CHECKING:
    from superopt.cost import Target

T = TypeVar("T")
Rough: TypeAlias = tuple[int, float, tuple[TermProgram, tuple[StatementTerm, ...]]]
"""Kernels, seconds by the rough cost, and the program itself."""


def kernel_count(graph: KernelGraph) -> int:
    """How many nodes are kernels; views do not count."""
    return sum(not is_view(n) for n in graph.nodes)


@dataclass
class Saturations(Proposals):
    """What saturation found; `seconds` are those of saturation, of extraction, and in all."""

    by_kernels: dict[int, list[Proposal]] = field(default_factory=dict[int, "list[Proposal]"])
    """For each number of kernels the programs, fastest predicted first."""
    saturations: list[Saturation] = field(default_factory=list[Saturation])

    def remarks(self, *, statistics: bool = False) -> list[str]:
        """The best of each number of kernels, the e-graphs, and, with `statistics`, the effect of each rule."""
        said = list[str]()
        if self.by_kernels:
            best = [f"{n}: {them[0].seconds * 1e6:.1f} us" for n, them in sorted(self.by_kernels.items())]
            said.append(f"predicted, by number of kernels: {', '.join(best)}")
        for saturation in self.saturations:
            said += [saturation.summary(), *(saturation.rule_counts() if statistics else ())]
        return said

    def egraphs(self) -> list[EGraphReport]:
        """Reports of the e-graphs."""
        return [saturation.report() for saturation in self.saturations]


def propose(
    graph: KernelGraph,
    target: Target,
    *,
    budget: float,
    options: SaturationOptimizer | None = None,
    stop: Callable[[], bool] = never,
) -> Saturations:
    """Programs equal to `graph` by the rules, fewest predicted seconds first; `budget` is in seconds of work.

    `stop` is polled between graphs and between candidates; once it returns True, what was found is returned.
    """
    options = options or SaturationOptimizer()
    graph, constants = lifted(sunk(graph))
    run = _Run(graph, constants, target, clock.now() + budget, options, stop)
    result = run.result
    start = clock.now()
    stable = stabilized(graph)
    programs = [with_kept_dims(p) for p in ([graph] if stable is graph else [graph, stable])]
    starts: list[tuple[KernelGraph, Inline]] = [
        (program, inline) for program in programs for inline in options.inline
    ]
    for i, (program, inline) in enumerate(starts):
        left = run.end - clock.now()
        if left <= 0 or run.stop():
            break
        try:
            share = left / (2 * (len(starts) - i))
            found = saturate(program, inline, options, share, stop)
            found.stable = program is not programs[0]
            found.shifts = maxima_only_shift(program)
        except UnsupportedProgram as error:
            run.count[f"tiles.rejected.{error.message}"] += 1
            result.remark, result.location = error.message, error.location
            continue
        result.saturations.append(found)
        run.add(found)
    result.seconds["saturation"] = sum(s.encoder.graph.seconds for s in result.saturations)
    run.finish()
    result.seconds["all"] = clock.now() - start
    result.funnel.update(run.count)
    ends = [s.encoder.graph.stopped for s in result.saturations]
    result.complete = len(ends) == len(starts) and set(ends) == {"saturated"} and clock.now() <= run.end
    if result.found:
        result.remark = ""
    return result


def _finite_starts(statement: StatementTerm) -> StatementTerm:
    """The statement with every maximum started from the least finite number.

    A tile that is masked whole would otherwise give the difference of two infinities, which is NaN.
    """
    if isinstance(statement, StoreTerm):
        return statement
    starts = tuple((r, LOWEST[r.tensor.dtype] if n == -math.inf else n) for r, n in statement.starts)
    return LoopTerm(statement.var, starts, tuple(map(_finite_starts, statement.body)))


class _Run:
    def __init__(
        self,
        graph: KernelGraph,
        constants: Sequence[Node],
        target: Target,
        end: float,
        options: SaturationOptimizer,
        stop: Callable[[], bool],
    ) -> None:
        self.stop, self.constants = stop, constants
        self.graph, self.target, self.end, self.options = graph, target, end, options
        self.result = Saturations()
        self.count: Counter[str] = Counter()
        self.seen: set[tuple[StatementTerm, ...]] = set()
        self.widths = Widths()
        self.rough: dict[bool, list[Rough]] = {}

    def add(self, found: Saturation) -> None:
        """Extract terms, ranked by the cost formula at the widths that suit each kernel alone."""
        g = found.encoder.graph
        self.count["tiles.nodes"] += g.nodes
        self.count["tiles.classes"] += g.classes
        start = clock.now()
        terms = g.best(
            found.encoder.root,
            self.options.kernels,
            self.options.best,
            self.target.numbers(),
            WIDTHS,
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
        self.result.seconds["extraction"] = spent + clock.now() - start

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
        start = clock.now()
        ranked: dict[bool, list[tuple[float, int, KernelGraph]]] = {stable: [] for stable in self.rough}
        promising = [[(s, term) for _, _, term in self._promising(r)] for s, r in self.rough.items()]
        for i, (stable, (program, body)) in enumerate(in_turns(promising)):
            if any(ranked.values()) and (clock.now() > self.end or self.stop()):
                break
            try:
                kernels = to_kernels(self.graph, program, body, self.target, widths=self.widths, library=True)
                kernels = restored(kernels, self.constants)
                check_kernel(kernels, self.target.shared_per_block)
            except (Rejected, IllegalProgram) as error:
                reason = error.message if isinstance(error, IllegalProgram) else str(error)
                self.count[f"tiles.rejected.{reason}"] += 1
                continue
            ranked[stable].append((cost.cost(kernels, self.target).seconds, i, kernels))
        # Where predictions agree to half a percent, programs with and without maxima alternate: certificates of
        # those without assume less, and those with maxima pass the numeric check on more inputs.
        turns = in_turns([sorted(r, key=lambda r: r[:2]) for r in ranked.values()])
        ordered = sorted(turns, key=lambda r: float(f"{r[0]:.2e}"))
        best = sorted(ordered[: self.options.candidates], key=lambda r: r[0])
        ordered.sort(key=lambda r: r[0])
        for seconds, _, kernels in ordered:
            self.result.by_kernels.setdefault(kernel_count(kernels), []).append(Proposal(kernels, seconds))
        self.count["tiles.candidates"] = len(best)
        self.result.found = [Proposal(kernels, seconds) for seconds, _, kernels in best]
        if not best and not self.result.remark:
            self.result.remark, self.result.location = self._why_nothing()
        spent = self.result.seconds.get("extraction", 0.0)
        self.result.seconds["extraction"] = spent + clock.now() - start

    def _why_nothing(self) -> tuple[str, Location]:
        """Why no candidate is left, the most frequent reason that an extracted program was refused, and where."""
        if not (kernels := [n for n in self.graph.nodes if not is_view(n)]):
            return (
                "its operators only view their operands, so there is nothing to compute",
                self.graph.location,
            )
        costliest = max(kernels, key=lambda n: cost.kernel_cost(n, self.target).seconds)
        at = f"at '{costliest.op}'"
        refused = {k.removeprefix("tiles.rejected."): n for k, n in self.count.items() if "rejected" in k}
        if refused:
            reason = max(refused, key=lambda k: refused[k])
            return f"no extracted program is one of kernels: {reason}; {at}", costliest.location
        why = f"saturation ended {at} before a program was extracted; a larger budget would help"
        return why, costliest.location
