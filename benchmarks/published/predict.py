"""Published times of kernels, and what the cost model says of each: the same work, timed the same way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from superopt.cost import Target, Traffic, baselines, kernel_seconds, target
from superopt.cost.library import attention_cost, product_cost
from superopt.dialects.reader import read

Point = dict[str, Any]

# Seconds that a way of timing adds to a program on top of its kernels and the launches between them.
OVERHEAD = {"events": 5.2e-6, "loop": 2.5e-6, "graph": 1.5e-6}


def predicted(point: Point) -> float:
    """Microseconds that the model predicts for one published point."""
    gpu = target(point["target"])
    seconds = KINDS[point["kind"]](point, gpu)
    return (seconds - gpu.launch_seconds + OVERHEAD[point["timing"]]) * 1e6


def _product(p: Point, gpu: Target) -> float:
    s = p["shapes"]
    return product_cost(gpu, s["m"], s["n"], s["k"], batch=s["batch"], dtype=p["dtype"]).seconds


def _attention(p: Point, gpu: Target) -> float:
    s = p["shapes"]
    heads, share = s["batch"] * s["heads"], 0.5 if s["causal"] else 1.0
    parts = attention_cost(
        gpu,
        heads,
        s["q"],
        s["kv"],
        s["head"],
        dtype=p["dtype"],
        key_heads=s["batch"] * s["kv_heads"],
        share=share,
    )
    return sum(k.seconds for k in parts)


def _rows(text: str, p: Point) -> str:
    rows, cols = p["shapes"].get("rows", 1), p["shapes"].get("cols") or p["shapes"].get("vocab")
    dtype = p["dtype"]
    full, one, vector = (
        f"tensor<{rows}x{cols}x{dtype}>",
        f"tensor<{rows}x1x{dtype}>",
        f"tensor<{cols}x{dtype}>",
    )
    return text.replace("FULL", full).replace("ONE", one).replace("VECTOR", vector).replace("DTYPE", dtype)


_RMS = """
  %q = "kernel.square"(%x) : (FULL) -> FULL
  %m = "kernel.reduce_mean"(%q) {dims = array<i64: 1>, keepdims = true} : (FULL) -> ONE
  %r = "kernel.rsqrt"(%m) : (ONE) -> ONE
  %n = "kernel.mul"(%x, %r) : (FULL, ONE) -> FULL
  %y = "kernel.mul"(%n, %w) : (FULL, VECTOR) -> FULL
"""
NORMS = {
    "rms_norm": "func.func @f(%x: FULL, %w: VECTOR) -> FULL {" + _RMS + "  return %y : FULL\n}",
    "layer_norm": """
func.func @f(%z: FULL, %w: VECTOR) -> FULL {
  %a = "kernel.reduce_mean"(%z) {dims = array<i64: 1>, keepdims = true} : (FULL) -> ONE
  %x = "kernel.sub"(%z, %a) : (FULL, ONE) -> FULL""" + _RMS + """  return %y : FULL
}""",
    "add + rms_norm (two outputs)": """
func.func @f(%z: FULL, %t: FULL, %w: VECTOR) -> (FULL, FULL) {
  %x = "kernel.add"(%z, %t) : (FULL, FULL) -> FULL""" + _RMS + """  return %y, %x : FULL, FULL
}""",
}  # fmt: skip
SOFTMAX = """
func.func @f(%x: FULL) -> FULL {
  %m = "kernel.reduce_max"(%x) {dims = array<i64: 1>, keepdims = true} : (FULL) -> ONE
  %d = "kernel.sub"(%x, %m) : (FULL, ONE) -> FULL
  %e = "kernel.exp"(%d) : (FULL) -> FULL
  %t = "kernel.reduce_sum"(%e) {dims = array<i64: 1>, keepdims = true} : (FULL) -> ONE
  %y = "kernel.div"(%e, %t) : (FULL, ONE) -> FULL
  return %y : FULL
}"""
ELEMENTWISE = {
    "relu": """
func.func @f(%x: FULL) -> FULL {
  %y = "kernel.relu"(%x) : (FULL) -> FULL
  return %y : FULL
}""",
    "a/b": """
func.func @f(%x: FULL, %z: FULL) -> FULL {
  %y = "kernel.div"(%x, %z) : (FULL, FULL) -> FULL
  return %y : FULL
}""",
    "relu squared": """
