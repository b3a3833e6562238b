"""The one place that imports the MLIR Python bindings.

They come from the `torch-mlir` wheel; another distribution of the same bindings (`mlir.*`) replaces it by
changing the names here. The bindings carry no types, so what is exported is `Any` to type checkers. Importing
this module takes about 0.4 s: import it where it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ROOT = "torch_mlir"

ir: Any = import_module(f"{_ROOT}.ir")
passmanager: Any = import_module(f"{_ROOT}.passmanager")
rewrite: Any = import_module(f"{_ROOT}.rewrite")
ext: Any = import_module(f"{_ROOT}.dialects.ext")
irdl: Any = import_module(f"{_ROOT}.dialects.irdl")
func: Any = import_module(f"{_ROOT}.dialects.func")


def binding(name: str) -> Any:
    """Another module of the bindings, by its name below the root: `binding("dialects.linalg")`."""
    return import_module(f"{_ROOT}.{name}")
