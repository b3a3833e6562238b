"""The evaluator: every table operator against torch, block and tile programs against the operators they cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import Builder, random_kernel, value

from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.operators import OPERATORS
from superopt.program import (
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
)
from superopt.spec import check_tile
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.demand import feeds_exponential
from superopt.verify.domains import FloatDomain, round_to
from superopt.verify.evaluate import evaluate
from superopt.verify.evaluate_operator import evaluate_operator
from superopt.verify.evaluate_tile import evaluate_tile
from superopt.verify.fields import FormalField, ImageField, P, Q, ScreenField

# operator -> (operand shapes, attributes, torch's answer)
Reference: TypeAlias = (
    Callable[[], Any] | Callable[[Any], Any] | Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]
)
Case: TypeAlias = tuple[list[tuple[int, ...]], dict[str, Any], Reference]


def _cases(torch: Any) -> dict[str, list[Case]]:
    def unary(f: Callable[[Any], Any]) -> list[Case]:
        return [([(2, 3)], {}, f)]

    def binary(f: Callable[[Any, Any], Any]) -> list[Case]:
        return [([(2, 1, 3), (4, 1)], {}, f), ([(2, 3), (2, 3)], {}, f), ([(), (2,)], {}, f)]

    def reduction(f: Callable[..., Any]) -> list[Case]:
        return [
            ([(2, 3, 4)], {"dims": (0, 2), "keepdims": False}, lambda x: f(x, (0, 2), False)),
            ([(2, 3)], {"dims": (1,), "keepdims": True}, lambda x: f(x, (1,), True)),
        ]

    def windows(rank: int, stride: int, dilation: int, pad: int) -> dict[str, tuple[int, ...]]:
        numbers = {"strides": stride, "dilations": dilation, "low": pad, "high": pad}
        return {name: (number,) * rank for name, number in numbers.items()}

    f = torch.nn.functional

    def band(whole: Any, width: int, dilation: int, low: int) -> Any:
        """Row m of a matrix at columns m + dilation * w - low, zero outside."""
        columns = torch.arange(whole.shape[-2])[:, None] + dilation * torch.arange(width) - low
        inside = (columns >= 0) & (columns < whole.shape[-1])
        places = columns.clamp(0, whole.shape[-1] - 1).expand(*whole.shape[:-1], width)
        return torch.where(inside, whole.gather(-1, places), 0.0)

    def spread(a: Any, columns: int, dilation: int, low: int) -> Any:
        """The matrix of so many columns that has these bands: what `band` of it gives."""
        whole = torch.zeros(*a.shape[:-1], columns, dtype=a.dtype)
        for m in range(a.shape[-2]):
            for w in range(a.shape[-1]):
                if 0 <= m + dilation * w - low < columns:
                    whole[..., m, m + dilation * w - low] = a[..., m, w]
        return whole

    def counting(d: int) -> Any:
        return (3 - 2 * torch.arange((3, 5, 4)[d])).reshape(-1, *[1] * (-1 - d)).expand(3, 5, 4)

    return {
        "matmul": [
            ([(2, 3), (3, 4)], {}, lambda a, b: a @ b),
            ([(5, 1, 2, 3), (2, 3, 4)], {}, lambda a, b: a @ b),
            ([(3, 2), (4, 3)], {"transpose_a": True, "transpose_b": True}, lambda a, b: a.T @ b.T),
        ],
        "add": binary(lambda a, b: a + b), "sub": binary(lambda a, b: a - b),
        "mul": binary(lambda a, b: a * b), "div": binary(lambda a, b: a / b),
        "max": binary(torch.maximum), "min": binary(torch.minimum),
        "neg": unary(lambda x: -x), "exp": unary(torch.exp), "log": unary(torch.log),
        "expm1": unary(torch.expm1), "log1p": unary(torch.log1p),
        "sqrt": unary(torch.sqrt), "rsqrt": unary(torch.rsqrt), "square": unary(torch.square),
        "reciprocal": unary(torch.reciprocal), "sigmoid": unary(torch.sigmoid),
        "silu": unary(torch.nn.functional.silu), "gelu": unary(torch.nn.functional.gelu),
        "relu": unary(torch.relu), "tanh": unary(torch.tanh), "erf": unary(torch.erf),
        "sin": unary(torch.sin), "cos": unary(torch.cos),
        "step": unary(lambda x: (x > 0) * 1.0),
        "select": [([(2, 3), (2, 3)], {"other": 5.0}, lambda t, x: torch.where(t > 0, x, 5.0))],
        "clamp": [([(2, 3)], {"low": 0.5, "high": 1.0}, lambda x: torch.clamp(x, 0.5, 1.0))],
        "pow": [
            ([(2, 3)], {"exponent": e}, partial(torch.pow, exponent=e)) for e in (2.0, -3.0, 0.5, -0.5, 1.7, 0.0)
        ],
        # Bounds come with a statement (test_ragged).
        "mask": [([(2, 3)], {"fill": 7.0}, lambda x: x)],
        "cast": [([(2, 3)], {"dtype": "f32"}, lambda x: x)],
        "reduce_sum": reduction(torch.sum), "reduce_mean": reduction(torch.mean),
        "reduce_max": reduction(torch.amax), "reduce_min": reduction(torch.amin),
        "broadcast": [([(3, 1)], {"shape": (2, 3, 4)}, lambda x: x.expand(2, 3, 4))],
        "transpose": [([(2, 3, 4)], {"perm": (2, 0, 1)}, lambda x: x.permute(2, 0, 1))],
        "slice": [
            ([(5, 6)], {"offsets": (1, 0), "sizes": (2, 3), "strides": (2, 2)}, lambda x: x[1:4:2, 0:5:2])
        ],
        "reshape": [([(2, 6)], {"shape": (3, 2, 2)}, lambda x: x.reshape(3, 2, 2))],
        "repeat": [([(2, 3)], {"dim": 1, "times": 2}, lambda x: x.repeat(1, 2))],
        "concat": [([(2, 1), (2, 3), (2, 2)], {"dim": 1}, lambda a, b, c: torch.cat((a, b, c), 1))],
        "update_slice": [
            ([(2, 5), (2, 3)], {"dim": 1, "offset": 1}, lambda a, b: torch.slice_scatter(a, b, 1, 1, 4))
        ],
        "conv": [
            ([(2, 4, 7), (6, 4, 3)], windows(1, 2, 1, 1), lambda x, w: f.conv1d(x, w, stride=2, padding=1)),
            ([(1, 4, 5, 6), (6, 2, 3, 2)], {**windows(2, 1, 2, 2), "groups": 2},
             lambda x, w: f.conv2d(x, w, padding=2, dilation=2, groups=2)),
            ([(1, 4, 5, 6), (4, 1, 3, 3)], {**windows(2, 2, 1, 1), "groups": 4},
             lambda x, w: f.conv2d(x, w, stride=2, padding=1, groups=4)),
            ([(1, 2, 4, 4, 4), (3, 2, 2, 2, 2)], {**windows(3, 1, 1, 0), "low": (1, 0, 0)},
             lambda x, w: f.conv3d(f.pad(x, (0, 0, 0, 0, 1, 0)), w)),
        ],
        "conv_transpose": [
            ([(2, 4, 3, 3), (4, 5, 4, 4)], {**windows(2, 2, 1, 1), "extra": (0, 0)},
             lambda x, w: f.conv_transpose2d(x, w, stride=2, padding=1)),
            ([(1, 4, 5), (4, 3, 3)], {**windows(1, 3, 2, 1), "extra": (2,), "groups": 2},
             lambda x, w: f.conv_transpose1d(x, w, stride=3, dilation=2, padding=1, output_padding=2, groups=2)),
        ],
        "pool_max": [
            ([(2, 3, 5, 5)], {**windows(2, 2, 1, 1), "sizes": (3, 3)}, lambda x: f.max_pool2d(x, 3, 2, 1)),
            ([(1, 2, 7)], {**windows(1, 1, 2, 0), "sizes": (2,)}, lambda x: f.max_pool1d(x, 2, 1, 0, 2)),
        ],
        "pool_sum": [
            ([(2, 3, 5, 5)], {**windows(2, 2, 1, 1), "sizes": (3, 3)}, lambda x: f.avg_pool2d(x, 3, 2, 1) * 9),
        ],
        "shifted_sum": [
            ([(2, 3, 4, 7)], windows(1, 1, 1, 1),
             lambda x: sum(f.pad(x[:, k], (1, 1))[..., k : k + 7] for k in range(3))),
        ],
        "g2bmm": [
            ([(2, 5, 3), (2, 6, 3)], {"width": 3, "dilation": 2, "low": 1}, lambda a, b: band(a @ b.mT, 3, 2, 1)),
            ([(4, 3), (4, 3)], {"width": 1, "low": 0}, lambda a, b: (a * b).sum(-1, True)),
        ],
        "gbmm": [
            ([(2, 5, 3), (2, 6, 4)], {"dilation": 2, "low": 1}, lambda a, b: spread(a, 6, 2, 1) @ b),
            ([(1, 2, 4, 3), (1, 2, 4, 5)], {"low": 1}, lambda a, b: spread(a, 4, 1, 1) @ b),
        ],
        "pad": [([(2, 3)], {"low": (0, 1), "high": (2, 0), "value": 0.5}, lambda x: f.pad(x, (1, 0, 0, 2), value=0.5))],
        "constant": [([], {"value": 1.5, "shape": (2, 2), "dtype": "f32"}, lambda: torch.full((2, 2), 1.5))],
        "band": [
            ([], {"lower": -1, "upper": 1, "inside": 2.0, "outside": -0.5, "shape": (3, 5), "dtype": "f32"},
             lambda: torch.where(torch.ones(3, 5).tril(1).triu(-1) > 0, 2.0, -0.5)),
        ],
        "ramp": [
            ([], {"along": d, "start": 3, "step": -2, "shape": (3, 5, 4), "dtype": "f32"},
             partial(counting, d))
            for d in (-1, -2, -3)
        ],
        "nest": [
            ([(2, 4), (3, 4)], {"extents": (2, 3, 4), "rank": 2, "maps": "(d0, d2); (d1, d2)"},
             lambda x, y: x @ y.T),
            ([(2, 4)], {"extents": (2, 6), "rank": 2, "maps": "(d0, d1 - 1)", "guards": "d1 - 1 >= 0 and 4 - d1 >= 0"},
             lambda x: f.pad(x, (1, 1))),
        ],
    }  # fmt: skip


def test_every_operator_against_torch() -> None:
    torch: Any = pytest.importorskip("torch")
    cases, domain, rng = _cases(torch), FloatDomain(), np.random.default_rng(0)
    assert cases.keys() == OPERATORS.keys()
    for name, variants in cases.items():
        for shapes, attrs, reference in variants:
            arrays = [rng.uniform(0.2, 2.0, s) for s in shapes]
            expected = cast(Any, reference)(*(torch.from_numpy(np.asarray(x)) for x in arrays)).numpy()
            for lead in (0, 2):
                # Leading dimensions: every block the same operands, or its own.
                tensors = [domain.tensor(np.broadcast_to(x, (*(3, 1)[:lead], *x.shape))) for x in arrays]
                found = evaluate_operator(name, attrs, tensors, ["f32"] * len(shapes), domain, lead).planes[0]
                assert found.shape[lead:] == expected.shape, name
                np.testing.assert_allclose(np.broadcast_to(found, (*(3, 1)[:lead], *expected.shape))[(0,) * lead],
                                           expected, rtol=1e-12, err_msg=name)  # fmt: skip


def test_fields_agree_with_integers() -> None:
    """A program of sums, products, quotients, worked out with Python's integers."""
    a, b = value(2, 3), value(3, 2)
    f = Builder()
    product = f("matmul", a, b)
    total = f("reduce_mean", product, dims=(1,), keepdims=True)
    out = f("sub", f("div", product, total), f("constant", value=-0.375, shape=(), dtype="f32"))
    graph = KernelGraph("main", [a, b], f.nodes, [out])
    field = ImageField(9)
    inputs = [field.random(i, v.shape) for i, v in enumerate(graph.inputs)]
    (result,) = evaluate(graph, inputs, field)
    for plane, p in enumerate((P, Q)):
        x, y = (t.planes[plane].tolist() for t in inputs)
        for i in range(2):
            row = [sum(x[i][k] * y[k][j] for k in range(3)) for j in range(2)]
            mean = sum(row) * pow(2, -1, p)
            for j in range(2):
                exact = (row[j] * pow(mean, -1, p) + 3 * pow(8, -1, p)) % p
                assert int(result.planes[plane][i, j]) == exact


