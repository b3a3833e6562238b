"""`--emit` for what lies below MLIR: kernels as Triton, its IRs, PTX, cubins, bundles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt import __version__
from superopt.cost.gpus import DEFAULT_TARGET
from superopt.diagnostics import Diagnostics, counted
from superopt.dialects import reader
from superopt.dialects.writer import to_text
from superopt.driver import output
from superopt.driver.command_line import Settings
from superopt.errors import BadOption
from superopt.naming import names_of
from superopt.pipeline import replay
from superopt.report import Schedule
from superopt.transforms.emit import CompiledProgram, emit_text, save_bundle
from superopt.transforms.emit.compiled_program import compile_graph
from superopt.transforms.lower import lower
from superopt.verify import check_each, program_hash

if TYPE_CHECKING:
    from superopt.program import KernelGraph
    from superopt.run.outcome import Outcome


def emit(settings: Settings, module: Any, diagnostics: Diagnostics, name: str) -> None:
    """Write `module` as `settings.emit` says; `--superoptimize` has left its outcome in the artifacts.

    What the passes made of the ingested program is proved against that program.
    Raises `SuperoptError` where the program cannot be compiled, NotEquivalent where it computes something else.
    """
    outcome: Outcome | None = diagnostics.artifacts.get("outcome")
    graph = _graph(module, name)
    if outcome is not None and settings.target not in (None, outcome.schedule.target):
        raise BadOption(f"expected one target, got {outcome.schedule.target} and --target={settings.target}")
    if outcome is not None and program_hash(graph) != program_hash(outcome.optimized):
        outcome = None  # a later pass changed it
    original = diagnostics.source or graph
    if settings.emit == "bundle":
        _save(settings, outcome or _as_it_is(settings, original, graph))
        return

    if outcome is not None:
        compiled = CompiledProgram(outcome.emitted, outcome.compiled)
        content = compiled.counted_ptx() if settings.ptx_counts else compiled.artifact(settings.emit)
    else:
        check_each(original, graph, "the passes")
        target = settings.target or DEFAULT_TARGET
        if settings.ptx_counts:
            content = compile_graph(lower(graph, target), target).counted_ptx()
        else:
            content = emit_text(graph, settings.emit, target)
    output.write(settings.output, content)


def _graph(module: Any, name: str) -> KernelGraph:
    return reader.read(module, name)


def _as_it_is(settings: Settings, original: KernelGraph, graph: KernelGraph) -> Outcome:
    """What the passes made of `original`, without a search, proved and compiled like any other result."""
    schedule = Schedule(
        superopt=__version__,
        target=settings.target or DEFAULT_TARGET,
        seed=0,
        program_sha256=program_hash(original),
        optimized=to_text(graph),
        names=names_of(graph),
    )
    return replay(original, schedule, Diagnostics())


def _save(settings: Settings, outcome: Outcome) -> None:
    save_bundle(Path(settings.output), outcome)
    if not settings.quiet:
        sys.stderr.write(f"{settings.output}: {summary(outcome)}\n")


def summary(outcome: Outcome) -> str:
    """What was found, in one line; of buckets, the last one."""
    if many := len(outcome.buckets):
        return f"{counted(many, 'bucket')}, the last one: {summary(outcome.buckets[-1].outcome)}"
    report = outcome.report
    kernels = counted(len(report.each_call), "kernel")
    if calls := len(report.others):
        kernels += f" and {counted(calls, 'call')} of PyTorch"
    times = f"{report.predicted_seconds * 1e6:.1f} us predicted on {report.target}, "
    if report.baseline_seconds < report.input_predicted_seconds:
        times += f"{report.baseline_seconds * 1e6:.1f} us for the best a user has ({report.baseline}), "
    times += f"{report.input_predicted_seconds * 1e6:.1f} us operator by operator"
    if not report.improved:
        times += "; the input is returned"
        if report.baseline_seconds < report.predicted_seconds:
            times += f", whose kernels here are not what {report.baseline} runs: keep that"
    if report.prepared:
        times += f"; {report.prepared}"
    if spilled := sum(k.spilled_bytes or 0 for k in report.kernels):
        times += f"; {spilled} bytes of registers spilled"
    proof = outcome.certificate.bound
    if not outcome.certificate.same:
        proof = f"{report.guarantee}, {proof}"
    if (relation := outcome.certificate.relation) and relation.abstained is None:
        proof += f"; {relation.spoken}"
    return f"{kernels}; {times}; {proof}"
