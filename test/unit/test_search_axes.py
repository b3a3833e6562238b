"""Axes that always go together are one; whatever keeps them apart is noticed."""

from __future__ import annotations

import pytest
from search_programs import Program, same

from superopt.cost import target
from superopt.program import BlockGraph, KernelGraph
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.named_axes.merge import merge_axes
from superopt.transforms.named_axes.name_axes import name_axes

TARGET = target("sm_90")
B, H, N, D = 2, 4, 16, 32


def extents(graph: KernelGraph) -> list[int]:
    return sorted(merge_axes(name_axes(graph)).extents)


def candidates(graph: KernelGraph) -> list[KernelGraph]:
    found = search_plans(graph, TARGET, budget=120, options=MugraphOptimizer(candidates=30))
    assert found.funnel["plans.rejected.not_buildable"] == found.funnel["plans.rejected.illegal"] == 0
    assert found.graphs
    return found.graphs


def product(*, bias: tuple[int, ...] = (), perm: tuple[int, ...] = ()) -> KernelGraph:
    """relu(X Y) for batch and heads in front."""
    p = Program("product")
    x, y = p.input(B, H, N, D, name="x"), p.input(B, H, D, N, name="y")
    z = p("matmul", x, y)
    if bias:
        z = p("add", z, p.input(*bias, name="bias"))
    z = p("relu", z)
    return p.graph(p("transpose", z, perm=perm) if perm else z)


def odd() -> KernelGraph:
    """Three heads."""
    p = Program("odd")
    x, y = p.input(B, 3, N, D, name="x"), p.input(B, 3, D, N, name="y")
    return p.graph(p("relu", p("matmul", x, y)))


def gram() -> KernelGraph:
    """One input in two roles."""
    p = Program("gram")
    x = p.input(B, H, N, D, name="x")
    return p.graph(p("relu", p("matmul", x, x, transpose_b=True)))


def repeated() -> KernelGraph:
    """The output repeats a value along two dimensions that nothing else has."""
    p = Program("repeated")
    x = p.input(B, 1, 1, 256, name="x")
    total = p("exp", p("reduce_sum", x, dims=(3,), keepdims=True))
    return p.graph(p("broadcast", total, shape=(B, H, 8, 1)))


def averaged() -> KernelGraph:
    """Two dimensions reduced together."""
    p = Program("averaged")
    x = p.input(N, 16, 16, name="x")
    return p.graph(p("div", x, p("reduce_sum", p("square", x), dims=(1, 2), keepdims=True)))


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (product(), sorted([B * H, N, N, D])),
        (product(bias=(H, 1, N)), sorted([B, H, N, N, D])),  # a tensor that has one of them
        (product(bias=(B, H, 1, 1)), sorted([B * H, N, N, D])),
        (product(perm=(1, 0, 2, 3)), sorted([B, H, N, N, D])),  # in another order
        (product(perm=(0, 2, 1, 3)), sorted([B, H, N, N, D])),  # not next to each other
        (product(perm=(0, 1, 3, 2)), sorted([B * H, N, N, D])),
        (gram(), sorted([B * H, N, N, D])),
        (averaged(), [N, 256]),
        (odd(), sorted([B, 3, N, N, D])),
    ],
    ids=["product", "half-bias", "bias", "swapped", "between", "columns", "gram", "averaged", "odd"],
)
def test_axes_merge_where_they_always_go_together(graph: KernelGraph, expected: list[int]):
    assert extents(graph) == expected
    for candidate in candidates(graph):
        assert same(graph, candidate)


def test_a_value_repeated_along_a_merged_axis():
    graph = repeated()
    assert all(same(graph, candidate) for candidate in candidates(graph))


def test_roles_of_one_tensor_are_merged_alike_or_not_at_all():
    p = Program("roles")
    x, y = p.input(4, 8, 8, name="x"), p.input(8, D, name="y")
    # Rows and columns of one use are summed together, those of the other apart; the uses have different batches.
    sums = p("reshape", p("reduce_sum", p("exp", x), dims=(1, 2)), shape=(4, 1, 1, 1))
    graph = p.graph(p("mul", sums, p("reshape", p("matmul", x, y), shape=(1, 4, 8, D))))
    program = merge_axes(name_axes(graph))
    cuts = [tuple(program.extents[a] for a in role.axes) for role in program.roles if role.source.name == "x"]
    assert cuts == [(4, 8, 8), (4, 8, 8)]
    assert all(same(graph, candidate) for candidate in candidates(graph))


def test_batch_and_heads_take_one_dimension_of_the_grid():
    """With rows, columns and a split of the keys four would be wanted, of three."""
    p = Program("attention")
    q, k, v = (
        p.input(4, 8, 256, 64, name="q"),
        p.input(4, 8, 512, 64, name="k"),
        p.input(4, 8, 512, 64, name="v"),
    )
    e = p("exp", p("matmul", q, k, transpose_b=True))
    graph = p.graph(p("matmul", p("div", e, p("reduce_sum", e, dims=(3,), keepdims=True)), v))
    body = next(n.body for n in candidates(graph)[0].nodes if isinstance(n.body, BlockGraph))
    assert 32 in body.grid
    assert sum(e > 1 for e in body.grid) > 1
