"""Small Triton kernels, one for each family of PTX opcodes, with what they compute of integers.

Their numbers are integers that every type holds, and so are all sums: a GPU, numpy and the check of the PTX must
give the same ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from superopt.transforms.emit import compile_worker
from superopt.transforms.emit.compile import MEMORY_BYTES, PRELUDE

WARPS, STAGES = 4, 2
Ints = npt.NDArray[Any]
"""Integers, as 64 bits or as Python's."""
DTYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "fp8e4nv": "f8E4M3FN", "fp8e5": "f8E5M2"}


@dataclass(frozen=True)
class Kernel:
    """A Triton function `k`: its pointers' types and sizes, the last one its result, and its families by target.

    A family is a pattern of an opcode that its PTX has.
    """

    source: str
    pointers: tuple[tuple[str, int], ...]
    reference: Callable[..., Ints]
    families: dict[str, str]
    grid: int = 1


_PRODUCT = """
@triton.jit
def k(a, b, o):
    m = tl.arange(0, 64)
    n = tl.arange(0, 64)
    total = tl.zeros((64, 64), dtype=tl.float32)
    for s in range(0, 128, {step}):
        j = s + tl.arange(0, {step})
        x = tl.load(a + m[:, None] * 128 + j[None, :])
        y = tl.load(b + {place})
        total = tl.dot(x, y, total{options})
    tl.store(o + m[:, None] * 64 + n[None, :], total)
"""
_ROWS, _COLUMNS = "j[:, None] * 64 + n[None, :]", "j[:, None] + n[None, :] * 128"
_MMA = {"sm_80": "mma.sync.aligned.{}", "sm_90": "wgmma.mma_async.*{}", "sm_100": "tcgen05.mma.*{}"}


def _product(
    dtype: str, families: dict[str, str], *, rows: bool = True, step: int = 32, options: str = ""
) -> Kernel:
    """A product with the second operand's rows or columns contiguous."""
    source = _PRODUCT.format(step=step, place=_ROWS if rows else _COLUMNS, options=options)

    def reference(a: Ints, b: Ints) -> Ints:
        second = b.reshape(128, 64) if rows else b.reshape(64, 128).T
        return (a.reshape(64, 128) @ second).reshape(-1)

    return Kernel(source, ((dtype, 8192), (dtype, 8192), ("fp32", 4096)), reference, families)


def doubled(a: Ints) -> Ints:
    """Twice each element."""
    return 2 * a


def summed(axis: int) -> Callable[[Ints], Ints]:
    """Sums along an axis of four rows."""
    return lambda a: np.asarray(a.reshape(4, -1).sum(axis))


def reversed_rows(a: Ints) -> Ints:
    """Four rows, the last one first."""
    return a.reshape(4, -1)[::-1].reshape(-1)


_TF32 = {"sm_80": r"mma\.sync.*tf32", "sm_90": r"wgmma.*tf32", "sm_100": "tcgen05.*kind::tf32"}
_FP8 = {"sm_89": r"mma\.sync.*{0}\.{0}", "sm_90": r"wgmma.*{0}\.{0}", "sm_100": "tcgen05.*kind::f8f6f4"}
_TF32_OPTION = ", input_precision='tf32'"
_BOXES = """
@triton.jit
def k(a, o):
    i = tl.program_id(0)
    x = tl.make_tensor_descriptor(a, [128, 64], [64, 1], [32, 64])
    y = tl.make_tensor_descriptor(o, [{rows}, 64], [64, 1], [32, 64])
    v = x.load([i * 32, 0])
    y.{store}
"""

