"""Expresses programs without `concat` and `slice`.

    concat(a, b) @ w            ->   a @ w[:k] + b @ w[k:]
    slice(x @ w)                ->   x @ slice(w)
    exp(concat(a, b))           ->   concat(exp(a), exp(b))

A concatenation moves on until what runs over it is reduced, as a sum over parts, or until it is an output; a
slice moves back until it cuts an input. So an axis is cut into independent parts, and the search
sees plain operators. `fold` adapts a candidate to the original program: slices of inputs come before it, where a
kernel's loads can begin (`lower/fold_moves.py`), concatenations of outputs after it.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from superopt.operators import (
    OPERATORS,
    Move,
    Nest,
    Scalar,
    infer_type,
    is_constant,
    move_of,
    normalize_attrs,
    splat_of,
)
from superopt.program import Attr, KernelGraph, Node, TensorType, Value, live_nodes
from superopt.transforms.named_axes.axis_table import Unsearchable

# The operator that joins reductions of parts; a mean is a sum, divided at the end.
_UNFOLDED = (Move.SLICE, Move.CONCAT)


@dataclass(frozen=True)
class Parts:
    """A tensor in parts, one after the other along `dim`."""

    dim: int
    values: tuple[Value, ...]

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """Where parts end."""
        return tuple(itertools.accumulate(v.shape[self.dim] for v in self.values))


@dataclass(frozen=True)
class Cut:
    """A slice of a value: first element and extent in each dimension."""

    source: Value
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass
class Unfolded:
    """`graph` is to be searched: its inputs are those of the `program`, then cuts of them."""

    program: KernelGraph
    graph: KernelGraph
    cuts: dict[Value, Cut] = field(default_factory=dict[Value, Cut])
    views: list[Node] = field(default_factory=list[Node])
    """Reshapes of inputs, whose results are cut."""
    joins: list[Parts | Value] = field(default_factory=list["Parts | Value"])
    """How the program's outputs are composed from those of `graph`."""
    copies: int = 0
    """Extra nodes compared to the program, its slices and concatenations not counted."""

    def fold(self, candidate: KernelGraph) -> KernelGraph:
        """A candidate for the program, from one for `graph`."""
        return candidate if self.graph is self.program else _fold(self, candidate)


def unfold(graph: KernelGraph) -> Unfolded:
    """`graph` without slices and concatenations; raises Unsearchable, with a location, where they remain."""
    if not any(move_of(n) in _UNFOLDED for n in graph.nodes):
        return Unfolded(graph, graph, joins=list(graph.outputs))
    return _Unfolder(graph).run()


