"""A program whose shapes depend on extents: one set of kernels for whole ranges of them.

The program is superoptimized at one extent of each axis, as any other. Its tile programs are then written with
the extents as arguments of each kernel, and those kernels are compiled, once. They are proved as kernels always
are, launched with extents all over the ranges (`superopt.verify.ranges`); at the ends and at one point inside,
the program is read anew, and errors in floating point are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from superopt import cost
from superopt.cost.counted import counted
from superopt.diagnostics import Diagnostics
from superopt.errors import BadOption, NotEquivalent, SuperoptError, UnsupportedProgram
from superopt.naming import GENERATED
from superopt.numerics import gate
from superopt.pipeline import superoptimize
from superopt.program import KernelGraph
from superopt.report import TIE
from superopt.run import outcome
from superopt.run.outcome import Outcome
from superopt.run.settings import Settings
from superopt.transforms.emit.compile import Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram
from superopt.transforms.emit.ranged import MOST_ELEMENTS, ranged_interface, written
from superopt.transforms.emit.triton_source import TritonKernel
from superopt.transforms.schedule.kept import kept
from superopt.verify import certify, program_hash
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ranges import (
    Axis,
    ExtentRecord,
    Family,
    Point,
    RangeRecord,
    ends_and_inside,
    forms,
    representatives,
    to_prove,
)
from superopt.verify.ttir.artifact import texts_at
from superopt.verify.ttir.check import ArtifactRecord, verify_ttir
from superopt.verify.ttir.ran import Ran


class AnotherProgram(UnsupportedProgram):
    """A program that depends on an extent by more than its shapes."""


def axis(name: str, low: int, high: int, places: Iterable[tuple[int, int, int]]) -> Axis:
    """The axis with these bounds at these places; raises BadOption for bounds in the wrong order, bad names."""
    if not 1 <= low < high <= MOST_ELEMENTS:
        raise BadOption(f"expected 1 <= min < max for '{name}', got {low} and {high}")
    if not name.isidentifier():
        raise BadOption(f"expected a name for the extent, got '{name}'")
    if name in GENERATED:
        raise BadOption(
            f"expected an extent by another name than '{name}', which kernels or their launcher use"
        )
    return Axis(name=name, low=low, high=high, places=tuple(places))


def superoptimize_range(
    read_at: Callable[[Point], KernelGraph],
    over: Sequence[Axis],
    settings: Settings,
    diagnostics: Diagnostics,
) -> Outcome:
    """The outcome of `superoptimize` whose kernels take any extents of the axes `over`, within their bounds.

    `read_at` reads the program at an extent of each axis. Raises AnotherProgram where the program is another
    one at some extents, UnsupportedProgram where its kernels cannot be made for all; NotEquivalent and
    IllegalProgram where kernels fail their proof, and what `superoptimize` raises.
    """

    def source(extents: Point) -> KernelGraph:  # kernels for a range prepare nothing
        return replace(read_at(extents), weights=())

    searched = representatives(over)
    given = source(searched)
    read = _read_anew(given, source, over)
    found = superoptimize(given, settings, diagnostics)
    try:
        family = Family(found.original, found.lowered, over)
    except UnsupportedProgram as error:
        if found.report.improved:
            raise
        raise UnsupportedProgram(
            f"{error.message}: at {_text(searched)} nothing faster was found, and the kernels are the input's"
        ) from None
    emitted = written(family)
    diagnostics.progress(f"kernels for {' and '.join(map(str, over))}", None)
    at = _by_name(over, family.extents)
    compiled = tuple(
        _counted(kernel, made, at)
        for kernel, made in zip(emitted.kernels, compile_all(emitted.kernels, [settings.target]), strict=True)
    )
    target = cost.target(settings.target)
    why = kept(found.lowered, compiled, "its schedule is that of fixed extents", target)
    outcome.price(found.report, found.lowered, compiled, target, why)
    seconds, (before, name) = found.report.predicted_seconds, found.report.best_before
    if found.report.improved and seconds > TIE * before:
        raise UnsupportedProgram(
            f"expected kernels that are predicted to be faster than {name}, {before * 1e6:.1f} us at "
            f"{_text(searched)}, got {seconds * 1e6:.1f} us with the extents as arguments"
        )
    records: list[ExtentRecord] = []
    known = forms(family)
    for extents in to_prove(over, known):
        original, lowered = family.at(extents)
        if (given := read.get(extents)) is not None:
            if settings.numerics and not (measured := gate(given, lowered)).passed:
                raise NotEquivalent(f"at extent {_text(extents)}: numerically unsafe: {measured.summary}")
            original = given
        form = known[extents]
        records.append(proved(original, lowered, emitted, compiled, over, extents, form, settings))
    record = RangeRecord(
        axes=tuple(over), tiles=tuple(family.tiles), extents=tuple(records), examined=len(known)
    )
    found.report.remarks.append(record.summary)
    ranged = ranged_interface(family, record)
    artifact = checked_at(found.original, found.lowered, emitted, *_texts(compiled), at)
    made = replace(found, emitted=emitted, compiled=compiled, ranged=ranged)
    return replace(made, artifact={settings.target: artifact})


def _counted(kernel: TritonKernel, compiled: Compiled, at: Mapping[str, int]) -> Compiled:
    """With what the kernel does with memory, where it can be counted: part of its price."""
    try:
        return replace(compiled, counts=counted(kernel, compiled, at))
    except SuperoptError:  # its check says why
        return compiled


def _read_anew(
    given: KernelGraph, source: Callable[[Point], KernelGraph], over: Sequence[Axis]
) -> dict[Point, KernelGraph]:
    """The program at the ends and inside; raises AnotherProgram where it is not the `given` one, resized."""
    family, found = Family(given, given, over), {at: source(at) for at in ends_and_inside(over)}
    for at, graph in found.items():
        if program_hash(graph) != program_hash(family.at(at)[0]) and min(at) > 1:
            raise AnotherProgram(f"expected one program for all extents, got another at {_text(at)}")
    return found


def _by_name(over: Sequence[Axis], extents: Point) -> dict[str, int]:
    return dict(zip((a.name for a in over), extents, strict=True))


def _text(extents: Point) -> str:
    return " x ".join(map(str, extents))


def proved(
    original: KernelGraph,
    lowered: KernelGraph,
    emitted: EmittedProgram,
    compiled: tuple[Compiled, ...],
    over: Sequence[Axis],
    extents: Point,
    form: str,
    settings: Settings,
) -> ExtentRecord:
    """The proof of the kernels at one extent of each axis; raises NotEquivalent and what `verify_ttir` raises."""
    verdict = certify(original, lowered, delta=settings.delta, seed=settings.seed)
    if verdict.certificate is None:
        raise NotEquivalent(f"at extent {_text(extents)}: {verdict.counterexample}")
    if unbounded := settings.unbounded(verdict.certificate):
        raise NotEquivalent(f"at extent {_text(extents)}: {unbounded}")
    record = checked_at(original, lowered, emitted, *_texts(compiled), _by_name(over, extents))
    return ExtentRecord(
        extents=extents,
        delta=verdict.certificate.delta,
        delta_extents=verdict.certificate.delta_extents,
        instances=sum(record.drawn.instances),
        blocks=sum(record.drawn.blocks),
        form=form,
    )


def _texts(compiled: Sequence[Compiled]) -> tuple[list[str], list[PtxText], str]:
    """TTIR and PTX of kernels, and their target."""
    return [k.ttir for k in compiled], [PtxText(k.ptx, k.shared_bytes) for k in compiled], compiled[0].target


def checked_at(
    original: KernelGraph,
    lowered: KernelGraph,
    emitted: EmittedProgram,
    ttir: Sequence[str],
    ptx: Sequence[PtxText],
    target: str,
    extents: Mapping[str, int],
) -> ArtifactRecord:
    """The record of the kernels' TTIR and PTX, launched with extents; raises as `verify_ttir`."""
    texts = texts_at(emitted, ttir, target, extents)
    ran = Ran(frozenset(t.ptx for t in ptx))
    record = verify_ttir(original, lowered, texts, ran=ran)
    return record.model_copy(update={"ptx": verify_ptx(lowered, texts, ptx, ran=ran)})
