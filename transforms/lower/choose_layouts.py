"""Layouts of values between kernels: the order of their dimensions in device memory, chosen by cost.

    %p = custom(...)  tensor<8x512x4x128>                    %p = custom(...)  tensor<512x8x4x128>
    %t = transpose(%p) perm [1, 0, 2, 3]              ->     %m = matmul(reshape(%p), %w)
    %m = matmul(reshape(%t), %w)

A layout is a permutation that a `transpose` of the program asks for (Mirage, section 6, enumerates them for every
intermediate tensor). Instead of a kernel that moves the value,

- the custom kernel that makes it saves it in that order: its tile is transposed in registers, its omap permuted;
- or the custom kernel that reads it takes it as it is: imap and fmap permuted, the tile transposed in registers;
- a product's operand, or a product itself, is taken transposed.

Reshapes between the two are crossed where every dimension that blocks or trips share is the first of those it
becomes, so that tiles stay tiles. Layouts in which a block would touch runs of less than a sector of device
memory are excluded. Predicted seconds then decide, transpose by transpose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from superopt.axes import reshape_groups
from superopt.cost import Target, cost
from superopt.cost import target as find_target
from superopt.cost.gpus import DEFAULT_TARGET, TargetName
from superopt.diagnostics import Diagnostics
from superopt.errors import IllegalProgram
from superopt.moves import SECTOR_BYTES
from superopt.operators import Move, is_contraction, move_of
from superopt.program import (
    DTYPE_BYTES,
    Attr,
    BlockGraph,
    KernelGraph,
    Node,
    NodeKind,
    TensorType,
    Value,
    live_nodes,
    producers,
    rebuild,
)
from superopt.spec import check_kernel
from superopt.transforms.fingerprints import fingerprints
from superopt.transforms.tunable import Pick, Picked, Site, Tunable

# What may become of a value that a transpose moves: the transpose stays, its maker saves it, its users read it.
STAYS, SAVED, READ = "stays", "saved", "read"


@dataclass(frozen=True)
class ChooseLayouts(Tunable):
    """Let custom kernels and products write and read values transposed where that is predicted to be faster."""

    flag: ClassVar[str] = "choose-layouts"
    level: ClassVar[Literal["graph", "kernel"]] = "graph"
    hops: ClassVar[int] = 2

    target: TargetName = DEFAULT_TARGET
    """The GPU whose cost model and shared memory decide."""

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """The graph without the transposes that other layouts make unnecessary."""
        return choose_layouts(graph, find_target(self.target), pick)


def choose_layouts(graph: KernelGraph, target: Target, pick: Pick | None = None) -> KernelGraph:
    """`graph` with the layouts of its intermediate values that `pick` chooses: those predicted to be fastest."""
    pick = pick or Picked()
    moves = [n for n in graph.nodes if move_of(n) is Move.TRANSPOSE]
    named = fingerprints(graph, ChooseLayouts.hops) if moves else {}
    for node in moves:
        ways = {STAYS: graph}
        for way, made in _without(graph, node.result).items():
            try:
                check_kernel(made, target.shared_per_block)
            except IllegalProgram:
                continue
            ways[way] = made
        if len(ways) > 1:
            seconds = {way: cost(made, target).seconds for way, made in ways.items()}
            best = min(ways, key=lambda way: seconds[way])  # a tie: as it stands
            graph = ways[pick(Site(named[node], best, lambda ways=ways: list(ways), node.location))]
    return graph


def _without(graph: KernelGraph, result: Value) -> dict[str, KernelGraph]:
    """Programs with another layout of the value that `result` transposes: as it is saved, as it is read."""
    made_by = producers(graph.nodes)
    moved = made_by.get(result)
    if moved is None or move_of(moved) is not Move.TRANSPOSE:
        return {}
    found: dict[str, KernelGraph] = {}
    views, source = [moved], moved.operands[0]
    while (maker := made_by.get(source)) is not None and move_of(maker) is Move.RESHAPE:
        views.insert(0, maker)
        source = maker.operands[0]
    made = _saved(maker, source, views) if maker is not None else None
    if maker is not None and made is not None:
        found[SAVED] = _live(graph, {maker: made, moved: []})
    read: dict[Node, list[Node]] = {}
    for user in graph.nodes:
        for i, operand in enumerate(user.operands):
            if (chain := _back_to(operand, moved, made_by)) is not None:
                (before,) = read.get(user, [user])
                if (after := _read(before, i, [moved, *chain])) is not None:
                    read[user] = [after]
    if read:
        found[READ] = _live(graph, read)
    return found


def _saved(maker: Node, value: Value, views: Sequence[Node]) -> list[Node] | None:
    """Nodes in place of `maker` that also compute the last of `views` from its result `value`."""
    if isinstance(maker.body, BlockGraph):
        return _saved_by_blocks(maker, maker.body, value, views)
    if not is_contraction(maker) or len(views) > 1 or not _swaps(_ints(views[0], "perm")):
        return None
    a, b = (bool(maker.attrs.get(key, False)) for key in ("transpose_a", "transpose_b"))
    attrs: dict[str, Attr] = {"transpose_a": not b, "transpose_b": not a}
    return [maker, replace(maker, operands=maker.operands[::-1], results=views[0].results, attrs=attrs)]


def _read(user: Node, index: int, views: Sequence[Node]) -> Node | None:
    """`user`, reading as operand `index` what `views` start from instead of their result."""
    if isinstance(user.body, BlockGraph):
        return _read_by_blocks(user, user.body, index, views)
    if not is_contraction(user) or len(views) > 1 or not _swaps(_ints(views[0], "perm")):
        return None
    key = ("transpose_a", "transpose_b")[index]
    operands = list(user.operands)
    operands[index] = views[0].operands[0]
    attrs: dict[str, Attr] = {**user.attrs, key: not user.attrs.get(key, False)}
    return replace(user, operands=tuple(operands), attrs=attrs)


def _back_to(value: Value, node: Node, made_by: dict[Value, Node]) -> list[Node] | None:
    """The reshapes from the result of `node` to `value`, in order; None where it comes otherwise."""
    chain: list[Node] = []
    while value is not node.result:
        producer = made_by.get(value)
        if producer is None or move_of(producer) is not Move.RESHAPE:
            return None
        chain.insert(0, producer)
        value = producer.operands[0]
    return chain


def _swaps(perm: Sequence[int]) -> bool:
    rank = len(perm)
    return rank >= 2 and tuple(perm) == (*range(rank - 2), rank - 1, rank - 2)


def _ints(node: Node, key: str) -> tuple[int, ...]:
    value = node.attrs[key]
    assert isinstance(value, tuple)
    return value


# --- a custom kernel saves in another order ---------------------------------------------------------------------


def _saved_by_blocks(node: Node, block: BlockGraph, value: Value, views: Sequence[Node]) -> list[Node] | None:
    """`node`, also saving its result `value` in the form of the last of `views`; None where it cannot."""
    saver = block.savers[node.results.index(value)]
    maps, nodes = _Maps(block.grid, _ints(saver, "omap")), list(block.nodes)
    tile = saver.operands[0]
    for view in views:
        found = maps.through(view)
        if found is None:
            return None
        maps = found
        tile = _append(nodes, view, tile, maps.tile(view.result.shape))
    if not _runs(tile.shape, views[-1].result):
        return None
    nodes.append(Node(NodeKind.SAVE, (tile,), (), {"omap": maps.dims}, saver.location))
    results = (*node.results, views[-1].result)
    return [replace(node, results=results, body=replace(block, nodes=nodes))]


def _append(nodes: list[Node], view: Node, tile: Value, shape: Sequence[int]) -> Value:
    """Append to `nodes` the effect of `view` on a tile, which then has `shape`."""
    made = Value(TensorType(tuple(shape), tile.dtype), tile.name)
    attrs: dict[str, Attr] = {"shape": made.shape} if move_of(view) is Move.RESHAPE else dict(view.attrs)
    nodes.append(Node(view.op, (tile,), (made,), attrs, view.location))
    return made


# --- a custom kernel reads another order ------------------------------------------------------------------------


def _read_by_blocks(node: Node, block: BlockGraph, index: int, views: Sequence[Node]) -> Node | None:
    """`node`, reading what `views` start from in place of operand `index`; None where it cannot."""
    source = views[0].operands[0]
    argument = Value(source.type, source.name)
    nodes: list[Node] = []
    renamed: dict[Value, Value] = {}
    for inner in block.nodes:
        if inner.op != NodeKind.ITERATOR or inner.operands[0] is not block.inputs[index]:
            operands = tuple(renamed.get(v, v) for v in inner.operands)
            nodes.append(replace(inner, operands=operands))
            continue
        maps = _Maps((*block.grid, *block.loops), (*_ints(inner, "imap"), *_ints(inner, "fmap")))
        shapes = [inner.result.shape]
        for view in reversed(views):
            found = maps.back(view)
            if found is None:
                return None
            maps = found
            shapes.insert(0, maps.tile(view.operands[0].shape))
        if not _runs(shapes[0], source):
            return None
        cut = len(block.grid)
        tile = Value(TensorType(shapes[0], source.dtype), inner.result.name)
        attrs: dict[str, Attr] = {"imap": maps.dims[:cut], "fmap": maps.dims[cut:]}
        nodes.append(Node(NodeKind.ITERATOR, (argument,), (tile,), attrs, inner.location))
        for view, shape in zip(views, shapes[1:], strict=True):
            tile = _append(nodes, view, tile, shape)
        renamed[inner.result] = tile
    inputs, operands = list(block.inputs), list(node.operands)
    inputs[index], operands[index] = argument, source
    body = replace(block, inputs=inputs, nodes=nodes)
    return replace(node, operands=tuple(operands), body=body)


# --- maps through views -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Maps:
    """How extents (of a grid, of loops) share the dimensions of a tensor: dims[i] is for extent i, or -1."""

    extents: tuple[int, ...]
    dims: tuple[int, ...]

    def through(self, view: Node) -> _Maps | None:
        """The maps of the view's result; None where it lacks such tiles."""
        if move_of(view) is Move.RESHAPE:
            return self._reshaped(view.operands[0].shape, view.result.shape)
        perm = _ints(view, "perm")
        return replace(self, dims=tuple(perm.index(d) if d >= 0 else d for d in self.dims))

    def back(self, view: Node) -> _Maps | None:
        """The maps of the view's operand; None where it lacks such tiles."""
        if move_of(view) is Move.RESHAPE:
            return self._reshaped(view.result.shape, view.operands[0].shape)
        perm = _ints(view, "perm")
        return replace(self, dims=tuple(perm[d] if d >= 0 else d for d in self.dims))

    def _reshaped(self, before: Sequence[int], after: Sequence[int]) -> _Maps | None:
        """Only the first of merged or split dimensions may be shared, by a divisor of the first new one."""
        place: dict[int, int] = {}
        for kept, made in reshape_groups(before, after):
            shared = [d for d in kept if self._parts(d) > 1]
            if shared and (shared != kept[:1] or after[made[0]] % self._parts(kept[0])):
                return None
            place[kept[0]] = made[0]
        return replace(
            self,
            dims=tuple(
                place.get(d, -1) if e > 1 else -1 for e, d in zip(self.extents, self.dims, strict=True)
            ),
        )

    def _parts(self, dim: int) -> int:
        return math.prod(e for e, d in zip(self.extents, self.dims, strict=True) if d == dim)

    def tile(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a tile of a tensor of `shape`."""
        return tuple(e // self._parts(d) for d, e in enumerate(shape))


def _runs(tile: Sequence[int], whole: Value) -> bool:
    """Whether the elements of a tile lie in runs of at least a sector of the memory of `whole`."""
    run = DTYPE_BYTES[whole.dtype]
    for extent, full in reversed(list(zip(tile, whole.shape, strict=True))):
        run *= extent
        if extent < full:
            break
    return run >= SECTOR_BYTES


# --- unused results ---------------------------------------------------------------------------------------------


def _live(graph: KernelGraph, replaced: Mapping[Node, Sequence[Node]]) -> KernelGraph:
    """`graph` with some nodes replaced, without those that no output needs any more."""
    changed = rebuild(graph, lambda node: replaced.get(node, [node]))
    return replace(changed, nodes=live_nodes(changed.nodes, graph.outputs, trim=_saving))


def _saving(node: Node, needed: set[Value]) -> Node:
    """A custom kernel that saves only what is needed; any other node unchanged."""
    block = node.body
    if not isinstance(block, BlockGraph) or needed.issuperset(node.results):
        return node
    unused = {s for s, r in zip(block.savers, node.results, strict=True) if r not in needed}
    inside: set[Value] = set()
    nodes: list[Node] = []
    for inner in reversed(block.nodes):
        if inner not in unused and (inner.op == NodeKind.SAVE or inside.intersection(inner.results)):
            inside.update(inner.operands)
            nodes.append(inner)
    taken = [i for i, v in enumerate(block.inputs) if v in inside]
    body = replace(block, inputs=[block.inputs[i] for i in taken], nodes=nodes[::-1])
    operands = tuple(node.operands[i] for i in taken)
    return replace(node, operands=operands, results=tuple(r for r in node.results if r in needed), body=body)
