"""Work that one process does at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def alone(path: Path) -> Generator[None]:
    """Wait for others that hold the file or folder, and hold it; raises OSError where it cannot be opened.

    The lock ends with the process, however that ends. Some network file systems lack locks; there, nobody waits.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