func.func @f(%x: FULL) -> FULL {
  %a = "kernel.relu"(%x) : (FULL) -> FULL
  %y = "kernel.square"(%a) : (FULL) -> FULL
  return %y : FULL
}""",
    "silu(a)*b": """
func.func @f(%x: FULL, %z: FULL) -> FULL {
  %a = "kernel.silu"(%x) : (FULL) -> FULL
  %y = "kernel.mul"(%a, %z) : (FULL, FULL) -> FULL
  return %y : FULL
}""",
}
SUM = """
func.func @f(%x: FULL) -> ONE {
  %y = "kernel.reduce_sum"(%x) {dims = array<i64: 1>, keepdims = true} : (FULL) -> ONE
  return %y : ONE
}"""


# Implementations whose norms read their rows a second time; compilers and FlashInfer keep them.
TWO_PASSES = ("eager", "vLLM custom op")


def _fused(text: str, p: Point, gpu: Target) -> float:
    graph = read(_rows(text, p))
    name = "eager" if any(word in p["implementation"] for word in TWO_PASSES) else "inductor"
    return next(b.seconds for b in baselines(graph, gpu) if b.name == name)


def _norm(p: Point, gpu: Target) -> float:
    op = p["op"].removeprefix("x.clone(), then ")
    copied = 0.0
    if op != p["op"]:
        size = 4 * p["shapes"]["rows"] * p["shapes"]["cols"]
        copied = kernel_seconds(Traffic(size, size, blocks=math.ceil(size / 4096)), gpu)
    return copied + _fused(NORMS[op], p, gpu)


def _elementwise(p: Point, gpu: Target) -> float:
    shapes = {"rows": p["shapes"]["elements"] // 1024, "cols": 1024}
    return _fused(ELEMENTWISE[p["op"]], {**p, "shapes": shapes}, gpu)


def _reduce(p: Point, gpu: Target) -> float:
    if p["implementation"].startswith("cub::"):  # its last block joins the parts, without a second kernel
        size = 4 * p["shapes"]["elements"]
        return kernel_seconds(Traffic(size, size, blocks=min(size // 4096, 4 * gpu.multiprocessors)), gpu)
    return _fused(SUM, {**p, "shapes": {"rows": 1, "cols": p["shapes"]["elements"]}}, gpu)


def _launch(p: Point, gpu: Target) -> float:
    return gpu.launch_seconds


def _norm_linear(p: Point, gpu: Target) -> float:
    s = p["shapes"]
    rows = s["m"] * s["k"]
    extra = Traffic(vector_flops=4.0 * rows)
    return product_cost(gpu, s["m"], s["n"], s["k"], dtype=p["dtype"], extra=extra).seconds


def _mlp(p: Point, gpu: Target) -> float:
    s = p["shapes"]
    up = product_cost(gpu, s["tokens"], s["ffn"], s["hidden"], dtype=p["dtype"]).seconds
    down = product_cost(gpu, s["tokens"], s["hidden"], s["ffn"], dtype=p["dtype"]).seconds
    size = 2 * s["tokens"] * s["ffn"]
    act = [kernel_seconds(Traffic(n * size, n * size, blocks=size // 2048), gpu) for n in (2, 3)]
    return 2 * up + down + sum(act)


def _moe(p: Point, gpu: Target) -> float:
    s = p["shapes"]
    rows = math.ceil(s["tokens"] * s["topk"] / s["experts"])
    up = product_cost(gpu, rows, 2 * s["ffn"], s["hidden"], batch=s["experts"], dtype=p["dtype"]).seconds
    down = product_cost(gpu, rows, s["hidden"], s["ffn"], batch=s["experts"], dtype=p["dtype"]).seconds
    return up + down


KINDS: dict[str, Callable[[Point, Target], float]] = {
    "gemm": _product, "gemm_skinny": _product, "gemm_fp32": _product, "bmm": _product,
    "attention_prefill": _attention, "attention_decode": _attention,
    "norm": _norm, "norm_tiny": _norm, "norm_linear": _norm_linear,
    "cross_entropy": lambda p, gpu: _fused(SOFTMAX, p, gpu),
    "elementwise": _elementwise, "reduce": _reduce, "launch": _launch, "mlp": _mlp, "moe": _moe,
}  # fmt: skip
