"""Values of a Triton program over all instances at once.

Every array has the program instances as its first dimension and then the tile's; a dimension has extent 1
where the value does not vary along it. Integers and pointers are concrete, floating-point numbers belong to a
domain, with infinities alongside (`superopt.verify.infinities`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.verify.degrees import CONSTANT
from superopt.verify.domains import Array, Domain, Shape, Tensor
from superopt.verify.infinities import Number
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.parser import INTEGERS, TtirType


@dataclass(frozen=True)
class Pointer:
    """Addresses within one buffer, in elements."""

    buffer: Buffer
    offsets: Array


@dataclass(frozen=True)
class Descriptor:
    """A tensor in memory, and the box of it that a load takes; extents and strides in elements, by instance."""

    base: Pointer
    shape: tuple[Array, ...]
    strides: tuple[Array, ...]
    box: Shape


@dataclass(frozen=True)
class Truth:
    """A comparison whose outcome is not known: whether a number is positive, or whether it is not."""

    of: Number
    negated: bool = False

    @property
    def shape(self) -> Shape:
        """Shape, with the instances first."""
        return self.of.shape


@dataclass(frozen=True)
class Whole:
    """Integers of `element` that were loaded: data, which may become numbers and are nothing else.

    `truth` says that they are zeros and ones.
    """

    of: Number
    element: str
    truth: bool

    @property
    def shape(self) -> Shape:
        """Shape, with the instances first."""
        return self.of.shape


Held: TypeAlias = "Array | Pointer | Number | Descriptor | Truth | Whole"


class ShapeDomain(Domain):
    """Only shapes, no numbers, so that integers (addresses and masks) can be evaluated alone."""

    def shaped(self, shape: Shape) -> Tensor:
        """A tensor of that shape."""
        return _blank(shape)

    def constant(self, value: float | Array) -> Tensor:
        """Its shape."""
        return _blank(np.shape(value))

    def apply(self, primitive: str, *operands: Tensor) -> Tensor:
        """The broadcast shape."""
        return _blank(np.broadcast_shapes(*(t.shape for t in operands)))

    def contract(self, a: Tensor, b: Tensor) -> Tensor:
        """The product's shape."""
        return _blank((a.shape[0], a.shape[1], b.shape[2]))

    def reduce(self, combiner: str, a: Tensor) -> Tensor:
        """All dimensions but the last."""
        return _blank(a.shape[:-1])

    def opaque(self, key: str, operands: object, shapes: object) -> list[Tensor]:
        """Raises UnsupportedProgram."""
        raise UnsupportedProgram(f"expected Triton kernels only, got the opaque '{key}'")

    def unknown(self, name: object, shape: Shape) -> Tensor:
        """As `shaped`."""
        return _blank(shape)


def _blank(shape: Shape) -> Tensor:
    return Tensor((np.broadcast_to(np.uint8(0), shape),), CONSTANT)


def moved(rank: int, axis: int) -> list[int]:
    """The permutation that puts the last dimension at `axis`."""
    order = list(range(rank - 1))
    order.insert(axis, rank - 1)
    return order


def joined(x: Array, y: Array) -> Array:
    """One after the other along the last dimension; the others may have extent 1 in either."""
    common = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    parts = [np.broadcast_to(a, (*common, a.shape[-1])) for a in (x, y)]
    return np.concatenate(parts, axis=-1)


def number(x: Held) -> Number:
    """A value that must be floating-point."""
    if not isinstance(x, Number):
        raise IllegalProgram("expected a floating-point operand, got another")
    return x


def integers(x: Held) -> Array:
    """A value that must be integers."""
    if isinstance(x, Truth):
        raise UnsupportedProgram("expected a comparison that is only selected by, got another use of one")
    if isinstance(x, Whole):
        raise UnsupportedProgram("expected loaded integers that become numbers, got another use of them")
    if isinstance(x, (Number, Pointer, Descriptor)):
        raise IllegalProgram("expected an integer operand, got another")
    return x


def wrapped(x: Array, kind: TtirType) -> Array:
    """Integers wrapped to the bits of `kind`, in two's complement."""
    if kind.element == "i1":
        return (x & 1).astype(np.bool_) if x.dtype != np.bool_ else x
    bits = INTEGERS[kind.element]
    if bits == 64:
        return x
    half = 1 << (bits - 1)
    if x.size and (x.max() >= half or x.min() < -half):
        return ((x + half) & ((1 << bits) - 1)) - half
    return x


def float_literal(literal: str, element: str) -> float:
    """A literal as MLIR prints it: decimal, or the bits in hexadecimal."""
    if not literal.startswith("0x"):
        return float(literal)
    bits = int(literal, 16)
    if element == "bf16":
        bits, element = bits << 16, "f32"
    integer: Any = {"f16": np.uint16, "f32": np.uint32, "f64": np.uint64}[element]
    kind: Any = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[element]
    return float(np.asarray([bits], integer).view(kind)[0])
