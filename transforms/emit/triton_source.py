"""From tile programs to Triton source.

Parallel loops become `tl.program_id`s, sequential ones `for`; tiles are tensors padded to powers of two (see
`axes`), with masks only where an extent needs them; padding is set to the neutral element before a reduction
or a product runs over it. Arithmetic is in f32; operands of `tl.dot` keep their dtype. Buffers on chip are
variables. The text depends on nothing but the program: the same program gives the same text.

This module writes the function and its statements in order; `grid` says which block computes what, `memory`
writes pointers and masks, `operators` the computation on `tiles`, and `writer` keeps lines and names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.errors import UnsupportedProgram
from superopt.hidden_trips import Whole, limits, whole_trips
from superopt.program import (
    UNBOUNDED,
    Band,
    Bound,
    Buffer,
    Compute,
    Load,
    Loop,
    LoopVar,
    Ramp,
    Statement,
    Store,
    TensorType,
    TileProgram,
    executions,
    parallel_loops,
    statements,
)
from superopt.separate_loads import separated
from superopt.transforms.emit.bounds import Bounds, Part
from superopt.transforms.emit.grid import lay_out
from superopt.transforms.emit.legalize import legalize
from superopt.transforms.emit.loops import counted_in_elements, streams_past_products
from superopt.transforms.emit.memory import Memory, in_memory
from superopt.transforms.emit.operators import Operators
from superopt.transforms.emit.padding import Padding, expansion
from superopt.transforms.emit.shrink_scratch import shrink_scratch
from superopt.transforms.emit.spelling import number
from superopt.transforms.emit.tiles import TRITON_DTYPES, Tile, Tiles, atom
from superopt.transforms.emit.views import Views
from superopt.transforms.emit.writer import Writer
from superopt.transforms.lower.builder import identifier


@dataclass(frozen=True)
class Parameter:
    """A pointer argument: what it points to, and whether the launcher allocates it as scratch."""

    name: str
    type: TensorType
    role: str  # "input" | "output" | "scratch"


@dataclass(frozen=True)
class TritonKernel:
    """A Triton function as text, and how it is launched."""

    name: str
    source: str
    parameters: tuple[Parameter, ...]
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    descriptors: bool = False
    """Whether it makes tensor descriptors, which need memory that the launcher allocates."""
    extents: tuple[str, ...] = ()
    """The names of the last arguments, extents that shapes depend on (`superopt.extent`), if any."""
    early: bool = False
    """Whether it takes `EARLY`: then it waits for the kernel before it, and may let the next one start."""

    @property
    def memory(self) -> list[tuple[str, int, str, bool]]:
        """Of each pointer argument its name, elements and dtype, and whether the kernel may store there."""
        return [(p.name, p.type.elements, p.type.dtype, p.role != "input") for p in self.parameters]


# What a kernel begins with that is launched while the one before it still runs.
_WAIT = (
    "    if EARLY:",
    "        tl.extra.cuda.gdc_wait()  # for the kernel before this one",
)
_START = "        tl.extra.cuda.gdc_launch_dependents()"


def emit_kernel(program: TileProgram, extents: Sequence[str] = (), *, early: bool = False) -> TritonKernel:
    """The Triton function of a tile program; `extents` are the names of those that its shapes depend on.

    With `early`, it may be launched while the kernel before it still runs (`superopt.early`).

    Raises UnsupportedProgram for what Triton cannot express: a dense constant inside a kernel, or a tile of
    more than 2^20 elements.
    """
    return _Emitter(program, extents, early).kernel()


class _Emitter:
    """Writes the statements of a program in order."""

    def __init__(self, program: TileProgram, extents: Sequence[str], early: bool) -> None:
        self.open: set[LoopVar] = set()  # the loops around the current statement
        self.extents, self.early = tuple(extents), early
        legal, views = legalize(shrink_scratch(counted_in_elements(program)))
        self.program, self.again = separated(legal)
        self.axes = Padding(self.program)
        self.writer = Writer()
        self.writer.used |= {*extents, *(f"{b.name}_ptr" for b in self.program.params)}
        self.writer.tensors = {b.name for b in self.program.params}
        self.memory = Memory(self.program, views, self.axes, self.writer)
        for statement in self.again:  # Triton would make one fetch of two
            self.memory.descriptors.pop(statement, None)
        self.bounds = Bounds(self.writer)
        self.tiles = Tiles(self.axes, self.writer)
        self.limits = limits(self.program)
        apart = self.program.separate_masks
        self.whole = whole_trips(self.program, self.limits) if apart else dict[LoopVar, Whole]()
        self.inside: frozenset[Load] = frozenset()  # tiles of bands that are `inside` everywhere
        self.views = Views(self.program, self.axes, self.tiles, self.writer, self.memory)
        self.operators = Operators(self.program, self.axes, self.tiles, self.writer, self.memory)

    def kernel(self) -> TritonKernel:
        program = self.program
        name = self.writer.unique(identifier(program.name, "kernel"))
        parameters: list[Parameter] = []
        pointers = self.memory.pointers
        taken: set[str] = set()

        def add(buffer: Buffer, role: str, type_: TensorType) -> None:
            text, i = f"{buffer.name}_ptr", 1
            while text in taken:
                text, i = f"{buffer.name}_{i}_ptr", i + 1
            taken.add(text)
            self.writer.used.add(text)
            pointers[buffer] = text
            parameters.append(Parameter(text, type_, role))

        inputs = set(program.params[: program.n_inputs])
        for buffer in program.arguments:
            add(buffer, "input" if buffer in inputs else "output", buffer.type)
        blocks = executions(parallel_loops(program.body))
        for buffer in program.locals:
            if buffer.placement == "device" and buffer not in self.memory.views:
                add(buffer, "scratch", TensorType((blocks, *buffer.type.shape), buffer.type.dtype))
        for view, buffer in self.memory.views.items():
            pointers[view] = pointers[buffer]
        grid = lay_out(program, self.writer, number=any(b in program.locals for b in pointers))
        body = program.body
        while len(body) == 1 and isinstance(body[0], Loop) and body[0].parallel:
            body = body[0].body
        self.body(body)
        takes = [*(p.name for p in parameters), *self.extents]
        if self.early:
            takes.append("EARLY: tl.constexpr")
            self.writer.header[:0] = _WAIT if program.alone else (*_WAIT, _START)
        arguments = ", ".join(takes)
        # One kernel for all extents: Triton would compile others for 1 and for multiples of 16.
        names = ", ".join(f'"{name}"' for name in self.extents)
        decorator = f"@triton.jit(do_not_specialize=[{names}])" if names else "@triton.jit"
        text = [decorator, f"def {name}({arguments}):", *self.writer.header, *self.writer.lines]
        return TritonKernel(
            name,
            "\n".join(text) + "\n",
            tuple(parameters),
            grid,
            program.num_warps,
            program.num_stages,
            descriptors=bool(self.memory.descriptors),
            extents=self.extents,
            early=self.early,
        )

    def body(self, body: Sequence[Statement]) -> None:
        for i, statement in enumerate(body):
            if isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, Load):
                self.load(statement, body[i + 1 :])
            elif isinstance(statement, Store):
                self.store(statement)
            else:
                following = body[i + 1] if i + 1 < len(body) else None
                self.operators.compute(statement, following)

    def loop(self, loop: Loop) -> None:
        inside = list(statements(loop.body))
        stored = {
            self.memory.shared(s.buffer) for s in inside if isinstance(s, Store) and in_memory(s.buffer)
        }
        loaded = {self.memory.shared(s.buffer) for s in inside if isinstance(s, Load) and in_memory(s.buffer)}
        self.writer.index(loop.var, "step")
        self.writer.sequential.add(loop.var)
        tiles = [
            f"{_by(s.result.shape)} of {s.buffer.name}"
            for s in loop.body
            if isinstance(s, Load) and in_memory(s.buffer)
        ]
        reads = f", each reads {' and '.join(dict.fromkeys(tiles))}" if tiles else ""
        if not stored & loaded:
            self.memory.before_loop(loaded)
        limit = self.limits.get(loop.var)
        call = "range({})"
        if stored & loaded:
            # A later trip loads what an earlier one stores: the software pipeline must not move loads ahead.
            call = "tl.range({}, num_stages=1)"
        elif self.program.num_stages > 1 and streams_past_products(loop):
            # By itself, Triton pipelines only what products load.
            call = f"tl.range({{}}, num_stages={self.program.num_stages})"
        for i, part in enumerate(self.bounds.parts(loop, limit, self.whole.get(loop.var))):
            var = self.writer.loops[loop.var] if i == 0 else self.writer.index(loop.var, "step")
            # Each has its own pointers: Triton would move them between layouts from one loop to the next.
            moving = self.memory.moving_pointers(loop, part.begin)
            said = f"{'At most ' if limit or part.whole else ''}{loop.trips} trips{reads}"
            self.writer.line(f"# {said}{', without mask' if part.whole else ''}.")
            bounds = f"{self.writer.start(part.begin)}, {part.stop}" + (
                f", {loop.step}" if loop.step != 1 else ""
            )
            self.writer.line(f"for {var} in {call.format(bounds)}:")
            if stored & loaded:
                self.memory.carried(stored & loaded)
            self.writer.enter()
            self.open.add(loop.var)
            self.part(loop, part)
            self.open.discard(loop.var)
            for name, step in moving.items():
                self.writer.line(f"{name} += {step}")
            self.writer.leave()

    def part(self, loop: Loop, part: Part) -> None:
        """The body of some trips of a loop: whole ones end before the loop does, and need fewer masks."""
        if part.whole is None:
            self.body(loop.body)
            return
        self.inside = part.whole.loads
        with self.memory.at_most(loop, part.most):
            self.body(loop.body)
        self.inside = frozenset()

    def load(self, statement: Load, following: Sequence[Statement]) -> None:
        buffer, result = statement.buffer, statement.result
        if statement in self.inside and buffer.band is not None:
            inside = buffer.band.inside
            self.tiles.known[result] = Tile(number(inside), "f32", (), constant=inside)
            return
        if isinstance(buffer.computed, Band):
            self.band(statement, buffer.computed)
            return
        if isinstance(buffer.computed, Ramp):
            self.ramp(statement, buffer.computed)
            return
        if not in_memory(buffer) and buffer.view is None:
            self.read_variable(statement, following)
            return
        dims = self.axes.live(result)
        if buffer.view is not None:
            text = self.views.load(statement, buffer.view)
        else:
            self.memory.loads(buffer)
            text = self.memory.described(statement)
        if text is None:
            pointer = self.memory.moved.get(result) or self.memory.pointer(buffer, statement.windows, result)
            mask = self.memory.mask(buffer, statement.windows, result)
            text = f"tl.load({pointer}{f', mask={mask}, other=0.0' if mask else ''}{self.caching(statement)})"
        dtype = "f32" if buffer.view is not None and buffer.view.source < 0 else buffer.type.dtype
        if dtype != "f32" and self.operators.in_f32(result):
            text, dtype = f"{text}.to(tl.float32)", "f32"
        name = self.tiles.assign(result, text, buffer.name)
        padding = {d: 0.0 for d in dims if self.axes.pad(result, d) > result.shape[d]}
        bounds = tuple(map(Bound, range(len(result.shape)), statement.windows, buffer.type.shape))
        self.tiles.known[result] = Tile(name, dtype, dims, padding, zero_beyond=bounds)

    def band(self, statement: Load, band: Band) -> None:
        """A tile of a band, by its rows and columns alone."""
        result = statement.result
        rank, dims = len(result.shape), self.axes.live(result)
        spans: list[str] = []
        for d in (rank - 2, rank - 1):
            window = statement.windows[d]
            kept = tuple(k for k in (rank - 2, rank - 1) if k in dims)
            if d in dims:
                spans.append(self.writer.span(window, self.axes.pad(result, d)) + expansion((d,), kept))
            else:
                spans.append(self.writer.start(window))
        row, column = spans
        sides: list[str] = []
        if band.lower != -UNBOUNDED:
            sides.append(f"({column} >= {row}{f' + {band.lower}' if band.lower else ''})")
        if band.upper != UNBOUNDED:
            sides.append(f"({column} <= {row}{f' + {band.upper}' if band.upper else ''})")
        condition = f"({' & '.join(sides)})" if len(sides) > 1 else sides[0]
        text = f"tl.where({condition}, {number(band.inside)}, {number(band.outside)})"
        kept = tuple(d for d in dims if d >= rank - 2)
        if (band.inside, band.outside) == (0.0, -math.inf):
            self.tiles.known[result] = Tile(text, "f32", kept, seen=condition)
        else:
            name = self.tiles.assign(result, text, statement.buffer.name)
            self.tiles.known[result] = Tile(name, "f32", kept)

    def ramp(self, statement: Load, ramp: Ramp) -> None:
        """A tile of a ramp: a line of numbers, whatever the other dimensions are."""
        result = statement.result
        along, dims = len(result.shape) + ramp.along, self.axes.live(result)
        window = statement.windows[along]
        kept = tuple(d for d in dims if d == along)
        at = self.writer.span(window, self.axes.pad(result, along)) if kept else self.writer.start(window)
        scaled = f"({at}) * {ramp.step}" if ramp.step != 1 else at
        text = f"tl.cast({scaled}{f' + {ramp.start}' if ramp.start else ''}, tl.float32)"
        name = self.tiles.assign(result, text, statement.buffer.name)
        self.tiles.known[result] = Tile(name, "f32", kept)

    def caching(self, statement: Load) -> str:
        """Data read once leaves the caches first; data that another block or trip reads again stays longest.

        What is loaded a second time says that it stays in all caches, as it does anyway: with equal arguments,
        Triton would make one load of two.
        """
        modifier = ', cache_modifier=".ca"' if statement in self.again else ""
        if not self.program.cache_hints or statement.buffer in self.program.locals:
            return modifier
        moving = {var for w in statement.windows for var, _ in w.terms}
        around = {loop.var for loop in parallel_loops(self.program.body) if loop.trips > 1} | self.open
        return f'{modifier}, eviction_policy="{"evict_first" if around <= moving else "evict_last"}"'

    def store(self, statement: Store) -> None:
        buffer, value = statement.buffer, statement.value
        dims = self.axes.live(value)
        if not in_memory(buffer):
            tile = self.operators.tile(value)
            name = self.tiles.variables.get(buffer) or self.writer.unique(identifier(buffer.name, "tile"))
            self.tiles.variables[buffer] = name
            if tile.constant is not None:
                zero = tile.constant == 0.0
                shape = self.tiles.shape(value, dims)
                text = (
                    f"tl.zeros({shape}, tl.float32)" if zero else f"tl.full({shape}, {tile.text}, tl.float32)"
                )
                self.writer.line(f"{name} = {text}")
            elif tile.text != name:
                self.writer.line(f"{name} = {self.tiles.full(value, self.tiles.as_f32(tile), dims)}")
            return
        tile = self.operators.tile(value)
        self.memory.stores(buffer)
        pointer = self.memory.pointer(buffer, statement.windows, value)
        mask = self.memory.mask(buffer, statement.windows, value)
        text = tile.text
        if tile.dtype != buffer.type.dtype and tile.constant is None:
            text = f"{atom(text)}.to({TRITON_DTYPES[buffer.type.dtype]})"
        text += expansion(tile.dims, dims)
        self.writer.line(f"tl.store({pointer}, {text}{f', mask={mask}' if mask else ''})")

    def read_variable(self, statement: Load, following: Sequence[Statement]) -> None:
        """A buffer on chip is a variable; a value that outlives its next assignment gets another name."""
        buffer, result = statement.buffer, statement.result
        if buffer not in self.tiles.variables:
            raise UnsupportedProgram(
                f"expected '{buffer.name}' to be stored before it is loaded, got neither"
            )
        name = self.tiles.variables[buffer]
        dims = self.axes.live(result)
        stored = False
        for s in following:
            operands = s.operands if isinstance(s, Compute) else (s.value,) if isinstance(s, Store) else ()
            if isinstance(s, Loop):
                inner = list(statements(s.body))
                stored |= any(isinstance(t, Store) and t.buffer is buffer for t in inner)
                operands = [v for t in inner if isinstance(t, Compute) for v in t.operands]
            delayed = any(v is result for v in operands)
            if stored and delayed:
                name = self.tiles.assign(result, name, f"old_{buffer.name}")
                break
            if isinstance(s, Store) and s.buffer is buffer:
                stored = True
        self.tiles.known[result] = Tile(name, "f32", dims)


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "single"
