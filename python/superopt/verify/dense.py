"""Programs whose dense constants are inputs, so that extents of constants shrink as any others do."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from superopt.operators import computed_of, is_constant
from superopt.program import KernelGraph, Node, Ramp, TensorType, Value

Key: TypeAlias = "tuple[str, tuple[int, ...], bytes]"


def without_dense(*programs: KernelGraph) -> list[KernelGraph]:
    """The programs with an input, after their own, for each dense constant of finite numbers; empty without any.

    A constant of the same numbers is the same input in all of them. If they are equal for all numbers, they are
    for these. The opposite does not hold: what they compute of the numbers alone is no number here.
    """
    keys = list(dict.fromkeys(k for graph in programs for node in graph.nodes if (k := _key(node))))
    return [_graph(graph, keys) for graph in programs] if keys else []


def _key(node: Node) -> Key | None:
    held = computed_of(node)
    value = held.elements(node.result.shape) if isinstance(held, Ramp) else node.attrs.get("value")
    if not is_constant(node) or not isinstance(value, np.ndarray) or not np.isfinite(value).all():
        return None
    return node.result.dtype, node.result.shape, np.broadcast_to(value, node.result.shape).tobytes()


def _graph(graph: KernelGraph, keys: list[Key]) -> KernelGraph:
    held: dict[Key, Value] = {}
    instead: dict[Value, Value] = {}
    for node in graph.nodes:
        if key := _key(node):
            instead[node.result] = held.setdefault(key, node.result)
    added = [held[k] if k in held else Value(TensorType(k[1], k[0])) for k in keys]
    nodes = [
        replace(node, operands=tuple(instead.get(v, v) for v in node.operands))
        for node in graph.nodes
        if not _key(node)
    ]
    outputs = [instead.get(v, v) for v in graph.outputs]
    return replace(graph, inputs=[*graph.inputs, *added], nodes=nodes, outputs=outputs)
