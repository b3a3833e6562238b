"""Operations over named axes as table operators on tensors, at the kernel or the block level.

A `Named` is a value whose dimensions are known by their axes; `Builder` emits each operation of a plan, with the
transposes, reshapes, broadcasts and casts that the table's operators need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.errors import SuperoptError
from superopt.operators import infer_type
from superopt.program import Attr, Node, Value

# An axis, or one part of an axis that is split between kernels: (axis, 0 whole | 1 split | 2 rest).
Piece = tuple[int, int]


class NotBuildable(SuperoptError):
    """The block level cannot express a plan; such plans are counted and dropped."""


@dataclass(frozen=True)
class Named:
    """A value and, for each of its dimensions, the axis it runs over; None for a dimension of extent 1."""

    value: Value
    dims: tuple[Piece | None, ...]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The axes, without dimensions of extent 1."""
        return tuple(d for d in self.dims if d is not None)


class Builder:
    """Appends nodes of one level to `nodes`; `extents` gives each axis's extent at that level."""

    def __init__(self, nodes: list[Node], extents: dict[Piece, int], dot_dtype: str | None) -> None:
        self.nodes = nodes
        self.extents = extents
        self.dot_dtype = dot_dtype
        self._scalars: dict[tuple[float, str], Value] = {}

    def op(self, name: str, operands: Sequence[Value], hint: str = "", **attrs: Attr) -> Value:
        """One table operator."""
        result = Value(infer_type(name, [v.type for v in operands], attrs), hint or name)
        self.nodes.append(Node(name, tuple(operands), (result,), dict(attrs)))
        return result

    def scalar(self, value: float, dtype: str) -> Named:
        """A constant without dimensions."""
        key = (value, dtype)
        if key not in self._scalars:
            self._scalars[key] = self.op("constant", (), "c", value=value, shape=(), dtype=dtype)
        return Named(self._scalars[key], ())

    def extent(self, dim: Piece | None) -> int:
        """Extent of a dimension at this level."""
        return 1 if dim is None else self.extents[dim]

    def cast(self, x: Named, dtype: str) -> Named:
        """`x` in another dtype."""
        return (
            x
            if x.value.dtype == dtype
            else Named(self.op("cast", (x.value,), x.value.name, dtype=dtype), x.dims)
        )

    def reshape(self, x: Named, dims: Sequence[Piece | None]) -> Named:
        """`x` with other dimensions of extent 1; the axes stay in order."""
        shape = tuple(map(self.extent, dims))
        if shape == x.value.shape:
            return Named(x.value, tuple(dims))
        return Named(self.op("reshape", (x.value,), x.value.name, shape=shape), tuple(dims))

    def arrange(self, x: Named, order: Sequence[Piece]) -> Named:
        """`x` with its axes in `order`, without dimensions of extent 1 unless the order is already right."""
        if x.pieces == tuple(order):
            return x
        bare = self.reshape(x, x.pieces)
        perm = tuple(bare.dims.index(p) for p in order)
        return Named(self.op("transpose", (bare.value,), x.value.name, perm=perm), tuple(order))

    # --- elementwise --------------------------------------------------------------------------------------

    def elementwise(self, name: str, operands: Sequence[Named], hint: str = "", **attrs: Attr) -> Named:
        """An elementwise operator, with its operands brought to common dimensions."""
        target = self._common_dims(operands)
        dtype = _widest([x.value.dtype for x in operands])
        values = [self.cast(self._fit(x, target), dtype).value for x in operands]
        return Named(self.op(name, values, hint, **attrs), target)

    def _common_dims(self, operands: Sequence[Named]) -> tuple[Piece | None, ...]:
        largest = max(operands, key=lambda x: (len(x.pieces), len(x.dims)))
        union = {p for x in operands for p in x.pieces}
        if union == set(largest.pieces):
            return largest.dims
        return tuple(sorted(union))

    def _fit(self, x: Named, target: tuple[Piece | None, ...]) -> Named:
        """`x` so that it broadcasts to `target` by numpy's rules."""
        aligned = target[len(target) - len(x.dims) :]
        if len(x.dims) <= len(target) and all(
            d is None or d == t for d, t in zip(x.dims, aligned, strict=True)
        ):
            return x
        x = self.arrange(x, [d for d in target if d is not None and d in x.pieces])
        dims = tuple(d if d in x.pieces else None for d in target)
        while dims and dims[0] is None:
            dims = dims[1:]
        return self.reshape(x, dims)

    # --- reductions ---------------------------------------------------------------------------------------

    def reduce(self, name: str, x: Named, over: Sequence[Piece]) -> Named:
        """Reduce axes, leaving dimensions of extent 1."""
        dims = tuple(i for i, d in enumerate(x.dims) if d is not None and d in over)
        if not dims:  # a block holds one element of each of these axes
            return x
        value = self.op(name, (x.value,), name.removeprefix("reduce_"), dims=dims, keepdims=True)
        return Named(value, tuple(None if d in over else d for d in x.dims))

    def contract(self, a: Named, b: Named, over: Sequence[Piece]) -> Named:
        """Sum of products over the axes `over`: a (batched) matrix product, or a product and a sum.

        Matrix units would multiply a single row sixteen times, and need it as often in registers.
        """
        shared = [p for p in a.pieces if p in b.pieces and p not in over]
        rows, columns = [[p for p in x.pieces if p not in shared and p not in over] for x in (a, b)]
        a, b = self.dot_operand(a), self.dot_operand(b)
        if not rows or not columns:
            return self.reduce("reduce_sum", self.elementwise("mul", (a, b), "product"), over)
        if min(columns) < min(rows):
            a, b, rows, columns = b, a, columns, rows
        batch = [p for p in a.pieces if p in shared]
        depth = [p for p in a.pieces if p in over]
        left, transpose_a = self._matrix(a, batch, rows, depth, rows_first=True)
        right, transpose_b = self._matrix(b, batch, columns, depth, rows_first=False)
        dtype = _widest([left.dtype, right.dtype])
        left, right = (
            v if v.dtype == dtype else self.op("cast", (v,), v.name, dtype=dtype) for v in (left, right)
        )
        product = self.op(
            "matmul", (left, right), "product", transpose_a=transpose_a, transpose_b=transpose_b
        )
        dims = [*batch, *rows, *columns]
        return Named(product, tuple(dims)) if len(rows) == len(columns) == 1 else self._unmerge(product, dims)

    def _unmerge(self, product: Value, dims: list[Piece]) -> Named:
        shape = tuple(map(self.extent, dims))
        return Named(self.op("reshape", (product,), "product", shape=shape), tuple(dims))

    def dot_operand(self, x: Named) -> Named:
        """`x` in the dtype in which this program's matrix products multiply, where it is wider."""
        if self.dot_dtype is not None and x.value.dtype == "f32" and self.dot_dtype != "f32":
            return self.cast(x, self.dot_dtype)
        return x

    def _matrix(
        self, x: Named, batch: list[Piece], side: list[Piece], depth: list[Piece], *, rows_first: bool
    ) -> tuple[Value, bool]:
        """`x` as batch dimensions and a matrix; the second result says whether it is to be read transposed.

        A left operand is side x depth, a right one depth x side; each group of axes forms one dimension.
        """
        straight = [*batch, *side, *depth] if rows_first else [*batch, *depth, *side]
        crossed = [*batch, *depth, *side] if rows_first else [*batch, *side, *depth]
        order = crossed if x.pieces == tuple(crossed) else straight
        x = self.arrange(x, order)
        first, second = (side, depth) if (order == straight) == rows_first else (depth, side)
        shape = tuple(map(self.extent, batch))
        for group in (first, second):
            size = 1
            for p in group:
                size *= self.extent(p)
            shape = (*shape, size)
        value = x.value
        if value.shape != shape:
            value = self.op("reshape", (value,), value.name, shape=shape)
        return value, order != straight


def _widest(dtypes: Sequence[str]) -> str:
    found = set(dtypes)
    return found.pop() if len(found) == 1 else "f32"
