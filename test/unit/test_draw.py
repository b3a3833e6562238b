"""Programs as SVG: every box in a place of its own, every tensor and every map on its edge."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import programs
import pytest

from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.draw import graph_svg
from superopt.inputs.programs import read_program
from superopt.program import BlockGraph, KernelGraph, TensorType, Value

ROOT = Path(__file__).parents[2]
RECT = re.compile(r'<rect class="(\w+)" x="(-?\d+)" y="(-?\d+)" width="(\d+)" height="(\d+)"')
PROGRAMS = sorted([*ROOT.glob("examples/*.mlir"), *ROOT.glob("benchmarks/mugraph/*_b1*.mlir")])


def written(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_boxes_and_labels_do_not_overlap(path: Path) -> None:
    svg = graph_svg(read_program(path, Diagnostics()))
    boxes = [(kind, *map(int, numbers)) for kind, *numbers in RECT.findall(svg)]
    assert len(boxes) > 3
    for (_, x, y, w, h), (_, x2, y2, w2, h2) in itertools.combinations(boxes, 2):
        assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y, svg
    width, height = map(int, re.findall(r'<svg [^>]*width="(\d+)" height="(\d+)"', svg)[0])
    assert all(0 <= x <= x + w <= width and 0 <= y <= y + h <= height for _, x, y, w, h in boxes)


def test_an_edge_past_other_operators_goes_around_them() -> None:
    """x is used again five operators later: where the edge passes their rows, it is beside them."""
    svg = graph_svg(read_program(ROOT / "examples" / "rmsnorm_linear.mlir", Diagnostics()))
    boxes = [(int(x), int(y), int(w), int(h)) for _, x, y, w, h in RECT.findall(svg)]
    straight = re.findall(r"(-?\d+) (-?\d+) L(-?\d+) (-?\d+)", svg)
    long = [(int(x), int(a), int(b)) for x, a, _, b in straight if int(b) > int(a)]
    assert long
    own = {(x + w // 2) for x, _, w, _ in boxes}
    through = [(px, a, b) for px, a, b in long if not any(abs(px - c) <= 1 for c in own)]
    assert through
    for px, a, b in through:
        assert not any(x < px < x + w and a < y + h and y < b for x, y, w, h in boxes)


def test_maps_are_on_the_edges_of_a_kernel() -> None:
    graph = read(programs.ALL_TEXTS["rmsnorm_linear"])
    (block,) = [n.body for n in graph.nodes if isinstance(n.body, BlockGraph)]
    for svg in (graph_svg(graph), graph_svg(block)):
        said = written(svg)
        assert any(t.startswith("imap {x ") for t in said)
        assert any(t.startswith("fmap {i ") for t in said)
        assert any(t.startswith("omap {x ") for t in said)
    assert f"grid {{x: {block.grid[0]}}}" in written(graph_svg(graph))


def test_a_program_that_computes_nothing() -> None:
    x = Value(TensorType((4,), "f16"), "x")
    assert written(graph_svg(KernelGraph("nothing", [x], [], [x]))) == ["x", "f16[4]", "x"]
