"""Bundles: folders with a program's kernels and everything needed to run, check and prove them elsewhere.

    kernels.py  launch.py            Triton source and its launcher; need torch and triton
    run.py  reference.py  checking.py  widening.py    check against PyTorch in fp64, and time
    cubins.py                        launches the cubins without Triton
    <target>/<kernel>.ttir, .ptx, .cubin    compiled code of every target
    shapes.json                      inputs, outputs, grids, registers, shared memory
    original.mlir  optimized.mlir  lowered.mlir    the program before, after, and as tile programs
    certificate.json  schedule.json  the proof, and the steps that replay the result
    artifact.json                    how the TTIR was verified against the program
    range.json                       what was proved of kernels for ranges of extents
    constants.npz                    dense constants of both, where there are any
    module.json  weights.pt          how a PyTorch module is called, and its weights (superopt.pytorch.saving)
    bundle.json                      the files with their SHA-256, and how inputs are drawn

Reading a bundle (`read_bundle`) reads data; none of its Python files runs until somebody asks for it. A folder
with a file that `bundle.json` does not list is not a bundle. `superopt.verify.bundle` regenerates every file from
the program and compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt import __version__
from superopt.aliasing import pairs
from superopt.dialects.writer import to_text
from superopt.errors import BadInput
from superopt.extent import Extent
from superopt.numerics.float_gate import input_specs
from superopt.numerics.runner import FORMAT, CannotRun, read_description
from superopt.program import KernelGraph, TensorType, Value
from superopt.transforms.emit.bundle_buckets import save_buckets
from superopt.transforms.emit.compile import Compiled
from superopt.transforms.emit.folders import in_one_step
from superopt.transforms.emit.launcher import Launcher
from superopt.transforms.emit.program_source import (
    EmittedProgram,
    emit_program,
    save_constants,
    write_program,
)
from superopt.transforms.emit.reference_source import reference_source
from superopt.verify.ptx.artifact import checked_ptx
from superopt.verify.ttir import checked
from superopt.verify.ttir.ran import Ran

if TYPE_CHECKING:
    from superopt.run.outcome import Outcome
    from superopt.transforms.emit.ranged import Ranged
    from superopt.verify.ttir import ArtifactRecord

# The files that run a bundle elsewhere: package, file, its name in the bundle.
RUNNING = (
    ("superopt.numerics", "runner.py", "run.py"),
    ("superopt.numerics", "checking.py", "checking.py"),
    ("superopt.numerics", "cubins.py", "cubins.py"),
    ("superopt.measure.standalone", "widening.py", "widening.py"),
)


@dataclass(frozen=True)
class Bundle:
    """A bundle's description: its folder, and `bundle.json`."""

    folder: Path
    description: dict[str, Any]


def save_bundle(folder: str | Path, outcome: Outcome, extra: Mapping[str, bytes] | None = None) -> Path:
    """Write the bundle of a finished superoptimization, with `extra` files; see `write_bundle`.

    Of several buckets each has its bundle in the folder (`superopt.transforms.emit.bundle_buckets`).
    """
    if outcome.buckets:
        return save_buckets(folder, outcome.buckets, extra or {}, save_bundle)
    return write_bundle(
        folder,
        original=outcome.original,
        lowered=outcome.lowered,
        emitted=outcome.emitted,
        compiled=outcome.compiled,
        certificate_json=outcome.certificate.model_dump_json(indent=2),
        schedule_json=outcome.schedule.model_dump_json(indent=2),
        original_mlir=to_text(outcome.original),
        optimized_mlir=to_text(outcome.optimized),
        lowered_mlir=to_text(outcome.lowered),
        artifact=outcome.artifact,
        ranged=outcome.ranged,
        extra=extra or {},
    )


