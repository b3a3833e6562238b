"""Large programs compared piece by piece: what is equal so is equal, and nothing else passes."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
from random_programs import Builder, mutated, random_kernel, rewritten, value

from superopt.program import BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.transforms.lower import lower
from superopt.verify import certifier as certifier_module
from superopt.verify import certify, certify_lowered, lattices, one_point
from superopt.verify.certifier import replay
from superopt.verify.checker import check_certificate
from superopt.verify.fields import FormalField, P, Q
from superopt.verify.pieces import Piece, cut


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORMAL_WORK", "BLOCKS_WORK", "PIECE_WORK"):
        monkeypatch.setattr(certifier_module, name, 1)


def attention_with_projections(*, scale: float = 0.25, normalised: bool = True) -> KernelGraph:
    """softmax(scale X Wq (X Wk)') (X Wv) Wo over 32 rows of 16 features."""
    x, wq, wk, wv, wo = inputs = [value(32, 16), *(value(16, 16) for _ in range(4))]
    f = Builder()
    q, k, v = f("matmul", x, wq), f("matmul", x, wk), f("matmul", x, wv)
    e = f("exp", f("mul", f("matmul", q, k, transpose_b=True), f.constant(scale)))
    o = f("matmul", e, v)
    if normalised:
        o = f("div", o, f("reduce_sum", e, dims=(1,), keepdims=True))
    return KernelGraph("main", inputs, f.nodes, [f("matmul", o, wo)])


@pytest.mark.usefixtures("everything_is_large")
def test_an_attention_block_is_compared_in_pieces() -> None:
    first = attention_with_projections()
    certificate = certify(first, lower(first)).certificate
    assert certificate
    tested = [t for t in certificate.tests if t.piece is not None]
    assert {t.piece for t in tested} == set(range(len(tested)))
    assert len(tested) >= 6, "products, exponential, quotient"
    assert all(t.extents == "reduced" for t in certificate.tests if t.piece is None), "never whole"
    assert "pieces" in "; ".join(certificate.notes)
    assert replay(certificate) == []
    check = check_certificate(certificate.model_dump_json())
    assert check.faults == []


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("other", [{"scale": 0.5}, {"normalised": False}])
def test_other_attention_is_refused(other: dict[str, float | bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is looked at as a whole at reduced extents."""

    def nothing(self: object) -> None:
        return None

    monkeypatch.setattr(certifier_module._Question, "_reduced", nothing)  # pyright: ignore[reportPrivateUsage]
    first = attention_with_projections()
    assert certify(first, lower(first)).equivalent
    wrong = lower(attention_with_projections(**other))  # pyright: ignore[reportArgumentType]
    verdict = certify(first, wrong)
    assert not verdict.equivalent
    assert verdict.counterexample
    verdict, kept = certify_lowered(first, first, wrong)
    assert verdict.equivalent
    assert not kept.equivalent


def _cut(a: KernelGraph, b: KernelGraph, seed: int) -> list[Piece] | None:
    try:
        return cut(a, b, (a, b), seed, (P, Q))
    except ZeroDivisionError:
        return None


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_equal_pieces_make_equal_programs(start: int) -> None:
    divided = equal = refused = 0
    for seed in range(start, start + 50):
        rng = random.Random(seed)
        a = random_kernel(rng)
        for b in (rewritten(a, rng), mutated(a, rng)[0], lower(a)):
            parts = _cut(a, b, seed)
            if parts is None:
                continue
            divided += 1
            same = all(certify(p.first, p.second).equivalent for p in parts)
            equal += same
            if same:
                assert certify(a, b).equivalent, seed
            else:
                refused += 1
    assert divided > 20
    assert equal > 10
    assert refused > 0


@pytest.mark.parametrize(("number", "divided"), [(-1.0, True), (-math.inf, False)])
def test_a_value_that_may_be_infinite_is_no_place_to_cut(number: float, *, divided: bool) -> None:
    """Inputs of pieces are numbers: of what happens to infinities they say nothing."""

    def build(*, swap: bool) -> KernelGraph:
        x, y = inputs = [value(4, 4), value(4, 4)]
        f = Builder()
        low = f("add", x, f.constant(number))
        return KernelGraph("main", inputs, f.nodes, [f("max", y, low) if swap else f("max", low, y)])

    assert (_cut(build(swap=False), build(swap=True), 0) is not None) == divided


@pytest.mark.usefixtures("everything_is_large")
def test_pieces_that_differ_are_not_the_last_word() -> None:
    """z = x y / y is x, and a piece in which z and x are any two numbers has not z / x = x / z."""
    graphs: list[KernelGraph] = []
    for swap in (False, True):
        x, y = inputs = [value(4, 4), value(4, 4)]
        f = Builder()
        z = f("div", f("mul", x, y), y)
        out = f("div", x, z) if swap else f("div", z, x)
        graphs.append(KernelGraph("main", inputs, f.nodes, [f("add", out, y)]))
    parts = _cut(graphs[0], graphs[1], 0)
    assert parts
    assert not all(certify(p.first, p.second).equivalent for p in parts)
    assert certify(graphs[0], graphs[1]).equivalent


def test_the_checker_takes_the_worst_piece() -> None:
    """A bound that only some pieces have is none; one below the worst piece's is a lie."""
    x = value(64, 64)
    f = Builder()
    first = KernelGraph("main", [x], f.nodes, [f("matmul", f("matmul", x, x), x)])
    with pytest.MonkeyPatch.context() as patched:
        for name in ("FORMAL_WORK", "BLOCKS_WORK", "PIECE_WORK"):
            patched.setattr(certifier_module, name, 1)
        certificate = certify(first, lower(first)).certificate
    assert certificate
    data = json.loads(certificate.model_dump_json())
    assert check_certificate(json.dumps(data)).faults == []
    at = data["delta_extents"]
    assert at != "reduced", "the pieces have a bound of their own"
    tests = [t for t in data["tests"] if t["piece"] is not None]
    assert certificate.delta
    assert certificate.delta == max(t["delta"] for t in tests)
    lost = data | {"tests": [t | ({"delta": None} if t is tests[0] else {}) for t in data["tests"]]}
    assert any("delta is claimed" in fault for fault in check_certificate(json.dumps(lost)).faults)
    assert any(
        "delta is claimed" in fault
        for fault in check_certificate(json.dumps(data | {"delta": certificate.delta / 2})).faults
    )


def test_a_kernel_that_makes_a_shared_value_and_another() -> None:
    """The piece after it has the shared one as an input, and the kernel for the other one."""
    x, y = inputs = [value(4, 4), value(4, 4)]
    f = Builder()
    out = f("mul", f("mul", x, y), f("add", x, y))
    first = KernelGraph("main", inputs, f.nodes, [out])

    x, y = inputs = [value(4, 4), value(4, 4)]
    tiles = [Value(TensorType((2, 4), "f32")) for _ in range(6)]
    product, twice = value(4, 4), value(4, 4)
    nodes = [
        Node("iterator", (x,), (tiles[0],), {"imap": (0,), "fmap": ()}),
        Node("iterator", (y,), (tiles[1],), {"imap": (0,), "fmap": ()}),
        Node("mul", (tiles[0], tiles[1]), (tiles[2],)),
        Node("add", (tiles[0], tiles[1]), (tiles[3],)),
        Node("add", (tiles[3], tiles[3]), (tiles[4],)),
        Node("save", (tiles[2],), (), {"omap": (0,)}),
        Node("save", (tiles[4],), (), {"omap": (0,)}),
    ]
    kernel = Node("custom", (x, y), (product, twice), body=BlockGraph((2,), (), inputs, nodes))
    f = Builder()
    out = f("mul", f("mul", product, twice), f.constant(0.5))
    second = KernelGraph("main", inputs, [kernel, *f.nodes], [out])

    parts = _cut(first, second, 0)
    assert parts
    assert product in {v for p in parts for v in p.second.inputs}
    assert all(certify(p.first, p.second).equivalent for p in parts)


def test_pieces_have_a_bound_where_the_whole_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two quotients of sums of exponentials, added: too many terms together, few in each."""

    def few(point: Any, **given: Any) -> FormalField:
        return FormalField(point, **given, cap=4)

    def build(*, swap: bool) -> KernelGraph:
        x, y = inputs = [value(4, 4), value(4, 4)]
        f = Builder()
        parts: list[Value] = []
        for v in (x, y):
            e = f("exp", f("mul", v, v) if swap else f("square", v))
            parts.append(f("div", e, f("reduce_sum", e, dims=(1,), keepdims=True)))
        return KernelGraph("main", inputs, f.nodes, [f("add", *reversed(parts) if swap else parts)])

    first, second = build(swap=False), build(swap=True)
    monkeypatch.setattr(one_point, "FormalField", few)
    certificate = certify(first, second).certificate
    assert certificate
    assert certificate.tests[0].delta is None, "the whole outgrows the terms"
    pieces = [t for t in certificate.tests if t.piece is not None]
    assert len(pieces) > 1
    assert certificate.delta == max(t.delta or 1.0 for t in pieces)
    assert check_certificate(certificate.model_dump_json()).faults == []
    assert replay(certificate) == []
    monkeypatch.setattr(certifier_module, "cut", _nowhere)
    monkeypatch.setattr(certifier_module, "ways_to_reduce", _no_ways)
    alone = certify(first, second).certificate
    assert alone
    assert alone.delta is None


def _nowhere(*_: object, **__: object) -> None:
    return None


def _no_ways(*_: object, **__: object) -> list[tuple[bool, tuple[KernelGraph, KernelGraph]]]:
    return []


@pytest.mark.parametrize("masked", [2, 3])
def test_what_is_undefined_in_a_piece_of_one_text_is_refused(
    masked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A softmax of a row that is masked altogether is 0 / 0, in both programs alike."""
    for name in ("FORMAL_WORK", "BLOCKS_WORK"):
        monkeypatch.setattr(certifier_module, name, 0)
    mask = np.zeros((4, 3))
    mask[1, :masked] = -np.inf

    def attention(scaled_first: bool) -> KernelGraph:
        s, v = inputs = [value(4, 3), value(3, 4)]
        f = Builder()
        a, half = f("constant", value=mask, shape=(4, 3), dtype="f32"), f.constant(0.5)
        e = f("exp", f("add", f("mul", s, half), a) if scaled_first else f("mul", f("add", s, a), half))
        p = f("div", e, f("reduce_sum", e, dims=(1,), keepdims=True))
        return KernelGraph("main", inputs, f.nodes, [f("matmul", p, v)])

    assert certify(attention(True), attention(False)).equivalent == (masked < 3)


def softmaxes(layers: int, *, rescaled: bool) -> KernelGraph:
    """Softmax of softmax; `rescaled` subtracts another number, and divides at the end."""
    x = value(8, 8)
    f = Builder()
    y = x
    for _ in range(layers):
        low = f("reduce_min" if rescaled else "reduce_max", y, dims=(1,), keepdims=True)
        e = f("exp", f("sub", y, low))
        total = f("reduce_sum", e, dims=(1,), keepdims=True)
        y = f("matmul", f("div", e, total), x)
    return KernelGraph("main", [x], f.nodes, [y])


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_what_exponentials_give_is_arbitrary_for_the_next_ones(layers: int) -> None:
    """A field has no exponential of what an exponential gave: the second softmax would look like another one."""
    first, second = softmaxes(layers, rescaled=False), softmaxes(layers, rescaled=True)
    parts = _cut(first, second, 0) if layers > 1 else [Piece(first, second)]
    assert parts
    assert all(certify(p.first, p.second).equivalent for p in parts)
    assert max(sum(n.op == "exp" for n in p.first.nodes) for p in parts) == 1


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("left_out", [False, True])
def test_maxima_of_pieces_are_sets_where_the_whole_has_too_many_numbers(
    monkeypatch: pytest.MonkeyPatch, *, left_out: bool
) -> None:
    """One number of 512 that a maximum leaves out: a random order would seldom tell."""

    def layers(*, leaves_out: bool) -> KernelGraph:
        x = value(2, 512)
        f = Builder()
        y = x
        for layer in range(3):
            taken = y
            if leaves_out and layer == 2:
                taken = f("slice", y, offsets=(0, 0), sizes=(2, 511), strides=(1, 1))
            y = f("add", f("mul", y, y), f("reduce_max", taken, dims=(1,), keepdims=True))
        return KernelGraph("main", [x], f.nodes, [y])

    monkeypatch.setattr(certifier_module, "LATTICE_WORK", 1)
    monkeypatch.setattr(lattices, "MOST_LEAVES", 1500)
    verdict = certify(layers(leaves_out=False), lower(layers(leaves_out=left_out)))
    assert verdict.equivalent != left_out


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("number", [1.0, math.inf])
@pytest.mark.parametrize("most", [5, 20, 1500])
def test_what_is_undefined_in_both_is_found_in_pieces(
    monkeypatch: pytest.MonkeyPatch, most: int, number: float
) -> None:
    """Where the whole has too many numbers to be compared at reduced extents: inf - inf equals nothing."""

    def layers(*, swapped: bool) -> KernelGraph:
        x = value(2, 512)
        f = Builder()
        y = x
        for _ in range(3):
            top, square = f("reduce_max", y, dims=(1,), keepdims=True), f("mul", y, y)
            y = f("add", top, square) if swapped else f("add", square, top)
        more = f("add", x, f.constant(number))
        return KernelGraph("main", [x], f.nodes, [y, f("sub", more, more)])

    monkeypatch.setattr(certifier_module, "LATTICE_WORK", 1)
    monkeypatch.setattr(lattices, "MOST_LEAVES", most)
    assert certify(layers(swapped=False), layers(swapped=True)).equivalent == math.isfinite(number)


def test_a_small_program_is_reduced_where_full_extents_give_no_bound() -> None:
    """A sum of 4,096 exponentials has more terms than are kept formal, though computing it is little work."""
    graphs: list[KernelGraph] = []
    for shift in (False, True):
        (x,) = inputs = [value(1, 4096)]
        f = Builder()
        if shift:
            top = f("reduce_max", x, dims=(1,), keepdims=True)
            shifted = f("exp", f("sub", x, top))
            out = f("add", f("log", f("reduce_sum", shifted, dims=(1,), keepdims=True)), top)
        else:
            out = f("log", f("reduce_sum", f("exp", x), dims=(1,), keepdims=True))
        graphs.append(KernelGraph("main", inputs, f.nodes, [out]))
    certificate = certify(*graphs).certificate
    assert certificate
    assert certificate.delta is not None
    assert certificate.delta_extents == "reduced"
    assert [t.extents for t in certificate.tests] == ["reduced", "full"]
    assert replay(certificate) == []

    wrong = certify(graphs[0], _halved(graphs[1]))
    assert not wrong.equivalent


def test_large_programs_are_reduced_in_the_next_way_where_one_does_not_suit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum over 64 that is divided by 64 is a mean only where that number shrinks with the extent."""
    monkeypatch.setattr(certifier_module, "FORMAL_WORK", 0)
    monkeypatch.setattr(certifier_module, "PIECES_FIRST", 0)
    graphs: list[KernelGraph] = []
    for mean in (True, False):
        (x,) = inputs = [value(64, 64)]
        f = Builder()
        out = f("reduce_mean" if mean else "reduce_sum", f("exp", x), dims=(1,), keepdims=True)
        out = out if mean else f("div", out, f.constant(64.0))
        graphs.append(KernelGraph("main", inputs, f.nodes, [out]))
    certificate = certify(*graphs).certificate
    assert certificate
    assert certificate.delta is not None
    assert certifier_module.REDUCED_NUMBERS in certificate.notes
    assert not certify(graphs[0], _halved(graphs[1])).equivalent


def _halved(graph: KernelGraph) -> KernelGraph:
    half = Builder()
    out = half("mul", graph.outputs[0], half.constant(0.5))
    return KernelGraph("main", graph.inputs, [*graph.nodes, *half.nodes], [out])
