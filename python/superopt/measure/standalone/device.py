"""What a candidate is timed on: a GPU by CUDA events with a flushed L2, or Triton's interpreter."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

from .widening import mend

# At least this much is read to flush the L2 cache, however small it says it is.
_FLUSH_BYTES = 256 << 20


class Unavailable(Exception):
    """A mode or a device that this machine, or this candidate, lacks."""


class Device(Protocol):
    """The part of a device that a worker uses; tests have one whose clock they set."""

    name: str

    def facts(self) -> dict[str, Any]:
        """What this device is, as JSON."""
        ...

    def time(self, call: Callable[[], Any], repeats: int, before: Callable[[], None]) -> list[float]:
        """Seconds of each of `repeats` calls; `before` runs ahead of each, outside of its time."""
        ...

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
        """`call` as a CUDA graph: what replays it, and its outputs; raises Unavailable."""
        ...


def find(torch: Any, kind: str) -> Device:
    """The device of this kind, "cuda" or "interpreter"; raises Unavailable."""
    return Cuda(torch) if kind == "cuda" else Interpreter(torch)


class Cuda:
    """The first GPU that torch sees."""

    name = "cuda"

    def __init__(self, torch: Any) -> None:
        if not torch.cuda.is_available():
            raise Unavailable("expected a CUDA device, got none; try --device=interpreter")
        self.torch = torch
        self.properties = torch.cuda.get_device_properties(0)
        size = max(2 * int(getattr(self.properties, "L2_cache_size", 0)), _FLUSH_BYTES)
        self.flush = torch.zeros(size // 4, dtype=torch.int32, device="cuda")
        self.flushed = torch.zeros((), dtype=torch.int64, device="cuda")

    def facts(self) -> dict[str, Any]:
        """Name, compute capability times ten, multiprocessors, L2 and clocks as torch reports them."""
        p = self.properties
        clock, width = getattr(p, "memory_clock_rate", 0), getattr(p, "memory_bus_width", 0)
        return {
            "kind": "cuda",
            "name": p.name,
            "capability": 10 * p.major + p.minor,
            "multiprocessors": p.multi_processor_count,
            "memory_bytes": p.total_memory,
            "l2_bytes": getattr(p, "L2_cache_size", 0),
            "clock_hz": 1e3 * getattr(p, "clock_rate", 0),
            # Two transfers a clock; the clock is in kHz, the width in bits.
            "memory_bytes_per_second": 2 * 1e3 * clock * width / 8,
            "cuda": self.torch.version.cuda,
        }

    def time(self, call: Callable[[], Any], repeats: int, before: Callable[[], None]) -> list[float]:
        """CUDA events around each call; the queue runs ahead while the GPU flushes."""
        cuda = self.torch.cuda
        events = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(repeats)]
        for start, end in events:
            before()
            # Reads leave no dirty lines, which the timed kernel would have to wait for.
            self.torch.sum(self.flush, dim=0, out=self.flushed)
            start.record()
            call()
            end.record()
        cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in events]

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
        """Warm up on a side stream, as capture wants it, then record one call."""
        cuda = self.torch.cuda
        try:
            stream = cuda.Stream()
            stream.wait_stream(cuda.current_stream())
            with cuda.stream(stream):
                for _ in range(3):
                    call()
            cuda.current_stream().wait_stream(stream)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                outputs = call()
            graph.replay()
            cuda.synchronize()
        except RuntimeError as error:
            raise Unavailable(f"no CUDA graph: {str(error).splitlines()[0][:200]}") from None
        return graph.replay, outputs


class Interpreter:
    """Triton's interpreter on the CPU: shows that the measure step works; its times say nothing about a GPU."""

    name = "cpu"

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None:
            mend(importlib.import_module("triton.runtime.interpreter"))

    def facts(self) -> dict[str, Any]:
        """Says only that it is not a GPU."""
        return {"kind": "interpreter", "name": "Triton's interpreter on a CPU"}

    def time(self, call: Callable[[], Any], repeats: int, before: Callable[[], None]) -> list[float]:
        """Wall-clock seconds."""
        out: list[float] = []
        for _ in range(repeats):
            before()
            start = time.perf_counter()
            call()
            out.append(time.perf_counter() - start)
        return out

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
        """Raises Unavailable: only GPUs have graphs."""
        raise Unavailable("no CUDA graph: not a GPU")
