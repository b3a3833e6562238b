"""Arithmetic on the integers of a Triton program, which are concrete: addresses, masks, counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.verify.domains import Array
from superopt.verify.ttir.parser import Operation
from superopt.verify.ttir.values import wrapped

_COMPARE: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater,
    "sge": np.greater_equal,
}  # fmt: skip
_INTEGER: Mapping[str, Callable[[Array, Array], Array]] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor, "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum, "arith.shli": np.left_shift, "arith.shrsi": np.right_shift,
}  # fmt: skip
_DIVISIONS = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui")


def is_integer(op: Operation) -> bool:
    """Whether `computed` knows the operation."""
    return op.name in _INTEGER or op.name in _DIVISIONS or op.name == "arith.cmpi"


def computed(op: Operation, a: Array, b: Array, where: str) -> Array:
    """A binary operation on integers, wrapped to its type.

    Raises IllegalProgram for a division by zero, UnsupportedProgram for unsigned ones of negative numbers.
    """
    if op.name == "arith.cmpi":
        predicate = op.words[0]
        signed = "s" + predicate[1:]
        if predicate in _COMPARE:
            return _COMPARE[predicate](a, b)
        if predicate[0] == "u" and signed in _COMPARE and (a >= 0).all() and (b >= 0).all():
            return _COMPARE[signed](a, b)
        raise _unsupported(where, f"a comparison '{predicate}'")
    if op.name in _DIVISIONS:
        return _divided(op, a, b, where)
    with np.errstate(over="ignore"):
        return wrapped(_INTEGER[op.name](a, b), op.result_type)


def _divided(op: Operation, a: Array, b: Array, where: str) -> Array:
    if (b == 0).any():
        raise IllegalProgram(f"{where}: expected a divisor, got zero")
    if op.name.endswith("ui") and ((a < 0).any() or (b < 0).any()):
        raise _unsupported(where, "an unsigned division of a negative number")
    quotient = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))  # towards zero
    return wrapped(quotient if "div" in op.name else a - quotient * b, op.result_type)


def _unsupported(where: str, what: str) -> UnsupportedProgram:
    return UnsupportedProgram(f"{where}: expected an operation that can be verified, got {what}")
