"""Arithmetic modulo a prime below 2^20 in numpy: for tests that only have to be quick."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from superopt.transforms.core import _field
from superopt.verify.domains import Array


class SmallField:
    """_Arithmetic modulo a prime below 2^20, in numpy; the interface of `_field.Field`."""

    DEPTH = 8192  # products below 2^40, so that many sum exactly in float64

    def __init__(self, modulus: int, large: int) -> None:
        """`large` is a prime of 61 or 62 bits; random numbers come from its field, reduced."""
        self.modulus = modulus
        self._prime = large

    @cached_property
    def _large(self) -> Any:
        return _field.Field(self._prime)

    def add(self, a: Array, b: Array) -> Array:
        """(a + b) mod p; likewise below."""
        return (a + b) % np.uint64(self.modulus)

    def sub(self, a: Array, b: Array) -> Array:
        """See `add`."""
        return (a + (np.uint64(self.modulus) - b)) % np.uint64(self.modulus)

    def mul(self, a: Array, b: Array) -> Array:
        """See `add`."""
        return (a * b) % np.uint64(self.modulus)

    def neg(self, a: Array) -> Array:
        """See `add`."""
        return (np.uint64(self.modulus) - a) % np.uint64(self.modulus)

    def inverse(self, a: Array) -> Array:
        """By Fermat; raises ZeroDivisionError where an element is zero."""
        if not a.all():
            raise ZeroDivisionError("division by zero in the field")
        return self._power(a, np.full(a.shape, self.modulus - 2, np.uint64))

    def power(self, base: int, exponents: Array) -> Array:
        """`base` to the exponents."""
        return self._power(np.full(exponents.shape, base, np.uint64), exponents)

    def _power(self, base: Array, exponents: Array) -> Array:
        result, rest = np.ones_like(base), exponents.copy()
        while rest.any():
            result = np.where(rest & np.uint64(1), self.mul(result, base), result)
            base, rest = self.mul(base, base), rest >> np.uint64(1)
        return result

    def sum(self, a: Array) -> Array:
        """Over the last dimension."""
        return a.sum(axis=-1, dtype=np.uint64) % np.uint64(self.modulus)

    def matmul(self, a: Array, b: Array, threads: int = 1) -> Array:
        """(b, m, k) x (b, k, n), by float64 products of bounded depth."""
        total = np.zeros((a.shape[0], a.shape[1], b.shape[2]), np.float64)
        for k in range(0, a.shape[2], self.DEPTH):
            part = slice(k, k + self.DEPTH)
            product = np.matmul(a[:, :, part].astype(np.float64), b[:, part].astype(np.float64))
            total = (total + product % self.modulus) % self.modulus
        return total.astype(np.uint64)

    def uniform(self, key: int, count: int) -> Array:
        """Independent residues, uniform up to 2^-40."""
        return self._large.uniform(key, count) % np.uint64(self.modulus)

    def keyed(self, key: int, a: Array) -> Array:
        """A random function of the residues."""
        return self._large.keyed(key, np.asarray(a, order="C")) % np.uint64(self.modulus)
