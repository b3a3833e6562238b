"""PyTorch modules by the function that makes them: `FILE.py:FACTORY`, as the command lines take it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from superopt.errors import BadInput, BadOption, Location, SuperoptError
from superopt.inputs import python_files
from superopt.transforms.ingest.torch_types import torch_module


@dataclass(frozen=True)
class Factory:
    """What a factory made: a module and example inputs; `location` is the factory's own."""

    path: Path
    name: str
    module: Any
    inputs: Sequence[Any]
    location: Location


def is_factory(text: str) -> bool:
    """Whether `text` names a function of a Python file, and not a program."""
    return text.rpartition(":")[0].endswith(".py")


def split(text: str) -> tuple[Path, str]:
    """The file and the function of `FILE.py:FACTORY`; raises BadOption and, where there is no file, BadInput."""
    file, _, factory = text.rpartition(":")
    if not file or not factory.isidentifier():
        raise BadOption(f"expected FILE.py:FACTORY, got '{text}'")
    path = Path(file)
    if path.is_dir():
        raise BadInput("cannot read: is a directory", Location(file))
    if not path.exists():
        raise BadInput("cannot read: no such file", Location(file))
    return path, factory


def load(source: tuple[Path, str]) -> Factory:
    """Run the file and call its function; raises BadInput, located, if either fails or returns something else."""
    path, name = source
    factory = _function(path, name)
    place = Location(str(path), inspect.unwrap(factory).__code__.co_firstlineno, 1)
    module, inputs = _call(factory, name, path, place)
    return Factory(path, name, module, inputs, place)


def _function(path: Path, name: str) -> Any:
    """The function `name` of the file; raises BadInput if the file fails or lacks it."""
    torch_module()  # report a missing PyTorch before the file's own import fails
    module = python_files.load(path, path.stem)
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
        raise python_files.raised(error, path, f"'{name}' raised") from error
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
