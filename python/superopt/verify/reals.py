"""What holds for real numbers beyond a field's axioms: signs, domains, roots, functions that grow.

The values of a program at a random point are residues, which name functions of the inputs. So what is known of a
function can be looked up by its residue (its label where exponentials are formal), and put to use where another
program computes the same function. Each rule is an identity of real numbers wherever its left side is defined:

    sqrt(x^2) = max(x, -x)            max(x, -x)^2 = x^2
    x = sqrt(x)^2                     where x >= 0 is known (`Sign`) and some program takes the root of x
    log(exp(x)) = x
    max(f(x), f(y)) = f(max(x, y))    for f = exp, and sqrt where x, y >= 0; the same for min
    max(x, 0) = x, min(x, 0) = 0      where x >= 0 is known

Programs that still differ are evaluated once more with rules that take longer (`Reals.widen`). `max` and `min`
are then those of a vector lattice (`superopt.verify.lattices`), and

    max(x, y) min(x, y) = x y
    max(x y, -x y) = max(x, -x) max(y, -y)
    sqrt(c x) = sqrt(c) sqrt(x)       for a constant c > 0
    log(x) = log(x exp(m)) - m        where the logarithm of x exp(m) is taken, and m is subtracted in rows

Residues that a rule equates are made the same by replacing the left side with the right one as soon as it is
computed. Which numbers are roots is known only after the programs were evaluated; so they are evaluated again if
they seem to differ (`renewed`).

A candidate may be defined where the program is not, never the other way round. So every root, logarithm and power
of a number that may be negative, and every quotient by a number that may vanish on an open set, is a *condition*:
those of a candidate must be among those of the program (`beyond`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt
from typing import Literal

import numpy as np

from superopt.verify.degrees import VARIABLE, Degree
from superopt.verify.domains import Array, Tensor
from superopt.verify.labels import distinct

Condition = Literal["root", "logarithm", "quotient"]
_NESTED = 4  # how deep products are taken apart
_NUMBERS = 64  # constants that are remembered
_LOGARITHMS = 8  # logarithms that others are compared with


@dataclass
class Conditions:
    """Numbers that a program takes roots or logarithms of or divides by, and whether they may lie outside."""

    found: dict[Condition, list[tuple[Tensor, bool]]] = field(
        default_factory=dict[Condition, list[tuple[Tensor, bool]]]
    )

    def add(self, what: Condition, x: Tensor, *, needed: bool) -> None:
        """Note an application."""
        self.found.setdefault(what, []).append((x, needed))

    def beyond(
        self, other: Conditions, labels: Callable[[Tensor], Array], again: Conditions | None = None
    ) -> Condition | None:
        """A kind of number for which this program needs more than the `other` one.

        `again`: of this program with other unknowns. Only what both have counts: an element that does not exist
        needs nothing.
        """
        for what, found in self.found.items():
            kinds: list[Condition] = ["root", "logarithm"] if what == "root" else [what]
            given = [labels(x).reshape(-1) for kind in kinds for x, _ in other.found.get(kind, [])]
            mine = _needed(found, labels, given)
            if again is not None:
                more = _needed(again.found.get(what, []), labels, given)
                mine = np.intersect1d(mine, more, assume_unique=True)
            numbers = np.array([0, 1] if what == "root" else [1], np.uint64)  # are never outside
            if mine.size and _without(mine, np.concatenate([numbers, *given])).size:
                return what
        return None


def _needed(
    found: Sequence[tuple[Tensor, bool]], labels: Callable[[Tensor], Array], given: Sequence[Array]
) -> Array:
    """The labels of those that may lie outside, sorted, each once; without tensors that equal one of `given`.

    Most do, element by element, which is seen without sorting millions of numbers.
    """
    mine = [labels(x).reshape(-1) for x, needed in found if needed]
    mine = [x for x in mine if not any(np.array_equal(x, y) for y in given)]
    return distinct(np.concatenate([np.zeros(0, np.uint64), *mine]))


def _without(numbers: Array, others: Array) -> Array:
    """Those of `numbers` that are not among the `others`, of which there is one at least."""
    others = np.sort(others)
    nearest = others[np.minimum(np.searchsorted(others, numbers), others.size - 1)]
    return numbers[nearest != numbers]


class Known:
    """A table from labels to tensors' elements: what functions of other numbers are."""

    def __init__(self, labels: Callable[[Array], Array]) -> None:
        self._labels = labels
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._keys = np.zeros(0, np.uint64)
        self._planes: list[Array] = []
        self.degree: Degree | None = None
        self.size = 0

    @property
    def known(self) -> int:
        """How many labels are known."""
        self._settle()
        return self._keys.size

    def add(self, result: Tensor, of: Tensor) -> None:
        """Remember that the elements of `result` are a function of those of `of`."""
        self.size += result.planes[0].size
        self._pending.append((result, of))

    def look_up(self, labels: Array) -> tuple[Array, Tensor] | None:
        """Where the labels are known, and there what they are functions of; None where none is."""
        self._settle()
        if not self._keys.size or self.degree is None:
            return None
        at = np.minimum(np.searchsorted(self._keys, labels), self._keys.size - 1)
        found = self._keys[at] == labels
        return (found, Tensor(tuple(x[at] for x in self._planes), self.degree)) if found.any() else None

    def _settle(self) -> None:
        for result, of in self._pending:
            keys = self._labels(np.ascontiguousarray(result.planes[0])).reshape(-1)
            planes = [np.broadcast_to(x, result.planes[0].shape).reshape(-1) for x in of.planes]
            if self.degree is not None:
                planes = [np.concatenate([x, y]) for x, y in zip(self._planes, planes, strict=False)]
                keys = np.concatenate([self._keys, keys])
            self._keys, first = np.unique(keys, return_index=True)
            self._planes = [x[first] for x in planes]
            self.degree = of.degree if self.degree is None else self.degree.either(of.degree)
        self._pending.clear()


