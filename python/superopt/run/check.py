"""The gates that a candidate passes before it may be delivered, in their order.

A gate is a function of what is known about the candidate so far; it adds to that, and returns a clause that says
why the candidate fails, or an empty one. The pipeline, `superopt-bench prepare`, replays and results from the
store all go through these lists: the gates that lower a candidate and build it, after which it has its price, and
those that prove it, which take longer and are entered in the order of the prices (`superopt.run.choose`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast

from superopt import log
from superopt.errors import IllegalProgram, NotEquivalent, SuperoptError, UnsupportedProgram
from superopt.numerics import gate
from superopt.program import KernelGraph, NodeKind, opaque_key
from superopt.report import TIE
from superopt.run.context import Run
from superopt.spec import check_kernel
from superopt.transforms.emit.compile import CompilationFailed
from superopt.transforms.lower.lower import lower
from superopt.transforms.schedule.fit import Scheduled, as_scheduled, fit
from superopt.verify import Verdict, certify_lowered
from superopt.verify.ptx.artifact import checked_ptx
from superopt.verify.ttir import ArtifactRecord, checked
from superopt.verify.ttir.ran import Ran

if TYPE_CHECKING:
    from superopt.report import Schedule

# How the outcome of what loses too many bits begins.
UNSAFE = "numerically unsafe"
# What is tried before it is compiled. An image network would take half a minute, and rarely squares what is tiny.
_TINY, DRAFT_WORK = ("tiny",), 500_000_000


@dataclass(frozen=True)
class Accepted:
    """A program that passed every gate, with the gates' results.

    `artifact` is how the TTIR was checked against the program, and the PTX against the TTIR, by target, or why
    the TTIR could not be.
    """

    graph: KernelGraph
    scheduled: Scheduled
    verdict: Verdict
    artifact: dict[str, ArtifactRecord] | str
    numerics: str
    library: Sequence[int] = ()


@dataclass
class Attempt:
    """A candidate on its way through the gates; `schedule` fixes its tiles and launches where there is one.

    `library` are the products that are left to a library, by their places in the candidate.
    """

    original: KernelGraph
    candidate: KernelGraph
    schedule: Schedule | None = None
    library: Sequence[int] = ()
    lowered: KernelGraph | None = None
    verdict: Verdict | None = None
    scheduled: Scheduled | None = None
    artifact: dict[str, ArtifactRecord] | str = "not checked"
    ran: Ran | None = None
    numerics: str = "not checked"

    def accepted(self) -> Accepted:
        """What passed every gate."""
        assert self.scheduled is not None
        assert self.verdict is not None
        return Accepted(
            self.candidate, self.scheduled, self.verdict, self.artifact, self.numerics, self.library
        )


def legal(run: Run, attempt: Attempt) -> str:
    """A program of the kernel dialect that runs no opaque operation more often than the original."""
    return illegal(run, attempt.original, attempt.candidate)


def illegal(run: Run, original: KernelGraph, candidate: KernelGraph) -> str:
    """Why `candidate` cannot replace `original`, before any other gate; empty where it may."""
    given = cast("object", candidate)
    if not isinstance(given, KernelGraph):
        return f"illegal: expected a KernelGraph, got {type(given).__name__}"
    try:
        check_kernel(candidate, run.target.shared_per_block)
    except (IllegalProgram, UnsupportedProgram) as error:
        return f"illegal: {error.message}"
    if foreign := foreign_externs(original, candidate):
        return f"illegal: runs '{foreign[0]}', which the program does not"
    return ""


def lowered(run: Run, attempt: Attempt) -> str:
    """Has tile programs, with the tiles of the schedule where there is one."""
    if attempt.schedule is not None:
        attempt.library = attempt.schedule.library
    elif attempt.candidate is not attempt.original:  # the original, too, is delivered as kernels
        attempt.library = run.library(attempt.candidate)
    with run.timed("lower"):
        try:
            attempt.lowered = lower(attempt.candidate, run.target.name, library=attempt.library)
        except SuperoptError as error:
            return f"cannot be lowered: {error.message}"
        if attempt.schedule is not None:
            attempt.lowered = as_scheduled(attempt.lowered, attempt.schedule, run.target)
    return "" if attempt.lowered is not None else "lacks the schedule's tiles"


def exact_when_tiny(run: Run, attempt: Attempt) -> str:
    """As exact as the original on tiny inputs, with the tiles that it was lowered to.

    Compilation takes up to ten times as long, and most of what loses too many bits loses them here, where squares
    and products of what is not normalized yet vanish. What passes is tried on all inputs once it has its price.
    What differs in fp64, too, computes something else: the proofs say so.
    """
    if not run.settings.numerics:
        return ""
    assert attempt.lowered is not None
    with run.timed("numerics"):
        rounded = gate(attempt.original, attempt.lowered, distributions=_TINY, most_work=DRAFT_WORK)
        if rounded.passed:
            return ""
        exact = gate(
            attempt.original, attempt.lowered, nonce=rounded.nonce, distributions=_TINY, rounded=False
        )
    return f"{UNSAFE}: {rounded.summary}" if exact.passed else ""


def compiled(run: Run, attempt: Attempt) -> str:
    """Compiles to kernels that fit the target, with the tiles and launches that suit it."""
    assert attempt.lowered is not None
    late = "candidate without other schedules"
    missed = run.budget.missed[late]

    def stop() -> bool:
        if run.budget.schedules_end:
            run.budget.missed[late] = missed + 1
        return run.budget.schedules_end

    try:
        with run.timed("compile"):
            made = fit(attempt.lowered, run.compiler, fixed=attempt.schedule is not None, stop=stop)
    except CompilationFailed as error:
        return f"does not compile: {error.message}"
    except UnsupportedProgram as error:
        return f"cannot be written as kernels: {error.message}"
    if attempt.schedule is not None:
        given = attempt.schedule
        kept = {name: given.kept.get(name, why) for name, why in made.kept.items()}
        made = replace(made, parameters=given.parameters, reason=given.reason, kept=kept)
    attempt.scheduled = made
    run.report.funnel.compiled += 1
    return ""


def equivalent(run: Run, attempt: Attempt) -> str:
    """Certified to compute the original, with the bound asked for, and so are its tile programs.

    With `lower`'s tiles where others fail.
    """
    try:
        return _equivalent(run, attempt)
    except UnsupportedProgram as error:
        return f"not proved to be equivalent: {error.message}"


def _equivalent(run: Run, attempt: Attempt) -> str:
    assert attempt.lowered is not None
    assert attempt.scheduled is not None
    verdict, kept = _certified(run, attempt, attempt.scheduled.lowered)
    if (
        verdict.equivalent
        and not kept.equivalent
        and attempt.scheduled.parameters
        and attempt.schedule is None
    ):
        try:
            with run.timed("compile"):
                attempt.scheduled = fit(attempt.lowered, run.compiler, fixed=True)
        except CompilationFailed as error:
            return f"does not compile: {error.message}"
        verdict, kept = _certified(run, attempt, attempt.lowered)
    if verdict.certificate is None:
        return _differs("not equivalent", "not proved to be equivalent", verdict)
    attempt.verdict = verdict
    run.report.funnel.verified += 1
    if not kept.equivalent:
        return _differs("lowering changed it", "its lowered form is not proved", kept)
    return run.settings.unbounded(verdict.certificate)


def artifact(run: Run, attempt: Attempt) -> str:
    """The compiler's TTIR computes the program; what the check cannot decide is reported, not refused."""
    made = attempt.scheduled
    assert made is not None
    with run.timed("artifact"):
        try:
            attempt.ran = Ran(frozenset(k.ptx for k in made.compiled))
            attempt.artifact = checked(
                attempt.original, made.lowered, made.emitted, made.compiled, attempt.ran
            )
        except (NotEquivalent, IllegalProgram) as error:
            return f"the compiled kernels differ: {error.message}"
    return ""


