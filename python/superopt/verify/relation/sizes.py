"""The sizes of programs as affine expressions of parameters, and what each operator reads, at all of them.

A program is written at one size. `Sizes` takes it for a member of a family: each dimension of an input is an
unknown, and each operator states equations between the dimensions that it relates. What is no size stays as it
is: strides, dilations, residues, and how far windows reach over a border. All equations hold at the actual sizes,
so that solving them never fails; what they leave free is a parameter. Without `symbolic`, sizes are numbers.

A dimension is a list of factors, outermost first, each of which is a dimension for isl: a reshape that merges
dimensions then is no arithmetic, as a row-major place with a parameter as stride is not affine. Where a factor is
cut, or an index needs the place, strides become numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from superopt.nests import Attrs, Index, Nest, Shape, int_attr
from superopt.operators import OPERATORS, Move, normalize_attrs
from superopt.program import Node, Value
from superopt.quasi_affine import Linear, Read


@dataclass(frozen=True)
class Affine:
    """`constant + sum of coefficient * unknown`."""

    constant: int
    terms: tuple[tuple[int, int], ...] = ()

    def plus(self, other: Affine, times: int = 1) -> Affine:
        """`self + times * other`."""
        found = dict(self.terms)
        for unknown, c in other.terms:
            found[unknown] = found.get(unknown, 0) + times * c
        kept = tuple(sorted((u, c) for u, c in found.items() if c))
        return Affine(self.constant + times * other.constant, kept)

    def times(self, factor: int) -> Affine:
        """A multiple."""
        return Affine(0).plus(self, factor)


Dim: TypeAlias = "list[Affine]"
"""The factors of a dimension; none where its extent is 1 at all sizes."""
Equation: TypeAlias = tuple[str, Affine]
"""A linear expression of indices d0, d1, ... and i0, i1, ..., which is equal to a number."""


@dataclass
class Access:
    """The indices i0, i1, ... of an operand that are read at a point d0, d1, ..., by equations."""

    space: Dim
    operand: Dim
    equations: list[Equation] = field(default_factory=list[Equation])
    guard: str = "true"


@dataclass
class Plan:
    """What a node reads at each point of a space.

    result, sums, idle    numbers of the factors that are its result's, that it sums over, and that it sums over
                          while nothing depends on them
    """

    space: Dim
    accesses: list[Access]
    result: list[int]
    sums: list[int]
    idle: list[int] = field(default_factory=list[int])


class Sizes:
    """The family of two programs: `solve` equations first, then ask for texts."""

    def __init__(self, inputs: Sequence[Value], *, symbolic: bool = False, borders: bool = False) -> None:
        """With `borders`, how much is padded or cut at the far end is a size as well."""
        self.symbolic, self.borders = symbolic, borders
        self.actual: list[int] = []
        self.known: dict[int, Affine] = {}
        self.positive: list[Affine] = []  # are at least 1
        self.inputs = [[self.dim(e, whole=symbolic) for e in v.shape] for v in inputs]

    # --- unknowns and equations

    def new(self, value: int) -> Affine:
        """A size."""
        if not self.symbolic:
            return Affine(value)
        self.actual.append(value)
        return Affine(0, ((len(self.actual) - 1, 1),))

    def dim(self, extent: int, *, whole: bool = False) -> Dim:
        """A new dimension; of one factor also where the extent is 1, if `whole`."""
        made = [self.new(extent)] if extent > 1 or whole else []
        self.positive += made
        return made

    def value(self, x: Affine) -> int:
        """The actual number."""
        return x.constant + sum(c * self.actual[u] for u, c in x.terms)

    def resolved(self, x: Affine) -> Affine:
        """In parameters alone."""
        out = Affine(x.constant)
        for unknown, c in x.terms:
            known = self.known.get(unknown)
            out = out.plus(Affine(0, ((unknown, 1),)) if known is None else self.resolved(known), c)
        return out

    def equate(self, x: Affine, y: Affine) -> None:
        """Solve for the youngest unknown that is a term of its own, so that inputs stay parameters.

        Where there is none, all unknowns of the equation are fixed.
        """
        rest = self.resolved(x.plus(y, -1))
        divisor = math.gcd(rest.constant, *(c for _, c in rest.terms))
        unit = [(u, c) for u, c in rest.terms if abs(c) == divisor]
        if unit:
            unknown, c = unit[-1]
            rest = Affine(rest.constant // divisor, tuple((u, k // divisor) for u, k in rest.terms))
            self.known[unknown] = rest.plus(Affine(0, ((unknown, 1),)), -c // divisor).times(-c // divisor)
        for unknown, _ in () if unit else rest.terms:
            self.known[unknown] = Affine(self.actual[unknown])

    def fix(self, factors: Sequence[Affine]) -> None:
        """Keep these numbers."""
        for x in factors:
            self.equate(x, Affine(self.value(x)))

    def flat(self, name: str, dim: Sequence[Affine], start: int) -> str:
        """The row-major place of an index; fixes what is a stride."""
        self.fix(dim[1:])
        strides = [self.product(dim[n + 1 :]) for n in range(len(dim))]
        return " + ".join(f"{s}*{name}{start + n}" for n, s in enumerate(strides)) or "0"

    def product(self, dim: Sequence[Affine]) -> int:
        """The actual extent."""
        return math.prod(map(self.value, dim))

    def total(self, dim: Sequence[Affine]) -> Affine:
        """The extent; fixes all factors but the first."""
        self.fix(dim[1:])
        return dim[0].times(self.product(dim[1:])) if dim else Affine(1)

    def same(self, access: Access, xs: Sequence[Affine], x: int, ys: Sequence[Affine], y: int) -> None:
        """Read factors `ys` (from number y on) at the place that the factors `xs` of the space (from x on) give.

        They are grouped as finely as their products allow.
        """
        left, right = list(range(len(xs))), list(range(len(ys)))
        while left or right:
            a, b = ([left.pop(0)] if left else []), ([right.pop(0)] if right else [])
            while (p := self.product([xs[n] for n in a])) != (q := self.product([ys[n] for n in b])):
                (a if p < q else b).append((left if p < q else right).pop(0))
            one, two = [xs[n] for n in a], [ys[n] for n in b]
            places = f"{self.flat('d', one, x + min(a, default=0))}"
            places += f" - ({self.flat('i', two, y + min(b, default=0))})"
            access.equations.append((places, Affine(0)))
            self.equate(self.total(one), self.total(two))

    # --- nodes

    def plan(self, node: Node, operands: Sequence[list[Dim]]) -> tuple[Plan, list[Dim]]:
        """What a node reads, and the dimensions of its result."""
        entry = OPERATORS[node.op]
        attrs = normalize_attrs(entry, node.attrs)
        shapes = [v.shape for v in node.operands]
        if entry.nest is not None:
            nest = entry.nest(shapes, attrs)
            if nest.reads:
                return self.by_text(nest, operands)
            space = [self.spread(nest, d, operands, shapes) for d in range(len(nest.extents))]
            moves = entry.arity == 1 and entry.combiner is None
            accesses = [
                self.read(space, maps, dims, shape, ends=moves and self.borders)
                for maps, dims, shape in zip(nest.operands, operands, shapes, strict=True)
            ]
            used = {d for maps in nest.operands for i in maps for d in i.dims}
            if entry.finish is not None:
                self.fix([f for d in nest.reductions for f in space[d]])
            if attrs.get("groups", 1) != 1:  # channels are multiples of what is no size
                self.fix([f for dims in operands for d in dims[:2] for f in d])
            places = _places(space)
            idle = [n for d in nest.reductions if d not in used for n in places[d]]
            flat = [f for d in space for f in d]
            self.fix([flat[n] for n in idle])
            sums = [n for d in nest.reductions for n in places[d] if n not in idle]
            kept = [[] if d is None else space[d] for d in nest.result]
            return Plan(
                flat, accesses, [n for d in nest.result if d is not None for n in places[d]], sums, idle
            ), kept
        target, accesses = self.moved(node, attrs, operands, shapes)
        flat = [f for d in target for f in d]
        return Plan(flat, accesses, list(range(len(flat))), []), target

    def by_text(self, nest: Nest, operands: Sequence[list[Dim]]) -> tuple[Plan, list[Dim]]:
        """`plan` of a nest whose reads are given: its sizes are numbers."""
        space = [[Affine(e)] for e in nest.extents]
        flat = [f for d in space for f in d]
        accesses: list[Access] = []
        for read, dims in zip(nest.reads, operands, strict=True):
            self.fix([f for d in dims for f in d])
            access, at = Access(flat, [f for d in dims for f in d], guard=spelled_guard(read)), 0
            for x, dim in zip(read.index, dims, strict=True):
                access.equations.append((f"{self.flat('i', dim, at)} - ({spelled(read, x)})", Affine(0)))
                at += len(dim)
            accesses.append(access)
        used = {d for read in nest.reads for d in read.dims}
        idle = [d for d in nest.reductions if d not in used]
        sums = [d for d in nest.reductions if d in used]
        rank = len(nest.result)
        return Plan(flat, accesses, list(range(rank)), sums, idle), space[:rank]

    def spread(self, nest: Nest, d: int, operands: Sequence[list[Dim]], shapes: Sequence[Shape]) -> Dim:
        """The factors of an iteration dimension: those of the first operand that has it as a dimension.

        What is summed and of no operand is an attribute, which is a number, as is a band's width.
        """
        for maps, dims, shape in zip(nest.operands, operands, shapes, strict=True):
            for index, dim, extent in zip(maps, dims, shape, strict=True):
                if _is_whole(index, extent, nest.extents) and index.dim == d:
                    return dim
        made = self.dim(nest.extents[d])
        if d in nest.reductions or all(i.dim != d for maps in nest.operands for i in maps):
            self.fix(made)
        return made

    def read(
        self, space: Sequence[Dim], maps: Sequence[Index], dims: Sequence[Dim], shape: Shape, *, ends: bool
    ) -> Access:
        """The index map of an operand; with `ends`, where its window ends is a size."""
        access = Access([f for d in space for f in d], [f for d in dims for f in d])
        starts, extents = [n[0] if n else 0 for n in _places(space)], [self.product(d) for d in space]
        at = 0
        for index, dim, extent in zip(maps, dims, shape, strict=True):
            if index.dim is not None and _is_whole(index, extent, extents):
                self.same(access, space[index.dim], starts[index.dim], dim, at)
            elif index.dims or dim:
                self.window(access, index, space, starts, (dim, at), ends=ends)
            at += len(dim)
        return access

    def window(
        self,
        access: Access,
        index: Index,
        space: Sequence[Dim],
        starts: Sequence[int],
        operand: tuple[Dim, int],
        *,
        ends: bool,
    ) -> None:
        """One dimension that is not read as a whole: `divisor * i = offset + stride * d + sum of atoms`.

        At the last point it is `over` from the end, at all sizes.
        """
        dim, at = operand
        terms = [] if index.dim is None else [(index.stride, index.dim, 1)]
        terms += [(a.scale, a.dim, a.divisor) for a in index.atoms]
        places = [f"{-s}*floor(({self.flat('d', space[d], starts[d])})/{q})" for s, d, q in terms]
        text = " + ".join([f"{index.divisor}*({self.flat('i', dim, at)})", *places])
        offset = Affine(index.offset)
        if any(q > 1 for _, _, q in terms):
            self.fix([*dim, *(f for _, d, _ in terms for f in space[d])])
        else:
            last = self.total(dim).plus(Affine(-1)).times(index.divisor)
            for s, d, _ in terms:
                last = last.plus(self.total(space[d]).plus(Affine(-1)), -s)
            over = Affine(self.value(last) - index.offset)
            if ends and index.dim is not None and space[index.dim]:
                pads = index.offset < 0 or over.constant < 0
                over = self.new(over.constant) if over.constant else over
                offset = self.new(index.offset) if index.offset > 0 and index.stride == 1 else offset
                self.positive += [x.times(-1 if pads else 1).plus(Affine(1)) for x in (over, offset)]
            self.equate(last, offset.plus(over))
        access.equations.append((text, offset))

    def moved(
        self, node: Node, attrs: Attrs, operands: Sequence[list[Dim]], shapes: Sequence[Shape]
    ) -> tuple[list[Dim], list[Access]]:
        """Operators without a nest: the dimensions of the result, and what is read of each operand."""
        move, source = OPERATORS[node.op].move, operands[0] if operands else []
        if move is None:
            return [self.dim(e) for e in node.result.shape], []
        if move is Move.RESHAPE:
            factors = [f for d in source for f in d]
            target = self.cut(factors, node.result.shape)
            access = Access([f for d in target for f in d], factors)
            self.same(access, access.space, 0, factors, 0)
            return target, [access]
        along = int_attr(attrs, "dim")
        offsets, target = [Affine(0)], list(source)
        if move is Move.CONCAT:
            for dims in operands:
                offsets.append(offsets[-1].plus(self.total(dims[along])))
            target[along] = self.dim(sum(s[along] for s in shapes))
            self.equate(self.total(target[along]), offsets.pop())
        elif move is Move.REPEAT:
            times = int_attr(attrs, "times")
            target[along] = [*([Affine(times)] if times > 1 else []), *source[along]]
        else:
            offsets.append(Affine(int_attr(attrs, "offset")))
            if len(source[along]) > 1:
                target[along] = self.dim(shapes[0][along])
        places = [n[0] if n else 0 for n in _places(target)]
        accesses: list[Access] = []
        for dims, offset in zip(operands, offsets, strict=True):
            access, at = Access([f for d in target for f in d], [f for d in dims for f in d]), 0
            for d, dim in enumerate(dims):
                if d != along:
                    self.same(access, target[d], places[d], dim, at)
                elif move is Move.REPEAT:
                    skipped = len(target[d]) - len(dim)
                    self.same(access, target[d][skipped:], places[d] + skipped, dim, at)
                else:
                    place = self.flat("d", target[d], places[d])
                    access.equations.append((f"{place} - ({self.flat('i', dim, at)})", offset))
                at += len(dim)
            accesses.append(access)
        if move is Move.UPDATE:
            self.equate(self.total(target[along]), self.total(source[along]))
        return target, accesses

    def cut(self, factors: Sequence[Affine], shape: Shape) -> list[Dim]:
        """The dimensions of a reshape, from the last: factors where they fit, or numbers cut off from them."""
        left, dims = list(factors), list[Dim]()
        for extent in reversed(shape):
            dim: Dim = []
            while extent > 1:
                factor = left.pop()
                size = self.value(factor)
                if extent % size == 0:
                    dim.insert(0, factor)
                    extent //= size
                elif size % extent == 0:
                    outer = self.new(size // extent)
                    self.equate(factor, outer.times(extent))
                    self.positive.append(outer)
                    left.append(outer)
                    dim.insert(0, Affine(extent))
                    extent = 1
                else:
                    self.fix(factors)
                    return [[Affine(e)] if e > 1 else [] for e in shape]
            if not dim and left and self.value(left[-1]) == 1:
                dim = [left.pop()]
            dims.insert(0, dim)
        return [[*left, *dims[0]], *dims[1:]] if dims else dims

    # --- texts

    def parameters(self) -> list[int]:
        """The unknowns that are left."""
        return [u for u in range(len(self.actual)) if u not in self.known]

    def text(self, x: Affine) -> str:
        """As isl reads it."""
        x = self.resolved(x)
        return " + ".join([str(x.constant), *(f"{c}*p{u}" for u, c in x.terms)])

    def prefix(self) -> str:
        """What declares the parameters."""
        return f"[{', '.join(f'p{u}' for u in self.parameters())}] -> "

    def legal(self) -> str:
        """The parameters of programs: extents are positive, paddings not negative."""
        kept = {f"{self.text(x)} >= 1" for x in self.positive if self.resolved(x).terms}
        return f"{self.prefix()}{{ : {' and '.join(sorted(kept)) or 'true'} }}"

    def free(self) -> dict[Affine, str]:
        """Dimensions of inputs that are no numbers, tied ones together: `in0.1 = in1.0`, `in0.2 = 2n1 - 4`."""
        groups: dict[Affine, list[str]] = {}
        for number, dims in enumerate(self.inputs):
            for d, dim in enumerate(dims):
                if dim and (size := self.resolved(dim[0])).terms:
                    groups.setdefault(size, []).append(f"in{number}.{d}")
        names = {
            x.terms[0][0]: found[0] for x, found in groups.items() if x == Affine(0, ((x.terms[0][0], 1),))
        }
        for x in groups:
            for u, _ in x.terms:
                names.setdefault(u, f"n{sum(n[0] == 'n' for n in names.values()) + 1}")
        return {
            x: " = ".join(found if names[x.terms[0][0]] == found[0] else [*found, _spoken(x, names)])
            for x, found in groups.items()
        }


def spelled(read: Read, x: Linear) -> str:
    """A linear expression of a read as isl reads it."""

    def name(d: int) -> str:
        if d < read.rank:
            return f"d{d}"
        floor = read.floors[d - read.rank]
        return f"floor(({spelled(read, floor.of)})/{floor.divisor})"

    return " + ".join([str(x.constant), *(f"{c}*{name(d)}" for d, c in x.terms)])


def spelled_guard(read: Read) -> str:
    """The guard of a read as isl reads it."""
    cases = (
        " and ".join(["true", *(f"{spelled(read, c.of)} {'=' if c.equal else '>='} 0" for c in every)])
        for every in read.guard
    )
    return " or ".join(f"({case})" for case in cases) or "false"


def _spoken(x: Affine, names: Mapping[int, str]) -> str:
    said = ""
    for name, c in [*((names[u], c) for u, c in x.terms), *([("", x.constant)] if x.constant else [])]:
        sign = ("-" if c < 0 else "") if not said else " - " if c < 0 else " + "
        said += f"{sign}{abs(c) if abs(c) != 1 or not name else ''}{name}"
    return said


def _is_whole(index: Index, extent: int, extents: Sequence[int]) -> bool:
    """Whether it reads each element of a dimension at one point of another, in order."""
    plain = (index.stride, index.offset, index.atoms, index.divisor) == (1, 0, (), 1)
    return plain and index.dim is not None and extents[index.dim] == extent


def _places(dims: Sequence[Dim]) -> list[list[int]]:
    """The numbers of the factors of each dimension."""
    ends = [sum(map(len, dims[:d])) for d in range(len(dims) + 1)]
    return [list(range(a, b)) for a, b in itertools.pairwise(ends)]
