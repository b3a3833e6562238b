"""Hierarchical tiling: splits a dimension that reshapes cut in three or more parts into one for each.

    q = reshape(x @ wq, tokens, groups, each, width)        q[g, e] = x @ wq[:, g, e]
    c = reshape(q, groups, each * tokens, width) @ k   ->   c[g, e] = q[g, e] @ k[g]

Grouped-query attention is an example: a head is a group and a place in it, and the grid runs over both.
Reshapes move to the program's inputs and outputs, where they are views that cost nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.axes import reshape_groups
from superopt.errors import UnsupportedProgram
from superopt.operators import (
    OPERATORS,
    Move,
    infer_type,
    is_contraction,
    move_of,
    normalize_attrs,
    reduction_of,
)
from superopt.program import Attr, KernelGraph, Node, TensorType, Value, live_nodes
from superopt.transforms.tile_saturation.cut_axes import CutAxes, ints

# The last part of a dimension stays whole up to this extent: it is a head's width.
WHOLE = 256


class _Refused(Exception):
    """The dimensions of this program cannot be kept apart."""


@dataclass(frozen=True)
class Unmerged:
    """A graph whose inputs and outputs may have other shapes, with the same elements in the same order."""

    graph: KernelGraph
    whole: frozenset[tuple[Value, int]] = frozenset()
    """The innermost parts of dimensions, as (value, dimension), such as a head's width, which are not cut."""


def unmerged(graph: KernelGraph) -> Unmerged:
    """`graph` with its dimensions split; unchanged where none is cut in three, or they cannot be kept apart."""
    try:
        axes = CutAxes(graph)
        cuts = _cuts(graph, axes)
        if all(len(c) < 2 for c in cuts.values()):
            return Unmerged(graph)
        return _Rewriter(graph, axes, cuts).run()
    except (UnsupportedProgram, _Refused):
        return Unmerged(graph)


