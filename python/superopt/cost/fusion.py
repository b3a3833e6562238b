"""What a compiler fuses, as Inductor does: groups of operators that one kernel computes, and what each moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from superopt.aliasing import updates_in_place
from superopt.cost.gpus import Target
from superopt.cost.model import KernelCost, is_opaque_view, launches_nothing
from superopt.cost.traffic import Traffic, kernel_seconds
from superopt.operators import (
    OPERATORS,
    Move,
    is_constant,
    is_elementwise,
    move_of,
    normalize_attrs,
    reduction_of,
    splat_of,
)
from superopt.program import KernelGraph, Node, Value

# Elements that one block of an elementwise kernel has, and depth of a reduction from which blocks share it.
POINTS, LONG = 1024, 8192


@dataclass(eq=False)
class Group:
    """Operators that one kernel computes: elementwise ones, moves, reductions of one shape."""

    nodes: list[Node] = field(default_factory=list[Node])
    full: int = 0
    reduced: int | None = None

    def takes(self, other: Group) -> bool:
        """Whether the iteration spaces fit, as Inductor demands: one (rows, depth) for all reductions."""
        if self.reduced is None and other.reduced is None:
            return True
        if self.reduced is not None and other.reduced is not None:
            return (self.full, self.reduced) == (other.full, other.reduced)
        narrow, wide = (self, other) if self.reduced is None else (other, self)
        return narrow.full <= wide.full


class Fusion:
    """A program as groups of operators that a compiler fuses."""

    def __init__(self, graph: KernelGraph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.in_place = updates_in_place(graph)
        self.alias: dict[Value, Value] = {}
        self.made: dict[Value, Node] = {}
        for node in graph.nodes:
            if move_of(node) is Move.RESHAPE or (is_opaque_view(node) and len(node.results) == 1):
                self.alias[node.result] = self.root(node.operands[0])
            for value in node.results:
                self.made[value] = node
        self.nodes = [n for n in graph.nodes if not launches_nothing(n)]
        self.numbers = {n.result for n in graph.nodes if splat_of(n) is not None}
        self.uses: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(map(self.root, node.operands)):
                self.uses.setdefault(value, []).append(node)
        self.outputs = {self.root(v) for v in graph.outputs}
        self.group: dict[Node, Group] = {}
        self._fuse()

    def root(self, value: Value) -> Value:
        """The value whose elements a reshape shows."""
        return self.alias.get(value, value)

    def inputs(self, node: Node) -> list[Value]:
        """What `node` reads of memory, without numbers that the kernel knows."""
        values = dict.fromkeys(map(self.root, node.operands))
        return [v for v in values if (made := self.made.get(v)) is None or splat_of(made) is None]

    # --- groups

    def _fuse(self) -> None:
        for node in self.nodes:
            own = Group([node], *_space(node))
            self.group[node] = own
            if not is_fusible(node) or node in self.in_place:
                continue
            for value in self.inputs(node):
                producer = self.made.get(value)
                if producer is None or not is_fusible(producer) or producer in self.in_place:
                    continue
                before, now = self.group[producer], self.group[node]
                if before is not now and before.takes(now) and not self._around(before, now):
                    self._merge(before, now)

    def _merge(self, a: Group, b: Group) -> None:
        for node in b.nodes:
            self.group[node] = a
        a.nodes += b.nodes
        a.full = max(a.full, b.full)
        a.reduced = b.reduced if a.reduced is None else a.reduced

    def _around(self, a: Group, b: Group) -> bool:
        """Whether something outside both stands between them: joined, they would need it and feed it."""
        seen: set[Group] = set()
        inside = {a, b}
        open_groups = [g for x in inside for g in self._feeding(x) if g not in inside]
        while open_groups:
            group = open_groups.pop()
            if group in seen:
                continue
            seen.add(group)
            for before in self._feeding(group):
                if before in inside:
                    return True
                open_groups.append(before)
        return False

    def _feeding(self, group: Group) -> set[Group]:
        made = (self.made.get(v) for n in group.nodes for v in self.inputs(n))
        return {self.group[n] for n in made if n is not None and n in self.group} - {group}

    def order(self) -> list[Group]:
        """The groups, once each."""
        return list(dict.fromkeys(self.group[n] for n in self.nodes))

    def written(self, nodes: Iterable[Node], gone: frozenset[Node] = frozenset()) -> list[Value]:
        """What others than `nodes` read of their results."""
        inside = set(nodes)
        return [
            v
            for n in inside
            for v in n.results
            if v in self.outputs or any(u not in inside and u not in gone for u in self.uses.get(v, ()))
        ]

    # --- what a group moves

    def fused(
        self, nodes: Sequence[Node], gone: frozenset[Node] = frozenset(), *, placing: bool = False
    ) -> list[KernelCost]:
        """Elementwise operators, moves and reductions as one kernel; two where blocks share long reductions.

        With `placing`, products write their part of a concatenation themselves, as Inductor has them do.
        """
        if all(move_of(n) in (Move.TRANSPOSE, Move.SLICE) for n in nodes) and not self.outputs & {
            v for n in nodes for v in n.results
        }:
            return []  # strides of a view
        if not self.written(nodes, gone):
            return []
        traffic = self.traffic(nodes, gone, placing=placing)
        if not traffic.l2_bytes:
            return []
        name = "+".join(dict.fromkeys(n.op for n in nodes))
        parts = [KernelCost(name, kernel_seconds(traffic, self.target), traffic)]
        depth = max(
            (n.operands[0].type.elements // max(n.result.type.elements, 1) for n in nodes if _reduces(n)),
            default=1,
        )
        if traffic.blocks < self.target.multiprocessors and depth > LONG:
            wide = replace(
                traffic, blocks=min(traffic.blocks * (depth // LONG), 4 * self.target.multiprocessors)
            )
            join = Traffic(blocks=traffic.blocks)
            split = [KernelCost(name, kernel_seconds(wide, self.target), wide)]
            split.append(KernelCost("join", kernel_seconds(join, self.target), join))
            parts = min(parts, split, key=total_seconds)
        return parts

    def traffic(
        self,
        nodes: Sequence[Node],
        gone: frozenset[Node] = frozenset(),
        without: Value | None = None,
        *,
        placing: bool = False,
    ) -> Traffic:
        """What one kernel for `nodes` moves and computes, but for reading `without`."""
        inside = set(nodes)
        placed = self._placed(inside) if placing else set[Value]()
        read: dict[Value, int] = {}
        flops = special = 0
        full, blocks = 1, 0
        for node in nodes:
            for value in self.inputs(node):
                if self.made.get(value) in inside or value is without or value in placed:
                    continue
                size = node.result.type.bytes if move_of(node) is Move.SLICE else value.type.bytes
                read[value] = min(read.get(value, 0) + size, value.type.bytes)
            entry, shapes = OPERATORS[node.op], [v.shape for v in node.operands]
            attrs = normalize_attrs(entry, node.attrs)
            if move_of(node) is None:
                known = [i for i, v in enumerate(node.operands) if v in self.numbers]
                flops += entry.flops(shapes, attrs)
                special += entry.special(shapes, attrs, known)
            full = max(full, *(v.type.elements for v in (*node.operands, *node.results)))
            if _reduces(node):
                blocks = max(blocks, node.result.type.elements)
        size = sum(read.values()) + sum(v.type.bytes for v in self.written(nodes, gone))
        size -= sum(v.type.bytes for v in placed)
        points = -(-full // POINTS)
        return Traffic(
            size,
            size,
            vector_flops=flops,
            special_operations=special,
            blocks=min(blocks, points) if blocks else points,
        )

    def _placed(self, inside: set[Node]) -> set[Value]:
        """Results of products that only concatenations read, which are written out as they are."""
        joined = [
            n for n in inside if move_of(n) is Move.CONCAT and inside.isdisjoint(self.uses.get(n.result, ()))
        ]
        return {
            root
            for n in joined
            for root in map(self.root, n.operands)
            if root not in self.outputs and len(self.uses[root]) == 1 and n.operands.count(root) == 1
            if (made := self.made.get(root)) is not None and is_product(made)
        }


def total_seconds(parts: Iterable[KernelCost]) -> float:
    """Of kernels one after the other."""
    return sum(p.seconds for p in parts)


def _reduces(node: Node) -> bool:
    return reduction_of(node) is not None


def is_product(node: Node) -> bool:
    """Whether a library does it as a sum of products: a matrix product or a convolution."""
    entry = OPERATORS.get(node.op)
    return entry is not None and entry.combiner == "add" and entry.arity == 2


def is_fusible(node: Node) -> bool:
    """Whether compilers fuse it: it computes elements, moves or reduces them."""
    moved = move_of(node)
    plain = is_elementwise(node) or _reduces(node) or (moved is not None and moved is not Move.UPDATE)
    return plain and not is_constant(node)


def _space(node: Node) -> tuple[int, int | None]:
    """Points that a node iterates over, and those that it leaves where it reduces."""
    out = node.results[0].type.elements
    return (node.operands[0].type.elements, out) if _reduces(node) else (out, None)
