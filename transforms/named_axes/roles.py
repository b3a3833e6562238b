"""Computes an intermediate in two roles once for each.

    y = norm(x); y @ y^T        ->        y = norm(x); z = norm(x); y @ z^T

A tensor over named axes has each axis once, and `y @ y^T` would have the rows of y twice. So the nodes that
compute y are duplicated with their own axes; inputs have roles anyway. Where both roles get the same axes after
all, their operations become the same again (`name_axes.py`), and kernels of a plan that compute the same are
merged (`without_twins`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from superopt.program import Attr, BlockGraph, KernelGraph, Node, Value

# The most roles that are made.
MOST = 8


def separated(graph: KernelGraph, first_conflict: Callable[[KernelGraph], int | None]) -> KernelGraph | None:
    """`graph` with intermediates computed once for each role; None where that does not help.

    `first_conflict` gives the place of the first node with which some tensor gets an axis twice.
    """
    for _ in range(MOST):
        at = first_conflict(graph)
        if at is None:
            return graph
        better = (
            copied
            for position in reversed(range(len(graph.nodes[at].operands)))
            if (copied := _with_copy(graph, at, position)) is not None
        )
        # The node now follows the copies; what comes before it is free of conflicts.
        further = next(
            (g for g in better if _later(first_conflict(g), at + len(g.nodes) - len(graph.nodes))), None
        )
        if further is None:
            return None
        graph = further
    return graph if first_conflict(graph) is None else None


def _later(conflict: int | None, node: int) -> bool:
    return conflict is None or conflict > node


def _with_copy(graph: KernelGraph, at: int, position: int) -> KernelGraph | None:
    """`graph` with a second copy of what computes one operand of node `at`, for this use alone."""
    node = graph.nodes[at]
    producers = {v: n for n in graph.nodes[:at] for v in n.results}
    if node.operands[position] not in producers:
        return None
    needed = {node.operands[position]}
    cone: list[Node] = []
    for other in reversed(graph.nodes[:at]):
        if not needed.isdisjoint(other.results):
            cone.append(other)
            needed.update(other.operands)
    again: dict[Value, Value] = {}
    copies: list[Node] = []
    for other in reversed(cone):
        for value in other.results:
            again[value] = Value(value.type, value.name)
        operands = tuple(again.get(v, v) for v in other.operands)
        copies.append(replace(other, operands=operands, results=tuple(again[v] for v in other.results)))
    operands = list(node.operands)
    operands[position] = again[operands[position]]
    nodes = [*graph.nodes[:at], *copies, replace(node, operands=tuple(operands)), *graph.nodes[at + 1 :]]
    return replace(graph, nodes=nodes)


def without_twins(graph: KernelGraph) -> KernelGraph:
    """`graph` with nodes that compute the same from the same operands merged."""
    same: dict[Value, Value] = {}
    known: dict[object, tuple[Value, ...]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = replace(node, operands=tuple(same.get(v, v) for v in node.operands))
        key = (node.op, _text(node.attrs), tuple(map(id, node.operands)), _body(node))
        twin = known.setdefault(key, node.results)
        if twin is node.results or not set(graph.outputs).isdisjoint(node.results):
            nodes.append(node)
        else:
            same.update(zip(node.results, twin, strict=True))
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=nodes)


def _text(attrs: dict[str, Attr]) -> str:
    return repr(sorted(attrs.items(), key=lambda item: item[0]))


def _body(node: Node) -> object:
    """What a block graph computes, independent of the names of its values."""
    if not isinstance(node.body, BlockGraph):
        return None if node.body is None else id(node.body)
    numbers: dict[Value, int] = {}

    def numbered(values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(numbers.setdefault(v, len(numbers)) for v in values)

    block = node.body
    inputs = numbered(block.inputs)
    inside = tuple(
        (
            n.op,
            _text(n.attrs),
            numbered(n.operands),
            numbered(n.results),
            None if n.body is None else id(n.body),
        )
        for n in block.nodes
    )
    return block.grid, block.loops, inputs, inside
