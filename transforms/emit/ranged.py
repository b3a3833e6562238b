"""Kernels for ranges of extents: their source, which takes the extents as arguments, and their interface."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.errors import UnsupportedProgram
from superopt.extent import Extent, at
from superopt.program import Value, power_of_two
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.verify.ranges import Family, Point, RangeRecord

MOST_ELEMENTS = 2**31 - 1
"""Of a tensor, so that kernels compute offsets with 32 bits at every extent."""


@dataclass(frozen=True)
class Ranged:
    """What kernels for a range were proved to be; shapes of the inputs and outputs depend on the extents."""

    record: RangeRecord
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def ranged_interface(family: Family, record: RangeRecord) -> Ranged:
    """The record with the program's inputs and outputs."""
    original, _ = family.at(_named(family, family.extents))
    return Ranged(record, tuple(original.inputs), tuple(original.outputs))


def written(family: Family) -> EmittedProgram:
    """The kernels with the extents as their last arguments, called as the axes.

    Raises UnsupportedProgram where what is written depends on the extents in another way, and for tensors that
    are too large for offsets of 32 bits at the largest extents.
    """
    emitted = emit_program(family.at(_named(family, family.extents))[1])
    # As odd, and padded to the same power of two: anything that differs then is not an expression of the extents.
    others = [
        [n for n in range(extent - 2, power_of_two(extent) // 2, -2) if n > 1] or [extent]
        for extent in family.extents
    ]
    points = {tuple(near[end] for near in others) for end in (0, -1)}
    points |= {(*family.extents[:i], near[-1], *family.extents[i + 1 :]) for i, near in enumerate(others)}
    for other in sorted(points - {family.extents}):
        again = emit_program(family.at(_named(family, other))[1])
        if (again.kernels_source, again.launcher_source) != (emitted.kernels_source, emitted.launcher_source):
            raise UnsupportedProgram("expected kernels whose text is the same for all extents, got others")
    most = {axis.name: axis.high for axis in family.axes}
    sizes = [at(p.type.elements, most) for kernel in emitted.kernels for p in kernel.parameters]
    if "tl.int64" in emitted.kernels_source or max(sizes, default=0) > MOST_ELEMENTS:
        raise UnsupportedProgram(f"expected tensors of at most {MOST_ELEMENTS} elements, got larger ones")
    return emitted


def _named(family: Family, extents: Point) -> Point:
    return tuple(Extent(n, axis.name) for n, axis in zip(extents, family.axes, strict=True))
