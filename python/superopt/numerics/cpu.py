"""Runs lowered programs on the CPU, compiled (`superopt.transforms.cpu`), in a process of its own.

Triton's interpreter takes the emitted kernels, statement by statement; here, their tile programs become machine
code, which takes milliseconds where that takes minutes. What is run is the program that was emitted, not the text
that came of it: the check of the kernels is the interpreter's.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from superopt.computed import needed_nodes
from superopt.dialects.reader import read
from superopt.errors import UnsupportedProgram
from superopt.numerics.child import Child, ChildFailed
from superopt.numerics.cpu_worker import places
from superopt.operators import OPERATORS, Move, elements_of, is_constant, move_of
from superopt.program import COMPUTE_DTYPES, KernelGraph, TileProgram, Value
from superopt.transforms.cpu.source import CpuKernel, cpu_kernel
from superopt.transforms.emit.program_source import emit_program
from superopt.verify.domains import round_to

Array = np.ndarray[Any, Any]

# Seconds until a kernel that compiles or runs is ended; bytes that the process may use.
TIMEOUT, MEMORY = 120.0, 16 << 30


@dataclass(frozen=True)
class Bound:
    """Kernels in the order in which they run, each on some of the `arrays`, which are contiguous."""

    arrays: Sequence[Array]
    calls: Sequence[tuple[CpuKernel, Sequence[int]]]

    @property
    def written(self) -> set[int]:
        """The arrays that kernels write."""
        return {
            i
            for kernel, arguments in self.calls
            for i, written in zip(arguments, kernel.written, strict=True)
            if written
        }


class Cpu:
    """A child process that compiles and runs kernels; `seconds` of CPU time it spent."""

    def __init__(self, timeout: float = TIMEOUT, memory: int = MEMORY) -> None:
        self.timeout, self.seconds = timeout, 0.0
        self._child = Child("the compiled kernel", ["-m", "superopt.numerics.cpu_worker", str(memory)])
        self._loaded: tuple[int, set[str]] = 0, set()

    def load(self, kernel: CpuKernel) -> str:
        """Compile a kernel that the process lacks; its name there."""
        key = hashlib.sha256(kernel.text.encode()).hexdigest()
        if (self._child.running, True) != (self._loaded[0], key in self._loaded[1]):
            self._asked({"kernel": key, "text": kernel.text, "scratch": kernel.scratch})
            if self._child.running != self._loaded[0]:
                self._loaded = self._child.running, set()
            self._loaded[1].add(key)
        return key

    def launch(self, bound: Bound, anchor: Bound | None = None) -> list[tuple[float, float]]:
        """Run the kernels of a program, in order; those of its arrays that they write are changed.

        With an `anchor`, CPU seconds of rounds in which both ran in turns: of the program, and of the anchor.
        Raises ChildFailed where a kernel crashes, or all take longer than `timeout` seconds.
        """
        programs = [bound] if anchor is None else [bound, anchor]
        keys = [[self.load(kernel) for kernel, _ in program.calls] for program in programs]
        arrays = [_bytes(array) for program in programs for array in program.arrays]
        sizes = [array.size for array in arrays]
        starts, size = places(sizes)
        calls: list[list[tuple[str, list[int]]]] = []
        first = 0
        for program, of in zip(programs, keys, strict=True):
            at = [[first + i for i in arguments] for _, arguments in program.calls]
            calls.append(list(zip(of, at, strict=True)))
            first += len(program.arrays)
        with tempfile.NamedTemporaryFile(prefix="superopt-cpu-", dir=_shared()) as file:
            os.truncate(file.fileno(), size)
            held = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
            parts = [held[s : s + n] for s, n in zip(starts, sizes, strict=True)]
            for part, array in zip(parts, arrays, strict=True):
                part[...] = array
            request = {"file": file.name, "sizes": sizes, "calls": calls[0]}
            answer = self._asked({**request, "anchor": calls[1] if anchor is not None else []})
            for i in bound.written:
                arrays[i][...] = parts[i]
        return [(taken, beside) for taken, beside in answer.get("times", [])]

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._child.ask(request, self.timeout)
        self.seconds += float(answer["seconds"])
        if "error" in answer:
            raise ChildFailed(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        self._child.close()


@cache
def shared_cpu() -> Cpu:
    """The one that all programs of this process share."""
    return Cpu()


def _shared() -> str | None:
    """Where files are memory, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _bytes(array: Array) -> Array:
    assert array.flags.c_contiguous
    return array.reshape(-1).view(np.uint8)


# --- programs ---------------------------------------------------------------------------------------------


class Kernels:
    """Stands for the module `kernels` of a launcher: its kernels take tensors of the CPU.

    `names` are the kernels' names, in the order of the tile programs of `lowered`, of which some may share one.
    Raises UnsupportedProgram for a kernel that cannot be compiled for the CPU.
    """

    def __init__(self, lowered: KernelGraph, names: Sequence[str], cpu: Cpu) -> None:
        programs = [n.body for n in lowered.nodes if isinstance(n.body, TileProgram)]
        self._cpu = cpu
        self._kernels = {name: cpu_kernel(p) for name, p in zip(names, programs, strict=True)}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._kernels:
            raise AttributeError(name)
        return _Launched(self._cpu, self._kernels[name])


