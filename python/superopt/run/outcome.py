"""What a run hands over: the program at three levels, its proof, the report, and the schedule that replays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superopt import __version__, cost, log
from superopt.dialects import writer
from superopt.dialects.writer import to_text
from superopt.naming import names_of
from superopt.report import Kept, KernelReport, Report, Schedule, launches
from superopt.transforms.schedule.kept import remarks
from superopt.verify import program_hash
from superopt.weights import split

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph
    from superopt.run.check import Accepted
    from superopt.run.context import Run
    from superopt.transforms.emit.compile import Compiled
    from superopt.transforms.emit.program_source import EmittedProgram
    from superopt.transforms.emit.ranged import Ranged
    from superopt.verify import Certificate
    from superopt.verify.ranges import Axis
    from superopt.verify.ttir import ArtifactRecord


@dataclass(frozen=True)
class Outcome:
    """What `superoptimize` found: the program at three levels, its proof, and how it came about."""

    original: KernelGraph
    optimized: KernelGraph
    lowered: KernelGraph
    emitted: EmittedProgram
    compiled: tuple[Compiled, ...]
    certificate: Certificate
    artifact: dict[str, ArtifactRecord] | str
    report: Report
    schedule: Schedule
    ranged: Ranged | None = None
    buckets: tuple[Bucket, ...] = ()
    """Where extents have kernels by their bucket: all of these, in order; this is the last one's outcome."""
    lacking: str = ""
    """Which of the extents that were asked for have no kernels, and why; empty where all have."""


@dataclass(frozen=True)
class Bucket:
    """A part of the ranges of some extents, and what was found for it; an axis whose ends are one is no range."""

    axes: tuple[Axis, ...]
    outcome: Outcome


def deliver(module: Any, outcome: Outcome, diagnostics: Diagnostics) -> None:
    """Make the optimized program all that `module` holds.

    What is not IR goes to `diagnostics.artifacts`: "outcome", and "report", "certificate" and "schedule" as JSON.
    """
    diagnostics.source = diagnostics.source or outcome.original
    diagnostics.artifacts["outcome"] = outcome
    diagnostics.artifacts["report"] = outcome.report.model_dump_json(indent=2)
    diagnostics.artifacts["certificate"] = outcome.certificate.model_dump_json(indent=2)
    diagnostics.artifacts["schedule"] = outcome.schedule.model_dump_json(indent=2)
    writer.replace(module, outcome.optimized)


def finish(original: KernelGraph, accepted: Accepted, run: Run, diagnostics: Diagnostics) -> Outcome:
    """Fill in what the report says about the result, and save the schedule."""
    target, report = run.target, run.report
    certificate = accepted.verdict.certificate
    assert certificate is not None, "an accepted program is equivalent"
    report.improved = accepted.graph is not original
    report.guarantee, report.delta = certificate.guarantee, certificate.delta
    report.numerics = accepted.numerics
    if said := run.budget.said():
        diagnostics.warning(said)
    for kernel in accepted.scheduled.compiled:
        if kernel.spill_bytes:
            why = accepted.scheduled.reason or "no other schedule was tried"
            diagnostics.warning(
                f"kernel '{kernel.name}' spills {kernel.spill_bytes} bytes of registers: {why}"
            )
    report.remarks += [str(m) for m in diagnostics.messages]
    if accepted.scheduled.reason:
        report.remarks.append(f"schedule of the kernels: {accepted.scheduled.reason}")
    report.remarks += remarks(accepted.scheduled.kept)
    scheduled = accepted.scheduled
    price(report, scheduled.lowered, scheduled.compiled, target, scheduled.kept)
    report.prepared_bytes = sum(v.type.bytes for v in split(scheduled.lowered).held)
    if report.prepared:
        report.remarks.append(report.prepared)
    log.event(
        "result",
        program=original.name,
        improved=report.improved,
        kernels=len(report.each_call),
        predicted_seconds=report.predicted_seconds,
        baseline_seconds=report.baseline_seconds,
        certificate=certificate.bound,
    )
    schedule = Schedule(
        superopt=__version__,
        target=run.settings.target,
        seed=run.settings.seed,
        program_sha256=program_hash(original),
        optimized=to_text(accepted.graph),
        names=names_of(accepted.graph),
        library=list(accepted.library),
        launches=launches(accepted.scheduled.lowered),
        parameters=dict(accepted.scheduled.parameters),
        reason=accepted.scheduled.reason,
        kept=dict(accepted.scheduled.kept),
    )
    return Outcome(
        original,
        accepted.graph,
        accepted.scheduled.lowered,
        accepted.scheduled.emitted,
        accepted.scheduled.compiled,
        certificate,
        accepted.artifact,
        report,
        schedule,
    )


def price(
    report: Report,
    lowered: KernelGraph,
    compiled: Sequence[Compiled],
    target: cost.Target,
    kept: Mapping[str, Kept],
) -> None:
    """Say in the report what the kernels that are delivered, and what else runs, are predicted to take.

    And why some, by name, keep more memory transactions than suffice.
    """
    report.predicted_seconds = cost.compiled_seconds(lowered, compiled, target)
    report.kernels, report.others = [], []
    for priced in cost.priced_kernels(lowered, compiled, target):
        kernel = priced.compiled
        listed = report.kernels if kernel is not None else report.others
        counts = kernel and kernel.counts
        listed.append(
            KernelReport(
                name=kernel.name if kernel is not None else priced.limit,
                predicted_seconds=priced.seconds,
                limit=priced.limit,
                dram_bytes=priced.traffic.dram_bytes,
                l2_bytes=priced.traffic.l2_bytes,
                tensor_flops=priced.traffic.tensor_flops,
                vector_flops=priced.traffic.vector_flops,
                blocks=priced.traffic.blocks,
                shared_bytes=kernel and kernel.shared_bytes,
                registers=kernel and kernel.registers,
                spilled_bytes=kernel and kernel.spill_bytes,
                wavefronts=counts and (counts.shared.made, counts.shared.needed),
                sectors=counts and (counts.device.made, counts.device.needed),
                kept=kept[kernel.name].why if kernel is not None and kernel.name in kept else None,
                trips=priced.trips,
                prepared=priced.prepared,
            )
        )
