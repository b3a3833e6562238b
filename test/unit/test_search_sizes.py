"""The extents that the search chooses, compared with all others: kernels built anew, checked and costed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest
from search_programs import (
    Program,
    adapter_mlp,
    attention,
    gated_mlp,
    grouped_attention,
    rmsnorm_linear,
    same,
)

from superopt.cost import cost, target
from superopt.errors import IllegalProgram
from superopt.program import BlockGraph, KernelGraph
from superopt.spec import check_kernel
from superopt.transforms.core import _search
from superopt.transforms.mugraph_search.axis_builder import NotBuildable
from superopt.transforms.mugraph_search.build import build
from superopt.transforms.mugraph_search.exponentials import relative_exponentials
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import native_options, native_problem, search_plans
from superopt.transforms.named_axes.merge import merge_axes
from superopt.transforms.named_axes.name_axes import name_axes

if TYPE_CHECKING:
    from superopt.transforms.core._search import Kernel, Plan, Result

TARGET = target("sm_90")
DOT, LARGEST, ACCUMULATORS, GRID = 16, 512, 144 << 10, 3
TILE = 2


@dataclass
class Sized:
    """A kernel of a plan with other extents."""

    kernel: Kernel
    tile: list[int]
    full: list[int]

    def __getattr__(self, name: str) -> object:
        return getattr(self.kernel, name)


@dataclass
class OnePlan:
    """A plan of one kernel."""

    kernels: list[Sized]


def odd_heads() -> KernelGraph:
    """96 = 3 x 32 rows, 14 x 32 columns."""
    p = Program("odd_heads")
    x, w = p.input(96, 448, name="x"), p.input(448, 448, name="w")
    return p.graph(p("relu", p("matmul", x, w)))


def odd_rows() -> KernelGraph:
    """More rows than a grid dimension of powers of two divides well; no product."""
    p = Program("odd_rows")
    x, y = p.input(7 * 33, 1536, name="x"), p.input(7 * 33, 1536, name="y")
    return p.graph(p("div", x, p("reduce_sum", p("square", y), dims=(1,), keepdims=True)))


def few_classes() -> KernelGraph:
    """Rows of 50 to 1000 classes each, over their sum: 195 KiB of weights a row, 256 KiB once padded."""
    p = Program("few_classes", dtype="f32")
    x, w = p.input(256, 1, 50, name="x"), p.input(256, 50, 1000, name="w")
    y = p("relu", p("matmul", x, w))
    return p.graph(p("div", y, p("reduce_sum", y, dims=(2,), keepdims=True)))


def unlike_columns() -> KernelGraph:
    """256 and 64 columns, and 24 rows of both."""
    p = Program("unlike_columns")
    x = p.input(24, 256, name="x")
    return p.graph(*(p("relu", p("matmul", x, p.input(256, n, name=f"w{n}"))) for n in (256, 64)))


PROGRAMS = {
    "rmsnorm": lambda: rmsnorm_linear(16, 256, 512),
    "gated": lambda: gated_mlp(16, 256, 512),
    "attention": lambda: attention(4, 64, 256, 64),
    "adapter": lambda: adapter_mlp(16, 256),
    "odd-heads": odd_heads,
    "odd-rows": odd_rows,
    "unlike-columns": unlike_columns,
}


def divisors(extent: int) -> list[int]:
    return [d for d in range(1, extent + 1) if extent % d == 0]


def assignments(
    kernel: Kernel, result: Result, factors: list[tuple[int, int]], extents: list[int]
) -> Iterator[Sized]:
    """Every way to cut the axes that a kernel loops over, that all its outputs have whole, or that share a grid
    dimension, by any divisor (products: by powers of two)."""
    looped = {factors[f][0]: f for f in kernel.loops}
    reduced = {factors[f][0] for s in kernel.steps for f in s.reduced}
    tiles = {axis: f for f, (axis, level) in enumerate(factors) if level == TILE}
    used = [a for a, f in tiles.items() if kernel.full[f] > 1]
    kept = [a for a in used if all(tiles[a] in result.values[o].factors for o in kernel.outputs)]
    kept += [factors[f][0] for group in kernel.shared for f in group]
    product = any(s.op == "contract" for s in kernel.steps)
    choices = [
        [d for d in divisors(e) if d <= LARGEST and (d == e or d.bit_count() == 1 or not product)]
        if a in looped or (a in kept and a not in reduced)
        else [e]
        for a, e in ((a, extents[a]) for a in used)
    ]
    for chosen in itertools.product(*choices):
        tile, full = list(kernel.tile), list(kernel.full)
        for axis, extent in zip(used, chosen, strict=True):
            tile[tiles[axis]] = extent
            if axis in looped:
                full[tiles[axis]], full[looped[axis]] = extent, extents[axis] // extent
        yield Sized(kernel, tile, full)


def allowed(graph: KernelGraph) -> bool:
    """What the search's rules say of a kernel, read off the kernel itself."""
    (body,) = [n.body for n in graph.nodes if isinstance(n.body, BlockGraph)]
    products = [n for n in body.nodes if n.op == "matmul"]
    sums = [n.result.type.padded.elements for n in body.nodes if n.op == "accumulate"]
    return (
        sum(e > 1 for e in body.grid) <= GRID
        and all(trips > 1 for trips in body.loops)
        and all(min(*n.result.shape[-2:], n.operands[0].shape[-1]) >= DOT for n in products)
        and 4 * sum(sums) <= ACCUMULATORS
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_other_extents_are_cheaper(name: str):
    graph = PROGRAMS[name]()
    program = relative_exponentials(merge_axes(name_axes(graph)))
    options = MugraphOptimizer(max_custom=1, candidates=3, margin=100)
    problem = native_problem(program, splits=False)
    settings = native_options(options, TARGET, 60, 0, 2)
    result = _search.search(problem, settings, lambda: False, None)
    compared = 0
    for plan in result.plans:
        if len(plan.kernels) > 1:
            continue
        best = math.inf
        for sized in assignments(plan.kernels[0], result, problem.factors, program.extents):
            try:
                other = build(program, problem.factors, result, cast("Plan", OnePlan([sized])))
                check_kernel(other, TARGET.shared_per_block)
            except (NotBuildable, IllegalProgram):
                continue
            if allowed(other):
                compared += 1
                best = min(best, cost(other, TARGET).seconds)
        chosen = build(program, problem.factors, result, plan)
        assert allowed(chosen)
        assert cost(chosen, TARGET).seconds == pytest.approx(best, rel=0.01)
    assert compared > 10


def test_tiles_fit_as_they_are_padded():
    """A block with all of the weights would leave their sum in it, but does not fit."""
    found = search_plans(few_classes(), TARGET, budget=60)
    assert found.funnel["plans.rejected.illegal"] == 0
    bodies = [n.body for g in found.graphs for n in g.nodes if isinstance(n.body, BlockGraph)]
    assert bodies
    for body in bodies:
        for node in body.nodes:
            shapes = [[1 << (e - 1).bit_length() for e in r.shape] for r in node.results]
            assert all(4 * math.prod(shape) <= TARGET.shared_per_block for shape in shapes)


def test_extents_with_odd_factors_are_cut_by_them():
    """231 rows: three or more to a block, not one."""
    graph = odd_rows()
    best = search_plans(graph, TARGET, budget=120).graphs[0]
    assert same(graph, best)
    (body,) = [n.body for n in best.nodes if isinstance(n.body, BlockGraph)]
    assert any(1 < extent < 231 and 231 % extent == 0 for extent in body.grid)


def test_keys_are_split_by_what_divides_them():
    """4125 = 3 x 5 x 5 x 5 x 11 keys, for few heads."""
    graph = grouped_attention(4, 8, 4125, 64)
    best = search_plans(graph, TARGET, budget=120).graphs[0]
    bodies = [n.body for n in best.nodes if isinstance(n.body, BlockGraph)]
    keys = next(v for v in bodies[0].inputs if v.name == "k")
    assert keys.shape[1] * keys.shape[2] == 4125
    assert keys.shape[1] in bodies[0].grid
