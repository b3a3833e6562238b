"""Checks the PTX of kernels against their TTIR, which was checked against the program.

Some blocks of every kernel run over the fields, from the text that ptxas gets: each must store exactly the
elements that the TTIR's instance stores, and the same residues, at one random point. Each must also be free of
races under every schedule, and never touch what is still being copied or multiplied.

Each block that runs proves those that do what it does (`grid`). The last one comes first; what else runs is not
proved by then: blocks at other corners of the grid, where offsets and tails go wrong, then random ones.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from superopt.errors import IllegalProgram, NotEquivalent, UnsupportedProgram
from superopt.program import KernelGraph, Node, TileProgram
from superopt.verify.hashing import canonical_text
from superopt.verify.infinities import Extended
from superopt.verify.maxima import Maxima
from superopt.verify.primes import Primes, drawn
from superopt.verify.ptx.budget import Budget
from superopt.verify.ptx.decode import Decoded, decode, with_made_mbarriers
from superopt.verify.ptx.grid import Grid, Instances
from superopt.verify.ptx.launch import MOST_SHARED, Launch, Stored
from superopt.verify.ptx.parser import parse
from superopt.verify.ptx.record import PtxKernelRecord, PtxRecord
from superopt.verify.ttir.check import KernelText, firsts, flat_operands
from superopt.verify.ttir.evaluate import launch
from superopt.verify.ttir.launch_memory import launch_buffers
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.points import ImageTriton, at_some_point
from superopt.verify.ttir.ran import Evaluated, Ran, Stores, stores_of
from superopt.verify.ttir.sampling import blocks_of
from superopt.verify.ttir.work import instance_work

# Random numbers for a buffer where only addresses matter: large ones hold them again and again.
MOST_RANDOM = 1 << 16


@dataclass(frozen=True)
class PtxText:
    """A kernel's PTX as data, and the bytes of shared memory of a block."""

    ptx: str
    shared_bytes: int = MOST_SHARED


Argument: TypeAlias = tuple[str, int, str, bool]
"""A kernel's argument: its name, how many elements it has, their dtype, whether the kernel may store there."""


def first_block(
    text: PtxText, grid: tuple[int, int, int], arguments: Sequence[Argument], extents: Sequence[int] = ()
) -> Launch:
    """A kernel whose first block has run, on random numbers in all of its arguments; then it takes `extents`.

    Raises IllegalProgram and UnsupportedProgram as `Launch.run`.
    """
    field = ImageTriton("order", lattice="order")
    buffers = [Buffer(name, elements, dtype, writable) for name, elements, dtype, writable in arguments]
    for buffer in buffers:
        buffer.contents = field.random(buffer.name, (min(buffer.size, MOST_RANDOM),))
    decoded = decode(parse(text.ptx, "kernel.ptx"))
    launch = Launch(decoded, grid, buffers, field, text.shared_bytes, extents, repeating=True)
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
    lowered: KernelGraph,
    kernels: Sequence[KernelText],
    texts: Sequence[PtxText],
    *,
    seed: int = 0,
    ran: Ran | None = None,
) -> PtxRecord:
    """Check the PTX of `kernels`, one for each `tiled` node of `lowered` in order, as the module describes.

    `ran` are the instances of their TTIR that its check ran.
    Raises NotEquivalent where a kernel stores something else than its TTIR, IllegalProgram where one accesses
    memory illegally or in no order, BadInput for text that is not PTX. What cannot be verified is recorded by
    kernel.
    """
    nodes = [n for n in lowered.nodes if isinstance(n.body, TileProgram)]
    primes = drawn(canonical_text(lowered), *(t.ptx for t in texts))
    given = list(zip(kernels, texts, strict=True))
    first, made = firsts(nodes, given), dict[Node, PtxKernelRecord]()
    for node, (kernel, text) in zip(nodes, given, strict=True):
        if first[node] is node:
            made[node] = verify_kernel(node, kernel, text, primes, seed=seed, ran=ran)
    return PtxRecord(kernels=[made[first[node]] for node in nodes])


