"""Large programs: smaller extents, where every boundary stays, and a few blocks of each grid."""

from __future__ import annotations

from typing import Any

import pytest
from certify_support import nothing_shrinks, program
from random_programs import Builder, value

from superopt.program import BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.verify import certifier as certifier_module
from superopt.verify import certify, one_point
from superopt.verify.certifier import replay
from superopt.verify.fields import FormalField
from superopt.verify.hashing import canonical_text, parse
from superopt.verify.reduce import reduce_extents, work


def _gated(f: Builder, x: Value, w: Value, v: Value) -> Value:
    return f("mul", f("silu", f("matmul", x, w)), f("matmul", x, v))


def _gated_otherwise(f: Builder, x: Value, w: Value, v: Value) -> Value:
    h, g = f("matmul", x, w), f("matmul", x, v)
    e = f("exp", h)
    return f("div", f("mul", f("mul", g, h), e), f("add", e, f.constant(1.0)))


LARGE = [(8, 512), (512, 384), (512, 384)]


def test_large_programs_are_tested_at_both_extents() -> None:
    certificate = certify(program(LARGE, _gated), program(LARGE, _gated_otherwise)).certificate
    assert certificate
    assert [(t.kind, t.extents) for t in certificate.tests] == [("formal", "reduced"), ("image", "full")]
    assert certificate.tests[0].inputs == [(2, 2), (2, 2), (2, 2)]
    assert (certificate.delta_extents, certificate.guarantee) == ("reduced", "bound")


def test_a_constant_may_stand_for_an_extent(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = [(4, 4096)]
    first = program(shape, lambda f, x: f("reduce_mean", x, dims=(1,)))

    def by(count: float, times: float = 1.0, op: str = "div") -> KernelGraph:
        return program(
            shape,
            lambda f, x: f(
                op, f("reduce_sum", f("mul", x, f.constant(times)), dims=(1,)), f.constant(count, (1,))
            ),
        )

    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 1000)
    for right in (by(4096.0), by(2.0**-12, op="mul")):
        certificate = certify(first, right).certificate
        assert certificate
        # All extents reduced they differ; with the number reduced too they do not.
        assert [t.extents for t in certificate.tests] == ["reduced", "full"]
        assert "numbers that a mean divides by were reduced with its extent" in certificate.notes
        assert certificate.delta is not None
        assert certificate.delta < 1e-9
        assert not replay(certificate)
    # Right at the reduced extents, wrong at the full ones; right where 4096 is 2, but not where it is not.
    for wrong in (by(2.0), by(4096.0, times=2.0), by(4095.0), by(4096.0, op="mul")):
        assert not certify(first, wrong).equivalent
    by_other = certify(first, by(4096.0 * 64, times=64.0)).certificate
    assert by_other
    assert [t.extents for t in by_other.tests] == ["full"]


def test_reduction_keeps_every_boundary() -> None:
    plain = program([(64, 512), (512, 384)], lambda f, x, w: f("matmul", x, w))

    def tiled(f: Builder, x: Value, w: Value) -> Value:
        def region(b: Builder, p: Value, q: Value) -> None:
            left = b.raw("iterator", [p], (16, 32), imap=(0, -1), fmap=(1,))
            right = b.raw("iterator", [q], (32, 64), imap=(-1, 1), fmap=(0,))
            part = b("matmul", left, right)
            b.save(b.raw("accumulate", [part], part.shape, kind="sum", loop=0), 0, 1)

        return f.custom((4, 6), (16,), [x, w], (64, 384), region)

    block = program([(64, 512), (512, 384)], tiled)
    pair = reduce_extents(plain, block)
    assert pair
    body: Any = pair[1].nodes[0].body
    assert (body.grid, body.loops) == ((2, 2), (2,))
    assert [v.shape for v in pair[0].inputs] == [(4, 4), (4, 4)]
    assert work(pair[1]) < work(block) / 1000
    assert certify(plain, block).equivalent


def test_reduction_through_views() -> None:
    def views(f: Builder, x: Value) -> Value:
        heads = f("transpose", f("reshape", x, shape=(16, 8, 64)), perm=(1, 0, 2))
        halves = [f("slice", heads, offsets=(0, 0, o), sizes=(8, 16, 32), strides=(1, 1, 1)) for o in (0, 32)]
        turned = f("concat", f("neg", halves[1]), halves[0], dim=2)
        return f("repeat", turned, dim=0, times=3)

    graph = program([(16, 512)], views)
    pair = reduce_extents(graph, parse(canonical_text(graph)))
    assert pair
    assert pair[0].inputs[0].shape == (2, 8)  # 16; 8 heads; 2 halves, fixed; 32
    assert pair[0].outputs[0].shape == (4, 2, 4)


