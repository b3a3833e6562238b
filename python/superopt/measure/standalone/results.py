"""The results file: versioned JSON, whole on the disk after every step, read again to resume."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeGuard

FORMAT = "superopt-bench results"
VERSION = 1


class CannotMeasure(Exception):
    """Why nothing, or nothing more, can be measured; its text is shown to the user."""


class CannotWrite(CannotMeasure):
    """The results file cannot be written; what it held before is still there."""


class ResultsFile:
    """`data` is what the file holds; `save` replaces the file in one step, or raises CannotWrite."""

    def __init__(self, path: Path, identity: dict[str, Any], *, fresh: bool = False) -> None:
        """Resume from `path` where it holds results of the same `identity`.

        Raises CannotMeasure where it holds something else, unless `fresh`.
        """
        self.path = path
        self.data: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            **identity,
            "tuning": [],
            "rows": [],
            "complete": False,
        }
        self.resumed = False
        if path.exists() and not fresh:
            found = read(path)
            for key, value in identity.items():
                if found.get(key) != value:
                    raise CannotMeasure(
                        f"expected results of the same {key} to resume {path}, got others; --fresh replaces them"
                    )
            self.data.update(found)
            self.data["complete"] = False
            self.resumed = True

    def save(self) -> None:
        """Write everything: a temporary file beside it, synchronised, renamed."""
        text = json.dumps(self.data, indent=1) + "\n"
        name = ""
        try:
            handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
            with os.fdopen(handle, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, self.path)
        except OSError as error:
            if name:
                with contextlib.suppress(OSError):
                    os.unlink(name)
            raise CannotWrite(f"cannot write {self.path}: {error.strerror or error}") from None


def _is_record(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def read(path: Path) -> dict[str, Any]:
    """The results in `path`; raises CannotMeasure if they are not results."""
    try:
        data: Any = json.loads(path.read_text())
    except OSError as error:
        raise CannotMeasure(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise CannotMeasure(f"expected results in {path}, got no JSON") from None
    if not _is_record(data) or data.get("format") != FORMAT:
        raise CannotMeasure(f"expected results in {path}, got another document")
    if data.get("version") != VERSION:
        raise CannotMeasure(f"expected results of version {VERSION} in {path}, got {data.get('version')}")
    return data
