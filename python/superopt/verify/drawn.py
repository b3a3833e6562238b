"""Inputs of a field that are drawn where they are read: a large one takes no memory."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from superopt.verify.degrees import VARIABLE
from superopt.verify.domains import Array, Tensor
from superopt.verify.fields import FormalField, ImageField, ScreenField

# Elements from which on an input is drawn where it is read.
LEAST = 1 << 16


class Drawn:
    """`count` residues of a field, in one dimension, as `field.uniform(key, count)` gives them.

    Stands for an array: it is indexed by arrays of places, or turned into one whole.
    """

    dtype = np.dtype(np.uint64)
    ndim = 1

    def __init__(self, field: Any, key: int, count: int) -> None:
        self.field, self.key, self.size = field, key, count
        self.shape = (count,)

    def __getitem__(self, places: Array) -> Array:
        return self.field.uniform_at(self.key, np.ascontiguousarray(places, np.uint64))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.field.uniform(self.key, self.size)


def drawn(field: ImageField, name: object, shape: tuple[int, ...], *, exponent: bool) -> Tensor:
    """`field.random`, flat, and drawn where it is read if it is large."""
    count = math.prod(shape)
    if count < LEAST or isinstance(field, FormalField | ScreenField):
        whole = field.random(name, shape, exponent=exponent)
        return field.move(lambda x: np.ascontiguousarray(x).reshape(-1), whole)
    planes = tuple(
        Drawn(f, key, count)
        for f, key in zip(field.fields, field.keys(name, exponent=exponent), strict=False)
    )
    return Tensor(cast("tuple[Array, ...]", planes), VARIABLE)
