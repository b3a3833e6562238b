"""From block graphs to tile programs: a muGraph's maps and stages become loops and windows.

    custom {grid = [96], loops = [64]}             parallel x in 0..96:
      %w = iterator(W) imap [1] fmap [0]             acc = 0
      %p = matmul(%x, %w)                 ->         for i in 0..64:
      %a = accumulate(%p) sum                          w = W[i*64 : +64, x*64 : +64]
      save(%a) omap [1]                                acc = acc + x @ w
                                                     O[:, x*64 : +64] = acc

The result has the grid's dimensions as parallel loops and the for-loops as sequential ones. Every node is
placed in the innermost loop that it varies over; what is needed only after a loop is loaded after it. A product
whose operands come straight from memory and are too large for registers is itself a loop over its depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

from superopt.computed import computed_values, mark
from superopt.cost.gpus import DEFAULT_TARGET, TargetName
from superopt.cost.gpus import target as find_target
from superopt.diagnostics import Diagnostics
from superopt.errors import BadOption, SuperoptError
from superopt.levels.ragged import Reaches, placed
from superopt.operators import (
    NEUTRAL,
    OPERATORS,
    Move,
    is_contraction,
    move_of,
    nest_of,
    primitive_of,
)
from superopt.program import (
    BlockGraph,
    Bound,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    NodeKind,
    Statement,
    Store,
    ThreadGraph,
    TileProgram,
    Value,
    Window,
    producers,
    rebuild_statements,
    statements,
    users,
)
from superopt.spec import WARPS, Stage, reaches, stages
from superopt.transforms.lower.builder import (
    compute,
    constant,
    identifier,
    load,
    store,
    whole,
)
from superopt.transforms.lower.masks import Masks
from superopt.transforms.passes import GraphPass
from superopt.transforms.schedule.launch import choose_launch
from superopt.transforms.schedule.tiles import product_step


@dataclass(frozen=True)
class BlockToTile(GraphPass):
    """Turn every custom kernel's block graph into a tile program.

    Library operators stay as they are; `kernel-to-tile` lowers those.
    """

    flag: ClassVar[str] = "block-to-tile"

    target: TargetName = DEFAULT_TARGET
    """The GPU whose shared memory bounds the number of pipeline stages."""

    num_warps: int | None = None
    """Warps per block; none chooses them by the sizes of the tiles."""

    num_stages: int | None = None
    """Stages of the software pipeline; none takes as many as shared memory holds, at most four."""

    def __post_init__(self) -> None:
        find_target(self.target)
        if self.num_warps is not None and self.num_warps not in WARPS:
            raise BadOption(f"expected num-warps of {', '.join(map(str, WARPS))}, got {self.num_warps}")
        if self.num_stages is not None and self.num_stages < 1:
            raise BadOption(f"expected a positive num-stages, got {self.num_stages}")

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph with `tiled` nodes in place of `custom` ones."""
        nodes: list[Node] = []
        known = computed_values(graph)
        for node in graph.nodes:
            if isinstance(node.body, BlockGraph):
                name = f"{identifier(graph.name, 'kernel')}_{len(nodes)}"
                names = [v.name for v in (*node.operands, *node.results)]
                program = tile_program(node.body, name, names, node)
                mark(program, node.operands, known)
                choose_launch(program, find_target(self.target), self.num_warps, self.num_stages)
                node = Node(NodeKind.TILED, node.operands, node.results, {}, node.location, program)
            nodes.append(node)
        return replace(graph, nodes=nodes)


def tile_program(block: BlockGraph, name: str, names: Sequence[str], node: Node) -> TileProgram:
    """The tile program of one custom kernel; `names` are those of its operands and results."""
    try:
        return _Lowering(block, name, names, node).program()
    except SuperoptError as error:
        raise type(error)(error.message, node.location) from None


@dataclass(frozen=True)
class _Place:
    """The position of a statement: inside `depth` loops, before or after the next inner loop."""

    depth: int
    after: bool


@dataclass
class _Level:
    """The statements at one depth: before the inner loop, its accumulators' initial values, after it."""

    before: list[Statement] = field(default_factory=list[Statement])
    initial: list[Statement] = field(default_factory=list[Statement])
    after: list[Statement] = field(default_factory=list[Statement])


