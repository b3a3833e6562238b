"""From tile programs to MLIR for the CPU: loops over elements in the dialects affine, arith, math and vector.

The blocks of the grid run one after the other; a parallel loop is a loop. Tiles are f32 in scratch memory, as
they are f32 on a GPU's chip: numbers are rounded where they are stored to device memory, and as operands of
products.
Where a window may reach past its buffer, loops end at its edge, and what lies outside is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.axes import same_dimensions
from superopt.errors import UnsupportedProgram
from superopt.operators import (
    Move,
    is_constant,
    is_contraction,
    is_elementwise,
    is_mask,
    move_of,
    reduction_of,
)
from superopt.program import (
    COMPUTE_DTYPES,
    DTYPE_BYTES,
    NUMBER_DTYPES,
    Band,
    Buffer,
    Compute,
    Load,
    Loop,
    LoopVar,
    Ramp,
    Statement,
    Store,
    TileProgram,
    Value,
    View,
    Window,
    statements,
)
from superopt.transforms.cpu.engine import ENTRY
from superopt.transforms.cpu.operators import (
    Source,
    banded,
    constant_of,
    counted,
    joined_parts,
    kept,
    masked,
    of_tile,
    pointwise,
    reduced,
    splat,
    view,
    window_text,
)
from superopt.transforms.cpu.products import multiplied
from superopt.transforms.cpu.views import viewed
from superopt.transforms.cpu.writer import Tile, Writer, linear, memory_type, row_major


@dataclass(frozen=True)
class CpuKernel:
    """A function of the CPU as MLIR: it takes pointers to the program's arguments, then to scratch memory.

    `arguments` and `scratch` are their sizes in bytes; `written` says which arguments it writes.
    """

    name: str
    text: str
    arguments: tuple[int, ...]
    written: tuple[bool, ...]
    scratch: tuple[int, ...]


def cpu_kernel(program: TileProgram) -> CpuKernel:
    """The function of a tile program; raises UnsupportedProgram for a dtype or an operator that it lacks."""
    return _Emitter(program).kernel()


class _Emitter:
    """Writes the statements of a program in order."""

    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.writer = Writer()
        self.values: dict[Value, Source] = {}
        self.chip: dict[Buffer, Tile] = {}
        self.variables: dict[LoopVar, str] = {}
        self.ranges: dict[LoopVar, tuple[int, int]] = {}
        local = (b for b in program.locals if b.placement != "chip" and b.view is None)
        memory = [*program.arguments, *local]
        self.memory = {b: f"%p{i}" for i, b in enumerate(memory)}
        inputs = {*program.params[: program.n_inputs]}
        for buffer in memory:
            known = NUMBER_DTYPES if buffer in inputs else COMPUTE_DTYPES
            if buffer.type.dtype not in known:
                raise UnsupportedProgram(f"expected f16, bf16 or f32 on the CPU, got {buffer.type.dtype}")
        self.body_of: dict[int, int] = {}
        self.users: dict[Value, list[Statement]] = {}
        self._note(program.body)
        self.left = {value: len(users) for value, users in self.users.items()}

    def _note(self, body: Sequence[Statement]) -> None:
        """Who uses each value, and in which body each statement stands."""
        for statement in body:
            self.body_of[id(statement)] = id(body)
            if isinstance(statement, Loop):
                self._note(statement.body)
            for value in _used(statement):
                self.users.setdefault(value, []).append(statement)

    def kernel(self) -> CpuKernel:
        program = self.program
        self.body(program.body)
        sizes, tiles = self.writer.slots()
        types = [(name, b.type.elements, b.type.dtype) for b, name in self.memory.items()]
        types += [(f"%s{i}", size, "f32") for i, size in enumerate(sizes)]
        given = ", ".join(f"{name}: {memory_type(n, dtype)} {{llvm.noalias}}" for name, n, dtype in types)
        lines = [f"func.func @{ENTRY}({given}) {{", *tiles, *self.writer.lines, "  return", "}"]
        bytes_ = [n * DTYPE_BYTES[dtype] for _, n, dtype in types]
        count = len(program.arguments)
        inputs = {*program.params[: program.n_inputs]}
        written = tuple(b not in inputs for b in program.arguments)
        text = "\n".join(lines) + "\n"
        return CpuKernel(program.name, text, tuple(bytes_[:count]), written, tuple(bytes_[count:]))

    # --- statements

    def body(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self.writer.now += 1
            if isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, Load):
                self.load(statement)
            elif isinstance(statement, Store):
                self.store(statement)
            else:
                self.compute(statement)
            for value in _used(statement):
                self.left[value] -= 1

    def loop(self, loop: Loop) -> None:
        inside = list(statements(loop.body))
        used = {v for s in inside for v in _used(s)}
        stored = frozenset(s.buffer for s in inside if isinstance(s, Store))
        for value, source in list(self.values.items()):
            if not self.left.get(value) or (source.tile is not None and not source.buffers & stored):
                continue
            if source.buffers & stored or (value in used and source.buffers):
                self.settle(value)
        begun = self.writer.now
        name = f"%v{len(self.variables)}"
        self.variables[loop.var] = name
        self.ranges[loop.var] = loop.start, loop.start + (loop.trips - 1) * loop.step
        with self.writer.block(f"affine.for {name} = {loop.start} to {loop.stop} step {loop.step}"):
            self.body(loop.body)
        # What was there before the loop and is used in it is needed until its last trip has ended.
        self.writer.now += 1
        for memory in self.writer.memories:
            if memory.born <= begun < memory.last:
                memory.last = self.writer.now

    def settle(self, value: Value) -> Tile:
        """Keep a value as a tile of its own."""
        source = self.values[value]
        if source.tile is None or source.buffers:
            tile = kept(self.writer, value.shape, source)
            self.values[value] = of_tile(self.writer, tile, exact=source.exact)
            return tile
        return source.tile

    def define(self, value: Value, source: Source) -> None:
        """`source` as what a value is; kept where several statements read it, or read more than it has."""
        self.values[value] = source
        if not (source.direct or self.read_once(value)):
            self.settle(value)

    def read_once(self, value: Value) -> bool:
        """Whether one statement of the same body reads each element once."""
        users = self.users.get(value, [])
        if len(users) != 1 or self.body_of[id(users[0])] != self.current:
            return False
        (user,) = users
        if isinstance(user, Compute) and (is_elementwise(user) or move_of(user) is not None):
            return user.result.type.elements == value.type.elements
        return True

    def load(self, statement: Load) -> None:
        buffer, value = statement.buffer, statement.result
        self.current = self.body_of[id(statement)]
        if buffer.placement == "chip":
            if buffer not in self.chip:
                raise UnsupportedProgram(
                    f"expected '{buffer.name}' to be stored before it is loaded, got neither"
                )
            self.values[value] = of_tile(self.writer, self.chip[buffer], frozenset({buffer}), exact=False)
            return
        windows = statement.windows
        if buffer.view is not None:
            source = self.from_view(buffer.view, windows)
        elif isinstance(buffer.computed, Band):
            source = banded(self.writer, buffer.computed, windows, self.variables)
        elif isinstance(buffer.computed, Ramp):
            source = counted(self.writer, buffer.computed, windows, self.variables)
        else:
            source = self.from_memory(statement)
        if all(map(self.inside, statement.windows, buffer.type.shape)):
            self.values[value] = source
            if not self.read_once(value):
                self.settle(value)
            return
        tile = self.writer.tile(value.shape)
        self.writer.nest(value.shape, lambda p: self.writer.store(self.writer.number(0.0), tile, tile.at(p)))
        bounds = list(map(self.clipped, statement.windows, buffer.type.shape))
        self.writer.nest(bounds, lambda p: self.writer.store(source.read(p), tile, tile.at(p)))
        self.values[value] = of_tile(self.writer, tile, exact=True)

    def from_memory(self, statement: Load) -> Source:
        buffer = statement.buffer
        name, dtype = self.memory[buffer], buffer.type.dtype

        def read(point: Sequence[str]) -> str:
            number = self.writer.let(
                f"affine.load {name}[{self.place(buffer, statement.windows, point)}] : {_type(buffer)}"
            )
            return self.writer.widened(number, dtype)

        return Source(read, frozenset({buffer}), frozenset({buffer}), direct=True, exact=True)

    def from_view(self, view: View, windows: Sequence[Window]) -> Source:
        shown = None if view.source < 0 else self.program.params[view.source]
        source = None if shown is None else (self.memory[shown], shown.type)
        return viewed(self.writer, view, source, windows, self.variables)

    def place(self, buffer: Buffer, windows: Sequence[Window], point: Sequence[str]) -> str:
        """Where an element of a window lies in a buffer."""
        indices = [window_text(w, i, self.variables) for w, i in zip(windows, point, strict=True)]
        return linear(indices, row_major(buffer.type.shape))

    def store(self, statement: Store) -> None:
        buffer, value = statement.buffer, statement.value
        self.before_store(statement)
        source = self.values[value]
        if buffer.placement == "chip":
            if buffer not in self.chip:
                self.chip[buffer] = self.writer.tile(buffer.type.shape)
            tile = self.chip[buffer]
            if source.tile is not tile:
                self.writer.nest(value.shape, lambda p: self.writer.store(source.read(p), tile, tile.at(p)))
            return
        name, dtype = self.memory[buffer], buffer.type.dtype

        def write(point: list[str]) -> None:
            number = self.writer.narrowed(source.read(point), dtype)
            place = self.place(buffer, statement.windows, point)
            self.writer.line(f"affine.store {number}, {name}[{place}] : {_type(buffer)}")

        self.writer.nest(list(map(self.clipped, statement.windows, buffer.type.shape)), write)

    def before_store(self, statement: Store) -> None:
        """Keep what was read from a buffer and is needed when it has changed."""
        buffer = statement.buffer
        for value, source in list(self.values.items()):
            mine = value is statement.value
            if buffer in source.buffers and self.left.get(value, 0) > mine:
                self.settle(value)
        source = self.values[statement.value]
        if buffer in source.skewed:
            self.settle(statement.value)

    def compute(self, statement: Compute) -> None:
        writer, result = self.writer, statement.result
        self.current = self.body_of[id(statement)]
        sources = [self.values[v] for v in statement.operands]
        move = move_of(statement)
        if is_contraction(statement):
            self.values[result] = of_tile(writer, multiplied(writer, statement, *sources), exact=False)
        elif reduction_of(statement) is not None:
            self.values[result] = of_tile(writer, reduced(writer, statement, *sources), exact=False)
        elif is_constant(statement):
            if (number := constant_of(statement)) is None:
                raise UnsupportedProgram("expected constants inside kernels to be splats, got a dense one")
            self.values[result] = splat(writer, number)
        elif is_mask(statement):
            bounds = [b for b in statement.bounds if not self.inside(b.window, b.extent)]
            self.define(result, masked(writer, statement, sources[0], self.variables, bounds))
        elif is_elementwise(statement):
            self.define(result, pointwise(writer, statement, sources))
        elif move in (Move.TRANSPOSE, Move.BROADCAST, Move.SLICE):
            if not sources[0].direct:
                self.settle(statement.operands[0])
            self.define(result, view(statement, self.values[statement.operands[0]]))
        elif move is Move.RESHAPE:
            self.reshape(statement)
        elif move in (Move.CONCAT, Move.REPEAT, Move.UPDATE):
            parts = list(zip(statement.operands, sources, strict=True))
            tile = joined_parts(writer, statement, parts, statement.attrs)
            self.values[result] = of_tile(writer, tile, exact=all(s.exact for s in sources))
        else:
            raise UnsupportedProgram(f"expected an operator of the CPU, got '{statement.op}'")

    def reshape(self, statement: Compute) -> None:
        """The same memory under another shape; with other dimensions of one element, the same elements."""
        (value,), result = statement.operands, statement.result
        source = self.values[value]
        if (pairs := same_dimensions(value.shape, result.shape)) is not None:
            of = dict(pairs)

            def read(point: Sequence[str]) -> str:
                return source.read([point[of[d]] if d in of else "0" for d in range(len(value.shape))])

            tile = source.tile.reshaped(result.shape) if source.tile and source.tile.packed else None
            self.define(result, replace(source, read=read, tile=tile))
            return
        tile = source.tile
        if tile is None or not tile.packed or source.buffers:
            tile = kept(self.writer, value.shape, source)
        made = tile.reshaped(result.shape)
        self.values[result] = of_tile(self.writer, made, exact=source.exact)

    # --- windows

    def inside(self, window: Window, extent: int) -> bool:
        """Whether a window never reaches past an extent."""
        first = last = window.base
        for var, scale in window.terms:
            low, high = sorted(scale * v for v in self.ranges[var])
            first, last = first + low, last + high
        return first >= 0 and last + window.stride * (window.size - 1) < extent

    def clipped(self, window: Window, extent: int) -> int | tuple[str, str]:
        """The indices of a window that lie in its buffer."""
        if self.inside(window, extent):
            return window.size
        names = [self.variables[var] for var, _ in window.terms]
        dims = ", ".join(f"d{i}" for i in range(len(names)))
        start = " + ".join([str(window.base), *(f"d{i} * {s}" for i, (_, s) in enumerate(window.terms))])
        head, given = f"affine_map<({dims}) ->", f"({', '.join(names)})"
        low = f"max {head} (0, (-({start})) ceildiv {window.stride})>{given}"
        high = f"min {head} ({window.size}, ({extent} - ({start})) ceildiv {window.stride})>{given}"
        return low, high


def _used(statement: Statement) -> tuple[Value, ...]:
    if isinstance(statement, Compute):
        return statement.operands
    return (statement.value,) if isinstance(statement, Store) else ()


def _type(buffer: Buffer) -> str:
    return memory_type(buffer.type.elements, buffer.type.dtype)
