"""All blocks of a grid, from few that run: boxes of blocks that do what one of them does.

A block runs with its integers as affine functions of its coordinates (`transforms/core/ptx/affine.cpp`). That
leaves a box of blocks around it that run the same instructions, whose addresses are this block's, moved along one
slope for each address. For all of them the instances of the TTIR are run without numbers: each must choose and
access what the instance of the block that ran does, at the elements moved along the same slopes. The block and
its instance then compute the same function of what they access, and so does each other pair of the box: the
elements have other names, the same ones on both sides. This needs one slope for each element that is accessed;
where two addresses meet in this block only, another one of the box is tried. Where the instances' integers are
affine, too, few of them are run for all (`superopt.verify.ttir.lines`). Instances of small boxes wait for those
of others, as to run many side by side takes as long as to run one.

Where numbers are taken apart by a division (`block % 8`, `block / 8`), they are two coordinates from then on.
Blocks may be taken apart in several ways, as those of the last, smaller group of a grid in groups are: each
`Part` has axes of its own. What is proved is a mark of each block by itself, whatever the axes say. What is
left when `MOST_BOXES` blocks have run, or `FIRST_BOXES` where that many would not do at their rate, is not
proved, and a kernel with such blocks is not verified.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.program import Node
from superopt.verify.domains import Array
from superopt.verify.ptx.budget import Budget
from superopt.verify.ptx.launch import Axis, Launch, Stored
from superopt.verify.ttir.batch import Batch
from superopt.verify.ttir.check import KernelText
from superopt.verify.ttir.evaluate import LANES, launch
from superopt.verify.ttir.launch_memory import launch_buffers
from superopt.verify.ttir.lines import Lines, NotAffine
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.parser import Function
from superopt.verify.ttir.values import ShapeDomain
from superopt.verify.ttir.work import instance_work, widest

# Blocks that run to find boxes: the first ones, and as many as that if they would do.
FIRST_BOXES, MOST_BOXES = 8, 64
Box: TypeAlias = tuple[tuple[int, int], ...]
"""First and last coordinate along each axis."""


@dataclass(frozen=True)
class Part:
    """The blocks from `first` on, `extent` of them along each dimension of the grid `shape`, by coordinates.

    Axes are in the order of the dimensions, the least digits first; strides and extents are in blocks of the
    part. Of the axes of a dimension all but the last have all their digits in use, so that each block has one
    number.
    """

    shape: tuple[int, int, int]
    first: tuple[int, int, int]
    extent: tuple[int, int, int]
    axes: tuple[Axis, ...]

    def holds(self, block: int) -> bool:
        """Whether the block with this number is one of them."""
        at = [int(n[0]) for n in self._along(np.asarray([block]))]
        return all(0 <= n < e for n, e in zip(at, self.extent, strict=True))

    def coordinates(self, blocks: Array) -> Array:
        """By block and axis."""
        along = self._along(blocks)
        columns = [along[a.dimension] // a.stride % a.extent for a in self.axes]
        return np.stack(columns, axis=-1) if columns else np.zeros((len(blocks), 0), np.int64)

    def box(self, at: Sequence[int]) -> Box:
        """The largest box of blocks around coordinates: the last digits of a dimension are not all in use."""
        found: Box = ()
        for d in range(3):
            own = [axis.extent for axis in self.axes if axis.dimension == d]
            mine = at[len(found) : len(found) + len(own)]
            if own:
                found += next(b for b in _boxes(own, self.extent[d]) if _within(mine, b))
        return found

    def members(self, box: Box) -> Array:
        """The numbers of a box's blocks."""
        x, y, _ = self.shape
        steps = (1, x, x * y)
        numbers = np.asarray([sum(n * step for n, step in zip(self.first, steps, strict=True))])
        for axis, (start, end) in zip(self.axes, box, strict=True):
            offsets = np.arange(start, end + 1) * (steps[axis.dimension] * axis.stride)
            numbers = (numbers[:, None] + offsets).reshape(-1)
        return numbers

    def step(self, number: int) -> int:
        """From a block's number to that of the next one along an axis."""
        x, y, _ = self.shape
        axis = self.axes[number]
        return (1, x, x * y)[axis.dimension] * axis.stride

    def split(self, number: int, extent: int) -> Part:
        """The same blocks, where what is left over from a coordinate by `extent`, and the quotient, are two."""
        old = self.axes[number]
        inner = Axis(old.dimension, old.stride, extent)
        outer = Axis(old.dimension, old.stride * extent, -(-old.extent // extent))
        return replace(self, axes=(*self.axes[:number], inner, outer, *self.axes[number + 1 :]))

    def between(self, number: int, start: int, end: int, at: Sequence[int]) -> Part:
        """Those between two coordinates along an axis that share those of `at` along what carries on from it."""
        axis, d = self.axes[number], self.axes[number].dimension
        onward = zip(self.axes[number + 1 :], at[number + 1 :], strict=True)
        first = start * axis.stride + sum(a.stride * c for a, c in onward if a.dimension == d)
        count = min((end - start + 1) * axis.stride, self.extent[d] - first)
        return Part(
            self.shape,
            _with(self.first, d, self.first[d] + first),
            _with(self.extent, d, count),
            (
                *(a for a in self.axes if a.dimension < d),
                *([Axis(d, 1, count)] if count > 1 else ()),
                *(a for a in self.axes if a.dimension > d),
            ),
        )

    def _along(self, blocks: Array) -> tuple[Array, Array, Array]:
        x, y, _ = self.shape
        numbers = (blocks % x, blocks // x % y, blocks // (x * y))
        return tuple(n - f for n, f in zip(numbers, self.first, strict=True))  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class _Scratch:
    """The bytes of scratch that a block used, first and past the last, and by block how far away its own are."""

    kernel: str
    used: tuple[int, int]
    away: Mapping[int, int]


class Grid:
    """The blocks of a launch, and which of them ran, or do what one of them does."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        axes = tuple(Axis(d, 1, n) for d, n in enumerate(shape) if n > 1)
        # Each block belongs to the last part that holds it.
        self._parts = [Part(shape, (0, 0, 0), shape, axes)]
        self._proved = np.zeros(math.prod(shape), np.bool_)
        self._waiting = np.zeros(math.prod(shape), np.bool_)
        self._later: list[tuple[Group, _Scratch]] = []
        self._scratch = np.zeros((0, 2), np.int64)  # of these: first byte, and the one after the last
        self._ran = 0

    @property
    def proved(self) -> int:
        """How many blocks are."""
        return int(np.count_nonzero(self._proved))

    def has(self, block: int) -> bool:
        """Whether a block is proved."""
        return bool(self._proved[block])

    def next(self, seed: object, instances: Instances) -> int | None:
        """A block that is not proved yet; None where all are, or enough ran.

        Raises IllegalProgram as `run`.
        """
        # What waits counts as proved, for a while.
        if self._ran % FIRST_BOXES == 0 or not self._goes_on():
            self._settle(instances)
        if not self._goes_on():
            return None
        left = np.flatnonzero(~(self._proved | self._waiting))
        return int(left[random.Random(f"{seed} {self._ran}").randrange(len(left))])

    def _goes_on(self) -> bool:
        """Whether there are blocks left, and more may run."""
        done = int(np.count_nonzero(self._proved | self._waiting))
        if done == len(self._proved) or self._ran >= MOST_BOXES:
            return False
        return self._ran < FIRST_BOXES or done * MOST_BOXES >= self._ran * len(self._proved)

    def run(self, ptx: Launch, block: int, instances: Instances) -> list[Stored]:
        """Run a block that is not proved yet, and prove those around it, or have them wait for `next`.

        Raises IllegalProgram where two blocks use the same scratch, and as `Launch.run`.
        """
        while True:
            part = next(p for p in reversed(self._parts) if p.holds(block))
            at = part.coordinates(np.asarray([block]))[0].tolist()
            spans = [(start, c, end) for c, (start, end) in zip(at, part.box(at), strict=True)]
            found = ptx.run_around(block, part.axes, spans)
            if isinstance(found, list):
                break
            axis, extent, first, last = found
            if extent:
                self._parts[self._parts.index(part)] = part.split(axis, extent)
            else:
                self._parts.append(part.between(axis, first, last, at))
        self._ran += 1
        around = tuple(ptx.region)
        blocks = part.members(around)
        self._waiting[block] = False
        blocks = np.sort(blocks[~(self._proved | self._waiting)[blocks]])
        away = part.coordinates(blocks) - part.coordinates(np.asarray([block]))
        offsets = away @ np.asarray(ptx.scratch_slope[: len(around)], np.int64)
        scratch = _Scratch(
            ptx.decoded.kernel.name, ptx.scratch, dict(zip(blocks.tolist(), offsets, strict=True))
        )
        alike = instances.alike(ptx, part, block, around, blocks)
        if isinstance(alike, Group):
            self._later.append((alike, scratch))
            self._waiting[blocks] = True
            alike = None
        self._prove(np.asarray([block]) if alike is None else blocks[alike | (blocks == block)], scratch)
        return found

    def _settle(self, instances: Instances) -> None:
        """Prove what waits, or leave it to blocks that will run."""
        # One that waited and was chosen has run since.
        later = [(group.only(~self._proved[group.others]), scratch) for group, scratch in self._later]
        later = [(group, scratch) for group, scratch in later if len(group.others)]
        self._later, self._waiting[:] = [], False
        found = instances.together([group for group, _ in later]) if later else []
        for alike, (group, scratch) in zip(found, later, strict=True):
            self._prove(group.others[[int(b) in alike for b in group.others]], scratch)

    def _prove(self, blocks: Array, scratch: _Scratch) -> None:
        """Mark blocks; each has what the one that ran used as scratch, moved, and no other block may use it."""
        self._proved[blocks] = True
        self._waiting[blocks] = False
        start, end = scratch.used
        if start == end:
            return
        away = np.asarray([scratch.away[b] for b in blocks.tolist()], np.int64)
        new = np.stack([start + away, end + away], axis=-1)
        self._scratch = np.concatenate([self._scratch, new])
        self._scratch = self._scratch[np.argsort(self._scratch[:, 0])]
        if (self._scratch[1:, 0] < self._scratch[:-1, 1]).any():
            raise IllegalProgram(
                f"kernel '{scratch.kernel}': expected scratch of each block's own, got one for two"
            )


def _with(numbers: tuple[int, int, int], at: int, number: int) -> tuple[int, int, int]:
    x, y, z = (number if i == at else n for i, n in enumerate(numbers))
    return x, y, z


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


@dataclass(frozen=True)
class _Event:
    """What an instance chooses at a line, by lane, and for accesses the buffer and the elements of the lanes."""

    line: int
    lanes: Array
    buffer: str
    places: Array

    def of(self, rows: slice) -> _Event:
        """That of some of the instances, where it is not one for all."""
        lanes, places = (x if len(x) == 1 else x[rows] for x in (self.lanes, self.places))
        return replace(self, lanes=lanes, places=places)


_Moves: TypeAlias = Mapping[str, tuple[Array, Array]]
"""By buffer the elements that a block's PTX accessed, in order, and the slope of each."""


@dataclass(frozen=True)
class Group:
    """A block that ran, and others that may do what it does, moved; `away` are their steps along each axis.

    `moves` are by buffer the elements that the block's PTX accessed, in order, and the slope of each.
    """

    leader: int
    others: Array
    away: Array
    moves: _Moves

    def only(self, kept: Array) -> Group:
        """With some of the others."""
        return replace(self, others=self.others[kept], away=self.away[kept])


class Instances:
    """The instances of a kernel's TTIR, run without numbers."""

    def __init__(self, node: Node, kernel: KernelText, function: Function, budget: Budget) -> None:
        self._node, self._kernel, self._function = node, kernel, function
        self._budget, self._work = budget, instance_work(self._function, kernel.grid)
        self._at_once = LANES // widest(self._function.body) - 1  # beside the one that leads them

    def alike(self, ptx: Launch, part: Part, block: int, box: Box, blocks: Array) -> Array | Group | None:
        """Which instances of a box's `blocks` do what that of `block` does, moved as its accesses are.

        A group of few, to be asked for together with others. None where nothing is said by this block: it
        accesses an element in two ways, or no other instance can run beside its own.
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
        away = part.coordinates(blocks) - part.coordinates(np.asarray([block]))
        steps = away[:, live]
        few = len(blocks) <= 2 * len(live) + 2
        if not few:
            at = part.coordinates(np.asarray([block]))[0]
            spans = [(box[i][0] - int(at[i]), box[i][1] - int(at[i])) for i in live]
            if self._all_alike(moves, spans, block, [part.step(i) for i in live], blocks, steps):
                return np.ones(len(blocks), np.bool_)
        group = Group(block, blocks[blocks != block], steps[blocks != block], moves)
        if few and 0 < len(group.others) <= self._at_once:
            return group
        if self._at_once < 1:
            return None
        (found,) = self._following([group])
        return np.asarray([b in found for b in blocks.tolist()], np.bool_)

    def together(self, groups: Sequence[Group]) -> list[set[int]]:
        """For groups of few, the blocks whose instances do what that of their leader does, and the leader."""
        found, batch, size = list[set[int]](), list[Group](), 0
        for group in groups:
            more = 1 + len(group.others)
            if size + more > self._at_once + 1:
                found += self._following(batch)
                batch, size = [], 0
            batch.append(group)
            size += more
        return found + self._following(batch)

    def _following(self, groups: Sequence[Group]) -> list[set[int]]:
        """As `together`, for one group, in batches, or for several, which fit one batch.

        The leader's own instance leads each batch: to run one takes as long as to run many side by side.
        """
        followers = [_Follower(g) for g in groups]
        starts = range(0, len(groups[0].others), self._at_once) if len(groups) == 1 else (0,)
        for start in starts:
            rows = [[g.leader, *g.others[start : start + self._at_once].tolist()] for g in groups]
            ends = np.cumsum([len(own) for own in rows]).tolist()
            for follower, own, end in zip(followers, rows, ends, strict=True):
                follower.begin(own, end - len(own))

            def see(_: Batch, event: _Event) -> None:
                for follower in followers:
                    follower.see(event)

            self._spend(ends[-1])
            try:
                self._launch([n for own in rows for n in own], see)
            except UnsupportedProgram:
                if len(groups) == 1:
                    return [set()]
                return [found for g in groups for found in self._following([g])]
            for follower in followers:
                follower.end()
        return [f.alike for f in followers]

    def _all_alike(
        self,
        moves: _Moves,
        spans: Sequence[tuple[int, int]],
        block: int,
        strides: Sequence[int],
        blocks: Array,
        steps: Array,
    ) -> bool:
        """Whether all `blocks`, `steps` away from `block`, are known to be alike by it and its neighbours.

        These are `strides` away along each axis, which goes through `spans` from the block.
        """
        lines = Lines(spans)

        def see(_: Batch, event: _Event) -> None:
            lines.same(event.lanes)
            if event.buffer:
                expected = _moves_of(event, moves[event.buffer])
                if expected is None:
                    raise NotAffine
                lanes, slopes = expected
                places = event.places.reshape(len(event.places), -1)[:, lanes]
                moved = lines.steps @ slopes.T
                if not np.array_equal(np.broadcast_to(places - places[0], moved.shape), moved):
                    raise NotAffine

        x, y, _ = self._kernel.grid
        rows = block + lines.steps @ np.asarray(strides, np.int64)
        numbers = [np.stack([n % x, n // x % y, n // (x * y)], axis=-1) for n in (rows, blocks)]
        self._spend(len(rows))
        try:
            lines.leaf(numbers[0], steps, numbers[1])
            self._launch(rows.tolist(), see, lines)
        except (NotAffine, UnsupportedProgram):
            return False
        return True

    def _spend(self, instances: int) -> None:
        """Before they run."""
        self._budget.spend(instances * self._work, f"kernel '{self._kernel.name}', integers of its TTIR")

    def _launch(
        self, blocks: Sequence[int], see: Callable[[Batch, _Event], None], lines: Lines | None = None
    ) -> None:
        def watch(batch: Batch, lanes: Array, buffer: Buffer | None, places: Array | None) -> None:
            shape = lanes.shape if places is None else np.broadcast_shapes(lanes.shape, places.shape)
            held = np.zeros((1, 0), np.int64) if places is None else np.broadcast_to(places, shape)
            name = "" if buffer is None else buffer.name
            see(batch, _Event(batch.line, np.broadcast_to(lanes, shape), name, held))

        domain = ShapeDomain()
        operands = [domain.shaped((v.type.elements,)) for v in self._node.operands]
        buffers, _ = launch_buffers(self._node, self._kernel.arguments, operands)
        launch(self._function, self._kernel.grid, buffers, domain, blocks, watch, lines)


class _Follower:
    """Compares what a group's instances do with what its leader does: `alike` are those that do the same."""

    def __init__(self, group: Group) -> None:
        self._moves = group.moves
        self._away = dict(zip(group.others.tolist(), group.away, strict=True))
        self._away[group.leader] = np.zeros(group.away.shape[1], np.int64)
        self.alike: set[int] = set()
        self._programs, self._rows = list[int](), slice(0)
        self._steps, self._same = np.zeros((0, 0), np.int64), np.zeros(0, np.bool_)

    def begin(self, programs: list[int], first: int) -> None:
        """Before the first event of a batch, whose rows from `first` on are these instances, the leader first."""
        self._programs, self._rows = programs, slice(first, first + len(programs))
        self._steps = np.stack([self._away[n] for n in programs])
        self._same = np.ones(len(programs), np.bool_)

    def see(self, event: _Event) -> None:
        """The next event of a batch."""
        self._same &= self._follows(event.of(self._rows))

    def end(self) -> None:
        """After the last event of a batch."""
        self.alike.update(n for n, same in zip(self._programs, self._same, strict=True) if same)

    def _follows(self, event: _Event) -> Array | bool:
        """Whether an event is that of the leader, for each instance or for all."""
        same = _rows(event.lanes == event.lanes[:1])
        if not event.buffer:
            return same
        expected = _moves_of(event, self._moves[event.buffer])
        if expected is None:
            return False
        lanes, slopes = expected
        places = event.places.reshape(len(event.places), -1)[:, lanes]
        return same & _rows(places == places[:1] + self._steps @ slopes.T)


def _moves_of(event: _Event, moved: tuple[Array, Array]) -> tuple[Array, Array] | None:
    """The active lanes of an access by the first instance, and the slope of each.

    None where the PTX does not access one.
    """
    lanes = np.flatnonzero(event.lanes[0])
    wanted: Array = event.places[0].reshape(-1)[lanes]
    places, slopes = moved
    at = np.asarray(np.searchsorted(places, wanted), np.int64)
    known = bool((at < len(places)).all()) and np.array_equal(places[at], wanted)
    return (lanes, slopes[at]) if known else None


def _rows(same: Array) -> Array:
    return np.all(same.reshape(len(same), -1), axis=1, keepdims=True)[:, 0]
