"""The rules of block graphs and of the thread graphs in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from superopt.errors import IllegalProgram, Location
from superopt.levels.common import check_defined, check_table, define, expect, types_text
from superopt.levels.ragged import Reaches, check_saved, reaches
from superopt.operators import Move, move_of
from superopt.program import CARRIED, BlockGraph, Node, NodeKind, TensorType, ThreadGraph, Value

ACCUMULATORS = ("sum", "max", "concat", "rescaled")


@dataclass(frozen=True)
class Stage:
    """Where a value of a block graph lives: the loops that it varies over, and those that it comes after."""

    varies: frozenset[int] = frozenset()
    after: frozenset[int] = frozenset()


def stages(graph: BlockGraph) -> dict[Value, Stage]:
    """Stage of every value; raises IllegalProgram where a node mixes values inside and after a loop."""
    found: dict[Value, Stage] = {v: Stage() for v in graph.inputs}
    for node in graph.nodes:
        varies = frozenset[int]().union(*(found[v].varies for v in node.operands if v in found))
        after = frozenset[int]().union(*(found[v].after for v in node.operands if v in found))
        if mixed := varies & after:
            got = f"values inside and after loop {min(mixed)}"
            raise IllegalProgram(f"'{node.op}' expected operands of one stage, got {got}", node.location)
        if node.op == NodeKind.ITERATOR:
            fmap = _int_tuple(node, "fmap")
            varies = frozenset(loop for loop, dim in enumerate(fmap) if dim >= 0)
        elif node.op == NodeKind.RUNNING_MAX:
            varies |= {_loop(node, graph)}
        elif node.op == NodeKind.ACCUMULATE:
            loop = _loop(node, graph)
            deeper = {v for v in varies if v > loop}
            expect(
                not deeper,
                f"loops inside loop {loop} to be ended first",
                f"open loops {sorted(deeper)}",
                node,
            )
            expect(loop not in after, f"a value inside loop {loop}", "one after it", node)
            varies, after = varies - {loop}, after | {loop}
        for result in node.results:
            found[result] = Stage(varies, after)
    return found


def _int_tuple(node: Node, key: str) -> tuple[int, ...]:
    value = node.attrs.get(key)
    if not isinstance(value, tuple):
        raise IllegalProgram(
            f"'{node.op}' expected attribute '{key}' (array of i64), got {value}", node.location
        )
    return value


def _loop(node: Node, graph: BlockGraph) -> int:
    loop = node.attrs.get("loop")
    if not isinstance(loop, int) or not 0 <= loop < len(graph.loops):
        raise IllegalProgram(
            f"'{node.op}' expected attribute 'loop' in [0, {len(graph.loops)}), got {loop}", node.location
        )
    return loop


def check_custom(node: Node, shared_bytes: int | None) -> None:
    """A `custom` node: grid and loops, its region, and that it saves what the node gives."""
    graph = node.body
    if not isinstance(graph, BlockGraph):
        raise IllegalProgram("'custom' expected a region with a block graph, got none", node.location)
    expect(1 <= len(graph.grid) <= 3, "a grid of one to three dimensions", len(graph.grid), node)
    expect(all(g >= 1 for g in graph.grid), "positive grid extents", graph.grid, node)
    expect(all(r >= 1 for r in graph.loops), "positive loop extents", graph.loops, node)
    inside = [v.type for v in graph.inputs]
    outside = [v.type for v in node.operands]
    expect(inside == outside, f"region arguments {types_text(outside)}", types_text(inside), node)
    reach = check_block(graph, shared_bytes, node.location)
    savers = graph.savers
    expect(len(savers) == len(node.results), f"{len(node.results)} savers", len(savers), node)
    for saver, result in zip(savers, node.results, strict=True):
        saved = saved_type(saver, graph.grid)
        ragged = any(reach[saver.operands[0]])
        expect(ragged or saved == result.type, f"a result of type {saved}", result.type, saver)
        expect(saved.dtype == result.dtype, f"a result of {saved.dtype}", result.dtype, saver)
        check_saved(saver, graph, reach[saver.operands[0]], result.shape)


def check_block(
    graph: BlockGraph, shared_bytes: int | None = None, location: Location | None = None
) -> dict[Value, Reaches]:
    """Check a block graph: maps, extents, stages, savers and shared memory; returns what exists of its tiles.

    `shared_bytes` is the target's limit for one block, by default the largest of any target.
    """
    from superopt.cost.gpus import largest_shared_bytes  # the cost model imports this module

    defined = set(graph.inputs)
    arguments = set(graph.inputs)
    stage = stages(graph)
    for node in graph.nodes:
        check_defined(node, defined)
        if node.op != NodeKind.ITERATOR:
            whole = arguments.intersection(node.operands)
            expect(not whole, "tiles as operands", "a whole tensor; load it with 'block.iterator'", node)
        _BLOCK_CHECKS.get(node.op, _check_block_table)(node, graph)
        if node.op == NodeKind.SAVE:
            open_loops = stage[node.operands[0]].varies
            expect(
                not open_loops,
                "a value after every loop it varies over",
                f"open loops {sorted(open_loops)}",
                node,
            )
        define(node, defined)
    where = location or (graph.nodes[0].location if graph.nodes else Location())
    if not graph.savers:
        raise IllegalProgram("expected at least one 'save', got none", where)
    reach = reaches(graph)
    used, most = block_bytes(graph), largest_shared_bytes() if shared_bytes is None else shared_bytes
    if used > most:
        raise IllegalProgram(f"expected at most {most} bytes of shared memory, got {used}", where)
    return reach


def _check_block_table(node: Node, graph: BlockGraph) -> None:
    check_table(node, "block")


def iterator_type(source: TensorType, node: Node, graph: BlockGraph) -> TensorType:
    """Type of the least tile that an `iterator` hands out: `source` cut by its imap and fmap, rounded up."""
    shape = list(source.shape)
    for key, extents in (("imap", graph.grid), ("fmap", graph.loops)):
        dims = _int_tuple(node, key)
        expect(len(dims) == len(extents), f"'{key}' of {len(extents)} entries", len(dims), node)
        mapped = [d for d in dims if d != -1]
        expect(len(set(mapped)) == len(mapped), f"'{key}' to map to distinct dimensions", dims, node)
        for dim, extent in zip(dims, extents, strict=True):
            expect(-1 <= dim < len(shape), f"'{key}' entries in [-1, {len(shape)})", dim, node)
            if dim >= 0:
                shape[dim] = -(-shape[dim] // extent)
    return TensorType(tuple(shape), source.dtype)


def _check_iterator(node: Node, graph: BlockGraph) -> None:
    expect(
        len(node.operands) == 1 and len(node.results) == 1,
        "one operand and one result",
        len(node.operands),
        node,
    )
    expect(node.operands[0] in graph.inputs, "an argument of the region", "a tile", node)
    source, tile = iterator_type(node.operands[0].type, node, graph), node.result.type
    alike = source.dtype == tile.dtype and len(source.shape) == len(tile.shape)
    expect(alike, f"result type {source}", tile, node)


def _check_accumulate(node: Node, graph: BlockGraph) -> None:
    kind = node.attrs.get("kind")
    expect(kind in ACCUMULATORS, f"'kind' of {', '.join(ACCUMULATORS)}", kind, node)
    operands = 2 if kind == "rescaled" else 1
    expect(
        len(node.operands) == operands and len(node.results) == 1,
        f"{operands} operands",
        len(node.operands),
        node,
    )
    source = node.operands[0].type
    shape = source.shape
    if kind == "concat":
        dim = node.attrs.get("dim")
        if not isinstance(dim, int) or not 0 <= dim < len(shape):
            raise IllegalProgram(
                f"'accumulate' expected 'dim' in [0, {len(shape)}), got {dim}", node.location
            )
        shape = (*shape[:dim], shape[dim] * graph.loops[_loop(node, graph)], *shape[dim + 1 :])
    if kind == "rescaled":
        producer = next((n for n in graph.nodes if node.operands[1] in n.results), None)
        good = (
            producer is not None
            and producer.op == NodeKind.RUNNING_MAX
            and producer.attrs["loop"] == node.attrs["loop"]
        )
        expect(
            good,
            "a 'running_max' of the same loop as second operand",
            producer.op if producer else "an input",
            node,
        )
        scale = node.operands[1].shape
        fits = len(scale) == len(shape) and all(s in (1, e) for s, e in zip(scale, shape, strict=True))
        expect(fits, f"a running maximum that broadcasts to {shape}", scale, node)
    wanted = TensorType(shape, source.dtype)
    expect(wanted == node.result.type, f"result type {wanted}", node.result.type, node)


def _check_running_max(node: Node, graph: BlockGraph) -> None:
    _loop(node, graph)
    expect(
        len(node.operands) == 1 and len(node.results) == 1,
        "one operand and one result",
        len(node.operands),
        node,
    )
    expect(
        node.operands[0].type == node.result.type,
        f"result type {node.operands[0].type}",
        node.result.type,
        node,
    )


def saved_type(node: Node, grid: tuple[int, ...]) -> TensorType:
    """Type of the kernel result that a `save` writes where all of its tiles exists."""
    tile = node.operands[0].type
    omap = _int_tuple(node, "omap")
    expect(len(omap) == len(grid), f"'omap' of {len(grid)} entries", len(omap), node)
    shape = list(tile.shape)
    seen: set[int] = set()
    for g, (dim, extent) in enumerate(zip(omap, grid, strict=True)):
        expect(-1 <= dim < len(shape), f"'omap' entries in [-1, {len(shape)})", dim, node)
        if dim == -1:
            expect(
                extent == 1,
                f"'omap' to partition grid dimension {g}, or two blocks write one output",
                dim,
                node,
            )
            continue
        expect(
            dim not in seen,
            "'omap' to map to distinct dimensions, or two blocks write one output",
            omap,
            node,
        )
        seen.add(dim)
        shape[dim] *= extent
    return TensorType(tuple(shape), tile.dtype)


def _check_save(node: Node, graph: BlockGraph) -> None:
    expect(
        len(node.operands) == 1 and not node.results, "one operand and no result", len(node.operands), node
    )
    saved_type(node, graph.grid)


def _check_fused(node: Node, graph: BlockGraph) -> None:
    body = node.body
    if not isinstance(body, ThreadGraph):
        raise IllegalProgram("'fused' expected a region with a thread graph, got none", node.location)
    inside, outside = [v.type for v in body.inputs], [v.type for v in node.operands]
    expect(inside == outside, f"region arguments {types_text(outside)}", types_text(inside), node)
    defined = set(body.inputs)
    for inner in body.nodes:
        check_defined(inner, defined)
        check_table(inner, "thread")
        define(inner, defined)
    yielded, results = [v.type for v in body.outputs], [v.type for v in node.results]
    expect(yielded == results, f"results {types_text(yielded)}", types_text(results), node)


_BLOCK_CHECKS: dict[str, Callable[[Node, BlockGraph], None]] = {
    NodeKind.ITERATOR: _check_iterator,
    NodeKind.ACCUMULATE: _check_accumulate,
    NodeKind.RUNNING_MAX: _check_running_max,
    NodeKind.SAVE: _check_save,
    NodeKind.FUSED: _check_fused,
}


def block_bytes(graph: BlockGraph) -> int:
    """Shared memory of one block: the most bytes that are live at once, in the order of the nodes.

    Tiles count as they are padded, to extents that are powers of two, until their last use; accumulators from the
    loop's start to their last use. What is fused in registers does not count, nor does a reshape, which is its
    operand under another shape.
    """
    stage = stages(graph)
    order = {id(n): i for i, n in enumerate(graph.nodes)}
    end = len(graph.nodes)
    last: dict[Value, int] = {}
    source: dict[Value, Value] = {}
    for node in graph.nodes:
        if move_of(node) is Move.RESHAPE:
            source[node.result] = source.get(node.operands[0], node.operands[0])
        for operand in node.operands:
            last[source.get(operand, operand)] = order[id(node)]
    events = [0] * (end + 1)
    for node in graph.nodes:
        for result in node.results if move_of(node) is not Move.RESHAPE else ():
            start = 0 if node.op in CARRIED else order[id(node)]
            # An invariant tile used in the loop is needed by every trip.
            stop = last.get(result, order[id(node)])
            if not stage[result].varies and not stage[result].after and graph.loops:
                stop = max(
                    stop,
                    max((order[id(n)] for n in graph.nodes if n.op == NodeKind.ACCUMULATE), default=stop),
                )
            events[start] += result.type.padded.bytes
            events[min(stop + 1, end)] -= result.type.padded.bytes
    live = peak = 0
    for change in events:
        live += change
        peak = max(peak, live)
    return peak
