"""Programs without their opaque operations, whose results become inputs and whose operands become outputs.

If these agree for all inputs, so do the programs: along the nodes of the first one, the operands of each opaque
operation are then equal to those of its partner, and so are its results, as it is a function. (Cut points of
combinational equivalence checking, as in Kuehlmann and Krohm, DAC'97.) What an extent means to such an operation
no longer matters, so all that surrounds it can be compared at reduced extents. Programs that differ without their
opaque operations prove nothing: two operations may have equal operands, and so share their results.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from superopt.program import KernelGraph, Node, NodeKind, is_conversion, opaque_key


def without_opaque(*programs: KernelGraph) -> list[KernelGraph]:
    """The programs without opaque operations; empty where these are none, or not the same in all programs.

    Their first inputs and outputs are those of the programs, then follow, in one order for all of them, the
    results and operands of the operations. Conversions stay.
    """
    found = [_by_key(graph) for graph in programs]
    keys = sorted(found[0])
    numbers = [{k: len(nodes) for k, nodes in f.items()} for f in found]
    if not keys or any(n != numbers[0] for n in numbers):
        return []
    opaque = [[node for k in keys for node in f[k]] for f in found]
    inputs = [
        [*graph.inputs, *(v for node in nodes for v in node.results)]
        for graph, nodes in zip(programs, opaque, strict=True)
    ]
    operands = [[v for node in nodes for v in node.operands] for nodes in opaque]
    places = [{v: i for i, v in enumerate(values)} for values in inputs]
    differ = [
        len({p.get(v, -1) for v, p in zip(slot, places, strict=True)}) > 1 or slot[0] not in places[0]
        for slot in zip(*operands, strict=True)
    ]
    made: list[KernelGraph] = []
    for graph, nodes, starts, ends in zip(programs, opaque, inputs, operands, strict=True):
        left = [node for node in graph.nodes if node not in {*nodes}]
        outputs = [*graph.outputs, *(v for v, needed in zip(ends, differ, strict=True) if needed)]
        made.append(replace(graph, inputs=starts, nodes=left, outputs=outputs, aliases=()))
    return made


def _by_key(graph: KernelGraph) -> dict[str, list[Node]]:
    """Opaque operations, in order, by what they compute from which types."""
    found: defaultdict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == NodeKind.EXTERN and not is_conversion(node):
            types = [str(v.type) for v in (*node.operands, *node.results)]
            found[f"{opaque_key(node)} {types}"].append(node)
    return found
