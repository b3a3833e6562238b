"""Axes of programs as products of factors, unified and split until every program that uses them agrees.

A dimension is a list of factors, outermost first. Where a grid, a loop, a reshape or a concatenation cuts a
dimension, its list says so: `[grid, loop, tile]`. Equal dimensions have equal lists. A dimension that places
others of different extents side by side, such as a cache and what is appended to it, is `Joined`: a sum of
products (`superopt.verify.cuts` chooses its extents).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


class Irreducible(Exception):
    """Two cuts of one dimension lack a common refinement."""


@dataclass(eq=False)
class Factor:
    """An extent; `fixed` where something depends on its size. Once it is split, `parts` replaces it."""

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
    """The factors that a list now consists of."""
    # A loop: a long chain of operators makes a long chain of factors.
    found: Dim = []
    left = list(reversed(factors))
    while left:
        factor = left.pop()
        if factor.parts:
            left += reversed(factor.parts)
        else:
            found.append(factor)
    return found


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
        # A leaf that is split here may also stand further out in a list.
        xs, ys = leaves(xs), leaves(ys)
    if math.prod(f.size for f in (*xs, *ys)) != 1:
        raise Irreducible("extents differ")


@dataclass(frozen=True)
class Joined:
    """A dimension that concatenates two others."""

    whole: Dim
    pieces: tuple[Dim, ...]

    @property
    def leaves(self) -> list[Factor]:
        """Every factor of both sides."""
        return [leaf for d in (self.whole, *self.pieces) for leaf in leaves(d)]

    def holds(self) -> bool:
        """Whether the reduced extents add up."""
        return reduced(self.whole) == sum(map(reduced, self.pieces))
