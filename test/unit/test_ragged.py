"""Tiles that reach past the ends of their tensors: what exists, at the block and at the tile level."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from certify_support import program
from interpreter import interpret
from random_programs import Builder, value

from superopt.cost import cost, target
from superopt.diagnostics import Diagnostics
from superopt.dialects import reader, writer
from superopt.errors import IllegalProgram
from superopt.pipeline import Superoptimize, superoptimize
from superopt.program import (
    BlockGraph,
    Bound,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    Statement,
    Store,
    TensorType,
    TileProgram,
    Value,
    Window,
    rebuild_statements,
)
from superopt.spec import check_kernel
from superopt.transforms import optimizers
from superopt.transforms.lower import lower
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.schedule.widths import width_choices
from superopt.verify import certify
from superopt.verify.checker import compare
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.hashing import canonical_text, parse
from superopt.verify.reduce import fewer_blocks, reduce_extents


def up(extent: int, tile: int) -> int:
    return -(-extent // tile)


def attention(rows: int, keys: int, depth: int, row_tile: int, key_tile: int) -> KernelGraph:
    """Online softmax over tiles of keys."""
    q, k, v = value(rows, depth), value(keys, depth), value(keys, depth)
    f = Builder()

    def build(b: Builder, *tensors: Value) -> None:
        def tile(x: Value, shape: tuple[int, ...], imap: int, fmap: int) -> Value:
            return b.raw("iterator", (x,), shape, imap=(imap,), fmap=(fmap,))

        def accumulate(x: Value, top: Value) -> Value:
            return b.raw("accumulate", (x, top), x.shape, kind="rescaled", loop=0)

        qt = tile(tensors[0], (row_tile, depth), 0, -1)
        kt, vt = (tile(x, (key_tile, depth), -1, 0) for x in tensors[1:])
        s = b("matmul", qt, kt, transpose_b=True)
        top = b("reduce_max", s, dims=(1,), keepdims=True)
        top = b.raw("running_max", (top,), top.shape, loop=0)
        p = b("exp", b("sub", s, top))
        total = accumulate(b("reduce_sum", p, dims=(1,), keepdims=True), top)
        b.save(b("div", accumulate(b("matmul", p, vt), top), total), 0)

    grid, loops = (up(rows, row_tile),), (up(keys, key_tile),)
    out = f.custom(grid, loops, [q, k, v], (rows, depth), build)
    return KernelGraph("attention", [q, k, v], f.nodes, [out])


def softmax_of_scores(f: Builder, q: Value, k: Value, v: Value) -> Value:
    s = f("matmul", q, k, transpose_b=True)
    p = f("exp", f("sub", s, f("reduce_max", s, dims=(1,), keepdims=True)))
    return f("div", f("matmul", p, v), f("reduce_sum", p, dims=(1,), keepdims=True))


def plain(rows: int, keys: int, depth: int) -> KernelGraph:
    return program([(rows, depth), (keys, depth), (keys, depth)], softmax_of_scores)


def linear(rows: int, depth: int, cols: int, tiles: tuple[int, int, int], whole: bool = False) -> KernelGraph:
    """`x w`, all three axes in tiles; with `whole`, products are joined before they are summed."""
    x, w = value(rows, depth), value(depth, cols)
    f = Builder()
    a, b_, c = tiles

    def build(b: Builder, xs: Value, ws: Value) -> None:
        xt = b.raw("iterator", (xs,), (a, b_), imap=(0, -1), fmap=(1,))
        wt = b.raw("iterator", (ws,), (b_, c), imap=(-1, 1), fmap=(0,))
        if not whole:
            total = b.raw("accumulate", (b("matmul", xt, wt),), (a, c), kind="sum", loop=0)
        else:  # elementwise sums of unequal trips
            left = b.raw("reshape", (xt,), (a, b_, 1), shape=(a, b_, 1))
            products = b("mul", left, b("broadcast", wt, shape=(a, b_, c)))
            summed = b.raw("accumulate", (products,), (a, b_, c), kind="sum", loop=0)
            total = b("reduce_sum", summed, dims=(1,), keepdims=False)
        b.save(total, 0, 1)

    out = f.custom((up(rows, a), up(cols, c)), (up(depth, b_),), [x, w], (rows, cols), build)
    return KernelGraph("linear", [x, w], f.nodes, [out])


def outputs(graph: KernelGraph, seed: int = 0) -> list[np.ndarray]:
    domain, rng = FloatDomain(), np.random.default_rng(seed)
    inputs = [domain.tensor(rng.normal(size=v.shape)) for v in graph.inputs]
    return [t.planes[0] for t in evaluate(graph, inputs, domain)]


def same(a: KernelGraph, b: KernelGraph) -> bool:
    return all(np.allclose(x, y, rtol=1e-9, atol=1e-12) for x, y in zip(outputs(a), outputs(b), strict=True))


def tiled(graph: KernelGraph) -> TileProgram:
    (body,) = [n.body for n in lower(graph).nodes if isinstance(n.body, TileProgram)]
    return body


def with_body(graph: KernelGraph, body: TileProgram) -> KernelGraph:
    (node,) = graph.nodes
    return replace(graph, nodes=[Node("tiled", node.operands, node.results, {}, node.location, body)])


def changed(graph: KernelGraph, change: Callable[[Compute], Statement | None]) -> KernelGraph:
    """The lowered program with other masks."""
    body = tiled(graph)
    made = rebuild_statements(
        body.body,
        lambda s: ([r] if (r := change(s)) else []) if isinstance(s, Compute) and s.bounds else [s],
    )
    return with_body(graph, replace(body, body=made))


def test_random_extents_and_tiles_mean_the_whole_program() -> None:
    draw = random.Random(0)
    for _ in range(25):
        rows, keys, depth = (draw.randint(1, 20) for _ in range(3))
        made = attention(rows, keys, depth, draw.randint(1, rows), draw.randint(1, keys))
        check_kernel(made)
        assert same(made, plain(rows, keys, depth))
        assert same(lower(made), made)
        a, b, c = (draw.randint(1, n) for n in (rows, depth, keys))
        reference = program([(rows, depth), (depth, keys)], lambda f, x, w: f("matmul", x, w))
        for whole in (False, True):
            product = linear(rows, depth, keys, (a, b, c), whole)
            check_kernel(product)
            assert same(product, reference)
            assert same(lower(product), product)


@pytest.mark.parametrize("extents", [(5, 10, 3, 2, 4), (7, 13, 4, 7, 5), (33, 37, 16, 16, 16)])
def test_certified_emitted_and_checked_independently(extents: tuple[int, int, int, int, int]) -> None:
    made, reference = attention(*extents), plain(*extents[:3])
    lowered = lower(made)
    for other in (made, lowered):
        verdict = certify(reference, other)
        assert verdict.equivalent, verdict.counterexample
        assert compare(canonical_text(reference), canonical_text(other)).different is None
        assert canonical_text(parse(canonical_text(other))) == canonical_text(other)
        assert canonical_text(reader.read(writer.to_text(other))) == canonical_text(other)
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=v.shape).astype(np.float32) for v in made.inputs]
    domain = FloatDomain()
    (expected,) = evaluate(reference, [domain.tensor(x.astype(np.float64)) for x in inputs], domain)
    np.testing.assert_allclose(interpret(made, inputs)[0], expected.planes[0], rtol=1e-4, atol=1e-5)


def test_reduced_programs_have_full_and_ragged_tiles() -> None:
    made, reference = attention(577, 577, 64, 64, 128), plain(577, 577, 64)
    pair = reduce_extents(reference, made)
    assert pair
    (node,) = pair[1].nodes
    assert isinstance(node.body, BlockGraph)
    for axis, trips in ((0, node.body.grid[0]), (1, node.body.loops[0])):
        tile = next(
            n.result.shape[0]
            for n in node.body.nodes
            if n.op == "iterator" and n.attrs[("imap", "fmap")[axis]] == (0,)
        )
        rest = pair[0].inputs[axis].shape[0] - (trips - 1) * tile
        assert trips >= 2
        assert 0 < rest < tile
    fewer = fewer_blocks(reference, made, lower(made))
    assert fewer
    assert [v.shape for v in fewer[0].inputs] == [(129, 64), (577, 64), (577, 64)]
    certificate = certify(reference, made).certificate
    assert certificate
    assert certificate.delta is not None
    assert certificate.delta < 1e-9


FAULTS: dict[str, Callable[[Compute], Statement | None]] = {
    "no fill of the ragged tail": lambda s: replace(s, bounds=(replace(s.bounds[0], extent=10**6),)),
    "one more element than there is": lambda s: replace(s, bounds=(replace(s.bounds[0], extent=s.bounds[0].extent + 1),)),
    "one element less than there is": lambda s: replace(s, bounds=(replace(s.bounds[0], extent=s.bounds[0].extent - 1),)),
    "a full tile masked": lambda s: replace(s, bounds=(replace(s.bounds[0], extent=3),)),
    "zero where minus infinity is neutral": lambda s: replace(s, attrs={"fill": 0.0}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("extents", [(5, 10, 3, 2, 4), (130, 577, 64, 64, 128)], ids=["small", "large"])
def test_a_fault_in_a_mask_is_refused(fault: str, extents: tuple[int, int, int, int, int]) -> None:
    made = attention(*extents)
    wrong = changed(made, FAULTS[fault])
    assert canonical_text(wrong) != canonical_text(with_body(made, tiled(made)))
    assert not certify(made, wrong).equivalent
    if extents[0] == 5:
        found = compare(canonical_text(made), canonical_text(wrong))
        assert found.different is not None or found.undefined


@pytest.mark.parametrize("tail", [True, False], ids=["in the ragged tail", "in full tiles"])
def test_a_fault_of_the_reduced_programs_in_either_kind_of_tile_is_refused(tail: bool) -> None:
    """Elements are doubled only in the last trip, or only in the others."""
    x = value(577, 64)
    good = program([(577, 64)], lambda f, y: f("reduce_sum", y, dims=(0,)))

    def summed(doubled: bool) -> KernelGraph:
        buffers = [
            Buffer(x.type, "x"),
            Buffer(TensorType((64,), "f32"), "o"),
            Buffer(TensorType((64,), "f32"), "acc", "chip"),
        ]
        var = LoopVar("k")
        window = (Window(128, 0, ((var, 1),)), Window(64))

        def v(*shape: int) -> Value:
            return Value(TensorType(shape, "f32"))

        zero, part, old, total, left = (v(64) for _ in range(5))
        tile, masked = v(128, 64), v(128, 64)
        bound = Bound(0, window[0], 577)
        body: list[Statement] = [
            Load(tile, buffers[0], window),
            Compute("mask", (tile,), masked, {"fill": 0.0}, (bound,)),
        ]
        source = masked
        if doubled:  # what a second mask keeps of full tiles, or of the last one, is added once more
            kept = v(128, 64)
            edge = Bound(0, Window(128, 0, ((var, 1),)), 512)
            body += [Compute("mask", (masked,), kept, {"fill": 0.0}, (edge,))]
            more = v(128, 64)
            body += [Compute("add" if not tail else "sub", (masked, kept), more)]
            if tail:
                both = v(128, 64)
                body += [Compute("add", (masked, more), both)]
                more = both
            source = more
        body += [
            Compute("reduce_sum", (source,), part, {"dims": (0,), "keepdims": False}),
            Load(old, buffers[2], (Window(64),)),
            Compute("add", (old, part), total),
            Store(buffers[2], (Window(64),), total),
        ]
        statements: list[Statement] = [
            Compute("constant", (), zero, {"value": 0.0, "shape": (64,), "dtype": "f32"}),
            Store(buffers[2], (Window(64),), zero),
            Loop(var, 0, 577, 128, False, body),
            Load(left, buffers[2], (Window(64),)),
            Store(buffers[1], (Window(64),), left),
        ]
        made = TileProgram("k", buffers[:2], 1, buffers[2:], statements)
        y = value(577, 64)
        node = Node("tiled", (y,), (Value(TensorType((64,), "f32")),), {}, body=made)
        return KernelGraph("main", [y], [node], [node.result])

    assert certify(good, summed(False)).equivalent
    assert not certify(good, summed(True)).equivalent


def block(
    build: Callable[[Builder, Value], None], grid: int, loops: int, shape: tuple[int, ...]
) -> KernelGraph:
    x, f = value(10, 4), Builder()
    out = f.custom((grid,), (loops,), [x], shape, build)
    return KernelGraph("main", [x], f.nodes, [out])


def _saved_beyond(b: Builder, x: Value) -> None:
    b.save(b.raw("iterator", (x,), (4, 4), imap=(0,), fmap=(-1,)), 0)


def _mean(b: Builder, x: Value) -> None:
    tile = b.raw("iterator", (x,), (4, 4), imap=(-1,), fmap=(0,))
    mean = b("reduce_mean", tile, dims=(0,), keepdims=True)
    b.save(b.raw("accumulate", (mean,), (1, 4), kind="sum", loop=0), -1)


def _starts_outside(b: Builder, x: Value) -> None:
    b.save(b.raw("iterator", (x,), (5, 4), imap=(0,), fmap=(-1,)), 0)


def _unlike(b: Builder, x: Value) -> None:
    first = b.raw("iterator", (x,), (4, 4), imap=(0,), fmap=(-1,))
    b.save(b("add", first, b("transpose", first, perm=(1, 0))), 0)


def _sliced(b: Builder, x: Value) -> None:
    tile = b.raw("iterator", (x,), (4, 4), imap=(0,), fmap=(-1,))
    b.save(b("slice", tile, offsets=(0, 0), sizes=(2, 4), strides=(1, 1)), 0)


@pytest.mark.parametrize(
    ("build", "grid", "loops", "shape", "message"),
    [
        (_saved_beyond, 3, 1, (12, 4), "of dimension 0 of 12"),
        (_saved_beyond, 3, 1, (11, 4), "of dimension 0 of 11"),
        (_mean, 1, 3, (1, 4), "a reduction whose elements all exist"),
        (_starts_outside, 3, 1, (10, 4), "each of them starting inside"),
        (_unlike, 3, 1, (10, 4), "expected all of dimension 1 of 4"),
        (_sliced, 3, 1, (10, 4), "whole dimensions of ragged tiles"),
    ],
)  # fmt: skip
def test_what_ragged_blocks_may_not_do(
    build: Callable[[Builder, Value], None], grid: int, loops: int, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(IllegalProgram) as caught:
        check_kernel(block(build, grid, loops, shape))
    assert message in str(caught.value)


def _roots(b: Builder, x: Value) -> None:
    b.save(b("sqrt", b.raw("iterator", (x,), (4, 4), imap=(0,), fmap=(-1,))), 0)


def _roots_cancelled(b: Builder, x: Value) -> None:
    tile = b.raw("iterator", (x,), (4, 4), imap=(0,), fmap=(-1,))
    root = b("sqrt", tile)
    b.save(b("sub", b("add", tile, root), root), 0)


def test_only_elements_that_exist_have_to_be_where_a_function_is_defined() -> None:
    roots = program([(10, 4)], lambda f, x: f("sqrt", x))
    kept = program([(10, 4)], lambda f, x: f("mul", x, f.constant(1.0)))
    made, cancelled = (block(build, 3, 1, (10, 4)) for build in (_roots, _roots_cancelled))
    for form in (made, lower(made)):
        assert certify(roots, form).equivalent
    for form in (cancelled, lower(cancelled)):
        verdict = certify(kept, form)
        assert verdict.counterexample
        assert "the second program takes a root" in verdict.counterexample.reason
    assert certify(cancelled, kept).equivalent


def test_tiles_of_a_norm_behind_a_convolution_may_reach_past_the_channels() -> None:
    """Their reciprocal roots would be those of numbers that may be negative."""

    def build(f: Builder, x: Value, w: Value, v: Value) -> Value:
        attrs = {"strides": (1, 1), "dilations": (1, 1), "low": (1, 1), "high": (1, 1), "groups": 1}
        scale = f("reshape", f("rsqrt", v), shape=(17, 1, 1))
        return f("mul", f("conv", x, w, **attrs), scale)

    graph = program([(1, 3, 5, 5), (17, 3, 3, 3), (17,)], build)
    assert certify(graph, lower(graph)).equivalent


def shifted(guarded: bool, fill: float = 0.0) -> KernelGraph:
    """y[i] = x[i - 2] + x[i + 3], zero outside, in tiles of 4 of 10."""
    x, y = (Buffer(TensorType((10,), "f32"), n) for n in "xy")
    var = LoopVar("i")

    def v() -> Value:
        return Value(TensorType((4,), "f32"))

    parts: list[Value] = []
    body: list[Statement] = []
    for base in (-2, 3):
        window = Window(4, base, ((var, 1),))
        parts.append(v())
        body.append(Load(parts[-1], x, (window,)))
        if guarded:
            masked = v()
            body.append(Compute("mask", (parts[-1],), masked, {"fill": fill}, (Bound(0, window, 10),)))
            parts[-1] = masked
    total = v()
    body += [Compute("add", tuple(parts), total), Store(y, (Window(4, 0, ((var, 1),)),), total)]
    made = TileProgram("k", [x, y], 1, [], [Loop(var, 0, 10, 4, True, body)])
    a = value(10)
    node = Node("tiled", (a,), (Value(TensorType((10,), "f32")),), {}, body=made)
    return KernelGraph("main", [a], [node], [node.result])


def test_guarded_loads_may_start_outside() -> None:
    graph = shifted(True)
    check_kernel(graph)
    x = np.arange(1.0, 11.0)
    domain = FloatDomain()
    (found,) = evaluate(graph, [domain.tensor(x)], domain)
    padded = np.pad(x, (2, 3))
    expected = padded[:10] + padded[5:15]
    np.testing.assert_array_equal(found.planes[0], expected)
    np.testing.assert_array_equal(interpret(graph, [x.astype(np.float32)])[0], expected)
    by_parts = program([(10,)], _by_parts)
    assert certify(by_parts, graph).equivalent
    assert not certify(by_parts, shifted(True, 1.0)).equivalent
    assert compare(canonical_text(by_parts), canonical_text(graph)).different is None
    with pytest.raises(IllegalProgram, match="windows that start within extent 10"):
        check_kernel(shifted(False))


def _by_parts(f: Builder, x: Value) -> Value:
    def cut(start: int, size: int) -> Value:
        return f("slice", x, offsets=(start,), sizes=(size,), strides=(1,))

    left = f("concat", f.constant(0.0, (2,)), cut(0, 8), dim=0)
    right = f("concat", cut(3, 7), f.constant(0.0, (3,)), dim=0)
    return f("add", left, right)


def _along_two(b: Bound) -> Bound:
    return replace(b, dim=2)


def _narrower(b: Bound) -> Bound:
    return replace(b, window=Window(3))


def _of_nothing(b: Bound) -> Bound:
    return replace(b, extent=0)


def _by_another_loop(b: Bound) -> Bound:
    return replace(b, window=replace(b.window, terms=((LoopVar("j"), 1),)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_along_two, "bounds of distinct dimensions"),
        (_narrower, "a window of 4 elements"),
        (_of_nothing, "a positive extent"),
        (_by_another_loop, "the variable of an enclosing loop"),
    ],
)
def test_bounds_are_checked(change: Callable[[Bound], Bound], message: str) -> None:
    made = attention(5, 10, 4, 2, 4)
    wrong = changed(made, lambda s: replace(s, bounds=(change(s.bounds[0]),)))
    with pytest.raises(IllegalProgram) as caught:
        check_kernel(wrong)
    assert message in str(caught.value)


# --- what optimizers make of it ---------------------------------------------------------------------------


# Those that take programs without convolutions.
TAKERS = [n for n in optimizers.names() if not optimizers.load(n).refusal(KernelGraph("none", [], [], []))]


@pytest.mark.parametrize("optimizer", TAKERS)
@pytest.mark.parametrize("extents", [(577, 577, 64), (7, 197, 33)])
def test_optimizers_fuse_attention_of_any_extents(optimizer: str, extents: tuple[int, int, int]) -> None:
    graph = plain(*extents)
    found = optimizers.load(optimizer).propose(graph, target("sm_90"), budget=10)
    assert found.found, found.remark
    best = found.found[0].graph
    assert min(len(cost(g, target("sm_90")).kernels) for g in found.graphs) == 1
    assert found.found[0].seconds < 0.5 * cost(graph, target("sm_90")).seconds
    assert same(best, graph)
    assert same(lower(best), graph)


@pytest.mark.parametrize("optimizer", TAKERS)
def test_a_prime_extent_costs_what_its_neighbour_does(optimizer: str) -> None:
    def norm(columns: int) -> float:
        graph = program(
            [(16, 512), (512, columns)],
            lambda f, x, w: f(
                "matmul",
                f("div", x, f("sqrt", f("reduce_mean", f("square", x), dims=(1,), keepdims=True))),
                w,
            ),
        )
        return optimizers.load(optimizer).propose(graph, target("sm_90"), budget=10).found[0].seconds

    assert norm(8191) <= 1.05 * norm(8192)
    assert norm(50257) <= 1.05 * norm(50304)


def test_the_search_and_the_model_price_ragged_kernels_alike() -> None:
    f, inputs = Builder(), [value(8, rows, 64, dtype="f16") for rows in (197, 577, 577)]
    graph = KernelGraph("attention", inputs, f.nodes, [softmax_of_batched_scores(f, *inputs)])
    for proposal in search_plans(graph, target("sm_90"), budget=10).found:
        assert proposal.seconds == pytest.approx(cost(proposal.graph, target("sm_90")).seconds, rel=1e-6)


def softmax_of_batched_scores(f: Builder, q: Value, k: Value, v: Value) -> Value:
    s = f("matmul", q, k, transpose_b=True)
    p = f("exp", f("sub", s, f("reduce_max", s, dims=(2,), keepdims=True)))
    return f("div", f("matmul", p, v), f("reduce_sum", p, dims=(2,), keepdims=True))


def test_extents_that_divide_are_tiled_as_before() -> None:
    for extent in (16, 48, 80, 256, 576, 4096, 6144, 11008):
        assert all(extent % w == 0 for w in width_choices(extent)), extent


def test_rows_and_columns_that_no_product_takes_have_tiles_of_their_own() -> None:
    """The sums of 512 long rows: a block for each row, which takes its columns in a few trips."""
    x = value(512, 50257)
    f = Builder()
    total = f("reduce_sum", f("exp", x), dims=(1,))
    best = optimizers.load("saturation").propose(
        KernelGraph("sums", [x], f.nodes, [total]), target("sm_90"), budget=10
    )
    (node,) = best.found[0].graph.nodes
    assert isinstance(node.body, TileProgram)
    rows, columns = [s for s in node.body.statements() if isinstance(s, Loop)]
    assert (rows.trips, rows.parallel) == (512, True)
    assert columns.trips < 50257 // 256
    assert width_choices(50257, (512, 8)) == [50257, 8, 16, 32, 64, 128, 256, 512]
    assert width_choices(1024, (512, 8)) == [8, 16, 32, 64, 128, 256, 512]
    assert width_choices(24, (8,)) == [24]
    # 125 trips of the widest that divides: wider ones reach past the end.
    assert width_choices(32000, (512, 4096)) == [16, 32, 64, 128, 256, 512, 4096]
    assert width_choices(16 * 256, (512, 4096))[-1] == 4096
    assert width_choices(15 * 256, (512, 4096))[-1] == 256


def _updated(f: Builder, x: Value) -> Value:
    part = f("slice", x, offsets=(0, 0), sizes=(8, 3), strides=(1, 1))
    return f("exp", f("update_slice", x, part, dim=1, offset=2))


def _viewed(f: Builder, x: Value) -> Value:
    return f("reshape", x, shape=(80,))


def _turned(f: Builder, x: Value) -> Value:
    return f("transpose", x, perm=(1, 0))


def _repeated(f: Builder, x: Value) -> Value:
    return f("exp", f("repeat", x, dim=1, times=3))


SILENT: dict[str, tuple[str, Callable[[Builder, Value], Value], str]] = {
    "what cannot be expressed": ("mugraph", _updated, "update_slice"),
    "only views": ("mugraph", _viewed, "nothing to compute"),
    "only moves": ("mugraph", _turned, "'transpose' only moves"),
    "no tile loop": ("saturation", _repeated, "'repeat'"),
}


@pytest.mark.parametrize("case", SILENT)
def test_an_optimizer_that_proposes_nothing_says_why(case: str) -> None:
    optimizer, build, reason = SILENT[case]
    graph = program([(8, 10)], build)
    found = optimizers.load(optimizer).propose(graph, target("sm_90"), budget=5)
    assert not found.found
    assert reason in found.remark
    assert found.complete == (case in ("only views", "only moves"))
    diagnostics = Diagnostics()
    made = superoptimize(
        graph, Superoptimize(budget=5.0, store=None, numerics=False, optimizers=(optimizer,)), diagnostics
    )
    said = [m for m in diagnostics.messages if "proposes nothing" in m.message]
    assert [reason in m.message for m in said] == [True]
    assert any(f"{optimizer} proposes nothing for the whole program" in r for r in made.report.remarks)