class _Launched:
    """`kernel[grid](tensors, options)`, as launchers call kernels."""

    def __init__(self, cpu: Cpu, kernel: CpuKernel) -> None:
        self._cpu, self._kernel = cpu, kernel

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*tensors: Any, **options: object) -> None:
            import torch

            # Behind the program's arguments stands scratch memory of the GPU's kernel.
            given = tensors[: len(self._kernel.arguments)]
            arrays = [t.detach().contiguous().reshape(-1).view(torch.uint8).numpy() for t in given]
            sizes = tuple(a.size for a in arrays)
            if sizes != self._kernel.arguments:
                raise UnsupportedProgram(
                    f"expected tensors of {self._kernel.arguments} bytes for '{self._kernel.name}', got {sizes}"
                )
            self._cpu.launch(Bound(arrays, [(self._kernel, range(len(arrays)))]))

        return launch


def kernels_of(text: str, names: Sequence[str]) -> Kernels:
    """The kernels of a bundle: its lowered program as MLIR, and their names in `launch.py`.

    Where tile programs share kernels, emission says which do.
    """
    lowered = read(text)
    if sum(isinstance(n.body, TileProgram) for n in lowered.nodes) != len(names):
        names = [kernel.name for kernel in emit_program(lowered).kernels]
    return Kernels(lowered, names, shared_cpu())


def run(lowered: KernelGraph, inputs: Sequence[Array], cpu: Cpu | None = None) -> list[Array]:
    """Outputs of a lowered program as float32 arrays; inputs are rounded to the inputs' dtypes.

    Raises UnsupportedProgram for what kernels do not compute, ChildFailed for a crash.
    """
    bound, outputs = bind(lowered, inputs)
    (cpu or shared_cpu()).launch(bound)
    return outputs()


def bind(lowered: KernelGraph, inputs: Sequence[Array]) -> tuple[Bound, Callable[[], list[Array]]]:
    """The kernels of a lowered program with memory for each value, and what gives its outputs as float32."""
    arrays = [_stored(x, v.dtype) for v, x in zip(lowered.inputs, inputs, strict=True)]
    at = {v: i for i, v in enumerate(lowered.inputs)}
    calls: list[tuple[CpuKernel, Sequence[int]]] = []
    for node in needed_nodes(lowered):
        if isinstance(program := node.body, TileProgram):
            for out, value in enumerate(node.results):
                if (given := program.aliases[out] if program.aliases else -1) >= 0:
                    at[value] = at[node.operands[given]]
                    continue
                at[value] = len(arrays)
                arrays.append(_empty(value))
            passed = {*program.arguments}
            values = zip(program.params, (*node.operands, *node.results), strict=True)
            calls.append((cpu_kernel(program), [at[v] for b, v in values if b in passed]))
        elif move_of(node) is Move.RESHAPE:
            at[node.result] = at[node.operands[0]]
        elif is_constant(node):
            at[node.result] = len(arrays)
            numbers = np.asarray(elements_of(OPERATORS[node.op], node.attrs), np.float32)
            arrays.append(_stored(np.broadcast_to(numbers, node.result.shape), node.result.dtype))
        else:
            raise UnsupportedProgram(f"expected kernels alone on the CPU, got '{node.op}'", node.location)

    def outputs() -> list[Array]:
        return [_numbers(arrays[at[v]], v.dtype).reshape(v.shape) for v in lowered.outputs]

    return Bound(arrays, calls), outputs


_STORAGE: dict[str, Any] = {
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "i64": np.int64, "i32": np.int32, "i16": np.int16,
    "i8": np.int8, "i1": np.int8,
}  # fmt: skip
"""How numbers lie in memory: of bf16, their bits."""


def _empty(value: Value) -> Array:
    """Memory that holds no number."""
    if value.dtype not in COMPUTE_DTYPES:
        raise UnsupportedProgram(f"expected f16, bf16 or f32 on the CPU, got {value.dtype}")
    made = np.empty(value.shape, _STORAGE[value.dtype])
    _bytes(made)[...] = 0xFF
    return made


def _stored(x: Array, dtype: str) -> Array:
    """A copy of numbers as they lie in memory."""
    if dtype not in _STORAGE:
        raise UnsupportedProgram(f"expected {', '.join(_STORAGE)} on the CPU, got {dtype}")
    if dtype == "bf16":
        rounded = round_to(np.asarray(x, np.float32), dtype)
        return np.array(rounded.view(np.uint32) >> 16, np.uint16, order="C")
    with np.errstate(over="ignore"):
        return np.array(x, _STORAGE[dtype], order="C")


def _numbers(stored: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(stored, np.float32)
