"""What is legal at each level; checked at every boundary between passes.

The operator table says what an operator takes (`operators.infer_type`); this module says the rest: values are
defined before use, maps are in range, grid and loop extents divide, loop stages do not mix, every output element
is written by exactly one block, and a block's values fit its shared memory. Each check raises
IllegalProgram at the node's location, with what was expected and what was got.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from superopt.aliasing import check_aliases, pairs
from superopt.errors import IllegalProgram, Location, UnsupportedProgram
from superopt.operators import OPERATORS, Level, infer_type
from superopt.program import (
    DTYPE_BYTES,
    Attr,
    BlockGraph,
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

# The largest opt-in shared memory of a block on any target (sm_90, sm_100); a target may allow less.
MAX_SHARED_BYTES = 232448
# Indices along one dimension are 32 bits wide in kernels and in the searches.
MAX_EXTENT = 2**31 - 1
# How many warps a block may have: what Triton takes.
WARPS = (1, 2, 4, 8, 16, 32)
ACCUMULATORS = ("sum", "max", "concat", "rescaled")


def check_kernel(graph: KernelGraph, shared_bytes: int = MAX_SHARED_BYTES) -> None:
    """Check a kernel graph and everything in it; `shared_bytes` is the target's limit for one block."""
    check_types(graph)
    defined = set(graph.inputs)
    for node in graph.nodes:
        _check_defined(node, defined)
        if node.op == "custom":
            _check_custom(node, shared_bytes)
        elif node.op == "tiled":
            _check_tiled(node)
        elif node.op == "extern":
            for key in ("target", "reason"):
                _expect(
                    isinstance(node.attrs.get(key), str),
                    f"attribute '{key}' (a string)",
                    node.attrs.get(key),
                    node,
                )
        else:
            _check_table(node, "kernel")
        defined.update(node.results)
    for value in graph.outputs:
        if value not in defined:
            raise IllegalProgram("expected every output to be computed, got one that is not", graph.location)
    check_aliases(graph)


def check_types(graph: KernelGraph) -> None:
    """Raise UnsupportedProgram where an input or a node's result has an unknown dtype or an impossible extent."""
    for value in graph.inputs:
        _check_type(value, f"input '{value.name}'" if value.name else "an input", graph.location)
    for node in graph.nodes:
        for value in node.results:
            what = str(node.attrs.get("target", node.op)) if node.op == "extern" else node.op
            _check_type(value, f"the result of '{what}'", node.location)


def _check_type(value: Value, what: str, location: Location) -> None:
    if value.dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        raise UnsupportedProgram(f"expected {what} to have elements of {known}, got {value.dtype}", location)
    if not all(1 <= extent <= MAX_EXTENT for extent in value.shape):
        raise UnsupportedProgram(
            f"expected {what} to have extents of 1 to {MAX_EXTENT}, got {value.type}", location
        )


def slices_in_place(graph: KernelGraph) -> dict[Value, Node]:
    """The `slice` nodes, by their results, that only kernels read: their loads begin where the slice does
    (`lower/fold_slices.py`), so nothing is moved.
    """
    found = {n.result: n for n in graph.nodes if n.op == "slice"}
    for node in graph.nodes if found else ():
        if node.op in ("extern", "reshape", "slice"):
            for value in node.operands:
                found.pop(value, None)
    for value in graph.outputs:
        found.pop(value, None)
    return found


def _expect(condition: bool, expected: str, got: object, node: Node) -> None:
    if not condition:
        raise IllegalProgram(f"'{node.op}' expected {expected}, got {got}", node.location)


def _check_defined(node: Node, defined: set[Value]) -> None:
    for i, operand in enumerate(node.operands):
        _expect(operand in defined, "operands defined before", f"operand {i} that is not", node)


