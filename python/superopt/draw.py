"""Programs as SVG, for the page of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from superopt.operators import is_constant
from superopt.program import BlockGraph, KernelGraph, Node, ThreadGraph, Value
from superopt.render import block_attributes, type_text

_ROW, _GAP, _HEIGHT, _LETTER = 78, 24, 34, 6.6


@dataclass
class _Box:
    """One operator, input or output: its lines of text and its place, in pixels."""

    lines: list[str]
    kind: str
    layer: int = 0
    x: float = 0.0

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * _LETTER + 18


def graph_svg(graph: KernelGraph | BlockGraph | ThreadGraph) -> str:
    """A program, or what a block or thread does, from inputs above to outputs below; types on the edges."""
    boxes: dict[Value | Node | int, _Box] = {}
    for i, value in enumerate(graph.inputs):
        boxes[value] = _Box([value.name or f"in{i}"], "input")
    made = {result: node for node in graph.nodes for result in node.results}
    shown = [node for node in graph.nodes if not is_constant(node)]
    edges: list[tuple[_Box, _Box, str]] = []

    def source(value: Value) -> _Box | None:
        return boxes.get(value) if value in boxes else boxes.get(made[value]) if value in made else None

    for number, node in enumerate(shown):
        lines = [str(node.op)]
        if not isinstance(graph, KernelGraph) and (maps := block_attributes(node)):
            lines.append(maps)
        box = boxes[node] = _Box(lines, "custom" if node.body is not None else str(node.op), number)
        above = [(source(v), v) for v in node.operands]
        box.layer = 1 + max((b.layer for b, _ in above if b is not None), default=0)
        edges += [(b, box, type_text(v.type)) for b, v in above if b is not None]
    if not isinstance(graph, BlockGraph):
        last = 1 + max((b.layer for b in boxes.values()), default=0)
        for i, value in enumerate(graph.outputs):
            box = boxes[i] = _Box([value.name or f"out{i}"], "output", last)
            if (b := source(value)) is not None:
                edges.append((b, box, type_text(value.type)))
    return _svg(list(boxes.values()), edges)


def _svg(boxes: Sequence[_Box], edges: Sequence[tuple[_Box, _Box, str]]) -> str:
    layers: dict[int, list[_Box]] = {}
    for box in boxes:
        layers.setdefault(box.layer, []).append(box)
    widths = {k: sum(b.width for b in row) + _GAP * (len(row) - 1) for k, row in layers.items()}
    width = max(widths.values(), default=0) + 2 * _GAP
    height = (max(layers, default=0) + 1) * _ROW
    for k, row in layers.items():
        x = (width - widths[k]) / 2
        for box in row:
            box.x, x = x, x + box.width + _GAP
    parts: list[str] = []
    for a, b, label in edges:
        x1, y1, x2, y2 = (
            a.x + a.width / 2,
            a.layer * _ROW + 8 + _HEIGHT,
            b.x + b.width / 2,
            b.layer * _ROW + 8,
        )
        middle = (y1 + y2) / 2
        parts.append(f'<path d="M{x1:.0f} {y1} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2}"/>')
        parts.append(f'<text class="edge" x="{(x1 + x2) / 2:.0f}" y="{middle:.0f}">{escape(label)}</text>')
    for box in boxes:
        y = box.layer * _ROW + 8
        parts.append(
            f'<rect class="{escape(box.kind)}" x="{box.x:.0f}" y="{y}" width="{box.width:.0f}" '
            f'height="{_HEIGHT}" rx="5"/>'
        )
        step = _HEIGHT / (len(box.lines) + 1)
        for i, line in enumerate(box.lines, 1):
            place = f'x="{box.x + box.width / 2:.0f}" y="{y + i * step + 4:.0f}"'
            parts.append(f"<text {place}>{escape(line)}</text>")
    size = f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    return f'<svg class="graph" role="img" {size}>{"".join(parts)}</svg>'


def bodies(graph: KernelGraph) -> list[tuple[str, str, str]]:
    """The block graphs of a program, and the thread graphs in them: title, grid and loops, SVG."""
    found: list[tuple[str, str, str]] = []
    number = 0
    for node in graph.nodes:
        if isinstance(block := node.body, BlockGraph):
            title = f"block level of custom{number}"
            number += 1
            found.append((title, f"grid {block.grid}, loops {block.loops}", graph_svg(block)))
            for inner in block.nodes:
                if isinstance(inner.body, ThreadGraph):
                    found.append((f"thread level in {title}", "in registers", graph_svg(inner.body)))
    return found
