"""Running a Python file that the user names, with errors that say where it went wrong."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

from superopt.errors import BadInput, Location, SuperoptError


def load(path: Path, name: str) -> ModuleType:
    """The file as a module of this name, which imports what lies beside it; raises BadInput where it fails."""
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(name, module)
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        place = Location(error.filename or str(path), error.lineno or 0, error.offset or 0)
        raise BadInput(f"expected Python, got a syntax error: {error.msg}", place) from None
    except (UnicodeDecodeError, ValueError) as error:
        if _line_in(error, path):
            raise raised(error, path, "the file raised") from error
        raise BadInput(f"expected Python text: {error}", Location(str(path))) from None
    except OSError as error:
        if _line_in(error, path):
            raise raised(error, path, "the file raised") from error
        raise BadInput(f"cannot read: {error.strerror}", Location(str(path))) from None
    except Exception as error:
        raise raised(error, path, "the file raised") from error
    return module


def raised(error: BaseException, path: Path, what: str) -> BadInput:
    """`what`, the error and the innermost line of the file that led to it."""
    return BadInput(f"{what} {type(error).__name__}: {error}", Location(str(path), _line_in(error, path), 1))


def file_of(thing: object) -> Path:
    """The file of the class of `thing`."""
    module = type(thing).__module__
    return Path(str(getattr(sys.modules.get(module), "__file__", module)))


@contextlib.contextmanager
def blamed(thing: object, called: str) -> Generator[None]:
    """Within it, a method of `thing` runs: what one from outside the package raises is BadInput at its line."""
    try:
        yield
    except SuperoptError:
        raise
    except Exception as error:
        if type(thing).__module__.startswith("superopt."):
            raise  # a fault of ours
        raise raised(error, file_of(thing), f"{called} raised") from error


def _line_in(error: BaseException, path: Path) -> int:
    """The innermost line of the file that led to `error`, or 0."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    return (frames[-1].lineno or 0) if frames else 0
