"""The numeric gate and its tolerance: good lowerings pass, overflowing or inaccurate ones do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from programs import RMSNORM_LINEAR_CUSTOM
from search_programs import Program
from test_emission import FULL_SIZE, matmul_program
from test_interpreter import Build, attention, tensor

from superopt.dialects.reader import read
from superopt.numerics import checking, cpu, float_gate, gate
from superopt.numerics.checking import DISTRIBUTIONS, Input, compare, make_inputs
from superopt.numerics.float_gate import input_specs
from superopt.program import Attr, BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.transforms.lower import lower
from superopt.verify.domains import FloatDomain, round_to


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


def _mlp(width: int, hidden: int) -> KernelGraph:
    """Two products, the second one summing over what the first one's grid goes over: no blocks to leave out."""
    x, w, v = (
        tensor((16, width), name="x"),
        tensor((width, hidden), name="w"),
        tensor((hidden, width), name="v"),
    )
    build = Build()
    h = build("matmul", build("div", x, build("reduce_mean", x, dims=(1,), keepdims=True)), w)
    return KernelGraph("mlp", [x, w, v], build.nodes, [build("matmul", h, v)])


def test_sums_are_whole_on_ordinary_inputs_and_shorter_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _mlp(512, 2048)
    monkeypatch.setattr(float_gate, "WHOLE_WORK", 3_000_000)
    seen: dict[str, list[tuple[int, ...]]] = {}

    def inputs(specs: Sequence[Input], name: str, seed: int, mildness: int) -> list[np.ndarray]:
        seen[name] = [s.shape for s in specs]
        return make_inputs(specs, name, seed, mildness)

    monkeypatch.setattr(checking, "make_inputs", inputs)
    report = gate(graph, lower(graph))
    assert report.passed
    assert "sums whole on 'ordinary' inputs, at most" in report.summary
    assert seen["ordinary"][1:] == [(512, 2048), (2048, seen["ordinary"][2][1])]
    for name in set(DISTRIBUTIONS) - {"ordinary"}:
        x, w, _ = seen[name]
        assert w[1] < 2048
        assert x[1] == w[0] == 512  # what a mean divides by stays


def test_a_shorter_sum_is_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong program fails on the inputs of shorter sums too."""
    monkeypatch.setattr(float_gate, "WHOLE_WORK", 3_000_000)
    right, wrong = _mlp(512, 2048), _mlp(512, 2048)
    last = wrong.nodes[-1].result
    build = Build()
    for _ in range(4):  # what cancels is near nothing: twice that is within the tolerance in 6 of 100 draws
        last = build("add", last, last)
    wrong.nodes += build.nodes
    wrong.outputs[:] = [last]
    report = gate(right, lower(wrong))
    assert {r.distribution for r in report.rows if not r.passed} == set(DISTRIBUTIONS)


def test_inputs_are_drawn_by_programs_and_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who wrote a program knows what it will be tried on; with the nonce of a report it is tried again."""
    original = softmax_attention(2, 16, 64, 32, subtract=True, dtype="f16")
    lowered, other = lower(original), lower(attention(2, 16, 64, 32, 1, 4, "f16"))
    seeds: list[int] = []

    def inputs(specs: Sequence[Input], name: str, seed: int, mildness: int) -> list[np.ndarray]:
        seeds.append(seed)
        return make_inputs(specs, name, seed, mildness)

    monkeypatch.setattr(checking, "make_inputs", inputs)
    first = gate(original, lowered, distributions=["ordinary"])
    again = gate(original, lowered, distributions=["ordinary"], nonce=first.nonce)
    assert again.rows == first.rows
    assert first.nonce in first.summary
    gate(original, lowered, distributions=["ordinary"])
    gate(original, other, distributions=["ordinary"], nonce=first.nonce)
    gate(other, lowered, distributions=["ordinary"], nonce=first.nonce)
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 4


def _pointwise(op: str, **attrs: Attr) -> KernelGraph:
    x = tensor((16, 64), "f32", "x")
    build = Build()
    made = build("reduce_sum", build(op, x, **attrs), dims=(1,))
    return KernelGraph("f", [x], build.nodes, [made])