def verify_kernel(
    node: Node,
    kernel: KernelText,
    text: PtxText,
    primes: Primes,
    *,
    seed: int = 0,
    ran: Ran | None = None,
) -> PtxKernelRecord:
    """Check the PTX of one kernel, that of a `tiled` node; raises as `verify_ptx`."""
    addressed, evaluated, reason, ordering, templates = 0, 0, "", list[str](), list[str]()
    maxima: Maxima = "none"
    try:
        decoded = decode(parse(text.ptx, f"{kernel.name}.ptx"))
        if decoded.kernel.name != kernel.name:
            raise NotEquivalent(
                f"expected the PTX of kernel '{kernel.name}', got that of '{decoded.kernel.name}'"
            )
        ordering = ordering_rules(decoded)
        templates = sorted({o[1:].split(".")[0] for o in decoded.opcodes if o.startswith("@")})
        known = ran.of(node, kernel, text.ptx) if ran is not None else None
        found = _compare(decoded, node, kernel, text.shared_bytes, seed, primes, known)
        addressed, evaluated, maxima = found.proved, found.ran, found.maxima
        if found.anyone:
            ordering = [rule for rule in ordering if rule != ELECT]
        if addressed < math.prod(kernel.grid):
            reason = f"expected all {math.prod(kernel.grid)} blocks to be proved, got {addressed}"
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
        maxima=maxima,
        unverified=reason,
    )


ELECT = "elect.sync"
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
    "griddepcontrol.wait": "griddepcontrol.wait",
    ELECT: ELECT,
}


def ordering_rules(decoded: Decoded) -> list[str]:
    """The instructions that order a kernel's accesses, and `elect.sync`."""
    return [rule for stem, rule in _RULES.items() if any(o.startswith(stem) for o in decoded.opcodes)]


@dataclass(frozen=True)
class _Found:
    """How many blocks are proved and ran, how maxima were compared, and whether any thread may be elected."""

    proved: int
    ran: int
    maxima: Maxima
    anyone: bool


def _compare(
    decoded: Decoded,
    node: Node,
    kernel: KernelText,
    shared_bytes: int,
    seed: int,
    primes: Primes,
    known: Evaluated | None,
) -> _Found:
    """Prove blocks of the PTX at a point: where instances are `known`, if there is one."""
    found, anyone = (0, 0), False
    budgets = {"free": Budget(), "order": Budget()}  # by how maxima are interpreted

    def test(domain: Extended) -> None:
        nonlocal found, anyone
        reference = Reference(node, kernel, domain, budgets[domain.field.lattice], seed=seed, known=known)
        found = reference.prove(decoded, shared_bytes, seed)
        anyone = reference.elects_anyone(decoded, shared_bytes, seed)

    given = (known.point, known.primes) if known is not None else None
    maxima = at_some_point(False, (seed, kernel.name, "ptx"), primes, test, given)
    return _Found(*found, maxima, anyone)