def ptx(run: Run, attempt: Attempt) -> str:
    """The PTX stores what its TTIR stores, free of races; what the check cannot decide is reported by name."""
    made = attempt.scheduled
    assert made is not None
    with run.timed("artifact"):
        try:
            attempt.artifact = checked_ptx(
                attempt.artifact, made.lowered, made.emitted, made.compiled, ran=attempt.ran
            )
        except (NotEquivalent, IllegalProgram) as error:
            return f"the PTX differs: {error.message}"
    return ""


def numerically_safe(run: Run, attempt: Attempt) -> str:
    """As exact as the original on ordinary and adversarial inputs, within the tolerance.

    The original itself is what the user has, finite or not: its kernels are compared where it is finite.
    """
    if not run.settings.numerics:
        return ""
    assert attempt.scheduled is not None
    with run.timed("numerics"):
        measured = gate(attempt.original, attempt.scheduled.lowered)
    attempt.numerics = measured.summary
    rows = measured.rows
    if attempt.candidate is attempt.original:
        rows = tuple(row for row in rows if row.compared)
    return "" if all(row.passed for row in rows) else f"{UNSAFE}: {measured.summary}"


Gate: TypeAlias = Callable[[Run, Attempt], str]
LOWERED: tuple[Gate, ...] = (legal, lowered)
DRAFTED: tuple[Gate, ...] = (exact_when_tiny,)
BUILT: tuple[Gate, ...] = (compiled,)
PROVED: tuple[Gate, ...] = (equivalent, numerically_safe, artifact, ptx)


