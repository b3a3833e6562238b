"""Structured operations of linalg whose maps sum, divide or wrap dimensions: nests without a name.

    affine_map<(i) -> (i floordiv 2, i mod 3)>   ->   nest {maps = "((d0 floordiv 2), d0 - 3 * (d0 floordiv 3))"}

A sum of products of operands is one nest; in any other body, such an operand is spread over the dimensions that
its map depends on by a nest that sums nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.errors import IllegalProgram
from superopt.nests_by_text import nest_attrs
from superopt.program import Value
from superopt.quasi_affine import Expressions, Linear, Read
from superopt.transforms.ingest.builder import GraphBuilder, NotExpressible
from superopt.transforms.ingest.held import Array
from superopt.transforms.ingest.windows import factors

if TYPE_CHECKING:
    from superopt.transforms.ingest.linalg_reader import LinalgReader


def dims_of(map: Any) -> list[int]:
    """The dimensions that a map's results depend on, ascending."""
    return sorted({d for x in map.results for d in _dims(x)})


def read_of(map: Any, order: Sequence[int], extents: Sequence[int]) -> Read:
    """What a map reads, over the dimensions `order` of these extents; raises NotExpressible for symbols."""
    write = Expressions(len(order), [extents[d] for d in order])
    names = {d: write.dim(n) for n, d in enumerate(order)}
    try:
        return write.read([_linear(x, write, names) for x in map.results])
    except IllegalProgram as error:
        raise NotExpressible(error.message) from None


def spread(
    build: GraphBuilder, value: Value, map: Any, extents: Sequence[int]
) -> tuple[Value, tuple[int, ...]]:
    """`value` as a map reads it: over the dimensions that the map depends on, which are named."""
    dims = dims_of(map)
    if not dims:
        raise NotExpressible("an operand that is read at a constant in several ways")
    attrs = nest_attrs([extents[d] for d in dims], len(dims), [read_of(map, dims, extents)])
    return build.emit("nest", value, **attrs), tuple(dims)


def read_elements(array: Array, map: Any, extents: Sequence[int]) -> Array:
    """A known array as a map reads it, an axis for each dimension of the iteration space."""
    read = read_of(map, range(len(extents)), extents)
    ramps = {
        d: np.arange(e).reshape([-1 if d == other else 1 for other in range(len(extents))])
        for d, e in enumerate(extents)
    }
    full = read.completed(ramps)
    places = np.broadcast_arrays(*(np.asarray(x.at(full)) for x in read.index))
    if any((p < 0).any() or (p >= n).any() for p, n in zip(places, array.shape, strict=True)):
        raise NotExpressible("a constant that is read outside")
    return array[tuple(places)].reshape(places[0].shape or (1,) * len(extents))


def sum_of_products(
    reader: LinalgReader,
    operation: Any,
    maps: Sequence[Any],
    extents: Sequence[int],
    result: Sequence[int],
    term: Any,
) -> Value:
    """The sum, from zero, over all dimensions but those of `result`, of a product of operands."""
    arguments = list(operation.regions[0].blocks[0].arguments)[:-1]
    names = factors(term)
    if not all(v in arguments for v in names):
        raise NotExpressible("a sum of anything but products of operands")
    numbers = [arguments.index(v) for v in names]
    order = [*result, *(d for d in range(len(extents)) if d not in result)]
    element = reader.result_type(operation).dtype
    operands = [reader.build.cast(reader.value(operation.operands[n]), element) for n in numbers]
    reads = [read_of(maps[n], order, extents) for n in numbers]
    return reader.build.emit("nest", *operands, **nest_attrs([extents[d] for d in order], len(result), reads))


def _dims(expression: Any) -> set[int]:
    if type(expression).__name__ == "AffineDimExpr":
        return {expression.position}
    sides = (getattr(expression, side, None) for side in ("lhs", "rhs"))
    return {d for side in sides if side is not None for d in _dims(side)}


def _linear(expression: Any, write: Expressions, names: Mapping[int, Linear]) -> Linear:
    match type(expression).__name__:
        case "AffineDimExpr":
            return names[expression.position]
        case "AffineConstantExpr":
            return Linear(int(expression.value))
        case "AffineSymbolExpr":
            raise NotExpressible("an operand is read at a symbol")
        case kind:
            a, b = (_linear(x, write, names) for x in (expression.lhs, expression.rhs))
    if kind == "AffineAddExpr":
        return a.plus(b)
    if kind == "AffineMulExpr" and not (a.terms and b.terms):
        return b.times(a.constant) if b.terms else a.times(b.constant)
    if kind == "AffineFloorDivExpr" and not b.terms:
        return write.floor(a, b.constant)
    if kind == "AffineCeilDivExpr" and not b.terms:
        return write.floor(a.times(-1), b.constant).times(-1)
    if kind == "AffineModExpr" and not b.terms:
        return write.mod(a, b.constant)
    raise NotExpressible(f"an operand is read at {expression}")
