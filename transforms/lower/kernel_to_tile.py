"""From library operators to tile programs, by a default schedule derived from the operator's loop nest.

    %c = matmul(%a, %b)          parallel i in 0..M by 64:
                                   parallel j in 0..N by 64:
                                     acc = 0
                            ->       for k in 0..K by 64:
                                       acc = acc + A[i : +64, k : +64] @ B[k : +64, j : +64]
                                     C[i : +64, j : +64] = acc

All operators share one lowering: free dimensions become the grid, reduced ones sequential loops, index maps
windows; nests that are not plain are lowered in `windows.py`. The remainder of a reduced extent is a smaller last
trip, written out; that of a free one reaches past the buffer and is masked. `repeat` and `concat`, which are not
nests, become copies; a `reshape` moves nothing and stays, as do dense constants (arguments of the kernels that
use them) and opaque operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from superopt.aliasing import updates_in_place
from superopt.cost.gpus import DEFAULT_TARGET, Target, TargetName
from superopt.cost.gpus import target as find_target
from superopt.diagnostics import Diagnostics
from superopt.moves import moves_in_place
from superopt.operators import (
    NEUTRAL,
    OPERATORS,
    Index,
    Move,
    Nest,
    is_constant,
    is_elementwise,
    is_general,
    is_windowed,
    move_of,
    nest_of,
    splat_of,
)
from superopt.program import (
    Buffer,
    KernelGraph,
    Loop,
    LoopVar,
    Node,
    NodeKind,
    Statement,
    TensorType,
    TileProgram,
    Value,
    Window,
    live_nodes,
)
from superopt.transforms.lower.builder import (
    apply_scalar,
    compute,
    constant,
    identifier,
    load,
    store,
    whole,
)
from superopt.transforms.lower.windows import WindowLowering
from superopt.transforms.passes import GraphPass
from superopt.transforms.schedule.launch import choose_launch
from superopt.transforms.schedule.tiles import copy_tiles, default_tiles
from superopt.transforms.window_groups import window_groups
from superopt.verify.hashing import canonical_text
from superopt.weights import apart


@dataclass(frozen=True)
class KernelToTile(GraphPass):
    """Turn every library operator into a tile program with a default schedule.

    Custom kernels stay as they are; `block-to-tile` lowers those.
    """

    flag: ClassVar[str] = "kernel-to-tile"

    target: TargetName = DEFAULT_TARGET
    """The GPU whose multiprocessors the default grids should fill."""

    fuse: bool = True
    """Fuse a chain of elementwise operators into one kernel if nothing else uses its intermediate results."""

    keep_moves: bool = False
    """Keep slices and transpositions that only kernels read, for `fold-moves` to fold into those kernels."""

    def __post_init__(self) -> None:
        find_target(self.target)

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph with `tiled` nodes in place of library operators."""
        return self.apart_from((), graph)

    def apart_from(self, kept: Container[Value], graph: KernelGraph) -> KernelGraph:
        """The same, but for the operators that make `kept`."""
        return apart(graph, lambda part: self._tiled(kept, part))

    def _tiled(self, kept: Container[Value], graph: KernelGraph) -> KernelGraph:
        gpu = find_target(self.target)
        splats = {n.result: n for n in graph.nodes if splat_of(n) is not None}
        kept_splats = {v for v in graph.outputs if v in splats}
        kept_splats |= {v for n in graph.nodes if _is_kept(n) for v in n.operands if v in splats}
        kept_moves = moves_in_place(graph) if self.keep_moves else {}
        for node in graph.nodes:  # a library reads whole tensors
            if any(v in kept for v in node.results):
                for value in node.operands:
                    kept_moves.pop(value, None)
        in_place = updates_in_place(graph)
        nodes: list[Node] = []
        for group in _groups(graph, fuse=self.fuse):
            node = group[-1]
            if _is_kept(node) or node.results[0] in kept_moves or node.results[0] in kept:
                nodes.append(node)
            elif node.result not in splats or node.result in kept_splats:
                name = f"{identifier(graph.name, 'kernel')}_{len(nodes)}"
                nodes.append(_tiled(group, splats, name, gpu, in_place=node in in_place))
        return replace(graph, nodes=nodes)


def fuse_windows(
    graph: KernelGraph, gpu: Target, known: dict[Hashable, TileProgram] | None = None
) -> KernelGraph:
    """`graph` with one `tiled` node for each windowed operator and what is around it, where something is, and for
    each nest of general indices, which no library has.

    `known` are the kernels of other graphs, for this target, which graphs that have the same operators under the
    same names share; it grows.
    """
    return apart(graph, lambda part: _fuse_windows(part, gpu, {} if known is None else known))


