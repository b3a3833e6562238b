"""Which elements of a block graph's tiles exist where extents do not divide.

Grid, loop and tile extents round up: the last tile along an axis may reach past the end of its tensor. Elements
beyond do not exist. An elementwise operator gives what exists in all of its operands; a reduction, a product and
an accumulator join only what exists; a saver writes only what exists. So a ragged block graph means what the one
with exact tiles would mean, and everything that computes with tiles asks `reaches` alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from superopt.axes import reshape_groups
from superopt.errors import IllegalProgram
from superopt.levels.common import expect
from superopt.operators import OPERATORS, Move, is_constant, move_of, nest_of
from superopt.program import CARRIED, BlockGraph, Node, NodeKind, ThreadGraph, Value

Term: TypeAlias = "tuple[Literal['grid', 'loop'], int, int]"


@dataclass(frozen=True)
class Reach:
    """Element i of a tile's dimension exists where i + sum of stride * index < extent.

    `terms` are the (kind, number, stride) of the grid dimensions and loops whose index moves the tile.
    """

    extent: int
    terms: tuple[Term, ...]


Reaches: TypeAlias = "tuple[Reach | None, ...]"


def reaches(graph: BlockGraph) -> dict[Value, Reaches]:
    """For every dimension of every tile what exists of it, None where all does; raises IllegalProgram where that
    is not one bound."""
    found: dict[Value, Reaches] = {}
    for node in graph.nodes:
        if node.op == NodeKind.ITERATOR:
            found[node.result] = _loaded(node, graph)
        elif node.op in CARRIED:
            found[node.result] = _carried(node, graph, found)
        elif isinstance(node.body, ThreadGraph):
            inner = dict(zip(node.body.inputs, (found[v] for v in node.operands), strict=True))
            for step in node.body.nodes:
                inner[step.result] = of_operator(step, inner)
            found |= inner
            found.update(zip(node.results, (inner[v] for v in node.body.outputs), strict=True))
        elif node.op != NodeKind.SAVE:
            found[node.result] = of_operator(node, found)
    return found


def placed(
    node: Node, key: str, extents: Sequence[int], dim: int, kind: Literal["grid", "loop"], step: int
) -> list[Term]:
    """The terms of `extents` that `key` of `node` maps to a dimension, and whose innermost moves it by `step`."""
    maps = node.attrs[key]
    assert isinstance(maps, tuple)
    return [(kind, i, step) for i, d in enumerate(maps) if d == dim and extents[i] > 1]


def _loaded(node: Node, graph: BlockGraph) -> Reaches:
    """What an iterator hands out: tiles side by side, each of which starts inside the tensor."""
    out: list[Reach | None] = []
    for d, (extent, tile) in enumerate(zip(node.operands[0].shape, node.result.shape, strict=True)):
        terms = placed(node, "fmap", graph.loops, d, "loop", tile)
        inner = tile * (graph.loops[terms[0][1]] if terms else 1)
        terms += placed(node, "imap", graph.grid, d, "grid", inner)
        last = sum(step * (_trips(graph, kind, i) - 1) for kind, i, step in terms)
        what = f"tiles along dimension {d} that cover its extent {extent}, each of them starting inside"
        expect(last < extent <= last + tile, what, f"{tile} elements from at most {last} on", node)
        out.append(None if last + tile == extent else Reach(extent, tuple(terms)))
    return tuple(out)


def _trips(graph: BlockGraph, kind: str, number: int) -> int:
    return (graph.grid if kind == "grid" else graph.loops)[number]


def _carried(node: Node, graph: BlockGraph, found: dict[Value, Reaches]) -> Reaches:
    """What a loop has joined: as much as its first trip has, which no other exceeds."""
    out: list[Reach | None] = []
    loop = node.attrs["loop"]
    for d, (reach, extent) in enumerate(zip(found[node.operands[0]], node.result.shape, strict=True)):
        if reach is not None:
            along = node.attrs.get("kind") == "concat" and node.attrs["dim"] == d
            moving = [t for t in reach.terms if t[:2] == ("loop", loop)]
            tile = node.operands[0].shape[d]
            good = not along or [t[2] for t in moving] == [tile]
            expect(good, f"parts of {tile} elements side by side along dimension {d}", reach.terms, node)
            reach = Reach(reach.extent, tuple(t for t in reach.terms if t not in moving))
            last = sum(step * (_trips(graph, kind, i) - 1) for kind, i, step in reach.terms)
            reach = None if last + extent <= reach.extent else reach
        out.append(reach)
    for scale in node.operands[1:]:
        alike = all(own in (None, reach) for own, reach in zip(found[scale], out, strict=True))
        expect(alike, f"a maximum that ends at {out}", found[scale], node)
    return tuple(out)


def of_operator(node: Node, found: dict[Value, Reaches]) -> Reaches:
    """What exists of the result of an operator of the table."""
    operands = [found[v] for v in node.operands]
    if is_constant(node) or not any(any(o) for o in operands):
        return (None,) * len(node.result.shape)
    nest, move = nest_of(node), move_of(node)
    if nest is not None:
        space = _space(node, operands)
        finish = OPERATORS[node.op].finish is not None
        whole = not finish or not any(space[d] for d in nest.reductions)
        expect(
            whole,
            "a reduction whose elements all exist, or one of parts that are divided later",
            "ragged tiles",
            node,
        )
        return tuple(None if d is None else space[d] for d in nest.result)
    if move is Move.RESHAPE:
        return _reshaped(node, operands[0])
    if move in (Move.CONCAT, Move.REPEAT):
        return _joined(node, operands)
    raise IllegalProgram(
        f"'{node.op}' expected tiles whose elements all exist, got ragged ones", node.location
    )


def _space(node: Node, operands: Sequence[Reaches]) -> list[Reach | None]:
    """What exists along each dimension of the nest of `node`: the same in all operands that do not have all."""
    nest = nest_of(node)
    assert nest is not None
    space: list[Reach | None] = [None] * len(nest.extents)
    for value, maps, own in zip(node.operands, nest.operands, operands, strict=True):
        for extent, index, reach in zip(value.shape, maps, own, strict=True):
            if reach is None:
                continue
            whole = index.dim is not None and nest.extents[index.dim] == extent
            if index.dim is None or not whole or (index.stride, index.offset) != (1, 0):
                raise IllegalProgram(
                    f"'{node.op}' expected whole dimensions of ragged tiles, got a part of one", node.location
                )
            before = space[index.dim]
            expect(before in (None, reach), f"operands that end alike, at {before}", reach, node)
            space[index.dim] = reach
    return space


def _reshaped(node: Node, reach: Reaches) -> Reaches:
    """Dimensions that merge or split; of those that do, only the outermost may be ragged."""
    before, after = node.operands[0].shape, node.result.shape
    out: list[Reach | None] = [None] * len(after)
    kept: set[int] = set()
    for a, b in reshape_groups(before, after):
        if (outer := reach[a[0]]) is None:
            continue
        each = math.prod(before[d] for d in a[1:])  # elements of one index
        parts = math.prod(after[d] for d in b[1:])
        sizes = [outer.extent, *(step for _, _, step in outer.terms)]
        if all(n * each % parts == 0 for n in sizes):
            terms: list[Term] = [(kind, i, step * each // parts) for kind, i, step in outer.terms]
            out[b[0]] = Reach(outer.extent * each // parts, tuple(terms))
            kept.add(a[0])
    lost = [d for d, r in enumerate(reach) if r is not None and d not in kept]
    expect(not lost, "only the outermost of dimensions that merge to be ragged", f"others ({lost})", node)
    return tuple(out)


def _joined(node: Node, operands: Sequence[Reaches]) -> Reaches:
    along, first = node.attrs["dim"], operands[0]
    alike = all(o == first for o in operands) and first[int(str(along))] is None
    expect(alike, "operands that end alike, and all of whose elements along 'dim' exist", operands, node)
    return first


def saved_shape(node: Node, graph: BlockGraph, reach: Reaches) -> tuple[int, ...]:
    """The shape of what a legal saver writes, all blocks together."""
    out: list[int] = []
    for d, (own, tile) in enumerate(zip(reach, node.operands[0].shape, strict=True)):
        terms = placed(node, "omap", graph.grid, d, "grid", tile)
        out.append(own.extent if own else tile * math.prod(graph.grid[i] for _, i, _ in terms))
    return tuple(out)


def check_saved(node: Node, graph: BlockGraph, reach: Reaches, shape: Sequence[int]) -> None:
    """A saver writes all of a result of `shape`, and what exists of its tiles ends with it."""
    tile = node.operands[0].shape
    expect(len(tile) == len(shape), f"a result of rank {len(tile)}", len(shape), node)
    for d, (own, extent) in enumerate(zip(reach, shape, strict=True)):
        terms = tuple(placed(node, "omap", graph.grid, d, "grid", tile[d]))
        covered = tile[d] * (_trips(graph, *terms[0][:2]) if terms else 1)
        wanted = None if covered == extent else Reach(extent, terms)
        expect(
            covered >= extent and own == wanted,
            f"{wanted or 'all'} of dimension {d} of {extent}",
            own or "all",
            node,
        )
