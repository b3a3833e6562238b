"""The exact relation as the decision where a program and a mutant of it agree: `--difference=relation`."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from superopt.nests import Array
from superopt.program import KernelGraph
from superopt.transforms.derivation.mutants.points import Undecided
from superopt.transforms.derivation.mutants.region import Places, Region
from superopt.verify import relation

if TYPE_CHECKING:
    import islpy as isl

# Positions, along the dimensions that matter, that are looked at one by one, and that are listed as boxes.
_MOST_COUNTED, _MOST_POSITIONS = 1 << 26, 1 << 18


def difference(source: KernelGraph, mutant: KernelGraph) -> Region:
    """The positions of the only output where the two differ, by `superopt.verify.relation`.

    Raises Undecided where that abstains.
    """
    found = relation.difference(source, mutant)
    if isinstance(found, relation.Abstained):
        raise Undecided(found.reason)
    (output,), (positions,) = source.outputs, found.outputs
    return _region(positions, output.shape)


def _region(positions: isl.Set, shape: tuple[int, ...]) -> Region:
    """Disjoint boxes that hold exactly these positions, or, where they are many, how many these are."""
    import islpy as isl

    dims = isl.dim_type.set
    names = ", ".join(f"d{d}" for d in range(len(shape)))
    matter: list[int] = []
    for d, extent in enumerate(shape):
        anywhere = isl.Set.read_from_str(positions.get_ctx(), f"{{ [{names}] : 0 <= d{d} < {extent} }}")
        if not positions.project_out(dims, d, 1).insert_dims(dims, d, 1).intersect(anywhere) <= positions:
            matter.append(d)
    for d in reversed(range(len(shape))):
        if d not in matter:
            positions = positions.project_out(dims, d, 1)
    extents = tuple(shape[d] for d in matter)
    if math.prod(extents) > _MOST_COUNTED:
        raise Undecided(f"expected at most {_MOST_COUNTED} positions, got {math.prod(extents)}")
    wrong = relation.members(positions, extents)
    if wrong.sum() > _MOST_POSITIONS:
        rest = math.prod(shape) // math.prod(extents)
        return Region(shape, (), int(wrong.sum()) * rest, listed=False)
    along = [_alike(wrong, i) for i in range(len(matter))]
    boxes: list[tuple[Places, ...]] = []
    for combined in itertools.product(*along):
        if wrong[tuple(places[0] for places in combined)]:
            box = dict(zip(matter, combined, strict=True))
            boxes.append(tuple(box.get(d, tuple(range(e))) for d, e in enumerate(shape)))
    return Region(shape, tuple(boxes), sum(math.prod(map(len, box)) for box in boxes))


def _alike(wrong: Array, dim: int) -> list[Places]:
    """The places along `dim`, those together at which the same is wrong."""
    rows = np.moveaxis(wrong, dim, 0).reshape(wrong.shape[dim], -1)
    label = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    return [tuple(np.flatnonzero(label == i).tolist()) for i in range(label.max() + 1)]
