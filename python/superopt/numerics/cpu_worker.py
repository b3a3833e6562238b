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


# A program is timed in rounds, each between two of the anchor's, until it has had so many and so many seconds.
FEWEST, MOST, SECONDS = 9, 61, 0.1


@dataclass
class _Kernel:
    function: Callable[[Sequence[int]], Callable[[], None]]
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
        """Compile a kernel, or launch kernels on the memory of a file; with an anchor, time them."""
        if "text" in request:
            self.kernels[request["kernel"]] = _Kernel(compiled(request["text"]), request["scratch"])
            return {}
        starts, size = places(request["sizes"])
        handle = os.open(request["file"], os.O_RDWR)
        try:
            memory = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        addresses = _addresses(memory, starts)
        self.poison([*request["calls"], *request["anchor"]])
        calls, anchor = (self.bound(request[k], addresses) for k in ("calls", "anchor"))
        _timed(calls)
        return {"times": _rounds(calls, anchor)} if anchor else {}

    def poison(self, calls: Sequence[tuple[str, list[int]]]) -> None:
        """Have enough scratch memory, without numbers in it."""
        size = max((places(self.kernels[key].scratch)[1] for key, _ in calls), default=LINE)
        if len(self.scratch) < size:
            self.scratch = mmap.mmap(-1, size)
        ctypes.memset(_addresses(self.scratch, [0])[0], _POISON, size)

    def bound(
        self, calls: Sequence[tuple[str, list[int]]], addresses: Sequence[int]
    ) -> list[Callable[[], None]]:
        """What calls kernels on some of the arguments."""
        made: list[Callable[[], None]] = []
        for key, arguments in calls:
            kernel = self.kernels[key]
            rooms = _addresses(self.scratch, places(kernel.scratch)[0])
            made.append(kernel.function([*(addresses[i] for i in arguments), *rooms]))
        return made


def _rounds(calls: Sequence[Callable[[], None]], anchor: Sequence[Callable[[], None]]) -> list[list[float]]:
    """CPU seconds of the calls and of the anchor, in turns; drift of the clock is in both."""
    _timed(anchor)
    rounds: list[list[float]] = []
    while len(rounds) < FEWEST or (len(rounds) < MOST and sum(t for t, _ in rounds) < SECONDS):
        before = _timed(anchor)
        taken = _timed(calls)
        rounds.append([taken, (before + _timed(anchor)) / 2])
    return rounds


def _timed(calls: Sequence[Callable[[], None]]) -> float:
    begun = time.thread_time()
    for call in calls:
        call()
    return time.thread_time() - begun


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
        begun = time.process_time()
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:  # the bindings' errors lack a common class
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({**answer, "seconds": time.process_time() - begun}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
