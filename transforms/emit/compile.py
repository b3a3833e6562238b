"""Triton source to TTIR, TTGIR, LLVM IR, PTX and cubin, for any target, without a GPU, in separate
processes."""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeAlias

from superopt import clock
from superopt.cost.gpus import DEFAULT_TARGET
from superopt.cost.gpus import target as find_target
from superopt.early import CAPABILITY
from superopt.errors import SuperoptError
from superopt.program import NUMBER_DTYPES
from superopt.transforms.emit.triton_source import TritonKernel

if TYPE_CHECKING:
    from superopt.cost.counted import KernelCounts

# Types in Triton's signatures, by dtype.
_POINTEES = {d: d for d in NUMBER_DTYPES} | {"f16": "fp16", "f32": "fp32"}
MEMORY_BYTES = 8 << 30  # of a compiler's address space
PRELUDE = "import triton\nimport triton.language as tl\n"
SOURCE_STARTS = PRELUDE.count("\n") + 2  # lines above a kernel's source in the file that is compiled

Stage: TypeAlias = Literal["ttir", "ttgir", "llir", "ptx"]


class CompilationFailed(SuperoptError):
    """The compiler rejected a kernel, crashed or hung on it, or ran out of memory."""


@dataclass(frozen=True)
class Compiled:
    """One kernel compiled for one target.

    `shared_bytes` is the shared memory of a block, `registers` those of a thread, `spill_bytes` what ptxas
    stores to and loads from local memory for lack of registers. `counts` are of what the first block does
    (`superopt.cost.counted`), None where that was not counted.
    """

    name: str
    target: str
    ttir: str
    ttgir: str
    llir: str
    ptx: str
    cubin: bytes
    shared_bytes: int
    registers: int
    spill_bytes: int
    counts: KernelCounts | None = None


def compile_kernel(
    kernel: TritonKernel,
    target: str = DEFAULT_TARGET,
    *,
    timeout: float = 120,
    memory_bytes: int = MEMORY_BYTES,
) -> Compiled:
    """Compile one kernel for `target`, within `timeout` seconds and `memory_bytes` of address space.

    Raises CompilationFailed with the compiler's message, or how its process ended; BadOption for an
    unknown target.
    """
    compiled, seconds = _compiled_kernel(kernel, target, timeout, memory_bytes)
    clock.charge(seconds)
    return compiled


def _compiled_kernel(
    kernel: TritonKernel, target: str, timeout: float, memory_bytes: int = MEMORY_BYTES
) -> tuple[Compiled, float]:
    request = {
        "source": PRELUDE + "\n" * (SOURCE_STARTS - PRELUDE.count("\n")) + kernel.source,
        "parameters": [(p.name, _POINTEES[p.type.dtype]) for p in kernel.parameters],
        "num_warps": kernel.num_warps,
        "num_stages": kernel.num_stages,
        "extents": kernel.extents,
    }
    if kernel.early:
        request["EARLY"] = find_target(target).capability >= CAPABILITY
    return _compiled(kernel.name, target, request, timeout, memory_bytes)


def _compiled(
    name: str, target: str, request: Mapping[str, object], timeout: float, memory_bytes: int
) -> tuple[Compiled, float]:
    """The compiled kernel, and the processor seconds of its compilation."""
    answer = _answer(name, target, request, timeout, memory_bytes)
    compiled = Compiled(
        name=name,
        target=target,
        ttir=answer["ttir"],
        ttgir=answer["ttgir"],
        llir=answer["llir"],
        ptx=answer["ptx"],
        cubin=base64.b64decode(answer["cubin"]),
        shared_bytes=int(answer["shared_bytes"]),
        registers=int(answer["registers"]),
        spill_bytes=int(answer["spill_bytes"]),
    )
    return compiled, float(answer["seconds"])


def compile_ttir(
    name: str, ttir: str, target: str, *, num_warps: int, num_stages: int, timeout: float = 120
) -> Compiled:
    """A kernel's TTIR compiled by this Triton; raises as `compile_kernel` does."""
    request = {"ttir": ttir, "num_warps": num_warps, "num_stages": num_stages}
    return _compiled(name, target, request, timeout, MEMORY_BYTES)[0]


