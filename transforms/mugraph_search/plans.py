"""One search of a kernel graph: named axes, the native search, plans turned back into graphs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from superopt import clock
from superopt.cost import cost, kernel_cost
from superopt.cost.model import is_view
from superopt.errors import IllegalProgram, Location
from superopt.operators import move_of
from superopt.program import DTYPE_BYTES, KernelGraph
from superopt.spec import check_kernel
from superopt.transforms.core import _search
from superopt.transforms.core._search import Options, Problem
from superopt.transforms.mugraph_search.axis_builder import NotBuildable
from superopt.transforms.mugraph_search.build import build
from superopt.transforms.mugraph_search.exponentials import relative_exponentials
from superopt.transforms.mugraph_search.optimizer import CANONICAL, PRUNE, MugraphOptimizer
from superopt.transforms.mugraph_search.smt import Solver
from superopt.transforms.named_axes.axis_program import AxisProgram, Function
from superopt.transforms.named_axes.axis_table import Unsearchable
from superopt.transforms.named_axes.merge import merge_axes
from superopt.transforms.named_axes.name_axes import name_axes
from superopt.transforms.named_axes.roles import without_twins
from superopt.transforms.named_axes.unfold import unfold
from superopt.transforms.optimizers import Proposal, Proposals, never
from superopt.transforms.schedule.choose_extents import suited_to_masks

if TYPE_CHECKING:
    from superopt.cost import Target

# The native search prices loops whole that masks cut short: with masks it lists so many times more plans, and so
# many candidates have their extents chosen again.
MASKED_PLANS, MOST_MASKED = 4, 3


def search_plans(
    graph: KernelGraph,
    target: Target,
    *,
    budget: float,
    seed: int = 0,
    options: MugraphOptimizer | None = None,
    stop: Callable[[], bool] = never,
) -> Proposals:
    """Candidates with custom kernels that compute what `graph` computes, as far as the screening field can tell.

    `budget` is in seconds of work; what was found by then is returned. `stop` is polled some fifty times a
    second and ends the search early when it returns True. The same seed gives the same candidates.
    A graph that cannot be expressed over named axes gives no candidates and a remark.
    """
    options = options or MugraphOptimizer()
    try:
        unfolded = unfold(graph)
        program = merge_axes(name_axes(unfolded.graph))
        if options.rescale:
            program = relative_exponentials(program)
    except Unsearchable as error:
        return Proposals(
            complete=False, funnel={"unsearchable": 1}, remark=error.message, location=error.location
        )

    problem = native_problem(program, splits=options.max_custom > 1)
    settings = native_options(options, target, budget, seed, _widest_bytes(graph))
    if program.bands:
        settings.candidates *= MASKED_PLANS
    oracle = Solver().subexpression if options.prune == "smt" else None
    found = _search.search(problem, settings, stop, oracle)
    clock.charge(found.funnel["seconds.helpers"])
    result = Proposals(complete=found.complete)
    for name, number in found.funnel.items():
        if name.startswith("seconds."):
            result.seconds[name.removeprefix("seconds.")] = number
        else:
            result.funnel[name] = int(number)
    result.funnel["plans.rejected.not_buildable"] = 0
    result.funnel["plans.rejected.illegal"] = 0
    refused = ""
    for plan in found.plans:
        try:
            candidate = without_twins(unfolded.fold(build(program, problem.factors, found, plan)))
            check_kernel(candidate, target.shared_per_block)
        except NotBuildable as error:
            result.funnel["plans.rejected.not_buildable"] += 1
            refused = refused or error.message
            continue
        except IllegalProgram as error:
            result.funnel["plans.rejected.illegal"] += 1
            refused = refused or error.message
            continue
        # The core does not see layouts, how library operators are emitted, nor what comes before and after.
        result.found.append(Proposal(candidate, cost(candidate, target).seconds))
    result.found.sort(key=lambda p: p.seconds)
    if program.bands:
        del result.found[options.candidates :]
        # Beside those that are there: once compiled, these may be faster.
        for graph in [p.graph for p in result.found[:MOST_MASKED]]:
            if (suited := suited_to_masks(graph, target)).nodes != graph.nodes:
                result.found.append(Proposal(suited, cost(suited, target).seconds))
        result.found.sort(key=lambda p: p.seconds)
    if not result.found:
        result.remark, result.location = _why_nothing(graph, target, result, refused)
    return result


def _why_nothing(graph: KernelGraph, target: Target, result: Proposals, refused: str) -> tuple[str, Location]:
    """Why a search proposes nothing, the first reason that a plan was refused, or else where plans ended."""
    if not (kernels := [n for n in graph.nodes if not is_view(n)]):
        return "its operators only view their operands, so there is nothing to compute", graph.location
    costliest = max(kernels, key=lambda n: kernel_cost(n, target).seconds)
    operator = f"'{costliest.op}'"
    if refused:
        why = f"every plan is refused, the first because of: {refused}; at {operator}"
    elif not result.complete:
        why = f"a limit or the budget ended the search at {operator}; a larger budget would help"
    elif all(move_of(n) is not None for n in kernels):
        why = f"{operator} only moves elements, which no kernel of this search does better"
    elif result.funnel.get("kernels.pruned.memory"):
        tiles = "shorter rows or a narrower dtype would help"
        why = f"no tiles of a kernel with {operator} fit {target.shared_per_block} bytes; {tiles}"
    else:
        why = f"no kernel with {operator} is predicted to be faster than the library's operators"
    return why, costliest.location


def _widest_bytes(graph: KernelGraph) -> int:
    return max(DTYPE_BYTES[v.dtype] for v in graph.outputs)


def native_options(
    options: MugraphOptimizer, target: Target, budget: float, seed: int, element_bytes: int
) -> Options:
    """The options as the native search takes them; `element_bytes` of what kernels store in between."""
    native = Options()
    native.prune = PRUNE.index(options.prune)
    native.canonical = CANONICAL.index(options.canonical)
    for option in fields(MugraphOptimizer):
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
    problem = Problem()
    looped = program.looped
    for axis, extent in enumerate(program.extents):
        problem.add_axis(extent, splits and axis in looped, axis in looped)
    tensors = {v: i for i, v in enumerate(program.graph.inputs)}
    computed = {n.result for n in program.bands}
    for role in program.roles:
        tensor = tensors.setdefault(role.source, len(tensors))
        loaded = 0 if role.source in computed else DTYPE_BYTES[role.source.dtype]
        problem.add_input(tensor, [list(dim) for dim in role.dims], loaded)
    for value in program.constants:
        problem.add_constant(value)
    for function in program.functions:
        problem.add_function(
            _key(function),
            function.commutative,
            function.ordered,
            function.reduction,
            float(function.flops),
            float(function.special),
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
    problem.set_outputs(program.outputs, [[list(dim) for dim in dims] for dims in program.output_dims])
    return problem


def _key(function: Function) -> int:
    return int.from_bytes(hashlib.sha256(repr(function).encode()).digest()[:8])
