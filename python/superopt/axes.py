"""Which dimensions of values run along one axis: what the operators' loop nests say, collected by union.

Tile saturation, lowering and emission ask the same question and differ in what an axis is to them; the muGraph
search also cuts axes into parts (`mugraph_search/axis_table.py`). Verification keeps its own relations.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from superopt.operators import AppliedOn, nest_of
from superopt.program import Value

K = TypeVar("K", bound=Hashable)

Dim: TypeAlias = "tuple[Value, int]"


class Classes(Generic[K]):
    """Disjoint sets of keys, each key in a set of its own until it is joined (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[K, K] = {}

    def find(self, key: K) -> K:
        """The key that represents the set of `key`."""
        root = key
        while (parent := self._parent.get(root, root)) != root:
            root = parent
        while (parent := self._parent.get(key, root)) != root:  # so that the next search is short
            self._parent[key] = root
            key = parent
        return root

    def join(self, a: K, b: K) -> None:
        """Merge the sets of two keys."""
        self._parent[self.find(a)] = self.find(b)


class OnValues(AppliedOn, Protocol):
    """A node of a graph, or a statement of a tile program."""

    @property
    def operands(self) -> Sequence[Value]:
        """The values it takes."""
        ...

    @property
    def result(self) -> Value:
        """The value it gives."""
        ...


def walked_together(node: OnValues) -> Iterator[tuple[Dim, Dim]]:
    """Pairs of dimensions that one index of the nest of `node` runs along; none if it lacks a plain nest.

    A dimension of extent 1 that is broadcast runs along nothing; one of a slice runs along a part of the other.
    """
    nest = nest_of(node)
    if nest is None or not nest.plain:
        return
    first: dict[int, Dim] = {}
    for value, maps in zip(node.operands, nest.operands, strict=True):
        for d, index in enumerate(maps):
            if index.dim is not None:
                yield (value, d), first.setdefault(index.dim, (value, d))
    for d, dim in enumerate(nest.result):
        if dim is not None:
            yield (node.result, d), first.setdefault(dim, (node.result, d))


def reshape_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Which dimensions of a row-major reshape become which: the smallest runs of equal products, in order.

    (1, 71, 4, 64) -> (284, 64) is ([1, 2], [0]) and ([3], [1]); dimensions of extent 1 are in none.
    """
    left = [d for d, e in enumerate(before) if e > 1]
    right = [d for d, e in enumerate(after) if e > 1]
    found: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (x := math.prod(before[d] for d in a)) != (y := math.prod(after[d] for d in b)):
            a, b = ([*a, left.pop(0)], b) if x < y else (a, [*b, right.pop(0)])
        found.append((a, b))
    return found


def same_dimensions(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int]] | None:
    """Pairs of dimensions before and after a reshape that adds and drops extents of 1; None for any other."""
    groups = reshape_groups(before, after)
    return [(a[0], b[0]) for a, b in groups] if all(len(a) == len(b) == 1 for a, b in groups) else None
