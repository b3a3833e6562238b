"""The Python API on programs and modules: `optimize` and `from_torch`; `superopt.pytorch` has the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_origin, overload

from superopt.again import command, flag
from superopt.diagnostics import Diagnostics
from superopt.driver.console import progress as shown
from superopt.errors import BadInput, BadOption, NoKernels
from superopt.inputs.programs import is_text, name_of, naming, read_module, read_program, read_text
from superopt.options import did_you_mean, fits, split_list
from superopt.pipeline import Superoptimize, superoptimize
from superopt.program import KernelGraph
from superopt.result import Optimized
from superopt.run.buckets import superoptimize_linalg
from superopt.transforms.emit.compile import prepare_compiler
from superopt.transforms.ingest import from_torch as import_module

if TYPE_CHECKING:
    from superopt.pytorch.module import OptimizedModule
    from superopt.transforms.emit.launcher import Interpret
    from superopt.transforms.ingest.import_torch import Imported


def from_torch(module: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Imported:
    """A `torch.nn.Module` as a kernel graph: its weights are arguments after the inputs.

    `inputs` and `kwargs` are example arguments; shapes are static. Raises UnsupportedProgram for dynamic shapes.
    """
    return import_module(module, inputs, kwargs)


@overload
def optimize(
    program: str | Path | KernelGraph, inputs: None = None, *, progress: bool = True, **settings: Any
) -> Optimized: ...


@overload
def optimize(
    program: Any,
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    buckets: Any = None,
    fallback: bool = False,
    interpret: Interpret = False,
    progress: bool = True,
    **settings: Any,
) -> OptimizedModule: ...


def optimize(
    program: Any,
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    buckets: Any = None,
    fallback: bool = False,
    interpret: Interpret = False,
    progress: bool = True,
    **settings: Any,
) -> Any:
    """The fastest program found that is provably the same as `program`.

    `program` is an MLIR program (linalg on tensors, or the kernel dialect) as a path, a text or a `KernelGraph`:
    the result is called with its inputs. Or it is PyTorch's: a module, a class of one, a function, an
    `ExportedProgram`. With the example arguments `inputs` (a tuple; one tensor; a dictionary, which is `kwargs`),
    the result is a module (`superopt.pytorch.module.OptimizedModule`), with this `fallback` and `interpret`.
    `dynamic_shapes` marks dimensions as in `torch.export`: kernels then take every extent from the `Dim`'s min to
    its max. `buckets` are the largest extents that share kernels, such as [64, 512], by name (`{"n": [64, 512]}`)
    where there are several `Dim`s, or "auto", where superopt cuts a range as long as that is predicted to pay.
    The settings are those of `superopt.pipeline.Superoptimize`: `target`, `budget` (seconds of processor time),
    `seed`, `store` and others. `progress` shows a bar where standard error is a terminal.

    A module whose program lacks kernels that are proved, even operator by operator, is returned as one that runs
    the original: a warning and `report.remarks` say why. Raises a SuperoptError for what the caller can fix.
    """
    options, diagnostics = settings_of(settings, optimize), Diagnostics()
    with shown(diagnostics, show=progress):
        if options.dynamic:
            if not isinstance(program, str | Path):
                raise BadOption(
                    "expected 'dynamic' with a path or text of MLIR, got a program of PyTorch, which takes "
                    "dynamic_shapes"
                )
            diagnostics.file = name_of(program)
            text = str(program) if is_text(program) else None
            diagnostics.command = command(str(program), flag(options), text=text)
            with naming(program):
                return Optimized(superoptimize_linalg(read_module(program), options, diagnostics))
        if (graph := _program(program, options, diagnostics)) is not None:
            return Optimized(superoptimize(graph, options, diagnostics))
        prepare_compiler()  # while PyTorch exports the module
        from superopt.pytorch import dynamic, module

        original, args, named = _called(module, program, inputs, kwargs)
        if buckets is not None and dynamic_shapes is None:
            raise BadOption("expected buckets with dynamic_shapes, got none of these")
        try:
            if dynamic_shapes is not None:
                marked = dynamic.dynamic(original, args, named, dynamic_shapes)
                imported, outcome = marked.optimized(marked.ends(buckets), options, diagnostics)
            else:
                imported = module.imported(original, args, named)
                diagnostics.messages += imported.diagnostics.messages
                outcome = superoptimize(imported.graph, options, diagnostics)
            result = Optimized(outcome)
        except NoKernels as error:
            imported, result = module.imported(original, args, named), module.kept(original, error)
    given = (args, named)
    return module.optimized(original, imported, result, given, fallback=fallback, interpret=interpret)


def settings_of(given: Mapping[str, Any], function: Callable[..., Any] | None = None) -> Superoptimize:
    """Settings by keyword; raises BadOption for an unknown one, and says which one was meant, or which argument
    of `function`."""
    others = () if function is None else inspect.signature(function).parameters
    known = {o.field: o for o in Superoptimize.options()}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(name, [*known, *others])
            raise BadOption(f"expected settings of {', '.join(known)}, got '{name}'{hint}")
        values[name] = str(value) if isinstance(value, Path) else value
        if isinstance(value, list):
            values[name] = tuple(cast("list[Any]", value))
        elif isinstance(value, str) and get_origin(known[name].annotation) is tuple:
            values[name] = tuple(split_list(value))  # as on a command line
        if not fits(known[name].annotation, values[name]):
            raise BadOption(f"expected {name} to be {known[name].type_name}, got {value!r}")
    return Superoptimize(**values)


def _program(program: Any, options: Superoptimize, diagnostics: Diagnostics) -> KernelGraph | None:
    """The program of MLIR, None for what PyTorch has to read; raises BadInput for anything else."""
    if isinstance(program, KernelGraph):
        return program
    if isinstance(program, str) and is_text(program):
        return read_text(program, diagnostics)
    if isinstance(program, str | Path):
        diagnostics.command = command(str(program), flag(options))
        return read_program(program, diagnostics)
    if callable(program) or type(program).__name__ == "ExportedProgram":
        return None
    raise BadInput(
        "expected a path, MLIR, a KernelGraph, or a module, function or ExportedProgram of PyTorch, "
        f"got {type(program).__name__}"
    )


def _called(
    module: Any, program: Any, inputs: Any, kwargs: Mapping[str, Any] | None
) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """What `superopt.pytorch.module` makes of the program, and the example arguments by position and by name."""
    if inputs is None and kwargs is None:
        if getattr(program, "example_inputs", None) is None:
            raise BadInput("expected example inputs with a torch module, got none")
        inputs, kwargs = program.example_inputs
    return module.as_module(program), *module.arguments(() if inputs is None else inputs, kwargs)