def write_bundle(
    folder: str | Path,
    *,
    original: KernelGraph,
    lowered: KernelGraph,
    compiled: Sequence[Compiled],
    emitted: EmittedProgram | None = None,
    certificate_json: str | None = None,
    schedule_json: str | None = None,
    original_mlir: str | None = None,
    optimized_mlir: str | None = None,
    lowered_mlir: str | None = None,
    artifact: dict[str, ArtifactRecord] | str | None = None,
    ranged: Ranged | None = None,
    extra: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    """Write a bundle into `folder`, whole or not at all; returns the folder.

    The TTIR of every kernel is verified against the program first, and its PTX against the TTIR, unless
    `artifact` holds the result. An existing bundle there is replaced, in one step. Raises BadInput for a folder
    that holds something else or cannot be written; NotEquivalent and IllegalProgram where a kernel is not what
    the program says, which would be a bug in superopt or in the compiler.
    """
    program = emitted or emit_program(lowered)
    if artifact is None:
        ran = Ran(frozenset(k.ptx for k in compiled))
        artifact = checked(original, lowered, program, compiled, ran)
        artifact = checked_ptx(artifact, lowered, program, compiled, ran=ran)
    with in_one_step(folder) as temporary:
        _fill(temporary, original, compiled, program)
        texts = {
            "certificate.json": certificate_json,
            "schedule.json": schedule_json,
            "original.mlir": original_mlir,
            "optimized.mlir": optimized_mlir,
            "lowered.mlir": lowered_mlir,
            "artifact.json": _artifact_json(artifact),
            "range.json": ranged and ranged.record.model_dump_json(indent=2),
        }
        for name, text in texts.items():
            if text is not None:
                (temporary / name).write_text(text if text.endswith("\n") else text + "\n")
        for name, data in extra.items():
            (temporary / name).write_bytes(data)
        _describe(temporary, original, program, compiled, ranged)
    return Path(folder).absolute()


def _artifact_json(artifact: dict[str, ArtifactRecord] | str) -> str:
    """How the kernels' TTIR and PTX were verified, by target, or why it was not."""
    if isinstance(artifact, str):
        return json.dumps({"unverified": artifact}, indent=2)
    return json.dumps({target: record.model_dump() for target, record in artifact.items()}, indent=2)


def read_bundle(folder: str | Path) -> Bundle:
    """The description of a bundle whose files are all present and intact; raises BadInput. Runs none of them."""
    try:
        return Bundle(Path(folder), read_description(Path(folder)))
    except CannotRun as error:
        raise BadInput(str(error)) from None


def bundle_launcher(bundle: Bundle) -> Launcher:
    """Calls the kernels of a bundle; from now on its `launch.py` and `kernels.py` run."""
    described, folder = bundle.description, bundle.folder
    constants: dict[str, np.ndarray[Any, Any]] = {}
    if "constants.npz" in described["files"]:
        with np.load(folder / "constants.npz", allow_pickle=False) as held:
            constants = {n: held[n] for n in held.files}
    program = EmittedProgram(
        described["name"],
        (),
        (folder / "kernels.py").read_text(),
        (folder / "launch.py").read_text(),
        constants,
        tuple(described["prepare"]) if "prepare" in described else None,
    )
    varying: dict[str, Any] = described.get("range") or {}

    def values(kind: str) -> list[Value]:
        made: list[Value] = []
        for i, value in enumerate(described[kind]):
            shape = tuple(value["shape"])
            if varying:
                shape = tuple(map(_extent, shape, varying[kind][i]))
            made.append(Value(TensorType(shape, value["dtype"]), value["name"]))
        return made

    inputs, outputs = values("inputs"), values("outputs")
    bounds = {name: (low, high) for name, (low, high) in varying.get("bounds", {}).items()}
    overwrites = {int(i): int(j) for i, j in described["overwrites"].items()}
    aliases = tuple(overwrites.get(i, -1) for i in range(len(outputs))) if overwrites else ()
    lowered = folder / "lowered.mlir" if "lowered.mlir" in described["files"] else None
    return Launcher(program, inputs, outputs, aliases, bounds, lowered)


def _fill(
    folder: Path,
    original: KernelGraph,
    compiled: Sequence[Compiled],
    emitted: EmittedProgram,
) -> None:
    write_program(emitted, folder)
    reference, constants = reference_files(original, emitted)
    (folder / "reference.py").write_text(reference)
    if constants:
        save_constants(folder, constants)
    for package, source, name in RUNNING:
        (folder / name).write_text(files(package).joinpath(source).read_text())
    (folder / "run.py").chmod(0o755)
    for kernel in compiled:
        place = folder / kernel.target
        place.mkdir(exist_ok=True)
        (place / f"{kernel.name}.ttir").write_text(kernel.ttir)
        (place / f"{kernel.name}.ptx").write_text(kernel.ptx)
        (place / f"{kernel.name}.cubin").write_bytes(kernel.cubin)
    facts = shapes(original, emitted, compiled)
    (folder / "shapes.json").write_text(json.dumps(facts, indent=2) + "\n")


def reference_files(
    original: KernelGraph, emitted: EmittedProgram
) -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
    """`reference.py`, and the arrays of `constants.npz` that the launcher and the reference use."""
    constants = dict(emitted.constants)
    return reference_source(original, constants), constants


def shapes(original: KernelGraph, emitted: EmittedProgram, compiled: Sequence[Compiled]) -> dict[str, Any]:
    """`shapes.json`."""
    kernels = [
        {
            "name": k.name,
            "grid": list(k.grid),
            "num_warps": k.num_warps,
            "num_stages": k.num_stages,
            "parameters": [
                {"name": p.name, "role": p.role, "shape": list(p.type.shape), "dtype": p.type.dtype}
                for p in k.parameters
            ],
        }
        for k in dict.fromkeys(emitted.kernels)
    ]
    facts = {
        f"{k.target}/{k.name}": {
            "shared_bytes": k.shared_bytes,
            "registers": k.registers,
            "spill_bytes": k.spill_bytes,
        }
        for k in compiled
    }
    return {
        "inputs": [{"name": v.name, "shape": list(v.shape), "dtype": v.dtype} for v in original.inputs],
        "outputs": [{"name": v.name, "shape": list(v.shape), "dtype": v.dtype} for v in original.outputs],
        "kernels": kernels,
        "compiled": facts,
    }


def _describe(
    folder: Path,
    original: KernelGraph,
    emitted: EmittedProgram,
    compiled: Sequence[Compiled],
    ranged: Ranged | None,
) -> None:
    listed = sorted(p for p in folder.rglob("*") if p.is_file())
    hashes = {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in listed}
    targets = sorted({k.target for k in compiled})
    described = {**description(original, emitted, targets, ranged), "files": hashes}
    (folder / "bundle.json").write_text(json.dumps(described, indent=2) + "\n")


def description(
    original: KernelGraph, emitted: EmittedProgram, targets: Sequence[str], ranged: Ranged | None = None
) -> dict[str, Any]:
    """`bundle.json` without its files; shapes are those at one point where kernels take ranges of extents."""
    return {
        "format": FORMAT,
        "superopt": __version__,
        "triton": version("triton"),
        "name": original.name,
        "grids": {k.name: list(k.grid) for k in emitted.kernels},
        "targets": list(targets),
        "inputs": [
            {"name": s.name, "shape": list(s.shape), "dtype": s.dtype, "scale": float(s.scale)}
            for s in input_specs(original)
        ],
        "outputs": [
            {"name": v.name or f"out{i}", "shape": list(v.shape), "dtype": v.dtype}
            for i, v in enumerate(original.outputs)
        ],
        # Outputs that `run` returns in the memory of an input, which it overwrites.
        "overwrites": {str(i): j for i, j in pairs(original.aliases).items()},
        # The inputs that `prepare` takes, after a device: what it makes of them is made once.
        **({"prepare": list(emitted.prepare)} if emitted.prepare is not None else {}),
        **({"range": _range(ranged)} if ranged else {}),
    }


def _range(ranged: Ranged) -> dict[str, Any]:
    """The extents' bounds, and the shapes as expressions of them."""
    return {
        "bounds": {axis.name: [axis.low, axis.high] for axis in ranged.record.axes},
        "inputs": [[_expression(n) for n in v.shape] for v in ranged.inputs],
        "outputs": [[_expression(n) for n in v.shape] for v in ranged.outputs],
    }


def _expression(size: int) -> Any:
    return size.expression if isinstance(size, Extent) else size


def _extent(size: int, expression: Any) -> int:
    """An extent of `bundle.json`, from its number and its expression."""

    def plain(part: Any) -> Any:
        return (part[0], plain(part[1]), plain(part[2])) if isinstance(part, list) else part

    return size if isinstance(expression, int) else Extent(size, plain(expression))
