"""Infinities and undefined numbers alongside a field, which lacks both.

An unknown of a field cancels, as in x - x; an infinity does not: on a GPU the result is NaN. So infinities are
tracked apart, by the rules of IEEE 754, which are limits: minus infinity is neutral for `max`, exp(-inf) = 0,
exp(inf) = inf, x / inf = 0, and a multiple of an infinity is infinite where the factor's sign is known, as
it is only for constants. What lacks a limit (inf - inf, 0 inf, inf / inf, x inf of an unknown x) is undefined and
stays so. It equals nothing, not even another undefined number: nothing is proved about a program where it is
undefined. `Numbers` implements this for arithmetic on tensors with masks; `Extended` is a domain whose tensors
carry the masks in two bits of their elements, so that every evaluator moves them along.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from superopt.errors import UnsupportedProgram
from superopt.verify.domains import FLOAT_PRIMITIVES, Array, Domain, Shape, Tensor
from superopt.verify.fields import ImageField

LOG2_E = float(np.float32(math.log2(math.e)))
# How many constants' signs are remembered.
MOST_NAMED = 64
# Primitives that are not defined on all real numbers (quotients apart, which the field itself refuses).
_PARTIAL = ("log", "log1p", "sqrt", "pow")
# Those that are monotone in each operand, where they are defined (powers: of positive numbers).
_MONOTONE = ("add", "sub", "mul", "div", "neg", "max", "min", "exp", "log", "sqrt", "erf", "pow")
# More than what fp64 loses in one primitive, as a part of its result, and where that is a tiny number.
_ROUNDING, _LEAST = 2.0**-48, 1e-300


@dataclass(frozen=True)
class Number:
    """Floating-point numbers.

    `infinite` is -1 or 1 where they are infinite, as elements of a field never are. `undefined` marks NaNs and
    arbitrary values: the result of an infinity that is not a neutral element, of a division by zero, of a
    masked load without another value. Whatever is computed from them is undefined too, and
    storing it is an error: in a field an unknown could cancel, on a GPU it is NaN. `known` is the number
    where it is one constant, up to `error`. `log2_of` remembers that this is `factor * log2(x)`, as (x, factor):
    Triton writes `x ** factor` as 2 to that power.
    """

    tensor: Tensor
    infinite: Array | None = None
    undefined: Array | None = None
    known: float | None = None
    log2_of: tuple[Tensor, float] | None = None
    error: float = 0.0

    @property
    def shape(self) -> Shape:
        """Shape, with the instances first."""
        return self.tensor.shape


class Numbers:
    """Arithmetic on `Number`s over a domain; `constant` reads literals as Triton does, in fp32."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.drawn = 0
        # Constants, and what they alone give up to an error, by first component.
        self.named: dict[int, tuple[float, float]] = {}

    def constant(self, value: float, rank: int) -> Number:
        """A literal, with `rank` dimensions of extent 1."""
        value = float(np.float32(value))
        shape = (1,) * rank
        finite = self.domain.constant(value if math.isfinite(value) else 1.0)
        tensor = self.domain.move(lambda x: x.reshape(shape), finite)
        if math.isfinite(value):
            self.name(value, tensor)
        if math.isnan(value):
            return Number(tensor, undefined=np.ones(shape, np.bool_))
        infinite = None if math.isfinite(value) else np.full(shape, math.copysign(1, value), np.int8)
        return Number(tensor, infinite, known=value)

    def unknown(self, shape: Shape) -> Number:
        """Numbers that no result may depend on."""
        self.drawn += 1
        return Number(
            self.domain.unknown(("undefined", self.drawn), shape), undefined=np.ones(shape, np.bool_)
        )

    def move(self, arrange: Callable[[Array], Array], x: Number) -> Number:
        """Elements moved alike in the tensor and its masks."""
        log2_of = None if x.log2_of is None else (self.domain.move(arrange, x.log2_of[0]), x.log2_of[1])
        masks = [None if m is None else arrange(m) for m in (x.infinite, x.undefined)]
        return Number(self.domain.move(arrange, x.tensor), masks[0], masks[1], x.known, log2_of, x.error)

    def select(self, mask: Array, a: Number, b: Number) -> Number:
        """`a` where `mask`, `b` elsewhere."""
        return self.merge(lambda x, y: np.where(mask, x, y), a, b)

    def merge(self, arrange: Callable[[Array, Array], Array], a: Number, b: Number) -> Number:
        """Elements of two values placed in one."""
        tensor = self.domain.move(arrange, a.tensor, b.tensor)
        infinite = undefined = None
        if a.infinite is not None or b.infinite is not None:
            infinite = _kept(arrange(_infinite(a), _infinite(b)))
        if a.undefined is not None or b.undefined is not None:
            undefined = _kept(arrange(_undefined(a), _undefined(b)))
        return Number(tensor, infinite, undefined)

    def apply(self, primitive: str, *xs: Number) -> Number:
        """A primitive of the operator table, also on infinities where the result is defined."""
        if primitive == "log1p":
            return self.apply("log", self.apply("add", self.constant(1.0, len(xs[0].shape)), xs[0]))
        if primitive == "where":
            return self._selected(*xs)
        if primitive == "div" and xs[1].infinite is not None:  # the residue under an infinity may be zero
            xs = xs[0], replace(xs[1], tensor=self._where(xs[1].infinite != 0, 1.0, xs[1].tensor))
        zero: Array | None = None
        try:
            tensor = self.domain.apply(primitive, *(x.tensor for x in xs))
        except ZeroDivisionError:
            tensor, zero = self._divide(xs[0], xs[1])
        value = Number(tensor)
        undefined = [m for m in (zero, *(x.undefined for x in xs)) if m is not None]
        if any(x.infinite is not None for x in xs):
            value, lost = self._infinite(primitive, xs, value)
            undefined.append(lost)
        if primitive in _PARTIAL and isinstance(self.domain, ImageField):
            value, lost = self._outside(primitive, xs, value)
            undefined.append(lost)
        known, error = self._fold(primitive, xs, value) or (None, 0.0)
        value = replace(value, known=known, error=error)
        if not undefined:
            return value
        mask = np.logical_or.reduce(np.broadcast_arrays(*undefined, np.zeros(value.shape, np.bool_)))
        return replace(value, undefined=_kept(mask))

    def _selected(self, t: Number, x: Number, y: Number) -> Number:
        """`x` where t > 0, else `y`, whatever the other one is.

        Where it is not known which, both must be finite, or the same infinity.
        """
        if t.infinite is not None:  # 1 and 0 are known in every domain
            tensor = self._where(t.infinite > 0, 1.0, self._where(t.infinite < 0, 0.0, t.tensor))
        else:
            tensor = t.tensor
        xs = [v if v.infinite is None else self._finite(v) for v in (x, y)]
        value = Number(self.domain.apply("where", tensor, *(v.tensor for v in xs)))
        undefined = None if t.undefined is None else np.broadcast_to(t.undefined, value.shape)
        if any(m is not None for v in (x, y) for m in (v.infinite, v.undefined)):
            truth = self.truth(tensor)
            infinite = [np.broadcast_to(_infinite(v), value.shape) for v in (x, y)]
            lost = [np.broadcast_to(_undefined(v), value.shape) for v in (x, y)]
            both = lost[0] | lost[1] | (infinite[0] != infinite[1])
            where = np.where(truth > 0, lost[0], np.where(truth == 0, lost[1], both))
            undefined = where if undefined is None else undefined | where
            value = replace(value, infinite=_kept(np.where(truth > 0, infinite[0], infinite[1])))
        return replace(value, undefined=None if undefined is None else _kept(undefined))

    def _finite(self, x: Number) -> Number:
        """A number with 0 in place of infinities."""
        return replace(x, tensor=self._where(_infinite(x) != 0, 0.0, x.tensor), infinite=None)

    def truth(self, t: Tensor) -> Array:
        """Where t > 0: 1, where not: 0, where that is not known: -1."""
        if isinstance(self.domain, ImageField):
            return self.domain.truth(t)
        return np.nan_to_num(t.planes[0] > 0).astype(np.int8)

    def _where(self, mask: Array, number: float, tensor: Tensor) -> Tensor:
        """The tensor with `number` where the mask is set."""
        return self.domain.move(
            lambda x, y: np.where(mask, y, x), tensor, self.domain.constant(np.asarray(number))
        )

    def _divide(self, a: Number, b: Number) -> tuple[Tensor, Array]:
        """A quotient, and where it is undefined: padding may be divided by zero, results may not."""
        if not isinstance(self.domain, ImageField):
            raise ZeroDivisionError
        nought = self._zero(b)
        if nought.all():
            raise ZeroDivisionError("division by zero in the field")
        return self.domain.apply("div", a.tensor, self._where(nought, 1.0, b.tensor)), nought

    def _zero(self, x: Number) -> Array:
        """Where a number is zero: at a random point, only where it is zero everywhere."""
        if not isinstance(self.domain, ImageField):
            return x.tensor.planes[0] == 0
        shape = x.shape
        zero = self.domain.move(lambda z: np.broadcast_to(z, shape), self.domain.constant(0.0))
        return ~self.domain.differs(x.tensor, zero)

    # --- signs: of constants, and of what is computed from constants alone

    def name(self, number: float, tensor: Tensor, error: float = 0.0) -> None:
        """Remember that the tensor's first element is `number`, up to an error that leaves its sign."""
        if len(self.named) < MOST_NAMED and isinstance(self.domain, ImageField):
            self.named.setdefault(int(tensor.planes[0].flat[0]), (number, error))

    def _fold(self, primitive: str, xs: Sequence[Number], value: Number) -> tuple[float, float] | None:
        """The number that constants alone give, and how far off it may be; None where its sign is not certain.

        Interval arithmetic (twice the error also covers the rounding of the bounds): primitives that are monotone
        in each operand take their bounds at the corners.
        """
        sides = [(x.known - 2 * x.error, x.known + 2 * x.error) for x in xs if x.known is not None]
        if len(sides) < len(xs) or value.infinite is not None or not isinstance(self.domain, ImageField):
            return None
        divided_by, base = sides[-1], sides[0]
        if primitive not in _MONOTONE and any(x.error for x in xs):
            return None
        if (primitive == "div" and divided_by[0] <= 0 <= divided_by[1]) or (
            primitive == "pow" and base[0] <= 0
        ):
            return None
        with np.errstate(all="ignore"):
            found = [
                float(FLOAT_PRIMITIVES[primitive](*map(np.asarray, corner)))
                for corner in itertools.product(*sides)
            ]
        low, high = min(found), max(found)
        middle = (low + high) / 2
        error = (high - low) / 2 + _ROUNDING * max(-low, high) + _LEAST
        if not math.isfinite(middle + error) or abs(middle) <= error:
            return None
        self.name(middle, value.tensor, error)
        return middle, error

    def _sign(self, x: Number) -> Array:
        """Signs of finite numbers, 0 where they are zero or not known."""
        shape, first = x.shape, x.tensor.planes[0]
        if x.known is not None:
            return np.full(shape, np.sign(x.known), np.int8)
        if not isinstance(self.domain, ImageField):
            return np.sign(np.nan_to_num(first)).astype(np.int8)
        signs = np.zeros(shape, np.int8)
        for residue, (number, _) in self.named.items():
            signs[first == np.uint64(residue)] = np.sign(number)
        return signs

    def _outside(self, primitive: str, xs: Sequence[Number], value: Number) -> tuple[Number, Array]:
        """Constants outside the primitive's domain: log(0) = -inf, log(-1) is undefined."""
        base = xs[0]
        finite = _infinite(base) == 0
        lost = np.broadcast_to(finite & (self._sign(base) < 0), value.shape)
        if primitive == "sqrt":
            return value, lost
        zero = np.broadcast_to(finite & self._zero(base), value.shape)
        if primitive == "pow":
            return value, lost | (zero & (np.broadcast_to(self._sign(xs[1]), value.shape) < 0))
        if zero.any():
            value = replace(value, infinite=np.where(zero, np.int8(-1), _infinite(value)))
        return value, lost

    def _infinite(self, primitive: str, xs: tuple[Number, ...], value: Number) -> tuple[Number, Array]:
        """The value where operands are infinite, and the mask of where it is undefined."""
        shape = value.shape
        signs = [np.broadcast_to(_infinite(x), shape) for x in xs]
        some = np.logical_or.reduce([s != 0 for s in signs])
        nothing = np.zeros(shape, np.bool_)

        def finite(mask: Array, number: float) -> Number:
            return replace(value, tensor=self._where(mask, number, value.tensor))

        if primitive in ("max", "min"):
            neutral = -1 if primitive == "max" else 1
            for mine, other in ((0, 1), (1, 0)):
                value = self.select(signs[mine] == neutral, replace(xs[other], infinite=None), value)
            both = (signs[0] == neutral) & (signs[1] == neutral)
            over = (signs[0] == -neutral) | (signs[1] == -neutral)
            return replace(value, infinite=_kept(np.where(over, -neutral, both * neutral))), nothing
        if primitive == "neg":
            return replace(value, infinite=-signs[0]), nothing
        if primitive in ("add", "sub"):
            second = signs[1] if primitive == "add" else -signs[1]
            lost = (signs[0] * second) < 0
            return replace(value, infinite=_kept(np.where(lost, 0, np.sign(signs[0] + second)))), lost
        if primitive == "exp":
            return replace(finite(signs[0] < 0, 0.0), infinite=_kept(np.maximum(signs[0], 0))), nothing
        if primitive in ("sqrt", "log"):
            return replace(value, infinite=_kept(np.maximum(signs[0], 0))), signs[0] < 0
        if primitive == "erf":
            value = finite(signs[0] > 0, 1.0)
            return finite(signs[0] < 0, -1.0), nothing
        if primitive in ("mul", "div"):
            whole = [np.where(s != 0, s, self._sign(x)) for s, x in zip(signs, xs, strict=True)]
            product = (whole[0] * whole[1]).astype(np.int8)
            if primitive == "mul":
                return replace(value, infinite=_kept(np.where(some, product, 0))), some & (product == 0)
            above, below = signs[0] != 0, signs[1] != 0
            value = finite(below, 0.0)
            infinite = np.where(above & ~below, product, 0)
            return replace(value, infinite=_kept(infinite)), above & (below | (product == 0))
        if primitive == "pow":
            power = np.broadcast_to(self._sign(xs[1]), shape)
            value = finite((signs[0] > 0) & (power < 0), 0.0)
            infinite = np.where((signs[0] > 0) & (power > 0), 1, 0)
            lost = some & ((signs[0] <= 0) | (power == 0) | (signs[1] != 0))
            return replace(value, infinite=_kept(infinite)), lost
        return value, some

    def reduce(self, combiner: str, x: Number) -> Number:
        """Over the last dimension, whose extent is the tile's."""
        undefined = None if x.undefined is None else _kept(_any(x.undefined))
        if x.infinite is None:
            return Number(self.domain.reduce(combiner, x.tensor), None, undefined)
        low, high = _any(x.infinite < 0), _any(x.infinite > 0)
        if combiner == "add":
            lost = low & high
            undefined = lost if undefined is None else undefined | lost
            sign = np.where(low, -1, np.where(high, 1, 0))
            return Number(self.domain.reduce("add", x.tensor), _kept(sign), _kept(undefined))
        neutral = -1 if combiner == "max" else 1
        mask = x.infinite == neutral
        tensor = self.domain.move(
            lambda a, b: np.where(mask, b, a), x.tensor, self.domain.constant(neutral * math.inf)
        )
        all_of = ~_any(~mask)
        over = high if combiner == "max" else low
        sign = np.where(over, -neutral, all_of * neutral)
        return Number(self.domain.reduce(combiner, tensor), _kept(sign), undefined)

    def contract(self, a: Number, b: Number) -> Number:
        """The product of shapes (b, m, k) and (b, k, n), batched; infinite operands make it undefined."""
        product = Number(self.domain.contract(a.tensor, b.tensor))
        if all(m is None for x in (a, b) for m in (x.infinite, x.undefined)):
            return product
        rows = np.broadcast_to((_infinite(a) != 0) | _undefined(a), a.shape)
        columns = np.broadcast_to((_infinite(b) != 0) | _undefined(b), b.shape)
        mask = _any(rows)[:, :, None] | _any(columns.swapaxes(-1, -2))[:, None, :]
        return replace(product, undefined=_kept(mask))

    def exp2(self, x: Number) -> Number:
        """2 to the x: e to the x / log2(e), with the fp32 constant that programs scale by; or a power."""
        if x.log2_of is not None:
            base, factor = x.log2_of
            power = self.domain.apply("pow", base, self.domain.constant(factor))
            return Number(
                power, undefined=x.undefined if x.infinite is None else _undefined(x) | (x.infinite != 0)
            )
        return self.apply("exp", self.apply("div", x, self.constant(LOG2_E, len(x.shape))))

    def log2(self, x: Number) -> Number:
        """The logarithm to base 2."""
        value = self.apply("mul", self.apply("log", x), self.constant(LOG2_E, len(x.shape)))
        return replace(value, log2_of=(x.tensor, 1.0))

    def multiply(self, a: Number, b: Number) -> Number:
        """A product, which keeps track of powers."""
        product = self.apply("mul", a, b)
        for x, y in ((a, b), (b, a)):
            if x.known is not None and y.log2_of is not None:
                base, factor = y.log2_of
                return replace(product, log2_of=(base, factor * x.known))
        return product


