"""Where a layer of a transformer is cut, what its parts store, and the kernels that several products share."""

from __future__ import annotations

import math

import pytest
from search_programs import Program, same

from superopt.cost import target
from superopt.program import BlockGraph, KernelGraph, Node, NodeKind, Value
from superopt.spec import check_kernel
from superopt.transforms.mugraph_search.descend import propose
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.partition.blocks import computed_again, shares_sums, whole_rows
from superopt.transforms.partition.grouping import group
from superopt.transforms.partition.segments import before_products, partition

H100 = target("sm_90")


def norm(p: Program, x: Value) -> Value:
    """RMSNorm in f32, as models write it."""
    wide = p("cast", x, dtype="f32")
    mean = p("reduce_mean", p("square", wide), dims=(1,), keepdims=True)
    return p("cast", p("mul", wide, p("rsqrt", mean)), dtype="f16")


def layer(rows: int, width: int, hidden: int, heads: int) -> KernelGraph:
    """Norm, attention and feed-forward with residuals."""
    p = Program("layer")
    x, depth = p.input(rows, width, name="x"), width // heads
    y = norm(p, x)
    q, k, v = (
        p(
            "transpose",
            p("reshape", p("matmul", y, p.input(width, width)), shape=(rows, heads, depth)),
            perm=(1, 0, 2),
        )
        for _ in range(3)
    )
    e = p("exp", p("mul", p("matmul", q, k, transpose_b=True), p.constant(1 / math.sqrt(depth))))
    o = p("matmul", p("div", e, p("reduce_sum", e, dims=(2,), keepdims=True)), v)
    rejoined = p("reshape", p("transpose", o, perm=(1, 0, 2)), shape=(rows, width))
    mid = p("add", x, p("matmul", rejoined, p.input(width, width)))
    h = p("gelu", p("matmul", norm(p, mid), p.input(width, hidden)))
    return p.graph(p("add", mid, p("matmul", h, p.input(hidden, width))))


@pytest.mark.parametrize("sizes", [(197, 768, 3072, 12), (577, 1024, 4096, 16), (512, 4096, 14336, 32)])
def test_layers_are_cut_as_an_expert_would(sizes: tuple[int, int, int, int]):
    """What joins the parts of a sum adds the residual, too, and the norm behind it needs no launch of its own."""
    cuts = [[n.op for n in s.graph.nodes if n.op in KINDS] for s in partition(layer(*sizes))]
    parts = (
        sizes[0] == 197
    )  # with few tiles: blocks share the sums of the product in front of the second norm
    assert cuts == [
        ["rsqrt", "matmul", "matmul", "matmul"],
        ["matmul", "exp", "matmul"],
        ["matmul"] if parts else ["matmul", "add"],
        ["add", "rsqrt", "matmul", "gelu"] if parts else ["rsqrt", "matmul", "gelu"],
        ["matmul", "add"],
    ]


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "shared"),
    [(197, 768, 768, True), (197, 3072, 768, False), (197, 768, 256, False), (16, 768, 768, False)],
)
def test_whose_sums_blocks_share(rows: int, columns: int, depth: int, *, shared: bool):
    """Those of few tiles that are deep; one of few rows has narrow tiles instead."""
    p = Program("product")
    product = p("matmul", p.input(rows, depth), p.input(depth, columns))
    (node,) = p.graph(product).nodes
    assert shares_sums(node) == shared


KINDS = ("rsqrt", "matmul", "exp", "gelu", "add")


def test_norms_of_short_rows_stay_with_the_product_in_front():
    """Blocks hold the rows of a head."""
    p = Program("normed_heads")
    x = p.input(4096, 512, name="x")
    first, *rest = partition(p.graph(p("relu", norm(p, p("matmul", x, p.input(512, 64))))), max_values=7)
    assert not rest
    assert [n.op for n in first.graph.nodes if n.op in KINDS] == ["matmul", "rsqrt"]


def test_what_holding_rows_costs():
    """Nothing where tiles hold them anyway, or nothing that leaves has the axis; the wait for one block for one row."""
    for rows, columns, leaves, least, most in (
        (4096, 128, True, 0, 0),
        (1, 4096, True, 10 << 20, 1 << 32),
        (577, 1024, True, 10 << 20, 1 << 32),
        (577, 1024, False, 0, 0),
    ):
        p = Program("normed")
        y = p("matmul", p.input(rows, 1024), p.input(1024, columns))
        product = p.nodes[-1]
        mean = p("reduce_mean", p("square", y), dims=(1,), keepdims=True)
        out = p("mul", y, p("rsqrt", mean))
        lost = whole_rows([product], p.nodes[1:], {out} if leaves else {mean})
        assert least <= lost <= most, (rows, columns)


def test_what_a_product_costs_that_another_one_multiplies():
    """Little for a factor of low rank; much where each tile of columns computes rows again; two loops are none."""
    for depth, inner, least, most in (
        (1024, 16, 0, 1 << 20),
        (128, 1024, 9 << 20, 1 << 40),
        (1024, 1024, math.inf, math.inf),
    ):
        p = Program("chain")
        h = p("matmul", p.input(512, depth), p.input(depth, inner))
        p("matmul", h, p.input(inner, 4096))
        first, second = p.nodes
        assert least <= computed_again([first], second, 0) <= most
        assert computed_again([], second, 0) == 0


