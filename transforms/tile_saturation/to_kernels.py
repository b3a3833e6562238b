"""An extracted program as a kernel graph: one `tiled` node for each outermost statement, tile sizes by cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from superopt import program as ir
from superopt.cost import Target, kernel_cost
from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.operators import OPERATORS
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.lower.builder import identifier
from superopt.transforms.schedule.launch import choose_launch
from superopt.transforms.schedule.widths import NARROW, WIDE, cheapest, fits, width_choices
from superopt.transforms.tile_saturation.accesses import Rejected, accesses
from superopt.transforms.tile_saturation.exposed import exposed
from superopt.transforms.tile_saturation.extracted import opened, without_dead
from superopt.transforms.tile_saturation.kernel_builder import KernelBuilder
from superopt.transforms.tile_saturation.library import (
    KnownOperators,
    library_nodes,
    library_operators,
    library_statements,
    viewed,
)
from superopt.transforms.tile_saturation.terms import (
    StatementTerm,
    TermProgram,
    TermRegion,
    TermTensor,
    TermVar,
    loops,
    rebuilt,
    stores,
    written,
)


def to_kernels(
    graph: KernelGraph,
    program: TermProgram,
    body: Sequence[StatementTerm],
    target: Target,
    *,
    widths: Widths | None = None,
    library: bool = False,
) -> KernelGraph:
    """The statements as kernels on `graph`'s inputs; raises Rejected for what cannot become kernels.

    `widths` remembers the choices for each kernel. With `library`, a kernel of only matrix products or
    concatenations becomes the library's where that is predicted to be faster.
    """
    operators: KnownOperators = library_statements(program) if library else {}
    body = without_dead(opened(body), program.outputs)
    values: dict[TermTensor, Value] = {}
    nodes: list[Node] = []
    for tensor, value in zip(program.inputs, graph.inputs, strict=True):
        values[tensor] = viewed(value, tensor.shape, value.name, nodes)
    given = dict(values)
    for i, statement in enumerate(body):
        live = _live_after(body[i + 1 :], program.outputs)
        name = f"{identifier(graph.name, 'kernel')}_{i}"
        builder, reason = None, ""
        try:
            builder = _tuned(statement, live, program, name, target, widths or Widths())
        except Rejected as error:
            reason = str(error)
        if (found := library_operators(statement, operators)) and all(
            p.result not in values and all(t in values for t, _ in p.operands) for p in found
        ):
            made = [library_nodes(p, values) for p in found]
            own = kernel_cost(_node(builder.program), target).seconds if builder else math.inf
            if sum(kernel_cost(new[-1], target).seconds for new in made) < own:
                nodes += itertools.chain.from_iterable(made)
                values |= {p.result: new[-1].result for p, new in zip(found, made, strict=True)}
                continue
        if builder is None:
            raise Rejected(reason)
        missing = [t.name for t in builder.inputs if t not in values]
        if missing:
            raise Rejected("a kernel reads what no kernel wrote")
        operands = tuple(values[t] for t in builder.inputs)
        for tensor in builder.results:
            if tensor in values and tensor not in builder.updated:
                raise Rejected("two kernels each write part of a tensor")
            values[tensor] = Value(TensorType(tensor.shape, tensor.dtype), tensor.name)
        if not builder.results:
            raise Rejected("a kernel without results")
        nodes.append(
            Node("tiled", operands, tuple(values[t] for t in builder.results), {}, body=builder.program)
        )
    if any(t not in values or values[t] is given.get(t) for t in program.outputs):
        raise Rejected("an output that no kernel writes")
    outputs = [
        viewed(values[t], v.shape, v.name, nodes) for t, v in zip(program.outputs, graph.outputs, strict=True)
    ]
    return replace(graph, nodes=nodes, outputs=outputs)


def _live_after(rest: Sequence[StatementTerm], outputs: Sequence[TermTensor]) -> set[TermTensor]:
    """Tensors whose contents are used after a kernel."""
    live = set(outputs)
    for statement in reversed(rest):
        live |= {a.region.tensor for a in accesses((statement,)) if a.kind == "load"}
        partly = exposed((statement,))
        live |= partly | written((statement,)) & live
    return live


class Widths:
    """Chosen tile widths by kernel: candidates share most of their kernels."""

    def __init__(self) -> None:
        self.known: dict[
            tuple[StatementTerm, frozenset[TermTensor]], tuple[StatementTerm, Mapping[TermVar, int] | str]
        ] = {}


def _tuned(
    statement: StatementTerm,
    live: set[TermTensor],
    source: TermProgram,
    name: str,
    target: Target,
    widths: Widths,
) -> KernelBuilder:
    """The kernel with the widths of the lowest predicted cost."""
    key = (statement, frozenset(live & written((statement,))))
    if key not in widths.known:
        free = retiled(statement)
        widths.known[key] = free, _choose(free, live, source, name, target)
    free, chosen = widths.known[key]
    if isinstance(chosen, str):
        raise Rejected(chosen)
    builder = KernelBuilder(free, live, source.updated, chosen, name, source.multiplied)
    choose_launch(builder.program, target, None, None)
    return builder


def _parameters(statement: StatementTerm) -> list[TermVar]:
    return list(dict.fromkeys(loop.var for loop in loops((statement,)) if not loop.var.step))


def _choose(
    statement: StatementTerm, live: set[TermTensor], source: TermProgram, name: str, target: Target
) -> Mapping[TermVar, int] | str:
    """The best widths of one kernel's parameters, or why none fit."""
    parameters = _parameters(statement)
    along = [] if _multiplies(statement) else [a.region.dims for a in accesses((statement,))]
    wide = {dims[-1].var for dims in along if dims}
    narrow = {i.var for dims in along for i in dims[:-1]}
    choices = [width_choices(v.end, WIDE * (v in wide) + NARROW * (v in narrow)) for v in parameters]
    tried: dict[tuple[int, ...], float] = {}
    reason = "no tile sizes fit"

    def seconds(widths: tuple[int, ...]) -> float:
        nonlocal reason
        if widths not in tried:
            tried[widths] = math.inf
            try:
                chosen = dict(zip(parameters, widths, strict=True))
                builder = KernelBuilder(statement, live, source.updated, chosen, name, source.multiplied)
            except (IllegalProgram, UnsupportedProgram) as error:
                reason = error.message
                return math.inf
            program = builder.program
            if fits(program, target):
                tried[widths] = kernel_cost(_node(program), target).seconds
        return tried[widths]

    best = cheapest(choices, seconds)
    return dict(zip(parameters, best, strict=True)) if math.isfinite(seconds(best)) else reason


