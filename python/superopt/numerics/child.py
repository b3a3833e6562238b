"""A process that answers requests, a JSON line each: what may crash or hang runs there. It is kept for later."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from superopt.errors import SuperoptError


class ChildFailed(SuperoptError):
    """The process reported an error, ended, or took too long."""


class Child:
    """Starts `python -P ARGUMENTS` when it is first asked; `name` is what messages call it."""

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.arguments, self.environment = name, tuple(arguments), dict(environment or {})
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The answer; raises ChildFailed where the process ends or takes longer than `timeout` seconds.

        The next request then starts another process.
        """
        send, receive = self._pipes()
        try:
            send.write(json.dumps(request) + "\n")
            send.flush()
            ready, _, _ = select.select([receive], [], [], timeout)
            line = receive.readline() if ready else None
        except BrokenPipeError:
            line = ""
        except BaseException:  # interrupted: the answer would be taken for that of the next request
            self.close()
            raise
        if line:
            return json.loads(line)
        if line is None:
            self.close()
            raise ChildFailed(f"{self.name} took more than {timeout:g} s")
        assert self._process is not None
        code = self._process.wait()
        self.close()
        how = f"with {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        raise ChildFailed(f"{self.name}'s process ended {how}")

    @property
    def running(self) -> int:
        """The number of the process; 0 where none runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if not self.running:
            self._process = subprocess.Popen(
                [sys.executable, "-P", *self.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **self.environment},
                start_new_session=True,  # a terminal interrupts who waits for the answer, who may want it
            )
            atexit.register(self.close)
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None
        atexit.unregister(self.close)
