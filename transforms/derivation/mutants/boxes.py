"""PET's decision where a program and a mutant of it agree (OSDI 2021, section 5): `--difference=boxes`.

A *box* is a set of output positions whose elements are sums over the same points, each of which reads an element
that is an affine function of the position. Two programs that agree at one position of a box, and at one more in
each of its dimensions, agree in all of it (Theorem 1); that they agree at a position is tested on random inputs
in a field (Theorem 2).

Boxes are products of classes of places along each dimension. They are propagated from the inputs, each of which
is one box: a place of a result is in a class with those that read, for every point summed over, from the same
classes of the operand, or outside. Where a reshape joins dimensions, and where an index takes a floor, the places
of a class have one quotient or one remainder, whichever makes fewer classes. Theorem 1 is false without these
cuts. It is false for sums of unlike terms, too: these raise `Undecided`.

This is no proof: what is corrected by it is certified as a whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.axes import reshape_groups
from superopt.nests import Array, Nest
from superopt.operators import OPERATORS, Move, move_of, nest_of, normalize_attrs
from superopt.program import KernelGraph, Node, Value
from superopt.transforms.derivation.mutants.points import Undecided, elements, grid_of
from superopt.transforms.derivation.mutants.region import Places, Region

# Places, and points that one of them reads for, that classes are made of.
_MOST_PLACES = 1 << 22
# Boxes of an output.
_MOST_BOXES = 1 << 16

# For each dimension a label of every place; equal in places of one class.
Classes = list[Array]


def difference(source: KernelGraph, mutant: KernelGraph, seed: int = 0) -> Region:
    """The boxes of the only output in which the two differ somewhere.

    Raises Undecided for programs that are not one sum of products, and those with too many boxes.
    """
    (shape,) = {v.shape for graph in (source, mutant) for v in graph.outputs}
    pairs = zip(classes(source), classes(mutant), strict=True)
    along = [_places(_joint([a, b])) for a, b in pairs]
    if math.prod(map(len, along)) > _MOST_BOXES:
        raise Undecided(f"expected at most {_MOST_BOXES} boxes, got {math.prod(map(len, along))}")
    boxes: list[tuple[Places, ...]] = list(itertools.product(*along))
    points, owners = list[tuple[int, ...]](), list[int]()
    for i, box in enumerate(boxes):
        first = tuple(places[0] for places in box)
        nearby = [(*first[:d], box[d][1], *first[d + 1 :]) for d in range(len(box)) if len(box[d]) > 1]
        points += [first, *nearby]
        owners += [i] * (1 + len(nearby))
    positions, owner = np.array(points), np.array(owners)
    ours, theirs = (elements(graph, positions, seed) for graph in (source, mutant))
    wrong: set[int] = set(owner[ours != theirs].tolist())
    found = tuple(boxes[i] for i in sorted(wrong))
    return Region(shape, found, sum(math.prod(map(len, box)) for box in found))


def classes(graph: KernelGraph) -> Classes:
    """The classes of the only output."""
    known: dict[Value, Classes] = {v: [np.zeros(e, np.int64) for e in v.shape] for v in graph.inputs}
    for node in graph.nodes:
        known[node.result] = _propagated(node, [known[v] for v in node.operands])
    (output,) = graph.outputs
    return known[output]


def _propagated(node: Node, operands: Sequence[Classes]) -> Classes:
    if (nest := nest_of(node)) is not None:
        entry = OPERATORS[node.op]
        assert entry.body is not None
        body = entry.body(normalize_attrs(entry, node.attrs))
        if entry.combiner not in (None, "add") or set(body.primitives()) - {"mul"} or nest.outside:
            raise Undecided(f"expected one sum of products, got '{node.op}'")
        return _of_nest(node, nest, operands)
    if move_of(node) is Move.RESHAPE:
        return _reshaped(node.operands[0].shape, node.result.shape, operands[0])
    if move_of(node) is Move.CONCAT:
        dim = node.attrs["dim"]
        assert isinstance(dim, int)
        owner = np.concatenate([np.full(len(c[dim]), i) for i, c in enumerate(operands)])
        along = _joint([owner, np.concatenate([c[dim] for c in operands])])
        return [
            along if d == dim else _joint([c[d] for c in operands]) for d in range(len(node.result.shape))
        ]
    raise Undecided(f"expected one sum of products, got '{node.op}'")


def _of_nest(node: Node, nest: Nest, operands: Sequence[Classes]) -> Classes:
    found: Classes = []
    for d in nest.result:
        rows: list[Array] = []
        for value, maps, labels in zip(node.operands, nest.operands, operands, strict=True):
            for index, extent, label in zip(maps, value.shape, labels, strict=True):
                if d is None or d not in index.dims:
                    continue
                others = sorted(set(index.dims) - {d})
                sizes = [nest.extents[o] for o in others]
                if nest.extents[d] * math.prod(sizes) > _MOST_PLACES:
                    raise Undecided(f"expected an index of fewer places, got '{node.op}'")
                point: dict[int, Any] = {d: np.arange(nest.extents[d])[:, None]}
                grid = grid_of(sizes)
                point |= {o: g[None, :] for o, g in zip(others, grid, strict=True)}
                place, whole = index.at(point)
                inside = whole & (place >= 0) & (place < extent)
                rows += list(np.where(inside, label[np.clip(place, 0, extent - 1)], -1).T)
                rows += [
                    _cut(np.arange(nest.extents[d]), a.divisor)
                    for a in index.atoms
                    if a.dim == d and a.divisor > 1
                ]
        found.append(_joint(rows) if rows else np.zeros(1 if d is None else nest.extents[d], np.int64))
    return found


def _cut(places: Array, divisor: int) -> Array:
    """Classes in which the floor of a quotient is affine: one quotient, or one remainder, whichever are fewer."""
    quotients = places // divisor
    return quotients if quotients[-1] < divisor else places % divisor


def _reshaped(before: Sequence[int], after: Sequence[int], labels: Classes) -> Classes:
    found: Classes = [np.zeros(e, np.int64) for e in after]
    for left, right in reshape_groups(before, after):
        if len(left) == len(right) == 1:
            found[right[0]] = labels[left[0]]
            continue
        joined, *rest = (labels[d] for d in left)
        for label in rest:
            if len(joined) * len(label) > _MOST_PLACES:
                raise Undecided("expected a reshape that joins fewer places")
            cut = _cut(np.arange(len(joined) * len(label)), len(label))
            joined = _joint([np.repeat(joined, len(label)), np.tile(label, len(joined)), cut])
        apart = joined.reshape([after[d] for d in right])
        for i, d in enumerate(right):
            found[d] = _joint(list(np.moveaxis(apart, i, 0).reshape(after[d], -1).T))
    return found


def _joint(labels: Sequence[Array]) -> Array:
    """Labels that are equal where all of these are."""
    distinct = np.unique(np.stack(labels, axis=1), axis=0, return_inverse=True)[1]
    return distinct.reshape(-1).astype(np.int64)


def _places(labels: Array) -> list[Places]:
    """The places of each class, the class of the first place first."""
    found: dict[int, list[int]] = {}
    for place, label in enumerate(labels.tolist()):
        found.setdefault(label, []).append(place)
    return [tuple(places) for places in found.values()]
