"""Checks a bundle from any source: everything in it is regenerated from the program and compared.

A bundle is data. Reading one here runs none of its Python, follows no link and opens no file outside its folder;
sizes are bounded. Nothing that it says about itself is trusted:

- `lowered.mlir` is proved to compute the program, and passes the numeric gate, at freshly drawn points;
- Python files are what superopt writes for these programs, up to names of variables; constants are the programs';
- the TTIR of every target computes `lowered.mlir`, and the PTX stores what the TTIR does, free of races; TTIR is
  what this Triton makes of the kernels, PTX and cubins what it compiles the TTIR to;
- certificate, schedule, artifact, shapes and description match what is found when they are regenerated.

What cannot be regenerated (the cubins of another version of ptxas) is listed as unchecked.
"""

from __future__ import annotations

import contextlib
import io
import re
import secrets
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
from pydantic import BaseModel, ValidationError

from superopt.cost.gpus import target as find_target
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.errors import BadInput, NotEquivalent
from superopt.numerics import gate
from superopt.numerics.runner import strict_json
from superopt.program import KernelGraph
from superopt.report import Schedule, launches
from superopt.transforms.emit.bundle import RUNNING, description, read_bundle, reference_files, shapes
from superopt.transforms.emit.compile import CompilationFailed, assemble, compile_all, compile_ttir
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.emit.ranged import ranged_interface, written
from superopt.transforms.ingest.at_extent import DynamicProgram
from superopt.transforms.lower import lower
from superopt.transforms.schedule.fit import as_scheduled
from superopt.verify.allowance import allowed, timed
from superopt.verify.certificate import Certificate
from superopt.verify.certifier import certify, replay
from superopt.verify.hashing import program_hash
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ptx.launch import MOST_SHARED
from superopt.verify.ranges import Axis, Family, Point, RangeRecord, forms, to_prove
from superopt.verify.ttir.artifact import texts_at
from superopt.verify.ttir.check import ArtifactRecord, verify_ttir
from superopt.verify.ttir.parser import same_ttir
from superopt.verify.ttir.ran import Ran
from superopt.verify.ttir.same_source import same_source

if TYPE_CHECKING:
    from superopt.transforms.emit.compile import Compiled
    from superopt.transforms.emit.program_source import EmittedProgram
    from superopt.transforms.emit.ranged import Ranged
    from superopt.transforms.emit.triton_source import TritonKernel

MOST_FILE_BYTES = 64 << 20
MOST_KERNELS = 1024
_AT_ONCE = 8  # kernels that are compiled in one go
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# How a module is called, and its weights: nothing in a program says what they should be.
MODULE = ("module.json", "weights.pt")
_OPTIONAL = (
    "certificate.json",
    "range.json",
    "schedule.json",
    "original.mlir",
    "optimized.mlir",
    "constants.npz",
    *MODULE,
)
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class BundleRecord:
    """A bundle that computes the program: the certificate of its lowered program, and the record of each target.

    `unchecked` lists what was not checked, and why; empty where everything was regenerated. `ranged` is what the
    bundle states of ranges of extents.
    """

    certificate: Certificate
    artifacts: dict[str, ArtifactRecord]
    unchecked: tuple[str, ...]
    ranged: RangeRecord | None = None


class Source(Protocol):
    """A program at any extents, by name, and where they stand, as `DynamicProgram` reads it."""

    def places(self, names: Sequence[str]) -> Mapping[str, Sequence[tuple[int, int, int]]]:
        """(argument, dimension, k) for each of the names: k extents."""
        ...

    def at(self, extents: Mapping[str, int], diagnostics: Diagnostics) -> KernelGraph:
        """The program at these extents."""
        ...


def verify_bundle(
    program: KernelGraph | Source | None,
    folder: str | Path,
    *,
    seed: int | None = None,
    delta: float = 1e-9,
    fixed: Mapping[str, int] = MappingProxyType({}),
) -> BundleRecord:
    """Check that a bundle computes `program` and is what superopt writes for it; None draws a random `seed`.

    A program with extents is read at those of the bundle, and again at all that are proved; `fixed` are those
    that do not vary in the bundle. None means the bundle's own `original.mlir`.
    Raises BadInput for a folder that is not a complete bundle, NotEquivalent where something in it is not what it
    should be, and what `verify_ttir` raises.
    """
    drawn = secrets.randbits(63) if seed is None else seed
    with allowed():
        return _Check(program, Path(folder), drawn, delta, fixed).run()


