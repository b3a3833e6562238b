"""Merges axes that always occur together, such as batch and heads.

Two axes merge where every operation has both or neither, and every tensor in device memory that has them holds
them adjacent and in the same order: there they are one dimension of a row-major reshape. A grid has three
dimensions, so this decides what can be cut; it also leaves fewer factors to choose. Only extents that are
powers of two merge, as any tile of two such axes moves what some tile of the merged one does; of 71 heads of 32
rows, two rows of every head are not a tile of 2,272 rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from superopt.transforms.named_axes.axis_program import AxisProgram, Role

Dims = tuple[tuple[int, ...], ...]


def merge_axes(program: AxisProgram) -> AxisProgram:
    """`program` with such axes merged; a merged axis is in the first of the dimensions that it spans."""
    follows = _pairs(program)
    if not follows:
        return program
    after = set(follows.values())
    groups: list[list[int]] = []
    for axis in range(len(program.extents)):
        if axis not in after:
            groups.append([axis])
            while groups[-1][-1] in follows:
                groups[-1].append(follows[groups[-1][-1]])
    number = {group[0]: i for i, group in enumerate(groups)}

    def renamed(axes: Sequence[int]) -> tuple[int, ...]:
        return tuple(number[a] for a in axes if a in number)

    def dims(of: Dims) -> Dims:
        return tuple(map(renamed, of))

    return replace(
        program,
        extents=[math.prod(program.extents[a] for a in group) for group in groups],
        roles=[Role(r.source, dims(r.dims)) for r in program.roles],
        operations=[replace(o, reduced=renamed(o.reduced)) for o in program.operations],
        output_dims=[dims(d) for d in program.output_dims],
        reduced_sets=[renamed(r) for r in program.reduced_sets],
    )


def _pairs(program: AxisProgram) -> dict[int, int]:
    """From each axis to the one that always follows it."""
    tensors = [r.axes for r in program.roles]
    tensors += [tuple(a for dim in dims for a in dim) for dims in program.output_dims]
    even = [extent.bit_count() == 1 for extent in program.extents]
    found = {(a, b) for t in tensors for a, b in itertools.pairwise(t) if even[a] and even[b]}
    for t in tensors:
        here = set(itertools.pairwise(t))
        found = {p for p in found if p in here or not set(p) & set(t)}
    for axes in _varying(program):
        found = {p for p in found if len(axes & set(p)) != 1}
    # Roles of one tensor must keep the same cuts, to hold the same elements.
    while True:
        apart = {
            p
            for one in program.roles
            for other in program.roles
            if one.source is other.source
            for i, p in enumerate(itertools.pairwise(one.axes))
            if p in found and other.axes[i : i + 2] not in found
        }
        if not apart:
            return dict(found)
        found -= apart


def _varying(program: AxisProgram) -> list[frozenset[int]]:
    """The axes that every operation varies along."""
    axes = [frozenset(r.axes) for r in program.roles] + [frozenset[int]() for _ in program.constants]
    for o in program.operations:
        axes.append(frozenset[int]().union(*(axes[a] for a in o.args)) - set(o.reduced))
    return axes