class Reals:
    """The rules of this module over one field, at one point; without `rules`, conditions alone."""

    def __init__(
        self,
        labels: Callable[[Array], Array],
        apply: Callable[..., Tensor],
        constant: Callable[[float], Tensor],
        *,
        rules: bool,
    ) -> None:
        self._constant = constant
        self._labels, self._apply, self._inside, self.on = labels, apply, not rules, rules
        self.conditions = Conditions()
        self._squares, self._absolute = Known(labels), Known(labels)
        self._functions: dict[str, Known] = {"exp": Known(labels), "sqrt": Known(labels)}
        self._roots, self._back = Known(labels), Known(labels)
        self._not_negative = Known(labels)
        self._wide = self.used = False  # `used`: whether some rule changed a value
        self._numbers: dict[int, float] = {}  # constants, by residue
        self._factors, self._depth = (Known(labels), Known(labels)), 0
        self._logarithms: list[tuple[Tensor, Tensor]] = []
        self._replaced = 0  # how many roots are replaced where they occur as squares

    def labels(self, t: Tensor) -> Array:
        """The labels of all elements."""
        return self._labels(np.asarray(t.planes[0], order="C"))

    # --- signs and conditions

    def divided(self, by: Tensor) -> None:
        """Note a quotient."""
        sign = by.degree.sign
        self.conditions.add("quotient", by, needed=sign.least < 2 and not sign.thin)

    def applied(self, primitive: str, x: Tensor) -> bool:
        """Note a root, a logarithm or a power; whether it may be undefined."""
        if primitive not in ("sqrt", "log", "pow"):
            return False
        needed = x.degree.sign.least < (1 if primitive == "sqrt" else 2)
        self.conditions.add("root" if primitive == "sqrt" else "logarithm", x, needed=needed)
        return needed

    @contextmanager
    def aside(self) -> Generator[None]:
        """Within it, no conditions are kept: no output needs what is computed."""
        before, self.conditions = self.conditions, Conditions()
        try:
            yield
        finally:
            self.conditions = before

    # --- rules that take longer

    def widen(self) -> list[Fraction]:
        """Use them from here on. Returns the constants of the programs, whose order is known.

        Which roots are replaced is found anew: a root of a multiple is none of its own any more.
        """
        self._wide, self._replaced = True, 0
        self._roots, self._back, self._absolute = (Known(self._labels) for _ in range(3))
        return [Fraction(x) for x in self._numbers.values() if x]

    def number(self, value: float, residue: int) -> None:
        """Note a constant."""
        if self.on and len(self._numbers) < _NUMBERS:
            self._numbers.setdefault(residue, value)

    def product(self, x: Tensor, y: Tensor, product: Tensor) -> None:
        """Remember the factors of a product; those of itself and 1 are of no use."""
        if not self._wide or self._inside:
            return
        labels = self.labels(product)
        if all((labels != self.labels(z)).any() for z in (x, y)):
            self._factors[0].add(product, x)
            self._factors[1].add(product, y)

    def shifted(self, x: Tensor, by: Tensor) -> None:
        """Remember the exponential of a number that is subtracted in rows or more."""
        if self._wide and not self._inside and by.planes[0].size < x.planes[0].size and len(by.planes) == 2:
            self._functions["exp"].add(self._raw("exp", by), by)

    def of_multiple(self, x: Tensor) -> Tensor | None:
        """The root of a multiple by a positive constant."""
        factors = self._factored(x)
        for constant, rest in (factors, factors[::-1]) if factors else ():
            labels = np.unique(self.labels(constant))
            value = self._numbers.get(int(labels[0])) if labels.size == 1 else None
            if value is not None and value > 0:
                with self._deeper():
                    return self._apply("mul", self._root(Fraction(value)), self._apply("sqrt", rest))
        return None

    def _factored(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Two factors of all elements. These may be products, too, up to a depth: x = 2 y and y = x / 2 are."""
        if not self._wide or self._inside or self._depth == _NESTED:
            return None
        first, second = (self._all(known, x) for known in self._factors)
        return None if first is None or second is None else (first, second)

    @contextmanager
    def _deeper(self) -> Generator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _root(self, value: Fraction) -> Tensor:
        """The root of a constant, which is a constant where it is rational."""
        parts = [isqrt(n) for n in (value.numerator, value.denominator)]
        if Fraction(parts[0], parts[1]) ** 2 == value:
            return self._constant(parts[0] / parts[1])
        return self._apply("sqrt", self._constant(float(value)))

    def _absolute_product(self, x: Tensor) -> Tensor | None:
        """The absolute value of a product: that of its factors, multiplied."""
        if (factors := self._factored(x)) is None:
            return None
        with self._deeper():
            return self._apply("mul", *(self._apply("max", y, self._apply("neg", y)) for y in factors))

    def _from_another(self, x: Tensor) -> Tensor | None:
        """The logarithm of x, from that of another multiple of x by an exponential."""
        for other, logarithm in self._logarithms:
            if other.shape != x.shape:
                continue
            for op, top, low in (("sub", other, x), ("add", x, other)):
                try:
                    with self.aside():
                        moved = self._all(self._functions["exp"], self._raw("div", top, low))
                except ZeroDivisionError:
                    continue
                if moved is not None:
                    return self._apply(op, logarithm, moved)
        return None

    # --- rules

    def square(self, x: Tensor, product: Tensor) -> None:
        """Remember a product of equal numbers."""
        if not self._inside:
            self._squares.add(product, x)

    def function(self, primitive: str, x: Tensor, result: Tensor) -> None:
        """Remember a result of a function that grows; of a root, where its operand is not negative."""
        if self._inside:
            return
        if primitive == "exp" or (primitive == "sqrt" and x.degree.sign.least >= 1):
            self._functions[primitive].add(result, x)
        if primitive == "sqrt" and x.degree.sign.least >= 1:
            squared = self._raw("mul", result, result)
            degree = squared.degree.plus(VARIABLE).signed(x.degree.sign)
            self._roots.add(x, Tensor(squared.planes, degree))
            self._back.add(squared, result)
        if primitive == "log" and self._wide and len(self._logarithms) < _LOGARITHMS:
            self._logarithms.append((x, result))

    def of_known(self, primitive: str, x: Tensor) -> Tensor | None:
        """What a root of squares or a logarithm of exponentials is, if all elements are known."""
        if self._inside:
            return None
        if primitive == "log":
            known = self._all(self._functions["exp"], x)
            return self._from_another(x) if known is None and self._wide else known
        if primitive != "sqrt":
            return None
        if (root := self._all(self._back, x)) is not None:
            return root
        if (number := self._all(self._squares, x)) is None:
            return None
        absolute = self._apply("max", number, self._apply("neg", number))
        return Tensor(absolute.planes, absolute.degree.signed(x.degree.sign.root()))

    def joined(self, kind: str, xs: Sequence[Tensor], join: Callable[..., Tensor]) -> Tensor | None:
        """The maximum or minimum of numbers of known sign, or under a function that grows."""
        if self._inside:
            return None
        for x, y in ((xs[0], xs[-1]), (xs[-1], xs[0])):
            if len(xs) == 2 and not self.labels(y).any() and self._known_sign(x):
                shape = np.broadcast_shapes(x.shape, y.shape)
                kept, self.used = x if kind == "max" else y, True
                return Tensor(tuple(np.broadcast_to(z, shape) for z in kept.planes), kept.degree)
        if self._wide and kind == "max" and len(xs) == 2 and self._opposite(*xs):
            for x in xs:
                if (made := self._absolute_product(x)) is not None:
                    return made
        for primitive, known in self._functions.items():
            operands = [self._all(known, x) for x in xs]
            found = [x for x in operands if x is not None and (len(x.planes) == 2 or primitive != "exp")]
            moved = any((self.labels(x) != self.labels(y)).any() for x, y in zip(xs, found, strict=False))
            if len(found) == len(xs) and moved:  # 0 and 1 are roots of themselves
                return self._apply(primitive, join(*found))
        return None

    def _known_sign(self, x: Tensor) -> bool:
        """Whether numbers are not negative, or the same as others that are not."""
        if x.degree.sign.least >= 1:
            self._not_negative.add(x, x)
            return True
        return self._all(self._not_negative, x) is not None

    def opposite(self, x: Tensor, y: Tensor, larger: Tensor) -> None:
        """Remember the maximum of a number and its opposite."""
        if not self._inside and self._opposite(x, y):
            self._absolute.add(self._raw("mul", larger, larger), self._raw("mul", x, x))

    def _opposite(self, x: Tensor, y: Tensor) -> bool:
        return x.shape == y.shape and not self.labels(self._raw("add", x, y)).any()

    def _raw(self, primitive: str, *xs: Tensor) -> Tensor:
        """An operation of the field without these rules."""
        inside, self._inside = self._inside, True
        try:
            return self._apply(primitive, *xs)
        finally:
            self._inside = inside

    def _all(self, known: Known, x: Tensor) -> Tensor | None:
        """What all elements of `x` are functions of."""
        if not known.size or (found := known.look_up(self.labels(x))) is None:
            return None
        where, of = found
        if not where.all():
            return None
        self.used = True
        return of

    # --- replacing squares

    def renewed(self) -> bool:
        """Replace what became known since, from here on; False where that is nothing."""
        self._replaced, before = self._roots.known + self._absolute.known, self._replaced
        return self._replaced > before

    def replaced(self, t: Tensor) -> Tensor:
        """The tensor, with squares of roots for numbers whose roots are taken, and x^2 for |x|^2."""
        if not self._replaced or self._inside:
            return t
        for known in (self._absolute, self._roots):
            if known.size and (found := known.look_up(self.labels(t))) is not None:
                where, other = found
                planes = tuple(np.where(where, y, x) for x, y in zip(t.planes, other.planes, strict=False))
                sign = other.degree.sign if where.all() else t.degree.sign.either(other.degree.sign)
                t = Tensor(planes, t.degree.either(other.degree).signed(sign))
        return t
