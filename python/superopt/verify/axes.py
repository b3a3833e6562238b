"""Axes of programs as products of factors, unified and split until every program that uses them agrees.

A dimension is a list of factors, outermost first. Where a grid, a loop, a reshape or a concatenation cuts a
dimension, its list says so: `[grid, loop, tile]`. Equal dimensions have equal lists. A dimension that is others
of different extents side by side, as a cache and what is appended to it, is `Joined`: a sum of products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

# Largest reduced extent, and most factors that may vary together, when a sum of extents has to come out right.
_MOST_EXTENT = 4
_MOST_FREE = 7


class Irreducible(Exception):
    """Two cuts of one dimension that have no common refinement."""


@dataclass(eq=False)
class Factor:
    """An extent; `fixed` where something depends on its size. Once split, `parts` stands for it."""

    size: int
    fixed: bool = False
    parts: list[Factor] = field(default_factory=list["Factor"])
    chosen: int = 2

    @property
    def reduced(self) -> int:
        """The extent to test at: two, so that every boundary is crossed once, or more where a sum needs it."""
        return self.size if self.fixed else min(self.size, self.chosen)


Dim: TypeAlias = list[Factor]


def dim(size: int) -> Dim:
    """A new dimension of one factor, or of none where the extent is 1."""
    return [] if size == 1 else [Factor(size)]


def leaves(factors: Sequence[Factor]) -> Dim:
    """The factors that a list consists of by now."""
    return [leaf for f in factors for leaf in (leaves(f.parts) if f.parts else [f])]


def fix(factors: Sequence[Factor]) -> None:
    """Keep these extents as they are."""
    for leaf in leaves(factors):
        leaf.fixed = True


def reduced(factors: Sequence[Factor]) -> int:
    """The extent of a dimension to test at."""
    return math.prod(leaf.reduced for leaf in leaves(factors))


def unify(a: Sequence[Factor], b: Sequence[Factor]) -> None:
    """Make two lists of one total extent the same, splitting factors as needed; raises Irreducible."""
    xs, ys = leaves(a), leaves(b)
    while xs and ys:
        x, y = xs.pop(), ys.pop()
        if x is y:
            continue
        if x.size < y.size:
            x, y, xs, ys = y, x, ys, xs
        if x.size % y.size:
            raise Irreducible(f"{x.size} and {y.size}")
        y.fixed |= x.fixed
        x.parts = [y]
        if x.size != y.size:
            outer = Factor(x.size // y.size, x.fixed)
            x.parts = [outer, y]
            xs.append(outer)
        # A leaf split here may wait further out in a list too.
        xs, ys = leaves(xs), leaves(ys)
    if math.prod(f.size for f in (*xs, *ys)) != 1:
        raise Irreducible("extents differ")


@dataclass(frozen=True)
class Joined:
    """A dimension that is others, one after the other."""

    whole: Dim
    pieces: tuple[Dim, ...]

    @property
    def leaves(self) -> list[Factor]:
        """Every factor of both sides."""
        return [leaf for d in (self.whole, *self.pieces) for leaf in leaves(d)]

    def holds(self) -> bool:
        """Whether the reduced extents add up."""
        return reduced(self.whole) == sum(map(reduced, self.pieces))


def settle(joined: Sequence[Joined]) -> None:
    """Choose reduced extents that add up in every joined dimension; extents are kept where no small ones do.

    A dimension that is cut at the same places twice has the same pieces. Raises Irreducible.
    """
    _same_pieces(joined)
    for group in _connected(joined):
        free = list(dict.fromkeys(leaf for j in group for leaf in j.leaves if not leaf.fixed))
        choices = [range(min(leaf.size, 2), min(leaf.size, _MOST_EXTENT) + 1) for leaf in free]
        tries = itertools.product(*choices) if len(free) <= _MOST_FREE else ()
        best: tuple[int, ...] | None = None
        least = 0
        for sizes in tries:
            for leaf, size in zip(free, sizes, strict=True):
                leaf.chosen = size
            if all(j.holds() for j in group):
                total = sum(reduced(j.whole) for j in group)
                if best is None or total < least:
                    best, least = sizes, total
        if best is None:
            fix(free)
        else:
            for leaf, size in zip(free, best, strict=True):
                leaf.chosen = size


def _same_pieces(joined: Sequence[Joined]) -> None:
    """Unify the pieces of dimensions that have the same factors and the same cuts, until nothing changes."""
    before = -1
    while before != (now := sum(len(j.leaves) for j in joined)):
        before = now
        known: dict[tuple[int, ...], Joined] = {}
        for j in joined:
            sizes = (math.prod(f.size for f in leaves(piece)) for piece in j.pieces)
            first = known.setdefault((*map(id, leaves(j.whole)), -1, *sizes), j)
            for x, y in zip(first.pieces, j.pieces, strict=True):
                unify(x, y)


def _connected(joined: Sequence[Joined]) -> Iterator[list[Joined]]:
    """Groups that share factors, each once."""
    rest = list({tuple(map(id, j.leaves)): j for j in joined}.values())
    while rest:
        group = [rest.pop()]
        mine = set(group[0].leaves)
        while near := [j for j in rest if not mine.isdisjoint(j.leaves)]:
            group += near
            mine.update(leaf for j in near for leaf in j.leaves)
            rest = [j for j in rest if j not in near]
        yield group
