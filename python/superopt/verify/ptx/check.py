"""Checks the PTX of kernels against their TTIR, which was checked against the program.

Some blocks of every kernel run over the fields, from the text that ptxas gets: each must store exactly the
elements that the TTIR's instance stores, and the same residues, at one random point. Each must also be free of
races under every schedule, and never touch what is still being copied or multiplied.

The blocks are those at corners of the grid, where offsets and tails go wrong, and a random other.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from superopt.errors import IllegalProgram, NotEquivalent, UnsupportedProgram
from superopt.program import KernelGraph, Node, TileProgram
from superopt.verify.hashing import canonical_text
from superopt.verify.infinities import Extended
from superopt.verify.primes import Primes, drawn
from superopt.verify.ptx.decode import Decoded, decode
from superopt.verify.ptx.grid import Grid, Instances
from superopt.verify.ptx.launch import MOST_SHARED, Launch
from superopt.verify.ptx.parser import parse
from superopt.verify.ptx.record import PtxKernelRecord, PtxRecord
from superopt.verify.ttir.check import ImageTriton, KernelText, at_some_point, flat_operands
from superopt.verify.ttir.evaluate import launch
from superopt.verify.ttir.launch_memory import launch_buffers
from superopt.verify.ttir.memory import Buffer

# Random numbers for a buffer where only addresses matter: large ones hold them again and again.
MOST_RANDOM = 1 << 16


@dataclass(frozen=True)
class PtxText:
    """A kernel's PTX as data, and the bytes of shared memory of a block."""

    ptx: str
    shared_bytes: int = MOST_SHARED


Argument: TypeAlias = tuple[str, int, str, bool]
"""A kernel's argument: its name, how many elements it has, their dtype, whether the kernel may store there."""


def first_block(text: PtxText, grid: tuple[int, int, int], arguments: Sequence[Argument]) -> Launch:
    """A kernel whose first block has run, on random numbers in all of its arguments.

    Raises IllegalProgram and UnsupportedProgram as `Launch.run`.
    """
    field = ImageTriton("order", lattice="order")
    buffers = [Buffer(name, elements, dtype, writable) for name, elements, dtype, writable in arguments]
    for buffer in buffers:
        buffer.contents = field.random(buffer.name, (min(buffer.size, MOST_RANDOM),))
    decoded = decode(parse(text.ptx, "kernel.ptx"))
    launch = Launch(decoded, grid, buffers, field, text.shared_bytes, repeating=True)
    launch.run(0)
    return launch


def order_fault(text: PtxText, grid: tuple[int, int, int], arguments: Sequence[Argument]) -> str:
    """Why the first block of a kernel is illegal; empty where it is not, or where that cannot be decided."""
    try:
        first_block(text, grid, arguments)
    except UnsupportedProgram:
        return ""
    except IllegalProgram as error:
        return error.message
    return ""


def verify_ptx(
    lowered: KernelGraph, kernels: Sequence[KernelText], texts: Sequence[PtxText], *, seed: int = 0
) -> PtxRecord:
    """Check the PTX of `kernels`, one for each `tiled` node of `lowered` in order, as the module describes.

    Raises NotEquivalent where a kernel stores something else than its TTIR, IllegalProgram where one accesses
    memory illegally or in no order, BadInput for text that is not PTX. What cannot be verified is recorded by
    kernel.
    """
    nodes = [n for n in lowered.nodes if isinstance(n.body, TileProgram)]
    primes = drawn(canonical_text(lowered), *(t.ptx for t in texts))
    return PtxRecord(
        kernels=[
            verify_kernel(node, kernel, text, primes, seed=seed)
            for node, kernel, text in zip(nodes, kernels, texts, strict=True)
        ]
    )


def verify_kernel(
    node: Node, kernel: KernelText, text: PtxText, primes: Primes, *, seed: int = 0
) -> PtxKernelRecord:
    """Check the PTX of one kernel, that of a `tiled` node; raises as `verify_ptx`."""
    addressed, evaluated, reason, ordering, templates = 0, 0, "", list[str](), list[str]()
    try:
        decoded = decode(parse(text.ptx, f"{kernel.name}.ptx"))
        if decoded.kernel.name != kernel.name:
            raise NotEquivalent(
                f"expected the PTX of kernel '{kernel.name}', got that of '{decoded.kernel.name}'"
            )
        ordering = ordering_rules(decoded)
        templates = sorted({o[1:].split(".")[0] for o in decoded.opcodes if o.startswith("@")})
        addressed, evaluated = _compare(decoded, node, kernel, text.shared_bytes, seed, primes)
    except UnsupportedProgram as error:
        reason = error.message
    return PtxKernelRecord(
        name=kernel.name,
        ptx_sha256=hashlib.sha256(text.ptx.encode()).hexdigest(),
        blocks=math.prod(kernel.grid),
        addressed=addressed,
        evaluated=evaluated,
        templates=templates,
        ordering=ordering,
        unverified=reason,
    )


