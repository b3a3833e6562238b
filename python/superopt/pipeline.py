"""The whole flow, from a program to verified kernels, read top to bottom in `superoptimize`.

    kernel graph -> segments -> candidates -> equivalent ones, ranked -> lowered -> compiled -> numerically safe

A candidate replaces its segment only if it is predicted to be faster, proved equivalent, compiles, and stays
within the numeric tolerance; otherwise the next one is tried, and at last the segment stays as it is.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from superopt.diagnostics import Diagnostics
from superopt.errors import BadOption
from superopt.program import KernelGraph
from superopt.transforms.passes import ModulePass

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.report import Report, Schedule
    from superopt.reuse import Earlier, Known
    from superopt.transforms.emit.compile import Compiled
    from superopt.transforms.emit.program_source import EmittedProgram
    from superopt.verify import Certificate, Verdict


@dataclass(frozen=True)
class Superoptimize(ModulePass):
    """Search for the fastest equivalent program, prove it, and keep it if it is predicted to be faster."""

    flag: ClassVar[str] = "superoptimize"

    target: str = "sm_90"
    """The GPU to optimize for: sm_80, sm_90 or sm_100."""

    budget: float = 60.0
    """Seconds that the search may take; what was found by then is used."""

    seed: int = 0
    """Seed of everything random; the same seed gives the same result."""

    delta: float = 1e-9
    """Largest acceptable probability that the certificate is wrong."""

    optimizers: tuple[Literal["mugraph", "saturation"], ...] = ("mugraph",)
    """Who proposes candidates, in this order: the muGraph search, and equality saturation of tile loops."""

    prune: Literal["normal-form", "smt", "none"] = "normal-form"
    """Who answers the pruning questions of the muGraph search: the normal form, z3, or nobody."""

    candidates: int = 8
    """How many candidates of a segment may be verified before it is left as it is."""

    numerics: bool = True
    """Check candidates against fp64 with their real precision."""

    store: str | None = "default"
    """Folder that keeps results from run to run, or none; default is $SUPEROPT_STORE (which may be none too), or
    superopt in the user's cache folder. What comes from it is proved again."""

    def __post_init__(self) -> None:
        from superopt.cost import target_names

        if self.target not in target_names():
            raise BadOption(f"expected a target of {', '.join(target_names())}, got '{self.target}'")
        if not self.budget > 0:
            raise BadOption(f"expected a positive budget in seconds, got {self.budget}")
        if not 0 < self.delta < 1:
            raise BadOption(f"expected a delta between 0 and 1, got {self.delta}")
        if self.candidates < 1:
            raise BadOption(f"expected at least one candidate, got {self.candidates}")

    def run(self, module: Any, diagnostics: Diagnostics) -> None:
        """Replace the module's function by the best program found; linalg is ingested first."""
        from superopt.transforms.ingest.ingest_linalg import read_linalg

        deliver(module, superoptimize(read_linalg(module, diagnostics), self, diagnostics), diagnostics)


@dataclass(frozen=True)
class Outcome:
    """What `superoptimize` found: the program at three levels, its proof, and how it came about."""

    original: KernelGraph
    optimized: KernelGraph
    lowered: KernelGraph
    emitted: EmittedProgram
    compiled: tuple[Compiled, ...]
    certificate: Certificate
    report: Report
    schedule: Schedule


@dataclass(frozen=True)
class _Accepted:
    """A candidate that passed every check, or a whole program after the last one."""

    graph: KernelGraph
    lowered: KernelGraph
    emitted: EmittedProgram
    compiled: tuple[Compiled, ...]
    verdict: Verdict
    numerics: str


def deliver(module: Any, outcome: Outcome, diagnostics: Diagnostics) -> None:
    """Make the optimized program all that `module` holds.

    What is no IR goes to `diagnostics.artifacts`: "outcome", and "report", "certificate" and "schedule" as JSON.
    """
    from superopt.dialects import writer

    diagnostics.artifacts["outcome"] = outcome
    diagnostics.artifacts["report"] = outcome.report.model_dump_json(indent=2)
    diagnostics.artifacts["certificate"] = outcome.certificate.model_dump_json(indent=2)
    diagnostics.artifacts["schedule"] = outcome.schedule.model_dump_json(indent=2)
    writer.replace(module, outcome.optimized)


