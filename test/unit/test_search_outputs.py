"""Outputs of unlike axes in one kernel: a grid dimension cuts another axis of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from search_programs import Program, same
from search_support import TARGET, loads, only_kernel, search

from superopt.cost import cost
from superopt.diagnostics import Diagnostics
from superopt.pipeline import Superoptimize, superoptimize
from superopt.program import BlockGraph, KernelGraph, Value


def projections(*widths: int, m: int = 16, k: int = 256, norm: bool = True) -> KernelGraph:
    """`x`, or what a norm makes of it, times one matrix for each width."""
    p = Program("projections")
    x = y = p.input(m, k, name="x")
    if norm:
        mean = p("reduce_mean", p("square", x), dims=(1,), keepdims=True)
        y = p("mul", x, p("rsqrt", p("add", mean, p.constant(1e-5))))
    return p.graph(*(p("matmul", y, p.input(k, n, name=f"w{i}")) for i, n in enumerate(widths)))


def halves(m: int = 16, k: int = 256, n: int = 512) -> KernelGraph:
    """Both halves of SwiGLU, one through its function."""
    p = Program("halves")
    x = p.input(m, k, name="x")
    gate, up = (p("matmul", x, p.input(k, n, name=name)) for name in ("w0", "w1"))
    return p.graph(p("silu", gate), up)


def cut_by_heads(m: int = 64, k: int = 256, d: int = 32) -> KernelGraph:
    """One output has eight heads, the other two."""
    p = Program("cut_by_heads")
    x = p.input(m, k, name="x")

    def heads(n: int, name: str) -> Value:
        y = p("reshape", p("matmul", x, p.input(k, n * d, name=name)), shape=(m, n, d))
        return p("transpose", p("relu", y), perm=(1, 0, 2))

    return p.graph(heads(8, "w0"), heads(2, "w1"))


PROGRAMS: dict[str, Callable[[], KernelGraph]] = {
    "two widths": lambda: projections(1024, 256),
    "three widths": lambda: projections(1024, 256, 512),
    "no norm": lambda: projections(1024, 256, 256, norm=False),
    "width of other factors": lambda: projections(1536, 384),
    "halves": halves,
    "heads": cut_by_heads,
}


def unlike(body: BlockGraph) -> bool:
    """Whether some dimension of the grid cuts tiles of different extents."""
    maps = [(n.attrs["omap"], n.operands[0].shape) for n in body.savers]
    return len({shape for _, shape in maps}) > 1 and any(g > 1 for g in body.grid)


@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs_of_unlike_axes_are_one_kernel(name: str):
    graph = PROGRAMS[name]()
    found = search(graph)
    body = only_kernel(found.graphs[0])
    assert set(loads(body).values()) == {1}
    assert len(body.savers) == len(graph.outputs)
    assert max(body.grid) > 1
    assert unlike(body) or name == "halves"
    assert found.predicted[0] == pytest.approx(cost(found.graphs[0], TARGET).seconds)
    for candidate in found.graphs:
        assert same(graph, candidate)


def test_it_costs_what_one_product_with_all_columns_costs():
    apart = search(projections(4096, 1024, 1024, m=8, k=4096)).predicted[0]
    merged = search(projections(6144, m=8, k=4096)).predicted[0]
    assert apart < 1.05 * merged


def test_an_axis_that_some_output_lacks_does_not_cut_the_others():
    """The product of `y` with itself has columns that are rows of the other output: no block has both."""
    p = Program("shared_rows")
    x, w = p.input(64, 256, name="x"), p.input(256, 64, name="w")
    y = p("matmul", x, w)
    graph = p.graph(p("relu", y), p("matmul", y, y, transpose_b=True))
    found = search(graph)
    assert found.graphs
    for candidate in found.graphs:
        assert same(graph, candidate)


def test_such_a_kernel_passes_every_gate():
    outcome = superoptimize(
        projections(128, 32, 64, k=128), Superoptimize(budget=20, against="operators"), Diagnostics()
    )
    assert outcome.report.improved, outcome.report
    assert len(outcome.report.kernels) == 1
    (chosen,) = [c for c in outcome.report.candidates if c.outcome == "chosen"]
    assert (chosen.optimizer, chosen.kernels) == ("mugraph", 1)
