"""A kernel graph as a program over named axes, where views, casts and repeats have vanished.

Every dimension gets an axis; operators unify axes (`a + b` those of equal dimensions, `matmul` the contracted
ones), and `reshape`, `repeat`, `broadcast`, `transpose` merely split or reorder lists of axes. Each use of an
input starts as a role with axes of its own; roles of one input merge where no tensor gets an axis twice, so that
`X / sqrt(mean(X * X))` reads one X. Operators become additions, multiplications, divisions, reductions and
contractions over axes, and uninterpreted functions for everything else (docs/search.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.errors import SuperoptError
from superopt.operators import OPERATORS, Scalar, normalize_attrs
from superopt.program import Attr, KernelGraph, Node, Value
from superopt.transforms.mugraph_search.roles import separated

LINEAR = frozenset({"add", "sub", "mul", "div", "neg"})
# Operators that only move or retype elements: they become lists of axes.
VIEWS = frozenset({"reshape", "repeat", "broadcast", "transpose", "cast"})
# A reduced axis as long as this may be looped over: one tile of it, then the next.
LOOP_EXTENT = 128


class Unsearchable(SuperoptError):
    """A program, or a node of it, that cannot be told over named axes."""


class AxisTable:
    """Axes that can be found equal, and split into outer and inner parts."""

    def __init__(self) -> None:
        self._extents: list[int] = []
        self._links: list[int] = []
        self._parts: list[tuple[int, ...]] = []

    def new(self, extent: int) -> int:
        """A fresh axis."""
        self._extents.append(extent)
        self._links.append(len(self._links))
        self._parts.append(())
        return len(self._links) - 1

    def extent(self, axis: int) -> int:
        """Extent of an axis, in elements."""
        return self._extents[axis]

    def leaves(self, axes: Sequence[int]) -> list[int]:
        """What the axes are made of, outermost first, after all that is known."""
        out: list[int] = []
        for axis in axes:
            while self._links[axis] != axis:
                axis = self._links[axis]
            parts = self._parts[axis]
            out += self.leaves(parts) if parts else [axis]
        return out

    def split(self, axis: int, outer: int) -> None:
        """Make `axis` an outer axis of extent `outer` and an inner one; raises where it does not divide."""
        if self._extents[axis] % outer:
            raise Unsearchable(f"expected {outer} to divide an axis of extent {self._extents[axis]}")
        self._parts[axis] = (self.new(outer), self.new(self._extents[axis] // outer))

    def unify(self, a: Sequence[int], b: Sequence[int]) -> None:
        """Find two lists of axes equal, splitting where their extents differ."""
        while True:
            xs, ys = self.leaves(a), self.leaves(b)
            pair = next(((x, y) for x, y in zip(xs, ys, strict=False) if x != y), None)
            if pair is None:
                if len(xs) != len(ys):
                    raise Unsearchable("expected dimensions of one extent")
                return
            x, y = pair
            if self._extents[x] == self._extents[y]:
                self._links[y] = x
            elif self._extents[x] > self._extents[y]:
                self.split(x, self._extents[y])
            else:
                self.split(y, self._extents[x])

    def regroup(self, axes: Sequence[int], shape: Sequence[int]) -> list[list[int]]:
        """The axes as the dimensions of another row-major shape."""
        out: list[list[int]] = []
        rest = self.leaves(axes)
        for extent in shape:
            dim: list[int] = []
            got = 1
            while got < extent:
                axis = rest[0]
                wanted = extent // got
                if self._extents[axis] > wanted or extent % got:
                    self.split(axis, wanted)
                    rest = [*self.leaves([axis]), *rest[1:]]
                    continue
                got *= self._extents[axis]
                dim.append(rest.pop(0))
            if got != extent:
                raise Unsearchable(f"expected a reshape that splits or merges axes, got dimension {extent}")
            out.append(dim)
        return out

    def snapshot(self) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
        """The state, for `restore`."""
        return list(self._extents), list(self._links), list(self._parts)

    def restore(self, state: tuple[list[int], list[int], list[tuple[int, ...]]]) -> None:
        """Back to an earlier state."""
        self._extents, self._links, self._parts = (list(part) for part in state)  # type: ignore[assignment]


Dims = list[list[int]]


@dataclass(frozen=True)
class Role:
    """One use (or several merged ones) of a graph input: per dimension its axes, outermost first."""

    source: Value
    dims: tuple[tuple[int, ...], ...]

    @property
    def axes(self) -> tuple[int, ...]:
        """Every axis, in the order of the dimensions."""
        return tuple(a for dim in self.dims for a in dim)


@dataclass(frozen=True)
class Function:
    """An operator that the search does not look into, with its attributes."""

    op: str
    attrs: tuple[tuple[str, Attr], ...] = ()
    over: tuple[int, ...] = ()
    """Of an exponential taken relative to a maximum: the axes that the maximum does not vary along."""
    group: int = 0
    """Tells such exponentials of one program apart."""
    along: tuple[int, ...] = ()
    """The axes that the maximum does vary along."""

    @property
    def reduction(self) -> bool:
        """Whether it reduces axes (maximum, minimum)."""
        return OPERATORS[self.op].combiner is not None

    @property
    def commutative(self) -> bool:
        """Whether it is a maximum or minimum of two operands."""
        return self.op in ("max", "min")

    @property
    def flops(self) -> int:
        """Scalar operations an element."""
        body = OPERATORS[self.op].body
        own = len(body(dict(self.attrs)).primitives()) if body else 0
        return own + (2 if self.over else 0)  # the maximum, and the difference to it


@dataclass(frozen=True)
class Operation:
    """`op` of the native search on earlier operations, roles or constants (by number)."""

    op: str
    args: tuple[int, ...]
    function: int = 0
    reduced: tuple[int, ...] = ()
    aside: bool = False
    """The program's own way to a value that the search reaches otherwise: used as it stands, or not at all."""
    same: int | None = None
    """The earlier operation that this one, aside, computes in another way."""


