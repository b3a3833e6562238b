"""Loads of views on the CPU: elements of an input at sums of multiples and floors of the tile's indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from superopt.program import LoopVar, TensorType, View, Window
from superopt.quasi_affine import Linear
from superopt.transforms.cpu.operators import Source, index_of, window_text
from superopt.transforms.cpu.writer import Writer, memory_type


def viewed(
    writer: Writer,
    view: View,
    source: tuple[str, TensorType] | None,
    windows: Sequence[Window],
    names: dict[LoopVar, str],
) -> Source:
    """What windows cut from a view of `source`, a pointer and its type: 0 where its guard fails, or outside.

    Without a source it is 1 where the guard holds. What is outside is not read, but the first element instead.
    """
    read = view.read
    dims = ", ".join(f"d{d}" for d in range(read.rank))

    def element(point: Sequence[str]) -> str:
        given = ", ".join(
            index_of(writer, window_text(w, p, names)) for w, p in zip(windows, point, strict=True)
        )

        def at(x: Linear) -> str:
            return writer.let(f"affine.apply affine_map<({dims}) -> ({read.text(x)})>({given})")

        def compared(how: str, x: Linear, number: int) -> str:
            limit = writer.let(f"arith.constant {number} : index")
            return writer.let(f"arith.cmpi {how}, {at(x)}, {limit} : index")

        def joined(how: str, sides: Sequence[str], none: str) -> str:
            made = sides[0] if sides else writer.let(f"arith.constant {none}")
            for side in sides[1:]:
                made = writer.let(f"arith.{how} {made}, {side} : i1")
            return made

        cases = [
            joined("andi", [compared("eq" if c.equal else "sge", c.of, 0) for c in every], "true")
            for every in read.guard
        ]
        holds, zero = joined("ori", cases, "false"), writer.number(0.0)
        if source is None:
            return writer.let(f"arith.select {holds}, {writer.number(1.0)}, {zero} : f32")
        name, kind = source
        offset = Linear()
        for d, (x, extent) in enumerate(zip(read.index, kind.shape, strict=True)):
            holds = joined("andi", [holds, compared("ult", x, extent)], "true")
            offset = offset.plus(x, math.prod(kind.shape[d + 1 :]))
        first = writer.let("arith.constant 0 : index")
        safe = writer.let(f"arith.select {holds}, {at(offset)}, {first} : index")
        number = writer.let(f"memref.load {name}[{safe}] : {memory_type(kind.elements, kind.dtype)}")
        number = writer.widened(number, kind.dtype)
        return writer.let(f"arith.select {holds}, {number}, {zero} : f32")

    return Source(element)
