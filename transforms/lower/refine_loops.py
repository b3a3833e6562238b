"""Shortens the loop trips of block graphs to what suits the hardware.

    custom {loops = [8]}                           custom {loops = [64]}
      %x = iterator(X) fmap [1]   16 x 512           %x = iterator(X) fmap [1]   16 x 64
      %w = iterator(W) fmap [0]  512 x 64     ->     %w = iterator(W) fmap [0]   64 x 64
      accumulate(matmul(%x, %w)) sum                 accumulate(matmul(%x, %w)) sum
      accumulate(reduce_sum(square(%x))) sum         accumulate(reduce_sum(square(%x))) sum

A search counts what a trip moves; this pass decides how much a trip holds, so that several trips are in flight
at once. Without a loop it creates one: what is reduced over the axis gets an accumulator.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from superopt.axes import Classes, Dim, same_dimensions, walked_together
from superopt.diagnostics import Diagnostics
from superopt.operators import (
    OPERATORS,
    Move,
    Scalar,
    infer_type,
    is_constant,
    is_contraction,
    is_conversion,
    move_of,
    nest_of,
    normalize_attrs,
)
from superopt.program import (
    CARRIED,
    DTYPE_BYTES,
    Attr,
    BlockGraph,
    KernelGraph,
    Node,
    NodeKind,
    TensorType,
    ThreadGraph,
    Value,
    rebuild,
)
from superopt.spec import reaches
from superopt.transforms.passes import GraphPass
from superopt.transforms.schedule.tiles import reduction_depth

# How parts of a reduction over an axis are joined -> the kind of accumulator that joins them so.
_JOINS = {"add": ("sum", "rescaled"), "max": ("max",)}
# How a number depends on a running maximum, given its operands' dependence (see `_scaled`); None: not at all.
Dependence: TypeAlias = Literal["max", "less", "scaled", "other"]
_FOLLOWS: dict[tuple[str, tuple[Dependence | None, ...]], Dependence] = {
    ("sub", (None, "max")): "less",
    ("add", ("less", None)): "less",
    ("add", (None, "less")): "less",
    ("sub", ("less", None)): "less",
    ("exp", ("less",)): "scaled",
    ("mul", ("scaled", None)): "scaled",
    ("mul", (None, "scaled")): "scaled",
    ("div", ("scaled", None)): "scaled",
}
_KEPT_BY = (Move.RESHAPE, Move.TRANSPOSE, Move.BROADCAST)


@dataclass(frozen=True)
class RefineLoops(GraphPass):
    """Cut long loop trips of custom kernels into short ones, and turn deep products without a loop into a loop.

    Shared memory then holds the tiles of several trips, so that loads overlap with products.
    """

    flag: ClassVar[str] = "refine-loops"

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph with refined loops in its `custom` nodes."""
        return rebuild(
            graph, lambda n: replace(n, body=refine(n.body)) if isinstance(n.body, BlockGraph) else n
        )