@dataclass
class AxisProgram:
    """The program over named axes. Numbers of operands: roles first, then constants, then operations."""

    graph: KernelGraph
    extents: list[int]
    roles: list[Role]
    constants: list[float]
    functions: list[Function]
    operations: list[Operation]
    outputs: list[int]
    output_dims: list[tuple[tuple[int, ...], ...]]
    reduced_sets: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    dot_dtype: str | None = None
    """Widest dtype of the operands of the program's matrix products; None where there are none."""
    copies: int = 0
    """Nodes that `graph` has more than the program, for intermediates in two roles."""

    @property
    def looped(self) -> set[int]:
        """Axes that a kernel may loop over: long reduced ones, and the outermost of long reduced groups."""
        found: set[int] = set()
        for axes in self.reduced_sets:
            found |= {a for a in axes if self.extents[a] >= LOOP_EXTENT}
            if math.prod(self.extents[a] for a in axes) >= LOOP_EXTENT and not found & set(axes):
                found.add(axes[0])
        return found


def searchable(node: Node) -> bool:
    """Whether the node, taken by itself, can be told over named axes."""
    if node.op in ("custom", "tiled", "extern", "update_slice") or node.op not in OPERATORS:
        return False
    if node.op == "slice":
        strides = node.attrs["strides"]
        return isinstance(strides, tuple) and all(s == 1 for s in strides)
    entry = OPERATORS[node.op]
    if node.op == "constant":
        return not isinstance(node.attrs["value"], np.ndarray)
    if entry.elementwise:
        body = entry.body
        assert body is not None
        attrs = normalize_attrs(entry, node.attrs)
        return len(node.operands) == 1 or _linear(body(attrs)) or node.op in ("max", "min")
    return True


def _linear(body: Scalar) -> bool:
    return set(body.primitives()) <= LINEAR


def name_axes(graph: KernelGraph) -> AxisProgram:
    """Tell `graph` over named axes; raises Unsearchable, with the node's location, where that cannot be done."""
    namer = _Namer(graph)
    namer.name()
    if not namer.distinct():
        apart = separated(graph, _first_conflict)
        if apart is None:
            raise Unsearchable("expected a program in which no tensor has one axis twice", graph.location)
        namer = _Namer(apart)
        namer.name()
    program = namer.run()
    program.copies = len(namer.graph.nodes) - len(graph.nodes)
    return program


