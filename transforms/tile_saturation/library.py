"""Finds extracted kernels that compute a library operator, and writes them as that operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from superopt.cost import kernel_cost
from superopt.program import Node, TensorType, Value
from superopt.transforms.tile_saturation.extracted import opened
from superopt.transforms.tile_saturation.terms import (
    FULL,
    LibraryOperator,
    LoopTerm,
    StatementTerm,
    StoreTerm,
    TermProgram,
    TermRegion,
    TermTensor,
    TermVar,
    rebuilt,
    render,
    written,
)

if TYPE_CHECKING:
    from superopt.cost import Target

KnownOperators: TypeAlias = "Mapping[tuple[StatementTerm, ...], tuple[LibraryOperator, ...]]"


def library_statements(program: TermProgram) -> KnownOperators:
    """The library operators of `program`'s statements, by a form that `library_operators` looks up."""
    return {_form(opened((s,))): found for s, found in program.library.items()}


def _form(body: Sequence[StatementTerm]) -> tuple[StatementTerm, ...]:
    """The statements without their order and without loops of one trip.

    It is used to look up products and the pieces of a concatenation, whose statements are independent, so that
    their order does not matter.
    """

    def ordered(statements: Sequence[StatementTerm]) -> tuple[StatementTerm, ...]:
        inner = [
            LoopTerm(s.var, s.starts, ordered(s.body)) if isinstance(s, LoopTerm) else s for s in statements
        ]
        return tuple(sorted(inner, key=lambda s: render((s,))))

    return ordered(without_single_trips(body))


def library_operators(statement: StatementTerm, known: KnownOperators) -> tuple[LibraryOperator, ...]:
    """The operators that a kernel consists of, one or several side by side; empty where it does anything else."""
    body = without_single_trips((statement,))
    if found := known.get(_form(body)):
        return found
    loop = body[0] if len(body) == 1 else None
    if loop is not None and (not isinstance(loop, LoopTerm) or loop.starts):
        return ()
    parts: dict[frozenset[TermTensor], list[StatementTerm]] = {}
    for inner in body if loop is None else loop.body:
        parts.setdefault(frozenset(written((inner,))), []).append(inner)
    out: list[LibraryOperator] = []
    for part in parts.values():
        alone = part if loop is None else [LoopTerm(loop.var, (), tuple(part))]
        if not (found := known.get(_form(alone))):
            return ()
        out += found
    return tuple(out)


def without_single_trips(body: Sequence[StatementTerm]) -> tuple[StatementTerm, ...]:
    """The statements without loops of one trip, where their variables do not cut anything."""
    out: list[StatementTerm] = []
    for statement in body:
        if isinstance(statement, StoreTerm):
            out.append(statement)
            continue
        inner = without_single_trips(statement.body)
        var = statement.var
        if statement.starts or var.step < var.end or not all(_cuts_nothing(s, var) for s in inner):
            out.append(LoopTerm(var, statement.starts, inner))
        else:
            out += [_uncut(s, var) for s in inner]
    return tuple(out)


def _cuts_nothing(statement: StatementTerm, var: TermVar) -> bool:
    def fine(region: TermRegion) -> bool:
        return all(
            i.var is not var or (i.kind == "tile" and not i.base and var.step == extent)
            for i, extent in zip(region.dims, region.tensor.shape, strict=True)
        )

    if isinstance(statement, StoreTerm):
        return all(map(fine, (statement.region, *statement.value.regions)))
    return all(fine(r) for r, _ in statement.starts) and all(_cuts_nothing(s, var) for s in statement.body)


def _uncut(statement: StatementTerm, var: TermVar) -> StatementTerm:
    return rebuilt(
        statement, lambda r: TermRegion(r.tensor, tuple(FULL if i.var is var else i for i in r.dims))
    )


def library_seconds(program: TermProgram, target: Target) -> list[float]:
    """The library's seconds for each statement that it has kernels for."""

    def seconds(p: LibraryOperator) -> float:
        operands = {t: Value(TensorType(t.shape, t.dtype)) for t, _ in p.operands}
        return kernel_cost(library_nodes(p, operands)[-1], target).seconds

    return [sum(map(seconds, operators)) for operators in program.library.values()]


def library_nodes(p: LibraryOperator, values: Mapping[TermTensor, Value]) -> list[Node]:
    """The library's kernel, after the views that it reads."""
    out: list[Node] = []
    operands = tuple(viewed(values[t], shape, t.name, out) for t, shape in p.operands)
    result = Value(TensorType(p.result.shape, p.result.dtype), p.result.name)
    return [*out, Node(p.op, operands, (result,), dict(p.attrs))]


def viewed(value: Value, shape: tuple[int, ...], name: str, nodes: list[Node]) -> Value:
    """The value in another shape, which is a view of it."""
    if value.shape == shape:
        return value
    view = Value(TensorType(shape, value.dtype), name)
    nodes.append(Node("reshape", (value,), (view,), {"shape": shape}))
    return view
