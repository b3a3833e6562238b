"""A program with all its kernels compiled for one target, and what `--emit` prints of it."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.cost.gpus import DEFAULT_TARGET, Target
from superopt.errors import BadOption
from superopt.program import KernelGraph
from superopt.transforms.emit.compile import Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.lower import lower

# The comment marker of each kind of text.
_COMMENT = {"ttir": "//", "ttgir": "//", "llir": ";", "ptx": "//"}
KINDS = ("triton", *_COMMENT, "cubin")


@dataclass(frozen=True)
class CompiledProgram:
    """Source and compiled kernels of one program, in the order of their launches."""

    emitted: EmittedProgram
    kernels: tuple[Compiled, ...]

    def artifact(self, kind: str) -> str | bytes:
        """`kind` is one of `KINDS`: text of all kernels, one after the other, or the bytes of the only cubin.

        Raises BadOption for an unknown kind, and for cubins of a program with several kernels.
        """
        if kind == "triton":
            return self.emitted.kernels_source
        if kind == "cubin":
            if (count := len({k.name for k in self.kernels})) != 1:
                raise BadOption(
                    f"expected a program with one kernel for a cubin, got {count}: a bundle holds them all"
                )
            return self.kernels[0].cubin
        if kind not in _COMMENT:
            raise BadOption(f"expected one of {', '.join(KINDS)} to emit, got '{kind}'")
        texts: dict[str, str] = {k.name: getattr(k, kind) for k in self.kernels}
        if len(texts) == 1:
            return next(iter(texts.values()))
        return "\n".join(f"{_COMMENT[kind]} {name}\n{t}" for name, t in texts.items())

    def counted_ptx(self) -> str:
        """The PTX of all kernels, each after comments that say what one of its blocks does (`cost.counted`)."""
        from superopt.cost.counted import text

        kernels = dict(zip(self.emitted.kernels, self.kernels, strict=True))
        return "\n".join(text(kernel, made) + made.ptx for kernel, made in kernels.items())


def compile_graph(lowered: KernelGraph, target: Target | str) -> CompiledProgram:
    """Emit and compile a lowered program; raises CompilationFailed."""
    emitted = emit_program(lowered)
    name = target if isinstance(target, str) else target.name
    return CompiledProgram(emitted, tuple(compile_all(emitted.kernels, [name])))


def emit_text(graph: KernelGraph, kind: str, target: Target | str = DEFAULT_TARGET) -> str | bytes:
    """What `--emit=kind` prints of `graph`, lowered first; needs neither a GPU nor, for Triton source,
    a compiler."""
    lowered = lower(graph, target)
    if kind == "triton":
        return emit_program(lowered).kernels_source
    return compile_graph(lowered, target).artifact(kind)