def superoptimize(graph: KernelGraph, settings: Superoptimize, diagnostics: Diagnostics) -> Outcome:
    """The fastest program equivalent to `graph` that the optimizers find within the budget.

    Raises NotEquivalent where the finished program cannot be certified, which would be a fault of ours.
    """
    from superopt import cost
    from superopt.reuse import Earlier
    from superopt.spec import check_kernel
    from superopt.transforms.partition.segments import partition, stitch

    target = cost.target(settings.target)
    report = _new_report(graph, settings, target)
    check_kernel(graph, target.shared_per_block)
    earlier = Earlier(settings, target, diagnostics)
    known = earlier.result(graph)
    if known is not None and known.enough:
        diagnostics.progress("from the store", None)
        if (accepted := _reused(graph, known, target, settings, report)) is not None:
            return _outcome(graph, accepted, target, settings, report, diagnostics)
    deadline = time.monotonic() + settings.budget

    with _timed(report, "partition"):
        segments = partition(graph)
    report.segments = len(segments)
    optimized = graph
    accepted: _Accepted | None = None
    with first_interrupt_stops() as stopped:
        for number, segment in enumerate(segments):
            diagnostics.progress(f"segment {number + 1} of {len(segments)}", number / len(segments))
            share = max((deadline - time.monotonic()) / (len(segments) - number), 0.0)
            if stopped():
                break  # the segments that are left stay as they are
            nominal = settings.budget / len(segments)
            candidates = _propose(segment.graph, target, settings, share, nominal, report, stopped, earlier)
            accepted = _choose(segment.graph, number, candidates, target, settings, report)
            if accepted is not None:
                optimized = stitch(optimized, segment, accepted.graph)
                earlier.keep_result(graph, optimized, None, finished=False)
        if stopped():
            report.remarks.append("interrupted: this is the best that was found by then")

    if accepted is None or len(segments) > 1 or not segments[0].whole:
        diagnostics.progress("whole program", None)
        accepted = _finish(graph, optimized, target, settings, report)
    if known is not None and known.seconds < cost.cost(accepted.graph, target).seconds:
        accepted = _reused(graph, known, target, settings, report) or accepted
    diagnostics.progress("done", 1.0)
    outcome = _outcome(graph, accepted, target, settings, report, diagnostics)
    earlier.keep_result(graph, accepted.graph, outcome, finished=not stopped())
    return outcome


def _reused(
    original: KernelGraph, known: Known, target: Target, settings: Superoptimize, report: Report
) -> _Accepted | None:
    """What an earlier run found, proved, compiled and measured again; None where it does not hold."""
    from superopt.verify import program_hash

    same = program_hash(known.graph) == program_hash(original)
    accepted, outcome = _check(original, original if same else known.graph, target, settings, report)
    found = "was proved again" if accepted is not None else f"was dropped: {outcome}"
    report.remarks.append(f"the result of an earlier run, from the store, {found}")
    return accepted


def _propose(
    graph: KernelGraph,
    target: Target,
    settings: Superoptimize,
    seconds: float,
    nominal: float,
    report: Report,
    stopped: Callable[[], bool],
    earlier: Earlier,
) -> list[tuple[str, KernelGraph]]:
    """Candidates of every optimizer with who proposed them; what was found when `stopped` says so.

    A search that an earlier run did for `nominal` seconds, shared by all optimizers, is not done again.
    """
    from superopt.transforms import mugraph_search, tile_saturation

    end = time.monotonic() + seconds
    candidates: list[tuple[str, KernelGraph]] = []
    for i, optimizer in enumerate(settings.optimizers):
        share = (end - time.monotonic()) / (len(settings.optimizers) - i)
        if share <= 0 or stopped():
            break
        kept = earlier.candidates(graph, optimizer, nominal / len(settings.optimizers))
        if kept is not None:
            report.funnel.add({f"store.{optimizer}": len(kept)})
            report.funnel.proposed += len(kept)
            candidates += [(optimizer, candidate) for candidate in kept]
            continue
        start = time.monotonic()
        with _timed(report, f"search: {optimizer}"):
            if optimizer == "mugraph":
                options = mugraph_search.SearchOptions(prune=settings.prune)
                found = mugraph_search.propose(
                    graph, target, budget=share, seed=settings.seed, options=options, stop=stopped
                )
            else:
                found = tile_saturation.propose(graph, target, budget=share, seed=settings.seed, stop=stopped)
        report.funnel.add(found.funnel)
        report.funnel.proposed += len(found.candidates)
        candidates += [(optimizer, candidate) for candidate in found.candidates]
        if not stopped():
            used = time.monotonic() - start
            earlier.keep_candidates(graph, optimizer, found.candidates, allowed=share, used=used)
    return candidates


