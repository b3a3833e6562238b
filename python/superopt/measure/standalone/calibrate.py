"""What a GPU does at best: launches, copies by blocks and row width, products of its library.

    python calibrate.py -o calibration.json --minutes 2      run again, it goes on

These are what the constants of a target file stand for (launch_seconds, floor_seconds,
multiprocessor_bytes_per_second, dram_bytes_per_second, tensor_flops). The file is replaced as a whole after every
figure, and another driver or GPU begins a new one.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from .device import Device, Unavailable, find
from .results import CannotMeasure, ResultsFile

# Launches in one CUDA graph, of which one takes a share: a single replay is mostly the graph's own launch.
LAUNCHES_OF_A_GRAPH = 20
REPEATS = 30
# Bytes that one block copies, and all of them at most.
BYTES_OF_A_BLOCK, MOST_BYTES = 4 << 20, 1 << 30
ROWS = (2, 32, 128, 4096)
PRODUCTS = (
    (8192, 8192, 8192), (4096, 4096, 4096), (512, 4096, 4096), (16, 4096, 4096),
    (1, 4096, 4096), (64, 4096, 4096), (2048, 2048, 2048), (16, 28672, 4096),
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One thing to time, and the bytes that a call moves or the flops that it does (0: only its time counts)."""

    kind: str
    sizes: tuple[int, ...]
    amount: float = 0.0

    @property
    def name(self) -> str:
        """The figure's name in the file."""
        return "_".join([self.kind, *map(str, self.sizes)])


class Work(Protocol):
    """Makes the calls; tests have one that computes nothing."""

    def null(self) -> Callable[[], Any]:
        """An empty kernel of one block."""
        ...

    def copy(self, blocks: int, row: int) -> Callable[[], Any]:
        """`blocks` that copy BYTES_OF_A_BLOCK each, in rows of `row` bytes that do not touch."""
        ...

    def product(self, rows: int, columns: int, depth: int) -> Callable[[], Any]:
        """A bf16 product of the library."""
        ...


def figures(multiprocessors: int) -> Iterator[Figure]:
    """What is timed, most valuable first."""
    yield Figure("launch", ())
    yield Figure("graph_launch", ())
    yield Figure("floor", ())
    for rows, columns, depth in PRODUCTS:
        yield Figure("product", (rows, columns, depth), 2.0 * rows * columns * depth)
    most = MOST_BYTES // BYTES_OF_A_BLOCK
    numbers = {min(n, most) for n in (8 * multiprocessors, multiprocessors, multiprocessors // 4, 1) if n}
    for row in reversed(ROWS):
        for blocks in sorted(numbers, reverse=True):
            yield Figure("copy", (blocks, row), 2.0 * blocks * BYTES_OF_A_BLOCK)


def seconds_of(figure: Figure, device: Device, work: Work) -> float:
    """The median time of one call; raises Unavailable."""
    share = 1
    if figure.kind == "graph_launch":
        call = work.null()

        def several() -> None:
            for _ in range(LAUNCHES_OF_A_GRAPH):
                call()

        timed, share = device.capture(several)[0], LAUNCHES_OF_A_GRAPH
    elif figure.kind == "launch":
        timed = work.null()
    elif figure.kind == "floor":
        timed = work.copy(1, 128)
    elif figure.kind == "copy":
        timed = work.copy(*figure.sizes)
    else:
        timed = work.product(*figure.sizes)
    timed()
    return median(device.time(timed, REPEATS, lambda: None)) / share


def calibrate(
    device: Device,
    work: Work,
    file: ResultsFile,
    *,
    seconds: float = float("inf"),
    now: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = print,
) -> bool:
    """Time the figures that `file` lacks until `seconds` are over; returns whether none is left."""
    end, done = now() + seconds, {row["figure"] for row in file.data["rows"]}
    for figure in figures(int(device.facts().get("multiprocessors") or 1)):
        if figure.name in done:
            continue
        if now() >= end:
            file.save()
            return False
        row: dict[str, Any] = {"figure": figure.name, "kind": figure.kind, "sizes": list(figure.sizes)}
        try:
            row["seconds"] = seconds_of(figure, device, work)
            if figure.amount:
                row["a_second"] = figure.amount / row["seconds"]
        except (Unavailable, RuntimeError) as error:
            row["error"] = str(error).partition("\n")[0]
        file.data["rows"].append(row)
        file.save()
        rate = f", {row['a_second']:.3g} a second" if "a_second" in row else ""
        say(f"{figure.name}: " + (row.get("error") or f"{row['seconds'] * 1e6:.2f} us{rate}"))
    file.data["complete"] = True
    file.save()
    return True


class OnGpu:
    """The calls on a GPU, by torch and the Triton kernels beside this file."""

    def __init__(self, torch: Any, kernels: Any) -> None:
        self.torch, self.kernels = torch, kernels

    def null(self) -> Callable[[], Any]:
        """An empty kernel of one block."""
        return lambda: self.kernels.null[(1,)](num_warps=4)

    def copy(self, blocks: int, row: int) -> Callable[[], Any]:
        """Every other piece of `row` bytes of one tensor, to another."""
        count, words = BYTES_OF_A_BLOCK // row, row // 2
        shape = (blocks, count, 2, words)
        x, y = (self.torch.zeros(shape, dtype=self.torch.int16, device="cuda") for _ in range(2))
        rows = max(2048 // words, 1)
        return lambda: self.kernels.copy[(blocks,)](x, y, count, words, rows, num_warps=4)

    def product(self, rows: int, columns: int, depth: int) -> Callable[[], Any]:
        """torch.matmul."""
        bf16 = self.torch.bfloat16
        a = self.torch.randn(rows, depth, dtype=bf16, device="cuda")
        b = self.torch.randn(depth, columns, dtype=bf16, device="cuda")
        return lambda: self.torch.matmul(a, b)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. 0: all measured; 3: time ran out, run again; 2: measuring is impossible."""
    parser = argparse.ArgumentParser(prog="calibrate.py", description="Measures what a GPU does at best.")
    parser.add_argument("-o", dest="output", required=True, metavar="FILE", help="results (JSON), resumed")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this many minutes")
    args = parser.parse_args(argv)
    try:
        try:
            torch = importlib.import_module("torch")
            kernels = importlib.import_module(f"{__package__}.calibration_kernels")
            device = find(torch, "cuda")
        except (ImportError, Unavailable) as error:
            raise CannotMeasure(f"expected torch, triton and a GPU: {error}") from None
        file = ResultsFile(Path(args.output), {"device": device.facts()})
        complete = calibrate(device, OnGpu(torch, kernels), file, seconds=60 * args.minutes)
    except CannotMeasure as error:
        print(f"calibrate: error: {error}", file=sys.stderr)
        return 2
    return 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())
