"""The schedule of a program's kernels, chosen by compiler results: launches, tile sizes, splits.

`lower` chooses by tiles alone. Where one of its kernels spills registers or exceeds shared memory, others are
compiled until one does neither: first more warps or fewer stages for the same tiles, then the tilings
of `tilings.py`, fastest predicted first. Of those compiled, the choice is the one that `cost.compiled`
predicts to be fastest, spills included; one that spills must gain much. Cache hints are added where it predicts
that they pay. A launch or a hint does not change any number; the caller must prove other tiles again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superopt.cost import Target, compiled_cost, compiled_seconds
from superopt.program import KernelGraph, TileProgram
from superopt.transforms.emit.compile import CompilationFailed, Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.emit.triton_source import TritonKernel
from superopt.transforms.schedule.launch import registers, warp_choices
from superopt.transforms.schedule.tilings import Tilings

if TYPE_CHECKING:
    from superopt.report import Schedule

# The most programs that are compiled: with other launches, and with other tiles.
MOST_LAUNCHES, MOST_TILINGS = 2, 8
# Cache hints are used where they are predicted to leave at most this share of the time.
LEAST_GAIN = 0.98
# A schedule that spills is chosen where it is predicted to need at most this share of the time of one that does
# not: the cost of spills was not calibrated on a GPU.
LEAST_SPILLING_GAIN = 0.8
# Tilings that are examined for one that needs fewer registers.
MOST_LOOKED_AT = 400


@dataclass(frozen=True)
class Scheduled:
    """A lowered program as it is delivered; `parameters` are its tiles and splits where they are not `lower`'s.

    `reason` says why it is so; empty where nothing had to be decided.
    """

    lowered: KernelGraph
    emitted: EmittedProgram
    compiled: tuple[Compiled, ...]
    parameters: Mapping[str, int] = field(default_factory=dict[str, int])
    reason: str = ""


def fit(
    lowered: KernelGraph,
    compiler: Compiler,
    *,
    fixed: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Scheduled:
    """`lowered` with the kernels that suit the compiler's target best; unchanged where `fixed`.

    Once `stop` returns True and a schedule fits, no other is tried.
    Raises CompilationFailed and UnsupportedProgram where it cannot be compiled as it is, CompilationFailed where
    no schedule of it fits the target's shared memory.
    """
    target, first = compiler.target, compiler.scheduled(lowered)
    if fixed:
        return _fitting(first, target)
    bad = _bad(first, target)
    best = _rescheduled(first, bad, compiler, stop) if bad else first
    return _hinted(_fitting(best, target), compiler)


def _fitting(scheduled: Scheduled, target: Target) -> Scheduled:
    """`scheduled`; raises CompilationFailed where a kernel needs more shared memory than a block can have."""
    for index in _oversized(scheduled, target)[:1]:
        kernel, most = scheduled.compiled[index], target.shared_per_block
        got = f"one that needs {kernel.shared_bytes}"
        raise CompilationFailed(
            f"kernel '{kernel.name}' for {target.name}: expected at most {most} bytes of shared memory, got {got}"
        )
    return scheduled


def _rescheduled(
    first: Scheduled, bad: Sequence[int], compiler: Compiler, stop: Callable[[], bool]
) -> Scheduled:
    """The best of the other launches, tiles and splits for the bad kernels of `first`."""
    target, found = compiler.target, [first]

    def enough() -> bool:
        return stop() and not all(_oversized(s, target) for s in found)

    for options, most in (
        (_launches(first, bad, target), MOST_LAUNCHES),
        (_tilings(first, bad, target, enough), MOST_TILINGS),
    ):
        for parameters, graph in itertools.islice(options, most):
            if enough():
                break
            try:
                made = compiler.scheduled(graph, parameters)
            except CompilationFailed:
                continue
            if made.compiled == first.compiled:
                continue
            found.append(made)
            if not _bad(made, target):
                break
    best = min(found, key=lambda s: _rank(s, target))
    if best is first:
        return dataclasses.replace(
            first, reason=f"{_said(first, bad)}; none of {len(found) - 1} other schedules is better"
        )
    return dataclasses.replace(
        best, reason=f"{_said(first, bad)}; {_said(best, bad)} after {len(found) - 1} tries"
    )


def _hinted(scheduled: Scheduled, compiler: Compiler) -> Scheduled:
    """With cache hints in the kernels where they are predicted to save bytes of device memory."""
    nodes, saved = list(scheduled.lowered.nodes), list[str]()
    for (index, body), facts in zip(_programs(scheduled.lowered), scheduled.compiled, strict=True):
        hinted = dataclasses.replace(nodes[index], body=dataclasses.replace(body, cache_hints=True))
        before, after = (compiled_cost(n, facts, compiler.target).seconds for n in (nodes[index], hinted))
        if after < LEAST_GAIN * before:
            nodes[index] = hinted
            saved.append(
                f"{body.name}: cache hints, as waves read again more than L2 keeps: {before * 1e6:.1f} us "
                f"would be {after * 1e6:.1f} us"
            )
    if not saved:
        return scheduled
    try:
        made = compiler.scheduled(dataclasses.replace(scheduled.lowered, nodes=nodes), scheduled.parameters)
    except CompilationFailed:
        return scheduled
    if _seconds(made, compiler.target) >= _seconds(scheduled, compiler.target):
        return scheduled
    return dataclasses.replace(made, reason="; ".join(filter(None, [scheduled.reason, *saved])))


def as_scheduled(lowered: KernelGraph, schedule: Schedule, target: Target) -> KernelGraph | None:
    """`lowered` with the tiles, splits and launches of a schedule; None where it lacks the schedule's tiles."""
    made: KernelGraph | None = lowered
    if schedule.parameters:
        made = Tilings(lowered, target).at(schedule.parameters)
    for _, program in _programs(made) if made is not None else ():
        if (launch := schedule.launches.get(program.name)) is not None:
            program.num_warps, program.num_stages = launch.warps, launch.stages
            program.cache_hints, program.descriptors = launch.cache_hints, launch.descriptors
    return made