def _depth_dim(node: Node, operand: int, value: Value) -> int:
    """The dimension of a product's operand that is contracted."""
    turned = bool(node.attrs.get(("transpose_a", "transpose_b")[operand]))
    return len(value.shape) - (1 if (operand == 0) != turned else 2)


def _without_dead_loads(body: list[Statement]) -> list[Statement]:
    """`body` without the loads that products no longer use."""
    inside = list(statements(body))
    used = {v for s in inside if isinstance(s, Compute) for v in s.operands}
    used |= {s.value for s in inside if isinstance(s, Store)}
    return rebuild_statements(body, lambda s: [s] if not isinstance(s, Load) or s.result in used else [])


class _Lowering:
    def __init__(self, block: BlockGraph, name: str, names: Sequence[str], node: Node) -> None:
        self.block, self.name = block, name
        results = [v.type for v in node.results]
        types = [v.type for v in block.inputs] + results
        n_in = len(block.inputs)
        defaults = [f"in{i}" if i < n_in else f"out{i - n_in}" for i in range(len(types))]
        self.params = [Buffer(t, identifier(n, d)) for t, n, d in zip(types, names, defaults, strict=True)]
        self.buffers = dict(zip(block.inputs, self.params, strict=False))
        self.outputs = self.params[n_in:]
        self.grid = [LoopVar("xyz"[i]) for i in range(len(block.grid))]
        self.loops = [LoopVar("k" if len(block.loops) == 1 else f"k{i}") for i in range(len(block.loops))]
        self.stage = stages(block)
        self.levels = [_Level() for _ in range(len(block.loops) + 1)]
        self.locals: list[Buffer] = []
        self.values: dict[Value, Value] = {}
        self.loads: dict[Value, Load] = {}
        self.old_max: dict[Value, Value] = {}
        self.rescale: dict[Value, Value] = {}
        self.reach = reaches(block)
        self.masks = Masks()
        self.ends = self._ends()
        self.producers = producers(block.nodes)
        self.users = users(block.nodes)
        self.savers = {id(n): buffer for n, buffer in zip(block.savers, self.outputs, strict=True)}
        self.saved: set[int] = set()
        self.places = self._places()

    def program(self) -> TileProgram:
        for node in self.block.nodes:
            self.node(node)
        body = _without_dead_loads(self.body(0))
        for i, (var, extent) in reversed(list(enumerate(zip(self.grid, self.block.grid, strict=True)))):
            if extent > 1:
                inner, body = body, list[Statement]()
                body.append(self.looped(var, ("grid", i), extent, True, inner))
        return TileProgram(self.name, self.params, len(self.block.inputs), self.locals, body)

    def body(self, depth: int) -> list[Statement]:
        level = self.levels[depth]
        if depth == len(self.block.loops):
            return level.before
        inner, extent = self.body(depth + 1), self.block.loops[depth]
        loop: list[Statement] = (
            [self.looped(self.loops[depth], ("loop", depth), extent, False, inner)] if inner else []
        )
        return [*level.before, *level.initial, *(inner if extent == 1 else loop), *level.after]

    # --- ragged tiles ---

    def _ends(self) -> dict[tuple[str, int], tuple[int, int]]:
        """For each grid dimension and loop that alone moves ragged tiles, all by one step: its (stop, step).

        Such a loop counts elements, so that tiles of any other extent cover what it covers.
        """
        found: dict[tuple[str, int], set[tuple[int, int] | None]] = {}
        for node in self.block.nodes:
            if node.op == NodeKind.SAVE:
                continue
            for value in node.results:
                for d, reach in enumerate(self.reach[value]):
                    for kind, number, step in reach.terms if reach else ():
                        alone = reach is not None and len(reach.terms) == 1 and step == value.shape[d]
                        end = (reach.extent, step) if reach is not None and alone else None
                        found.setdefault((kind, number), set()).add(end)
        whole = {
            (kind, i)
            for node in self.block.nodes
            if node.op == NodeKind.ITERATOR
            for key, kind in (("imap", "grid"), ("fmap", "loop"))
            for i, d in enumerate(cast("tuple[int, ...]", node.attrs[key]))
            if d >= 0 and self.reach[node.result][d] is None
        }
        single = {k: ends.pop() for k, ends in found.items() if len(ends) == 1 and k not in whole}
        return {k: end for k, end in single.items() if end is not None}

    def looped(
        self, var: LoopVar, key: tuple[str, int], trips: int, parallel: bool, body: list[Statement]
    ) -> Loop:
        """The loop of a grid dimension or of a for-loop."""
        stop, step = self.ends.get(key, (trips, 1))
        return Loop(var, 0, stop, step, parallel, body)

    def term(self, kind: str, number: int, stride: int) -> tuple[LoopVar, int]:
        """How far the loop's variable moves a window that each trip moves by `stride`."""
        var = (self.grid if kind == "grid" else self.loops)[number]
        return var, stride // self.ends.get((kind, number), (0, 1))[1]

    def masked(
        self, tile: Value, reach: Reaches, dims: Iterable[int], neutral: float, out: list[Statement]
    ) -> Value:
        """`tile` with `neutral` in place of what does not exist along `dims`."""
        bounds: list[Bound] = []
        for d in dims:
            if (end := reach[d]) is not None:
                terms = tuple(self.term(*t) for t in end.terms)
                bounds.append(Bound(d, Window(tile.shape[d], 0, terms), end.extent))
        return self.masks.masked(tile, bounds, neutral, out)

    def operands_of(self, node: Node, values: dict[Value, Value], out: list[Statement]) -> list[Value]:
        """The tiles of a node's operands; a reduction's have what is neutral in place of what does not exist."""
        nest, entry = nest_of(node), OPERATORS.get(node.op)
        if nest is not None and entry is not None and entry.combiner is not None:
            for value, maps in zip(node.operands, nest.operands, strict=True):
                dims = [d for d, index in enumerate(maps) if index.dim in nest.reductions]
                neutral = NEUTRAL[entry.combiner]
                # What uses the tile later may see the masked one.
                values[value] = self.masked(values[value], self.reach[value], dims, neutral, out)
        return [values[v] for v in node.operands]

    # --- places ---

    def _place(self, stage: Stage) -> _Place:
        depth = max(stage.varies, default=-1) + 1
        return _Place(depth, depth < len(self.levels) - 1 and any(loop >= depth for loop in stage.after))

    def _places(self) -> dict[int, _Place]:
        """The place of each node's statements; a node that only later ones need moves after the loop."""
        places: dict[int, _Place] = {}
        for node in reversed(self.block.nodes):
            if node.op == NodeKind.ACCUMULATE:
                loop = self.loop_of(node)
                operand = self.stage[node.operands[0]]
                places[id(node)] = self._place(Stage(operand.varies | {loop}, operand.after))
                continue
            first = node.operands[0] if node.op == NodeKind.SAVE else node.results[0]
            place = self._place(self.stage[first])
            needed = [places[id(n)] for r in node.results for n in self.users.get(r, ())]
            late = needed and all(u.depth == place.depth and u.after for u in needed)
            places[id(node)] = _Place(place.depth, place.after or bool(late))
        return places

    def at(self, place: _Place) -> list[Statement]:
        level = self.levels[place.depth]
        return level.after if place.after else level.before

    def loop_of(self, node: Node) -> int:
        loop = node.attrs["loop"]
        assert isinstance(loop, int)
        return loop

    # --- nodes ---

    def node(self, node: Node) -> None:
        out = self.at(self.places[id(node)])
        if node.op == NodeKind.ITERATOR:
            self.iterator(node, out)
        elif node.op == NodeKind.ACCUMULATE:
            self.accumulate(node, out)
        elif node.op == NodeKind.RUNNING_MAX:
            self.running_max(node, out)
        elif node.op == NodeKind.SAVE:
            if id(node) not in self.saved:
                store(out, self.savers[id(node)], self.output_windows(node), self.values[node.operands[0]])
        elif isinstance(node.body, ThreadGraph):
            inner = dict(zip(node.body.inputs, (self.values[v] for v in node.operands), strict=True))
            for step in node.body.nodes:
                inner[step.result] = self.table(step, self.operands_of(step, inner, out), out)
            self.values.update(zip(node.results, (inner[v] for v in node.body.outputs), strict=True))
        else:
            self.values[node.result] = self.table(node, self.operands_of(node, self.values, out), out)

    def table(self, node: Node, operands: Sequence[Value], out: list[Statement]) -> Value:
        """An operator of the table. A slice of a value just loaded becomes a smaller load."""
        name = identifier(node.result.name, "")
        if is_contraction(node) and (step := self.depth_step(operands, node)) is not None:
            return self.deep_product(node, operands, step, out)
        source = self.loads.get(operands[0]) if move_of(node) is Move.SLICE else None
        if source is None:
            result = compute(out, node.op, operands, node.attrs, name)
            self.masks.note(node, nest_of(node), operands, result)
            return result
        cuts = [node.attrs[k] for k in ("offsets", "sizes", "strides")]
        rows: list[tuple[int, ...]] = [c for c in cuts if isinstance(c, tuple)]
        windows = tuple(
            Window(n, w.base + w.stride * o, w.terms, w.stride * s)
            for w, o, n, s in zip(source.windows, *rows, strict=True)
        )
        return load(out, source.buffer, windows, name)

    def depth_step(self, operands: Sequence[Value], node: Node) -> int | None:
        """Depth of one trip of a product that is too deep for one; None for others."""
        if any(v not in self.loads for v in operands):
            return None
        depth = operands[0].shape[_depth_dim(node, 0, operands[0])]
        return product_step(depth, sum(v.type.bytes for v in operands))

    def deep_product(self, node: Node, operands: Sequence[Value], step: int, out: list[Statement]) -> Value:
        """`acc = 0; for d in 0..depth by step: acc = acc + a[:, d : +step] @ b[d : +step, :]`"""
        name = identifier(node.result.name, "product")
        buffer = self.local(node.result, f"{name}_acc")
        store(out, buffer, whole(buffer), constant(out, 0.0, buffer.type.shape, buffer.type.dtype))
        var, body, parts = LoopVar("d"), list[Statement](), list[Value]()
        for i, value in enumerate(operands):
            source, dim = self.loads[value], _depth_dim(node, i, value)
            windows = list(source.windows)
            cut = windows[dim]
            windows[dim] = Window(step, cut.base, (*cut.terms, (var, cut.stride)), cut.stride)
            parts.append(load(body, source.buffer, tuple(windows), value.name))
        so_far = load(body, buffer, whole(buffer), buffer.name)
        product = compute(body, node.op, parts, node.attrs)
        store(body, buffer, whole(buffer), compute(body, "add", [so_far, product]))
        depth = operands[0].shape[_depth_dim(node, 0, operands[0])]
        out.append(Loop(var, 0, depth, step, False, body))
        return load(out, buffer, whole(buffer), name)

    def iterator(self, node: Node, out: list[Statement]) -> None:
        buffer = self.buffers[node.operands[0]]
        windows: list[Window] = []
        for d, size in enumerate(node.result.shape):
            loops = placed(node, "fmap", self.block.loops, d, "loop", size)
            inner = size * math.prod(self.block.loops[i] for _, i, _ in loops)
            moves = [*placed(node, "imap", self.block.grid, d, "grid", inner), *loops]
            windows.append(Window(size, 0, tuple(self.term(*move) for move in moves)))
        value = load(out, buffer, tuple(windows), identifier(node.result.name, buffer.name))
        self.values[node.result] = value
        statement = out[-1]
        assert isinstance(statement, Load)
        self.loads[value] = statement

    def output_windows(self, saver: Node) -> tuple[Window, ...]:
        windows: list[Window] = []
        for d, size in enumerate(saver.operands[0].shape):
            moves = placed(saver, "omap", self.block.grid, d, "grid", size)
            windows.append(Window(size, 0, tuple(self.term(*move) for move in moves)))
        return tuple(windows)

    # --- accumulators ---

    def local(self, value: Value, name: str, placement: str = "chip") -> Buffer:
        self.locals.append(Buffer(value.type, name, placement))
        return self.locals[-1]

    def start(self, loop: int, buffer: Buffer, number: float) -> None:
        out = self.levels[loop].initial
        store(out, buffer, whole(buffer), constant(out, number, buffer.type.shape, buffer.type.dtype))

    def running_max(self, node: Node, out: list[Statement]) -> None:
        buffer = self.local(node.result, identifier(node.result.name, "running_max"))
        self.start(self.loop_of(node), buffer, -math.inf)
        old = load(out, buffer, whole(buffer), f"old_{buffer.name}")
        part = self.joined(node, -math.inf, out)
        new = compute(out, "max", [old, part], name=f"new_{buffer.name}")
        store(out, buffer, whole(buffer), new)
        self.values[node.result] = new
        self.old_max[new] = old

    def accumulate(self, node: Node, out: list[Statement]) -> None:
        kind, loop = node.attrs["kind"], self.loop_of(node)
        neutral = -math.inf if kind == "max" else 0.0
        added = self.values[node.operands[0]] if kind == "concat" else self.joined(node, neutral, out)
        if kind == "concat":
            self.concatenate(node, added, loop, out)
            return
        default = f"{identifier(node.operands[0].name, '')}_acc".strip("_")
        buffer = self.local(node.result, identifier(node.result.name, default))
        self.start(loop, buffer, -math.inf if kind == "max" else 0.0)
        so_far = load(out, buffer, whole(buffer), buffer.name)
        if kind == "rescaled":
            new = self.values[node.operands[1]]
            if new not in self.rescale:
                difference = compute(out, "sub", [self.old_max[new], new])
                self.rescale[new] = compute(out, "exp", [difference], name="rescale")
            so_far = compute(out, "mul", [so_far, self.rescale[new]])
        total = so_far
        alone = kind == "max" or any(isinstance(s, Compute) and s.result is added and s.bounds for s in out)
        for part in [added] if alone else self.summands(node.operands[0], out):
            total = compute(out, "max" if kind == "max" else "add", [total, part])
        store(out, buffer, whole(buffer), total)
        behind = self.levels[loop].after
        self.values[node.result] = load(behind, buffer, whole(buffer), buffer.name)

    def joined(self, node: Node, neutral: float, out: list[Statement]) -> Value:
        """What a trip adds to an accumulator: `neutral` where it has fewer elements than others."""
        (source, *_), here = node.operands, ("loop", self.loop_of(node))
        moving = [
            d for d, r in enumerate(self.reach[source]) if r and any((k, n) == here for k, n, _ in r.terms)
        ]
        self.values[source] = self.masked(self.values[source], self.reach[source], moving, neutral, out)
        return self.values[source]

    def summands(self, value: Value, out: list[Statement]) -> list[Value]:
        """The values added to an accumulator: two products that are only added to each other are added to it one
        after the other, so that both are summed in its registers (`(w || x) (y ; z)`, Mirage, figure 9b).
        """
        node = self.producers.get(value)
        shape = value.shape
        if node is None or primitive_of(node) != "add" or len(self.users.get(value, ())) > 1:
            return [self.values[value]]
        below = [self.producers.get(v) for v in node.operands]
        if any(n is None or not is_contraction(n) or n.result.shape != shape for n in below):
            return [self.values[value]]
        if node.operands[0] is node.operands[1] or any(len(self.users[v]) > 1 for v in node.operands):
            return [self.values[value]]
        total = self.values.pop(value)
        out[:] = [s for s in out if not (isinstance(s, Compute) and s.result is total)]
        return [self.values[v] for v in node.operands]

    def concatenate(self, node: Node, part: Value, loop: int, out: list[Statement]) -> None:
        """Each trip writes its part: into the output where that suffices, into scratch memory otherwise."""
        dim = node.attrs["dim"]
        assert isinstance(dim, int)
        step = (self.term("loop", loop, part.shape[dim]),) if self.block.loops[loop] > 1 else ()

        def window(w: Window, d: int) -> Window:
            return Window(part.shape[d], w.base, (*w.terms, *step) if d == dim else w.terms)

        savers = self.users.get(node.result, [])
        if savers and all(n.op == NodeKind.SAVE for n in savers):
            for saver in savers:
                windows = tuple(window(w, d) for d, w in enumerate(self.output_windows(saver)))
                store(out, self.savers[id(saver)], windows, part)
                self.saved.add(id(saver))
            return
        buffer = self.local(node.result, identifier(node.result.name, "parts"), "device")
        store(out, buffer, tuple(window(w, d) for d, w in enumerate(whole(buffer))), part)
        self.values[node.result] = load(self.levels[loop].after, buffer, whole(buffer), buffer.name)
