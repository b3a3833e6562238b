"""Programs as SVG, for the page of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Any

from superopt.operators import is_constant
from superopt.program import BlockGraph, KernelGraph, NodeKind, ThreadGraph, TileProgram, Value
from superopt.render import axes_text, block_attributes, loops_text, type_text

_GAP, _ROW, _LETTER, _LINE = 24, 16, 6.6, 13  # pixels: between boxes, between layers, of a letter, of a line


@dataclass(eq=False)
class _Box:
    """An operator, input or output; or, with the kind "edge", what is written on an edge."""

    lines: list[str]
    kind: str
    above: list[_Box] = field(default_factory=list["_Box"])
    layer: int = 0
    x: float = 0.0  # of its centre, in pixels, as y
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(map(len, self.lines), default=0) * _LETTER + (0 if self.kind == "edge" else 18)

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + (0 if self.kind == "edge" else 16)


class _Drawing:
    """A graph whose boxes are added from inputs to outputs, with the types of tensors on the edges."""

    def __init__(self) -> None:
        self.boxes: list[_Box] = []
        self.sources: dict[Value, _Box] = {}
        self.types: dict[Value, _Box] = {}

    def add(self, lines: Sequence[str], kind: str, above: Sequence[_Box] = ()) -> _Box:
        box = _Box(list(lines), kind, list(above), 1 + max((b.layer for b in above), default=-1))
        self.boxes.append(box)
        return box

    def edge(self, value: Value, *labels: str) -> list[_Box]:
        """Where an edge that carries `value` comes from: its label; none for a constant, which is not drawn."""
        if value not in self.sources:
            return []
        if value not in self.types:
            self.types[value] = self.add([type_text(value.type)], "edge", [self.sources[value]])
        shown = [label for label in labels if label]
        return [self.add(shown, "edge", [self.types[value]]) if shown else self.types[value]]

    def svg(self) -> str:
        """Laid out in layers, each box below what it is made of."""
        _lower_the_inputs(self.boxes)
        lines = _laid_out(self.boxes)
        width = max((b.x + b.width / 2 for b in self.boxes), default=0) + _GAP
        height = max((b.y + b.height / 2 for b in self.boxes), default=0) + _ROW
        parts = [f'<path d="{_curve(line)}"/>' for line in lines]
        for box in self.boxes:
            left, top = box.x - box.width / 2, box.y - box.height / 2
            size = f'x="{left:.0f}" y="{top:.0f}" width="{box.width:.0f}" height="{box.height:.0f}"'
            parts.append(f'<rect class="{escape(box.kind)}" {size} rx="5"/>')
            middle = len(box.lines) / 2 - 0.75
            parts += [
                f'<text class="{escape(box.kind)}" x="{box.x:.0f}" y="{box.y + (i - middle) * _LINE:.0f}">'
                f"{escape(line)}</text>"
                for i, line in enumerate(box.lines)
            ]
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        return f'<svg class="graph" role="img" {size}>{"".join(parts)}</svg>'


def graph_svg(graph: KernelGraph | BlockGraph | ThreadGraph, results: Sequence[str] = ()) -> str:
    """A program, or what a block or thread does, from inputs above to outputs below, which are called `results`.

    On the edges: types, and how grids and loops cut the tensors (imap, fmap, omap).
    """
    drawing = _Drawing()
    for i, value in enumerate(graph.inputs):
        drawing.sources[value] = drawing.add([value.name or f"in{i}"], "input")
    for node in (n for n in graph.nodes if not is_constant(n)):
        block = node.body if isinstance(node.body, BlockGraph) else None
        maps: list[list[str]] = _maps_of_inputs(block) if block else [[] for _ in node.operands]
        lines = [str(node.op)]
        if block:
            lines += axes_text(block)
        elif isinstance(node.body, TileProgram):
            lines += loops_text(node.body)
        elif not isinstance(graph, KernelGraph) and (own := block_attributes(node)):
            if node.op in (NodeKind.ITERATOR, NodeKind.SAVE):
                maps = [_split(own)]
            else:
                lines.append(own)
        above = [b for v, m in zip(node.operands, maps, strict=True) for b in drawing.edge(v, *m)]
        box = drawing.add(lines, "custom" if node.body is not None else str(node.op), above)
        savers = block.savers if block else []
        for i, value in enumerate(node.results):
            omap = _split(block_attributes(savers[i])) if i < len(savers) else []
            drawing.sources[value] = drawing.add(omap, "edge", [box]) if omap else box
    if not isinstance(graph, BlockGraph):
        for name, value in zip(results or names_of_outputs(graph), graph.outputs, strict=True):
            drawing.add([name], "output", drawing.edge(value))
    return drawing.svg()


def names_of_outputs(graph: KernelGraph | ThreadGraph) -> list[str]:
    """What the outputs are called; those without a name, by their number."""
    return [value.name or f"out{i}" for i, value in enumerate(graph.outputs)]


def _maps_of_inputs(block: BlockGraph) -> list[list[str]]:
    """How the iterators of a block cut each of its inputs, each way once."""
    found: dict[Value, dict[str, None]] = {value: {} for value in block.inputs}
    for node in block.nodes:
        if node.op == NodeKind.ITERATOR:
            found[node.operands[0]].update(dict.fromkeys(_split(block_attributes(node))))
    return [list(maps) for maps in found.values()]


def _split(maps: str) -> list[str]:
    """`imap {x ↔ 0}, fmap {i ↔ 1}` in lines of their own, without those of no grid or loop."""
    return [one for part in maps.split("}, ") if not (one := part.rstrip("}") + "}").endswith("{}")]


def bodies(graph: KernelGraph) -> list[tuple[str, str, str]]:
    """The block graphs of a program, and the thread graphs in them: title, grid and loops, SVG."""
    found: list[tuple[str, str, str]] = []
    number = 0
    for node in graph.nodes:
        if isinstance(block := node.body, BlockGraph):
            title = f"block level of custom{number}"
            number += 1
            found.append((title, ", ".join(axes_text(block)), graph_svg(block)))
            for inner in block.nodes:
                if isinstance(inner.body, ThreadGraph):
                    found.append((f"thread level in {title}", "in registers", graph_svg(inner.body)))
    return found


# --- layout -----------------------------------------------------------------------------------------------


def _lower_the_inputs(boxes: Sequence[_Box]) -> None:
    """Put inputs, and what only iterates over them, right above the first that takes them."""
    below: dict[_Box, list[_Box]] = {}
    early: set[_Box] = set()
    for box in boxes:
        if not box.above or (box.kind in ("edge", NodeKind.ITERATOR) and early.issuperset(box.above)):
            early.add(box)
        for source in box.above:
            below.setdefault(source, []).append(box)
    for box in reversed(boxes):
        if box in early and box in below:
            box.layer = min(b.layer for b in below[box]) - 1


def _laid_out(boxes: Sequence[_Box]) -> list[list[tuple[float, float, float]]]:
    """Place the boxes; returns each edge as its points: x, and from which y to which it goes straight down.

    Sugiyama's method, by igraph, with a point wherever an edge passes a layer.
    """
    import igraph

    layers = [box.layer for box in boxes]
    number = {box: i for i, box in enumerate(boxes)}
    routes: list[list[int]] = []
    for box in boxes:
        for source in box.above:
            passed = range(source.layer + 1, box.layer)
            routes.append([number[source], *range(len(layers), len(layers) + len(passed)), number[box]])
            layers += passed
    edges = [edge for route in routes for edge in pairwise(route)]
    graph: Any = igraph.Graph(len(layers), edges, directed=True)
    places: list[float] = [x for x, _ in graph.layout_sugiyama(layers=layers, maxiter=1000)]
    widths = [box.width for box in boxes] + [0.0] * (len(layers) - len(boxes))
    rows: dict[int, list[int]] = {}
    for i in sorted(range(len(layers)), key=places.__getitem__):
        rows.setdefault(layers[i], []).append(i)
    scale = max(
        (
            ((widths[a] + widths[b]) / 2 + _GAP) / max(places[b] - places[a], 1e-3)
            for row in rows.values()
            for a, b in pairwise(row)
        ),
        default=1.0,
    )
    left = min((places[i] * scale - widths[i] / 2 for i in range(len(layers))), default=0.0) - _GAP
    top: dict[int, float] = {}
    end: dict[int, float] = {}
    y = 8.0
    for layer in sorted(rows):
        height = max((boxes[i].height for i in rows[layer] if i < len(boxes)), default=0.0)
        top[layer], end[layer] = y, y + height
        y += height + _ROW
        for i in rows[layer]:
            if i < len(boxes):
                boxes[i].x, boxes[i].y = places[i] * scale - left, top[layer] + height / 2

    def point(i: int) -> tuple[float, float, float]:
        if i < len(boxes):
            return boxes[i].x, boxes[i].y - boxes[i].height / 2, boxes[i].y + boxes[i].height / 2
        return places[i] * scale - left, top[layers[i]], end[layers[i]]

    return [[point(i) for i in route] for route in routes]


def _curve(points: Sequence[tuple[float, float, float]]) -> str:
    """Straight down past each layer, bent between them; it ends at the top of the last box."""
    x, _, y = points[0]
    path = [f"M{x:.0f} {y:.0f}"]
    for x2, y2, end in points[1:]:
        middle = (y + y2) / 2
        path.append(f"C{x:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}")
        x, y = x2, y2
        if (x2, y2, end) != points[-1]:
            path.append(f"L{x2:.0f} {end:.0f}")
            y = end
    return " ".join(path)
