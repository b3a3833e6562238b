"""A plan of the native search as a kernel graph with `custom` nodes.

A kernel's leaves become iterators (imap: grid axes, fmap: the loop axis), its steps block operators, sums over a
loop factor accumulators, its outputs savers. Inputs whose dimensions contain several axes are read through
a row-major reshape, which moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt.computed import narrowed
from superopt.operators import Move, move_of
from superopt.program import COMPUTE_DTYPES, Attr, BlockGraph, KernelGraph, Node, NodeKind, TensorType, Value
from superopt.transforms.mugraph_search.axis_builder import Builder, Named, NotBuildable, Piece
from superopt.transforms.mugraph_search.steps import (
    REST_PIECE,
    SPLIT_PIECE,
    WHOLE_PIECE,
    BlockSteps,
    Factors,
    Steps,
)
from superopt.transforms.named_axes.axis_program import AxisProgram

if TYPE_CHECKING:
    from superopt.transforms.core._search import Kernel, Plan, Result


def build(
    program: AxisProgram, factors: Sequence[tuple[int, int]], result: Result, plan: Plan
) -> KernelGraph:
    """The kernel graph of `plan`; `factors` gives each factor's axis and level, `result` the table of values.

    Raises NotBuildable where the block level lacks an operator for it.
    """
    return _PlanBuilder(program, factors, result, plan).run()


class _PlanBuilder:
    def __init__(
        self, program: AxisProgram, factors: Sequence[tuple[int, int]], result: Result, plan: Plan
    ) -> None:
        self.program, self.factors, self.result, self.plan = program, factors, result, plan
        self.steps = Steps(program, result)
        self.inputs = {v: Value(v.type, v.name) for v in program.graph.inputs}
        self.nodes = [narrowed(n, program.dot_dtype) for n in program.bands]
        self.inputs |= {n.result: own.result for n, own in zip(program.bands, self.nodes, strict=True)}
        self.stored: dict[int, Named] = {}  # values in device memory
        self.maxima: dict[int, dict[int, Named]] = {}  # of stored values, by function
        self.views: dict[tuple[int, tuple[Piece | None, ...]], Named] = {}
        self.output_values: dict[int, list[int]] = {}
        self.multiplied = _multiplied(plan)

    def run(self) -> KernelGraph:
        graph = self.program.graph
        captured = [v for v in {r.source for r in self.program.roles} if v not in self.inputs]
        if captured:
            raise NotBuildable("expected every leaf to be an input of the graph", graph.location)
        for position, number in enumerate(self.result.outputs):
            self.output_values.setdefault(number, []).append(position)
        for kernel in self.plan.kernels:
            if kernel.custom:
                self._custom(kernel)
            else:
                self._library(kernel)
        outputs = [self._output(i, number) for i, number in enumerate(self.result.outputs)]
        return KernelGraph(
            graph.name,
            [self.inputs[v] for v in graph.inputs],
            self.nodes,
            outputs,
            graph.location,
            graph.aliases,
            graph.weights,
        )

    # --- device memory ------------------------------------------------------------------------------------

    def _leaf(self, number: int, factors: Factors) -> Named:
        """A stored value, viewed with one dimension for each piece of an axis in the kernel."""
        info = self.result.values[number]
        whole = factors.whole()
        if info.leaf == "input":
            role = self.program.roles[info.symbol]
            source = self.inputs[role.source]
            return self._viewed(source, [self._cut(dim, factors) for dim in role.dims], whole)
        return self._stored(self.stored[number], factors)

    def _stored(self, named: Named, factors: Factors) -> Named:
        flat = [p for p in named.dims if p is not None]
        dims = [[p] for p in self._regrouped(flat, factors)]
        if [d[0] for d in dims] == flat:
            dims = [[] if d is None else [d] for d in named.dims]
        return self._viewed(named.value, dims, factors.whole())

    def _viewed(self, source: Value, dims: Sequence[Sequence[Piece]], whole: dict[Piece, int]) -> Named:
        """`source` with a dimension for each piece in `dims`."""
        wanted: list[Piece | None] = []
        for dim in dims:
            wanted += dim or [None]
        if source.shape == tuple(1 if p is None else whole[p] for p in wanted):
            return Named(source, tuple(wanted))
        wanted = [d for d in wanted if d is not None]
        key = (id(source), tuple(wanted))
        if key not in self.views:
            shape = tuple(whole[p] for p in wanted if p is not None)
            node = Node(
                "reshape", (source,), (Value(TensorType(shape, source.dtype), source.name),), {"shape": shape}
            )
            self.nodes.append(node)
            self.views[key] = Named(node.result, tuple(wanted))
        return self.views[key]

    def _cut(self, axes: Sequence[int], factors: Factors) -> list[Piece]:
        out: list[Piece] = []
        for axis in axes:
            out += (
                [(axis, SPLIT_PIECE), (axis, REST_PIECE)] if axis in factors.apart else [(axis, WHOLE_PIECE)]
            )
        return out

    def _regrouped(self, pieces: Sequence[Piece], factors: Factors) -> list[Piece]:
        """Pieces of a stored value, regrouped as in `factors`; split and rest of an axis must be adjacent."""
        atoms: list[Piece] = []
        for axis, part in pieces:
            if part == WHOLE_PIECE and axis in factors.apart:
                atoms += [(axis, SPLIT_PIECE), (axis, REST_PIECE)]
            else:
                atoms.append((axis, part))
        out: list[Piece] = []
        for axis, part in atoms:
            if axis in factors.apart or part == WHOLE_PIECE:
                out.append((axis, part))
            elif part == REST_PIECE:
                if not out or out[-1] != (axis, SPLIT_PIECE):
                    raise NotBuildable("expected the parts of a split axis next to each other")
                out[-1] = (axis, WHOLE_PIECE)
            else:
                out.append((axis, part))
        return out

    def _output(self, position: int, number: int) -> Value:
        """Output `position` in the shape and dtype of the program, from the value that holds it."""
        wanted = self.program.graph.outputs[position]
        info = self.result.values[number]
        if info.leaf:
            raise NotBuildable("expected an output that is computed, got an input or a constant")
        named = self.stored[number]
        axes = [a for dim in self.program.output_dims[position] for a in dim]
        order = [p for a in axes for p in named.pieces if p[0] == a]
        full: dict[Piece, int] = {(a, WHOLE_PIECE): e for a, e in enumerate(self.program.extents)}
        builder = Builder(self.nodes, full, None)
        named = builder.arrange(builder.cast(named, wanted.dtype), order)
        value = named.value
        have = {p[0] for p in named.pieces}
        if have != set(axes):  # the value does not depend on some of them
            shape = tuple(self.program.extents[a] if a in have else 1 for a in axes)
            if value.shape != shape:
                value = builder.op("reshape", (value,), wanted.name, shape=shape)
            repeated = tuple(self.program.extents[a] for a in axes)
            value = builder.op("broadcast", (value,), wanted.name, shape=repeated)
        if value.shape != wanted.shape:
            value = builder.op("reshape", (value,), wanted.name, shape=wanted.shape)
        return value

    # --- kernels ------------------------------------------------------------------------------------------

    def _library(self, kernel: Kernel) -> None:
        factors = Factors(self.factors, kernel, self.program.extents)
        (step,) = kernel.steps
        builder = Builder(self.nodes, factors.whole(), self.program.dot_dtype)
        args = {leaf: self._leaf(leaf, factors) for leaf in kernel.leaves}
        self.stored[step.value] = self.steps.step(step, args, builder, factors)

    def _custom(self, kernel: Kernel) -> None:
        factors = Factors(self.factors, kernel, self.program.extents)
        whole, tile = factors.whole(), factors.extents(self._tile_extents(kernel))
        looped = [factors.piece(f) for f in kernel.loops]
        loops = tuple(kernel.full[f] for f in kernel.loops)
        # Grid dimensions: axes that are whole in device memory, tiled in a block and not looped; x is the
        # innermost.
        # One dimension may cut another axis of each output.
        shared = [tuple(map(factors.piece, axes)) for axes in kernel.shared]
        alone = {p for p in whole if p not in looped}.difference(*shared)
        grid_pieces = [g for g in [*((p,) for p in alone), *shared] if any(whole[p] > tile[p] for p in g)]
        grid_pieces.sort(reverse=True)
        grid = tuple(max(-(-whole[p] // tile[p]) for p in g) for g in grid_pieces) or (1,)

        def maps(dims: Sequence[Piece | None]) -> tuple[int, ...]:
            found = tuple(
                next((d for d, p in enumerate(dims) if p is not None and p in g), -1) for g in grid_pieces
            )
            return found or (-1,) * len(grid)

        nodes: list[Node] = []
        builder = Builder(nodes, tile, self.program.dot_dtype)
        operands: list[Value] = []
        inside: list[Value] = []
        args: dict[int, Named] = {}

        def loaded(outer: Named) -> Named:
            inner = Value(outer.value.type, outer.value.name)
            operands.append(outer.value)
            inside.append(inner)
            shape = tuple(1 if d is None else tile[d] for d in outer.dims)
            name = f"{outer.value.name}_tile" if outer.value.name else "tile"
            tile_value = Value(TensorType(shape, outer.value.dtype), name)
            attrs: dict[str, Attr] = {
                "imap": maps(outer.dims),
                "fmap": tuple(outer.dims.index(p) if p in outer.dims else -1 for p in looped),
            }
            nodes.append(Node(NodeKind.ITERATOR, (inner,), (tile_value,), attrs))
            made = Named(tile_value, outer.dims)
            return made if tile_value.dtype in COMPUTE_DTYPES else builder.cast(made, "f32")

        for leaf in kernel.leaves:
            args[leaf] = loaded(self._leaf(leaf, factors))
        maxima = {m.value: m for leaf in kernel.leaves for m in self.maxima.get(leaf, {}).values()}
        tops = {value: loaded(self._stored(m, factors)) for value, m in maxima.items()}
        products = any(step.op == "contract" for step in kernel.steps)
        if products and any(len(x.dims) > 2 for x in args.values()):
            args = {leaf: self._squeezed(x, builder) for leaf, x in args.items()}
            tops = {value: self._squeezed(x, builder) for value, x in tops.items()}
        block = BlockSteps(self.steps, kernel, builder, factors)
        block.load(args, {leaf: self.maxima[leaf] for leaf in kernel.leaves if leaf in self.maxima}, tops)
        for step in kernel.steps:
            block.step(step)
        results: list[Value] = []

        def stored(saved: Named, name: str) -> Named:
            nodes.append(Node(NodeKind.SAVE, (saved.value,), (), {"omap": maps(saved.dims)}))
            shape = tuple(1 if d is None else whole[d] for d in saved.dims)
            results.append(Value(TensorType(shape, saved.value.dtype), name))
            return Named(results[-1], saved.dims)

        beside: dict[int, Named] = {}  # each maximum is saved once
        for number in kernel.outputs:
            saved = self._saved(number, block.args[number], builder, factors)
            if number in self.multiplied and number not in self.output_values and number not in block.shifts:
                saved = builder.dot_operand(saved)
            name = next(
                (self.program.graph.outputs[i].name for i in self.output_values.get(number, ())), "partial"
            )
            self.stored[number] = stored(saved, name)
            for function, shift in block.shifts.get(number, {}).items():
                if id(shift) not in beside:
                    top = builder.cast(block.rescaler.named(shift), "f32")  # rounding would change m
                    lost = [p for p in block.maximum_pieces(number, function) if p not in top.pieces]
                    beside[id(shift)] = stored(self._with(top, lost, builder), "maximum")
                self.maxima.setdefault(number, {})[function] = beside[id(shift)]
        body = BlockGraph(grid, loops, inside, _iterators_first_used(nodes))
        self.nodes.append(
            Node(NodeKind.CUSTOM, tuple(operands), tuple(results), {}, self.program.graph.location, body)
        )

    def _tile_extents(self, kernel: Kernel) -> list[int]:
        return [1 if f in kernel.loops else kernel.tile[f] for f in range(len(self.factors))]

    def _squeezed(self, x: Named, builder: Builder) -> Named:
        """`x` without axes of which a block holds one element, which makes matrix products plain."""
        return builder.reshape(x, tuple(d for d in x.dims if d is None or builder.extent(d) != 1))

    def _with(self, x: Named, lost: Sequence[Piece], builder: Builder) -> Named:
        """`x` with axes of which a block holds one element, and with the parts of each split axis adjacent, as
        another kernel may read it whole."""
        order = list(lost) + list(x.pieces)
        for axis, part in list(order):
            if part == SPLIT_PIECE and (axis, REST_PIECE) in order:
                order.remove((axis, part))
                order.insert(order.index((axis, REST_PIECE)), (axis, part))
        x = builder.arrange(x, [p for p in order if p not in lost])
        return builder.reshape(x, order) if lost else x

    def _saved(self, number: int, x: Named, builder: Builder, factors: Factors) -> Named:
        """`x` as saved: with every axis of the value, as the grid may cut it; an output of the program gets its
        own order and dtype."""
        pieces = factors.pieces(self.result.values[number].factors)
        lost = [p for p in pieces if p not in x.pieces]
        positions = self.output_values.get(number)
        if not positions:
            return self._with(x, lost, builder)
        axes = [a for dim in self.program.output_dims[positions[0]] for a in dim]
        order = [p for a in axes for p in sorted(pieces) if p[0] == a]
        x = builder.cast(x, self.program.graph.outputs[positions[0]].dtype)
        x = builder.arrange(x, [p for p in order if p not in lost])
        return builder.reshape(x, order) if lost else x


def _multiplied(plan: Plan) -> set[int]:
    """Values that other kernels only multiply in matrix products, so that they are stored as these read them."""
    uses = [
        (leaf, step.op == "contract")
        for kernel in plan.kernels
        for step in kernel.steps
        for leaf in set(step.args) & set(kernel.leaves)
    ]
    return {leaf for leaf, _ in uses} - {leaf for leaf, product in uses if not product}


def _iterators_first_used(nodes: list[Node]) -> list[Node]:
    """The nodes with every iterator, and every reshape of one, just before its first use, as in hand-written
    code: tiles then live no longer than the search counts."""
    loads: dict[Value, Node] = {}
    out: list[Node] = []

    def use(value: Value) -> None:
        if (load := loads.pop(value, None)) is not None:
            if load.op != NodeKind.ITERATOR:
                use(load.operands[0])
            out.append(load)

    for node in nodes:
        if node.op == NodeKind.ITERATOR or (move_of(node) is Move.RESHAPE and node.operands[0] in loads):
            loads[node.result] = node
            continue
        for operand in node.operands:
            use(operand)
        out.append(node)
    return out
