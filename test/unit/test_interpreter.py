"""Emitted kernels compute what the operator table says: every operator and many programs, in the interpreter."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from programs import ATTENTION_ONLINE

from superopt.operators import OPERATORS, infer_type
from superopt.program import (
    Attr,
    BlockGraph,
    Compute,
    KernelGraph,
    Load,
    Loop,
    Node,
    TensorType,
    TileProgram,
    Value,
    power_of_two,
)
from superopt.transforms.emit.padding import Padding
from superopt.transforms.lower.lower import lower
from superopt.verify.domains import FloatDomain, round_to
from superopt.verify.evaluate import evaluate

pytest.importorskip("torch")

Array = np.ndarray[Any, Any]
EPS = {"f16": 1e-3, "bf16": 8e-3, "f32": 1e-6}


def tensor(shape: Sequence[int], dtype: str = "f16", name: str = "") -> Value:
    return Value(TensorType(tuple(shape), dtype), name)


class Build:
    """A kernel or block graph, node by node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def __call__(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        result = Value(infer_type(op, [v.type for v in operands], attrs))
        self.nodes.append(Node(op, operands, (result,), attrs))
        return result

    def tile(
        self, source: Value, shape: Sequence[int], imap: tuple[int, ...], fmap: tuple[int, ...]
    ) -> Value:
        result = tensor(shape, source.dtype)
        self.nodes.append(Node("iterator", (source,), (result,), {"imap": imap, "fmap": fmap}))
        return result

    def accumulate(
        self, value: Value, *more: Value, kind: str = "sum", shape: Sequence[int] | None = None, **attrs: Attr
    ) -> Value:
        result = tensor(shape or value.shape, value.dtype)
        self.nodes.append(Node("accumulate", (value, *more), (result,), {"kind": kind, "loop": 0, **attrs}))
        return result

    def running_max(self, value: Value) -> Value:
        result = tensor(value.shape, value.dtype)
        self.nodes.append(Node("running_max", (value,), (result,), {"loop": 0}))
        return result

    def save(self, value: Value, *omap: int) -> None:
        self.nodes.append(Node("save", (value,), (), {"omap": omap}))

    def custom(
        self, inputs: Sequence[Value], grid: tuple[int, ...], loops: tuple[int, ...], shape: Sequence[int]
    ) -> KernelGraph:
        """The block graph built so far as a kernel graph of one custom kernel with one output."""
        block = BlockGraph(grid, loops, list(inputs), self.nodes)
        outer = [Value(v.type, v.name) for v in inputs]
        result = tensor(shape, inputs[0].dtype, "out")
        return KernelGraph(
            "program", outer, [Node("custom", tuple(outer), (result,), {}, body=block)], [result]
        )


def single(op: str, types: Sequence[TensorType], attrs: dict[str, Attr]) -> KernelGraph:
    inputs = [Value(t, f"x{i}") for i, t in enumerate(types)]
    result = Value(infer_type(op, types, attrs), "y")
    return KernelGraph(op, inputs, [Node(op, tuple(inputs), (result,), attrs)], [result])


def check(
    graph: KernelGraph, inputs: Sequence[Array] | None = None, scale: float = 1.0, factor: float = 4.0
) -> None:
    """Interpreted results against fp64, within `factor` roundings of the largest number around."""
    from interpreter import interpret

    rng = np.random.default_rng(7)
    if inputs is None:
        inputs = [rng.standard_normal(v.shape) * scale for v in graph.inputs]
    rounded = [
        round_to(np.asarray(x, np.float32), v.dtype) for x, v in zip(inputs, graph.inputs, strict=True)
    ]
    domain = FloatDomain()
    expected = evaluate(graph, [domain.tensor(x) for x in rounded], domain)
    for got, want, value in zip(interpret(graph, rounded), expected, graph.outputs, strict=True):
        reference = want.planes[0]
        assert got.shape == value.shape
        assert np.isfinite(got).all()
        tolerance = factor * EPS[value.dtype] * max(1.0, float(np.abs(reference).max()))
        np.testing.assert_allclose(got, reference, rtol=0, atol=tolerance)


# What each operator needs besides its operands; shapes are odd on purpose.
ATTRS: dict[str, dict[str, Attr]] = {
    "clamp": {"low": -0.5, "high": 0.75},
    "pow": {"exponent": 3.0},
    "select": {"other": -1.5},
    "cast": {"dtype": "f32"},
    "reduce_sum": {"dims": (1,), "keepdims": True},
    "reduce_mean": {"dims": (0, 1)},
    "reduce_max": {"dims": (0,)},
    "reduce_min": {"dims": (1,)},
    "broadcast": {"shape": (3, 7, 13)},
    "transpose": {"perm": (1, 0)},
    "slice": {"offsets": (1, 2), "sizes": (3, 5), "strides": (2, 2)},
    "reshape": {"shape": (13, 7)},
    "repeat": {"dim": 1, "times": 3},
    "concat": {"dim": 0},
    "update_slice": {"dim": 0, "offset": 2},
    "constant": {"value": 1.5, "shape": (7, 13), "dtype": "f16"},
    "band": {"lower": -2, "upper": 3, "inside": 2.0, "outside": -0.5, "shape": (7, 13), "dtype": "f16"},
    "ramp": {"along": -2, "start": 3, "step": -2, "shape": (7, 13), "dtype": "f16"},
    "conv": {"strides": (2, 1), "dilations": (1, 2), "low": (1, 2), "high": (1, 1)},
    "conv_transpose": {
        "strides": (2, 1), "dilations": (1, 1), "low": (1, 0), "high": (0, 0), "extra": (1, 0)
    },
    "pool_max": {"sizes": (3, 2), "strides": (2, 2), "dilations": (1, 1), "low": (1, 0), "high": (1, 1)},
    "pool_sum": {"sizes": (3, 2), "strides": (2, 2), "dilations": (1, 2), "low": (1, 0), "high": (1, 1)},
    "shifted_sum": {"strides": (1, 2), "dilations": (1, 1), "low": (1, 0), "high": (1, 1)},
    "g2bmm": {"width": 5, "dilation": 3, "low": 4},
    "gbmm": {"dilation": 3, "low": 4},
    "pad": {"low": (1, 0), "high": (0, 5), "value": 0.5},
}  # fmt: skip
POSITIVE = ("log", "log1p", "sqrt", "rsqrt", "reciprocal", "div", "pow")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(
    "op", [name for name, entry in OPERATORS.items() if "kernel" in entry.levels and name != "nest"]
)
def test_every_operator_alone(op: str, dtype: str) -> None:
    shapes = {
        "matmul": [(7, 13), (13, 5)],
        "constant": [],
        "band": [],
        "ramp": [],
        "concat": [(7, 13), (4, 13), (7, 13)],
    }
    shapes["update_slice"] = [(7, 13), (4, 13)]
    image = (2, 5, 7, 6)
    shapes |= {"conv": [image, (6, 5, 3, 3)], "conv_transpose": [image, (5, 6, 3, 2)]}
    shapes |= {"pool_max": [image], "pool_sum": [image], "shifted_sum": [(2, 3, 2, 5, 7, 6)]}
    shapes |= {"g2bmm": [(2, 9, 70), (2, 11, 70)], "gbmm": [(2, 9, 5), (2, 11, 20)]}
    arity = OPERATORS[op].arity or 1
    types = [TensorType(s, dtype) for s in shapes.get(op, [(7, 13)] * arity)]
    attrs = dict(ATTRS.get(op, {}))
    if OPERATORS[op].constant:
        attrs["dtype"] = dtype
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(t.shape) for t in types]
    if op in POSITIVE:
        inputs = [np.abs(x) + 0.5 for x in inputs]
    check(single(op, types, attrs), inputs)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_nest_alone(dtype: str) -> None:
    """A product whose columns begin one later, behind a column of zeros."""
    attrs: dict[str, Attr] = {
        "extents": (7, 6, 13), "rank": 2, "maps": "(d0, d2); (d1 - 1, d2)", "guards": "true; d1 - 1 >= 0"
    }  # fmt: skip
    types = [TensorType((7, 13), dtype), TensorType((5, 13), dtype)]
    rng = np.random.default_rng(3)
    check(single("nest", types, attrs), [rng.standard_normal(t.shape) for t in types])


