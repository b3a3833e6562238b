"""All blocks of a grid, from few that run: boxes of blocks that do what one of them does.

A block runs with its integers as affine functions of its coordinates (`transforms/core/ptx/affine.cpp`). That
leaves a box of blocks around it that run the same instructions, whose addresses are this block's, moved along one
slope for each address. For all of them the instances of the TTIR are run without numbers: each must choose and
access what the instance of the block that ran does, at the elements moved along the same slopes. The block and
its instance then compute the same function of what they access, and so does each other pair of the box: the
elements have other names, the same ones on both sides. This needs one slope for each element that is accessed;
where two addresses meet in this block only, another one of the box is tried.

Where numbers are taken apart by a division (`block % 8`, `block / 8`), they are two coordinates from then on.
What is left when `MOST_BOXES` blocks have run is not proved by this, but checked where blocks are drawn.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from superopt.errors import UnsupportedProgram
from superopt.program import Node
from superopt.verify.domains import Array
from superopt.verify.ptx.launch import Axis, Launch, Stored
from superopt.verify.ttir.batch import Batch
from superopt.verify.ttir.check import KernelText
from superopt.verify.ttir.evaluate import launch
from superopt.verify.ttir.launch_memory import launch_buffers
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.values import ShapeDomain

# Blocks that run to find boxes, and blocks whose instances are compared at once.
MOST_BOXES, AT_ONCE = 8, 1 << 16
_MOST_AXES = 6
Box: TypeAlias = tuple[tuple[int, int], ...]
"""First and last coordinate along each axis."""


@dataclass
class Grid:
    """The blocks of a launch; `proved` counts those that ran, and those that do what one of them does."""

    shape: tuple[int, int, int]
    proved: int = 0
    _axes: list[Axis] = field(default_factory=list[Axis])
    _left: list[Box] = field(default_factory=list[Box])
    _odd: set[int] = field(default_factory=set[int])
    _ran: int = 0

    def __post_init__(self) -> None:
        self._axes = [Axis(d, 1, n) for d, n in enumerate(self.shape) if n > 1]
        self._begin()

    def _begin(self) -> None:
        """All blocks are left. Axes are in the order of the grid's dimensions, the least digits first."""
        self._left, self.proved = [()], 0
        self._odd.clear()
        for d in range(3):
            own = [axis.extent for axis in self._axes if axis.dimension == d]
            parts = list(_boxes(own, self.shape[d])) if own else [()]
            self._left = [a + b for a, b in itertools.product(self._left, parts)]

    def number(self, coordinates: Sequence[int]) -> int:
        """A block's number, x fastest."""
        x, y, _ = self.shape
        steps = (1, x, x * y)
        return sum(steps[a.dimension] * a.stride * c for a, c in zip(self._axes, coordinates, strict=True))

    def coordinates(self, blocks: Array) -> Array:
        """By block and axis."""
        x, y, z = self.shape
        numbers = (blocks % x, blocks // x % y, blocks // (x * y) % z)
        columns = [numbers[a.dimension] // a.stride % a.extent for a in self._axes]
        return np.stack(columns, axis=-1) if columns else np.zeros((len(blocks), 0), np.int64)

    def next(self, seed: object) -> int | None:
        """A block that is not proved yet; None where all are, or enough ran."""
        if self._ran >= MOST_BOXES:
            return None
        if self._odd:
            return min(self._odd)
        generator = random.Random(f"{seed} {self._ran}")
        for box in sorted(self._left, key=_size, reverse=True):
            return self.number([generator.randint(*span) for span in box])
        return None

    def run(self, ptx: Launch, block: int, instances: Instances) -> list[Stored]:
        """Run a block, and prove those around it where it is not proved yet."""
        while True:
            at = self.coordinates(np.asarray([block]))[0].tolist()
            box = next((b for b in self._left if _within(at, b)), None)
            if box is None:
                if block in self._odd:
                    self._odd.remove(block)
                    self.proved += 1
                    self._ran += 1
                return ptx.run(block)
            found = ptx.run_around(block, self._axes, [(s, c, e) for c, (s, e) in zip(at, box, strict=True)])
            if isinstance(found, list):
                break
            self._split(*found)
        self._ran += 1
        around = tuple(ptx.region)
        blocks = self._members(around)
        alike = instances.alike(ptx, self, block, around, blocks)
        if alike is None:
            around, blocks, alike = tuple((c, c) for c in at), np.asarray([block]), np.ones(1, np.bool_)
        self._left = [part for b in self._left for part in _without(b, around)]
        self.proved += int(alike.sum())
        self._odd.update(blocks[~alike].tolist())
        return found

    def _split(self, axis: int, extent: int) -> None:
        old = self._axes[axis]
        inner = Axis(old.dimension, old.stride, extent)
        outer = Axis(old.dimension, old.stride * extent, -(-old.extent // extent))
        self._axes[axis : axis + 1] = [inner, outer]
        self._begin()

    def _members(self, box: Box) -> Array:
        """The numbers of a box's blocks."""
        numbers = np.zeros(1, np.int64)
        for i, (start, end) in enumerate(box):
            step = self.number([int(i == j) for j in range(len(box))])
            numbers = (numbers[:, None] + np.arange(start, end + 1) * step).reshape(-1)
        return numbers


def _boxes(extents: Sequence[int], count: int) -> Iterator[Box]:
    """The numbers below `count` as boxes of digits, those of the first axis least; the last digit has room."""
    if len(extents) == 1:
        if count:
            yield ((0, count - 1),)
        return
    *inner, _ = extents
    whole = math.prod(inner)
    if count // whole:
        yield (*((0, n - 1) for n in inner), (0, count // whole - 1))
    if rest := count % whole:
        for box in _boxes(inner, rest):
            yield (*box, (count // whole, count // whole))


def _within(at: Sequence[int], box: Box) -> bool:
    return all(s <= c <= e for c, (s, e) in zip(at, box, strict=True))


def _size(box: Box) -> int:
    return math.prod(e - s + 1 for s, e in box)


def _without(box: Box, taken: Box) -> Iterator[Box]:
    """What is left of a box as boxes."""
    if any(e < ts or s > te for (s, e), (ts, te) in zip(box, taken, strict=True)):
        yield box
        return
    head: list[tuple[int, int]] = []
    for i, ((s, e), (ts, te)) in enumerate(zip(box, taken, strict=True)):
        if s < ts:
            yield (*head, (s, ts - 1), *box[i + 1 :])
        if e > te:
            yield (*head, (te + 1, e), *box[i + 1 :])
        head.append((max(s, ts), min(e, te)))


@dataclass(frozen=True)
class _Event:
    """What an instance chooses at a line, by lane, and for accesses the buffer and the elements of the lanes."""

    line: int
    lanes: Array
    buffer: str
    places: Array


class Instances:
    """The instances of a kernel's TTIR, run without numbers."""

    def __init__(self, node: Node, kernel: KernelText) -> None:
        self._node, self._kernel, self._function = node, kernel, kernel.function()

    def alike(self, ptx: Launch, grid: Grid, block: int, box: Box, blocks: Array) -> Array | None:
        """Which instances of a box's `blocks` do what that of `block` does, moved as its accesses are.

        None where that is not said by this block: it accesses an element in two ways, or scratch is shared.
        """
        live = [i for i, (s, e) in enumerate(box) if e > s]
        slopes, moves = ptx.slopes[:, live], dict[str, tuple[Array, Array]]()
        for i, buffer in enumerate(ptx.buffers):
            places, numbers = ptx.reached(i)
            order = np.argsort(places, kind="stable")
            places, moved = places[order], slopes[numbers[order]]
            again = np.flatnonzero(places[1:] == places[:-1])
            if not np.array_equal(moved[again], moved[again + 1]):
                return None
            moves[buffer.name] = places, moved
        start, end = ptx.scratch
        away = grid.coordinates(blocks) - grid.coordinates(np.asarray([block]))
        if end > start:
            at = np.sort(away @ np.asarray(ptx.scratch_slope[: len(box)], np.int64))
            if (np.diff(at) < end - start).any():
                return None
        first: list[_Event] = []

        def note(_: Batch, event: _Event) -> None:
            first.append(event)

        self._launch([block], note)
        follower = _Follower(first, moves, dict(zip(blocks.tolist(), away[:, live], strict=True)))
        try:
            for part in range(0, len(blocks), AT_ONCE):
                self._launch(blocks[part : part + AT_ONCE].tolist(), follower.see)
        except UnsupportedProgram:
            return None
        follower.end()
        return np.asarray([b in follower.alike for b in blocks.tolist()], np.bool_)

    def _launch(self, blocks: Sequence[int], see: Callable[[Batch, _Event], None]) -> None:
        def watch(batch: Batch, lanes: Array, buffer: Buffer | None, places: Array | None) -> None:
            shape = lanes.shape if places is None else np.broadcast_shapes(lanes.shape, places.shape)
            held = np.zeros((1, 0), np.int64) if places is None else np.broadcast_to(places, shape)
            name = "" if buffer is None else buffer.name
            see(batch, _Event(batch.line, np.broadcast_to(lanes, shape), name, held))

        domain = ShapeDomain()
        operands = [domain.shaped((v.type.elements,)) for v in self._node.operands]
        buffers, _ = launch_buffers(self._node, self._kernel.arguments, operands)
        launch(self._function, self._kernel.grid, buffers, domain, blocks, watch)


class _Follower:
    """Compares what instances do with what the `first` one did: `alike` are those that do the same.

    `moves` are by buffer the elements that the block's PTX accessed, in order, and their slopes; `away` are by
    instance the steps from the block along each axis.
    """

    def __init__(
        self, first: Sequence[_Event], moves: Mapping[str, tuple[Array, Array]], away: Mapping[int, Array]
    ) -> None:
        self._first, self._moves, self._away = first, moves, away
        self.alike: set[int] = set()
        self._batch: Batch | None = None
        self._count = 0
        self._steps, self._same = np.zeros((0, 0), np.int64), np.zeros(0, np.bool_)
        self._slopes: dict[int, tuple[Array, Array] | None] = {}

    def see(self, batch: Batch, event: _Event) -> None:
        """The next event of a batch."""
        if batch is not self._batch:
            self.end()
            self._batch, self._count = batch, 0
            self._steps = np.stack([self._away[int(n)] for n in batch.programs])
            self._same = np.ones(len(batch.programs), np.bool_)
        self._same &= self._follows(event)
        self._count += 1

    def end(self) -> None:
        """After the last event of a batch."""
        if self._batch is not None and self._count == len(self._first):
            self.alike.update(self._batch.programs[self._same].tolist())
        self._batch = None

    def _follows(self, event: _Event) -> Array | bool:
        """Whether an event is that of the first instance, for each instance or for all."""
        if self._count >= len(self._first):
            return False
        wanted = self._first[self._count]
        if (event.line, event.buffer) != (wanted.line, wanted.buffer):
            return False
        if event.lanes.shape[1:] != wanted.lanes.shape[1:]:
            return False
        same = _rows(event.lanes == wanted.lanes)
        if not event.buffer:
            return same
        expected = self._expected(self._count, wanted)
        if expected is None:
            return False
        lanes, slopes = expected
        places = wanted.places.reshape(1, -1)[:, lanes] + self._steps @ slopes.T
        return same & _rows(event.places.reshape(len(event.places), -1)[:, lanes] == places)

    def _expected(self, number: int, event: _Event) -> tuple[Array, Array] | None:
        """The active lanes of an access, and the slope of each; None where the PTX does not access one."""
        if number not in self._slopes:
            lanes = np.flatnonzero(event.lanes.reshape(-1))
            wanted = event.places.reshape(-1)[lanes]
            places, slopes = self._moves[event.buffer]
            at = np.searchsorted(places, wanted)
            known = (at < len(places)).all() and (places[at] == wanted).all()
            self._slopes[number] = (lanes, slopes[at]) if known else None
        return self._slopes[number]


def _rows(same: Array) -> Array:
    return np.all(same.reshape(len(same), -1), axis=1, keepdims=True)[:, 0]