def _check_table(node: Node, level: Level) -> None:
    entry = OPERATORS.get(node.op)
    if entry is None or level not in entry.levels:
        raise IllegalProgram(f"expected an operator of the {level} level, got '{node.op}'", node.location)
    _expect(len(node.results) == 1, "one result", len(node.results), node)
    try:
        inferred = infer_type(node.op, [v.type for v in node.operands], node.attrs)
    except IllegalProgram as error:
        raise IllegalProgram(error.message, node.location) from None
    _expect(inferred == node.result.type, f"result type {inferred}", node.result.type, node)


# --- block level ------------------------------------------------------------------------------------------


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
        if node.op == "iterator":
            fmap = _int_tuple(node, "fmap")
            varies = frozenset(loop for loop, dim in enumerate(fmap) if dim >= 0)
        elif node.op == "running_max":
            varies |= {_loop(node, graph)}
        elif node.op == "accumulate":
            loop = _loop(node, graph)
            deeper = {v for v in varies if v > loop}
            _expect(
                not deeper,
                f"loops inside loop {loop} to be ended first",
                f"open loops {sorted(deeper)}",
                node,
            )
            _expect(loop not in after, f"a value inside loop {loop}", "one after it", node)
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


def _check_custom(node: Node, shared_bytes: int) -> None:
    graph = node.body
    if not isinstance(graph, BlockGraph):
        raise IllegalProgram("'custom' expected a region with a block graph, got none", node.location)
    _expect(1 <= len(graph.grid) <= 3, "a grid of one to three dimensions", len(graph.grid), node)
    _expect(all(g >= 1 for g in graph.grid), "positive grid extents", graph.grid, node)
    _expect(all(r >= 1 for r in graph.loops), "positive loop extents", graph.loops, node)
    inside = [v.type for v in graph.inputs]
    outside = [v.type for v in node.operands]
    _expect(inside == outside, f"region arguments {_types(outside)}", _types(inside), node)
    check_block(graph, shared_bytes, node.location)
    savers = graph.savers
    _expect(len(savers) == len(node.results), f"{len(node.results)} savers", len(savers), node)
    for saver, result in zip(savers, node.results, strict=True):
        saved = saved_type(saver, graph.grid)
        _expect(saved == result.type, f"a result of type {saved}", result.type, saver)