def _first_conflict(graph: KernelGraph) -> int | None:
    """The first node with which some tensor has one axis twice."""
    namer = _Namer(graph)
    return next((i for i in namer.named() if not namer.distinct()), None)


class _Namer:
    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.table = AxisTable()
        self.dims: dict[Value, Dims] = {}
        self.uses: list[tuple[Value, Dims]] = []  # roles before they merge
        self.role_of: dict[tuple[int, int], int] = {}  # (node, operand) -> use
        self.reduced: dict[int, list[int]] = {}  # node -> axes

    def name(self) -> None:
        """Give axes to every value."""
        for _ in self.named():
            pass

    def run(self) -> AxisProgram:
        """The program, once every value has axes."""
        if not self.graph.outputs:
            raise Unsearchable("expected a program with outputs, got none", self.graph.location)
        producers = {v for n in self.graph.nodes for v in n.results}
        for value in self.graph.outputs:
            if value not in producers:
                raise Unsearchable("expected every output to be computed, got an input", self.graph.location)
        return self._lower(self._merge_roles())

    def named(self) -> Iterator[int]:
        """Give axes to the results of one node after another."""
        producers = {v for n in self.graph.nodes for v in n.results}
        for index, node in enumerate(self.graph.nodes):
            if not searchable(node):
                raise Unsearchable(
                    f"expected an operator that a block can compute, got '{node.op}'", node.location
                )
            dims: list[Dims] = []
            for position, operand in enumerate(node.operands):
                if operand in producers:
                    dims.append(self.dims[operand])
                else:
                    self.role_of[index, position] = len(self.uses)
                    self.uses.append((operand, self._fresh(operand.shape)))
                    dims.append(self.uses[-1][1])
            try:
                self.dims[node.result] = self._infer(index, node, dims)
            except Unsearchable as error:
                raise Unsearchable(error.message, node.location) from None
            yield index

    def _fresh(self, shape: Sequence[int]) -> Dims:
        return [[self.table.new(e)] if e != 1 else [] for e in shape]

    def _infer(self, index: int, node: Node, dims: list[Dims]) -> Dims:
        entry = OPERATORS[node.op]
        attrs = normalize_attrs(entry, node.attrs)
        if node.op == "constant":
            return self._fresh(node.result.shape)
        if node.op == "cast":
            return dims[0]
        if node.op == "reshape":
            return self.table.regroup([a for dim in dims[0] for a in dim], node.result.shape)
        if node.op == "repeat":
            dim, times = attrs["dim"], attrs["times"]
            assert isinstance(dim, int)
            assert isinstance(times, int)
            out = [list(d) for d in dims[0]]
            if times > 1:
                out[dim] = [self.table.new(times), *out[dim]]
            return out
        assert entry.nest is not None
        nest = entry.nest([v.shape for v in node.operands], attrs)
        # One list of axes for each dimension of the iteration space, from the operands that run over it.
        space: list[list[int]] = [[] for _ in nest.extents]
        for operand, maps in zip(dims, nest.operands, strict=True):
            for dim, place in zip(operand, maps, strict=True):
                if place.dim is None or nest.extents[place.dim] == 1:
                    continue
                if space[place.dim]:
                    self.table.unify(space[place.dim], dim)
                else:
                    space[place.dim] = dim
        for i, extent in enumerate(nest.extents):
            if not space[i] and extent != 1:
                space[i] = [self.table.new(extent)]
        if nest.reductions:
            self.reduced[index] = [a for d in nest.reductions for a in space[d]]
        return [space[d] if d is not None else [] for d in nest.result]

    def _tensors(self) -> Iterator[list[int]]:
        for dims in [*self.dims.values(), *(d for _, d in self.uses)]:
            yield self.table.leaves([a for dim in dims for a in dim])

    def distinct(self) -> bool:
        """Whether no tensor has an axis twice."""
        return all(len(set(t)) == len(t) for t in self._tensors()) and all(
            self._contraction_is_sound(i) for i, n in enumerate(self.graph.nodes) if n.result in self.dims
        )

    def _contraction_is_sound(self, index: int) -> bool:
        # The rows of one operand of a product must not be found equal to columns of the other.
        node = self.graph.nodes[index]
        if node.op != "matmul":
            return True
        free = self.table.leaves([a for dim in self.dims[node.result] for a in dim])
        return not set(free) & set(self.table.leaves(self.reduced.get(index, [])))

    def _merge_roles(self) -> list[int]:
        """Which use each use has become; the table changes with every merge."""
        merged = list(range(len(self.uses)))
        for j, (source, dims) in enumerate(self.uses):
            for i in range(j):
                if merged[i] != i or self.uses[i][0] is not source:
                    continue
                state = self.table.snapshot()
                try:
                    for a, b in zip(self.uses[i][1], dims, strict=True):
                        self.table.unify(a, b)
                    good = self.distinct()
                except Unsearchable:
                    good = False
                if good:
                    merged[j] = i
                    break
                self.table.restore(state)
        # Roles of one input that stay apart must cut its dimensions alike, to hold the same elements.
        for j, (source, dims) in enumerate(self.uses):
            for i in range(j):
                if self.uses[i][0] is source and merged[j] == j and merged[i] == i:
                    for a, b in zip(self.uses[i][1], dims, strict=True):
                        self._cut_alike(a, b)
        return merged

    def _cut_alike(self, a: Sequence[int], b: Sequence[int]) -> None:
        xs, ys = self.table.leaves(a), self.table.leaves(b)
        if [self.table.extent(x) for x in xs] == [self.table.extent(y) for y in ys]:
            return
        self.table.regroup(a, [self.table.extent(y) for y in ys])
        self.table.regroup(b, [self.table.extent(x) for x in self.table.leaves(a)])

    def _lower(self, merged: list[int]) -> AxisProgram:
        numbers: dict[int, int] = {}

        def number(axes: Sequence[int]) -> tuple[int, ...]:
            return tuple(numbers.setdefault(a, len(numbers)) for a in self.table.leaves(axes))

        output_dims = [tuple(map(number, self.dims[v])) for v in self.graph.outputs]
        kept = [i for i, to in enumerate(merged) if to == i]
        roles = [Role(self.uses[i][0], tuple(map(number, self.uses[i][1]))) for i in kept]
        role_number = {i: kept.index(merged[i]) for i in range(len(self.uses))}
        reduced = {k: number(v) for k, v in self.reduced.items()}
        extents = [self.table.extent(axis) for axis in numbers]
        body = _Body(self.graph, roles, role_number, self.role_of, reduced, extents.__getitem__)
        body.run()
        products = [n for n in self.graph.nodes if n.op == "matmul"]
        order = ["f16", "bf16", "f32"]
        dtypes = sorted({v.dtype for n in products for v in n.operands}, key=order.index)
        return AxisProgram(
            self.graph,
            extents,
            roles,
            body.constants,
            body.functions,
            body.finished(),
            [body.final(body.refs[v]) for v in self.graph.outputs],
            output_dims,
            [r for r in dict.fromkeys(reduced for *_, reduced in body.operations) if r],
            dtypes[-1] if dtypes else None,
        )


