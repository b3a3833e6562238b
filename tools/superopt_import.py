"""`superopt-import`: a PyTorch module as a program in the kernel dialect; `--help` says how."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from superopt.errors import BadInput, BadOption, Location, SuperoptError, UnsupportedProgram

_DESCRIPTION = """\
Imports a PyTorch module. FACTORY is a function in FILE.py that takes no arguments and returns the module and a
tuple of example inputs, whose shapes and dtypes become the program's. The program's arguments are the tensors
among the inputs, then the parameters and floating-point buffers of the module."""

_EXIT_CODES = "exit codes: 0 done; 1 the module was refused, or something failed; 2 the command line was"


def main(argv: Sequence[str] | None = None) -> int:
    """Import as the command line (`sys.argv` by default) says; returns the exit code."""
    from superopt.driver.isolation import isolated

    arguments = list(sys.argv[1:] if argv is None else argv)
    return isolated(lambda: run(arguments), "superopt-import")


def run(arguments: Sequence[str]) -> int:
    """As `main`, in this process."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as stop:  # argparse has said why
        return int(stop.code or 0)
    try:
        _import(options)
    except BadOption as error:
        print(error, file=sys.stderr)
        return 2
    except SuperoptError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("superopt-import", description=_DESCRIPTION, epilog=_EXIT_CODES)
    parser.add_argument("source", metavar="FILE.py:FACTORY", help="where the module comes from")
    parser.add_argument(
        "-o", dest="output", metavar="FILE", default="-", help="the program (default: -, standard output)"
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="write the weights too, by name: .npz or .safetensors"
    )
    parser.add_argument(
        "--via", choices=("torch", "linalg"), default="torch", help="the entrance to read by (default: torch)"
    )
    parser.add_argument("--name", default="main", help="the program's name (default: main)")
    parser.add_argument(
        "--narrow-f64", action="store_true", help="compute f64 intermediates in f32 (with --via=linalg)"
    )
    return parser


def _import(options: argparse.Namespace) -> None:
    from superopt.dialects import writer
    from superopt.driver import output
    from superopt.transforms.ingest.import_torch import from_torch

    path, factory_name = _split_source(options.source)
    if options.weights is not None and Path(options.weights).suffix not in (".npz", ".safetensors"):
        raise BadOption(f"expected --weights=FILE.npz or FILE.safetensors, got '{options.weights}'")
    output.check_writable(options.output)
    if options.weights is not None:
        output.check_writable(options.weights)
    factory = _load(path, factory_name)
    place = Location(str(path), inspect.unwrap(factory).__code__.co_firstlineno, 1)
    module, inputs = _call(factory, factory_name, path, place)
    imported = from_torch(
        module, inputs, via=options.via, name=options.name, narrow_f64=options.narrow_f64, location=place
    )
    for message in imported.diagnostics.messages:
        print(message, file=sys.stderr)
    if options.weights is not None:
        _write_weights(options.weights, imported.weight_names, imported.weights)
    output.write(options.output, writer.to_text(imported.graph))
    inputs_count = len(imported.graph.inputs) - len(imported.weights)
    print(
        f"{imported.operators} operators, {imported.externs} extern; "
        f"{inputs_count} inputs, {len(imported.weights)} weights",
        file=sys.stderr,
    )


def _split_source(text: str) -> tuple[Path, str]:
    file, _, factory = text.rpartition(":")
    if not file or not factory.isidentifier():
        raise BadOption(f"expected FILE.py:FACTORY, got '{text}'")
    path = Path(file)
    if path.is_dir():
        raise BadInput("cannot read: is a directory", Location(file))
    if not path.exists():
        raise BadInput("cannot read: no such file", Location(file))
    return path, factory


def _load(path: Path, name: str) -> Any:
    """The function `name` of the file; raises BadInput where the file fails or has none."""
    from superopt.transforms.ingest.torch_types import torch_module

    torch_module()  # a missing PyTorch is better said before the file's own import fails
    spec = importlib.util.spec_from_loader(
        path.stem, importlib.machinery.SourceFileLoader(path.stem, str(path))
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        place = Location(error.filename or str(path), error.lineno or 0, error.offset or 0)
        raise BadInput(f"expected Python, got a syntax error: {error.msg}", place) from None
    except (UnicodeDecodeError, ValueError) as error:
        if _line_in(error, path):
            raise _raised(error, path, "the file raised") from error
        raise BadInput(f"expected Python text: {error}", Location(str(path))) from None
    except OSError as error:
        raise BadInput(f"cannot read: {error.strerror}", Location(str(path))) from None
    except Exception as error:
        raise _raised(error, path, "the file raised") from error
    factory = getattr(module, name, None)
    if not inspect.isfunction(factory):
        known = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == path.stem]
        have = f"; it has {', '.join(sorted(known))}" if known else ""
        what = "no such name" if factory is None else type(factory).__name__
        raise BadInput(f"expected a function '{name}', got {what}{have}", Location(str(path)))
    return factory


def _call(factory: Any, name: str, path: Path, place: Location) -> tuple[Any, Sequence[Any]]:
    required = [p for p in inspect.signature(factory).parameters.values() if p.default is p.empty]
    if any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in required):
        raise BadInput(f"expected '{name}' to take no arguments, got {inspect.signature(factory)}", place)
    made: Any
    try:
        made = factory()
    except SuperoptError:
        raise
    except Exception as error:
        raise _raised(error, path, f"'{name}' raised") from error
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", made) if isinstance(made, tuple) else ()
    inputs: Any = parts[1] if len(parts) == 2 else None
    if not isinstance(inputs, tuple | list):
        raise BadInput(
            f"expected '{name}' to return (module, tuple of example inputs), got {_described(made)}", place
        )
    return parts[0], cast("Sequence[Any]", inputs)


def _described(value: Any) -> str:
    if isinstance(value, tuple):
        return (
            f"a tuple of {', '.join(type(v).__name__ for v in cast('tuple[Any, ...]', value)) or 'nothing'}"
        )
    return type(value).__name__


def _line_in(error: BaseException, path: Path) -> int:
    """The innermost line of the file that led to `error`, or 0."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    return (frames[-1].lineno or 0) if frames else 0


def _raised(error: BaseException, path: Path, what: str) -> BadInput:
    return BadInput(f"{what} {type(error).__name__}: {error}", Location(str(path), _line_in(error, path), 1))


def _write_weights(path: str, names: Sequence[str], weights: Sequence[Any]) -> None:
    """The weights by name; .npz has no bf16, so those are written as float32."""
    import io

    from superopt.driver import output
    from superopt.transforms.ingest.torch_types import torch_module

    torch = torch_module()
    tensors = {n: w.detach().cpu().contiguous() for n, w in zip(names, weights, strict=True)}
    if path.endswith(".safetensors"):
        try:
            from safetensors.torch import save
        except ImportError:
            raise UnsupportedProgram("expected the package safetensors to be installed to write it") from None
        output.write(path, save({n: w.clone() for n, w in tensors.items()}))
        return
    import numpy as np

    arrays = {n: (w.float() if w.dtype == torch.bfloat16 else w).numpy() for n, w in tensors.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    output.write(path, buffer.getvalue())


if __name__ == "__main__":
    sys.exit(main())
