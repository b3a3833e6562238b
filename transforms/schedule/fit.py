"""The schedule of a program's kernels, chosen by compiler results: launches, tile sizes, splits.

`lower` chooses by tiles alone. Where one of its kernels, once compiled, spills registers, exceeds shared memory
or is predicted to be slower than its tiles promise, others are compiled: first other warps and stages for the
same tiles, kernel by kernel, then the tilings of `tilings.py`, fastest predicted first. Of those compiled, the
choice is the one that `cost.compiled` predicts to be fastest, spills included; one that spills must gain much.
What its kernels do with memory is then counted on their PTX: those that bank conflicts make slow get separate
loads (`superopt.separate_loads`), other warps or other tiles. Cache hints are added where it predicts that they
pay. A launch, a hint or a second load does not change any number; the caller must prove other tiles.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superopt.cost import Target, compiled_cost, compiled_seconds, cost, kernel_cost
from superopt.cost.counted import CONFLICTS, KernelCounts, conflicts, counted, waste, without_waste
from superopt.errors import SuperoptError
from superopt.program import LAUNCH_FLAGS, KernelGraph, Node, TileProgram
from superopt.separate_loads import separable
from superopt.transforms.emit.compile import CompilationFailed, Compiled, compile_all, prepare_compiler
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.emit.triton_source import TritonKernel, emit_kernel
from superopt.transforms.schedule.kept import SLOW, Tries, Variant, kept
from superopt.transforms.schedule.launch import registers, stage_choices, warp_choices
from superopt.transforms.schedule.races import race
from superopt.transforms.schedule.tilings import Tilings

if TYPE_CHECKING:
    from superopt.report import Kept, Schedule

# The most launches of a kernel that are compiled, and the most programs with other tiles: more where a kernel
# spills or does not fit.
MOST_LAUNCHES, MOST_TILINGS, MOST_TILINGS_OF_BAD = 4, 3, 8
# Bytes of device memory that the blocks of a kernel may take for themselves.
MOST_SCRATCH = 1 << 30
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
    kept: Mapping[str, Kept] = field(default_factory=dict[str, "Kept"])
    """Why kernels, by name, make many more memory transactions than suffice; the worst first."""


def fit(
    lowered: KernelGraph,
    compiler: Compiler,
    *,
    fixed: bool = False,
    counted: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> Scheduled:
    """`lowered` with the kernels that suit the compiler's target best; unchanged where `fixed`.

    Where not `counted`, what they do with memory is left out of account.
    Once `stop` returns True and a schedule fits, no other is tried.
    Raises CompilationFailed and UnsupportedProgram where it cannot be compiled as it is, CompilationFailed where
    no schedule of it fits the target's shared memory.
    """
    target, first = compiler.target, compiler.scheduled(lowered)
    if fixed:
        first = _fitting(first, target)
        with contextlib.suppress(CompilationFailed):
            first = compiler.counting.scheduled(lowered)
        return _with_kept(first, "its schedule was given", target)
    first = _alone(first, compiler)
    best = _rescheduled(first, compiler, stop) if _slow(first, target) else first
    best, tries = _fitting(best, target), Tries()
    if counted:
        with contextlib.suppress(CompilationFailed):  # what cannot be counted is priced without
            best, tries = _without_conflicts(best, compiler.counting, stop)
            compiler = compiler.counting
    return _with_kept(ordered(_hinted(best, compiler), compiler), tries, target)


def _with_kept(scheduled: Scheduled, tries: Tries | str, target: Target) -> Scheduled:
    """With why its kernels make more memory transactions than suffice, where they do."""
    why = kept(scheduled.lowered, scheduled.compiled, tries, target)
    return dataclasses.replace(scheduled, kept=why)


def _fitting(scheduled: Scheduled, target: Target) -> Scheduled:
    """`scheduled`; raises CompilationFailed where a kernel needs more shared memory or scratch than there is."""
    for kernel in scheduled.emitted.kernels:
        needed = sum(p.type.bytes for p in kernel.parameters if p.role == "scratch")
        if needed > MOST_SCRATCH:
            raise CompilationFailed(
                f"kernel '{kernel.name}': expected at most {MOST_SCRATCH} bytes of scratch, got one that "
                f"needs {needed}"
            )
    for index in oversized(scheduled, target)[:1]:
        kernel, most = scheduled.compiled[index], target.shared_per_block
        got = f"one that needs {kernel.shared_bytes}"
        raise CompilationFailed(
            f"kernel '{kernel.name}' for {target.name}: expected at most {most} bytes of shared memory, got {got}"
        )
    return scheduled


def _rescheduled(first: Scheduled, compiler: Compiler, stop: Callable[[], bool]) -> Scheduled:
    """The best of the other launches, tiles and splits for the slow kernels of `first`."""
    target, tried = compiler.target, [first]

    def enough() -> bool:
        return stop() and not all(oversized(s, target) for s in tried)

    def best() -> Scheduled:
        return min(tried, key=lambda s: _rank(s, target))

    if not enough():
        tried += [*_masked(first, compiler), *_launched(first, compiler)]
    launched = best()
    if _slow(launched, target):
        most = MOST_TILINGS_OF_BAD if _bad(launched, target) else MOST_TILINGS
        for parameters, graph in itertools.islice(_tilings(launched, target, enough), most):
            try:
                made = compiler.scheduled(graph, parameters)
            except CompilationFailed:
                continue
            if made.compiled == launched.compiled:
                continue
            tried.append(made)
            if not _slow(made, target):
                break
    return dataclasses.replace(best(), reason=_reason(first, best(), tried, target))


def _masked(first: Scheduled, compiler: Compiler) -> Iterator[Scheduled]:
    """The slow kernels with one loop each, whose trips all see the mask."""
    nodes = list(first.lowered.nodes)
    slow = [_programs(first.lowered)[i] for i in _slow(first, compiler.target)]
    for index, body in slow:
        nodes[index] = dataclasses.replace(nodes[index], body=dataclasses.replace(body, separate_masks=False))
    if any(body.separate_masks for _, body in slow):
        with contextlib.suppress(CompilationFailed):
            yield compiler.scheduled(dataclasses.replace(first.lowered, nodes=nodes))


def _alone(first: Scheduled, compiler: Compiler) -> Scheduled:
    """With no kernel beside those that spill for it: to let the next one start takes registers from some."""
    nodes, said = list(first.lowered.nodes), list[str]()
    for number, (index, body) in enumerate(_programs(first.lowered)):
        spilled = first.compiled[number].spill_bytes
        if spilled and first.emitted.kernels[number].early and not body.alone:
            nodes[index] = dataclasses.replace(nodes[index], body=dataclasses.replace(body, alone=True))
            said.append(f"{body.name}: no kernel starts before its end, or it would spill {spilled} bytes")
    if said:
        with contextlib.suppress(CompilationFailed):
            made = compiler.scheduled(dataclasses.replace(first.lowered, nodes=nodes), first.parameters)
            if _rank(made, compiler.target) < _rank(first, compiler.target):
                return dataclasses.replace(made, reason="; ".join(said))
    return first


def _without_conflicts(
    best: Scheduled, compiler: Compiler, stop: Callable[[], bool]
) -> tuple[Scheduled, Tries]:
    """`best` counted; kernels that bank conflicts or sectors make slow have other loads, warps or tiles.

    And what was compiled besides.
    """
    target = compiler.target
    found = compiler.scheduled(best.lowered, best.parameters)
    found, tries = _without_conflicts_in_launches(dataclasses.replace(found, reason=best.reason), compiler)
    if not any(_slowed(k, n, target) for k, n in _priced(found)):
        return found, tries
    tried = [(found, tries)]
    for parameters, graph in itertools.islice(_tilings(found, target, stop), MOST_TILINGS):
        with contextlib.suppress(CompilationFailed):
            tried.append(_without_conflicts_in_launches(compiler.scheduled(graph, parameters), compiler))
    made, of_made = min(tried, key=lambda t: _rank(t[0], target))
    before, after = _rank(found, target), _rank(made, target)
    if after[1] * SLOW >= before[1] or after[0]:
        made, of_made = found, tries
    else:
        prices = f"{before[1] * 1e6:.1f} us before, {after[1] * 1e6:.1f} us now"
        said = f"other tiles, for fewer bank conflicts: {prices}"
        made = dataclasses.replace(made, reason="; ".join(filter(None, [found.reason, said, made.reason])))
    others = [_seconds(s, target) for s, t in tried if t is not of_made]
    return made, dataclasses.replace(of_made, tilings=others, ended=stop())


def _without_conflicts_in_launches(found: Scheduled, compiler: Compiler) -> tuple[Scheduled, Tries]:
    """Counted kernels with separate loads, or with twice or half the warps, where that leaves fewer conflicts.

    And what was compiled besides. Warps are changed where conflicts cost time. A second load may also save
    wavefronts at the same price.
    """
    target, said, tries = compiler.target, [found.reason], Tries()

    def rank(scheduled: Scheduled, number: int) -> tuple[bool, float, float]:
        return *_rank_of_kernel(scheduled, number, target), conflicts(scheduled.compiled[number])

    for number, (_, body) in enumerate(_programs(found.lowered)):
        facts, node = found.compiled[number], _nodes(found.lowered)[number]
        slow = _slowed(facts, node, target)
        if not slow and conflicts(facts) <= CONFLICTS:
            continue
        again = not body.separate_loads and separable(body)
        bodies = [dataclasses.replace(body, separate_loads=True)] if again else []
        if slow and body.separate_masks:
            bodies += [dataclasses.replace(b, separate_masks=False) for b in (body, *bodies)]
        if slow:
            near = [w for w in warp_choices(body) if w in (2 * body.num_warps, body.num_warps // 2)]
            bodies += [dataclasses.replace(b, num_warps=w) for b in (body, *bodies) for w in near]
        others = _relaunched(found, number, bodies, compiler)
        made = min(others, key=lambda s, i=number: rank(s, i), default=found)
        tries.failed[body.name] = len(bodies) - len(others)
        before, after = rank(found, number), rank(made, number)
        dearer = after[0] > before[0] or after[1] > before[1]
        if not dearer and (after[1] * SLOW < before[1] or after[2] < before[2]):
            what = "; ".join(_changes(body, _programs(made.lowered)[number][1]))
            gain = " and ".join(f"{r[1] * 1e6:.1f} us with {r[2]:.2f}" for r in (before, after))
            said.append(f"{body.name}: {what}: {gain} times the wavefronts that suffice")
            found, others = made, [found, *(s for s in others if s is not made)]
        for other in others:
            bodies = [_programs(s.lowered)[number][1] for s in (found, other)]
            tries.variants[body.name].append(
                Variant(
                    "; ".join(_changes(*bodies)),
                    _seconds_of_kernel(other, number, target),
                    rank(other, number)[2],
                )
            )
    return dataclasses.replace(found, reason="; ".join(filter(None, said))), tries


def _changes(before: TileProgram, after: TileProgram) -> Iterator[str]:
    """What another launch changes, in words."""
    if after.separate_loads != before.separate_loads:
        how = "for each" if after.separate_loads else "once for both"
        yield f"what products and other operators use is loaded {how}"
    if after.separate_masks != before.separate_masks:
        yield "trips of their own without the mask" if after.separate_masks else "all trips see the mask"
    if after.num_warps != before.num_warps:
        yield f"{after.num_warps} warps where it had {before.num_warps}"


def _slowed(facts: Compiled, node: Node, target: Target) -> bool:
    """Whether what was counted makes a kernel slow, and bank conflicts or sectors beyond need are part of it."""

    def times_slower(other: Compiled) -> float:
        return compiled_cost(node, facts, target).seconds / compiled_cost(node, other, target).seconds

    if conflicts(facts) > 1.0 and times_slower(dataclasses.replace(facts, counts=None)) > SLOW:
        return True
    return waste(facts) > CONFLICTS and times_slower(without_waste(facts)) > SLOW


def _priced(scheduled: Scheduled) -> Iterator[tuple[Compiled, Node]]:
    """The kernels and their nodes."""
    return zip(scheduled.compiled, _nodes(scheduled.lowered), strict=True)


def _reason(first: Scheduled, best: Scheduled, tried: Sequence[Scheduled], target: Target) -> str:
    """Why `best` is delivered instead of `first`, or `first` although a kernel spills; else nothing."""
    slow, others = _slow(first, target), len(tried) - 1
    if best is not first:
        return f"{_said(first, slow, target)}; {_said(best, slow, target)} after {others} tries"
    if not _bad(first, target):
        return ""
    dearer = min((_seconds(s, target) for s in tried[1:]), default=0.0)
    return f"{_said(first, slow, target)}; none of {others} other schedules is better" + (
        f": the next needs {dearer * 1e6:.1f} us" if others else ""
    )


def ordered(scheduled: Scheduled, compiler: Compiler) -> Scheduled:
    """With another launch for kernels that race as they are launched, where one does not.

    Triton 3.6 lacks the fence between an asynchronous copy and the tensor core: one stage mends that, and so do
    tensor descriptors, whose copies need none; the cheaper of both is taken. On sm_100, what is loaded from
    tensor memory may be packed before it is waited for, and a kernel may be nothing but a trap: other warps may
    mend that. Only kernels of these kinds are run here; the gate on the PTX checks all.
    """
    said: list[str] = []
    for number, (_, body) in enumerate(_programs(scheduled.lowered)):
        if not (fault := race(scheduled.emitted.kernels[number], scheduled.compiled[number])):
            continue
        warps, stages = body.num_warps, body.num_stages
        others = [dataclasses.replace(body, num_stages=1)]
        if _may_describe(body, compiler.target):
            others.append(dataclasses.replace(body, num_stages=min(stages, 2), descriptors=True))
        found = _relaunched(scheduled, number, others, compiler)
        best = sorted(found, key=lambda s: _rank(s, compiler.target))[:1]
        mended = [(_launch_of(s, number), stages, s) for s in best]
        if not mended:
            others = [dataclasses.replace(body, num_warps=w) for w in warp_choices(body) if w != warps]
            found = _relaunched(scheduled, number, others, compiler)
            best = sorted(found, key=lambda s: _rank(s, compiler.target))[:1]
            mended = [(f"{_programs(s.lowered)[number][1].num_warps} warps", warps, s) for s in best]
        for what, before, made in mended:
            said.append(f"{body.name}: {what}, as with {before} its {fault}")
            scheduled = made
    return dataclasses.replace(scheduled, reason="; ".join(filter(None, [scheduled.reason, *said])))


def _may_describe(body: TileProgram, target: Target) -> bool:
    """Whether tensor descriptors would change a kernel."""
    described = dataclasses.replace(body, descriptors=True)
    return target.has_copy_engine and not body.descriptors and emit_kernel(described).descriptors


def _launch_of(scheduled: Scheduled, number: int) -> str:
    """What mends a race of a pipelined kernel, in words."""
    _, body = _programs(scheduled.lowered)[number]
    return f"tensor descriptors and {body.num_stages} stages" if body.descriptors else "one stage"


def _relaunched(
    scheduled: Scheduled, number: int, bodies: Iterable[TileProgram], compiler: Compiler
) -> list[Scheduled]:
    """`scheduled` with other launches of a kernel, where it then fits and does not race."""
    index, _ = _programs(scheduled.lowered)[number]
    found: list[Scheduled] = []
    for body in bodies:
        nodes = list(scheduled.lowered.nodes)
        nodes[index] = dataclasses.replace(nodes[index], body=body)
        graph = dataclasses.replace(scheduled.lowered, nodes=nodes)
        with contextlib.suppress(CompilationFailed):
            made = compiler.scheduled(graph, scheduled.parameters)
            racing = race(made.emitted.kernels[number], made.compiled[number])
            if number not in oversized(made, compiler.target) and not racing:
                found.append(dataclasses.replace(made, reason=scheduled.reason))
    return found


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
            for flag in LAUNCH_FLAGS:
                setattr(program, flag, getattr(launch, flag))
    return made


class Compiler:
    """Compiles programs, each different kernel once.

    `counts` says whether what the kernels do with memory is counted: prices without and with it do not compare.
    """

    def __init__(self, target: Target, *, counts: bool = False) -> None:
        prepare_compiler()  # while the caller searches
        self.target, self.counts = target, counts
        self._made: dict[TritonKernel, Compiled] = {}
        self._counts: dict[TritonKernel, KernelCounts] = {}

    @property
    def counting(self) -> Compiler:
        """The same, with what it has compiled, that counts."""
        made = copy.copy(self)
        made.counts = True
        return made

    def scheduled(self, graph: KernelGraph, parameters: Mapping[str, int] | None = None) -> Scheduled:
        """`graph` with its kernels compiled; raises CompilationFailed and UnsupportedProgram.

        Where it counts, CompilationFailed for kernels that cannot be counted, too.
        """
        emitted = emit_program(graph)
        new = [k for k in dict.fromkeys(emitted.kernels) if k not in self._made]
        self._made.update(zip(new, compile_all(new, [self.target.name]), strict=True))
        compiled = [self._made[k] for k in emitted.kernels]
        if self.counts:
            compiled = [self._counted(k, c) for k, c in zip(emitted.kernels, compiled, strict=True)]
        return Scheduled(graph, emitted, tuple(compiled), parameters or {})

    def _counted(self, kernel: TritonKernel, compiled: Compiled) -> Compiled:
        if kernel not in self._counts:
            try:
                self._counts[kernel] = counted(kernel, compiled)
            except SuperoptError as error:  # the gate on the PTX says so
                raise CompilationFailed(error.message) from None
        return dataclasses.replace(compiled, counts=self._counts[kernel])


def _programs(graph: KernelGraph) -> list[tuple[int, TileProgram]]:
    return [(i, n.body) for i, n in enumerate(graph.nodes) if isinstance(n.body, TileProgram)]


def _nodes(graph: KernelGraph) -> list[Node]:
    return [n for n in graph.nodes if isinstance(n.body, TileProgram)]


def _bad(scheduled: Scheduled, target: Target) -> list[int]:
    """The kernels, by number, that spill or do not fit."""
    large = oversized(scheduled, target)
    return [i for i, k in enumerate(scheduled.compiled) if k.spill_bytes or i in large]


def _slow(scheduled: Scheduled, target: Target) -> list[int]:
    """The bad kernels, by number, and those that are predicted to be slower than their tiles promise."""
    bad, nodes = _bad(scheduled, target), _nodes(scheduled.lowered)
    return [
        i
        for i, (node, facts) in enumerate(zip(nodes, scheduled.compiled, strict=True))
        if i in bad or compiled_cost(node, facts, target).seconds > SLOW * kernel_cost(node, target).seconds
    ]


def oversized(scheduled: Scheduled, target: Target) -> list[int]:
    """The kernels, by number, that need more shared memory than a block may have."""
    return [i for i, k in enumerate(scheduled.compiled) if k.shared_bytes > target.shared_per_block]


def _rank(scheduled: Scheduled, target: Target) -> tuple[bool, float]:
    """The smaller, the better: whether a kernel does not fit, and the seconds, with a handicap for spills."""
    spills = any(k.spill_bytes for k in scheduled.compiled)
    seconds = _seconds(scheduled, target)
    return bool(oversized(scheduled, target)), seconds / LEAST_SPILLING_GAIN if spills else seconds


def _rank_of_kernel(scheduled: Scheduled, number: int, target: Target) -> tuple[bool, float]:
    """The rank of one kernel alone."""
    facts, seconds = scheduled.compiled[number], _seconds_of_kernel(scheduled, number, target)
    large = facts.shared_bytes > target.shared_per_block
    return large, seconds / LEAST_SPILLING_GAIN if facts.spill_bytes else seconds


def _seconds_of_kernel(scheduled: Scheduled, number: int, target: Target) -> float:
    return compiled_cost(_nodes(scheduled.lowered)[number], scheduled.compiled[number], target).seconds


def _seconds(scheduled: Scheduled, target: Target) -> float:
    return compiled_seconds(scheduled.lowered, scheduled.compiled, target)


def _launched(first: Scheduled, compiler: Compiler) -> list[Scheduled]:
    """The same tiles with other launches of the slow kernels, and with the best one of each."""
    target, kernels = compiler.target, _programs(first.lowered)
    slow = {i: _launches(first, i, target) for i in _slow(first, target)}
    found: list[Scheduled] = []
    for step in range(max(map(len, slow.values()))):
        nodes = list(first.lowered.nodes)
        for i, launches in slow.items():
            index, body = kernels[i]
            if step < len(launches):
                warps, stages = launches[step]
                body = dataclasses.replace(body, num_warps=warps, num_stages=stages)
                nodes[index] = dataclasses.replace(nodes[index], body=body)
        with contextlib.suppress(CompilationFailed):
            found.append(compiler.scheduled(dataclasses.replace(first.lowered, nodes=nodes)))
    if len(slow) > 1 and found:
        nodes = list(first.lowered.nodes)
        for i in slow:
            ranked = sorted((first, *found), key=lambda s, i=i: _rank_of_kernel(s, i, target))
            index = kernels[i][0]
            nodes[index] = ranked[0].lowered.nodes[index]
        found.append(compiler.scheduled(dataclasses.replace(first.lowered, nodes=nodes)))
    return found


def _launches(scheduled: Scheduled, number: int, target: Target) -> list[tuple[int, int]]:
    """Other warps and stages of a slow kernel: fewer stages where it does not fit, more warps where it spills."""
    _, body = _programs(scheduled.lowered)[number]
    warps, stages, choices = body.num_warps, body.num_stages, warp_choices(body)
    more = [w for w in choices if w > warps]
    if number in oversized(scheduled, target):
        found = [(warps, s) for s in (stages - 1, stages - 2)]
    elif scheduled.compiled[number].spill_bytes:
        found = [(w, stages) for w in more]
    else:
        around = [*more[:1], *(w for w in choices if 2 * w == warps)]
        found = [*((w, stages) for w in around), *((warps, s) for s in (stages + 1, stages - 1))]
    most = max(stages, *stage_choices(body, target))
    return [(w, s) for w, s in found if 1 <= s <= most][:MOST_LAUNCHES]


def _tilings(
    scheduled: Scheduled, target: Target, stop: Callable[[], bool]
) -> Iterator[tuple[dict[str, int], KernelGraph]]:
    """Other splits, and tiles of the slow kernels, fastest predicted first.

    Tiles of kernels that spill or do not fit need fewer registers; others promise less time than it takes now.
    """
    slow, bad = _slow(scheduled, target), _bad(scheduled, target)
    launches = [(body.num_warps, body.num_stages) for _, body in _programs(scheduled.lowered)]

    def needed(graph: KernelGraph) -> float:
        bodies = [body for _, body in _programs(graph)]
        return max(registers(bodies[i], bodies[i].num_warps) for i in bad)

    now = needed(scheduled.lowered) if bad else 0.0
    seconds = _seconds(scheduled, target)
    tilings = Tilings(scheduled.lowered, target)
    for parameters, graph in itertools.islice(tilings.tilings(slow), MOST_LOOKED_AT):
        if stop() or (not bad and cost(graph, target).seconds >= seconds):
            return
        if bad and needed(graph) >= now:
            continue
        for i, (_, body) in enumerate(_programs(graph)):
            if i not in slow:
                body.num_warps, body.num_stages = launches[i]
        yield parameters, graph


def _said(scheduled: Scheduled, slow: Sequence[int], target: Target) -> str:
    """What the compiler reported for the slow kernels with their schedule, and the seconds of the whole."""
    bodies = [body for _, body in _programs(scheduled.lowered)]
    tiles = "".join(f", {name} {extent}" for name, extent in scheduled.parameters.items())
    spilled = sum(scheduled.compiled[i].spill_bytes for i in slow)
    launch = f"{bodies[slow[0]].num_warps} warps, {bodies[slow[0]].num_stages} stages"
    return f"{launch}{tiles}: {spilled} bytes spilled, {_seconds(scheduled, target) * 1e6:.1f} us"
