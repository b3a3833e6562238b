"""`superopt-import`: a PyTorch module as a program in the kernel dialect; see `--help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superopt.driver import output
from superopt.driver.arguments import Parser, said
from superopt.driver.isolation import isolated
from superopt.errors import BadOption, SuperoptError, UnsupportedProgram

_DESCRIPTION = """\
Imports a PyTorch module. FACTORY is a function in FILE.py that takes no arguments and returns the module and a
tuple of example inputs, whose shapes and dtypes become the program's. The program's arguments are the tensors
among the inputs, then the parameters and floating-point buffers of the module."""

_EXIT_CODES = "exit codes: 0 done; 1 the module was refused or something failed; 2 bad command line"


def main(argv: Sequence[str] | None = None) -> int:
    """Import as the command line (`sys.argv` by default) says; returns the exit code."""
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
        print(said("superopt-import", error), file=sys.stderr)
        return 2
    except SuperoptError as error:
        print(said("superopt-import", error), file=sys.stderr)
        return 1
    return 0


def _parser() -> Parser:
    parser = Parser("superopt-import", description=_DESCRIPTION, epilog=_EXIT_CODES)
    parser.add_argument("source", metavar="FILE.py:FACTORY", help="the function that returns the module")
    parser.add_argument(
        "-o",
        dest="output",
        metavar="FILE",
        default="-",
        help="where to write the program (default: -, standard output)",
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="also write the weights, by name, to a .npz or .safetensors file"
    )
    parser.add_argument(
        "--via",
        choices=("torch", "linalg"),
        default="torch",
        help="the dialect through which to read the module (default: torch)",
    )
    parser.add_argument("--name", default="main", help="the program's name (default: main)")
    parser.add_argument(
        "--narrow-f64", action="store_true", help="compute f64 intermediates in f32 (with --via=linalg)"
    )
    return parser


def _import(options: argparse.Namespace) -> None:
    from superopt.dialects import writer
    from superopt.inputs import factories
    from superopt.transforms.ingest.import_torch import from_torch

    source = factories.split(options.source)
    if options.weights is not None and Path(options.weights).suffix not in (".npz", ".safetensors"):
        raise BadOption(f"expected --weights=FILE.npz or FILE.safetensors, got '{options.weights}'")
    output.check_writable(options.output)
    if options.weights is not None:
        output.check_writable(options.weights)
    made = factories.load(source)
    imported = from_torch(
        made.module,
        made.inputs,
        via=options.via,
        name=options.name,
        narrow_f64=options.narrow_f64,
        location=made.location,
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


def _write_weights(path: str, names: Sequence[str], weights: Sequence[Any]) -> None:
    """The weights by name; .npz lacks bf16, so those are written as float32."""
    import io

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
