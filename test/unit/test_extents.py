"""Other grid and loop extents of block graphs: each choice computes the same, by itself nothing changes."""

from __future__ import annotations

import itertools
import random

import pytest
from search_programs import Program, attention, rmsnorm_linear, same
from search_support import search
from test_layouts import sample

from superopt.cost import cost
from superopt.cost.gpus import target
from superopt.diagnostics import Diagnostics
from superopt.program import BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.spec import check_kernel
from superopt.transforms.lower import lower
from superopt.transforms.lower.choose_layouts import choose_layouts
from superopt.transforms.schedule.choose_extents import ChooseExtents
from superopt.transforms.schedule.resize import CannotResize, resized
from superopt.verify import certify, program_hash

QUIET = Diagnostics()
PROGRAMS = {
    "rmsnorm_linear": lambda: rmsnorm_linear(16, 256, 64),
    "attention": lambda: attention(2, 32, 128, 32),
    "ragged": lambda: rmsnorm_linear(24, 96, 80),
}


def blocks(graph: KernelGraph) -> list[BlockGraph]:
    return [n.body for n in graph.nodes if isinstance(n.body, BlockGraph)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_searched_kernels_compute_the_same_with_other_extents(name: str) -> None:
    program = PROGRAMS[name]()
    rng, whole, tried = random.Random(name), 0, 0
    for candidate in search(program, budget=20).graphs[:4]:
        assert ChooseExtents().apply(candidate, QUIET).nodes == candidate.nodes, (
            "by itself, it changes nothing"
        )
        for site in ChooseExtents().sites(candidate, QUIET):
            for choice in rng.sample(site.choices[1:], min(4, len(site.choices) - 1)):
                made = ChooseExtents().applied(candidate, {site.at: choice}, QUIET)
                said = [
                    f"grid={'x'.join(map(str, b.grid))} loops={'x'.join(map(str, b.loops))}"
                    for b in blocks(made)
                ]
                assert choice in said
                check_kernel(made)
                assert certify(program, made).equivalent, choice
                assert certify(program, lower(made)).equivalent, choice
                tried += 1
                if all(map(divides, made.nodes)):
                    whole += 1
                    assert same(made, program), choice
    assert tried > 5
    assert whole > 2 or name == "ragged"


def divides(node: Node) -> bool:
    """Whether all tiles of a kernel lie inside their tensors."""
    body = node.body
    if not isinstance(body, BlockGraph):
        return True
    for inner in body.nodes:
        for key, extents in (("imap", body.grid), ("fmap", body.loops)) if inner.op == "iterator" else ():
            maps = inner.attrs[key]
            assert isinstance(maps, tuple)
            for extent, d in zip(extents, maps, strict=True):
                if d >= 0 and inner.operands[0].shape[d] % extent:
                    return False
    return True


def test_random_kernels_compute_the_same_with_other_extents() -> None:
    tried = 0
    for seed in range(12):
        graph = sample(seed)
        for site in ChooseExtents().sites(graph, QUIET):
            for choice in site.choices[1::9]:
                made = ChooseExtents().applied(graph, {site.at: choice}, QUIET)
                assert certify(graph, made).equivalent
                tried += 1
    assert tried > 20


def scores(tile: int = 16) -> Node:
    """x x^T for blocks of rows: both sides are cut, by a grid dimension each."""
    x = Value(TensorType((64, 32), "f16"), "x")
    rows, columns = (Value(TensorType((tile, 32), "f16")) for _ in range(2))
    product, argument = Value(TensorType((tile, tile), "f16")), Value(x.type)
    nodes = [
        Node("iterator", (argument,), (rows,), {"imap": (0, -1), "fmap": ()}),
        Node("iterator", (argument,), (columns,), {"imap": (-1, 0), "fmap": ()}),
        Node("matmul", (rows, columns), (product,), {"transpose_b": True}),
        Node("save", (product,), (), {"omap": (0, 1)}),
    ]
    body = BlockGraph((64 // tile, 64 // tile), (), [argument], nodes)
    return Node("custom", (x,), (Value(TensorType((64, 64), "f16")),), {}, body=body)


def test_dimensions_that_are_apart_change_apart() -> None:
    node = scores()
    graph = KernelGraph("f", [*node.operands], [node], [*node.results])
    for grid in itertools.product((1, 2, 4, 8), repeat=2):
        made = KernelGraph("f", graph.inputs, [resized(node, grid, ())], graph.outputs)
        check_kernel(made)
        assert certify(graph, made).equivalent


def test_dimensions_that_run_together_do_not() -> None:
    """x + x, whose two tiles are cut by a grid dimension each, must keep them alike."""
    x = Value(TensorType((64,), "f16"), "x")
    a, b, total, argument = (Value(TensorType((16,), "f16")) for _ in range(4))
    argument = Value(x.type)
    nodes = [
        Node("iterator", (argument,), (a,), {"imap": (0, -1), "fmap": ()}),
        Node("iterator", (argument,), (b,), {"imap": (-1, 0), "fmap": ()}),
        Node("add", (a, b), (total,)),
        Node("save", (total,), (), {"omap": (0, -1)}),
    ]
    node = Node("custom", (x,), (Value(x.type),), {}, body=BlockGraph((4, 4), (), [argument], nodes))
    with pytest.raises(
        CannotResize, match="expected one extent for dimensions that operators iterate together"
    ):
        resized(node, (8, 4), ())
    with pytest.raises(CannotResize, match="expected as many extents as there are"):
        resized(node, (8,), ())


def test_a_slice_of_a_tile_keeps_it() -> None:
    p = Program("f")
    x = p.input(8, 64, name="x")
    tile = Value(TensorType((2, 64), "f16"))
    half = Value(TensorType((2, 32), "f16"))
    argument = Value(x.type)
    cut = {"offsets": (0, 0), "sizes": (2, 32), "strides": (1, 1)}
    nodes = [
        Node("iterator", (argument,), (tile,), {"imap": (0,), "fmap": ()}),
        Node("slice", (tile,), (half,), {**cut}),
        Node("save", (half,), (), {"omap": (0,)}),
    ]
    body = BlockGraph((4,), (), [argument], nodes)
    node = Node("custom", (x,), (Value(TensorType((8, 32), "f16")),), {}, body=body)
    with pytest.raises(CannotResize, match="expected tiles that operators can take in other sizes"):
        resized(node, (8,), ())


def test_layouts_need_tiles_that_are_wide_enough() -> None:
    """Too few rows cannot be saved transposed; with other extents they can, which pays together only."""
    x = Value(TensorType((1024, 1024), "f16"), "x")
    argument, tile, made = Value(x.type), *(Value(TensorType((4, 1024), "f16")) for _ in range(2))
    nodes = [
        Node("iterator", (argument,), (tile,), {"imap": (0,), "fmap": ()}),
        Node("exp", (tile,), (made,)),
        Node("save", (made,), (), {"omap": (0,)}),
    ]
    custom = Node("custom", (x,), (Value(x.type),), {}, body=BlockGraph((256,), (), [argument], nodes))
    moved = Node("transpose", (custom.result,), (Value(x.type),), {"perm": (1, 0)})
    graph = KernelGraph("f", [x], [custom, moved], [moved.result])
    gpu = target("sm_90")
    alone = cost(choose_layouts(graph, gpu), gpu).seconds
    (site,) = ChooseExtents().sites(graph, QUIET)
    seconds = {
        c: cost(choose_layouts(ChooseExtents().applied(graph, {site.at: c}, QUIET), gpu), gpu).seconds
        for c in site.choices
    }
    best = min(site.choices, key=lambda c: seconds[c])
    assert seconds[best] < 0.7 * alone
    assert certify(graph, ChooseExtents().applied(graph, {site.at: best}, QUIET)).equivalent
    assert program_hash(ChooseExtents().applied(graph, {}, QUIET)) == program_hash(graph)
