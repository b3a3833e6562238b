"""The model of a program's rounding that tolerances come from (`superopt.numerics.checking`)."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from superopt.numerics.checking import accumulated, signs
from superopt.verify.domains import Extern, FloatDomain, Tensor


class RoundingModel(FloatDomain):
    """fp32, results rounded to their dtypes; sums are those of fp64, off by what fp32 may lose in them.

    What a bundle's `run.py` evaluates with PyTorch. `draw` numbers the draws of what is lost. Opaque operations
    are computed by `extern`.
    """

    def __init__(self, *, draw: int = 0, extern: Extern | None = None) -> None:
        super().__init__(faithful=True, extern=extern)
        self._draw = draw
        self._exact = FloatDomain()

    @override
    def contract(self, a: Tensor, b: Tensor) -> Tensor:
        (total,) = self._exact.contract(a, b).planes
        with np.errstate(all="ignore"):
            # One digit of it is enough.
            magnitude = np.matmul(*(np.abs(self._numbers(t)) for t in (a, b)))
            return self.tensor(accumulated(total, magnitude, signs(total.shape, self._draw)))

    @override
    def reduce(self, combiner: str, a: Tensor) -> Tensor:
        if combiner != "add":
            return super().reduce(combiner, a)
        (total,) = self._exact.reduce(combiner, a).planes
        with np.errstate(all="ignore"):
            magnitude = np.abs(self._numbers(a)).sum(axis=-1)
            return self.tensor(accumulated(total, magnitude, signs(total.shape, self._draw)))
