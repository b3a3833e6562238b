"""The model of a program's rounding that tolerances come from (`superopt.numerics.checking`)."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from superopt.numerics.checking import (
    LARGEST,
    LEAST,
    accumulated,
    lost,
    other_neighbour,
    overflowing,
    stochastic,
)
from superopt.verify.domains import Array, Extern, FloatDomain, Tensor, round_to


class RoundingModel(FloatDomain):
    """fp32, results rounded to their dtypes; sums are those of fp64, off by what fp32 may lose in them.

    What a bundle's `run.py` evaluates with PyTorch. `draw` numbers the draws of what is lost; the first rounds
    to the nearest number. Opaque operations are computed by `extern`.
    """

    def __init__(self, *, draw: int = 0, extern: Extern | None = None) -> None:
        super().__init__(faithful=True, extern=extern)
        self._draw = draw
        self._drawn = 0
        self._exact = FloatDomain()

    def _lost(self, shape: tuple[int, ...]) -> Array:
        self._drawn += 1
        return lost(shape, self._draw, self._drawn)

    @override
    def stored(self, a: Tensor, dtype: str) -> Tensor:
        (x,) = a.planes
        if a.dtype == dtype or dtype not in LARGEST:
            return super().stored(a, dtype)
        with np.errstate(all="ignore"):
            nearest = round_to(x, dtype)
            if self._draw and dtype in LEAST:
                other = round_to(other_neighbour(x, nearest, dtype, np.where), dtype)
                nearest = stochastic(x, nearest, other, self._lost(x.shape), np.where)
            if not np.abs(nearest).max(initial=0) <= LARGEST[dtype] / 2:  # NaN hides the largest
                nearest = np.where(overflowing(nearest, dtype), nearest * np.float32(np.inf), nearest)
        return Tensor((nearest,), dtype=dtype)

    @override
    def contract(self, a: Tensor, b: Tensor) -> Tensor:
        (total,) = self._exact.contract(a, b).planes
        with np.errstate(all="ignore"):
            # One digit of it is enough.
            magnitude = np.matmul(*(np.abs(self._numbers(t)) for t in (a, b)))
            return self.tensor(accumulated(total, magnitude, self._lost(total.shape)))

    @override
    def reduce(self, combiner: str, a: Tensor) -> Tensor:
        if combiner != "add":
            return super().reduce(combiner, a)
        (total,) = self._exact.reduce(combiner, a).planes
        with np.errstate(all="ignore"):
            magnitude = np.abs(self._numbers(a)).sum(axis=-1)
            return self.tensor(accumulated(total, magnitude, self._lost(total.shape)))
