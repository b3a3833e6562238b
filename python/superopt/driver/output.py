"""Writing results: whole or not at all, and refused before the work where it cannot succeed."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from superopt.errors import BadInput, Location


def check_writable(path: str, *, folder: bool = False) -> None:
    """Raise `BadInput` unless `path` can be written (`-`: standard output); creates nothing.

    With `folder`, `path` is a folder to be made or filled.
    """
    if path == "-":
        if folder:
            raise BadInput("a bundle is a folder; name it with -o FOLDER")
        return
    target = Path(path)
    where = Location(path)
    if folder:
        if target.exists() and not target.is_dir():
            raise BadInput("cannot write: expected a folder, got a file", where)
        while not target.exists():
            target = target.parent
        if not target.is_dir():
            raise BadInput(f"cannot write: {target} is not a folder", where)
        if not os.access(target, os.W_OK | os.X_OK):
            raise BadInput(f"cannot write: no permission in {target}", where)
        return
    if target.is_dir():
        raise BadInput("cannot write: is a directory", where)
    if not target.parent.is_dir():
        raise BadInput(f"cannot write: no such folder {target.parent}", where)
    if target.exists() and not os.access(target, os.W_OK):
        raise BadInput("cannot write: no permission", where)
    if (not target.exists() or target.is_file()) and not os.access(target.parent, os.W_OK | os.X_OK):
        raise BadInput(f"cannot write: no permission in {target.parent}", where)


def write(path: str, content: str | bytes) -> None:
    """Write `content` to `path` (`-`: standard output), by a temporary file that is renamed.

    Raises `BadInput` where the system refuses; what was at `path` is then as before.
    """
    data = content.encode() if isinstance(content, str) else content
    if path == "-":
        _to_stdout(data, binary=isinstance(content, bytes))
        return
    target = Path(path)
    try:
        if target.exists() and not target.is_file():  # /dev/null, a pipe
            target.write_bytes(data)
            return
        target = target.resolve()  # a link stays a link
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.chmod(name, _mode(target))
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise BadInput(f"cannot write: {error.strerror}", Location(path)) from None


def make_folder(path: Path) -> None:
    """Make the folder, and those that it lies in; raises `BadInput` where the system refuses."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make a folder: {error.strerror}", Location(str(path))) from None


def _mode(target: Path) -> int:
    """The permissions `target` has, or would have if it were made by `open`."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _to_stdout(data: bytes, *, binary: bool) -> None:
    stream = sys.stdout
    if binary and stream.isatty():
        raise BadInput("refusing to print binary data to a terminal; use -o FILE")
    stream.flush()
    buffer = getattr(stream, "buffer", None)
    if buffer is None:  # standard output was replaced by a text stream
        stream.write(data.decode(errors="replace"))
    else:
        rest = memoryview(data)
        while rest:  # with PYTHONUNBUFFERED this is the bare file, which may take less and not say why
            rest = rest[buffer.write(rest) :]
    stream.flush()
