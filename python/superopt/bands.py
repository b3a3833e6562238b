"""Which inputs of kernels are bands: matrices by column - row alone, which kernels compute instead of loading."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from superopt.errors import UNKNOWN, Location
from superopt.operators import Move, band_of, is_constant, move_of
from superopt.program import UNBOUNDED, Attr, Band, KernelGraph, Node, TensorType, TileProgram, Value

_IN_ALL_DTYPES = frozenset({-math.inf, -1.0, 0.0, 1.0, math.inf})


def bands(graph: KernelGraph) -> dict[Value, Band]:
    """The values that are bands by their last two dimensions; so is a reshape that keeps these two."""
    found: dict[Value, Band] = {}
    for node in graph.nodes:
        if (band := band_of(node)) is not None:
            found[node.result] = band
        elif move_of(node) is Move.RESHAPE and node.operands[0] in found:
            (source,), result = node.operands, node.result
            if len(result.shape) > 1 and result.shape[-2:] == source.shape[-2:]:
                found[result] = found[source]
    return found


def mark_bands(graph: KernelGraph) -> None:
    """Note in tile programs which of their inputs are bands, so that launches need not pass them."""
    found = bands(graph)
    for node in graph.nodes:
        if isinstance(node.body, TileProgram):
            mark(node.body, node.operands, found)


def mark(program: TileProgram, operands: Sequence[Value], known: Mapping[Value, Band]) -> None:
    """The same for one tile program on these operands."""
    for buffer, value in zip(program.params[: program.n_inputs], operands, strict=True):
        buffer.band = known.get(value)


def needed_nodes(lowered: KernelGraph) -> list[Node]:
    """The nodes in order, but for constants and views of them that no launch passes: kernels compute bands."""
    needed = set(lowered.outputs)
    kept: list[Node] = []
    for node in reversed(lowered.nodes):
        if (is_constant(node) or move_of(node) is Move.RESHAPE) and needed.isdisjoint(node.results):
            continue
        kept.append(node)
        computed = node.body.params if isinstance(node.body, TileProgram) else ()
        bands = {v for v, b in zip(node.operands, computed, strict=False) if b.band is not None}
        needed |= {*node.operands} - bands
    return kept[::-1]


def band_node(value: Value, band: Band, location: Location = UNKNOWN) -> Node:
    """The constant that makes `value`."""
    attrs: dict[str, Attr] = {**asdict(band), "shape": value.shape, "dtype": value.dtype}
    return Node("band", (), (value,), attrs, location)


def narrowed(node: Node, dtype: str | None) -> Node:
    """A copy of a band, in `dtype` where all dtypes have its numbers: what it is added to need not widen then."""
    band = band_of(node)
    assert band is not None
    exact = {band.inside, band.outside} <= _IN_ALL_DTYPES
    kind = TensorType(node.result.shape, dtype if dtype and exact else node.result.dtype)
    return band_node(Value(kind, node.result.name), band, node.location)


def recognized(array: np.ndarray[Any, Any]) -> Band | None:
    """The band that an array is by its last two dimensions; None for others, and for what has no two rows."""
    if array.ndim < 2 or min(array.shape[-2:]) < 2 or 0 in array.shape:
        return None
    rows, columns = array.shape[-2:]
    matrix = array[(0,) * (array.ndim - 2)]
    # The element at each distance, column - row, from 1 - rows on.
    line = np.concatenate([matrix[:0:-1, 0], matrix[0]])
    cuts = np.flatnonzero(line[1:] != line[:-1]) + 1
    if (
        len(cuts) not in (1, 2)
        or np.isnan(line).any()
        or line[0] != (line[-1] if len(cuts) == 2 else line[0])
    ):
        return None
    first, second = float(line[0]), float(line[cuts[0]])
    last = UNBOUNDED if len(cuts) == 1 else int(cuts[1]) - rows
    at = int(cuts[0]) + 1 - rows
    band = Band(at, last, second, first)
    if len(cuts) == 1 and first > second:
        band = Band(-UNBOUNDED, at - 1, first, second)
    return (
        band if np.array_equal(np.broadcast_to(band.elements((rows, columns)), array.shape), array) else None
    )