class Reference:
    """What instances of a kernel's TTIR store at a point, to compare its PTX with."""

    def __init__(
        self,
        node: Node,
        kernel: KernelText,
        domain: Extended,
        budget: Budget | None = None,
        *,
        seed: int = 0,
        known: Evaluated | None = None,
    ) -> None:
        self.kernel, self._node, self._domain, self._field = kernel, node, domain, domain.field
        self._budget = budget or Budget()
        self._function = kernel.function()
        self._instances = Instances(node, kernel, self._function, self._budget)
        self._work = instance_work(self._function, kernel.grid)
        self._operands = flat_operands(node, domain)
        self._stores: dict[int, Stores] = {}
        self._chosen = blocks_of(kernel, seed)
        if known is not None and known.at(domain):
            self._stores.update(known.stores)
            self._chosen[-1] = known.drawn
            domain.field.assumed.update(known.seen.assumed)

    def launch(self, decoded: Decoded, shared_bytes: int) -> Launch:
        """The kernel on the same operands, none of its blocks run.

        Raises IllegalProgram where it is started early and its PTX waits for no other kernel.
        """
        if self.kernel.early and not any(o.startswith("griddepcontrol.wait") for o in decoded.opcodes):
            raise IllegalProgram(
                f"kernel '{self.kernel.name}' may start while the one before it runs: expected its PTX to wait "
                "for that one, got none that does"
            )
        given, _ = launch_buffers(self._node, self.kernel.arguments, self._operands)
        kernel, budget = self.kernel, self._budget
        return Launch(decoded, kernel.grid, given, self._field, shared_bytes, kernel.extents, budget=budget)

    def prove(self, decoded: Decoded, shared_bytes: int, seed: int = 0) -> tuple[int, int]:
        """Run blocks that are not proved by those before, as long as `Grid.next` has some; how many are, and ran.

        One more runs then, or one again, which tests the proof.
        Raises NotEquivalent where one stores something else, and as `Launch.run`.
        """
        ptx, grid = self.launch(decoded, shared_bytes), Grid(self.kernel.grid)
        chosen, ran = iter(self._chosen), list[tuple[int, Sequence[Stored]]]()
        while True:
            block = next((b for b in chosen if not grid.has(b)), None)
            block = grid.next(seed, self._instances) if block is None else block
            if block is None:
                break
            ran.append((block, grid.run(ptx, block, self._instances)))
        ran.append((self._chosen[-1], ptx.run(self._chosen[-1])))
        self._run([block for block, _ in ran])
        for block, made in ran:
            self._check(ptx, block, made)
        return grid.proved, len(ran)

    def elects_anyone(self, decoded: Decoded, shared_bytes: int, seed: int = 0) -> bool:
        """Whether a block stores the same, in order, where `elect.sync` elects another thread than the first.

        Triton's copies of boxes do so in no order: thread 0 makes the mbarriers that the elected one uses. With a
        barrier in between they must do all the same, so that nothing but that order depends on whom it elects.
        Raises NotEquivalent where a block stores something else, else as `prove`.
        """
        if ELECT not in ordering_rules(decoded):
            return False
        lane = random.Random(f"{seed} {self.kernel.name} elected").randrange(1, 32)
        try:
            self.compare(decoded.electing(lane), shared_bytes, self._chosen[-1:])
        except IllegalProgram:
            self.compare(with_made_mbarriers(decoded).electing(lane), shared_bytes, self._chosen[-1:])
            return False
        return True

    def compare(
        self, decoded: Decoded, shared_bytes: int, blocks: Sequence[int], planted: Decoded | None = None
    ) -> Launch:
        """Run `blocks`, with what a mutant changes undefined (`Launch.plant`); proves no others.

        Raises as `prove` and `Launch.plant`.
        """
        ptx = self.launch(decoded, shared_bytes)
        if planted is not None:
            ptx.plant(planted)
        self._run(blocks)
        for block in blocks:
            self._check(ptx, block, ptx.run(block))
        return ptx

    def _run(self, blocks: Sequence[int]) -> None:
        """Run instances of the TTIR, side by side, that are not known yet."""
        new = [b for b in dict.fromkeys(blocks) if b not in self._stores]
        if not new:
            return
        self._budget.spend(len(new) * self._work, f"kernel '{self.kernel.name}', numbers of its TTIR")
        made, _ = launch_buffers(self._node, self.kernel.arguments, self._operands)
        launch(self._function, self.kernel.grid, made, self._domain, new)
        self._stores.update((b, stores_of(b, made)) for b in new)

    def _check(self, ptx: Launch, block: int, made: Sequence[Stored]) -> None:
        """Compare what a block stored with what its instance stores."""
        what = f"kernel '{self.kernel.name}' for {ptx.decoded.kernel.target}, block {block}"
        for buffer, (places, values), found in zip(ptx.buffers, self._stores[block], made, strict=True):
            if found.atomics.any():
                raise UnsupportedProgram(
                    f"kernel '{self.kernel.name}': expected stores, got atomics, whose TTIR is not read"
                )
            if not np.array_equal(places, found.places):
                odd = np.setxor1d(places, found.places)[0]
                raise NotEquivalent(
                    f"{what}: expected the elements of '{buffer.name}' that the TTIR stores, got element "
                    f"{odd} {'as well' if odd in found.places else 'not stored'}"
                )
            different = values != found.values
            if different.any():
                raise NotEquivalent(
                    f"{what}: expected '{buffer.name}' as the TTIR computes it, got another value at element "
                    f"{places[np.argmax(different)]}"
                )
