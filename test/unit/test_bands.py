"""Bands: masks by column - row alone, and loops that stop where one hides the rest."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest
from certify_support import program
from interpreter import interpret
from random_programs import Builder, value
from test_ragged import up
from test_ttir import compiled

from superopt import hidden_trips
from superopt.bands import recognized
from superopt.cost import target
from superopt.cost.model import node_traffic
from superopt.dialects import reader, writer
from superopt.errors import IllegalProgram, NotEquivalent
from superopt.program import UNBOUNDED, Band, KernelGraph, Load, Loop, Store, TileProgram, Value
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.reduce import fewer_blocks, reduce_extents
from superopt.verify.ttir import verify_ttir

CAUSAL = Band(-UNBOUNDED, 0, 0.0, -math.inf)


def masked(b: Builder, rows: int, keys: int, band: Band, dtype: str = "f32") -> Value:
    return b("band", **asdict(band), shape=(rows, keys), dtype=dtype)


def plain(rows: int, keys: int, depth: int, band: Band = CAUSAL) -> KernelGraph:
    """softmax(q k^T + band) v, as operators."""

    def build(f: Builder, q: Value, k: Value, v: Value) -> Value:
        s = f("add", f("matmul", q, k, transpose_b=True), masked(f, rows, keys, band))
        p = f("exp", f("sub", s, f("reduce_max", s, dims=(1,), keepdims=True)))
        return f("div", f("matmul", p, v), f("reduce_sum", p, dims=(1,), keepdims=True))

    return program([(rows, depth), (keys, depth), (keys, depth)], build)


Change = Callable[[Builder, Value], Value]


def fused(
    rows: int,
    keys: int,
    depth: int,
    tiles: tuple[int, int],
    band: Band = CAUSAL,
    change: Change | None = None,
) -> KernelGraph:
    """The same as one kernel with a running maximum; `change` is made to the exponentials' sum of each trip."""
    q, k, v = value(rows, depth), value(keys, depth), value(keys, depth)
    f, (height, width) = Builder(), tiles
    mask = masked(f, rows, keys, band)

    def build(b: Builder, *tensors: Value) -> None:
        def tile(x: Value, shape: tuple[int, ...], imap: int, fmap: int) -> Value:
            return b.raw("iterator", (x,), shape, imap=(imap,), fmap=(fmap,))

        def accumulate(x: Value, top: Value) -> Value:
            return b.raw("accumulate", (x, top), x.shape, kind="rescaled", loop=0)

        qt = tile(tensors[0], (height, depth), 0, -1)
        kt, vt = (tile(x, (width, depth), -1, 0) for x in tensors[1:3])
        s = b("add", b("matmul", qt, kt, transpose_b=True), tile(tensors[3], (height, width), 0, 1))
        top = b("reduce_max", s, dims=(1,), keepdims=True)
        top = b.raw("running_max", (top,), top.shape, loop=0)
        p = b("exp", b("sub", s, top))
        summed = b("reduce_sum", p, dims=(1,), keepdims=True)
        total = accumulate(summed if change is None else change(b, summed), top)
        b.save(b("div", accumulate(b("matmul", p, vt), top), total), 0)

    grid, loops = (up(rows, height),), (up(keys, width),)
    out = f.custom(grid, loops, [q, k, v, mask], (rows, depth), build)
    return KernelGraph("attention", [q, k, v], f.nodes, [out])


def tile_program(graph: KernelGraph) -> TileProgram:
    (found,) = (n.body for n in lower(graph).nodes if isinstance(n.body, TileProgram))
    return found


def reference(arrays: list[np.ndarray], band: Band) -> np.ndarray:
    q, k, v = (a.astype(np.float64) for a in arrays)
    s = q @ k.T + band.elements((len(q), len(k)))
    p = np.exp(s - s.max(1, keepdims=True))
    return p @ v / p.sum(1, keepdims=True)


# --- recognition ------------------------------------------------------------------------------------------


def test_what_is_recognized_has_the_same_elements() -> None:
    drawn = random.Random(0)
    found = 0
    for _ in range(300):
        shape = (drawn.randint(1, 8), drawn.randint(1, 8))
        band = Band(drawn.randint(-9, 9), drawn.randint(-9, 9), 0.0, -math.inf)
        array = band.elements(shape).copy()
        if drawn.random() < 0.5:
            array[drawn.randrange(shape[0]), drawn.randrange(shape[1])] = drawn.choice([0.0, 1.0])
        made = recognized(array)
        found += made is not None
        assert made is None or np.array_equal(made.elements(shape), array)
    assert found > 50