class _Unfolder:
    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.out = Unfolded(graph, graph)
        self.inputs = list(graph.inputs)
        self.nodes: list[Node] = []
        self.producers: dict[Value, Node] = {}
        self.known: dict[Value, Value | Parts] = {v: v for v in graph.inputs}
        self.cuts: dict[tuple[Value, int, int, int], Value] = {}
        self.node = graph.nodes[0]  # the current one, for locations

    def run(self) -> Unfolded:
        for node in self.graph.nodes:
            self.node = node
            try:
                self.known[node.result] = self.rewritten(node)
            except Unsearchable as error:
                raise Unsearchable(error.message, node.location) from None
        joins = [self.known[v] for v in self.graph.outputs]
        outputs = [v for j in joins for v in (j.values if isinstance(j, Parts) else (j,))]
        if any(v in self.inputs for v in outputs):
            raise Unsearchable("expected every output to be computed, got an input", self.graph.location)
        nodes = live_nodes(self.nodes, outputs)
        self.out.copies = len(nodes) - sum(move_of(n) not in _UNFOLDED for n in self.graph.nodes)
        used = {v for n in nodes for v in n.operands}
        self.out.joins = joins
        self.out.cuts = {v: c for v, c in self.out.cuts.items() if v in used}
        inputs = [*self.graph.inputs, *self.out.cuts]
        self.out.graph = KernelGraph(self.graph.name, inputs, nodes, outputs, self.graph.location)
        return self.out

    # --- nodes ---

    def rewritten(self, node: Node) -> Value | Parts:
        if node.op not in OPERATORS:
            raise Unsearchable(
                f"expected an operator that a block can compute, got '{node.op}'", node.location
            )
        operands = [self.known.get(v, v) for v in node.operands]
        if move_of(node) is Move.CONCAT:
            return self.concatenated(node, operands)
        if move_of(node) is Move.SLICE:
            return self.sliced(node, operands[0])
        plain = [v for v in operands if isinstance(v, Value)]
        if len(plain) == len(operands):
            return self.emitted(node, plain, node.attrs, node.result)
        if move_of(node) is Move.RESHAPE:
            (parts,) = operands
            assert isinstance(parts, Parts)
            return self.reshaped(node, parts)
        return self.in_parts(node, operands)

    def emitted(
        self, node: Node, operands: Sequence[Value], attrs: dict[str, Attr], result: Value | None = None
    ) -> Value:
        """A node like `node`; `node` itself where nothing differs."""
        if result is None:
            type_ = infer_type(node.op, [v.type for v in operands], attrs)
            result = Value(type_, node.results[0].name)
        new = Node(node.op, tuple(operands), (result,), attrs, node.location)
        self.nodes.append(new)
        self.producers[result] = new
        return result

    def concatenated(self, node: Node, operands: Sequence[Value | Parts]) -> Parts:
        dim = node.attrs["dim"]
        assert isinstance(dim, int)
        values: list[Value] = []
        for operand in operands:
            if isinstance(operand, Value):
                values.append(operand)
            elif operand.dim == dim:
                values += operand.values
            else:
                raise Unsearchable("expected concatenations along one dimension")
        return Parts(dim, tuple(values))

    def sliced(self, node: Node, operand: Value | Parts) -> Value | Parts:
        offsets, sizes, strides = (node.attrs[k] for k in ("offsets", "sizes", "strides"))
        assert isinstance(offsets, tuple)
        assert isinstance(sizes, tuple)
        assert isinstance(strides, tuple)
        if any(s != 1 for s, n in zip(strides, sizes, strict=True) if n > 1):
            raise Unsearchable(f"expected a slice of neighbours, got strides {list(strides)}")
        for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            operand = self.range_of(operand, dim, offset, size)
        return operand

    def range_of(self, operand: Value | Parts, dim: int, offset: int, size: int) -> Value | Parts:
        """Elements `offset` to `offset + size` along `dim`."""
        if isinstance(operand, Value):
            return self.cut(operand, dim, offset, size)
        if operand.dim != dim:
            return replace(operand, values=tuple(self.cut(v, dim, offset, size) for v in operand.values))
        found: list[Value] = []
        for i in range(bisect.bisect_right(operand.bounds, offset), len(operand.values)):
            value, start = operand.values[i], operand.bounds[i] - operand.values[i].shape[dim]
            if start >= offset + size:
                break
            first, last = max(start, offset), min(operand.bounds[i], offset + size)
            found.append(self.cut(value, dim, first - start, last - first))
        return found[0] if len(found) == 1 else Parts(dim, tuple(found))

    def in_parts(self, node: Node, operands: Sequence[Value | Parts]) -> Value | Parts:
        """The node, once for each part of what it runs over."""
        entry = OPERATORS[node.op]
        if entry.nest is None or entry.windowed:
            raise Unsearchable(f"expected an operator that can be computed in parts, got '{node.op}'")
        attrs = normalize_attrs(entry, node.attrs)
        nest = entry.nest([v.shape for v in node.operands], attrs)
        runs = {
            index.dim
            for operand, maps in zip(operands, nest.operands, strict=True)
            if isinstance(operand, Parts)
            for index in [maps[operand.dim]]
        }
        if len(runs) != 1 or None in runs:
            raise Unsearchable("expected operands in parts along one dimension")
        (over,) = runs
        assert over is not None
        bounds = sorted({b for o in operands if isinstance(o, Parts) for b in o.bounds})
        results: list[Value] = []
        for start, end in itertools.pairwise([0, *bounds]):
            pieces: list[Value] = []
            for operand, maps in zip(operands, nest.operands, strict=True):
                piece: Value | Parts = operand
                for dim, index in enumerate(maps):
                    if index.dim == over:
                        piece = self.range_of(piece, dim, start, end - start)
                assert isinstance(piece, Value)
                pieces.append(piece)
            results.append(self.part(node, pieces, nest, over, end - start))
        if over not in nest.reductions:
            return Parts(nest.result.index(over), tuple(results))
        return self.joined(node, results, nest)

    def part(self, node: Node, operands: Sequence[Value], nest: Nest, over: int, size: int) -> Value:
        op, attrs = node, dict(node.attrs)
        if move_of(node) is Move.BROADCAST:
            shape = attrs["shape"]
            assert isinstance(shape, tuple)
            attrs["shape"] = tuple(size if nest.result[d] == over else e for d, e in enumerate(shape))
        entry = OPERATORS[node.op]
        if over in nest.reductions:
            op = replace(node, op=entry.partial)
        return self.emitted(op, operands, attrs)

    def joined(self, node: Node, results: Sequence[Value], nest: Nest) -> Value:
        """One result from those of the reduced parts."""
        entry = OPERATORS[node.op]
        assert entry.combiner is not None
        total = results[0]
        for value in results[1:]:
            total = self.emitted(replace(node, op=entry.combiner), (total, value), {})
        if entry.finish is not None:
            total = self.scalar(node, entry.finish(nest.reduced), total)
        return total

    def scalar(self, node: Node, body: Scalar, value: Value) -> Value:
        if body.head == "arg":
            return value
        if body.head == "const":
            attrs: dict[str, Attr] = {"value": float(body.payload), "shape": (), "dtype": value.dtype}
            return self.emitted(replace(node, op="constant"), (), attrs)
        below = [self.scalar(node, a, value) for a in body.args]
        return self.emitted(replace(node, op=body.head), below, {})

    def reshaped(self, node: Node, parts: Parts) -> Parts:
        """Parts of a reshape's operand as parts of its result, where both have the same outermost elements."""
        shape, before = node.result.shape, node.operands[0].shape
        dim, unit = _counterpart(before, parts.dim, shape)
        results: list[Value] = []
        for value in parts.values:
            size, rest = divmod(value.shape[parts.dim] * math.prod(before[parts.dim + 1 :]), unit)
            if rest:
                raise Unsearchable("expected a reshape that keeps the parts of a concatenation apart")
            attrs: dict[str, Attr] = {"shape": (*shape[:dim], size, *shape[dim + 1 :])}
            results.append(self.emitted(node, (value,), attrs))
        return Parts(dim, tuple(results))

    # --- slices, moved back ---

    def cut(self, value: Value, dim: int, offset: int, size: int) -> Value:
        """Elements `offset` to `offset + size` of a value along `dim`, computed alone."""
        if offset == 0 and size == value.shape[dim]:
            return value
        key = (value, dim, offset, size)
        if key not in self.cuts:
            self.cuts[key] = self.cut_anew(*key)
        return self.cuts[key]

    def cut_anew(self, value: Value, dim: int, offset: int, size: int) -> Value:
        node = self.producers.get(value)
        if node is None:
            return self.cut_of_input(value, dim, offset, size)
        if move_of(node) is Move.RESHAPE:
            return self.cut_of_reshape(node, dim, offset, size)
        attrs = dict(node.attrs)
        if is_constant(node):
            if splat_of(node) is None:
                raise Unsearchable("expected a constant of one value, got a dense one")
            attrs["shape"] = (*value.shape[:dim], size, *value.shape[dim + 1 :])
            return self.emitted(node, (), attrs)
        entry = OPERATORS.get(node.op)  # opaque operators lack one
        if entry is None or entry.nest is None or entry.windowed:
            raise Unsearchable(f"expected a slice of what can be computed in parts, got '{node.op}'")
        nest = entry.nest([v.shape for v in node.operands], normalize_attrs(entry, attrs))
        over = nest.result[dim]
        assert over is not None
        operands: list[Value] = []
        for operand, maps in zip(node.operands, nest.operands, strict=True):
            for d, index in enumerate(maps):
                if index.dim == over:
                    operand = self.cut(operand, d, offset, size)
            operands.append(operand)
        if move_of(node) is Move.BROADCAST:
            attrs["shape"] = (*value.shape[:dim], size, *value.shape[dim + 1 :])
        return self.emitted(node, operands, attrs)

    def cut_of_input(self, value: Value, dim: int, offset: int, size: int) -> Value:
        known = self.out.cuts.get(value, Cut(value, (0,) * len(value.shape), value.shape))
        offsets, sizes = list(known.offsets), list(known.sizes)
        offsets[dim] += offset
        sizes[dim] = size
        cut = Cut(known.source, tuple(offsets), tuple(sizes))
        same = next((v for v, c in self.out.cuts.items() if c == cut), None)
        if same is not None:
            return same
        result = Value(TensorType(cut.sizes, value.dtype), value.name)
        self.out.cuts[result] = cut
        self.inputs.append(result)
        return result

    def cut_of_reshape(self, node: Node, dim: int, offset: int, size: int) -> Value:
        (operand,), shape = node.operands, node.result.shape
        inner = math.prod(shape[dim + 1 :])
        try:
            source, unit = _counterpart(shape, dim, operand.shape)
            if offset * inner % unit or size * inner % unit:
                raise Unsearchable("expected a slice that a reshape leaves in one piece")
        except Unsearchable:
            if operand not in self.graph.inputs:
                raise
            # These rows are not a slice of the input, but of the reshaped input.
            if node not in self.out.views:
                self.out.views.append(node)
            return self.cut_of_input(node.result, dim, offset, size)
        part = self.cut(operand, source, offset * inner // unit, size * inner // unit)
        return self.emitted(node, (part,), {"shape": (*shape[:dim], size, *shape[dim + 1 :])})


def _counterpart(shape: Sequence[int], dim: int, other: Sequence[int]) -> tuple[int, int]:
    """A reshape's other side: the dimension with the same outer elements, and how many one step spans."""
    outer = math.prod(shape[:dim])
    for d, extent in enumerate(other):
        if math.prod(other[:d]) == outer and extent > 1:
            return d, math.prod(other[d + 1 :])
    raise Unsearchable("expected a reshape that keeps the outer elements of what is cut")


# --- putting a candidate back -----------------------------------------------------------------------------


def _fold(unfolded: Unfolded, candidate: KernelGraph) -> KernelGraph:
    program = unfolded.program
    replaced = dict(zip(candidate.inputs, unfolded.graph.inputs, strict=True))
    nodes: list[Node] = []
    views = {n.result: n for n in unfolded.views}
    used = {replaced.get(v, v) for n in candidate.nodes for v in n.operands}
    for value, cut in unfolded.cuts.items():
        if value not in used:
            continue
        if (view := views.pop(cut.source, None)) is not None:
            nodes.append(view)
        nodes.append(_slice(cut, value))
    for node in candidate.nodes:
        operands = tuple(replaced.get(v, v) for v in node.operands)
        cut = unfolded.cuts.get(operands[0]) if move_of(node) is Move.RESHAPE else None
        turned = _reshaped_first(cut, node) if cut is not None else None
        nodes += turned or [replace(node, operands=operands)]
    outputs: list[Value] = []
    rest = iter(candidate.outputs)
    for wanted, join in zip(program.outputs, unfolded.joins, strict=True):
        if isinstance(join, Value):
            outputs.append(next(rest))
            continue
        parts = tuple(itertools.islice(rest, len(join.values)))
        whole = Value(wanted.type, wanted.name)
        nodes.append(Node("concat", parts, (whole,), {"dim": join.dim}, program.location))
        outputs.append(whole)
    graph = KernelGraph(program.name, list(program.inputs), nodes, outputs, program.location)
    return replace(graph, nodes=live_nodes(nodes, outputs), aliases=program.aliases, weights=program.weights)


def _slice(cut: Cut, result: Value) -> Node:
    attrs: dict[str, Attr] = {"offsets": cut.offsets, "sizes": cut.sizes, "strides": (1,) * len(cut.sizes)}
    return Node("slice", (cut.source,), (result,), attrs)


def _reshaped_first(cut: Cut, node: Node) -> list[Node] | None:
    """`reshape(slice(x))` as `slice(reshape(x))`, where that is the same: the reshape then moves nothing."""
    (dim, *others) = [d for d, (n, e) in enumerate(zip(cut.sizes, cut.source.shape, strict=True)) if n != e]
    if others:
        return None
    shape, inner = node.result.shape, math.prod(cut.sizes[dim + 1 :])
    try:
        to, unit = _counterpart(cut.sizes, dim, shape)
    except Unsearchable:
        return None
    if (
        cut.offsets[dim] * inner % unit
        or cut.source.shape[dim] * inner % unit
        or cut.sizes[dim] * inner % unit
    ):
        return None
    whole = (*shape[:to], cut.source.shape[dim] * inner // unit, *shape[to + 1 :])
    if math.prod(whole) != math.prod(cut.source.shape):
        return None
    view = Value(TensorType(whole, cut.source.dtype), cut.source.name)
    offsets = tuple(cut.offsets[dim] * inner // unit if d == to else 0 for d in range(len(shape)))
    return [
        Node("reshape", (cut.source,), (view,), {"shape": whole}, node.location),
        _slice(Cut(view, offsets, shape), node.result),
    ]
