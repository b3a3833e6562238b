"""An extent that is known only when a program runs: a number that keeps the expression that it stands for.

A program for a range of extents is written from the program at one of them, in which such numbers stand. What the
writer adds, multiplies and prints then says how it follows from the extents; what it compares are the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, TypeAlias

Expression: TypeAlias = "int | str | tuple[str, Expression, Expression]"
"""A number, the name of an extent, or an operator with its operands."""


class Extent(int):
    """An `int` computed from extents by sums, products and whole quotients; others give plain numbers."""

    expression: Expression

    def __new__(cls, value: int, expression: Expression) -> Extent:
        """The number `value`, which stands for the expression."""
        made = super().__new__(cls, value)
        made.expression = expression
        return made

    def __str__(self) -> str:
        return _text(self.expression)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[Extent], tuple[int, Expression]]:
        return Extent, (int(self), self.expression)

    def __add__(self, other: int) -> int:
        if not isinstance(other, Integral):  # such as a float, or what is repeated so often
            return NotImplemented
        return self if is_number(other, 0) else _made("+", self, other, int(self) + int(other))

    def __sub__(self, other: int) -> int:
        if not isinstance(other, Integral):
            return NotImplemented
        return self if is_number(other, 0) else _made("-", self, other, int(self) - int(other))

    def __mul__(self, other: int) -> int:
        if not isinstance(other, Integral):
            return NotImplemented
        if is_number(other, 0):
            return 0
        return self if is_number(other, 1) else _made("*", self, other, int(self) * int(other))

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: int) -> int:
        if not isinstance(other, Integral):
            return NotImplemented
        if is_number(other, 1):
            return self
        match self.expression:
            case ("*", whole, number) if is_number(other, number):
                return Extent(int(self) // int(other), whole)
            case _:
                return _made("//", self, other, int(self) // int(other))


def is_number(value: int, number: object) -> bool:
    """Whether `value` is this number at every extent."""
    return value == number and not isinstance(value, Extent)


def at(value: Any, extents: Mapping[str, Any]) -> Any:
    """`value` where extents are these, by name; they may be symbolic numbers of PyTorch."""
    return _value(value.expression, extents) if isinstance(value, Extent) else value


def multiple_of(value: Any) -> tuple[str, int] | None:
    """The extent that `value` is a multiple of, by name, and what multiple; None for anything else."""
    match value.expression if isinstance(value, Extent) else value:
        case str(name):
            return name, 1
        case ("*", str(name), int(times)):
            return name, times
        case _:
            return None


def tiles_of(extent: int, tile: int) -> int:
    """How many tiles cover an extent."""
    return (extent + (tile - 1)) // tile


def _made(operator: str, a: int, b: int, value: int) -> Extent:
    x, y = (n.expression if isinstance(n, Extent) else int(n) for n in (a, b))
    return Extent(value, (operator, x, y))


def _text(expression: Expression) -> str:
    if not isinstance(expression, tuple):
        return str(expression)
    operator, a, b = expression
    return f"({_text(a)} {operator} {_text(b)})"


def _value(expression: Expression, extents: Mapping[str, Any]) -> Any:
    if not isinstance(expression, tuple):
        return extents[expression] if isinstance(expression, str) else expression
    operator, a, b = expression
    x, y = _value(a, extents), _value(b, extents)
    match operator:
        case "+":
            return x + y
        case "-":
            return x - y
        case "*":
            return x * y
        case _:
            return x // y
