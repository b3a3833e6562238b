"""The value of a kernel graph's node on one tile: an expression over loads of stored values."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from superopt.axes import reshape_groups
from superopt.errors import UnsupportedProgram
from superopt.operators import (
    OPERATORS,
    Move,
    Scalar,
    is_contraction,
    move_of,
    nest_of,
    normalize_attrs,
    splat_of,
)
from superopt.program import Node, Value
from superopt.transforms.tile_saturation.terms import (
    FULL,
    TermIndex,
    TermRegion,
    TermTensor,
    TermVar,
    ValueTerm,
    number,
)

Indices: TypeAlias = "tuple[TermIndex, ...]"


class TileValues:
    """Writes values: loads of inputs and of values in `stored`; the rest is computed from its operands."""

    def __init__(
        self,
        producer: Mapping[Value, Node],
        stored: Collection[Value],
        tensor: Callable[[Value], TermTensor],
    ) -> None:
        self.producer, self.stored, self.tensor = producer, stored, tensor

    def value(self, value: Value, index: Indices) -> ValueTerm:
        """The tile of `value` at `index`: a load, or its operator on tiles of its operands."""
        node = self.producer.get(value)
        if node is None or value in self.stored:
            return ValueTerm("load", region=TermRegion(self.tensor(value), index))
        return self.compute(node, index)

    def compute(self, node: Node, index: Indices) -> ValueTerm:
        """The operator of a node on tiles of its operands."""
        entry = OPERATORS[node.op]
        move = move_of(node)
        if entry.constant:
            value = splat_of(node)
            if value is None:
                raise UnsupportedProgram("tile loops do not express dense constants", node.location)
            return number(float(value))
        if entry.conversion:  # numbers on chip are not rounded; stored values have their tensor's dtype
            return self.value(node.operands[0], index)
        if move is Move.SLICE:
            return self.slice(node, index)
        if move is Move.RESHAPE:
            return self.reshape(node, index)
        nest = nest_of(node)
        assert nest is not None, "values without a nest are stored"
        if entry.combiner is not None:
            return finished(node, self.partial(node, index, dict.fromkeys(nest.reductions, FULL)))
        operands = tuple(self.operand(node, i, index) for i in range(len(node.operands)))
        if move is Move.BROADCAST:
            return ValueTerm(node.op, operands, (("shape", self.shape(node.result, index)),))
        return ValueTerm(node.op, operands, tuple(sorted(normalize_attrs(entry, node.attrs).items())))

    def operand(
        self, node: Node, number: int, index: Indices, reduced: Mapping[int, TermIndex] | None = None
    ) -> ValueTerm:
        """The tile of an operand that the node's nest reads for the result's tile at `index`.

        `reduced` gives the index of the nest's reduced dimensions.
        """
        nest = nest_of(node)
        assert nest is not None
        at = {dim: index[d] for d, dim in enumerate(nest.result) if dim is not None} | dict(reduced or {})
        maps = nest.operands[number]
        return self.value(node.operands[number], tuple(FULL if i.dim is None else at[i.dim] for i in maps))

    def partial(self, node: Node, index: Indices, reduced: Mapping[int, TermIndex]) -> ValueTerm:
        """What a contraction or reduction combines from one tile, in the form of the node's result."""
        if is_contraction(node):
            return self.product(node, index, reduced)
        rank = len(node.operands[0].shape)
        dims = tuple(sorted(d - rank for d in reduced))  # the nest's dimensions are the operand's
        tile = self.operand(node, 0, index, reduced)
        kept = ValueTerm(OPERATORS[node.op].partial, (tile,), (("dims", dims),))
        if node.attrs.get("keepdims"):
            return kept
        return ValueTerm("reshape", (kept,), (("shape", self.shape(node.result, index)),))

    def product(self, node: Node, index: Indices, reduced: Mapping[int, TermIndex]) -> ValueTerm:
        """A matrix product of tiles: rows and the contracted dimension (left), that and columns (right)."""
        nest = nest_of(node)
        assert nest is not None
        tiles: list[ValueTerm] = []
        for i, maps in enumerate(nest.operands):
            tile = self.operand(node, i, index, reduced)
            if maps[i - 2].dim in nest.reductions:
                lead = len(maps) - 2
                tile = ValueTerm("transpose", (tile,), (("perm", (*range(lead), lead + 1, lead)),))
            tiles.append(tile)
        return ValueTerm(node.op, tuple(tiles))

    def slice(self, node: Node, index: Indices) -> ValueTerm:
        """The same tile of the slice's operand, shifted by the offset."""
        offsets, sizes, strides = (node.attrs[n] for n in ("offsets", "sizes", "strides"))
        assert isinstance(offsets, tuple)
        assert isinstance(sizes, tuple)
        assert isinstance(strides, tuple)
        source = node.operands[0]
        inner: list[TermIndex] = []
        for d, at in enumerate(index):
            if strides[d] != 1:
                raise UnsupportedProgram("tile loops do not express strided slices", node.location)
            if sizes[d] == source.shape[d]:
                inner.append(at)
            elif at.kind == "full":
                inner.append(TermIndex("range", None, offsets[d], sizes[d]))
            elif at.kind == "block":
                raise UnsupportedProgram("tile loops do not express this slice", node.location)
            else:
                inner.append(TermIndex(at.kind, at.var, at.base + offsets[d], at.size))
        if source in self.producer and source not in self.stored and any(i.kind == "range" for i in inner):
            source_node = self.producer[source]
            return self.sliced(source_node, tuple(inner), node)
        return self.value(source, tuple(inner))

    def sliced(self, source: Node, index: Indices, node: Node) -> ValueTerm:
        """A slice of an unstored value is expressible only through elementwise operators."""
        if OPERATORS[source.op].elementwise:
            return self.compute(source, index)
        raise UnsupportedProgram(f"tile loops do not express a slice of '{source.op}'", node.location)

    def reshape(self, node: Node, index: Indices) -> ValueTerm:
        """The tile of a reshape at `index`, from the one that holds its elements."""
        source, result = node.operands[0], node.result
        inner: list[TermIndex] = [FULL] * len(source.shape)
        for left, right in reshape_groups(source.shape, result.shape):
            if len(left) == 1 and len(right) == 1:
                inner[left[0]] = index[right[0]]
            elif any(index[d].kind != "full" for d in right):
                first = index[right[0]]
                if any(index[d].kind != "full" for d in right[1:]) or first.base:
                    raise UnsupportedProgram("tile loops do not express this cut of a reshape", node.location)
                # elem n of the outer part is tile n of the merged dimension, by the same variable.
                size = math.prod(source.shape[d] for d in left) // result.shape[right[0]]
                inner[left[0]] = self.other_side(first, size, source.shape[left[0]], node)
        tile = self.value(source, tuple(inner))
        return ValueTerm("reshape", (tile,), (("shape", self.shape(result, index)),))

    def other_side(self, index: TermIndex, size: int, extent: int, node: Node) -> TermIndex:
        """Block i of `size` elements for element i of the outer part, or element i for block i."""
        var = index.var
        assert var is not None
        trips = -(-var.end // var.step) if var.step else 0
        if index.kind == "elem" and trips * size == extent:
            return (
                TermIndex("tile", var)
                if (var.end, var.step) == (extent, size)
                else TermIndex("block", var, 0, size)
            )
        if index.kind in ("tile", "block") and trips == extent:
            return TermIndex("elem", var)
        raise UnsupportedProgram("tile loops do not express this cut of a reshape", node.location)

    def shape(self, value: Value, index: Indices) -> tuple[int | TermVar, ...]:
        """The shape of a tile, with a variable for the width of its tiles."""
        out: list[int | TermVar] = []
        for d, at in enumerate(index):
            if at.kind == "full":
                out.append(value.shape[d])
            elif at.kind in ("range", "block"):
                out.append(at.size)
            elif at.kind == "elem":
                out.append(1)
            else:
                assert at.var is not None
                out.append(at.var.step or at.var)
        return tuple(out)


def finishes_parts(node: Node) -> bool:
    """Whether the node's finish may be applied to parts of a sum: it is a multiple of what is joined."""
    finish, nest = OPERATORS[node.op].finish, nest_of(node)

    def multiple(scalar: Scalar) -> bool:
        if scalar.head in ("mul", "div"):
            return multiple(scalar.args[0]) and scalar.args[1].head == "const"
        return scalar.head == "arg"

    if finish is None or nest is None:
        return True
    return OPERATORS[node.op].combiner == "add" and multiple(finish(nest.reduced))


def finished(node: Node, total: ValueTerm) -> ValueTerm:
    """The node's finish applied to what its combiner joined: all, or a part where `finishes_parts`."""
    finish, nest = OPERATORS[node.op].finish, nest_of(node)

    def term(scalar: Scalar) -> ValueTerm:
        if scalar.head == "arg":
            return total
        if scalar.head == "const":
            return number(scalar.payload)
        return ValueTerm(scalar.head, tuple(map(term, scalar.args)))

    return total if finish is None or nest is None else term(finish(nest.reduced))