def test_a_distribution_without_a_finite_number_is_no_pass() -> None:
    """Of a sum of logarithms of ordinary numbers nothing is finite: their absolute values are taken, too."""
    logarithms = _pointwise("log")
    report = gate(logarithms, lower(logarithms))
    assert report.passed
    assert all(r.compared == 2 for r in report.rows)
    assert "ordinary (2)" in report.summary
    wrong = _pointwise("exp")
    assert not any(r.passed for r in gate(logarithms, lower(wrong)).rows)
    never = KernelGraph("f", logarithms.inputs, list(logarithms.nodes), list(logarithms.outputs))
    build = Build()
    undefined = build(
        "log",
        build(
            "sub",
            build("neg", build("square", never.outputs[0])),
            build("constant", value=1.0, shape=(16,), dtype="f32"),
        ),
    )
    never.nodes += build.nodes
    never.outputs[:] = [undefined]
    nothing = gate(never, lower(never))
    assert not nothing.passed
    assert "nothing compared" in nothing.summary
    assert "NOTHING COMPARED" in str(nothing)


def _scan(before: str, after: str, target: str = "aten.cumsum.default") -> KernelGraph:
    """Something opaque between two operators."""
    x = tensor((8, 32), "f32", "x")
    build = Build()
    y = build(before, x)
    z = Value(y.type, "z")
    attrs: dict[str, Attr] = {"target": target, "reason": "a scan", "args": '[{"tensor": 0}, 1]'}
    build.nodes.append(Node("extern", (y,), (z,), attrs))
    return KernelGraph("scan", [x], build.nodes, [build(after, z)])


@pytest.mark.parametrize("target", ["aten.cumsum.default", "aten.nobody_has_this.default"])
def test_programs_with_opaque_operations_are_compared(target: str) -> None:
    """What comes before an opaque operation and what comes after it; one that PyTorch lacks is stood in for."""
    pytest.importorskip("torch")
    right = _scan("tanh", "square", target)
    report = gate(right, lower(right))
    assert report.passed
    assert all(r.compared for r in report.rows)
    assert {r.output for r in report.rows} == {"out0", f"operand 0 of {target}"}
    for before, after in (("sigmoid", "square"), ("tanh", "neg")):
        assert not gate(right, lower(_scan(before, after, target))).passed


def test_blocks_are_enough_of_a_program_that_converts_an_input() -> None:
    """A conversion is executed at other extents, too; a running sum is not."""
    pytest.importorskip("torch")

    def program(target: str, args: str, op: str = "tanh") -> KernelGraph:
        x, mask, build = tensor((512, 64), "f32", "x"), tensor((512, 64), "i1", "mask"), Build()
        kept = Value(x.type)
        attrs: dict[str, Attr] = {"target": target, "reason": "", "args": args}
        build.nodes.append(Node("extern", (mask,), (kept,), attrs))
        return KernelGraph("main", [x, mask], build.nodes, [build("mul", build(op, x), kept)])

    conversion = "aten.to.dtype", '[{"tensor": 0}, {"torch": "float32"}, false, false, null]'
    right = program(*conversion)
    report = gate(right, lower(right))
    assert report.passed
    assert report.blocks == "two blocks along each dimension of the grids"
    assert not gate(right, lower(program(*conversion, op="sigmoid"))).passed
    scan = program("aten.cumsum.default", '[{"tensor": 0}, 0]')
    assert gate(scan, lower(scan)).blocks == "all blocks"


def test_two_equal_opaque_operations_may_come_in_another_order() -> None:
    pytest.importorskip("torch")

    def program(*, turned: bool) -> KernelGraph:
        x = tensor((8, 32), "f32", "x")
        build = Build()
        made: list[Value] = []
        for op in ("tanh", "square"):
            y = build(op, x)
            made.append(Value(y.type))
            attrs: dict[str, Attr] = {
                "target": "aten.cumsum.default",
                "reason": "",
                "args": '[{"tensor": 0}, 1]',
            }
            build.nodes.append(Node("extern", (y,), (made[-1],), attrs))
        nodes = [*build.nodes[2:], *build.nodes[:2]] if turned else build.nodes
        build.nodes[:] = nodes
        return KernelGraph("two", [x], build.nodes, [build("sub", *made)])

    assert gate(program(turned=False), lower(program(turned=True))).passed


