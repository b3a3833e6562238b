"""Kernels that do the same to other tensors: keys and values are projected, and their caches copied, alike.

Twins can be one kernel, whose blocks do what each of them did (`lower/merge_twins.py`); prices decide whether
they are (`cost/model.py:merged_twins`).
"""

from __future__ import annotations

from superopt.aliasing import updates_in_place
from superopt.operators import Move, move_of
from superopt.program import KernelGraph, Node, NodeKind, Value
from superopt.transforms.fingerprints import kernel_fingerprint

_COPIES = (Move.CONCAT, Move.REPEAT, Move.UPDATE)


def twins(graph: KernelGraph) -> list[list[Node]]:
    """Custom kernels, tile programs and copies that are the same but for their tensors, as far from the inputs.

    None of a group needs what another makes: there are as many kernels before each of them.
    """
    depth: dict[Value, int] = {}
    alike: dict[object, list[Node]] = {}
    for node in graph.nodes:
        before = max((depth.get(v, 0) for v in node.operands), default=0)
        view = move_of(node) is Move.RESHAPE
        depth.update(dict.fromkeys(node.results, before + (not view)))
        if node.op in (NodeKind.CUSTOM, NodeKind.TILED) or move_of(node) in _COPIES:
            types = tuple((v.shape, v.dtype) for v in (*node.operands, *node.results))
            alike.setdefault((before, node.op, types), []).append(node)
    found: list[list[Node]] = []
    in_place = updates_in_place(graph)
    for group in alike.values():
        if len(group) > 1:
            same: dict[object, list[Node]] = {}
            for node in group:
                same.setdefault((kernel_fingerprint(node), node in in_place), []).append(node)
            found += [nodes for nodes in same.values() if len(nodes) > 1]
    return found
