"""Which dimensions of a kernel graph run along one axis, and how each axis is cut.

Dimensions that one dimension of an operator's nest runs along share an axis. The uses of an axis determine how it
is cut:

    elem    one at a time: the batch of a matrix product, the outer part of a dimension that a reshape splits, a
            short dimension of every output that operators only walk along (rows of a norm, a batch)
    tile    by a tile parameter; by the inner part's extent where a reshape splits the dimension (16 x 4096 to
            16 x 32 x 128 cuts 4096 by 128, and the 32 one at a time, both by one variable)
    full    not at all: small extents, inner parts of reshapes, extents without a good divisor
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from superopt.axes import Classes, Dim, reshape_groups, walked_together
from superopt.errors import UnsupportedProgram
from superopt.operators import OPERATORS, Move, is_contraction, move_of, nest_of
from superopt.program import KernelGraph, Node, Value
from superopt.transforms.schedule.widths import WHOLE, nominal_width
from superopt.transforms.tile_saturation.terms import STARTS, TermVar


def expressible(node: Node) -> bool:
    """Whether tile loops can express the node's operator."""
    entry = OPERATORS.get(node.op)
    if entry is None or entry.windowed or len(node.results) != 1:
        return False
    if entry.nest is not None:
        return entry.combiner is None or entry.combiner in STARTS
    return entry.constant or entry.move in (Move.RESHAPE, Move.CONCAT, Move.UPDATE)


@dataclass(eq=False)
class CutAxis:
    """One axis: how it is cut, and its variables (more than one where a statement needs two)."""

    extent: int
    name: str
    cut: Literal["full", "tile", "elem"] = "full"
    step: int = 0  # of a tile fixed by a reshape
    merged: list[CutAxis] = field(default_factory=list["CutAxis"])  # axes whose tiles are this one's elements
    leader: CutAxis | None = None  # the first axis tied to the same elements, whose variable cuts this one
    vars: list[TermVar] = field(default_factory=list[TermVar])

    def var(self, occurrence: int) -> TermVar:
        """The variable number `occurrence` along this axis."""
        while len(self.vars) <= occurrence:
            suffix = "" if not self.vars else str(len(self.vars) + 1)
            step = 1 if self.cut == "elem" else self.step
            self.vars.append(
                TermVar(self.name + suffix, self.extent, step, step or nominal_width(self.extent))
            )
        return self.vars[occurrence]


