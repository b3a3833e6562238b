"""A batch of a kernel's instances, run side by side: what each value holds, and which instances take part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from superopt.errors import UnsupportedProgram
from superopt.verify.domains import Array, Domain, FloatDomain, Tensor
from superopt.verify.infinities import Extended, Number, Numbers
from superopt.verify.ttir.lines import Lines
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.parser import Function
from superopt.verify.ttir.values import Descriptor, Held, Pointer, Truth, Whole, integers

Watch: TypeAlias = "Callable[[Batch, Array, Buffer | None, Array | None], None]"
"""Told what integers do to numbers and memory: lanes of a choice, or of an access, and the elements of that.

Integers that become numbers are told as lanes. Each array has the instances first, or 1 for all.
"""


class Batch:
    """One batch of instances; `active` are those that take part in the region being run."""

    def __init__(
        self,
        kernel: Function,
        grid: tuple[int, int, int],
        programs: Array,
        domain: Domain,
        watch: Watch | None = None,
        lines: Lines | None = None,
    ) -> None:
        self._watch, self.lines = watch, lines
        self.kernel, self.grid, self.programs, self.domain = kernel, grid, programs, domain
        self.numbers = domain.numbers if isinstance(domain, Extended) else Numbers(domain)
        self.env: dict[int, Held] = {}
        self.active = np.ones(len(programs), np.bool_)
        self.epoch = 0
        self.line = 0

    @property
    def where(self) -> str:
        """The kernel and the line being run, for errors."""
        return f"kernel '{self.kernel.name}', line {self.line} of its TTIR"

    def told(self, lanes: Array, buffer: Buffer | None = None, places: Array | None = None) -> None:
        """Tell who watches."""
        if self._watch is not None:
            self._watch(self, lanes, buffer, places)

    def compared(self, a: Array, b: Array) -> None:
        """Tell that a < b is about to decide something."""
        if self.lines is not None:
            self.lines.order(a, b)

    def unsupported(self, what: str) -> UnsupportedProgram:
        """The error to raise for what cannot be verified."""
        return UnsupportedProgram(f"{self.where}: expected an operation that can be verified, got {what}")

    def opened(self, held: Tensor) -> Number:
        """The numbers that memory holds."""
        return self.domain.open(held) if isinstance(self.domain, Extended) else Number(held)

    def closed(self, x: Number) -> Tensor:
        """The memory contents for defined numbers."""
        if isinstance(self.domain, Extended):
            return self.domain.close(replace(x, undefined=None))
        if x.infinite is None:
            return x.tensor
        if not isinstance(self.domain, FloatDomain):
            raise self.unsupported("a store of infinity")
        infinite = self.domain.tensor(x.infinite * np.inf)
        return self.domain.move(lambda a, b: np.where(x.infinite != 0, b, a), x.tensor, infinite)

    def moved(self, arrange: Callable[[Array], Array], value: int) -> Held:
        """A value with its elements rearranged alike for all instances."""
        x = self.env[value]
        if isinstance(x, Pointer):
            return Pointer(x.buffer, arrange(x.offsets))
        if isinstance(x, Descriptor):
            raise self.unsupported("an operation on a descriptor")
        if isinstance(x, Truth):
            return Truth(self.numbers.move(arrange, x.of), x.negated)
        if isinstance(x, Whole):
            return replace(x, of=self.numbers.move(arrange, x.of))
        return self.numbers.move(arrange, x) if isinstance(x, Number) else arrange(x)

    def merge(self, mask: Array, a: Held, b: Held) -> Held:
        """`a` where the mask is set, `b` elsewhere."""
        if self.lines is not None:
            self.lines.same(mask)
        if isinstance(a, Number) and isinstance(b, Number):
            self.told(mask)
            return self.numbers.select(mask, a, b)
        if isinstance(a, Pointer) and isinstance(b, Pointer):
            if a.buffer is not b.buffer:
                raise self.unsupported("a choice between pointers to two buffers")
            return Pointer(a.buffer, np.where(mask, a.offsets, b.offsets))
        if isinstance(a, Whole) and isinstance(b, Whole) and a.element == b.element:
            self.told(mask)
            return Whole(self.numbers.select(mask, a.of, b.of), a.element, a.truth and b.truth)
        return np.where(mask, integers(a), integers(b))