KERNELS = {
    "f16": _product(
        "fp16", {"sm_80": r"mma\.sync.*f16", "sm_90": r"wgmma.*f16", "sm_100": "tcgen05.*kind::f16"}, step=32
    ),
    "bf16": _product(
        "bf16", {"sm_80": r"mma\.sync.*bf16", "sm_90": r"wgmma.*bf16", "sm_100": "kind::f16"}, step=64
    ),
    "f16-transposed": _product(
        "fp16", {"sm_80": "ldmatrix", "sm_90": r"wgmma", "sm_100": "tcgen05"}, rows=False
    ),
    "tf32": _product("fp32", _TF32, options=_TF32_OPTION),
    "tf32-transposed": _product("fp32", _TF32, rows=False, options=_TF32_OPTION),
    "tf32x3": _product(
        "fp32", {t: _TF32[t] for t in ("sm_80", "sm_90")}, options=", input_precision='tf32x3'"
    ),
    "copies": _product(
        "fp16", dict.fromkeys(("sm_80", "sm_89", "sm_90", "sm_100"), r"cp\.async\.c[ag]\."), step=16
    ),
    **{
        f"{name}{'' if rows else '-transposed'}": _product(
            kind,
            {t: p.format(name) for t, p in _FP8.items() if not (rows and t == "sm_100")},
            rows=rows,
            step=64,
        )
        for name, kind in (("e4m3", "fp8e4nv"), ("e5m2", "fp8e5"))
        for rows in (True, False)
    },
    **{
        f"from-{name}": Kernel(
            "@triton.jit\ndef k(a, o):\n    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)\n"
            "    tl.store(o + i, tl.load(a + i).to(tl.float32) * 2.0)\n",
            ((kind, 2048), ("fp32", 2048)),
            doubled,
            dict.fromkeys(("sm_89", "sm_90", "sm_100"), rf"cvt\.rn\.f16x2\.{name}x2"),
            2,
        )
        for name, kind in (("e4m3", "fp8e4nv"), ("e5m2", "fp8e5"))
    },
    "to-e4m3": Kernel(
        "@triton.jit\ndef k(a, o):\n    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)\n"
        "    tl.store(o + i, (tl.load(a + i) * 2.0).to(tl.float8e4nv))\n",
        (("fp32", 2048), ("fp8e4nv", 2048)),
        doubled,
        dict.fromkeys(("sm_90", "sm_100"), r"cvt\.rn\.satfinite\.e4m3x2\.f32"),
        2,
    ),
    "shuffles": Kernel(
        "@triton.jit\ndef k(a, o):\n    i = tl.program_id(0)\n"
        "    tl.store(o + i, tl.sum(tl.load(a + i * 512 + tl.arange(0, 512))))\n",
        (("fp32", 2048), ("fp32", 4)),
        summed(1),
        dict.fromkeys(("sm_80", "sm_90", "sm_100"), r"shfl\.sync\.bfly"),
        4,
    ),
    "boxes": Kernel(
        _BOXES.format(rows=128, store="store([i * 32, 0], v + v)"),
        (("fp16", 8192), ("fp16", 8192)),
        doubled,
        dict.fromkeys(("sm_90", "sm_100"), r"cp\.async\.bulk\.tensor\.2d\.global"),
        4,
    ),
    "mbarriers": Kernel(
        _BOXES.format(rows=128, store="store([96 - i * 32, 0], v)"),
        (("fp32", 8192), ("fp32", 8192)),
        reversed_rows,
        dict.fromkeys(("sm_90", "sm_100"), r"mbarrier\.try_wait"),
        4,
    ),
    "sums of boxes": Kernel(
        _BOXES.format(rows=32, store="atomic_add([0, 0], v)"),
        (("fp32", 8192), ("fp32", 2048)),
        summed(0),
        dict.fromkeys(("sm_90", "sm_100"), r"cp\.reduce\.async\.bulk\.tensor"),
        4,
    ),
    **{
        f"atomics-{dtype}": Kernel(
            "@triton.jit\ndef k(a, o):\n    j = tl.arange(0, 256)\n"
            "    tl.atomic_add(o + j, tl.load(a + tl.program_id(0) * 256 + j))\n",
            ((dtype, 1024), (dtype, 256)),
            summed(0),
            dict.fromkeys(("sm_80", "sm_90", "sm_100"), r"atom\.global.*add"),
            4,
        )
        for dtype in ("fp32", "fp16")
    },
}

CASES = [(name, target) for name, kernel in KERNELS.items() for target in kernel.families]


@dataclass(frozen=True)
class Text:
    """A kernel compiled for a target."""

    ptx: str
    ttir: str
    shared_bytes: int


class Compiler:
    """Compiles kernels by name and target, each once, in a process of its own."""

    def __init__(self) -> None:
        worker = Path(compile_worker.__file__)
        command = [sys.executable, "-P", str(worker), str(MEMORY_BYTES)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._made: dict[tuple[str, str], Text] = {}

    def __call__(self, name: str, target: str) -> Text:
        """The kernel `name` for `target`."""
        if (name, target) not in self._made:
            self._made[name, target] = self._compile(KERNELS[name], target)
        return self._made[name, target]

    def _compile(self, kernel: Kernel, target: str) -> Text:
        names = re.findall(r"def k\(([^)]*)\)", kernel.source)[0].split(", ")
        request = {
            "source": PRELUDE + "\n" + kernel.source,
            "parameters": [(n, t) for n, (t, _) in zip(names, kernel.pointers, strict=True)],
            "name": "k",
            "capability": int(target.removeprefix("sm_")),
            "num_warps": WARPS,
            "num_stages": STAGES,
            "extents": [],
            "enable_fp_fusion": True,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return Text(answer["ptx"], answer["ttir"], int(answer["shared_bytes"]))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def inputs(kernel: Kernel) -> list[Ints]:
    """Integers from -2 to 2 for each pointer but the last."""
    rng = np.random.default_rng(0)
    return [rng.integers(-2, 3, size) for _, size in kernel.pointers[:-1]]
