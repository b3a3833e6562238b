"""From MLIR to functions of this process, by the lowering and the execution engine of the bindings.

LLVM ends a process where it gives up, and compiled code may do anything: only processes that may end call this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

# The name of a kernel's function.
ENTRY = "kernel"
PIPELINE = (
    "builtin.module(lower-affine,canonicalize,cse,convert-scf-to-cf,convert-vector-to-llvm,expand-strided-metadata,"
    "lower-affine,convert-math-to-llvm{approximate-log1p=0},convert-math-to-libm,finalize-memref-to-llvm,"
    "convert-arith-to-llvm,convert-index-to-llvm,convert-func-to-llvm{use-bare-ptr-memref-call-conv=1},"
    "convert-cf-to-llvm,reconcile-unrealized-casts)"
)
# LLVM rounds f32 to bf16 by an instruction of few CPUs, on all others by a function that no library of ours has.
BF16 = "arith-expand{include-bf16=true},"


def compiled(text: str) -> Callable[[Sequence[int]], Callable[[], None]]:
    """The function `ENTRY` of a module: given the addresses of its arguments, what calls it."""
    from superopt.dialects.mlir import binding, ir, passmanager

    context = ir.Context()
    context.enable_multithreading(False)
    module = ir.Module.parse(text, context)
    last = "convert-arith-to-llvm"
    passes = PIPELINE.replace(last, BF16 + last) if "bf16" in text else PIPELINE
    passmanager.PassManager.parse(passes, context).run(module.operation)
    engine: Any = binding("execution_engine").ExecutionEngine(module, opt_level=3, shared_libs=[])
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.raw_lookup(ENTRY))

    def bound(addresses: Sequence[int], engine: Any = engine) -> Callable[[], None]:
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        first, size = ctypes.addressof(pointers), ctypes.sizeof(ctypes.c_void_p)
        places = (ctypes.c_void_p * len(addresses))(*(first + i * size for i in range(len(addresses))))

        def call(held: Any = (engine, pointers)) -> None:
            function(places)

        return call

    return bound
