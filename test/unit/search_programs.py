"""Small programs for the tests of the search, built in memory, and a way to run graphs in numpy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from superopt.operators import OPERATORS, Scalar, infer_type, normalize_attrs
from superopt.program import Attr, BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.spec import stages

Array = np.ndarray[Any, Any]


class Program:
    """Builds a kernel graph: `p = Program("name"); x = p.input(16, 64); y = p("exp", x); p.graph(y)`."""

    def __init__(self, name: str, dtype: str = "f16") -> None:
        self.name, self.dtype = name, dtype
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []

    def input(self, *shape: int, name: str = "") -> Value:
        self.inputs.append(Value(TensorType(shape, self.dtype), name or f"x{len(self.inputs)}"))
        return self.inputs[-1]

    def __call__(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        result = Value(infer_type(op, [v.type for v in operands], attrs), op)
        self.nodes.append(Node(op, operands, (result,), dict(attrs)))
        return result

    def constant(self, value: float) -> Value:
        return self("constant", value=value, shape=(), dtype=self.dtype)

    def graph(self, *outputs: Value) -> KernelGraph:
        return KernelGraph(self.name, self.inputs, self.nodes, list(outputs))


def rmsnorm_linear(m: int = 16, k: int = 4096, n: int = 6144, *, weight: bool = False) -> KernelGraph:
    p = Program("rmsnorm_linear")
    x, w = p.input(m, k, name="x"), p.input(k, n, name="w")
    mean = p("reduce_mean", p("square", x), dims=(1,), keepdims=True)
    y = p("mul", x, p("rsqrt", p("add", mean, p.constant(1e-5))))
    if weight:
        y = p("mul", y, p.input(k, name="g"))
    return p.graph(p("matmul", y, w))


def matmul_bias_gelu(m: int = 64, k: int = 1024, n: int = 4096) -> KernelGraph:
    p = Program("matmul_bias_gelu")
    x, w, bias = p.input(m, k, name="x"), p.input(k, n, name="w"), p.input(n, name="bias")
    return p.graph(p("gelu", p("add", p("matmul", x, w), bias)))


def lora(m: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> KernelGraph:
    p = Program("lora")
    x, w = p.input(m, k, name="x"), p.input(k, n, name="w")
    a, b = p.input(k, r, name="a"), p.input(r, n, name="b")
    return p.graph(p("add", p("matmul", x, w), p("matmul", p("matmul", x, a), b)))


def gated_mlp(m: int = 8, k: int = 4096, n: int = 4096) -> KernelGraph:
    p = Program("gated_mlp")
    x, w1, w2 = p.input(m, k, name="x"), p.input(k, n, name="w1"), p.input(k, n, name="w2")
    return p.graph(p("mul", p("silu", p("matmul", x, w1)), p("matmul", x, w2)))


def attention(heads: int = 2, queries: int = 16, keys: int = 256, d: int = 64) -> KernelGraph:
    """Softmax without maximum subtraction."""
    p = Program("attention")
    q, k, v = (
        p.input(heads, queries, d, name="q"),
        p.input(heads, d, keys, name="k"),
        p.input(heads, keys, d, name="v"),
    )
    e = p("exp", p("mul", p("matmul", q, k), p.constant(1 / math.sqrt(d))))
    return p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(2,), keepdims=True)), v))


def safe_attention(
    heads: int = 2, queries: int = 16, keys: int = 256, d: int = 64, *, transposed: bool = True
) -> KernelGraph:
    """Softmax with its maximum subtracted; keys of shape (heads, keys, d), or (heads, d, keys)."""
    p = Program("safe_attention")
    q, k, v = (
        p.input(heads, queries, d, name="q"),
        p.input(heads, *((keys, d) if transposed else (d, keys)), name="k"),
        p.input(heads, keys, d, name="v"),
    )
    s = p("mul", p("matmul", q, k, transpose_b=transposed), p.constant(1 / math.sqrt(d)))
    e = p("exp", p("sub", s, p("reduce_max", s, dims=(2,), keepdims=True)))
    return p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(2,), keepdims=True)), v))


def grouped_attention(groups: int = 2, per_group: int = 4, keys: int = 256, d: int = 64) -> KernelGraph:
    """One query token; the heads of a group share keys and values, which a front end repeats."""
    p = Program("grouped_attention")
    heads = groups * per_group
    q, k, v = (
        p.input(heads, 1, d, name="q"),
        p.input(groups, keys, d, name="k"),
        p.input(groups, keys, d, name="v"),
    )

    def repeated(x: Value) -> Value:
        apart = p("reshape", x, shape=(groups, 1, keys, d))
        spread = p("broadcast", apart, shape=(groups, per_group, keys, d))
        return p("reshape", spread, shape=(heads, keys, d))

    e = p("exp", p("matmul", q, p("transpose", repeated(k), perm=(0, 2, 1))))
    return p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(2,), keepdims=True)), repeated(v)))


def adapter_mlp(m: int = 16, k: int = 4096, r: int = 16) -> KernelGraph:
    p = Program("adapter_mlp")
    x, a, b = p.input(m, k, name="x"), p.input(k, r, name="a"), p.input(r, k, name="b")
    return p.graph(p("matmul", p("relu", p("matmul", x, a)), b))


# --- running graphs in numpy ------------------------------------------------------------------------------


def _scalar(body: Scalar, args: list[Array]) -> Any:
    if body.head == "arg":
        return args[int(body.payload)]
    if body.head == "const":
        return body.payload
    below = [_scalar(a, args) for a in body.args]
    functions: dict[str, Any] = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
        "exp": np.exp, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos,
        "max": np.maximum,
        "min": np.minimum, "pow": np.power, "erf": np.vectorize(math.erf),
    }  # fmt: skip
    return functions[body.head](*below)


def apply(op: str, attrs: Mapping[str, Attr], args: list[Array]) -> Array:
    """A table operator in fp64: by its loop nest for what only moves elements, by numpy otherwise."""
    entry = OPERATORS[op]
    values = normalize_attrs(entry, attrs)
    if op == "constant":
        return np.full(values["shape"], values["value"], dtype=np.float64)  # type: ignore[arg-type]
    if op == "matmul":
        a, b = args
        a = np.swapaxes(a, -1, -2) if values["transpose_a"] else a
        b = np.swapaxes(b, -1, -2) if values["transpose_b"] else b
        return a @ b
    if op == "slice":
        offsets, sizes, strides = (values[n] for n in ("offsets", "sizes", "strides"))
        assert isinstance(offsets, tuple)
        assert isinstance(sizes, tuple)
        assert isinstance(strides, tuple)
        spans = zip(offsets, sizes, strides, strict=True)
        return args[0][tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in spans)]
    if op in ("broadcast", "transpose"):
        if op == "transpose":
            return np.transpose(args[0], values["perm"])  # type: ignore[arg-type]
        return np.broadcast_to(args[0], values["shape"])  # type: ignore[arg-type]
    if entry.arrange is not None:
        return entry.arrange(args, values)
    assert entry.body is not None
    if entry.combiner is None:
        return np.asarray(_scalar(entry.body(values), args))
    reducers: dict[str, Any] = {"add": np.sum, "max": np.max, "min": np.min}
    dims = values["dims"]
    assert isinstance(dims, tuple)
    reduced = reducers[entry.combiner](args[0], axis=dims, keepdims=bool(values["keepdims"]))
    if entry.finish is None:
        return reduced
    return np.asarray(_scalar(entry.finish(math.prod(args[0].shape[d] for d in dims)), [reduced]))


def run(graph: KernelGraph, inputs: list[Array]) -> list[Array]:
    """Every kernel in order, custom ones block by block and trip by trip."""
    env: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        args = [env[v] for v in node.operands]
        if isinstance(node.body, BlockGraph):
            env.update(zip(node.results, _run_blocks(node, node.body, args), strict=True))
        else:
            env[node.result] = apply(node.op, node.attrs, args)
        for value in node.results:
            assert env[value].shape == value.shape, (node.op, env[value].shape, value.shape)
    return [env[v] for v in graph.outputs]


def _cut(array: Array, maps: Attr, position: tuple[int, ...], extents: tuple[int, ...]) -> Array:
    assert isinstance(maps, tuple)
    for dim, at, extent in zip(maps, position, extents, strict=True):
        if dim >= 0:
            size = array.shape[dim] // extent
            array = array[(slice(None),) * dim + (slice(at * size, (at + 1) * size),)]
    return array


def _run_blocks(node: Node, body: BlockGraph, args: list[Array]) -> list[Array]:
    runner = _BlockRunner(body, args, [np.full(v.shape, np.nan) for v in node.results])
    for block in itertools.product(*map(range, body.grid)):
        runner.run(block)
    return list(runner.outputs.values())


class _BlockRunner:
    """A block graph, one block after the other, its loops run for real."""

    def __init__(self, body: BlockGraph, args: list[Array], results: list[Array]) -> None:
        self.body = body
        self.whole = dict(zip(body.inputs, args, strict=True))
        self.outputs = dict(zip(map(id, body.savers), results, strict=True))
        self.at: dict[tuple[int, bool], list[Node]] = {}  # inside so many loops, before or after the next one
        self.begins: dict[int, list[Value]] = {}  # by loop, what begins anew with it
        stage = stages(body)
        for n in body.nodes:
            of = stage[n.operands[0] if n.op == "save" else n.results[0]]
            varies, after = of.varies, of.after
            if n.op in ("accumulate", "running_max"):
                loop = n.attrs["loop"]
                assert isinstance(loop, int)
                self.begins.setdefault(loop, []).append(n.result)
                operand = stage[n.operands[0]]
                varies, after = operand.varies | {loop}, operand.after
            depth = max(varies, default=-1) + 1
            self.at.setdefault((depth, any(loop >= depth for loop in after)), []).append(n)

    def run(self, block: tuple[int, ...]) -> None:
        self.block = block
        self.env: dict[Value, Array] = {}
        self.before: dict[Value, Array] = {}  # running maxima of the trip before
        self.level(())

    def level(self, trips: tuple[int, ...]) -> None:
        depth, loops = len(trips), self.body.loops
        for n in self.at.get((depth, False), ()):
            self.step(n, trips)
        if depth == len(loops):
            return
        for value in self.begins.get(depth, ()):
            self.env.pop(value, None)
        for trip in range(loops[depth]):
            self.level((*trips, trip))
        for n in self.at.get((depth, True), ()):
            self.step(n, trips)

    def step(self, n: Node, trips: tuple[int, ...]) -> None:
        env, body = self.env, self.body
        if n.op == "iterator":
            tile = _cut(self.whole[n.operands[0]], n.attrs["imap"], self.block, body.grid)
            padded = (*trips, *[0] * (len(body.loops) - len(trips)))
            env[n.result] = _cut(tile, n.attrs["fmap"], padded, body.loops)
        elif n.op == "running_max":
            new = env[n.operands[0]]
            self.before[n.result] = env.get(n.result, new)
            env[n.result] = np.maximum(self.before[n.result], new)
        elif n.op == "accumulate":
            assert n.attrs["kind"] in ("sum", "max", "rescaled")
            new = env[n.operands[0]]
            join: Any = np.maximum if n.attrs["kind"] == "max" else np.add
            so_far = env.get(n.result)
            if so_far is not None and n.attrs["kind"] == "rescaled":
                top = n.operands[1]
                so_far = so_far * np.exp(self.before[top] - env[top])
            env[n.result] = new if so_far is None else join(so_far, new)
        elif n.op == "save":
            _cut(self.outputs[id(n)], n.attrs["omap"], self.block, body.grid)[...] = env[n.operands[0]]
        else:
            env[n.result] = apply(n.op, n.attrs, [env[v] for v in n.operands])


def same(a: KernelGraph, b: KernelGraph, seed: int = 0) -> bool:
    """Whether two graphs agree on random inputs, in fp64."""
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=v.shape) / 4 for v in a.inputs]
    return all(
        np.allclose(x, y, rtol=1e-9, atol=1e-12) for x, y in zip(run(a, inputs), run(b, inputs), strict=True)
    )
