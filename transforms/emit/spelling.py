"""How Triton writes scalar expressions: a table over the primitives; every operator's text follows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from superopt.operators import Scalar

LOG2_E = math.log2(math.e)
# Binding strengths in Python: sums, products, minus, calls and names.
_SUM, _PRODUCT, _UNARY, _ATOM = range(4)

# primitive -> (text over operands {0} and {1}, strength of the text, strength each operand must have)
SPELLING: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "add": ("{0} + {1}", _SUM, (_SUM, _PRODUCT)),
    "sub": ("{0} - {1}", _SUM, (_SUM, _PRODUCT)),
    "mul": ("{0} * {1}", _PRODUCT, (_PRODUCT, _UNARY)),
    "div": ("{0} / {1}", _PRODUCT, (_PRODUCT, _UNARY)),
    "neg": ("-{0}", _UNARY, (_ATOM,)),
    # The hardware computes powers of two. Triton's `exp` uses one too, with two more instructions for denormals.
    "exp": (f"tl.exp2({{0}} * {LOG2_E})", _ATOM, (_PRODUCT,)),
    "log": ("tl.log({0})", _ATOM, (_SUM,)),
    # The second term restores what rounding took from the sum 1 + x; it is 0 in exact arithmetic.
    "log1p": ("tl.log(1 + {0}) + ({0} - ((1 + {0}) - 1)) / (1 + {0})", _SUM, (_ATOM,)),
    "sqrt": ("tl.sqrt({0})", _ATOM, (_SUM,)),
    "erf": ("tl.erf({0})", _ATOM, (_SUM,)),
    "sin": ("tl.sin({0})", _ATOM, (_SUM,)),
    "cos": ("tl.cos({0})", _ATOM, (_SUM,)),
    "max": ("tl.maximum({0}, {1})", _ATOM, (_SUM, _SUM)),
    "min": ("tl.minimum({0}, {1})", _ATOM, (_SUM, _SUM)),
    "where": ("tl.where({0} > 0, {1}, {2})", _ATOM, (_SUM, _SUM, _SUM)),
}


def number(value: float) -> str:
    """A floating-point literal."""
    return repr(float(value)) if math.isfinite(value) else f'float("{float(value)}")'


def spell(body: Scalar, arguments: Sequence[str]) -> str:
    """`body` as Triton text; the arguments are names, indexed names, calls or literals."""
    return _render(body, arguments)[0]


def _render(body: Scalar, arguments: Sequence[str]) -> tuple[str, int]:
    if body.head == "arg":
        text = arguments[int(body.payload)]
        return text, _UNARY if text.startswith("-") else _ATOM
    if body.head == "const":
        return number(body.payload), _ATOM if body.payload >= 0 else _UNARY
    if body.head == "div" and body.args[0] == Scalar("const", payload=1.0) and body.args[1].head == "sqrt":
        return f"tl.rsqrt({spell(body.args[1].args[0], arguments)})", _ATOM
    if body.head == "pow":
        return _power(spell(body.args[0], arguments), body.args[1]), _PRODUCT
    text, strength, needed = SPELLING[body.head]
    parts: list[str] = []
    for argument, need in zip(body.args, needed, strict=True):
        part, have = _render(argument, arguments)
        parts.append(part if have >= need else f"({part})")
    return text.format(*parts), strength


def _power(base: str, exponent: Scalar) -> str:
    """`x ** e` by exp2 and log2, which Triton has; a whole exponent keeps the sign of a negative base."""
    value = exponent.payload
    if value != int(value):
        return f"tl.exp2({number(value)} * tl.log2({base}))"
    power = f"tl.exp2({number(value)} * tl.log2(tl.abs({base})))"
    return f"tl.where({base} < 0, -1.0, 1.0) * {power}" if value % 2 else f"1.0 * {power}"
