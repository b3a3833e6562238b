"""Degree bounds of elements as rational functions of the inputs, which Schwartz-Zippel needs, and their signs.

A field value carries a `Degree`, computed alongside by the same primitives, so that it is right for any
program at any level. All figures are upper bounds and hold for every element of the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


class Ratio(NamedTuple):
    """Degrees of the numerator and the denominator of a rational function."""

    num: int = 0
    den: int = 0

    def plus(self, other: Ratio) -> Ratio:
        """Of a sum or difference, over the product of the denominators."""
        return Ratio(max(self.num + other.den, other.num + self.den), self.den + other.den)

    def times(self, other: Ratio) -> Ratio:
        """Of a product."""
        return Ratio(self.num + other.num, self.den + other.den)

    def over(self, other: Ratio) -> Ratio:
        """Of a quotient."""
        return Ratio(self.num + other.den, self.den + other.num)

    def repeated(self, count: int) -> Ratio:
        """Of a sum of `count` such functions."""
        return Ratio(self.num + (count - 1) * self.den, count * self.den)

    def either(self, other: Ratio) -> Ratio:
        """Of one of the two."""
        return Ratio(max(self.num, other.num), max(self.den, other.den))

    @property
    def difference(self) -> int:
        """Of the numerator of the difference of two such functions."""
        return self.num + self.den


_NUMBER = Ratio()


class Sign(NamedTuple):
    """What is known of the real numbers that all elements stand for, wherever they are defined.

    `least`: 1 where they are not negative, 2 where they are positive, else 0. `thin`: elements that are not zero
    everywhere are zero on no open set, as an analytic function is.
    """

    least: int = 0
    thin: bool = False

    @classmethod
    def of(cls, array: Array) -> Sign:
        """Of constants."""
        if not array.size or array.min() > 0:
            return POSITIVE
        return cls(int(array.min() >= 0), True)

    def plus(self, other: Sign) -> Sign:
        """Of a sum."""
        if not self.least or not other.least:
            return Sign()
        least = max(self.least, other.least)
        return Sign(least, least == 2 or (self.thin and other.thin))

    def times(self, other: Sign) -> Sign:
        """Of a product or a quotient (a denominator is not zero where the quotient is defined)."""
        return Sign(min(self.least, other.least), self.thin and other.thin)

    def squared(self) -> Sign:
        """Of a square."""
        return Sign(max(1, self.least), self.thin)

    def larger(self, other: Sign) -> Sign:
        """Of a maximum."""
        return Sign(least := max(self.least, other.least), least == 2)

    def smaller(self, other: Sign) -> Sign:
        """Of a minimum."""
        return Sign(least := min(self.least, other.least), least == 2)

    def either(self, other: Sign) -> Sign:
        """Of one of the two."""
        return Sign(min(self.least, other.least), self.thin and other.thin)

    def root(self) -> Sign:
        """Of a square root."""
        return Sign(max(1, self.least), self.thin)


POSITIVE = Sign(2, True)
_UNKNOWN = Sign()


@dataclass(frozen=True)
class Degree:
    """`p`: of the coefficients; `q`: of the second component; `h`: of the exponents; `opaque`: how many
    applications of uninterpreted operators an element depends on; `partial`: whether it may be undefined
    somewhere, by a root, a logarithm or a quotient. Sums, products and quotients know no sign:
    `signed` sets it."""

    p: Ratio = _NUMBER
    q: Ratio = _NUMBER
    h: Ratio = _NUMBER
    opaque: int = 0
    given: Sign = _UNKNOWN
    partial: bool = False

    @property
    def constant(self) -> bool:
        """Whether elements are made of constants alone, by sums, products and quotients."""
        return not self.opaque and self.p == self.q == self.h == _NUMBER

    @property
    def sign(self) -> Sign:
        """What is known of the sign: without uninterpreted operators, functions are analytic."""
        return self.given if self.given.thin or self.opaque else Sign(self.given.least, True)

    def signed(self, sign: Sign) -> Degree:
        """The same with a sign that is known."""
        return self if sign == self.given else replace(self, given=sign)

    def plus(self, other: Degree) -> Degree:
        """Of a sum or difference."""
        return Degree(
            self.p.plus(other.p),
            self.q.plus(other.q),
            self.h.plus(other.h),
            self.opaque + other.opaque,
            partial=self.partial or other.partial,
        )

    def times(self, other: Degree) -> Degree:
        """Of a product; exponents add."""
        return Degree(
            self.p.times(other.p),
            self.q.times(other.q),
            self.h.plus(other.h),
            self.opaque + other.opaque,
            partial=self.partial or other.partial,
        )

    def over(self, other: Degree) -> Degree:
        """Of a quotient."""
        return Degree(
            self.p.over(other.p),
            self.q.over(other.q),
            self.h.plus(other.h),
            self.opaque + other.opaque,
            partial=self.partial or other.partial,
        )

    def repeated(self, count: int) -> Degree:
        """Of a sum of `count` elements."""
        return Degree(
            self.p.repeated(count),
            self.q.repeated(count),
            self.h.repeated(count),
            self.opaque * count,
            partial=self.partial,
        )

    def exponential(self) -> Degree:
        """Of `exp`: what was in the second component is now an exponent."""
        return Degree(h=self.q, opaque=self.opaque, given=POSITIVE, partial=self.partial)

    def either(self, other: Degree) -> Degree:
        """Of one of the two, as after moving data."""
        if self == other:
            return self
        return Degree(
            self.p.either(other.p),
            self.q.either(other.q),
            self.h.either(other.h),
            max(self.opaque, other.opaque),
            self.sign.either(other.sign),
            self.partial or other.partial,
        )


CONSTANT = Degree()
VARIABLE = Degree(Ratio(1), Ratio(1))
