"""The same programs at smaller extents, where the formal test is cheap, and with fewer blocks and trips.

Every factor of every axis (see `superopt.verify.axes`) shrinks to two, in both programs alike, so that each grid,
loop and tile boundary is still crossed. What depends on sizes keeps its extents: dense constants, slices off
block boundaries, opaque operations that do more than convert each element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from superopt.computed import mark_computed
from superopt.errors import SuperoptError
from superopt.nests_by_text import nest_by_text, whole_dims
from superopt.operators import OPERATORS, normalize_attrs
from superopt.program import (
    UNBOUNDED,
    Attr,
    BlockGraph,
    Bound,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    Statement,
    Store,
    TensorType,
    ThreadGraph,
    TileProgram,
    Value,
    Window,
)
from superopt.verify.axes import Factor, Irreducible, fix, leaves, reduced
from superopt.verify.extents import Axes, trips_of

Numbers = Literal["whole", "each"]
"""Which constants stand for extents, and shrink with them: those of means, or of each of their dimensions."""
# Reduced programs larger than this (scalar operations) are not worth a formal test.
MOST_WORK = 4_000_000


def reduce_extents(
    a: KernelGraph, b: KernelGraph, *, numbers: Numbers | None = None, most_work: int = MOST_WORK
) -> tuple[KernelGraph, KernelGraph] | None:
    """Both programs with shrunk extents, or None where they cannot be shrunk consistently or to `most_work`.

    With `numbers`, constants that are the extent of a mean, or its inverse, shrink with that extent; where they
    are "each", those that are an extent of one dimension of a mean over several, too. None where there are none.
    """
    try:
        axes = Axes(bands_follow=True)
        for graph in (a, b):
            axes.graph(graph)
        if numbers == "each" and not axes.means_of:
            return None
        for x, y in zip([*a.inputs, *a.outputs], [*b.inputs, *b.outputs], strict=True):
            axes.same(axes.of(x), axes.of(y))
        axes.finish()
        named = axes.numbers(each=numbers == "each") if numbers else {}
        rebuilt = [_Rebuild(axes, numbers=named, bands_cut=True) for _ in (a, b)]
        pair = (rebuilt[0].graph(a), rebuilt[1].graph(b))
        if numbers and not any(r.renamed for r in rebuilt):
            return None
        return None if max(map(work, pair)) > most_work else pair
    except (Irreducible, SuperoptError):
        return None


def ways_to_reduce(
    a: KernelGraph, b: KernelGraph, most_work: int = MOST_WORK
) -> Generator[tuple[Numbers | None, tuple[KernelGraph, KernelGraph]]]:
    """Both programs with shrunk extents, with constants as they are at first, then those that stand for extents
    shrunk, too: one program may divide a sum by 4096 where the other takes a mean."""
    ways: tuple[Numbers | None, ...] = (None, "whole", "each")
    for numbers in ways:
        if pair := reduce_extents(a, b, numbers=numbers, most_work=most_work):
            yield numbers, pair
        elif numbers is None:
            return


# --- how much work a program is ---------------------------------------------------------------------------


def work(graph: KernelGraph) -> int:
    """Scalar operations of one evaluation, including moved elements."""
    return sum(_node_work(n) for n in graph.nodes)


def elements(graph: KernelGraph) -> int:
    """Elements of the tensors in device memory."""
    return sum(v.type.elements for v in [*graph.inputs, *(v for n in graph.nodes for v in n.results)])


def _node_work(node: Node) -> int:
    body = node.body
    if isinstance(body, BlockGraph):
        trips = math.prod(body.grid) * math.prod(body.loops)
        return trips * sum(_node_work(n) for n in body.nodes)
    if isinstance(body, ThreadGraph):
        return sum(_node_work(n) for n in body.nodes)
    if isinstance(body, TileProgram):
        return _tile_work(body.body)
    return _operator_work(node.op, node.operands, node.results, node.attrs)


def _operator_work(
    op: str, operands: Sequence[Value], results: Sequence[Value], attrs: Mapping[str, Attr]
) -> int:
    moved = sum(v.type.elements for v in results)
    if op not in OPERATORS:
        return moved
    return moved + OPERATORS[op].flops([v.shape for v in operands], normalize_attrs(OPERATORS[op], attrs))


def _tile_work(body: Sequence[Statement]) -> int:
    total = 0
    for s in body:
        if isinstance(s, Loop):
            total += trips_of(s) * _tile_work(s.body)
        elif isinstance(s, Compute):
            total += _operator_work(s.op, s.operands, (s.result,), s.attrs)
        else:
            total += math.prod(w.size for w in s.windows)
    return total


# --- the smaller programs ---------------------------------------------------------------------------------


class _Rebuild:
    """Copies a program; `extent` computes every extent from its factors, by default the reduced one.

    With `bands_cut`, sides of bands stay within the matrix.
    """

    def __init__(
        self,
        axes: Axes,
        extent: Callable[[Sequence[Factor]], int] = reduced,
        numbers: Mapping[float, float] | None = None,
        *,
        bands_cut: bool = False,
    ) -> None:
        self.axes, self.extent, self.numbers, self.bands_cut = axes, extent, numbers or {}, bands_cut
        self.renamed = False
        self.values: dict[Value, Value] = {}
        self.buffers: dict[Buffer, Buffer] = {}

    def shape(self, value: Value | Buffer) -> tuple[int, ...]:
        return tuple(self.extent(d) for d in self.axes.of(value))

    def value(self, v: Value) -> Value:
        if v not in self.values:
            self.values[v] = Value(TensorType(self.shape(v), v.dtype), v.name)
        return self.values[v]

    def graph(self, graph: KernelGraph) -> KernelGraph:
        made = KernelGraph(
            graph.name, list(map(self.value, graph.inputs)), list(map(self.node, graph.nodes)),
            list(map(self.value, graph.outputs)), graph.location, graph.aliases, graph.weights,
        )  # fmt: skip
        mark_computed(made)
        return made

    def node(self, node: Node) -> Node:
        attrs = node.attrs
        if node.op in OPERATORS:
            attrs = self.attrs(node)
        body = node.body
        if isinstance(body, BlockGraph):
            grid, loops = (tuple(map(self.extent, dims)) for dims in self.axes.extents[body])
            inner = list(map(self.node, body.nodes))
            body = BlockGraph(grid, loops, list(map(self.value, body.inputs)), inner)
        elif isinstance(body, ThreadGraph):
            body = ThreadGraph(
                list(map(self.value, body.inputs)), list(map(self.node, body.nodes)),
                list(map(self.value, body.outputs)),
            )  # fmt: skip
        elif isinstance(body, TileProgram):
            body = self.tile(body)
        operands, results = tuple(map(self.value, node.operands)), tuple(map(self.value, node.results))
        return Node(node.op, operands, results, dict(attrs), node.location, body)

    def attrs(self, node: Node | Compute) -> dict[str, Attr]:
        """The attributes, with extents replaced; the operator table names those."""
        operands, result, entry = node.operands, node.result, OPERATORS[node.op]
        out, shape = dict(node.attrs), self.shape(result)
        if entry.nest is nest_by_text:
            nest = nest_by_text([v.shape for v in operands], normalize_attrs(entry, out))
            extents = [*shape, *nest.extents[len(shape) :]]
            for d, places in whole_dims(nest, [v.shape for v in operands]).items():
                for number, axis in places:
                    extents[d] = self.shape(operands[number])[axis]
            out["extents"] = tuple(extents)
        if "shape" in out:
            out["shape"] = shape
            if "lower" in out:
                lower, upper = (self.side(int(str(out[k])), result.shape, shape) for k in ("lower", "upper"))
                if self.bands_cut and shape[-1] < result.shape[-1]:
                    lower, upper = _around_corner(node.attrs, lower, upper)
                out |= {"lower": lower, "upper": upper}
            number = out.get("value")
            if isinstance(number, float) and number in self.numbers:
                out["value"], self.renamed = self.numbers[number], True
        if isinstance(offsets := out.get("offsets"), tuple) and "sizes" in out:
            out["sizes"] = shape
            full = result.shape
            out["offsets"] = tuple(
                o if new == old else o // old * new for o, old, new in zip(offsets, full, shape, strict=True)
            )
        if operands and "groups" in out and out["groups"] == operands[0].shape[1]:  # as many as channels
            out["groups"] = self.shape(operands[0])[1]
        if result in self.axes.offsets:
            out["offset"] = self.extent(self.axes.offsets[result])
        if isinstance(along := out.get("dim"), int) and "times" in out:
            out["times"] = shape[along] // self.shape(operands[0])[along]
        return out

    def side(self, side: int, old: Sequence[int], new: Sequence[int]) -> int:
        """A side of a band: it stays where it is, seen from the last row and column.

        Where programs are tested with fewer columns, it is at most half of these away: a window that is wider
        than the matrix would hide nothing.
        """
        if abs(side) == UNBOUNDED:
            return side
        away = side - (old[-1] - old[-2])
        if self.bands_cut and new[-1] < old[-1]:
            most = max(new[-1] // 2, 1)
            away = min(max(away, -most), most)
        return away + (new[-1] - new[-2])

    def buffer(self, b: Buffer) -> Buffer:
        if b not in self.buffers:
            self.buffers[b] = Buffer(
                TensorType(self.shape(b), b.type.dtype), b.name, b.placement, view=b.view
            )
        return self.buffers[b]

    def tile(self, program: TileProgram) -> TileProgram:
        params, local = list(map(self.buffer, program.params)), list(map(self.buffer, program.locals))
        body = list(map(self.statement, program.body))
        return replace(program, params=params, locals=local, body=body)

    def statement(self, s: Statement) -> Statement:
        """The statement, with loops that count trips from zero and windows that scale them."""
        if isinstance(s, Loop):
            return Loop(
                s.var,
                0,
                self.extent(self.axes.trips[s.var]),
                1,
                s.parallel,
                list(map(self.statement, s.body)),
            )
        if isinstance(s, Compute):
            attrs = self.attrs(s)
            operands, result = tuple(map(self.value, s.operands)), self.value(s.result)
            bounds = tuple(self.bound(b, s) for b in s.bounds)
            return Compute(s.op, operands, result, attrs, bounds)
        value = self.value(s.result if isinstance(s, Load) else s.value)
        windows = tuple(
            self.window(w, size, s.buffer, i)
            for i, (w, size) in enumerate(zip(s.windows, value.shape, strict=True))
        )
        if isinstance(s, Load):
            return Load(value, self.buffer(s.buffer), windows)
        return Store(self.buffer(s.buffer), windows, value)

    def bound(self, b: Bound, mask: Compute) -> Bound:
        window = self.window(b.window, self.shape(mask.result)[b.dim])
        return Bound(b.dim, window, self.extent(self.axes.bounds[mask.result, b]))

    def window(self, w: Window, size: int, buffer: Buffer | None = None, along: int = 0) -> Window:
        first, moves = self.axes.travel(w)
        start = self.axes.start(buffer, along, first, self.extent) if buffer is not None else None
        if size == w.size and all(
            self.extent(self.axes.trips[v]) == trips_of(self.axes.loops[v]) for v, _ in moves
        ):
            return Window(size, first if start is None else start, tuple(moves), w.stride)
        if w in self.axes.placed:  # blocks place tiles side by side, and what is read for each position stays
            placed: list[tuple[LoopVar, int]] = []
            covered = size * w.stride
            for var, stride in moves:
                outer = self.axes.loops[var].parallel
                placed.append((var, covered if outer else stride))
                covered *= self.extent(self.axes.trips[var]) if outer else 1
            return Window(size, first, tuple(placed), w.stride)
        # Offsets are whole tiles, and a loop's stride is what one of its trips covers.
        terms: list[tuple[LoopVar, int]] = []
        old, new = w.size, size
        for var, stride in moves:
            if stride == old:
                terms.append((var, new))
                old, new = old * trips_of(self.axes.loops[var]), new * self.extent(self.axes.trips[var])
            else:
                terms.append((var, stride // w.size * size))
        return Window(size, first // w.size * size if start is None else start, tuple(terms), w.stride)


def _around_corner(band: Mapping[str, Attr], lower: int, upper: int) -> tuple[int, int]:
    """Sides of a smaller band that has the first row's first element where the `band` has it.

    Rows shrink less than columns where they are cut into more pieces. Sides that stay where they are, seen from
    the last row and column, then hide first rows entirely, of which a softmax is undefined.
    """
    was_lower, was_upper = (int(str(band[key])) for key in ("lower", "upper"))
    return (
        min(lower, 0) if was_lower <= 0 else max(lower, 1),
        max(upper, 0) if was_upper >= 0 else min(upper, -1),
    )


def resized(graph: KernelGraph, axes: Axes, extent: Callable[[Sequence[Factor]], int]) -> KernelGraph:
    """`graph`, whose axes are `axes`, with the extents that `extent` computes from a dimension's factors."""
    return _Rebuild(axes, extent).graph(graph)