def test_triangles_are_bands_and_others_are_not() -> None:
    ones = np.ones((5, 7))
    assert recognized(np.tril(ones)) == Band(-UNBOUNDED, 0, 1.0, 0.0)
    assert recognized(np.triu(ones, 2)) == Band(2, UNBOUNDED, 1.0, 0.0)
    assert recognized(np.where(np.tril(ones, -1) > 0, 0.0, -np.inf)[None]) == replace(CAUSAL, upper=-1)
    for other in (
        ones,
        np.arange(9.0).reshape(3, 3),
        np.tril(ones[:, :5]) * np.nan,
        np.stack([np.tril(ones), ones]),
    ):
        assert recognized(other) is None


# --- what programs become -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "keys", "tiles"), [(64, 64, (16, 16)), (37, 53, (16, 8)), (32, 32, (8, 32))]
)
def test_a_causal_kernel_computes_attention_and_loads_no_mask(
    rows: int, keys: int, tiles: tuple[int, int]
) -> None:
    pytest.importorskip("triton")
    band = replace(CAUSAL, upper=max(keys - rows, 0))
    graph = fused(rows, keys, 16, tiles, band)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    (got,) = interpret(graph, arrays)
    np.testing.assert_allclose(got, reference(arrays, band), atol=1e-5)
    emitted = emit_program(lower(graph))
    assert not emitted.constants  # nor has the launcher a mask to pass
    assert [p.role for p in emitted.kernels[0].parameters] == ["input", "input", "input", "output"]


def test_the_loop_of_a_causal_kernel_stops_at_the_diagonal() -> None:
    source = emit_program(lower(fused(64, 64, 16, (16, 8)))).kernels_source
    assert "for k in range(0, x * 16 + 16, 8):" in source
    (ragged,) = emit_program(lower(fused(37, 53, 16, (16, 8)))).kernels
    assert "for k in range(0, x + 16, 8):" in ragged.source
    behind = replace(CAUSAL, upper=-20)  # rows that see nothing: a first trip always runs
    assert "max(x * 16 + -4, 1)" in emit_program(lower(fused(64, 64, 16, (16, 8), behind))).kernels_source


def test_programs_with_bands_are_proved_also_at_other_extents() -> None:
    graph, kernel = plain(64, 64, 16), fused(64, 64, 16, (16, 8))
    assert certify(graph, kernel).equivalent
    assert not certify(plain(64, 64, 16, replace(CAUSAL, upper=1)), kernel).equivalent
    pair = reduce_extents(graph, lower(kernel))
    assert pair is not None
    assert max(v.shape[0] for v in pair[0].inputs) < 64
    assert certify(*pair).equivalent


def test_fewer_blocks_are_the_last_rows_which_see_most() -> None:
    kernel = fused(64, 48, 16, (16, 8), replace(CAUSAL, upper=-16))
    smaller = fewer_blocks(kernel)
    assert smaller is not None
    (band,) = (n for n in smaller[0].nodes if n.op == "band")
    assert band.result.shape == (32, 48)
    assert band.attrs["upper"] == 16


def test_a_band_survives_mlir() -> None:
    lowered = lower(fused(64, 64, 16, (16, 8)))
    again = reader.read(writer.to_text(lowered))
    assert " + 16, 8):" in emit_program(again).kernels_source
    assert [p.band for n in again.nodes if isinstance(n.body, TileProgram) for p in n.body.params][
        3
    ] == CAUSAL


# --- which trips may be left out ----------------------------------------------------------------------------


def narrowed(graph: KernelGraph) -> bool:
    return bool(hidden_trips.limits(tile_program(graph)))


def test_only_trips_that_change_nothing_are_left_out() -> None:
    """A sum that also counts trips, a mask that hides only in part, and one that hides nothing."""
    assert narrowed(fused(64, 64, 16, (16, 8)))
    assert not narrowed(fused(64, 64, 16, (16, 8), change=lambda b, x: b("add", x, b.constant(1.0))))
    assert not narrowed(fused(64, 64, 16, (16, 8), replace(CAUSAL, outside=-1e4)))
    assert not narrowed(fused(64, 64, 16, (16, 8), replace(CAUSAL, upper=63)))
    assert not narrowed(fused(64, 64, 16, (16, 8), Band(0, UNBOUNDED, 0.0, -math.inf)))


