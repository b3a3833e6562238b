"""Sums beside maxima of the same elements in one form, so that a running maximum can rescale a running sum.

m = reduce_max x, dims, keepdims          m = reduce_max x, dims, keepdims
s = reduce_sum e, dims             ->     t = reduce_sum e, dims, keepdims;  s = reshape t
"""

from __future__ import annotations

from dataclasses import replace

from superopt.operators import infer_type, reduction_of
from superopt.program import Attr, KernelGraph, Node, Value


def with_kept_dims(graph: KernelGraph) -> KernelGraph:
    """`graph` with such sums; `graph` itself where it has none."""
    kept = {_reduced(n) for n in graph.nodes if reduction_of(n) == "max" and n.attrs.get("keepdims")}
    nodes: list[Node] = []
    for node in graph.nodes:
        if reduction_of(node) == "add" and not node.attrs.get("keepdims") and _reduced(node) in kept:
            attrs = {**node.attrs, "keepdims": True}
            whole = Value(infer_type(node.op, [v.type for v in node.operands], attrs), node.result.name)
            nodes.append(replace(node, results=(whole,), attrs=attrs))
            shape: dict[str, Attr] = {"shape": node.result.shape}
            node = Node("reshape", (whole,), node.results, shape, node.location)
        nodes.append(node)
    return replace(graph, nodes=nodes) if len(nodes) > len(graph.nodes) else graph


def _reduced(node: Node) -> tuple[tuple[int, ...], object]:
    """The shape of what a reduction reduces, and along which dimensions."""
    return node.operands[0].shape, node.attrs["dims"]