def own_program(root: Path) -> KernelGraph:
    """What a bundle says that it computes; raises BadInput where it does not."""
    check = _Check(None, root, 0, 0.0, {})
    check.described = read_bundle(root).description
    if (found := check.graph("original.mlir")) is None:
        raise BadInput(f"expected a bundle with original.mlir, or the program that it is for, got: {root}")
    return found


class _Check:
    program: KernelGraph

    def __init__(
        self,
        given: KernelGraph | Source | None,
        root: Path,
        seed: int,
        delta: float,
        fixed: Mapping[str, int],
    ) -> None:
        self.given, self.root, self.seed, self.delta, self.fixed = given, root, seed, delta, fixed
        self.unchecked: list[str] = []
        self.axes: tuple[str, ...] = ()

    def run(self) -> BundleRecord:
        """Every check, the cheap ones first."""
        self.described = read_bundle(self.root).description
        self.targets: list[str] = [find_target(str(t)).name for t in self.described["targets"]]
        lowered = read(self.text("lowered.mlir"), str(self.root / "lowered.mlir"))
        ranged = self.model("range.json", RangeRecord)
        self.program = self.read(lowered, ranged)
        family = ranged and self.family(lowered, ranged)
        self.axes = tuple(axis.name for axis in ranged.axes) if ranged else ()
        emitted = written(family) if family else emit_program(lowered)
        if len(emitted.kernels) > MOST_KERNELS:
            raise BadInput(f"expected at most {MOST_KERNELS} kernels, got {len(emitted.kernels)}")
        self.names = [kernel.name for kernel in emitted.kernels]
        self.sources(emitted)
        self.listing({name for _, _, name in RUNNING})
        self.description(emitted, family and ranged and ranged_interface(family, ranged))
        original = self.original()
        optimized = self.graph("optimized.mlir")
        self.schedule(original, optimized, lowered)
        certificate = self.certified(lowered)
        measured = gate(self.program, lowered)
        if not measured.passed:
            raise NotEquivalent(f"expected a bundle that is numerically safe: {measured.summary}")
        if measured.skipped:
            self.unchecked.append(f"errors in floating point: {measured.skipped}")
        at = family and family.extents
        artifacts = {t: self.artifact(t, self.program, lowered, emitted, at) for t in self.targets}
        if family and ranged:
            self.ranged(family, ranged, emitted)
        self.stated_artifacts(
            artifacts, lambda t, seed: self.artifact(t, self.program, lowered, emitted, at, seed)
        )
        compiled = [
            made
            for t in self.targets
            for made in self.compiled(t, emitted, verified=artifacts[t].ptx_verified)
        ]
        self.shapes(emitted, compiled)
        self.stated_certificate(optimized)
        return BundleRecord(certificate, artifacts, tuple(self.unchecked), ranged)

    # --- files ------------------------------------------------------------------------------------------------

    def sources(self, emitted: EmittedProgram) -> None:
        """Python files and constants."""
        reference, constants = reference_files(self.program, emitted)
        made = {
            "kernels.py": emitted.kernels_source,
            "launch.py": emitted.launcher_source,
            "reference.py": reference,
        }
        for name, text in made.items():
            self.expect(same_source(self.text(name), text), name, "its programs give it")
        for package, source, name in RUNNING:
            same = self.text(name) == files(package).joinpath(source).read_text()
            self.expect(same, name, "this version of superopt has it")
        if constants or "constants.npz" in self.described["files"]:
            self.expect(
                _equal_arrays(self.data("constants.npz"), constants), "constants.npz", "the programs have it"
            )

    def listing(self, running: set[str]) -> None:
        """Only files of a bundle: `read_bundle` has checked that the listed ones are all there are."""
        kernels = {f"{t}/{n}.{e}" for t in self.targets for n in self.names for e in ("ttir", "ptx", "cubin")}
        needed = {"kernels.py", "launch.py", "reference.py", "shapes.json", "artifact.json", "lowered.mlir"}
        needed |= running | kernels
        listed = set(self.described["files"])
        if missing := sorted(needed - listed):
            raise BadInput(f"expected a bundle with the file '{missing[0]}', got none: {self.root}")
        if unknown := sorted(listed - needed - {*_OPTIONAL}):
            raise BadInput(f"expected the files of a bundle, got '{unknown[0]}': {self.root}")
        held = [name for name in MODULE if name in listed]
        self.unchecked += [f"{name}: the module's arguments and weights" for name in held]

    def description(self, emitted: EmittedProgram, ranged: Ranged | None) -> None:
        """What `bundle.json` says besides the files' hashes: shapes, scales of inputs, grids."""
        made = _dumped_and_read(description(self.program, emitted, self.targets, ranged))
        stated = {k: v for k, v in self.described.items() if k != "files"}
        for facts in (made, stated):
            facts["grids"] = list(facts["grids"].values())
            del facts["superopt"], facts["triton"]
        called = list(dict.fromkeys(self.names))  # tile programs may share one
        self.expect(list(self.described["grids"]) == called, "bundle.json", "its kernels are called")
        self.expect(_nameless(made) == _nameless(stated), "bundle.json", "the program gives it")

    def shapes(self, emitted: EmittedProgram, compiled: list[Compiled]) -> None:
        """`shapes.json`: grids, parameters, and what the compiler reports for each kernel."""
        made, stated = shapes(self.program, emitted, compiled), self.json("shapes.json")
        if not compiled:
            self.unchecked.append("shapes.json: registers and shared memory, made by another Triton")
            made["compiled"] = stated.get("compiled")
        self.expect(
            _nameless(made) == _nameless(stated), "shapes.json", "the program and the compiler give it"
        )

    def read(self, lowered: KernelGraph, ranged: RangeRecord | None) -> KernelGraph:
        """The program, at the extents that the kernels were searched at."""
        self.given = self.given or own_program(self.root)
        if isinstance(self.given, KernelGraph):
            return self.given
        axes = ranged.axes if ranged else ()
        if not axes and not self.fixed:
            raise BadInput(
                f"expected a bundle for ranges of extents, which the program has, got: {self.root}"
            )
        places = self.given.places((*(axis.name for axis in axes), *self.fixed))
        for axis in axes:
            known = sorted(axis.places) == sorted(places[axis.name])
            self.expect(known and axis.name not in self.fixed, "range.json", "the program's extents are")
            self.expect(stands(axis, lowered), "lowered.mlir", "the program's inputs are")
        first = [axis.places[0] for axis in axes]
        return self.again(self.given, axes, tuple(lowered.inputs[i].shape[d] // k for i, d, k in first))

    def again(self, source: Source, axes: Sequence[Axis], extents: Point) -> KernelGraph:
        """The program at extents of the axes; kernels for ranges prepare nothing."""
        varying = dict(zip((axis.name for axis in axes), extents, strict=True))
        made = source.at({**varying, **self.fixed}, Diagnostics())
        return replace(made, weights=()) if axes else made

    def original(self) -> KernelGraph:
        """The program; `original.mlir` must be that."""
        original = self.graph("original.mlir")
        if original is not None:
            same = program_hash(original) == program_hash(self.program)
            self.expect(same, "original.mlir", "the program is")
        return self.program

    def schedule(self, original: KernelGraph, optimized: KernelGraph | None, lowered: KernelGraph) -> None:
        """Check that `schedule.json` replays to what the bundle holds."""
        stated = self.model("schedule.json", Schedule)
        if stated is None:
            return
        again = read(stated.optimized, str(self.root / "schedule.json"))
        self.expect(stated.program_sha256 == program_hash(original), "schedule.json", "the program is")
        self.expect([stated.target] == self.targets, "schedule.json", "the target is")
        same = optimized is not None and program_hash(again) == program_hash(optimized)
        self.expect(same, "schedule.json", "'optimized.mlir' is")
        # All of them: a replay launches kernels that are not in it as `lower` chooses, not as the bundle does.
        same = stated.launches == launches(lowered)
        self.expect(same, "schedule.json", "the kernels are launched")
        target = find_target(stated.target)
        made = as_scheduled(lower(again, target.name, library=stated.library), stated, target)
        same = made is not None and program_hash(made) == program_hash(lowered)
        self.expect(same, "schedule.json", "'lowered.mlir' is")

    # --- proofs -----------------------------------------------------------------------------------------------

    def certified(self, lowered: KernelGraph) -> Certificate:
        """A certificate that the program and `lowered.mlir` are equivalent."""
        verdict = certify(self.program, lowered, delta=self.delta, seed=self.seed)
        if verdict.certificate is None:
            raise NotEquivalent(f"expected a bundle that computes the program: {verdict.counterexample}")
        return verdict.certificate

    def stated_certificate(self, optimized: KernelGraph | None) -> None:
        """`certificate.json` concerns this program and `optimized.mlir`, and its claims are confirmed."""
        stated = self.model("certificate.json", Certificate)
        if stated is None:
            if optimized is not None:
                self.unchecked.append("optimized.mlir: the bundle holds no certificate of it")
            return
        self.expect(stated.first.sha256 == program_hash(self.program), "certificate.json", "the program is")
        same = optimized is not None and stated.second.sha256 == program_hash(optimized)
        self.expect(same, "certificate.json", "'optimized.mlir' is")
        if differences := replay(stated):
            raise NotEquivalent(
                f"expected a certificate that holds, got one with {differences[0]}: {self.root}"
            )

    def family(self, lowered: KernelGraph, ranged: RangeRecord) -> Family:
        """The programs at every extent of the ranges that the bundle states."""
        for axis in ranged.axes:
            good = stands(axis, self.program) and axis.name.isidentifier()
            self.expect(good and 1 <= axis.low < axis.high, "range.json", "the program's inputs are")
        names = {axis.name for axis in ranged.axes}
        self.expect(0 < len(names) == len(ranged.axes), "range.json", "the program's inputs are")
        return Family(self.program, lowered, ranged.axes)

    def ranged(self, family: Family, stated: RangeRecord, emitted: EmittedProgram) -> None:
        """`range.json`: its forms are those of the range, and kernels compute the program at extents of each."""
        known = forms(family)
        self.expect(stated.tiles == tuple(family.tiles), "range.json", "its tiles are")
        self.expect(stated.examined == len(known), "range.json", "its extents are")
        chosen = to_prove(family.axes, known)
        found = [(e.extents, e.form) for e in stated.extents]
        self.expect(found == [(n, known[n]) for n in chosen], "range.json", "its programs are")
        for extents, said in zip(chosen, stated.extents, strict=True):
            original, lowered = family.at(extents)
            if self.given is not None and not isinstance(self.given, KernelGraph):
                again = self.again(self.given, family.axes, extents)
                if program_hash(again) != program_hash(original) and min(extents) > 1:
                    raise NotEquivalent(f"expected one program for all extents, got another: {self.root}")
                original = again
            asked = min(self.delta, said.delta or self.delta)
            verdict = certify(original, lowered, delta=asked, seed=self.seed)
            if (made := verdict.certificate) is None:
                raise NotEquivalent(f"expected a bundle that computes the program: {verdict.counterexample}")
            proved = made.delta is not None and said.delta is not None and made.delta <= said.delta
            same = said.delta_extents == made.delta_extents
            self.expect(said.delta is None or (proved and same), "range.json", "its bounds are")
            for target in self.targets:
                ran = self.artifact(target, original, lowered, emitted, extents)
                if _ran(ran) != (said.instances, said.blocks):  # `proved` takes the usual seed
                    ran = self.artifact(target, original, lowered, emitted, extents, 0)
                self.expect(_ran(ran) == (said.instances, said.blocks), "range.json", "its blocks are")
        if not isinstance(self.given, DynamicProgram):
            names = ", ".join(self.axes)
            self.unchecked.append(f"{names}: the program is given at one extent, and resized to others")

    def artifact(
        self,
        target: str,
        program: KernelGraph,
        lowered: KernelGraph,
        emitted: EmittedProgram,
        extents: Point | None,
        seed: int | None = None,
    ) -> ArtifactRecord:
        """The record of a target's TTIR and PTX, launched with extents where they are for ranges."""
        seed = self.seed if seed is None else seed
        ttir = [self.text(f"{target}/{name}.ttir") for name in self.names]
        texts = texts_at(emitted, ttir, target, dict(zip(self.axes, extents or (), strict=True)), self.names)
        # With the shared memory that `cubins.py` asks for: of another Triton's kernels nothing else says it.
        ptx = [
            PtxText(self.text(f"{target}/{name}.ptx"), self.shared_bytes(f"{target}/{name}"))
            for name in self.names
        ]
        ran = Ran(frozenset(t.ptx for t in ptx))
        record = verify_ttir(program, lowered, texts, seed=seed, ran=ran)
        return record.model_copy(update={"ptx": verify_ptx(lowered, texts, ptx, seed=seed, ran=ran)})

    def shared_bytes(self, place: str) -> int:
        """What `shapes.json` says of a kernel's shared memory."""
        found: Any = None
        with contextlib.suppress(KeyError, TypeError):
            found = self.json("shapes.json")["compiled"][place]["shared_bytes"]
        good = type(found) is int and 0 <= found <= MOST_SHARED
        self.expect(good, "shapes.json", "the program and the compiler give it")
        return found

    def stated_artifacts(
        self, found: dict[str, ArtifactRecord], again: Callable[[str, int], ArtifactRecord]
    ) -> None:
        """`artifact.json` says what was found. Where another number of blocks ran or is proved, or maxima were
        compared otherwise, it drew others: those of its seed, which `again` takes, are counted."""

        def plain(record: ArtifactRecord) -> dict[str, Any]:
            kept = record.model_dump(mode="json", exclude={"seed"})
            blocks: list[dict[str, Any]] = kept["ptx"]["kernels"] if kept["ptx"] else []
            for kernel in [*kept["kernels"], *blocks]:
                kernel["evaluated"] = kernel["maxima"] = None
            for kernel in blocks:
                kernel["addressed"] = None
            return kept

        text = self.json("artifact.json")
        self.expect(set(text) == set(found), "artifact.json", "the targets are")
        for target, record in found.items():
            stated = _validated(
                ArtifactRecord, self.root / "artifact.json", lambda t=target: _dumped(text[t])
            )
            # All fields, not only those without a default.
            same = _dumped(stated.model_dump(mode="json")) == _dumped(text[target])
            self.expect(same, "artifact.json", "superopt writes it")
            self.expect(plain(stated) == plain(record), "artifact.json", "it was verified")
            if stated.drawn != record.drawn:
                record = again(target, stated.seed)
            self.expect(stated.drawn == record.drawn, "artifact.json", "its blocks were verified")

    def compiled(self, target: str, emitted: EmittedProgram, *, verified: bool) -> list[Compiled]:
        """What this Triton compiles the TTIR to; the bundle's PTX and cubins must be that.

        The TTIR must be what it makes of the kernels: not every block runs, nor does any at every extent.
        """
        if (mine := version("triton")) != (theirs := self.described["triton"]):
            what = "cubins" if verified else "PTX and cubins"
            if not verified or not all(self.assembled(f"{target}/{name}", target) for name in self.names):
                self.unchecked.append(f"{target}: {what}, made by Triton {theirs}; here is {mine}")
            what = "blocks of the TTIR" + " and extents of TTIR and PTX" * bool(self.axes)
            self.unchecked.append(f"{target}: {what} that no check ran, made by Triton {theirs}")
            return []
        made: dict[str, Compiled] = {}
        first: dict[str, TritonKernel] = {}
        for name, kernel in zip(self.names, emitted.kernels, strict=True):
            first.setdefault(name, kernel)
        for name, kernel, source in _compiled(first, target):
            place = f"{target}/{name}"
            same = same_ttir(self.text(f"{place}.ttir"), source.ttir)
            self.expect(same, f"{place}.ttir", "Triton makes it of the kernels")
            with timed(f"'{place}.ttir', compiled again"):
                again = compile_ttir(
                    name,
                    self.text(f"{place}.ttir"),
                    target,
                    num_warps=kernel.num_warps,
                    num_stages=kernel.num_stages,
                )
            self.expect(self.text(f"{place}.ptx") == again.ptx, f"{place}.ptx", "Triton makes it of the TTIR")
            same = self.data(f"{place}.cubin") == again.cubin
            self.expect(same, f"{place}.cubin", "Triton makes it of the TTIR")
            made[name] = again
        return [made[name] for name in self.names]

    def assembled(self, place: str, target: str) -> bool:
        """Whether the installed ptxas makes a cubin of its PTX; another version of ptxas may make another."""
        try:
            with timed(f"'{place}.ptx', assembled again"):
                return assemble(place, self.text(f"{place}.ptx"), target) == self.data(f"{place}.cubin")
        except CompilationFailed:
            return False

    # --- reading ----------------------------------------------------------------------------------------------

    def expect(self, condition: bool, name: str, how: str) -> None:
        """Raise NotEquivalent unless the file matches the regenerated one."""
        if not condition:
            raise NotEquivalent(f"expected '{name}' as {how}, got another: {self.root}")

    def graph(self, name: str) -> KernelGraph | None:
        """The program in a file; None where the file is missing."""
        if name not in self.described["files"]:
            return None
        return read(self.text(name), str(self.root / name))

    def model(self, name: str, kind: type[_Model]) -> _Model | None:
        """A file validated by its schema; None where the file is missing."""
        if name not in self.described["files"]:
            return None
        content = self.json(name)
        made = _validated(kind, self.root / name, lambda: _dumped(content))
        # All fields, not only those without a default.
        same = _dumped(made.model_dump(mode="json")) == _dumped(content)  # 2.0 is not 2
        self.expect(same, name, "superopt writes it")
        return made

    def json(self, name: str) -> dict[str, Any]:
        """A file of strict JSON."""
        try:
            found: Any = strict_json(self.data(name))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise BadInput(f"expected JSON of finite numbers, got something else: {self.root / name}")
        return cast("dict[str, Any]", found)

    def text(self, name: str) -> str:
        """A file of text."""
        try:
            return self.data(name).decode()
        except UnicodeDecodeError:
            raise BadInput(f"expected text, got other bytes: {self.root / name}") from None

    def data(self, name: str) -> bytes:
        """A file inside the bundle; refuses names that lead elsewhere, links and files that are too large."""
        path = self.root
        for part in name.split("/"):
            if not _NAME.fullmatch(part) or ".." in part:
                raise BadInput(f"expected the name of a file of the bundle, got '{part[:80]}'")
            path = path / part
            if path.is_symlink():
                raise BadInput(f"expected a file of the bundle, got a link: {path}")
        try:
            if not path.is_file():
                raise BadInput(f"expected a bundle with the file '{name}', got none: {self.root}")
            with path.open("rb") as file:
                data = file.read(MOST_FILE_BYTES + 1)
        except OSError as error:
            raise BadInput(f"expected a file that can be read, got: {error.strerror}: {path}") from None
        if len(data) > MOST_FILE_BYTES:
            raise BadInput(f"expected a file of at most {MOST_FILE_BYTES} bytes, got more: {path}")
        return data


def _compiled(
    kernels: Mapping[str, TritonKernel], target: str
) -> Iterator[tuple[str, TritonKernel, Compiled]]:
    """Kernels by name, and what this Triton makes of them, some at a time, so that their seconds count."""
    named = list(kernels.items())
    for i in range(0, len(named), _AT_ONCE):
        some = named[i : i + _AT_ONCE]
        with timed(f"kernel '{some[-1][0]}' for {target}, compiled again"):
            made = compile_all([kernel for _, kernel in some], [target])
        yield from ((name, kernel, of) for (name, kernel), of in zip(some, made, strict=True))


def stands(axis: Axis, program: KernelGraph) -> bool:
    """Whether the places of an axis are dimensions of the program's inputs."""
    shapes = [value.shape for value in program.inputs]
    return len(axis.places) > 0 and all(
        0 <= i < len(shapes) and 0 <= d < len(shapes[i]) and times >= 1 for i, d, times in axis.places
    )


def _ran(record: ArtifactRecord) -> tuple[int, int]:
    """How many blocks of TTIR and of PTX ran."""
    return sum(record.drawn.instances), sum(record.drawn.blocks)


def _dumped_and_read(value: dict[str, Any]) -> dict[str, Any]:
    import json

    return json.loads(json.dumps(value))


def _dumped(value: object) -> bytes:
    import json

    return json.dumps(value).encode()


def _validated(kind: type[_Model], path: Path, data: Callable[[], bytes]) -> _Model:
    try:
        return kind.model_validate_json(data())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise BadInput(f"expected what superopt writes, got {where}: {first['msg']}: {path}") from None


def _nameless(value: Any) -> Any:
    """JSON without names, which the text of programs does not keep."""
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        return {k: _nameless(v) for k, v in entries.items() if k != "name"}
    return [_nameless(v) for v in cast("list[Any]", value)] if isinstance(value, list) else value


def _equal_arrays(data: bytes, expected: dict[str, np.ndarray[Any, Any]]) -> bool:
    """Whether an archive holds these arrays and no others, bit for bit, as kernels read them: row by row."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as held:
            return sorted(held.files) == sorted(expected) and all(
                (m.dtype, m.shape) == (a.dtype, a.shape)
                and m.flags.c_contiguous
                and m.tobytes() == a.tobytes()
                for m, a in ((held[n], a) for n, a in expected.items())
            )
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile):
        return False
