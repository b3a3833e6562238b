"""Dimensions that are cut at places which cross: rows of an image, and tiles of its positions, flattened."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from superopt.program import (
    Attr,
    KernelGraph,
    Node,
    Store,
    TensorType,
    TileProgram,
    Value,
)
from superopt.transforms.derivation.rules import RULES
from superopt.transforms.lower import lower
from superopt.verify import certifier, certify, lattices, one_point
from superopt.verify.axes import Factor, Irreducible, dim, leaves, reduced, unify
from superopt.verify.reduce import reduce_extents, work
from superopt.verify.symbolic import prove


def layers(size: int) -> KernelGraph:
    """A convolution by a kernel of 3 x 3, then one of 1 x 1, each with relu, of an image of `size` x `size`."""
    x, w, v = (
        Value(TensorType(s, "f16"), n)
        for s, n in (((1, 4, size, size), "x"), ((16, 4, 3, 3), "w"), ((16, 16, 1, 1), "v"))
    )
    made: list[Value] = [Value(TensorType((1, 16, size, size), "f16")) for _ in range(4)]
    attrs: dict[str, Attr] = {k: (1, 1) for k in ("strides", "dilations", "low", "high")}  # noqa: C420
    nodes = [
        Node("conv", (x, w), (made[0],), attrs),
        Node("relu", (made[0],), (made[1],)),
        Node("conv", (made[1], v), (made[2],), {**attrs, "low": (0, 0), "high": (0, 0)}),
        Node("relu", (made[2],), (made[3],)),
    ]
    return KernelGraph("f", [x, w, v], nodes, [made[3]])


def product(graph: KernelGraph) -> KernelGraph:
    """The same with the second convolution as a product of flattened positions."""
    made = RULES["product"](graph, graph.nodes[2])
    assert made is not None
    return made


def tile_of(lowered: KernelGraph, rows: int) -> int:
    """The positions of a product's tile: expected to cross rows."""
    (size,) = {
        s.value.shape[-1]
        for n in lowered.nodes
        if isinstance(n.body, TileProgram) and n.results[0].shape[-1] == rows**2
        for s in n.body.statements()
        if isinstance(s, Store) and s.buffer is n.body.params[-1]
    }
    assert size % rows
    assert rows % size
    return size