class CutAxes:
    """The axes of a graph, those of `whole` not cut; UnsupportedProgram for what tile loops do not express."""

    def __init__(self, graph: KernelGraph, whole: Collection[Dim] = ()) -> None:
        self._classes: Classes[Dim] = Classes()
        self._elem: set[Dim] = set()
        self._full: set[Dim] = set(whole)
        self._splits: list[tuple[Dim, list[Dim]]] = []  # a merged dimension and those it splits into
        values = [*graph.inputs, *(r for n in graph.nodes for r in n.results)]
        self._nodes, self._outputs = graph.nodes, graph.outputs
        for node in graph.nodes:
            self._relate(node)
        self._unify_splits()
        self._join_outputs(graph, values)
        self._axes: dict[Dim, CutAxis] = {}
        names = iter(f"{c}{i or ''}" for i in range(1000) for c in "nkphmabcde")
        for value in values:
            for dim, extent in enumerate(value.shape):
                root = self._find((value, dim))
                if extent > 1 and root not in self._axes:
                    self._axes[root] = CutAxis(extent, next(names))
        self._cut()

    def of(self, value: Value, dim: int) -> CutAxis | None:
        """The axis of a dimension; None for extents of 1."""
        return self._axes.get(self._find((value, dim)))

    # --- relations ---

    def _find(self, dim: Dim) -> Dim:
        return self._classes.find(dim)

    def _join(self, a: Dim, b: Dim) -> None:
        extent = a[0].shape[a[1]]
        if extent == b[0].shape[b[1]] and extent != 1:
            self._classes.join(a, b)

    def _relate(self, node: Node) -> None:
        """Join the dimensions that one dimension of the node's nest runs along."""
        if not expressible(node):
            raise UnsupportedProgram(f"tile loops do not express '{node.op}'", node.location)
        if move_of(node) is Move.RESHAPE:
            self._relate_reshape(node)
        elif nest_of(node) is None:  # pieces side by side along one dimension
            for operand in node.operands:
                for d in range(len(operand.shape)):
                    self._join((operand, d), (node.result, d))
        for a, b in walked_together(node):
            self._join(a, b)
        if is_contraction(node):  # a product of tiles has two dimensions
            self._elem.update((node.result, d) for d in range(len(node.result.shape) - 2))

    def _relate_reshape(self, node: Node) -> None:
        source, result = node.operands[0], node.result
        for left, right in reshape_groups(source.shape, result.shape):
            xs, ys = [(source, d) for d in left], [(result, d) for d in right]
            if len(xs) == 1 and len(ys) == 1:
                self._join(xs[0], ys[0])
            elif len(xs) == 1:
                self._splits.append((xs[0], ys))
            elif len(ys) == 1:
                self._splits.append((ys[0], xs))
            else:
                self._full.update([*xs, *ys])

    def _unify_splits(self) -> None:
        """Join merged dimensions whose outer parts share an axis and whose inner parts have the same extent."""
        for i, (merged, parts) in enumerate(self._splits):
            for other, others in self._splits[:i]:
                same = self._find(parts[0]) == self._find(others[0])
                if same and merged[0].shape[merged[1]] == other[0].shape[other[1]]:
                    self._join(other, merged)

    def _join_outputs(self, graph: KernelGraph, values: Sequence[Value]) -> None:
        """Join leading dimensions of outputs that are as long, such as the batch of queries and of keys.

        Nothing in the program ties them, but then one loop can run along both.
        """
        for other in graph.outputs[1:]:
            first = graph.outputs[0]
            for d, extent in enumerate(other.shape[:-1]):
                if first.shape[: d + 1] != other.shape[: d + 1]:
                    break
                ours, theirs = self._find((first, d)), self._find((other, d))
                if extent > 1 and not any(
                    {ours, theirs} <= {self._find((v, i)) for i in range(len(v.shape))} for v in values
                ):
                    self._join((first, d), (other, d))

    # --- cuts ---

    def _kept(self) -> Iterator[Dim]:
        """Dimensions that stay whole where they are short: contiguous, reduced, reshaped, put together of pieces,
        or those of a product. A number for each row, such as its maximum, keeps no rows together."""
        values = {v for node in self._nodes for v in (*node.operands, node.result)}
        rows = {self._find((v, d)) for v in values for d in _long(v)[:-1]}
        for node in self._nodes:
            nest = nest_of(node)
            pieces = nest is None and move_of(node) is not Move.RESHAPE
            moved = move_of(node) is Move.RESHAPE and _lengths(node.operands[0]) != _lengths(node.result)
            together = moved or is_contraction(node)
            for value in (*node.operands, node.result):
                last = value, len(value.shape) - 1
                if len(_long(value)) > 1 or self._find(last) not in rows:
                    yield last
                for d, extent in enumerate(value.shape):
                    if together or (pieces and extent != node.result.shape[d]):
                        yield value, d
            for value, maps in zip(node.operands, nest.operands if nest else (), strict=False):
                yield from (
                    (value, d) for d, index in enumerate(maps) if nest and index.dim in nest.reductions
                )

    def _inner(self, dim: Dim) -> bool:
        """Whether a dimension is an inner part of another reshape, which keeps it whole."""
        root = self._find(dim)
        return any(self._find(d) == root for _, parts in self._splits for d in parts[1:])

    def _cut(self) -> None:
        for axis in self._axes.values():
            small = axis.extent <= WHOLE or nominal_width(axis.extent) == 0
            axis.cut = "full" if small else "tile"
        for dim in self._elem:
            if (axis := self._axes.get(self._find(dim))) is not None:
                axis.cut = "elem"
        kept = set(map(self._find, self._kept()))
        everywhere = [{self._find((v, d)) for d in range(len(v.shape))} for v in self._outputs]
        for dim in set[Dim]().union(*everywhere[:1]).intersection(*everywhere) - kept:
            if (axis := self._axes.get(dim)) is not None and axis.cut == "full":
                axis.cut = "elem"
        for dim in self._full:
            if (axis := self._axes.get(self._find(dim))) is not None:
                axis.cut = "full"
        for merged, parts in self._splits:
            outer, *inner = parts
            for dim in inner:
                self._axes[self._find(dim)].cut = "full"
            whole, first = self._axes[self._find(merged)], self._axes[self._find(outer)]
            if whole.extent <= WHOLE or (first.cut == "full" and first.extent > 1 and self._inner(outer)):
                whole.cut = first.cut = "full"
                continue
            step = whole.extent // first.extent
            if (whole.step and whole.step != step) or whole is first or (first.cut == "tile" and first.step):
                whole.cut = first.cut = "full"
                continue
            whole.cut, whole.step = "tile", step
            first.cut = "elem"
            if whole not in first.merged:
                first.merged.append(whole)
                whole.leader = first.merged[0] if first.merged[0] is not whole else None


def _long(value: Value) -> list[int]:
    """The dimensions of more than one element."""
    return [d for d, extent in enumerate(value.shape) if extent > 1]


def _lengths(value: Value) -> list[int]:
    return [value.shape[d] for d in _long(value)]


def ints(node: Node, name: str) -> tuple[int, ...]:
    """An attribute that is a list of numbers."""
    value = node.attrs[name]
    assert isinstance(value, tuple)
    return value
