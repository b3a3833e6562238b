"""One value that holds the elements of another in another order: channels last, rows for columns, a flat image.

What programs store between kernels often is; `superopt.verify.pieces` cuts there, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from superopt.operators import infer_type
from superopt.program import Attr, Node, Value
from superopt.verify.domains import Array, Shape

# Dimensions of several elements that are tried in every order; elements that are compared before all are.
_MOST_DIMS, _FIRST = 5, 64


@dataclass(frozen=True)
class Arrangement:
    """The elements of a value in the shape `split`, its dimensions in the order `perm`, in the shape `joined`."""

    split: Shape
    perm: tuple[int, ...]
    joined: Shape

    def __call__(self, elements: Array) -> Array:
        """The elements so arranged."""
        return elements.reshape(self.split).transpose(self.perm).reshape(self.joined)

    def nodes(self, value: Value, result: Value) -> list[Node]:
        """The operators that arrange `value`, the last of which gives `result`."""
        steps: list[tuple[str, dict[str, Attr]]] = []
        if self.split != value.shape:
            steps.append(("reshape", {"shape": self.split}))
        if self.perm != (*range(len(self.perm)),):
            steps.append(("transpose", {"perm": self.perm}))
        if self.joined != tuple(self.split[i] for i in self.perm):
            steps.append(("reshape", {"shape": self.joined}))
        made: list[Node] = []
        for number, (op, attrs) in enumerate(steps, start=1):
            last = number == len(steps)
            to = result if last else Value(infer_type(op, [value.type], attrs))
            made.append(Node(op, (value,), (to,), attrs))
            value = to
        return made


def multiset(elements: Array) -> int:
    """A hash of the elements in any order."""
    mixed = elements.astype(np.uint64, copy=True).ravel()
    with np.errstate(over="ignore"):
        for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9):
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(factor)
        return int(mixed.sum(dtype=np.uint64))


def arrangement(of: tuple[Shape, Array], to: tuple[Shape, Array]) -> tuple[Arrangement, Arrangement] | None:
    """How the first value has to be arranged to be the second one, at their full shapes, and at the reduced ones
    of which the elements are given; None where it is nothing that is tried.
    """
    (full, a), (wanted, b) = of, to
    if math.prod(full) != math.prod(wanted) or a.size != b.size:
        return None
    for perm in _orders(full):
        if _same(a.transpose(perm), b):
            return Arrangement(full, perm, wanted), Arrangement(a.shape, perm, b.shape)
    for perm in _orders(wanted):
        if _same(b.transpose(perm), a):
            back = tuple(sorted(range(len(perm)), key=perm.__getitem__))
            split, small = (tuple(s[i] for i in perm) for s in (wanted, b.shape))
            return Arrangement(split, back, wanted), Arrangement(small, back, b.shape)
    return None


def _orders(shape: Shape) -> Iterator[tuple[int, ...]]:
    """Orders of dimensions; those of one element are last."""
    ones = [i for i, n in enumerate(shape) if n == 1]
    others = [i for i, n in enumerate(shape) if n != 1]
    if len(others) <= _MOST_DIMS:
        for order in itertools.permutations(others):
            yield (*order, *ones)


def _same(a: Array, b: Array) -> bool:
    """Whether the elements are the same in row-major order."""
    first = zip(itertools.islice(a.flat, _FIRST), itertools.islice(b.flat, _FIRST), strict=False)
    return all(x == y for x, y in first) and bool(np.array_equal(a.ravel(), b.ravel()))
