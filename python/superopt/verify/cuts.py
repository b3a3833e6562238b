"""Small extents for dimensions that place others side by side, at which the programs stay the same.

Such a dimension is treated differently before and after each cut, and two programs may cut it at different
places: cat(1000, 3000) * cat(3000, 1000) has three regions. At reduced extents the regions must be the same. So
extents are chosen such that, in each dimension, counting the cuts of its parts and of what it is part of:

- places keep their order and stay distinct: its cuts, and the ends of its first grid block, trip and tile;
- what falls on a boundary of a block, trip or tile still does, and what does not still does not; one block of a
  fixed number (an operand of a concatenation, a slice) stays the same one;
- a region between two cuts has two elements, and two blocks, where it has two or more.

Where no such extents exist, the dimension keeps its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from superopt.verify.axes import Dim, Factor, Joined, fix, leaves, reduced, unify

# Reduced extents of factors, smaller ones tried first, and how many choices are tried.
_SIZES = (2, 3, 4, 6, 8, 12, 16, 24)
_MOST_TRIES = 20_000


def settle(joined: Sequence[Joined]) -> None:
    """Choose reduced extents for every joined dimension; where no small ones work, keep the original.

    Dimensions that are cut at the same places have the same pieces. Raises Irreducible.
    """
    same_pieces(joined)
    for group in _connected(joined):
        free = list(dict.fromkeys(leaf for j in group for leaf in j.leaves if not leaf.fixed))
        best = _best(group, free)
        if best is None:
            fix(free)
        else:
            for leaf, size in zip(free, best, strict=True):
                leaf.chosen = size


def same_pieces(joined: Sequence[Joined]) -> None:
    """Unify the pieces of dimensions that have the same factors and the same cuts, until nothing changes.

    Also tiles of the same extents over the same dimension, which may reach past its end.
    """
    before = -1
    while before != (now := sum(len(j.leaves) for j in joined)):
        before = now
        known: dict[tuple[int, ...], Joined] = {}
        covered: dict[tuple[tuple[int, ...], ...], Joined] = {}
        for j in joined:
            sizes = (math.prod(f.size for f in leaves(piece)) for piece in j.pieces)
            first = known.setdefault((*map(id, leaves(j.whole)), -1, *sizes), j)
            for x, y in zip(first.pieces, j.pieces, strict=True):
                unify(x, y)
            factors = (tuple(f.size for f in leaves(d)) for d in (j.whole, *j.pieces[1:]))
            first = covered.setdefault((tuple(map(id, leaves(j.pieces[0]))), *factors), j)
            for x, y in zip((first.whole, *first.pieces), (j.whole, *j.pieces), strict=True):
                unify(x, y)


def _best(group: Sequence[Joined], free: Sequence[Factor]) -> list[int] | None:
    """The least extents of the factors `free` at which the regions stay the same, None where none do."""
    _two_between(group)
    if all(j.holds() for j in group) and _alike(group):
        return [leaf.chosen for leaf in free]
    several = sum(j.ragged for j in group) > 1  # where the search below finds less, but rarely in its tries
    for tile in (2, 3, 4) if several else ():
        if _by_levels(group, tile) and all(j.holds() for j in group) and _alike(group):
            return [leaf.chosen for leaf in free]
    follow = _following(group)
    tried, sums = [leaf for leaf in free if leaf not in follow], _sums(follow)
    for most in range(2, len(_SIZES) + 1):
        choices = [sorted({min(n, leaf.size) for n in _SIZES[:most]}) for leaf in tried]
        if math.prod(map(len, choices)) > _MOST_TRIES:
            return None
        found: list[tuple[int, list[int]]] = []
        for sizes in itertools.product(*choices):
            for leaf, size in zip(tried, sizes, strict=True):
                leaf.chosen = size
            if all(s.settles() for s in sums) and all(j.holds() for j in group) and _alike(group):
                found.append((sum(reduced(j.whole) for j in group), [leaf.chosen for leaf in free]))
        if found:
            return min(found)[1]
    return None


def _by_levels(group: Sequence[Joined], least: int) -> bool:
    """Choose extents for tiles of several sizes over the same dimensions, each a multiple of the next smaller.

    577 in tiles of 32, 64 and 128 is 4 x 128 + 1 x 64 + 0 x 32 + 1. Tiles become 3 (`least`), 6 and 12, digits
    at most 2 at the front and 1 behind it: 2 x 12 + 1 x 6 + 0 x 3 + 1 = 31. Whether that suits, `_alike` says.
    """
    sides = [leaves(d) for j in group for d in (j.whole, *j.pieces)]
    levels = sorted({math.prod(f.size for f in d[i:]) for d in sides for i in range(1, len(d))} | {1})
    if any(more % less for less, more in itertools.pairwise(levels)):
        return False
    small = {1: 1, **{level: least * 2**i for i, level in enumerate(levels[1:])}}

    def shrunk(extent: int) -> int:
        total, most = 0, 2
        for level in reversed(levels[1:]):
            digit, extent = divmod(extent, level)
            total, most = total + min(digit, most) * small[level], 1
        missing = levels[1] - extent if levels[1:] else 0  # from the last tile
        return total + (least - 1 if extent and missing == 1 else min(extent, max(1, least // 2)))

    found: dict[Factor, int] = {}

    def give(factors: Dim, extent: int) -> bool:
        """Give a dimension this extent: what tiles ask for to each factor, the rest to the outermost one."""
        for i, leaf in enumerate(factors):
            inner = small[math.prod(f.size for f in factors[i + 1 :])]
            size, left = divmod(extent, inner)
            if left or not 1 <= size <= leaf.size or found.setdefault(leaf, size) != size:
                return False
            if leaf.fixed and size != leaf.size:
                return False
            extent = inner
        return extent == 1

    for j in group:
        whole, *pieces = (leaves(d) for d in (j.whole, *j.pieces))
        sizes = [shrunk(_full(d)) for d in pieces]
        if j.ragged:
            tile = small[_full(whole[1:])]
            sizes[1:] = [-(-sizes[0] // tile) * tile - sizes[0]]
        if not all(map(give, (whole, *pieces), (sum(sizes), *sizes))):
            return False
    for leaf, size in found.items():
        leaf.chosen = size
    return True


def _full(factors: Dim) -> int:
    return math.prod(leaf.size for leaf in factors)


def _two_between(group: Sequence[Joined]) -> None:
    """Two elements between any two cuts: right where each dimension is one factor."""
    cuts = {id(j): [0] for j in group}
    for j in group:
        mine = cuts[id(j)]
        for piece in j.pieces:
            mine.append(mine[-1] + math.prod(f.size for f in leaves(piece)))
    of_whole: dict[tuple[int, ...], set[int]] = {}
    for j in group:
        of_whole.setdefault(tuple(map(id, leaves(j.whole))), set()).update(cuts[id(j)])
    for j in group:
        ends = sorted(of_whole[tuple(map(id, leaves(j.whole)))])
        gaps = [min(b - a, 2) for a, b in itertools.pairwise(ends)]
        places = dict(zip(ends, itertools.accumulate(gaps, initial=0), strict=True))
        sizes = [places[b] - places[a] for a, b in itertools.pairwise(cuts[id(j)])]
        for side, size in ((j.whole, places[ends[-1]]), *zip(j.pieces, sizes, strict=True)):
            if len(single := leaves(side)) == 1:
                single[0].chosen = size


def _following(group: Sequence[Joined]) -> dict[Factor, Joined]:
    """For each sum a factor that the others determine, in an order where each comes after those.

    Numbers of blocks and trips rather than extents of tiles: any number that is large enough will do.
    """
    follow: dict[Factor, Joined] = {}
    for j in group:
        outermost = {leaf for d in (j.whole, *j.pieces) for leaf in leaves(d)[:1]}
        for leaf in sorted(j.leaves, key=lambda f: (f not in outermost, -f.size)):
            once = sum(leaf is other for other in j.leaves) == 1
            if once and not leaf.fixed and leaf not in follow and _ordered(more := {**follow, leaf: j}):
                follow = more
                break
    return {leaf: follow[leaf] for leaf in _ordered(follow) or ()}


def _ordered(follow: dict[Factor, Joined]) -> list[Factor] | None:
    """Factors that follow from others, each after those that determine it; None for a cycle."""
    waiting, order = dict(follow), list[Factor]()
    while waiting:
        ready = [f for f, j in waiting.items() if not any(o in waiting for o in j.leaves if o is not f)]
        if not ready:
            return None
        for leaf in ready:
            del waiting[leaf]
        order += ready
    return order


@dataclass(frozen=True)
class _Sum:
    """A sum of dimensions, by what its parts consist of, that gives `leaf` its extent.

    `leaf` is in one of the pieces, of which `others` are the other factors and `rest` the other pieces, or else
    in the whole, of which `others` are the other factors and `rest` all pieces.
    """

    leaf: Factor
    whole: Dim | None
    others: Dim
    rest: list[Dim]

    def settles(self) -> bool:
        """Give the factor the extent that makes the sum add up, if there is one."""
        total = sum(_product(d) for d in self.rest)
        if self.whole is not None:
            total = _product(self.whole) - total
        size, left = divmod(total, _product(self.others))
        if left or not min(self.leaf.size, 2) <= size <= self.leaf.size:
            return False
        self.leaf.chosen = size
        return True


def _product(factors: Dim) -> int:
    return math.prod(leaf.reduced for leaf in factors)


def _sums(follow: dict[Factor, Joined]) -> list[_Sum]:
    """The sums that give these factors, in order, their extents."""
    found: list[_Sum] = []
    for leaf, j in follow.items():
        pieces, whole = [leaves(d) for d in j.pieces], leaves(j.whole)
        own = [d for d in pieces if any(leaf is f for f in d)]
        rest = [d for d in pieces if not any(leaf is f for f in d)]
        others = [f for f in (own[0] if own else whole) if f is not leaf]
        found.append(_Sum(leaf, whole if own else None, others, rest))
    return found


# --- whether reduced programs are cut alike ------------------------------------------------------------------


@dataclass
class _Places:
    """Places in one dimension, at full and at reduced extents: its cuts, and the ends of its first blocks.

    `levels` are its elements, tiles, trips and blocks: (size of one, its reduced size, how many make one of the
    next level where that number is fixed, else 0).
    """

    factors: Dim
    levels: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    cuts: dict[int, int] = field(default_factory=dict[int, int])
    ends: dict[int, int] = field(default_factory=dict[int, int])
    torn: bool = False  # whether one place became two

    def __post_init__(self) -> None:
        full = small = 1
        for leaf in reversed(self.factors):
            self.levels.append((full, small, leaf.size if leaf.fixed else 0))
            self.ends[full] = small
            full, small = full * leaf.size, small * leaf.reduced
        self.extent = full, small
        self.cuts |= {0: 0, full: small}

    def add(self, others: dict[int, int], own: dict[int, int], start: tuple[int, int], sign: int) -> None:
        """Take over the places of a part (`sign` 1) or of the whole (-1); the part begins at `start`."""
        for full, small in others.items():
            place, at = full + sign * start[0], small + sign * start[1]
            if 0 <= place <= self.extent[0] and own.setdefault(place, at) != at:
                self.torn = True

    def alike(self) -> bool:
        """Whether order, boundaries and regions agree at both extents."""
        cuts = dict(self.cuts)
        for full, small in self.cuts.items():
            for size, less, number in self.levels:
                if number and full // size % number != small // less % number:
                    return False
                for up in (0, 1):
                    place, at = (
                        (full + up * (size - 1)) // size * size,
                        (small + up * (less - 1)) // less * less,
                    )
                    if cuts.setdefault(place, at) != at:
                        return False
        if self.torn or any(cuts.get(full, small) != small for full, small in self.ends.items()):
            return False
        places = sorted({**self.ends, **cuts}.items())
        if any(a[1] >= b[1] for a, b in itertools.pairwise(places)):
            return False
        for size, less, _ in self.levels:
            if any((full % size == 0) != (small % less == 0) for full, small in places):
                return False
            for (a, x), (b, y) in itertools.pairwise(sorted(cuts.items())):
                number, fewer = max(0, b // size - -(-a // size)), max(0, y // less - -(-x // less))
                if not min(number, 2) <= fewer <= number:
                    return False
        return True


def _alike(group: Sequence[Joined]) -> bool:
    """Whether every dimension of the group has the same regions at full and at reduced extents."""
    found: dict[tuple[int, ...], _Places] = {}

    def places(d: Dim) -> _Places:
        return found.setdefault(tuple(map(id, leaves(d))), _Places(leaves(d)))

    # Cuts of parts are cuts of the whole, and all cuts of the whole are then cuts of every part.
    for up in (True, False):
        before = -1
        while before != (now := sum(len(p.cuts) + len(p.ends) for p in found.values())):
            before = now
            for j in group:
                whole, start = places(j.whole), (0, 0)
                for piece in map(places, j.pieces):
                    to, source, sign = (whole, piece, 1) if up else (piece, whole, -1)
                    to.add(source.cuts, to.cuts, start, sign)
                    to.add(source.ends, to.ends, start, sign)
                    start = start[0] + piece.extent[0], start[1] + piece.extent[1]
    return all(p.alike() for p in found.values())


def _connected(joined: Sequence[Joined]) -> Iterator[list[Joined]]:
    """Groups that share factors, each of them once."""
    rest = list({tuple(map(id, j.leaves)): j for j in joined}.values())
    while rest:
        group = [rest.pop()]
        mine = set(group[0].leaves)
        while near := [j for j in rest if not mine.isdisjoint(j.leaves)]:
            group += near
            mine.update(leaf for j in near for leaf in j.leaves)
            rest = [j for j in rest if j not in near]
        yield group
