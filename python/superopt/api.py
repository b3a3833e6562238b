"""The Python API: `optimize` and what it returns."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph
    from superopt.report import Report, Schedule
    from superopt.run.outcome import Outcome
    from superopt.transforms.ingest.import_torch import Imported
    from superopt.verify import Certificate


def from_torch(module: Any, inputs: Sequence[Any]) -> Imported:
    """A `torch.nn.Module` as a kernel graph: its weights are arguments after the inputs.

    `inputs` are example tensors; shapes are static. Raises UnsupportedProgram for dynamic shapes.
    """
    from superopt.transforms.ingest import from_torch as import_module

    return import_module(module, inputs)


def optimize(
    program: Any,
    inputs: Sequence[Any] | None = None,
    *,
    target: str = "sm_90",
    budget: float = 60.0,
    seed: int = 0,
    **settings: Any,
) -> Optimized:
    """The fastest program found that is provably the same as `program`.

    `program` is the path of an `.mlir` file (linalg on tensors, or the kernel dialect), a `KernelGraph`, or a
    `torch.nn.Module` with its example `inputs`. `budget` is in seconds of processor time; the other settings are
    those of `superopt.pipeline.Superoptimize`. Raises a SuperoptError for what the caller can fix.
    """
    from superopt.diagnostics import Diagnostics
    from superopt.pipeline import Superoptimize, superoptimize

    options = Superoptimize(target=target, budget=budget, seed=seed, **settings)
    diagnostics = Diagnostics()
    graph, imported = _load(program, inputs, diagnostics)
    return Optimized(superoptimize(graph, options, diagnostics), imported)


def _load(
    program: Any, inputs: Sequence[Any] | None, diagnostics: Diagnostics
) -> tuple[KernelGraph, Imported | None]:
    from superopt.errors import BadInput
    from superopt.program import KernelGraph

    if isinstance(program, KernelGraph):
        return program, None
    if isinstance(program, str | Path):
        return read_program(program, diagnostics), None
    if callable(program) and hasattr(program, "state_dict"):
        if inputs is None:
            raise BadInput("expected example inputs with a torch module, got none")
        imported = from_torch(program, inputs)
        diagnostics.messages += imported.diagnostics.messages
        return imported.graph, imported
    raise BadInput(f"expected a path, a KernelGraph or a torch module, got {type(program).__name__}")


def read_program(path: str | Path, diagnostics: Diagnostics) -> KernelGraph:
    """The program of an `.mlir` file, linalg on tensors or the kernel dialect; raises BadInput, located."""
    from superopt.dialects import base
    from superopt.inputs import source
    from superopt.transforms.ingest.ingest_linalg import read_linalg

    text = source.read(str(path))
    module = source.parse(text, base.context())
    base.verify(module, filename=text.name)
    return read_linalg(module, diagnostics)


class Optimized:
    """A verified program: its text at every level, its proof, and the kernels, ready to call."""

    def __init__(self, outcome: Outcome, imported: Imported | None = None) -> None:
        self.outcome = outcome
        self._imported = imported

    @cached_property
    def mlir(self) -> str:
        """The optimized program in superopt's dialects."""
        from superopt.dialects.writer import to_text

        return to_text(self.outcome.optimized)

    @property
    def triton(self) -> str:
        """Source of the Triton kernels."""
        return self.outcome.emitted.kernels_source

    @property
    def ptx(self) -> str:
        """PTX of the kernels, one after the other."""
        return "\n".join(kernel.ptx for kernel in self.outcome.compiled)

    @property
    def certificate(self) -> Certificate:
        """The proof of equivalence; `superopt-verify --replay` checks it again."""
        return self.outcome.certificate

    @property
    def report(self) -> Report:
        """The funnel, the candidates, predicted costs and times."""
        return self.outcome.report

    @property
    def schedule(self) -> Schedule:
        """What replays this result without a search."""
        return self.outcome.schedule

    def save(self, folder: str | Path) -> Path:
        """Write a bundle that runs without superopt; returns its folder. An existing one is replaced."""
        from superopt.transforms.emit import save_bundle

        return save_bundle(Path(folder), self.outcome)

    @cached_property
    def _launcher(self) -> Any:
        from superopt.transforms.emit import load_launcher

        return load_launcher(self.outcome)

    def __call__(self, *inputs: Any) -> Any:
        """Run the kernels on torch tensors: on their GPU, or, for tensors of the CPU, in Triton's interpreter.

        Takes what a torch module's `forward` takes and returns what it returns, without gradients; arguments that
        are not tensors must be as in the example inputs. For other programs it takes the inputs and returns the
        output, or a tuple of the outputs. A tensor is overwritten only where the program says so: by
        `superopt.aliasing_output` of an argument, or because the module assigns to it. Raises BadInput for
        arguments that the program was not made for.
        """
        if self._imported is None:
            return self._launcher(*inputs)
        signature = self._imported.signature
        made: Any = self._launcher(*signature.flat(inputs), *self._imported.weights)
        return signature.nested(made if len(self.outcome.original.outputs) > 1 else [made])

    def __repr__(self) -> str:
        report = self.outcome.report
        gain = report.input_predicted_seconds / report.predicted_seconds if report.predicted_seconds else 1.0
        what = f"{len(report.kernels)} kernels, {gain:.2f}x predicted on {report.target}"
        return f"<superopt.Optimized {report.program}: {what}>"
