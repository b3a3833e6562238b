"""Masks of tiles that reach past their tensors: what does not exist of each value, and what stands in its place.

A reduction or a product gets operands in which a neutral number stands in place of what does not exist. A mask is
left out where that number is known to stand there already: the exponential of minus infinity is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from superopt.axes import reshape_groups
from superopt.errors import UnsupportedProgram
from superopt.operators import (
    NEUTRAL,
    OPERATORS,
    AppliedTo,
    Move,
    Nest,
    move_of,
    normalize_attrs,
)
from superopt.program import Attr, Bound, Compute, Statement, Value
from superopt.scalars import evaluate
from superopt.transforms.lower.builder import compute, mask


class Masks:
    """What is known of tiles: `bounds`, by dimension, and the numbers that stand beyond them."""

    def __init__(self) -> None:
        self.bounds: dict[Value, dict[int, Bound]] = {}
        self._beyond: dict[Value, dict[int, float]] = {}

    def bound(self, tile: Value, bounds: Iterable[Bound]) -> Value:
        """Remember what exists of a tile."""
        self.bounds[tile] = {b.dim: b for b in bounds}
        return tile

    def masked(self, tile: Value, bounds: Iterable[Bound], neutral: float, out: list[Statement]) -> Value:
        """`tile` with `neutral` in place of what the bounds exclude, where it has another number."""
        known = self._beyond.get(tile, {})
        needed = tuple(b for b in bounds if known.get(b.dim) != neutral)
        if not needed:
            return tile
        result = mask(out, tile, needed, neutral)
        kept = {d: n for d, n in known.items() if n == neutral}
        self._beyond[result] = {**kept, **{b.dim: neutral for b in needed}}
        self.bounds[result] = self.bounds.get(tile, {})
        return result

    def note(self, node: AppliedTo, nest: Nest | None, operands: Sequence[Value], result: Value) -> None:
        """Remember what an operator makes of elements that do not exist, where they alone determine it."""
        entry = OPERATORS[node.op]
        if nest is None or entry.combiner is not None or entry.body is None:
            return
        body = entry.body(normalize_attrs(entry, node.attrs))
        for d, dim in enumerate(nest.result):
            at: list[float | None] = []
            for tile, maps in zip(operands, nest.operands, strict=True):
                own = next((i for i, index in enumerate(maps) if index.dim == dim), None)
                at.append(None if own is None else self._beyond.get(tile, {}).get(own))
            if any(n is not None for n in at) and (number := evaluate(body, at)) is not None:
                self._beyond.setdefault(result, {})[d] = number

    def apply(
        self, out: list[Statement], op: str, operands: Sequence[Value], attrs: dict[str, Attr]
    ) -> Value:
        """Append `op` on tiles, whose bounds its result inherits; what it reduces is masked first.

        Raises UnsupportedProgram where what exists of the result is not one bound for each dimension.
        """
        values, entry = list(operands), OPERATORS[op]
        ragged = any(self.bounds.get(v) for v in values)
        nest = entry.nest([v.shape for v in values], normalize_attrs(entry, attrs)) if entry.nest else None
        if ragged and nest is not None and entry.combiner is not None:
            for i, (value, maps) in enumerate(zip(values, nest.operands, strict=True)):
                own = self.bounds.get(value, {})
                reduced = [b for d, b in own.items() if maps[d].dim in nest.reductions]
                values[i] = self.masked(value, reduced, NEUTRAL[entry.combiner], out)
        result = compute(out, op, values, attrs)
        if ragged:
            node = Compute(op, tuple(values), result, attrs)
            self.note(node, nest, values, result)
            self.bounds[result] = self._through(nest, values) if nest else self._arranged(node)
        return result

    def _through(self, nest: Nest, operands: Sequence[Value]) -> dict[int, Bound]:
        """The bounds of a result, by those of the dimensions of its nest."""
        space: dict[int, Bound] = {}
        for value, maps in zip(operands, nest.operands, strict=True):
            for d, bound in self.bounds.get(value, {}).items():
                index = maps[d]
                whole = index.dim is not None and nest.extents[index.dim] == value.shape[d]
                if index.dim is None or not whole or (index.stride, index.offset) != (1, 0):
                    raise UnsupportedProgram("expected whole dimensions of ragged tiles, got a part of one")
                if replace(space.setdefault(index.dim, bound), dim=d) != bound:
                    raise UnsupportedProgram("expected ragged tiles that end alike, got others")
        return {d: replace(space[n], dim=d) for d, n in enumerate(nest.result) if n in space}

    def _arranged(self, node: Compute) -> dict[int, Bound]:
        """The same for operators without a nest: dimensions that stay as they are keep their bounds."""
        first, *others = (self.bounds.get(v, {}) for v in node.operands)
        if move_of(node) is Move.RESHAPE:
            groups = reshape_groups(node.operands[0].shape, node.result.shape)
            moved = {a[0]: b[0] for a, b in groups if len(a) == len(b) == 1}
            if first.keys() <= moved.keys():
                return {moved[d]: replace(b, dim=moved[d]) for d, b in first.items()}
        elif (
            move_of(node) is Move.CONCAT
            and node.attrs["dim"] not in first
            and all(o == first for o in others)
        ):
            return first
        raise UnsupportedProgram(f"expected tiles that a loop divides in '{node.op}', got ragged ones")
