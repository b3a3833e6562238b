"""Library functions as what their text in PTX computes: templates for `superopt.verify.ptx.functions`.

That a template is the function within 4 units of the last place is tested on a sample of its inputs, and by
`make ptx-functions` on all 2^32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Expression: TypeAlias = "tuple[str, *tuple[Expression, ...]]"
"""An opcode without its rounding and what it is applied to; `("0f...",)` is a constant, `("x",)` the argument.

`choice` takes a condition and both ways around a branch. Comparisons that hold for NaN are negated, and the ways
exchanged; selections are of words. `madc` takes the instruction that set the carry, and
`local` an offset of bytes, a base, and the words of local memory: it is the word at base - offset.
"""

X: Expression = ("x",)


def _polynomial(variable: Expression, coefficients: Sequence[Expression]) -> Expression:
    """Horner's rule, highest power first."""
    value, *rest = coefficients
    for c in rest:
        value = ("fma.f32", value, variable, c)
    return value


def _constants(text: str) -> list[Expression]:
    return [(f"0f{word}",) for word in text.split()]


# Of erf from 1.004 on, highest power first: libdevice up to Triton 3.8, and from 3.9 on.
_FAR = (
    "3789CA3C B9F560B9 3BAC840B BD0C8162 3E1CF906 3F6A937E 3F20D842",
    "38EB4C3A BAAE005B 3C09919F BD24D99A 3E235519 3F69B4F9 3F210A14",
)


def _erf(coefficients: str) -> Expression:
    size: Expression = ("abs.f32", X)
    threshold: Expression = ("0f3F8060FE",)
    large: Expression = ("setp.ge.f32", size, threshold)
    variable: Expression = ("choice", large, size, ("mul.f32", X, X))
    far = _constants(coefficients)
    near = _constants("38B1E96A BA574D20 3BAAD5EA BCDC1BE7 3DE718AF BEC093AC 3E0375D3")
    chosen: list[Expression] = [("choice", large, a, b) for a, b in zip(far, near, strict=True)]
    factor: Expression = ("selp.b32", ("neg.f32", variable), X, large)
    inner: Expression = ("fma.f32", _polynomial(variable, chosen), factor, factor)
    outer: Expression = ("sub.f32", ("0f3F800000",), ("ex2.f32", inner))
    signed: Expression = ("or.b32", ("and.b32", X, ("-2147483648",)), outer)
    return ("choice", large, signed, inner)


def _log() -> Expression:
    tiny: Expression = ("setp.lt.f32", X, ("0f00800000",))
    x: Expression = ("selp.b32", ("mul.f32", X, ("0f4B000000",)), X, tiny)
    shift: Expression = ("selp.b32", ("0fC1B80000",), ("0f00000000",), tiny)
    exponent: Expression = ("and.b32", ("add.s32", x, ("-1059760811",)), ("-8388608",))
    power: Expression = ("fma.f32", ("cvt.f32.s32", exponent), ("0f34000000",), shift)
    rest: Expression = ("add.f32", ("sub.s32", x, exponent), ("0fBF800000",))
    coefficients = _constants(
        "BE055027 3E1039F6 BDF8CDCC 3E0F2955 BE2AD8B9 3E4CED0B BE7FFF22 3EAAAA78 BF000000"
    )
    higher: Expression = ("mul.f32", rest, _polynomial(rest, coefficients))
    value: Expression = ("fma.f32", power, ("0f3F317218",), ("fma.f32", higher, rest, rest))
    infinity: Expression = ("0f7F800000",)
    usual: Expression = ("setp.lt.u32", x, ("2139095040",))
    finite: Expression = ("choice", usual, value, ("fma.f32", x, infinity, infinity))
    return ("selp.b32", ("0fFF800000",), finite, ("setp.eq.f32", x, ("0f00000000",)))


def _integers(*values: int) -> list[Expression]:
    return [(str(v),) for v in values]


# The first 192 bits of 2/pi, the lowest word first.
TWO_OVER_PI = (0x3C439041, 0xDB629599, 0xF534DDC0, 0xFC2757D1, 0x4E441529, 0xA2F9836E)

_Reduced: TypeAlias = tuple[Expression, Expression]
"""A multiple of pi/2, and what is left of the argument."""


def _either(condition: Expression, yes: _Reduced, no: _Reduced) -> _Reduced:
    return ("choice", condition, yes[0], no[0]), ("choice", condition, yes[1], no[1])


