"""Bands: masks by column - row alone, and loops that stop where one hides the rest."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import asdict, replace

import interpreter
import numpy as np
import pytest
from certify_support import program
from interpreter import interpret
from random_programs import Builder, value
from test_ragged import up
from test_ttir import compiled

from superopt import hidden_trips
from superopt.computed import recognized
from superopt.cost import compiled_cost, target
from superopt.cost.compiled import trips_run
from superopt.cost.counted import KernelCounts, Transactions
from superopt.cost.traffic import computed_flops, node_traffic
from superopt.dialects import reader, writer
from superopt.errors import IllegalProgram, NotEquivalent
from superopt.program import (
    UNBOUNDED,
    Band,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    Store,
    TensorType,
    TileProgram,
    Value,
    Window,
)
from superopt.transforms.emit.compile import Compiled
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
    floor: bool = False,
) -> KernelGraph:
    """The same as one kernel with a running maximum; `change` is made to the exponentials' sum of each trip.

    With a `floor`, maxima are at least -1e30, so that a trip that hides a whole row is defined.
    """
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
        top = b("max", top, b.constant(-1e30)) if floor else top
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


WINDOW = Band(-11, 0, 0.0, -math.inf)


@pytest.mark.parametrize(
    ("rows", "keys", "tiles", "band"),
    [
        (64, 64, (16, 8), WINDOW),
        (57, 57, (16, 8), WINDOW),
        (37, 53, (16, 16), replace(WINDOW, lower=5, upper=16)),
        (64, 64, (8, 16), Band(0, UNBOUNDED, 0.0, -math.inf)),
        (16, 61, (16, 8), Band(20, 40, 0.0, -math.inf)),
    ],
)
def test_the_loop_of_a_windowed_kernel_begins_where_its_block_sees_something(
    rows: int, keys: int, tiles: tuple[int, int], band: Band
) -> None:
    pytest.importorskip("triton")
    graph = fused(rows, keys, 16, tiles, band, floor=True)
    (limit,) = hidden_trips.limits(tile_program(graph)).values()
    assert limit.first is not None
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    (got,) = interpret(graph, arrays)
    np.testing.assert_allclose(got, reference(arrays, band), atol=1e-5)
    lowered, texts = compiled(graph)
    assert verify_ttir(graph, lowered, texts).end_to_end


def test_where_a_windowed_loop_begins_is_written_once() -> None:
    source = emit_program(lower(fused(64, 64, 16, (16, 8), WINDOW, floor=True))).kernels_source
    assert "first_k = max((x * 16 + -11) // 8, 0) * 8" in source
    assert "for k in range(first_k, x * 16 + 16, 8):" in source
    beyond = replace(WINDOW, lower=40, upper=60)  # rows that see nothing: a last trip always runs
    source = emit_program(lower(fused(64, 64, 16, (16, 8), beyond, floor=True))).kernels_source
    assert "first_k = min((x * 16 + 40) // 8, 7) * 8" in source
    fixed = emit_program(lower(fused(16, 64, 16, (16, 8), Band(20, 30, 0.0, -math.inf), floor=True)))
    assert "for k in range(16, 46, 8):" in fixed.kernels_source


def test_programs_with_bands_are_proved_also_at_other_extents() -> None:
    graph, kernel = plain(64, 64, 16), fused(64, 64, 16, (16, 8))
    assert certify(graph, kernel).equivalent
    assert not certify(plain(64, 64, 16, replace(CAUSAL, upper=1)), kernel).equivalent
    pair = reduce_extents(graph, lower(kernel))
    assert pair is not None
    assert max(v.shape[0] for v in pair[0].inputs) < 64
    assert certify(*pair).equivalent


@pytest.mark.parametrize("tiles", [(4, 32), (8, 32)])
def test_no_row_is_hidden_at_reduced_extents(tiles: tuple[int, int]) -> None:
    """Rows are cut into more tiles than columns, so that more rows than columns are left."""
    graph, kernel = plain(50, 50, 16), fused(50, 50, 16, tiles)
    pair = reduce_extents(graph, kernel)
    assert pair is not None
    (band,) = (n for n in pair[0].nodes if n.op == "band")
    rows, columns = band.result.shape
    assert (rows, columns, band.attrs["upper"]) == (10, 6, 0)
    certificate = certify(graph, kernel).certificate
    assert certificate
    assert certificate.delta_extents == "reduced"
    assert certificate.delta is not None


def test_windows_are_proved_at_fewer_tiles_and_told_apart_at_all_of_them() -> None:
    graph, kernel = plain(96, 96, 16, WINDOW), fused(96, 96, 16, (16, 8), WINDOW, floor=True)
    pair = reduce_extents(graph, lower(kernel))
    assert pair is not None
    (band,) = (n for n in pair[0].nodes if n.op == "band")
    columns = band.result.shape[-1]
    assert columns < 96
    assert -columns < int(str(band.attrs["lower"])) < int(str(band.attrs["upper"])) == 0  # it hides something
    assert certify(graph, kernel).equivalent
    for other in (replace(WINDOW, lower=-12), replace(WINDOW, lower=-40), replace(WINDOW, upper=-1)):
        assert not certify(plain(96, 96, 16, other), kernel).equivalent


def test_fewer_blocks_are_the_last_rows_which_see_most() -> None:
    kernel = fused(64, 48, 16, (16, 8), replace(CAUSAL, upper=-16))
    smaller = fewer_blocks(kernel)
    assert smaller is not None
    (band,) = (n for n in smaller[0].nodes if n.op == "band")
    assert band.result.shape == (32, 48)
    assert band.attrs["upper"] == 16
    smaller = fewer_blocks(fused(64, 48, 16, (16, 8), replace(WINDOW, lower=-24, upper=-16), floor=True))
    assert smaller is not None
    (band,) = (n for n in smaller[0].nodes if n.op == "band")
    assert (band.attrs["lower"], band.attrs["upper"]) == (-24 + 32, 16)


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


def added(program: TileProgram, start: float, build: Callable[[Load, Value], list[Compute]]) -> TileProgram:
    """`program` with one more buffer, that holds `start` before the loop, and what each trip stores there.

    `build` makes it, in its last statement, of the load of the buffer and of the trip's sum of exponentials.
    """
    (grid,) = program.body
    assert isinstance(grid, Loop)
    (loop,) = (s for s in grid.body if isinstance(s, Loop))
    total = next(s.result for s in loop.body if isinstance(s, Compute) and s.op == "reduce_sum")
    buffer = Buffer(total.type, "more", "chip")
    windows = tuple(Window(n) for n in total.shape)
    begun = Compute("constant", (), Value(total.type), {"value": start, "shape": total.shape, "dtype": "f32"})
    at = grid.body.index(loop)
    grid.body[at:at] = [begun, Store(buffer, windows, begun.result)]
    load = Load(Value(total.type), buffer, windows)
    made = build(load, total)
    loop.body += [load, *made, Store(buffer, windows, made[-1].result)]
    program.locals.append(buffer)
    return program


def computed(op: str, *operands: Value, like: Value) -> Compute:
    return Compute(op, operands, Value(like.type), {})


def test_first_trips_stay_where_a_later_one_would_notice() -> None:
    """A sum that starts at 5 is kept by hidden trips; the largest so far, with a floor of 3, is not, but matters
    to nobody else; where it scales what is added to a sum, trips that run before the first one seen matter."""

    def first(change: Callable[[TileProgram], TileProgram] = lambda p: p) -> int | None:
        program = change(tile_program(fused(64, 64, 16, (16, 8), WINDOW, floor=True)))
        return next((limit.first for limit in hidden_trips.limits(program).values()), None)

    def summed(load: Load, total: Value) -> list[Compute]:
        return [computed("add", load.result, total, like=total)]

    three = Value(TensorType((16, 1), "f32"))
    number = Compute("constant", (), three, {"value": 3.0, "shape": (16, 1), "dtype": "f32"})

    def floored(load: Load, total: Value) -> list[Compute]:
        top = computed("max", total, three, like=total)
        return [number, top, computed("max", load.result, top.result, like=total)]

    def scaled(program: TileProgram) -> TileProgram:
        program = added(program, 0.0, floored)
        old = program.locals[-1]

        def build(load: Load, total: Value) -> list[Compute]:
            part = computed("mul", total, held.result, like=total)
            return [part, computed("add", load.result, part.result, like=total)]

        (grid,) = program.body
        assert isinstance(grid, Loop)
        (loop,) = (s for s in grid.body if isinstance(s, Loop))
        held = next(s for s in loop.body if isinstance(s, Load) and s.buffer is old)
        return added(program, 0.0, build)

    def differences(program: TileProgram) -> TileProgram:
        """The sum of what each trip's first value exceeds that of the trip before by: the last one alone."""
        (grid,) = program.body
        assert isinstance(grid, Loop)
        (loop,) = (s for s in grid.body if isinstance(s, Loop))
        loaded = next(s for s in loop.body if isinstance(s, Load) and s.buffer is program.params[1])
        again = Value(TensorType((16, 1), "f32"))
        row = Compute(
            "slice",
            (loaded.result,),
            Value(TensorType((1, 1), "f32")),
            {"offsets": (0, 0), "sizes": (1, 1), "strides": (1, 1)},
        )
        spread = Compute("broadcast", (row.result,), again, {"shape": (16, 1)})
        program = added(program, 0.0, lambda _load, _total: [row, spread])
        held = next(s for s in loop.body if isinstance(s, Load) and s.buffer is program.locals[-1])

        def build(load: Load, total: Value) -> list[Compute]:
            more = computed("sub", again, held.result, like=total)
            return [more, computed("add", load.result, more.result, like=total)]

        return added(program, 0.0, build)

    def set_twice(program: TileProgram) -> TileProgram:
        program = added(program, 0.0, floored)
        (grid,) = program.body
        assert isinstance(grid, Loop)
        loaded = next(s for s in grid.body if isinstance(s, Load))
        top = Compute("reduce_max", (loaded.result,), Value(three.type), {"dims": (1,), "keepdims": True})
        at = next(i for i, s in enumerate(grid.body) if isinstance(s, Loop))
        windows = (Window(16), Window(1))
        grid.body[at:at] = [top, Store(program.locals[-1], windows, top.result)]
        return program

    assert first() is not None
    assert first(set_twice) is None
    assert first(lambda p: added(p, 5.0, summed)) is not None
    assert first(lambda p: added(p, 0.0, floored)) is not None
    assert first(scaled) is None
    assert first(differences) is None
    without = tile_program(
        fused(64, 64, 16, (16, 8), WINDOW)
    )  # a first trip that hides whole rows is undefined
    assert all(limit.first is None for limit in hidden_trips.limits(without).values())


