"""What a kernel's machine code costs: its instructions issued one by one, as the control bits say.

The compiled price (`compiled.py`) knows how many warps there are, not what each waits for. Since Volta, the
compiler writes that into each instruction: cycles until the next one of its warp, and which of six scoreboards it
sets or waits for (Jia et al., Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking, 2018, section
2.1). `nvdisasm`, which comes with Triton, prints them. A scheduler with its resident warps is simulated on them,
as processors are by Abel and Reineke, uiCA, ICS 2022: the warp that may issue first does; a pipe that is busy, a
scoreboard, or a barrier of its block delays a warp.

A kernel is passed through once from end to end, and its hot loop once more for each pass that is left: so many as
make up what all blocks multiply, or else load. Rates are the target's; loads take its latency of L2 (half of
`iteration_seconds`) or of device memory: the two ends of an interval. Branches are not taken, and bandwidth is
not modelled: the compiled price has it, and this one only adds. None of it has been compared with a GPU yet.
"""

from __future__ import annotations

import heapq
import math
import re
import resource
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from superopt import clock
from superopt.cost.compiled import resident_blocks
from superopt.cost.gpus import WARP_THREADS, Target
from superopt.cost.traffic import Traffic
from superopt.transforms.core import _cost

if TYPE_CHECKING:
    from superopt.transforms.emit.compile import Compiled

# Opcodes of the machine, by their use; what none of these begins is "integer": addresses, counters, moves.
CLASSES = {
    "matrix": ("HMMA", "HGMMA", "UTCHMMA", "UTCQMMA", "FFMA2"),
    "copy": ("LDGSTS", "UTMALDG", "LDGDEPBAR", "UBLKCP"),
    "global": ("LDG", "STG", "LD.", "ST."),
    "shared": ("LDSM", "LDS", "STS", "STSM", "SHFL", "LDTM", "STTM", "LDT"),
    "float": ("FADD", "FMUL", "FFMA", "FMNMX", "FSETP", "FSEL", "MUFU", "HADD2", "HMUL2", "HFMA2", "FMNMX3",
              "F2F", "F2FP", "I2F", "F2I", "HMNMX2"),
    "wait": ("BAR", "DEPBAR", "WARPSYNC", "WARPGROUP", "WARPGROUPARRIVE", "WARPGROUPDEPBAR", "SYNCS", "FENCE",
             "NOP", "BSSY", "BSYNC", "NANOSLEEP", "ERRBAR", "MEMBAR", "CCTL", "UTCBAR"),
}  # fmt: skip
_OF = {op: name for name, ops in CLASSES.items() for op in ops}
# Cycles of a load from shared memory (Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture
# via Microbenchmarking, 2024, table IV), and of other instructions that set a scoreboard.
_SHARED_CYCLES, _OTHER_CYCLES = 29, 20
# Bytes that a multiprocessor's shared memory, and its first cache, move in a cycle.
_SHARED_BYTES, _CACHE_BYTES = 128, 64
_NO_BARRIER = 7
# Passes of a loop that are simulated: the first fill the pipes.
_FIRST, _PASSES = 2, 6


