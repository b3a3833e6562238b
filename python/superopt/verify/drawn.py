"""Inputs of a field that are drawn where they are read: a large one takes no memory."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from superopt.verify.degrees import VARIABLE
from superopt.verify.domains import Array, Shape, Tensor
from superopt.verify.fields import FormalField, ImageField, ScreenField

# Elements from which on an input is drawn where it is read.
LEAST = 1 << 16


class Drawn:
    """Residues of a field, in order as `field.uniform(key, size)` gives them.

    Stands for an array: it is indexed by arrays of places, one for each dimension, or turned into one whole.
    """

    dtype = np.dtype(np.uint64)

    def __init__(self, field: Any, key: int, shape: Shape) -> None:
        self.field, self.key, self.shape = field, key, shape
        self.ndim, self.size = len(shape), math.prod(shape)

    def __getitem__(self, places: Array | tuple[Array, ...]) -> Array:
        index = places if isinstance(places, tuple) else (places,)
        if len(index) != self.ndim:
            raise IndexError(f"expected places along {self.ndim} dimensions, got {len(index)}")
        at = index[0] if self.ndim == 1 else np.ravel_multi_index(np.broadcast_arrays(*index), self.shape)
        return self.field.uniform_at(self.key, np.ascontiguousarray(at, np.uint64))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.field.uniform(self.key, self.size).reshape(self.shape)

    def reshape(self, *shape: int) -> Drawn:
        """The same, in another shape of as many elements."""
        made = Drawn(self.field, self.key, shape)
        if made.size != self.size:
            raise ValueError(f"expected {self.size} elements, got shape {shape}")
        return made


def drawn(field: ImageField, name: object, shape: tuple[int, ...], *, exponent: bool) -> Tensor:
    """`field.random`, flat, and drawn where it is read if it is large."""
    count = math.prod(shape)
    if count < LEAST or isinstance(field, FormalField | ScreenField):
        whole = field.random(name, shape, exponent=exponent)
        return field.move(lambda x: np.ascontiguousarray(x).reshape(-1), whole)
    planes = tuple(
        Drawn(f, key, (count,))
        for f, key in zip(field.fields, field.keys(name, exponent=exponent), strict=False)
    )
    return Tensor(cast("tuple[Array, ...]", planes), VARIABLE)
