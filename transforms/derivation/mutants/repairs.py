"""Correction: complete programs from a mutant, its source, and where they differ (PET, OSDI 2021, section 5).

A repair selects: what the mutant holds where it is wrong may be infinite or no number, so it never reaches the
result, as it would in `mutant + (source - mutant)`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from superopt.operators import OPERATORS, is_elementwise, is_windowed, normalize_attrs
from superopt.program import Attr, KernelGraph, Node, Value, producers
from superopt.transforms.derivation.mutants.derived import Mutant
from superopt.transforms.derivation.mutants.guards import guarded
from superopt.transforms.derivation.mutants.points import Undecided, elements
from superopt.transforms.derivation.mutants.region import Region
from superopt.transforms.derivation.rewrite import Rewrite

# Parts of a dimension that are stored one beside the other.
_MOST_PARTS = 64


def repairs(mutant: Mutant, region: Region) -> Iterator[tuple[str, KernelGraph]]:
    """Programs for the source that are right if `region` holds every position where the mutant is wrong.

    `as it is`: the mutant, which is right everywhere. `zeros`: the source is zero there, and a mask says where.
    `recompute`: slices of the source in place of the mutant's; both need the region's boxes. What else its rule
    knows comes after them, and those of one kernel (`guards.py`).
    """
    if region.listed and not region.boxes:
        yield "as it is", mutant.graph
        return
    if region.listed:
        if _zero(mutant.source, region):
            yield "zeros", _masked(mutant, region)
        with contextlib.suppress(Undecided):
            yield "recompute", _recomputed(mutant, region)
    yield from mutant.repaired
    yield from guarded(mutant.source, mutant.graph)


def _zero(source: KernelGraph, region: Region) -> bool:
    """Whether the source seems to be zero there: the first element of every box is, for random inputs."""
    firsts = np.array([[places[0] for places in box] for box in region.boxes])
    try:
        return not elements(source, firsts, seed=0).any()
    except Undecided:
        return False


def _masked(mutant: Mutant, region: Region) -> KernelGraph:
    """y -> select(right, y): zero where the mutant is wrong. The mask has extent 1 where it is all the same."""
    (output,) = mutant.graph.outputs
    right = ~region.mask()
    for d in range(right.ndim):
        first = right.take([0], d)
        right = first if (right == first).all() else right
    write = _Writer(mutant.graph)
    mask = write.emit("constant", value=right.astype(np.float64), shape=right.shape, dtype=output.dtype)
    return write.done(write.emit("select", mask, output, other=0.0))


def _recomputed(mutant: Mutant, region: Region) -> KernelGraph:
    """y -> concat(y[right part], source[wrong part], ...) along each dimension with wrong places."""
    source, write = mutant.source, _Writer(mutant.graph)
    (made,), (wanted,) = mutant.graph.outputs, source.outputs
    restricted = _Restricted(write, source)
    for dim, wrong in region.slabs().items():
        parts: list[Value] = []
        runs = [*_runs(range(made.shape[dim]), set(wrong))]
        slabs = {
            run.start: (slab, i)
            for taken in _progressions([run for run, right in runs if not right])
            for slab in [restricted.at(wanted, dim, taken)]
            for i, run in enumerate(_pieces(taken, runs))
        }
        if len(runs) > _MOST_PARTS:
            raise Undecided(f"expected at most {_MOST_PARTS} parts of a dimension, got {len(runs)}")
        for run, right in runs:
            if right:
                parts.append(write.slice(made, {dim: (run.start, len(run), 1)}))
            else:
                slab, i = slabs[run.start]
                parts.append(write.slice(slab, {dim: (i * len(run), len(run), 1)}))
        made = write.concat(dim, parts)
    return write.done(made)


def _runs(places: range, wrong: set[int]) -> Iterator[tuple[range, bool]]:
    """Neighbouring places that are all right or all wrong, and which."""
    for right, group in itertools.groupby(places, lambda p: p not in wrong):
        run = list(group)
        yield range(run[0], run[-1] + 1), right


def _progressions(runs: Sequence[range]) -> list[range]:
    """Single places at one distance as one progression; longer runs as they are."""
    starts = [r.start for r in runs]
    steps = {b - a for a, b in itertools.pairwise(starts)}
    if len(runs) > 1 and len(steps) == 1 and all(len(r) == 1 for r in runs):
        return [range(starts[0], starts[-1] + 1, steps.pop())]
    return list(runs)


def _pieces(taken: range, runs: Sequence[tuple[range, bool]]) -> list[range]:
    return [run for run, right in runs if not right and run.start in taken]


class _Writer(Rewrite):
    """Nodes behind those of `graph`."""

    def __init__(self, graph: KernelGraph) -> None:
        super().__init__(graph, graph.nodes[-1])

    def done(self, made: Value) -> KernelGraph:
        return replace(self.graph, nodes=[*self.graph.nodes, *self.nodes], outputs=[made])


class _Restricted:
    """A program's value at some places along one dimension, from as little of its operands as that takes."""

    def __init__(self, write: Rewrite, graph: KernelGraph) -> None:
        self.write, self.made = write, producers(graph.nodes)

    def at(self, value: Value, dim: int, places: range) -> Value:
        """`value` at `places` along `dim`; raises Undecided where an operator would be computed whole."""
        node = self.made.get(value)
        if node is None:
            return self.write.slice(value, {dim: (places.start, len(places), places.step)})
        if len(places) == value.shape[dim]:
            return self._whole(value)
        if is_elementwise(node):
            operands: list[Value] = []
            for v in node.operands:
                d = dim - len(value.shape) + len(v.shape)
                operands.append(self.at(v, d, places) if d >= 0 and v.shape[d] > 1 else self._whole(v))
            return self.write.emit(node.op, *operands, **node.attrs)
        if is_windowed(node) and dim != 1 and {"strides", "extra"} & node.attrs.keys() == {"strides"}:
            return self._window(node, dim, places)
        raise Undecided(f"'{node.op}' is computed whole")

    def _whole(self, value: Value) -> Value:
        node = self.made.get(value)
        return (
            value
            if node is None
            else self.write.emit(node.op, *map(self._whole, node.operands), **node.attrs)
        )

    def _window(self, node: Node, dim: int, places: range) -> Value:
        x, *rest = node.operands
        if len(node.result.shape) != len(x.shape):
            raise Undecided(f"'{node.op}' is computed whole")
        rest = [self._whole(v) for v in rest]
        if dim == 0:
            return self.write.emit(node.op, self.at(x, 0, places), *rest, **node.attrs)
        attrs, i = normalize_attrs(OPERATORS[node.op], node.attrs), dim - 2
        numbers: dict[str, list[int]] = {}
        for name in ("strides", "dilations", "low", "high"):
            found = attrs[name]
            assert isinstance(found, tuple)
            numbers[name] = list(found)
        sizes = attrs.get("sizes", node.operands[-1].shape[2:])
        assert isinstance(sizes, tuple)
        stride, dilation, low = (numbers[name][i] for name in ("strides", "dilations", "low"))
        first = places.start * stride - low
        last = places[-1] * stride - low + dilation * (sizes[i] - 1)
        begin, end = max(first, 0), min(last + 1, x.shape[dim])
        if begin >= end:
            raise Undecided("nothing inside is read")
        numbers["strides"][i] = stride * places.step if len(places) > 1 else 1
        numbers["low"][i], numbers["high"][i] = begin - first, last + 1 - end
        x = self.at(x, dim, range(begin, end))
        changed: dict[str, Attr] = {name: tuple(n) for name, n in numbers.items()}
        return self.write.emit(node.op, x, *rest, **{**attrs, **changed})