@dataclass(frozen=True)
class Instruction:
    """One instruction and its control bits.

    `stall` is in cycles; `write` and `read` are the scoreboards that it sets (7: none), `wait` a mask of those
    that it waits for.
    """

    text: str
    stall: int = 1
    write: int = _NO_BARRIER
    read: int = _NO_BARRIER
    wait: int = 0

    @cached_property
    def opcode(self) -> str:
        """HMMA.16816.F32 of @P0 HMMA.16816.F32 R12, R12, R8, RZ"""
        return re.sub(r"^@!?U?P\w+\s+", "", self.text).split()[0].rstrip(";")

    @cached_property
    def use(self) -> str:
        """What it is for: one of `CLASSES`, or "integer"."""
        return _OF.get(self.opcode.split(".")[0], "integer")

    @cached_property
    def macs(self) -> int:
        """Multiply-adds of a warp: HMMA.16816 has 16 x 8 x 16, a quarter of a warp group's HGMMA.64x128x16."""
        if shape := re.match(r"HGMMA\.(\d+)x(\d+)x(\d+)", self.opcode):
            return math.prod(map(int, shape.groups())) // 4
        if shape := re.match(r"HMMA\.(16)(8)(8|16)\b", self.opcode):
            return math.prod(map(int, shape.groups()))
        return 0

    @cached_property
    def bytes(self) -> int:
        """What a warp moves of memory, shared memory included."""
        if self.use not in ("global", "shared") and not self.opcode.startswith("LDGSTS"):
            return 0
        if tiles := re.match(r"(?:LDSM|STSM)\.16\.MT?88(?:\.(\d))?", self.opcode):
            return 4 * WARP_THREADS * int(tiles[1] or 1)
        width = re.search(r"\.(?:U|S)?(8|16|64|128)\b", self.opcode)
        return WARP_THREADS * (int(width[1]) // 8 if width else 4)


def disassembled(cubin: bytes) -> list[Instruction | str]:
    """The instructions of a kernel, and between them the labels, as `nvdisasm` prints them.

    Its processor time is charged to the clock.
    """
    spec = find_spec("triton.backends.nvidia")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or [""]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = Path(folder, "bin", "nvdisasm")
        command = [tool, "-c", "-hex", file.name]
        begun = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        clock.charge(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begun)
    return parsed(text)


def parsed(text: str) -> list[Instruction | str]:
    """What `nvdisasm -c -hex` printed: each instruction has a line, whose second word has one of its own."""
    found: list[Instruction | str] = []
    lines = text.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            found.append(label[1])
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;\s+/\* 0x[0-9a-f]{16} \*/", line):
            second = re.match(r"\s+/\* 0x([0-9a-f]{16}) \*/", after)
            bits = int(second[1], 16) if second else 1 << 41
            made = Instruction(
                instruction[1], bits >> 41 & 15, bits >> 46 & 7, bits >> 49 & 7, bits >> 52 & 63
            )
            found.append(made)
    return found


def hot_loop(code: Sequence[Instruction | str]) -> list[Instruction]:
    """The innermost loop with the most matrix instructions; without any, the one with the most instructions.

    Empty where there is no loop: the compiler may have unrolled it.
    """
    at = {line: i for i, line in enumerate(code) if isinstance(line, str)}
    spans: list[tuple[int, int]] = []
    for i, line in enumerate(code):
        jump = isinstance(line, Instruction) and re.search(r"\bBRA\b.*`\((\S+)\)", line.text)
        # Behind the end of a kernel there is an endless loop of one instruction.
        if jump and (start := at.get(jump[1], i)) < i and len(instructions(code[start : i + 1])) > 1:
            spans.append((start, i + 1))
    bodies = {span: instructions(code[slice(*span)]) for span in spans}
    matrix = {span: sum(i.use == "matrix" for i in body) for span, body in bodies.items()}
    busy = {span for span in spans if matrix[span]} or set(spans)
    inner = [a for a in busy if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in busy)]
    return bodies[max(inner, key=lambda span: (matrix[span], len(bodies[span])))] if inner else []


def instructions(code: Sequence[Instruction | str]) -> list[Instruction]:
    """Without labels, and what is behind the end."""
    found = [i for i in code if isinstance(i, Instruction)]
    end = next((n for n, i in enumerate(found) if i.text == "EXIT"), len(found))
    return found[: end + 1]


@dataclass
class _Warp:
    """Where a warp is, when it may issue, and when what it waits for comes."""

    block: int
    at: int = 0
    ready: float = 0.0
    due: dict[int, list[float]] = field(default_factory=dict[int, "list[float]"])
    copied: float = 0.0
    products: list[float] = field(default_factory=list[float])