# --- fewer blocks, fewer trips ---------------------------------------------------------------------------


def fewer_blocks(first: KernelGraph, *others: KernelGraph) -> tuple[KernelGraph, ...] | None:
    """The programs with at most two blocks along each dimension of a grid; what a block does is unchanged.

    Loops, tiles and all summed extents stay, so that rounding errors are those of the whole program. Where there
    are only library operators, only the extents that they reduce stay. None where the
    programs do not agree on what may shrink.
    """
    return _shrunk((first, *others), trips=0)


def fewer_trips(first: KernelGraph, *others: KernelGraph, trips: int) -> tuple[KernelGraph, ...] | None:
    """The same with at most `trips` trips of each loop, which shortens sums except those of means."""
    return _shrunk((first, *others), trips=trips)


def _shrunk(graphs: tuple[KernelGraph, ...], *, trips: int) -> tuple[KernelGraph, ...] | None:
    first, *others = graphs
    try:
        axes = Axes(bands_follow=True)
        for graph in graphs:
            axes.graph(graph)
        if trips:
            for _, extent in axes.means:
                fix(extent)
        for other in others:
            for x, y in zip([*first.inputs, *first.outputs], [*other.inputs, *other.outputs], strict=True):
                axes.same(axes.of(x), axes.of(y))
        axes.cut_buffers()
        grids = [axes.trips[var] for var, loop in axes.loops.items() if loop.parallel]
        grids += [extent for grid, _ in axes.extents.values() for extent in grid]
        loops = [axes.trips[var] for var, loop in axes.loops.items() if not loop.parallel]
        loops += [extent for _, inner in axes.extents.values() for extent in inner]
        blocks = {leaf for extent in grids for leaf in leaves(extent)}
        looped = {leaf for extent in loops for leaf in leaves(extent)} if trips else set[Factor]()
        covered = set[Factor]()
        # What ragged tiles cover shrinks with them.
        for j in axes.ragged:
            whole = leaves(j.pieces[0])
            if len(whole) == 1 and not (blocks | looped).isdisjoint(leaves(j.whole)):
                covered.update(whole)
        kept = blocks | looped | covered
        inside = [d for dims in axes.dims.values() for d in dims]
        inside += [d for j in axes.joined for d in (j.whole, *j.pieces)]
        # Library operators alone lack blocks: each element counts as one.
        for extent in [*inside, *loops] if blocks or looped else ():
            fix([leaf for leaf in leaves(extent) if leaf not in kept])
        if not trips:
            for graph in graphs:
                _fix_reduced(axes, graph.nodes)
            for extent in loops:
                fix(extent)
        for leaf in looped:
            leaf.chosen = trips
        axes.settle()
        return tuple(resized(graph, axes, reduced) for graph in graphs)
    except (Irreducible, SuperoptError):
        return None


def _fix_reduced(axes: Axes, nodes: Sequence[Node | Statement]) -> None:
    """Keep the extents that an operator reduces."""
    for node in nodes:
        if isinstance(node, Loop):
            _fix_reduced(axes, node.body)
        elif isinstance(node, Node) and isinstance(node.body, BlockGraph | ThreadGraph):
            _fix_reduced(axes, node.body.nodes)
        elif isinstance(node, Node) and isinstance(node.body, TileProgram):
            _fix_reduced(axes, node.body.body)
        elif isinstance(node, Node | Compute) and (entry := OPERATORS.get(node.op)) and entry.nest:
            nest = entry.nest([v.shape for v in node.operands], normalize_attrs(entry, node.attrs))
            if nest.reads:
                for d, places in whole_dims(nest, [v.shape for v in node.operands]).items():
                    for number, axis in places if d in nest.reductions else ():
                        fix(axes.of(node.operands[number])[axis])
                continue
            for value, maps in zip(node.operands, nest.operands, strict=True):
                for d, index in zip(axes.of(value), maps, strict=True):
                    if index.dim in nest.reductions:
                        fix(d)
