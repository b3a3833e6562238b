"""Values of a Triton program over all instances at once.

Every array has the program instances as its first dimension and then the tile's; a dimension has extent 1
where the value does not vary along it. Integers and pointers are concrete, floating-point numbers belong to a
domain, with infinities beside it (`superopt.verify.infinities`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from superopt.errors import UnsupportedProgram
from superopt.verify.degrees import CONSTANT
from superopt.verify.domains import Array, Domain, Shape, Tensor
from superopt.verify.infinities import Number
from superopt.verify.ttir.memory import Buffer


@dataclass(frozen=True)
class Pointer:
    """Addresses within one buffer, in elements."""

    buffer: Buffer
    offsets: Array


Held: TypeAlias = "Array | Pointer | Number"


class ShapeDomain(Domain):
    """No numbers at all: only shapes, so that integers (addresses and masks) can be followed alone."""

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
