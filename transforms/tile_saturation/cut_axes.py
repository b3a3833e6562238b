"""Which dimensions of a kernel graph run along one axis, and how each axis is cut.

Dimensions that one dimension of an operator's nest runs along are one axis. How an axis is cut follows from its
uses:

    elem    one at a time: the batch of a matrix product, the outer part of a dimension that a reshape splits
    tile    by a tile parameter; by the inner part's extent where a reshape splits the dimension (16 x 4096 to
            16 x 32 x 128 cuts 4096 by 128, and the 32 one at a time, both by one variable)
    full    not at all: small extents, inner parts of reshapes, extents without a good divisor
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from superopt.errors import UnsupportedProgram
from superopt.operators import OPERATORS, Move, is_contraction, move_of, nest_of
from superopt.program import KernelGraph, Node, Value
from superopt.transforms.tile_saturation.terms import STARTS, TermVar

Dim: TypeAlias = "tuple[Value, int]"
Group: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"  # dimensions of the operand, of the result

# Extents up to this are not cut: a tile may hold them whole.
SMALL = 64
# Widths that tiles may have; the first that divides the extent is what costs are estimated with.
WIDTHS = (64, 128, 32, 16)


def reshape_groups(before: Sequence[int], after: Sequence[int]) -> list[Group]:
    """The finest split of a reshape into runs of dimensions with equal products; unit extents go anywhere."""
    groups: list[Group] = []
    i = j = 0
    while i < len(before) or j < len(after):
        left: list[int] = []
        right: list[int] = []
        p = q = 1
        while True:
            if p == q and left and right:
                break
            if p <= q and i < len(before):
                left.append(i)
                p *= before[i]
                i += 1
            elif j < len(after):
                right.append(j)
                q *= after[j]
                j += 1
            elif i < len(before):
                left.append(i)
                p *= before[i]
                i += 1
            else:
                break
        # Unit extents that follow belong to this group, so that none is left over.
        while i < len(before) and before[i] == 1 and (p == q) and i + 1 == len(before):
            left.append(i)
            i += 1
        while j < len(after) and after[j] == 1 and p == q and j + 1 == len(after):
            right.append(j)
            j += 1
        groups.append((tuple(left), tuple(right)))
    return groups


def expressible(node: Node) -> bool:
    """Whether tile loops have a form for the node's operator."""
    entry = OPERATORS.get(node.op)
    if entry is None or len(node.results) != 1:
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
    leader: CutAxis | None = (
        None  # the first axis tied to the same elements, by whose variable this one is cut
    )
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


def nominal_width(extent: int) -> int:
    """The width that costs of a parameter are estimated with; 0 where no good one divides the extent."""
    return next((w for w in WIDTHS if extent % w == 0 and w < extent), 0)


class CutAxes:
    """The axes of a graph, those of `whole` not cut; UnsupportedProgram for what tile loops do not express."""

    def __init__(self, graph: KernelGraph, whole: Collection[Dim] = ()) -> None:
        self._parent: dict[Dim, Dim] = {}
        self._elem: set[Dim] = set()
        self._full: set[Dim] = set(whole)
        self._splits: list[tuple[Dim, list[Dim]]] = []  # a merged dimension and those it splits into
        values = [*graph.inputs, *(r for n in graph.nodes for r in n.results)]
        for node in graph.nodes:
            self._relate(node)
        self._unify_splits()
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
        while self._parent.get(dim, dim) != dim:
            dim = self._parent[dim]
        return dim

    def _join(self, a: Dim, b: Dim) -> None:
        if a[0].shape[a[1]] != b[0].shape[b[1]] or a[0].shape[a[1]] == 1:
            return
        x, y = self._find(a), self._find(b)
        if x != y:
            self._parent[y] = x

    def _relate(self, node: Node) -> None:
        """What one dimension of the node's nest runs along is one axis."""
        if not expressible(node):
            raise UnsupportedProgram(f"tile loops do not express '{node.op}'", node.location)
        nest = nest_of(node)
        if move_of(node) is Move.RESHAPE:
            self._relate_reshape(node)
        elif nest is None:  # pieces side by side along one dimension
            for operand in node.operands:
                for d in range(len(operand.shape)):
                    self._join((operand, d), (node.result, d))
        else:
            first: dict[int, Dim] = {
                dim: (node.result, d) for d, dim in enumerate(nest.result) if dim is not None
            }
            for operand, maps in zip(node.operands, nest.operands, strict=True):
                for d, index in enumerate(maps):
                    if index.dim is not None:
                        self._join(first.setdefault(index.dim, (operand, d)), (operand, d))
        if is_contraction(node):  # a product of tiles has two dimensions
            self._elem.update((node.result, d) for d in range(len(node.result.shape) - 2))

    def _relate_reshape(self, node: Node) -> None:
        source, result = node.operands[0], node.result
        for left, right in reshape_groups(source.shape, result.shape):
            xs = [(source, d) for d in left if source.shape[d] > 1]
            ys = [(result, d) for d in right if result.shape[d] > 1]
            if len(xs) == 1 and len(ys) == 1:
                self._join(xs[0], ys[0])
            elif len(xs) == 1 and ys:
                self._splits.append((xs[0], ys))
            elif len(ys) == 1 and xs:
                self._splits.append((ys[0], xs))
            else:
                self._full.update([*xs, *ys])

    def _unify_splits(self) -> None:
        """Merged dimensions whose outer parts are one axis and whose inner parts have one extent are one axis."""
        for i, (merged, parts) in enumerate(self._splits):
            for other, others in self._splits[:i]:
                same = self._find(parts[0]) == self._find(others[0])
                if same and merged[0].shape[merged[1]] == other[0].shape[other[1]]:
                    self._join(other, merged)

    # --- cuts ---

    def _inner(self, dim: Dim) -> bool:
        """Whether a dimension is an inner part of another reshape, which keeps it whole."""
        root = self._find(dim)
        return any(self._find(d) == root for _, parts in self._splits for d in parts[1:])

    def _cut(self) -> None:
        for axis in self._axes.values():
            small = axis.extent <= SMALL or nominal_width(axis.extent) == 0
            axis.cut = "full" if small else "tile"
        for dim in self._elem:
            if (axis := self._axes.get(self._find(dim))) is not None:
                axis.cut = "elem"
        for dim in self._full:
            if (axis := self._axes.get(self._find(dim))) is not None:
                axis.cut = "full"
        for merged, parts in self._splits:
            outer, *inner = parts
            for dim in inner:
                self._axes[self._find(dim)].cut = "full"
            whole, first = self._axes[self._find(merged)], self._axes[self._find(outer)]
            if whole.extent <= SMALL or (first.cut == "full" and first.extent > 1 and self._inner(outer)):
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


def ints(node: Node, name: str) -> tuple[int, ...]:
    """An attribute that is a list of numbers."""
    value = node.attrs[name]
    assert isinstance(value, tuple)
    return value
