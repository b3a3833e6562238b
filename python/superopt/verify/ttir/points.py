"""Random points of the fields at which kernels run: constants there are those that Triton holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from superopt.errors import NotEquivalent
from superopt.verify.domains import FLOAT_PRIMITIVES, Array, Tensor
from superopt.verify.fields import FormalField, ImageField
from superopt.verify.infinities import Extended
from superopt.verify.maxima import Maxima
from superopt.verify.primes import Primes

ATTEMPTS = 4
# Numbers that are joined, counted for each maximum: 1 to 50 ns each. Running maxima of 1,024 rows of 4,096
# scores, by tiles of 64, have 10^8.
MOST_JOINED = 1 << 30


class _Fp32Constants(ImageField):
    """Constants as Triton holds them, and what is computed from constants alone as compilers fold it: in fp32.

    Numbers that turn out to be constants, as x - x, stay what they are: no compiler folds those.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        self._numbers: dict[int, float] = {}  # by first component
        super().__init__(*given, **settings)
        self.lattices.most_joined = MOST_JOINED

    def constant(self, value: float | Array) -> Tensor:
        rounded = np.asarray(value, np.float32).astype(np.float64)
        made = super().constant(rounded)
        if rounded.ndim == 0:
            self._numbers[int(made.planes[0])] = float(rounded)
        return made

    def apply(self, primitive: str, *operands: Tensor) -> Tensor:
        numbers = [self._number(t) for t in operands]
        if primitive == "where" and numbers[1] == numbers[2] is not None:
            numbers = [1.0, *numbers[1:]]
        if None not in numbers:
            with np.errstate(all="ignore"):
                found = np.float32(FLOAT_PRIMITIVES[primitive](*map(np.float64, numbers)))
            if np.isfinite(found):
                shape = np.broadcast_shapes(*(t.shape for t in operands))
                return self.move(lambda x: np.broadcast_to(x, shape), self.constant(float(found)))
        return super().apply(primitive, *operands)

    def _number(self, t: Tensor) -> float | None:
        """The constant that every element is by its making."""
        first = t.planes[0]
        if (
            not t.degree.constant
            or not first.size
            or (found := self._numbers.get(int(first.flat[0]))) is None
        ):
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
    first: tuple[object, Primes] | None = None,
) -> Maxima:
    """One random point, with infinities (`first`, if given); another where a denominator vanishes by chance.

    Maxima and minima are sets of what they join. Where the sets need more memory than they may take, one random
    order picks, which seldom tells that a number is left out. Returns which of both told, if there were any.
    """
    found: Extended | None = None

    def at(point: object, over: Primes, lattice: Literal["free", "order"]) -> None:
        nonlocal found
        field = (_FormalTriton if formal else ImageTriton)(point, lattice=lattice, primes=over)
        test(found := Extended(field))

    points = [(("ttir", seed, attempt), primes) for attempt in range(ATTEMPTS)]
    for point, over in points if first is None else [first, *points]:
        try:
            try:
                at(point, over, "free")
            except MemoryError:
                at(point, over, "order")
        except ZeroDivisionError:
            continue
        assert found is not None
        if not found.field.assumed & {"max", "min"}:
            return "none"
        return "sets" if found.field.lattice == "free" else "order"
    raise NotEquivalent(f"expected denominators that do not vanish, got zero at {ATTEMPTS} random points")
