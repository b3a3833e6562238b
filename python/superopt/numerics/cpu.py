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
from functools import cache
from typing import Any

import numpy as np

from superopt.errors import UnsupportedProgram
from superopt.numerics.child import Child, ChildFailed
from superopt.numerics.cpu_worker import places
from superopt.operators import OPERATORS, Move, is_constant, is_contraction, move_of, normalize_attrs
from superopt.program import COMPUTE_DTYPES, KernelGraph, TileProgram, Value
from superopt.transforms.cpu.source import CpuKernel, cpu_kernel
from superopt.verify.domains import round_to

Array = np.ndarray[Any, Any]

# Seconds until a kernel that compiles or runs is ended; bytes that the process may use.
TIMEOUT, MEMORY = 120.0, 16 << 30


class Cpu:
    """A child process that compiles and runs kernels."""

    def __init__(self, timeout: float = TIMEOUT, memory: int = MEMORY) -> None:
        self.timeout = timeout
        self._child = Child("the compiled kernel", ["-m", "superopt.numerics.cpu_worker", str(memory)])
        self._loaded: tuple[int, set[str]] = 0, set()

    def load(self, kernel: CpuKernel) -> tuple[str, float]:
        """Compile a kernel that this process does not have; its name there, and the CPU seconds it took."""
        key = hashlib.sha256(kernel.text.encode()).hexdigest()
        seconds = 0.0
        if (self._child.running, True) != (self._loaded[0], key in self._loaded[1]):
            request = {
                "kernel": key, "text": kernel.text, "arguments": kernel.arguments, "scratch": kernel.scratch
            }  # fmt: skip
            seconds = self._asked(request)
            if self._child.running != self._loaded[0]:
                self._loaded = self._child.running, set()
            self._loaded[1].add(key)
        return key, seconds

    def launch(self, kernel: CpuKernel, arguments: Sequence[Array]) -> None:
        """Run a kernel on the bytes of its arguments, contiguous arrays; those that it writes are changed.

        Raises ChildFailed where it crashes, or takes longer than `timeout` seconds.
        """
        key, _ = self.load(kernel)
        starts, size = places(kernel.arguments)
        with tempfile.NamedTemporaryFile(prefix="superopt-cpu-", dir=_shared()) as file:
            os.truncate(file.fileno(), size)
            held = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
            parts = [held[s : s + n] for s, n in zip(starts, kernel.arguments, strict=True)]
            for part, given in zip(parts, arguments, strict=True):
                part[...] = _bytes(given)
            self._asked({"kernel": key, "file": file.name})
            for part, given, written in zip(parts, arguments, kernel.written, strict=True):
                if written:
                    _bytes(given)[...] = part

    def _asked(self, request: Mapping[str, Any]) -> float:
        answer = self._child.ask(request, self.timeout)
        if "error" in answer:
            raise ChildFailed(answer["error"])
        return float(answer["seconds"])

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

    `names` are the kernels' names, in the order of the tile programs of `lowered`. Raises UnsupportedProgram for
    a kernel that cannot be compiled for the CPU.
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
            self._cpu.launch(self._kernel, arrays)

        return launch


def kernels_of(text: str, names: Sequence[str]) -> Kernels:
    """The kernels of a bundle: its lowered program as MLIR, and their names in `launch.py`."""
    from superopt.dialects.reader import read

    return Kernels(read(text), names, shared_cpu())


def run(lowered: KernelGraph, inputs: Sequence[Array], cpu: Cpu | None = None) -> list[Array]:
    """Outputs of a lowered program as float32 arrays; inputs are rounded to the inputs' dtypes.

    Raises UnsupportedProgram for what neither compiled kernels nor numpy compute, ChildFailed for a crash.
    """
    cpu = cpu or shared_cpu()
    stored = {v: _stored(x, v.dtype) for v, x in zip(lowered.inputs, inputs, strict=True)}
    for node in lowered.nodes:
        given = [stored[v] for v in node.operands]
        if isinstance(program := node.body, TileProgram):
            made = [_empty(v) for v in node.results]
            for out, at in enumerate(program.aliases):
                if at >= 0:
                    made[out] = given[at].copy()
            everything = zip(program.params, (*given, *made), strict=True)
            passed = {*program.arguments}
            cpu.launch(cpu_kernel(program), [x for b, x in everything if b in passed])
            stored |= dict(zip(node.results, made, strict=True))
        elif move_of(node) is Move.RESHAPE:
            stored[node.result] = given[0].reshape(node.result.shape)
        elif is_constant(node):
            numbers = np.broadcast_to(np.asarray(node.attrs["value"], np.float32), node.result.shape)
            stored[node.result] = _stored(numbers, node.result.dtype)
        elif is_contraction(node):  # left to a library
            attrs = normalize_attrs(OPERATORS[node.op], node.attrs)
            a, b = (
                np.swapaxes(x, -1, -2) if attrs[turned] else x
                for x, turned in zip(
                    (_numbers(x, v.dtype) for x, v in zip(given, node.operands, strict=True)),
                    ("transpose_a", "transpose_b"),
                    strict=True,
                )
            )
            stored[node.result] = _stored(a @ b, node.result.dtype)
        else:
            raise UnsupportedProgram(f"expected what runs on the CPU, got '{node.op}'", node.location)
    return [_numbers(stored[v], v.dtype) for v in lowered.outputs]


_STORAGE: dict[str, Any] = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32}  # bf16: its bits


def _empty(value: Value) -> Array:
    """Memory that holds no number."""
    if value.dtype not in COMPUTE_DTYPES:
        raise UnsupportedProgram(f"expected f16, bf16 or f32 on the CPU, got {value.dtype}")
    made = np.empty(value.shape, _STORAGE[value.dtype])
    _bytes(made)[...] = 0xFF
    return made


def _stored(x: Array, dtype: str) -> Array:
    if dtype not in COMPUTE_DTYPES:
        raise UnsupportedProgram(f"expected f16, bf16 or f32 on the CPU, got {dtype}")
    if dtype == "bf16":
        rounded = np.ascontiguousarray(round_to(np.ascontiguousarray(x, np.float32), dtype))
        return (rounded.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return np.asarray(x, _STORAGE[dtype], order="C")


def _numbers(stored: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(stored, np.float32)
