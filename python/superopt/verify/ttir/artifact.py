"""The check of a whole artifact: what is about to be written into a bundle, or a bundle that somebody wrote.
wrote.

A bundle is data. Reading one here runs none of its Python, follows no link and leaves its folder by no name;
sizes are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.errors import BadInput, NotEquivalent
from superopt.program import KernelGraph
from superopt.verify.ttir.check import ArtifactRecord, Compile, KernelText, verify_ttir
from superopt.verify.ttir.same_source import same_source

if TYPE_CHECKING:
    from superopt.transforms.emit.compile import Compiled
    from superopt.transforms.emit.program_source import EmittedProgram
    from superopt.verify.certificate import Certificate

MOST_FILE_BYTES = 64 << 20
MOST_KERNELS = 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def kernel_texts(emitted: EmittedProgram, compiled: Sequence[Compiled]) -> list[KernelText]:
    """The kernels of one target as data, in the order of their launches."""
    return [
        KernelText(
            name=kernel.name,
            ttir=made.ttir,
            grid=kernel.grid,
            arguments=tuple((p.name, p.type.elements, p.type.dtype) for p in kernel.parameters),
        )
        for kernel, made in zip(emitted.kernels, compiled, strict=True)
    ]


def verify_compiled(
    original: KernelGraph,
    lowered: KernelGraph,
    emitted: EmittedProgram,
    compiled: Sequence[Compiled],
    *,
    seed: int = 0,
    compile_again: bool = False,
) -> dict[str, ArtifactRecord]:
    """Check what `write_bundle` is about to write: for each target, the TTIR of every kernel.

    Targets whose TTIR is the same are checked once. `compile_again` adds the formal test of the kernels
    compiled at reduced extents. Raises what `verify_ttir` raises.
    """
    by_target: dict[str, list[Compiled]] = {}
    for kernel in compiled:
        by_target.setdefault(kernel.target, []).append(kernel)
    done: dict[tuple[str, ...], ArtifactRecord] = {}
    records: dict[str, ArtifactRecord] = {}
    for target, kernels in by_target.items():
        texts = kernel_texts(emitted, kernels)
        key = tuple(t.ttir for t in texts)
        if key not in done:
            again = _compiler(target) if compile_again else None
            done[key] = verify_ttir(original, lowered, texts, seed=seed, compile_again=again)
        records[target] = done[key]
    return records


def _compiler(target: str) -> Compile:
    def compile_again(lowered: KernelGraph) -> Sequence[KernelText]:
        from superopt.transforms.emit.compile import compile_all
        from superopt.transforms.emit.program_source import emit_program

        emitted = emit_program(lowered)
        return kernel_texts(emitted, compile_all(emitted.kernels, [target]))

    return compile_again


def verify_bundle(
    program: KernelGraph, folder: str | Path, *, seed: int = 0, delta: float = 1e-9
) -> tuple[Certificate, dict[str, ArtifactRecord]]:
    """That a bundle computes `program`: its lowered program is equivalent, and the TTIR of every target is
    that.

    The Python source in the bundle must be what its lowered program gives, so that what launches the kernels
    is covered too. PTX and cubins are what Triton and ptxas make of the TTIR: they are not checked, beyond
    their hash.

    Raises BadInput for a folder that is no whole bundle, NotEquivalent, and what `verify_ttir` raises.
    """
    from superopt.dialects.reader import read
    from superopt.transforms.emit.bundle import read_bundle
    from superopt.transforms.emit.program_source import emit_program
    from superopt.verify.certifier import certify

    root = Path(folder)
    described = _json(_file(root, "bundle.json"))
    targets = described.get("targets")
    if not isinstance(targets, list) or len(targets) > 16:  # type: ignore[reportUnknownArgumentType]
        raise BadInput(f"expected the targets of a bundle in {root / 'bundle.json'}")
    names: list[str] = [str(t) for t in targets]  # type: ignore[reportUnknownVariableType]
    lowered = read(_file(root, "lowered.mlir"), str(root / "lowered.mlir"))
    read_bundle(root)  # every file is there, with the hash that the description gives
    emitted = emit_program(lowered)
    for name, text in (("kernels.py", emitted.kernels_source), ("launch.py", emitted.launcher_source)):
        if not same_source(_file(root, name), text):
            raise NotEquivalent(
                f"expected '{name}' as the bundle's lowered program gives it, got another: {root}"
            )
    if len(emitted.kernels) > MOST_KERNELS:
        raise BadInput(f"expected at most {MOST_KERNELS} kernels, got {len(emitted.kernels)}")
    verdict = certify(program, lowered, delta=delta, seed=seed)
    if verdict.certificate is None:
        raise NotEquivalent(f"expected a bundle that computes the program: {verdict.counterexample}")
    records: dict[str, ArtifactRecord] = {}
    stored = re.findall(r"^def (\w+)\(", _file(root, "kernels.py"), re.MULTILINE)
    for target in names:
        texts = [
            KernelText(
                name=name,
                ttir=_file(root, target, f"{name}.ttir"),
                grid=k.grid,
                arguments=tuple((p.name, p.type.elements, p.type.dtype) for p in k.parameters),
            )
            for name, k in zip(stored, emitted.kernels, strict=True)
        ]
        records[target] = verify_ttir(program, lowered, texts, seed=seed)
    return verdict.certificate, records


def _file(root: Path, *parts: str) -> str:
    """Text of a file inside the bundle: no name that leads elsewhere, no link, nothing too large."""
    path = root
    for part in parts:
        if not _NAME.fullmatch(part) or ".." in part:
            raise BadInput(f"expected the name of a file of the bundle, got '{part[:80]}'")
        path = path / part
        if path.is_symlink():
            raise BadInput(f"expected a file of the bundle, got a link: {path}")
    try:
        if not path.is_file():
            raise BadInput(f"expected a bundle with the file '{'/'.join(parts)}', got none: {root}")
        with path.open("rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise BadInput(f"expected a file that can be read, got: {error.strerror}: {path}") from None
    if len(data) > MOST_FILE_BYTES:
        raise BadInput(f"expected a file of at most {MOST_FILE_BYTES} bytes, got more: {path}")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadInput(f"expected text, got other bytes: {path}") from None


def _json(text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadInput("expected a bundle's description as JSON, got something else")
    return found  # type: ignore[reportUnknownVariableType]