def passes(run: Run, attempt: Attempt, gates: Sequence[Gate]) -> str:
    """Put `attempt` through `gates`; returns the reason of the one that refuses it, empty where none does."""
    for gate_of in gates:
        name, start = gate_of.__name__, time.perf_counter()
        run.diagnostics.progress(f"check of a candidate: {name}", None)
        reason = gate_of(run, attempt)
        spent = round(time.perf_counter() - start, 4)
        program = attempt.candidate.name
        log.event("gate", program=program, gate=name, passed=not reason, reason=reason, seconds=spent)
        if reason:
            run.refused[attempt.candidate] = reason
            return reason
    return ""


def check(
    run: Run, original: KernelGraph, candidate: KernelGraph, schedule: Schedule | None = None
) -> tuple[Accepted | None, str]:
    """Put `candidate` for `original` through every gate; returns it if it passes, and the outcome in a clause."""
    attempt = Attempt(original, candidate, schedule)
    reason = passes(run, attempt, (*LOWERED, *BUILT, *PROVED))
    return (None, reason) if reason else (attempt.accepted(), "chosen")


def check_scheduled(
    run: Run, original: KernelGraph, candidate: KernelGraph, schedule: Schedule | None, seconds: float
) -> tuple[Accepted | None, str]:
    """As `check`, with tiles and launches that are known, which saves the compilation of others.

    Refused where they do not fit the candidate, or make kernels that need more than `seconds`.
    """
    if schedule is None:
        return None, "lacks a schedule"
    attempt = Attempt(original, candidate, schedule)
    if reason := passes(run, attempt, (*LOWERED, *BUILT)):
        return None, reason
    assert attempt.scheduled is not None
    if run.price(attempt.scheduled) > TIE * seconds:
        return None, "its kernels need more than was found"
    reason = passes(run, attempt, PROVED)
    return (None, reason) if reason else (attempt.accepted(), "chosen")


def _differs(differs: str, undecided: str, verdict: Verdict) -> str:
    """The words for a test that found another number, or those for none that decides, with the reason."""
    found = verdict.counterexample
    return differs if found is None or found.output is not None else f"{undecided}: {found.reason}"


def _certified(run: Run, attempt: Attempt, made: KernelGraph) -> tuple[Verdict, Verdict]:
    with run.timed("verify"):
        return certify_lowered(
            attempt.original, attempt.candidate, made, delta=run.settings.delta, seed=run.settings.seed
        )


def foreign_externs(original: KernelGraph, candidate: KernelGraph) -> list[str]:
    """Opaque operations that a candidate has more often than the original.

    A proof would not notice a result that nothing uses, but computing it would run the operation.
    """
    counts = [
        Counter(opaque_key(n) for n in g.nodes if n.op == NodeKind.EXTERN) for g in (original, candidate)
    ]
    return sorted((counts[1] - counts[0]).elements())