@dataclass(frozen=True)
class Scheduler:
    """One of a multiprocessor's schedulers, which serves `per_block` warps of each of `blocks` blocks.

    `memory_cycles` is the latency of loads.
    """

    target: Target
    blocks: int
    per_block: int
    memory_cycles: float

    def cycles(self, code: Sequence[Instruction]) -> float:
        """Cycles until all warps have issued `code`."""
        warps = [_Warp(b) for b in range(self.blocks) for _ in range(self.per_block)]
        free: dict[str, float] = {}
        waiting: dict[int, list[int]] = {}
        queue = [(0.0, number) for number in range(len(warps))]
        now = 0.0
        while queue:
            least, number = heapq.heappop(queue)
            warp = warps[number]
            if warp.at == len(code):
                continue
            instruction = code[warp.at]
            pipe, interval = self._pipe(instruction)
            start = max(
                least, warp.ready, free.get("issue", 0.0), free.get(pipe, 0.0), _due(warp, instruction)
            )
            if start > least:
                heapq.heappush(queue, (start, number))
                continue
            free["issue"], free[pipe] = start + 1, start + interval
            warp.at, warp.ready = warp.at + 1, start + max(instruction.stall, 1)
            now = max(now, warp.ready)
            self._set(warp, instruction, start, interval)
            if instruction.opcode.startswith("BAR.SYNC"):
                parked = waiting.setdefault(warp.block, [])
                parked.append(number)
                if len(parked) < self.per_block:
                    continue
                for other in waiting.pop(warp.block):
                    warps[other].ready = max(warps[other].ready, warp.ready)
                    heapq.heappush(queue, (warp.ready, other))
            else:
                heapq.heappush(queue, (warp.ready, number))
        return now

    def _pipe(self, instruction: Instruction) -> tuple[str, float]:
        """The pipe of an instruction, and the cycles for which it is busy: the target's rates."""
        target = self.target
        share = target.multiprocessors * target.schedulers * target.clock_hertz
        if instruction.macs:
            return "matrix", 2 * instruction.macs * share / target.tensor_flops
        if instruction.opcode.startswith("MUFU"):
            return "special", WARP_THREADS * share / target.special_operations
        if instruction.use == "float":
            return "float", max(1.0, 2 * WARP_THREADS * share / target.vector_flops)
        if instruction.bytes:
            shared = instruction.use == "shared"
            rate = _SHARED_BYTES if shared else _CACHE_BYTES
            return "shared" if shared else "global", target.schedulers * instruction.bytes / rate
        return "integer", 1.0

    def _set(self, warp: _Warp, instruction: Instruction, start: float, interval: float) -> None:
        """Say when what later instructions may wait for comes."""
        opcode = instruction.opcode
        done = start + interval + _OTHER_CYCLES
        if opcode.startswith("LDGDEPBAR"):
            done = max(warp.copied, start)
        elif instruction.use in ("global", "copy"):
            done = start + interval + self.memory_cycles
            warp.copied = max(warp.copied, done)
        elif instruction.use == "shared":
            done = start + interval + _SHARED_CYCLES
        elif opcode.startswith("HGMMA"):
            warp.products.append(done)
        if instruction.write != _NO_BARRIER:
            warp.due.setdefault(instruction.write, []).append(done)
        if instruction.read != _NO_BARRIER:
            warp.due.setdefault(instruction.read, []).append(start + interval + _OTHER_CYCLES)


def _due(warp: _Warp, instruction: Instruction) -> float:
    """When what an instruction waits for has come."""
    if found := re.match(r"DEPBAR\.LE SB(\d), 0x([0-9a-f]+)", instruction.text):
        return _all_but(warp.due.get(int(found[1]), []), int(found[2], 16))
    if found := re.match(r"WARPGROUP\.?DEPBAR\.LE gsb\d, 0x([0-9a-f]+)", instruction.text):
        return _all_but(warp.products, int(found[1], 16))
    return max((_all_but(warp.due[n], 0) for n in warp.due if instruction.wait >> n & 1), default=0.0)


def _all_but(due: list[float], left: int) -> float:
    """When all but the last `left` are done; what is older is forgotten."""
    gone = due[: len(due) - left] if left else due[:]
    if not gone:
        return 0.0
    last = max(gone)
    del due[: len(gone) - 1]
    due[0] = last
    return last


def code_seconds(kernel: Compiled, traffic: Traffic, warps: int, target: Target) -> tuple[float, float]:
    """Seconds of a compiled kernel, its launch included, if loads come from L2, and from device memory."""
    code = disassembled(kernel.cubin)
    resident = resident_blocks(kernel, warps, target)
    together = min(resident, math.ceil(traffic.blocks / target.multiprocessors))
    waves = int(_cost.waves(target.numbers(), traffic.blocks, resident))
    whole, loop = instructions(code), hot_loop(code)
    passes = max(_passes(whole, loop, traffic, warps), 0.0)

    def seconds(latency: float) -> float:
        cycles = latency * target.clock_hertz
        scheduler = Scheduler(target, together, math.ceil(warps / target.schedulers), cycles)
        total = scheduler.cycles(whole)
        if loop and passes:
            first, last = (scheduler.cycles(loop * times) for times in (_FIRST, _PASSES))
            total += passes * (last - first) / (_PASSES - _FIRST)
        return target.launch_seconds + max(target.floor_seconds, waves * total / target.clock_hertz)

    return seconds(target.iteration_seconds / 2), seconds(target.iteration_seconds)


def _passes(whole: Sequence[Instruction], loop: Sequence[Instruction], traffic: Traffic, warps: int) -> float:
    """Passes through the loop but the one in `whole`, that make up what all blocks multiply, or else load."""
    kinds: tuple[tuple[float, Callable[[Instruction], int]], ...] = (
        (traffic.tensor_flops / 2, lambda i: i.macs),
        (traffic.l2_bytes, lambda i: i.bytes if i.use in ("global", "copy") else 0),
    )
    for due, of in kinds:
        if due and (each := sum(map(of, loop))):
            return (due / (traffic.blocks * warps) - sum(map(of, whole))) / each
    return float(max(traffic.loop_trips - 1, 0)) if loop else 0.0
