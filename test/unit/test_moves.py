"""What needs no kernel of its own: moves that kernels read in place, copies that share one, sums of parts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from search_programs import Program

from superopt.cost import cost, target
from superopt.diagnostics import Diagnostics
from superopt.moves import moves_in_place
from superopt.program import BlockGraph, KernelGraph, Node, NodeKind, TensorType, TileProgram, Value
from superopt.spec import check_kernel
from superopt.transforms.lower import lower
from superopt.transforms.lower.fold_moves import FoldMoves
from superopt.transforms.lower.join_parts import join_parts
from superopt.transforms.lower.merge_twins import merge
from superopt.twins import in_order, twins
from superopt.verify import certify
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate

GPU = target("sm_90")


def run(graph: KernelGraph, arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    domain = FloatDomain()
    return [t.planes[0] for t in evaluate(graph, [domain.tensor(a) for a in arrays], domain)]


def kernels(graph: KernelGraph) -> list[TileProgram]:
    return [n.body for n in graph.nodes if isinstance(n.body, TileProgram)]


def turned_product(rng: random.Random) -> tuple[KernelGraph, tuple[int, ...]]:
    """A product of an input that is turned in some way."""
    p = Program("turned", "f32")
    batch, m, k, n = rng.randint(1, 4), rng.randint(1, 40), rng.randint(1, 70), rng.randint(1, 40)
    perm = tuple(rng.sample(range(3), 3))
    attrs = {f"transpose_{x}": rng.random() < 0.5 for x in "ab"}
    a = (batch, k, m) if attrs["transpose_a"] else (batch, m, k)
    b = (batch, n, k) if attrs["transpose_b"] else (batch, k, n)
    shape = [0, 0, 0]
    for place, dim in enumerate(perm):
        shape[dim] = b[place]
    x, w = p.input(*a, name="x"), p.input(*shape, name="w")
    return p.graph(p("matmul", x, p("transpose", w, perm=perm), **attrs)), perm


def test_products_turn_what_they_load() -> None:
    rng, numbers = random.Random(0), np.random.default_rng(0)
    folded = 0
    for _ in range(40):
        graph, perm = turned_product(rng)
        x, w = (numbers.standard_normal(v.shape) for v in graph.inputs)
        lowered = lower(graph)
        product = graph.nodes[-1]
        left = x.swapaxes(1, 2) if product.attrs["transpose_a"] else x
        right = w.transpose(perm).swapaxes(1, 2) if product.attrs["transpose_b"] else w.transpose(perm)
        np.testing.assert_allclose(run(lowered, [x, w])[0], left @ right, rtol=1e-9, atol=1e-9)
        assert certify(graph, lowered).equivalent
        in_place = len(kernels(lowered)) == 1
        # Rows as a batch would be loaded an element at a time; the last two are swapped by the product itself.
        assert in_place == (perm.index(2) > 0 and perm != (0, 2, 1) and perm != (0, 1, 2)) or perm == (
            0,
            1,
            2,
        )
        assert len(cost(graph, GPU).kernels) == len(kernels(lowered))
        folded += in_place
    assert folded > 5


@pytest.mark.parametrize("depth", [65, 66, 70, 129, 130])
def test_a_last_trip_of_less_than_a_sector_leaves_no_move(depth: int) -> None:
    p = Program("remainder", "f32")
    a, w = p.input(64, 2, depth, name="a"), p.input(2, depth, 64, name="w")
    lowered = lower(p.graph(p("matmul", p("transpose", a, perm=(1, 0, 2)), w)))
    assert [n.op for n in lowered.nodes] == [NodeKind.TILED]


def test_a_library_reads_what_is_in_memory() -> None:
    p = Program("left")
    x, w = p.input(4, 32, 64, name="x"), p.input(64, 4, 64, name="w")
    half = p("slice", x, offsets=(0, 0, 0), sizes=(4, 16, 64), strides=(1, 1, 1))
    graph = p.graph(p("matmul", half, p("transpose", w, perm=(1, 0, 2))))
    assert len(moves_in_place(graph)) == 2
    assert len(kernels(lower(graph))) == 1
    left = lower(graph, library=[2])
    assert [n.op for n in left.nodes] == [NodeKind.TILED, NodeKind.TILED, "matmul"]
    assert certify(graph, left).equivalent


def test_a_move_of_a_move_is_made() -> None:
    p = Program("twice")
    x, w = p.input(4, 32, 64, name="x"), p.input(64, 4, 64, name="w")
    cut = p("slice", w, offsets=(0, 0, 0), sizes=(64, 4, 32), strides=(1, 1, 1))
    turned = p("transpose", cut, perm=(1, 0, 2))
    graph = p.graph(p("matmul", x, turned))
    assert list(moves_in_place(graph)) == [turned]
    lowered = lower(graph)
    assert len(kernels(lowered)) == 2
    assert certify(graph, lowered).equivalent


def test_what_fold_moves_cannot_fold_stays() -> None:
    p = Program("returned")
    w = p.input(64, 4, 64, name="w")
    turned = p("transpose", w, perm=(1, 0, 2))
    graph = p.graph(p("matmul", p.input(4, 32, 64, name="x"), turned), turned)
    assert not moves_in_place(graph)
    assert FoldMoves().apply(graph, Diagnostics()).nodes == graph.nodes


def copies(rng: random.Random, count: int, *, in_place: bool) -> KernelGraph:
    """So many copies of the same kind, to tensors of the same types."""
    p = Program("copies", "f32")
    shape = tuple(rng.randint(1, 40) for _ in range(rng.randint(1, 3)))
    dim = rng.randrange(len(shape))
    more = tuple(rng.randint(1, n) if d == dim else n for d, n in enumerate(shape))
    kind = "update_slice" if in_place else rng.choice(["concat", "repeat", "update_slice"])
    offset = rng.randint(0, shape[dim] - more[dim])
    outputs: list[Value] = []
    new = p.input(*more, name="new")
    for i in range(count):
        cache = p.input(*shape, name=f"cache{i}")
        own = new if rng.random() < 0.5 else p.input(*more, name=f"new{i}")  # some are copied to several
        if kind == "concat":
            outputs.append(p("concat", cache, own, dim=dim))
        elif kind == "repeat":
            outputs.append(p("repeat", cache, dim=dim, times=3))
        else:
            outputs.append(p("update_slice", cache, own, dim=dim, offset=offset))
    graph = p.graph(*outputs)
    if in_place:
        graph.aliases = tuple(i for i, v in enumerate(graph.inputs) if v.name.startswith("cache"))
    return graph


@pytest.mark.parametrize("in_place", [False, True])
def test_copies_share_a_kernel(in_place: bool) -> None:
    rng, numbers = random.Random(1), np.random.default_rng(1)
    for _ in range(25):
        graph = copies(rng, rng.randint(2, 3), in_place=in_place)
        arrays = [numbers.standard_normal(v.shape) for v in graph.inputs]
        lowered = lower(graph)
        assert len(kernels(lowered)) == 1
        at = dict(zip(graph.inputs, arrays, strict=True))
        for node, made in zip(graph.nodes, run(lowered, arrays), strict=True):
            dim = node.attrs["dim"]
            assert isinstance(dim, int)
            if node.op == "repeat":
                expected = np.concatenate([at[node.operands[0]]] * 3, dim)
            elif node.op == "concat":
                expected = np.concatenate([at[v] for v in node.operands], dim)
            else:
                expected = at[node.operands[0]].copy()
                cache, update = node.operands
                start = node.attrs["offset"]
                assert isinstance(start, int)
                where = [slice(None)] * len(cache.shape)
                where[dim] = slice(start, start + update.shape[dim])
                expected[tuple(where)] = at[update]
            np.testing.assert_array_equal(made, expected)
        assert certify(graph, lowered).equivalent


def test_copies_that_need_each_other_are_apart() -> None:
    p = Program("chain")
    a, b = p.input(16, 8), p.input(16, 8)
    first = p("concat", a, b, dim=0)
    second = p("concat", p("slice", first, offsets=(0, 0), sizes=(16, 8), strides=(1, 1)), b, dim=0)
    graph = p.graph(first, second)
    assert twins(graph) == []
    assert certify(graph, lower(graph)).equivalent


def test_twins_that_stand_apart_are_one_kernel() -> None:
    """The first one's result is used before the second one is made: the second one is made earlier."""
    p = Program("used")
    a, b = p.input(16, 8), p.input(16, 8)
    first = p("concat", a, b, dim=0)
    used = p("exp", first)
    second = p("concat", p("reshape", p("reshape", b, shape=(8, 16)), shape=(16, 8)), a, dim=0)
    graph = p.graph(used, p("mul", second, used))
    lowered = lower(graph)
    assert len(kernels(lowered)) == 3
    assert certify(graph, lowered).equivalent


