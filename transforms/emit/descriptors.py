"""Tensor descriptors: tiles that the copy engine of sm_90 and later fetches by their coordinates (TMA).

    x_desc = tl.make_tensor_descriptor(x_ptr, [4096, 512], [512, 1], [64, 64])
    x = x_desc.load([m * 64, k * 64])

A descriptor says where a tensor is, its extents, strides and a box; the hardware computes addresses, fetches the
box and puts zeros where it reaches past the tensor. The hardware's requirements (CUDA driver API,
cuTensorMapEncodeTiled: ranks, alignment, boxes) are in `describe`, which alone decides which loads may use one.
The descriptor covers the dimensions that the tile has; the others only move its base.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from superopt.program import DTYPE_BYTES, Load, Loop, LoopVar, TileProgram, Window, within_loops
from superopt.transforms.emit.padding import Padding

ALIGNMENT = 16  # bytes: the base, every stride but the last, where a box starts along the last dimension
RANKS = range(2, 6)
MOST_BOX = 256  # elements of a box along one dimension
MOST_EXTENT = 2**31 - 1  # coordinates are 32-bit


@dataclass(frozen=True)
class Descriptor:
    """A descriptor in front of all loops, and the coordinates that a load gives it.

    `dims` are the tensor's dimensions that it covers; `base` holds the windows of the others, by dimension.
    """

    dims: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    base: tuple[tuple[int, Window], ...]
    coordinates: tuple[Window, ...]


def describe(
    load: Load, program: TileProgram, axes: Padding, loops: Mapping[LoopVar, Loop]
) -> Descriptor | None:
    """The descriptor that `load` may use, or None.

    Guards: an input in memory, which nobody stores to while the copy engine reads it; 2 to 5 dimensions; the last
    contiguous; the other strides, the base and the start of a box along the last dimension multiples of 16 bytes;
    a box of at least 16 bytes along the last dimension, and of at most 256 elements along any; every element of
    the box is wanted, or past the tensor's edge, where the hardware writes the same zero as a mask.
    """
    buffer = load.buffer
    if buffer not in program.params[: program.n_inputs] or not buffer.in_memory:
        return None
    extents = buffer.type.shape
    dims = axes.live(load.result)
    if len(dims) not in RANKS or max(extents) > MOST_EXTENT:
        return None
    size = DTYPE_BYTES[buffer.type.dtype]
    strides = [math.prod(extents[d + 1 :]) for d in range(len(extents))]
    box = tuple(axes.pad(load.result, d) for d in dims)
    last = dims[-1]
    if strides[last] != 1 or any(strides[d] * size % ALIGNMENT for d in dims[:-1]):
        return None
    if max(box) > MOST_BOX or box[-1] * size < ALIGNMENT:
        return None
    for d, window in enumerate(load.windows):
        if d == last:
            aligned = _multiple(window, size, loops)
        elif d in dims:
            aligned = True  # a coordinate, whatever it is
        else:
            moving = any(not loops[var].parallel for var, _ in window.terms)
            aligned = not moving and _multiple(window, strides[d] * size, loops)
        if not aligned:
            return None
    for d, pad in zip(dims, box, strict=True):
        window = load.windows[d]
        past_the_edge = not window.terms and window.base + window.size == extents[d]
        if window.stride != 1 or (pad > window.size and not past_the_edge):
            return None
    return Descriptor(
        dims,
        tuple(extents[d] for d in dims),
        tuple(strides[d] for d in dims),
        box,
        tuple((d, w) for d, w in enumerate(load.windows) if d not in dims),
        tuple(load.windows[d] for d in dims),
    )


def described_loads(program: TileProgram, axes: Padding) -> dict[Load, Descriptor]:
    """The loads that use a descriptor: those in loops, where one descriptor serves many trips."""
    if not program.descriptors:
        return {}
    found: dict[Load, Descriptor] = {}
    for statement, around in within_loops(program.body):
        if isinstance(statement, Load) and not all(loop.parallel for loop in around):
            made = describe(statement, program, axes, {loop.var: loop for loop in around})
            if made is not None:
                found[statement] = made
    return found


def _multiple(window: Window, index_bytes: int, loops: Mapping[LoopVar, Loop]) -> bool:
    """Whether a window always starts at a multiple of 16 bytes, `index_bytes` being those of one index."""
    starts = [window.base]
    for var, scale in window.terms:
        starts += [scale * loops[var].start, scale * loops[var].step]
    return all(n * index_bytes % ALIGNMENT == 0 for n in starts)
