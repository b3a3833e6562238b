"""Programs in MLIR, linalg on tensors or the kernel dialect, as kernel graphs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.errors import TEXT, SuperoptError
from superopt.inputs import source

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph
    from superopt.transforms.ingest.at_extent import DynamicProgram


def read_program(path: str | Path, diagnostics: Diagnostics) -> KernelGraph:
    """The program of an `.mlir` file; raises BadInput, located."""
    return _read(source.read(str(path)), diagnostics)


def read_any(path: str | Path, diagnostics: Diagnostics) -> KernelGraph | DynamicProgram:
    """The program of an `.mlir` file, whose extents may be dynamic; raises BadInput, located."""
    from superopt.transforms.ingest.at_extent import DynamicProgram, is_dynamic
    from superopt.transforms.ingest.ingest_linalg import read_linalg

    module = read_module(path)
    return DynamicProgram(module) if is_dynamic(module) else read_linalg(module, diagnostics)


def read_text(text: str, diagnostics: Diagnostics) -> KernelGraph:
    """The program of a text of MLIR; raises BadInput, located in `<text>`."""
    return _read(source.from_bytes(text.encode(), TEXT), diagnostics)


def read_module(program: str | Path) -> Any:
    """The module of an `.mlir` file, or of a text of MLIR; raises BadInput, located."""
    return _module(
        source.from_bytes(str(program).encode(), TEXT) if is_text(program) else source.read(str(program))
    )


@contextmanager
def naming(program: str | Path) -> Generator[None]:
    """Errors inside it name the program, which MLIR does not."""
    try:
        yield
    except SuperoptError as error:
        error.location = error.location.named(name_of(program))
        raise


def name_of(program: str | Path) -> str:
    """What the places in a program are said to be in: its file, or `<text>`."""
    return TEXT if is_text(program) else str(program)


def is_text(program: str | Path) -> bool:
    """Whether this is the text of a program, not its path."""
    return isinstance(program, str) and ("\n" in program or "func.func" in program)


def _read(text: source.Source, diagnostics: Diagnostics) -> KernelGraph:
    from superopt.transforms.ingest.ingest_linalg import read_linalg

    diagnostics.file = text.name
    return read_linalg(_module(text), diagnostics, filename=text.name)


def _module(text: source.Source) -> Any:
    from superopt.dialects import base

    module = source.parse(text, base.context())
    base.verify(module, filename=text.name)
    return module
