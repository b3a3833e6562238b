"""Propose muGraphs for a kernel graph: named axes, the native search, plans turned back into graphs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

from superopt.errors import BadOption, IllegalProgram
from superopt.program import DTYPE_BYTES, KernelGraph
from superopt.spec import check_kernel
from superopt.transforms.named_axes.axis_program import AxisProgram, Function
from superopt.transforms.named_axes.axis_table import Unsearchable
from superopt.transforms.mugraph_search.build import build
from superopt.transforms.mugraph_search.emit import NotBuildable
from superopt.transforms.mugraph_search.exponentials import relative_exponentials
from superopt.transforms.named_axes.merge import merge_axes
from superopt.transforms.named_axes.name_axes import name_axes
from superopt.transforms.named_axes.roles import without_twins
from superopt.transforms.mugraph_search.smt import Solver
from superopt.transforms.named_axes.unfold import unfold

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.transforms.core._search import Options, Problem

PRUNE = ("normal-form", "smt", "none")
CANONICAL = ("values", "graphs")


@dataclass(frozen=True)
class SearchOptions:
    """How far `propose` looks. Raises BadOption for values out of range."""

    prune: Literal["normal-form", "smt", "none"] = "normal-form"
    """Who says whether a value can contribute to the program: the normal form of its abstract expression, z3
    asked the same question, or nobody (for tests: the space is then bounded by `max_value_operators` alone)."""
    axis_test: bool = True
    """Also require that the axes of a value can still be bound by what remains to be computed."""
    canonical: Literal["values", "graphs"] = "values"
    """What is enumerated. "values": what has equal evaluations is one value with all its derivations. "graphs":
    every operator on the same operands is a node, as in Mirage's algorithm, and graphs of at most
    `max_block_operators` are told apart (for comparison: equal values are then found again and again)."""
    rescale: bool = True
    """Compute sums of exponentials relative to a running maximum where nothing depends on it: softmax in its
    online form, and partial results with their maxima."""
    max_block_operators: int = 24
    """Operators in one custom kernel at most, accumulators included, loads and stores not."""
    max_custom: int = 2
    """Custom kernels in one candidate at most."""
    max_loops: int = 2
    """Axes that one custom kernel loops over at most."""
    max_attempts: int = 100_000
    """Derivations of values that are tried at most, those found pruned included."""
    max_states: int = 2_000_000
    """States that one pass over the kernels may visit, a fifth of them for kernels with the same outputs; what
    is then left out is counted as pruned, and the result not complete. Kernels that compute what they need come
    before those that load it."""
    branch_and_bound: bool = True
    """Leave out what cannot be part of a plan as cheap as those that are known already; off, everything cheaper
    than the program itself is looked at, with the same result."""
    dominance: int = 4
    """Of partial kernels with the same left to do, how many are continued that others surpass in operators and
    work; 0 continues all."""
    threads: int = 0
    """Threads that choose the extents of kernels, or 0 for one a core; the result does not depend on it."""
    max_value_operators: int = 64
    """Operators that a value may need at most; what bounds a search without pruning."""
    candidates: int = 12
    """Candidates to return at most, cheapest first."""
    margin: float = 0.25
    """Plans predicted to take up to this share longer than the best are looked for; others are returned where
    they were met on the way. Of no effect without `branch_and_bound`."""

    def __post_init__(self) -> None:
        if self.prune not in PRUNE:
            raise BadOption(f"expected prune to be one of {', '.join(PRUNE)}, got '{self.prune}'")
        if self.canonical not in CANONICAL:
            raise BadOption(f"expected canonical to be one of {', '.join(CANONICAL)}, got '{self.canonical}'")
        for name in (
            "max_block_operators",
            "max_custom",
            "max_attempts",
            "max_states",
            "max_value_operators",
            "candidates",
        ):
            if getattr(self, name) < 1:
                raise BadOption(f"expected a positive {name.replace('_', '-')}, got {getattr(self, name)}")
        for name in ("max_loops", "threads", "dominance", "margin"):
            if getattr(self, name) < 0:
                raise BadOption(f"expected no negative {name.replace('_', '-')}, got {getattr(self, name)}")


@dataclass
class SearchResult:
    """Candidates, cheapest predicted first, and how the search went."""

    candidates: list[KernelGraph] = field(default_factory=list[KernelGraph])
    funnel: dict[str, int] = field(default_factory=dict[str, int])
    """Counts by stage and reason."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Time until the values were known, the first plan was known, and all was done."""
    predicted: list[float] = field(default_factory=list[float])
    """Predicted seconds of each candidate."""
    program_predicted: float = 0.0
    """Predicted seconds of the program itself, one library kernel an operator."""
    complete: bool = True
    """Whether the space was searched to its end; False where a limit or the budget ended it, or `stop`."""
    remark: str = ""
    """Why nothing could be searched, where that is so."""