# An operand before all constants are known: "role", "constant" or "operation", and its number among those.
Ref = tuple[str, int]


class _Body:
    """Turns nodes into operations."""

    def __init__(
        self,
        graph: KernelGraph,
        roles: Sequence[Role],
        role_number: dict[int, int],
        role_of: dict[tuple[int, int], int],
        reduced: dict[int, tuple[int, ...]],
        extent: Callable[[int], int],
    ) -> None:
        self.graph, self.roles, self.role_number, self.role_of = graph, roles, role_number, role_of
        self.reduced, self.extent = reduced, extent
        self.constants: list[float] = []
        self.functions: list[Function] = []
        self.operations: list[tuple[str, tuple[Ref, ...], int, tuple[int, ...]]] = []
        self.refs: dict[Value, Ref] = {}
        self.depends: dict[Ref, frozenset[int]] = {}

    def run(self) -> None:
        for index, node in enumerate(self.graph.nodes):
            args: list[Ref] = []
            for position, operand in enumerate(node.operands):
                use = self.role_of.get((index, position))
                args.append(self.refs[operand] if use is None else ("role", self.role_number[use]))
            self.refs[node.result] = self._node(index, node, args)

    def final(self, ref: Ref) -> int:
        """The number of an operand, once nothing is added any more."""
        kind, number = ref
        base = {"role": 0, "constant": len(self.roles), "operation": len(self.roles) + len(self.constants)}
        return base[kind] + number

    def finished(self) -> list[Operation]:
        """The operations with final operand numbers."""
        return [Operation(o, tuple(map(self.final, args)), f, r) for o, args, f, r in self.operations]

    def _axes_of(self, ref: Ref) -> frozenset[int]:
        if ref[0] == "role":
            return frozenset(self.roles[ref[1]].axes)
        return self.depends.get(ref, frozenset())

    def _emit(self, op: str, args: tuple[Ref, ...], function: int = 0, reduced: tuple[int, ...] = ()) -> Ref:
        operation = (op, args, function, reduced)
        if operation in self.operations:
            return ("operation", self.operations.index(operation))
        self.operations.append(operation)
        ref = ("operation", len(self.operations) - 1)
        self.depends[ref] = frozenset[int]().union(*map(self._axes_of, args)) - set(reduced)
        return ref

    def _constant(self, value: float) -> Ref:
        if value not in self.constants:
            self.constants.append(value)
        return ("constant", self.constants.index(value))

    def _function(self, op: str, attrs: dict[str, Attr]) -> int:
        function = Function(op, tuple(sorted(attrs.items())))
        if function not in self.functions:
            self.functions.append(function)
        return self.functions.index(function)

    def _node(self, index: int, node: Node, args: list[Ref]) -> Ref:
        entry = OPERATORS[node.op]
        attrs = normalize_attrs(entry, node.attrs)
        if node.op in VIEWS:
            return args[0]
        if node.op == "constant":
            value = attrs["value"]
            assert isinstance(value, int | float)
            return self._constant(float(value))
        assert entry.body is not None
        reduced = self.reduced.get(index, ())
        if entry.combiner is None:
            body = entry.body(attrs)
            if _linear(body):
                return self._scalar(body, args)
            kind = "unary" if len(args) == 1 else "binary"
            return self._emit(kind, tuple(args), self._function(node.op, attrs))
        if entry.combiner == "add":
            result = self._summed(args, reduced)
        else:  # repeated elements change no maximum
            present = tuple(a for a in reduced if a in self._axes_of(args[0]))
            function = self._function(node.op, {})
            result = self._emit("reduce", tuple(args), function, present) if present else args[0]
        if entry.finish is not None:
            dims = attrs["dims"]
            assert isinstance(dims, tuple)
            result = self._scalar(entry.finish(math.prod(node.operands[0].shape[d] for d in dims)), [result])
        return result

    def _summed(self, args: Sequence[Ref], reduced: Sequence[int]) -> Ref:
        """The product of one or two operands, summed over axes; a sum over axes that an operand does not vary
        along leaves it alone, and one along which none varies is a factor.

            sum_k a_mk b_n = (sum_k a_mk) b_n            sum_k a_m = K a_m
        """
        varying = [self._axes_of(arg) for arg in args]
        shared = tuple(a for a in reduced if all(a in v for v in varying))
        parts: list[Ref] = []
        for arg, axes in zip(args, varying, strict=True):
            alone = tuple(a for a in reduced if a in axes and a not in shared)
            parts.append(self._emit("sum", (arg,), 0, alone) if alone else arg)
        if shared:
            result = self._emit("contract" if len(parts) == 2 else "sum", tuple(parts), 0, shared)
        else:
            result = self._emit("mul", tuple(parts)) if len(parts) == 2 else parts[0]
        times = math.prod(self.extent(a) for a in reduced if not any(a in v for v in varying))
        return result if times == 1 else self._emit("mul", (self._constant(float(times)), result))

    def _scalar(self, body: Scalar, args: Sequence[Ref]) -> Ref:
        if body.head == "arg":
            return args[int(body.payload)]
        if body.head == "const":
            return self._constant(float(body.payload))
        below = tuple(self._scalar(a, args) for a in body.args)
        if body.head in ("neg", "sub"):
            minus_one = self._constant(-1.0)
            if body.head == "neg":
                return self._emit("mul", (minus_one, below[0]))
        return self._emit(body.head, below)
