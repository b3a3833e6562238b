"""Building a kernel graph: type inference, constant folding, sharing, and the simplifications of import.

Both importers build their graphs here, so that a program comes out the same through either of them. `emit`
decides what an operation becomes: `emit` folds constants, tries the rules of
`superopt.transforms.ingest.simplify`, reuses an equal node, and only then adds a new one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from superopt.computed import computed_node, recognized
from superopt.diagnostics import Diagnostics
from superopt.errors import UNKNOWN, IllegalProgram, Location, UnsupportedProgram
from superopt.operators import OPERATORS, dense_elements, infer_type
from superopt.program import COMPUTE_DTYPES, Attr, KernelGraph, Node, TensorType, Value
from superopt.spec import check_types
from superopt.transforms.ingest.defined import is_defined
from superopt.transforms.ingest.fold import evaluate
from superopt.transforms.ingest.gather import strides, take_strided

Array: TypeAlias = "np.ndarray[Any, Any]"

FOLD_LIMIT = 1 << 25
"""Constants of more elements than this are not folded (a 4096 x 8192 mask is)."""

MOST_RUNS = 8
"""A gather or selection becomes a concatenation of at most this many slices."""


class NotExpressible(Exception):
    """The operator table cannot express something; the importer makes it an `extern` with this reason."""


def round_to(dtype: str, value: Array) -> Array:
    """`value` rounded to `dtype`, as float64."""
    value = np.asarray(value, dtype=np.float64)
    if dtype == "bf16":
        bits = np.atleast_1d(value.astype(np.float32)).view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
        narrow = rounded.astype(np.uint32).view(np.float32).reshape(value.shape)
        return np.where(np.isnan(value), value, narrow).astype(np.float64)
    with np.errstate(over="ignore"):
        return value.astype({"f16": np.float16, "f32": np.float32}[dtype]).astype(np.float64)


@dataclass
class GraphBuilder:
    """A kernel graph under construction.

    `location` is that of the operation being imported; nodes emitted meanwhile carry it.
    """

    name: str
    diagnostics: Diagnostics
    inputs: list[Value] = field(default_factory=list[Value])
    nodes: list[Node] = field(default_factory=list[Node])
    location: Location = UNKNOWN
    constants: dict[Value, Array] = field(default_factory=dict[Value, Array])
    """The number (rank 0) or the elements of each value made by a `constant` node."""
    _definitions: dict[Value, Node] = field(default_factory=dict[Value, Node])
    _known: dict[Hashable, Value] = field(default_factory=dict[Hashable, Value])

    # --- inputs and constants -----------------------------------------------------------------------------

    def add_input(self, name: str, type: TensorType) -> Value:
        """A new input of the graph, after the existing ones."""
        value = Value(type, name)
        self.inputs.append(value)
        return value

    def constant(self, value: Array | float, dtype: str, shape: tuple[int, ...] | None = None) -> Value:
        """A constant of `shape` (by default that of `value`), rounded to `dtype`; a splat where it can be."""
        if dtype not in COMPUTE_DTYPES:
            raise NotExpressible(f"a constant of element type {dtype}")
        array = np.asarray(value, dtype=np.float64)
        shape = array.shape if shape is None else shape
        if array.size and array.size > 1 and np.all(array == array.flat[0]):
            array = np.asarray(array.flat[0])
        array = round_to(dtype, array.reshape(()) if array.size == 1 else np.broadcast_to(array, shape))
        attr: Attr = float(array) if array.ndim == 0 else _stored(dtype, array)
        key = ("constant", dtype, shape, array.tobytes(), array.shape) if array.size <= 1 << 16 else None
        if key is not None and key in self._known:
            return self._known[key]
        result = self._add("constant", (), {"value": attr, "shape": shape, "dtype": dtype})
        self.constants[result] = array
        if key is not None:
            self._known[key] = result
        return result

    def scalar(self, value: Value) -> float | None:
        """The number that `value` holds in every element, or None where it is not a splat constant."""
        array = self.constants.get(value)
        return float(array) if array is not None and array.ndim == 0 else None

    def elements(self, value: Value) -> Array | None:
        """The elements of a constant, broadcast to its shape (without copying); None for other values."""
        array = self.constants.get(value)
        return None if array is None else np.broadcast_to(array, value.shape)

    # --- nodes --------------------------------------------------------------------------------------------

    def defined_by(self, value: Value, op: str) -> Node | None:
        """The node of operator `op` that computes `value`, or None."""
        node = self._definitions.get(value)
        return node if node is not None and node.op == op else None

    def node_of(self, value: Value) -> Node | None:
        """The node of a table operator that computes `value`, or None."""
        return self._definitions.get(value)

    def emit(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        """The result of table operator `op`, simplified, folded or shared where possible.

        Raises NotExpressible where the table refuses the operands.
        """
        from superopt.transforms.ingest.simplify import simplify

        try:
            type = infer_type(op, [v.type for v in operands], attrs)
        except IllegalProgram as error:
            raise NotExpressible(error.message) from None
        if operands and type.elements <= FOLD_LIMIT and all(v in self.constants for v in operands):
            return self._folded(op, operands, attrs, type)
        if (simpler := simplify(self, op, operands, attrs)) is not None:  # pyright: ignore[reportArgumentType]
            return simpler
        return self.emit_raw(op, *operands, **attrs)

    def emit_raw(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        """As `emit`, without simplifying; an equal node is shared."""
        key = (op, operands, tuple(sorted(attrs.items())))
        if key not in self._known:
            self._known[key] = self._add(op, operands, attrs)
        return self._known[key]

    def extern(
        self, target: str, reason: str, operands: Sequence[Value], types: Sequence[TensorType], **attrs: Attr
    ) -> tuple[Value, ...]:
        """An opaque operation; if its results are used, `finish` reports its location and the reason."""
        results = tuple(Value(t) for t in types)
        node_attrs: dict[str, Attr] = {"target": target, "reason": reason, **attrs}
        self.nodes.append(Node("extern", tuple(operands), results, node_attrs, self.location))
        return results

    def finish(self, outputs: Sequence[Value], location: Location = UNKNOWN) -> KernelGraph:
        """The graph that computes `outputs`, without unused nodes.

        Raises UnsupportedProgram, located, for tensors of unsupported types.
        """
        live = set(outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if live.intersection(node.results):
                live.update(node.operands)
                kept.append(_as_computed(node))
        for node in kept[::-1]:
            if node.op == "extern":
                target, reason = node.attrs["target"], node.attrs["reason"]
                self.diagnostics.remark(f"'{target}' is kept as superopt.extern: {reason}", node.location)
        graph = KernelGraph(self.name, self.inputs, kept[::-1], list(outputs), location)
        check_types(graph)
        return graph

    def _add(self, op: str, operands: tuple[Value, ...], attrs: dict[str, Attr]) -> Value:
        try:
            type = infer_type(op, [v.type for v in operands], attrs)
        except IllegalProgram as error:
            raise NotExpressible(error.message) from None
        result = Value(type)
        node = Node(op, operands, (result,), dict(attrs), self.location)
        self.nodes.append(node)
        self._definitions[result] = node
        return result

    def _folded(self, op: str, operands: Sequence[Value], attrs: dict[str, Attr], type: TensorType) -> Value:
        arrays = [self.constants[v] for v in operands]
        unlike = ("matmul", "reduce_sum", "reduce_mean", "concat")
        pointwise = op not in unlike and not OPERATORS[op].windowed
        if pointwise and all(a.ndim == 0 for a in arrays):
            # A move or reduction of a splat's elements, or one point of an elementwise operator.
            moved = len(arrays) == 1 and not OPERATORS[op].elementwise
            number = arrays[0] if moved else evaluate(op, arrays, attrs)
            return self.constant(number, type.dtype, type.shape)
        spread = [np.broadcast_to(a, v.shape) for a, v in zip(arrays, operands, strict=True)]
        return self.constant(evaluate(op, spread, attrs), type.dtype, type.shape)

    # --- shorthands ---------------------------------------------------------------------------------------

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """`x` with its elements, in row-major order, in `shape`."""
        return self.emit("reshape", x, shape=tuple(shape))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """numpy.transpose."""
        return self.emit("transpose", x, perm=tuple(perm))

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        """numpy.broadcast_to."""
        return self.emit("broadcast", x, shape=tuple(shape))

    def cast(self, x: Value, dtype: str) -> Value:
        """`x` in another dtype."""
        return self.emit("cast", x, dtype=dtype)

    def slice(self, x: Value, dim: int, start: int, size: int, stride: int = 1) -> Value:
        """`size` elements along `dim`, from `start` on, `stride` apart."""
        rank = len(x.shape)
        return self.emit(
            "slice",
            x,
            offsets=tuple(start if d == dim else 0 for d in range(rank)),
            sizes=tuple(size if d == dim else x.shape[d] for d in range(rank)),
            strides=tuple(stride if d == dim else 1 for d in range(rank)),
        )

    def take(self, x: Value, dim: int, indices: Sequence[int]) -> Value:
        """Elements of `x` along `dim` at constant indices: a slice for each evenly spaced run of them, or, where
        these are many, what their strides say.
        """
        extent = x.shape[dim]
        wanted = [i + extent if i < 0 else i for i in indices]
        if not wanted or any(i < 0 or i >= extent for i in wanted):
            raise NotExpressible("a gather out of bounds")
        parts: list[Value] = []
        at = 0
        while at < len(wanted):
            step = wanted[at + 1] - wanted[at] if at + 1 < len(wanted) else 1
            end = at + 1
            while step > 0 and end < len(wanted) and wanted[end] - wanted[end - 1] == step:
                end += 1
            parts.append(self.slice(x, dim, wanted[at], end - at, max(step, 1)))
            at = end
            if len(parts) > MOST_RUNS:
                found = strides(wanted)
                made = take_strided(self, x, dim, wanted[0], found) if found else None
                if made is not None:
                    return made
                raise NotExpressible(f"a gather at more than {MOST_RUNS} runs of indices")
        return self.emit("concat", *parts, dim=dim)

    def reduce(self, kind: str, x: Value, dims: Sequence[int], keepdims: bool = False) -> Value:
        """`reduce_<kind>` over `dims`; `x` where there are none."""
        if not dims:
            return x
        return self.emit(f"reduce_{kind}", x, dims=tuple(sorted(dims)), keepdims=keepdims)

    def check_defined(self, *values: Value) -> None:
        """Raise NotExpressible where one of `values` may be undefined: a selection may protect from it."""
        if not all(is_defined(v, self.node_of) for v in values):
            raise NotExpressible("a selection of a root, a logarithm or a quotient that may be undefined")

    def check_comparable(self, *values: Value) -> None:
        """Raise NotExpressible where a comparison of `values` may ask for an infinity or NaN.

        Proofs are about finite inputs, and would find such a question superfluous.
        """
        if any(v in self.constants and not np.isfinite(self.constants[v]).all() for v in values):
            raise NotExpressible("a comparison with an infinity")
        if not all(is_defined(v, self.node_of) for v in values):
            raise NotExpressible("a comparison of a root, a logarithm or a quotient that may be undefined")

    def where(self, truth: Value, x: Value, y: Value) -> Value:
        """`x` where `truth`, of zeros and ones in the dtype of both, is one, else `y`.

        Raises NotExpressible where one of them may be undefined: `truth` may be what asks.
        """
        self.check_defined(x, y)
        number = self.scalar(y)
        if number is not None:
            return self.emit("select", truth, x, other=number)
        hidden = self.emit("sub", self.constant(1.0, truth.dtype, ()), truth)
        if (number := self.scalar(x)) is not None:
            return self.emit("select", hidden, y, other=number)
        return self.emit(
            "add", self.emit("select", truth, x, other=0.0), self.emit("select", hidden, y, other=0.0)
        )

    def where_constant(self, mask: Array, x: Value, y: Value, shape: Sequence[int]) -> Value:
        """`x` where the constant `mask` holds, else `y`; the operands broadcast to `shape`.

        Exact for every number: with y = -inf it is `x + (0 or -inf)`; with another constant y it is
        `max(min(x, y or inf), y or -inf)`; between two tensors it may change along one dimension only and
        becomes a concatenation. Raises NotExpressible otherwise, and where `x` may be undefined beside a
        constant.
        """
        target = tuple(shape)
        mask = np.broadcast_to(mask, target)
        if mask.all() or not mask.any():
            return self.broadcast(x if mask.all() else y, target)
        cx, cy = self.elements(x), self.elements(y)
        if cx is not None and cy is not None:
            return self.constant(np.where(mask, cx, cy), x.dtype, target)
        if cx is not None:
            return self.where_constant(~mask, y, x, target)
        if cy is None:
            return self._joined(mask, self.broadcast(x, target), self.broadcast(y, target))
        self.check_defined(x)
        narrow = _narrowed(mask) if self.scalar(y) is not None else mask
        number = self.scalar(y)
        fill = cy if number is None else np.asarray(number)
        if number == -math.inf:
            bias = self.constant(np.where(narrow, 0.0, -np.inf), x.dtype)
            return self.broadcast(self.emit("add", x, bias), target)
        low = self.constant(np.where(narrow, -np.inf, fill), x.dtype)
        high = self.constant(np.where(narrow, np.inf, fill), x.dtype)
        return self.broadcast(self.emit("max", self.emit("min", x, high), low), target)

    def _joined(self, mask: Array, x: Value, y: Value) -> Value:
        varying = [d for d in range(mask.ndim) if _varies(mask, d)]
        if len(varying) != 1:
            raise NotExpressible("a selection between two tensors by a mask over several dimensions")
        (dim,) = varying
        line = mask[tuple(slice(None) if d == dim else 0 for d in range(mask.ndim))]
        cuts = [0, *(np.flatnonzero(line[1:] != line[:-1]) + 1).tolist(), len(line)]
        if len(cuts) > MOST_RUNS + 1:
            raise NotExpressible(f"a selection between two tensors by a mask of more than {MOST_RUNS} runs")
        parts = [self.slice(x if line[a] else y, dim, a, b - a) for a, b in itertools.pairwise(cuts)]
        return self.emit("concat", *parts, dim=dim)


def _varies(mask: Array, dim: int) -> bool:
    return bool(np.any(mask != mask.take([0], axis=dim)))


def _narrowed(mask: Array) -> Array:
    """`mask` with extent 1 in the leading dimensions along which it does not change."""
    for dim in range(mask.ndim):
        if not _varies(mask, dim):
            mask = mask.take([0], axis=dim)
    while mask.ndim and mask.shape[0] == 1:
        mask = mask[0]
    return mask


def _as_computed(node: Node) -> Node:
    """A dense constant whose elements depend on an index alone as what computes it; other nodes unchanged."""
    if (array := dense_elements(node)) is None or (held := recognized(array)) is None:
        return node
    return computed_node(node.result, held, node.location)


def _stored(dtype: str, array: Array) -> Array:
    """The array in the `constant` node: numpy lacks bf16, whose numbers are exact in float32."""
    return np.ascontiguousarray(array, dtype=np.float16 if dtype == "f16" else np.float32)


def static_type(shape: Sequence[int], dtype: str, location: Location, what: str) -> TensorType:
    """A tensor type; raises UnsupportedProgram where an extent is dynamic (negative)."""
    if any(e < 0 for e in shape):
        text = "x".join("?" if e < 0 else str(e) for e in shape)
        hint = '; --superoptimize="dynamic=n=1..512" takes a range of one' if what == "an argument" else ""
        raise UnsupportedProgram(f"expected static extents for {what}, got {text}x{dtype}{hint}", location)
    return TensorType(tuple(shape), dtype)
