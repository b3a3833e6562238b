"""Thread graphs: parts of a block graph become one operation whose steps stay in registers (Mirage, section 4.2).

    %a = block.add(%x, %y)              %s = fused(%x, %y) {
    %s = block.silu(%a)          ->       %a = thread.add(%x, %y)
                                          %s = thread.silu(%a)
                                        }

What is fused, if all of it is in one stage (inside or after the same loops):

elementwise    a node joins the users of its result, if all are in one thread graph and on tiles of its shape:
               each thread computes the same points in every step
reductions     a reduction ends the thread graph whose result only it uses: each thread reduces its own points
constants      a splat that a step uses becomes a number in it

A thread graph has one result, so nothing is computed twice, no cycle can close, and only the values between
thread graphs have to be in shared memory. Row values that are broadcast to a tile do not join: they cross
threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from superopt.diagnostics import Diagnostics
from superopt.operators import is_constant, is_elementwise, reduction_of, splat_of
from superopt.program import BlockGraph, KernelGraph, Node, NodeKind, ThreadGraph, Value, rebuild, users
from superopt.spec import stages
from superopt.transforms.passes import GraphPass


@dataclass(frozen=True)
class FuseThreadGraphs(GraphPass):
    """Fuse elementwise operators and reductions of block graphs into thread graphs, which stay in registers."""

    flag: ClassVar[str] = "fuse-thread-graphs"

    min_ops: int = 2
    """Minimum number of operators to fuse, not counting constants."""

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph with thread graphs in its custom kernels."""
        return rebuild(
            graph, lambda n: replace(n, body=self._fused(n.body)) if isinstance(n.body, BlockGraph) else n
        )

    def _fused(self, block: BlockGraph) -> BlockGraph:
        nodes: list[Node] = []
        splats = {n.result: n for n in block.nodes if splat_of(n) is not None}
        for graph in _thread_graphs(block):
            nodes += [_fused_node(graph, splats)] if len(graph) >= max(self.min_ops, 2) else graph
        used = {v for n in nodes for v in n.operands}
        return replace(block, nodes=[n for n in nodes if not is_constant(n) or n.result in used])


def _thread_graphs(block: BlockGraph) -> list[list[Node]]:
    """The nodes, those of one thread graph in one list, in an order that respects all uses."""
    stage = stages(block)
    used_by = users(block.nodes)
    last: dict[Node, Node] = {}  # from each node to the one that computes its thread graph's result
    for node in reversed(block.nodes):
        if not _by_points(node):
            continue
        ends = {last.get(u, u) for u in used_by.get(node.result, ())}
        end = next(iter(ends)) if len(ends) == 1 else node
        joins = end in last and is_elementwise(node) and _points(end) == node.result.shape
        last[node] = end if joins and stage[end.result] == stage[node.result] else node
    members: dict[Node, list[Node]] = defaultdict(list)
    for node in block.nodes:
        members[last.get(node, node)].append(node)
    return [members[node] for node in block.nodes if node in members]


def _by_points(node: Node) -> bool:
    """Whether a thread can compute its points of the node alone: elementwise, or a reduction."""
    return is_elementwise(node) or reduction_of(node) is not None


def _points(node: Node) -> tuple[int, ...]:
    """The shape of the points that the threads of a node share."""
    return node.result.shape if is_elementwise(node) else node.operands[0].shape


def _fused_node(graph: Sequence[Node], splats: Mapping[Value, Node]) -> Node:
    inside = {n.result for n in graph}
    used = list(dict.fromkeys(v for n in graph for v in n.operands if v not in inside))
    operands = tuple(v for v in used if v not in splats)
    steps: list[Node] = []
    arguments = {v: Value(v.type, v.name) for v in operands}
    for node in [*(splats[v] for v in used if v in splats), *graph]:
        arguments[node.result] = Value(node.result.type, node.result.name)
        taken = tuple(arguments[v] for v in node.operands)
        steps.append(replace(node, operands=taken, results=(arguments[node.result],)))
    last = graph[-1]
    body = ThreadGraph([arguments[v] for v in operands], steps, [arguments[last.result]])
    return Node(NodeKind.FUSED, operands, last.results, {}, last.location, body)
