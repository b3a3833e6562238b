"""Runs emitted programs on the CPU, in Triton's interpreter, in a process of its own.

`TRITON_INTERPRET` counts only when it is set before triton is imported, so it cannot be this process. The
child is kept for later calls: importing torch and triton takes seconds.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from superopt.errors import BadInput, SuperoptError
from superopt.program import COMPUTE_DTYPES
from superopt.transforms.emit.program_source import EmittedProgram, write_program

Array = np.ndarray[Any, Any]


class InterpreterFailed(SuperoptError):
    """The interpreter's process reported an error, or ended."""


class Interpreter:
    """A child process that launches programs in Triton's interpreter, one request a line."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, program: EmittedProgram, inputs: Sequence[Array], dtypes: Sequence[str], timeout: float = 600
    ) -> list[Array]:
        """Outputs, those of f16 and bf16 as float32 arrays.

        `inputs` of f16, bf16 and f32 are rounded to `dtypes`, others are passed on as they are.

        Raises InterpreterFailed where a kernel fails, BadInput where torch is not installed.
        """
        with tempfile.TemporaryDirectory(prefix="superopt-interpret-") as folder:
            write_program(program, Path(folder))
            # The file keeps the order of memory, and kernels read tensors that are contiguous.
            arrays = [
                np.asarray(x, np.float32 if d in COMPUTE_DTYPES else None, order="C")
                for x, d in zip(inputs, dtypes, strict=True)
            ]
            np.savez(Path(folder, "inputs.npz"), *arrays)
            answer = self._ask({"folder": folder, "dtypes": list(dtypes)}, timeout)
            if "missing" in answer:
                raise BadInput(f"expected '{answer['missing']}' to be installed: pip install superopt[torch]")
            if "error" in answer:
                raise InterpreterFailed(answer["error"])
            with np.load(Path(folder, "outputs.npz"), allow_pickle=False) as made:
                return [made[f"arr_{i}"] for i in range(len(made.files))]

    def _ask(self, request: dict[str, Any], timeout: float) -> dict[str, str]:
        import select

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
        self.close()
        raise InterpreterFailed(
            "the interpreter's process ended"
            if line == ""
            else f"the interpreter took more than {timeout:g} s"
        )

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("interpreter_worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "TRITON_INTERPRET": "1"},
            )
            atexit.register(self.close)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        atexit.unregister(self.close)
