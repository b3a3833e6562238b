"""Which dimensions of a tile program's values share an axis, and how far each is padded.

Triton's tensors have powers of two as extents, and its matrix products at least 16 along each. Dimensions
that an operator iterates together need the same padding, so they form classes. A class of extent 1 that no
product needs is dropped: a (16, 1) tile is a vector of 16. A few rows that a block computes before it multiplies
them are repeated there, not computed 16 at a time: their class is not the product's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from superopt.axes import Classes, same_dimensions, walked_together
from superopt.operators import Move, is_contraction, is_conversion, is_elementwise, move_of, nest_of
from superopt.program import Buffer, Compute, Load, Store, TileProgram, Value, power_of_two
from superopt.transforms.schedule.triton_limits import SMALLEST_DOT

Owner: TypeAlias = "Value | Buffer"
_Key: TypeAlias = "tuple[Owner, int]"


class Padding:
    """The axis classes of a program, and the padded extent of each."""

    def __init__(self, program: TileProgram) -> None:
        self._classes: Classes[_Key] = Classes()
        self._products: list[_Key] = []
        self._computed = set[Value]()
        for statement in program.statements():
            if isinstance(statement, Compute):
                self._compute(statement)
            elif isinstance(statement, (Load, Store)) and statement.buffer.is_tile:
                value = statement.result if isinstance(statement, Load) else statement.value
                for d in range(len(value.shape)):
                    self._classes.join((value, d), (statement.buffer, d))
        self._dot = {self._classes.find(k) for k in self._products}

    def pad(self, owner: Owner, dim: int) -> int:
        """Extent of the dimension in Triton: at least its own, a power of two."""
        extent = owner.type.shape[dim]
        wide = self._classes.find((owner, dim)) in self._dot
        return max(power_of_two(extent), SMALLEST_DOT if wide else 1)

    def live(self, owner: Owner) -> tuple[int, ...]:
        """The dimensions that remain in Triton's tensor."""
        return tuple(d for d in range(len(owner.type.shape)) if self.pad(owner, d) > 1)

    def _few(self, product: Compute) -> set[_Key]:
        """The dimensions of few rows, or columns, that the block computes for a product and that it sums not."""
        nest = nest_of(product)
        assert nest is not None
        return {
            (value, d)
            for value, maps in zip(product.operands, nest.operands, strict=True)
            if value in self._computed
            for d in (len(value.shape) - 2, len(value.shape) - 1)
            if maps[d].dim not in nest.reductions and 1 < value.shape[d] < SMALLEST_DOT
        }

    def _compute(self, statement: Compute) -> None:
        same = is_conversion(statement) or bool(statement.bounds)  # as what is loaded, or computed
        if statement.operands[0] in self._computed if same else is_elementwise(statement):
            self._computed.add(statement.result)
        few = self._few(statement) if is_contraction(statement) else set[_Key]()
        if move_of(statement) is Move.RESHAPE:
            (source,), result = statement.operands, statement.result
            for d, e in same_dimensions(source.shape, result.shape) or ():
                self._classes.join((source, d), (result, e))
        elif move_of(statement) is not Move.SLICE:
            for a, b in walked_together(statement):
                if a not in few and b not in few:
                    self._classes.join(a, b)
        if is_contraction(statement):
            (a, b), rank = statement.operands, len(statement.result.shape)
            sides = [(v, len(v.shape) - i) for v in (a, b) for i in (1, 2)]
            self._products += [side for side in sides if side not in few]
            self._products += [(statement.result, rank - i) for i in (1, 2)]


def expansion(have: Sequence[int], want: Sequence[int]) -> str:
    """The subscript that gives a tensor with dimensions `have` those of `want` as well: `[:, None]`."""
    if list(have) == list(want) or not have:
        return ""
    return "[" + ", ".join(":" if d in have else "None" for d in want) + "]"
