"""A block graph with other grid and loop extents: the same operators on other tiles.

Dimensions that operators iterate together form a class; iterators say what becomes of theirs, and reshapes that
merge dimensions pass it on. What a class cannot express, such as a slice of a tile, keeps its extents. A result
is a guess that the verifier has to confirm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from superopt.axes import Classes, Dim, reshape_groups, walked_together
from superopt.operators import Move, is_constant, move_of, nest_of
from superopt.program import CARRIED, Attr, BlockGraph, Node, NodeKind, TensorType, Value
from superopt.spec import iterator_type


class CannotResize(Exception):
    """The block graph cannot have the requested extents."""


def resized(node: Node, grid: Sequence[int], loops: Sequence[int]) -> Node:
    """The `custom` node with these extents; raises CannotResize, and IllegalProgram for maps that do not fit."""
    block = node.body
    assert isinstance(block, BlockGraph)
    if len(grid) != len(block.grid) or len(loops) != len(block.loops):
        raise CannotResize("expected as many extents as there are")
    return replace(node, body=_Resize(block, tuple(grid), tuple(loops)).run())


def _follows(node: Node) -> bool:
    """Whether the result of `node` has its operands' extents, dimension by dimension."""
    nest = None if node.body is not None else nest_of(node)
    return nest is not None and nest.plain and move_of(node) not in (Move.SLICE, Move.CONCAT)


@dataclass
class _Resize:
    block: BlockGraph
    grid: tuple[int, ...]
    loops: tuple[int, ...]
    joined: Classes[Dim] = field(default_factory=Classes[Dim])
    fixed: list[Dim] = field(default_factory=list[Dim])
    merges: list[tuple[list[Dim], Dim]] = field(default_factory=list[tuple[list[Dim], Dim]])
    extents: dict[Dim, int] = field(default_factory=dict[Dim, int])
    """The new extents of classes, by what represents them."""

    def run(self) -> BlockGraph:
        made = replace(self.block, grid=self.grid, loops=self.loops)
        for node in self.block.nodes:
            self._collect(node)
        for node in self.block.nodes:
            if node.op == NodeKind.ITERATOR:
                self._cut(node, made)
        while self._passed_on():
            pass
        if any(self._new(dim) != dim[0].shape[dim[1]] for dim in self.fixed):
            raise CannotResize("expected tiles that operators can take in other sizes")
        values: dict[Value, Value] = {v: v for v in self.block.inputs}
        nodes: list[Node] = []
        for node in self.block.nodes:
            for result in node.results:
                shape = tuple(self._new((result, d)) for d in range(len(result.shape)))
                values[result] = Value(TensorType(shape, result.dtype), result.name)
            attrs: dict[str, Attr] = dict(node.attrs)
            if "shape" in attrs:
                attrs["shape"] = values[node.result].shape
            operands, results = (tuple(values[v] for v in of) for of in (node.operands, node.results))
            nodes.append(replace(node, operands=operands, results=results, attrs=attrs))
        return replace(made, nodes=nodes)

    def _collect(self, node: Node) -> None:
        """What `node` says of dimensions."""
        if node.op in (NodeKind.ITERATOR, NodeKind.SAVE) or is_constant(node):
            return
        if node.op in CARRIED:
            along = node.attrs["dim"] if node.attrs.get("kind") == "concat" else None
            for d in range(len(node.result.shape)):
                if d != along:
                    self.joined.join((node.operands[0], d), (node.result, d))
            for scale in node.operands[1:]:
                for d, extent in enumerate(scale.shape):
                    if extent == node.result.shape[d] != 1:
                        self.joined.join((scale, d), (node.result, d))
        elif move_of(node) is Move.RESHAPE:
            self._reshape(node.operands[0], node.result)
        elif _follows(node):
            for a, b in walked_together(node):
                self.joined.join(a, b)
        else:
            self.fixed += [(v, d) for v in (*node.operands, *node.results) for d in range(len(v.shape))]

    def _reshape(self, source: Value, result: Value) -> None:
        for kept, made in reshape_groups(source.shape, result.shape):
            before: list[Dim] = [(source, d) for d in kept]
            after: list[Dim] = [(result, d) for d in made]
            if len(before) == len(after) == 1:
                self.joined.join(before[0], after[0])
            elif len(before) == 1 or len(after) == 1:
                self.merges.append((before, after[0]) if len(after) == 1 else (after, before[0]))
            else:
                self.fixed += [*before, *after]

    def _cut(self, node: Node, made: BlockGraph) -> None:
        """What the new extents make of an iterator's tile; where those that cut a dimension stay, so does it."""
        now = node.result.shape
        before = iterator_type(node.operands[0].type, node, self.block).shape
        after = iterator_type(node.operands[0].type, node, made).shape
        for d, extent in enumerate(after):
            if extent != before[d]:
                self._set((node.result, d), extent)
            elif now[d] > 1:  # another iterator of its class must not say otherwise
                self._set((node.result, d), now[d])

    def _set(self, dim: Dim, extent: int) -> bool:
        """Let a class have a new extent; gives whether that is news."""
        root = self.joined.find(dim)
        if (known := self.extents.get(root)) is not None and known != extent:
            raise CannotResize("expected one extent for dimensions that operators iterate together")
        self.extents[root] = extent
        return known is None

    def _new(self, dim: Dim) -> int:
        value, d = dim
        return self.extents.get(self.joined.find(dim), value.shape[d])

    def _passed_on(self) -> bool:
        """Pass new extents through reshapes and concatenating loops; gives whether that brought news."""
        news = False
        for parts, whole in self.merges:
            product = 1
            for part in parts:
                product *= self._new(part)
            if product != self._new(whole):
                if self.joined.find(whole) not in self.extents:
                    news |= self._set(whole, product)
                else:
                    news |= self._set_first(parts, self._new(whole), product)
        for node in self.block.nodes:
            if node.op in CARRIED and node.attrs.get("kind") == "concat":
                d, loop = node.attrs["dim"], node.attrs["loop"]
                assert isinstance(d, int)
                assert isinstance(loop, int)
                extent = self._new((node.operands[0], d)) * self.loops[loop]
                if extent != self._new((node.result, d)):
                    news |= self._set((node.result, d), extent)
        return news

    def _set_first(self, parts: Sequence[Dim], whole: int, product: int) -> bool:
        """Let the outermost of merged dimensions change with the whole."""
        first, rest = parts[0], product // self._new(parts[0])
        if whole % rest:
            raise CannotResize(f"expected {rest} to divide {whole}")
        return self._set(first, whole // rest)