def test_trips_that_store_to_memory_are_kept() -> None:
    program = tile_program(fused(64, 64, 16, (16, 8)))
    (grid,) = program.body
    assert isinstance(grid, Loop)
    (loop,) = (s for s in grid.body if isinstance(s, Loop))
    load = next(s for s in loop.body if isinstance(s, Load))
    assert hidden_trips.limits(program)
    loop.body.append(Store(program.params[-1], load.windows, load.result))
    assert not hidden_trips.limits(program)


def test_the_trips_that_run_are_those_with_something_to_see() -> None:
    """The limit against a count of the tiles, element by element."""
    drawn = random.Random(1)
    for _ in range(40):
        height, width = drawn.choice([4, 8, 16]), drawn.choice([4, 8, 16])
        rows, keys = height * drawn.randint(2, 5) - drawn.randint(0, 3), width * drawn.randint(2, 6)
        band = replace(CAUSAL, upper=drawn.randint(-10, 30))
        program = tile_program(fused(rows, keys, 16, (height, width), band))
        loop = next(s for s in program.statements() if isinstance(s, Loop) and not s.parallel)
        seen = band.elements((up(rows, height) * height, keys)) == 0
        tiles = seen.reshape(up(rows, height), height, keys // width, width).any((1, 3))
        wanted = [max(int(np.flatnonzero(row).max(initial=0)) + 1, 1) for row in tiles]
        limit = hidden_trips.limits(program).get(loop.var)
        assert (limit.trips(loop) if limit else [loop.trips] * len(wanted)) == wanted


@pytest.mark.parametrize("tiles", [(16, 8), (8, 16)])
def test_the_check_of_ttir_accepts_the_limit_and_refuses_one_trip_less(
    tiles: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fused(48, 48, 16, tiles)
    lowered, texts = compiled(graph)
    assert verify_ttir(graph, lowered, texts).end_to_end
    whole = hidden_trips.Limit

    def short(scale: int, base: int, *rest: object) -> hidden_trips.Limit:
        return whole(scale, base - tiles[1], *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(hidden_trips, "Limit", short)
    lowered, texts = compiled(graph)
    with pytest.raises((NotEquivalent, IllegalProgram)):  # a row without any trip is undefined
        verify_ttir(graph, lowered, texts)


def test_kernels_checked_by_themselves_have_the_band_that_they_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = fused(48, 48, 16, (16, 8))
    lowered, texts = compiled(graph)
    assert not verify_ttir(graph, lowered, texts, full_work=1).end_to_end
    other = fused(48, 48, 16, (16, 8), replace(CAUSAL, upper=-8, lower=-40))
    with pytest.raises(NotEquivalent):
        verify_ttir(other, lower(other), texts, full_work=1)


# --- what they cost -----------------------------------------------------------------------------------------


def test_a_causal_kernel_is_charged_for_the_trips_that_run() -> None:
    def flops(band: Band) -> tuple[float, float, int]:
        (node,) = (n for n in lower(fused(1024, 1024, 64, (64, 64), band)).nodes if n.body)
        traffic = node_traffic(node, target("sm_90"))
        return traffic.vector_flops, traffic.l2_bytes, traffic.loop_trips

    half, whole = flops(CAUSAL), flops(replace(CAUSAL, upper=1023))
    assert half[2] == 8  # of 16: 8.5 on average
    assert half[0] / whole[0] == pytest.approx(8.5 / 16, rel=0.02)
    assert half[1] < 0.6 * whole[1]


def test_numbers_are_those_of_the_whole_loop() -> None:
    """Tile programs keep all trips: what their evaluation says is what the narrowed kernel computes."""
    graph = fused(37, 53, 16, (16, 8), replace(CAUSAL, upper=16))
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(v.shape) for v in graph.inputs]
    domain = FloatDomain()
    (made,) = evaluate(lower(graph), [domain.tensor(a) for a in arrays], domain)
    np.testing.assert_allclose(made.planes[0], reference(arrays, replace(CAUSAL, upper=16)), atol=1e-5)