def test_slices_keep_their_place() -> None:
    """The last of four blocks, which only exists where there are four."""
    graph = program([(128, 6)], lambda f, x: f("slice", x, offsets=(96, 0), sizes=(32, 6), strides=(1, 1)))
    pair = reduce_extents(graph, parse(canonical_text(graph)))
    assert pair
    assert pair[0].inputs[0].shape == (8, 2)
    assert pair[0].nodes[0].attrs["offsets"] == (6, 0)
    assert pair[0].nodes[0].attrs["sizes"] == (2, 2)


def test_cuts_that_cross_are_kept_and_what_lies_around_them_is_reduced() -> None:
    """Rows of 5 and of 6 meet after 30 elements: two such parts of ten remain."""

    def cut(rows: int) -> KernelGraph:
        return program(
            [(60, 5)], lambda f, x: f("reshape", f("reshape", x, shape=(rows, 300 // rows)), shape=(300,))
        )

    pair = reduce_extents(cut(60), cut(50))
    assert pair
    assert [graph.inputs[0].shape for graph in pair] == [(12, 5), (12, 5)]
    assert [graph.nodes[0].result.shape for graph in pair] == [(12, 5), (10, 6)]
    assert certify(*pair).equivalent


def mean_of_products(divisor: float, *, cut: int) -> KernelGraph:
    """X W summed over 256 columns and divided by a number, by `cut` blocks of rows."""
    inputs = [value(64, 256), value(256, 16)]
    rows = 64 // cut
    tiles = [
        Value(TensorType(shape, "f32")) for shape in [(rows, 256), (256, 16), (rows, 16), (), (rows, 16)]
    ]
    result = Value(TensorType((64, 16), "f32"))
    nodes = [
        Node("iterator", (inputs[0],), (tiles[0],), {"imap": (0,), "fmap": ()}),
        Node("iterator", (inputs[1],), (tiles[1],), {"imap": (-1,), "fmap": ()}),
        Node("matmul", (tiles[0], tiles[1]), (tiles[2],), {"transpose_b": False}),
        Node("constant", (), (tiles[3],), {"value": divisor, "shape": (), "dtype": "f32"}),
        Node("div", (tiles[2], tiles[3]), (tiles[4],)),
        Node("save", (tiles[4],), (), {"omap": (0,)}),
    ]
    body = BlockGraph((cut,), (), inputs, nodes)
    return KernelGraph("main", inputs, [Node("custom", tuple(inputs), (result,), body=body)], [result])


def plain_mean_of_products(divisor: float) -> KernelGraph:
    def build(f: Builder, x: Value, w: Value) -> Value:
        return f("div", f("matmul", x, w), f.constant(divisor))

    return program([(64, 256), (256, 16)], build)


@pytest.mark.parametrize("limit", ["BLOCKS_WORK", "BLOCKS_ELEMENTS"])
def test_a_large_program_is_compared_on_a_few_of_its_blocks(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    monkeypatch.setattr(certifier_module, limit, 1)
    verdict = certify(plain_mean_of_products(256.0), mean_of_products(256.0, cut=16))
    assert verdict.certificate is not None
    last = verdict.certificate.tests[-1]
    assert (last.extents, last.inputs) == ("blocks", [(8, 256), (256, 16)])  # sums keep their extent
    assert "two blocks a grid dimension" in verdict.certificate.summary
    assert not replay(verdict.certificate)


def test_sums_stay_whole_on_a_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean is a division by the extent of its sum: where that shrank, the wrong number would be right."""
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    monkeypatch.setattr(certifier_module, "BLOCKS_WORK", 1)
    nothing_shrinks(monkeypatch)

    def mean(f: Builder, x: Value) -> Value:
        return f("reduce_mean", x, dims=(1,), keepdims=True)

    for divisor, right in ((256.0, True), (2.0, False), (255.0, False)):
        verdict = certify(program([(64, 256)], mean), blockwise_mean(divisor))
        assert verdict.equivalent == right
        tested = verdict.certificate.tests[-1] if verdict.certificate else verdict.counterexample
        assert tested is not None
        assert (tested.extents, tested.inputs) == ("blocks", [(8, 256)])


def test_of_library_operators_alone_some_elements_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they reduce, and divide by, is as long as ever."""
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    monkeypatch.setattr(certifier_module, "BLOCKS_WORK", 1)
    nothing_shrinks(monkeypatch)

    def mean(f: Builder, x: Value, w: Value) -> Value:
        return f("reduce_mean", f("matmul", x, w), dims=(1,), keepdims=True)

    for divisor, right in ((64.0, True), (2.0, False), (63.0, False)):

        def otherwise(f: Builder, x: Value, w: Value, divisor: float = divisor) -> Value:
            total = f("reduce_sum", w, dims=(1,), keepdims=True)
            return f("div", f("matmul", x, total), f.constant(divisor))

        verdict = certify(program([(32, 256), (256, 64)], mean), program([(32, 256), (256, 64)], otherwise))
        assert verdict.equivalent == right
        tested = verdict.certificate.tests[-1] if verdict.certificate else verdict.counterexample
        assert tested is not None
        assert (tested.extents, tested.inputs) == ("blocks", [(2, 256), (256, 64)])


def masked_sum(
    target: str, made: tuple[int, ...] = (1, 2048), *, product: bool, other: bool = False
) -> KernelGraph:
    """Exponentials of those of x that one of two masks, converted by an opaque operation, keeps, summed by rows."""
    f = Builder()
    x = value(64, 2048)
    masks = [Value(TensorType((1, 2048), "i1")) for _ in range(2)]
    kept = f.raw("extern", [masks[other]], made, target=target, reason="an input that is not a float")
    kept = f("reshape", kept, shape=(1, 2048))
    terms = f("exp", x)
    if product:
        total = f("matmul", terms, kept, transpose_b=True)
    else:
        total = f("reduce_sum", f("mul", terms, kept), dims=(1,), keepdims=True)
    return KernelGraph("main", [x, *masks], f.nodes, [total])


@pytest.mark.parametrize("target", ["aten.to.dtype", "arith.uitofp"])
def test_programs_are_reduced_through_conversions_of_inputs(target: str) -> None:
    first, second = (masked_sum(target, product=product) for product in (False, True))
    certificate = certify(first, second).certificate
    assert certificate
    assert [t.inputs for t in certificate.tests if t.kind == "formal"] == [[(2, 2), (1, 2), (1, 2)]]
    assert certificate.delta is not None
    assert certificate.delta <= 1e-9
    assert not replay(certificate)
    pair = reduce_extents(first, masked_sum(target, product=True, other=True))
    assert pair
    assert not certify(*pair).equivalent  # by another mask


@pytest.mark.parametrize(
    ("target", "made"),
    [
        ("aten.cumsum.default", (1, 2048)),
        ("aten.flip.default", (1, 2048)),
        ("aten.argsort.default", (1, 2048)),
        ("aten.to.dtype", (2048, 1)),
    ],
)
def test_programs_are_not_reduced_through_other_opaque_operations(target: str, made: tuple[int, ...]) -> None:
    """What one does at an index may depend on the extent, or on all other indices."""
    pair = reduce_extents(*(masked_sum(target, made, product=product) for product in (False, True)))
    assert pair
    for graph in pair:
        assert [v.shape for v in graph.inputs] == [(2, 2048), (1, 2048), (1, 2)]
    conversion = masked_sum("aten.to.dtype", product=False)
    conversion.nodes[0].operands = (
        conversion.inputs[1],
        conversion.inputs[2],
    )  # nobody says how it reads two
    pair = reduce_extents(conversion, conversion)
    assert pair
    assert pair[0].inputs[1].shape == (1, 2048)


def blockwise_mean(divisor: float) -> KernelGraph:
    """The rows' sums divided by a number, by 16 blocks of rows."""
    (x,) = inputs = [value(64, 256)]
    tile, total, number, mean = (Value(TensorType(shape, "f32")) for shape in [(4, 256), (4, 1), (), (4, 1)])
    result = Value(TensorType((64, 1), "f32"))
    nodes = [
        Node("iterator", (x,), (tile,), {"imap": (0,), "fmap": ()}),
        Node("reduce_sum", (tile,), (total,), {"dims": (1,), "keepdims": True}),
        Node("constant", (), (number,), {"value": divisor, "shape": (), "dtype": "f32"}),
        Node("div", (total, number), (mean,)),
        Node("save", (mean,), (), {"omap": (0,)}),
    ]
    body = BlockGraph((16,), (), inputs, nodes)
    return KernelGraph("main", inputs, [Node("custom", (x,), (result,), body=body)], [result])


def test_too_many_exponentials_leave_the_test_at_full_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    def formal(point: Any, **given: Any) -> FormalField:
        return FormalField(point, **given, work=5)

    monkeypatch.setattr(one_point, "FormalField", formal)
    first, second = program(LARGE, _gated), program(LARGE, _gated_otherwise)
    certificate = certify(first, second).certificate
    assert certificate
    assert [(t.kind, t.extents) for t in certificate.tests] == [("image", "full")]
    assert certificate.delta is None
    assert "too many exponentials" in " ".join(certificate.notes)
    wrong = program(LARGE, lambda f, x, w, v: f("neg", _gated(f, x, w, v)))
    assert not certify(first, wrong).equivalent
