"""The check of what is about to be written into a bundle: the TTIR of every kernel, for every target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from superopt.cost.gpus import target as find_target
from superopt.early import CAPABILITY
from superopt.errors import UnsupportedProgram
from superopt.extent import at
from superopt.program import KernelGraph
from superopt.verify.ttir.check import ArtifactRecord, Compile, KernelText, verify_ttir
from superopt.verify.ttir.ran import Ran

if TYPE_CHECKING:
    from superopt.transforms.emit.compile import Compiled
    from superopt.transforms.emit.program_source import EmittedProgram


def kernel_texts(emitted: EmittedProgram, compiled: Sequence[Compiled]) -> list[KernelText]:
    """The kernels of one target as data, in the order of their launches."""
    return texts_at(emitted, [made.ttir for made in compiled], compiled[0].target if compiled else "")


def texts_at(
    emitted: EmittedProgram,
    ttir: Sequence[str],
    target: str,
    extents: Mapping[str, int] = MappingProxyType({}),
    names: Sequence[str] | None = None,
) -> list[KernelText]:
    """The kernels of one target as data, called `names`; those for ranges are launched with `extents`."""
    early = bool(target) and find_target(target).capability >= CAPABILITY

    def number(value: int) -> int:
        return int(at(value, extents))

    return [
        KernelText(
            name=kernel.name if names is None else names[i],
            ttir=text,
            grid=(number(kernel.grid[0]), number(kernel.grid[1]), number(kernel.grid[2])),
            arguments=tuple((p.name, number(p.type.elements), p.type.dtype) for p in kernel.parameters),
            extents=tuple(extents[name] for name in kernel.extents),
            early=early and kernel.early,
        )
        for i, (kernel, text) in enumerate(zip(emitted.kernels, ttir, strict=True))
    ]


def verify_compiled(
    original: KernelGraph,
    lowered: KernelGraph,
    emitted: EmittedProgram,
    compiled: Sequence[Compiled],
    *,
    seed: int = 0,
    compile_again: bool = False,
    ran: Ran | None = None,
) -> dict[str, ArtifactRecord]:
    """Check what `write_bundle` is about to write: for each target, the TTIR of every kernel.

    Targets whose TTIR is the same are checked once. `compile_again` adds the formal test of the kernels
    compiled at reduced extents; `ran` gets what `verify_ttir` gives it. Raises what `verify_ttir` raises.
    """
    by_target: dict[str, list[Compiled]] = {}
    for kernel in compiled:
        by_target.setdefault(kernel.target, []).append(kernel)
    done: dict[tuple[KernelText, ...], ArtifactRecord] = {}
    records: dict[str, ArtifactRecord] = {}
    for target, kernels in by_target.items():
        texts = kernel_texts(emitted, kernels)
        key = tuple(texts)
        if key not in done:
            again = _compiler(target) if compile_again else None
            done[key] = verify_ttir(original, lowered, texts, seed=seed, compile_again=again, ran=ran)
        records[target] = done[key]
    return records


def checked(
    original: KernelGraph,
    lowered: KernelGraph,
    emitted: EmittedProgram,
    compiled: Sequence[Compiled],
    ran: Ran | None = None,
) -> dict[str, ArtifactRecord] | str:
    """As `verify_compiled`, or the reason in words where the verifier does not know something in the TTIR."""
    try:
        return verify_compiled(original, lowered, emitted, compiled, ran=ran)
    except UnsupportedProgram as error:
        return error.message


def _compiler(target: str) -> Compile:
    def compile_again(lowered: KernelGraph) -> Sequence[KernelText]:
        from superopt.transforms.emit.compile import compile_all
        from superopt.transforms.emit.program_source import emit_program

        emitted = emit_program(lowered)
        return kernel_texts(emitted, compile_all(emitted.kernels, [target]))

    return compile_again
