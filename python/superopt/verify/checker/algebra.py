"""Quotients of formal sums of exponentials, in plain integers; the package's docstring says what they are for."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeAlias

from superopt.verify.checker.joins import Joins
from superopt.verify.checker.reals import Reals

Sum: TypeAlias = "dict[int, int]"  # exponent -> coefficient, no zero coefficients
_ONE: Sum = {0: 1}


def _one() -> Sum:
    return _ONE


class TooMuchWork(Exception):
    """An element takes more scalar operations, or more time, than allowed."""


_LOOK = 1 << 12  # operations between checks of the clock


@dataclass(frozen=True, slots=True)
class Element:
    """A quotient of formal sums, and its second component in Z_q until an `exp` is applied.

    `infinite` is -1 or 1 where it is an infinity, with the arithmetic of IEEE 754; `undefined` marks a NaN, which
    equals nothing. `sign` is known of constants and of what is computed from constants alone. `least` is 1 where
    the number is known not to be negative, 2 where it is positive. `plain`: no uninterpreted operator is below
    it; `thin`: it is then zero on no open set all the same. `exact` is the number that constants alone give by
    sums and products; `partial` says that it may be undefined somewhere.
    """

    num: Sum
    den: Sum = field(default_factory=_one)
    second: int | None = None
    infinite: int = 0
    undefined: bool = False
    sign: int = 0
    least: int = 0
    plain: bool = True
    thin: bool = False
    exact: Fraction | None = None
    partial: bool = False

    @property
    def vanishing(self) -> bool:
        """Whether it may be zero on an open set without being zero everywhere."""
        return self.least < 2 and not (self.plain or self.thin)


# Arguments whose values are known, so that a denominator equal to one of them is seen to vanish.
_KNOWN = {
    "sqrt": {0: 0.0, 1: 1.0}, "erf": {0: 0.0}, "sin": {0: 0.0}, "cos": {0: 1.0}, "log": {1: 0.0},
    "exp": {0: 1.0},
}  # fmt: skip
_ZERO = Element({}, _ONE, 0, least=1)
_LOST = Element({}, _ONE, 0, undefined=True)


def _infinity(sign: int) -> Element:
    """The infinity of this sign; undefined where the sign is 0 (unknown)."""
    return Element({}, _ONE, 0, infinite=sign) if sign else _LOST


def _sign(x: Element) -> int:
    return x.infinite or x.sign


def primes(first: str, second: str) -> tuple[int, int]:
    """(p, q) of two texts, as defined in `superopt.verify.primes`."""
    key = hashlib.sha256(first.encode()).digest() + hashlib.sha256(second.encode()).digest()
    i = 0
    while True:
        digest = hashlib.blake2b(i.to_bytes(8, "little") + key, digest_size=8).digest()
        q = int.from_bytes(digest, "little") % 2**57 + 15 * 2**57 | 1
        if all(q % d and (2 * q + 1) % d for d in (3, 5, 7, 11, 13)) and is_prime(q) and is_prime(2 * q + 1):
            return 2 * q + 1, q
        i += 1


def is_prime(n: int) -> bool:
    """The Miller-Rabin test with bases that decide every n below 2^64."""
    if n < 2 or any(n % b == 0 and n != b for b in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)):
        return False
    d, s = n - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for b in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        x = pow(b, d, n)
        if n == b or x in (1, n - 1):
            continue
        for _ in range(s - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


class Algebra:
    """The primitives of the operator table on elements modulo two primes; all randomness comes from `seed`.

    After `budget` scalar operations, and once `time.monotonic()` is past `deadline`, TooMuchWork is raised.
    """

    def __init__(
        self, seed: object, primes: tuple[int, int], budget: int = 20_000_000, deadline: float = math.inf
    ) -> None:
        self.p, self.q = primes
        self.known: dict[float, tuple[int, int]] = {}
        self.seed, self.left, self.budget = repr(seed), budget, budget
        self.deadline, self.look = deadline, budget
        self.widest = 1
        self.assumed: set[str] = set()
        self.root = pow(self.draw(self.p - 2, "root") + 2, (self.p - 1) // self.q, self.p)
        self.leaves: dict[tuple[str, int], frozenset[int]] = {}
        self.kept: dict[tuple[str, int], Element] = {}
        self.reals = Reals()
        self.truths: set[int] = set()  # values of what is 1 or 0
        self.joins: list[Joins] = []  # modulo p and q, once programs seem to differ

    def renewed(self) -> bool:
        """Use more of what is known of real numbers; False where that is nothing."""
        if widened := not self.joins and bool(self.assumed & {"max", "min", "sqrt", "log"}):
            self.reals.widen()
            numbers = [x for x in self.known if x]
            self.joins = [
                Joins(m, lambda name, m=m: self.draw(m, "join", name), numbers) for m in (self.p, self.q)
            ]
        return self.reals.renewed() or widened

    @property
    def wide(self) -> bool:
        """Whether the rules that take longer are used here."""
        return bool(self.joins) and not self.reals.inside

    def plus(self, a: Sum, b: Sum, sign: int = 1) -> Sum:
        """A sum or difference of sums."""
        p = self.p
        if len(a) == 1 and len(b) == 1 and 0 in a and 0 in b:
            total = (a[0] + sign * b[0]) % p
            return {0: total} if total else {}
        out = dict(a)
        for h, f in b.items():
            total = (out.get(h, 0) + sign * f) % p
            if total:
                out[h] = total
            else:
                out.pop(h, None)
        return out

    def times(self, a: Sum, b: Sum) -> Sum:
        """A product of sums."""
        p, q = self.p, self.q
        if len(b) == 1 and 0 in b:
            a, b = b, a
        if len(a) == 1 and 0 in a:
            f = a[0]
            return dict(b) if f == 1 else {h: f * g % p for h, g in b.items()}
        out: Sum = {}
        for (h, f), (k, g) in itertools.product(a.items(), b.items()):
            e = (h + k) % q
            out[e] = (out.get(e, 0) + f * g) % p
        return {h: f for h, f in out.items() if f}

    def residues(self, value: float) -> tuple[int, int]:
        """The exact rational value of a float, modulo p and modulo q."""
        if value not in self.known:
            n, d = value.as_integer_ratio()
            self.known[value] = n * pow(d, -1, self.p) % self.p, n * pow(d, -1, self.q) % self.q
        return self.known[value]

    def draw(self, modulus: int, *name: object) -> int:
        """A number below `modulus`, uniform up to 2^-64, a function of the seed and `name`."""
        digest = hashlib.blake2b(repr((self.seed, *name)).encode(), digest_size=16).digest()
        return int.from_bytes(digest, "little") % modulus

    def spend(self, operations: int) -> None:
        """Count work; raises TooMuchWork."""
        self.left -= operations
        if self.left < 0:
            raise TooMuchWork(f"more than {self.budget} scalar operations")
        if self.left < self.look:
            self.look = self.left - _LOOK
            self.check_clock()

    def check_clock(self) -> None:
        """Raises TooMuchWork past the deadline."""
        if time.monotonic() > self.deadline:
            raise TooMuchWork("out of time")

    def allow(self, budget: int) -> None:
        """Allow `budget` operations from here on."""
        self.left = self.look = self.budget = budget

    def variable(self, *name: object) -> Element:
        """An independent random number."""
        self.spend(1)
        digest = hashlib.blake2b(repr((self.seed, *name)).encode(), digest_size=32).digest()
        f = int.from_bytes(digest[:16], "little") % self.p
        return Element({0: f} if f else {}, _ONE, int.from_bytes(digest[16:], "little") % self.q)

    def constant(self, value: float) -> Element:
        """The exact rational value of the float."""
        if math.isinf(value):
            return _infinity(1 if value > 0 else -1)
        f, second = self.residues(float(value))
        sign = (value > 0) - (value < 0)
        least = sign + 1 if sign >= 0 else 0
        return Element({0: f} if f else {}, _ONE, second, sign=sign, least=least, exact=Fraction(value))

    def add(self, a: Element, b: Element, sign: int = 1) -> Element:
        """a + b, or a - b."""
        exact = None if a.exact is None or b.exact is None else a.exact + sign * b.exact
        return self.noted(self.added(a, b, sign), exact, a, b)

    def mul(self, a: Element, b: Element) -> Element:
        """a * b."""
        exact = None if a.exact is None or b.exact is None else a.exact * b.exact
        return self.noted(self.multiplied(a, b), exact, a, b)

    def div(self, a: Element, b: Element) -> Element:
        """a / b; raises ZeroDivisionError."""
        made = self.noted(self.divided(a, b), None, a, b)
        return made if b.least == 2 or b.exact else replace(made, partial=True)

    @staticmethod
    def noted(made: Element, exact: Fraction | None, *xs: Element) -> Element:
        """What was made of `xs`, with the number that it is, and whether it may be undefined."""
        partial = any(x.partial for x in xs)
        return made if exact is None and not partial else replace(made, exact=exact, partial=partial)

    def truth(self, t: Element) -> Element:
        """`t`, which is 1 or 0."""
        value = self.value(t)
        self.truths |= {value, (1 - value) % self.p}
        return t

    def where(self, t: Element, x: Element, y: Element) -> Element:
        """`x` where t > 0, else `y`; where that is not known, y + s (x - y) with an unknown s of each t."""
        if t.undefined or t.partial:  # NaN selects `y`, which a field cannot tell
            return _LOST
        if t.infinite:
            return x if t.infinite > 0 else y
        if t.exact is not None and t.exact.denominator == 1:
            return x if t.exact > 0 else y
        if not t.num or self.value(t) == 1:
            return x if t.num else y
        if x.undefined or y.undefined or x.infinite != y.infinite:
            return _LOST
        if x.infinite:
            return x
        if x.partial or y.partial:  # the program may protect from what a candidate computes anyway
            return _LOST
        self.assumed.add("where")
        second = None if t.second is None else self.draw(self.q, "where", [t.second], "q")
        f = self.draw(self.p, "where", [self.value(t)], "p")
        picked = Element({0: f} if f else {}, _ONE, second, plain=False)
        if self.value(t) in self.truths:
            picked = t
        self.truths |= {f, (1 - f) % self.p}
        mixed = self.add(y, self.mul(picked, self.add(x, y, -1)))
        least = min(x.least, y.least)
        return replace(mixed, least=least, thin=least == 2)

    def added(self, a: Element, b: Element, sign: int) -> Element:
        """a + b, or a - b, without `exact` and `partial`; the next two likewise."""
        self.spend(len(a.num) + len(b.num))
        if a.undefined or b.undefined or a.infinite * b.infinite * sign < 0:
            return _LOST
        if a.infinite or b.infinite:
            return _infinity(a.infinite or sign * b.infinite)
        if sign < 0 and self.wide and b.second is not None:  # perhaps a logarithm is moved by it
            self.reals.exponentials.setdefault(self.value(Element({b.second: 1})), b)
        known = a.sign if a.sign == sign * b.sign else 0
        second = None if a.second is None or b.second is None else (a.second + sign * b.second) % self.q
        facts = self.reals.sum(a, b) if sign > 0 else (0, a.plain and b.plain, False)
        if a.den is b.den or a.den == b.den:
            return self.made(self.plus(a.num, b.num, sign), a.den, second, known, *facts)
        self.spend(len(a.num) * len(b.den) + len(b.num) * len(a.den) + len(a.den) * len(b.den))
        num = self.plus(self.times(a.num, b.den), self.times(b.num, a.den), sign)
        return self.made(num, self.times(a.den, b.den), second, known, *facts)

    def multiplied(self, a: Element, b: Element) -> Element:
        """a * b."""
        self.spend(len(a.num) * len(b.num) + len(a.den) * len(b.den))
        if a.undefined or b.undefined:
            return _LOST
        sign = _sign(a) * _sign(b)
        if a.infinite or b.infinite:
            return _infinity(sign)
        second = None if a.second is None or b.second is None else a.second * b.second % self.q
        num, den = self.times(a.num, b.num), self.times(a.den, b.den)
        square = a is b or (a.num == b.num and a.den == b.den)
        least = max(1, a.least) if square else min(a.least, b.least)
        thin = not a.vanishing and not b.vanishing
        made = self.made(num, den, second, sign, least, a.plain and b.plain, thin)
        if self.wide:
            made = self.product(a, b, made)
        if square and not self.reals.inside:
            self.reals.squares[self.value(made)] = a
        return made

    def product(self, a: Element, b: Element, made: Element) -> Element:
        """The product of a maximum and a minimum of two numbers is theirs; of others the factors are kept."""
        values = [self.value(x) for x in (a, b, made)]
        if (first := self.joins[0].product(*values[:2])) is not None:
            known = a.second is not None and b.second is not None
            second = self.joins[1].product(a.second, b.second) if known else None  # type: ignore[reportArgumentType]
            made = replace(
                made,
                num={0: first} if first else {},
                den=_ONE,
                second=made.second if second is None else second,
            )
        if values[2] not in values[:2]:
            self.reals.factors.setdefault(values[2], (a, b))
        return made

    def factored(self, value: int) -> tuple[Element, Element] | None:
        """Two factors of a number; as these may be its multiples, they are taken apart four times at most."""
        return self.reals.factors.get(value) if self.wide and self.reals.depth < 4 else None

    def divided(self, a: Element, b: Element) -> Element:
        """a / b; raises ZeroDivisionError."""
        if a.undefined or b.undefined or (a.infinite and b.infinite):
            return _LOST
        if b.infinite:
            return _ZERO
        if not b.num:
            raise ZeroDivisionError("a denominator vanishes")
        sign = _sign(a) * _sign(b)
        self.reals.taken("quotient", b, needed=b.vanishing)
        if a.infinite:
            return _infinity(sign)
        facts = min(a.least, b.least), a.plain and b.plain, not a.vanishing and not b.vanishing
        second = None if a.second is None or not b.second else a.second * pow(b.second, -1, self.q) % self.q
        if len(b.num) == 1 and len(b.den) == 1 and 0 in b.den:  # a single term is a unit
            ((h, f),) = b.num.items()
            inverse = Element({-h % self.q: b.den[0] * pow(f, -1, self.p) % self.p}, _ONE)
            num, den = self.times(a.num, inverse.num), a.den
            return self.made(num, den, second, sign, *facts)
        self.spend(len(a.num) * len(b.den) + len(a.den) * len(b.num))
        return self.made(self.times(a.num, b.den), self.times(a.den, b.num), second, sign, *facts)

    def made(
        self, num: Sum, den: Sum, second: int | None, sign: int, least: int, plain: bool, thin: bool
    ) -> Element:
        """A number, or what it is a square of; counts its terms."""
        self.widest = max(self.widest, len(num), len(den))
        number = Element(num, den, second, sign=sign, least=least, plain=plain, thin=thin or least == 2)
        if self.reals.replaced and not self.reals.inside:
            return self.reals.replaced.get(self.value(number), number)
        return number

    def exp(self, x: Element) -> Element:
        """[x], or a random function of x where an exponential has already been applied."""
        if x.undefined or x.infinite:
            return _LOST if x.undefined else _infinity(1) if x.infinite > 0 else _ZERO
        if x.second is None:
            return replace(self.opaque("exp", x), least=2)
        made = Element({x.second: 1}, sign=abs(x.sign), least=2, plain=x.plain, thin=True)
        if not self.reals.inside:
            self.reals.exponentials[self.value(made)] = x
        return made

    def opaque(self, primitive: str, *xs: Element) -> Element:
        """A random function of the arguments' values, where the operator is defined and lacks a limit."""
        x = xs[0]
        power = _sign(xs[1]) if primitive == "pow" else 1
        if any(e.undefined for e in xs) or any(e.infinite for e in xs[1:]):
            return _LOST
        if primitive in ("sqrt", "log", "pow"):
            zero = not x.num and not x.infinite
            if _sign(x) < 0 or (zero and power < 0):
                return _LOST
            if zero and primitive == "log":
                return _infinity(-1)
            if x.infinite and power <= 0:
                return _ZERO if power < 0 else _LOST
            if x.infinite:
                return _infinity(1)
        elif x.infinite:
            return self.constant(float(x.infinite)) if primitive == "erf" else _LOST
        self.assumed.add(primitive)
        values = [self.value(x) for x in xs]
        if primitive == "sqrt" and (moved := self.root_of_multiple(values[0])) is not None:
            return moved
        if primitive in ("sqrt", "log", "pow"):
            needed = x.least < (1 if primitive == "sqrt" else 2)
            self.reals.taken("root" if primitive == "sqrt" else "logarithm", x, needed=needed)
        if primitive == "log" and (number := self.reals.exponentials.get(values[0])) is not None:
            return number
        if primitive == "log" and self.wide and (moved := self.moved_logarithm(x)) is not None:
            return moved
        if primitive == "sqrt" and values[0] in self.reals.back:
            return self.reals.back[values[0]]
        if primitive == "sqrt" and (number := self.reals.squares.get(values[0])) is not None:
            return replace(self.absolute(number), least=max(1, x.least), thin=not x.vanishing)
        if len(xs) == 1 and (known := _KNOWN.get(primitive, {}).get(values[0])) is not None:
            return self.constant(known)
        seconds = [x.second for x in xs]
        f = self.draw(self.p, primitive, values, "p")
        second = None if None in seconds else self.draw(self.q, primitive, seconds, "q")
        least = {"sqrt": max(1, x.least), "pow": x.least}.get(primitive, 0)
        thin = primitive == "sqrt" and not x.vanishing
        sign = x.sign if primitive == "sqrt" else 0
        made = Element({0: f} if f else {}, _ONE, second, sign=sign, least=least, plain=False, thin=thin)
        if primitive == "sqrt" and x.least >= 1 and not self.reals.inside:
            with self.reals.plainly():
                square = replace(self.mul(made, made), least=x.least)
            self.reals.roots[self.value(made)] = made, x
            self.reals.waiting[values[0]] = square
            self.reals.back[self.value(square)] = made
        if primitive == "log" and self.wide:
            self.reals.logarithms.append((x, made))
        return made

    def root_of_multiple(self, value: int) -> Element | None:
        """sqrt(c x) = sqrt(c) sqrt(x) for a constant c > 0."""
        pair = self.factored(value)
        for x, y in (pair, pair[::-1]) if pair else ():
            given = self.value(x)
            for number in self.known:
                if number > 0 and self.residues(number)[0] == given:
                    exact = Fraction(number)
                    top, low = math.isqrt(exact.numerator), math.isqrt(exact.denominator)
                    whole = Fraction(top, low) ** 2 == exact
                    with self.reals.deeper():
                        c = self.constant(number)
                        return self.mul(
                            self.constant(top / low) if whole else self.opaque("sqrt", c),
                            self.opaque("sqrt", y),
                        )
        return None

    def moved_logarithm(self, x: Element) -> Element | None:
        """log(x) = log(x exp(m)) - m."""
        for other, logarithm in self.reals.logarithms[:8]:
            for sign, top, low in ((-1, other, x), (1, x, other)):
                with self.reals.plainly():
                    before = len(self.reals.found)
                    moved = self.reals.exponentials.get(self.value(self.div(top, low)))
                    del self.reals.found[before:]
                if moved is not None:
                    return self.add(logarithm, moved, sign)
        return None

    def absolute(self, x: Element) -> Element:
        """The larger of a number and its opposite."""
        return self.join("max", [x, self.add(self.constant(0.0), x, -1)])

    def value(self, x: Element) -> int:
        """One number for a finite quotient that does not depend on its form: its image with [h] = w^h."""
        self.spend(len(x.num) + len(x.den))
        num, den = (sum(f * pow(self.root, h, self.p) for h, f in s.items()) % self.p for s in (x.num, x.den))
        return num * pow(den, -1, self.p) % self.p

    def join(self, kind: str, xs: Iterable[Element]) -> Element:
        """max or min: a new unknown for each set of joined elements; associative, commutative, idempotent."""
        neutral = -1 if kind == "max" else 1
        members: frozenset[int] = frozenset()
        given = list(xs)
        if any(x.undefined for x in given):
            return _LOST
        if any(x.infinite == -neutral for x in given):
            return _infinity(-neutral)
        items = [x for x in given if x.infinite != neutral]
        if items and not self.reals.inside and (known := self.known_join(kind, items)) is not None:
            return known
        if items and self.joins:
            return self.joined(kind, items)
        for x in items:
            value = self.value(x)
            self.kept.setdefault((kind, value), x)
            members |= self.leaves.get((kind, value), frozenset([value]))
        if not items:
            return _infinity(neutral)
        if len(members) == 1:
            return self.kept[kind, next(iter(members))]
        self.assumed.add(kind)
        name = sorted(members)
        seconds = [x.second for x in items]
        second = None if None in seconds else self.draw(self.q, kind, name, "q")
        signs = [x.least for x in items]
        least = max(signs) if kind == "max" else min(signs)
        value = self.draw(self.p - 1, kind, name, "p") + 1
        made = Element({0: value}, _ONE, second, least=least, plain=False, thin=least == 2)
        self.leaves[kind, made.num[0]] = members
        self.kept.setdefault((kind, made.num[0]), made)
        self.note_absolute(kind, items, made)
        return made

    def joined(self, kind: str, items: Sequence[Element]) -> Element:
        """max or min in a vector lattice (`superopt.verify.checker.joins`)."""
        self.spend(len(items))
        values = [self.value(x) for x in items]
        for x, value in zip(items, values, strict=True):
            self.kept.setdefault(("", value), x)
        if kind == "max" and len(items) == 2 and self.wide and sum(values) % self.p == 0:
            for value in values:
                if (factors := self.factored(value)) is not None:
                    with self.reals.deeper():
                        return self.mul(*map(self.absolute, factors))
        value = self.joins[0].join(kind, values, [x.num.keys() <= {0} and x.den == _ONE for x in items])
        if ("", value) in self.kept:
            return self.kept["", value]
        self.assumed.add(kind)
        seconds = [x.second for x in items if x.second is not None]
        second = (
            self.joins[1].join(kind, seconds, [True] * len(items)) if len(seconds) == len(items) else None
        )
        signs = [x.least for x in items]
        least = max(signs) if kind == "max" else min(signs)
        made = Element({0: value} if value else {}, _ONE, second, least=least, plain=False, thin=least == 2)
        self.kept["", value] = made
        self.note_absolute(kind, items, made)
        return made

    def note_absolute(self, kind: str, items: Sequence[Element], made: Element) -> None:
        """The square of max(x, -x) is x^2."""
        if kind == "max" and len(items) == 2 and not self.reals.inside:
            with self.reals.plainly():
                if not self.add(items[0], items[1]).num:
                    square = self.mul(items[0], items[0])
                    self.reals.waiting[self.value(self.mul(made, made))] = square

    def known_join(self, kind: str, items: Sequence[Element]) -> Element | None:
        """A maximum or minimum of exponentials or of roots, or of a number that is not negative and 0."""
        values = [self.value(x) for x in items]
        if len(set(values)) == 2 and 0 in values:
            x = next(x for x, value in zip(items, values, strict=True) if value)
            if x.least >= 1 or self.value(x) in self.reals.not_negative:
                self.reals.not_negative.add(self.value(x))
                self.assumed.add(kind)
                return x if kind == "max" else self.constant(0.0)
        if all(v in self.reals.exponentials for v in values):
            return self.exp(self.join(kind, [self.reals.exponentials[v] for v in values]))
        if all(v in self.reals.roots for v in values) and not {*values} <= {0, 1}:  # roots of themselves
            return self.opaque("sqrt", self.join(kind, [self.reals.roots[v][1] for v in values]))
        return None

    def dot(self, pairs: Iterable[tuple[Element, Element]]) -> Element:
        """A sum of products."""
        total: Element | None = None
        plain, second, some, both, partial = 0, 0, False, True, False
        least, nothing_opaque = 2, True
        for a, b in pairs:
            simple = a.den is _ONE and b.den is _ONE and a.num.keys() <= {0} and b.num.keys() <= {0}
            if simple and not (a.infinite or b.infinite or a.undefined or b.undefined):
                self.spend(2)
                some = True
                sign = max(1, a.least) if a is b else min(a.least, b.least)
                least = sign and least and min(2, max(sign, 1))
                nothing_opaque &= a.plain and b.plain
                partial |= a.partial or b.partial
                plain += a.num.get(0, 0) * b.num.get(0, 0)
                if a.second is None or b.second is None:
                    both = False
                else:
                    second += a.second * b.second
            else:
                product = self.mul(a, b)
                total = product if total is None else self.add(total, product)
        if some or total is None:
            f = plain % self.p
            known = min(least, 1) if some else 1
            last = second % self.q if both else None
            rest = self.made({0: f} if f else {}, _ONE, last, 0, known, nothing_opaque, False)
            rest = replace(rest, partial=True) if partial else rest
            total = rest if total is None else self.add(total, rest)
        return total

    def apply(self, primitive: str, *xs: Element) -> Element:
        """A primitive by name."""
        least = {"sqrt": 1, "log": 2, "log1p": 3, "pow": 2}.get(primitive, 0)
        made = self.applied(primitive, *xs)
        return self.noted(
            made, made.exact, *xs, *([replace(made, partial=True)] if xs[0].least < least else [])
        )

    def applied(self, primitive: str, *xs: Element) -> Element:
        """The same without noting what may be undefined."""
        if primitive == "where":
            return self.where(*xs)
        if primitive in ("add", "sub"):
            return self.add(xs[0], xs[1], 1 if primitive == "add" else -1)
        if primitive == "neg":
            return self.add(self.constant(0.0), xs[0], -1)
        if primitive in ("max", "min"):
            return self.join(primitive, xs)
        if primitive == "log1p":
            return self.opaque("log", self.add(self.constant(1.0), xs[0]))
        named = {"mul": self.mul, "div": self.div, "exp": self.exp}
        return named[primitive](*xs) if primitive in named else self.opaque(primitive, *xs)

    def beyond(self, first: Sequence[tuple[str, Element, bool]]) -> bool:
        """Whether the program evaluated last needs a condition that the `first` one lacks."""
        for kind in {what for what, _, needed in self.reals.found if needed}:
            kinds = {"root": ("root", "logarithm")}.get(kind, (kind,))
            known = {self.value(x) for what, x, _ in first if what in kinds} | (
                {0, 1} if kind == "root" else {1}
            )
            needed = {self.value(x) for what, x, needed in self.reals.found if needed and what == kind}
            if needed - known:
                return True
        return False

    def equal(self, a: Element, b: Element) -> bool:
        """Equality by cross multiplication; undefined elements equal nothing."""
        if a.undefined or b.undefined or a.infinite != b.infinite:
            return False
        if a.num == b.num and a.den == b.den:
            return True
        self.spend(len(a.num) * len(b.den) + len(b.num) * len(a.den))
        return self.times(a.num, b.den) == self.times(b.num, a.den)
