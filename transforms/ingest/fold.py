"""Evaluation of table operators on numpy arrays, to fold constants during import.

Everything follows from the operator table: the scalar body evaluated on whole arrays, the loop nest's maps,
the combiner. Numbers are float64 throughout; the caller rounds to the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from superopt.operators import OPERATORS, Nest, Scalar, elements_of, normalize_attrs
from superopt.program import Attr

Array: TypeAlias = "np.ndarray[Any, Any]"

_erf = np.vectorize(math.erf, otypes=[np.float64])


def selected(t: Array, x: Array, y: Array) -> Array:
    """`x` where t > 0, `y` elsewhere."""
    return np.where(t > 0, x, y)


PRIMITIVE_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "where": selected,
    "erf": _erf,
}


def evaluate_scalar(expression: Scalar, args: Sequence[Array]) -> Array:
    """`expression` on arrays that broadcast against each other."""
    if expression.head == "arg":
        return args[int(expression.payload)]
    if expression.head == "const":
        return np.asarray(expression.payload, dtype=np.float64)
    return PRIMITIVE_FUNCTIONS[expression.head](*(evaluate_scalar(a, args) for a in expression.args))


def evaluate(op: str, operands: Sequence[Array], attrs: Mapping[str, Attr]) -> Array:
    """The result of table operator `op` on float arrays, in float64."""
    entry = OPERATORS[op]
    values = normalize_attrs(entry, attrs)
    if entry.arrange is not None:
        return entry.arrange(operands, values)
    if entry.nest is None:
        return np.broadcast_to(np.asarray(elements_of(entry, values), dtype=np.float64), _shape(values))
    assert entry.body is not None
    body = entry.body(values)
    with np.errstate(all="ignore"):
        if entry.elementwise:
            return evaluate_scalar(body, operands)
        nest = entry.nest([a.shape for a in operands], values)
        if not nest.plain:
            return _windows(body, entry.combiner, nest, operands)
        arrays = [_gathered(a, nest, i) for i, a in enumerate(operands)]
        if entry.contraction:
            return _contracted(arrays, nest)
        point = np.broadcast_to(evaluate_scalar(body, arrays), nest.extents)
        if entry.combiner is not None:
            combine = {"add": np.add, "max": np.maximum, "min": np.minimum}[entry.combiner]
            point = combine.reduce(point, axis=nest.reductions)
        if entry.finish is not None:
            point = evaluate_scalar(entry.finish(nest.reduced), [point])
        return _in_result_order(point, nest)


def _shape(attrs: Mapping[str, Attr]) -> tuple[int, ...]:
    shape = attrs["shape"]
    assert isinstance(shape, tuple)
    return shape


def _windows(body: Scalar, combiner: str | None, nest: Nest, operands: Sequence[Array]) -> Array:
    """A nest that is not plain, one reduced point after the other."""
    kept = [d for d in nest.result if d is not None]
    point: dict[int, Any] = {
        d: np.arange(nest.extents[d]).reshape([-1 if other == d else 1 for other in kept]) for d in kept
    }
    total: Array | None = None
    for reduced in np.ndindex(*(nest.extents[d] for d in nest.reductions)):
        point |= dict(zip(nest.reductions, reduced, strict=True))
        read: list[Array] = []
        for array, maps in zip(operands, nest.operands, strict=True):
            places = [index.at(point) for index in maps]
            inside = np.asarray(True)
            for (place, exact), extent in zip(places, array.shape, strict=True):
                inside = inside & exact & (place >= 0) & (place < extent)
            clipped = [np.clip(p, 0, e - 1) for (p, _), e in zip(places, array.shape, strict=True)]
            found = array[tuple(np.broadcast_arrays(*clipped))]
            read.append(np.where(inside, found, np.float64(nest.outside or 0.0)))
        here = evaluate_scalar(body, read)
        total = here if total is None else {"add": np.add, "max": np.maximum}[combiner or "add"](total, here)
    assert total is not None
    return np.broadcast_to(total, nest.result_shape)


def _gathered(array: Array, nest: Nest, operand: int) -> Array:
    """`array` over the iteration space: one axis per dimension, of extent 1 where it does not vary."""
    axes: list[int] = []
    for axis, index in enumerate(nest.operands[operand]):
        if index.dim is None:
            array = array.take([index.offset], axis=axis)
            continue
        axes.append(index.dim)
        if (index.stride, index.offset) != (1, 0):
            picked = index.offset + index.stride * np.arange(nest.extents[index.dim])
            array = array.take(picked, axis=axis)
    array = array.reshape(
        [e for e, i in zip(array.shape, nest.operands[operand], strict=True) if i.dim is not None]
    )
    order = np.argsort(axes)
    shape = [1] * len(nest.extents)
    for axis in axes:
        shape[axis] = nest.extents[axis]
    return array.transpose(order).reshape(shape)


def _contracted(arrays: Sequence[Array], nest: Nest) -> Array:
    """The sum of products over the nest's reductions, as one matrix product."""
    (k,) = nest.reductions
    m, n = k - 2, k - 1
    a = arrays[0].squeeze(n)
    b = np.swapaxes(arrays[1].squeeze(m), -1, -2)
    return np.matmul(a, b)


def _in_result_order(point: Array, nest: Nest) -> Array:
    kept = [d for d in range(len(nest.extents)) if d not in nest.reductions]
    order = [kept.index(d) for d in nest.result if d is not None]
    return point.transpose(order).reshape(nest.result_shape)
