"""`--load-pass-plugin=FILE.py`: passes and optimizers from outside the package, named like all others."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path

from superopt.errors import BadInput, Location
from superopt.inputs import python_files
from superopt.transforms import optimizers, registry
from superopt.transforms.optimizers import Optimizer
from superopt.transforms.passes import Pass


def load(file: str) -> None:
    """Register every pass and every optimizer that the file defines.

    Raises BadInput if the file fails or defines none, and BadOption for a name in use.
    """
    path, place = Path(file), Location(file)
    if not path.is_file():
        raise BadInput(
            f"expected a Python file, got {'a directory' if path.is_dir() else 'no such file'}", place
        )
    # Two files of one name are two modules.
    place_digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    module = python_files.load(path, f"superopt_plugin_{place_digest}")
    classes: list[type] = [
        c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__
    ]
    made = [c for c in classes if issubclass(c, (Pass, Optimizer)) and not inspect.isabstract(c)]
    if not made:
        raise BadInput(
            "expected a class that derives from GraphPass, ModulePass or Optimizer, got none", place
        )
    for found in made:
        if issubclass(found, Pass):
            registry.register(_named(found, "flag", place), f"{module.__name__}:{found.__name__}")
        if issubclass(found, Optimizer):
            optimizers.register(_named(found, "name", place), f"{module.__name__}:{found.__name__}")


def _named(found: type, field: str, place: Location) -> str:
    """The class variable that names a pass or an optimizer; raises BadInput where it is missing."""
    called = getattr(found, field, None)
    if not isinstance(called, str):
        raise BadInput(f"expected {found.__name__}.{field} to be a name, got {called}", place)
    return called