def _infinite(x: Number) -> Array:
    return np.zeros((1,) * len(x.shape), np.int8) if x.infinite is None else x.infinite


def _undefined(x: Number) -> Array:
    return np.zeros((1,) * len(x.shape), np.bool_) if x.undefined is None else x.undefined


def _kept(mask: Array) -> Array | None:
    """A mask, or None where it marks nothing."""
    return mask if mask.any() else None


def _any(mask: Array) -> Array:
    """Whether any of the last dimension is marked."""
    return np.any(mask, axis=-1, keepdims=True)[..., 0]


# --- a domain with infinities -----------------------------------------------------------------------------

_SHIFT = np.uint64(62)  # residues and terms are below 2^62
_VALUE = np.uint64((1 << 62) - 1)
_FINITE, _MINUS, _PLUS, _UNDEFINED = 0, 1, 2, 3


def finite(t: Tensor) -> bool:
    """Whether every element of a tensor of `Extended` is a number."""
    return not (t.planes[0] >> _SHIFT).any()


class Extended(Domain):
    """A finite field with infinities: two bits of each element's first component say what it is.

    Costs nothing until a program has an infinite constant.
    """

    def __init__(self, field: ImageField) -> None:
        self.field = field
        self.numbers = Numbers(field)
        self._seen = False

    def open(self, t: Tensor) -> Number:
        """The numbers that a tensor holds."""
        kinds = np.asarray(t.planes[0] >> _SHIFT)
        if not kinds.any():
            known, error = self._constant(t) or (None, 0.0)
            return Number(t, known=known, error=error)
        infinite = (kinds == _PLUS).astype(np.int8) - (kinds == _MINUS).astype(np.int8)
        undefined = kinds == _UNDEFINED
        tensor = Tensor((t.planes[0] & _VALUE, *t.planes[1:]), t.degree)
        return Number(tensor, infinite if infinite.any() else None, undefined if undefined.any() else None)

    def _named(self, t: Tensor) -> tuple[float, float] | None:
        """The number that the first element equals, up to an error, if the program names it."""
        first = t.planes[0]
        return self.numbers.named.get(int(first.flat[0])) if first.size else None

    def _constant(self, t: Tensor) -> tuple[float, float] | None:
        """The number that every element equals, up to an error, if the program names it."""
        first = t.planes[0]
        if (found := self._named(t)) is None:
            return None
        return found if bool((first == first.flat[0]).all()) else None

    def close(self, x: Number) -> Tensor:
        """The tensor that holds these numbers; the residue under a number that is not finite does not matter."""
        if x.infinite is None and x.undefined is None:
            return x.tensor
        self._seen = True
        shape = x.shape
        kinds = np.zeros(shape, np.uint64)
        if x.infinite is not None:
            kinds = np.where(
                x.infinite < 0, np.uint64(_MINUS), np.where(x.infinite > 0, np.uint64(_PLUS), kinds)
            )
        if x.undefined is not None:
            kinds = np.where(x.undefined, np.uint64(_UNDEFINED), kinds)
        one = self.field.constant(1.0)
        planes = [np.where(kinds != _FINITE, y, z) for y, z in zip(one.planes, x.tensor.planes, strict=False)]
        planes[0] |= np.broadcast_to(kinds, shape) << _SHIFT
        return Tensor(tuple(planes), x.tensor.degree)

    @override
    def constant(self, value: float | Array) -> Tensor:
        array = np.asarray(value, np.float64)
        if np.isnan(array).any():
            raise UnsupportedProgram("expected a number, got a constant that is not one")
        infinite = np.isinf(array)
        tensor = self.field.constant(np.where(infinite, 0.0, array))
        if not infinite.any():
            if array.ndim == 0:
                self.numbers.name(float(array), tensor)
            return tensor
        return self.close(Number(tensor, np.where(infinite, np.sign(array), 0).astype(np.int8)))

    @override
    def apply(self, primitive: str, *operands: Tensor) -> Tensor:
        if not self._seen and primitive not in _PARTIAL and any(self._named(t) is None for t in operands):
            return self.field.apply(primitive, *operands)
        return self.close(self.numbers.apply(primitive, *map(self.open, operands)))

    @override
    def contract(self, a: Tensor, b: Tensor) -> Tensor:
        if not self._seen:
            return self.field.contract(a, b)
        return self.close(self.numbers.contract(self.open(a), self.open(b)))

    @override
    def reduce(self, combiner: str, a: Tensor) -> Tensor:
        if not self._seen:
            return self.field.reduce(combiner, a)
        return self.close(self.numbers.reduce(combiner, self.open(a)))

    @override
    def opaque(self, key: str, operands: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        kinds = [np.asarray(t.planes[0] >> _SHIFT, np.uint8) for t in operands]
        if any(k.any() for k in kinds):
            key = f"{key} {hashlib.sha256(b''.join(k.tobytes() for k in kinds)).hexdigest()}"
            operands = [Tensor((t.planes[0] & _VALUE, *t.planes[1:]), t.degree) for t in operands]
        results = self.field.opaque(key, operands, shapes)
        if any((k == _UNDEFINED).any() for k in kinds):
            return [self.close(Number(t, undefined=np.ones(t.shape, np.bool_))) for t in results]
        return results

    @override
    def unknown(self, name: object, shape: Shape) -> Tensor:
        return self.field.unknown(name, shape)

    @override
    def truths_given(self, a: Tensor) -> None:
        self.field.truths_given(Tensor((a.planes[0] & _VALUE, *a.planes[1:]), a.degree))

    @override
    def aside(self) -> AbstractContextManager[None]:
        return self.field.reals.aside()

    def undefined(self, t: Tensor) -> Array:
        """Which elements are undefined."""
        return (t.planes[0] >> _SHIFT) == _UNDEFINED

    def differs(self, a: Tensor, b: Tensor) -> Array:
        """Where two tensors of one shape differ: equal infinities agree, undefined elements equal nothing."""
        if not self._seen:
            return self.field.differs(a, b)
        kinds = [t.planes[0] >> _SHIFT for t in (a, b)]
        finite = [Tensor((t.planes[0] & _VALUE, *t.planes[1:]), t.degree) for t in (a, b)]
        number = (kinds[0] == _FINITE) & self.field.differs(*finite)
        return (kinds[0] != kinds[1]) | (kinds[0] == _UNDEFINED) | number
