"""The value of a kernel graph's node on one tile: an expression on loads of what is stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import numpy as np

from superopt.errors import UnsupportedProgram
from superopt.operators import OPERATORS, normalize_attrs
from superopt.program import Node, Value
from superopt.transforms.tile_saturation.cut_axes import reduced_dims, reshape_groups
from superopt.transforms.tile_saturation.terms import (
    FULL,
    TermIndex,
    TermRegion,
    TermTensor,
    TermVar,
    ValueTerm,
)

Indices: TypeAlias = "tuple[TermIndex, ...]"

REDUCTIONS = {"reduce_sum": "reduce_sum", "reduce_mean": "reduce_sum", "reduce_max": "reduce_max"}


class TileValues:
    """Writes values: loads of inputs and of what is in `stored`, the rest computed from its operands."""

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
        rank = len(node.result.shape)
        if node.op == "constant":
            value = node.attrs["value"]
            if isinstance(value, np.ndarray):
                raise UnsupportedProgram("tile loops do not express dense constants", node.location)
            return ValueTerm("const", (), (("shape", ()), ("value", float(value))))  # pyright: ignore
        if node.op == "cast":  # numbers on chip are not rounded; what is stored has its tensor's dtype
            return self.value(node.operands[0], index)
        if node.op == "matmul":
            return self.product(node, index, FULL)
        if node.op in REDUCTIONS:
            dims = node.attrs["dims"]
            assert isinstance(dims, tuple)
            total = self.reduction(node, index, dict.fromkeys(dims, FULL))
            if node.op == "reduce_mean":
                count = math.prod(node.operands[0].shape[d] for d in dims)
                return ValueTerm("div", (total, number(float(count))))
            return total
        if node.op == "transpose":
            perm = node.attrs["perm"]
            assert isinstance(perm, tuple)
            inner = [FULL] * rank
            for d, source in enumerate(perm):
                inner[source] = index[d]
            return ValueTerm("transpose", (self.value(node.operands[0], tuple(inner)),), (("perm", perm),))
        if node.op == "slice":
            return self.slice(node, index)
        if node.op == "reshape":
            return self.reshape(node, index)
        if node.op == "broadcast":
            operand = self.aligned(node.operands[0], node.result, index)
            return ValueTerm("broadcast", (operand,), (("shape", self.shape(node.result, index)),))
        attrs = tuple(sorted(normalize_attrs(entry, node.attrs).items()))
        return ValueTerm(node.op, tuple(self.aligned(v, node.result, index) for v in node.operands), attrs)

    def aligned(self, operand: Value, result: Value, index: Indices) -> ValueTerm:
        """An operand that broadcasts to `result`."""
        shift = len(result.shape) - len(operand.shape)
        inner = tuple(
            FULL if operand.shape[d] == 1 and result.shape[d + shift] != 1 else index[d + shift]
            for d in range(len(operand.shape))
        )
        return self.value(operand, inner)

    def product(self, node: Node, index: Indices, k: TermIndex) -> ValueTerm:
        """A matrix product of tiles, `k` being what is taken of the contracted dimension."""
        a, b = node.operands
        rank = len(node.result.shape)

        def operand(value: Value, rows: TermIndex, columns: TermIndex, *, transposed: bool) -> ValueTerm:
            lead = len(value.shape) - 2
            batch = [FULL if value.shape[d] == 1 else index[d + rank - len(value.shape)] for d in range(lead)]
            last = (columns, rows) if transposed else (rows, columns)
            tile = self.value(value, (*batch, *last))
            if not transposed:
                return tile
            perm = (*range(lead), lead + 1, lead)
            return ValueTerm("transpose", (tile,), (("perm", perm),))

        left = operand(a, index[-2], k, transposed=bool(node.attrs.get("transpose_a")))
        right = operand(b, k, index[-1], transposed=bool(node.attrs.get("transpose_b")))
        return ValueTerm("matmul", (left, right))

    def reduction(self, node: Node, index: Indices, inner: dict[int, TermIndex]) -> ValueTerm:
        """The reduction of a tile, in the form of the node's result."""
        source = node.operands[0]
        rank = len(source.shape)
        operand = [inner.get(d, FULL) for d in range(rank)]
        for d, at in reduced_dims(node):
            operand[d] = index[at]
        tile = self.value(source, tuple(operand))
        dims = tuple(sorted(d - rank for d in inner))
        kept = ValueTerm(REDUCTIONS[node.op], (tile,), (("dims", dims),))
        if node.attrs.get("keepdims"):
            return kept
        return ValueTerm("reshape", (kept,), (("shape", self.shape(node.result, index)),))

    def slice(self, node: Node, index: Indices) -> ValueTerm:
        """The same tile of what a slice is taken of, further on."""
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
        """A slice of what is not stored is only expressed where elementwise operators stand between."""
        if OPERATORS[source.op].elementwise or source.op == "cast":
            return self.compute(source, index)
        raise UnsupportedProgram(f"tile loops do not express a slice of '{source.op}'", node.location)

    def reshape(self, node: Node, index: Indices) -> ValueTerm:
        """The tile that a reshape has at `index`, from the one that holds its elements."""
        source, result = node.operands[0], node.result
        inner: list[TermIndex] = [FULL] * len(source.shape)
        for left, right in reshape_groups(source.shape, result.shape):
            xs = [d for d in left if source.shape[d] > 1]
            ys = [d for d in right if result.shape[d] > 1]
            if len(xs) == 1 and len(ys) == 1:
                inner[xs[0]] = index[ys[0]]
            elif any(index[d].kind != "full" for d in ys):
                first = index[ys[0]]
                if any(index[d].kind != "full" for d in ys[1:]) or first.base:
                    raise UnsupportedProgram("tile loops do not express this cut of a reshape", node.location)
                # elem n of the outer part is tile n of the merged dimension, by the same variable.
                size = math.prod(source.shape[d] for d in xs) // math.prod(result.shape[d] for d in ys[:1])
                inner[xs[0]] = self.other_side(first, size, source.shape[xs[0]], node)
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
        """The shape of a tile, a variable standing for the width of its tiles."""
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


def number(value: float) -> ValueTerm:
    """A scalar."""
    return ValueTerm("const", (), (("shape", ()), ("value", value)))
