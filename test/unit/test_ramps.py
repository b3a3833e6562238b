"""Ramps: whole numbers that count along a dimension, which kernels compute instead of loading them."""

from __future__ import annotations

import random
from dataclasses import asdict

import numpy as np
import pytest
from certify_support import program
from interpreter import interpret
from random_programs import Builder, value
from test_ragged import up
from test_ttir import compiled

from superopt.computed import computed_values, recognized
from superopt.cost import target
from superopt.dialects import reader, writer
from superopt.errors import IllegalProgram
from superopt.numerics.cpu import run
from superopt.program import UNBOUNDED, KernelGraph, Ramp, TileProgram, Value
from superopt.transforms import optimizers
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.reduce import reduce_extents
from superopt.verify.ttir import verify_ttir

CLASSES = Ramp(-1, 0, 1)


def picked(b: Builder, x: Value, label: Value, number: Value) -> Value:
    """x where the number of the class is the label, else 0."""
    off = b("square", b("sub", number, label))
    return b("select", b("sub", b.constant(1.0), off), x, other=0.0)


def plain(rows: int, classes: int, ramp: Ramp = CLASSES) -> KernelGraph:
    def build(f: Builder, x: Value, label: Value) -> Value:
        number = f("ramp", **asdict(ramp), shape=(1, classes), dtype="f32")
        return f("reduce_sum", picked(f, x, label, number), dims=(1,), keepdims=True)

    return program([(rows, classes), (rows, 1)], build)


def fused(
    rows: int, classes: int, tiles: tuple[int, int], ramp: Ramp = CLASSES, *, viewed: bool = False
) -> KernelGraph:
    """The same as one kernel with a loop over classes; `viewed`, the ramp is a reshape of a column."""
    x, label, f, (height, width) = value(rows, classes), value(rows, 1), Builder(), tiles
    if viewed:
        column = f("ramp", along=-2, start=ramp.start, step=ramp.step, shape=(classes, 1), dtype="f32")
        number = f("reshape", column, shape=(1, classes))
    else:
        number = f("ramp", **asdict(ramp), shape=(1, classes), dtype="f32")

    def build(b: Builder, *tensors: Value) -> None:
        def tile(x: Value, shape: tuple[int, int], imap: int, fmap: int) -> Value:
            return b.raw("iterator", (x,), shape, imap=(imap,), fmap=(fmap,))

        xt, at = tile(tensors[0], (height, width), 0, 1), tile(tensors[1], (height, 1), 0, -1)
        found = picked(b, xt, at, tile(tensors[2], (1, width), -1, 1))
        total = b("reduce_sum", found, dims=(1,), keepdims=True)
        b.save(b.raw("accumulate", (total,), total.shape, kind="sum", loop=0), 0)

    out = f.custom((up(rows, height),), (up(classes, width),), [x, label, number], (rows, 1), build)
    return KernelGraph("picked", [x, label], f.nodes, [out])


def test_what_is_recognized_has_the_same_elements() -> None:
    drawn = random.Random(0)
    found = 0
    for _ in range(300):
        along = drawn.randint(-3, -1)
        ramp = Ramp(along, drawn.randint(-9, 9), drawn.randint(-3, 3))
        shape = [1, 1, 1]
        shape[along] = drawn.randint(1, 6)
        array = ramp.elements(shape).copy()
        if drawn.random() < 0.5:
            array.flat[drawn.randrange(array.size)] += 1
        made = recognized(array)
        found += made is not None
        assert made is None or np.array_equal(made.elements(shape), array)
    assert found > 50


def test_others_are_no_ramps() -> None:
    line = np.arange(5.0)
    for other in (
        np.zeros(5),
        line[:2],
        line / 2,
        line + 0.5,
        line * 2**23,  # not whole in f32
        np.where(line == 3, np.nan, line),
        np.arange(10.0).reshape(2, 5),
        np.broadcast_to(line, (2, 5)),
    ):
        assert not isinstance(recognized(other), Ramp)
    assert recognized(line[None]) == Ramp(-1, 0, 1)
    assert recognized(7 - 2 * line[:, None]) == Ramp(-2, 7, -2)


