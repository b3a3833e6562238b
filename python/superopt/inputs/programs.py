"""Programs in MLIR, linalg on tensors or the kernel dialect, as kernel graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from superopt.inputs import source

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph


def read_program(path: str | Path, diagnostics: Diagnostics) -> KernelGraph:
    """The program of an `.mlir` file; raises BadInput, located."""
    return _read(source.read(str(path)), diagnostics)


def read_text(text: str, diagnostics: Diagnostics) -> KernelGraph:
    """The program of a text of MLIR; raises BadInput, located in `<text>`."""
    return _read(source.from_bytes(text.encode(), "<text>"), diagnostics)


def _read(text: source.Source, diagnostics: Diagnostics) -> KernelGraph:
    from superopt.dialects import base
    from superopt.transforms.ingest.ingest_linalg import read_linalg

    module = source.parse(text, base.context())
    base.verify(module, filename=text.name)
    return read_linalg(module, diagnostics)
