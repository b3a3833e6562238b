"""Writes block graphs operator by operator: `b = Block(kernels, grid, loops)`, then loads, operators, saves."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.trinity.programs import Builder

from superopt.operators import OPERATORS, infer_type, normalize_attrs
from superopt.program import Attr, BlockGraph, Node, Value
from superopt.spec import iterator_type, saved_type


class Block:
    """A custom kernel under construction; `finish` adds it to `kernels`. Tiles are values of the block graph."""

    def __init__(self, kernels: Builder, grid: Sequence[int], loops: Sequence[int] = ()) -> None:
        self.kernels = kernels
        self.body = BlockGraph(tuple(grid), tuple(loops), [], [])
        self.operands: list[Value] = []
        self.results: list[Value] = []

    def load(self, x: Value, imap: Sequence[int], fmap: Sequence[int] = ()) -> Value:
        """A tile of the tensor `x` of the kernel level."""
        if x not in self.operands:
            self.operands.append(x)
            self.body.inputs.append(Value(x.type, x.name))
        source = self.body.inputs[self.operands.index(x)]
        fmap = tuple(fmap) or (-1,) * len(self.body.loops)
        node = Node("iterator", (source,), (), {"imap": tuple(imap), "fmap": fmap})
        result = Value(iterator_type(source.type, node, self.body), x.name)
        node.results = (result,)
        self.body.nodes.append(node)
        return result

    def op(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        """A table operator on tiles."""
        values = normalize_attrs(OPERATORS[op], attrs)
        result = Value(infer_type(op, [v.type for v in operands], values), op)
        self.body.nodes.append(Node(op, operands, (result,), values))
        return result

    def number(self, value: float) -> Value:
        """A constant."""
        return self.op("constant", value=value, shape=(), dtype=self.kernels.dtype)

    def reshape(self, x: Value, *shape: int) -> Value:
        """`x` in another shape; itself where it has that."""
        return x if x.shape == shape else self.op("reshape", x, shape=shape)

    def reduce(self, kind: str, x: Value, dim: int) -> Value:
        """The `kind` (sum, mean, max) over one dimension, which stays as an extent of one."""
        return self.op(f"reduce_{kind}", x, dims=(dim,), keepdims=True)

    def rms(self, x: Value, dim: int, epsilon: float) -> Value:
        """`x` over the root of the mean of its squares along `dim`."""
        mean = self.reduce("mean", self.op("square", x), dim)
        return self.op("mul", x, self.op("rsqrt", self.op("add", mean, self.number(epsilon))))

    def running_max(self, x: Value) -> Value:
        """The maximum over the iterations so far of loop 0."""
        return self._loop_end("running_max", (x,), {})

    def accumulate(self, x: Value, rescaled_by: Value | None = None) -> Value:
        """The sum over loop 0; `rescaled_by` a running maximum, where one is given. `x` itself without loops."""
        if not self.body.loops:
            return x
        if rescaled_by is None:
            return self._loop_end("accumulate", (x,), {"kind": "sum"})
        return self._loop_end("accumulate", (x, rescaled_by), {"kind": "rescaled"})

    def maximum(self, x: Value) -> Value:
        """The maximum over loop 0; `x` itself without loops."""
        return self._loop_end("accumulate", (x,), {"kind": "max"}) if self.body.loops else x

    def _loop_end(self, op: str, operands: tuple[Value, ...], attrs: dict[str, Attr]) -> Value:
        result = Value(operands[0].type, op)
        self.body.nodes.append(Node(op, operands, (result,), {**attrs, "loop": 0}))
        return result

    def save(self, x: Value, omap: Sequence[int], name: str) -> Value:
        """The tensor of the kernel level that the blocks' tiles `x` make up."""
        node = Node("save", (x,), (), {"omap": tuple(omap)})
        self.body.nodes.append(node)
        self.results.append(Value(saved_type(node, self.body.grid), name))
        return self.results[-1]

    def finish(self) -> None:
        """Add the kernel to the program."""
        node = Node("custom", tuple(self.operands), tuple(self.results), {}, body=self.body)
        self.kernels.graph.nodes.append(node)
