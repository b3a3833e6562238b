"""Indexing maps of linalg operations, of which each index is one dimension, with an offset and a stride."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.transforms.ingest.builder import NotExpressible
from superopt.transforms.ingest.held import Array


@dataclass(frozen=True)
class Axis:
    """One result of an indexing map: `offset + stride * dim`, or the constant `offset`."""

    dim: int | None
    stride: int = 1
    offset: int = 0


def is_axis(expression: Any) -> bool:
    """Whether `axis` takes it."""
    try:
        axis(expression)
    except NotExpressible:
        return False
    return True


def axis(expression: Any) -> Axis:
    """An affine expression in at most one dimension; raises NotExpressible for any other."""
    kind = type(expression).__name__
    if kind == "AffineDimExpr":
        return Axis(expression.position)
    if kind == "AffineConstantExpr":
        return Axis(None, 1, expression.value)
    if kind in ("AffineAddExpr", "AffineMulExpr"):
        left, right = axis(expression.lhs), axis(expression.rhs)
        if left.dim is None:
            left, right = right, left
        if right.dim is None and kind == "AffineAddExpr":
            return Axis(left.dim, left.stride, left.offset + right.offset)
        if right.dim is None:
            return Axis(left.dim, left.stride * right.offset, left.offset * right.offset)
    raise NotExpressible(f"an operand is read at {expression}")


def extents_of(
    maps: Sequence[Any], operands: Sequence[Any], shape: Callable[[Any], Sequence[int]]
) -> list[int]:
    """The extent of each iteration dimension, from operands with an axis that only it indexes."""
    extents = [0] * maps[0].n_dims
    for map, operand in zip(maps, operands, strict=True):
        for expression, extent in zip(map.results, shape(operand), strict=True):
            if type(expression).__name__ == "AffineDimExpr":
                extents[expression.position] = extent
    if 0 in extents:
        raise NotExpressible("an iteration dimension without an operand axis of its own")
    return extents


def result_dims(map: Any, extents: Sequence[int]) -> list[int | None]:
    """The dimension along each axis of a result, None along those of a constant; raises NotExpressible."""
    axes = [axis(e) for e in map.results]
    dims = [a.dim for a in axes if a.dim is not None]
    if any(a.stride != 1 or a.offset != 0 for a in axes) or len(set(dims)) != len(dims):
        raise NotExpressible("a result that is written with gaps or along a diagonal")
    return [a.dim for a in axes]


def spread_array(array: Array, axes: Sequence[Axis], extents: Sequence[int]) -> Array:
    """`array` as read over the iteration space, one axis per dimension."""
    for i, axis in enumerate(axes):
        if axis.dim is not None and (axis.stride, axis.offset, extents[axis.dim]) != (1, 0, array.shape[i]):
            array = array.take(axis.offset + axis.stride * np.arange(extents[axis.dim]), axis=i)
    kept = [i for i, a in enumerate(axes) if a.dim is not None]
    dims = [a.dim for a in axes if a.dim is not None]
    if len(set(dims)) != len(dims):
        raise NotExpressible("an operand is read along a diagonal")
    array = array.reshape([array.shape[i] for i in kept]).transpose(np.argsort(dims))
    return array.reshape([e if d in dims else 1 for d, e in enumerate(extents)])
