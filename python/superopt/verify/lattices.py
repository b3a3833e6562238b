"""How `max` and `min` are interpreted over a field: by free semilattices, a random order, or vector lattices.

free      a join is the set of what it joins (transforms/core/field/lattice.hpp)
order     one random total order of the residues picks; needs no memory, and tells little (see the certifier)
vector    what real numbers make equal of maxima, too (transforms/core/field/vector_lattice.hpp); it takes longer,
          so programs are compared by it only if they differ by the others
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from superopt.verify.degrees import Degree
from superopt.verify.domains import Array

# What max and min remember, 8 bytes each, and the leaves of what they join: running maxima of 577 rows of as many
# scores have 8 million.
MOST_LEAVES = 1 << 24
# The same for those of vector lattices, whose forms take more.
MOST_LEAVES_OF_FORMS = 1 << 19
# Constants whose order, and multiples by which, a vector lattice knows.
MOST_NUMBERS = 12

Kind = Literal["max", "min"]


class Lattices:
    """The lattices of each component of one field. `keys` draws a key by name, `infinity` one by plane."""

    def __init__(
        self, core: Any, fields: Sequence[Any], keys: Callable[..., int], infinity: Callable[[int], int]
    ) -> None:
        self._core, self._fields, self._keys, self._infinity = core, fields, keys, infinity
        self._free: dict[tuple[str, int], Any] = {}
        self._vector: list[Any] = []
        self.most_joined = MOST_LEAVES  # leaves of all free joins, which take time
        self.leaf = Degree()  # a bound for all leaves of the vector lattices

    @property
    def vector(self) -> bool:
        """Whether maxima are those of vector lattices."""
        return bool(self._vector)

    def widen(self, numbers: Sequence[Fraction]) -> None:
        """Joins are those of vector lattices from here on, which know the order of these numbers."""
        chosen = [*numbers][:MOST_NUMBERS]
        gaps, scales = _gaps(chosen), _scales(chosen)
        for i, f in enumerate(self._fields):
            m: int = f.modulus

            def residues(values: set[Fraction], m: int = m) -> list[int]:
                return [x.numerator * pow(x.denominator, -1, m) % m for x in sorted(values)]

            made = self._core.VectorLattice(
                m,
                self._keys("vector", i),
                self._infinity(i),
                MOST_LEAVES_OF_FORMS,
                residues(gaps),
                residues(scales),
            )
            self._vector.append(made)

    @property
    def most(self) -> int:
        """The most leaves of any join of the vector lattices."""
        return max(v.most for v in self._vector)

    @property
    def compared(self) -> int:
        """Look-ups in them: each could hit by chance."""
        return sum(v.compared for v in self._vector)

    def join(
        self, kind: Kind, plane: int, a: Array, b: Array, linear: tuple[Array | None, Array | None]
    ) -> Array:
        """Residues of maxima or minima, element by element; `linear` numbers may be shifted and scaled."""
        if self._vector:
            return self._vector[plane].join(kind == "max", a, b, *linear)
        return self._semilattice(kind, plane).join(a, b)

    def reduce(self, kind: Kind, plane: int, a: Array, linear: Array | None) -> Array:
        """The same over the last dimension."""
        if self._vector:
            return self._vector[plane].reduce(kind == "max", a, linear)
        return self._semilattice(kind, plane).reduce(a)

    def products(self, plane: int, a: Array, b: Array) -> tuple[Array, Array]:
        """Where a and b are the maximum and the minimum of two numbers, and the product of these."""
        return self._vector[plane].products(a, b)

    def takes_left(self, kind: Kind, a: Array, b: Array) -> Array:
        """Whether the random order picks from `a`."""
        key, bottom = self._keys("order"), self._bottom(kind, 0)
        ranks = [self._fields[0].keyed(key, x) for x in (a, b)]
        left = ranks[0] >= ranks[1] if kind == "max" else ranks[0] <= ranks[1]
        return ((left & (a != bottom)) | (b == bottom)).astype(bool)

    @property
    def joins(self) -> list[tuple[int, int]]:
        """The key and the neutral element of free joins: of minima and maxima, for each plane."""
        kinds: tuple[Kind, Kind] = ("min", "max")
        return [(self._keys("lattice", k, i), self._bottom(k, i)) for k in kinds for i in range(2)]

    def _bottom(self, kind: Kind, plane: int) -> int:
        above = self._infinity(plane)
        return above if kind == "min" else -above % self._fields[plane].modulus

    def _semilattice(self, kind: Kind, plane: int) -> Any:
        if (kind, plane) not in self._free:
            self._free[kind, plane] = self._core.Semilattice(
                self._fields[plane].modulus,
                self._keys("lattice", kind, plane),
                self._bottom(kind, plane),
                MOST_LEAVES,
                self.most_joined,
            )
        return self._free[kind, plane]


def _gaps(numbers: Sequence[Fraction]) -> set[Fraction]:
    """What is known not to be negative: differences of the numbers, their opposites and zero."""
    known = {Fraction(0), *numbers, *(-x for x in numbers)}
    return {y - x for x, y in itertools.combinations(sorted(known), 2)}


def _scales(numbers: Sequence[Fraction]) -> set[Fraction]:
    """Positive factors that maxima are moved out of."""
    return {s for x in numbers if abs(x) not in (0, 1) for s in (abs(x), 1 / abs(x))}


def flags(a: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Flags broadcast to a shape."""
    return None if a is None else np.asarray(np.broadcast_to(a, shape), order="C")
