"""Which dimensions of a tile program's values are one axis, and how far each is padded.

Triton's tensors have powers of two as extents, and its matrix products at least 16 along each. Dimensions
that an operator walks together must be padded alike, so they form classes: `Axes` finds them by union over
the operators' loop nests. A class of extent 1 that no product needs is dropped: a (16, 1) tile is a vector of
16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from superopt.operators import OPERATORS, Move, Nest, is_contraction, move_of, normalize_attrs
from superopt.program import Buffer, Compute, Load, Store, TileProgram, Value, power_of_two

_SMALLEST_DOT = 16

Owner: TypeAlias = "Value | Buffer"
_Key: TypeAlias = tuple[int, int]


def nest_of(statement: Compute) -> Nest | None:
    """The operator's loop nest on these tiles; None for operators that are none."""
    entry = OPERATORS[statement.op]
    if entry.nest is None:
        return None
    return entry.nest([v.shape for v in statement.operands], normalize_attrs(entry, statement.attrs))


def same_dimensions(reshape: Compute) -> list[tuple[int, int]] | None:
    """Pairs of dimensions before and after, where only extents of 1 come and go; None where others change."""
    before, after = reshape.operands[0].shape, reshape.result.shape
    pairs = list(
        zip(
            [d for d, e in enumerate(before) if e > 1],
            [d for d, e in enumerate(after) if e > 1],
            strict=False,
        )
    )
    plain = all(before[d] == after[e] for d, e in pairs)
    return pairs if plain and math.prod(before[d] for d, _ in pairs) == math.prod(before) else None


def reshape_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Which dimensions of a row-major reshape become which: the smallest runs of equal products, in order.

    (1, 71, 4, 64) -> (284, 64) is ([1, 2], [0]) and ([3], [1]); dimensions of extent 1 are in none.
    """
    left = [d for d, e in enumerate(before) if e > 1]
    right = [d for d, e in enumerate(after) if e > 1]
    found: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (x := math.prod(before[d] for d in a)) != (y := math.prod(after[d] for d in b)):
            a, b = ([*a, left.pop(0)], b) if x < y else (a, [*b, right.pop(0)])
        found.append((a, b))
    return found


class Axes:
    """The axis classes of a program."""

    def __init__(self, program: TileProgram) -> None:
        self._parent: dict[_Key, _Key] = {}
        self._products: list[_Key] = []
        self._keep: list[object] = []  # keys hold identities: keep what has one alive
        for statement in program.statements():
            if isinstance(statement, Compute):
                self._compute(statement)
            elif isinstance(statement, (Load, Store)) and statement.buffer.placement != "device":
                value = statement.result if isinstance(statement, Load) else statement.value
                for d in range(len(value.shape)):
                    self._join((id(value), d), (id(statement.buffer), d))
        self._dot = {self._find(k) for k in self._products}

    def pad(self, owner: Owner, dim: int) -> int:
        """Extent of the dimension in Triton: at least its own, a power of two."""
        extent = owner.type.shape[dim]
        wide = self._find((id(owner), dim)) in self._dot
        return max(power_of_two(extent), _SMALLEST_DOT if wide else 1)

    def live(self, owner: Owner) -> tuple[int, ...]:
        """The dimensions that Triton's tensor has."""
        return tuple(d for d in range(len(owner.type.shape)) if self.pad(owner, d) > 1)

    def _compute(self, statement: Compute) -> None:
        self._keep.append(statement)
        if move_of(statement) is Move.RESHAPE:
            for d, e in same_dimensions(statement) or ():
                self._join((id(statement.operands[0]), d), (id(statement.result), e))
            return
        nest = nest_of(statement)
        if nest is None or move_of(statement) is Move.SLICE:
            return
        for value, maps in zip(statement.operands, nest.operands, strict=True):
            for d, index in enumerate(maps):
                if index.dim is not None:
                    self._join((id(value), d), (id(statement), index.dim))
        for d, dim in enumerate(nest.result):
            if dim is not None:
                self._join((id(statement.result), d), (id(statement), dim))
        if is_contraction(statement):
            inner = range(len(nest.extents) - 3, len(nest.extents))
            self._products += [(id(statement), d) for d in inner]

    def _find(self, key: _Key) -> _Key:
        while (parent := self._parent.get(key, key)) != key:
            key = parent
        return key

    def _join(self, a: _Key, b: _Key) -> None:
        self._parent[self._find(a)] = self._find(b)


def expansion(have: Sequence[int], want: Sequence[int]) -> str:
    """The subscript that gives a tensor with dimensions `have` those of `want` as well: `[:, None]`."""
    if list(have) == list(want) or not have:
        return ""
    return "[" + ", ".join(":" if d in have else "None" for d in want) + "]"