def _fuse_windows(graph: KernelGraph, gpu: Target, known: dict[Hashable, TileProgram]) -> KernelGraph:
    splats = {n.result: n for n in graph.nodes if splat_of(n) is not None}
    nodes: list[Node] = []
    for group in _groups(graph, fuse=True):
        fused = any(map(is_windowed, group)) and (len(group) > 1 or is_general(group[0]))
        name = f"{identifier(graph.name, 'kernel')}_{len(nodes)}"
        nodes += [_tiled(group, splats, name, gpu, in_place=False, known=known)] if fused else group
    same = len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else replace(graph, nodes=live_nodes(nodes, graph.outputs))


def _is_kept(node: Node) -> bool:
    """Whether `node` does not need a kernel of its own, or is one."""
    dense = is_constant(node) and splat_of(node) is None
    return node.op not in OPERATORS or move_of(node) is Move.RESHAPE or dense


def _groups(graph: KernelGraph, *, fuse: bool) -> list[list[Node]]:
    """The nodes in order; with `fuse`, an elementwise node is grouped with the ones that feed only it, and an
    operator on windows with what is around it.

    Only trees of nodes with one result shape are joined, so joins neither close a cycle nor compute anything
    twice.
    """
    uses = Counter(v for n in graph.nodes for v in n.operands) + Counter(graph.outputs)
    groups: dict[Value, int] = {}
    order: dict[int, list[Node]] = {}
    around = {n: group for group in window_groups(graph.nodes, graph.outputs) for n in group} if fuse else {}
    for i, node in enumerate(graph.nodes):
        if node in around:
            if node is around[node][-1]:
                order[i] = around[node]
            continue
        group = [node]
        if fuse and is_elementwise(node):
            for operand in dict.fromkeys(node.operands):
                inner = groups.get(operand)
                same = operand.shape == node.result.shape
                if inner is not None and same and is_elementwise(order[inner][-1]) and uses[operand] == 1:
                    group = [*order.pop(inner), *group]
        order[i] = group
        if len(node.results) == 1:
            groups[node.result] = i
    return list(order.values())


def _tiled(
    group: Sequence[Node],
    splats: dict[Value, Node],
    name: str,
    gpu: Target,
    *,
    in_place: bool,
    known: dict[Hashable, TileProgram] | None = None,
) -> Node:
    inside = {n.result for n in group}
    operands = [v for n in group for v in n.operands if v not in inside and v not in splats]
    operands = list(dict.fromkeys(operands))
    result = group[-1].result
    key: Hashable = None
    if known is not None:
        constants = [n for v, n in splats.items() if any(v in user.operands for user in group)]
        alone = KernelGraph("group", operands, [*constants, *group], [result])
        names = tuple(v.name for n in alone.nodes for v in (*n.operands, *n.results))
        key = name, names, canonical_text(alone)
        if key in known:
            return Node(NodeKind.TILED, tuple(operands), (result,), {}, group[-1].location, known[key])
    lowering = _Lowering(group, operands, splats, gpu, in_place=in_place)
    program = TileProgram(name, lowering.params, len(operands), lowering.locals, lowering.body())
    if in_place:
        program.aliases = (operands.index(group[-1].operands[0]),)
    choose_launch(program, gpu, None, None)
    if known is not None:
        known[key] = program
    return Node(NodeKind.TILED, tuple(operands), (result,), {}, group[-1].location, program)


@dataclass(frozen=True)
class _Span:
    """The part of an iteration dimension that a statement covers: `size` points from `base + var` on."""

    size: int
    base: int = 0
    var: LoopVar | None = None


_Leaf = Callable[[dict[int, _Span]], list[Statement]]