class Compiler:
    """Compiles programs, each different kernel once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._made: dict[TritonKernel, Compiled] = {}

    def scheduled(self, graph: KernelGraph, parameters: Mapping[str, int] | None = None) -> Scheduled:
        """`graph` with its kernels compiled; raises CompilationFailed and UnsupportedProgram."""
        emitted = emit_program(graph)
        new = [k for k in dict.fromkeys(emitted.kernels) if k not in self._made]
        self._made.update(zip(new, compile_all(new, [self.target.name]), strict=True))
        return Scheduled(graph, emitted, tuple(self._made[k] for k in emitted.kernels), parameters or {})


def _programs(graph: KernelGraph) -> list[tuple[int, TileProgram]]:
    return [(i, n.body) for i, n in enumerate(graph.nodes) if isinstance(n.body, TileProgram)]


def _bad(scheduled: Scheduled, target: Target) -> list[int]:
    """The kernels, by number, that spill or do not fit."""
    return [
        i
        for i, k in enumerate(scheduled.compiled)
        if k.spill_bytes or k.shared_bytes > target.shared_per_block
    ]


def _oversized(scheduled: Scheduled, target: Target) -> list[int]:
    return [i for i, k in enumerate(scheduled.compiled) if k.shared_bytes > target.shared_per_block]


def _rank(scheduled: Scheduled, target: Target) -> tuple[bool, float]:
    """The smaller, the better: whether a kernel does not fit, and the seconds, with a handicap for spills."""
    spills = any(k.spill_bytes for k in scheduled.compiled)
    seconds = _seconds(scheduled, target)
    return bool(_oversized(scheduled, target)), seconds / LEAST_SPILLING_GAIN if spills else seconds


def _seconds(scheduled: Scheduled, target: Target) -> float:
    return compiled_seconds(scheduled.lowered, scheduled.compiled, target)


def _launches(
    scheduled: Scheduled, bad: Sequence[int], target: Target
) -> Iterator[tuple[dict[str, int], KernelGraph]]:
    """The same tiles with more warps for the kernels that spill, with fewer stages for those that do not fit."""
    kernels = _programs(scheduled.lowered)
    oversized = _oversized(scheduled, target)
    for step in range(1, MOST_LAUNCHES + 1):
        nodes = list(scheduled.lowered.nodes)
        for i in bad:
            index, body = kernels[i]
            warps = [w for w in warp_choices(body) if w > body.num_warps]
            warps.insert(0, body.num_warps)
            stages = max(body.num_stages - step, 1) if i in oversized else body.num_stages
            more = body.num_warps if i in oversized else warps[min(step, len(warps) - 1)]
            body = dataclasses.replace(body, num_warps=more, num_stages=stages)
            nodes[index] = dataclasses.replace(nodes[index], body=body)
        yield {}, dataclasses.replace(scheduled.lowered, nodes=nodes)


def _tilings(
    scheduled: Scheduled, bad: Sequence[int], target: Target, stop: Callable[[], bool]
) -> Iterator[tuple[dict[str, int], KernelGraph]]:
    """Other splits, and tiles of the bad kernels that need fewer registers, fastest predicted first."""

    def needed(graph: KernelGraph) -> float:
        bodies = [body for _, body in _programs(graph)]
        return max(registers(bodies[i], bodies[i].num_warps) for i in bad)

    now = needed(scheduled.lowered)
    tilings = Tilings(scheduled.lowered, target)
    for parameters, graph in itertools.islice(tilings.tilings(bad), MOST_LOOKED_AT):
        if stop():
            return
        if needed(graph) < now:
            yield parameters, graph


def _said(scheduled: Scheduled, bad: Sequence[int]) -> str:
    """What the compiler reported for some kernels with their schedule."""
    bodies = [body for _, body in _programs(scheduled.lowered)]
    tiles = "".join(f", {name} {extent}" for name, extent in scheduled.parameters.items())
    spilled = sum(scheduled.compiled[i].spill_bytes for i in bad)
    launch = f"{bodies[bad[0]].num_warps} warps, {bodies[bad[0]].num_stages} stages"
    return f"{launch}{tiles}: {spilled} bytes spilled"