@settings(max_examples=25)
@given(st.randoms(use_true_random=False), st.sampled_from([ImageField, ScreenField, FormalField]))
def test_evaluation_is_deterministic(rng: Any, kind: type[ImageField]) -> None:
    graph = random_kernel(rng)

    def run() -> Any:
        field = kind(4)
        inputs = [field.random(i, v.shape) for i, v in enumerate(graph.inputs)]
        (out,) = evaluate(graph, inputs, field)
        assert out.shape == graph.outputs[0].shape
        return out.planes[0]

    try:
        assert np.array_equal(run(), run())
    except ZeroDivisionError:
        assert any(n.op == "div" for n in graph.nodes)


def test_numbers_inside_kernels_are_literals_of_fp32() -> None:
    """-1e30, below which no maximum of a windowed kernel falls, is no number of f16; stored, it is rounded."""
    domain, attrs = FloatDomain(faithful=True), {"value": -1e30, "shape": (2,), "dtype": "f16"}
    (inside,) = evaluate_operator("constant", attrs, [], [], domain, 0).planes
    assert np.all(inside == np.float32(-1e30))
    (stored,) = domain.stored(domain.constant(-1e30), "f16").planes
    assert stored == -math.inf


def test_faithful_floats_round_where_memory_is_written() -> None:
    x = value(4, 64, dtype="f16")
    f = Builder()
    square = f("square", x)
    graph = KernelGraph("main", [x], f.nodes, [f("reduce_sum", square, dims=(1,))])
    data = np.random.default_rng(1).normal(size=(4, 64))
    domain = FloatDomain(faithful=True)
    (out,) = evaluate(graph, [domain.stored(domain.tensor(data), "f16")], domain)
    half = data.astype(np.float16).astype(np.float32)
    rounded = (half * half).astype(np.float16).astype(np.float32).sum(axis=1, dtype=np.float32)
    np.testing.assert_array_equal(out.planes[0], rounded.astype(np.float16).astype(np.float32))