@pytest.mark.parametrize("exponent", [0.0, 0.5, -0.5, -2.0, 2.5, 11.0, 12.0])
def test_powers(exponent: float) -> None:
    x = np.linspace(-1.5, 1.5, 91).reshape(7, 13) if exponent == int(exponent) else np.linspace(0.5, 2, 91)
    x = np.where(np.abs(x) < 0.4, 0.7, x).reshape(7, 13)
    check(single("pow", [TensorType((7, 13), "f32")], {"exponent": exponent}), [x], factor=40)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "max"])
@pytest.mark.parametrize(
    "shapes", [((7, 1), (1, 13)), ((7, 13), (13,)), ((1, 1), (7, 13)), ((2, 1, 5), (3, 1)), ((5,), ())]
)
def test_broadcasting(op: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(single(op, [TensorType(s, "f32") for s in shapes], {}))


@pytest.mark.parametrize(
    ("a", "b", "attrs"),
    [
        ((1, 70), (70, 33), {}),
        ((16, 100), (100, 130), {}),
        ((150, 65), (65, 40), {}),
        ((64, 48), (64, 48), {"transpose_b": True}),
        ((48, 20), (48, 9), {"transpose_a": True}),
        ((20, 31), (17, 20), {"transpose_a": True, "transpose_b": True}),
        ((3, 5, 16), (3, 16, 7), {}),
        ((2, 3, 5, 16), (16, 7), {}),
        ((2, 1, 5, 16), (3, 7, 16), {"transpose_b": True}),
        ((33, 200), (200, 1), {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_matmul_shapes(a: tuple[int, ...], b: tuple[int, ...], attrs: dict[str, Attr], dtype: str) -> None:
    check(single("matmul", [TensorType(a, dtype), TensorType(b, dtype)], attrs), scale=0.3)


@pytest.mark.parametrize(
    ("op", "shape", "dims"),
    [("reduce_sum", (3, 4099), (1,)), ("reduce_mean", (300, 70), (0,)), ("reduce_max", (2, 70, 90), (0, 2)),
     ("reduce_min", (5, 9000), (0, 1)), ("reduce_mean", (2, 3, 5, 7), (1, 3))],
)  # fmt: skip
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_with_remainders(
    op: str, shape: tuple[int, ...], dims: tuple[int, ...], keepdims: bool
) -> None:
    x = np.random.default_rng(1).standard_normal(shape) + 3.0  # a wrong neutral element shows
    x = -x if op == "reduce_max" else x
    check(single(op, [TensorType(shape, "f32")], {"dims": dims, "keepdims": keepdims}), [x], factor=10)


@pytest.mark.parametrize("perm", list(itertools.permutations(range(3))))
def test_transposes(perm: tuple[int, ...]) -> None:
    check(single("transpose", [TensorType((5, 37, 41), "f16")], {"perm": perm}))


def test_concat_and_repeat_of_large_odd_extents() -> None:
    check(single("concat", [TensorType((3, 1500), "f32"), TensorType((3, 7), "f32")], {"dim": 1}))
    check(single("repeat", [TensorType((3, 1030), "f32")], {"dim": 1, "times": 2}))


def test_elementwise_chain_is_one_kernel() -> None:
    from superopt.transforms.lower import lower

    build = Build()
    x, y = tensor((7, 130), name="x"), tensor((130,), name="y")
    two = build("constant", value=2.0, shape=(), dtype="f16")
    out = build("silu", build("mul", build("add", x, y), two))
    graph = KernelGraph("chain", [x, y], build.nodes, [out])
    assert [n.op for n in lower(graph).nodes] == ["tiled"]
    check(graph)


def test_views_dense_constants_and_shared_values() -> None:
    build = Build()
    x = tensor((4, 6), "f32", "x")
    table = np.arange(6, dtype=np.float32)
    c = build("constant", value=table, shape=(6,), dtype="f32")
    y = build("add", x, c)
    z = build("reshape", y, shape=(3, 8))
    w = build("reduce_sum", z, dims=(1,))
    check(KernelGraph("views", [x], build.nodes, [w, y, z]))


# --- block graphs -----------------------------------------------------------------------------------------


def matmul_block(
    m: int, n: int, k: int, grid: int, loop: int, dtype: str = "f16"
) -> tuple[Build, list[Value], Value]:
    x, w = tensor((m, k), dtype, "x"), tensor((k, n), dtype, "w")
    build = Build()
    xt = build.tile(x, (m, k // loop), (-1,), (1,))
    wt = build.tile(w, (k // loop, n // grid), (1,), (0,))
    return build, [x, w], build.accumulate(build("matmul", xt, wt))


@pytest.mark.parametrize("m", [1, 5, 16, 24])
def test_matmul_bias_gelu(m: int) -> None:
    build, inputs, acc = matmul_block(m, 96, 120, 3, 5)
    bias = tensor((96,), name="bias")
    total = build("gelu", build("add", acc, build.tile(bias, (32,), (0,), (-1,))))
    build.save(total, 1)
    check(build.custom([*inputs, bias], (3,), (5,), (m, 96)), scale=0.3)


def test_lora() -> None:
    x, w, a, b = tensor((16, 64)), tensor((64, 96)), tensor((64, 8)), tensor((8, 96))
    build = Build()
    xt, wt = build.tile(x, (16, 16), (-1,), (1,)), build.tile(w, (16, 32), (1,), (0,))
    at, bt = build.tile(a, (16, 8), (-1,), (0,)), build.tile(b, (8, 32), (1,), (-1,))
    base = build.accumulate(build("matmul", xt, wt))
    low = build.accumulate(build("matmul", xt, at))
    build.save(build("add", base, build("matmul", low, bt)), 1)
    check(build.custom([x, w, a, b], (3,), (4,), (16, 96)), scale=0.3)


def test_gated_mlp_half() -> None:
    x, v, w = tensor((8, 64)), tensor((64, 96)), tensor((64, 96))
    build = Build()
    xt = build.tile(x, (8, 16), (-1,), (1,))
    gate = build.accumulate(build("matmul", xt, build.tile(v, (16, 48), (1,), (0,))))
    up = build.accumulate(build("matmul", xt, build.tile(w, (16, 48), (1,), (0,))))
    build.save(build("mul", build("silu", gate), up), 1)
    check(build.custom([x, v, w], (2,), (4,), (8, 96)), scale=0.3)


def attention(
    heads: int, queries: int, keys: int, width: int, grid: int, loops: int, dtype: str = "f16"
) -> KernelGraph:
    q, k, v = (tensor((heads, e, width), dtype, n) for n, e in (("q", queries), ("k", keys), ("v", keys)))
    build = Build()
    qt = build.tile(q, (1, queries // grid, width), (0, 1), (-1,))
    kt = build.tile(k, (1, keys // loops, width), (0, -1), (1,))
    vt = build.tile(v, (1, keys // loops, width), (0, -1), (1,))
    s = build("matmul", qt, kt, transpose_b=True)
    m = build.running_max(build("reduce_max", s, dims=(2,), keepdims=True))
    e = build("exp", build("sub", s, m))
    top = build.accumulate(build("matmul", e, vt), m, kind="rescaled")
    bottom = build.accumulate(build("reduce_sum", e, dims=(2,), keepdims=True), m, kind="rescaled")
    build.save(build("div", top, bottom), 0, 1)
    return build.custom([q, k, v], (heads, grid), (loops,), (heads, queries, width))


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_online_attention(dtype: str) -> None:
    graph = attention(2, 24, 60, 20, 2, 3, dtype)  # 12 queries, 20 keys a trip: everything is padded
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(v.shape) for v in graph.inputs]
    check(graph, inputs)
    check(graph, [inputs[0] * 30, *inputs[1:]])  # logits far beyond what exp takes
    # Every logit far below zero: the running maximum must not start there.
    check(graph, [np.abs(inputs[0]) * 30, -np.abs(inputs[1]), inputs[2]])


def test_concat_accumulators() -> None:
    for after in (False, True):
        x = tensor((6, 24), "f32")
        build = Build()
        squares = build("square", build.tile(x, (3, 6), (0,), (1,)))
        parts = build.accumulate(squares, kind="concat", dim=1, shape=(3, 24))
        build.save(build("neg", parts) if after else parts, 0)
        check(build.custom([x], (2,), (4,), (6, 24)))


def test_max_accumulator_and_invariant_sum() -> None:
    x, y = tensor((6, 24), "f32"), tensor((6, 1), "f32")
    build = Build()
    top = build.accumulate(
        build("reduce_max", build.tile(x, (3, 6), (0,), (1,)), dims=(1,), keepdims=True), kind="max"
    )
    times = build.accumulate(build.tile(y, (3, 1), (0,), (-1,)))  # added once a trip
    build.save(build("add", top, times), 0)
    graph = build.custom([x, y], (2,), (4,), (6, 1))
    check(graph, [-1.0 - np.abs(np.random.default_rng(0).standard_normal((6, 24))), np.ones((6, 1))])


def queries_of_all_heads(
    heads: int, queries: int, keys: int, width: int, grid: int, loops: int
) -> KernelGraph:
    """Attention of several heads of queries to one of keys, with the heads folded into the rows of a product."""
    q, k, v = tensor((heads, queries, width)), tensor((keys, width)), tensor((keys, width))
    build = Build()
    each, part = queries // grid, keys // loops
    qt = build.tile(q, (heads, each, width), (1,), (-1,))
    kt, vt = (build.tile(x, (part, width), (-1,), (0,)) for x in (k, v))
    rows = build("reshape", qt, shape=(heads * each, width))
    s = build("reshape", build("matmul", rows, kt, transpose_b=True), shape=(heads, each, part))
    m = build.running_max(build("reduce_max", s, dims=(2,), keepdims=True))
    e = build("exp", build("sub", s, m))
    product = build("matmul", build("reshape", e, shape=(heads * each, part)), vt)
    top = build.accumulate(build("reshape", product, shape=(heads, each, width)), m, kind="rescaled")
    bottom = build.accumulate(build("reduce_sum", e, dims=(2,), keepdims=True), m, kind="rescaled")
    build.save(build("div", top, bottom), 1)
    return build.custom([q, k, v], (grid,), (loops,), (heads, queries, width))


@pytest.mark.parametrize(("heads", "queries"), [(7, 8), (5, 2), (3, 64), (1, 4)])
def test_heads_folded_into_rows_stay_in_registers(heads: int, queries: int) -> None:
    """Only the first of the dimensions that become one is padded."""
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.lower import lower

    graph = queries_of_all_heads(heads, queries, 24, 16, 2, 3)
    assert "scratch" not in emit_program(lower(graph)).kernels_source
    check(graph)


@pytest.mark.parametrize(
    ("shape", "made", "in_registers"),
    [
        ((6, 4), (24,), True),
        ((24,), (6, 4), True),
        ((24,), (3, 8), True),
        ((3, 6, 4), (3, 24), True),
        ((12, 2), (3, 8), True),
        ((5, 7), (35,), False),
        ((4, 6), (24,), False),
        ((6, 4), (4, 6), False),
    ],
)
def test_reshapes_keep_what_is_no_padding(
    shape: tuple[int, ...], made: tuple[int, ...], in_registers: bool
) -> None:
    """Reduced over every dimension at once: padding that moved to another place would be counted."""
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.lower import lower

    x = tensor(shape, "f32", "x")
    build = Build()
    tile = build("exp", build.tile(x, shape, (-1,), ()))  # 1 where padding is 0
    folded = build("reshape", tile, shape=made)
    build.save(build("reduce_sum", folded, dims=tuple(range(len(made)))))
    build.nodes[-1].attrs["omap"] = (-1,)
    graph = build.custom([x], (1,), (), ())
    assert ("scratch" not in emit_program(lower(graph)).kernels_source) == in_registers
    check(graph)


def test_data_movement_inside_a_block() -> None:
    """Slices, concatenations, repetitions and reshapes of padded tiles go through scratch memory."""
    x = tensor((6, 20), "f32")
    build = Build()
    t = build("neg", build.tile(x, (3, 20), (0,), ()))
    cut = build("slice", t, offsets=(0, 3), sizes=(3, 7), strides=(1, 2))
    again = build("slice", build.nodes[0].result, offsets=(0, 1), sizes=(3, 7), strides=(1, 1))
    both = build("concat", cut, build("mul", again, cut), dim=1)
    three = build("repeat", both, dim=1, times=3)
    flat = build("reshape", three, shape=(3, 7, 6))
    turned = build("transpose", flat, perm=(0, 2, 1))
    build.save(build("reduce_sum", turned, dims=(2,)), 0)
    check(build.custom([x], (2,), (), (6, 6)), factor=20)


@pytest.mark.parametrize("heads", [1, 4])
def test_reshapes_of_tiles_padded_for_a_product(heads: int) -> None:
    """Heads of a group folded into rows: too few for `tl.dot`, so their padding must not move with the reshape."""
    q, k = tensor((2, heads, 8 // heads, 16)), tensor((2, 32, 16))
    build = Build()
    qt = build.tile(q, (1, heads, 8 // heads, 16), (0,), ())
    kt = build("reshape", build.tile(k, (1, 32, 16), (0,), ()), shape=(32, 16))
    rows = build("reshape", qt, shape=(8, 16))
    e = build("exp", build("matmul", rows, kt, transpose_b=True))
    o = build("div", build("matmul", e, kt), build("reduce_sum", e, dims=(1,), keepdims=True))
    build.save(build("reshape", o, shape=(1, heads, 8 // heads, 16)), 0)
    check(build.custom([q, k], (2,), (), q.shape), scale=0.3)


def test_nested_loops() -> None:
    """Sums over an inner loop, kept by the outer one."""
    x, w = tensor((8, 24), "f32"), tensor((24, 12), "f32")
    build = Build()
    xt, wt = build.tile(x, (8, 4), (-1,), (1, 1)), build.tile(w, (4, 12), (-1,), (0, 0))
    # Distinct loops may not map to one dimension: cut rows by one loop and columns by the other.
    build.nodes.clear()
    xt = build.tile(x, (8, 8), (-1,), (-1, 1))
    wt = build.tile(w, (8, 4), (-1,), (1, 0))
    product = build("matmul", xt, wt)
    inner = tensor(product.shape, "f32")
    build.nodes.append(Node("accumulate", (product,), (inner,), {"kind": "sum", "loop": 1}))
    outer = build.accumulate(build("exp", inner), kind="concat", dim=1, shape=(8, 12))
    build.save(outer, -1)
    check(build.custom([x, w], (1,), (3, 3), (8, 12)), scale=0.3, factor=10)


def test_two_dimensions_of_the_grid_and_the_loop_in_one_dimension() -> None:
    x = tensor((12, 40), "f32")
    build = Build()
    t = build.tile(x, (6, 5), (0, 1), (1,))  # columns are cut by the grid and by the loop
    build.save(build.accumulate(build("exp", t)), 0, 1)
    check(build.custom([x], (2, 2), (4,), (12, 10)))


@pytest.mark.parametrize("seed", range(12))
def test_random_block_graphs(seed: int) -> None:
    """A random elementwise and reducing program around an accumulated product."""
    rng = random.Random(seed)
    m, grid, loop = rng.choice([3, 8, 17]), rng.choice([1, 2, 4]), rng.choice([1, 2, 3])
    n, k = grid * rng.choice([5, 16]), loop * rng.choice([6, 16])
    dtype = rng.choice(["f16", "f32"])
    build, inputs, acc = matmul_block(m, n, k, grid, loop, dtype)
    xt = build.nodes[0].result
    pool = [acc, build.accumulate(build("reduce_sum", build("square", xt), dims=(1,), keepdims=True))]
    for _ in range(rng.randint(2, 6)):
        op = rng.choice(["add", "mul", "max", "sub", "sigmoid", "tanh", "relu", "square", "broadcast"])
        a, b = rng.choice(pool), rng.choice(pool)
        if op == "broadcast":
            pool.append(build(op, a, shape=acc.shape))
        elif OPERATORS[op].arity == 2:
            pool.append(build(op, a, b))
        else:
            pool.append(build(op, a))
        pool[-1] = build("tanh", pool[-1])
    last = build("add", pool[-1], acc)
    build.save(last, 1)
    check(build.custom(inputs, (grid,), (loop,), (m, n)), scale=0.3, factor=8)


def test_text_of_the_attention_example() -> None:
    from superopt.dialects.reader import read

    check(read(ATTENTION_ONLINE))


@pytest.mark.parametrize("attrs", [{}, {"transpose_a": True}, {"transpose_b": True}])
def test_deep_products_without_a_loop(attrs: dict[str, Attr]) -> None:
    """Operands too large for registers are read part by part: a loop over what everything is reduced over."""
    from superopt.transforms.lower import lower

    x = tensor((528, 16) if "transpose_a" in attrs else (16, 528), name="x")
    w = tensor((128, 528) if "transpose_b" in attrs else (528, 128), name="w")
    build = Build()
    xt = build.tile(x, x.shape, (-1,), ())
    wt = build.tile(
        w, (64, 528) if "transpose_b" in attrs else (528, 64), (0 if "transpose_b" in attrs else 1,), ()
    )
    total = build("reduce_sum", build("square", xt), dims=(0 if "transpose_a" in attrs else 1,))
    product = build("matmul", xt, wt, **attrs)
    build.save(build("mul", product, build("reshape", total, shape=(16, 1))), 1)
    graph = build.custom([x, w], (2,), (), (16, 128))
    body = lower(graph).nodes[0].body
    assert isinstance(body, TileProgram)
    assert [s.stop for s in body.statements() if isinstance(s, Loop) and not s.parallel] == [33]
    assert sum(isinstance(s, Load) and s.buffer.name == "w" for s in body.statements()) == 1
    check(graph, scale=0.1)


def test_deep_products_beside_what_needs_all_of_their_depth() -> None:
    """Only the product is a loop then."""
    from superopt.transforms.lower import lower

    x, w = tensor((16, 528), name="x"), tensor((528, 64), name="w")
    build = Build()
    xt, wt = build.tile(x, x.shape, (-1,), ()), build.tile(w, w.shape, (-1,), ())
    build.save(build("add", build("matmul", xt, wt), build("slice", xt, **SLICE)), 1)
    graph = build.custom([x, w], (1,), (), (16, 64))
    body = lower(graph).nodes[0].body
    assert isinstance(body, TileProgram)
    assert [s.step for s in body.statements() if isinstance(s, Loop)] == [16]
    assert sum(isinstance(s, Load) and s.buffer.name == "w" for s in body.statements()) == 1
    check(graph, scale=0.1)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_blocks_in_groups(batch: tuple[int, ...]) -> None:
    """Ten rows of tiles: a group of eight and one of two."""
    from superopt.transforms.emit import emit_text

    types = [TensorType((*batch, 160, 16), "f32"), TensorType((*batch, 16, 288), "f32")]
    graph = single("matmul", types, {})
    text = emit_text(graph, "triton")
    assert isinstance(text, str)
    assert "rows = min(10 - pid // 72 * 8, 8)" in text
    check(graph)


SLICE: dict[str, Attr] = {"offsets": (0, 0), "sizes": (16, 64), "strides": (1, 1)}


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_reshapes_of_tiles_that_a_product_pads(rows: int, tokens: int) -> None:
    """Query heads that share keys are rows of one product: fewer than 16 of them are padded, and cut again."""
    heads, keys, d = 2, 32, 16
    q, k = tensor((heads, rows, tokens, d), name="q"), tensor((heads, keys, d), name="k")
    build = Build()
    qt = build("reshape", build.tile(q, (1, rows, tokens, d), (0,), ()), shape=(rows * tokens, d))
    kt = build("reshape", build.tile(k, (1, keys, d), (0,), ()), shape=(keys, d))
    product = build("relu", build("matmul", qt, kt, transpose_b=True))
    apart = build("reshape", product, shape=(1, rows, tokens, keys))
    total = build("reduce_sum", apart, dims=(1,), keepdims=True)
    build.save(build("sub", apart, total), 0)
    check(build.custom([q, k], (heads,), (), (heads, rows, tokens, keys)), scale=0.3)


def test_a_batch_of_one_that_another_place_pads() -> None:
    """The batch of a product is the padded dimension of a transposed operand."""
    build, x, w = Build(), tensor((2, 1, 1), name="x"), tensor((1, 2), name="w")
    tile = build.tile(x, (2, 1, 1), (-1,), ())
    turned = build("transpose", tile, perm=(2, 1, 0))
    left = build("matmul", turned, build.tile(w, (1, 2), (-1,), ()), transpose_b=True)
    right = build("matmul", tile, build("constant", value=1.0, shape=(1, 1), dtype="f16"))
    build.save(build("add", left, build("reduce_sum", right, dims=(0,), keepdims=True)), 0)
    check(build.custom([x, w], (1,), (), (1, 1, 1)))


@pytest.mark.parametrize("batch", [1, 3])
def test_batches_that_another_place_pads(batch: int) -> None:
    """The batch of a product in a loop is the depth of another product, and no power of two."""
    build, x, w = Build(), tensor((batch, 4, 6), name="x"), tensor((6, 5), name="w")
    v = tensor((5, batch), name="v")
    tile = build.tile(x, (batch, 4, 3), (-1,), (2,))
    summed = build.accumulate(build("matmul", tile, build.tile(w, (3, 5), (-1,), (0,))))
    turned = build("transpose", summed, perm=(1, 2, 0))  # 4 x 5 x batch
    other = build("matmul", turned, build.tile(v, (5, batch), (-1,), (-1,)), transpose_b=True)
    build.save(
        build("add", build("transpose", other, perm=(2, 0, 1)), build("reduce_sum", summed, dims=(0,))), 0
    )
    check(build.custom([x, w, v], (1,), (2,), (5, 4, 5)))


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("rows", [2, 3, 8, 15])
def test_few_rows_that_are_computed_before_a_product(rows: int, flip: bool, dtype: str) -> None:
    """They are repeated up to the 16 rows that a product takes, on either side, and not computed so often."""
    build = Build()
    x, w = tensor((rows, 64), dtype, "x"), tensor((32, 64), dtype, "w")
    whole, part = build.tile(x, (rows, 64), (-1,), (-1,)), build.tile(x, (rows, 32), (-1,), (1,))
    total = build("reduce_sum", build("square", whole), dims=(1,), keepdims=True)
    scaled, weights = build("mul", part, total), build.tile(w, (16, 32), (0,), (1,))
    operands = (weights, scaled) if flip else (scaled, weights)
    product = build.accumulate(build("matmul", *operands, transpose_b=True))
    build.save(product, 0 if flip else 1)
    graph = build.custom([x, w], (2,), (2,), (32, rows) if flip else (rows, 32))
    check(graph, scale=0.3)
    (program,) = (n.body for n in lower(graph).nodes)
    assert isinstance(program, TileProgram)
    axes = Padding(program)
    computed = [
        s.result for s in program.statements() if isinstance(s, Compute) and s.op in ("square", "mul")
    ]
    assert {axes.pad(v, 0) for v in computed} == {power_of_two(rows)}