def test_a_loop_over_rows_begins_at_the_diagonal() -> None:
    """exp(s + band) summed over rows: what is above the diagonal comes first."""
    for upper in (0, 9, -9):
        f = Builder()
        x, mask = value(64, 48), masked(f, 64, 48, replace(CAUSAL, upper=upper))

        def build(b: Builder, x: Value, band: Value) -> None:
            tiles = [b.raw("iterator", (v,), (8, 16), imap=(1,), fmap=(0,)) for v in (x, band)]
            total = b("reduce_sum", b("exp", b("add", *tiles)), dims=(0,))
            b.save(b.raw("accumulate", (total,), total.shape, kind="sum", loop=0), 0)

        graph = KernelGraph("sums", [x], f.nodes, [f.custom((3,), (8,), [x, mask], (48,), build)])
        program = tile_program(graph)
        (limit,) = hidden_trips.limits(program).values()
        loop = next(s for s in program.statements() if isinstance(s, Loop) and not s.parallel)
        seen = replace(CAUSAL, upper=upper).elements((64, 48)) == 0
        assert limit.trips(loop) == [
            8 - int(np.argmax(seen.reshape(8, 8, 3, 16).any((1, 3))[:, i])) for i in range(3)
        ]
        lowered, texts = compiled(graph)
        assert verify_ttir(graph, lowered, texts).end_to_end


