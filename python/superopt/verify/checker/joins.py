"""Maxima and minima of real numbers over a field: vector lattices, in plain integers.

A value is a maximum of minima of leaves; docs/verification.md argues for the laws. Values that these laws make
equal are one residue.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TypeAlias

Clause: TypeAlias = "frozenset[int]"  # a minimum
Clauses: TypeAlias = "frozenset[Clause]"  # a maximum
_MOST = 64  # clauses of a product; beyond, a maximum below a minimum is a leaf
_FEW = 16  # leaves that are compared with each other
_CONSTANTS = 12


class Joins:
    """The vector lattice of one prime field; `draw` gives the residue of a name, `numbers` are constants."""

    def __init__(self, modulus: int, draw: Callable[[object], int], numbers: Iterable[float]) -> None:
        self.m, self.draw = modulus, draw
        given = [Fraction(x) for x in itertools.islice(numbers, _CONSTANTS)]
        ordered = sorted({Fraction(0), *given, *(-x for x in given)})
        self.gaps = {self._residue(b - a) for a, b in itertools.combinations(ordered, 2)}
        self.scales = [self._residue(s) for x in given if abs(x) not in (0, 1) for s in (abs(x), 1 / abs(x))]
        self.forms: dict[int, tuple[Clauses, bool]] = {}
        self.atoms: dict[object, int] = {}

    def _residue(self, x: Fraction) -> int:
        return x.numerator * pow(x.denominator, -1, self.m) % self.m

    def join(self, kind: str, values: Sequence[int], linear: Sequence[bool]) -> int:
        """The maximum or minimum of one value or more; `linear` ones may be shifted and scaled."""
        parts = [
            self.forms.get(v, (frozenset([frozenset([v])]), flat))
            for v, flat in zip(values, linear, strict=True)
        ]
        movable = all(flat for _, flat in parts)
        if kind == "max":
            clauses: Clauses = frozenset[Clause]().union(*(c for c, _ in parts))
        else:
            clauses = frozenset([frozenset[int]()])
            for value, (below, _) in zip(values, parts, strict=True):
                crossed = len(clauses) * len(below) <= _MOST or len(below) == 1
                options = below if crossed else [frozenset([value])]
                clauses = frozenset(a | b for a in clauses for b in options)
        clauses = self._least(clauses, ordered=movable)
        leaves = sorted(frozenset[int]().union(*clauses))
        if len(leaves) == 1:
            return leaves[0]
        if not movable:
            value = self.draw(("set", _sorted(clauses)))
        else:
            mean = sum(leaves) * pow(len(leaves), -1, self.m) % self.m
            centred = frozenset(frozenset((x - mean) % self.m for x in c) for c in clauses)
            value = (mean + self._around(centred)) % self.m
            if value == mean:
                return value
        self.forms[value] = clauses, movable
        return value

    def product(self, a: int, b: int) -> int | None:
        """x y, where a and b are max(x, y) and min(x, y)."""
        if a not in self.forms or b not in self.forms or not self.forms[a][1]:
            return None
        one, other = self.forms[a][0], self.forms[b][0]
        top, low = (one, other) if len(one) == 2 else (other, one)
        (pair, *rest) = low
        if rest or len(pair) != 2 or top != frozenset(frozenset([x]) for x in pair):
            return None
        x, y = pair
        return x * y % self.m

    def _below(self, a: int, b: int) -> bool:
        return a == b or (b - a) % self.m in self.gaps

    def _least(self, clauses: Clauses, *, ordered: bool) -> Clauses:
        """Without leaves that are larger than others of their minimum, and clauses below others."""
        few = sum(map(len, clauses)) <= _FEW
        if few and ordered:
            clauses = frozenset(
                frozenset(x for x in c if not any(y != x and self._below(y, x) for y in c)) for c in clauses
            )
        if not few and (len(clauses) > _MOST or all(len(c) == 1 for c in clauses)):
            return clauses

        def under(c: Clause, d: Clause) -> bool:
            if few and ordered:
                return all(any(self._below(a, b) for a in c) for b in d)
            return d <= c

        return frozenset(c for c in clauses if not any(c != d and under(c, d) for d in clauses))

    def _around(self, clauses: Clauses) -> int:
        """The value of a form whose leaves have the mean 0."""
        opposite = self._opposite(clauses)
        name, sign = self._name(clauses, opposite, 1)
        if not sign:
            return 0
        if name not in self.atoms:
            value = self.draw(name)
            for scale in self.scales:
                scaled, other = self._name(clauses, opposite, scale)
                if scaled in self.atoms and other:
                    value = sign * other * self.atoms[scaled] * pow(scale, -1, self.m) % self.m
                    break
            self.atoms[name] = value
        return sign * self.atoms[name] % self.m

    def _opposite(self, clauses: Clauses) -> Clauses | None:
        """The negative of a form."""
        turned = [[(-x) % self.m for x in c] for c in clauses]
        count = 1
        for c in turned:
            count *= len(c)
            if count > _MOST and len(turned) > 1:
                return None
        return self._least(frozenset(map(frozenset[int], itertools.product(*turned))), ordered=True)

    def _name(self, clauses: Clauses, opposite: Clauses | None, scale: int) -> tuple[object, int]:
        """What a form and its negative share, times `scale`, and which of them it names; 0: they are equal."""
        mine = _sorted(clauses, scale, self.m)
        if opposite is None:
            return mine, 1
        other = _sorted(opposite, scale, self.m)
        return (mine, 1 if mine < other else 0) if mine <= other else (other, -1)


def _sorted(clauses: Clauses, scale: int = 1, modulus: int = 0) -> tuple[tuple[int, ...], ...]:
    scaled = [[x * scale % modulus for x in c] if modulus else c for c in clauses]
    return tuple(sorted(tuple(sorted(c)) for c in scaled))
