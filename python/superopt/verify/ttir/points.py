"""Random points of the fields at which kernels run: constants there are those that Triton holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from superopt.errors import NotEquivalent
from superopt.verify.domains import FLOAT_PRIMITIVES, Array, Tensor
from superopt.verify.fields import FormalField, ImageField
from superopt.verify.infinities import Extended
from superopt.verify.primes import Primes

ATTEMPTS = 4


class _Fp32Constants(ImageField):
    """Constants as Triton holds them, and what is computed from constants alone as Triton folds it: in fp32."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        self._numbers: dict[int, float] = {}  # by first component
        super().__init__(*given, **settings)

    def constant(self, value: float | Array) -> Tensor:
        rounded = np.asarray(value, np.float32).astype(np.float64)
        made = super().constant(rounded)
        if rounded.ndim == 0:
            self._numbers[int(made.planes[0])] = float(rounded)
        return made

    def apply(self, primitive: str, *operands: Tensor) -> Tensor:
        numbers = [self._number(t) for t in operands]
        if None not in numbers:
            with np.errstate(all="ignore"):
                found = np.float32(FLOAT_PRIMITIVES[primitive](*map(np.float64, numbers)))
            if np.isfinite(found):
                shape = np.broadcast_shapes(*(t.shape for t in operands))
                return self.move(lambda x: np.broadcast_to(x, shape), self.constant(float(found)))
        return super().apply(primitive, *operands)

    def _number(self, t: Tensor) -> float | None:
        """The constant that every element is."""
        first = t.planes[0]
        if not first.size or (found := self._numbers.get(int(first.flat[0]))) is None:
            return None
        return found if bool((first == first.flat[0]).all()) else None


class ImageTriton(_Fp32Constants, ImageField):
    """The field that kernels run over."""


class _FormalTriton(_Fp32Constants, FormalField):
    pass


def at_some_point(
    formal: bool,
    seed: object,
    primes: Primes,
    test: Callable[[Extended], None],
    *,
    lattice: Literal["free", "order"] = "order",
) -> None:
    """One random point, with infinities; another where a denominator vanishes by chance.

    `lattice` says how `max` and `min` are interpreted where exponentials are not formal.
    """
    for attempt in range(ATTEMPTS):
        point = ("ttir", seed, attempt)
        try:
            test(
                Extended(
                    _FormalTriton(point, primes=primes)
                    if formal
                    else ImageTriton(point, lattice=lattice, primes=primes)
                )
            )
        except ZeroDivisionError:
            continue
        return
    raise NotEquivalent(f"expected denominators that do not vanish, got zero at {ATTEMPTS} random points")
