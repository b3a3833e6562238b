"""A kernel graph as a program over named axes, where views, casts and repeats have vanished.

Every dimension gets an axis; operators unify axes (`a + b` those of equal dimensions, `matmul` the contracted
ones), and `reshape`, `repeat`, `broadcast`, `transpose` merely split or reorder lists of axes. Each use of an
input starts as a role with its own axes; roles of one input merge where no tensor gets an axis twice, so that
`X / sqrt(mean(X * X))` reads one X. `operations` then expresses the nodes over these axes (docs/search.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from superopt.operators import OPERATORS, Move, computed_of, is_contraction, normalize_attrs
from superopt.program import KernelGraph, Node, Value
from superopt.transforms.named_axes.axis_program import AxisProgram, Role
from superopt.transforms.named_axes.axis_table import AxisTable, Unsearchable
from superopt.transforms.named_axes.operations import Operations, searchable
from superopt.transforms.named_axes.roles import separated

Dims = list[list[int]]


def name_axes(graph: KernelGraph) -> AxisProgram:
    """Express `graph` over named axes; raises Unsearchable, with the node's location, where it cannot."""
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
        self.made = {v for n in graph.nodes if computed_of(n) is None for v in n.results}
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
        for value in self.graph.outputs:
            if value not in self.made:
                raise Unsearchable("expected every output to be computed, got an input", self.graph.location)
        return self._lower(self._merge_roles())

    def named(self) -> Iterator[int]:
        """Give axes to the results of one node after another."""
        for index, node in enumerate(self.graph.nodes):
            if computed_of(node) is not None:
                continue  # read as an input is
            if not searchable(node):
                raise Unsearchable(
                    f"expected an operator that a block can compute, got '{node.op}'", node.location
                )
            dims: list[Dims] = []
            for position, operand in enumerate(node.operands):
                if operand in self.made:
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
        if entry.constant:
            return self._fresh(node.result.shape)
        if entry.conversion:
            return dims[0]
        if entry.move is Move.RESHAPE:
            return self.table.regroup([a for dim in dims[0] for a in dim], node.result.shape)
        if entry.move is Move.REPEAT:
            dim, times = attrs["dim"], attrs["times"]
            assert isinstance(dim, int)
            assert isinstance(times, int)
            out = [list(d) for d in dims[0]]
            if times > 1:
                out[dim] = [self.table.new(times), *out[dim]]
            return out
        if entry.windowed:
            raise Unsearchable(f"expected whole dimensions, got the windows of '{node.op}'")
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
        # The rows of one operand of a product must not be unified with columns of the other.
        node = self.graph.nodes[index]
        if not is_contraction(node):
            return True
        free = self.table.leaves([a for dim in self.dims[node.result] for a in dim])
        return not set(free) & set(self.table.leaves(self.reduced.get(index, [])))

    def _merge_roles(self) -> list[int]:
        """For each use, the use that it merged into; every merge changes the table."""
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
        # Separate roles of one input must cut its dimensions in the same way, to hold the same elements.
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
        found = Operations(self.graph, roles, role_number, self.role_of, reduced, extents.__getitem__)
        found.run()
        products = [n for n in self.graph.nodes if is_contraction(n)]
        order = ["f16", "bf16", "f32"]
        dtypes = sorted({v.dtype for n in products for v in n.operands}, key=order.index)
        return AxisProgram(
            self.graph,
            extents,
            roles,
            found.constants,
            found.functions,
            found.finished(),
            [found.final(found.refs[v]) for v in self.graph.outputs],
            output_dims,
            [r for r in dict.fromkeys(reduced for *_, reduced in found.operations) if r],
            dtypes[-1] if dtypes else None,
        )
