"""Where two programs differ: positions of an output, as boxes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from superopt.nests import Shape

# Positions along one dimension, ascending.
Places: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """A set of positions of a tensor of `shape`: disjoint boxes, each a product of places along the dimensions.

    `count`: how many positions it has. Where they are too many, they are not `listed`, and there are no boxes.
    """

    shape: Shape
    boxes: tuple[tuple[Places, ...], ...]
    count: int
    listed: bool = True

    @property
    def size(self) -> int:
        """How many positions the tensor has."""
        return math.prod(self.shape)

    @property
    def agreement(self) -> float:
        """The share of all positions that are not in it."""
        return 1 - self.count / self.size

    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """True in its boxes, an element for each position."""
        found = np.zeros(self.shape, np.bool_)
        for box in self.boxes:
            found[np.ix_(*box)] = True
        return found

    def slabs(self) -> dict[int, Places]:
        """Places along some dimensions, so that every position of it has one of them in its dimension.

        First those that are wrong wherever the others are; the rest along the one dimension where that takes the
        smallest share.
        """
        wrong = self.mask()
        dims = range(len(self.shape))
        everywhere = [wrong.all(tuple(o for o in dims if o != d)) for d in dims]
        found = [set(np.flatnonzero(places).tolist()) for places in everywhere]
        # Where a box is wrong in every place of a dimension, that says nothing.
        found = [
            set[int]() if len(places) == extent else places
            for places, extent in zip(found, self.shape, strict=True)
        ]
        left = [
            box
            for box in self.boxes
            if not any(places.issuperset(within) for places, within in zip(found, box, strict=True))
        ]
        if left:
            touched = [found[d].union(*(box[d] for box in left)) for d in range(len(self.shape))]
            shares = [len(places) / extent for places, extent in zip(touched, self.shape, strict=True)]
            best = shares.index(min(shares))
            found[best] = touched[best]
        return {d: tuple(sorted(places)) for d, places in enumerate(found) if places}
