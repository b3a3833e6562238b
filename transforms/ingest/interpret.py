"""Numpy evaluation of the scalar operations in bodies of linalg operations.

Used on whole arrays: to fold what depends only on constants and indices (masks, ranges), and to execute opaque
linalg operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from superopt.transforms.ingest.builder import NotExpressible, round_to

Array: TypeAlias = "np.ndarray[Any, Any]"

NUMPY_DTYPES: dict[str, Any] = {
    "f64": np.float64, "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "index": np.int64,
}  # fmt: skip

_erf = np.vectorize(math.erf, otypes=[np.float64])


_UNSIGNED = {np.dtype(np.bool_): np.uint8, **{np.dtype(f"i{n}"): np.dtype(f"u{n}") for n in (1, 2, 4, 8)}}


def _signed(x: Array) -> Array:
    """Integers as `arith` reads them with a sign, where the one bit of a true i1 is -1; widened, so that only the
    result wraps around."""
    return -x.astype(np.int64) if x.dtype == np.bool_ else x.astype(np.int64)


def _unsigned(x: Array) -> Array:
    """The same bits without a sign."""
    return x.astype(_UNSIGNED[x.dtype])


def _same(x: Array) -> Array:
    return x


def _reciprocal_root(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _half_away(x: Array) -> Array:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) < 0.5, whole, whole + np.copysign(1.0, x))


def _truncated(a: Array, b: Array) -> Array:
    """Without absolute values: the least integer lacks one."""
    down = np.floor_divide(a, b)
    return down + ((a < 0) != (b < 0)) * (down * b != a)


def _remainder(a: Array, b: Array) -> Array:
    return a - _truncated(a, b) * b


def _divide_up(a: Array, b: Array) -> Array:
    return np.floor_divide(a, b) + (np.remainder(a, b) != 0)


BINARY: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.maximumf": np.maximum, "arith.minimumf": np.minimum, "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin, "arith.remf": np.fmod, "math.powf": np.power, "math.fpowi": np.power,
    "math.atan2": np.arctan2, "math.copysign": np.copysign,
}  # fmt: skip

# Operations on integers, by how they read their operands.
_SIGNED: dict[str, Callable[..., Any]] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor, "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum, "arith.divsi": _truncated, "arith.remsi": _remainder,
    "arith.floordivsi": np.floor_divide, "arith.ceildivsi": _divide_up, "arith.shrsi": np.right_shift,
    "arith.shli": np.left_shift,
    "arith.sitofp": _same, "arith.extsi": _same, "arith.trunci": _same, "arith.index_cast": _same,
    "math.absi": np.abs,
}  # fmt: skip
_WITHOUT_SIGN: dict[str, Callable[..., Any]] = {
    "arith.maxui": np.maximum, "arith.minui": np.minimum, "arith.divui": np.floor_divide,
    "arith.remui": np.remainder, "arith.ceildivui": _divide_up, "arith.shrui": np.right_shift,
    "arith.uitofp": _same, "arith.extui": _same, "arith.index_castui": _same,
}  # fmt: skip

UNARY: dict[str, Callable[..., Any]] = {
    "arith.negf": np.negative, "math.exp": np.exp, "math.exp2": np.exp2, "math.expm1": np.expm1,
    "math.log": np.log, "math.log2": np.log2, "math.log10": np.log10, "math.log1p": np.log1p,
    "math.sqrt": np.sqrt, "math.rsqrt": _reciprocal_root, "math.erf": _erf, "math.tanh": np.tanh,
    "math.sin": np.sin, "math.cos": np.cos, "math.absf": np.abs, "math.ceil": np.ceil,
    "math.floor": np.floor, "math.round": _half_away, "math.roundeven": np.rint, "math.trunc": np.trunc,
    "arith.extf": _same, "arith.truncf": _same, "arith.fptosi": np.trunc, "arith.fptoui": np.trunc,
}  # fmt: skip

# arith.cmpf and arith.cmpi by the number of their predicate attribute.
FLOAT_PREDICATES = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule",
                    "une", "uno", "true")  # fmt: skip
_INT_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip


def to_dtype(array: Array, dtype: str) -> Array:
    """`array` as numbers of an MLIR element type; narrow floats are float64 arrays of rounded numbers.

    Integers wrap around; truth values keep the last bit.
    """
    if dtype == "i1" and np.asarray(array).dtype != np.bool_:
        return (np.asarray(array).astype(np.int64) & 1).astype(np.bool_)
    if dtype in NUMPY_DTYPES:
        return np.asarray(array).astype(NUMPY_DTYPES[dtype])
    return round_to(dtype, array)


def predicate(operation: Any) -> str:
    """The predicate of a comparison, as MLIR spells it."""
    number = int(operation.attributes["predicate"].value)
    return (FLOAT_PREDICATES if operation.name == "arith.cmpf" else _INT_PREDICATES)[number]


def compare(name: str, kind: str, a: Array, b: Array) -> Array:
    """The comparison `kind` of `arith.cmpf` or `arith.cmpi` on arrays."""
    if kind in ("true", "false"):
        return np.full(np.broadcast_shapes(a.shape, b.shape), kind == "true")
    unordered = np.isnan(a) | np.isnan(b) if name == "arith.cmpf" else np.zeros((), np.bool_)
    if kind in ("ord", "uno"):
        return ~unordered if kind == "ord" else unordered
    if name == "arith.cmpi":
        read = _unsigned if kind[0] == "u" else _signed
        return _COMPARE[kind[-2:]](read(a), read(b))
    result = _COMPARE[kind[1:]](a, b)
    return result & ~unordered if kind[0] == "o" else result | unordered


def check_rounding(operation: Any) -> None:
    """Raise NotExpressible where an operation does not round to the nearest, ties to even."""
    if "roundingmode" in operation.attributes and (mode := int(operation.attributes["roundingmode"].value)):
        raise NotExpressible(f"'{operation.name}' with the rounding mode number {mode}")


def scalar_operation(operation: Any, args: Sequence[Array]) -> Array:
    """The result of one arith or math operation on arrays; raises NotExpressible for one it does not know."""
    name, result = operation.name, operation.results[0].type
    dtype = str(getattr(result, "element_type", result))
    check_rounding(operation)
    with np.errstate(all="ignore"):
        if name in ("arith.cmpf", "arith.cmpi"):
            return np.asarray(compare(name, predicate(operation), *args))
        if name == "arith.select":
            return to_dtype(np.where(*args), dtype)
        if name == "math.fma":
            return to_dtype(args[0] * args[1] + args[2], dtype)
        if name in _SIGNED:
            return to_dtype(_SIGNED[name](*map(_signed, args)), dtype)
        if name in _WITHOUT_SIGN:
            return to_dtype(_WITHOUT_SIGN[name](*map(_unsigned, args)), dtype)
        function = UNARY.get(name) if len(args) == 1 else BINARY.get(name)
        if function is None:
            raise NotExpressible(f"the scalar operation '{name}'")
        if name in ("math.powf", "math.fpowi"):
            args = [np.asarray(args[0], np.float64), np.asarray(args[1], np.float64)]
        return to_dtype(function(*args), dtype)