def normed_projections(rows: int = 197, width: int = 768) -> KernelGraph:
    """Layer norm in f32, whose mean stands between the products and what they would multiply otherwise."""
    p = Program("normed_projections")
    wide = p("cast", p.input(rows, width, name="x"), dtype="f32")
    less = p("sub", wide, p("reduce_mean", wide, dims=(1,), keepdims=True))
    scale = p("rsqrt", p("reduce_mean", p("square", less), dims=(1,), keepdims=True))
    scaled = p("mul", p("mul", less, scale), p("cast", p.input(width, name="g"), dtype="f32"))
    y = p("cast", p("add", scaled, p("cast", p.input(width, name="b"), dtype="f32")), dtype="f16")
    return p.graph(*(p("add", p("matmul", y, p.input(width, width)), p.input(width)) for _ in range(3)))


def test_a_program_is_cut_in_front_of_its_products():
    first, rest = before_products(normed_projections())
    assert [n.op for n in first.graph.nodes][-1] == "cast"
    assert [v.dtype for v in first.graph.outputs] == ["f16"]
    assert [n.op for n in rest.graph.nodes] == ["matmul", "add"] * 3
    assert before_products(rest.graph) == before_products(first.graph) == []


def kernels_of(graph: KernelGraph) -> list[Node]:
    return [n for n in graph.nodes if isinstance(n.body, BlockGraph)]


def test_products_that_read_one_value_share_a_kernel():
    """Behind a kernel that stores it in f16, as the program rounds it there, though it is computed in f32."""
    found = propose(normed_projections(), H100, budget=60).graphs
    apart = [g for g in found if [len(n.results) for n in kernels_of(g)] == [1, 3]]
    assert apart
    for graph in apart:
        check_kernel(graph)
        assert [v.dtype for v in kernels_of(graph)[0].results] == ["f16"]
    small = normed_projections(5, 32)
    assert all(same(small, candidate) for candidate in propose(small, H100, budget=60).graphs)


def test_heads_are_stored_in_whole_sectors():
    """A few columns of every head would make as many blocks as there are multiprocessors, and lie apart in memory."""
    p = Program("heads")
    x, made = p.input(197, 768, name="x"), list[Value]()
    for perm in ((1, 0, 2), (1, 2, 0), (1, 0, 2)):
        y = p("add", p("matmul", x, p.input(768, 768), transpose_b=True), p.input(768))
        made.append(p("transpose", p("reshape", y, shape=(197, 12, 64)), perm=perm))
    best = propose(p.graph(*made), H100, budget=60).graphs[0]
    bodies = [n.body for n in best.nodes if isinstance(n.body, BlockGraph)]
    saved = [n.operands[0] for body in bodies for n in body.nodes if n.op == NodeKind.SAVE]
    assert saved
    assert all(v.shape[-1] * 2 >= 32 for v in saved), [v.shape for v in saved]


def test_sums_that_go_on_are_not_rounded():
    p = Program("split", "f32")
    x, w = p.input(16, 65536, name="x"), p.input(65536, 64, name="w")
    split = propose(p.graph(p("relu", p("matmul", x, w))), H100, budget=60).graphs[0]
    assert {v.dtype for n in split.nodes for v in n.results} == {"f32"}


def grouped(graph: KernelGraph) -> list[list[str]]:
    """The operators of each group, where any nodes may be one."""

    def yes(_: object) -> bool:
        return True

    groups = group(graph.nodes, [True] * len(graph.nodes), graph.outputs, yes, yes)
    return [[n.op for n in nodes] for nodes in groups]


@pytest.mark.parametrize("read", [True, False])
def test_what_a_kernel_reads_anyway_is_not_loaded_again(read: bool):
    """A gate is computed for each tile of columns, of the rows that another product of the kernel loads for it."""
    p = Program("gated")
    x = p.input(4096, 4096, name="x")
    y = p("mul", x, p.input(4096, 4096, name="gate"))
    other = x if read else p.input(4096, 4096, name="other")
    graph = p.graph(p("add", p("matmul", y, p.input(4096, 4096)), p("matmul", other, p.input(4096, 4096))))
    products = ["matmul", "matmul", "add"]
    assert grouped(graph) == ([["mul", *products]] if read else [["mul"], products])


def test_blocks_compute_again_while_they_wait():
    """A product whose rows are normed and multiplied: neither the waiting nor the computing costs what a launch does."""
    p = Program("normed_factor")
    y = p("matmul", p.input(512, 128), p.input(128, 1024))
    z = p("mul", y, p("rsqrt", p("reduce_mean", p("square", y), dims=(1,), keepdims=True)))
    graph = p.graph(p("matmul", z, p.input(1024, 64)), z)
    assert len(grouped(graph)) == 1


def test_what_is_returned_and_multiplied_keeps_its_bits():
    """The product that reads it rounds it; stored as that reads it, it would be returned with the bits of f16."""
    p = Program("kept")
    h = p("cast", p("matmul", p.input(512, 1024), p.input(1024, 1024)), dtype="f32")
    y = p("relu", h)
    graph = p.graph(y, p("matmul", p("cast", y, dtype="f16"), p.input(1024, 1024)))
    found = search_plans(graph, H100, budget=20).graphs
    assert any(g.outputs[0] in n.operands for g in found for n in kernels_of(g))
    for candidate in found:
        assert any(candidate.outputs[0] in n.results for n in kernels_of(candidate))
