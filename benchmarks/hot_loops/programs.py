"""The programs that are compared: as block graphs, such as the search writes, and as hand-written Triton."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from superopt.operators import infer_type
from superopt.program import Attr, BlockGraph, KernelGraph, Load, Node, Store, TensorType, TileProgram, Value
from superopt.transforms.emit.triton_source import Parameter, TritonKernel

_HAND_WRITTEN = (
    Path(__file__).with_name("references.py").read_text().partition("import triton.language as tl\n")[2]
)
Sizes = dict[str, int]
Shape = tuple[int, ...]


class Block:
    """Writes a block graph operator by operator."""

    def __init__(self, name: str, **inputs: tuple[int, ...]) -> None:
        self.name = name
        self.inputs = {n: Value(TensorType(shape, "f16"), n) for n, shape in inputs.items()}
        self.inside = {n: Value(v.type, n) for n, v in self.inputs.items()}
        self.nodes: list[Node] = []

    def op(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        result = Value(infer_type(op, [v.type for v in operands], attrs), op)
        self.nodes.append(Node(op, operands, (result,), attrs))
        return result

    def tile(
        self, name: str, shape: tuple[int, ...], imap: tuple[int, ...], fmap: tuple[int, ...] = ()
    ) -> Value:
        result = Value(TensorType(shape, "f16"), f"{name}_tile")
        self.nodes.append(Node("iterator", (self.inside[name],), (result,), {"imap": imap, "fmap": fmap}))
        return result

    def sum(self, value: Value, maximum: Value | None = None) -> Value:
        """Accumulated over the loop; rescaled where there is a running maximum."""
        operands, kind = ((value,), "sum") if maximum is None else ((value, maximum), "rescaled")
        result = Value(value.type, "sum")
        self.nodes.append(Node("accumulate", operands, (result,), {"kind": kind, "loop": 0}))
        return result

    def running_max(self, value: Value) -> Value:
        result = Value(value.type, "highest")
        self.nodes.append(Node("running_max", (value,), (result,), {"loop": 0}))
        return result

    def number(self, value: float) -> Value:
        return self.op("constant", value=value, shape=(), dtype="f16")

    def graph(
        self,
        saved: Value,
        omap: tuple[int, ...],
        grid: tuple[int, ...],
        loops: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> KernelGraph:
        self.nodes.append(Node("save", (saved,), (), {"omap": omap}))
        result = Value(TensorType(shape, "f16"), "o")
        body = BlockGraph(grid, loops, list(self.inside.values()), self.nodes)
        inputs = list(self.inputs.values())
        return KernelGraph(
            self.name, inputs, [Node("custom", tuple(inputs), (result,), {}, body=body)], [result]
        )


def matmul(m: int, n: int, k: int) -> KernelGraph:
    """A library operator: `lower` gives it its schedule."""
    a, b = Value(TensorType((m, k), "f16"), "a"), Value(TensorType((k, n), "f16"), "b")
    c = Value(TensorType((m, n), "f16"), "c")
    return KernelGraph("matmul", [a, b], [Node("matmul", (a, b), (c,))], [c])


def cache_copy(heads: int, old: int, new: int, d: int) -> KernelGraph:
    """A cache, and what is appended to it: a library operator, too."""
    cache, more = (
        Value(TensorType((heads, n, d), "f16"), name) for n, name in ((old, "cache"), (new, "new"))
    )
    o = Value(TensorType((heads, old + new, d), "f16"), "o")
    return KernelGraph("cache_copy", [cache, more], [Node("concat", (cache, more), (o,), {"dim": 1})], [o])


def attention(heads: int, m: int, t: int, d: int, rows: int, trips: int) -> KernelGraph:
    """Online softmax: `rows` queries a block, the keys in `trips`."""
    b = Block("attention", q=(heads, m, d), k=(heads, t, d), v=(heads, t, d))
    keys = t // trips
    q = b.op("reshape", b.tile("q", (1, rows, d), (0, 1), (-1,)), shape=(rows, d))
    k = b.op("reshape", b.tile("k", (1, keys, d), (0, -1), (1,)), shape=(keys, d))
    v = b.op("reshape", b.tile("v", (1, keys, d), (0, -1), (1,)), shape=(keys, d))
    s = b.op("matmul", q, k, transpose_b=True)
    highest = b.running_max(b.op("reduce_max", s, dims=(1,), keepdims=True))
    p = b.op("exp", b.op("sub", s, highest))
    o = b.sum(b.op("matmul", p, v), highest)
    total = b.sum(b.op("reduce_sum", p, dims=(1,), keepdims=True), highest)
    out = b.op("reshape", b.op("div", o, total), shape=(1, rows, d))
    return b.graph(out, (0, 1), (heads, m // rows), (trips,), (heads, m, d))


def rmsnorm(m: int, n: int) -> KernelGraph:
    """One row a block."""
    b = Block("rmsnorm", x=(m, n))
    x = b.tile("x", (1, n), (0,))
    mean = b.op("div", b.op("reduce_sum", b.op("square", x), dims=(1,), keepdims=True), b.number(float(n)))
    y = b.op("mul", x, b.op("rsqrt", b.op("add", mean, b.number(1e-5))))
    return b.graph(y, (0,), (m,), (), (m, n))


def rmsnorm_linear(m: int, n: int, k: int, columns: int, trips: int) -> KernelGraph:
    """The normalisation behind the product."""
    b = Block("rmsnorm_linear", x=(m, k), w=(k, n))
    x, w = b.tile("x", (m, k // trips), (-1,), (1,)), b.tile("w", (k // trips, columns), (1,), (0,))
    product = b.sum(b.op("matmul", x, w))
    squares = b.sum(b.op("reduce_sum", b.op("square", x), dims=(1,), keepdims=True))
    mean = b.op("div", squares, b.number(float(k)))
    y = b.op("mul", product, b.op("rsqrt", b.op("add", mean, b.number(1e-5))))
    return b.graph(y, (1,), (n // columns,), (trips,), (m, n))


def gated_mlp(m: int, n: int, k: int, columns: int, trips: int) -> KernelGraph:
    """Both products in one loop."""
    b = Block("gated_mlp", x=(m, k), w=(k, n), v=(k, n))
    x = b.tile("x", (m, k // trips), (-1,), (1,))
    w, v = (b.tile(name, (k // trips, columns), (1,), (0,)) for name in "wv")
    gate, up = b.sum(b.op("matmul", x, w)), b.sum(b.op("matmul", x, v))
    return b.graph(b.op("mul", b.op("silu", gate), up), (1,), (n // columns,), (trips,), (m, n))


@dataclass(frozen=True)
class Case:
    """A program at one size.

    `reference` gives the hand-written kernel and its compile-time sizes, those of tiles read from the emitted
    kernel's loop: both do the same work in a trip.
    """

    name: str
    graph: KernelGraph
    reference: Callable[[TileProgram], tuple[str, dict[str, float]]]


def hand_written(case: Case, program: TileProgram, emitted: TritonKernel) -> TritonKernel:
    """The reference of `case`, with the emitted kernel's tiles, warps and stages."""
    function, sizes = case.reference(program)
    names = re.search(rf"^def {function}\(\s*((?:\w+_ptr,\s*)+)", _HAND_WRITTEN, re.MULTILINE)
    assert names is not None
    pointers = [n.strip() for n in names[1].split(",") if n.strip()]
    types = [v.type for v in (*case.graph.inputs, *case.graph.outputs)]
    given = ", ".join([*pointers, *(f"{k}={v}" for k, v in sizes.items())])
    source = f"{_HAND_WRITTEN}\n\n@triton.jit\ndef kernel({', '.join(pointers)}):\n    {function}({given})\n"
    parameters = tuple(Parameter(n, t, "input") for n, t in zip(pointers, types, strict=True))
    return TritonKernel("kernel", source, parameters, emitted.grid, emitted.num_warps, emitted.num_stages)


