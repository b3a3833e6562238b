"""The whole flow, from a program to verified kernels, read top to bottom in `superoptimize`.

    kernel graph -> segments -> candidates -> equivalent ones, ranked -> lowered -> compiled -> numerically safe

A candidate replaces its segment only if it is predicted to be faster, proved equivalent, compiles, and stays
within the numeric tolerance; otherwise the next one is tried, and at last the segment stays as it is.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from superopt.candidates import SEARCHES, Accepted, Candidate, Run
from superopt.diagnostics import Diagnostics
from superopt.errors import BadOption
from superopt.program import KernelGraph
from superopt.transforms.passes import ModulePass

if TYPE_CHECKING:
    from superopt.report import Report, Schedule
    from superopt.reuse import Known
    from superopt.transforms.emit.compile import Compiled
    from superopt.transforms.emit.program_source import EmittedProgram
    from superopt.transforms.partition.segments import Segment
    from superopt.verify import Certificate


@dataclass(frozen=True)
class Superoptimize(ModulePass):
    """Search for the fastest equivalent program, prove it, and keep it if it is predicted to be faster."""

    flag: ClassVar[str] = "superoptimize"

    target: str = "sm_90"
    """The GPU to optimize for: sm_80, sm_90 or sm_100."""

    budget: float = 60.0
    """Seconds that all may take, searches half of them; beyond a first, no check begins that would end late."""

    seed: int = 0
    """Seed of everything random; the same seed gives the same result."""

    delta: float = 1e-9
    """Largest acceptable probability that the certificate is wrong."""

    optimizers: tuple[Literal["mugraph", "saturation"], ...] = ("mugraph", "saturation")
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
        from superopt.cost.gpus import target

        target(self.target)
        if not self.budget > 0:
            raise BadOption(f"expected a positive budget in seconds, got {self.budget}")
        if not 0 < self.delta < 1:
            raise BadOption(f"expected a delta between 0 and 1, got {self.delta}")
        if self.seed < 0:
            raise BadOption(f"expected no negative seed, got {self.seed}")
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
    """The fastest program equivalent to `graph` that the optimizers find and prove within the budget.

    What was proved by its end is delivered. One check is made however late it is: that of the best candidate, or
    of `graph` itself where that failed.

    Raises NotEquivalent where the finished program cannot be certified, which would be a fault of ours.
    """
    from superopt.transforms.partition.segments import partition

    with first_interrupt_stops() as stopped:
        run = _start(graph, settings, diagnostics, stopped)
        known = run.earlier.result(graph)
        if known is not None and known.enough:
            diagnostics.progress("from the store", None)
            if (accepted := _reused(graph, known, run)) is not None:
                return _outcome(graph, accepted, run, diagnostics)

        with run.timed("partition"):
            segments = partition(graph)
        run.report.segments = len(segments)
        in_parts = len(segments) != 1 or not segments[0].whole
        rounds: list[tuple[KernelGraph, Sequence[str]]] = [(s.graph, settings.optimizers) for s in segments]
        if in_parts and "saturation" in settings.optimizers:
            # It takes programs of more operators than the muGraph search: it sees the whole, too.
            rounds.append((graph, ("saturation",)))
        proposals: list[list[Candidate]] = []
        for number, (part, optimizers) in enumerate(rounds):
            diagnostics.progress(f"search {number + 1} of {len(rounds)}", number / len(rounds))
            share = run.search_budget_left() / (len(rounds) - number)
            nominal = settings.budget * SEARCHES / len(rounds)
            proposals.append(run.propose(part, optimizers, seconds=share, nominal=nominal))

        diagnostics.progress("proofs and compilation", None)
        if in_parts:
            accepted = _choose_of_parts(graph, segments, proposals, run)
        else:
            accepted = run.choose(graph, proposals[0], segment=0)
        if accepted is None:
            accepted = _unchanged(graph, run)
        if known is not None and known.seconds < run.predicted(accepted.graph):
            accepted = _reused(graph, known, run) or accepted
        if stopped():
            run.report.remarks.append("interrupted: this is the best that was found by then")
    diagnostics.progress("done", 1.0)
    outcome = _outcome(graph, accepted, run, diagnostics)
    run.earlier.keep_result(graph, accepted.graph, outcome, finished=not stopped())
    return outcome


def _start(
    graph: KernelGraph, settings: Superoptimize, diagnostics: Diagnostics, stopped: Callable[[], bool]
) -> Run:
    """A run with an empty report; raises IllegalProgram where `graph` is none."""
    from superopt import __version__, cost
    from superopt.report import Report
    from superopt.reuse import Earlier
    from superopt.spec import check_kernel

    target = cost.target(settings.target)
    report = Report(
        superopt=__version__,
        program=graph.name,
        target=settings.target,
        settings={o.name: getattr(settings, o.field) for o in settings.options() if o.field != "store"},
    )
    check_kernel(graph, target.shared_per_block)
    run = Run(settings, target, report, Earlier(settings, target, diagnostics), stopped)
    report.input_predicted_seconds = run.predicted(graph)
    return run


def _choose_of_parts(
    graph: KernelGraph, segments: Sequence[Segment], proposals: Sequence[Sequence[Candidate]], run: Run
) -> Accepted | None:
    """The best of a program in parts: a candidate for all of it, or what is chosen for each segment, stitched.

    `proposals` are those of each segment, then those for the whole program. Segments are only looked at once
    no candidate that promises more than all of them together has passed. What was found before an interrupt is
    still proved; one that comes during the proofs leaves the segments to come as they are, and so does the end of
    the budget.
    """
    from superopt.transforms.lower.choose_layouts import choose_layouts
    from superopt.transforms.partition.segments import stitch

    searches_stopped = run.stopped()
    least = run.predicted(graph)
    for segment, candidates in zip(segments, proposals, strict=False):
        if candidates:
            least -= max(run.predicted(segment.graph) - candidates[0].seconds, 0.0)
    wide = proposals[len(segments)] if len(proposals) > len(segments) else ()
    accepted = run.choose(graph, [c for c in wide if c.seconds < least])
    if accepted is not None:
        return accepted
    optimized = graph
    for number, (segment, candidates) in enumerate(zip(segments, proposals, strict=False)):
        if (run.stopped() and not searches_stopped) or run.late_for_the_whole():
            break
        accepted = run.choose(segment.graph, candidates, segment=number)
        if accepted is not None:
            optimized = stitch(optimized, segment, accepted.graph)
            run.earlier.keep_result(graph, optimized, None, finished=False)
    rest = [c for c in wide if c.seconds >= least]
    if optimized is not graph:
        optimized = choose_layouts(optimized, run.target)  # of what lies between segments
        rest.append(Candidate("segments", optimized, run.predicted(optimized)))
        rest.sort(key=lambda c: c.seconds)
    return run.choose(graph, rest)


def _reused(original: KernelGraph, known: Known, run: Run) -> Accepted | None:
    """What an earlier run found, proved, compiled and measured again; None where it does not hold."""
    from superopt.verify import program_hash

    same = program_hash(known.graph) == program_hash(original)
    accepted, outcome = run.check(original, original if same else known.graph)
    found = "was proved again" if accepted is not None else f"was dropped: {outcome}"
    run.report.remarks.append(f"the result of an earlier run, from the store, {found}")
    return accepted


def _unchanged(graph: KernelGraph, run: Run) -> Accepted:
    """The program as it is, compiled: what is returned where nothing better passed every check."""
    from superopt.errors import UnsupportedProgram

    accepted, outcome = run.check(graph, graph)
    if accepted is None:
        raise UnsupportedProgram(f"expected a program that can be compiled, got one where: {outcome}")
    return accepted


def _outcome(
    original: KernelGraph,
    accepted: Accepted,
    run: Run,
    diagnostics: Diagnostics,
) -> Outcome:
    """Fill in what the report says of the result, and freeze the schedule."""
    from superopt import __version__, cost
    from superopt.dialects.writer import to_text
    from superopt.naming import names_of
    from superopt.report import KernelReport, Schedule, launches
    from superopt.verify import program_hash

    target, report = run.target, run.report
    certificate = accepted.verdict.certificate
    assert certificate is not None, "an accepted program is equivalent"
    total = cost.cost(accepted.graph, target)
    report.predicted_seconds = total.seconds
    report.improved = accepted.graph is not original
    report.guarantee, report.delta = certificate.guarantee, certificate.delta
    report.numerics = accepted.numerics
    report.remarks += [str(m) for m in diagnostics.messages]
    if accepted.shaped.reason:
        report.remarks.append(f"schedule of the kernels: {accepted.shaped.reason}")
    tiled = [node for node in accepted.shaped.lowered.nodes if node.op == "tiled"]
    for node, kernel in zip(tiled, accepted.shaped.compiled, strict=True):
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
        target=run.settings.target,
        seed=run.settings.seed,
        program_sha256=program_hash(original),
        optimized=to_text(accepted.graph),
        names=names_of(accepted.graph),
        launches=launches(accepted.shaped.lowered),
        parameters=dict(accepted.shaped.parameters),
        reason=accepted.shaped.reason,
    )
    return Outcome(
        original,
        accepted.graph,
        accepted.shaped.lowered,
        accepted.shaped.emitted,
        accepted.shaped.compiled,
        certificate,
        report,
        schedule,
    )


def replay(graph: KernelGraph, schedule: Schedule, diagnostics: Diagnostics) -> Outcome:
    """The result that `schedule` froze, proved and compiled again, without a search.

    Raises BadInput where the schedule is another program's, NotEquivalent where it does not compute `graph`.
    """
    from superopt.dialects.reader import read
    from superopt.errors import BadInput, NotEquivalent
    from superopt.naming import give_names
    from superopt.verify import program_hash

    found = program_hash(graph)
    if found != schedule.program_sha256:
        raise BadInput(
            f"expected a schedule of program {found[:12]}, got one of {schedule.program_sha256[:12]}"
        )
    settings = Superoptimize(target=schedule.target, seed=schedule.seed, store=None)
    run = _start(graph, settings, diagnostics, lambda: False)
    optimized = read(schedule.optimized, "schedule")
    give_names(optimized, schedule.names)
    accepted, outcome = run.check(graph, optimized, schedule)
    if accepted is None:
        raise NotEquivalent(
            f"expected a schedule that computes the program, got one that was rejected: {outcome}"
        )
    return _outcome(graph, accepted, run, diagnostics)


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