def test_rounding_to_bf16() -> None:
    exact = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7, -3.14159265, 3e38, 1e-40, np.inf], np.float32)
    found = round_to(exact, "bf16")
    assert found[:4].tolist() == [1.0, 1.0, 1 + 2**-6, 1 + 2**-7]  # ties to even
    assert found[4] == np.float32(-3.140625)
    assert math.isinf(found[7])
    assert np.isnan(round_to(np.array([np.nan], np.float32), "bf16"))[0]
    assert round_to(np.array([70000.0], np.float32), "f16")[0] == np.inf


def test_opaque_operations_need_someone_to_run_them() -> None:
    x = value(2)
    node = Node("extern", (x,), (value(2),), {"target": "cumsum", "reason": ""})
    graph = KernelGraph("main", [x], [node], [node.result])
    data = FloatDomain().tensor(np.array([1.0, 2.0]))
    with pytest.raises(UnsupportedProgram, match="cumsum"):
        evaluate(graph, [data], FloatDomain())
    runs = FloatDomain(extern=lambda _key, xs, _shapes: [np.cumsum(xs[0])])
    assert evaluate(graph, [data], runs)[0].planes[0].tolist() == [1.0, 3.0]


def test_only_what_feeds_an_exponential_needs_an_exponent() -> None:
    q, k, v = value(2, 2), value(2, 2), value(2, 2)
    f = Builder()
    out = f("matmul", f("sigmoid", f("matmul", q, k)), v)
    assert feeds_exponential(KernelGraph("main", [q, k, v], f.nodes, [out])) == [True, True, False]