def test_chains_of_twins() -> None:
    """Random graphs of copies: as many kernels as are priced, and the same results."""
    rng, merged = random.Random(3), 0
    for _ in range(25):
        p = Program("chains")
        values = [p.input(8, 4) for _ in range(3)]
        for _ in range(rng.randint(3, 9)):
            a, b = rng.choice(values), rng.choice(values)
            both = p("concat", a, b, dim=rng.randrange(2))
            half = p("slice", both, offsets=(0, 0), sizes=(8, 4), strides=(1, 1))
            values.append(p("neg", half) if rng.random() < 0.5 else half)
        graph = p.graph(*values[-3:])
        lowered = lower(graph)
        assert certify(graph, lowered).equivalent
        groups = twins(graph)
        merged += len(groups)
        assert all(len({id(n) for n in g}) == len(g) for g in groups)
    assert merged > 10


def test_copies_apart_from_each_other_are_ordered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all can be one kernel so can any of them: one order for each group, not one for each copy."""
    p = Program("alike")
    x = p.input(8, 4)
    made = [p("concat", x, p.input(8, 4), dim=0) for _ in range(6)]
    made += [p("concat", made[0], y, dim=0) for y in made[1:]]
    asked: list[int] = []

    def counted(nodes: Sequence[Node], of: Mapping[Node, list[Node]]) -> list[list[Node]] | None:
        asked.append(len(of))
        return in_order(nodes, of)

    monkeypatch.setattr("superopt.twins.in_order", counted)
    assert [len(g) for g in twins(p.graph(*made))] == [6, 5]
    assert asked == [6, 11]


def test_groups_that_would_need_each_other_are_not_both_made() -> None:
    """a -> b and d -> c: with {a, c} as one kernel, b needs it, and it needs d."""
    p = Program("crossed")
    x, y = p.input(8, 4), p.input(16, 4)
    a = p("concat", x, p.input(8, 4), dim=0)
    b = p("concat", a, y, dim=0)
    d = p("concat", p.input(16, 4), y, dim=0)
    c = p("concat", p("slice", d, offsets=(0, 0), sizes=(8, 4), strides=(1, 1)), x, dim=0)
    graph = p.graph(b, c)
    assert [len(g) for g in twins(graph)] == [2]
    assert {v for g in twins(graph) for n in g for v in n.results} == {a, c}
    lowered = lower(graph)
    assert certify(graph, lowered).equivalent


def overwriting(cache: Value, new: Value) -> Node:
    """A kernel that puts `new` into the rows from the fourth on of `cache`, in its memory."""
    p = Program("update")
    changed = p("update_slice", cache, new, dim=0, offset=4)
    (node,) = lower(KernelGraph("update", [cache, new], p.nodes, [changed], aliases=(0,))).nodes
    return node


def test_what_is_overwritten_has_been_read() -> None:
    """Random graphs with kernels that overwrite caches: twins become one without one that reads the old contents."""
    rng, merged = random.Random(5), 0
    while merged < 40:
        p = Program("caches", "f32")
        olds = [p.input(16, 8) for _ in range(2)]
        halves, rows, caches = [p.input(8, 8) for _ in range(2)], p.input(4, 8), list(olds)
        values: list[Value] = []
        for _ in range(rng.randint(3, 8)):
            kind = rng.choice(["copy", "read", "overwrite"])
            if kind == "copy":
                values.append(p("concat", *rng.choices(halves, k=2), dim=0))
            elif kind == "read":
                values.append(p("add", rng.choice([*values, *caches]), rng.choice(caches)))
            else:
                at = rng.randrange(2)
                p.nodes.append(overwriting(caches[at], rows))
                caches[at] = p.nodes[-1].results[0]
        changed = [(at, c) for at, c in enumerate(caches) if c is not olds[at]]
        outputs = [c for _, c in changed] + values
        aliases = (*(at for at, _ in changed), *(-1 for _ in values))
        graph = KernelGraph("caches", p.inputs, p.nodes, outputs, aliases=aliases)
        check_kernel(graph)
        lowered = lower(graph)
        assert certify(graph, lowered).equivalent
        merged += len(kernels(lowered)) < len(graph.nodes)


def test_a_slice_costs_what_is_read_of_it() -> None:
    """Tiles of eight columns, of which half a sector each is used, of a third of a tensor."""
    p = Program("part", "f16")
    x = p.input(1600, 75, 64)
    part = p("slice", x, offsets=(0, 25, 0), sizes=(1600, 25, 64), strides=(1, 1, 1))
    graph = KernelGraph("part", p.inputs, [*p.nodes, made := reader(part, 8, 2)], [made.result])
    (kernel,) = cost(lower(graph), GPU).kernels
    assert kernel.traffic.dram_bytes == 2 * part.type.bytes
    assert kernel.traffic.l2_bytes == 4 * part.type.bytes


def test_a_kernel_does_not_read_what_its_twin_overwrites() -> None:
    p = Program("crossed", "f32")
    olds, rows = [p.input(16, 8), p.input(16, 8)], p.input(4, 8)
    first = overwriting(olds[0], p("slice", olds[1], offsets=(0, 0), sizes=(4, 8), strides=(1, 1)))
    graph = KernelGraph(
        "crossed", [*olds, rows], [*p.nodes, first, second := overwriting(olds[1], rows)],
        [first.result, second.result], aliases=(0, 1),
    )  # fmt: skip
    check_kernel(graph)
    assert twins(graph) == []
    assert certify(graph, lower(graph)).equivalent


def test_kernels_of_other_grids_are_not_merged() -> None:
    p = Program("grids")
    graph = lower(p.graph(p("exp", p.input(4096, 64)), p("exp", p.input(4096, 8))))
    assert merge(graph, [[n.result for n in graph.nodes]]) is graph


def test_twins_are_merged_where_that_is_faster() -> None:
    """Small kernels are launches; large ones would only have longer blocks."""
    for rows, count in ((64, 1), (1 << 20, 2)):
        p = Program("projections")
        nodes = [reader(p.input(rows, 64, name=name), 64, 0) for name in ("k", "v")]
        graph = KernelGraph("projections", p.inputs, nodes, [n.result for n in nodes])
        lowered = lower(graph)
        assert certify(graph, lowered).equivalent
        assert len(kernels(lowered)) == len(cost(graph, GPU).kernels) == count


def reader(value: Value, size: int, dim: int) -> Node:
    """A custom kernel that takes the exponential of `value`, cut along `dim` in tiles of `size`."""
    inside = Value(value.type, "a")
    grid = -(-value.shape[dim] // size)
    shape = tuple(size if d == dim else n for d, n in enumerate(value.shape))
    tile = Value(TensorType(shape, value.dtype))
    nodes = [Node(NodeKind.ITERATOR, (inside,), (tile,), {"imap": (dim,), "fmap": ()})]
    made = Value(tile.type)
    nodes.append(Node("exp", (tile,), (made,)))
    nodes.append(Node(NodeKind.SAVE, (made,), (), {"omap": (dim,)}))
    body = BlockGraph((grid,), (), [inside], nodes)
    return Node(NodeKind.CUSTOM, (value,), (Value(value.type, "y"),), {}, body=body)


def test_kernels_join_the_parts_of_sums() -> None:
    rng, numbers = random.Random(2), np.random.default_rng(2)
    fewer = 0
    for _ in range(30):
        p = Program("parts", "f32")
        shape = tuple(rng.randint(1, 24) for _ in range(3))
        dims = tuple(sorted(rng.sample(range(3), rng.randint(1, 2))))
        parts, op = p.input(*shape, name="parts"), rng.choice(["reduce_sum", "reduce_max", "reduce_mean"])
        value = p(op, parts, dims=dims, keepdims=rng.random() < 0.5)
        if rng.random() < 0.5:
            value = p("reshape", value, shape=(value.type.elements,))
        dim = rng.randrange(len(value.shape))
        node = reader(value, rng.randint(1, value.shape[dim]), dim)
        graph = KernelGraph("parts", p.inputs, [*p.nodes, node], [node.result])
        made = join_parts(graph, GPU)
        (array,) = (numbers.standard_normal(v.shape) for v in graph.inputs)
        joined = {"reduce_sum": np.sum, "reduce_max": np.max, "reduce_mean": np.mean}[op](array, axis=dims)
        np.testing.assert_allclose(run(made, [array])[0].ravel(), np.exp(joined).ravel(), rtol=1e-9)
        assert certify(graph, made).equivalent
        fewer += len(made.nodes) < len(graph.nodes)
    assert fewer > 10


def test_sums_that_others_read_are_computed_once() -> None:
    p = Program("read")
    total = p("reduce_sum", p.input(8, 256, 64), dims=(0,), keepdims=False)
    node = reader(total, 8, 0)
    for outputs, more in (([total, node.result], []), ([node.result], [p("exp", total)])):
        nodes = [p.nodes[0], node, *(n for n in p.nodes[1:] if n.result in more)]
        graph = KernelGraph("read", p.inputs, nodes, [*outputs, *more])
        assert join_parts(graph, GPU) is graph