def _cuts(graph: KernelGraph, axes: CutAxes) -> dict[object, frozenset[int]]:
    """For every axis the extents of its inner parts, such that all reshapes cut between parts."""
    cuts: dict[object, frozenset[int]] = {}

    def of(value: Value, dims: Sequence[int]) -> set[int]:
        """Cuts of a run of dimensions, as the extents to the right of each."""
        out: set[int] = set()
        right = 1
        for d in reversed(dims):
            out |= {right * c for c in cuts.get(axes.of(value, d), frozenset())}
            right *= value.shape[d]
            out.add(right)
        return out

    def noted(value: Value, dims: Sequence[int], found: set[int]) -> bool:
        changed = False
        right = 1
        for d in reversed(dims):
            whole = right * value.shape[d]
            inner = {c // right for c in found if right < c < whole and c % right == 0}
            axis = axes.of(value, d)
            if axis is not None and not inner <= cuts.get(axis, frozenset()):
                cuts[axis] = cuts.get(axis, frozenset()) | inner
                changed = True
            right = whole
        return changed

    changed = True
    while changed:
        changed = False
        for node in graph.nodes:
            if move_of(node) is not Move.RESHAPE:
                continue
            source, result = node.operands[0], node.result
            for left, right in reshape_groups(source.shape, result.shape):
                found = of(source, left) | of(result, right)
                ordered = sorted(found)
                if any(b % a for a, b in itertools.pairwise(ordered)):
                    raise _Refused
                changed = noted(source, left, found) | noted(result, right, found) or changed
    for inner in cuts.values():
        ordered = sorted(inner)
        if any(b % a for a, b in itertools.pairwise(ordered)):
            raise _Refused
    return cuts


class _Rewriter:
    def __init__(self, graph: KernelGraph, axes: CutAxes, cuts: dict[object, frozenset[int]]) -> None:
        self.graph, self.axes, self.cuts = graph, axes, cuts
        self.values: dict[Value, Value] = {}
        self.nodes: list[Node] = []

    def parts(self, value: Value, dim: int) -> tuple[int, ...]:
        """The extents that a dimension becomes."""
        extent = value.shape[dim]
        bounds = [extent, *sorted(self.cuts.get(self.axes.of(value, dim), frozenset()), reverse=True), 1]
        return tuple(a // b for a, b in itertools.pairwise(bounds)) if extent > 1 else (1,)

    def shape(self, value: Value, dims: Sequence[int] | None = None) -> tuple[int, ...]:
        chosen = range(len(value.shape)) if dims is None else dims
        return tuple(e for d in chosen for e in self.parts(value, d))

    def places(self, value: Value, dims: Sequence[int]) -> tuple[int, ...]:
        """The new positions of dimensions."""
        starts = [0]
        for d in range(len(value.shape)):
            starts.append(starts[-1] + len(self.parts(value, d)))
        return tuple(p for d in dims for p in range(starts[d], starts[d + 1]))

    def emit(self, op: str, operands: Sequence[Value], name: str = "", **attrs: Attr) -> Value:
        values = normalize_attrs(OPERATORS[op], attrs)
        result = Value(infer_type(op, [v.type for v in operands], values), name)
        self.nodes.append(Node(op, tuple(operands), (result,), values))
        return result

    def reshaped(self, value: Value, shape: tuple[int, ...], name: str = "") -> Value:
        return value if value.shape == shape else self.emit("reshape", [value], name, shape=shape)

    def transposed(self, value: Value, perm: tuple[int, ...], name: str = "") -> Value:
        for node in self.nodes:
            if move_of(node) is Move.TRANSPOSE and node.result is value:
                before = ints(node, "perm")
                value, perm = node.operands[0], tuple(before[p] for p in perm)
                break
        return value if perm == tuple(range(len(perm))) else self.emit("transpose", [value], name, perm=perm)

    def run(self) -> Unmerged:
        inputs = [Value(TensorType(self.shape(v), v.dtype), v.name) for v in self.graph.inputs]
        self.values = dict(zip(self.graph.inputs, inputs, strict=True))
        for node in self.graph.nodes:
            result = self.node(node)
            if result.shape != self.shape(node.result):
                raise _Refused
            result.name = result.name or node.result.name
            self.values[node.result] = result
        outputs = [self.values[v] for v in self.graph.outputs]
        if len(set(outputs)) < len(outputs) or set(outputs) & set(inputs):
            raise _Refused
        whole = frozenset(
            (new, self.places(old, [d])[-1])
            for old, new in self.values.items()
            for d in range(len(old.shape))
            if len(parts := self.parts(old, d)) > 1 and parts[-1] <= WHOLE
        )
        graph = KernelGraph(
            self.graph.name,
            inputs,
            live_nodes(self.nodes, outputs),
            outputs,
            self.graph.location,
            self.graph.aliases,
            self.graph.weights,
        )
        return Unmerged(graph, whole)

    def node(self, node: Node) -> Value:
        result, name = node.result, node.result.name
        operands = [self.values[v] for v in node.operands]
        attrs = dict(node.attrs)
        move = move_of(node)
        if is_contraction(node):
            return self.matmul(node)
        if move is Move.RESHAPE:
            wanted = self.shape(result)
            if [e for e in operands[0].shape if e > 1] != [e for e in wanted if e > 1]:
                raise _Refused
            return self.reshaped(operands[0], wanted, name)
        if move is Move.TRANSPOSE:
            return self.transposed(operands[0], self.places(node.operands[0], ints(node, "perm")), name)
        if reduction_of(node) is not None:
            attrs["dims"] = self.places(node.operands[0], ints(node, "dims"))
            reduced = self.emit(node.op, operands, name, **attrs)
            return self.reshaped(reduced, self.shape(result))
        if move in (Move.CONCAT, Move.UPDATE):
            dim = node.attrs["dim"]
            assert isinstance(dim, int)
            (attrs["dim"],) = self.single(result, dim)
            return self.emit(node.op, operands, name, **attrs)
        if move is Move.SLICE:
            return self.slice(node)
        if move is Move.BROADCAST:
            attrs["shape"] = self.shape(result)
        spread = [self.spread(v, result) for v in node.operands]
        return self.emit(node.op, spread, name, **attrs)

    def single(self, value: Value, dim: int) -> tuple[int]:
        places = self.places(value, [dim])
        if len(places) != 1:
            raise _Refused
        return (places[0],)

    def slice(self, node: Node) -> Value:
        source = node.operands[0]
        bounds: dict[str, list[int]] = {"offsets": [], "sizes": [], "strides": []}
        for d, extent in enumerate(source.shape):
            offset, size, stride = (ints(node, name)[d] for name in bounds)
            parts = self.parts(source, d)
            if len(parts) > 1:
                if size != extent:
                    raise _Refused
                offset, size, stride = 0, 0, 1
            bounds["offsets"] += [offset] * len(parts)
            bounds["sizes"] += parts if len(parts) > 1 else [size]
            bounds["strides"] += [stride] * len(parts)
        attrs: dict[str, Attr] = {name: tuple(values) for name, values in bounds.items()}
        return self.emit("slice", [self.values[source]], node.result.name, **attrs)

    def spread(self, operand: Value, result: Value) -> Value:
        """An operand with one unit dimension for each part of a dimension that it broadcasts along."""
        shift = len(result.shape) - len(operand.shape)
        shape: list[int] = []
        for d, extent in enumerate(operand.shape):
            wide = self.parts(result, d + shift)
            shape += [1] * len(wide) if extent == 1 else self.parts(operand, d)
        return self.reshaped(self.values[operand], tuple(shape))

    def matmul(self, node: Node) -> Value:
        """Outer parts of rows and columns become dimensions of the batch."""
        a, b = node.operands
        result, rank = node.result, len(node.result.shape)
        flip_a, flip_b = bool(node.attrs.get("transpose_a")), bool(node.attrs.get("transpose_b"))
        la, lb = len(a.shape) - 2, len(b.shape) - 2
        rows_at, depth_at = (la + 1, la) if flip_a else (la, la + 1)
        columns_at = lb if flip_b else lb + 1
        if len(self.parts(a, depth_at)) > 1:
            raise _Refused  # a sum over several dimensions is not a matrix product
        *rows, _ = self.parts(a, rows_at)
        *columns, _ = self.parts(b, columns_at)
        if flip_a and rows:
            raise _Refused

        def batch(value: Value, lead: int) -> list[int]:
            out: list[int] = []
            for d in range(lead):
                wide = self.parts(result, d + rank - 2 - lead)
                out += [1] * len(wide) if value.shape[d] == 1 else self.parts(value, d)
            return out

        left, right = self.values[a], self.values[b]
        if columns and not flip_b:  # the outer columns before the contracted dimension
            n = len(right.shape)
            depth = n - 2 - len(columns)
            right = self.transposed(right, (*range(depth), *range(depth + 1, n - 1), depth, n - 1))
        if rows or (columns and la):
            left = self.reshaped(left, (*batch(a, la), *rows, *[1] * len(columns), *left.shape[-2:]))
        if columns or (rows and lb):
            right = self.reshaped(right, (*batch(b, lb), *[1] * len(rows), *columns, *right.shape[-2:]))
        product = self.emit("matmul", [left, right], result.name, transpose_a=flip_a, transpose_b=flip_b)
        if not columns:
            return product
        n, c = len(product.shape), len(columns)
        return self.transposed(
            product, (*range(n - 2 - c), n - 2, *range(n - 2 - c, n - 2), n - 1), result.name
        )
