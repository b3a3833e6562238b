"""Triton 3.6 leaves a fence out between `cp.async` and the tensor core in pipelined kernels; later versions do not.

`make tritons` runs this with each version: such kernels are refused, and another launch of them is delivered.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from superopt.cost import target
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.transforms.schedule.fit import Compiler, Scheduled, ordered
from superopt.verify.ptx.check import PtxText, order_fault

sys.path.insert(0, str(Path(__file__).parents[2]))

LACKS = version("triton").startswith("3.6.")
# Of `benchmarks/hot_loops`: products of several tiles, attention, two products in one kernel.
HOT_LOOPS = [
    "matmul 1024x1024x1024",
    "matmul 64x4096x4096",
    "matmul 256x4096x4096",
    "prefill 32x4096x4096x128",
    "prefill 32x4096x4096x64",
    "gated_mlp 128x4096x4096",
]


def graph(name: str) -> KernelGraph:
    """A program that superopt lowers to one pipelined kernel."""
    from benchmarks.hot_loops.programs import cases

    if name in HOT_LOOPS:
        return next(c.graph for c in cases() if c.name == name)
    shape, dtype = ((8, 256, 256), "f16") if name == "batched" else ((512, 512), "bf16")
    a, b, o = (Value(TensorType(shape, dtype), name) for name in "abo")
    return KernelGraph("product", [a, b], [Node("matmul", (a, b), (o,))], [o])


@pytest.mark.parametrize("gpu", ["sm_90", "sm_100"])
@pytest.mark.parametrize("name", [*HOT_LOOPS, "batched", "bfloat16"])
def test_pipelined_kernels_have_their_fence_or_are_mended(name: str, gpu: str):
    lowered = lower(graph(name), gpu)
    emitted = emit_program(lowered)
    compiled = compile_all(emitted.kernels, (gpu,))
    (kernel,), (made,) = emitted.kernels, compiled
    if len(set(re.findall(r"wgmma|tcgen05\.mma|cp\.async\.cg", made.ptx))) < 2:
        pytest.skip("the kernel has no asynchronous copies and products")
    fault = order_fault(PtxText(made.ptx, made.shared_bytes), kernel.grid, kernel.memory)
    assert ("fence.proxy.async" in fault) == LACKS
    mended = ordered(Scheduled(lowered, emitted, tuple(compiled)), Compiler(target(gpu)))
    assert ("fence.proxy.async" in mended.reason) == LACKS
    for kernel, facts in zip(mended.emitted.kernels, mended.compiled, strict=True):
        assert not order_fault(PtxText(facts.ptx, facts.shared_bytes), kernel.grid, kernel.memory)