@pytest.mark.parametrize("size", [24, 56])
def test_tiles_of_flattened_positions_that_cross_rows_are_tested_at_reduced_extents(size: int) -> None:
    graph = layers(size)
    lowered = lower(product(graph))
    tile = tile_of(lowered, size)
    pair = reduce_extents(graph, lowered)
    assert pair
    assert work(pair[1]) < work(lowered) / 8
    # As many rows and as many tiles as end at the same place remain, at least.
    together = math.lcm(size, tile)
    *_, rows, columns = pair[0].inputs[0].shape
    assert rows % (together // size) == 0
    assert columns % (size // math.gcd(size, tile)) == 0
    certificate = certify(*pair).certificate
    assert certificate
    assert certificate.delta is not None
    assert certificate.delta <= 1e-9


def turned(graph: KernelGraph) -> KernelGraph:
    """`graph` with rows and columns of what is flattened exchanged."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op == "reshape" and len(node.operands[0].shape) == 4 and node.operands[0].shape[2] > 1:
            (x,) = node.operands
            other = Value(x.type)
            nodes.append(Node("transpose", (x,), (other,), {"perm": (0, 1, 3, 2)}))
            node = Node(node.op, (other,), node.results, node.attrs)
        nodes.append(node)
    return KernelGraph(graph.name, graph.inputs, nodes, graph.outputs)


def test_flattened_columns_are_not_taken_for_rows() -> None:
    graph = layers(24)
    wrong = turned(product(graph))
    assert not certify(graph, wrong).equivalent
    for other in (wrong, lower(wrong)):
        pair = reduce_extents(graph, other)
        assert pair is None or not certify(*pair).equivalent


def test_what_crosses_is_not_proved_for_other_sizes() -> None:
    """Rows of 24 and tiles of 64 have no common factors, which normal forms are in."""
    x, v, flat, y, z = (
        Value(TensorType(s, "f16")) for s in ((16, 24, 24), (16, 16), (16, 576), (16, 576), (16, 24, 24))
    )
    nodes = [
        Node("reshape", (x,), (flat,), {"shape": flat.shape}),
        Node("matmul", (v, flat), (y,)),
        Node("reshape", (y,), (z,), {"shape": z.shape}),
    ]
    graph = KernelGraph("f", [x, v], nodes, [z])
    lowered = lower(graph)
    tile_of(lowered, 24)
    assert prove(graph, graph) is not None
    assert prove(graph, lowered) is None
    pair = reduce_extents(graph, lowered)
    assert pair
    assert certify(*pair).equivalent


def test_lists_of_one_extent_are_cut_alike_or_keep_what_crosses() -> None:
    """Whatever is unified in whatever order: reduced extents agree, and nothing that crosses is reduced."""
    rng = random.Random(0)
    crossed = 0
    for _ in range(300):
        total = math.prod(rng.choice([2, 2, 3, 4, 5, 7, 8, 9]) for _ in range(rng.randint(2, 4)))
        lists: list[list[Factor]] = []
        for _ in range(rng.randint(2, 4)):
            rest, sizes = total, list[int]()
            while rest > 1:
                sizes.append(rng.choice([n for n in range(2, rest + 1) if rest % n == 0]))
                rest //= sizes[-1]
            lists.append([Factor(n, fixed=rng.random() < 0.1) for n in sizes])
        for _ in range(2):  # what is split later may cross what was tied before
            for a in lists:
                for b in lists:
                    unify(a, b)
        for chosen in (2, 3):
            for leaf in (leaf for d in lists for leaf in leaves(d)):
                leaf.chosen = chosen
            assert len({reduced(d) for d in lists}) == 1
        assert {math.prod(f.size for f in leaves(d)) for d in lists} == {total}
        for a in lists:
            for b in lists:
                ends = [_ends(d) for d in (a, b)]
                crossed += ends[0] != ends[1]
                shared = [{f for f in leaves(d) if not f.fixed} for d in (a, b)]
                assert shared[0] == shared[1]
    assert crossed


def _ends(d: list[Factor]) -> list[int]:
    ends = [1]
    for leaf in reversed(leaves(d)):
        ends.append(ends[-1] * leaf.size)
    return ends


def test_lists_of_unlike_extents_are_refused() -> None:
    for a, b in ((6, 35), (14, 15), (7, 8)):
        with pytest.raises(Irreducible, match="extents differ"):
            unify([*dim(2), *dim(a)], dim(b))


def test_programs_that_are_large_when_reduced_are_compared_there_by_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what sets of leaves told apart at some extents may be compared by a random order at full extents."""
    graph = layers(24)
    lowered = lower(product(graph))
    nodes = [replace(n, op="step" if n is graph.nodes[3] else n.op) for n in graph.nodes]
    wrong = replace(graph, nodes=nodes)
    real = certifier.ways_to_reduce

    def of_much_work(a: KernelGraph, b: KernelGraph, most_work: int = 0) -> Any:
        return real(a, b, most_work) if most_work else ()

    monkeypatch.setattr(certifier, "ways_to_reduce", of_much_work)
    monkeypatch.setattr(lattices, "MOST_LEAVES", 20_000)
    for limit, equivalent in ((10**9, False), (0, True)):
        monkeypatch.setattr(certifier, "LATTICE_WORK", limit)
        monkeypatch.setattr(one_point, "LATTICE_WORK", limit)
        verdict = certify(graph, lowered)
        assert verdict.equivalent is equivalent
        assert equivalent or "too many numbers" in str(verdict.counterexample)
    assert "too many numbers" in str(certify(wrong, lowered).counterexample)


def centred(mean: Callable[[Value, Value, TensorType], list[Node]]) -> KernelGraph:
    """The largest of each column of 240 rows of 256, the rows less what `mean` gives."""
    x, middle = Value(TensorType((240, 256), "f16"), "x"), Value(TensorType((240, 1), "f16"))
    rest, top = Value(x.type), Value(TensorType((256,), "f16"))
    last = [
        Node("sub", (x, middle), (rest,)),
        Node("reduce_max", (rest,), (top,), {"dims": (0,), "keepdims": False}),
    ]
    return KernelGraph("f", [x], [*mean(x, middle, middle.type), *last], [top])


def divided(by: float) -> Callable[[Value, Value, TensorType], list[Node]]:
    """The sum over `by`."""

    def mean(x: Value, middle: Value, kind: TensorType) -> list[Node]:
        total, count = Value(kind), Value(TensorType((), "f16"))
        return [
            Node("constant", (), (count,), {"value": by, "shape": (), "dtype": "f16"}),
            Node("reduce_sum", (x,), (total,), {"dims": (1,), "keepdims": True}),
            Node("div", (total, count), (middle,)),
        ]

    return mean


def test_numbers_that_are_extents_shrink_in_programs_that_are_large_when_reduced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One program divides by 256 where the other takes a mean of as many."""

    def mean(x: Value, middle: Value, kind: TensorType) -> list[Node]:
        return [Node("reduce_mean", (x,), (middle,), {"dims": (1,), "keepdims": True})]

    real = certifier.ways_to_reduce

    def of_much_work(a: KernelGraph, b: KernelGraph, most_work: int = 0) -> Any:
        return real(a, b, most_work) if most_work else ()

    monkeypatch.setattr(certifier, "ways_to_reduce", of_much_work)
    monkeypatch.setattr(lattices, "MOST_LEAVES", 1000)
    monkeypatch.setattr(certifier, "LATTICE_WORK", 0)
    monkeypatch.setattr(one_point, "LATTICE_WORK", 0)
    assert certify(centred(mean), centred(divided(256.0))).equivalent
    assert not certify(centred(mean), centred(divided(32.0))).equivalent
