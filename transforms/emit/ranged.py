"""Kernels for a range of one extent: their source, which takes the extent as an argument, and their interface."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.errors import UnsupportedProgram
from superopt.extent import Extent
from superopt.program import Value, power_of_two
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.verify.ranges import Family, RangeRecord

MOST_ELEMENTS = 2**31 - 1
"""Of a tensor, so that kernels compute offsets with 32 bits at every extent."""


@dataclass(frozen=True)
class Ranged:
    """What kernels for a range were proved to be; shapes of the inputs and outputs depend on the extent."""

    record: RangeRecord
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def ranged_interface(family: Family, record: RangeRecord) -> Ranged:
    """The record with the program's inputs and outputs."""
    original, _ = family.at(Extent(family.extent, record.name))
    return Ranged(record, tuple(original.inputs), tuple(original.outputs))


def written(family: Family, name: str) -> EmittedProgram:
    """The kernels with the extent as their last argument, called `name`.

    Raises UnsupportedProgram where what is written depends on the extent in another way.
    """
    emitted = emit_program(family.at(Extent(family.extent, name))[1])
    # As odd, and padded to the same power of two: anything that differs then is not an expression of the extent.
    others = [n for n in range(family.extent - 2, power_of_two(family.extent) // 2, -2) if n > 1]
    for other in (others[0], others[-1]) if others else ():
        again = emit_program(family.at(Extent(other, name))[1])
        if (again.kernels_source, again.launcher_source) != (emitted.kernels_source, emitted.launcher_source):
            raise UnsupportedProgram("expected kernels whose text is the same for all extents, got others")
    if "tl.int64" in emitted.kernels_source:
        raise UnsupportedProgram(f"expected tensors of at most {MOST_ELEMENTS} elements, got larger ones")
    return emitted