_RULES = {
    "bar.sync": "bar.sync",
    "bar.warp.sync": "bar.warp.sync",
    "cp.async.wait_group": "cp.async",
    "wgmma.wait_group": "wgmma",
    "tcgen05.commit": "tcgen05",
    "mbarrier.try_wait": "mbarrier",
    "cp.async.bulk.wait_group": "cp.async.bulk",
    "fence.proxy.async": "fence.proxy.async",
    "fence.proxy.tensormap": "fence.proxy.tensormap",
}


def ordering_rules(decoded: Decoded) -> list[str]:
    """The instructions that order a kernel's accesses."""
    return [rule for stem, rule in _RULES.items() if any(o.startswith(stem) for o in decoded.opcodes)]


def _compare(
    decoded: Decoded, node: Node, kernel: KernelText, shared_bytes: int, seed: int, primes: Primes
) -> tuple[int, int]:
    """Run some blocks of the PTX and the same instances of the TTIR; how many these prove, and how many ran."""
    chosen, found = blocks_of(kernel, seed), (0, 0)

    def test(domain: Extended) -> None:
        nonlocal found
        grid, ran = Grid(kernel.grid), len(chosen)
        reference = Reference(node, kernel, chosen, domain)
        reference.compare(decoded, shared_bytes, grid=grid)
        while (block := grid.next(seed)) is not None:
            reference.of([block]).compare(decoded, shared_bytes, grid=grid)
            ran += 1
        found = grid.proved, ran

    at_some_point(False, (seed, kernel.name, "ptx"), primes, test)
    return found


class Reference:
    """What instances of a kernel's TTIR store at a point, to compare its PTX with."""

    def __init__(self, node: Node, kernel: KernelText, blocks: Sequence[int], domain: Extended) -> None:
        self.kernel, self._node, self._domain, self._field = kernel, node, domain, domain.field
        self._function, self._instances = kernel.function(), Instances(node, kernel)
        self._operands = flat_operands(node, domain)
        self._run(blocks)

    def of(self, blocks: Sequence[int]) -> Reference:
        """The same of other blocks."""
        found = copy(self)
        found._run(blocks)
        return found

    def _run(self, blocks: Sequence[int]) -> None:
        self.blocks = blocks
        self._expected, _ = launch_buffers(self._node, self.kernel.arguments, self._operands)
        launch(self._function, self.kernel.grid, self._expected, self._domain, blocks)

    def launch(self, decoded: Decoded, shared_bytes: int) -> Launch:
        """The kernel on the same operands, none of its blocks run."""
        given, _ = launch_buffers(self._node, self.kernel.arguments, self._operands)
        return Launch(decoded, self.kernel.grid, given, self._field, shared_bytes, self.kernel.extents)

    def compare(
        self,
        decoded: Decoded,
        shared_bytes: int,
        planted: Decoded | None = None,
        grid: Grid | None = None,
    ) -> Launch:
        """Run the blocks, with what a mutant changes undefined (`Launch.plant`), and prove others of a `grid`.

        Raises NotEquivalent where one stores something else, and what `Launch.run` and `plant` raise.
        """
        ptx = self.launch(decoded, shared_bytes)
        if planted is not None:
            ptx.plant(planted)
        used: list[tuple[int, int]] = []
        for block in self.blocks:
            made = ptx.run(block) if grid is None else grid.run(ptx, block, self._instances)
            for buffer, found in zip(self._expected, made, strict=True):
                if found.atomics.any():
                    raise UnsupportedProgram(
                        f"kernel '{self.kernel.name}': expected stores, got atomics, whose TTIR is not read"
                    )
                places = buffer.places_of(block) if buffer.writable else found.places[:0]
                what = f"kernel '{self.kernel.name}' for {decoded.kernel.target}, block {block}"
                if not np.array_equal(places, found.places):
                    odd = np.setxor1d(places, found.places)[0]
                    raise NotEquivalent(
                        f"{what}: expected the elements of '{buffer.name}' that the TTIR stores, got element "
                        f"{odd} {'as well' if odd in found.places else 'not stored'}"
                    )
                if not places.size:
                    continue
                assert buffer.contents is not None
                different = buffer.contents.planes[0][places] != found.values
                if different.any():
                    raise NotEquivalent(
                        f"{what}: expected '{buffer.name}' as the TTIR computes it, got another value at element "
                        f"{places[np.argmax(different)]}"
                    )
            used.append(ptx.scratch)
        used = sorted(u for u in used if u[0] < u[1])
        if any(a[1] > b[0] for a, b in itertools.pairwise(used)):
            raise IllegalProgram(
                f"kernel '{self.kernel.name}': expected scratch of each block's own, got one for two"
            )
        return ptx


def blocks_of(kernel: KernelText, seed: int) -> list[int]:
    """The first and the last block, the last along each dimension of the grid alone, and a random one.

    Those of one dimension tell the block's numbers apart: the first and the last have them alike.
    """
    (x, y, z), count = kernel.grid, math.prod(kernel.grid)
    corners = {0, count - 1, x - 1, (y - 1) * x, (z - 1) * x * y}
    return sorted({*corners, random.Random(f"{seed} {kernel.name} ptx").randrange(count)})