def _choose(
    graph: KernelGraph,
    segment: int,
    candidates: list[tuple[str, KernelGraph]],
    target: Target,
    settings: Superoptimize,
    report: Report,
) -> _Accepted | None:
    """The first candidate, fastest predicted first, that passes every check; None if none does."""
    from superopt import cost
    from superopt.report import CandidateReport

    with _timed(report, "rank"):
        baseline = cost.cost(graph, target).seconds
        ranked = sorted(((cost.cost(c, target).seconds, i) for i, (_, c) in enumerate(candidates)))
    report.funnel.ranked += len(ranked)
    best: _Accepted | None = None
    tried = 0
    for rank, (seconds, index) in enumerate(ranked):
        optimizer, candidate = candidates[index]
        if best is not None:
            outcome = "ranked below the chosen one"
        elif seconds >= baseline:
            outcome = "not predicted to be faster"
        elif tried == settings.candidates:
            outcome = "not tried: enough candidates failed"
        else:
            tried += 1
            best, outcome = _check(graph, candidate, target, settings, report)
        if best is None:
            report.funnel.reject(outcome)
        entry = CandidateReport(
            segment=segment,
            optimizer=optimizer,
            rank=rank,
            kernels=len(cost.cost(candidate, target).kernels),
            predicted_seconds=seconds,
            outcome=outcome,
        )
        report.candidates.append(entry)
    return best


def _check(
    graph: KernelGraph, candidate: KernelGraph, target: Target, settings: Superoptimize, report: Report
) -> tuple[_Accepted | None, str]:
    """Prove, lower, compile and measure the error of one candidate; (result, what happened)."""
    from superopt.errors import IllegalProgram
    from superopt.reuse import foreign_externs
    from superopt.spec import check_kernel
    from superopt.transforms.emit.compile import CompilationFailed, compile_all
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.lower import lower
    from superopt.verify import certify

    try:
        check_kernel(candidate, target.shared_per_block)
    except IllegalProgram as error:
        return None, f"illegal: {error.message}"
    if foreign := foreign_externs(graph, candidate):
        return None, f"illegal: runs '{foreign[0]}', which the program does not"
    with _timed(report, "verify"):
        verdict = certify(graph, candidate, delta=settings.delta, seed=settings.seed)
    if not verdict.equivalent:
        return None, "not equivalent"
    report.funnel.verified += 1
    with _timed(report, "lower"):
        lowered = lower(candidate, target.name)
    with _timed(report, "verify"):
        if not certify(candidate, lowered, delta=settings.delta, seed=settings.seed).equivalent:
            return None, "lowering changed it"
    try:
        with _timed(report, "compile"):
            emitted = emit_program(lowered)
            compiled = tuple(compile_all(emitted.kernels, [target.name]))
    except CompilationFailed as error:
        return None, f"does not compile: {error.message}"
    report.funnel.compiled += 1
    numerics = "not checked"
    if settings.numerics:
        from superopt.numerics import gate

        with _timed(report, "numerics"):
            measured = gate(graph, lowered)
        numerics = measured.summary
        if not measured.passed:
            return None, f"numerically unsafe: {numerics}"
    return _Accepted(candidate, lowered, emitted, compiled, verdict, numerics), "chosen"


def _finish(
    original: KernelGraph, optimized: KernelGraph, target: Target, settings: Superoptimize, report: Report
) -> _Accepted:
    """Prove and compile the whole program, stitched from its segments; the input itself where that fails."""
    accepted, outcome = _check(original, optimized, target, settings, report)
    if accepted is None and optimized is not original:
        report.remarks.append(f"the stitched program was dropped: {outcome}")
        accepted, outcome = _check(original, original, target, settings, report)
    if accepted is None:
        from superopt.errors import UnsupportedProgram

        raise UnsupportedProgram(f"expected a program that can be compiled, got one where: {outcome}")
    return accepted


