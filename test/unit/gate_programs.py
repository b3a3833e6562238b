"""Right programs and faulty ones for the numeric gate, and how often it refuses each over many nonces.

    python test/unit/gate_programs.py --nonces=2000 [--only=TEXT]

A right program is one whose result lies, at every element, within the error of the program's own roundings: it may
add in another order, and round at other places, but not more often. No nonce may refuse it, and each must refuse a
faulty one; exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from test_interpreter import Build, attention, tensor

from superopt.numerics import gate
from superopt.program import BlockGraph, KernelGraph, Value
from superopt.transforms.lower import lower

DTYPES = ("f16", "bf16", "f32")


def graph(build: Build, inputs: list[Value], output: Value) -> KernelGraph:
    return KernelGraph("program", inputs, build.nodes, [output])


def over_mean(rows: int, width: int, columns: int, dtype: str, *, late: bool = False) -> KernelGraph:
    """x / mean(x), times a weight: nothing bounds what cancels in a mean."""
    x, w = tensor((rows, width), dtype, "x"), tensor((width, columns), dtype, "w")
    build = Build()
    mean = build("reduce_mean", x, dims=(1,), keepdims=True)
    if late:
        return graph(build, [x, w], build("div", build("matmul", x, w), mean))
    return graph(build, [x, w], build("matmul", build("div", x, mean), w))


def quotients(rows: int, width: int, dtype: str, *, squares: bool = False) -> KernelGraph:
    """x / mean(x), or the sums of the squares of that: rows of one element."""
    x = tensor((rows, width), dtype, "x")
    build = Build()
    y = build("div", x, build("reduce_mean", x, dims=(1,), keepdims=True))
    return graph(
        build, [x], build("reduce_sum", build("square", y), dims=(1,), keepdims=True) if squares else y
    )


def softmax_product(dtype: str, *, sign: str = "sub", relu: float | None = None) -> KernelGraph:
    """Attention, one operator a line; `sign` is what is done with the maximum."""
    q, k, v = (tensor((2, e, 32), dtype, n) for n, e in (("q", 16), ("k", 64), ("v", 64)))
    build = Build()
    s = build("matmul", q, k, transpose_b=True)
    d = build(sign, s, build("reduce_max", s, dims=(2,), keepdims=True))
    e = build("exp", d)
    p = build("div", e, build("reduce_sum", e, dims=(2,), keepdims=True))
    o = build("matmul", p, v)
    if relu is not None:
        o = build(
            "add", o, build("relu", build("sub", q, build("constant", value=relu, shape=(1,), dtype=dtype)))
        )
    return graph(build, [q, k, v], o)


def unscaled(dtype: str) -> KernelGraph:
    """Online attention whose sums are not rescaled where the maximum grows."""
    made = attention(2, 16, 64, 32, 1, 4, dtype)
    body = made.nodes[0].body
    assert isinstance(body, BlockGraph)
    for node in body.nodes:
        if node.attrs.get("kind") == "rescaled":
            node.attrs = {**node.attrs, "kind": "sum"}
            node.operands = node.operands[:1]
    return made


def layer_norm(dtype: str, *, squares: bool = False) -> KernelGraph:
    """(x - mean) * rsqrt(variance + 1e-5), times a weight; or with a variance that is a difference of squares."""
    x, w = tensor((16, 128), dtype, "x"), tensor((128, 32), dtype, "w")
    build = Build()
    mean = build("reduce_mean", x, dims=(1,), keepdims=True)
    d = build("sub", x, mean)
    if squares:
        of_squares = build("reduce_mean", build("square", x), dims=(1,), keepdims=True)
        variance = build("sub", of_squares, build("square", mean))
    else:
        variance = build("reduce_mean", build("square", d), dims=(1,), keepdims=True)
    epsilon = build("constant", value=1e-5, shape=(1,), dtype=dtype)
    scale = build("rsqrt", build("add", variance, epsilon))
    return graph(build, [x, w], build("matmul", build("mul", d, scale), w))


def product(dtype: str, parts: int = 1, depth: int = 4096) -> KernelGraph:
    """x w; of parts of the sum, each rounded and added in `dtype`, as one who accumulates in it has them."""
    x, w = tensor((8, depth), dtype, "x"), tensor((depth, 16), dtype, "w")
    build = Build()
    each = depth // parts
    total: Value | None = None
    for i in range(parts):
        a = build("slice", x, offsets=(0, i * each), sizes=(8, each), strides=(1, 1))
        b = build("slice", w, offsets=(i * each, 0), sizes=(each, 16), strides=(1, 1))
        y = build("matmul", a, b)
        total = y if total is None else build("add", total, y)
    assert total is not None
    return graph(build, [x, w], total)


def pointwise(op: str, dtype: str) -> KernelGraph:
    x, w = tensor((16, 64), dtype, "x"), tensor((64, 32), dtype, "w")
    build = Build()
    return graph(build, [x, w], build(op, build("matmul", x, w)))


def of_logits(dtype: str, *, subtract: bool, rows: int = 8, width: int = 8) -> KernelGraph:
    """log sum exp(x) of an input: logits that nothing has scaled."""
    x = tensor((rows, width), dtype, "x")
    build = Build()
    top = build("reduce_max", x, dims=(1,), keepdims=True)
    e = build("exp", build("sub", x, top) if subtract else x)
    y = build("log", build("reduce_sum", e, dims=(1,), keepdims=True))
    return graph(build, [x], build("add", y, top) if subtract else y)


def sigmoid(dtype: str, *, overflows: bool = False) -> KernelGraph:
    """1 / (1 + exp(-x)), or exp(x) / (1 + exp(x)), which is NaN for large x."""
    x = tensor((8, 8), dtype, "x")
    build = Build()
    one = build("constant", value=1.0, shape=(1,), dtype=dtype)
    e = build("exp", x if overflows else build("neg", x))
    return graph(build, [x], build("div", e if overflows else one, build("add", one, e)))


Make = Callable[[str], KernelGraph]
Pair = tuple[Make, Make, str]


def alone(make: Make) -> tuple[Make, Make]:
    return make, make


def online(dtype: str) -> KernelGraph:
    return attention(2, 16, 64, 32, 1, 4, dtype)


def before(dtype: str) -> KernelGraph:
    return over_mean(16, 64, 32, dtype)


def after(dtype: str) -> KernelGraph:
    return over_mean(16, 64, 32, dtype, late=True)


_RIGHT: dict[str, tuple[Make, Make]] = {
    "over mean 16x64x32": alone(before),
    "over mean 4x256x16": alone(lambda d: over_mean(4, 256, 16, d)),
    "over mean, late": alone(after),
    "over mean, before and after": (before, after),
    "over mean, one column": alone(lambda d: over_mean(48, 64, 1, d)),
    "quotients": alone(lambda d: quotients(16, 64, d)),
    "squares of quotients": alone(lambda d: quotients(64, 64, d, squares=True)),
    "softmax": alone(softmax_product),
    "online attention": (softmax_product, online),
    "layer norm": alone(layer_norm),
    "product": alone(lambda d: product(d, depth=512)),
    "logits": alone(lambda d: of_logits(d, subtract=True)),
    "sigmoid": alone(sigmoid),
}
_FAULTY: dict[str, tuple[Make, Make]] = {
    "x + max for x - max": (softmax_product, lambda d: softmax_product(d, sign="add")),
    "no rescale": (softmax_product, unscaled),
    "added relu(q - 3)": (softmax_product, lambda d: softmax_product(d, relu=3.0)),
    "silu for gelu": (lambda d: pointwise("gelu", d), lambda d: pointwise("silu", d)),
    "logits without their maximum": (
        lambda d: of_logits(d, subtract=True), lambda d: of_logits(d, subtract=False)),
    "exp(x) / (1 + exp(x))": (sigmoid, lambda d: sigmoid(d, overflows=True)),
    "difference of squares": (layer_norm, lambda d: layer_norm(d, squares=True)),
}  # fmt: skip
# Rounded 128 times more often than the program: at the edge of what the gate can tell.
_COARSE: dict[str, tuple[Make, Make]] = {"sums of 128 parts": (product, lambda d: product(d, parts=128))}

RIGHT, FAULTY, COARSE = (
    {f"{name} {dtype}": (*makes, dtype) for dtype in DTYPES for name, makes in named.items()}
    for named in (_RIGHT, _FAULTY, _COARSE)
)
"""Pairs of programs by name: those that compute the same, those that do not, and those that do, but less exactly."""


def passed(pair: Pair, nonces: range) -> list[int]:
    """The nonces of which the gate lets the second program of a pair pass for the first."""
    first, second, dtype = pair
    original, lowered = first(dtype), lower(second(dtype))
    return [n for n in nonces if gate(original, lowered, nonce=str(n)).passed]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--nonces", type=int, default=2000)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    wrong = 0
    for kind, pairs in (("right", RIGHT), ("faulty", FAULTY), ("coarse", COARSE)):
        for name, pair in pairs.items():
            if args.only not in f"{kind} {name}":
                continue
            start = time.perf_counter()
            found = passed(pair, range(args.nonces))
            refused = args.nonces - len(found)
            wrong += {"right": refused, "faulty": len(found), "coarse": 0}[kind]
            print(f"{kind:6} {name:44} refused {refused} of {args.nonces}, {time.perf_counter() - start:.0f} s",
                  flush=True)  # fmt: skip
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