@pytest.mark.parametrize("viewed", [False, True])
@pytest.mark.parametrize("ramp", [CLASSES, Ramp(-1, 5, -2)])
@pytest.mark.parametrize(("rows", "classes", "tiles"), [(8, 64, (4, 16)), (7, 53, (4, 16)), (3, 16, (1, 16))])
def test_kernels_compute_ramps(
    rows: int, classes: int, tiles: tuple[int, int], ramp: Ramp, viewed: bool
) -> None:
    pytest.importorskip("triton")
    graph = fused(rows, classes, tiles, ramp, viewed=viewed)
    drawn = np.random.default_rng(0)
    numbers = ramp.elements((1, classes))[0]
    at = drawn.integers(0, classes, rows)
    arrays = [
        drawn.standard_normal((rows, classes)).astype(np.float32),
        numbers[at][:, None].astype(np.float32),
    ]
    expected = arrays[0][np.arange(rows), at][:, None]
    emitted = emit_program(lower(graph))
    assert not emitted.constants
    assert [p.role for p in emitted.kernels[0].parameters] == ["input", "input", "output"]
    for made in (interpret(graph, arrays), run(lower(graph), arrays)):
        np.testing.assert_array_equal(made[0], expected)
    assert certify(plain(rows, classes, ramp), graph).equivalent
    lowered, texts = compiled(graph)
    assert verify_ttir(graph, lowered, texts).end_to_end


@pytest.mark.parametrize("other", [Ramp(-1, 1, 1), Ramp(-1, 0, 2), Ramp(-1, 0, -1)])
def test_another_ramp_is_another_program(other: Ramp) -> None:
    kernel = fused(8, 64, (4, 16))
    assert certify(plain(8, 64), kernel).equivalent
    assert not certify(plain(8, 64, other), kernel).equivalent
    assert not certify(plain(8, 64), fused(8, 64, (4, 16), other)).equivalent


def test_the_extent_of_a_ramp_stays_where_numbers_decide() -> None:
    """Compared with a number, a ramp of fewer elements may be on one side of it everywhere."""

    def build(f: Builder, x: Value) -> Value:
        number = f("ramp", **asdict(CLASSES), shape=(1, 64), dtype="f32")
        return f("select", f("sub", f.constant(48.0), number), x, other=0.0)

    masked, whole = (
        program([(8, 64)], build),
        program([(8, 64)], lambda f, x: f("select", f.constant(1.0, (1, 64)), x, other=0.0)),
    )
    assert not certify(masked, whole).equivalent
    pair = reduce_extents(masked, masked)
    assert pair is None or pair[0].inputs[0].shape[1] == 64


def test_a_ramp_of_many_classes_is_proved() -> None:
    assert certify(plain(16, 32768), fused(16, 32768, (1, 4096))).equivalent


def test_text_keeps_ramps() -> None:
    for graph in (fused(8, 64, (4, 16)), lower(fused(8, 64, (4, 16)))):
        again = reader.read(writer.to_text(graph))
        assert list(computed_values(again).values()) == [CLASSES]
        tiled = [p for n in again.nodes if isinstance(n.body, TileProgram) for p in n.body.params]
        assert [p.computed for p in tiled if p.computed] == [CLASSES] * bool(tiled)


def test_the_dimension_of_a_ramp_is_one_of_its_own() -> None:
    for along in (0, -3):
        with pytest.raises(IllegalProgram, match="'ramp' expected a dimension from -1, the last, to -2"):
            Builder()("ramp", along=along, start=0, step=1, shape=(2, 3), dtype="f32")


def test_saturation_takes_constants_of_many_numbers() -> None:
    """As inputs, which are constants again in the kernels: a ramp and a band are computed, a table is loaded."""
    table = np.random.default_rng(0).normal(size=(1, 512)).astype(np.float32)

    def build(f: Builder, x: Value, label: Value) -> Value:
        number = f("ramp", **asdict(CLASSES), shape=(1, 512), dtype="f32")
        band = f("band", lower=0, upper=UNBOUNDED, inside=1.0, outside=0.5, shape=(128, 512), dtype="f32")
        held = f("constant", value=table, shape=table.shape, dtype="f32")
        found = picked(f, f("mul", f("add", x, held), band), label, number)
        return f("reduce_sum", found, dims=(1,), keepdims=True)

    source = program([(128, 512), (128, 1)], build)
    best = optimizers.load("saturation").propose(source, target("sm_90"), budget=10).found[0].graph
    (node,) = [n for n in best.nodes if isinstance(n.body, TileProgram)]
    assert isinstance(node.body, TileProgram)
    assert sorted(type(b.computed).__name__ for b in node.body.params) == ["Band", "NoneType"] + [
        "NoneType"
    ] * 3 + ["Ramp"]
    assert best.inputs == source.inputs
    assert certify(source, best).equivalent
    rng = np.random.default_rng(1)
    x, label = (
        rng.normal(size=(128, 512)).astype(np.float32),
        rng.integers(0, 512, (128, 1)).astype(np.float32),
    )
    scaled = (x + table) * np.where(np.arange(512) >= np.arange(128)[:, None], 1.0, 0.5)
    expected = np.where(np.arange(512) == label, scaled, 0).sum(1, keepdims=True)
    np.testing.assert_allclose(run(lower(best), [x, label])[0], expected, rtol=1e-5, atol=1e-5)
