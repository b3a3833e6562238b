"""The numeric gate and its tolerance: good lowerings pass, overflowing or inaccurate ones do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from programs import RMSNORM_LINEAR_CUSTOM
from test_emission import FULL_SIZE, matmul_program
from test_interpreter import Build, attention, tensor

from superopt.dialects.reader import read
from superopt.numerics import gate
from superopt.numerics.checking import DISTRIBUTIONS, Input, compare, make_inputs
from superopt.numerics.float_gate import input_specs
from superopt.program import BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.transforms.lower import lower


def softmax_attention(
    heads: int, queries: int, keys: int, width: int, *, subtract: bool, dtype: str
) -> KernelGraph:
    q, k, v = (tensor((heads, e, width), dtype, n) for n, e in (("q", queries), ("k", keys), ("v", keys)))
    build = Build()
    s = build("matmul", q, k, transpose_b=True)
    if subtract:
        s = build("sub", s, build("reduce_max", s, dims=(2,), keepdims=True))
    e = build("exp", s)
    p = build("div", e, build("reduce_sum", e, dims=(2,), keepdims=True))
    return KernelGraph("attention", [q, k, v], build.nodes, [build("matmul", p, v)])


def naive_attention_kernel(
    heads: int, queries: int, keys: int, width: int, loops: int, dtype: str
) -> KernelGraph:
    """The algebraically equal kernel without the maximum, as a search over the Lax fragment finds it."""
    q, k, v = (tensor((heads, e, width), dtype, n) for n, e in (("q", queries), ("k", keys), ("v", keys)))
    build = Build()
    qt = build.tile(q, (1, queries, width), (0,), (-1,))
    kt = build.tile(k, (1, keys // loops, width), (0,), (1,))
    vt = build.tile(v, (1, keys // loops, width), (0,), (1,))
    e = build("exp", build("matmul", qt, kt, transpose_b=True))
    top = build.accumulate(build("matmul", e, vt))
    bottom = build.accumulate(build("reduce_sum", e, dims=(2,), keepdims=True))
    build.save(build("div", top, bottom), 0)
    return build.custom([q, k, v], (heads,), (loops,), (heads, queries, width))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_exp_without_max_does_not_pass(dtype: str) -> None:
    original = softmax_attention(2, 16, 64, 32, subtract=True, dtype=dtype)
    assert gate(original, lower(attention(2, 16, 64, 32, 1, 4, dtype))).passed
    report = gate(original, lower(naive_attention_kernel(2, 16, 64, 32, 4, dtype)))
    assert not report.passed
    assert {r.distribution for r in report.rows if not r.passed} >= {"large"}
    assert next(r for r in report.rows if r.distribution == "ordinary").passed
    assert "not finite" in report.summary


def test_variance_as_a_difference_of_squares_does_not_pass() -> None:
    """E[x^2] - E[x]^2 is the same algebra as E[(x - E[x])^2] and loses it all where the mean is large."""

    def variance(*, stable: bool) -> KernelGraph:
        x = tensor((16, 512), "f32", "x")
        build = Build()
        mean = build("reduce_mean", x, dims=(1,), keepdims=True)
        if stable:
            out = build("reduce_mean", build("square", build("sub", x, mean)), dims=(1,))
        else:
            squares = build("reduce_mean", build("square", x), dims=(1,), keepdims=True)
            out = build("sub", squares, build("square", mean))
        return KernelGraph("variance", [x], build.nodes, [out])

    good = variance(stable=True)
    assert gate(good, lower(good)).passed
    wrong = variance(stable=False)
    wrong.outputs[:] = [Value(TensorType((16,), "f32"))]
    last = wrong.nodes[-1].result
    wrong.nodes.append(Node("reshape", (last,), (wrong.outputs[0],), {"shape": (16,)}))
    report = gate(good, lower(wrong))
    assert {r.distribution for r in report.rows if not r.passed} >= {"offset"}


def test_full_size_gate_is_quick_and_says_what_it_saw() -> None:
    x, w = tensor((16, 4096), name="x"), tensor((4096, 6144), name="w")
    build = Build()
    mean = build("reduce_mean", build("square", x), dims=(1,), keepdims=True)
    plain = KernelGraph(
        "rms", [x, w], build.nodes, [build("matmul", build("mul", x, build("rsqrt", mean)), w)]
    )
    report = gate(plain, lower(read(RMSNORM_LINEAR_CUSTOM)))
    assert report.passed
    assert report.seconds < 20
    assert "two blocks along each dimension of the grids" in report.summary
    assert [r.distribution for r in report.rows] == list(DISTRIBUTIONS)


def test_a_wrong_kernel_does_not_pass() -> None:
    right = matmul_program(16, 128, 256, 2, 4, "gelu")
    assert gate(right, lower(right)).passed
    wrong = matmul_program(16, 128, 256, 2, 4, "gelu")
    body = wrong.nodes[0].body
    assert isinstance(body, BlockGraph)
    node = next(n for n in body.nodes if n.op == "gelu")
    node.op = "silu"
    assert not gate(right, lower(wrong)).passed


def test_weights_are_scaled_by_what_is_contracted() -> None:
    m, n, k, grid, loop = FULL_SIZE["lora"]
    scales = {s.name: s.scale for s in input_specs(matmul_program(m, n, k, grid, loop, "lora"))}
    assert scales == {"x": 1.0, "w": k**-0.5, "a": k**-0.5, "b": 16**-0.5}


def test_inputs_are_seeded_and_differ_by_distribution() -> None:
    specs: Sequence[Input] = [Input("x", (5, 7), "f32"), Input("y", (5, 7), "f32")]
    for name in DISTRIBUTIONS:
        a, b = make_inputs(specs, name, seed=1)
        assert not np.array_equal(a, b)
        assert np.array_equal(a, make_inputs(specs, name, seed=1)[0])
        assert not np.array_equal(a, make_inputs(specs, name, seed=2)[0])


@pytest.mark.parametrize(
    ("off", "passed"), [(0.0, True), (0.001, True), (0.02, False), (np.nan, False), (np.inf, False)]
)
def test_tolerance(off: float, passed: bool) -> None:
    reference = np.linspace(-1, 1, 12).reshape(3, 4)
    candidate = reference.copy()
    candidate[1, 2] += off
    assert compare("d", "o", "f16", candidate, reference, reference.astype(np.float16)).passed is passed


def test_nothing_is_asked_where_the_reference_overflows() -> None:
    reference = np.array([[1.0, 1e6]])
    row = compare("d", "o", "f16", np.array([[1.0, np.inf]]), reference, np.array([[1.0, np.inf]]))
    assert row.passed
    assert row.exempt == 1
    assert not compare(
        "d", "o", "f16", np.array([[np.nan, np.inf]]), reference, np.array([[1.0, np.inf]])
    ).passed


def test_an_operand_is_rounded_unless_all_that_was_stored_there_already_is() -> None:
    """A buffer on chip that held f16 numbers and then sums of them feeds a product that rounds to f16."""
    import numpy as np

    from superopt.program import Buffer, Compute, Load, Store, TensorType, TileProgram, Value, Window
    from superopt.verify.domains import FloatDomain
    from superopt.verify.evaluate_tile import evaluate_tile

    square = TensorType((2, 2), "f16")
    windows = (Window(2), Window(2))
    x, out, held = (
        Buffer(square, "x"),
        Buffer(TensorType((2, 2), "f32"), "out"),
        Buffer(square, "held", "chip"),
    )
    loaded, scaled, again, product = (Value(square) for _ in range(4))
    body = [
        Load(loaded, x, windows),
        Store(held, windows, loaded),
        Compute("mul", (loaded, loaded), scaled),
        Store(held, windows, scaled),
        Load(again, held, windows),
        Compute("matmul", (again, loaded), product, {"transpose_b": False}),
        Store(out, windows, product),
    ]
    program = TileProgram("f", [x, out], 1, [held], list(body))
    domain = FloatDomain(faithful=True)
    value = np.float32(1 + 2**-10)  # an f16, whose square is none
    inputs = np.eye(2, dtype=np.float32) * value
    (found,) = evaluate_tile(program, [domain.tensor(inputs, "f16")], domain)
    rounded = np.float32(np.float16(value * value))
    assert rounded != value * value
    assert found.planes[0][0, 0] == rounded * value
