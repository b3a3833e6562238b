"""What instances of TTIR stored at a point of the fields, for the check of the PTX in the same process.

A kernel that is checked by itself runs on operands that are drawn by the point alone (`flat_operands`), and so
does its PTX. So both checks may compare at one point: the probabilities that either misses a difference add up,
as they do with two points. The primes have to depend on the PTX as well (`superopt.verify.primes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from superopt.verify.domains import Array
from superopt.verify.fields import Seen
from superopt.verify.infinities import Extended
from superopt.verify.primes import Primes
from superopt.verify.ttir.memory import Buffer

if TYPE_CHECKING:
    from superopt.program import Node
    from superopt.verify.ttir.check import KernelText

Stores: TypeAlias = Sequence[tuple[Array, Array]]
"""By buffer, the places that an instance stores, in order, and their residues."""


def stores_of(instance: int, buffers: Sequence[Buffer]) -> Stores:
    """What an instance stored in the last launch on `buffers`."""
    none = np.zeros(0, np.int64)
    found = [b.places_of(instance) if b.writable else none for b in buffers]
    return [
        (at, b.contents.planes[0][at] if b.contents is not None and at.size else none)
        for b, at in zip(buffers, found, strict=True)
    ]


@dataclass(frozen=True)
class Evaluated:
    """Instances of one kernel that ran at a point, and one of them that was drawn at random.

    `seen` is what they assumed of the operators.
    """

    point: object
    primes: Primes
    lattice: str
    seen: Seen
    stores: Mapping[int, Stores]
    drawn: int

    def at(self, domain: Extended) -> bool:
        """Whether `domain` is this point."""
        field = domain.field
        primes = field.fields[0].modulus, field.fields[1].modulus
        return (field.seed, primes, field.lattice) == (self.point, self.primes, self.lattice)


@dataclass(frozen=True)
class Ran:
    """The instances of kernels that were checked by themselves; the primes of all depend on the texts `below`."""

    below: frozenset[str]
    kernels: dict[tuple[Node, KernelText], Evaluated] = field(
        default_factory=dict["tuple[Node, KernelText]", Evaluated]
    )

    def of(self, node: Node, kernel: KernelText, ptx: str) -> Evaluated | None:
        """Those of a node's kernel, where they may be compared with this PTX."""
        return self.kernels.get((node, kernel)) if ptx in self.below else None
