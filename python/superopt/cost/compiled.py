"""What a compiled kernel costs: the analytic model, and what the compiler's report adds to it.

The analytic model knows tiles, not how they are run. What tells launches apart without a GPU:

occupancy    Blocks that a multiprocessor holds, by registers (given to warps by the 256), shared memory (1 KiB of
             each block is the system's), warps and blocks: CUDA C Programming Guide, Compute Capabilities.
pipelining   Little's law: bytes that arrive per second are at most the bytes under way over the latency (Volkov,
             Understanding Latency Hiding on GPUs, 2016, ch. 2). Under way are, for each resident block, as many
             trips as there are stages but one; the latency of device memory is the target's `iteration_seconds`,
             that of L2 half of it (400 and 200 cycles from Volta to Hopper: doi 10.1016/j.ultsonch.2023.106546,
             table 3). A loop whose loads are not copied asynchronously waits for each trip, and then computes.
issue        Four schedulers of a multiprocessor need a warp each before its units are busy.
counts       What was counted on the PTX (`counted.py`). Shared memory and L1 are one unit, which serves a
             wavefront, or four sectors of loads and stores past shared memory, a cycle (CUDA C++ Best Practices
             Guide, section 10.2.3): all blocks of a multiprocessor take at least as long. Bank conflicts and
             accesses that are not coalesced multiply that. Sectors that are copied asynchronously come from L2.
spills       ptxas counts bytes; each is taken to be moved once a trip, at the rate of L2.
hints        Without them, a tensor that waves of blocks read again stays in L2 only if all that is read fits.
early        A kernel that starts while the one before it still runs (`superopt.early`) hides `early_seconds` of
             its launch: 0.96 us of the gap between two empty kernels on Hopper, measured pair by pair (pegainfer
             issue 569, 2026); about 0.4 us of small kernels on a B200 (flashinfer pull request 5315, 2026).
descriptors  A block makes its own and has it fetched before the first tile: two latencies a wave.

But for early launches, each of these only adds: a kernel is never predicted to be faster than by the analytic
model. None of it has been compared with a GPU yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING

from superopt.cost.gpus import WARP_THREADS, Target
from superopt.cost.library import contraction_cost
from superopt.cost.model import copy_costs, kernel_cost, launches_nothing
from superopt.cost.traffic import Traffic, kernel_seconds, node_traffic, tile_reads
from superopt.early import early_launches
from superopt.hidden_trips import trips_of_limited
from superopt.moves import SECTOR_BYTES
from superopt.operators import is_contraction
from superopt.program import DTYPE_BYTES, KernelGraph, Load, Loop, Node, Store, TileProgram, within_loops
from superopt.transforms.core import _cost
from superopt.weights import split

if TYPE_CHECKING:
    from superopt.cost.counted import KernelCounts
    from superopt.transforms.emit.compile import Compiled

# With this many trips under way, the latency of one hides behind the others.
DEEP = 2
# What L1 serves in a cycle: 128 bytes.
SECTORS_A_CYCLE = 4


@dataclass(frozen=True)
class CompiledCost:
    """Predicted seconds of a compiled kernel, and why: resident blocks, trips under way, what limits it."""

    seconds: float
    resident: int
    depth: int
    limit: str


@dataclass(frozen=True)
class PricedKernel:
    """One kernel of a lowered program: what it moves and computes, its predicted seconds, and what limits it.

    `compiled` is None for what no kernel of ours does: products that are left to a library, opaque operations,
    and copies of the launcher. What is `prepared` runs once, not in every call. `trips` are those of loops that a
    mask cuts short: how many run, on average over the blocks, of how many.
    """

    seconds: float
    limit: str
    traffic: Traffic
    compiled: Compiled | None = None
    prepared: bool = False
    trips: tuple[float, int] | None = None


def priced_kernels(graph: KernelGraph, compiled: Sequence[Compiled], target: Target) -> list[PricedKernel]:
    """The kernels of a lowered program in order, `compiled` being those of its tile programs."""
    facts, found = iter(compiled), list[PricedKernel]()
    parts = split(graph)
    once, early = set(parts.prepare), early_launches(parts.main)
    for node in graph.nodes:
        if isinstance(node.body, TileProgram):
            kernel = next(facts)
            priced = compiled_cost(node, kernel, target)
            traffic, trips = node_traffic(node, target), trips_run(node.body)
            seconds = priced.seconds - (target.early_seconds if node in early else 0.0)
            made = PricedKernel(seconds, priced.limit, traffic, kernel, node in once, trips)
            found.append(made)
        elif not launches_nothing(node):
            left = is_contraction(node)
            priced = contraction_cost(node, target) if left else kernel_cost(node, target)
            found.append(PricedKernel(priced.seconds, node.op, priced.traffic, prepared=node in once))
    found += [PricedKernel(c.seconds, c.name, c.traffic) for c in copy_costs(graph, target)]
    return found


def trips_run(program: TileProgram) -> tuple[float, int] | None:
    """How many trips of the loops that masks cut short run, on average over the blocks, of how many."""
    cut = trips_of_limited(program)
    whole = [s.trips for s in program.statements() if isinstance(s, Loop) and s.var in cut]
    return (sum(map(mean, cut.values())), sum(whole)) if cut else None


def compiled_seconds(graph: KernelGraph, compiled: Sequence[Compiled], target: Target) -> float:
    """Predicted seconds of a call of a lowered program: the price that is compared, printed and reported."""
    return sum(k.seconds for k in priced_kernels(graph, compiled, target) if not k.prepared)


def compiled_cost(node: Node, facts: Compiled, target: Target) -> CompiledCost:
    """Predicted cost of one kernel, a `tiled` node, as it was compiled."""
    program = node.body
    assert isinstance(program, TileProgram)
    traffic = node_traffic(node, target)
    traffic = replace(traffic, shared_bytes=max(traffic.shared_bytes, facts.shared_bytes))
    analytic = kernel_seconds(traffic, target)
    if math.isinf(analytic):
        return CompiledCost(analytic, 0, 0, "shared memory")
    blocks, trips, warps = traffic.blocks, max(traffic.loop_trips, 1), program.num_warps
    resident = resident_blocks(facts, warps, target)
    numbers = target.numbers()
    waves = int(_cost.waves(numbers, blocks, resident))
    asynchronous = "cp.async" in facts.ptx
    depth = program.num_stages - 1 if asynchronous and trips > 1 else 0

    l2_bytes, cycles = _counted(facts.counts, traffic, _beside_first_block(program))
    together = min(resident, math.ceil(blocks / target.multiprocessors))
    busy_units = min(blocks, target.multiprocessors)
    under_way = busy_units * together * max(depth, 1) / (blocks * trips)  # the share of all bytes
    latency = target.iteration_seconds
    once = traffic.l2_bytes  # what is loaded twice does not come from device memory faster
    if program.separate_loads:
        once = node_traffic(replace(node, body=replace(program, separate_loads=False)), target).l2_bytes
    dram = min(_cost.memory_rate(numbers, target.dram_bytes_per_second, blocks), under_way * once / latency)
    l2_rate = _cost.memory_rate(numbers, target.l2_bytes_per_second, blocks)
    l2 = min(l2_rate, 2 * under_way * l2_bytes / latency)
    memory = max(_dram_bytes(program, traffic.dram_bytes, waves, target) / dram, l2_bytes / l2)

    share = _cost.busy_share(numbers, blocks) * min(1.0, together * warps / target.schedulers)
    compute = traffic.tensor_flops / target.tensor_flops + traffic.vector_flops / target.vector_flops
    compute = (compute + traffic.special_operations / target.special_operations) / share
    exposed = waves * trips * latency * max(1.0, DEEP / max(depth, 1) if trips > 1 else 1.0)

    shared = math.ceil(blocks / target.multiprocessors) * cycles / target.clock_hertz
    parts = {"memory": memory, "compute": compute, "latency": exposed, "L1 and shared memory": shared}
    limit = max(parts, key=lambda name: parts[name])
    chunks = trips * math.ceil(blocks / target.multiprocessors)
    seconds = max(max(memory, compute) + min(memory, compute) / chunks, exposed, shared)
    if depth == 0 and trips > 1:
        seconds, limit = max(memory + compute, exposed, shared), "waiting for loads"
        if seconds == shared:
            limit = "L1 and shared memory"
    spilled = facts.spill_bytes * WARP_THREADS * warps * blocks * trips / target.l2_bytes_per_second
    if spilled > seconds:
        limit = "spills"
    made = 2 * latency * waves if "tensormap" in facts.ptx else 0.0
    above_floor = target.launch_seconds + math.hypot(target.floor_seconds, seconds + spilled)
    return CompiledCost(max(analytic, above_floor) + made, resident, depth, limit)


def _beside_first_block(program: TileProgram) -> float:
    """How many times as much as the first block a block moves on average: a mask may cut its loops shorter."""
    cut, first, average = trips_of_limited(program), 0.0, 0.0
    for s, around in within_loops(program.body) if cut else ():
        if isinstance(s, Load | Store) and s.buffer.in_memory:
            loops = [loop for loop in around if not loop.parallel]
            size = DTYPE_BYTES[s.buffer.type.dtype] * math.prod(w.size for w in s.windows)
            size *= math.prod(loop.trips for loop in loops if loop.var not in cut)
            first += size * math.prod(cut[loop.var][0] for loop in loops if loop.var in cut)
            average += size * math.prod(mean(cut[loop.var]) for loop in loops if loop.var in cut)
    return average / first if first else 1.0


def _counted(counts: KernelCounts | None, traffic: Traffic, more: float) -> tuple[float, float]:
    """Bytes that all blocks move from and to L2, and the cycles of L1 and shared memory for one block.

    An average block moves `more` times as much as the first one, which was counted.
    """
    if counts is None:
        return traffic.l2_bytes, 0.0
    copied = counts.sectors["copies"].made * more
    cycles = more * counts.shared.made + (more * counts.device.made - copied) / SECTORS_A_CYCLE
    return max(traffic.l2_bytes, traffic.blocks * SECTOR_BYTES * copied), cycles


def resident_blocks(facts: Compiled, warps: int, target: Target) -> int:
    """Blocks that one multiprocessor holds, by what the compiler says of them; at least 1."""
    registers = -(-max(facts.registers, 1) // target.register_unit) * target.register_unit
    by_registers = target.registers // (registers * WARP_THREADS * warps)
    by_shared = target.shared_per_multiprocessor // (facts.shared_bytes + target.reserved_shared)
    return max(min(by_registers, by_shared, target.most_warps // warps, target.most_blocks), 1)


def _dram_bytes(program: TileProgram, counted: float, waves: int, target: Target) -> float:
    """The analytic model's bytes of device memory, and those not kept in L2 for the next wave."""
    reads = tile_reads(program)
    again = {b: moved for b, moved in reads.items() if moved > b.type.bytes and waves > 1}
    kept = again if program.cache_hints else reads
    if not again or sum(b.type.bytes for b in kept) <= target.l2_capacity:
        return counted
    within = {b: moved for b, moved in again.items() if b.type.bytes <= target.l2_capacity}
    return counted + sum(min(moved, b.type.bytes * waves) - b.type.bytes for b, moved in within.items())