def _types(types: Iterable[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"


def check_block(
    graph: BlockGraph, shared_bytes: int = MAX_SHARED_BYTES, location: Location | None = None
) -> None:
    """Check a block graph: maps, extents, stages, savers and shared memory."""
    defined = set(graph.inputs)
    arguments = set(graph.inputs)
    stage = stages(graph)
    for node in graph.nodes:
        _check_defined(node, defined)
        if node.op != "iterator":
            whole = arguments.intersection(node.operands)
            _expect(not whole, "tiles as operands", "a whole tensor; load it with 'block.iterator'", node)
        _BLOCK_CHECKS.get(node.op, _check_block_table)(node, graph)
        if node.op == "save":
            open_loops = stage[node.operands[0]].varies
            _expect(
                not open_loops,
                "a value after every loop it varies over",
                f"open loops {sorted(open_loops)}",
                node,
            )
        defined.update(node.results)
    where = location or (graph.nodes[0].location if graph.nodes else Location())
    if not graph.savers:
        raise IllegalProgram("expected at least one 'save', got none", where)
    used = block_bytes(graph)
    if used > shared_bytes:
        raise IllegalProgram(f"expected at most {shared_bytes} bytes of shared memory, got {used}", where)


def _check_block_table(node: Node, graph: BlockGraph) -> None:
    _check_table(node, "block")


def iterator_type(source: TensorType, node: Node, graph: BlockGraph) -> TensorType:
    """Type of the tile that an `iterator` hands out: `source` cut by its imap and fmap."""
    shape = list(source.shape)
    for key, extents in (("imap", graph.grid), ("fmap", graph.loops)):
        dims = _int_tuple(node, key)
        _expect(len(dims) == len(extents), f"'{key}' of {len(extents)} entries", len(dims), node)
        mapped = [d for d in dims if d != -1]
        _expect(len(set(mapped)) == len(mapped), f"'{key}' to map to distinct dimensions", dims, node)
        for dim, extent in zip(dims, extents, strict=True):
            _expect(-1 <= dim < len(shape), f"'{key}' entries in [-1, {len(shape)})", dim, node)
            if dim >= 0:
                what = f"{'grid' if key == 'imap' else 'loop'} extent {extent} to divide dimension {dim}"
                _expect(shape[dim] % extent == 0, what, shape[dim], node)
                shape[dim] //= extent
    return TensorType(tuple(shape), source.dtype)


def _check_iterator(node: Node, graph: BlockGraph) -> None:
    _expect(
        len(node.operands) == 1 and len(node.results) == 1,
        "one operand and one result",
        len(node.operands),
        node,
    )
    _expect(node.operands[0] in graph.inputs, "an argument of the region", "a tile", node)
    tile = iterator_type(node.operands[0].type, node, graph)
    _expect(tile == node.result.type, f"result type {tile}", node.result.type, node)


def _check_accumulate(node: Node, graph: BlockGraph) -> None:
    kind = node.attrs.get("kind")
    _expect(kind in ACCUMULATORS, f"'kind' of {', '.join(ACCUMULATORS)}", kind, node)
    operands = 2 if kind == "rescaled" else 1
    _expect(
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
            and producer.op == "running_max"
            and producer.attrs["loop"] == node.attrs["loop"]
        )
        _expect(
            good,
            "a 'running_max' of the same loop as second operand",
            producer.op if producer else "an input",
            node,
        )
        scale = node.operands[1].shape
        fits = len(scale) == len(shape) and all(s in (1, e) for s, e in zip(scale, shape, strict=True))
        _expect(fits, f"a running maximum that broadcasts to {shape}", scale, node)
    wanted = TensorType(shape, source.dtype)
    _expect(wanted == node.result.type, f"result type {wanted}", node.result.type, node)


def _check_running_max(node: Node, graph: BlockGraph) -> None:
    _loop(node, graph)
    _expect(
        len(node.operands) == 1 and len(node.results) == 1,
        "one operand and one result",
        len(node.operands),
        node,
    )
    _expect(
        node.operands[0].type == node.result.type,
        f"result type {node.operands[0].type}",
        node.result.type,
        node,
    )


def saved_type(node: Node, grid: tuple[int, ...]) -> TensorType:
    """Type of the kernel result that a `save` writes."""
    tile = node.operands[0].type
    omap = _int_tuple(node, "omap")
    _expect(len(omap) == len(grid), f"'omap' of {len(grid)} entries", len(omap), node)
    shape = list(tile.shape)
    seen: set[int] = set()
    for g, (dim, extent) in enumerate(zip(omap, grid, strict=True)):
        _expect(-1 <= dim < len(shape), f"'omap' entries in [-1, {len(shape)})", dim, node)
        if dim == -1:
            _expect(
                extent == 1,
                f"'omap' to partition grid dimension {g}, or two blocks write one output",
                dim,
                node,
            )
            continue
        _expect(
            dim not in seen,
            "'omap' to map to distinct dimensions, or two blocks write one output",
            omap,
            node,
        )
        seen.add(dim)
        shape[dim] *= extent
    return TensorType(tuple(shape), tile.dtype)


def _check_save(node: Node, graph: BlockGraph) -> None:
    _expect(
        len(node.operands) == 1 and not node.results, "one operand and no result", len(node.operands), node
    )
    saved_type(node, graph.grid)


def _check_fused(node: Node, graph: BlockGraph) -> None:
    body = node.body
    if not isinstance(body, ThreadGraph):
        raise IllegalProgram("'fused' expected a region with a thread graph, got none", node.location)
    inside, outside = [v.type for v in body.inputs], [v.type for v in node.operands]
    _expect(inside == outside, f"region arguments {_types(outside)}", _types(inside), node)
    defined = set(body.inputs)
    for inner in body.nodes:
        _check_defined(inner, defined)
        _check_table(inner, "thread")
        defined.update(inner.results)
    yielded, results = [v.type for v in body.outputs], [v.type for v in node.results]
    _expect(yielded == results, f"results {_types(yielded)}", _types(results), node)


_BLOCK_CHECKS: dict[str, Callable[[Node, BlockGraph], None]] = {
    "iterator": _check_iterator,
    "accumulate": _check_accumulate,
    "running_max": _check_running_max,
    "save": _check_save,
    "fused": _check_fused,
}


def block_bytes(graph: BlockGraph) -> int:
    """Shared memory of one block: the most bytes that are live at once, in the order of the nodes.

    Tiles count until their last use; accumulators from the loop's start to their last use. What is fused in
    registers does not count, nor does a reshape, which is its operand under another shape.
    """
    stage = stages(graph)
    order = {id(n): i for i, n in enumerate(graph.nodes)}
    end = len(graph.nodes)
    last: dict[Value, int] = {}
    source: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op == "reshape":
            source[node.result] = source.get(node.operands[0], node.operands[0])
        for operand in node.operands:
            last[source.get(operand, operand)] = order[id(node)]
    events = [0] * (end + 1)
    for node in graph.nodes:
        for result in node.results if node.op != "reshape" else ():
            start = 0 if node.op in ("accumulate", "running_max") else order[id(node)]
            # An invariant tile used in the loop is needed by every trip.
            stop = last.get(result, order[id(node)])
            if not stage[result].varies and not stage[result].after and graph.loops:
                stop = max(
                    stop, max((order[id(n)] for n in graph.nodes if n.op == "accumulate"), default=stop)
                )
            events[start] += result.type.bytes
            events[min(stop + 1, end)] -= result.type.bytes
    live = peak = 0
    for change in events:
        live += change
        peak = max(peak, live)
    return peak


# --- tile level -------------------------------------------------------------------------------------------


def _check_tiled(node: Node) -> None:
    program = node.body
    if not isinstance(program, TileProgram):
        raise IllegalProgram("'tiled' expected a region with tile loops, got none", node.location)
    types = [b.type for b in program.params]
    wanted = [v.type for v in (*node.operands, *node.results)]
    _expect(types == wanted, f"region arguments {_types(wanted)}", _types(types), node)
    _expect(program.n_inputs == len(node.operands), f"{len(node.operands)} inputs", program.n_inputs, node)
    try:
        check_tile(program)
    except IllegalProgram as error:
        raise IllegalProgram(error.message, node.location) from None


def check_tile(program: TileProgram) -> None:
    """Check a tile program: its launch, loops, windows within their buffers, stores only to outputs and locals,
    types.
    """
    if program.num_warps not in WARPS:
        raise IllegalProgram(f"expected num_warps of {', '.join(map(str, WARPS))}, got {program.num_warps}")
    if program.num_stages < 1:
        raise IllegalProgram(f"expected num_stages of at least 1, got {program.num_stages}")
    inputs, outputs = program.params[: program.n_inputs], program.params[program.n_inputs :]
    if program.aliases and len(program.aliases) != len(outputs):
        raise IllegalProgram(
            f"expected an alias for each of {len(outputs)} outputs, got {len(program.aliases)}"
        )
    aliases = pairs(program.aliases)
    for out, at in aliases.items():
        if at >= len(inputs) or inputs[at].type != outputs[out].type or program.aliases.count(at) > 1:
            raise IllegalProgram(f"expected an input of output {out}'s type for it alone, got input {at}")
    # An output starts as the input that it overwrites: what both names meant would depend on the order.
    buffers = {*program.params, *program.locals} - {inputs[at] for at in aliases.values()}
    _TileChecker(buffers, set(inputs)).body(program.body, {}, set(), outermost=True)


class _TileChecker:
    def __init__(self, buffers: set[Buffer], inputs: set[Buffer]) -> None:
        self.buffers, self.inputs = buffers, inputs

    def body(
        self,
        body: Sequence[Statement],
        ranges: dict[LoopVar, tuple[int, int]],
        defined: set[Value],
        *,
        outermost: bool,
    ) -> None:
        defined = set(defined)
        for statement in body:
            if isinstance(statement, Loop):
                self.loop(statement, ranges, defined, outermost=outermost)
            elif isinstance(statement, Compute):
                self.compute(statement, defined)
            elif isinstance(statement, Load):
                self.access(statement, ranges, statement.result.type)
                defined.add(statement.result)
            else:
                if statement.buffer in self.inputs:
                    raise IllegalProgram(
                        f"expected a store to an output or a local, got input '{statement.buffer.name}'"
                    )
                if statement.value not in defined:
                    raise IllegalProgram("'tile.store' expected a value defined before, got one that is not")
                self.access(statement, ranges, statement.value.type)

    def loop(
        self, loop: Loop, ranges: dict[LoopVar, tuple[int, int]], defined: set[Value], *, outermost: bool
    ) -> None:
        if loop.step < 1 or loop.stop <= loop.start:
            raise IllegalProgram(
                f"expected a loop with trips, got {loop.start} to {loop.stop} by {loop.step}"
            )
        if loop.parallel and not outermost:
            raise IllegalProgram(
                "expected parallel loops outermost, got one inside a sequential loop or other statements"
            )
        trips = math.ceil((loop.stop - loop.start) / loop.step)
        inner = {**ranges, loop.var: (loop.start, loop.start + (trips - 1) * loop.step)}
        self.body(loop.body, inner, defined, outermost=outermost and loop.parallel)

    def compute(self, statement: Compute, defined: set[Value]) -> None:
        attrs: dict[str, Attr] = dict(statement.attrs)
        node = Node(statement.op, statement.operands, (statement.result,), attrs)
        _check_defined(node, defined)
        _check_table(node, "tile")
        defined.add(statement.result)

    def access(
        self, statement: Load | Store, ranges: dict[LoopVar, tuple[int, int]], tile: TensorType
    ) -> None:
        buffer, windows = statement.buffer, statement.windows
        if buffer not in self.buffers:
            raise IllegalProgram(f"expected a buffer of this kernel, got '{buffer.name}'")
        if len(windows) != len(buffer.type.shape):
            raise IllegalProgram(f"expected {len(buffer.type.shape)} windows, got {len(windows)}")
        for window, extent in zip(windows, buffer.type.shape, strict=True):
            self.window(window, extent, buffer, ranges)
        wanted = TensorType(tuple(w.size for w in windows), buffer.type.dtype)
        if wanted != tile:
            raise IllegalProgram(f"expected a tile of type {wanted}, got {tile}")

    def window(
        self, window: Window, extent: int, buffer: Buffer, ranges: dict[LoopVar, tuple[int, int]]
    ) -> None:
        first = last = window.base
        for var, scale in window.terms:
            if var not in ranges:
                raise IllegalProgram(f"expected the variable of an enclosing loop, got '{var.name}'")
            low, high = sorted(scale * v for v in ranges[var])
            first, last = first + low, last + high
        # The last tile of an extent that the step does not divide may reach past it: its rest is masked.
        if first < 0 or last >= extent or window.size < 1 or window.stride < 1:
            got = f"{first} to {last} of size {window.size}"
            raise IllegalProgram(
                f"expected windows that start within extent {extent} of '{buffer.name}', got {got}"
            )


def value_bytes(types: Iterable[TensorType]) -> int:
    """Total size of `types` in bytes."""
    return sum(t.elements * DTYPE_BYTES[t.dtype] for t in types)
