"""A program and its tile programs at every extent of a range, made from those at one extent.

An axis that the programs cut into tiles of one size keeps these tiles at every extent, and has as many of them as
cover it; an axis that lies in one tile keeps its mask. Everything else is as it was. That this gives programs
that compute the same is proved, at some extents, by who uses them.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from typing import Literal

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


class Family:
    """`original` and `lowered` at other extents of dimension `dim` of the input numbered `argument`.

    `tiles` are the sizes of the tiles that cut this axis. Raises UnsupportedProgram where the axis cannot
    have another extent: it is reshaped, joined with others, or cut in another way than into equal tiles.
    """

    def __init__(self, original: KernelGraph, lowered: KernelGraph, argument: int, dim: int) -> None:
        self._programs = original, lowered
        self._axes = axes = Axes()
        self.extent = original.inputs[argument].shape[dim]
        try:
            for graph in self._programs:
                axes.graph(graph)
            ends = zip(
                [*original.inputs, *original.outputs], [*lowered.inputs, *lowered.outputs], strict=True
            )
            for x, y in ends:
                axes.same(axes.of(x), axes.of(y))
            axes.cut_buffers()
        except Irreducible as error:
            raise self._refused(f"axes that fit together ({error})") from None
        found = leaves(axes.of(original.inputs[argument])[dim])
        if len(found) != 1 or found[0].fixed:
            raise self._refused("one that is neither split nor sliced")
        (self._axis,) = found
        self._counts = self._counted()
        self.tiles = sorted({size for _, size in self._counts})

    def _refused(self, expected: str) -> UnsupportedProgram:
        return UnsupportedProgram(f"expected {expected} as the axis whose extent varies, got another")

    def _counted(self) -> list[tuple[Factor, int]]:
        """The grids and loops over the axis, with the size of their tiles."""
        axes, found = self._axes, dict[Factor, int]()
        outer = {leaf for d in axes.trips.values() for leaf in leaves(d)}
        outer |= {
            leaf for grid, loops in axes.extents.values() for d in (*grid, *loops) for leaf in leaves(d)
        }
        self._same: set[Factor] = {self._axis}
        ragged = [(leaves(j.whole), leaves(j.pieces[0])) for j in axes.ragged]
        for _ in range(2):  # masks end where the axis does that their tiles cover
            covers = {tuple(map(id, whole)) for whole, piece in ragged if self._is_axis(piece)}
            self._same.update(
                piece[0]
                for whole, piece in ragged
                if tuple(map(id, whole)) in covers and len(piece) == 1 and piece[0].size == self.extent
            )
        for joined in axes.joined:
            whole, pieces = leaves(joined.whole), [leaves(p) for p in joined.pieces]
            if self._same.isdisjoint(joined.leaves):
                continue
            if joined not in axes.ragged or not self._is_axis(pieces[0]):
                raise self._refused("one that is joined with no other")
            moved = [leaf for leaf in whole if leaf in outer]
            if not moved:
                continue  # the axis lies in one tile
            size = math.prod(leaf.size for leaf in whole if leaf is not moved[0])
            if found.setdefault(moved[0], size) != size or len(moved) > 1:
                raise self._refused("one that is cut into tiles of one size, by one loop,")
        if not self._same.isdisjoint(outer):  # a loop over single elements
            found.update((leaf, 1) for leaf in self._same & outer)
        return list(found.items())

    def _is_axis(self, factors: Sequence[Factor]) -> bool:
        return len(factors) == 1 and factors[0] in self._same

    def at(self, extent: int) -> tuple[KernelGraph, KernelGraph]:
        """Both programs at an extent, which may be a `superopt.extent.Extent`."""
        sizes = dict.fromkeys(self._same, extent)
        sizes |= {count: tiles_of(extent, size) for count, size in self._counts if count not in sizes}

        def size_of(factors: Sequence[Factor]) -> int:
            return math.prod(sizes.get(leaf, leaf.size) for leaf in leaves(factors))

        original, lowered = (resized(graph, self._axes, size_of) for graph in self._programs)
        return original, lowered

    def ending(self, extent: int) -> str:
        """How an extent ends in tiles: whole ones, elements after them, elements missing, each up to two."""
        ends = [(t, extent // t, extent % t, -extent % t) for t in self.tiles or [1]]
        return "; ".join(f"of {t}: {min(n, 2)}, {min(r, 2)} more, {min(m, 2)} missing" for t, n, r, m in ends)


class ExtentRecord(Record):
    """What was proved at one extent: the bound of the certificate, and the blocks of the kernels that were run.

    The kernels are those for the whole range, from their TTIR and their PTX, launched with this extent. `form`
    is the sha256 of both programs at reduced extents; where they cannot be reduced, how the extent ends in tiles.
    """

    extent: int
    delta: float | None
    delta_extents: Extents
    instances: int
    blocks: int
    form: str


class RangeRecord(Record):
    """States that one set of kernels computes a program at every extent `low` to `high` of one axis.

    The axis is dimension `dim` of the input `argument`, cut into `tiles`. The evidence: programs and kernels are
    made from one structure in which the extent alone varies. Extents differ in few ways, such as whether the last
    tile is ragged: at reduced extents, where proofs are formal, the programs at all of the `examined` extents are
    a few pairs, and at least one extent for each of these was proved and its kernels run: those in `extents`.
    """

    version: Literal[1] = 1
    name: str
    low: int
    high: int
    argument: int
    dim: int
    tiles: list[int]
    extents: list[ExtentRecord]
    examined: int

    @property
    def summary(self) -> str:
        """A summary in one line."""
        count = len({e.form for e in self.extents})
        examined = "all" if self.examined == self.high - self.low + 1 else f"{self.examined} of the"
        proved = ", ".join(str(e.extent) for e in self.extents)
        forms = f"{count} normal form{'s' * (count != 1)} for {examined} extents"
        return (
            f"one kernel for {self.name} from {self.low} to {self.high}: {forms}, proved and run at {proved}"
        )


def examined(family: Family, low: int, high: int) -> list[int]:
    """Extents of a range at which programs are compared: all of a small one, of a large one some of each class.

    Extents are of one class where they end alike in each tile, after as many whole tiles or at least two periods
    of all tiles. Those beside each multiple of a tile are taken: below two periods, in the next one, and in the
    last one; also some that the hash of the programs draws.
    """
    if high - low < MOST_EXAMINED:
        return list(range(low, high + 1))
    period = math.lcm(*family.tiles)
    drawn = random.Random("\n".join(map(canonical_text, family.at(family.extent))) + f"\n{low} {high}")
    found = {low, high, *drawn.sample(range(low, high + 1), MOST_EXAMINED // 8)}
    for first, last in ((low, max(low, 2 * period) + period), (high - period, high)):
        for tile in family.tiles or [1]:
            for multiple in range(first // tile * tile, last + tile + 1, tile):
                found.update(range(multiple - 2, multiple + 3))
    return sorted(n for n in found if low <= n <= high)


def forms(family: Family, low: int, high: int) -> dict[int, str]:
    """The form (see `ExtentRecord`) of each extent of a range that is examined."""
    found: dict[int, str] = {}
    for extent in examined(family, low, high):
        if pair := reduce_extents(*family.at(extent)):
            found[extent] = hashlib.sha256("\n".join(map(canonical_text, pair)).encode()).hexdigest()
        else:
            found[extent] = family.ending(extent)
    return found


def to_prove(found: dict[int, str]) -> tuple[list[int], set[int]]:
    """Extents to prove, given the forms of a range: the first of each form, both ends, and one prime inside.

    The second set is of those at which the program is to be read anew: the ends and the prime.
    """
    first = {form: extent for extent, form in sorted(found.items(), reverse=True)}
    low, high = min(found), max(found)
    inside = sorted((n for n in found if prime_below(n) == n), key=lambda n: abs(2 * n - low - high))
    read = {low, high, *inside[:1]}
    return sorted({*first.values(), *read}), read


def prime_below(number: int) -> int:
    """The largest prime that is at most `number`; 2 for smaller ones."""
    while number > 2 and any(number % d == 0 for d in range(2, math.isqrt(number) + 1)):
        number -= 1
    return max(number, 2)