class _Lowering:
    def __init__(
        self,
        group: Sequence[Node],
        operands: Sequence[Value],
        splats: dict[Value, Node],
        gpu: Target,
        *,
        in_place: bool,
    ) -> None:
        self.group, self.splats, self.gpu, self.in_place = group, splats, gpu, in_place
        self.last = group[-1]
        values = [*operands, self.last.result]
        n_in = len(operands)
        names = [identifier(v.name, f"in{i}" if i < n_in else "out") for i, v in enumerate(values)]
        self.params = [Buffer(v.type, n) for v, n in zip(values, names, strict=True)]
        self.buffers = dict(zip(operands, self.params, strict=False))
        self.locals: list[Buffer] = []

    @property
    def output(self) -> Buffer:
        return self.params[-1]

    def body(self) -> list[Statement]:
        if any(map(is_windowed, self.group)):
            operands = list(self.buffers)
            windows = WindowLowering(self.group, self.gpu, operands, self.output, self.operand)
            body = windows.body()
            self.locals += windows.locals
            return body
        if move_of(self.last) in (Move.REPEAT, Move.CONCAT, Move.UPDATE):
            return self.copies()
        nest = self.nest(self.last)
        entry = OPERATORS[self.last.op]
        tiles = default_tiles(
            nest,
            self.last.result.dtype,
            self.gpu,
            contraction=entry.contraction,
        )
        return self.grid(nest.result, nest.extents, tiles, lambda at: self.reduction(nest, tiles, at))

    def nest(self, node: Node) -> Nest:
        rank = len(node.result.shape)  # a constant has every point of its shape
        return nest_of(node) or Nest(node.result.shape, (), tuple(range(rank)))

    # --- loops ---

    def grid(
        self, dims: Sequence[int | None], extents: Sequence[int], tiles: Sequence[int], leaf: _Leaf
    ) -> list[Statement]:
        """Parallel loops over the tiles of `dims`, outermost first."""
        at: dict[int, _Span] = {}
        loops: list[tuple[LoopVar, int, int]] = []
        for dim in (d for d in dims if d is not None):
            extent, tile = extents[dim], tiles[dim]
            var = LoopVar(f"i{len(loops)}") if tile < extent else None
            at[dim] = _Span(tile, 0, var)
            if var is not None:
                loops.append((var, extent, tile))
        body = leaf(at)
        for var, extent, tile in reversed(loops):
            inner, body = body, list[Statement]()
            body.append(Loop(var, 0, extent, tile, True, inner))
        return body

    def sequence(
        self,
        dims: Sequence[int],
        extents: Sequence[int],
        tiles: Sequence[int],
        at: dict[int, _Span],
        leaf: _Leaf,
    ) -> list[Statement]:
        """Sequential loops over `dims`; the remainder of a tile is a smaller last trip, written out."""
        if not dims:
            return leaf(at)
        dim, *rest = dims
        extent, tile = extents[dim], tiles[dim]
        end = extent - extent % tile
        out: list[Statement] = []
        if end == tile:
            out += self.sequence(rest, extents, tiles, {**at, dim: _Span(tile)}, leaf)
        else:
            var = LoopVar(f"k{dim}" if len(dims) > 1 else "k")
            inner = self.sequence(rest, extents, tiles, {**at, dim: _Span(tile, 0, var)}, leaf)
            out.append(Loop(var, 0, end, tile, False, inner))
        if end < extent:
            out += self.sequence(rest, extents, tiles, {**at, dim: _Span(extent - end, end)}, leaf)
        return out

    # --- nests ---

    def windows(self, maps: Sequence[Index], at: dict[int, _Span]) -> tuple[Window, ...]:
        """The part of an operand that the points `at` read."""
        out: list[Window] = []
        for index in maps:
            span = _Span(1) if index.dim is None else at[index.dim]
            terms = () if span.var is None else ((span.var, index.stride),)
            out.append(Window(span.size, index.offset + index.stride * span.base, terms, index.stride))
        return tuple(out)

    def reduction(self, nest: Nest, tiles: Sequence[int], at: dict[int, _Span]) -> list[Statement]:
        """One tile of the result: at once where one trip covers the reduction, else in an accumulator."""
        entry = OPERATORS[self.last.op]
        out: list[Statement] = []
        if entry.combiner is None or all(tiles[d] == nest.extents[d] for d in nest.reductions):
            at = {**at, **{d: _Span(tiles[d]) for d in nest.reductions}}
            self.store(out, nest, at, self.tile(out, at))
            return out
        join, start = entry.combiner, NEUTRAL[entry.combiner]
        shape = tuple(1 if d is None else at[d].size for d in nest.result)
        total = Buffer(TensorType(shape, self.last.result.dtype), "acc", "chip")
        self.locals.append(total)
        store(out, total, whole(total), constant(out, start, shape, total.type.dtype))

        def trip(at: dict[int, _Span]) -> list[Statement]:
            body: list[Statement] = []
            part = self.tile(body, at, op=entry.partial)
            so_far = load(body, total, whole(total), total.name)
            store(body, total, whole(total), compute(body, join, [so_far, part]))
            return body

        order = sorted(nest.reductions, key=lambda d: tiles[d])  # the loop over tiles is innermost
        out += self.sequence(order, nest.extents, tiles, at, trip)
        value = load(out, total, whole(total), total.name)
        if entry.finish is not None:
            value = apply_scalar(out, entry.finish(nest.reduced), [value])
        self.store(out, nest, at, value)
        return out

    def store(self, out: list[Statement], nest: Nest, at: dict[int, _Span], value: Value) -> None:
        windows = tuple(
            Window(1) if d is None else Window(at[d].size, at[d].base, self.terms(at[d])) for d in nest.result
        )
        store(out, self.output, windows, value)

    def terms(self, span: _Span) -> tuple[tuple[LoopVar, int], ...]:
        return () if span.var is None else ((span.var, 1),)

    def tile(self, out: list[Statement], at: dict[int, _Span], op: str | None = None) -> Value:
        """The group's operators on the operands' tiles at these points."""
        values: dict[Value, Value] = {}
        # One value may be tiled in two ways: the rows and the columns of `x^T x`.
        loaded: dict[tuple[Value, tuple[Window, ...]], Value] = {}
        for node in self.group:
            nest = self.nest(node)
            operands: list[Value] = []
            for value, maps in zip(node.operands, nest.operands, strict=True):
                if value in values:
                    operands.append(values[value])
                    continue
                windows = self.windows(maps, at)
                if (value, windows) not in loaded:
                    loaded[value, windows] = self.operand(out, value, windows)
                operands.append(loaded[value, windows])
            attrs = dict(node.attrs)
            if move_of(node) is Move.SLICE:  # its load does everything
                (values[node.result],) = operands
                continue
            if move_of(node) is Move.BROADCAST or is_constant(node):
                attrs["shape"] = tuple(at[d].size for d in range(len(nest.extents)))
            name = identifier(node.result.name, "") if node is not self.last else ""
            values[node.result] = compute(out, op or node.op, operands, attrs, name)
        return values[self.last.result]

    def operand(self, out: list[Statement], value: Value, windows: tuple[Window, ...]) -> Value:
        splat = self.splats.get(value)
        if splat is None:
            buffer = self.buffers[value]
            return load(out, buffer, windows, buffer.name)
        number = splat.attrs["value"]
        assert isinstance(number, int | float)
        return constant(out, number, tuple(w.size for w in windows), value.dtype)

    # --- copies ---

    def pieces(self, dim: int) -> list[tuple[Value, int, int, list[int]]]:
        """The pieces of the result along `dim`: (operand, its first element, their number, where they go)."""
        if self.in_place:
            update, start = self.last.operands[1], self.last.attrs["offset"]
            assert isinstance(start, int)
            return [(update, 0, update.shape[dim], [start])]
        if move_of(self.last) is Move.UPDATE:
            (base, update), start = self.last.operands, self.last.attrs["offset"]
            assert isinstance(start, int)
            end = start + update.shape[dim]
            found = [
                (base, 0, start, [0]),
                (update, 0, update.shape[dim], [start]),
                (base, end, base.shape[dim] - end, [end]),
            ]
            return [piece for piece in found if piece[2]]
        times = self.last.attrs.get("times", 1)
        assert isinstance(times, int)
        out: list[tuple[Value, int, int, list[int]]] = []
        start = 0
        for value in self.last.operands:
            extent = value.shape[dim]
            out.append((value, 0, extent, [start + i * extent for i in range(times)]))
            start += extent
        return out

    def copies(self) -> list[Statement]:
        """`repeat`, `concat`, `update_slice`: tiles of each piece, stored where they go; a grid over the rest."""
        dim = self.last.attrs["dim"]
        assert isinstance(dim, int)
        shape = self.last.result.shape
        others = [d for d in range(len(shape)) if d != dim]
        pieces = self.pieces(dim)
        largest = max(size for _, _, size, _ in pieces)
        tiles = copy_tiles([largest if d == dim else n for d, n in enumerate(shape)], dim, self.gpu)
        everywhere = [Index(d) for d in range(len(shape))]

        def leaf(at: dict[int, _Span]) -> list[Statement]:
            body: list[Statement] = []
            for value, first, size, starts in pieces:

                def copy(
                    at: dict[int, _Span],
                    value: Value = value,
                    first: int = first,
                    starts: Sequence[int] = starts,
                ) -> list[Statement]:
                    out: list[Statement] = []
                    span = at[dim]
                    taken = {**at, dim: _Span(span.size, span.base + first, span.var)}
                    tile = self.operand(out, value, self.windows(everywhere, taken))
                    for start in starts:
                        moved = {**at, dim: _Span(span.size, span.base + start, span.var)}
                        store(out, self.output, self.windows(everywhere, moved), tile)
                    return out

                extents = [size if d == dim else n for d, n in enumerate(shape)]
                own = [min(size, t) if d == dim else t for d, t in enumerate(tiles)]
                body += self.sequence([dim], extents, own, at, copy)
            return body

        return self.grid(others, shape, tiles, leaf)
