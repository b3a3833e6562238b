"""Tile programs with other tiles, and the points of a program: legal, proved, the same numbers, none from a list."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import numpy as np
import pytest
from programs import ATTENTION_ONLINE, RMSNORM_LINEAR_CUSTOM
from test_interpreter import Build, queries_of_all_heads, tensor

from superopt import cost
from superopt.cost.features import NAMES
from superopt.dialects.reader import read
from superopt.errors import IllegalProgram
from superopt.measure.space import Space, matrix_flops
from superopt.program import Attr, Compute, KernelGraph, Node, TileProgram, Value
from superopt.spec import check_kernel
from superopt.transforms.lower import lower
from superopt.transforms.schedule.retile import CannotRetile, Tiling
from superopt.verify import certify
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate

H100 = cost.target("sm_90")


def tile_body(graph: KernelGraph, index: int = 0) -> TileProgram:
    return [n.body for n in graph.nodes if isinstance(n.body, TileProgram)][index]


def with_body(graph: KernelGraph, body: TileProgram) -> KernelGraph:
    nodes = [dataclasses.replace(n, body=body) if isinstance(n.body, TileProgram) else n for n in graph.nodes]
    return KernelGraph(graph.name, graph.inputs, nodes, graph.outputs)


def matmul(m: int, n: int, k: int, dtype: str = "f16", **attrs: Attr) -> KernelGraph:
    a, b = tensor((m, k), dtype, "a"), tensor((n, k) if attrs.get("transpose_b") else (k, n), dtype, "b")
    build = Build()
    out = build("matmul", a, b, **attrs)
    return KernelGraph("f", [a, b], build.nodes, [out])


def softmax_linear(rows: int, inner: int, columns: int) -> KernelGraph:
    x, w = tensor((rows, inner), "f32", "x"), tensor((inner, columns), "f32", "w")
    build = Build()
    top = build("reduce_max", x, dims=(1,), keepdims=True)
    e = build("exp", build("sub", x, top))
    p = build("div", e, build("reduce_sum", e, dims=(1,), keepdims=True))
    return KernelGraph("g", [x, w], build.nodes, [build("matmul", p, w)])


def test_parameters_follow_from_the_loops() -> None:
    lowered = lower(read(RMSNORM_LINEAR_CUSTOM))
    tiling = Tiling(tile_body(lowered))
    found = {p.name: (p.extent, p.total, p.parallel, p.smallest) for p in tiling.parameters.values()}
    assert found == {"x": (64, 6144, True, 16), "k": (64, 4096, False, 16)}
    assert tiling.parameters["k"].choices() == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    with pytest.raises(CannotRetile, match="expected parameters of x, k, got 'y'"):
        tiling.apply({"y": 2})
    with pytest.raises(CannotRetile, match=r"expected 'k' in 1\.\.4096, got 8192"):
        tiling.apply({"k": 8192})
    with pytest.raises(CannotRetile, match="divide"):
        tiling.apply({"x": 80})


def test_what_a_reshape_merges_follows_the_dimension_that_a_loop_cuts() -> None:
    graph = queries_of_all_heads(7, 64, 64, 16, 2, 4)
    body = tile_body(lower(graph))
    tiling = Tiling(body)
    found = {p.name: (p.extent, p.total, p.smallest) for p in tiling.parameters.values()}
    assert found == {"x": (32, 64, 3), "k": (16, 64, 16)}  # 7 heads with 3 queries each are 16 rows
    for extents in ({"x": 4}, {"x": 64, "k": 32}):
        moved = with_body(lower(graph), tiling.apply(extents))
        check_kernel(moved)
        assert certify(graph, moved).equivalent
    shapes = {s.result.shape for s in tiling.apply({"x": 4}).statements() if isinstance(s, Compute)}
    assert (28, 16) in shapes
    assert (7, 4, 16) in shapes


def test_the_tiles_that_are_there_change_nothing() -> None:
    body = tile_body(lower(read(RMSNORM_LINEAR_CUSTOM)))
    tiling = Tiling(body)
    same = tiling.apply({p.name: p.extent for p in tiling.parameters.values()})
    from superopt.transforms.emit.triton_source import emit_kernel

    assert emit_kernel(same).source == emit_kernel(body).source


def small_programs() -> list[KernelGraph]:
    return [
        matmul(64, 96, 128), matmul(64, 64, 256, transpose_b=True), matmul(32, 48, 64, "f32"),
        softmax_linear(32, 64, 32), read(ATTENTION_ONLINE),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(5))
def test_every_tiling_that_is_proved_computes_the_same_numbers(number: int) -> None:
    """Random tilings of every kernel of small programs: proved ones agree with the program in fp64."""
    graph = small_programs()[number]
    lowered = lower(graph)
    draw = random.Random(number)
    domain = FloatDomain()
    rng = np.random.default_rng(number)
    inputs = [domain.tensor(rng.standard_normal(v.shape)) for v in graph.inputs]
    expected = [t.planes[0] for t in evaluate(graph, inputs, domain)]
    proved = 0
    kernels = [i for i, n in enumerate(lowered.nodes) if isinstance(n.body, TileProgram)]
    for index in kernels:
        node = lowered.nodes[index]
        assert isinstance(node.body, TileProgram)
        tiling = Tiling(node.body)
        names = list(tiling.parameters)
        space = list(itertools.product(*(tiling.parameters[n].choices() for n in names)))
        for extents in draw.sample(space, min(4, len(space))):
            nodes = list(lowered.nodes)
            try:
                nodes[index] = dataclasses.replace(
                    node, body=tiling.apply(dict(zip(names, extents, strict=True)))
                )
                changed = KernelGraph(lowered.name, lowered.inputs, nodes, lowered.outputs)
                check_kernel(changed)
            except (CannotRetile, IllegalProgram):
                continue
            if not certify(graph, changed).equivalent:
                continue
            proved += 1
            got = [t.planes[0] for t in evaluate(changed, inputs, domain)]
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    assert proved >= 3


def test_a_mean_within_a_tile_is_refused_by_the_proof_not_by_the_tiling() -> None:
    """mean over a tile, added up and divided by the trips: right for four trips of 16, wrong for two of 32."""
    text = """
    func.func @f(%x: tensor<16x64xf32>) -> tensor<16x1xf32> {
      %o = "superopt.custom"(%x) ({
      ^bb0(%a: tensor<16x64xf32>):
        %xt = "block.iterator"(%a) {imap = array<i64: -1>, fmap = array<i64: 1>} : (tensor<16x64xf32>) -> tensor<16x16xf32>
        %m = "block.reduce_mean"(%xt) {dims = array<i64: 1>, keepdims = true} : (tensor<16x16xf32>) -> tensor<16x1xf32>
        %s = "block.accumulate"(%m) {kind = "sum", loop = 0} : (tensor<16x1xf32>) -> tensor<16x1xf32>
        %c = "block.constant"() {value = 4.0 : f64} : () -> tensor<f32>
        %y = "block.div"(%s, %c) : (tensor<16x1xf32>, tensor<f32>) -> tensor<16x1xf32>
        "block.save"(%y) {omap = array<i64: -1>} : (tensor<16x1xf32>) -> ()
      }) {grid = array<i64: 1>, loops = array<i64: 4>} : (tensor<16x64xf32>) -> tensor<16x1xf32>
      return %o : tensor<16x1xf32>
    }
    """
    lowered = lower(read(text))
    x = tensor((16, 64), "f32", "x")
    build = Build()
    graph = KernelGraph("f", [x], build.nodes, [build("reduce_mean", x, dims=(1,), keepdims=True)])
    tiling = Tiling(tile_body(lowered))
    assert certify(graph, lowered).equivalent
    changed = with_body(lowered, tiling.apply({"k": 32}))
    check_kernel(changed)
    assert not certify(graph, changed).equivalent
    points = Space(graph, changed, H100).points(2, 60, cost.Model())
    assert {p.parameters["k"] for p in points} == {
        16
    }  # from the wrong tile, the space leads back to the right one


def test_points_are_compiled_filtered_and_proved() -> None:
    graph = matmul(64, 128, 256)
    space = Space(graph, lower(graph), H100)
    points = space.points(4, 120, cost.Model())
    assert len(points) == 4
    assert len({tuple(p.parameters.items()) for p in points}) == 4
    assert points == sorted(points, key=lambda p: p.predicted_seconds)
    for p in points:
        assert {"warps", "stages", "hints", "descriptors", "separate"} < set(p.parameters)
        assert ("_desc.load" in p.emitted.kernels_source) == bool(p.parameters["descriptors"])
        assert ("eviction_policy" in p.emitted.kernels_source) == bool(p.parameters["hints"])
        assert p.proof["guarantee"]
        assert p.proof["ttir"] == "verified"
        assert all(k.spill_bytes == 0 and k.shared_bytes <= H100.shared_per_block for k in p.compiled)
        assert p.matrix_flops == matrix_flops(p.lowered) == 2 * 64 * 128 * 256
        assert set(p.features) == set(NAMES)
        again = space.at(p.parameters)
        assert again is not None
        assert cost.cost(again, H100).seconds == cost.cost(p.lowered, H100).seconds
    last = points[-1].parameters
    (first, *_) = space.points(1, 60, cost.Model(), known=last)
    assert (first.parameters, first.known) == (last, True)
    assert space.at({"nothing": 3}) is None
    assert space.at({**last, "warps": 512}) is None


def test_cache_hints_follow_from_the_windows() -> None:
    from superopt.dialects.writer import to_text
    from superopt.transforms.emit.triton_source import emit_kernel
    from superopt.verify import program_hash

    lowered = lower(read(RMSNORM_LINEAR_CUSTOM))
    hinted = with_body(lowered, dataclasses.replace(tile_body(lowered), cache_hints=True))
    source = emit_kernel(tile_body(hinted)).source
    loads = [line for line in source.splitlines() if "tl.load" in line]
    assert len(loads) == 2
    assert 'tl.load(x_ptrs, eviction_policy="evict_last")' in loads[0]  # X: every block reads all of it
    assert 'tl.load(w_ptrs, eviction_policy="evict_first")' in loads[1]  # W: one block, in one trip
    assert tile_body(read(to_text(hinted))).cache_hints
    assert program_hash(hinted) != program_hash(lowered)
    assert certify(lowered, hinted).equivalent


def test_nothing_that_is_not_the_program_becomes_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, other = matmul(32, 32, 32), matmul(32, 32, 32)
    build = Build()
    doubled = build("add", other.outputs[0], other.outputs[0])
    wrong = KernelGraph("f", other.inputs, [*other.nodes, *build.nodes], [doubled])
    space = Space(graph, lower(wrong), H100)
    assert space.points(2, 60, cost.Model()) == []
    assert space.funnel["rejected: not proved"] >= 1


# --- attention -----------------------------------------------------------------------------------------------


def attention(
    m: int = 16, n: int = 64, d: int = 16, *, scale: float = 1.0, safe: bool = True, late: bool = False,
    columns: bool = False, wide: bool = False, groups: int = 1,
) -> KernelGraph:  # fmt: skip
    """Attention of two heads of keys; `wide`: softmax in f32, `groups`: query heads for each of them."""
    q, v = tensor((2 * groups, m, d), "f16", "q"), tensor((2, n, d), "f16", "v")
    k = tensor((2, d, n) if columns else (2, n, d), "f16", "k")
    build = Build()

    def repeated(x: Value) -> Value:
        if groups == 1:
            return x
        heads, *rest = x.shape
        x = build("broadcast", build("reshape", x, shape=(heads, 1, *rest)), shape=(heads, groups, *rest))
        return build("reshape", x, shape=(heads * groups, *rest))

    def cast(x: Value, dtype: str) -> Value:
        return build("cast", x, dtype=dtype) if wide else x

    keys, values = repeated(k), repeated(v)
    s = build("matmul", q, keys) if columns else build("matmul", q, keys, transpose_b=True)
    if scale != 1.0:
        s = build("mul", s, build("constant", value=scale, shape=(), dtype="f16"))
    s = cast(s, "f32")
    if safe:
        s = build("sub", s, build("reduce_max", s, dims=(2,), keepdims=True))
    e = build("exp", s)
    total = build("reduce_sum", e, dims=(2,), keepdims=True)
    if late:
        out = build("div", build("matmul", cast(e, "f16"), values), cast(total, "f16"))
    else:
        out = build("matmul", cast(build("div", e, total), "f16"), values)
    return KernelGraph("attention", [q, k, v], build.nodes, [out])


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("columns", [True, False])
def test_grouped_keys_are_asked_for_once(late: bool, columns: bool) -> None:
    from superopt.measure import attention as module

    graph = attention(m=8, late=late, columns=columns, wide=True, groups=4)
    (match,) = module.find(graph)
    assert match.sizes == (2, 32, 64, 16)
    assert [v.name for v in (match.q, match.k, match.v)] == ["q", "k", "v"]
    assert [n.op for n in module.replaced(graph, match).nodes] == ["extern"]


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("columns", [True, False])
def test_attention_is_found_however_it_is_written(safe: bool, late: bool, columns: bool) -> None:
    from superopt.measure import attention as module

    graph = attention(scale=0.25, safe=safe, late=late, columns=columns)
    (match,) = module.find(graph)
    assert match.sizes == (2, 16, 64, 16)
    assert (match.scale, match.k_transposed) == (0.25, columns)
    assert [v.name for v in (match.q, match.k, match.v)] == ["q", "k", "v"]
    changed = module.replaced(graph, match)
    assert [n.op for n in changed.nodes] == ["extern"]
    check_kernel(changed)


def test_what_is_not_attention_is_not_found() -> None:
    from superopt.measure import attention as module

    assert module.find(matmul(16, 16, 16)) == []
    graph = attention()
    weights = next(n.result for n in graph.nodes if n.op == "exp")
    leaky = KernelGraph("f", graph.inputs, graph.nodes, [*graph.outputs, weights])
    assert module.find(leaky) == []
    other = attention(safe=False)
    sums = next(n for n in other.nodes if n.op == "reduce_sum")
    sums.attrs["dims"] = (1,)
    assert module.find(other) == []


@pytest.mark.parametrize("name", ["flash_attention", "split_kv", "sdpa"])
def test_the_implementations_compute_attention(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each baseline's own source, in Triton's interpreter, at two shapes, against fp64; in a process of its own."""
    pytest.importorskip("torch")
    import subprocess
    import sys

    from superopt.measure import attention as module
    from superopt.measure import baselines

    for number, columns in enumerate((False, True)):
        (match,) = module.find(attention(m=24, n=96, d=16, scale=0.25, columns=columns))
        constants: dict[str, Any] = {"SCALE": 0.25, "K_TRANSPOSED": columns}
        if name != "sdpa":
            heads, m, n, d = match.sizes
            stride, inner = (1, n) if columns else (d, 1)
            constants = {
                "HEADS": heads, "M": m, "N": n, "D": d, "K_STRIDE": stride, "K_INNER": inner, "SCALE": 0.25,
                "BLOCK_M": 16, "BLOCK_N": 32 if name == "flash_attention" else 16, "WARPS": 1, "STAGES": 1,
            }  # fmt: skip
            if name == "split_kv":
                constants["SPLITS"] = 2
        (tmp_path / f"implementation{number}.py").write_text(baselines.source(name, constants))
    program = f"""
import sys, torch
sys.path.insert(0, {str(tmp_path)!r})
for number in (0, 1):
    run = __import__(f"implementation{{number}}").attention
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, s, 16).half() for s in (24, 96, 96))
    want = torch.softmax(q.double() @ k.double().mT * 0.25, -1) @ v.double()
    got = run(q, k.mT.contiguous() if number else k, v)
    assert got.shape == want.shape and got.dtype == torch.float16
    assert (got.double() - want).abs().max() < 2e-3, (got.double() - want).abs().max()
"""
    import os

    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["flash_attention", "split_kv"])
def test_the_hand_written_kernels_are_tuned_like_ours(name: str) -> None:
    from collections import Counter

    from superopt.measure import attention as module
    from superopt.measure import baselines

    (match,) = module.find(attention(m=16, n=1024, d=64))
    points = baselines.tuned_points(name, match, H100, 3, Counter())
    assert len(points) == 3
    seconds = [s for _, s, _ in points]
    assert seconds == sorted(seconds)
    assert all(p["BLOCK_M"] >= 16 and f["registers"] > 0 for p, _, f in points)


def test_values_of_a_graph_stay_as_they_were() -> None:
    graph = attention()
    before = [(n.op, dict(n.attrs)) for n in graph.nodes]
    from superopt.measure import attention as module

    module.replaced(graph, module.find(graph)[0])
    assert [(n.op, dict(n.attrs)) for n in graph.nodes] == before
    assert all(isinstance(n, Node) and all(isinstance(v, Value) for v in n.results) for n in graph.nodes)
