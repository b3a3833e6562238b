"""Band products: their definition, their kernels, certificates, what must be refused, and how linalg says them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ingest_support import read_text

from superopt.errors import IllegalProgram
from superopt.operators import infer_type
from superopt.program import (
    Attr,
    Compute,
    KernelGraph,
    Load,
    Node,
    Statement,
    TensorType,
    TileProgram,
    Value,
)
from superopt.program import rebuild_statements as rebuilt
from superopt.transforms.derivation.mutants import exact
from superopt.transforms.derivation.mutants.derived import derived
from superopt.transforms.derivation.mutants.repairs import repairs
from superopt.transforms.derivation.rules import RULES
from superopt.transforms.lower.lower import lower
from superopt.verify import certify, check_each
from superopt.verify.checker import check_certificate
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.reduce import fewer_blocks
from superopt.verify.relation import Region, difference, equal_sizes

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def program(op: str, a: Shape, b: Shape, **attrs: Attr) -> KernelGraph:
    inputs = [Value(TensorType(a, "f32"), "a"), Value(TensorType(b, "f32"), "b")]
    result = Value(infer_type(op, [v.type for v in inputs], attrs))
    return KernelGraph("f", inputs, [Node(op, tuple(inputs), (result,), attrs)], [result])


def run(graph: KernelGraph, arrays: list[Array]) -> Array:
    domain = FloatDomain()
    return evaluate(graph, [domain.tensor(x) for x in arrays], domain)[0].planes[0]


def drawn(graph: KernelGraph) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(v.shape) for v in graph.inputs]


def by_definition(op: str, a: Array, b: Array, dilation: int, low: int, width: int = 0) -> Array:
    """Row by row and place by place."""
    rows, places = a.shape[-2], width or a.shape[-1]
    out = np.zeros((*a.shape[:-1], places) if width else (*a.shape[:-1], b.shape[-1]))
    for m in range(rows):
        for w in range(places):
            r = m + dilation * w - low
            if not 0 <= r < b.shape[-2]:
                continue
            if op == "g2bmm":
                out[..., m, w] = (a[..., m, :] * b[..., r, :]).sum(-1)
            else:
                out[..., m, :] += a[..., m, w, None] * b[..., r, :]
    return out


def some(rng: random.Random, op: str) -> tuple[Shape, Shape, dict[str, Attr]]:
    batch = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2)))
    rows, more, depth = rng.randint(1, 20), rng.randint(1, 22), rng.choice([1, 3, 16, 70])
    width, attrs = rng.randint(1, 6), {"dilation": rng.randint(1, 4), "low": rng.randint(0, 9)}
    if op == "g2bmm":
        return (*batch, rows, depth), (*batch, more, depth), {**attrs, "width": width}
    return (*batch, rows, width), (*batch, more, depth), {**attrs}


@pytest.mark.parametrize("op", ["g2bmm", "gbmm"])
def test_random_ones_are_what_their_definition_says_and_so_are_their_kernels(op: str) -> None:
    rng = random.Random(op)
    for _ in range(12):
        a, b, attrs = some(rng, op)
        graph = program(op, a, b, **attrs)
        arrays = drawn(graph)
        numbers = {name: int(str(n)) for name, n in attrs.items()}
        expected = by_definition(op, arrays[0], arrays[1], **numbers)
        np.testing.assert_allclose(run(graph, arrays), expected, rtol=1e-10, atol=1e-10)
        lowered = lower(graph)
        assert all(isinstance(n.body, TileProgram) for n in lowered.nodes)
        np.testing.assert_allclose(run(lowered, arrays), expected, rtol=1e-10, atol=1e-10)
        check_each(graph, lowered, "lowering")


G2BMM = program("g2bmm", (2, 24, 16), (2, 24, 16), dilation=4, low=8, width=5)
GBMM = program("gbmm", (2, 24, 5), (2, 24, 16), dilation=4, low=8)


@pytest.mark.parametrize("graph", [G2BMM, GBMM])
def test_kernels_are_certified_and_certificates_checked(graph: KernelGraph) -> None:
    lowered = lower(graph)
    certificate = certify(graph, lowered).certificate
    assert certificate is not None
    assert check_certificate(certificate.model_dump_json()).faults == []


@pytest.mark.parametrize("graph", [G2BMM, GBMM])
@pytest.mark.parametrize("fault", [{"dilation": 3}, {"low": 7}, {"low": 0}])
def test_other_bands_are_refused(graph: KernelGraph, fault: dict[str, Attr]) -> None:
    attrs: dict[str, Attr] = {**graph.nodes[0].attrs, **fault}
    other = program(graph.nodes[0].op, *(v.shape for v in graph.inputs), **attrs)
    assert not certify(graph, other).equivalent
    assert not certify(graph, lower(other)).equivalent


@pytest.mark.parametrize("graph", [G2BMM, GBMM])
def test_a_band_whose_ends_are_not_masked_is_refused(graph: KernelGraph) -> None:
    lowered = lower(graph)
    (node,) = lowered.nodes
    assert isinstance(node.body, TileProgram)

    def held_inside(statement: Statement) -> list[Statement]:
        """The first rows are read again, in place of what is above them."""
        if isinstance(statement, Load):
            windows = tuple(replace(w, base=max(w.base, 0)) for w in statement.windows)
            return [replace(statement, windows=windows)]
        if isinstance(statement, Compute) and statement.bounds:
            bounds = [
                replace(b, window=replace(b.window, base=max(b.window.base, 0))) for b in statement.bounds
            ]
            return [replace(statement, bounds=tuple(bounds))]
        return [statement]

    body = replace(node.body, body=rebuilt(node.body.body, held_inside))
    changed = replace(lowered, nodes=[replace(node, body=body)])
    assert not certify(graph, changed).equivalent


@pytest.mark.parametrize("graph", [G2BMM, GBMM])
def test_the_relation_knows_where_bands_differ(graph: KernelGraph) -> None:
    """The first rows lack places above: with `low` one less, every row that reads anything differs."""
    attrs: dict[str, Attr] = {**graph.nodes[0].attrs, "dilation": 2}
    other = program(graph.nodes[0].op, *(v.shape for v in graph.inputs), **attrs)
    region = difference(graph, other)
    assert isinstance(region, Region)
    ones = [
        np.ones(graph.inputs[0].shape),
        np.arange(1.0, 1 + graph.inputs[1].type.elements).reshape(graph.inputs[1].shape),
    ]
    assert np.array_equal(region.mask(0), run(graph, ones) != run(other, ones))
    assert equal_sizes(graph, graph)


@pytest.mark.parametrize(
    ("a", "b", "attrs", "message"),
    [
        ((2, 4, 3), (3, 4, 3), {}, "one batch"),
        ((4, 3), (4, 2), {}, "one contracted extent"),
        ((4, 3), (4, 3), {"width": 0}, "positive width"),
        ((4, 3), (4, 3), {"dilation": 0}, "a dilation of at least 1"),
        ((4, 3), (4, 3), {"low": -1}, "a low of at least 0"),
    ],
)
def test_what_is_not_a_band_is_refused(a: Shape, b: Shape, attrs: dict[str, Attr], message: str) -> None:
    with pytest.raises(IllegalProgram, match=message):
        program("g2bmm", a, b, **{"width": 3, "low": 1, **attrs})


# --- linalg -----------------------------------------------------------------------------------------------


def generic(first: str, second: str, out: str, types: tuple[str, str, str], kinds: str) -> str:
    """A sum of products over four dimensions, b, m, x, y, whose second operand is padded by 4 rows at both ends."""
    a, b, c = types
    names = ", ".join(f'"{"parallel" if k == "p" else "reduction"}"' for k in kinds)
    return f"""
