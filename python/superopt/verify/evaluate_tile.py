"""Evaluates tile programs over any domain, and catches what a GPU would not report: races, unwritten memory.

Sequential loops run trip after trip; the blocks of parallel loops run side by side, as leading dimensions of
the arrays. An access is a strided view of the buffer. What a window reads beyond its buffer is an unknown that
no result may depend on: a fresh random number in a field, NaN among floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superopt.aliasing import pairs
from superopt.errors import IllegalProgram
from superopt.levels.tile import guarded_loads
from superopt.program import (
    Attr,
    Bound,
    Buffer,
    Compute,
    Load,
    Loop,
    LoopVar,
    Statement,
    Store,
    TileProgram,
    Value,
    View,
    Window,
)
from superopt.verify.degrees import CONSTANT, Degree
from superopt.verify.domains import Array, Domain, Shape, Tensor
from superopt.verify.drawn import Drawn
from superopt.verify.evaluate_operator import evaluate_operator

_NOBODY, _EVERYBODY = -1, -2  # owners: unwritten; written before this grid of blocks started


def evaluate_tile(program: TileProgram, operands: Sequence[Tensor], domain: Domain) -> list[Tensor]:
    """The outputs of a `tiled` node.

    Raises IllegalProgram where a window starts outside its buffer and is not guarded, where memory is read that
    this block did not write, where two blocks write one element, where one block reads what another writes, and
    where an element of an output is never written. An output that lies in an operand's memory starts as a copy of
    that operand.
    """
    run = _ran(program, operands, domain)
    return [run.result(b) for b in program.params[program.n_inputs :]]


def evaluate_written(
    program: TileProgram, operands: Sequence[Tensor], domain: Domain
) -> list[tuple[Tensor, Array]]:
    """The same where not all elements are written: each output with a mask of those that are."""
    run = _ran(program, operands, domain)
    return [run.written(b) for b in program.params[program.n_inputs :]]


def _ran(program: TileProgram, operands: Sequence[Tensor], domain: Domain) -> _TileRun:
    run = _TileRun(program, domain)
    for buffer, tensor in zip(program.params, operands, strict=False):
        run.memory[buffer] = _Memory.of(tensor)
    outputs = program.params[program.n_inputs :]
    for out, at in pairs(program.aliases).items():
        run.memory[outputs[out]] = _Memory.started(operands[at])
    run.statements(program.body, top=True)
    return run


@dataclass
class _Memory:
    """A buffer: planes, who wrote each element, and whether each block has its own (leading dimensions).

    `reader` says who read each element, where a block may read what it has not written.
    """

    planes: list[Array]
    owner: Array
    private: bool
    input: bool = False
    degree: Degree = CONSTANT
    dtype: str = ""
    reader: Array | None = None
    whole: Shape | None = None  # private, and each block of this shape wrote its whole copy: nothing to check

    @classmethod
    def of(cls, tensor: Tensor) -> _Memory:
        owner = np.broadcast_to(np.int64(_EVERYBODY), tensor.shape)
        return cls(list(tensor.planes), owner, False, True, tensor.degree, tensor.dtype)

    @classmethod
    def started(cls, tensor: Tensor) -> _Memory:
        """An output that starts as a copy of `tensor`."""
        owner = np.full(tensor.shape, _EVERYBODY, np.int64)
        planes = [np.array(x, order="C") for x in tensor.planes]
        reader = np.full(tensor.shape, _NOBODY, np.int64)
        return cls(planes, owner, False, False, tensor.degree, tensor.dtype, reader)


@dataclass
class _Place:
    """Where one access goes: per buffer dimension its first index, its stride per block, and its window."""

    first: list[int]
    moves: list[list[int]]  # per buffer dimension, per leading dimension
    windows: tuple[Window, ...]
    blocks: Shape
    extents: Shape

    @property
    def inside(self) -> bool:
        return all(
            self._first(d) >= 0 and self._last(d) + w.stride * (w.size - 1) < self.extents[d]
            for d, w in enumerate(self.windows)
        )

    def _first(self, d: int) -> int:
        return self.first[d] + sum(
            min(0, m * (n - 1)) for m, n in zip(self.moves[d], self.blocks, strict=True)
        )

    def _last(self, d: int) -> int:
        return self.first[d] + sum(
            max(0, m * (n - 1)) for m, n in zip(self.moves[d], self.blocks, strict=True)
        )

    def check(self, buffer: Buffer) -> None:
        """Raise IllegalProgram where a window starts outside."""
        for d, extent in enumerate(self.extents):
            if self._first(d) < 0 or self._last(d) >= extent:
                raise IllegalProgram(
                    f"expected windows that start within extent {extent} of '{buffer.name}', "
                    f"got {self._first(d)} to {self._last(d)}"
                )

    def view(self, x: Array, *, private: bool) -> Array:
        """The accessed elements as (blocks..., window...), without copying; valid only where all are inside."""
        lead = len(self.blocks)
        own = x.strides[:lead] if private else (0,) * lead
        unit = x.strides[lead:] if private else x.strides
        strides = [
            own[g] + sum(moves[g] * s for moves, s in zip(self.moves, unit, strict=True)) for g in range(lead)
        ]
        start: list[Any] = [slice(None)] * (lead if private else 0)
        # Without the ellipsis, memory of one element without dimensions would be copied.
        origin = x[(*start, *(slice(f, None) for f in self.first), ...)]
        windows = [w.stride * s for w, s in zip(self.windows, unit, strict=True)]
        shape = (*self.blocks, *(w.size for w in self.windows))
        return np.lib.stride_tricks.as_strided(origin, shape, (*strides, *windows))

    def indices(self, *, private: bool) -> tuple[tuple[Array, ...], Array]:
        """The same as index arrays, cut to the buffer, and which of them are inside."""
        lead, rank = len(self.blocks), len(self.windows)
        index: list[Array] = []
        inside = np.ones((*self.blocks, *(w.size for w in self.windows)), bool)
        blocks = np.ix_(*(np.arange(n) for n in (*self.blocks, *(1 for _ in self.windows))))[:lead]
        for d, w in enumerate(self.windows):
            along = [1] * (lead + rank)
            along[lead + d] = w.size
            place = self.first[d] + (np.arange(w.size) * w.stride).reshape(along)
            for block, move in zip(blocks, self.moves[d], strict=True):
                place = place + block * move
            inside &= (place >= 0) & (place < self.extents[d])
            index.append(np.clip(place, 0, self.extents[d] - 1))
        return (*(blocks if private else ()), *index), inside


@dataclass
class _TileRun:
    program: TileProgram
    domain: Domain
    memory: dict[Buffer, _Memory] = field(default_factory=dict[Buffer, _Memory])
    values: dict[Value, Tensor] = field(default_factory=dict[Value, Tensor])
    axes: dict[LoopVar, tuple[int, Loop]] = field(default_factory=dict[LoopVar, tuple[int, Loop]])
    trips: dict[LoopVar, int] = field(default_factory=dict[LoopVar, int])
    blocks: list[int] = field(default_factory=list[int])
    unknowns: int = 0

    def __post_init__(self) -> None:
        self.lead = _depth(self.program.body)
        self.blocks = [1] * self.lead
        self.shared = _shared(self.program)
        self.guarded = guarded_loads(self.program)

    def statements(self, body: Sequence[Statement], *, top: bool = False, depth: int = 0) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                if statement.parallel:
                    self.parallel(statement, depth)
                    if top:
                        self.next_grid()
                else:
                    for value in range(statement.start, statement.stop, statement.step):
                        self.trips[statement.var] = value
                        self.statements(statement.body, depth=depth)
            elif isinstance(statement, Load):
                self.values[statement.result] = self.load(statement)
            elif isinstance(statement, Store):
                self.store(statement)
            else:
                self.compute(statement)

    def parallel(self, loop: Loop, depth: int) -> None:
        self.axes[loop.var] = depth, loop
        self.blocks[depth] = math.ceil((loop.stop - loop.start) / loop.step)
        self.statements(loop.body, depth=depth + 1)
        self.blocks[depth] = 1

    def next_grid(self) -> None:
        """All blocks have ended: discard their private memory; all see what they wrote to the device."""
        for buffer, memory in list(self.memory.items()):
            if memory.private:
                del self.memory[buffer]
            elif not memory.input:
                memory.owner[memory.owner != _NOBODY] = _EVERYBODY
                if memory.reader is not None:
                    memory.reader[...] = _NOBODY

    def compute(self, statement: Compute) -> None:
        operands = [self.values[v] for v in statement.operands]
        dtypes = [v.dtype for v in statement.operands]
        result = evaluate_operator(statement.op, statement.attrs, operands, dtypes, self.domain, self.lead)
        if statement.bounds:
            result = self.masked(result, statement.bounds, statement.attrs["fill"])
        self.values[statement.result] = result

    def masked(self, value: Tensor, bounds: Sequence[Bound], fill: Attr) -> Tensor:
        """`value` within the bounds, `fill` elsewhere."""
        assert isinstance(fill, float)
        windows, extents = [Window(e) for e in value.shape[self.lead :]], list(value.shape[self.lead :])
        for bound in bounds:
            windows[bound.dim], extents[bound.dim] = bound.window, bound.extent
        _, inside = self.cut(windows, extents, every_block=False).indices(private=False)
        return self.domain.move(lambda x, y: np.where(inside, x, y), value, self.domain.constant(fill))

    # --- memory

    def place(self, access: Load | Store, *, every_block: bool) -> _Place:
        """`every_block`: include the blocks that an access does not depend on."""
        place = self.cut(access.windows, access.buffer.type.shape, every_block=every_block)
        if access not in self.guarded:
            place.check(access.buffer)
        return place

    def cut(self, windows: Sequence[Window], extents: Sequence[int], *, every_block: bool) -> _Place:
        first: list[int] = []
        moves: list[list[int]] = []
        for w in windows:
            start, move = w.base, [0] * self.lead
            for var, scale in w.terms:
                if var in self.axes:
                    axis, loop = self.axes[var]
                    start += scale * loop.start
                    move[axis] += scale * loop.step
                else:
                    start += scale * self.trips[var]
            first.append(start)
            moves.append(move)
        blocks = tuple(n if every_block or any(m[g] for m in moves) else 1 for g, n in enumerate(self.blocks))
        return _Place(first, moves, tuple(windows), blocks, tuple(extents))

    def load(self, statement: Load) -> Tensor:
        buffer = statement.buffer
        if buffer.view is not None:
            return self.load_view(statement, buffer.view)
        memory = self.memory.get(buffer)
        if memory is None:
            raise IllegalProgram(f"expected '{buffer.name}' to be written before it is read")
        place = self.place(statement, every_block=not memory.input)
        inside: Array | None = None
        if place.inside and not any(isinstance(x, Drawn) for x in memory.planes):
            planes = [place.view(x, private=memory.private) for x in memory.planes]
            if not memory.input:
                planes = [x.copy() for x in planes]
                if memory.whole != tuple(self.blocks):
                    self.check_readable(buffer, place.view(memory.owner, private=memory.private), None)
        else:
            index, inside = place.indices(private=memory.private)
            planes = [x[index] for x in memory.planes]
            if not memory.input:
                self.check_readable(buffer, memory.owner[index], inside)
        if not memory.input:
            self.note_readers(memory, place)
        loaded = Tensor(tuple(planes), memory.degree, memory.dtype)
        return loaded if place.inside or inside is None else self.with_unknowns(loaded, inside)

    def load_view(self, statement: Load, view: View) -> Tensor:
        """What a view shows within its windows."""
        index, inside = self.place(statement, every_block=False).indices(private=False)
        full = view.read.completed(dict(enumerate(index)))
        holds = np.broadcast_to(np.asarray(view.read.holds(full)), inside.shape)
        zero = self.domain.constant(0.0)
        if view.source < 0:
            one = self.domain.constant(1.0)
            loaded = self.domain.move(lambda x, y: np.where(holds, x, y), one, zero)
        else:
            source = self.memory[self.program.params[view.source]]
            places: list[Array] = []
            for linear, extent in zip(view.read.index, source.planes[0].shape, strict=True):
                place = np.broadcast_to(np.asarray(linear.at(full)), inside.shape)
                holds = holds & (place >= 0) & (place < extent)
                places.append(np.clip(place, 0, extent - 1))
            tensor = Tensor(tuple(source.planes), source.degree, source.dtype)
            at = tuple(places)
            loaded = self.domain.move(lambda x, y: np.where(holds, x[at], y), tensor, zero)
        return loaded if inside.all() else self.with_unknowns(loaded, inside)

    def check_readable(self, buffer: Buffer, owner: Array, inside: Array | None) -> None:
        readable = (owner == self.block_numbers(len(buffer.type.shape))) | (owner == _EVERYBODY)
        if inside is not None:
            readable |= ~inside
        if not readable.all():
            raise IllegalProgram(
                f"expected a block to read what it wrote to '{buffer.name}', got other elements"
            )

    def note_readers(self, memory: _Memory, place: _Place) -> None:
        """Remember which block read the elements, or that several did."""
        if memory.reader is None:
            return
        index, inside = place.indices(private=False)
        at = tuple(np.broadcast_to(i, inside.shape)[inside] for i in index)
        numbers = np.broadcast_to(self.block_numbers(len(place.windows)), inside.shape)[inside]
        before = memory.reader[at]
        memory.reader[at] = numbers
        others = (memory.reader[at] != numbers) | ((before != _NOBODY) & (before != numbers))
        memory.reader[tuple(i[others] for i in at)] = _EVERYBODY

    def with_unknowns(self, loaded: Tensor, inside: Array) -> Tensor:
        self.unknowns += 1
        unknown = self.domain.unknown(("outside", self.unknowns), loaded.shape)
        return self.domain.move(lambda x, y: np.where(inside, x, y), loaded, unknown)

    def store(self, statement: Store) -> None:
        buffer = statement.buffer
        value = self.values[statement.value]
        if buffer.placement == "device":
            value = self.domain.stored(value, buffer.type.dtype)
        if (memory := self.memory.get(buffer)) is None:
            memory = self.memory[buffer] = self.allocate(buffer, value)
        if memory.dtype != value.dtype:
            memory.dtype = ""
        if memory.input:
            raise IllegalProgram(f"expected a store to an output or a local, got input '{buffer.name}'")
        place = self.place(statement, every_block=True)
        # Among floats, more precise numbers may follow ones that were kept as they are.
        memory.planes = [
            x.astype(np.result_type(x, y), copy=False)
            for x, y in zip(memory.planes, value.planes, strict=False)
        ]
        memory.degree = memory.degree.either(value.degree)
        self.check_unread(buffer, memory, place)
        if place.inside:
            for x, y in zip(memory.planes, value.planes, strict=False):
                place.view(x, private=memory.private)[...] = y
            if memory.whole == tuple(self.blocks):
                return
            numbers = self.block_numbers(len(buffer.type.shape))
            owner = place.view(memory.owner, private=memory.private)
            free = (owner == _NOBODY) | (owner == _EVERYBODY) | (owner == numbers)
            owner[...] = numbers
            good = bool((free & (owner == numbers)).all())
            if memory.private and place.extents == tuple(w.size for w in place.windows):
                memory.whole = tuple(self.blocks)
        else:
            numbers = self.block_numbers(len(buffer.type.shape))
            index, inside = place.indices(private=memory.private)
            picked = tuple(np.broadcast_to(i, inside.shape)[inside] for i in index)
            for x, y in zip(memory.planes, value.planes, strict=False):
                x[picked] = np.broadcast_to(y, inside.shape)[inside]
            mine = np.broadcast_to(numbers, inside.shape)[inside]
            before = memory.owner[picked]
            memory.owner[picked] = mine
            free = (before == _NOBODY) | (before == _EVERYBODY) | (before == mine)
            good = bool((free & (memory.owner[picked] == mine)).all())
        if not good:
            raise IllegalProgram(
                f"expected each element of '{buffer.name}' to be written by one block, got two"
            )

    def check_unread(self, buffer: Buffer, memory: _Memory, place: _Place) -> None:
        """Blocks run in any order, so no other block may have read what one writes."""
        if memory.reader is None:
            return
        index, inside = place.indices(private=False)
        reader = memory.reader[tuple(np.broadcast_to(i, inside.shape) for i in index)]
        numbers = self.block_numbers(len(buffer.type.shape))
        if not ((reader == _NOBODY) | (reader == numbers) | ~inside).all():
            raise IllegalProgram(
                f"expected no block to write what another one reads of '{buffer.name}', got one that does"
            )

    def allocate(self, buffer: Buffer, like: Tensor) -> _Memory:
        private = buffer not in self.shared
        shape = (*self.blocks, *buffer.type.shape) if private else buffer.type.shape
        planes = [np.zeros(shape, x.dtype) for x in like.planes]
        return _Memory(
            planes, np.full(shape, _NOBODY, np.int64), private, degree=like.degree, dtype=like.dtype
        )

    def block_numbers(self, rank: int) -> Array:
        count = math.prod(self.blocks)
        return np.arange(count, dtype=np.int64).reshape((*self.blocks, *(1,) * rank))

    def result(self, buffer: Buffer) -> Tensor:
        tensor, written = self.written(buffer)
        if not written.all():
            raise IllegalProgram(
                f"expected every element of '{buffer.name}' to be written, got some that are not"
            )
        return tensor

    def written(self, buffer: Buffer) -> tuple[Tensor, Array]:
        """What a buffer holds, and where it was written."""
        memory = self.memory.get(buffer)
        if memory is None:
            raise IllegalProgram(f"expected '{buffer.name}' to be written, got no store to it")
        return Tensor(tuple(memory.planes), memory.degree, memory.dtype), memory.owner != _NOBODY


def _depth(body: Sequence[Statement]) -> int:
    return max((1 + _depth(s.body) for s in body if isinstance(s, Loop) and s.parallel), default=0)


def _shared(program: TileProgram) -> set[Buffer]:
    """Buffers that all blocks see: parameters, device memory, and open ones that outlive a grid of blocks."""
    used: dict[Buffer, set[int]] = {}
    for i, statement in enumerate(program.body):
        inner = [statement]
        while inner:
            s = inner.pop()
            if isinstance(s, Loop):
                inner.extend(s.body)
            elif isinstance(s, Load | Store):
                used.setdefault(s.buffer, set()).add(
                    i if isinstance(statement, Loop) and statement.parallel else -1
                )
    outliving = {b for b, where in used.items() if b.placement == "open" and len(where) > 1}
    return {*program.params, *outliving, *(b for b in program.locals if b.placement == "device")}
