"""Products of large matrices over a field of 61 or 62 bits by the BLAS: exact, faster than 128-bit arithmetic.

Residues are cut into three digits (`field/limbs.hpp`) of at most 20 bits and a sign. float64 adds up to
DEPTH of their products exactly, in whatever order the BLAS uses. So certificates also rely on the BLAS:
`test/unit/test_field.py` compares it with the other product.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from superopt.verify.domains import Array

# Below this size along any side, cutting operands and joining products costs more than it saves.
LEAST = 128
_ROWS, _COLUMNS = 512, 256


def worthwhile(a: Array, b: Array) -> bool:
    """Whether `product` is faster, for shapes (batch, m, k) and (batch, k, n)."""
    return min(a.shape[1], a.shape[2], b.shape[2]) >= LEAST


def product(field: Any, depth: int, a: Array, b: Array, threads: int) -> Array:
    """The product over `field` of shapes (batch, m, k) and (batch, k, n), any strides."""
    batch, rows, inner = a.shape
    columns = b.shape[2]
    out = np.zeros((batch, rows, columns), np.uint64)

    def digits(x: Array) -> Array:
        return field.digits(np.asarray(x, order="C"))

    with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
        for i in range(batch):
            for row in range(0, rows, _ROWS):
                for k in range(0, inner, depth):
                    left = digits(a[i, row : row + _ROWS, k : k + depth])

                    def part(column: int, i: int = i, row: int = row, k: int = k, left: Array = left) -> None:
                        right = digits(b[i, k : k + depth, column : column + _COLUMNS])
                        target = out[i, row : row + _ROWS, column : column + _COLUMNS]
                        found = field.join(np.matmul(left, right))
                        target[...] = field.add(np.asarray(target, order="C"), found) if k else found

                    list(pool.map(part, range(0, columns, _COLUMNS)))
    return out
