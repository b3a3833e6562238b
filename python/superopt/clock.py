"""The clock of budgets: seconds of work, not of waiting, so that a busy machine finds what an idle one does.

It counts the processor time of the asking thread and the time charged for child processes that worked for it.
It leaves out helper threads of the native cores: a result must not depend on how many there are.
"""

from __future__ import annotations

import threading
import time

_charged = threading.local()


def now() -> float:
    """Seconds of work of this thread so far."""
    return time.thread_time() + getattr(_charged, "seconds", 0.0)


def charge(seconds: float) -> None:
    """Add the work of a child process to that of this thread."""
    _charged.seconds = getattr(_charged, "seconds", 0.0) + seconds