def _reduced() -> _Reduced:
    """By Cody and Waite's method for small arguments, by Payne and Hanek's for large ones."""
    size: Expression = ("abs.f32", X)
    zero: Expression = ("0f00000000",)
    quadrant: Expression = ("cvt.rni.s32.f32", ("mul.f32", X, ("0f3F22F983",)))
    rest, multiple = X, ("cvt.f32.s32", quadrant)
    for part in _constants("BFC90FDA B3A22168 A7C234C5"):
        rest = ("fma.f32", multiple, part, rest)
    infinite: _Reduced = ("0",), ("mul.f32", X, zero)
    large = _either(("setp.eq.f32", size, ("0f7F800000",)), infinite, _large())
    return _either(("setp.ge.f32", size, ("0f47CE4780",)), large, (quadrant, rest))


def _large() -> _Reduced:
    mantissa: Expression = ("or.b32", ("shl.b32", X, ("8",)), ("-2147483648",))
    carry: Expression = ("0",)
    words: list[Expression] = []
    for word in _integers(*TWO_OVER_PI):
        words.append(("mad.lo.cc.u32", word, mantissa, carry))
        carry = ("madc.hi.u32", word, mantissa, ("0",), words[-1])
    exponent: Expression = ("shr.u32", X, ("23",))
    offset: Expression = ("shr.u32", ("add.s32", ("and.b32", exponent, ("224",)), ("-128",)), ("3",))
    high, middle, low = (("local", offset, base, *words, carry) for base in _integers(24, 20, 16))
    leading: Expression = ("shf.l.wrap.b32", middle, high, exponent)
    following: Expression = ("shf.l.wrap.b32", low, middle, exponent)
    aligned: Expression = ("setp.eq.b32", ("and.b32", X, ("260046848",)), ("0",))
    return _either(aligned, _rounded(leading, middle), _rounded(leading, following))


def _rounded(leading: Expression, following: Expression) -> _Reduced:
    """The nearest multiple, and the rest, of a product with 2/pi: two words after the last whole 4."""
    fraction: Expression = ("shf.l.wrap.b32", following, leading, ("2",))
    multiple: Expression = ("add.s32", ("shr.u32", fraction, ("31",)), ("shr.u32", leading, ("30",)))
    quadrant: Expression = ("selp.b32", ("neg.s32", multiple), multiple, ("setp.lt.s32", X, ("0",)))
    sign: Expression = ("shr.s32", fraction, ("31",))
    low: Expression = ("cvt.u64.u32", ("xor.b32", sign, ("shl.b32", following, ("2",))))
    high: Expression = ("shl.b64", ("cvt.u64.u32", ("xor.b32", sign, fraction)), ("32",))
    wide: Expression = ("mul.f64", ("cvt.f64.s64", ("or.b64", high, low)), ("0d3BF921FB54442D19",))
    rest: Expression = ("cvt.f32.f64", wide)
    negative: Expression = ("setp.lt.s32", ("xor.b32", fraction, X), ("0",))
    return quadrant, ("selp.b32", ("neg.f32", rest), rest, negative)


def _sine(quadrant: Expression, rest: Expression, turned: Expression, *, cosine: bool) -> Expression:
    """The sine's polynomial of the rest or the cosine's, by the quadrant; with the sign of the `turned` one."""
    zero, one, minus = (("0f00000000",), ("0f3F800000",), ("0fBF800000",))
    odd: Expression = ("setp.ne.b32", ("and.b32", quadrant, ("1",)), ("0",))
    square: Expression = ("mul.f32", rest, rest)
    first: Expression = ("selp.b32", rest, one, odd) if cosine else ("selp.b32", one, rest, odd)
    near: list[Expression] = _constants("B94D4153 3C0885E4 BE2AAAA8")
    far: list[Expression] = _constants("BAB607ED 3D2AAABB BEFFFFFF")
    far[0] = ("fma.f32", ("0f37CBAC00",), square, far[0])
    pairs = zip(near, far, strict=True)
    chosen: list[Expression] = [("choice", odd, *((n, f) if cosine else (f, n))) for n, f in pairs]
    value: Expression = ("fma.f32", _polynomial(square, chosen), ("fma.f32", square, first, zero), first)
    upper: Expression = ("setp.eq.b32", ("and.b32", turned, ("2",)), ("0",))
    return ("choice", upper, value, ("fma.f32", value, minus, zero))


def _sin() -> Expression:
    quadrant, rest = _reduced()
    return _sine(quadrant, rest, quadrant, cosine=False)


def _cos() -> Expression:
    quadrant, rest = _reduced()
    return _sine(quadrant, rest, ("add.s32", quadrant, ("1",)), cosine=True)


TEMPLATES: Mapping[str, Sequence[Expression]] = {
    "erf": [_erf(coefficients) for coefficients in _FAR],
    "log": [_log()],
    "sin": [_sin()],
    "cos": [_cos()],
}
