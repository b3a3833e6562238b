"""Kernels that do the same to other tensors: keys and values are projected, and their caches copied, alike.

Twins can be one kernel, whose blocks do what each of them did (`lower/merge_twins.py`); prices decide whether
they are (`cost/model.py:merged_twins`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from superopt.aliasing import read_before, updates_in_place
from superopt.operators import Move, move_of
from superopt.program import KernelGraph, Node, NodeKind, Value, producers
from superopt.transforms.fingerprints import kernel_fingerprint

_COPIES = (Move.CONCAT, Move.REPEAT, Move.UPDATE)


def twins(graph: KernelGraph) -> list[list[Node]]:
    """Custom kernels, tile programs and copies that are the same but for their tensors.

    None of a group needs what another makes, whether directly or by way of other groups.
    """
    alike: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if node.op in (NodeKind.CUSTOM, NodeKind.TILED) or move_of(node) in _COPIES:
            types = tuple((v.shape, v.dtype) for v in (*node.operands, *node.results))
            alike.setdefault((node.op, types), []).append(node)
    alike = {key: nodes for key, nodes in alike.items() if len(nodes) > 1}
    if not alike:
        return []
    in_place = updates_in_place(graph)
    same: dict[object, list[Node]] = {}
    for nodes in alike.values():
        for node in nodes:
            same.setdefault((_what(node), node in in_place), []).append(node)
    needed, number = _needed(graph.nodes), {n: i for i, n in enumerate(graph.nodes)}
    found: list[list[Node]] = []
    of: dict[Node, list[Node]] = {}
    for left in same.values():
        while len(left) > 1:
            group = _apart(left, needed, number)
            # Where all of them can be one, so can any of them.
            if in_order(graph.nodes, {**of, **dict.fromkeys(group, group)}) is None:
                group = left[:1]
                for node in left[1:]:
                    wider = _apart([*group, node], needed, number)
                    if in_order(graph.nodes, {**of, **dict.fromkeys(wider, wider)}) is not None:
                        group = wider
            left = [n for n in left if n not in group]
            if len(group) > 1:
                of.update(dict.fromkeys(group, group))
                found.append(group)
    return found


def _what(node: Node) -> object:
    """What a node does to its operands, of known types."""
    if node.body is not None:
        return kernel_fingerprint(node)
    # A copy, whose attributes are numbers: no need to write it as text.
    return tuple(map(node.operands.index, node.operands)), tuple(sorted(node.attrs.items()))


def _apart(nodes: Sequence[Node], needed: Mapping[Node, int], number: Mapping[Node, int]) -> list[Node]:
    """The first of the nodes, which stand in order, and each other that needs none of those taken before it."""
    taken, group = 0, list[Node]()
    for node in nodes:
        if not needed[node] & taken:
            taken |= 1 << number[node]
            group.append(node)
    return group


def _needed(nodes: Sequence[Node]) -> dict[Node, int]:
    """The numbers of the nodes that each node needs, by whatever way, as bits."""
    of_value: dict[Value, int] = {}
    found: dict[Node, int] = {}
    for number, node in enumerate(nodes):
        needed = 0
        for value in node.operands:
            needed |= of_value.get(value, 0)
        found[node] = needed
        of_value.update(dict.fromkeys(node.results, needed | 1 << number))
    return found


def in_order(nodes: Sequence[Node], of: Mapping[Node, list[Node]]) -> list[list[Node]] | None:
    """The nodes, those of one group together, after all that they need, and else as late as the last of them.

    `of` has the groups by their members. None where a group needs what it makes itself, or overwrites what it
    reads. What a node overwrites has been read by all that read it before.
    """
    position = {node: i for i, node in enumerate(nodes)}
    made_by = producers(nodes)
    units = {position[group[-1]]: group for group in (of.get(node, [node]) for node in nodes)}
    unit_of = {node: i for i, group in units.items() for node in group}
    needs = {
        i: {unit_of[made_by[v]] for node in group for v in node.operands if v in made_by}
        for i, group in units.items()
    }
    for i, readers in read_before(nodes).items():
        needs[unit_of[nodes[i]]].update(unit_of[nodes[reader]] for reader in readers)
    used_by: dict[int, list[int]] = {i: [] for i in units}
    for i, needed in needs.items():
        for other in needed:
            used_by[other].append(i)
    ready = [i for i, needed in needs.items() if not needed]
    heapify(ready)
    ordered: list[list[Node]] = []
    while ready:
        i = heappop(ready)
        ordered.append(units[i])
        for user in used_by[i]:
            needs[user].discard(i)
            if not needs[user]:
                heappush(ready, user)
    return ordered if len(ordered) == len(units) else None
