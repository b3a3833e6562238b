"""A program whose shapes depend on one extent: one set of kernels for a whole range of it.

The program is superoptimized at one extent, as any other. Its tile programs are then written with the extent as
an argument of each kernel, and those kernels are compiled, once. They are proved as kernels always are, launched
with extents all over the range (`superopt.verify.ranges`); at the ends and at one extent inside, the program is
read anew, and errors in floating point are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from superopt.diagnostics import Diagnostics
from superopt.errors import BadOption, NotEquivalent, UnsupportedProgram
from superopt.numerics import gate
from superopt.pipeline import superoptimize
from superopt.program import KernelGraph, power_of_two
from superopt.run.outcome import Outcome
from superopt.run.settings import Settings
from superopt.transforms.emit.compile import Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram
from superopt.transforms.emit.ranged import MOST_ELEMENTS, ranged_interface, written
from superopt.transforms.ingest.at_extent import at_extent, dynamic_dimension
from superopt.transforms.ingest.ingest_linalg import read_linalg
from superopt.verify import certify, program_hash
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ranges import ExtentRecord, Family, RangeRecord, forms, prime_below, to_prove
from superopt.verify.ttir.artifact import texts_at
from superopt.verify.ttir.check import ArtifactRecord, verify_ttir


@dataclass(frozen=True)
class Range:
    """An extent from `low` to `high`, called `name`: dimension `dim` of the input `argument`.

    Raises BadOption for bounds in the wrong order.
    """

    name: str
    low: int
    high: int
    argument: int
    dim: int

    def __post_init__(self) -> None:
        if not 1 <= self.low < self.high <= MOST_ELEMENTS:
            raise BadOption(f"expected 1 <= min < max for '{self.name}', got {self.low} and {self.high}")
        if not self.name.isidentifier():
            raise BadOption(f"expected a name for the extent, got '{self.name}'")

    @property
    def representative(self) -> int:
        """The extent to search at: a prime, which no tile divides, as close to `high` as tiles allow."""
        prime = prime_below(self.high)
        while prime < 3 or power_of_two(prime) < power_of_two(self.high):
            prime = next(n for n in range(prime + 1, 2 * prime + 2) if prime_below(n) == n)
        return prime


def superoptimize_range(
    read_at: Callable[[int], KernelGraph], over: Range, settings: Settings, diagnostics: Diagnostics
) -> Outcome:
    """The outcome of `superoptimize` whose kernels take any extent of the range `over`.

    `read_at` reads the program at an extent. Raises UnsupportedProgram where the program is another one at some
    extent, or its kernels cannot be made for all; NotEquivalent and IllegalProgram where kernels fail their
    proof, and what `superoptimize` raises.
    """

    def source(extent: int) -> KernelGraph:  # kernels for a range prepare nothing
        return replace(read_at(extent), weights=())

    found = superoptimize(source(over.representative), settings, diagnostics)
    family = Family(found.original, found.lowered, over.argument, over.dim)
    emitted = written(family, over.name)
    diagnostics.progress(f"kernels for {over.name} from {over.low} to {over.high}", None)
    compiled = tuple(compile_all(emitted.kernels, [settings.target]))
    records: list[ExtentRecord] = []
    known = forms(family, over.low, over.high)
    chosen, read = to_prove(known)
    for extent in chosen:
        original, lowered = family.at(extent)
        if extent in read:
            given = source(extent)
            if program_hash(given) != program_hash(original) and extent > 1:
                raise UnsupportedProgram(f"expected one program for all extents, got another at {extent}")
            if settings.numerics and not (measured := gate(given, lowered)).passed:
                raise NotEquivalent(f"at extent {extent}: numerically unsafe: {measured.summary}")
            original = given
        records.append(proved(original, lowered, emitted, compiled, extent, known[extent], settings))
    record = RangeRecord(
        name=over.name, low=over.low, high=over.high, argument=over.argument, dim=over.dim,
        tiles=family.tiles, extents=records, examined=len(known),
    )  # fmt: skip
    found.report.remarks.append(record.summary)
    ranged = ranged_interface(family, record)
    artifact = checked_at(found.original, found.lowered, emitted, *_texts(compiled), family.extent)
    made = replace(found, emitted=emitted, compiled=compiled, ranged=ranged)
    return replace(made, artifact={settings.target: artifact})


def superoptimize_linalg(module: Any, settings: Settings, diagnostics: Diagnostics) -> Outcome:
    """`superoptimize_range` of a module in linalg whose tensors have a dynamic extent, in `settings.dynamic`.

    Raises BadInput where no argument has one, or a result's does not follow from the arguments'.
    """
    over = Range(*settings.bounds, *dynamic_dimension(module))

    def source(extent: int) -> KernelGraph:
        heard = diagnostics if extent == over.representative else Diagnostics()
        return read_linalg(at_extent(module, extent), heard)

    return superoptimize_range(source, over, settings, diagnostics)


def proved(
    original: KernelGraph,
    lowered: KernelGraph,
    emitted: EmittedProgram,
    compiled: tuple[Compiled, ...],
    extent: int,
    form: str,
    settings: Settings,
) -> ExtentRecord:
    """The proof of the kernels at one extent; raises NotEquivalent and what `verify_ttir` raises."""
    verdict = certify(original, lowered, delta=settings.delta, seed=settings.seed)
    if verdict.certificate is None:
        raise NotEquivalent(f"at extent {extent}: {verdict.counterexample}")
    if unbounded := settings.unbounded(verdict.certificate):
        raise NotEquivalent(f"at extent {extent}: {unbounded}")
    record = checked_at(original, lowered, emitted, *_texts(compiled), extent)
    return ExtentRecord(
        extent=extent,
        delta=verdict.certificate.delta,
        delta_extents=verdict.certificate.delta_extents,
        instances=sum(record.counts[0]),
        blocks=sum(record.counts[1]),
        form=form,
    )


def _texts(compiled: Sequence[Compiled]) -> tuple[list[str], list[PtxText]]:
    return [k.ttir for k in compiled], [PtxText(k.ptx, k.shared_bytes) for k in compiled]


def checked_at(
    original: KernelGraph,
    lowered: KernelGraph,
    emitted: EmittedProgram,
    ttir: Sequence[str],
    ptx: Sequence[PtxText],
    extent: int,
) -> ArtifactRecord:
    """The record of the kernels' TTIR and PTX, launched with an extent; raises as `verify_ttir`."""
    texts = texts_at(emitted, ttir, extent)
    record = verify_ttir(original, lowered, texts)
    return record.model_copy(update={"ptx": verify_ptx(lowered, texts, ptx)})
