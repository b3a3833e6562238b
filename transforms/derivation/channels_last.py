"""Layouts with channels last along chains of convolutions and pooling, so that loads are runs of channels.

    y = relu(conv(x, w) + b)      ->     v = transpose(w)                             (k..., c, f)
    z = pool_max(y)                      y' = transpose(relu(conv(x, back(v)) + b))   (n, y..., f)
                                         z' = transpose(pool_max(back(y')))           (n, y..., f)
                                         z = back(z')

A transposition beside an operator on windows is part of its kernel (`window_groups`), so what is moved are
weights and, where an operator needs channels first, the ends of a chain. What follows element by element, sums
over positions and products with one matrix (convolutions by one position) go on with channels last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from superopt.axes import same_dimensions
from superopt.nests import Index
from superopt.operators import (
    OPERATORS,
    Move,
    infer_type,
    is_contraction,
    is_elementwise,
    is_windowed,
    move_of,
    nest_of,
    reduction_of,
)
from superopt.program import Attr, KernelGraph, Node, Value, live_nodes, producers, users
from superopt.transforms.partition.segments import in_order
from superopt.transforms.window_groups import is_channels_last, window_groups


def channels_last(graph: KernelGraph) -> KernelGraph | None:
    """`graph` with channels last wherever operators on windows feed each other; None where there are none."""
    return _ChannelsLast(graph).run()


class _ChannelsLast:
    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        # Values with channels last, by the value of the program; and those moved back for other operators.
        self.last: dict[Value, Value] = {}
        self.first: dict[Value, Value] = {}
        self.weights: dict[tuple[Value, tuple[int, ...]], Value] = {}

    def run(self) -> KernelGraph | None:
        groups = [g for g in window_groups(self.graph.nodes, self.graph.outputs) if _spatial(g)]
        if not groups:
            return None
        inside = {n: g for g in groups for n in g}
        for node in self.graph.nodes:
            if node not in inside:
                self.other(node)
            elif node is inside[node][-1]:
                self.windows(inside[node])
        outputs = [self.back(v) for v in self.graph.outputs]
        nodes = _not_there_and_back(in_order(self.nodes), outputs, set(self.first.values()))
        return replace(self.graph, nodes=nodes, outputs=outputs)

    def emit(self, op: str, operands: Sequence[Value], attrs: dict[str, Attr], name: str = "") -> Value:
        result = Value(infer_type(op, [v.type for v in operands], attrs), name)
        self.nodes.append(Node(op, tuple(operands), (result,), attrs, self.location))
        return result

    def turned(self, value: Value, perm: Sequence[int]) -> Value:
        return self.emit("transpose", [value], {"perm": tuple(perm)})

    def back(self, value: Value) -> Value:
        """The value with channels first, moved once for all that need it so."""
        if value not in self.last:
            return value
        if value not in self.first:
            rank, moved = len(value.shape), self.last[value]
            perm = (0, rank - 1, *range(1, rank - 1))
            self.first[value] = self.emit("transpose", [moved], {"perm": perm}, value.name)
        return self.first[value]

    # --- operators on windows

    def windows(self, group: Sequence[Node]) -> None:
        """The group with its operands as they lie in memory, and its result with channels last."""
        self.location = group[0].location
        made: dict[Value, Value] = {}
        for node in group:
            operands: list[Value] = []
            for number, value in enumerate(node.operands):
                if value not in made and value in self.last:
                    rank = len(value.shape)
                    made[value] = self.turned(self.last[value], (0, rank - 1, *range(1, rank - 1)))
                if value not in made and number == 1 and is_windowed(node):
                    made[value] = self.weight(node, value)
                operands.append(made.get(value, value))
            result = made[node.result] = Value(node.result.type, node.result.name)
            self.nodes.append(replace(node, operands=tuple(operands), results=(result,)))
        end = group[-1].result
        self.last[end] = self.turned(made[end], (0, *range(2, len(end.shape)), 1))

    def weight(self, node: Node, value: Value) -> Value:
        """A weight, laid out as (k..., c, f) and read from there."""
        nest = nest_of(node)
        assert nest is not None
        rest = [
            i for i, index in enumerate(nest.operands[1]) if not _runs_along(index, {1, nest.reductions[0]})
        ]
        column = [i for i, index in enumerate(nest.operands[1]) if _runs_along(index, {1}) and i not in rest]
        depth = [i for i in range(len(value.shape)) if i not in rest and i not in column[:1]]
        perm = (*rest, *depth, *column[:1])
        if (value, perm) not in self.weights:
            self.weights[value, perm] = self.turned(value, perm)
        return self.turned(self.weights[value, perm], [perm.index(d) for d in range(len(perm))])

    # --- what goes on with channels last

    def other(self, node: Node) -> None:
        self.location = node.location
        if len(node.results) == 1 and any(v in self.last for v in node.operands) and self.follows(node):
            return
        operands = tuple(map(self.back, node.operands))
        self.nodes.append(replace(node, operands=operands))

    def follows(self, node: Node) -> bool:
        """Compute the node from values with channels last; False where it needs channels first."""
        shape, attrs = node.result.shape, dict(node.attrs)
        rank = len(shape)
        entry = OPERATORS.get(node.op)
        if entry is None:
            return False
        if is_elementwise(node) and rank >= 3:
            operands = [self.beside(v, shape) for v in node.operands]
            whole = [v for v in operands if v is not None]
            if len(whole) < len(operands):
                return False
            self.last[node.result] = self.emit(node.op, whole, attrs, node.result.name)
            return True
        moved = self.last.get(node.operands[0])
        if moved is not None and reduction_of(node) is not None:
            dims, before = attrs["dims"], len(node.operands[0].shape)
            assert isinstance(dims, tuple)
            if min(dims) < 2 or attrs.get("keepdims", False) or len(dims) < before - 2:
                return False
            made = self.emit(node.op, [moved], {**attrs, "dims": tuple(d - 1 for d in dims)})
            self.nodes.append(Node("reshape", (made,), node.results, {"shape": shape}, node.location))
            return True
        if moved is not None and move_of(node) is Move.RESHAPE and rank >= 3:
            before = node.operands[0].shape
            if before[:2] != shape[:2] or same_dimensions(before[:2], shape[:2]) is None:
                return False
            self.last[node.result] = self.emit(
                "reshape", [moved], {"shape": (shape[0], *shape[2:], shape[1])}
            )
            return True
        if move_of(node) is Move.CONCAT and rank >= 3 and attrs["dim"] == 1:
            found = [self.last[v] for v in node.operands if v in self.last]
            if len(found) < len(node.operands):
                return False
            self.last[node.result] = self.emit(node.op, found, {"dim": rank - 1}, node.result.name)
            return True
        if is_contraction(node) and rank == 3 and len(node.operands[0].shape) == 2:
            x = self.last.get(node.operands[1])
            if x is None or attrs.get("transpose_b", False):
                return False
            flags: dict[str, Attr] = {"transpose_b": not attrs.get("transpose_a", False)}
            self.last[node.result] = self.emit(node.op, [x, node.operands[0]], flags, node.result.name)
            return True
        return False

    def beside(self, value: Value, shape: Sequence[int]) -> Value | None:
        """An operand of an elementwise operator whose result of this shape has channels last; None where it is
        neither so laid out nor one number for each channel.
        """
        if value in self.last and len(value.shape) == len(shape):
            return self.last[value]
        aligned = (1,) * (len(shape) - len(value.shape)) + tuple(value.shape)
        if value.type.elements == 1:
            return value if not value.shape else self.emit("reshape", [value], {"shape": ()})
        if aligned[1] == value.type.elements and math.prod(aligned[2:]) == 1:
            return self.emit("reshape", [self.back(value)], {"shape": (aligned[1],)})
        return None


def _spatial(group: Sequence[Node]) -> bool:
    """Whether a group is an operator from images to images, with what follows it, in no layout of its own."""
    (node,) = filter(is_windowed, group)
    nest, joins = nest_of(node), OPERATORS[node.op].combiner is not None
    assert nest is not None
    same = len(node.operands[0].shape) == len(node.result.shape) and nest.result[1:2] == (1,)
    same &= any(index.atoms for index in nest.operands[0][2:])
    return joins and same and not any(move_of(n) is Move.TRANSPOSE for n in group)


def _not_there_and_back(nodes: Sequence[Node], outputs: Sequence[Value], back: set[Value]) -> list[Node]:
    """The live nodes, where what is needed with channels first alone is not moved to the end and `back`."""
    live = live_nodes(nodes, outputs)
    made, used = producers(live), users(live)
    same: dict[Value, Value] = {}
    for node in live:
        before = made.get(node.operands[0]) if node.results[0] in back else None
        if before is not None and is_channels_last(before) and used[before.result] == [node]:
            same[before.operands[0]] = node.result
    gone = {made[v] for v in same.values()} | {used[v][0] for v in same}
    return [
        replace(
            n,
            results=tuple(same.get(v, v) for v in n.results),
            operands=tuple(same.get(v, v) for v in n.operands),
        )
        for n in live
        if n not in gone
    ]


def _runs_along(index: Index, dims: set[int]) -> bool:
    return not dims.isdisjoint(index.dims)
