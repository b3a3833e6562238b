"""`$SUPEROPT_LOG`: what a run does, as JSON, one event a line.

Each event has the time (UTC), the process, and its kind: "stage" of a run (partition, the search of one
optimizer, compile, ...), "gate" (one check of one candidate) and "result"; `seconds` are those that it took by
the clock. With a model, where many runs have programs of one name, they say which `part` they are about, and
a "part" says of each region of torch.compile, or module of `superopt.replace`, what became of it. The variable
names a file, to which lines are appended whole, or `-` for standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from superopt.errors import BadInput

KINDS = ("stage", "gate", "result")
_shown: set[str] = set()
_part = ContextVar("part", default="")


def show(kinds: Iterable[str]) -> None:
    """Print events of these kinds to standard error, too."""
    _shown.update(kinds)


@contextmanager
def about(part: str) -> Generator[None]:
    """Within it, events are about this part of a model."""
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)


def event(kind: str, **facts: Any) -> None:
    """Append an event, where the variable is set; raises BadInput for a file that cannot be written."""
    if _part.get():
        facts = {"part": _part.get(), **facts}
    if kind in _shown:
        said = ", ".join(f"{name}: {fact}" for name, fact in facts.items())
        sys.stderr.write(f"{kind}: {said}\n")
    path = os.environ.get("SUPEROPT_LOG")
    if not path:
        return
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    line = json.dumps({"time": stamp, "process": os.getpid(), "event": kind, **facts}) + "\n"
    if path == "-":
        sys.stderr.write(line)
        return
    try:
        # One write in append mode: lines of several processes do not mix.
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
    except OSError as error:
        raise BadInput(f"expected to write $SUPEROPT_LOG, '{path}', got: {error.strerror}") from None