def propose(
    graph: KernelGraph,
    target: Target,
    *,
    budget: float,
    seed: int = 0,
    options: SearchOptions | None = None,
    stop: Callable[[], bool] | None = None,
) -> SearchResult:
    """Candidates with custom kernels that compute what `graph` computes, as far as the screening field can tell.

    `budget` is in seconds; what was found by then is returned. `stop` is polled some fifty times a second and
    ends the search early when it returns True. The same seed gives the same candidates. A graph that cannot be
    told over named axes gives no candidates and a remark.
    """
    options = options or SearchOptions()
    try:
        unfolded = unfold(graph)
        program = merge_axes(name_axes(unfolded.graph))
        if options.rescale:
            program = relative_exponentials(program)
    except Unsearchable as error:
        return SearchResult(funnel={"unsearchable": 1}, remark=str(error))
    from superopt.transforms.core import _search

    problem = native_problem(program, splits=options.max_custom > 1)
    settings = native_options(options, target, budget, seed, _widest_bytes(graph))
    oracle = Solver().subexpression if options.prune == "smt" else None
    found = _search.search(problem, settings, stop or (lambda: False), oracle)
    result = SearchResult(program_predicted=found.program_seconds, complete=found.complete)
    for name, number in found.funnel.items():
        if name.startswith("seconds."):
            result.seconds[name.removeprefix("seconds.")] = number
        else:
            result.funnel[name] = int(number)
    result.funnel["plans.rejected.not_buildable"] = 0
    result.funnel["plans.rejected.illegal"] = 0
    for plan in found.plans:
        try:
            candidate = without_twins(unfolded.fold(build(program, problem.factors, found, plan)))
            check_kernel(candidate, target.shared_per_block)
        except NotBuildable:
            result.funnel["plans.rejected.not_buildable"] += 1
            continue
        except IllegalProgram:
            result.funnel["plans.rejected.illegal"] += 1
            continue
        result.candidates.append(candidate)
        result.predicted.append(plan.seconds)
    if program.graph is not graph:  # the core knows nothing of what stands before and behind
        _rank(result, target)
    return result


def _rank(result: SearchResult, target: Target) -> None:
    from superopt.cost import cost

    ranked = sorted(((cost(c, target).seconds, i) for i, c in enumerate(result.candidates)))
    result.candidates = [result.candidates[i] for _, i in ranked]
    result.predicted = [seconds for seconds, _ in ranked]


def _widest_bytes(graph: KernelGraph) -> int:
    return max(DTYPE_BYTES[v.dtype] for v in graph.outputs)


def native_options(
    options: SearchOptions, target: Target, budget: float, seed: int, element_bytes: int
) -> Options:
    """The options as the native search takes them; `element_bytes` of what kernels store in between."""
    from superopt.transforms.core._search import Options

    native = Options()
    native.prune = PRUNE.index(options.prune)
    native.canonical = CANONICAL.index(options.canonical)
    for option in fields(options):
        if option.name not in ("prune", "canonical", "rescale", "threads"):
            setattr(native, option.name, getattr(options, option.name))
    if options.canonical == "graphs":
        native.max_value_operators = min(options.max_value_operators, options.max_block_operators)
    native.threads = options.threads or len(os.sched_getaffinity(0))
    native.budget_seconds = budget
    native.seed = seed
    native.intermediate_bytes = element_bytes
    native.target = target.numbers()
    return native


def native_problem(program: AxisProgram, *, splits: bool) -> Problem:
    """The program as the native search takes it; with `splits`, long reduced axes may be split over kernels."""
    from superopt.transforms.core._search import Problem

    problem = Problem()
    looped = program.looped
    for axis, extent in enumerate(program.extents):
        problem.add_axis(extent, splits and axis in looped, axis in looped)
    tensors = {v: i for i, v in enumerate(program.graph.inputs)}
    for role in program.roles:
        tensor = tensors.setdefault(role.source, len(tensors))
        problem.add_input(tensor, [list(dim) for dim in role.dims], DTYPE_BYTES[role.source.dtype])
    for value in program.constants:
        problem.add_constant(value)
    for function in program.functions:
        problem.add_function(
            _key(function),
            function.commutative,
            function.reduction,
            float(function.flops),
            list(function.over),
            list(function.along),
        )
    for operation in program.operations:
        problem.add_node(
            operation.kind,
            list(operation.args),
            operation.function,
            list(operation.reduced),
            operation.aside,
            operation.same,
        )
    problem.set_outputs(program.outputs)
    return problem


def _key(function: Function) -> int:
    return int.from_bytes(hashlib.sha256(repr(function).encode()).digest()[:8])
