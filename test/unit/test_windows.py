"""Convolutions and pooling: lowered programs against loops written out, certificates, and what must be refused.

The refused ones are faults of published optimizers: padding ignored, a kernel taken for its transpose, borders
clipped, padding of maxima by zeros.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from superopt.cost import KernelCost, cost, target
from superopt.cost.model import kernel_cost
from superopt.errors import IllegalProgram
from superopt.nests import Atom, Index
from superopt.operators import OPERATORS, infer_type, nest_of
from superopt.program import (
    Attr,
    Compute,
    KernelGraph,
    Load,
    Loop,
    Node,
    Statement,
    TensorType,
    TileProgram,
    Value,
)
from superopt.program import rebuild_statements as rebuilt
from superopt.spec import check_kernel
from superopt.transforms.derivation.channels_last import channels_last
from superopt.transforms.derivation.optimizer import DerivationOptimizer
from superopt.transforms.derivation.rules import RULES, SCALES, split_kernels
from superopt.transforms.emit.reference_source import torch_text
from superopt.transforms.lower.kernel_to_tile import fuse_windows
from superopt.transforms.lower.lower import lower
from superopt.verify import certify, check_each
from superopt.verify.checker import check_certificate
from superopt.verify.domains import FloatDomain, Tensor
from superopt.verify.evaluate import evaluate
from superopt.verify.reduce import fewer_blocks, fewer_trips, reduce_extents

Array = np.ndarray[Any, Any]
Attrs = dict[str, Attr]


def windows(rank: int, stride: int = 1, dilation: int = 1, pad: int = 0, **more: Attr) -> Attrs:
    numbers = {"strides": stride, "dilations": dilation, "low": pad, "high": pad}
    return {**{name: (number,) * rank for name, number in numbers.items()}, **more}


def program(op: str, shapes: list[tuple[int, ...]], attrs: Attrs, *, behind: bool = False) -> KernelGraph:
    """One operator; `behind` it a bias, an addend and a maximum with zero."""
    inputs = [Value(TensorType(s, "f32"), name) for s, name in zip(shapes, "xw", strict=False)]
    result = Value(infer_type(op, [v.type for v in inputs], attrs))
    nodes = [Node(op, tuple(inputs), (result,), attrs)]
    if behind:
        bias = Value(TensorType((result.shape[1], *(1,) * (len(result.shape) - 2)), "f32"), "b")
        addend = Value(result.type, "r")
        inputs += [bias, addend]
        for name, more in (("add", (bias,)), ("add", (addend,)), ("relu", ())):
            before, result = result, Value(result.type)
            nodes.append(Node(name, (before, *more), (result,)))
    return KernelGraph("f", inputs, nodes, [result])


def run(graph: KernelGraph, arrays: list[Array]) -> Array:
    domain = FloatDomain()
    return evaluate(graph, [domain.tensor(x) for x in arrays], domain)[0].planes[0]


def drawn(graph: KernelGraph, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(v.shape) - 0.5 for v in graph.inputs]


# --- an oracle: the definition, position by position ------------------------------------------------------


def by_definition(op: str, attrs: Any, x: Array, w: Array | None) -> Array:
    """What the operators' documentation says, in plain loops."""
    rank, low = x.ndim - 2, attrs["low"]
    if op == "pool_max":
        x = np.pad(x, [(0, 0), (0, 0), *zip(low, attrs["high"], strict=True)], constant_values=-np.inf)
    elif op != "conv_transpose":
        x = np.pad(x, [(0, 0), (0, 0), *zip(low, attrs["high"], strict=True)])
    strides, dilations = attrs["strides"], attrs["dilations"]
    sizes = attrs["sizes"] if w is None else w.shape[2:]
    spans = [d * (k - 1) + 1 for k, d in zip(sizes, dilations, strict=True)]
    if op == "conv_transpose":
        assert w is not None
        groups, depth, columns = attrs["groups"], x.shape[1] // attrs["groups"], w.shape[1]
        full = [(e - 1) * s + n for e, s, n in zip(x.shape[2:], strides, spans, strict=True)]
        extended = [n + e for n, e in zip(full, attrs["extra"], strict=True)]
        out = np.zeros((x.shape[0], columns * groups, *extended))
        for p in np.ndindex(*x.shape[2:]):
            for k in np.ndindex(*sizes):
                at = tuple(s * i + d * j for s, i, d, j in zip(strides, p, dilations, k, strict=True))
                for g in range(groups):
                    rows = slice(g * depth, (g + 1) * depth)
                    part = x[(slice(None), rows, *p)] @ w[(rows, slice(None), *k)]
                    out[(slice(None), slice(g * columns, (g + 1) * columns), *at)] += part
        cut = tuple(slice(a, n - b) for a, b, n in zip(low, attrs["high"], extended, strict=True))
        return out[(slice(None), slice(None), *cut)]
    placed = [(e - n) // s + 1 for e, n, s in zip(x.shape[2:], spans, strides, strict=True)]
    channels = x.shape[1] if w is None else w.shape[0]
    out = np.zeros((x.shape[0], channels, *placed))
    for p in np.ndindex(*placed):
        cut = tuple(
            slice(s * i, s * i + n, d) for s, i, n, d in zip(strides, p, spans, dilations, strict=True)
        )
        window = x[(slice(None), slice(None), *cut)].reshape(*x.shape[:2], -1)
        if w is None:
            joined = window.max(-1) if op == "pool_max" else window.sum(-1)
        else:
            groups = attrs["groups"]
            apart = window.reshape(x.shape[0], groups, -1)
            kernel = w.reshape(groups, channels // groups, -1)
            joined = np.einsum("ngk,gfk->ngf", apart, kernel).reshape(x.shape[0], channels)
        out[(slice(None), slice(None), *p)] = joined
    assert rank == len(placed)
    return out


def some(rng: random.Random, op: str) -> tuple[list[tuple[int, ...]], Attrs]:
    """Shapes and attributes at random: 1 to 3 dimensions, strides, dilations, groups, pads on each side."""
    rank, groups = rng.randint(1, 3), rng.choice([1, 1, 2, 3])
    depth, columns = rng.choice([(1, 1), (2, 1), (1, 3), (2, 3), (4, 2), (17, 5)])
    extents = [rng.randint(3, 9 if rank < 3 else 5) for _ in range(rank)]
    sizes = tuple(rng.randint(1, 3) for _ in range(rank))
    attrs: Attrs = {
        "strides": tuple(rng.randint(1, 3) for _ in range(rank)),
        "dilations": tuple(rng.randint(1, 2) for _ in range(rank)),
        "low": tuple(rng.randint(0, 2) for _ in range(rank)),
        "high": tuple(rng.randint(0, 2) for _ in range(rank)),
    }
    image = (rng.randint(1, 2), depth * groups, *extents)
    if op.startswith("pool"):
        return [image], {**attrs, "sizes": sizes}
    if op == "conv":
        return [image, (columns * groups, depth, *sizes)], {**attrs, "groups": groups}
    extra = tuple(rng.randint(0, 1) for _ in range(rank))
    return [image, (depth * groups, columns, *sizes)], {**attrs, "groups": groups, "extra": extra}


@pytest.mark.parametrize("op", ["conv", "conv_transpose", "pool_max", "pool_sum"])
def test_random_ones_are_what_their_definition_says_and_so_are_their_kernels(op: str) -> None:
    rng, tried = random.Random(op), 0
    while tried < 12:
        shapes, attrs = some(rng, op)
        try:
            graph = program(op, shapes, attrs)
        except IllegalProgram:
            continue
        tried += 1
        arrays = drawn(graph, tried)
        expected = by_definition(op, attrs, arrays[0], arrays[1] if len(arrays) > 1 else None)
        np.testing.assert_allclose(run(graph, arrays), expected, rtol=1e-10, atol=1e-10)
        lowered = lower(graph)
        assert all(isinstance(n.body, TileProgram) for n in lowered.nodes)
        np.testing.assert_allclose(run(lowered, arrays), expected, rtol=1e-10, atol=1e-10)
        check_each(graph, lowered, "lowering")


CONVS: dict[str, tuple[list[tuple[int, ...]], Attrs]] = {
    "3x3": ([(1, 20, 9, 9), (24, 20, 3, 3)], windows(2, pad=1)),
    "strided": ([(2, 5, 9, 9), (6, 5, 3, 3)], windows(2, stride=2, pad=1)),
    "dilated": ([(1, 5, 9, 9), (6, 5, 3, 3)], windows(2, dilation=2, pad=2)),
    "grouped": ([(1, 32, 7, 7), (32, 16, 3, 3)], windows(2, pad=1, groups=2)),
    "depthwise": ([(1, 6, 7, 7), (6, 1, 3, 3)], windows(2, pad=1, groups=6)),
    "transposed": ([(1, 5, 4, 4), (5, 6, 4, 4)], windows(2, stride=2, pad=1, extra=(0, 0))),
    "transposed, in groups": (
        [(1, 4, 6, 6), (4, 2, 3, 3)],
        windows(2, stride=2, pad=1, extra=(0, 0), groups=4),
    ),
}


@pytest.mark.parametrize("name", CONVS)
def test_what_follows_is_computed_in_the_same_kernel(name: str) -> None:
    op = "conv_transpose" if name.startswith("transposed") else "conv"
    graph = program(op, *CONVS[name], behind=True)
    lowered = lower(graph)
    assert len(lowered.nodes) == 1
    arrays = drawn(graph)
    np.testing.assert_allclose(run(lowered, arrays), run(graph, arrays), rtol=1e-9, atol=1e-9)
    assert certify(graph, lowered).equivalent


# --- certificates -----------------------------------------------------------------------------------------


def twice(graph: KernelGraph) -> KernelGraph:
    """The same with its first operand doubled and its result halved: equal, and not by its text."""
    (x, *rest), node = graph.inputs, graph.nodes[0]
    two, half, doubled, y = (Value(t) for t in (x.type, node.result.type, x.type, node.result.type))
    splat = {"dtype": "f32"}
    nodes = [
        Node("constant", (), (two,), {"value": 2.0, "shape": two.shape, **splat}),
        Node("constant", (), (half,), {"value": 0.5, "shape": half.shape, **splat}),
        Node("mul", (x, two), (doubled,)),
        replace(node, operands=(doubled, *node.operands[1:])),
        Node("mul", (node.result, half), (y,)),
    ]
    return KernelGraph(graph.name, [x, *rest], nodes, [y])


@pytest.mark.parametrize(
    ("shapes", "attrs", "reduced"),
    [
        ([(1, 64, 56, 56), (64, 64, 3, 3)], windows(2, pad=1), (1, 2, 4, 4)),
        ([(1, 64, 56, 56), (64, 64, 3, 3)], windows(2, stride=2, pad=1), (1, 2, 6, 6)),
        ([(1, 3, 224, 224), (64, 3, 7, 7)], windows(2, stride=2, pad=3), (1, 2, 10, 10)),
        ([(2, 32, 28, 28), (32, 1, 3, 3)], windows(2, pad=1, groups=32), (2, 2, 4, 4)),
        ([(1, 512, 14, 14), (256, 512, 3, 3)], windows(2, dilation=2, pad=2), (1, 2, 6, 6)),
        ([(1, 64, 57, 57), (64, 64, 3, 3)], windows(2, stride=2), (1, 2, 57, 57)),
    ],
)
def test_reduced_extents_keep_borders_and_an_inside(
    shapes: list[tuple[int, ...]], attrs: Attrs, reduced: tuple[int, ...]
) -> None:
    """Sizes, strides, dilations and pads stay; some window is inside, and one at each border is not."""
    graph = program("conv", shapes, attrs)
    pair = reduce_extents(graph, twice(graph))
    assert pair is not None
    small = pair[0].nodes[0]
    assert small.operands[0].shape == reduced
    assert small.operands[1].shape[2:] == shapes[1][2:]
    assert {k: v for k, v in small.attrs.items() if k != "groups"} == {
        k: v for k, v in attrs.items() if k != "groups"
    }
    nest = nest_of(small)
    assert nest is not None
    for axis in (2, 3):
        index = nest.operands[0][axis]
        inside: list[bool] = []
        assert index.dim is not None
        for y in range(nest.extents[index.dim]):
            point = {index.dim: y, index.atoms[0].dim: np.arange(nest.extents[index.atoms[0].dim])}
            place, _ = index.at(point)
            inside.append(bool(((place >= 0) & (place < small.operands[0].shape[axis])).all()))
        assert any(inside)
        assert inside[0] == (attrs["low"] == (0, 0))
    assert certify(graph, twice(graph)).equivalent


IMAGE = [(1, 4, 6, 6), (4, 4, 3, 3)]


def turned(graph: KernelGraph, perm: tuple[int, ...]) -> KernelGraph:
    """The convolution by its weight with dimensions in another order."""
    x, w = graph.inputs
    v = Value(w.type)
    nodes = [Node("transpose", (w,), (v,), {"perm": perm}), replace(graph.nodes[0], operands=(x, v))]
    return KernelGraph("f", [x, w], nodes, graph.outputs)


def clipped(graph: KernelGraph) -> KernelGraph:
    """The first and last row of the result are zeros, as where borders are left out."""
    (y,) = graph.outputs
    n, f, rows, columns = y.shape
    inner, zeros, out = (
        Value(TensorType((n, f, rows - 2, columns), "f32")),
        Value(TensorType((n, f, 1, columns), "f32")),
        Value(y.type),
    )
    cut: Attrs = {"offsets": (0, 0, 1, 0), "sizes": inner.shape, "strides": (1, 1, 1, 1)}
    nodes = [
        *graph.nodes,
        Node("slice", (y,), (inner,), cut),
        Node("constant", (), (zeros,), {"value": 0.0, "shape": zeros.shape, "dtype": "f32"}),
        Node("concat", (zeros, inner, zeros), (out,), {"dim": 2}),
    ]
    return KernelGraph("f", graph.inputs, nodes, [out])


def padded_by_zeros(graph: KernelGraph) -> KernelGraph:
    """Zeros around the operand in place of the maximum's own padding."""
    node, (x,) = graph.nodes[0], graph.inputs
    wide = Value(TensorType((*x.shape[:2], *(e + 2 for e in x.shape[2:])), "f32"))
    nodes = [
        Node("pad", (x,), (wide,), {"low": (0, 0, 1, 1), "high": (0, 0, 1, 1)}),
        replace(node, operands=(wide,), attrs={**node.attrs, "low": (0, 0), "high": (0, 0)}),
    ]
    return KernelGraph("f", [x], nodes, graph.outputs)


CONV = program("conv", IMAGE, windows(2, pad=1))
MAXIMUM = program("pool_max", IMAGE[:1], windows(2, stride=2, pad=1, sizes=(3, 3)))
WRONG: dict[str, tuple[KernelGraph, KernelGraph]] = {
    "pads on one side": (CONV, program("conv", IMAGE, {**windows(2), "low": (2, 2), "high": (0, 0)})),
    "pads of one dimension on the other": (
        program("conv", [(1, 4, 6, 6), (4, 4, 3, 1)], {**windows(2), "low": (1, 0), "high": (1, 0)}),
        program("conv", [(1, 4, 6, 6), (4, 4, 3, 1)], {**windows(2), "low": (2, 0), "high": (0, 0)}),
    ),
    "the transposed kernel": (CONV, turned(CONV, (0, 1, 3, 2))),
    "channels transposed": (CONV, turned(CONV, (1, 0, 2, 3))),
    "clipped borders": (CONV, clipped(CONV)),
    "another dilation": (
        program("conv", [(1, 2, 9), (2, 2, 3)], windows(1, dilation=2, pad=2)),
        program("conv", [(1, 2, 9), (2, 2, 3)], windows(1, dilation=1, pad=1)),
    ),
    "a maximum padded by zeros": (MAXIMUM, padded_by_zeros(MAXIMUM)),
    "a sum in place of a maximum": (
        MAXIMUM, program("pool_sum", IMAGE[:1], windows(2, stride=2, pad=1, sizes=(3, 3))),
    ),
}  # fmt: skip


def test_masks_of_equal_bounds_shrink_with_what_they_guard() -> None:
    """Both convolutions sum over 32 channels in one tile; of the first, they are blocks of the pooling before it."""
    attrs, wide = windows(2, pad=1), (1, 32, 56, 56)
    graph = program("pool_max", [(1, 32, 112, 112)], windows(2, stride=2, pad=1, sizes=(3, 3)))
    inputs, nodes, result = list(graph.inputs), list(graph.nodes), graph.outputs[0]
    for name in "vw":
        inputs.append(Value(TensorType((32, 32, 3, 3), "f32"), name))
        before, result = result, Value(TensorType(wide, "f32"))
        nodes.append(Node("conv", (before, inputs[-1]), (result,), attrs))
    graph = KernelGraph("f", inputs, nodes, [result])
    shorter = fewer_trips(graph, lower(graph), trips=4)
    assert shorter is not None
    check_kernel(shorter[1])


@pytest.mark.parametrize("name", WRONG)
def test_published_faults_are_refused(name: str) -> None:
    assert not certify(*WRONG[name]).equivalent


def test_a_sum_may_be_padded_by_zeros() -> None:
    graph = program("pool_sum", IMAGE[:1], windows(2, stride=2, pad=1, sizes=(3, 3)))
    assert certify(graph, padded_by_zeros(graph)).equivalent


def test_the_checker_reads_windows_by_itself() -> None:
    """Convolutions, transposed and in groups, and what a rule makes of each: checked by its own arithmetic."""
    for name, rule in (("3x3", "offset-add"), ("transposed", "sub-pixels"), ("dilated", "residues-as-batch")):
        (x, w), attrs = CONVS[name]
        small = [(1, 2, *x[2:]), (2, 2, *w[2:])]
        graph = program("conv_transpose" if name == "transposed" else "conv", small, attrs)
        made = RULES[rule](graph, graph.nodes[0])
        assert made is not None
        certificate = certify(graph, made).certificate
        assert certificate is not None
        assert check_certificate(certificate.model_dump_json()).faults == []


def without_a_place(graph: KernelGraph) -> KernelGraph:
    """The same convolution but for the first kernel position, which is read as zero."""
    x, w = graph.inputs
    kept = np.ones((1, 1, *w.shape[2:]))
    kept[(0,) * kept.ndim] = 0.0
    held: Attrs = {"value": kept, "shape": kept.shape, "dtype": "f32"}
    mask, product = Value(TensorType(kept.shape, "f32")), Value(w.type)
    node = replace(graph.nodes[0], operands=(x, product))
    nodes = [Node("constant", (), (mask,), held), Node("mul", (w, mask), (product,)), node]
    return replace(graph, nodes=nodes)


@pytest.mark.parametrize("size", [5, 7])
def test_blocks_that_are_compared_have_every_kernel_position_inside(size: int) -> None:
    """Images too large to be compared whole: of two positions alone, the first ones are in the padding."""
    graph = program("conv", [(8, 8, 300, 300), (8, 8, size, size)], windows(2, pad=size // 2))
    wrong = without_a_place(graph)
    lowered, wrong_lowered = lower(graph), lower(wrong)
    assert certify(graph, lowered).equivalent
    for one, other in ((graph, wrong), (graph, wrong_lowered), (lowered, wrong_lowered)):
        fewer = fewer_blocks(one, other)
        assert fewer is not None
        assert fewer[0].inputs[0].shape[-2] < 300
        assert not certify(one, other).equivalent


# --- guards -----------------------------------------------------------------------------------------------


def changed(lowered: KernelGraph, change: Any) -> KernelGraph:
    """The lowered program with each statement of its kernel changed."""
    (node,) = lowered.nodes
    assert isinstance(node.body, TileProgram)
    body = replace(node.body, body=rebuilt(node.body.body, lambda s: [change(s)]))
    return replace(lowered, nodes=[replace(node, body=body)])


def without_guard(statement: Statement) -> Statement:
    """Windows are held inside: what a kernel without a guard at borders would read."""
    if isinstance(statement, Load):
        inside = tuple(replace(w, base=max(w.base, 0)) for w in statement.windows)
        return replace(statement, windows=inside)
    if isinstance(statement, Compute) and statement.bounds:
        bounds = tuple(
            replace(b, window=replace(b.window, base=max(b.window.base, 0))) for b in statement.bounds
        )
        return replace(statement, bounds=bounds)
    return statement


def filled(number: float) -> Any:
    def change(statement: Statement) -> Statement:
        if isinstance(statement, Compute) and statement.bounds:
            return replace(statement, attrs={**statement.attrs, "fill": number})
        return statement

    return change


@pytest.mark.parametrize(
    ("graph", "change"),
    [(CONV, without_guard), (CONV, filled(1.0)), (MAXIMUM, filled(0.0)), (MAXIMUM, without_guard)],
    ids=["borders unguarded", "filled with ones", "maximum filled with zeros", "maximum unguarded"],
)
def test_a_kernel_with_another_guard_is_refused(graph: KernelGraph, change: Any) -> None:
    lowered = lower(graph)
    assert certify(graph, lowered).equivalent
    assert not certify(graph, changed(lowered, change)).equivalent


def test_a_convolution_of_a_slice_reads_it_in_place_within_its_bounds() -> None:
    """Neither what the slice leaves out nor what is outside of its operand is read."""
    graph = program("conv", [(1, 3, 5, 9), (4, 3, 3, 3)], windows(2, pad=1))
    x, node = Value(TensorType((1, 3, 12, 9), "f32"), "x"), graph.nodes[0]
    cut: Attrs = {"offsets": (0, 0, 2, 0), "sizes": (1, 3, 5, 9), "strides": (1, 1, 2, 1)}
    nodes = [Node("slice", (x,), (node.operands[0],), cut), node]
    graph = replace(graph, inputs=[x, node.operands[1]], nodes=nodes)
    lowered = lower(graph)
    assert len(lowered.nodes) == 1
    arrays = drawn(graph)
    np.testing.assert_allclose(run(lowered, arrays), run(graph, arrays), rtol=1e-10, atol=1e-10)
    assert certify(graph, lowered).equivalent

    def more(statement: Statement) -> Statement:
        if isinstance(statement, Compute) and statement.bounds:
            bounds = (replace(b, extent=b.extent + 3 * (b.extent == 5)) for b in statement.bounds)
            return replace(statement, bounds=tuple(bounds))
        return statement

    with pytest.raises(IllegalProgram, match="windows that start within"):
        check_kernel(changed(lowered, more))


# --- the reference of a bundle -----------------------------------------------------------------------------


REFERENCES: dict[str, tuple[list[tuple[int, ...]], Attrs]] = {
    "conv": ([(2, 4, 7, 6), (6, 2, 3, 2)], {**windows(2, stride=2, dilation=2, groups=2), "low": (2, 0), "high": (1, 2)}),
    "conv_transpose": (
        [(1, 4, 5), (4, 3, 3)], windows(1, stride=3, dilation=2, pad=1, extra=(2,), groups=2),
    ),
    "pool_max": ([(2, 3, 7, 6)], {**windows(2, stride=2, sizes=(3, 2)), "low": (2, 0), "high": (1, 1)}),
    "pool_sum": ([(2, 3, 7)], windows(1, dilation=2, pad=2, sizes=(3,))),
    "shifted_sum": ([(2, 3, 2, 4, 6, 5)], windows(2, pad=1)),
    "g2bmm": ([(2, 7, 4), (2, 5, 4)], {"width": 4, "dilation": 2, "low": 3}),
    "gbmm": ([(7, 3), (12, 4)], {"dilation": 2, "low": 1}),
    "nest": (
        [(2, 3, 9), (4, 3, 2)],
        {
            "extents": (2, 4, 6, 3, 2), "rank": 3, "where": "d2 + d0 - 1 >= 0",
            "maps": "(d0, d3, 2 * d2 - d4 floordiv 2 + d4 - 1); (d1, d3, d4)",
            "guards": "d2 - 3 * (d2 floordiv 3) + d4 - 1 >= 0 or d0 == 0; true",
        },
    ),
    "pad": ([(2, 3, 4)], {"low": (0, 1, 2), "high": (1, 0, 0), "value": -1.5}),
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("op", [name for name, entry in OPERATORS.items() if entry.windowed])
def test_pytorch_says_the_same(op: str) -> None:
    """What a bundle checks its kernels against."""
    torch: Any = pytest.importorskip("torch")
    graph = program(op, *REFERENCES[op])
    arrays = drawn(graph)
    names = {f"x{i}": torch.tensor(x) for i, x in enumerate(arrays)}
    shapes = [v.shape for v in graph.inputs]
    text = torch_text(op, list(names), shapes, dict(graph.nodes[0].attrs))
    found = eval(text, {"torch": torch, "like": names["x0"], **names})
    np.testing.assert_allclose(found.numpy(), run(graph, arrays), rtol=1e-10, atol=1e-10)


# --- indices ----------------------------------------------------------------------------------------------


def test_an_index_takes_the_floor_of_negative_numbers() -> None:
    """-3 / 2 is -2 and leaves a remainder; a quotient that is truncated would be -1."""
    index = Index(0, 1, -3, divisor=2)
    places, exact = index.at({0: np.arange(5)})
    assert places.tolist() == [-2, -1, -1, 0, 0]
    assert exact.tolist() == [False, True, False, True, False]
    grouped = Index(0, atoms=(Atom(1, 4, 3),))
    assert [grouped.at({0: 1, 1: f})[0] for f in range(7)] == [1, 1, 1, 5, 5, 5, 9]


def test_flops_count_what_is_whole() -> None:
    """A transposed convolution has as many products as the convolution that it is the transpose of."""
    strided, shapes = windows(1, stride=2), [(1, 4, 9), (6, 4, 3)]
    forward = OPERATORS["conv"].flops(shapes, {**strided, "groups": 1})
    back = OPERATORS["conv_transpose"].flops([(1, 6, 4), (6, 4, 3)], {**strided, "groups": 1, "extra": (0,)})
    assert forward == 2 * 6 * 4 * 3 * 4
    assert back == pytest.approx(forward, rel=0.2)


def scaled(graph: KernelGraph, rng: random.Random) -> None:
    """Shift and scale the channels of the only result by weights, in any order, in the middle by a number of all."""
    y, channels, rank = graph.outputs[0], graph.outputs[0].shape[1], len(graph.outputs[0].shape) - 2
    for i in range(rng.randint(1, 5)):
        size = 1 if i == 2 else channels
        shape = rng.choice([(1, size, *(1,) * rank), (size, *(1,) * rank)])
        graph.inputs.append(Value(TensorType(shape, "f32")))
        op = rng.choice(["add", "sub", "mul", "mul"])
        operands = [y, graph.inputs[-1]]
        if op != "sub" and rng.random() < 0.5:
            operands.reverse()
        y = Value(y.type)
        graph.nodes.append(Node(op, tuple(operands), (y,), {}))
    graph.outputs[0] = y
    graph.weights = tuple(range(1, len(graph.inputs)))


# Those of other operators are in test_band_products.py and test_merged_products.py.
OF_WINDOWS = [name for name in RULES if not name.startswith("band-") and not name.endswith("-matmul")]


def test_kernels_are_split_in_every_way() -> None:
    """In as many positions as there are, or fewer, along each dimension; and so without hints, step by step."""
    graph, made = program("conv", [(1, 2, 6, 7), (3, 2, 3, 4)], windows(2, pad=2)), 0
    for inner in itertools.product((1, 2, 3), (1, 2, 3, 4)):
        split = split_kernels(graph, graph.nodes[0], inner)
        if split is None:
            assert inner == (3, 4), "the kernel as it is"
            continue
        made += 1
        assert certify(graph, split).equivalent, inner
        arrays = [np.round(9 * x) for x in some_arrays(graph)]
        np.testing.assert_array_equal(run(split, arrays), run(graph, arrays))
    assert made == 11
    one = program("conv", [(1, 2, 6), (3, 2, 3)], windows(1, pad=1))
    assert split_kernels(one, one.nodes[0], (1,)) is not None
    few = program("conv", [(1, 2, 6), (3, 2, 5)], windows(1, pad=1))
    assert split_kernels(few, few.nodes[0], (3,)) is None, "kernels of three begin two before what is read"
    hinted = DerivationOptimizer(limit=100).propose(one, target("sm_90"), budget=60)
    every = DerivationOptimizer(limit=100, hints=False).propose(one, target("sm_90"), budget=60)
    assert hinted.complete
    assert every.complete
    assert hinted.funnel["rule smaller-kernels"] == 0 < every.funnel["rule smaller-kernels"]
    assert hinted.funnel["looked at"] < every.funnel["looked at"]


def some_arrays(graph: KernelGraph) -> list[Array]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(v.shape) for v in graph.inputs]


@pytest.mark.parametrize("rule", OF_WINDOWS)
def test_rules_give_what_is_equal(rule: str) -> None:
    """Each rule on random convolutions, wherever it fits; proved, and computed."""
    rng, fitted = random.Random(rule), 0
    for _ in range(400):
        op = "conv_transpose" if rule == "sub-pixels" else "conv"
        op = rng.choice(["conv", "conv_transpose"]) if rule == SCALES else op
        op = "pool_sum" if rule == "pool-as-conv" else op
        shapes, attrs = some(rng, op)
        if rule in ("product", "sub-pixels"):
            attrs |= {"dilations": (1,) * (len(shapes[0]) - 2)}
        if rule == "product":
            rank = len(shapes[0]) - 2
            shapes[1], attrs = (*shapes[1][:2], *(1,) * rank), {**windows(rank), "groups": attrs["groups"]}
        if rule == "smaller-kernels":
            rank = len(shapes[0]) - 2
            shapes, attrs = (
                [shapes[0], (3, shapes[0][1], *(rng.choice([4, 5]),) * rank)],
                windows(rank, pad=2),
            )
        try:
            graph = program(op, shapes, attrs)
        except IllegalProgram:
            continue
        if rule == "one-product":
            x, w = graph.inputs
            v = Value(TensorType((3, *w.shape[1:]), "f32"))
            try:
                y = Value(infer_type("conv", [x.type, v.type], attrs))
            except IllegalProgram:
                continue
            graph.inputs.append(v)
            graph.nodes.append(Node("conv", (x, v), (y,), dict(attrs)))
            graph.outputs.append(y)
        if rule == "as-groups" and attrs["groups"] == 1:
            x, w = (Value(v.type, name) for v, name in zip(graph.inputs, "uv", strict=True))
            w = Value(TensorType((w.shape[0] + 2, *w.shape[1:]), "f32"), "v")
            y = Value(infer_type("conv", [x.type, w.type], attrs))
            graph.inputs += [x, w]
            graph.nodes.append(Node("conv", (x, w), (y,), attrs))
            graph.outputs.append(y)
        if rule == SCALES:
            scaled(graph, rng)
        made = RULES[rule](graph, graph.nodes[0])
        if made is None:
            continue
        fitted += 1
        arrays = drawn(graph, fitted)
        np.testing.assert_allclose(run(made, arrays), run(graph, arrays), rtol=1e-9, atol=1e-9)
        assert certify(graph, made).equivalent, (rule, shapes, attrs)
        if fitted == (12 if rule == SCALES else 6):
            break
    assert fitted >= 3


# --- channels last ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["conv", "conv_transpose", "pool_max", "pool_sum"])
def test_channels_last_is_equal_and_so_are_its_kernels(op: str) -> None:
    """Two in a row, with a bias, an addend and a maximum behind the first; proved, and computed."""
    rng, tried = random.Random(op), 0
    while tried < 6:
        shapes, attrs = some(rng, op)
        try:
            graph = program(op, shapes, attrs, behind=True)
            before, rank = graph.outputs[0], len(shapes[0]) - 2
            again = program("pool_sum", [before.shape], windows(rank, pad=1, sizes=(2,) * rank))
        except IllegalProgram:
            continue
        (node,) = again.nodes
        graph = replace(graph, nodes=[*graph.nodes, replace(node, operands=(before,))], outputs=[node.result])
        made = channels_last(graph)
        assert made is not None
        check_kernel(made)
        certificate = certify(graph, made).certificate
        assert certificate is not None
        arrays = drawn(graph)
        np.testing.assert_allclose(run(lower(made), arrays), run(graph, arrays), atol=1e-9)
        tried += 1


def residual_network() -> KernelGraph:
    """A strided convolution, a maximum, two convolutions with a residual, and a mean over positions, in f16."""
    graph = program("conv", [(1, 3, 32, 32), (32, 3, 3, 3)], windows(2, stride=2, pad=1), behind=False)
    inputs, nodes, value = list(graph.inputs), list(graph.nodes), graph.outputs[0]

    def then(op: str, *more: Value, **attrs: Attr) -> Value:
        result = Value(infer_type(op, [value.type, *(v.type for v in more)], attrs))
        nodes.append(Node(op, (value, *more), (result,), attrs))
        return result

    value = then("relu")
    value = before = then("pool_max", **windows(2, stride=2, pad=1, sizes=(3, 3)))
    for name in "vu":
        inputs.append(Value(TensorType((32, 32, 3, 3), "f32"), name))
        value = then("conv", inputs[-1], **windows(2, pad=1))
    value = then("add", before)
    value = then("relu")
    value = then("reduce_mean", dims=(2, 3))
    return KernelGraph("network", inputs, nodes, [value])


def test_a_network_moves_weights_alone_and_computes_what_follows_in_the_same_kernel() -> None:
    graph = residual_network()
    made = channels_last(graph)
    assert made is not None
    fused = fuse_windows(made, target("sm_90"))
    moved = [n.operands[0] for n in fused.nodes if n.op == "transpose"]
    assert {v.name for v in moved} <= {"w", "v", "u"}
    kernels = [n.body for n in fused.nodes if isinstance(n.body, TileProgram)]
    assert len(kernels) == 4
    for kernel in kernels[1:]:  # channels lie side by side in what is loaded of images, and in what is stored
        for statement in kernel.statements():
            if not isinstance(statement, Compute | Loop) and len(statement.windows) == 4:
                assert statement.buffer.type.shape[-1] == 32
    assert certify(graph, made).equivalent
    arrays = drawn(graph)
    np.testing.assert_allclose(run(lower(made), arrays), run(graph, arrays), atol=1e-9)


def test_operands_are_spread_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are along a dimension of what is spread over most: not along columns, though there are more of them."""
    graph = program("conv", [(1, 8, 16, 16), (64, 8, 3, 3)], windows(2, pad=1))
    sizes: list[int] = []

    class Counted(FloatDomain):
        @override
        def move(self, arrange: Callable[..., Array], *operands: Tensor) -> Tensor:
            made = super().move(arrange, *operands)
            sizes.append(math.prod(made.shape))
            return made

    def evaluated() -> Array:
        domain = Counted()
        return evaluate(graph, [domain.tensor(a) for a in drawn(graph)], domain)[0].planes[0]

    whole, most = evaluated(), max(sizes)
    sizes.clear()
    limit = 1 << 14
    monkeypatch.setattr("superopt.verify.evaluate_operator._SPREAD", limit)
    np.testing.assert_allclose(evaluated(), whole, atol=1e-9)
    assert max(sizes) <= limit < most


def test_equal_kernels_of_many_graphs_are_written_and_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, gpu, priced = residual_network(), target("sm_90"), list[Node]()

    def counted(node: Node, *rest: Any) -> KernelCost:
        priced.append(node)
        return kernel_cost(node, *rest)

    monkeypatch.setattr("superopt.cost.model.kernel_cost", counted)
    kernels: dict[Hashable, TileProgram] = {}
    known: dict[Hashable, KernelCost] = {}
    first = fuse_windows(graph, gpu, kernels)
    before = cost(first, gpu, known)
    bodies = [n.body for n in first.nodes if n.body is not None]
    assert len(bodies) == len({*bodies}) == len(kernels)  # none is twice in one graph
    count = len(priced)
    again = fuse_windows(copy.deepcopy(graph), gpu, kernels)
    assert [n.body for n in again.nodes if n.body is not None] == bodies
    assert cost(again, gpu, known) == before
    assert len(priced) == count
    assert cost(again, gpu) == before


def test_kernels_with_other_constants_or_names_are_others() -> None:
    gpu, kernels = target("sm_90"), dict[Hashable, TileProgram]()

    def scaled(number: float, name: str) -> KernelGraph:
        graph = program("conv", [(1, 16, 8, 8), (16, 16, 3, 3)], windows(2, pad=1))
        y, factor = graph.outputs[0], Value(TensorType((), "f32"))
        graph.inputs[0].name = name
        constant = Node("constant", (), (factor,), {"shape": (), "value": number, "dtype": "f32"})
        product = Node("mul", (y, factor), (Value(y.type),))
        return replace(graph, nodes=[*graph.nodes, constant, product], outputs=[product.result])

    for number, name in ((2.0, "x"), (3.0, "x"), (2.0, "image"), (2.0, "x")):
        graph = scaled(number, name)
        fused = fuse_windows(graph, gpu, kernels)
        assert certify(graph, fused).equivalent
        assert [n.body.params[0].name for n in fused.nodes if isinstance(n.body, TileProgram)] == [name]
    assert len(kernels) == 3


def test_a_program_with_channels_last_moves_nothing() -> None:
    """As other frameworks write it: images (n, y, x, c), weights (k, k, c, f), all that follows in that layout."""
    x, w, v, bias, addend = (
        Value(TensorType(shape, "f32"), name)
        for name, shape in (
            ("x", (1, 8, 9, 6)), ("w", (3, 3, 6, 5)), ("v", (3, 3, 5, 4)), ("b", (5,)), ("r", (1, 8, 9, 5)),
        )
    )  # fmt: skip
    nodes: list[Node] = []

    def then(op: str, *operands: Value, **attrs: Attr) -> Value:
        nodes.append(Node(op, operands, (Value(infer_type(op, [o.type for o in operands], attrs)),), attrs))
        return nodes[-1].result

    def conv(image: Value, weight: Value) -> Value:
        turned = then("transpose", image, perm=(0, 3, 1, 2)), then("transpose", weight, perm=(3, 2, 0, 1))
        return then("transpose", then("conv", *turned, **windows(2, pad=1)), perm=(0, 2, 3, 1))

    y = then("relu", then("add", then("add", conv(x, w), bias), addend))
    graph = KernelGraph("f", [x, w, v, bias, addend], nodes, [conv(y, v)])
    fused = fuse_windows(graph, target("sm_90"))
    assert [n.body is not None for n in fused.nodes] == [True, True]
    assert certify(graph, fused).equivalent
    arrays = drawn(graph)
    np.testing.assert_allclose(run(lower(graph), arrays), run(graph, arrays), atol=1e-9)


@pytest.mark.parametrize("perm", [(0, 1, 3, 2), (0, 2, 3, 1), (0, 3, 2, 1), (0, 3, 1, 2)])
def test_an_image_in_any_order_is_convolved(perm: tuple[int, ...]) -> None:
    """Only one order is read in place; the others are moved."""
    graph = program("conv", [(1, 6, 6, 6), (4, 6, 3, 3)], windows(2, pad=1), behind=True)
    x, source = graph.inputs[0], Value(graph.inputs[0].type, "source")
    result = Value(TensorType(tuple(graph.outputs[0].shape[p] for p in perm), "f32"))
    turned = Node("transpose", (source,), (x,), {"perm": perm})
    back = Node("transpose", (graph.outputs[0],), (result,), {"perm": perm})
    graph = replace(
        graph, inputs=[source, *graph.inputs[1:]], nodes=[turned, *graph.nodes, back], outputs=[result]
    )
    arrays = drawn(graph)
    np.testing.assert_allclose(run(lower(graph), arrays), run(graph, arrays), atol=1e-9)