def test_equal_opaque_operations_may_have_operands_of_other_extents() -> None:
    """Lookups of embeddings in two tables, which are given after others."""
    pytest.importorskip("torch")

    def program(*, turned: bool) -> KernelGraph:
        inputs = [tensor((n, 32), "f32", f"x{n}") for n in (2, 64)]
        build, made = Build(), dict[int, Value]()
        for x in reversed(inputs) if turned else inputs:
            y = build("reduce_sum", build("tanh", x), dims=(1,), keepdims=True)
            z = Value(y.type)
            attrs: dict[str, Attr] = {
                "target": "aten.cumsum.default",
                "reason": "",
                "args": '[{"tensor": 0}, 0]',
            }
            build.nodes.append(Node("extern", (y,), (z,), attrs))
            made[x.shape[0]] = z
        return KernelGraph("two", inputs, build.nodes, [build("square", made[n]) for n in (2, 64)])

    assert gate(program(turned=False), lower(program(turned=True))).passed


def test_the_tolerance_is_the_same_whoever_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's model of rounding and PyTorch's, of one program on the same inputs, large means included."""
    torch: Any = pytest.importorskip("torch")
    from superopt.numerics.rounding import RoundingModel
    from superopt.numerics.runner import Program
    from superopt.transforms.emit.reference_source import reference_source

    x, w = tensor((32, 256), "f32", "x"), tensor((256, 64), "f32", "w")
    build = Build()
    d = build("sub", x, build("reduce_mean", x, dims=(1,), keepdims=True))
    scale = build("rsqrt", build("reduce_mean", build("square", d), dims=(1,), keepdims=True))
    graph = KernelGraph("norm", [x, w], build.nodes, [build("matmul", build("mul", d, scale), w)])
    scope: dict[str, Any] = {}
    exec(reference_source(graph, {}), scope)
    runner = Program.__new__(Program)
    runner.torch, runner.checking, runner.dtypes = torch, checking, {"f32": torch.float32}
    for name in DISTRIBUTIONS:
        inputs = make_inputs(input_specs(graph), name, seed=5)
        exact, model = (float_gate.run(graph, inputs, d)[0] for d in (FloatDomain(), RoundingModel()))
        tensors = [torch.from_numpy(i) for i in inputs]
        runner.drawn = 0
        (same,) = scope["run"](*tensors, rounded=runner.modelled, constants={}, externs={})
        mine, theirs = (compare(name, "o", "f32", exact + 1e-3, exact, m) for m in (model, same.numpy()))
        assert mine.tolerance == pytest.approx(theirs.tolerance, rel=0.02)


def test_large_operands_are_converted_in_parts() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 8, 700), (2, 700, 900)))
    domain = FloatDomain()
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    for x, y, want in ((a, b, expected), (b.swapaxes(1, 2), a.swapaxes(1, 2), expected.swapaxes(1, 2))):
        (found,) = domain.contract(domain.tensor(x, "f32"), domain.tensor(y, "f32")).planes
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, want, rtol=1e-13, atol=1e-12)
    (total,) = domain.apply("add", domain.tensor(a, "f32"), domain.constant(2.0**-40)).planes
    assert (total != a.astype(np.float64)).all()


def test_rounding_large_arrays_is_rounding_their_parts() -> None:
    x = np.random.default_rng(0).standard_normal((3, 300_000)).astype(np.float32)
    for dtype in ("f16", "bf16", "f32"):
        parts = np.stack([round_to(row[:200_000], dtype) for row in x])
        np.testing.assert_array_equal(round_to(x, dtype)[:, :200_000], parts)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_single_numbers_have_no_dimension(dtype: str) -> None:
    """The mean of all elements by a number: inputs and outputs of rank 0, in the gate and on the CPU."""
    p = Program("mean", dtype)
    x, by = p.input(3, 5, name="x"), p.input(name="by")
    graph = p.graph(p("mul", p("reduce_mean", x, dims=(0, 1)), by))
    assert gate(graph, lower(graph)).passed
    (found,) = cpu.run(lower(graph), [np.ones((3, 5)), np.array(1.5)])
    assert found.shape == ()
    assert found == 1.5


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
    skipped = compare(
        "d", "o", "f16", np.array([[np.nan, 1.0]]), np.array([[np.nan, 1.0]]), np.array([[0.0, 1.0]])
    )
    assert (skipped.error, skipped.compared) == (0.0, 1), "what is exempt is not the worst"
    assert not compare(
        "d", "o", "f16", np.array([[np.nan, np.inf]]), reference, np.array([[1.0, np.inf]])
    ).passed


def test_an_operand_is_rounded_unless_all_that_was_stored_there_already_is() -> None:
    """A buffer on chip that held f16 numbers and then sums of them feeds a product that rounds to f16."""
    import numpy as np

    from superopt.program import Buffer, Compute, Load, Store, TensorType, TileProgram, Value, Window
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
