"""`--load-pass-plugin=FILE.py`: passes from outside the package, with flags like all others."""

from __future__ import annotations

import inspect
from pathlib import Path

from superopt.driver import python_files
from superopt.errors import BadInput, Location
from superopt.transforms import registry
from superopt.transforms.passes import Pass


def load(file: str) -> None:
    """Register every pass that the file defines.

    Raises BadInput where there is none, or the file fails, and BadOption for a flag that there is already.
    """
    path, place = Path(file), Location(file)
    if not path.is_file():
        raise BadInput(
            f"expected a Python file, got {'a directory' if path.is_dir() else 'no such file'}", place
        )
    module = python_files.load(path, f"superopt_plugin_{path.stem}")
    classes = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, Pass)]
    passes = [c for c in classes if c.__module__ == module.__name__ and not inspect.isabstract(c)]
    if not passes:
        raise BadInput("expected a class that derives from GraphPass or ModulePass, got none", place)
    for found in passes:
        flag = vars(found).get("flag")
        if not isinstance(flag, str):
            raise BadInput(f"expected {found.__name__}.flag to be the name of the pass, got {flag}", place)
        registry.register(flag, f"{module.__name__}:{found.__name__}")
