"""`--sink-concats`: elementwise operators before concatenations: each part is computed where it is stored.

    r = concat(-b, a)                          u = -b * y[: k]
    z = r * y                         ->       v = a * y[k :]
                                               z = concat(u, v)

f(concat(x_1, ..., x_n), y) = concat(f(x_1, y_1), ..., f(x_n, y_n)) for an elementwise f, where y_i is what y has
at the place of x_i (all of y where y is broadcast along the dimension). A kernel stores the parts of a
concatenation side by side, but has to read a joined value from memory: the rotation of half a head in rotary
embeddings (Su et al., RoFormer, 2021, section 3.4) is one kernel then, and two before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

from superopt.axes import reshape_groups
from superopt.operators import OPERATORS, Move, infer_type, move_of, normalize_attrs
from superopt.program import Attr, KernelGraph, Node, Value, users
from superopt.transforms.passes import GraphPass

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics

MOST_PARTS = 4
"""A concatenation of more parts stays: every operator after it would be written as many times."""


@dataclass(frozen=True)
class SinkConcats(GraphPass):
    """Apply elementwise operators to the parts of a concatenation, and concatenate their results.

    Tile saturation starts from this form.
    """

    flag: ClassVar[str] = "sink-concats"

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph with concatenations after elementwise operators; `graph` itself where none is before one."""
        return sunk(graph)


def sunk(graph: KernelGraph) -> KernelGraph:
    """`graph` with every concatenation that only elementwise operators read behind these; itself without such."""
    joined = [n for n in graph.nodes if move_of(n) is Move.CONCAT and _sinks(graph, n)]
    return _Sinking(graph, {n.result for n in joined}).run() if joined else graph


def _sinks(graph: KernelGraph, node: Node) -> bool:
    """Whether a concatenation may move: elementwise operators are all that reads it."""
    readers = users(graph.nodes).get(node.result, [])
    few = len(node.operands) <= MOST_PARTS
    return few and bool(readers) and node.result not in graph.outputs and all(map(_is_elementwise, readers))


def _is_elementwise(node: Node) -> bool:
    entry = OPERATORS.get(node.op)
    return entry is not None and node.body is None and entry.elementwise and not entry.constant


@dataclass(frozen=True)
class _Parts:
    """The parts of a value along `dim`, counted from the last dimension (-1), as operands are broadcast."""

    dim: int
    values: tuple[Value, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(v.shape[self.dim] for v in self.values)


@dataclass
class _Sinking:
    graph: KernelGraph
    moving: set[Value]
    nodes: list[Node] = field(default_factory=list[Node])
    parts: dict[Value, _Parts] = field(default_factory=dict[Value, _Parts])
    made: dict[Value, Node] = field(default_factory=dict[Value, Node])

    def run(self) -> KernelGraph:
        readers = users(self.graph.nodes)
        for node in self.graph.nodes:
            if move_of(node) is Move.CONCAT and node.result in self.moving:
                dim = normalize_attrs(OPERATORS[node.op], node.attrs)["dim"]
                assert isinstance(dim, int)
                rank = len(node.result.shape)
                self.parts[node.result] = _Parts(dim % rank - rank, node.operands)
                continue
            split = next((p for v in node.operands if (p := self.parts.get(v))), None)
            if split is None:
                self._append(node)
                continue
            self.parts[node.result] = found = self._parted(node, split)
            below = readers.get(node.result, [])
            if node.result in self.graph.outputs or not below or not all(map(_is_elementwise, below)):
                attrs: dict[str, Attr] = {"dim": len(node.result.shape) + found.dim}
                self._append(Node("concat", found.values, node.results, attrs, node.location))
                del self.parts[node.result]
        return replace(self.graph, nodes=_live(self.nodes, self.graph.outputs))

    def _parted(self, node: Node, split: _Parts) -> _Parts:
        """The parts of an elementwise operator's result, one for each of `split`."""
        ends = list(accumulate(split.sizes))
        operands = [self._cut(v, split, ends, node) for v in node.operands]
        attrs = dict(node.attrs)
        return _Parts(
            split.dim,
            tuple(self._made(node.op, [o[i] for o in operands], attrs, node) for i in range(len(ends))),
        )

    def _cut(self, value: Value, split: _Parts, ends: list[int], near: Node) -> list[Value]:
        """What an operand has at the place of each part."""
        if -split.dim > len(value.shape) or value.shape[split.dim] == 1:
            return [value] * len(ends)
        known = self.parts.get(value)
        if known is not None and (known.dim, known.sizes) == (split.dim, split.sizes):
            return list(known.values)
        if known is not None:
            dim = {"dim": len(value.shape) + known.dim}
            value = self._made("concat", list(known.values), dim, near)
        return [
            self._slice(value, split.dim, end - n, n, near) for n, end in zip(split.sizes, ends, strict=True)
        ]

    def _slice(self, value: Value, dim: int, start: int, size: int, near: Node) -> Value:
        """`size` numbers of `value` from `start` on along `dim`, cut from what is stored: what elementwise
        operators and views make of it is made again."""
        if -dim > len(value.shape) or value.shape[dim] == 1:
            return value
        node, at = self.made.get(value), len(value.shape) + dim
        if node is not None and _is_elementwise(node):
            cut = [self._slice(v, dim, start, size, near) for v in node.operands]
            return self._made(node.op, cut, dict(node.attrs), node)
        if node is not None and (before := _dim_before(node, at)) is not None:
            (source,) = node.operands
            attrs = dict(node.attrs)
            if move_of(node) is Move.RESHAPE:
                attrs["shape"] = tuple(size if d == at else n for d, n in enumerate(value.shape))
            cut = [self._slice(source, before - len(source.shape), start, size, near)]
            return self._made(node.op, cut, attrs, node)
        offsets = tuple(start if d == at else 0 for d in range(len(value.shape)))
        sizes = tuple(size if d == at else n for d, n in enumerate(value.shape))
        strides = (1,) * len(value.shape)
        return self._made("slice", [value], {"offsets": offsets, "sizes": sizes, "strides": strides}, near)

    def _made(self, op: str, operands: list[Value], attrs: Mapping[str, Attr], near: Node) -> Value:
        for node in self.nodes:  # slices of the same value, for each part that reads it
            if node.op == op and node.operands == tuple(operands) and node.attrs == attrs:
                return node.result
        values = normalize_attrs(OPERATORS[op], attrs)
        result = Value(infer_type(op, [v.type for v in operands], values))
        self._append(Node(op, tuple(operands), (result,), dict(attrs), near.location))
        return result

    def _append(self, node: Node) -> None:
        self.nodes.append(node)
        self.made.update(dict.fromkeys(node.results, node))


def _dim_before(node: Node, dim: int) -> int | None:
    """Which dimension of its operand a transposition or a reshape has as its `dim`; None where it is no view or
    makes this dimension of others."""
    if move_of(node) is Move.RESHAPE:
        pairs = reshape_groups(node.operands[0].shape, node.result.shape)
        return next((a[0] for a, b in pairs if len(a) == 1 and b == [dim]), None)
    perm = normalize_attrs(OPERATORS[node.op], node.attrs).get("perm") if node.op in OPERATORS else None
    return int(perm[dim]) if isinstance(perm, tuple) else None


def _live(nodes: list[Node], outputs: list[Value]) -> list[Node]:
    """The nodes but for elementwise operators and moves that nothing reads any more."""
    read = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if read.isdisjoint(node.results) and (_is_elementwise(node) or move_of(node) is not None):
            continue
        read.update(node.operands)
        kept.append(node)
    return kept[::-1]