# --- tile programs ----------------------------------------------------------------------------------------


def _tile_matmul(m: int, k: int, n: int, tm: int, tk: int, tn: int) -> TileProgram:
    """C = A B: blocks over rows and columns, a loop over k, a sum on chip; ragged rows and columns masked."""
    f32 = "f32"
    a, b, c = (Buffer(TensorType(s, f32), name) for s, name in (((m, k), "a"), ((k, n), "b"), ((m, n), "c")))
    acc = Buffer(TensorType((tm, tn), f32), "acc", "chip")
    i, j, loop = LoopVar("i"), LoopVar("j"), LoopVar("k")
    zero, x, y, part, old, new, done = (value(*s) for s in
        ((tm, tn), (tm, tk), (tk, tn), (tm, tn), (tm, tn), (tm, tn), (tm, tn)))  # fmt: skip
    rows, cols, depth = Window(tm, 0, ((i, tm),)), Window(tn, 0, ((j, 1),)), Window(tk, 0, ((loop, 1),))
    whole = (Window(tm), Window(tn))
    inner: list[Statement] = [
        Load(x, a, (rows, depth)), Load(y, b, (depth, cols)), Compute("matmul", (x, y), part),
        Load(old, acc, whole), Compute("add", (old, part), new), Store(acc, whole, new),
    ]  # fmt: skip
    body: list[Statement] = [
        Compute("constant", (), zero, {"value": 0.0, "shape": (tm, tn), "dtype": f32}), Store(acc, whole, zero),
        Loop(loop, 0, k, tk, False, inner), Load(done, acc, whole), Store(c, (rows, cols), done),
    ]  # fmt: skip
    grid = Loop(i, 0, -(-m // tm), 1, True, [Loop(j, 0, n, tn, True, body)])
    return TileProgram("mm", [a, b, c], 2, [acc], [grid])


def _kernel(tile: TileProgram) -> KernelGraph:
    values = [Value(b.type) for b in tile.params]
    node = Node("tiled", tuple(values[: tile.n_inputs]), tuple(values[tile.n_inputs :]), {}, body=tile)
    return KernelGraph("main", values[: tile.n_inputs], [node], values[tile.n_inputs :])


def _matmul(m: int, k: int, n: int) -> KernelGraph:
    a, b = value(m, k), value(k, n)
    f = Builder()
    return KernelGraph("main", [a, b], f.nodes, [f("matmul", a, b)])


@pytest.mark.parametrize(
    "sizes", [(8, 6, 4, 4, 3, 2), (7, 6, 5, 4, 2, 2), (64, 256, 96, 16, 32, 32), (3, 2, 2, 4, 2, 2)]
)
def test_tiled_matmul(sizes: tuple[int, ...]) -> None:
    tile = _tile_matmul(*sizes)
    check_tile(tile)
    m, k, n = sizes[:3]
    verdict = certify(_matmul(m, k, n), _kernel(tile))
    assert verdict.equivalent, verdict.counterexample
    domain, rng = FloatDomain(), np.random.default_rng(0)
    a, b = rng.normal(size=(m, k)), rng.normal(size=(k, n))
    (out,) = evaluate_tile(tile, [domain.tensor(a), domain.tensor(b)], domain)
    np.testing.assert_allclose(out.planes[0], a @ b, atol=1e-12)


def _wrong(change: Callable[[TileProgram, Loop], None]) -> TileProgram:
    tile = _tile_matmul(8, 6, 4, 4, 3, 2)
    grid = tile.body[0]
    assert isinstance(grid, Loop)
    columns = grid.body[0]
    assert isinstance(columns, Loop)
    change(tile, columns)
    return tile


def _store_first_rows(tile: TileProgram, columns: Loop) -> None:
    last = columns.body[-1]
    assert isinstance(last, Store)
    columns.body[-1] = Store(last.buffer, (Window(4), last.windows[1]), last.value)


def _skip_rows(tile: TileProgram, columns: Loop) -> None:
    grid = tile.body[0]
    assert isinstance(grid, Loop)
    grid.stop -= 1


def _start_outside(tile: TileProgram, columns: Loop) -> None:
    columns.stop += 2


def _overlap(tile: TileProgram, columns: Loop) -> None:
    columns.step, columns.stop = 1, 3


def _no_initial_value(tile: TileProgram, columns: Loop) -> None:
    del columns.body[1]


def _share_the_sum(tile: TileProgram, columns: Loop) -> None:
    tile.locals[0].placement = "device"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_store_first_rows, "written by one block"),
        (_skip_rows, "every element of 'c' to be written"),
        (_start_outside, "windows that start within extent 4 of 'b'"),
        (_overlap, "written by one block"),
        (_no_initial_value, "'acc' to be written before it is read"),
        (_share_the_sum, "each element of 'acc' to be written by one block"),
    ],
)
def test_tile_faults(change: Callable[[TileProgram, Loop], None], message: str) -> None:
    domain = FloatDomain()
    operands = [domain.tensor(np.ones((8, 6))), domain.tensor(np.ones((6, 4)))]
    with pytest.raises(IllegalProgram, match=message):
        evaluate_tile(_wrong(change), operands, domain)


