"""Scalar expressions over a handful of primitives: the bodies of the operator table's entries."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

# What every domain (floats, finite fields, abstract expressions, Triton text) must provide.
PRIMITIVES: dict[str, int] = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "neg": 1, "exp": 1, "log": 1, "log1p": 1, "sqrt": 1,
    "erf": 1, "sin": 1, "cos": 1, "max": 2, "min": 2, "pow": 2, "where": 3,
}  # fmt: skip
# What special function units compute: of a quotient its reciprocal, of the rest an exponential, a logarithm, a
# root or a sine.
SPECIAL = frozenset({"div", "exp", "log", "log1p", "sqrt", "erf", "sin", "cos", "pow"})
COMMUTATIVE = frozenset({"add", "mul", "max", "min"})


@dataclass(frozen=True)
class Scalar:
    """A scalar expression: an argument, a constant, or a primitive applied to expressions.

    `head` is "arg" (payload: index), "const" (payload: float), or a name of `PRIMITIVES`.
    """

    head: str
    args: tuple[Scalar, ...] = ()
    payload: float = 0

    def __add__(self, other: Scalar | float) -> Scalar:
        return Scalar("add", (self, as_scalar(other)))

    def __radd__(self, other: float) -> Scalar:
        return Scalar("add", (as_scalar(other), self))

    def __sub__(self, other: Scalar | float) -> Scalar:
        return Scalar("sub", (self, as_scalar(other)))

    def __rsub__(self, other: float) -> Scalar:
        return Scalar("sub", (as_scalar(other), self))

    def __mul__(self, other: Scalar | float) -> Scalar:
        return Scalar("mul", (self, as_scalar(other)))

    def __rmul__(self, other: float) -> Scalar:
        return Scalar("mul", (as_scalar(other), self))

    def __truediv__(self, other: Scalar | float) -> Scalar:
        return Scalar("div", (self, as_scalar(other)))

    def __rtruediv__(self, other: float) -> Scalar:
        return Scalar("div", (as_scalar(other), self))

    def __neg__(self) -> Scalar:
        return Scalar("neg", (self,))

    def primitives(self) -> list[str]:
        """Every primitive applied, innermost first, with repetition."""
        below = [p for a in self.args for p in a.primitives()]
        return below if self.head in ("arg", "const") else [*below, self.head]

    def special(self, numbers: Container[int] = ()) -> int:
        """How many primitives only the special function units do, where the arguments `numbers` are numbers.

        ptxas makes a quotient by a number a product.
        """
        below = sum(a.special(numbers) for a in self.args)
        if self.head == "div":
            by = self.args[1]
            if by.head == "const" or (by.head == "arg" and int(by.payload) in numbers):
                return below
        return below + (self.head in SPECIAL)


def as_scalar(x: Scalar | float) -> Scalar:
    """`x` itself, or the constant `x`."""
    return x if isinstance(x, Scalar) else Scalar("const", payload=float(x))


def arg(index: int) -> Scalar:
    """The operand number `index`."""
    return Scalar("arg", payload=index)


def apply(name: str, *args: Scalar | float) -> Scalar:
    """The primitive `name` on expressions or numbers."""
    return Scalar(name, tuple(map(as_scalar, args)))


def exp(x: Scalar) -> Scalar:
    """The primitive `exp`, on an expression; the functions below likewise."""
    return apply("exp", x)


def sqrt(x: Scalar) -> Scalar:
    """See `exp`."""
    return apply("sqrt", x)


def erf(x: Scalar) -> Scalar:
    """See `exp`."""
    return apply("erf", x)


def maximum(x: Scalar, y: Scalar | float) -> Scalar:
    """See `exp`."""
    return apply("max", x, y)


def minimum(x: Scalar, y: Scalar | float) -> Scalar:
    """See `exp`."""
    return apply("min", x, y)


def where(t: Scalar, x: Scalar | float, y: Scalar | float) -> Scalar:
    """`x` where t > 0, `y` elsewhere, whatever the other of them is."""
    return apply("where", t, x, y)


def evaluate(body: Scalar, arguments: Sequence[float | None]) -> float | None:
    """The value of `body` at these arguments, None being some finite number; None where it is not known."""
    if body.head == "arg":
        return arguments[int(body.payload)]
    if body.head == "const":
        return float(body.payload)
    parts = [evaluate(a, arguments) for a in body.args]
    if body.head == "where":
        return None if parts[0] is None else parts[1] if parts[0] > 0 else parts[2]
    if any(p is None for p in parts):
        lost = parts[0] == -math.inf or (body.head == "add" and parts[-1] == -math.inf)
        return -math.inf if lost and body.head in ("add", "sub") else None
    x, *rest = [p for p in parts if p is not None]
    try:
        result = {
            "add": lambda: x + rest[0],
            "sub": lambda: x - rest[0],
            "mul": lambda: x * rest[0],
            "div": lambda: x / rest[0],
            "neg": lambda: -x,
            "exp": lambda: math.exp(x),
            "log": lambda: math.log(x),
            "log1p": lambda: math.log1p(x),
            "sqrt": lambda: math.sqrt(x),
            "erf": lambda: math.erf(x),
            "sin": lambda: math.sin(x),
            "cos": lambda: math.cos(x),
            "max": lambda: max(x, rest[0]),
            "min": lambda: min(x, rest[0]),
            "pow": lambda: x ** rest[0],
        }[body.head]()
    except (ArithmeticError, ValueError):
        return None
    return float(result) if isinstance(result, float) and not math.isnan(result) else None