def refine(block: BlockGraph) -> BlockGraph:
    """`block` with the axis that its products contract cut, where that is allowed and useful."""
    axes = _Axes(block)
    for axis in axes.contracted:
        loop = axes.loop(axis)
        if loop is None or not _may_cut(block, axes, axis, loop):
            continue
        tiles = axes.tiles(axis)
        extent = axes.extent(axis)
        trips = block.loops[loop] if loop < len(block.loops) else 1
        ragged = _ragged(block, loop, extent)
        per_point = sum(v.type.elements // extent * DTYPE_BYTES[v.dtype] for v in tiles)
        depth = reduction_depth(extent, extent * trips, per_point)
        if depth < extent:
            total = trips * extent if ragged is None else ragged
            return _cut(block, axes, axis, loop, extent // depth, -(-total // depth))
    return block


def _ragged(block: BlockGraph, loop: int, tile: int) -> int | None:
    """Elements of the axis that the loop runs over, where its tiles reach past them; None where they do not."""
    reach = reaches(block)
    ends = {r.extent for v in reach.values() for r in v if r is not None and ("loop", loop, tile) in r.terms}
    return min(ends, default=None)


class _Axes:
    """Which dimensions of a block's values share an axis: those that an operator iterates together."""

    def __init__(self, block: BlockGraph) -> None:
        self.block = block
        self._classes: Classes[Dim] = Classes()
        self._extents: dict[Dim, int] = {}
        fixed: list[Dim] = []
        contracted: list[Dim] = []
        for node in block.nodes:
            fixed += self._joined(node)
            if is_contraction(node):
                nest, a = nest_of(node), node.operands[0]
                assert nest is not None
                contracted += [(a, d) for d, i in enumerate(nest.operands[0]) if i.dim in nest.reductions]
        for value in itertools.chain.from_iterable(n.results for n in block.nodes):
            for d, extent in enumerate(value.shape):
                self._extents[self.find((value, d))] = extent
        self.fixed = {self.find(d) for d in fixed}
        self.contracted = [a for a in dict.fromkeys(map(self.find, contracted)) if a not in self.fixed]

    def _joined(self, node: Node) -> list[Dim]:
        """Join the dimensions that `node` iterates together; returns those that must stay whole."""
        pairs: Iterable[tuple[Dim, Dim]] = ()
        everything = [d for v in (*node.operands, *node.results) for d in _dims(v)]
        if node.op in CARRIED:
            pairs = zip(_dims(node.operands[0]), _dims(node.result), strict=True)
        elif isinstance(node.body, ThreadGraph):
            return everything
        elif move_of(node) is Move.RESHAPE:
            (x,), y = node.operands, node.result
            if (same := same_dimensions(x.shape, y.shape)) is None:
                return everything
            pairs = [((x, d), (y, e)) for d, e in same]
        elif node.op in OPERATORS and not is_constant(node):
            if nest_of(node) is None or move_of(node) is Move.SLICE:
                return everything
            pairs = walked_together(node)
        for a, b in pairs:
            self._classes.join(a, b)
        return []

    def find(self, dim: Dim) -> Dim:
        """The axis of a dimension."""
        return self._classes.find(dim)

    def extent(self, axis: Dim) -> int:
        """Points of the axis in a trip."""
        return self._extents[axis]

    def along(self, value: Value, axis: Dim) -> list[int]:
        """The dimensions of `value` that belong to the axis."""
        return [d for v, d in _dims(value) if self.find((v, d)) == axis]

    def tiles(self, axis: Dim) -> list[Value]:
        """The loaded tiles that have the axis."""
        return [
            n.result for n in self.block.nodes if n.op == NodeKind.ITERATOR and self.along(n.result, axis)
        ]

    def loop(self, axis: Dim) -> int | None:
        """The loop that runs along this axis only; a new loop if the block has none."""
        walked: set[int] = set()
        for node in self.block.nodes:
            if node.op == NodeKind.ITERATOR:
                dims = self.along(node.result, axis)
                walked |= {i for i, d in enumerate(_fmap(node)) if d in dims and self.block.loops[i] > 1}
        if not walked:
            return None if any(n > 1 for n in self.block.loops) else len(self.block.loops)
        (loop, *more) = walked
        alone = all(
            self.along(n.result, axis) == ([_fmap(n)[loop]] if _fmap(n)[loop] >= 0 else [])
            for n in self.block.nodes
            if n.op == NodeKind.ITERATOR
        )
        return loop if alone and not more else None


def _dims(value: Value) -> list[Dim]:
    return [(value, d) for d in range(len(value.shape))]


def _fmap(iterator: Node) -> tuple[int, ...]:
    fmap = iterator.attrs["fmap"]
    assert isinstance(fmap, tuple)
    return tuple(int(d) for d in fmap)


def _reduced_by(node: Node, axes: _Axes, axis: Dim) -> str | None:
    """How `node` joins values along the axis: "add" or "max"; "" where it does not reduce the axis; None where
    parts cannot be joined.
    """
    if not any(axes.along(v, axis) for v in node.operands) or axes.along(node.result, axis):
        return ""
    entry = OPERATORS[node.op]
    return entry.combiner if entry.finish is None and entry.combiner in _JOINS else None


def _may_cut(block: BlockGraph, axes: _Axes, axis: Dim, loop: int) -> bool:
    """Whether trips over parts of the axis give the same result as trips over all of it.

    This holds where values reduced over the axis go straight into an accumulator of the loop that joins parts
    in the same way, no other value is accumulated there, and values with the axis depend on other trips only as
    rescaling allows. A new loop gets its accumulators later; nothing with the axis may need their contents.
    """
    new = loop == len(block.loops)
    parts: dict[Value, str] = {}  # the values reduced over the axis, and how
    behind: set[Value] = set()  # what would follow a new loop
    scales: dict[Value, tuple[Dependence, Value]] = {}
    for node in block.nodes:
        if any(len(axes.along(v, axis)) > 1 for v in (*node.operands, *node.results)):
            return False
        if node.op == NodeKind.ITERATOR:
            continue
        if (node.op in CARRIED or node.op == NodeKind.SAVE) and axes.along(node.operands[0], axis):
            return False
        if node.op == NodeKind.SAVE:
            continue
        if node.op in CARRIED:
            if node.attrs["loop"] == loop and not _joins(node, parts, scales):
                return False
            if node.op == NodeKind.RUNNING_MAX:
                scales[node.result] = ("max", node.result)
            continue
        if not _scaled(node, scales):
            return False
        how = _reduced_by(node, axes, axis)
        if how is None:
            return False
        if behind.intersection(node.operands):
            if any(axes.along(r, axis) for r in node.results):
                return False
            behind.update(node.results)
        carried = [parts[v] for v in node.operands if v in parts]
        if carried and not new:
            if not (is_conversion(node) or move_of(node) is Move.RESHAPE):
                return False
            how = carried[0]
        if how:
            parts[node.result] = how
            if new:
                behind.add(node.result)
    return True


def _joins(node: Node, parts: dict[Value, str], scales: dict[Value, tuple[Dependence, Value]]) -> bool:
    """Whether an accumulator of the loop joins parts of the axis in the same way as the reduction before it."""
    how, scale = parts.get(node.operands[0]), scales.get(node.operands[0])
    if node.op == NodeKind.RUNNING_MAX:
        return how == "max" and scale is None
    kind = node.attrs["kind"]
    if kind == "rescaled":
        return how == "add" and scale == ("scaled", node.operands[1])
    return how is not None and kind in _JOINS[how] and scale is None


def _scaled(node: Node, scales: dict[Value, tuple[Dependence, Value]]) -> bool:
    """Note in `scales` how the result depends on a running maximum m; False where cutting trips would change it.

    A value may be m itself ("max"), a difference x - m ("less"), or a multiple of exp(-m) ("scaled"), which a
    rescaled accumulator brings to the next trip's m; any "other" dependence changes.
    """
    have = [scales.get(v) for v in node.operands]
    known = {s for s in have if s is not None}
    if not known:
        return True
    becomes = dependence(node, [s and s[0] for s in have])
    if len(known) > 1 or becomes == "other":
        return False
    ((_, maximum),) = known
    scales[node.result] = (becomes, maximum)
    return True


def dependence(node: Node, operands: Sequence[Dependence | None]) -> Dependence:
    """How the result of `node` depends on m, given how its operands do."""
    entry = OPERATORS.get(node.op)
    if entry is None:
        return "other"
    if entry.move is not None:
        return operands[0] or "other" if entry.move in _KEPT_BY else "other"
    if entry.body is None or entry.windowed or entry.finish is not None:
        return "other"
    found = _through(entry.body(normalize_attrs(entry, node.attrs)), operands)
    summed = entry.combiner == "add" and found == "scaled"
    return found or "other" if entry.combiner is None or summed else "other"


def _through(body: Scalar, operands: Sequence[Dependence | None]) -> Dependence | None:
    """The same for a scalar body."""
    if body.head == "arg":
        return operands[int(body.payload)]
    below: tuple[Dependence | None, ...] = tuple(_through(a, operands) for a in body.args)
    return _FOLLOWS.get((body.head, below), "other") if any(below) else None


def _cut(block: BlockGraph, axes: _Axes, axis: Dim, loop: int, factor: int, trips: int) -> BlockGraph:
    """`block` with `trips` trips, each over a `factor`-th of the tiles of the axis."""
    new = loop == len(block.loops)
    loops = (
        (*block.loops, trips) if new else tuple(trips if i == loop else n for i, n in enumerate(block.loops))
    )
    nodes: list[Node] = []
    graph = BlockGraph(block.grid, loops, block.inputs, nodes)
    values: dict[Value, Value] = {v: v for v in block.inputs}
    for node in block.nodes:
        operands = tuple(values[v] for v in node.operands)
        attrs = dict(node.attrs)
        if node.op == NodeKind.SAVE:
            nodes.append(replace(node, operands=operands))
            continue
        if node.op == NodeKind.ITERATOR:
            if new:
                attrs["fmap"] = (*_fmap(node), *(axes.along(node.result, axis) or [-1]))
            dims, shape = axes.along(node.result, axis), node.result.shape
            kind = TensorType(
                tuple(n // factor if d in dims else n for d, n in enumerate(shape)), node.result.dtype
            )
        elif node.op in CARRIED:
            kind = node.result.type
        elif isinstance(node.body, ThreadGraph):
            nodes.append(replace(node, operands=operands))
            values.update(zip(node.results, node.results, strict=True))
            continue
        else:
            if "shape" in attrs:
                dims = axes.along(node.result, axis)
                shape = node.result.shape
                attrs["shape"] = tuple(n // factor if d in dims else n for d, n in enumerate(shape))
            kind = infer_type(node.op, [v.type for v in operands], attrs)
        result = Value(kind, node.result.name)
        values[node.result] = result
        nodes.append(replace(node, operands=operands, results=(result,), attrs=attrs))
        how = (
            ""
            if node.op in (NodeKind.ITERATOR, NodeKind.ACCUMULATE, NodeKind.RUNNING_MAX)
            else _reduced_by(node, axes, axis)
        )
        if new and how:
            total = Value(kind, f"{node.result.name}_total" if node.result.name else "")
            joined: dict[str, Attr] = {"kind": _JOINS[how][0], "loop": loop}
            nodes.append(Node(NodeKind.ACCUMULATE, (result,), (total,), joined, node.location))
            values[node.result] = total
    return graph
