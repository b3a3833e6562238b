"""What loses the same bits is of one kind: no kind has safe and unsafe candidates, and tiles make no kind."""

from __future__ import annotations

from collections import defaultdict

import pytest
from search_programs import Program, rmsnorm_linear

from superopt.cost import target
from superopt.numerics import gate
from superopt.program import KernelGraph
from superopt.run.lost_bits import lost_bits
from superopt.transforms.lower import lower
from superopt.transforms.mugraph_search.plans import search_plans


def variance() -> KernelGraph:
    """Of rows: as a mean of squares less the square of a mean, it loses what those have in common."""
    p = Program("variance")
    x = p.input(16, 512, name="x")
    less = p("sub", x, p("reduce_mean", x, dims=(1,), keepdims=True))
    return p.graph(p("reduce_mean", p("square", less), dims=(1,), keepdims=True))


@pytest.mark.parametrize("name", ["variance", "RMSNorm, linear"])
def test_a_kind_is_safe_or_unsafe(name: str) -> None:
    """Without products it is sums that cancel; sums that another kernel reads may overflow f16."""
    program = variance() if name == "variance" else rmsnorm_linear(16, 256, 512)
    kinds = defaultdict[object, list[bool]](list)
    for plan in search_plans(program, target("sm_90"), budget=10).graphs:
        lowered = lower(plan)
        kinds[lost_bits(lowered)].append(all(row.passed for row in gate(program, lowered).rows))
    assert {frozenset(safe) for safe in kinds.values()} == {frozenset([True]), frozenset([False])}
    assert len(kinds) < sum(map(len, kinds.values()))


def multiplied(of_rows: str = "exp", *, turned: bool = False) -> KernelGraph:
    """The product of two matrices, one of which is computed."""
    p = Program("multiplied")
    x, w = p.input(16, 64, name="x"), p.input(64, 32, name="w")
    if not turned:
        return p.graph(p("matmul", p(of_rows, x), w) if of_rows else p("matmul", x, p("exp", w)))
    y = p("exp", p("transpose", x, perm=(1, 0)))
    return p.graph(p("transpose", p("matmul", p("transpose", w, perm=(1, 0)), y), perm=(1, 0)))


def test_kernels_and_moves_make_no_kind() -> None:
    """A product multiplies the same, made in one kernel with it or stored by another, as it is or turned."""
    graph = multiplied()
    alone = [p for p in search_plans(graph, target("sm_90"), budget=5).graphs if len(p.nodes) == 1]
    assert alone
    made = [graph, multiplied(turned=True), *alone]
    assert len({lost_bits(g) for g in made[:2]} | {lost_bits(lower(g)) for g in made}) == 1


def test_what_is_multiplied_makes_a_kind() -> None:
    assert len({lost_bits(lower(multiplied(of))) for of in ("exp", "tanh", "")}) == 3


def test_what_is_returned_makes_no_kind() -> None:
    """Every candidate rounds it; how it is computed loses no bits of f32."""
    kinds = set[object]()
    for op in ("mul", "square"):
        p = Program("squares")
        x = p.input(16, 64, name="x")
        kinds.add(lost_bits(lower(p.graph(p(op, *[x] * (2 if op == "mul" else 1))))))
    assert len(kinds) == 1
