"""Axes of programs as products of factors, unified and split until every program that uses them agrees.

A dimension is a list of factors, outermost first. Where a grid, a loop, a reshape or a concatenation cuts a
dimension, its list says so: `[grid, loop, tile]`. Equal dimensions have equal lists, but for
factors that are fixed where two cuts cross. A dimension that places
others of different extents side by side, such as a cache and what is appended to it, is `Joined`: a sum of
products (`superopt.verify.cuts` chooses its extents).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


class Irreducible(Exception):
    """Lists that should be of one extent are not, or no small extents suit what depends on them."""


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
    found: Dim = []
    for factor in factors:
        if factor.parts:
            if any(part.parts for part in factor.parts):
                factor.parts = _parts(factor)  # so that they are found at once from now on
            found += factor.parts
        else:
            found.append(factor)
    return found


def _parts(factor: Factor) -> Dim:
    """What a split factor now consists of."""
    # A loop: a long chain of operators makes a long chain of factors.
    found, left = list[Factor](), [factor]
    while left:
        part = left.pop()
        if part.parts:
            left += reversed(part.parts)
        else:
            found.append(part)
    return found


def fix(factors: Sequence[Factor]) -> None:
    """Keep these extents as they are."""
    for leaf in leaves(factors):
        leaf.fixed = True


def reduced(factors: Sequence[Factor]) -> int:
    """The extent of a dimension to test at."""
    return math.prod(leaf.reduced for leaf in leaves(factors))


def unify(a: Sequence[Factor], b: Sequence[Factor]) -> None:
    """Make two lists of one total extent the same, splitting factors as needed.

    Where cuts cross (rows of 7 and tiles of 8), both lists keep their own factors, fixed, for as many positions
    as both divide (56), and are the same around them: every extent of the others has the same crossings, as often
    as it has such positions. Raises Irreducible where the total extents differ.
    """
    xs, ys = leaves(a), leaves(b)
    while xs and ys:
        x, y = xs.pop(), ys.pop()
        if x is y:
            continue
        if x.size < y.size:
            x, y, xs, ys = y, x, ys, xs
        common = math.gcd(x.size, y.size)
        if common == y.size:
            y.fixed |= x.fixed
            x.parts = [y]
            if x.size != y.size:
                outer = Factor(x.size // y.size, x.fixed)
                x.parts = [outer, y]
                xs.append(outer)
        elif common > 1:
            shared = Factor(common, x.fixed or y.fixed)
            x.parts = [Factor(x.size // common, x.fixed), shared]
            y.parts = [Factor(y.size // common, y.fixed), shared]
            xs, ys = [*xs, x], [*ys, y]
        else:
            xs, ys = _crossed([*xs, x], [*ys, y])
        # A leaf that is split here may also stand further out in a list.
        xs, ys = leaves(xs), leaves(ys)
    if math.prod(f.size for f in (*xs, *ys)) != 1:
        raise Irreducible("extents differ")


def _crossed(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """What lies around the innermost factors of two lists that are as long together; those are fixed."""
    lists, inside = (list(a), list(b)), ([a[-1]], [b[-1]])
    for d in lists:
        d.pop()
    while (sizes := [math.prod(f.size for f in d) for d in inside])[0] != sizes[1]:
        side = int(sizes[0] == (together := math.lcm(*sizes)))
        if not (around := leaves(lists[side])):
            raise Irreducible("extents differ")
        lists[side][:] = around
        part = lists[side].pop()
        if 1 < (wanted := math.gcd(part.size, together // sizes[side])) < part.size:
            part.parts = [Factor(part.size // wanted, part.fixed), Factor(wanted, part.fixed)]
            lists[side].append(part.parts[0])
            part = part.parts[1]
        inside[side].insert(0, part)
    fix([*inside[0], *inside[1]])
    return lists


@dataclass(frozen=True)
class Joined:
    """A dimension that concatenates others; with `ragged`, tiles that cover the first piece and reach past it."""

    whole: Dim
    pieces: tuple[Dim, ...]
    ragged: bool = False

    @property
    def leaves(self) -> list[Factor]:
        """Every factor of both sides."""
        return [leaf for d in (self.whole, *self.pieces) for leaf in leaves(d)]

    def holds(self) -> bool:
        """Whether the reduced extents add up."""
        return reduced(self.whole) == sum(map(reduced, self.pieces))
