"""A program and its tile programs at every extent of a range, made from those at one extent.

An axis that the programs cut into tiles of one size keeps these tiles at every extent, and has as many of them as
cover it; an axis that lies in one tile keeps its mask. Everything else is as it was. That this gives programs
that compute the same is proved, at some extents, by who uses them.
"""

from __future__ import annotations

import hashlib
import math
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
"""Extents of a range whose reduced programs are compared: all, where it has no more."""


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


class ExtentRecord(Record):
    """What was proved at one extent: the bound of the certificate, and the blocks of the kernels that were run.

    The kernels are those for the whole range, from their TTIR and their PTX, launched with this extent. `form`
    is the sha256 of both programs at reduced extents, empty where they cannot be reduced.
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


def forms(family: Family, low: int, high: int) -> dict[int, str]:
    """The sha256 of both programs at reduced extents, for every extent of a range, or of a large one for some.

    Extents of a large range are those at its ends, where tiles begin to be several, and some between.
    """
    among = range(low, high + 1)
    if len(among) > MOST_EXAMINED:
        part = MOST_EXAMINED // 4
        among = sorted({*among[: 2 * part], *among[-part:], *among[:: len(among) // part]})
    found: dict[int, str] = {}
    for extent in among:
        pair = reduce_extents(*family.at(extent))
        texts = "\n".join(map(canonical_text, pair)) if pair else ""
        found[extent] = hashlib.sha256(texts.encode()).hexdigest() if pair else ""
    return found


def to_prove(found: dict[int, str]) -> tuple[list[int], set[int]]:
    """Extents to prove, given the forms of a range: the first of each form, both ends, and one prime inside.

    The second set is of those at which the program is to be read anew: the ends and the prime.
    """
    first = {form: extent for extent, form in sorted(found.items(), reverse=True)}
    inside = [n for n in found if prime_below(n) == n]
    read = {min(found), max(found), *inside[len(inside) // 2 :][:1]}
    return sorted({*first.values(), *read}), read


def prime_below(number: int) -> int:
    """The largest prime that is at most `number`; 2 for smaller ones."""
    while number > 2 and any(number % d == 0 for d in range(2, math.isqrt(number) + 1)):
        number -= 1
    return max(number, 2)