def test_what_lies_outside_a_buffer_is_unknown() -> None:
    """A maximum over a ragged window would be right if the last element were repeated, or 0 read."""
    source, target = Buffer(TensorType((6,), "f32"), "x"), Buffer(TensorType((2,), "f32"), "y")
    i, tile, top = LoopVar("i"), value(4), value(1)
    body: list[Statement] = [
        Load(tile, source, (Window(4, 0, ((i, 4),)),)),
        Compute("reduce_max", (tile,), top, {"dims": (0,), "keepdims": True}),
        Store(target, (Window(1, 0, ((i, 1),)),), top),
    ]
    program = _kernel(TileProgram("f", [source, target], 1, [], [Loop(i, 0, 2, 1, True, body)]))
    x, f = value(6), Builder()
    parts = [
        f("reduce_max", f("slice", x, offsets=(o,), sizes=(n,), strides=(1,)), dims=(0,), keepdims=True)
        for o, n in ((0, 4), (4, 2))
    ]
    plain = KernelGraph("main", [x], f.nodes, [f("concat", *parts, dim=0)])
    assert not certify(plain, program).equivalent
    (out,) = evaluate(program, [FloatDomain().tensor(np.arange(6.0))], FloatDomain())
    assert out.planes[0][0] == 3.0
    assert np.isnan(out.planes[0][1])


