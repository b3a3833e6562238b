"""The whole flow, from a program to verified kernels, read top to bottom in `superoptimize`.

    kernel graph -> parts -> candidates -> equivalent ones, ranked -> lowered -> compiled -> numerically safe

A candidate replaces what it was found for only if it passes every gate of `superopt.run.check`; otherwise the
next one is tried, and if none passes, the program stays as it is.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from superopt import verify
from superopt.errors import BadInput, NotEquivalent
from superopt.naming import give_names
from superopt.run.settings import Settings
from superopt.transforms.ingest.ingest_linalg import read_linalg
from superopt.transforms.passes import ModulePass

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph
    from superopt.report import Schedule
    from superopt.run.check import Accepted
    from superopt.run.context import Run
    from superopt.run.outcome import Outcome
    from superopt.run.reuse import Known


INTERRUPTED = "interrupted: this is the best result found by then"
STOPPING = "\ninterrupted: the best result by now is proved and kept; Ctrl-C again ends the run\n"
_outer: list[Callable[[], bool]] = []  # of the main thread, at most one


@dataclass(frozen=True)
class Superoptimize(Settings, ModulePass):
    """Search for the fastest equivalent program, prove it equivalent, and keep it if predicted to be faster."""

    flag: ClassVar[str] = "superoptimize"

    def run(self, module: Any, diagnostics: Diagnostics) -> None:
        """Replace the module's function by the best program found; linalg is ingested first."""
        from superopt.run import buckets, outcome

        if not self.dynamic:
            made = superoptimize(read_linalg(module, diagnostics), self, diagnostics)
        else:
            made = buckets.superoptimize_linalg(module, self, diagnostics)
        outcome.deliver(module, made, diagnostics)


def superoptimize(graph: KernelGraph, settings: Settings, diagnostics: Diagnostics) -> Outcome:
    """The fastest program equivalent to `graph` that the optimizers find and prove within the budget.

    Raises IllegalProgram for an illegal graph, UnsupportedProgram for one that cannot be compiled.
    """
    from superopt.run import choose, context, outcome, propose
    from superopt.tuning import improve

    with first_interrupt_stops() as stopped:
        run = context.start(graph, settings, diagnostics, stopped)
        known = run.earlier.result(graph)
        if known is not None and known.enough:
            diagnostics.progress("from the store", None)
            if (accepted := _reused(graph, known, run)) is not None:
                return outcome.finish(graph, accepted, run, diagnostics)
            known = None  # it would be dropped again

        with run.timed("partition"):
            parts = propose.parts(graph)
        run.report.segments = len(parts) - 1 or 1
        candidates = propose.propose(run, parts, diagnostics.progress)
        diagnostics.progress("proofs and compilation", None)
        accepted = choose.choose(run, graph, parts, candidates)
        if settings.tune:
            diagnostics.progress("tuning", None)
            accepted = improve.improved(run, graph, parts, candidates, accepted)
            if accepted.graph is graph:
                choose.say_unchanged(run, graph)
        if known is not None and known.seconds < (price := run.price(accepted.scheduled)):
            accepted = _reused(graph, known, run, price) or accepted
        if stopped():
            run.report.remarks.append(INTERRUPTED)
    diagnostics.progress("done", 1.0)
    made = outcome.finish(graph, accepted, run, diagnostics)
    run.earlier.keep_result(graph, accepted.graph, made, finished=not stopped())
    return made


def _reused(
    original: KernelGraph, known: Known, run: Run, most_seconds: float | None = None
) -> Accepted | None:
    """What an earlier run found, proved, compiled and measured again; None where it does not hold.

    Nor may it need more than `most_seconds`, by default those that any other program than the original may need:
    the store's word for its time may be anybody's.
    """
    from superopt.run import check, choose

    same = verify.program_hash(known.graph) == verify.program_hash(original)
    candidate = original if same else known.graph
    accepted, outcome = check.check_scheduled(run, original, candidate, known.schedule, known.seconds)
    if accepted is None:
        accepted, outcome = check.check(run, original, candidate)
    if most_seconds is None:
        most_seconds = math.inf if same else run.most_seconds
    if accepted is not None and run.price(accepted.scheduled) > most_seconds:
        accepted, outcome = None, choose.NOT_FASTER
    found = "was proved again" if accepted is not None else f"was dropped: {outcome}"
    run.report.remarks.append(f"the result of an earlier run, from the store, {found}")
    return accepted


def replay(graph: KernelGraph, schedule: Schedule, diagnostics: Diagnostics) -> Outcome:
    """The result saved in `schedule`, proved and compiled again, without a search.

    Raises BadInput where the schedule is another program's, NotEquivalent where it does not compute `graph`.
    """
    from superopt.dialects.reader import read
    from superopt.run import check, context, outcome

    found = verify.program_hash(graph)
    if found != schedule.program_sha256:
        raise BadInput(
            f"expected a schedule of program {found[:12]}, got one of {schedule.program_sha256[:12]}"
        )
    # Which program it is was decided before: the certificate says what bound it has.
    allow = "congruence-without-bound"
    settings = Settings(target=schedule.target, seed=schedule.seed, store=None, allow=allow)
    run = context.start(graph, settings, diagnostics)
    optimized = read(schedule.optimized, "schedule")
    give_names(optimized, schedule.names)
    same = verify.program_hash(optimized) == found
    accepted, reason = check.check(run, graph, graph if same else optimized, schedule)
    if accepted is None:
        raise NotEquivalent(
            f"expected a schedule that computes the program, got one that was rejected: {reason}"
        )
    return outcome.finish(graph, accepted, run, diagnostics)


@contextmanager
def first_interrupt_stops() -> Generator[Callable[[], bool]]:
    """Within it, the first Ctrl-C only makes the yielded function return True; the second one is the usual error.

    Of several within each other, that is the outermost one: what consists of many runs is stopped by one Ctrl-C.
    Outside the main thread, signals cannot be caught: the function then always returns False.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    if _outer:
        yield _outer[0]
        return
    caught = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def catch(received: int, frame: object) -> None:
        caught.set()
        signal.signal(signal.SIGINT, before)
        try:
            sys.stderr.write(STOPPING)
        except RuntimeError:  # it was being written to
            os.write(2, STOPPING.encode())

    signal.signal(signal.SIGINT, catch)
    _outer.append(caught.is_set)
    try:
        yield caught.is_set
    finally:
        _outer.clear()
        signal.signal(signal.SIGINT, before)
