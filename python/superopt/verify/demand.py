"""Which inputs flow into an `exp`: only their second components (in Z_q) are ever used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.aliasing import pairs
from superopt.operators import OPERATORS
from superopt.program import (
    Attr,
    BlockGraph,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Node,
    Store,
    ThreadGraph,
    TileProgram,
    Value,
)


def feeds_exponential(graph: KernelGraph) -> list[bool]:
    """For each input, whether some value computed from it enters an `exp`."""
    return _inputs(graph.inputs, graph.nodes, set())


def exponents(graph: KernelGraph) -> set[Value]:
    """The values from which something that enters an `exp` is computed."""
    wanted: set[Value] = set()
    _inputs(graph.inputs, graph.nodes, wanted)
    return wanted


def exponentiated(node: Node) -> list[bool]:
    """For each operand of a node, whether the node computes something from it that enters an `exp` there."""
    return _operands(node, set())


def _inputs(inputs: Sequence[Value], nodes: Sequence[Node], wanted: set[Value]) -> list[bool]:
    for node in reversed(nodes):
        wanted.update(v for v, w in zip(node.operands, _operands(node, wanted), strict=True) if w)
    return [v in wanted for v in inputs]


def _operands(node: Node, wanted: set[Value]) -> list[bool]:
    results = [v in wanted for v in node.results]
    if isinstance(node.body, BlockGraph):
        saved = {n.operands[0] for n, w in zip(node.body.savers, results, strict=True) if w}
        return _inputs(node.body.inputs, node.body.nodes, saved)
    if isinstance(node.body, ThreadGraph):
        yielded = {v for v, w in zip(node.body.outputs, results, strict=True) if w}
        return _inputs(node.body.inputs, node.body.nodes, yielded)
    if isinstance(node.body, TileProgram):
        return _tile_inputs(node.body, results)
    if node.op == "accumulate" and node.attrs.get("kind") == "rescaled":
        return [any(results), True]
    return [any(results) or _exponentiates(node.op, node.attrs)] * len(node.operands)


def _exponentiates(op: str, attrs: Mapping[str, Attr]) -> bool:
    entry = OPERATORS.get(op)
    return entry is not None and entry.body is not None and "exp" in entry.body(attrs).primitives()


def _tile_inputs(program: TileProgram, results: Sequence[bool]) -> list[bool]:
    """The same through memory: whole buffers are followed until nothing changes."""
    outputs = program.params[program.n_inputs :]
    wanted: set[Value | Buffer] = {b for b, w in zip(outputs, results, strict=True) if w}
    before = -1
    while len(wanted) != before:
        before = len(wanted)
        for statement in program.statements():
            if isinstance(statement, Store) and statement.buffer in wanted:
                wanted.add(statement.value)
            elif isinstance(statement, Load) and statement.result in wanted:
                wanted.add(statement.buffer)
                if (view := statement.buffer.view) is not None and view.source >= 0:
                    wanted.add(program.params[view.source])
            elif isinstance(statement, Compute) and (
                statement.result in wanted or _exponentiates(statement.op, statement.attrs)
            ):
                wanted.update(statement.operands)
    kept = {j for i, j in pairs(program.aliases).items() if outputs[i] in wanted}
    return [b in wanted or j in kept for j, b in enumerate(program.params[: program.n_inputs])]
