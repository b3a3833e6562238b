"""Finite fields to evaluate programs over (Mirage, section 5), at two sizes, with exponentials mapped or formal.

A value is a pair: a component in Z_p, and one in Z_q as long as no `exp` was applied, q dividing p - 1. `exp`
takes the second component to the first: to w^x under a random q-th root of unity w (`ImageField`), or to the
formal term [x] (`FormalField`).

Outside the fragment of sums, products, quotients and one `exp` on a path, all that is assumed about an operator
is that equal arguments give equal results (a keyed random function of the value), and about `max` and `min` also
that they are associative, commutative and idempotent (or more: `superopt.verify.reals`). `assumed` records the
assumptions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from typing_extensions import override

from superopt.errors import UnsupportedProgram
from superopt.transforms.core import _field
from superopt.verify import products
from superopt.verify.degrees import CONSTANT, POSITIVE, VARIABLE, Degree, Ratio, Sign
from superopt.verify.domains import Array, Domain, Shape, Tensor, exact_residues
from superopt.verify.labels import Labels
from superopt.verify.lattices import Kind, Lattices, flags
from superopt.verify.primes import Primes
from superopt.verify.reals import Reals
from superopt.verify.small_field import SmallField

# For uses that prove nothing; `superopt.verify.primes.drawn` gives a certificate's primes. q is the largest
# prime below 2^61 for which p = 2 q + 1 is prime too.
Q = 2305843009213688669
P = 2 * Q + 1
# The same below 2^20: products of residues are exact in float64, sums of them up to depth 8192.
SCREEN_Q = 524171
SCREEN_P = 2 * SCREEN_Q + 1

# Known values of uninterpreted operators, by argument: as divisors they may vanish.
KNOWN_VALUES = {
    "sqrt": {0: 0, 1: 1}, "erf": {0: 0}, "sin": {0: 0}, "cos": {0: 1}, "log": {1: 0}, "log1p": {0: 0},
    "exp": {0: 1}, "where": {0: 0, 1: 1},
}  # fmt: skip
# Operators of which more is known to be equal than congruence says.
_WIDENED = {"max", "min", "sqrt", "log"}
# Constants whose signs are known: integers up to this size.
MOST_KNOWN = 1 << 40
# Terms of formal sums written in one evaluation, about 20 ns each; more raise OverflowError.
MOST_TERMS = 100_000_000


class _Arithmetic(Protocol):
    """A prime field's operations on arrays of residues (`_field.Field` is one)."""

    @property
    def modulus(self) -> int: ...
    def add(self, a: Array, b: Array, /) -> Array: ...
    def sub(self, a: Array, b: Array, /) -> Array: ...
    def mul(self, a: Array, b: Array, /) -> Array: ...
    def neg(self, a: Array, /) -> Array: ...
    def inverse(self, a: Array, /) -> Array: ...
    def power(self, base: int, exponents: Array, /) -> Array: ...
    def sum(self, a: Array, /) -> Array: ...
    def matmul(self, a: Array, b: Array, threads: int = 1) -> Array: ...
    def uniform(self, key: int, count: int) -> Array: ...
    def keyed(self, key: int, a: Array) -> Array: ...


