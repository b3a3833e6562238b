"""Which inputs of kernels depend on an index alone, so that kernels compute them instead of loading them.

Bands are matrices by column - row, such as causal masks; ramps count, such as the numbers of classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from superopt.errors import UNKNOWN, Location
from superopt.operators import Move, computed_of, is_constant, move_of
from superopt.program import (
    UNBOUNDED,
    Attr,
    Band,
    Computed,
    KernelGraph,
    Node,
    Ramp,
    TensorType,
    TileProgram,
    Value,
)

# Numbers between it and its negative are whole in f32.
_MOST_IN_F32 = 1 << 24
_IN_ALL_DTYPES = frozenset({-math.inf, -1.0, 0.0, 1.0, math.inf})


def computed_values(graph: KernelGraph) -> dict[Value, Computed]:
    """The values that kernels compute; so is a reshape that keeps the dimensions that count."""
    found: dict[Value, Computed] = {}
    for node in graph.nodes:
        if (held := computed_of(node)) is not None:
            found[node.result] = held
        elif move_of(node) is Move.RESHAPE and node.operands[0] in found:
            (source,), result = node.operands, node.result
            if (held := _reshaped(found[source], source.shape, result.shape)) is not None:
                found[result] = held
    return found


def _reshaped(held: Computed, old: Sequence[int], new: Sequence[int]) -> Computed | None:
    """The same in another shape. A ramp is a line, which may lie along another dimension."""
    if isinstance(held, Band):
        return held if len(new) > 1 and new[-2:] == old[-2:] else None
    line, places = old[held.along], [d - len(new) for d, extent in enumerate(new) if extent > 1]
    if line == math.prod(old) and len(places) == 1:
        return replace(held, along=places[0])
    return None


def mark_computed(graph: KernelGraph) -> None:
    """Note in tile programs which of their inputs are computed, so that launches need not pass them."""
    found = computed_values(graph)
    for node in graph.nodes:
        if isinstance(node.body, TileProgram):
            mark(node.body, node.operands, found)


def mark(program: TileProgram, operands: Sequence[Value], known: Mapping[Value, Computed]) -> None:
    """The same for one tile program on these operands."""
    for buffer, value in zip(program.params[: program.n_inputs], operands, strict=True):
        buffer.computed = known.get(value)


def needed_nodes(lowered: KernelGraph) -> list[Node]:
    """The nodes in order, but for constants and views of them that no launch passes: kernels compute them."""
    needed = set(lowered.outputs)
    kept: list[Node] = []
    for node in reversed(lowered.nodes):
        if (is_constant(node) or move_of(node) is Move.RESHAPE) and needed.isdisjoint(node.results):
            continue
        kept.append(node)
        params = node.body.params if isinstance(node.body, TileProgram) else ()
        made = {v for v, b in zip(node.operands, params, strict=False) if b.computed is not None}
        needed |= {*node.operands} - made
    return kept[::-1]


def computed_node(value: Value, held: Computed, location: Location = UNKNOWN) -> Node:
    """The constant that makes `value`."""
    attrs: dict[str, Attr] = {**asdict(held), "shape": value.shape, "dtype": value.dtype}
    return Node("band" if isinstance(held, Band) else "ramp", (), (value,), attrs, location)


def narrowed(node: Node, dtype: str | None) -> Node:
    """A copy of what is computed, in `dtype` where all dtypes have a band's numbers: what it is added to need not
    widen then."""
    held = computed_of(node)
    assert held is not None
    exact = isinstance(held, Band) and {held.inside, held.outside} <= _IN_ALL_DTYPES
    kind = TensorType(node.result.shape, dtype if dtype and exact else node.result.dtype)
    return computed_node(Value(kind, node.result.name), held, node.location)


def recognized(array: np.ndarray[Any, Any]) -> Computed | None:
    """The ramp that an array is, or the band by its last two dimensions; None for others."""
    return _ramp(array) or _band(array)


def _ramp(array: np.ndarray[Any, Any]) -> Ramp | None:
    """Whole numbers, as far as f32 has all of them, along the one dimension of three and more that is not 1."""
    line, places = array.ravel(), [d - array.ndim for d, extent in enumerate(array.shape) if extent > 1]
    if len(places) != 1 or len(line) < 3 or not np.isfinite(line).all():
        return None
    start, step = float(line[0]), float(line[1]) - float(line[0])
    if not step or not step.is_integer() or not start.is_integer() or np.abs(line).max() > _MOST_IN_F32:
        return None
    ramp = Ramp(places[0], int(start), int(step))
    return ramp if np.array_equal(ramp.elements(array.shape), array) else None


def _band(array: np.ndarray[Any, Any]) -> Band | None:
    """None for what has no two rows, too."""
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
