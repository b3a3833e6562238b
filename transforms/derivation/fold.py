"""Moves as part of what they surround: a program of one sum of products between moves as one nest.

    y = reshape(transpose(conv(pad(reshape(x)), w)))        ->        y = nest(x, w)

The result's dimensions are those of the last move. What the moves do is composed, from the result to the inputs:
a reshape is quotients and remainders of a row-major place, a pad a guard, a transposition another order. Nothing
is trusted: the nest is proved against the program like any other candidate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.nests import int_attr, ints_attr
from superopt.nests_by_text import nest_attrs
from superopt.operators import (
    OPERATORS,
    Index,
    Move,
    Scalar,
    is_windowed,
    move_of,
    nest_of,
    normalize_attrs,
)
from superopt.program import KernelGraph, Node, Value, live_nodes, producers
from superopt.quasi_affine import Condition, Expressions, Linear, Read


class Unfoldable(Exception):
    """The program is not one sum of products between moves; the message says why."""


@dataclass(frozen=True)
class Folded:
    """A nest of inputs: sums of the products of several `terms`, each of its reads with the input that it reads.

    extents    of the result's dimensions, then of those that are summed; `rank` are the result's
    where      where the result is not zero, over the result's dimensions
    """

    extents: tuple[int, ...]
    rank: int
    terms: tuple[tuple[tuple[int, Read], ...], ...]
    where: Read

    def program(self, like: KernelGraph) -> KernelGraph:
        """The program of this nest alone, of the types of `like`."""
        reads = [read for term in self.terms for read in term]
        attrs = nest_attrs(
            self.extents, self.rank, [r for _, r in reads], [len(t) for t in self.terms], self.where
        )
        (output,) = like.outputs
        result = Value(output.type, output.name)
        node = Node("nest", tuple(like.inputs[n] for n, _ in reads), (result,), attrs)
        return replace(like, nodes=[node], outputs=[result])


def folded(graph: KernelGraph) -> Folded:
    """The nest that a program of one output is; raises Unfoldable."""
    nodes = live_nodes(graph.nodes, graph.outputs)
    cores = [n for n in nodes if not _moves(n)]
    if len(cores) != 1 or len(graph.outputs) != 1:
        raise Unfoldable(f"expected one operator besides moves, got {len(cores)}")
    return _Fold(graph, cores[0]).run()


def _moves(node: Node) -> bool:
    pads = is_windowed(node) and OPERATORS[node.op].combiner is None
    return pads or move_of(node) in (Move.RESHAPE, Move.TRANSPOSE, Move.SLICE, Move.BROADCAST, Move.REPEAT)


def _is_product(body: Scalar) -> bool:
    return body.head == "arg" or (body.head == "mul" and all(map(_is_product, body.args)))


class _Fold:
    def __init__(self, graph: KernelGraph, core: Node) -> None:
        nest = nest_of(core)
        entry = OPERATORS.get(core.op)
        if nest is None or entry is None or entry.body is None or nest.reads:
            raise Unfoldable(f"'{core.op}' has no nest to compose")
        body = entry.body(normalize_attrs(entry, core.attrs))
        if entry.combiner != "add" or entry.finish is not None or not _is_product(body) or nest.outside:
            raise Unfoldable(f"expected a sum of products, got '{core.op}'")
        self.graph, self.core, self.nest = graph, core, nest
        self.made = producers(graph.nodes)
        (output,) = graph.outputs
        self.rank = len(output.shape)
        self.extents = (*output.shape, *(nest.extents[d] for d in nest.reductions))
        self.write = Expressions(len(self.extents), self.extents)

    def run(self) -> Folded:
        where: list[Condition] = []
        (value,) = self.graph.outputs
        index = [self.write.dim(d) for d in range(self.rank)]
        while (node := self.made.get(value)) is not self.core:
            if node is None:
                raise Unfoldable("an input is a result")
            index, value = self.step(node, index, where), node.operands[0]
        point = {d: x for d, x in zip(self.nest.result, index, strict=True) if d is not None}
        point |= {d: self.write.dim(self.rank + n) for n, d in enumerate(self.nest.reductions)}
        reads: list[tuple[int, Read]] = []
        for operand, maps in zip(self.core.operands, self.nest.operands, strict=True):
            guard: list[Condition] = []
            value, at = operand, [self.index(i, point, guard) for i in maps]
            self.inside(at, value, guard)
            while (node := self.made.get(value)) is not None:
                at, value = self.step(node, at, guard), node.operands[0]
                self.inside(at, value, guard)
            reads.append((self.graph.inputs.index(value), self.write.read(at, (tuple(guard),))))
        held = self.write.read((), (tuple(where),))
        return Folded(self.extents, self.rank, (tuple(reads),), held)

    def index(self, index: Index, point: dict[int, Linear], guard: list[Condition]) -> Linear:
        """What an index map reads at a point."""
        x = Linear(index.offset)
        if index.dim is not None:
            x = x.plus(point[index.dim], index.stride)
        for atom in index.atoms:
            x = x.plus(self.write.floor(point[atom.dim], atom.divisor), atom.scale)
        if index.divisor == 1:
            return x
        guard.append(Condition(self.write.mod(x, index.divisor), equal=True))
        return self.write.floor(x, index.divisor)

    def inside(self, index: Sequence[Linear], value: Value, guard: list[Condition]) -> None:
        """What is outside of a value that another operator makes is zero; outside of inputs it is zero anyway."""
        if value in self.made:
            for x, extent in zip(index, value.shape, strict=True):
                self.within(x, extent, guard)

    def within(self, x: Linear, extent: int, guard: list[Condition]) -> None:
        """Add that `x` is in [0, extent), as far as that is not known."""
        known = self.write.range(x)
        sides = (known is None or known[0] < 0, x), (known is None or known[1] >= extent, end(x, extent))
        guard += [c for side, of in sides if side and (c := Condition(of)) not in guard]

    def step(self, node: Node, index: Sequence[Linear], guard: list[Condition]) -> list[Linear]:
        """Where the operand of a move is read for an index of its result."""
        attrs = normalize_attrs(OPERATORS[node.op], node.attrs)
        source = node.operands[0].shape
        match move_of(node):
            case Move.TRANSPOSE:
                return [x for _, x in sorted(zip(ints_attr(attrs, "perm"), index, strict=True), key=_first)]
            case Move.SLICE:
                cut = zip(index, ints_attr(attrs, "offsets"), ints_attr(attrs, "strides"), strict=True)
                return [x.times(stride).plus(Linear(offset)) for x, offset, stride in cut]
            case Move.BROADCAST:
                last = index[len(index) - len(source) :]
                return [Linear() if e == 1 else x for x, e in zip(last, source, strict=True)]
            case Move.REPEAT:
                d = int_attr(attrs, "dim")
                return [self.write.mod(x, source[d]) if i == d else x for i, x in enumerate(index)]
            case Move.RESHAPE:
                return self.reshaped(index, node.result.shape, source)
            case _:
                if attrs["value"] != 0.0:
                    raise Unfoldable(f"expected zeros as padding, got {attrs['value']}")
                low = ints_attr(attrs, "low")
                found = [x.plus(Linear(-a)) for x, a in zip(index, low, strict=True)]
                for x, extent in zip(found, source, strict=True):
                    self.within(x, extent, guard)
                return found

    def reshaped(self, index: Sequence[Linear], shape: Sequence[int], source: Sequence[int]) -> list[Linear]:
        """Quotients and remainders of the row-major place: of each group of dimensions of equal products."""
        found: list[Linear] = []
        left, right = list(range(len(shape))), list(range(len(source)))
        while left or right:
            a, b = left[:1], right[:1]
            while (p := math.prod(shape[n] for n in a)) != (q := math.prod(source[n] for n in b)):
                (a if p < q else b).append((left[len(a) :] if p < q else right[len(b) :])[0])
            left, right = left[len(a) :], right[len(b) :]
            place, stride = Linear(), math.prod(shape[n] for n in a)
            for n in a:
                stride //= shape[n]
                place = place.plus(index[n], stride)
            ends = list(itertools.accumulate((source[n] for n in reversed(b)), lambda x, y: x * y, initial=1))
            for position, n in enumerate(b):
                x = self.write.floor(place, ends[len(b) - 1 - position])
                found.append(x if position == 0 else self.write.mod(x, source[n]))
        return found


def _first(pair: tuple[int, Linear]) -> int:
    return pair[0]


def end(x: Linear, extent: int) -> Linear:
    """At least 0 where `x` is below an extent."""
    return Linear(extent - 1).plus(x, -1)
