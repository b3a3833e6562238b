"""The steps of a plan's kernel as table operators and accumulators, exponentials with their maxima."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt.operators import OPERATORS, reduction_of
from superopt.program import Node, NodeKind, Value
from superopt.transforms.mugraph_search.axis_builder import Builder, Named, NotBuildable, Piece
from superopt.transforms.mugraph_search.rescale import Rescaler, Shift, Shifts
from superopt.transforms.named_axes.axis_program import AxisProgram, Function

if TYPE_CHECKING:
    from superopt.transforms.core._search import Kernel, Result, Step

SPLIT = 0  # the level of a factor that divides an axis between kernels
WHOLE_PIECE, SPLIT_PIECE, REST_PIECE = 0, 1, 2


class Factors:
    """Which piece of an axis a factor belongs to, in one kernel, and how long the pieces are."""

    def __init__(self, factors: Sequence[tuple[int, int]], kernel: Kernel, extents: Sequence[int]) -> None:
        self.factors = factors
        self.kernel = kernel
        self.axes = extents
        self.apart = {a for f, (a, level) in enumerate(factors) if level == SPLIT and kernel.full[f] > 1}
        self.looped = {self.piece(f) for f in kernel.loops}

    def piece(self, factor: int) -> Piece:
        """The piece that a factor belongs to."""
        axis, level = self.factors[factor]
        if axis not in self.apart:
            return (axis, WHOLE_PIECE)
        return (axis, SPLIT_PIECE if level == SPLIT else REST_PIECE)

    def pieces(self, factors: Sequence[int]) -> list[Piece]:
        """The pieces of several factors, each once."""
        return list(dict.fromkeys(self.piece(f) for f in factors))

    def extents(self, of: Sequence[int]) -> dict[Piece, int]:
        """Extents of the pieces, from those of the factors."""
        out: dict[Piece, int] = {}
        for factor, extent in enumerate(of):
            piece = self.piece(factor)
            out[piece] = out.get(piece, 1) * extent
        return out

    def whole(self) -> dict[Piece, int]:
        """Extents of the pieces in all of the kernel; tiles may reach past them."""
        covered = self.extents(self.kernel.full)
        out: dict[Piece, int] = {}
        for (axis, part), extent in covered.items():
            split = covered.get((axis, SPLIT_PIECE), 1)
            exact = {WHOLE_PIECE: self.axes[axis], REST_PIECE: self.axes[axis] // split}.get(part, extent)
            out[axis, part] = min(extent, exact)  # an axis that the kernel lacks has one element
        return out


class Steps:
    """Single operations of a plan, at either level; without loops and maxima."""

    def __init__(self, program: AxisProgram, result: Result) -> None:
        self.program, self.result = program, result

    def function(self, step: Step) -> Function | None:
        """The uninterpreted operator that a step applies."""
        return self.program.functions[step.function] if step.op in ("unary", "binary", "reduce") else None

    def step(self, step: Step, args: dict[int, Named], builder: Builder, factors: Factors) -> Named:
        """A step whose operands are among `args`, or constants."""
        return self.apply(step, self.operands(step.args, args, builder), builder, factors)

    def apply(self, step: Step, operands: Sequence[Named], builder: Builder, factors: Factors) -> Named:
        """A step on these operands."""
        over = factors.pieces(step.reduced)
        function = self.function(step)
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

    def operands(self, numbers: Sequence[int], args: dict[int, Named], builder: Builder) -> list[Named]:
        """Values by their numbers, constants among them."""
        dtype = next((args[n].value.dtype for n in numbers if n in args), "f32")
        out: list[Named] = []
        for number in numbers:
            constant = self._constant(number)
            out.append(args[number] if constant is None else builder.scalar(constant, dtype))
        return out


class BlockSteps:
    """The steps of one custom kernel; `args` and `shifts` hold the results, by value."""

    def __init__(self, steps: Steps, kernel: Kernel, builder: Builder, factors: Factors) -> None:
        self.steps, self.kernel, self.builder, self.factors = steps, kernel, builder, factors
        self.values = steps.result.values
        self.args: dict[int, Named] = {}
        self.shifts: dict[int, Shifts] = {}
        whole = factors.whole()
        cut = {p for p, extent in whole.items() if builder.extent(p) < extent}
        self.rescaler = Rescaler(builder, factors.looped, cut)

    def load(
        self, args: dict[int, Named], maxima: dict[int, dict[int, Named]], tops: dict[Value, Named]
    ) -> None:
        """Begin with loaded tiles; `maxima` names their stored maxima, where there are any, `tops` the tiles of
        those."""
        shift_of = {stored: Shift(tile) for stored, tile in tops.items()}
        relative = {
            leaf: {f: shift_of[m.value] for f, m in functions.items()} for leaf, functions in maxima.items()
        }
        for function in sorted({f for functions in relative.values() for f in functions}):
            found = dict.fromkeys(shifts[function] for shifts in relative.values() if function in shifts)
            self.rescaler.settle(function, list(found))
        self.args = dict(args)
        for leaf, shifts in relative.items():
            self.args[leaf], self.shifts[leaf] = self.rescaler.load(
                args[leaf], self.values[leaf].degrees, shifts
            )

    def maximum_pieces(self, number: int, function: int) -> list[Piece]:
        """The pieces that the maximum of a value varies along."""
        varies = self.steps.program.functions[function].along
        return self.factors.pieces(
            [
                f
                for f in self.values[number].factors
                if self.factors.factors[f][0] in varies or self.factors.factors[f][1] == SPLIT
            ]
        )

    def step(self, step: Step) -> None:
        """Append one step."""
        function = self.steps.function(step)
        if step.op == "unary" and function is not None and function.over:
            self._exponential(step, function)
        elif any(f in self.kernel.loops for f in step.reduced):
            self._accumulate(step)
        elif not any(a in self.shifts for a in step.args):
            self.args[step.value] = self.steps.step(step, self.args, self.builder, self.factors)
        else:
            self._linear(step)

    def _exponential(self, step: Step, function: Function) -> None:
        (argument,) = step.args
        factors, kernel = self.factors, self.kernel
        over: list[int] = []
        loops: list[int] = []
        for f in self.values[argument].factors:
            axis, level = factors.factors[f]
            if axis not in function.over or (level == SPLIT and axis in factors.apart):
                continue
            over.append(f)
            if f in kernel.loops:
                loops.append(kernel.loops.index(f))
            elif kernel.tile[f] != kernel.full[f] and step.function not in self.rescaler.loaded:
                raise NotBuildable("expected a block to see every element that a maximum ranges over")
        if len(loops) > 1 and step.function not in self.rescaler.loaded:
            raise NotBuildable("expected a maximum over one loop")
        self.args[step.value], self.shifts[step.value] = self.rescaler.exponential(
            self.args[argument], step.function, factors.pieces(over), loops[0] if loops else None
        )

    def _linear(self, step: Step) -> None:
        """A step with an operand that is relative to a maximum."""
        over = self.factors.pieces(step.reduced)
        degrees = self.values[step.value].degrees
        operands = self.steps.operands(step.args, self.args, self.builder)
        shifts = [self.shifts.get(a, {}) for a in step.args]
        if over:
            for i, number in enumerate(step.args):
                powers = {f: p for f, p in self.values[number].degrees.items() if f in degrees}
                operands[i], shifts[i] = self.rescaler.before_sum(operands[i], shifts[i], powers, over)
        if len(step.args) == 2:
            powers = [self.values[a].degrees for a in step.args]
            operands, shifts = self.rescaler.aligned(operands, shifts, powers)
        self.args[step.value] = self.steps.apply(step, operands, self.builder, self.factors)
        joined = self.rescaler.joined(shifts, degrees)
        if joined:
            self.shifts[step.value] = joined

    def _accumulate(self, step: Step) -> None:
        """A step that ends loops; its other reductions (parts of a split axis) follow them."""
        (number,) = step.args
        x, shifts = self.args[number], self.shifts.get(number, {})
        function = self.steps.function(step)
        if step.op != "sum" and (function is None or reduction_of(function) != "max"):
            raise NotBuildable("expected a sum or a maximum over a loop")
        ended = sorted(
            (self.kernel.loops.index(f) for f in step.reduced if f in self.kernel.loops), reverse=True
        )
        for loop in ended:  # inner loops first
            if step.op == "sum":
                x, shifts = self.rescaler.accumulated(x, shifts, self.values[number].degrees, loop)
                continue
            result = Value(x.value.type, f"{x.value.name}_total" if x.value.name else "total")
            self.builder.nodes.append(
                Node(NodeKind.ACCUMULATE, (x.value,), (result,), {"kind": "max", "loop": loop})
            )
            x = Named(result, x.dims)
        rest = [p for p in self.factors.pieces(step.reduced) if p not in self.factors.looped]
        if rest:
            x, shifts = self.rescaler.before_sum(x, shifts, self.values[number].degrees, rest)
            x = self.builder.reduce("reduce_sum" if step.op == "sum" else "reduce_max", x, rest)
        self.args[step.value] = x
        if shifts:
            self.shifts[step.value] = shifts