def test_a_race_is_no_equivalence() -> None:
    verdict = certify(_matmul(8, 6, 4), _kernel(_wrong(_overlap)))
    assert not verdict.equivalent
    assert "written by one block" in str(verdict.counterexample)


@pytest.mark.parametrize("grids", [1, 2])
def test_blocks_see_what_earlier_grids_wrote_and_no_other_block(grids: int) -> None:
    """y = x reversed in halves, through device memory: each block needs what the other one wrote."""
    x, y, scratch = (Buffer(TensorType((4,), "f32"), n) for n in ("x", "y", "scratch"))
    i, j = LoopVar("i"), LoopVar("j")
    a, b = value(2), value(2)
    here, there = Window(2, 0, ((i, 2),)), Window(2, 2, (((i if grids == 1 else j), -2),))
    write: list[Statement] = [Load(a, x, (here,)), Store(scratch, (here,), a)]
    out = Window(2, 0, (((i if grids == 1 else j), 2),))
    read: list[Statement] = [Load(b, scratch, (there,)), Store(y, (out,), b)]
    body: list[Statement] = (
        [Loop(i, 0, 2, 1, True, write + read)]
        if grids == 1
        else [Loop(i, 0, 2, 1, True, write), Loop(j, 0, 2, 1, True, read)]
    )
    program = TileProgram("f", [x, y], 1, [scratch], body)
    data = [FloatDomain().tensor(np.arange(4.0))]
    if grids == 1:
        with pytest.raises(IllegalProgram, match="a block to read what it wrote to 'scratch'"):
            evaluate_tile(program, data, FloatDomain())
    else:
        (result,) = evaluate_tile(program, data, FloatDomain())
        assert result.planes[0].tolist() == [2.0, 3.0, 0.0, 1.0]


def test_a_sum_may_not_rely_on_padding() -> None:
    """Zeros would be right here; but nothing says that what lies outside reads as zero."""
    source, target = Buffer(TensorType((6,), "f32"), "x"), Buffer(TensorType((1,), "f32"), "y")
    tile, total = value(8), value(1)
    body: list[Statement] = [
        Load(tile, source, (Window(8),)),
        Compute("reduce_sum", (tile,), total, {"dims": (0,), "keepdims": True}),
        Store(target, (Window(1),), total),
    ]
    x, f = value(6), Builder()
    plain = KernelGraph("main", [x], f.nodes, [f("reduce_sum", x, dims=(0,), keepdims=True)])
    assert not certify(plain, _kernel(TileProgram("f", [source, target], 1, [], body))).equivalent


def test_a_tile_without_dimensions() -> None:
    """What is stored to memory of one element is there: a scalar program is lowered to what computes it."""
    x, y = Value(TensorType((), "f32"), "x"), Value(TensorType((), "f32"), "y")
    graph = KernelGraph("f", [x], [Node("exp", (x,), (y,))], [y])
    domain = FloatDomain()
    (made,) = evaluate(lower(graph), [domain.tensor(np.asarray(0.5))], domain)
    np.testing.assert_allclose(made.planes[0], np.exp(0.5))


def test_what_rescales_a_sum_enters_an_exponential() -> None:
    """The exponential is part of the accumulator: nothing in the block has one."""
    x, m = value(4, 8), value(4, 8)

    def build(b: Builder, *tensors: Value) -> None:
        tiles = [b.raw("iterator", (t,), (4, 4), imap=(-1,), fmap=(1,)) for t in tensors]
        top = b("reduce_max", tiles[1], dims=(1,), keepdims=True)
        top = b.raw("running_max", (top,), (4, 1), loop=0)
        b.save(b.raw("accumulate", (tiles[0], top), (4, 4), kind="rescaled", loop=0), -1)

    f = Builder()
    out = f.custom((1,), (2,), [x, m], (4, 4), build)
    assert feeds_exponential(KernelGraph("rescaled", [x, m], f.nodes, [out])) == [False, True]
