"""A lowered program with other numbers of parts: how many blocks share a reduction that a later kernel completes.

    K[2, 64, 64, 128] -> 64 blocks, each 64 keys -> parts[2, 64, 8, 128] -> summed over 64
    K[2, 32, 128, 128] -> 32 blocks, each 128 keys -> parts[2, 32, 8, 128] -> summed over 32

An axis of an input that a grid divides into parts has a factor for the parts, and factors within one
(`superopt.verify.axes`). Where a value between two kernels has the first and not the others, these were reduced,
and the parts are joined later: split-K, or FlashDecoding's keys. The number of parts may change together with
their size, so that inputs and outputs keep their extents. A result is a guess that the verifier has to confirm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from superopt.errors import SuperoptError
from superopt.program import KernelGraph, Loop, TileProgram, Value
from superopt.spec import check_kernel
from superopt.transforms.schedule.triton_limits import SMALLEST_DOT
from superopt.verify.axes import Factor, Irreducible, leaves
from superopt.verify.extents import Axes
from superopt.verify.reduce import resized


@dataclass(frozen=True)
class Split:
    """A number of parts that may change: currently `parts`, of `total` points in all.

    `inner` has the factors within a part once for every axis that is divided: kernels that compute side by side
    share the parts, not what these consist of.
    """

    name: str
    parts: int
    total: int
    factor: Factor
    inner: tuple[tuple[Factor, ...], ...]

    def choices(self) -> list[int]:
        """The current number, and powers of two from 2 on that leave each part what a matrix product takes."""
        found = {self.parts}
        parts = 2
        while parts * SMALLEST_DOT <= self.total:
            if self.total % parts == 0:
                found.add(parts)
            parts *= 2
        return sorted(found)


class Splits:
    """The splits of a lowered program; `apply` gives it another number of parts."""

    def __init__(self, lowered: KernelGraph) -> None:
        self.lowered = lowered
        self.axes = Axes()
        self.found: dict[str, Split] = {}
        try:
            self.axes.graph(lowered)
        except (Irreducible, SuperoptError):
            return
        for factor, values in self._between_kernels().items():
            inner = () if factor.fixed else self._within(factor)
            held = {f for v in values for d in self.axes.of(v) for f in leaves(d)}
            if not inner or held.intersection(f for part in inner for f in part):
                continue
            name = "split" if not self.found else f"split_{len(self.found)}"
            total = factor.size * math.prod(f.size for f in inner[0])
            self.found[name] = Split(name, factor.size, total, factor, inner)

    def _between_kernels(self) -> dict[Factor, list[Value]]:
        """The values between kernels, in order, by their factors for the parts of an axis that a grid divides."""
        found: dict[Factor, list[Value]] = {}
        used = {v for n in self.lowered.nodes for v in n.operands}
        for node in self.lowered.nodes:
            if isinstance(node.body, TileProgram):
                grid = [s for s in node.body.statements() if isinstance(s, Loop) and s.parallel]
                parallel = {f for loop in grid for f in leaves(self.axes.trips[loop.var])}
                for value in node.results:
                    held = [f for d in self.axes.of(value) for f in leaves(d) if value in used]
                    for factor in held:
                        if factor in parallel:
                            found.setdefault(factor, []).append(value)
        return found

    def _within(self, factor: Factor) -> tuple[tuple[Factor, ...], ...]:
        """The factors within a part, outermost first: what follows it in an input, for all inputs that have it.

        None where a part is not as long in all of them.
        """
        lists = dict.fromkeys(
            tuple(dims[dims.index(factor) + 1 :])
            for v in self.lowered.inputs
            for dims in map(leaves, self.axes.of(v))
            if factor in dims
        )
        lengths = {math.prod(f.size for f in inner) for inner in lists}
        usable = len(lengths) == 1 and all(inner and not any(f.fixed for f in inner) for inner in lists)
        return tuple(lists) if usable else ()

    def apply(self, name: str, parts: int) -> KernelGraph | None:
        """The program with this many parts; None where that is impossible."""
        split = self.found.get(name)
        if split is None or parts < 1 or split.total % parts:
            return None
        if parts == split.parts:
            return self.lowered
        sizes = {split.factor: parts}
        common = math.gcd(parts, split.parts)
        for inner in split.inner:
            grow, shrink = split.parts // common, parts // common  # factors for the size of a part
            for number, factor in enumerate(inner):
                size = factor.size * grow if number == 0 else factor.size
                divided = math.gcd(size, shrink)
                sizes[factor], shrink = size // divided, shrink // divided
            if shrink != 1:
                return None

        def extent(factors: Sequence[Factor]) -> int:
            return math.prod(sizes.get(f, f.size) for f in leaves(factors))

        made = resized(self.lowered, self.axes, extent)
        if _shapes(made) != _shapes(self.lowered):
            return None
        try:
            check_kernel(made)
        except SuperoptError:
            return None
        return made

    def variants(self) -> Iterator[tuple[dict[str, int], KernelGraph]]:
        """The program as it is, then with every other number of parts, one split at a time."""
        now = {s.name: s.parts for s in self.found.values()}
        yield now, self.lowered
        for split in self.found.values():
            for parts in split.choices():
                if parts != split.parts and (made := self.apply(split.name, parts)) is not None:
                    yield {**now, split.name: parts}, made


def _shapes(graph: KernelGraph) -> list[tuple[int, ...]]:
    ends: list[Value] = [*graph.inputs, *graph.outputs]
    return [v.shape for v in ends]
