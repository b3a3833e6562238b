"""Thread graphs: elementwise chains of a block graph become one operation whose steps stay in registers.

    %a = block.add(%x, %y)              %s = fused(%x, %y) {
    %s = block.silu(%a)          ->       %a = thread.add(%x, %y)
                                          %s = thread.silu(%a)
                                        }

An elementwise node joins the elementwise node that is the only one to use its result, if both stand in the
same stage (inside or after the same loops) and give tiles of one shape. So nothing is computed twice, no cycle
can close, and what is left between thread graphs is what shared memory has to hold.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from superopt.diagnostics import Diagnostics
from superopt.operators import OPERATORS
from superopt.program import BlockGraph, KernelGraph, Node, ThreadGraph, Value
from superopt.spec import stages
from superopt.transforms.passes import GraphPass


@dataclass(frozen=True)
class FuseThreadGraphs(GraphPass):
    """Fuse elementwise chains of block graphs into thread graphs, which stay in registers."""

    flag: ClassVar[str] = "fuse-thread-graphs"

    min_ops: int = 2
    """Chains of fewer operators are left as they are."""

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph with the chains of its custom kernels fused."""
        nodes = [
            dataclasses.replace(n, body=self._fused(n.body)) if isinstance(n.body, BlockGraph) else n
            for n in graph.nodes
        ]
        return dataclasses.replace(graph, nodes=nodes)

    def _fused(self, block: BlockGraph) -> BlockGraph:
        nodes: list[Node] = []
        for chain in _chains(block):
            nodes += [_fused_node(chain)] if len(chain) >= max(self.min_ops, 2) else chain
        return dataclasses.replace(block, nodes=nodes)


def _chains(block: BlockGraph) -> list[list[Node]]:
    """The nodes, those that belong together in one list, in an order that respects every use."""
    stage = stages(block)
    uses = Counter(v for n in block.nodes for v in n.operands)
    chains: dict[int, list[Node]] = {}
    producers: dict[Value, int] = {}
    for i, node in enumerate(block.nodes):
        chain = [node]
        for operand in dict.fromkeys(node.operands):
            j = producers.get(operand)
            if j is None or not _elementwise(node) or uses[operand] != 1:
                continue
            producer = chains[j][-1]
            same = operand.shape == node.result.shape and stage[operand] == stage[node.result]
            if _elementwise(producer) and same:
                chain = [*chains.pop(j), *chain]
        chains[i] = chain
        producers.update(dict.fromkeys(node.results, i))
    return list(chains.values())


def _elementwise(node: Node) -> bool:
    entry = OPERATORS.get(node.op)
    return entry is not None and entry.elementwise


def _fused_node(chain: Sequence[Node]) -> Node:
    inside = {n.result for n in chain}
    operands = tuple(dict.fromkeys(v for n in chain for v in n.operands if v not in inside))
    last = chain[-1]
    arguments = {v: Value(v.type, v.name) for v in operands}
    steps: list[Node] = []
    for node in chain:
        arguments[node.result] = Value(node.result.type, node.result.name)
        taken = tuple(arguments[v] for v in node.operands)
        steps.append(dataclasses.replace(node, operands=taken, results=(arguments[node.result],)))
    body = ThreadGraph([arguments[v] for v in operands], steps, [arguments[last.result]])
    return Node("fused", operands, last.results, {}, last.location, body)
