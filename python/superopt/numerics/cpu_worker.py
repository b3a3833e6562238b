"""The child of `superopt.numerics.cpu`: compiles kernels, and runs them on memory that a file shares.

LLVM aborts where it gives up, and compiled code may write anywhere or never end: all of that ends here.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.transforms.cpu.engine import compiled

# Memory is handed out in parts of so many bytes: a line of the cache.
LINE = 64
# What no number is: what is read before it is written shows.
_POISON = 0xFF


@dataclass
class _Kernel:
    function: Callable[[Sequence[int]], None]
    arguments: list[int]
    scratch: list[int]


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where arguments of these sizes lie in a file, and how long it is."""
    starts, end = list[int](), 0
    for size in sizes:
        starts.append(end)
        end += -(-size // LINE) * LINE
    return starts, max(end, LINE)


class _Worker:
    def __init__(self) -> None:
        self.kernels: dict[str, _Kernel] = {}
        self.scratch = mmap.mmap(-1, LINE)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        begun = time.process_time()
        if "text" in request:
            function = compiled(request["text"])
            self.kernels[request["kernel"]] = _Kernel(function, request["arguments"], request["scratch"])
        else:
            self.run(self.kernels[request["kernel"]], request["file"])
        return {"seconds": time.process_time() - begun}

    def run(self, kernel: _Kernel, file: str) -> None:
        """One launch, on the memory of a file."""
        starts, size = places(kernel.arguments)
        handle = os.open(file, os.O_RDWR)
        try:
            memory = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        kernel.function([*_addresses(memory, starts), *self.rooms(kernel)])
        memory.close()

    def rooms(self, kernel: _Kernel) -> list[int]:
        """Scratch memory of a kernel."""
        starts, size = places(kernel.scratch)
        if len(self.scratch) < size:
            self.scratch = mmap.mmap(-1, size)
        begin = _addresses(self.scratch, [0])[0]
        ctypes.memset(begin, _POISON, size)
        return [begin + s for s in starts]


def _addresses(memory: mmap.mmap, starts: Sequence[int]) -> list[int]:
    view = ctypes.c_char.from_buffer(memory)
    return [ctypes.addressof(view) + s for s in starts]


def main() -> None:
    """Answer requests until standard input ends."""
    # Ctrl-C goes to the whole process group; the process that started this one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.disable()
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")  # what LLVM prints must not mix with them
    os.dup2(2, 1)
    worker = _Worker()
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:  # the bindings' errors lack a common class
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
