"""Programs with fewer blocks of the same kind, and with fewer trips of their loops: sums whole, or shorter.

What a block does in a trip stays as it is, tiles and all. Used where every block would take too long: at full
extents by the certifier, and by the numeric gate.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.errors import SuperoptError
from superopt.operators import OPERATORS, normalize_attrs
from superopt.program import BlockGraph, Compute, KernelGraph, Loop, Node, Statement, ThreadGraph, TileProgram
from superopt.verify.axes import Factor, Irreducible, fix, leaves, reduced, settle
from superopt.verify.reduce import Axes, resized


def fewer_blocks(first: KernelGraph, *others: KernelGraph) -> tuple[KernelGraph, ...] | None:
    """The programs with at most two blocks along each dimension of a grid; what a block does stays as it is.

    Loops, tiles and all that is summed keep their extents, so that rounding errors are those of the whole
    program. None where the programs do not agree on what may shrink.
    """
    return _shrunk((first, *others), trips=0)


def fewer_trips(first: KernelGraph, *others: KernelGraph, trips: int) -> tuple[KernelGraph, ...] | None:
    """The same with at most `trips` trips of each loop, so that sums are shorter; not those of means."""
    return _shrunk((first, *others), trips=trips)


def _shrunk(graphs: tuple[KernelGraph, ...], *, trips: int) -> tuple[KernelGraph, ...] | None:
    first, *others = graphs
    try:
        axes = Axes(keep_means=trips > 0)
        for graph in graphs:
            axes.graph(graph)
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
        inside = [d for dims in axes.dims.values() for d in dims]
        inside += [d for j in axes.joined for d in (j.whole, *j.pieces)]
        for extent in [*inside, *loops]:
            fix([leaf for leaf in leaves(extent) if leaf not in blocks and leaf not in looped])
        if not trips:
            for graph in graphs:
                _fix_reduced(axes, graph.nodes)
            for extent in loops:
                fix(extent)
        for leaf in looped:
            leaf.chosen = trips
        settle(axes.joined)
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
            for value, maps in zip(node.operands, nest.operands, strict=True):
                for d, index in zip(axes.of(value), maps, strict=True):
                    if index.dim in nest.reductions:
                        fix(d)
