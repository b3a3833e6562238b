"""A process for each candidate: a crash, a hang or a fault of the device ends that process and no other.

Processes are forked from a server that has imported torch and triton, but lacks a CUDA context: a start takes
milliseconds instead of the seconds of an import.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from . import worker

_LOG_BYTES = 2000


class Ended(Exception):
    """A worker that died or was killed: (status of its row, how)."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Worker(Protocol):
    """The part of a worker that a session uses; tests have scripted ones."""

    def ask(self, question: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer; raises Ended where the process dies, or after `timeout` seconds."""
        ...

    def close(self) -> None:
        """End the process."""
        ...


class Processes:
    """Starts workers; holds the folder of their logs. `close` ends the server of processes."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch", "triton", worker.__name__])
        self._folder = tempfile.TemporaryDirectory(prefix="superopt-measure-")
        self._count = 0

    def start(self, request: dict[str, Any]) -> Process:
        """A worker for this candidate."""
        self._count += 1
        return Process(self._context, request, Path(self._folder.name) / f"{self._count}.log")

    def close(self) -> None:
        """Remove the logs."""
        self._folder.cleanup()


class Process:
    """One worker in a process of its own."""

    def __init__(self, context: Any, request: dict[str, Any], log: Path) -> None:
        self._log = log
        self._questions, theirs = context.Pipe()
        listening, self._alive = context.Pipe(duplex=False)
        self._process = context.Process(
            target=worker.serve, args=(request, theirs, listening, str(log)), daemon=False
        )
        self._process.start()
        theirs.close()
        listening.close()

    def ask(self, question: dict[str, Any], timeout: float) -> dict[str, Any]:
        """One question, one answer."""
        try:
            self._questions.send(question)
            ready = wait([self._questions, self._process.sentinel], timeout)
            if self._questions in ready:
                return self._questions.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            ready = [self._process.sentinel]
        if not ready:
            self.close()
            raise Ended("timeout", f"no answer within {timeout:.0f} s")
        self._process.join(10)
        code = self._process.exitcode
        self.close()
        how = f"exit status {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-code).name
        raise Ended("crashed", f"its process ended with {how}{self._tail()}")

    def close(self) -> None:
        """Kill: there is nothing to save in it."""
        with contextlib.suppress(OSError):
            if self._process.is_alive() and self._process.pid:
                os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(10)
        self._questions.close()
        self._alive.close()

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            text = self._log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip()
            if text:
                return ": " + text.splitlines()[-1][:300]
        return ""
