"""Integers of a box of instances, from few of them: affine functions of the instances' coordinates.

The instances are one of the box and its neighbour along each axis. An operation on their integers is followed
where its result is known to be affine over the whole box, too, or the same in all of it: so the values of the
few are those of all. `NotAffine` is raised for everything else. Truth values are the same in the whole box.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from superopt.verify.domains import Array
from superopt.verify.ttir.parser import INTEGERS, Operation, TtirType

Range: TypeAlias = tuple[Array, Array]
"""The least and the most of each element."""

_UNSIGNED = ("arith.divui", "arith.remui")
_SIGNS = {
    "slt": "lt",
    "sge": "lt",
    "ult": "lt",
    "uge": "lt",
    "sgt": "le",
    "sle": "le",
    "ugt": "le",
    "ule": "le",
}


# Bits of numbers that are followed; they are computed with in 64.
_SAFE = 61


class NotAffine(Exception):
    """The box has instances of which the few say nothing."""


class Lines:
    """A box of instances: by axis that has more than one of them, from where to where it is, from the first row.

    The first row of each array of integers is one instance, and the others are its neighbours along the axes:
    the next one, or the one before where that is the last.
    """

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        self._spans = spans
        self._signs = np.asarray([1 if end > 0 else -1 for _, end in spans], np.int64)
        self._extent = sum(end - start for start, end in spans)

    @property
    def steps(self) -> Array:
        """By row and axis, how far the row's instance is from the first one's."""
        return np.concatenate([np.zeros((1, len(self._signs)), np.int64), np.diag(self._signs)])

    def leaf(self, rows: Array, steps: Array, values: Array) -> None:
        """Check that numbers by instance, `values` at `steps` from the first row, are affine."""
        if not np.array_equal(rows[0] + steps @ self._slopes(rows), values):
            raise NotAffine

    def follow(self, op: Operation, a: Array, b: Array, result: Array) -> None:
        """A binary operation on integers."""
        if _same(a) and _same(b):
            return
        match op.name:
            case "arith.cmpi":
                self._comparison(op.words[0], a, b)
            case "arith.addi" | "arith.subi":
                self.fits(op.result_type, result)
            case "arith.muli" if _same(a) or _same(b):
                self.fits(op.result_type, result)
            case "arith.minsi" | "arith.maxsi":
                self.order(a, b)
            case "arith.divsi" | "arith.remsi" | "arith.divui" | "arith.remui" if _same(b):
                self._division(a, b[:1])
            case _:
                raise NotAffine

    def fits(self, kind: TtirType, result: Array) -> None:
        """A result that would be affine if it were not wrapped to its type."""
        if _same(result):
            return
        bits = INTEGERS[kind.element]
        if bits < 8:
            raise NotAffine
        half = 1 << (min(bits, _SAFE) - 1)
        if self._most(result) < half:
            return
        low, high = self._range(result)
        if low.min() < -half or high.max() >= half:
            raise NotAffine

    def order(self, a: Array, b: Array, or_equal: bool = False) -> None:
        """A choice by a < b, or a <= b, that is the same in the whole box, element by element."""
        low, high = self._range(_difference(a, b))
        decided = (high <= 0) | (low > 0) if or_equal else (high < 0) | (low >= 0)
        if not decided.all():
            raise NotAffine

    def same(self, x: Array) -> None:
        """Something that must not differ."""
        if not _same(x):
            raise NotAffine

    def _comparison(self, predicate: str, a: Array, b: Array) -> None:
        if predicate[0] == "u" and any(self._range(x)[0].min() < 0 for x in (a, b)):
            raise NotAffine
        if predicate in _SIGNS:
            self.order(a, b, _SIGNS[predicate] == "le")
            return
        low, high = self._range(_difference(a, b))  # eq, ne
        if not ((low > 0) | (high < 0) | ((low == 0) & (high == 0))).all():
            raise NotAffine

    def _division(self, a: Array, divisor: Array) -> None:
        """a / d and a % d where a is d times something affine, and a rest that stays in [0, d)."""
        if (divisor <= 0).any() or self._range(a)[0].min() < 0:
            raise NotAffine
        slopes = self._slopes(a)
        low = high = a[0] % divisor[0]
        for slope, (start, end) in zip(slopes, self._spans, strict=True):
            rest = np.where(slope % divisor[0] == 0, 0, slope)
            low = low + np.minimum(rest * start, rest * end)
            high = high + np.maximum(rest * start, rest * end)
        if (low < 0).any() or (high >= divisor[0]).any():
            raise NotAffine

    def _most(self, x: Array) -> int:
        """A number that no element exceeds anywhere in the box, up to its sign."""
        least, most = int(x.min(initial=0)), int(x.max(initial=0))
        return max(-least, most) + (most - least) * self._extent

    def _slopes(self, x: Array) -> Array:
        """By axis, by how much each element changes."""
        if len(x) == 1:
            return np.zeros((len(self._signs), *x.shape[1:]), np.int64)
        return (x[1:] - x[0]) * self._signs.reshape(-1, *(1,) * (x.ndim - 1))

    def _range(self, x: Array) -> Range:
        if self._most(x) >= 1 << _SAFE:  # so that nothing below overflows
            raise NotAffine
        low = high = x[0]
        if len(x) > 1:
            for slope, (start, end) in zip(self._slopes(x), self._spans, strict=True):
                low = low + np.minimum(slope * start, slope * end)
                high = high + np.maximum(slope * start, slope * end)
        return low, high


def _difference(a: Array, b: Array) -> Array:
    if a.dtype == np.bool_ or b.dtype == np.bool_:
        raise NotAffine
    return a - b


def _same(x: Array) -> bool:
    return len(x) == 1 or bool((x[1:] == x[0]).all())
