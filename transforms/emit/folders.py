"""Folders that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from superopt.errors import BadInput

MARKS = ("bundle.json", "buckets.json")
"""A folder with one of these may be replaced."""


@contextmanager
def in_one_step(folder: str | Path) -> Generator[Path]:
    """A new folder to fill, which becomes `folder` in one step once it is full, and replaces a bundle there.

    Raises BadInput for a folder that holds something else or cannot be written.
    """
    target = Path(folder).absolute()
    _refuse_others(target)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        temporary.chmod(0o755)
        yield temporary
        _sync(temporary)
        _replace(temporary, target)
    except OSError as error:
        raise BadInput(f"expected to write the bundle '{folder}', got: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _refuse_others(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise BadInput(f"expected a folder to write a bundle into, got a file: {target}")
    if target.is_dir() and any(target.iterdir()) and not any((target / m).is_file() for m in MARKS):
        raise BadInput(
            f"expected an empty folder or a bundle to replace, got a folder with other files: {target}"
        )


def _sync(folder: Path) -> None:
    """Flush every file to disk, so that a rename never publishes files that a crash would empty."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _replace(new: Path, target: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    try:
        target.rename(old / "bundle")
        try:
            new.rename(target)
        except OSError:
            (old / "bundle").rename(target)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