def tile(program: TileProgram, buffer: str) -> tuple[int, ...]:
    """The tile of `buffer` that each trip of the innermost loop reads."""
    loads = [s for s in program.statements() if isinstance(s, Load) and s.buffer.name == buffer]
    return tuple(n for n in min((s.result for s in loads), key=lambda v: v.type.elements).shape if n > 1)


def _product(m: int, n: int, k: int) -> Case:
    def reference(p: TileProgram) -> tuple[str, dict[str, float]]:
        (bm, bk), (_, bn) = tile(p, "a"), tile(p, "b")
        return "matmul", {"M": m, "N": n, "K": k, "BM": bm, "BN": bn, "BK": bk, "GROUP": 8}

    return Case(f"matmul {m}x{n}x{k}", matmul(m, n, k), reference)


def _attention(name: str, heads: int, m: int, t: int, d: int, rows: int) -> Case:
    def reference(p: TileProgram) -> tuple[str, dict[str, float]]:
        return "attention", {"M": m, "T": t, "D": d, "BM": max(rows, 16), "BT": tile(p, "k")[-2]}

    return Case(f"{name} {heads}x{m}x{t}x{d}", attention(heads, m, t, d, rows, 16), reference)


def _cache_copy(heads: int, old: int, new: int, d: int) -> Case:
    def reference(p: TileProgram) -> tuple[str, dict[str, float]]:
        rows, columns = tile(p, "cache")
        sizes = {"OLD": old, "NEW": new, "D": d, "BT": 1 << (rows - 1).bit_length(), "BD": columns}
        return "cache_copy", sizes

    return Case(f"cache copy {heads}x{old}+{new}x{d}", cache_copy(heads, old, new, d), reference)


def _rmsnorm(m: int, n: int) -> Case:
    return Case(f"rmsnorm {m}x{n}", rmsnorm(m, n), lambda _: ("rmsnorm", {"N": n, "eps": 1e-5}))


