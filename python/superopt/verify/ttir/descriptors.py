"""Tensor descriptors as the copy engine accepts them, and the box of a tensor that a load fetches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.verify.domains import Array
from superopt.verify.ttir.parser import Operation
from superopt.verify.ttir.values import Descriptor, Held, Pointer, integers

# Limits of the copy engine: alignment in bytes, and the elements of a box along one dimension.
DESCRIPTOR_ALIGNMENT, MOST_BOX = 16, 256


def described(
    op: Operation, base: Pointer, numbers: Sequence[Held], size: int | None, where: str
) -> Descriptor:
    """The descriptor of a tensor at `base` with `numbers`, its extents and strides; elements have `size` bytes.

    Raises IllegalProgram for one that the copy engine does not accept.
    """
    rank = len(numbers) // 2
    extents, strides = ([integers(x) for x in part] for part in (numbers[:rank], numbers[rank:]))
    box = op.result_type.shape
    if base.buffer.writable or any(k != "padding" for k in op.attrs) or size is None:
        raise _unsupported(where, "a descriptor of memory that is not an input")
    if op.attrs.get("padding", "1").split(":")[0].strip() != "1":
        raise _unsupported(where, "a descriptor with another padding than zero")
    if len(box) != rank or not 2 <= rank <= 5:
        raise IllegalProgram(f"{where}: expected a descriptor of 2 to 5 dimensions, got {rank}")
    aligned = all((x * size % DESCRIPTOR_ALIGNMENT == 0).all() for x in (base.offsets, *strides[:-1]))
    if not aligned or (strides[-1] != 1).any():
        raise IllegalProgram(
            f"{where}: expected a descriptor of rows that are contiguous and begin at multiples of "
            f"{DESCRIPTOR_ALIGNMENT} bytes, got others"
        )
    if max(box) > MOST_BOX or box[-1] * size < DESCRIPTOR_ALIGNMENT or any((x < 1).any() for x in extents):
        raise IllegalProgram(f"{where}: expected a descriptor's box, got {box}")
    return Descriptor(base, tuple(extents), tuple(strides), box)


def boxed(
    op: Operation,
    first: Descriptor,
    at: Sequence[Held],
    active: Array,
    compared: Callable[[Array, Array], None],
    where: str,
) -> tuple[Pointer, Array]:
    """The addresses of the box at the coordinates `at`, and which of them are inside the tensor.

    `active` marks the instances that load; `compared` is told which numbers decide what is inside.
    """
    rank = len(first.box)
    if len(at) != rank:
        raise IllegalProgram(f"{where}: expected {rank} coordinates, got {len(at)}")
    if op.result_type.shape != first.box:
        raise _unsupported(where, "a load of another shape than its descriptor's box")
    column = (-1, *(1,) * rank)
    offsets, lanes = first.base.offsets.reshape(column), active.reshape(column)
    for d, (start, extent, stride) in enumerate(zip(at, first.shape, first.strides, strict=True)):
        steps = np.arange(first.box[d]).reshape(*(-1 if i == d + 1 else 1 for i in range(rank + 1)))
        index = integers(start).reshape(column) + steps
        compared(index, np.zeros_like(index))
        compared(index, extent.reshape(column))
        lanes = lanes & (index >= 0) & (index < extent.reshape(column))
        offsets = offsets + index * stride.reshape(column)
    common = np.broadcast_shapes(offsets.shape, lanes.shape)
    return Pointer(first.base.buffer, offsets), np.broadcast_to(lanes, common)


def _unsupported(where: str, what: str) -> UnsupportedProgram:
    return UnsupportedProgram(f"{where}: expected an operation that can be verified, got {what}")
