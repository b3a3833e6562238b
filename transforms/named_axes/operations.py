"""The nodes of a kernel graph as operations over named axes: which can be expressed so, and how.

Operators become additions, multiplications, divisions, reductions and contractions over axes, and uninterpreted
functions for everything else; views and casts vanish.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from superopt.operators import (
    OPERATORS,
    Applied,
    Move,
    Scalar,
    computed_of,
    is_constant,
    is_conversion,
    move_of,
    normalize_attrs,
    splat_of,
)
from superopt.program import Attr, KernelGraph, Node, Value
from superopt.transforms.named_axes.axis_program import Function, Operation, Role

LINEAR = frozenset({"add", "sub", "mul", "div", "neg"})


def is_view(node: Applied) -> bool:
    """Whether the node only moves or retypes elements: it becomes lists of axes."""
    moves = (Move.RESHAPE, Move.REPEAT, Move.BROADCAST, Move.TRANSPOSE)
    return is_conversion(node) or move_of(node) in moves


def searchable(node: Node) -> bool:
    """Whether the node, taken by itself, can be expressed over named axes."""
    if node.op not in OPERATORS or OPERATORS[node.op].windowed or move_of(node) is Move.UPDATE:
        return False
    if move_of(node) is Move.SLICE:
        strides = node.attrs["strides"]
        return isinstance(strides, tuple) and all(s == 1 for s in strides)
    if is_constant(node):
        return splat_of(node) is not None
    entry = OPERATORS[node.op]
    if entry.elementwise:
        assert entry.body is not None
        return len(node.operands) <= 2 or linear(entry.body(normalize_attrs(entry, node.attrs)))
    return True


def linear(body: Scalar) -> bool:
    """Whether a body consists only of additions, multiplications and divisions."""
    return set(body.primitives()) <= LINEAR


# An operand while constants are still being added: "role", "constant" or "operation", and its number among those.
Ref = tuple[str, int]


class Operations:
    """Turns the nodes of a graph into operations when `run` is called; equal ones are shared."""

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
        """Add the operations of every node, in order."""
        for index, node in enumerate(self.graph.nodes):
            if computed_of(node) is not None:
                continue
            args: list[Ref] = []
            for position, operand in enumerate(node.operands):
                use = self.role_of.get((index, position))
                args.append(self.refs[operand] if use is None else ("role", self.role_number[use]))
            self.refs[node.result] = self._node(index, node, args)

    def final(self, ref: Ref) -> int:
        """The number of an operand, once nothing more is added."""
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
        if is_view(node):
            return args[0]
        if entry.constant:
            value = attrs["value"]
            assert isinstance(value, int | float)
            return self._constant(float(value))
        assert entry.body is not None
        reduced = self.reduced.get(index, ())
        if entry.combiner is None:
            body = entry.body(attrs)
            if linear(body):
                return self._scalar(body, args)
            kind = "unary" if len(args) == 1 else "binary"
            return self._emit(kind, tuple(args), self._function(node.op, attrs))
        if entry.combiner == "add":
            result = self._summed(args, reduced)
        else:  # repeated elements do not change a maximum
            present = tuple(a for a in reduced if a in self._axes_of(args[0]))
            function = self._function(node.op, {})
            result = self._emit("reduce", tuple(args), function, present) if present else args[0]
        if entry.finish is not None:
            dims = attrs["dims"]
            assert isinstance(dims, tuple)
            result = self._scalar(entry.finish(math.prod(node.operands[0].shape[d] for d in dims)), [result])
        return result

    def _summed(self, args: Sequence[Ref], reduced: Sequence[int]) -> Ref:
        """The product of one or two operands, summed over axes; an operand moves out of a sum over axes along
        which it does not vary, and an axis along which none varies becomes a factor.

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