def assemble(name: str, ptx: str, target: str, *, timeout: float = 120) -> bytes:
    """The cubin that the installed ptxas makes of a kernel's PTX; raises as `compile_kernel` does."""
    return base64.b64decode(_answer(name, target, {"ptx": ptx}, timeout, MEMORY_BYTES)["cubin"])


def _answer(
    name: str, target: str, request: Mapping[str, object], timeout: float, memory_bytes: int
) -> dict[str, str]:
    whole = {
        **request,
        "name": name,
        "capability": find_target(target).capability,
        # The default differs between versions of Triton; fused multiply-adds round once instead of twice.
        "enable_fp_fusion": True,
    }
    with _workers.worker(memory_bytes) as worker:
        try:
            answer = worker.ask(json.dumps(whole), timeout)
        except _WorkerDied as died:
            raise CompilationFailed(f"kernel '{name}' for {target}: the compiler {died}") from None
    if "error" in answer:
        raise CompilationFailed(f"kernel '{name}' for {target}: {answer['error']}")
    return answer


def compile_all(
    kernels: Sequence[TritonKernel], targets: Sequence[str], *, jobs: int | None = None, timeout: float = 120
) -> list[Compiled]:
    """Every kernel for every target, by target and then by kernel, `jobs` at a time (one per processor).

    What is asked for twice is compiled once.
    """
    asked = [(k, t) for t in targets for k in kernels]
    work = list(dict.fromkeys(asked))
    jobs = min(jobs or len(os.sched_getaffinity(0)), max(len(work), 1))
    with ThreadPoolExecutor(jobs) as pool:
        made = [m.result() for m in [pool.submit(_compiled_kernel, k, t, timeout) for k, t in work]]
    clock.charge(sum(seconds for _, seconds in made))
    known = {key: compiled for key, (compiled, _) in zip(work, made, strict=True)}
    return [known[key] for key in asked]


class _WorkerDied(Exception):
    """How a worker ended; `str` completes "the compiler ..."."""


class _Worker:
    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        # -P: nothing is imported from the working directory. A file, not a module: the package around it takes
        # longer to import than Triton.
        worker = Path(__file__).with_name("compile_worker.py")
        command = [sys.executable, "-P", str(worker), str(memory_bytes)]
        # A session of its own: a terminal interrupts who waits for the kernel, who may want it all the same.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def ask(self, request: str, timeout: float) -> dict[str, str]:
        """The answer to one request; raises _WorkerDied, after which the worker is gone."""
        source, sink = self._pipes()
        try:
            sink.write(request.encode() + b"\n")
            sink.flush()
            ready, _, _ = select.select([source], [], [], timeout)
            answer = source.readline() if ready else None
        except BrokenPipeError:
            answer = b""
        except BaseException:  # interrupted: the next request would receive this answer
            self.close()
            raise
        if answer:
            return json.loads(answer)
        if answer is None:
            self.close()
            raise _WorkerDied(f"took more than {timeout:g} s")
        code = self.process.wait()
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        raise _WorkerDied(f"process ended with {name}")

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        return self.process.stdout, self.process.stdin

    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in self._pipes():
            with contextlib.suppress(OSError):
                pipe.close()


class _Workers:
    """Idle compiler processes, kept because importing Triton takes longer than compiling a kernel."""

    def __init__(self) -> None:
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._all: list[_Worker] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def worker(self, memory_bytes: int) -> Generator[_Worker]:
        """A worker for one request, which rejoins the idle ones if it survives."""
        try:
            worker = self._idle.get_nowait()
            if worker.memory_bytes != memory_bytes or not worker.alive():
                worker.close()
                raise queue.Empty
        except queue.Empty:
            worker = _Worker(memory_bytes)
            with self._lock:
                if not self._all:
                    atexit.register(self.close)
                self._all = [w for w in self._all if w.alive()] + [worker]
        try:
            yield worker
        finally:
            if worker.alive():
                self._idle.put(worker)

    def prepare(self) -> None:
        """Have one idle worker, which imports the compiler while the caller does something else."""
        if self._idle.empty():
            with self.worker(MEMORY_BYTES):
                pass

    def close(self) -> None:
        for worker in self._all:
            worker.close()


_workers = _Workers()


def prepare_compiler() -> None:
    """Start a compiler process where none is idle: importing Triton takes longer than compiling a kernel."""
    _workers.prepare()