def _multiplies(statement: StatementTerm) -> bool:
    """Whether a kernel has a product, whose tiles are those that its instructions take."""
    values = (expr for store in stores((statement,)) for expr in store.value.walk())
    return any((entry := OPERATORS.get(v.op)) is not None and entry.contraction for v in values)


def retiled(statement: StatementTerm) -> StatementTerm:
    """The kernel with a parameter for every width that only a reshape in another kernel requires."""
    found = list(accesses((statement,)))
    fixed = {loop.var for loop in loops((statement,)) if loop.var.step > 1}
    bound = {i.var for a in found for i in a.region.dims if i.kind in ("elem", "block") or (i.base and i.var)}
    for store in stores((statement,)):
        for expr in store.value.walk():
            if any(k == "shape" and v for k, v in expr.attrs):
                bound |= {i.var for r in expr.regions for i in r.dims} | {
                    v for r in (store.region,) for v in r.vars
                }
    free = {v: TermVar(v.name, v.end, 0, v.step) for v in fixed - bound}
    return substituted(statement, free) if free else statement


def substituted(statement: StatementTerm, vars: Mapping[TermVar, TermVar]) -> StatementTerm:
    """The statement over other variables."""

    def region(r: TermRegion) -> TermRegion:
        return TermRegion(
            r.tensor, tuple(replace(i, var=vars.get(i.var, i.var)) if i.var else i for i in r.dims)
        )

    return rebuilt(statement, region, lambda v: vars.get(v, v))


def _node(program: ir.TileProgram) -> Node:
    values = [Value(b.type, b.name) for b in program.params]
    operands, results = values[: program.n_inputs], values[program.n_inputs :]
    return Node("tiled", tuple(operands), tuple(results), {}, body=program)