def _new_report(graph: KernelGraph, settings: Superoptimize, target: Target) -> Report:
    from superopt import __version__, cost
    from superopt.report import Report

    report = Report(
        superopt=__version__,
        program=graph.name,
        target=settings.target,
        settings={o.name: getattr(settings, o.field) for o in settings.options() if o.field != "store"},
    )
    report.input_predicted_seconds = cost.cost(graph, target).seconds
    return report


def _outcome(
    original: KernelGraph,
    accepted: _Accepted,
    target: Target,
    settings: Superoptimize,
    report: Report,
    diagnostics: Diagnostics,
) -> Outcome:
    """Fill in what the report says of the result, and freeze the schedule."""
    from superopt import __version__, cost
    from superopt.dialects.writer import to_text
    from superopt.naming import names_of
    from superopt.report import KernelReport, Schedule
    from superopt.verify import program_hash

    certificate = accepted.verdict.certificate
    assert certificate is not None, "an accepted program is equivalent"
    total = cost.cost(accepted.graph, target)
    report.predicted_seconds = total.seconds
    report.improved = accepted.graph is not original
    report.guarantee, report.delta = certificate.guarantee, certificate.delta
    report.numerics = accepted.numerics
    report.remarks += [str(m) for m in diagnostics.messages]
    tiled = [node for node in accepted.lowered.nodes if node.op == "tiled"]
    for node, kernel in zip(tiled, accepted.compiled, strict=True):
        predicted = cost.kernel_cost(node, target)
        report.kernels.append(
            KernelReport(
                name=kernel.name,
                predicted_seconds=predicted.seconds,
                dram_bytes=predicted.traffic.dram_bytes,
                l2_bytes=predicted.traffic.l2_bytes,
                tensor_flops=predicted.traffic.tensor_flops,
                vector_flops=predicted.traffic.vector_flops,
                blocks=predicted.traffic.blocks,
                shared_bytes=kernel.shared_bytes,
                registers=kernel.registers,
                spilled_bytes=kernel.spill_bytes,
            )
        )
    schedule = Schedule(
        superopt=__version__,
        target=settings.target,
        seed=settings.seed,
        program_sha256=program_hash(original),
        optimized=to_text(accepted.graph),
        names=names_of(accepted.graph),
    )
    return Outcome(
        original,
        accepted.graph,
        accepted.lowered,
        accepted.emitted,
        accepted.compiled,
        certificate,
        report,
        schedule,
    )


def replay(graph: KernelGraph, schedule: Schedule, diagnostics: Diagnostics) -> Outcome:
    """The result that `schedule` froze, proved and compiled again, without a search.

    Raises BadInput where the schedule is another program's, NotEquivalent where it does not compute `graph`.
    """
    from superopt import cost
    from superopt.dialects.reader import read
    from superopt.errors import BadInput, NotEquivalent
    from superopt.naming import give_names
    from superopt.verify import program_hash

    found = program_hash(graph)
    if found != schedule.program_sha256:
        raise BadInput(
            f"expected a schedule of program {found[:12]}, got one of {schedule.program_sha256[:12]}"
        )
    settings = Superoptimize(target=schedule.target, seed=schedule.seed)
    target = cost.target(schedule.target)
    report = _new_report(graph, settings, target)
    optimized = read(schedule.optimized, "schedule")
    give_names(optimized, schedule.names)
    accepted, outcome = _check(graph, optimized, target, settings, report)
    if accepted is None:
        raise NotEquivalent(
            f"expected a schedule that computes the program, got one that was rejected: {outcome}"
        )
    return _outcome(graph, accepted, target, settings, report, diagnostics)


@contextmanager
def first_interrupt_stops() -> Generator[Callable[[], bool]]:
    """Within it, the first Ctrl-C only makes the yielded function say so; the second one is the usual error.

    Elsewhere than in the main thread, where signals cannot be caught, nobody stops anything.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    caught = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def catch(received: int, frame: object) -> None:
        caught.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, catch)
    try:
        yield caught.is_set
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _timed(report: Report, stage: str) -> Generator[None]:
    """Add the seconds that the block takes to the report's `stage`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        report.seconds[stage] = round(report.seconds.get(stage, 0.0) + time.perf_counter() - start, 4)
