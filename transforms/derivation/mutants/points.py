"""Elements of a program's outputs at chosen positions, for random inputs in a field.

Nothing but what these elements depend on is computed, and inputs are keyed random functions of their positions,
so that a few elements of large tensors cost little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.errors import UnsupportedProgram
from superopt.nests import Array, Nest
from superopt.operators import OPERATORS, Move, Scalar, move_of, nest_of, normalize_attrs, splat_of
from superopt.program import KernelGraph, Node, Value, producers
from superopt.transforms.core import _field
from superopt.verify.fields import P, key_of

# Points of all iteration spaces that are computed for one question, about 50 ns each.
MOST_WORK = 1 << 26
# Those computed at a time.
_AT_ONCE = 1 << 20


class Undecided(UnsupportedProgram):
    """A question about two programs that this way of answering it does not answer."""


class Points:
    """Random inputs of `graph`, a function of `seed` and of the inputs' numbers, modulo a prime of 62 bits."""

    def __init__(self, graph: KernelGraph, seed: int, work: int = MOST_WORK) -> None:
        self.field: Any = _field.Field(P)
        self.keys = {v: key_of(seed, "input", i) for i, v in enumerate(graph.inputs)}
        self.made = producers(graph.nodes)
        self.left = work

    def at(self, value: Value, flat: Array) -> Array:
        """The elements of `value` at these row-major positions.

        Raises Undecided where an operator is not linear in each operand, and for too much work.
        """
        if value in self.keys:
            return self.field.keyed(self.keys[value], flat.astype(np.uint64))
        if not len(flat):
            return np.zeros(0, np.uint64)
        node = self.made[value]
        nest = nest_of(node)
        if nest is None:
            return self._moved(node, flat)
        distinct, places = np.unique(flat, return_inverse=True)
        step = max(1, _AT_ONCE // max(1, nest.reduced))
        parts = [self._nest(node, nest, distinct[i : i + step]) for i in range(0, len(distinct), step)]
        return np.concatenate(parts)[places]

    def _moved(self, node: Node, flat: Array) -> Array:
        """The same of an operator that arranges elements by hand."""
        if move_of(node) is Move.RESHAPE:
            return self.at(node.operands[0], flat)
        if not node.operands and (number := splat_of(node)) == 0:
            return np.full(flat.shape, number, np.uint64)
        if move_of(node) is not Move.CONCAT:
            raise Undecided(f"expected an operator that is linear in each operand, got '{node.op}'")
        dim, out = node.attrs["dim"], np.zeros(flat.shape, np.uint64)
        assert isinstance(dim, int)
        index, start = list(np.unravel_index(flat, node.result.shape)), 0
        for operand in node.operands:
            end = start + operand.shape[dim]
            mine = (index[dim] >= start) & (index[dim] < end)
            inside = [i[mine] - (start if d == dim else 0) for d, i in enumerate(index)]
            out[mine] = self.at(operand, np.asarray(np.ravel_multi_index(tuple(inside), operand.shape)))
            start = end
        return out

    def _nest(self, node: Node, nest: Nest, flat: Array) -> Array:
        entry = OPERATORS[node.op]
        assert entry.body is not None
        self.left -= len(flat) * nest.reduced
        if self.left < 0:
            raise Undecided("the elements of its boxes depend on too many others")
        if entry.combiner not in (None, "add") or entry.finish is not None:
            raise Undecided(f"expected an operator that is linear in each operand, got '{node.op}'")
        index = np.unravel_index(flat, node.result.shape)
        point: dict[int, Array] = {
            d: i[:, None] for d, i in zip(nest.result, index, strict=True) if d is not None
        }
        sums = grid_of([nest.extents[d] for d in nest.reductions])
        point |= {d: s[None, :] for d, s in zip(nest.reductions, sums, strict=True)}
        size = (len(flat), nest.reduced)
        read = [
            self._read(v, maps, point, size, nest.outside)
            for v, maps in zip(node.operands, nest.operands, strict=True)
        ]
        terms = self._body(entry.body(normalize_attrs(entry, node.attrs)), read)
        return self.field.sum(np.ascontiguousarray(terms)) if nest.reductions else terms[:, 0]

    def _read(
        self,
        value: Value,
        maps: Sequence[Any],
        point: dict[int, Array],
        size: tuple[int, int],
        outside: float | None,
    ) -> Array:
        inside, flat = np.ones((1, 1), np.bool_), np.zeros((1, 1), np.int64)
        for i, extent in zip(maps, value.shape, strict=True):
            place, whole = i.at(point)
            inside = inside & whole & (place >= 0) & (place < extent)
            flat = flat * extent + place
        inside, flat = np.broadcast_to(inside, size), np.broadcast_to(flat, size)
        if outside and not inside.all():
            raise Undecided(f"expected zeros outside of an operand, got {outside}")
        out = np.zeros(size, np.uint64)
        out[inside] = self.at(value, flat[inside])
        return out

    def _body(self, body: Scalar, read: Sequence[Array]) -> Array:
        if body.head == "arg":
            return read[int(body.payload)]
        if body.head not in ("add", "sub", "mul", "neg"):
            raise Undecided(f"expected an operator that is linear in each operand, got '{body.head}'")
        return getattr(self.field, body.head)(*(np.ascontiguousarray(self._body(a, read)) for a in body.args))


def elements(graph: KernelGraph, positions: Array, seed: int, work: int = MOST_WORK) -> Array:
    """The elements of the only output of `graph` at `positions`, (points, dimensions), of `Points`."""
    (output,) = graph.outputs
    flat = np.asarray(np.ravel_multi_index(tuple(positions.T), output.shape))
    return Points(graph, seed, work).at(output, flat)


def grid_of(extents: Sequence[int]) -> Array:
    """Every point of a box, (dimensions, points)."""
    return np.indices(extents).reshape(len(extents), math.prod(extents))