def test_the_trips_that_run_are_those_with_something_to_see() -> None:
    """The limit against a count of the tiles, element by element."""
    drawn = random.Random(1)
    for i in range(60):
        height, width = drawn.choice([4, 8, 16]), drawn.choice([4, 8, 16])
        rows, keys = height * drawn.randint(2, 5) - drawn.randint(0, 3), width * drawn.randint(2, 6)
        band = replace(CAUSAL, upper=drawn.randint(-10, 30))
        if i % 2:
            band = replace(band, lower=band.upper - drawn.randint(0, 40))
        program = tile_program(fused(rows, keys, 16, (height, width), band, floor=True))
        loop = next(s for s in program.statements() if isinstance(s, Loop) and not s.parallel)
        seen = band.elements((up(rows, height) * height, keys)) == 0
        tiles = seen.reshape(up(rows, height), height, keys // width, width).any((1, 3))
        limit = hidden_trips.limits(program).get(loop.var)
        starts, stops = (limit.starts(loop), limit.stops(loop)) if limit else ([0], [loop.trips])
        for n, row in enumerate(tiles):
            start, stop = starts[n % len(starts)], stops[n % len(stops)]
            assert 0 <= start < stop <= loop.trips
            if row.any():
                first, *_, last = [int(t) for t in (np.flatnonzero(row)[0], *np.flatnonzero(row))]
                assert (start if band.lower != -UNBOUNDED else first, stop) == (first, last + 1)
            else:
                assert stop == start + 1


@pytest.mark.parametrize("tiles", [(16, 8), (8, 16)])
def test_the_check_of_ttir_accepts_the_limit_and_refuses_one_trip_less(
    tiles: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fused(48, 48, 16, tiles)
    lowered, texts = compiled(graph)
    assert verify_ttir(graph, lowered, texts).end_to_end
    whole = hidden_trips.Limit

    def short(scale: int, first: int | None, last: int, *rest: object) -> hidden_trips.Limit:
        return whole(scale, first, last - tiles[1], *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(hidden_trips, "Limit", short)
    lowered, texts = compiled(graph)
    with pytest.raises((NotEquivalent, IllegalProgram)):  # a row without any trip is undefined
        verify_ttir(graph, lowered, texts)


@pytest.mark.parametrize("tiles", [(16, 8), (8, 16)])
def test_the_check_of_ttir_refuses_a_window_that_begins_one_trip_late(
    tiles: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fused(48, 48, 16, tiles, WINDOW, floor=True)
    whole = hidden_trips.Limit

    def late(scale: int, first: int, *rest: object) -> hidden_trips.Limit:
        return whole(scale, first + tiles[1], *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(hidden_trips, "Limit", late)
    lowered, texts = compiled(graph)
    with pytest.raises((NotEquivalent, IllegalProgram)):
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


# --- which trips need no mask -------------------------------------------------------------------------------


def unmasked(graph: KernelGraph) -> KernelGraph:
    """`graph` lowered, with loops of their own for trips that the band leaves whole."""
    lowered = lower(graph)
    for node in lowered.nodes:
        if isinstance(node.body, TileProgram):
            node.body.separate_masks = True
    return lowered


def test_the_whole_trips_are_those_that_the_band_leaves_whole() -> None:
    """Against a count of the tiles, element by element."""
    drawn = random.Random(2)
    found = 0
    for i in range(60):
        height, width = drawn.choice([4, 8, 16]), drawn.choice([4, 8, 16])
        rows, keys = height * drawn.randint(2, 5) - drawn.randint(0, 3), width * drawn.randint(2, 6)
        band = replace(CAUSAL, upper=drawn.randint(-10, 30))
        if i % 2:
            band = replace(band, lower=band.upper - drawn.randint(0, 60))
        program = tile_program(fused(rows, keys, 16, (height, width), band, floor=True))
        loop = next(s for s in program.statements() if isinstance(s, Loop) and not s.parallel)
        run = hidden_trips.limits(program)
        seen = band.elements((up(rows, height) * height, keys)) == 0
        tiles = seen.reshape(up(rows, height), height, keys // width, width).all((1, 3))
        made = hidden_trips.whole_trips(program, run).get(loop.var)
        if made is None:
            assert not tiles.any()
            continue
        found += 1
        parts = made.parts(loop, run.get(loop.var))
        for n, row in enumerate(tiles):
            start, begin, end, stop = parts[n % len(parts)]
            assert 0 <= start <= begin <= end <= stop <= loop.trips
            assert list(np.flatnonzero(row)) == list(range(begin, end))
    assert found > 30


@pytest.mark.parametrize(
    ("rows", "keys", "tiles", "band"),
    [
        (64, 64, (16, 8), CAUSAL),
        (64, 64, (8, 16), CAUSAL),
        (61, 53, (16, 16), CAUSAL),
        (61, 53, (16, 16), replace(CAUSAL, outside=-1e4)),
        (96, 96, (8, 16), replace(CAUSAL, lower=-43)),
        (37, 93, (16, 16), replace(CAUSAL, lower=5, upper=56)),
        (16, 96, (16, 16), replace(CAUSAL, lower=20, upper=70)),
        (48, 96, (16, 16), replace(CAUSAL, lower=-2, upper=UNBOUNDED)),
    ],
)
def test_trips_without_a_mask_compute_the_same(
    rows: int, keys: int, tiles: tuple[int, int], band: Band, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    graph = fused(rows, keys, 16, tiles, band, floor=True)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    monkeypatch.setattr(interpreter, "lower", unmasked)
    monkeypatch.setattr("superopt.transforms.lower.lower", unmasked)
    (got,) = interpret(graph, arrays)
    np.testing.assert_allclose(got, reference(arrays, band), atol=1e-5)
    lowered, texts = compiled(graph)
    assert "without mask" in emit_program(lowered).kernels_source
    assert verify_ttir(graph, lowered, texts).end_to_end


@pytest.mark.parametrize("side", ["first", "last"])
def test_the_check_of_ttir_refuses_a_trip_without_its_mask(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fused(96, 96, 16, (16, 16), replace(CAUSAL, lower=-43), floor=True)
    monkeypatch.setattr("superopt.transforms.lower.lower", unmasked)
    whole = hidden_trips.Whole

    def wide(limit: hidden_trips.Limit, loads: frozenset[Load]) -> hidden_trips.Whole:
        first, last = limit.first, limit.last
        assert first is not None
        assert last is not None
        moved = replace(limit, first=first - 16) if side == "first" else replace(limit, last=last + 16)
        return whole(moved, loads)

    lowered, texts = compiled(graph)
    assert verify_ttir(graph, lowered, texts).end_to_end
    monkeypatch.setattr(hidden_trips, "Whole", wide)
    lowered, texts = compiled(graph)
    with pytest.raises(NotEquivalent):
        verify_ttir(graph, lowered, texts)


def test_trips_without_a_mask_lie_within_the_keys_and_are_priced() -> None:
    """Causal attention over 1,500 tokens: only the last loop compares keys with 1,500. It is chosen by its price."""
    lowered = lower(fused(1500, 1500, 64, (64, 32), floor=True))
    (node,) = (n for n in lowered.nodes if n.body)
    assert isinstance(node.body, TileProgram)
    assert node.body.separate_masks
    source = emit_program(lowered).kernels_source
    apart, behind = source.split("without mask")[1].split("# At most")
    assert "1500" in behind
    assert "1500" not in apart.split("for k in ")[1]
    assert "tl.where" not in apart
    gpu = target("sm_90")
    two = node_traffic(node, gpu)
    node.body.separate_masks = False
    one = node_traffic(node, gpu)
    assert (two.loop_trips, two.tensor_flops) == (one.loop_trips + 1, one.tensor_flops)
    # Block x runs 2x trips before the diagonal; the choice is the product's own sum here, and counts nothing.
    assert one.vector_flops - two.vector_flops == 64 * 32 * sum(2 * x for x in range(24))
    small = tile_program(fused(64, 64, 16, (16, 8)))
    assert not small.separate_masks


# --- what they cost -----------------------------------------------------------------------------------------


def test_a_causal_kernel_is_charged_for_the_trips_that_run() -> None:
    def flops(band: Band, *, floor: bool = False) -> tuple[float, float, int]:
        kernel = fused(1024, 1024, 64, (64, 64), band, floor=floor)
        (node,) = (n for n in lower(kernel).nodes if n.body)
        assert isinstance(node.body, TileProgram)
        node.body.separate_masks = False
        traffic = node_traffic(node, target("sm_90"))
        return traffic.vector_flops, traffic.l2_bytes, traffic.loop_trips

    window = flops(replace(CAUSAL, lower=-127), floor=True)
    assert window[2] == 3  # 1, 2 and, from then on, 3
    half, whole = flops(CAUSAL), flops(replace(CAUSAL, upper=1023))
    assert half[2] == 8  # of 16: 8.5 on average
    assert half[0] / whole[0] == pytest.approx(8.5 / 16, rel=0.02)
    assert half[1] < 0.6 * whole[1]


@pytest.mark.parametrize("band", [CAUSAL, WINDOW])
def test_a_band_costs_what_is_written_for_it(band: Band) -> None:
    """The addition of the band, which is charged with the rest, is the choice."""
    source = emit_program(lower(fused(64, 64, 16, (16, 16), band, floor=True))).kernels_source
    (line,) = (text for text in source.splitlines() if text.strip().startswith("add = "))
    written = sum(line.count(text) for text in (">=", "<=", "&", "tl.where"))
    assert computed_flops(band) + 1 == written
    assert computed_flops(replace(band, inside=1.0, outside=0.0)) == written


def test_the_report_counts_the_trips_that_run_and_the_price_scales_what_the_first_block_did() -> None:
    """Half of the trips of causal attention: of 1 to 16, the first block has one, and its counts are the price's."""
    kernel, gpu = fused(1024, 1024, 64, (64, 64)), target("sm_90")
    lowered = lower(kernel)
    (node,) = (n for n in lowered.nodes if n.body)
    assert isinstance(node.body, TileProgram)
    assert trips_run(node.body) == (8.5, 16)
    assert trips_run(tile_program(fused(64, 64, 16, (16, 8), replace(CAUSAL, upper=63)))) is None

    made, free = Transactions(10**8, 10**8), Transactions(0, 0)
    shared = {kind: made if kind == "loads" else free for kind in ("loads", "stores", "copies", "matrices")}
    counts = KernelCounts(shared, dict.fromkeys(("loads", "stores", "copies"), free), {}, 0)
    facts = Compiled("kernel", "", "", "", "", "", b"", 0, 32, 0, counts)
    seconds = compiled_cost(node, facts, gpu).seconds - gpu.launch_seconds
    # A block loads one tile and stores one, and loads two in each trip: of the first, 4, on average, 19.
    assert seconds == pytest.approx(19 / 4 * 10**8 / gpu.clock_hertz, rel=1e-3)


def test_numbers_are_those_of_the_whole_loop() -> None:
    """Tile programs keep all trips: what their evaluation says is what the narrowed kernel computes."""
    graph = fused(37, 53, 16, (16, 8), replace(CAUSAL, upper=16))
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(v.shape) for v in graph.inputs]
    domain = FloatDomain()
    (made,) = evaluate(lower(graph), [domain.tensor(a) for a in arrays], domain)
    np.testing.assert_allclose(made.planes[0], reference(arrays, replace(CAUSAL, upper=16)), atol=1e-5)
