"""What a program can be evaluated over: floats here, finite fields in `superopt.verify.fields`.

A domain provides the primitives of the operator table on tensors; the evaluator derives everything else. A tensor
has one or more planes, numpy arrays of one shape (floats have one; a field value has its two components), and
moving data moves the elements of every plane alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
from typing_extensions import override

from superopt.errors import UnsupportedProgram
from superopt.program import COMPUTE_DTYPES
from superopt.verify.degrees import CONSTANT, Degree

Array: TypeAlias = "np.ndarray[Any, Any]"
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """Values of one domain: planes of one shape.

    In a field `degree` bounds every element's degree; among floats a non-empty `dtype` says that every
    element is already a number of that dtype, so that rounding to it again can be skipped.
    """

    planes: tuple[Array, ...]
    degree: Degree = CONSTANT
    dtype: str = ""

    @property
    def shape(self) -> Shape:
        """Shape of every plane."""
        return self.planes[0].shape


class Domain(ABC):
    """The primitives of `scalars.PRIMITIVES`, sums of products, reductions and opaque functions."""

    @abstractmethod
    def constant(self, value: float | Array) -> Tensor:
        """The exact number (rank 0) or numbers `value`."""

    @abstractmethod
    def apply(self, primitive: str, *operands: Tensor) -> Tensor:
        """A primitive, element by element; operands broadcast as in numpy."""

    @abstractmethod
    def contract(self, a: Tensor, b: Tensor) -> Tensor:
        """The batched matrix product of shapes (b, m, k) and (b, k, n)."""

    @abstractmethod
    def reduce(self, combiner: str, a: Tensor) -> Tensor:
        """ "add", "max" or "min" over the last dimension."""

    @abstractmethod
    def opaque(self, key: str, operands: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        """The results, of the given shapes, of an opaque operation named `key`."""

    @abstractmethod
    def unknown(self, name: object, shape: Shape) -> Tensor:
        """Arbitrary numbers, which no result may depend on."""

    def aside(self) -> AbstractContextManager[None]:
        """Within it, no output needs what is computed: it may be undefined."""
        return nullcontext()

    def stored(self, a: Tensor, dtype: str) -> Tensor:
        """`a` after a trip through memory as `dtype`; unchanged in every exact domain."""
        return a

    def truths_given(self, a: Tensor) -> None:
        """Note that every element is a truth value: 0 or 1, whatever stands for it. Concrete numbers say so."""
        return

    @overload
    def move(self, arrange: Callable[[Array], Array], a: Tensor, /) -> Tensor: ...
    @overload
    def move(self, arrange: Callable[[Array, Array], Array], a: Tensor, b: Tensor, /) -> Tensor: ...
    @overload
    def move(self, arrange: Callable[..., Array], /, *tensors: Tensor) -> Tensor: ...
    def move(self, arrange: Callable[..., Array], /, *tensors: Tensor) -> Tensor:
        """`arrange` applied to each plane: it may only place and copy elements."""
        planes = zip(*(t.planes for t in tensors), strict=False)
        degree = tensors[0].degree
        for t in tensors[1:]:
            degree = degree.either(t.degree)
        dtypes = {t.dtype for t in tensors}
        return Tensor(
            tuple(arrange(*plane) for plane in planes), degree, dtypes.pop() if len(dtypes) == 1 else ""
        )


def _erf(x: Array) -> Array:
    ufunc: Any = np.frompyfunc(math.erf, 1, 1)
    return np.asarray(ufunc(x), x.dtype)


def _where(t: Array, x: Array, y: Array) -> Array:
    return np.where(t > 0, x, y)


FLOAT_PRIMITIVES: Mapping[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "erf": _erf, "sin": np.sin,
    "cos": np.cos, "max": np.maximum, "min": np.minimum, "pow": np.power,
    "where": _where,
}  # fmt: skip
_FLOAT_REDUCTIONS: Mapping[str, Callable[..., Array]] = {"add": np.sum, "max": np.max, "min": np.min}

# Elements converted at a time.
_PART = 1 << 18

Extern: TypeAlias = Callable[[str, Sequence[Array], Sequence[Shape]], Sequence[Array]]


class FloatDomain(Domain):
    """IEEE floats: fp64 as the reference, or (`faithful`) the arithmetic of a GPU kernel.

    Faithful means: fp32 arithmetic, and rounding to the value's own dtype wherever a lowered program stores it
    to device memory, casts it, or feeds it to a matrix product. `extern` computes opaque operations; without
    it, they raise UnsupportedProgram.
    """

    def __init__(self, *, faithful: bool = False, extern: Extern | None = None) -> None:
        self.faithful = faithful
        self.extern = extern
        self.dtype: Any = np.float32 if faithful else np.float64

    def tensor(self, value: Array, dtype: str = "") -> Tensor:
        """An input: `value` in the precision of this domain; where `dtype` is given, all are numbers of it.

        Those are kept as they are, so that a large weight need not be held in fp64: arithmetic converts them.
        """
        return Tensor((np.asarray(value, None if dtype else self.dtype),), dtype=dtype)

    @override
    def constant(self, value: float | Array) -> Tensor:
        return self.tensor(np.asarray(value))

    @override
    def apply(self, primitive: str, *operands: Tensor) -> Tensor:
        with np.errstate(all="ignore"):
            return Tensor((FLOAT_PRIMITIVES[primitive](*map(self._numbers, operands)),))

    @override
    def contract(self, a: Tensor, b: Tensor) -> Tensor:
        with np.errstate(all="ignore"):
            return Tensor((self._product(a.planes[0], b.planes[0]),))

    def _product(self, a: Array, b: Array) -> Array:
        """The product in this domain's precision; a large operand of another one is converted in parts."""
        if a.size > b.size:
            return self._product(b.transpose(0, 2, 1), a.transpose(0, 2, 1)).transpose(0, 2, 1)
        a = np.asarray(a, self.dtype)
        if b.dtype == self.dtype or b.size <= _PART:
            return np.matmul(a, np.asarray(b, self.dtype))
        out = np.empty((a.shape[0], a.shape[1], b.shape[2]), self.dtype)
        width = max(1, _PART // max(1, b.shape[0] * b.shape[1]))
        for start in range(0, b.shape[2], width):
            part = slice(start, start + width)
            np.matmul(a, np.asarray(b[:, :, part], self.dtype), out=out[:, :, part])
        return out

    def _numbers(self, a: Tensor) -> Array:
        return np.asarray(a.planes[0], self.dtype)

    @override
    def reduce(self, combiner: str, a: Tensor) -> Tensor:
        with np.errstate(all="ignore"):
            return Tensor((_FLOAT_REDUCTIONS[combiner](self._numbers(a), axis=-1),))

    @override
    def opaque(self, key: str, operands: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        if self.extern is None:
            raise UnsupportedProgram(f"expected operators of the table, got the opaque '{key}'")
        return [self.tensor(x) for x in self.extern(key, [t.planes[0] for t in operands], shapes)]

    @override
    def unknown(self, name: object, shape: Shape) -> Tensor:
        return self.tensor(np.full(shape, np.nan))

    @override
    def stored(self, a: Tensor, dtype: str) -> Tensor:
        if a.dtype == dtype:
            return a
        if dtype in COMPUTE_DTYPES and a.planes[0].dtype.kind != "f":
            a = Tensor((self._numbers(a),))  # integers become numbers
        if not self.faithful:
            return a
        return Tensor((round_to(a.planes[0], dtype),), dtype=dtype)


def round_to(x: Array, dtype: str) -> Array:
    """fp32 numbers rounded to the nearest of `dtype` (ties to even), still as fp32."""
    if dtype not in ("f16", "bf16"):
        return x
    if x.size <= _PART or not x.flags.c_contiguous:
        return _rounded(x, dtype)
    out = np.empty_like(x, np.float32)
    flat, rounded = x.reshape(-1), out.reshape(-1)
    for start in range(0, x.size, _PART):  # parts that stay in the cache
        rounded[start : start + _PART] = _rounded(flat[start : start + _PART], dtype)
    return out


def _rounded(x: Array, dtype: str) -> Array:
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), x, rounded.view(np.float32))


def exact_residues(values: Array, modulus: int, pair: Callable[[int, int], int]) -> Array:
    """Each finite float as the residue of its exact rational value; `pair(m, e)` gives m * 2^e.

    Each number once: a mask has millions of elements, and two numbers.
    """
    numbers, which = np.unique(np.asarray(values, np.float64), return_inverse=True)
    mantissa, exponent = np.frexp(numbers)
    scaled = (mantissa * 2.0**53).astype(np.int64)
    pairs = zip(scaled.tolist(), exponent.tolist(), strict=True)
    residues = np.array([pair(m, e - 53) % modulus for m, e in pairs], np.uint64)
    return residues[which].reshape(np.shape(values))
