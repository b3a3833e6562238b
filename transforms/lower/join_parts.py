"""Reductions that custom kernels compute of what they read: the parts of a product that blocks share, say.

%s = reduce_sum(%p) dims [0]               custom(%p) {
custom(%s) {                                 %t = iterator(%p) imap [2]
  %t = iterator(%s) imap [1]          ->     %u = reduce_sum(%t) dims [0]
  f(%t)                                      f(%u)
}                                          }

A kernel of its own costs a launch, and writes what the next one reads. Where segments meet, no search has seen
both. Every block that reads an element joins its parts again, so predicted seconds decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from superopt.cost import Target, cost
from superopt.cost import target as find_target
from superopt.cost.gpus import DEFAULT_TARGET, TargetName
from superopt.diagnostics import Diagnostics
from superopt.errors import IllegalProgram
from superopt.operators import OPERATORS, Move, move_of, normalize_attrs, reduction_of
from superopt.program import (
    Attr,
    BlockGraph,
    KernelGraph,
    Node,
    NodeKind,
    TensorType,
    Value,
    live_nodes,
    rebuild,
    users,
)
from superopt.spec import check_kernel
from superopt.transforms.passes import GraphPass


@dataclass(frozen=True)
class JoinParts(GraphPass):
    """Let custom kernels reduce what they read where that is predicted to be faster than a kernel that does."""

    flag: ClassVar[str] = "join-parts"

    target: TargetName = DEFAULT_TARGET
    """The GPU whose cost model and shared memory decide."""

    def __post_init__(self) -> None:
        find_target(self.target)

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph with fewer reductions."""
        return join_parts(graph, find_target(self.target))


def join_parts(graph: KernelGraph, target: Target) -> KernelGraph:
    """`graph` without the reductions that are predicted to take less inside the custom kernels that read them."""
    for node in graph.nodes:
        if reduction_of(node) is None or (made := _joined(graph, node)) is None:
            continue
        try:
            check_kernel(made, target.shared_per_block)
        except IllegalProgram:
            continue
        if cost(made, target).seconds < cost(graph, target).seconds:
            graph = made
    return graph


def _joined(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """`graph` with the reduction `node` in the custom kernels that read it; None where others do, too."""
    used = users(graph.nodes)
    views = [node]
    while len(found := used.get(views[-1].result, [])) == 1 and move_of(found[0]) is Move.RESHAPE:
        views.append(found[0])
    readers = list(dict.fromkeys(used.get(views[-1].result, [])))
    if not readers or any(not isinstance(n.body, BlockGraph) for n in readers):
        return None
    if any(view.result in graph.outputs for view in views):
        return None
    (parts,), attrs = node.operands, normalize_attrs(OPERATORS[node.op], node.attrs)
    dims = attrs["dims"]
    assert isinstance(dims, tuple)
    before: list[Node] = []
    if len(views) > 1:  # a view of the sum is the sum of views where the parts are the first dimension
        if dims != (0,):
            return None
        viewed = Value(TensorType((parts.shape[0], *views[-1].result.shape), parts.dtype), parts.name)
        before = [Node(views[-1].op, (parts,), (viewed,), {"shape": viewed.shape}, node.location)]
        parts, attrs = viewed, {**attrs, "keepdims": False}

    def change(at: Node) -> list[Node]:
        if at in readers:
            return [_reading(at, views[-1].result, parts, node.op, attrs)]
        return before if at is views[-1] else [at]

    made = rebuild(graph, change)
    return replace(made, nodes=live_nodes(made.nodes, graph.outputs))


def _reading(reader: Node, value: Value, parts: Value, op: str, attrs: dict[str, Attr]) -> Node:
    """The custom kernel `reader` with `parts` in place of their reduction `value`."""
    block = reader.body
    assert isinstance(block, BlockGraph)
    inside = {b for b, v in zip(block.inputs, reader.operands, strict=True) if v is value}
    fresh = {b: Value(parts.type, b.name) for b in inside}
    dims, keeps = attrs["dims"], attrs["keepdims"]
    assert isinstance(dims, tuple)
    kept = [d for d in range(len(parts.shape)) if keeps or d not in dims]

    def change(node: Node) -> list[Node]:
        if node.op != NodeKind.ITERATOR or node.operands[0] not in inside:
            return [node]
        sizes = dict(zip(kept, node.result.shape, strict=True))
        shape = tuple(n if d in dims else sizes[d] for d, n in enumerate(parts.shape))
        tile = Value(TensorType(shape, parts.dtype), node.result.name)
        maps: dict[str, Attr] = {key: _through(node, key, kept) for key in ("imap", "fmap")}
        taken = replace(node, operands=(fresh[node.operands[0]],), results=(tile,), attrs=maps)
        return [taken, Node(op, (tile,), node.results, attrs, node.location)]

    body = replace(rebuild(block, change), inputs=[fresh.get(b, b) for b in block.inputs])
    operands = tuple(parts if v is value else v for v in reader.operands)
    return replace(reader, operands=operands, body=body)


def _through(node: Node, key: str, kept: Sequence[int]) -> tuple[int, ...]:
    """The map `key` of an iterator, by the dimensions before the reduction that keeps `kept`."""
    dims = node.attrs[key]
    assert isinstance(dims, tuple)
    return tuple(d if d < 0 else kept[d] for d in dims)
