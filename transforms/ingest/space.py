"""Tensors laid out over an iteration space: alignment, elementwise application, contraction, reduction.

A linalg operation and an einsum both say which dimension of a common iteration space each axis of an operand
follows. This module combines such operands with as little data movement as the table's broadcasting allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from superopt.program import Attr, Value
from superopt.transforms.ingest.builder import GraphBuilder, NotExpressible

Dims: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Aligned:
    """A tensor whose axis `i` follows dimension `dims[i]` of the iteration space; it varies along no other."""

    value: Value
    dims: Dims


@dataclass(frozen=True)
class Space:
    """An iteration space: its extents, and the order in which results should keep its dimensions."""

    build: GraphBuilder
    extents: Dims
    order: Dims

    def sorted(self, dims: Iterable[int]) -> Dims:
        """`dims` in the space's order."""
        return tuple(sorted(dims, key=self.order.index))

    def arrange(self, x: Aligned, dims: Dims) -> Value:
        """`x` with its axes along `dims`, of extent 1 where it does not vary; leading ones are omitted."""
        kept = tuple(d for d in dims if d in x.dims)
        value = self.build.transpose(x.value, [x.dims.index(d) for d in kept])
        shape = [self.extents[d] if d in kept else 1 for d in dims]
        while len(shape) > len(kept) and shape[0] == 1 and dims[len(dims) - len(shape)] not in kept:
            shape.pop(0)
        return self.build.reshape(value, shape)

    def spread(self, x: Aligned, dims: Dims) -> Value:
        """`x` with its axes along `dims`, at full extent in each."""
        return self.build.broadcast(self.arrange(x, dims), [self.extents[d] for d in dims])

    def apply(self, op: str, *operands: Aligned, **attrs: Attr) -> Aligned:
        """An elementwise operator of the table on operands that vary along different dimensions."""
        wide = {x.dims for x in operands if x.dims}
        if len(wide) <= 1:
            dims = wide.pop() if wide else ()
            return Aligned(self.build.emit(op, *(x.value for x in operands), **attrs), dims)
        dims = self.sorted({d for x in operands for d in x.dims})
        return Aligned(self.build.emit(op, *(self.arrange(x, dims) for x in operands), **attrs), dims)

    def reduce(self, kind: str, x: Aligned, dims: Sequence[int]) -> Aligned:
        """`x` reduced over `dims` by "sum", "max" or "min"; a sum over what it does not vary along multiplies."""
        axes = [x.dims.index(d) for d in dims if d in x.dims]
        value = self.build.reduce(kind, x.value, axes)
        times = math.prod(self.extents[d] for d in dims if d not in x.dims)
        if kind == "sum" and times != 1:
            value = self.build.emit("mul", value, self.build.constant(times, value.dtype, ()))
        return Aligned(value, tuple(d for d in x.dims if d not in dims))

    def contract(self, a: Aligned, b: Aligned, reductions: Sequence[int]) -> Aligned:
        """The sum over `reductions` of a * b, as one matmul.

        Remaining dimensions of both operands are batch dimensions; so are all dimensions of one operand but its
        last, over which the other broadcasts, except that b's are merged into one column dimension.
        """
        shared = [d for d in reductions if d in a.dims and d in b.dims]
        unseen = [d for d in reductions if d not in (*a.dims, *b.dims)]
        a = self.reduce("sum", a, [d for d in reductions if d in a.dims and d not in b.dims])
        b = self.reduce("sum", b, [d for d in reductions if d in b.dims and d not in a.dims])
        if not shared or set(a.dims) == set(b.dims):
            # Without rows and columns: a sum of squares is not a matrix product.
            return self.reduce("sum", self.apply("mul", a, b), (*shared, *unseen))
        return self.reduce("sum", self._product(a, b, tuple(shared)), unseen)

    def _product(self, a: Aligned, b: Aligned, k: Dims) -> Aligned:
        build, extents = self.build, self.extents
        if a.value.dtype != b.value.dtype:
            raise NotExpressible(f"a contraction of {a.value.dtype} with {b.value.dtype}")
        batch = self.sorted([d for d in a.dims if d in b.dims and d not in k])
        rows = self.sorted([d for d in a.dims if d not in b.dims])
        columns = self.sorted([d for d in b.dims if d not in a.dims])
        lead, row = rows[:-1], rows[-1:]

        def size(dims: Dims) -> int:
            return math.prod(extents[d] for d in dims)

        # One axis for all of k, one for the columns; a's other rows stay leading, where b broadcasts.
        a_transposed = bool(row) and a.dims[-1:] == row and len(k) == 1
        a_order = (*batch, *lead, *k, *row) if a_transposed else (*batch, *lead, *row, *k)
        b_transposed = b.dims[-len(k) :] == k
        b_order = (*batch, *columns, *k) if b_transposed else (*batch, *k, *columns)
        head = [extents[d] for d in (*batch, *lead)]
        b_head = [*(extents[d] for d in batch), *(1 for _ in lead)] if batch else []
        a_tail = [size(k), size(row)] if a_transposed else [size(row), size(k)]
        b_tail = [size(columns), size(k)] if b_transposed else [size(k), size(columns)]
        left = build.reshape(build.transpose(a.value, [a.dims.index(d) for d in a_order]), [*head, *a_tail])
        right = build.reshape(
            build.transpose(b.value, [b.dims.index(d) for d in b_order]), [*b_head, *b_tail]
        )
        product = build.emit("matmul", left, right, transpose_a=a_transposed, transpose_b=b_transposed)
        dims = (*batch, *lead, *row, *columns)
        return Aligned(build.reshape(product, [extents[d] for d in dims]), dims)
