"""Runs emitted programs on the CPU, in Triton's interpreter, in a process of its own.

`TRITON_INTERPRET` counts only when it is set before triton is imported, so it cannot be this process. The
child is kept for later calls: importing torch and triton takes seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from superopt.errors import BadInput
from superopt.numerics.child import Child, ChildFailed
from superopt.program import COMPUTE_DTYPES
from superopt.transforms.emit.program_source import EmittedProgram, write_program

Array = np.ndarray[Any, Any]


class Interpreter:
    """A child process that launches programs in Triton's interpreter."""

    def __init__(self) -> None:
        worker = str(Path(__file__).with_name("interpreter_worker.py"))
        self._child = Child("the interpreter", [worker], {"TRITON_INTERPRET": "1"})

    def run(
        self,
        program: EmittedProgram,
        inputs: Sequence[Array],
        dtypes: Sequence[str],
        timeout: float = 600,
        prepared: int | None = None,
    ) -> list[Array]:
        """Outputs, those of f16 and bf16 as float32 arrays.

        `inputs` of f16, bf16 and f32 are rounded to `dtypes`, others are passed on as they are. What the program
        prepares of its weights is kept under the name `prepared`, for later calls of that name.

        Raises ChildFailed where a kernel fails, BadInput where torch is not installed.
        """
        with tempfile.TemporaryDirectory(prefix="superopt-interpret-") as folder:
            write_program(program, Path(folder))
            # The file keeps the order of memory, and kernels read tensors that are contiguous.
            arrays = [
                np.asarray(x, np.float32 if d in COMPUTE_DTYPES else None, order="C")
                for x, d in zip(inputs, dtypes, strict=True)
            ]
            np.savez(Path(folder, "inputs.npz"), *arrays)
            request: dict[str, Any] = {"folder": folder, "dtypes": list(dtypes)}
            if prepared is not None:
                request |= {"prepared": prepared, "takes": program.prepare}
            answer = self._child.ask(request, timeout)
            if "missing" in answer:
                raise BadInput(f"expected '{answer['missing']}' to be installed: pip install superopt[torch]")
            if "error" in answer:
                raise ChildFailed(answer["error"])
            with np.load(Path(folder, "outputs.npz"), allow_pickle=False) as made:
                return [made[f"arr_{i}"] for i in range(len(made.files))]

    def close(self) -> None:
        """End the process."""
        self._child.close()
