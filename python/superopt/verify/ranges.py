"""A program and its tile programs at all extents of some ranges, made from those at one extent of each.

An axis that the programs cut into tiles of one size keeps these tiles at every extent, and has as many of them as
cover it; an axis that lies in one tile keeps its mask. Everything else is as it was. That this gives programs
that compute the same is proved, at some extents, by who uses them.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from superopt.errors import UnsupportedProgram
from superopt.extent import tiles_of
from superopt.program import KernelGraph
from superopt.verify.axes import Factor, Irreducible, leaves
from superopt.verify.certificate import Extents, Record
from superopt.verify.extents import Axes
from superopt.verify.hashing import canonical_text
from superopt.verify.reduce import reduce_extents, resized

MOST_EXAMINED = 256
"""Extents of the largest range of which each has its reduced programs compared; of a larger one, some."""
MOST_CLASSES = 2048
"""Of ways in which the tiles of all axes together end."""
MOST_POINTS = 1 << 22
"""Extents among which these ways are looked for."""

Point: TypeAlias = tuple[int, ...]
"""An extent of each axis."""
Monomial: TypeAlias = tuple[int, tuple[int, ...]]
"""A number times the extents of these axes, which are numbered."""


class Axis(Record):
    """An extent called `name`, from `low` to `high`, at places (input, dimension, k): k extents long."""

    name: str
    low: int
    high: int
    places: tuple[tuple[int, int, int], ...]

    @property
    def representative(self) -> int:
        """The extent to search at: a prime, which no tile divides, as close to `high` as tiles allow."""
        return representatives([self])[0]

    def __str__(self) -> str:
        return f"{self.name} from {self.low} to {self.high}"


def representatives(axes: Sequence[Axis]) -> Point:
    """The extents to search at: for each axis a prime of its own, which no tile divides, as close to `high` as
    tiles allow."""
    found: list[int] = []
    for axis in axes:
        prime = prime_below(axis.high)
        while prime in found and prime > 3:
            prime = prime_below(prime - 1)
        while prime < 3 or prime in found or _padded(prime) < _padded(axis.high):
            prime = next(n for n in range(prime + 1, 2 * prime + 2) if prime_below(n) == n)
        found.append(prime)
    return tuple(found)


def _padded(extent: int) -> int:
    return 1 << (extent - 1).bit_length()


_REST = "to be cut into equal tiles, of which masks hide what is beyond, got a loop with a rest of its own"
_TABLE = (
    "to be the extent of no constant of many numbers, got one: what a program computes of positions alone, such "
    "as their cosines, is one when it is read; make it an input, or use buckets"
)
_JOINED = "in no concatenation along it, got one; torch.compile(backend='superopt') takes caches that grow"


class Family:
    """`original` and `lowered` at other extents of some axes of their inputs.

    Raises UnsupportedProgram where an axis cannot have another extent: it is split, joined with others, or cut in
    another way than into equal tiles.
    """

    def __init__(self, original: KernelGraph, lowered: KernelGraph, axes: Sequence[Axis]) -> None:
        self._programs, self.axes = (original, lowered), tuple(axes)
        self._axes = tied = Axes(ramps_follow=True)
        try:
            tied.graph(original)
            self._written = list(tied.joined)
            tied.graph(lowered)
            ends = zip(
                [*original.inputs, *original.outputs], [*lowered.inputs, *lowered.outputs], strict=True
            )
            for x, y in ends:
                tied.same(tied.of(x), tied.of(y))
            tied.cut_buffers()
        except Irreducible as error:
            raise self._refused(f"to fit together with other axes ({error}), got one that does not") from None
        first = [axis.places[0] for axis in self.axes]
        self.extents: Point = tuple(original.inputs[i].shape[d] // times for i, d, times in first)
        self._known: dict[Factor, Monomial] = {}
        for number, axis in enumerate(self.axes):
            for i, d, times in sorted(axis.places, key=lambda place: place[2]):
                self._place(leaves(tied.of(original.inputs[i])[d]), number, times)
        self._counts: dict[Factor, tuple[Monomial, int]] = {}
        self._within: set[tuple[Monomial, int]] = set()
        self._count()
        self.tiles = sorted({size for _, size in self._counts.values()})

    def _refused(self, expected: str) -> UnsupportedProgram:
        what = " and ".join(axis.name for axis in self.axes)
        extents = "extent varies" if len(self.axes) == 1 else "extents vary"
        return UnsupportedProgram(f"expected {what}, whose {extents}, {expected}", self._programs[0].location)

    def _place(self, factors: Sequence[Factor], number: int, times: int) -> None:
        """Note that a dimension of these factors is so many times the extent of an axis."""
        extent = self.extents[number]
        found, what = list(factors), (times, (number,))
        if len(found) > 1:  # the multiple is a dimension of its own: [times, extent]
            found, what = [f for f in factors if f.size == extent], (1, (number,))
        whole = math.prod(f.size for f in factors) == times * extent
        if any(leaf in leaves(d) for d in self._axes.tables for leaf in factors):
            raise self._refused(_TABLE)
        if len(found) != 1 or found[0].fixed or not whole or self._known.get(found[0], what) != what:
            raise self._refused("to be neither split nor sliced, got a part of it")
        self._known[found[0]] = what

    def _monomial(self, factors: Sequence[Factor]) -> Monomial:
        """The product of factors; that of no axis is a number."""
        parts = [self._known.get(leaf, (leaf.size, ())) for leaf in leaves(factors)]
        return math.prod(n for n, _ in parts), tuple(sorted(a for _, axes in parts for a in axes))

    def _count(self) -> None:
        """Find the masks, grids and loops over the axes, with the size of their tiles."""
        tied, known = self._axes, self._known
        outer = {leaf for d in tied.trips.values() for leaf in leaves(d)}
        outer |= {
            leaf for grid, loops in tied.extents.values() for d in (*grid, *loops) for leaf in leaves(d)
        }
        ragged = [(leaves(j.whole), leaves(j.pieces[0])) for j in tied.ragged]
        for _ in range(2):  # masks end where the axis does that their tiles cover
            covers = {tuple(map(id, whole)): m for whole, p in ragged if (m := self._monomial(p))[1]}
            for whole, piece in ragged:
                what = covers.get(tuple(map(id, whole)))
                if what and len(piece) == 1 and piece[0].size == value_of(what, self.extents):
                    known.setdefault(piece[0], what)
        for joined in tied.joined:
            if known.keys().isdisjoint(joined.leaves):
                continue
            whole, what = leaves(joined.whole), self._monomial(joined.pieces[0])
            if joined not in tied.ragged or not what[1]:
                raise self._refused(_JOINED if any(joined is j for j in self._written) else _REST)
            moved = [leaf for leaf in whole if leaf in outer]
            size = math.prod(leaf.size for leaf in whole if leaf not in moved[:1])
            if len(moved) > 1 or not known.keys().isdisjoint(leaf for leaf in whole if leaf not in moved):
                raise self._refused("to be cut into tiles of one size, by one loop, got others")
            if not moved:  # the axis lies in one tile
                self._within.add((what, size))
            elif self._counts.setdefault(moved[0], (what, size)) != (what, size):
                raise self._refused("to be cut into tiles of one size, by one loop, got others")
        for leaf in known.keys() & outer:  # loops over single elements
            self._counts[leaf] = known[leaf], 1

    def at(self, extents: Point) -> tuple[KernelGraph, KernelGraph]:
        """Both programs at extents, which may be `superopt.extent.Extent`s."""
        sizes = {leaf: value_of(what, extents) for leaf, what in self._known.items()}
        for count, (what, size) in self._counts.items():
            sizes.setdefault(count, tiles_of(value_of(what, extents), size))

        def size_of(factors: Sequence[Factor]) -> int:
            return math.prod(sizes.get(leaf, leaf.size) for leaf in leaves(factors))

        original, lowered = (resized(graph, self._axes, size_of) for graph in self._programs)
        return original, lowered

    @property
    def cuts(self) -> Cuts:
        """What tiles cover, with the sizes of those that loops move, and of those that cover it alone."""
        found: Cuts = {what: (set(), set()) for what in self._known.values()}
        for what, size in self._counts.values():
            found.setdefault(what, (set(), set()))[0].add(size)
        for what, size in self._within:
            found.setdefault(what, (set(), set()))[1].add(size)
        return found

    def ending(self, extents: Point) -> str:
        """How extents end in tiles: whole ones, elements after them, elements missing, each up to two."""
        found: list[str] = []
        for (number, axes), (tiles, within) in sorted(self.cuts.items()):
            size = value_of((number, axes), extents)
            name = " * ".join([*([str(number)] if number != 1 else []), *(self.axes[a].name for a in axes)])
            for t in sorted(tiles | within) or [1]:
                ends = min(size // t, 2), min(size % t, 2), min(-size % t, 2)
                found.append(f"{name} in tiles of {t}: {ends[0]}, {ends[1]} more, {ends[2]} missing")
        return "; ".join(found)


Cuts: TypeAlias = Mapping[Monomial, tuple[set[int], set[int]]]


def value_of(monomial: Monomial, extents: Point) -> int:
    """The product at these extents."""
    number, axes = monomial
    return math.prod(extents[a] for a in axes) * number


class ExtentRecord(Record):
    """What was proved at one extent of each axis: the bound of the certificate, the blocks that were run.

    The kernels are those for the whole range, from their TTIR and their PTX, launched with these extents. `form`
    is the sha256 of both programs at reduced extents; where they cannot be reduced, how the extents end in tiles.
    """

    extents: Point
    delta: float | None
    delta_extents: Extents
    instances: int
    blocks: int
    form: str


class RangeRecord(Record):
    """States that one set of kernels computes a program at every extent of some axes, within their bounds.

    Loops cut the axes into `tiles`. The evidence: programs and kernels are made from one structure in which the
    extents alone vary. Extents differ in few ways, such as whether the last tile is ragged: at reduced extents,
    where proofs are formal, the programs at all of the `examined` extents are a few pairs, and at least one
    extent for each of these was proved and its kernels run: those in `extents`.
    """

    version: Literal[2] = 2
    axes: tuple[Axis, ...]
    tiles: tuple[int, ...]
    extents: tuple[ExtentRecord, ...]
    examined: int

    @property
    def names(self) -> str:
        """The axes and their bounds, in words."""
        return " and ".join(map(str, self.axes))

    @property
    def summary(self) -> str:
        """A summary in one line."""
        count = len({e.form for e in self.extents})
        every = math.prod(a.high - a.low + 1 for a in self.axes)
        examined = "all" if self.examined == every else f"{self.examined} of the"
        proved = ", ".join(" x ".join(map(str, e.extents)) for e in self.extents)
        forms = f"{count} normal form{'s' * (count != 1)} for {examined} extents"
        return f"one kernel for {self.names}: {forms}, proved and run at {proved}"


def examined(axes: Sequence[Axis], cuts: Cuts, seed: str = "") -> list[Point]:
    """Extents at which programs are compared: all of small ranges, of large ones the ends of each class.

    Extents are of one class where they end alike in each tile, after as many whole tiles or at least two periods
    of all tiles. Of each class there are the first extent and, where there is one axis, the last one; also the
    ends, and some that the seed draws. Raises UnsupportedProgram for too many classes.
    """
    ranges = [range(a.low, a.high + 1) for a in axes]
    if math.prod(map(len, ranges)) <= MOST_EXAMINED:
        return list(itertools.product(*ranges))
    drawn = random.Random(f"{seed}\n{[(a.low, a.high) for a in axes]}")
    found = {tuple(drawn.choice(r) for r in ranges) for _ in range(MOST_EXAMINED // 8)}
    found |= ends_and_inside(axes)
    parts = [_ends(part, axes, cuts) for part in _independent(len(axes), cuts)]
    if math.prod(len(first) for first, _ in parts) > MOST_CLASSES:
        raise UnsupportedProgram(
            f"expected tiles that end in at most {MOST_CLASSES} ways, got more: use buckets"
        )
    kinds = [first for first, _ in parts], [last for _, last in parts]
    for chosen in kinds if len(parts) == 1 else kinds[:1]:
        for together in itertools.product(*chosen):
            at = dict(pair for point in together for pair in point)
            found.add(tuple(at[i] for i in range(len(axes))))
    return sorted(found)


def _independent(count: int, cuts: Cuts) -> list[list[int]]:
    """The axes, those together that a tile covers together."""
    parts = [{i} for i in range(count)]
    for _, axes in cuts:
        met = [p for p in parts if not p.isdisjoint(axes)]
        parts = [p for p in parts if p.isdisjoint(axes)] + [set[int]().union(*met)]
    return sorted(sorted(p) for p in parts if p)


Placed: TypeAlias = tuple[tuple[int, int], ...]


def _ends(part: Sequence[int], axes: Sequence[Axis], cuts: Cuts) -> tuple[list[Placed], list[Placed]]:
    """The first and the last extents of each class of these axes, as pairs of an axis and its extent."""
    mine = {what: sizes for what, sizes in cuts.items() if set(what[1]) <= {*part}}
    # Beside larger tiles, tiles of one element add no way to end.
    moved = {what: sorted(sizes[0] - {1}) for what, sizes in mine.items()}
    period = math.lcm(*(t for tiles in moved.values() for t in tiles))
    within = {t for sizes in mine.values() for t in sizes[1]}
    near = max(3 * period, max(within, default=0))  # others are larger by periods
    values = [
        sorted({*range(a.low, min(a.high, a.low + near) + 1), *range(max(a.low, a.high - near), a.high + 1)})
        for a in (axes[i] for i in part)
    ]
    if math.prod(map(len, values)) > MOST_POINTS:
        raise UnsupportedProgram("expected tiles whose sizes have a small common multiple, got others")
    points = np.stack([m.ravel() for m in np.meshgrid(*values, indexing="ij")], -1).astype(np.int64)
    keys: list[np.ndarray] = []
    for (number, together), tiles in moved.items():
        size = points[:, [part.index(a) for a in together]].prod(-1) * number
        keys.append(np.minimum(size // period, 2))
        for t in tiles or [1]:
            keys += [size % period // t, np.minimum(size % t, 2), np.minimum(-size % t, 2)]
        keys += [np.clip(t - size, 0, 2) for t in mine[number, together][1]]
    key = np.stack(keys, -1)
    chosen = [np.unique(k, axis=0, return_index=True)[1] for k in (key, key[::-1])]
    indices = chosen[0], len(points) - 1 - chosen[1]
    first, last = ([tuple(zip(part, map(int, points[i]), strict=True)) for i in each] for each in indices)
    return first, last


def forms(family: Family) -> dict[Point, str]:
    """The form (see `ExtentRecord`) of each of the extents that are examined."""
    found: dict[Point, str] = {}
    seed = "\n".join(map(canonical_text, family.at(family.extents)))
    for extents in examined(family.axes, family.cuts, seed):
        if pair := reduce_extents(*family.at(extents)):
            found[extents] = hashlib.sha256("\n".join(map(canonical_text, pair)).encode()).hexdigest()
        else:
            found[extents] = family.ending(extents)
    return found


def to_prove(axes: Sequence[Axis], found: Mapping[Point, str]) -> list[Point]:
    """Extents to prove, given the forms of a range: the first of each form, both ends, and primes inside."""
    first = {form: extents for extents, form in sorted(found.items(), reverse=True)}
    return sorted({*first.values(), *ends_and_inside(axes)})


def ends_and_inside(axes: Sequence[Axis]) -> set[Point]:
    """Where a program is read anew: both ends, and primes inside."""
    return {tuple(a.low for a in axes), tuple(a.high for a in axes), _inside(axes)}


_NEAR = 200  # primes of 31 bits are closer


def _inside(axes: Sequence[Axis]) -> Point:
    """In the middle of the ranges: a prime for each axis, no two the same, where there are such."""
    found: list[int] = []
    for a in axes:
        middle = (a.low + a.high) // 2
        near = [n for step in range(_NEAR) for n in (middle - step, middle + step) if a.low <= n <= a.high]
        found.append(next((n for n in near if prime_below(n) == n and n not in found), middle))
    return tuple(found)


def prime_below(number: int) -> int:
    """The largest prime that is at most `number`; 2 for smaller ones."""
    while number > 2 and any(number % d == 0 for d in range(2, math.isqrt(number) + 1)):
        number -= 1
    return max(number, 2)
