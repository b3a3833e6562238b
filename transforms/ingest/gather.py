"""Gathers at constant places: those that a few strides give as slices, also where what they take overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np

from superopt.program import Attr, Value

# Slices that overlap and are written one beside the other.
_MOST_SLICES = 64

Strides: TypeAlias = list[tuple[int, int]]
"""Counts and distances, outermost first: places `start + sum of i * distance`, in row-major order."""


class Builder(Protocol):
    """What writes the slices: a `GraphBuilder`."""

    def emit(self, op: str, *operands: Value, **attrs: Attr) -> Value:
        """The result of an operator."""
        ...

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """`x` in another shape."""
        ...

    def slice(self, x: Value, dim: int, start: int, size: int, stride: int = 1) -> Value:
        """Elements along one dimension."""
        ...


def strides(places: Sequence[int]) -> Strides | None:
    """The counts and distances of places; None where these do not ascend, or have none."""
    starts, found = np.asarray(places), Strides()
    while starts.size > 1:
        steps = np.diff(starts)
        step, changes = int(steps[0]), np.flatnonzero(steps != steps[0])
        count = int(changes[0]) + 1 if changes.size else starts.size
        if step < 1 or starts.size % count:
            return None
        table = starts.reshape(-1, count)
        if (table != table[:, :1] + step * np.arange(count)).any():
            return None
        found.insert(0, (count, step))
        starts = table[:, 0]
    return found


def take_strided(build: Builder, x: Value, dim: int, start: int, found: Strides) -> Value | None:
    """Elements of `x` along `dim` at these places; None where that would take more slices than `_MOST_SLICES`.

    Parts that do not overlap are blocks of a reshape. Windows as long as a few of their distances are that many
    slices of blocks, one beside the other; of others, there is a slice for each place of the window.
    """
    (count, step), *inner = found or [(1, 1)]
    if not inner:
        return build.slice(x, dim, start, count, step)
    shape, reach = x.shape, sum((n - 1) * s for n, s in inner)
    size = int(np.prod([n for n, _ in inner]))

    def apart(value: Value, *parts: int) -> Value:
        return build.reshape(value, (*shape[:dim], *parts, *shape[dim + 1 :]))

    if reach < step and start + count * step <= shape[dim]:
        blocks = apart(build.slice(x, dim, start, count * step), count, step)
        made = take_strided(build, blocks, dim + 1, 0, inner)
        return made and apart(made, count * size)
    ((places, apart_by),) = inner[:1]
    times, rest = divmod(places, step)
    in_blocks = apart_by == 1 and not rest
    if len(inner) > 1 or (times if in_blocks else places) > _MOST_SLICES:
        return None
    if in_blocks:
        blocks = apart(build.slice(x, dim, start, (count + times - 1) * step), count + times - 1, step)
        slices = [build.slice(blocks, dim, i, count) for i in range(times)]
    else:
        slices = [
            apart(build.slice(x, dim, start + apart_by * i, count, step), count, 1) for i in range(places)
        ]
    return apart(build.emit("concat", *slices, dim=dim + 1), count * size)
