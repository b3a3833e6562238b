"""A kernel graph as naive tile loops: one statement per operator that must be stored.

    %c = matmul(%x, %w)               for n in 0..4096 by 128:
    %e = exp(%c)               ->       start C[:, n] = 0
                                        for k in 0..4096 by tile_k:
                                          C[:, n] = C[:, n] + matmul(X[:, k], W[k, n])
                                      for n in 0..4096 by 128:
                                        E[:, n] = exp(C[:, n])

What is stored: results of reductions along an axis that is cut (they accumulate from an explicit start),
concatenated values, outputs, and intermediate results by policy. An update that the program states to be in place
is one store into the argument's tensor, which is both input and output: reads come before or after it, and no
rule moves them past it. The rest is written into its users: with `inline="single"` only values with one user,
moves, conversions and constants, with `inline="all"` also values with more users (recomputed for each, but once
where the users end in one loop).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from superopt.aliasing import updates_in_place
from superopt.errors import UnsupportedProgram
from superopt.operators import OPERATORS, Move, is_contraction, move_of, nest_of
from superopt.program import KernelGraph, Node, Value
from superopt.transforms.tile_saturation.cut_axes import CutAxes, CutAxis, ints
from superopt.transforms.tile_saturation.term_bundles import bundled
from superopt.transforms.tile_saturation.terms import (
    FULL,
    STARTS,
    LibraryOperator,
    LoopTerm,
    StatementTerm,
    StoreTerm,
    TermIndex,
    TermProgram,
    TermRegion,
    TermTensor,
    TermVar,
    ValueTerm,
)
from superopt.transforms.tile_saturation.tile_values import Indices, TileValues, finished, finishes_parts
from superopt.transforms.tile_saturation.unmerge import Unmerged, unmerged

Inline: TypeAlias = Literal["single", "all"]

_PIECES = (Move.CONCAT, Move.UPDATE)


def tile_loops(graph: KernelGraph, inline: Inline = "single", *, bundle: bool = True) -> TermProgram:
    """`graph` as naive tile loops; raises UnsupportedProgram for what they do not express.

    Tensors of the program may have more dimensions than the inputs and outputs they represent (see `unmerge`).
    """
    program = _Builder(unmerged(graph), inline).build()
    if bundle:
        return bundled(program)
    return program


@dataclass
class _Space:
    """The iteration space of one statement: which variable runs along which axis."""

    parallel: list[TermVar] = field(default_factory=list[TermVar])
    used: dict[TermVar, tuple[Value, int]] = field(default_factory=dict[TermVar, tuple[Value, int]])


class _Builder:
    def __init__(self, source: Unmerged, inline: Inline) -> None:
        self.graph = graph = source.graph
        self.axes = CutAxes(graph, source.whole)
        self.producer = {n.result: n for n in graph.nodes}
        self.uses = Counter(v for n in graph.nodes for v in n.operands)
        self.inline = inline
        self.in_place = updates_in_place(graph)
        self.tensors: dict[Value, TermTensor] = {}
        self.body: list[StatementTerm] = []
        self.library: dict[StatementTerm, tuple[LibraryOperator, ...]] = {}
        self.whole = {self.axes.of(value, dim) for value, dim in source.whole}
        self.one: dict[int, TermVar] = {}
        self.stored = self.choose_stored()
        self.values = TileValues(self.producer, self.stored, self.tensor)
        self.names: Counter[str] = Counter()

    # --- what is stored ---

    def accumulates(self, node: Node) -> bool:
        """Whether it reduces along an axis that is cut."""
        return any(a is not None and a.cut != "full" for a in self.reduced_axes(node))

    def reduced_axes(self, node: Node) -> list[CutAxis | None]:
        nest = nest_of(node)
        if nest is None:
            return []
        source, maps = node.operands[0], nest.operands[0]
        return [self.axes.of(source, d) for d, index in enumerate(maps) if index.dim in nest.reductions]

    def choose_stored(self) -> set[Value]:
        outputs = set(self.graph.outputs)
        stored: set[Value] = set()
        cut = {n.operands[0] for n in self.graph.nodes if move_of(n) is Move.UPDATE}
        for node in self.graph.nodes:
            value = node.result
            if value in cut:  # read in parts
                stored.add(value)
            entry = OPERATORS[node.op]
            heavy = entry.combiner is not None
            if self.accumulates(node) or entry.move in _PIECES or value in outputs:
                stored.add(value)
            elif entry.move is not None or entry.conversion or entry.constant:
                continue
            elif (self.uses[value] > 1 and self.inline == "single") or (heavy and self.widens(value)):
                stored.add(value)
        return stored

    def widens(self, value: Value) -> bool:
        """Whether a user of `value`, reached without a store, iterates over axes that `value` lacks."""
        own = {self.axes.of(value, d) for d in range(len(value.shape))}
        todo, seen = [value], {value}
        while todo:
            current = todo.pop()
            for node in self.graph.nodes:
                if current not in node.operands:
                    continue
                wider = [self.axes.of(node.result, d) for d in range(len(node.result.shape))]
                if any(a is not None and a.cut != "full" and not self.known(a, own) for a in wider):
                    return True
                if not self.accumulates(node) and node.result not in seen:
                    seen.add(node.result)
                    todo.append(node.result)
        return False

    def known(self, axis: CutAxis, own: set[CutAxis | None]) -> bool:
        return (
            axis in own
            or any(m in own for m in axis.merged)
            or any(a is not None and axis in a.merged for a in own)
        )

    # --- tensors ---

    def tensor(self, value: Value) -> TermTensor:
        if value not in self.tensors:
            kind = "output" if value in self.graph.outputs else "temporary"
            if value not in self.producer:
                kind = "input"
            name = value.name.strip("%") or f"t{len(self.tensors)}"
            self.names[name] += 1
            name = name if self.names[name] == 1 else f"{name}_{self.names[name]}"
            self.tensors[value] = TermTensor(name, value.shape, value.dtype, kind)  # pyright: ignore[reportArgumentType]
        return self.tensors[value]

    def build(self) -> TermProgram:
        for value in self.graph.inputs:
            self.tensor(value)
        for node in filter(self.in_place.__contains__, self.graph.nodes):
            self.tensors[node.result] = tensor = self.tensors[node.operands[0]]
            tensor.kind = "output"
        for node in self.graph.nodes:
            if node.result in self.stored:
                self.store(node)
                self.note_library(node)
        outputs = [self.tensor(v) for v in self.graph.outputs]
        inputs = [self.tensor(v) for v in self.graph.inputs]
        tensors = list(self.tensors.values())
        return TermProgram(
            self.graph.name, inputs, outputs, tuple(self.body), tensors, self.library, self.multiplied()
        )

    def multiplied(self) -> str | None:
        """The dtype that all matrix products multiply, where it is one of 16 bits."""
        found = {v.dtype for n in self.graph.nodes if is_contraction(n) for v in n.operands}
        return found.pop() if len(found) == 1 and "f32" not in found else None

    def note_library(self, node: Node) -> None:
        """Record the statement just written if it is a library operator on tensors in memory."""
        held = [self.held(v) for v in node.operands]
        if (is_contraction(node) or move_of(node) is Move.CONCAT) and all(v is not None for v in held):
            operands = tuple(
                (self.tensor(v), x.shape) for v, x in zip(held, node.operands, strict=True) if v is not None
            )
            attrs = tuple(sorted(node.attrs.items()))
            self.library[self.body[-1]] = (
                LibraryOperator(node.op, self.tensor(node.result), operands, attrs),
            )

    def held(self, value: Value) -> Value | None:
        """The tensor in memory that a value is, or is a view of: only dimensions of extent 1 move."""
        while (node := self.producer.get(value)) is not None and value not in self.stored:
            kept = (
                [d for d, extent in enumerate(node.operands[0].shape) if extent > 1] if node.operands else []
            )
            if move_of(node) is Move.TRANSPOSE:
                perm = [d for d in ints(node, "perm") if d in kept]
                if perm != kept:
                    return None
            elif move_of(node) is not Move.RESHAPE:
                return None
            value = node.operands[0]
        return value

    # --- statements ---

    def space_index(self, value: Value, dim: int, space: _Space, *, parallel: bool) -> TermIndex:
        """The index of an iteration dimension, by a variable that is still unused in the statement."""
        axis = self.axes.of(value, dim)
        if axis is None or axis.cut == "full":
            return FULL
        # Axes that one reshape ties together share one variable: the first merged axis's.
        source = axis.leader or axis
        if axis.cut == "elem" and axis.merged:
            source = axis.merged[0]
        occurrence = 0
        while source.var(occurrence) in space.used:
            occurrence += 1
        var = source.var(occurrence)
        space.used[var] = (value, dim)
        if parallel:
            space.parallel.append(var)
        if axis.cut == "elem":
            return TermIndex("elem", var)
        return TermIndex("block", var, 0, axis.step) if axis.leader else TermIndex("tile", var)

    def one_tile(self, value: Value, index: TermIndex, space: _Space) -> TermIndex:
        """The columns of a product that others need whole, as one tile; a separate kernel may cut them."""
        axis = self.axes.of(value, len(value.shape) - 1)
        if index.kind != "full" or axis is None or axis not in self.whole:
            return index
        # One variable per extent, so that statements of one form keep it.
        if axis.extent not in self.one:
            self.one[axis.extent] = TermVar(f"all{axis.extent}", axis.extent, axis.extent, axis.extent)
        space.parallel.append(self.one[axis.extent])
        return TermIndex("tile", self.one[axis.extent])

    def store(self, node: Node) -> None:
        if move_of(node) in _PIECES:
            self.store_pieces(node)
            return
        space = _Space()
        result = node.result
        index = tuple(self.space_index(result, d, space, parallel=True) for d in range(len(result.shape)))
        if is_contraction(node) and self.accumulates(node):
            index = (*index[:-1], self.one_tile(result, index[-1], space))
        region = TermRegion(self.tensor(result), index)
        if not self.accumulates(node):
            self.nest(space, [StoreTerm(region, self.values.compute(node, index))])
            return
        self.accumulate(node, region, index, space)

    def accumulate(self, node: Node, region: TermRegion, index: Indices, space: _Space) -> None:
        """start region; for k: region = region + partial (or max)."""
        nest, join = nest_of(node), OPERATORS[node.op].combiner
        assert nest is not None
        assert join is not None
        reduced = {
            index.dim: self.space_index(node.operands[0], d, space, parallel=False)
            for d, index in enumerate(nest.operands[0])
            if index.dim in nest.reductions
        }
        reduction = [index.var for index in reduced.values() if index.var is not None]
        if not finishes_parts(node):
            raise UnsupportedProgram(f"tile loops do not sum parts of '{node.op}'", node.location)
        # Divide each part, so that no sum exceeds its dtype.
        partial = finished(node, self.values.partial(node, index, reduced))
        value = ValueTerm(join, (ValueTerm("load", region=region), partial))
        body: list[StatementTerm] = [StoreTerm(region, value)]
        for i, var in enumerate(reversed(reduction)):
            outermost = i == len(reduction) - 1
            body = [LoopTerm(var, ((region, STARTS[join]),) if outermost else (), tuple(body))]
        self.nest(space, body)

    def pieces(self, node: Node, dim: int) -> list[tuple[Value, int, int, int]]:
        """The pieces stored along `dim`: (operand, its first element, their number, where they go)."""
        if move_of(node) is Move.CONCAT:
            ends = list(itertools.accumulate((v.shape[dim] for v in node.operands), initial=0))
            return [(v, 0, v.shape[dim], at) for v, at in zip(node.operands, ends, strict=False)]
        (base, update), start = node.operands, node.attrs["offset"]
        assert isinstance(start, int)
        end = start + update.shape[dim]
        if node in self.in_place:
            return [(update, 0, update.shape[dim], start)]
        found = [
            (base, 0, start, 0),
            (update, 0, update.shape[dim], start),
            (base, end, base.shape[dim] - end, end),
        ]
        return [piece for piece in found if piece[2]]

    def store_pieces(self, node: Node) -> None:
        """One store for each piece, in loops over the other dimensions."""
        dim = node.attrs["dim"]
        assert isinstance(dim, int)
        space = _Space()
        result = node.result
        index = [
            FULL if d == dim else self.space_index(result, d, space, parallel=True)
            for d in range(len(result.shape))
        ]
        body: list[StatementTerm] = []
        for operand, first, size, base in self.pieces(node, dim):
            width = next((w for w in (64, 32, 16) if size % w == 0), 0)
            inner, target = list(index), list(index)
            var = None
            if size > 128 and width:
                var = TermVar(f"c{len(self.body)}_{len(body)}", size, width, width)
                inner[dim], target[dim] = TermIndex("tile", var, first), TermIndex("tile", var, base)
            else:
                inner[dim] = FULL if size == operand.shape[dim] else TermIndex("range", None, first, size)
                target[dim] = TermIndex("range", None, base, size)
            piece = StoreTerm(
                TermRegion(self.tensor(result), tuple(target)), self.values.value(operand, tuple(inner))
            )
            body.append(piece if var is None else LoopTerm(var, (), (piece,)))
        if not space.parallel and len(body) > 1:  # one loop, as one kernel writes all of a tensor
            space.parallel.append(TermVar(f"c{len(self.body)}", 1, 1, 1))
        self.nest(space, body)

    def nest(self, space: _Space, body: Sequence[StatementTerm]) -> None:
        statements = tuple(body)
        for var in reversed(space.parallel):
            statements = (LoopTerm(var, (), statements),)
        self.body += statements
