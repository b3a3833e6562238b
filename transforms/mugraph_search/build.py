"""A plan of the native search as a kernel graph with `custom` nodes.

A kernel's leaves become iterators (imap: grid axes, fmap: the loop axis), its steps block operators, sums over a
loop factor accumulators, its outputs savers. Inputs whose dimensions hold several axes are read through a
row-major reshape, which moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt.operators import OPERATORS
from superopt.program import Attr, BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.transforms.mugraph_search.axes import AxisProgram
from superopt.transforms.mugraph_search.emit import Builder, Named, NotBuildable, Piece

if TYPE_CHECKING:
    from superopt.transforms.core._search import Kernel, Plan, Result, Step

SPLIT = 0  # the level of a factor that divides an axis between kernels
WHOLE_PIECE, SPLIT_PIECE, REST_PIECE = 0, 1, 2


def build(
    program: AxisProgram, factors: Sequence[tuple[int, int]], result: Result, plan: Plan
) -> KernelGraph:
    """The kernel graph of `plan`; `factors` gives each factor's axis and level, `result` the values' table.

    Raises NotBuildable where the block level has no operator for it.
    """
    return _PlanBuilder(program, factors, result, plan).run()


class _Factors:
    """Which piece of an axis a factor belongs to, in one kernel, and how long the pieces are."""

    def __init__(self, factors: Sequence[tuple[int, int]], kernel: Kernel) -> None:
        self.factors = factors
        self.kernel = kernel
        self.apart = {a for f, (a, level) in enumerate(factors) if level == SPLIT and kernel.full[f] > 1}

    def piece(self, factor: int) -> Piece:
        axis, level = self.factors[factor]
        if axis not in self.apart:
            return (axis, WHOLE_PIECE)
        return (axis, SPLIT_PIECE if level == SPLIT else REST_PIECE)

    def pieces(self, factors: Sequence[int]) -> list[Piece]:
        return list(dict.fromkeys(self.piece(f) for f in factors))

    def extents(self, of: Sequence[int]) -> dict[Piece, int]:
        out: dict[Piece, int] = {}
        for factor, extent in enumerate(of):
            piece = self.piece(factor)
            out[piece] = out.get(piece, 1) * extent
        return out


class _PlanBuilder:
    def __init__(
        self, program: AxisProgram, factors: Sequence[tuple[int, int]], result: Result, plan: Plan
    ) -> None:
        self.program, self.factors, self.result, self.plan = program, factors, result, plan
        self.nodes: list[Node] = []
        self.inputs = {v: Value(v.type, v.name) for v in program.graph.inputs}
        self.stored: dict[int, Named] = {}  # values in device memory
        self.views: dict[tuple[int, tuple[Piece | None, ...]], Named] = {}
        self.output_values: dict[int, list[int]] = {}

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
            graph.name, [self.inputs[v] for v in graph.inputs], self.nodes, outputs, graph.location
        )

    # --- device memory ------------------------------------------------------------------------------------

    def _leaf(self, number: int, factors: _Factors) -> Named:
        """A stored value, viewed with one dimension for each piece of an axis that the kernel knows."""
        info = self.result.values[number]
        whole = factors.extents(factors.kernel.full)
        if info.leaf == "input":
            role = self.program.roles[info.symbol]
            source = self.inputs[role.source]
            dims = [self._cut(dim, factors) for dim in role.dims]
        else:
            named = self.stored[number]
            source = named.value
            flat = [p for p in named.dims if p is not None]
            dims = [[p] for p in self._regrouped(flat, factors)]
            if [d[0] for d in dims] == flat:
                dims = [[] if d is None else [d] for d in named.dims]
        wanted: list[Piece | None] = []
        for dim in dims:
            wanted += dim or [None]
        if all(len(dim) <= 1 for dim in dims) and len(wanted) == len(source.shape):
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

    def _cut(self, axes: Sequence[int], factors: _Factors) -> list[Piece]:
        out: list[Piece] = []
        for axis in axes:
            out += (
                [(axis, SPLIT_PIECE), (axis, REST_PIECE)] if axis in factors.apart else [(axis, WHOLE_PIECE)]
            )
        return out

    def _regrouped(self, pieces: Sequence[Piece], factors: _Factors) -> list[Piece]:
        """Pieces of a stored value as those that `factors` uses; split and rest of an axis must be neighbours."""
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
        if have != set(axes):  # dimensions that the value does not depend on
            dims = [[a for a in dim if a in have] for dim in self.program.output_dims[position]]
            if any(
                d and len(d) != len(all_)
                for d, all_ in zip(dims, self.program.output_dims[position], strict=True)
            ):
                raise NotBuildable("expected repeated axes in dimensions of their own")
            shape = tuple(e if d else 1 for d, e in zip(dims, wanted.shape, strict=True))
            if value.shape != shape:
                value = builder.op("reshape", (value,), wanted.name, shape=shape)
            return builder.op("broadcast", (value,), wanted.name, shape=wanted.shape)
        if value.shape != wanted.shape:
            value = builder.op("reshape", (value,), wanted.name, shape=wanted.shape)
        return value

    # --- kernels ------------------------------------------------------------------------------------------

    def _library(self, kernel: Kernel) -> None:
        factors = _Factors(self.factors, kernel)
        (step,) = kernel.steps
        builder = Builder(self.nodes, factors.extents(kernel.full), self.program.dot_dtype)
        args = {leaf: self._leaf(leaf, factors) for leaf in kernel.leaves}
        self.stored[step.value] = self._step(step, args, builder, factors)

    def _custom(self, kernel: Kernel) -> None:
        factors = _Factors(self.factors, kernel)
        whole, tile = factors.extents(kernel.full), factors.extents(self._tile_extents(kernel))
        looped = [factors.piece(f) for f in kernel.loops]
        loops = tuple(kernel.full[f] for f in kernel.loops)
        # Grid dimensions: axes that are whole in device memory, tiled in a block and not looped; x the innermost.
        grid_pieces = sorted((p for p in whole if whole[p] > tile[p] and p not in looped), reverse=True)
        grid = tuple(whole[p] // tile[p] for p in grid_pieces) or (1,)

        def maps(dims: Sequence[Piece | None], pieces: Sequence[Piece], rank: int) -> tuple[int, ...]:
            found = tuple(dims.index(p) if p in dims else -1 for p in pieces)
            return found or (-1,) * rank

        nodes: list[Node] = []
        builder = Builder(nodes, tile, self.program.dot_dtype)
        operands: list[Value] = []
        inside: list[Value] = []
        args: dict[int, Named] = {}
        for leaf in kernel.leaves:
            outer = self._leaf(leaf, factors)
            inner = Value(outer.value.type, outer.value.name)
            operands.append(outer.value)
            inside.append(inner)
            shape = tuple(1 if d is None else tile[d] for d in outer.dims)
            name = f"{outer.value.name}_tile" if outer.value.name else "tile"
            loaded = Value(TensorType(shape, outer.value.dtype), name)
            attrs: dict[str, Attr] = {
                "imap": maps(outer.dims, grid_pieces, len(grid)),
                "fmap": tuple(outer.dims.index(p) if p in outer.dims else -1 for p in looped),
            }
            nodes.append(Node("iterator", (inner,), (loaded,), attrs))
            args[leaf] = Named(loaded, outer.dims)
        products = any(step.op == "contract" for step in kernel.steps)
        if products and any(len(x.dims) > 2 for x in args.values()):
            args = {leaf: self._squeezed(x, builder) for leaf, x in args.items()}
        for step in kernel.steps:
            args[step.value] = self._block_step(step, args, builder, factors, kernel)
        results: list[Value] = []
        for number in kernel.outputs:
            saved = self._saved(number, args[number], builder, factors)
            nodes.append(Node("save", (saved.value,), (), {"omap": maps(saved.dims, grid_pieces, len(grid))}))
            shape = tuple(1 if d is None else whole[d] for d in saved.dims)
            name = next(
                (self.program.graph.outputs[i].name for i in self.output_values.get(number, ())), "partial"
            )
            result = Value(TensorType(shape, saved.value.dtype), name)
            results.append(result)
            self.stored[number] = Named(result, saved.dims)
        body = BlockGraph(grid, loops, inside, _iterators_first_used(nodes))
        self.nodes.append(
            Node("custom", tuple(operands), tuple(results), {}, self.program.graph.location, body)
        )

    def _tile_extents(self, kernel: Kernel) -> list[int]:
        return [1 if f in kernel.loops else kernel.tile[f] for f in range(len(self.factors))]

    def _squeezed(self, x: Named, builder: Builder) -> Named:
        """`x` without axes of which a block has one element: matrix products are then plain ones."""
        return builder.reshape(x, tuple(d for d in x.dims if d is None or builder.extent(d) != 1))

    def _saved(self, number: int, x: Named, builder: Builder, factors: _Factors) -> Named:
        """`x` as it is saved: with every axis of the value, as the grid may cut it; for an output of the program
        in its order and dtype, otherwise as the axes come."""
        pieces = factors.pieces(self.result.values[number].factors)
        lost = [p for p in pieces if p not in x.pieces]
        positions = self.output_values.get(number)
        if not positions:
            return builder.reshape(x, (*lost, *x.dims)) if lost else x
        axes = [a for dim in self.program.output_dims[positions[0]] for a in dim]
        order = [p for a in axes for p in sorted(pieces) if p[0] == a]
        x = builder.cast(x, self.program.graph.outputs[positions[0]].dtype)
        x = builder.arrange(x, [p for p in order if p not in lost])
        return builder.reshape(x, order) if lost else x

    def _block_step(
        self, step: Step, args: dict[int, Named], builder: Builder, factors: _Factors, kernel: Kernel
    ) -> Named:
        ended = [f for f in step.reduced if f in kernel.loops]
        if not ended:
            return self._step(step, args, builder, factors)
        if step.op == "sum":
            kind = "sum"
        elif self.program.functions[step.function].op == "reduce_max":
            kind = "max"
        else:
            raise NotBuildable("expected a sum or a maximum over a loop")
        x = args[step.args[0]]
        for factor in ended:
            result = Value(x.value.type, f"{x.value.name}_total" if x.value.name else "total")
            builder.nodes.append(
                Node("accumulate", (x.value,), (result,), {"kind": kind, "loop": kernel.loops.index(factor)})
            )
            x = Named(result, x.dims)
        return x

    def _step(self, step: Step, args: dict[int, Named], builder: Builder, factors: _Factors) -> Named:
        """One operation that is no accumulator, at either level."""
        over = factors.pieces(step.reduced)
        operands = self._operands(step.args, args, builder)
        function = self.program.functions[step.function] if step.op in ("unary", "binary", "reduce") else None
        if step.op in ("unary", "binary"):
            assert function is not None
            entry = OPERATORS[function.op]
            return builder.elementwise(entry.name, operands, entry.name, **dict(function.attrs))
        if step.op == "reduce":
            assert function is not None
            return builder.reduce(function.op, operands[0], over)
        if step.op == "sum":
            return builder.reduce("reduce_sum", operands[0], over)
        if step.op == "contract":
            return builder.contract(operands[0], operands[-1], over)
        if step.op == "mul":
            if len(operands) == 2 and operands[0] is operands[1]:
                return builder.elementwise("square", operands[:1])
            minus_one = [i for i, a in enumerate(step.args) if self._constant(a) == -1.0]
            if minus_one:
                return builder.elementwise("neg", [operands[1 - minus_one[0]]])
        return builder.elementwise(step.op, [operands[0], operands[-1]])

    def _constant(self, number: int) -> float | None:
        info = self.result.values[number]
        return self.program.constants[info.symbol] if info.leaf == "constant" else None

    def _operands(self, numbers: Sequence[int], args: dict[int, Named], builder: Builder) -> list[Named]:
        dtype = next((args[n].value.dtype for n in numbers if n in args), "f32")
        out: list[Named] = []
        for number in numbers:
            constant = self._constant(number)
            out.append(args[number] if constant is None else builder.scalar(constant, dtype))
        return out


def _iterators_first_used(nodes: list[Node]) -> list[Node]:
    """The nodes with every iterator just before its first use, as a person would write them."""
    loads = {n.result: n for n in nodes if n.op == "iterator"}
    out: list[Node] = []
    for node in nodes:
        if node.op == "iterator":
            continue
        for operand in node.operands:
            if (load := loads.pop(operand, None)) is not None:
                out.append(load)
        out.append(node)
    return out