func.func @f(%a: tensor<{a}>, %b: tensor<{b}>) -> tensor<{c}> {{
  %zero = arith.constant 0.0 : f32
  %p = tensor.pad %b low[0, 4, 0] high[0, 4, 0] {{
  ^bb0(%i: index, %j: index, %k: index):
    tensor.yield %zero : f32
  }} : tensor<{b}> to tensor<2x20x6xf32>
  %e = tensor.empty() : tensor<{c}>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<{c}>) -> tensor<{c}>
  %y = linalg.generic {{
    indexing_maps = [affine_map<(b, m, x, y) -> ({first})>, affine_map<(b, m, x, y) -> ({second})>,
                     affine_map<(b, m, x, y) -> ({out})>],
    iterator_types = [{names}]
  }} ins(%a, %p : tensor<{a}>, tensor<2x20x6xf32>) outs(%f : tensor<{c}>) {{
  ^bb0(%s: f32, %t: f32, %acc: f32):
    %1 = arith.mulf %s, %t : f32
    %2 = arith.addf %acc, %1 : f32
    linalg.yield %2 : f32
  }} -> tensor<{c}>
  return %y : tensor<{c}>
}}
"""


def ingested(text: str) -> KernelGraph:
    return read_text(text)[0]


def test_linalg_says_a_band_of_a_product() -> None:
    types = ("2x12x6xf32", "2x12x6xf32", "2x12x5xf32")
    graph = ingested(generic("b, m, y", "b, m + x * 2, y", "b, m, x", types, "pppr"))
    assert [n.op for n in graph.nodes] == ["g2bmm"]
    arrays = drawn(graph)
    expected = by_definition("g2bmm", arrays[0], arrays[1], 2, 4, 5)
    np.testing.assert_allclose(run(graph, arrays), expected, rtol=1e-10, atol=1e-10)


def test_linalg_says_the_product_of_a_band() -> None:
    types = ("2x5x12xf32", "2x12x6xf32", "6x2x12xf32")
    graph = ingested(generic("b, y, m", "b, y * 2 + m, x", "x, b, m", types, "pppr"))
    assert "extern" not in [n.op for n in graph.nodes]
    arrays = drawn(graph)
    expected = by_definition("gbmm", arrays[0].swapaxes(1, 2), arrays[1], 2, 4).transpose(2, 0, 1)
    np.testing.assert_allclose(run(graph, arrays), expected, rtol=1e-10, atol=1e-10)


def test_rows_two_apart_are_not_a_band() -> None:
    types = ("2x8x6xf32", "2x12x6xf32", "2x8x5xf32")
    graph = ingested(generic("b, m, y", "b, m * 2 + x, y", "b, m, x", types, "pppr"))
    assert "g2bmm" not in [n.op for n in graph.nodes]
    a, b = drawn(graph)
    padded = np.pad(b, ((0, 0), (4, 4), (0, 0)))
    rows = padded[:, np.arange(8)[:, None] * 2 + np.arange(5)]
    np.testing.assert_allclose(run(graph, [a, b]), np.einsum("bmy,bmxy->bmx", a, rows), rtol=1e-10)


# --- other expressions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["g2bmm", "gbmm"])
def test_rules_say_the_same(op: str) -> None:
    rng, fits = random.Random(op), Counter[str]()
    for _ in range(40):
        a, b, attrs = some(rng, op)
        graph = program(op, a, b, **attrs)
        for name in ("band-residues", "band-blocks"):
            if (made := RULES[name](graph, graph.nodes[0])) is not None:
                fits[name] += 1
                arrays = drawn(graph)
                np.testing.assert_allclose(run(made, arrays), run(graph, arrays), rtol=1e-10, atol=1e-10)
    assert min(fits["band-residues"], fits["band-blocks"]) > 5


@pytest.mark.parametrize("graph", [G2BMM, GBMM])
def test_residues_are_proved_for_all_rows(graph: KernelGraph) -> None:
    made = RULES["band-residues"](graph, graph.nodes[0])
    assert made is not None
    assert certify(graph, made).equivalent
    assert any("in0.1" in size for size in equal_sizes(graph, made))


def test_a_dilation_stays_where_blocks_are_compared() -> None:
    """Too large to be compared whole: what is left of 10,000 rows is a multiple of the dilation."""
    graph = program("g2bmm", (1, 10000, 64), (1, 10000, 64), dilation=4, low=2000, width=1001)
    made = RULES["band-residues"](graph, graph.nodes[0])
    assert made is not None
    fewer = fewer_blocks(graph, made)
    assert fewer is not None
    assert fewer[0].inputs[0].shape[1] % 4 == 0
    arrays = drawn(fewer[0])
    np.testing.assert_allclose(run(fewer[1], arrays), run(fewer[0], arrays), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("graph", "wrong"), [(G2BMM, 36), (GBMM, 384)])
def test_residues_side_by_side_are_wrong_at_their_ends(graph: KernelGraph, wrong: int) -> None:
    """What EinNet accepts: bands that reach into the next residue. Every repair is right, the mutant is not."""
    (mutant,) = derived(graph, ["residues-side-by-side"])
    arrays = drawn(graph)
    differ = ~np.isclose(run(mutant.graph, arrays), run(graph, arrays), rtol=1e-9, atol=1e-9)
    assert int(differ.sum()) == wrong
    region = exact.difference(graph, mutant.graph)
    assert np.array_equal(region.mask(), differ)
    assert not certify(graph, mutant.graph).equivalent
    made = dict(repairs(mutant, region))
    in_one_kernel = {"load guard", "store guard", "second pass"}
    assert set(made) - in_one_kernel == ({"zeros", "gap"} if graph is G2BMM else {"gap"})
    assert set(made) & in_one_kernel
    assert all(certify(graph, repaired).equivalent for repaired in made.values())