def _rmsnorm_linear(m: int, n: int, k: int, columns: int) -> Case:
    def reference(p: TileProgram) -> tuple[str, dict[str, float]]:
        return "rmsnorm_linear", {"M": m, "N": n, "K": k, "BN": columns, "BK": tile(p, "w")[0], "eps": 1e-5}

    return Case(f"rmsnorm_linear {m}x{n}x{k}", rmsnorm_linear(m, n, k, columns, 8), reference)


def _gated_mlp(m: int, n: int, k: int, columns: int) -> Case:
    def reference(p: TileProgram) -> tuple[str, dict[str, float]]:
        return "gated_mlp", {"M": m, "N": n, "K": k, "BM": max(m, 16), "BN": columns, "BK": tile(p, "w")[0]}

    return Case(f"gated_mlp {m}x{n}x{k}", gated_mlp(m, n, k, columns, 8), reference)


def convolution(
    image: Shape, weight: Shape, stride: int, dilation: int, pad: int, groups: int
) -> KernelGraph:
    """A convolution of images (n, y..., c), channels last, and weights (k..., c, f), as a library operator."""
    x, w = Value(TensorType(image, "f16"), "x"), Value(TensorType(weight, "f16"), "w")
    rank = len(image) - 2
    nodes: list[Node] = []

    def then(op: str, *operands: Value, **attrs: Attr) -> Value:
        result = Value(infer_type(op, [v.type for v in operands], attrs), op)
        nodes.append(Node(op, operands, (result,), attrs))
        return result

    numbers = {"strides": stride, "dilations": dilation, "low": pad, "high": pad}
    attrs: dict[str, Attr] = {name: (number,) * rank for name, number in numbers.items()}
    first = then("transpose", x, perm=(0, rank + 1, *range(1, rank + 1)))
    turned = then("transpose", w, perm=(rank + 1, rank, *range(rank)))
    y = then("conv", first, turned, groups=groups, **attrs)
    return KernelGraph("conv", [x, w], nodes, [then("transpose", y, perm=(0, *range(2, rank + 2), 1))])


def _conv(
    name: str,
    image: Shape,
    weight: Shape,
    *,
    stride: int = 1,
    dilation: int = 1,
    pad: int = 0,
    groups: int = 1,
) -> Case:
    graph = convolution(image, weight, stride, dilation, pad, groups)

    def reference(p: TileProgram) -> tuple[str, dict[str, float]]:
        (stored,) = (s.windows for s in p.statements() if isinstance(s, Store) and s.buffer in p.params)
        (loaded, *_) = (s.windows for s in p.statements() if isinstance(s, Load) and s.buffer.name == "w")
        (result,) = graph.outputs
        spatial = {"": image[1:-1], "O": result.shape[1:-1], "B": [w.size for w in stored[1:-1]]}
        sizes: dict[str, float] = {}
        for letter, extents in spatial.items():
            names = ("BT", "BY", "BX") if letter == "B" else (f"{letter}T", f"{letter}H", f"{letter}W")
            sizes |= dict(zip(names, (*(1,) * (3 - len(extents)), *extents), strict=True))
        sizes |= dict(zip("QRS", (*(1,) * (5 - len(weight)), *weight[:-2]), strict=True))
        return "conv", sizes | {
            "C": image[-1], "F": weight[-1], "GROUPS": groups, "STRIDE": stride, "DILATION": dilation, "PAD": pad,
            "BF": stored[-1].size, "BC": loaded[-2].size,
        }  # fmt: skip

    return Case(f"conv {name}", graph, reference)


def cases() -> list[Case]:
    """What is compared."""
    return [
        *(_product(n, n, n) for n in (512, 1024, 2048, 4096, 8192)),
        *(_product(m, 4096, 4096) for m in (16, 64, 256)),
        _attention("prefill", 32, 4096, 4096, 128, 128),
        _attention("prefill", 32, 4096, 4096, 64, 128),
        _attention("decode", 256, 1, 4096, 128, 1),
        _attention("decode", 64, 8, 4096, 128, 8),
        _cache_copy(32, 1008, 16, 128),
        _rmsnorm(4096, 4096),
        _rmsnorm_linear(16, 6144, 4096, 64),
        _gated_mlp(8, 4096, 4096, 32),
        _gated_mlp(128, 4096, 4096, 64),
        _conv("3x3", (8, 28, 28, 256), (3, 3, 256, 256), pad=1),
        _conv("3x3 stride 2", (8, 56, 56, 256), (3, 3, 256, 256), stride=2, pad=1),
        _conv("3x3 dilation 2", (8, 28, 28, 256), (3, 3, 256, 256), dilation=2, pad=2),
        _conv("3x3 of 2 groups", (8, 28, 28, 256), (3, 3, 128, 256), pad=1, groups=2),
        _conv("1x1", (8, 28, 28, 2048), (1, 1, 2048, 512)),
        _conv("3x3x3", (2, 8, 28, 28, 128), (3, 3, 3, 128, 128), pad=1),
    ]
