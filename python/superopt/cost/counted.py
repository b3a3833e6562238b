"""What a kernel's first block does, counted on its PTX: memory transactions, instructions, barriers.

Counts are of the instructions that run, with the addresses that they have: shared memory serves a warp in as many
wavefronts as its most wanted bank has words of four bytes, device memory in sectors of 32 bytes (CUDA C++ Best
Practices Guide, sections 10.2.1 and 10.2.3). ptxas may merge or move instructions; nothing here is a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from superopt.cost.gpus import target as find_target
from superopt.verify.ptx.check import PtxText, first_block

if TYPE_CHECKING:
    from superopt.transforms.emit.compile import Compiled
    from superopt.transforms.emit.triton_source import TritonKernel

# In the core's order.
_SHARED = ("loads", "stores", "copies", "matrices")
_GLOBAL = ("loads", "stores", "copies")
# By the start of the opcode; what is not here is of integers, addresses, moves and control.
_CLASSES = {
    "tensor": ("mma", "wgmma.mma", "tcgen05.mma"),
    "shared memory": ("ld.shared", "st.shared", "ldmatrix", "stmatrix"),
    "device memory": ("ld.global", "st.global", "cp.async.c"),
    "tensor memory": ("tcgen05.ld", "tcgen05.st"),
    "special functions": ("ex2", "lg2", "sqrt", "rsqrt", "rcp", "div.full"),
    "exchange": ("shfl", "redux"),
    "order": ("bar", "cp.async", "fence", "wgmma", "tcgen05", "mbarrier", "elect"),
}
# A kernel has bank conflicts that needs more than this times the wavefronts of shared memory that suffice.
CONFLICTS = 1.5
_NUMBERS = (".f32", ".f16", ".bf16", ".f32x2", ".f16x2", ".bf16x2")


@dataclass(frozen=True)
class Transactions:
    """How many there were, and how many the same data needs at least."""

    made: int
    needed: int

    @property
    def ratio(self) -> float:
        """How many times as many as needed; 1 where there are none."""
        return self.made / self.needed if self.needed else 1.0


@dataclass(frozen=True)
class Wait:
    """Waits for copies to shared memory by one line of the PTX, and the bytes under way then, on average."""

    line: int
    times: int
    bytes: float


@dataclass(frozen=True)
class KernelCounts:
    """The counts of one block: wavefronts of shared memory, sectors of device memory, instructions by warps."""

    wavefronts: Mapping[str, Transactions]
    sectors: Mapping[str, Transactions]
    instructions: Mapping[str, int]
    barriers: int
    waits: tuple[Wait, ...] = ()

    @property
    def shared(self) -> Transactions:
        """All wavefronts."""
        return _total(self.wavefronts)

    @property
    def device(self) -> Transactions:
        """All sectors."""
        return _total(self.sectors)


def counted(
    kernel: TritonKernel, compiled: Compiled, extents: Mapping[str, int] = MappingProxyType({})
) -> KernelCounts:
    """The counts of a kernel's first block; one for a range is launched with `extents`, where it was written.

    Raises UnsupportedProgram for PTX that cannot be run, IllegalProgram for a block that races.
    """
    text = PtxText(compiled.ptx, compiled.shared_bytes)
    launch = first_block(text, kernel.grid, kernel.memory, [extents[name] for name in kernel.extents])
    counts = launch.counts
    by_class: Counter[str] = Counter()
    barriers = 0
    for opcode, executed in zip(launch.decoded.opcodes, counts["executed"], strict=True):
        by_class[_class(opcode)] += executed
        barriers += executed if opcode == "bar.sync" else 0
    warps = launch.decoded.kernel.threads // 32
    waits = [
        Wait(line.number, times, moved / times)
        for line, times, moved in zip(
            launch.decoded.kernel.lines, counts["waits"], counts["in_flight"], strict=True
        )
        if times
    ]
    return KernelCounts(
        _transactions(_SHARED, counts["wavefronts"], counts["ideal_wavefronts"]),
        _transactions(_GLOBAL, counts["sectors"], counts["needed_sectors"]),
        {name: n for name, n in by_class.most_common() if n},
        barriers // warps,
        tuple(waits),
    )


def conflicts(compiled: Compiled) -> float:
    """How many times the wavefronts of shared memory that suffice a kernel needs; 1 where it was not counted."""
    return compiled.counts.shared.ratio if compiled.counts is not None else 1.0


def waste(compiled: Compiled) -> float:
    """How many times the wavefronts, or the sectors, that suffice a kernel needs; the larger of both."""
    counts = compiled.counts
    return max(counts.shared.ratio, counts.device.ratio) if counts is not None else 1.0


def without_waste(compiled: Compiled) -> Compiled:
    """A kernel as if it made only the transactions that suffice: no launch of its tiles makes fewer."""
    if compiled.counts is None:
        return compiled
    wavefronts, sectors = (
        {name: replace(t, made=t.needed) for name, t in parts.items()}
        for parts in (compiled.counts.wavefronts, compiled.counts.sectors)
    )
    return replace(compiled, counts=replace(compiled.counts, wavefronts=wavefronts, sectors=sectors))


def text(kernel: TritonKernel, compiled: Compiled) -> str:
    """The counts as comments of PTX."""
    found = counted(kernel, compiled)
    wavefronts = ", ".join(f"{k} {t.made} of {t.needed}" for k, t in found.wavefronts.items() if t.made)
    sectors = ", ".join(f"{k} {t.made} of {t.needed}" for k, t in found.sectors.items() if t.made)
    rows = [
        f"counts of {kernel.name}, the first of {math.prod(kernel.grid)} blocks",
        f"shared wavefronts: {found.shared.made} where {found.shared.needed} suffice"
        + (f" ({wavefronts})" if wavefronts else ""),
        f"sectors of device memory, of those needed: {sectors or 'none'}",
        "instructions by warps: " + ", ".join(f"{name} {n}" for name, n in found.instructions.items()),
        f"barriers: {found.barriers}",
    ]
    rows += [
        f"waits for copies at line {w.line} of its PTX: {w.times}, with {w.bytes:.0f} bytes under way"
        for w in found.waits
    ]
    most = find_target(compiled.target).shared_per_block
    if compiled.shared_bytes > most:
        rows.append(
            f"it cannot be launched: expected at most {most} bytes of shared memory, got {compiled.shared_bytes}"
        )
    return "".join(f"// {row}\n" for row in rows)


def _total(parts: Mapping[str, Transactions]) -> Transactions:
    return Transactions(sum(t.made for t in parts.values()), sum(t.needed for t in parts.values()))


def _class(opcode: str) -> str:
    for name, starts in _CLASSES.items():
        if opcode.startswith(starts):
            return name
    return "numbers" if opcode.endswith(_NUMBERS) else "integers and control"


def _transactions(names: tuple[str, ...], made: list[int], needed: list[int]) -> dict[str, Transactions]:
    return {n: Transactions(a, b) for n, a, b in zip(names, made, needed, strict=True)}