def key_of(*parts: object) -> int:
    """A 64-bit key that depends on every part."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass
class Seen:
    """Assumptions beyond the axioms of a field; see `ImageField`."""

    assumed: set[str] = field(default_factory=set[str])
    exponentials: bool = False
    argument: int = 0
    argument_q: int = 0
    applications: int = 0
    compared: int = 0  # look-ups of vector lattices among these

    def copy(self) -> Seen:
        """A snapshot."""
        return replace(self, assumed=set(self.assumed))


class ImageField(Domain):
    """Z_p x Z_q at 61 bits, with exp(x) = w^x for one random w: a test of the program at any extents.

    `lattice` says how `max` and `min` are interpreted (`superopt.verify.lattices`). With `rules`, those of
    `superopt.verify.reals` hold; conditions are kept in any case. `seen` records what was assumed beyond the
    axioms of a field.
    """

    def __init__(
        self,
        seed: object,
        *,
        lattice: Literal["free", "order"] = "free",
        threads: int = 1,
        primes: Primes = (P, Q),
        rules: bool = False,
    ) -> None:
        self._core: Any = _field
        self._start(seed, _field.Field(primes[0]), _field.Field(primes[1]), lattice, threads)
        self.reals = Reals(self._residues, self.apply, self.constant, rules=rules)

    def _start(self, seed: object, p: Any, q: Any, lattice: str, threads: int) -> None:
        self.seed, self.lattice, self.threads = seed, lattice, threads
        self.fields: tuple[_Arithmetic, _Arithmetic] = (p, q)
        self.seen = Seen()
        draw = int(p.uniform(key_of(seed, "root"), 1)[0])
        self.root: int = pow(draw, (p.modulus - 1) // q.modulus, p.modulus)
        self.lattices = Lattices(self._core, self.fields, partial(key_of, seed), self._infinity)
        self.truths = Labels()  # of what is 1 or 0
        self.unknowns = 0  # which ones those are that no result may depend on

    @property
    def assumed(self) -> set[str]:
        """The operators that were uninterpreted."""
        return self.seen.assumed

    @property
    def exponentials(self) -> bool:
        """Whether an `exp` was applied."""
        return self.seen.exponentials

    @property
    def argument(self) -> int:
        """A bound on the degree of the arguments of uninterpreted operators."""
        return self.seen.argument

    @property
    def argument_q(self) -> int:
        """The same of the exponents in them."""
        return self.seen.argument_q

    @property
    def applications(self) -> int:
        """How often they were applied."""
        return self.seen.applications

    @property
    def terms(self) -> int:
        """The most terms of any sum of exponentials."""
        return 1

    @property
    def imaged(self) -> bool:
        """Whether one test leaves gaps: exponentials mapped to powers of w, or picks by a random order."""
        return self.exponentials or (self.lattice == "order" and bool(self.assumed & {"max", "min"}))

    # --- leaves

    def random(
        self, name: object, shape: Shape, *, exponent: bool = True, degree: Degree = VARIABLE
    ) -> Tensor:
        """An independent uniform tensor, a function of the seed, `name` and the shape.

        `exponent` asks for the second component too; only what flows into an `exp` needs it.
        """
        keys = self.keys(name, exponent=exponent)
        planes = [
            f.uniform(k, math.prod(shape)).reshape(shape) for f, k in zip(self.fields, keys, strict=False)
        ]
        return Tensor((self._lift(planes[0]), *planes[1:]), degree)

    def keys(self, name: object, *, exponent: bool) -> list[int]:
        """The keys that the components of `random` are drawn by."""
        return [key_of(self.seed, "input", name, i) for i in range(2 if exponent else 1)]

    @override
    def unknown(self, name: object, shape: Shape) -> Tensor:
        # Like an input: a program whose result depends on it differs from one without such an input.
        name = ("unknown", name, self.unknowns)
        return self.random(name, shape, degree=VARIABLE.signed(POSITIVE))

    @override
    def constant(self, value: float | Array) -> Tensor:
        array = np.asarray(value, np.float64)
        if np.isnan(array).any():
            raise UnsupportedProgram("expected a number, got a constant that is not one")
        finite = np.where(np.isfinite(array), array, 0.0)
        planes: list[Array] = []
        for i, f in enumerate(self.fields):
            m = f.modulus
            plane = exact_residues(finite, m, lambda n, e, m=m: n * pow(2, e, m))
            for sign in (1, -1):
                infinity = sign * self._infinity(i) % m
                plane = np.where(array == sign * np.inf, np.uint64(infinity), plane)
            planes.append(plane)
        made = Tensor((self._lift(planes[0]), planes[1]), CONSTANT.signed(Sign.of(array)))
        if array.ndim == 0 and np.isfinite(array):
            self.reals.number(float(array), int(planes[0]))
        return made

    def _infinity(self, plane: int) -> int:
        # An unknown with one known property: it is neutral for min, its opposite for max.
        return int(self.fields[plane].uniform(key_of(self.seed, "infinity"), 1)[0])

    # --- the first component: plain residues here, formal elements in FormalField

    def _lift(self, residues: Array) -> Array:
        return residues

    def _residues(self, plane: Array) -> Array:
        return plane

    def _plain(self, plane: Array) -> Array | None:
        """Which elements may be shifted and scaled under max and min; None where all may."""
        return None

    def _binary(self, primitive: str, a: Array, b: Array) -> Array:
        return _field_binary(self.fields[0], primitive, a, b)

    def _sum(self, a: Array) -> Array:
        return self.fields[0].sum(np.asarray(a, order="C"))

    def _product(self, a: Array, b: Array) -> Array:
        return self._multiply(0, a, b)

    def _multiply(self, i: int, a: Array, b: Array) -> Array:
        if self._core is not None and products.worthwhile(a, b):
            return products.product(self.fields[i], self._core.DEPTH, a, b, self.threads)
        return self.fields[i].matmul(a, b, self.threads)

    def _exponential(self, exponents: Array) -> Array:
        return self.fields[0].power(self.root, np.asarray(exponents, order="C"))

    # --- primitives

    @override
    def apply(self, primitive: str, *operands: Tensor) -> Tensor:
        if primitive in ("add", "sub", "mul", "div"):
            return self._arithmetic(primitive, *operands)
        if primitive == "neg":
            return self._arithmetic("sub", self.constant(0.0), operands[0])
        if primitive == "exp" and len(operands[0].planes) == 2:
            self.seen.exponentials = True
            x = operands[0]
            made = Tensor((self._exponential(x.planes[1]),), x.degree.exponential())
            self.reals.function("exp", x, made)
            return made
        if primitive == "max" or primitive == "min":
            return self._join(primitive, *operands)
        if primitive == "where":
            return self._where(*operands)
        if primitive == "log1p":
            return self.apply("log", self.apply("add", self.constant(1.0), operands[0]))
        if primitive == "sqrt" and (moved := self.reals.of_multiple(operands[0])) is not None:
            return moved
        partial = self.reals.applied(primitive, operands[0])
        if (known := self.reals.of_known(primitive, operands[0])) is not None:
            self._record(primitive, operands, math.prod(known.shape))
            return known
        made = self._uninterpreted(primitive, *operands)
        sign = operands[0].degree.sign
        if primitive in ("sqrt", "pow"):  # whole powers of negative numbers may be negative
            made = replace(made, degree=made.degree.signed(sign.root() if primitive == "sqrt" else sign))
        elif primitive == "exp":
            made = replace(made, degree=made.degree.signed(POSITIVE))
        self.reals.function(primitive, operands[0], made)
        return replace(made, degree=replace(made.degree, partial=True)) if partial else made

    def _arithmetic(self, primitive: str, a: Tensor, b: Tensor) -> Tensor:
        if primitive == "div":
            self.reals.divided(b)
        first = _aligned(a.planes[0], b.planes[0])
        planes = [self._binary(primitive, *first)]
        if len(a.planes) == len(b.planes) == 2:
            planes.append(_field_binary(self.fields[1], primitive, *_aligned(a.planes[1], b.planes[1])))
        combine = {"mul": Degree.times, "div": Degree.over}.get(primitive, Degree.plus)
        sign = a.degree.sign, b.degree.sign
        made = Tensor(tuple(planes), combine(a.degree, b.degree))
        if primitive == "sub":
            self.reals.shifted(a, b)
        elif primitive == "mul" and self.lattices.vector:
            made = self._product_of_joins(a, b, made)
        if primitive == "mul" and a.shape == b.shape and np.array_equal(*first):
            made = replace(made, degree=made.degree.signed(sign[0].squared()))
            self.reals.square(a, made)
        elif primitive != "sub":
            known = sign[0].plus(sign[1]) if primitive == "add" else sign[0].times(sign[1])
            made = replace(made, degree=made.degree.signed(known))
        if primitive == "div" and b.degree.sign.least < 2 and not b.degree.constant:
            made = replace(made, degree=replace(made.degree, partial=True))
        made = self.reals.replaced(made)
        if primitive == "mul":
            self.reals.product(a, b, made)
        return made

    def truth(self, t: Tensor) -> Array:
        """Where t > 0: 1, where not: 0, where that is not known: -1."""
        residues, modulus = self._residues(np.asarray(t.planes[0], order="C")), self.fields[0].modulus
        most = np.uint64(min(MOST_KNOWN, modulus // 4))
        if len(t.planes) < 2 or not t.degree.constant:  # exponentials are not the integers they look like
            return np.where(residues <= 1, residues.astype(np.int8), np.int8(-1))
        negative = (residues == 0) | (residues > np.uint64(modulus) - most)
        return np.where(negative, 0, np.where(residues < most, 1, -1)).astype(np.int8)

    def _where(self, t: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """`x` where t > 0, else `y`; where that is not known, y + s (x - y) with an unknown s of each t."""
        if t.degree.partial:
            raise UnsupportedProgram(
                "expected a comparison of numbers that are defined everywhere, got a root, a logarithm or a "
                "quotient that may be undefined"
            )
        shape = np.broadcast_shapes(t.shape, x.shape, y.shape)
        truth = np.broadcast_to(self.truth(t), shape)
        unknown = truth < 0
        chosen = self.move(lambda a, b: np.where(truth > 0, a, b), x, y)
        if not unknown.any():
            return chosen
        if x.degree.partial or y.degree.partial:
            raise UnsupportedProgram(
                "expected a selection by a comparison whose outcome is not known to be between numbers that are "
                "defined everywhere, got a root, a logarithm or a quotient that may be undefined"
            )
        picked = self._picked(t)
        mixed = self.apply("add", y, self.apply("mul", picked, self.apply("sub", x, y)))
        least = min(x.degree.sign.least, y.degree.sign.least)
        mixed = replace(mixed, degree=mixed.degree.signed(Sign(least, least == 2)))
        return self.move(lambda a, b: np.where(unknown, a, b), mixed, chosen)

    def _picked(self, t: Tensor) -> Tensor:
        """1 where t > 0, else 0: an unknown s of each t. Where t is such an s or 1 - s, it is t itself."""
        made = self._uninterpreted("where", t)
        self._record("where", (t,), 0)
        own = self.truths.hold(self.reals.labels(t))
        self.truths_given(made)
        return self.move(lambda a, b: np.where(own, a, b), t, made) if own.any() else made

    @override
    def truths_given(self, a: Tensor) -> None:
        self._record("", (a,), 2 * math.prod(a.shape))  # each look-up could hit by chance
        for truth in (a, self.apply("sub", self.constant(1.0), a)):
            self.truths.add(self.reals.labels(truth))

    @override
    def contract(self, a: Tensor, b: Tensor) -> Tensor:
        planes = [self._product(a.planes[0], b.planes[0])]
        if len(a.planes) == len(b.planes) == 2:
            planes.append(self._multiply(1, a.planes[1], b.planes[1]))
        least = min(a.degree.sign.least, b.degree.sign.least)
        degree = a.degree.times(b.degree).repeated(a.shape[2]).signed(Sign(least, least == 2))
        return self.reals.replaced(Tensor(tuple(planes), degree))

    @override
    def reduce(self, combiner: str, a: Tensor) -> Tensor:
        count = a.shape[-1]
        if combiner != "add":
            return self._join_rows("max" if combiner == "max" else "min", a)
        planes = [self._sum(a.planes[0])]
        planes += [self.fields[1].sum(np.asarray(x, order="C")) for x in a.planes[1:]]
        sign = a.degree.sign
        degree = a.degree.repeated(count).signed(sign.plus(sign) if count > 1 else sign)
        return self.reals.replaced(Tensor(tuple(planes), degree))

    # --- uninterpreted operators

    def _record(self, name: str, operands: Sequence[Tensor], count: int) -> None:
        if name:
            self.seen.assumed.add(name)
        self.seen.applications += count
        for t in operands:
            self.seen.argument = max(self.seen.argument, t.degree.p.difference, t.degree.q.difference)
            self.seen.argument_q = max(self.seen.argument_q, t.degree.h.plus(t.degree.h).difference)

    def _opaque_degree(self, operands: Sequence[Tensor], count: int = 1) -> Degree:
        return Degree(
            Ratio(1),
            Ratio(1),
            opaque=count + count * sum(t.degree.opaque for t in operands),
            partial=any(t.degree.partial for t in operands),
        )

    def _uninterpreted(self, primitive: str, *operands: Tensor) -> Tensor:
        shape = np.broadcast_shapes(*(t.shape for t in operands))
        known = KNOWN_VALUES.get(primitive, {})  # arguments may also coincide with these
        count = math.prod(shape) + len(known)
        self._record("second exp on a path" if primitive == "exp" else primitive, operands, count)
        planes: list[Array] = []
        for i in range(min(len(t.planes) for t in operands)):
            field, key = self.fields[i], key_of(self.seed, "function", primitive, i)
            mixed = np.zeros(shape, np.uint64)
            arguments = [self._residues(t.planes[0]) if i == 0 else t.planes[1] for t in operands]
            for j, x in enumerate(arguments):
                x = field.keyed(key + j & (1 << 64) - 1, np.asarray(x, order="C"))
                mixed = field.add(*_aligned(mixed, x))
            result = field.keyed(key_of(key, "result"), mixed)
            for argument, value in known.items():
                result = np.where(arguments[0] == np.uint64(argument), np.uint64(value), result)
            planes.append(result)
        degree = self._opaque_degree(operands)
        return Tensor(
            (self._lift(planes[0]), *planes[1:]), replace(degree, opaque=degree.opaque + len(known))
        )

    @override
    def opaque(self, key: str, operands: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        self._record(key, operands, sum(map(math.prod, shapes)))
        digests: list[bytes] = []
        for i in range(min((len(t.planes) for t in operands), default=2)):
            digest = hashlib.blake2b(key.encode())
            for t in operands:
                plane = self._residues(t.planes[0]) if i == 0 else t.planes[1]
                digest.update(repr(t.shape).encode())
                digest.update(np.asarray(plane, order="C").tobytes())
            digests.append(digest.digest())
        results: list[Tensor] = []
        count = sum(math.prod(t.shape) for t in operands)
        for n, shape in enumerate(shapes):
            planes = [
                self.fields[i].uniform(key_of(self.seed, d, n, i), math.prod(shape)).reshape(shape)
                for i, d in enumerate(digests)
            ]
            degree = self._opaque_degree(operands, max(count, 1))
            results.append(Tensor((self._lift(planes[0]), *planes[1:]), degree))
        return results

    # --- max and min

    def renewed(self) -> bool:
        """Use what became known of roots, and what real numbers make equal of maxima, from here on.

        False where that is nothing new.
        """
        widened = self.reals.on and not self.lattices.vector and bool(self.assumed & _WIDENED)
        if widened:
            self.lattice = "free"
            self.lattices.widen(self.reals.widen())
        return self.reals.renewed() or widened

    @property
    def ruled(self) -> bool:
        """Whether more than congruence was used."""
        return self.reals.used or self.lattices.vector

    def _join(self, kind: Kind, a: Tensor, b: Tensor) -> Tensor:
        if (known := self.reals.joined(kind, (a, b), partial(self._join, kind))) is not None:
            self._record(kind, (a, b), math.prod(known.shape))
            return known
        made = self._joined(kind, a, b)
        if kind == "max":
            self.reals.opposite(a, b, made)
        return made

    def _joined(self, kind: Kind, a: Tensor, b: Tensor) -> Tensor:
        shape = np.broadcast_shapes(a.shape, b.shape)
        sign = a.degree.sign, b.degree.sign
        pairs = [_aligned(x, y) for x, y in zip(a.planes, b.planes, strict=False)]
        xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
        first = (self._residues(xs[0]), self._residues(ys[0]))
        if self.lattice == "order":
            left = self.lattices.takes_left(kind, *first)
            planes = [np.where(left, x, y) for x, y in zip(xs, ys, strict=True)]
        else:
            plain = flags(self._plain(a.planes[0]), shape), flags(self._plain(b.planes[0]), shape)
            planes = [self._settle(self.lattices.join(kind, 0, *first, plain))]
            if len(xs) == 2:
                planes.append(self.lattices.join(kind, 1, xs[1], ys[1], (None, None)))
        degree = self._join_degree(kind, (a, b), math.prod(shape), 1)
        return Tensor(
            tuple(planes),
            degree.signed(sign[0].larger(sign[1]) if kind == "max" else sign[0].smaller(sign[1])),
        )

    def _join_degree(self, kind: Kind, operands: tuple[Tensor, ...], count: int, rows: int) -> Degree:
        """Of `count` joins, recorded. In a vector lattice a join is a mean of leaves and an unknown."""
        self._record(kind, operands, count)
        degree, opaque = operands[0].degree, self._opaque_degree(operands, rows)
        for t in operands[1:]:
            degree = degree.either(t.degree)
        if not self.lattices.vector:
            return degree.plus(opaque)
        self.lattices.leaf = leaf = self.lattices.leaf.either(degree)
        most, known = self.lattices.most, self.lattices.compared
        self._record(kind, [Tensor((), leaf.repeated(most + 1))], known - self.seen.compared)
        self.seen.compared = known
        return leaf.repeated(most).plus(opaque)

    def _product_of_joins(self, a: Tensor, b: Tensor, product: Tensor) -> Tensor:
        """The product, where it is that of the maximum and the minimum of two numbers x and y: x y."""
        planes = list(product.planes)
        for i, plane in enumerate(planes):
            x, y = _aligned(a.planes[i], b.planes[i])
            where, found = self.lattices.products(
                i, *((self._residues(x), self._residues(y)) if i == 0 else (x, y))
            )
            if where.any():
                planes[i] = np.where(where, found if i else self._lift(found), plane)
        return replace(product, planes=tuple(planes))

    def _settle(self, joined: Array) -> Array:
        """`joined` residues as elements: the one that was joined alone, or else a new unknown."""
        return joined

    def _join_rows(self, kind: Kind, a: Tensor) -> Tensor:
        if (known := self.reals.joined(kind, (a,), partial(self._join_rows, kind))) is not None:
            self._record(kind, (a,), math.prod(a.shape))
            return known
        if self.lattice == "order":
            # Pairwise: the pick is associative, so any order of joining works.
            while a.shape[-1] > 1:
                half = a.shape[-1] // 2
                joined = self._joined(
                    kind,
                    self.move(lambda x, h=half: x[..., :h], a),
                    self.move(lambda x, h=half: x[..., h : 2 * h], a),
                )
                rest = self.move(lambda x, h=half: x[..., 2 * h :], a)
                a = self.move(lambda x, y: np.concatenate([x, y], axis=-1), joined, rest)
            return self.move(lambda x: x[..., 0], a)
        residues = np.asarray(self._residues(a.planes[0]), order="C")
        planes = [self._settle(self.lattices.reduce(kind, 0, residues, self._plain(a.planes[0])))]
        planes += [self.lattices.reduce(kind, 1, np.asarray(x, order="C"), None) for x in a.planes[1:]]
        degree = self._join_degree(kind, (a,), math.prod(a.shape), a.shape[-1])
        return Tensor(tuple(planes), degree.signed(Sign(a.degree.sign.least, a.degree.sign.least == 2)))

    # --- results

    def differs(self, a: Tensor, b: Tensor) -> Array:
        """Where two tensors of one shape have different values (their first components)."""
        return a.planes[0] != b.planes[0]


class FormalField(ImageField):
    """Z_p x Z_q at 61 bits with exponentials kept formal, up to `cap` terms in a sum.

    One test is conclusive, with the bound that `superopt.verify.certify` states, unless `imaged` is set: an
    element outgrew the cap and became its image under w. Raises OverflowError once more than `work` terms were
    written.
    """

    def __init__(
        self,
        seed: object,
        *,
        cap: int = 1024,
        lattice: Literal["free", "order"] = "free",
        work: int = MOST_TERMS,
        primes: Primes = (P, Q),
        rules: bool = False,
    ) -> None:
        super().__init__(seed, lattice=lattice, primes=primes, rules=rules)
        self.pool: Any = self._core.FormalPool(*primes, self.root, cap, work)

    @property
    @override
    def imaged(self) -> bool:
        """Whether the formal argument was given up somewhere."""
        ordered = self.lattice == "order" and bool(self.assumed & {"max", "min"})
        return ordered or self.pool.fallbacks > 0

    @property
    @override
    def terms(self) -> int:
        """The most terms of numerators, denominators and their products."""
        return self.pool.widest

    @override
    def _lift(self, residues: Array) -> Array:
        return self.pool.constants(np.asarray(residues, order="C"))

    @override
    def _residues(self, plane: Array) -> Array:
        return self.pool.labels(np.asarray(plane, order="C"))

    @override
    def _plain(self, plane: Array) -> Array | None:
        return self.pool.plain(np.asarray(plane, order="C")) if self.lattices.vector else None

    @override
    def _settle(self, joined: Array) -> Array:
        return self.pool.labelled(np.asarray(joined, order="C"))

    @override
    def _binary(self, primitive: str, a: Array, b: Array) -> Array:
        return getattr(self.pool, primitive)(a, b)

    @override
    def _sum(self, a: Array) -> Array:
        return self.pool.sum(np.asarray(a, order="C"))

    @override
    def _product(self, a: Array, b: Array) -> Array:
        return self.pool.matmul(a, b)

    @override
    def _exponential(self, exponents: Array) -> Array:
        return self.pool.exponentials(np.asarray(exponents, order="C"))

    @override
    def differs(self, a: Tensor, b: Tensor) -> Array:
        x, y = (np.asarray(t.planes[0], order="C") for t in (a, b))
        if self.pool.fallbacks:  # one program may have outgrown the cap where the other did not
            return self.pool.images(x) != self.pool.images(y)
        return ~self.pool.equal(x, y)


class ScreenField(ImageField):
    """Z_p x Z_q with p below 2^20: float64 matrix products, no certainty, but quick to distinguish programs."""

    def __init__(self, seed: object) -> None:
        self._core = None
        self._start(seed, SmallField(SCREEN_P, P), SmallField(SCREEN_Q, P), "order", 1)
        self.reals = Reals(self._residues, self.apply, self.constant, rules=False)


def _aligned(a: Array, b: Array) -> tuple[Array, Array]:
    """Both broadcast to one shape, in row-major order."""
    x, y = np.broadcast_arrays(a, b)
    return np.asarray(x, order="C"), np.asarray(y, order="C")


def _field_binary(field: _Arithmetic, primitive: str, a: Array, b: Array) -> Array:
    if primitive == "div":
        return field.mul(a, field.inverse(b))
    return getattr(field, primitive)(a, b)
