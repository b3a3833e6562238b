"""From tile programs to Triton source.

Parallel loops become `tl.program_id`s, sequential ones `for`; tiles are tensors padded to powers of two (see
`axes`), with masks only where an extent needs them; padding is set to the neutral element before a reduction
or a product runs over it. Arithmetic is in f32; operands of `tl.dot` keep their dtype. Buffers on chip are
variables. The text depends on nothing but the program: the same program gives the same text.
"""

from __future__ import annotations

import builtins
import dataclasses
import keyword
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.errors import UnsupportedProgram
from superopt.operators import OPERATORS, Scalar, arg, exp
from superopt.program import (
    Buffer,
    Compute,
    Load,
    Loop,
    LoopVar,
    Statement,
    Store,
    TensorType,
    TileProgram,
    Value,
    Window,
)
from superopt.transforms.emit.axes import Axes, Owner, expansion, nest_of, same_dimensions
from superopt.transforms.emit.legalize import legalize
from superopt.transforms.emit.spelling import evaluate, number, spell
from superopt.transforms.lower.builder import flat, identifier

TRITON_DTYPES = {"f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32"}
_INT32_MAX = 2**31 - 1
_LOG2_E = math.log2(math.e)
_EXP_OF_DIFFERENCE = exp(arg(0) + -arg(1))
_GRID_LIMIT = 65535  # of the second and third grid dimension
_GROUP = 8  # rows of tiles that blocks go through together
_REDUCTIONS = {"add": ("tl.sum", 0.0), "max": ("tl.max", -math.inf), "min": ("tl.min", math.inf)}


@dataclass(frozen=True)
class Parameter:
    """A pointer argument: what it points to, and whether it is scratch that the launcher allocates."""

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


def emit_kernel(program: TileProgram) -> TritonKernel:
    """The Triton function of a tile program.

    Raises UnsupportedProgram for what Triton cannot express: a dense constant inside a kernel, or a tile of
    more than 2^20 elements.
    """
    return _Emitter(program).kernel()


@dataclass(frozen=True)
class _Tile:
    """A value as Triton holds it.

    `text` names it, `dtype` is what it holds now, `dims` are the value's dimensions that it has (those that
    it was broadcast along are left out), `padding` what its padded elements are along a dimension, where known.
    `constant` is its number where it is a splat.
    """

    text: str
    dtype: str
    dims: tuple[int, ...]
    padding: dict[int, float] = field(default_factory=dict[int, float])
    constant: float | None = None


class _Emitter:
    def __init__(self, program: TileProgram) -> None:
        self.program, self.views = legalize(program)
        self.axes = Axes(self.program)
        self.lines: list[str] = []
        self.indent = 1
        self.used: set[str] = {"tl", "triton", *keyword.kwlist, *dir(builtins)}
        self.tiles: dict[Value, _Tile] = {}
        self.variables: dict[Buffer, str] = {}
        self.loops: dict[LoopVar, str] = {}
        self.header: list[str] = []
        self.spans: list[dict[str, str]] = [{}]
        self.sequential: set[LoopVar] = set()
        self.dirty: set[Buffer] = set()
        self.read: set[Buffer] = set()
        self.uses: Counter[Value] = Counter()
        self.users: dict[Value, list[Compute | Store]] = defaultdict(list)
        for s in self.program.statements():
            operands = s.operands if isinstance(s, Compute) else (s.value,) if isinstance(s, Store) else ()
            for v in operands:
                self.uses[v] += 1
                if isinstance(s, Compute | Store):
                    self.users[v].append(s)
        self.delayed: dict[Value, Compute] = {}
        self.differences: dict[Value, Compute] = {}
        self.named: dict[Value, str] = {}
        self.moved: dict[Value, str] = {}  # loaded tiles -> the pointers that move with the loop
        for b in self.program.params:
            self.used.add(f"{b.name}_ptr")

    # --- the function ---

    def kernel(self) -> TritonKernel:
        program = self.program
        name = self.unique(identifier(program.name, "kernel"))
        parameters: list[Parameter] = []
        pointers: dict[Buffer, str] = {}
        self.pointers = pointers
        taken: set[str] = set()

        def add(buffer: Buffer, role: str, type_: TensorType) -> None:
            text, i = f"{buffer.name}_ptr", 1
            while text in taken:
                text, i = f"{buffer.name}_{i}_ptr", i + 1
            taken.add(text)
            self.used.add(text)
            pointers[buffer] = text
            parameters.append(Parameter(text, type_, role))

        for i, buffer in enumerate(program.params):
            add(buffer, "input" if i < program.n_inputs else "output", buffer.type)
        blocks = math.prod(_trips(loop) for loop in _parallel(program.body))
        for buffer in program.locals:
            if buffer.placement == "device" and buffer not in self.views:
                add(buffer, "scratch", TensorType((blocks, *buffer.type.shape), buffer.type.dtype))
        for view, buffer in self.views.items():
            pointers[view] = pointers[buffer]
        grid = self.grid(_parallel(program.body))
        body = program.body
        while len(body) == 1 and isinstance(body[0], Loop) and body[0].parallel:
            body = body[0].body
        self.body(body)
        arguments = ", ".join(p.name for p in parameters)
        text = ["@triton.jit", f"def {name}({arguments}):", *self.header, *self.lines]
        return TritonKernel(
            name, "\n".join(text) + "\n", tuple(parameters), grid, program.num_warps, program.num_stages
        )

    def grid(self, loops: Sequence[Loop]) -> tuple[int, int, int]:
        """Program ids, the innermost loop along x; one flat id where the grid has no such shape.

        Rows and columns of a large grid of products are one id, which goes through them in groups of rows.
        """
        trips = [_trips(loop) for loop in loops]
        total = math.prod(trips)
        outputs = ", ".join(b.name for b in self.program.params[self.program.n_inputs :])
        if loops:
            self.header.append(f"    # {total} blocks, each computes its tile of {outputs}.")
        if self.grouped(loops):
            texts, grid = self.groups(trips)
        elif len(loops) > 3 or any(n > _GRID_LIMIT for n in trips[:-1]):
            texts, grid = _unravelled("tl.program_id(0)", trips), (total, 1, 1)
        else:
            texts = [f"tl.program_id({len(loops) - 1 - i})" for i in range(len(loops))]
            x, y, z = (*reversed(trips), 1, 1, 1)[:3]
            grid = (x, y, z)
        for loop, text in zip(loops, texts, strict=True):
            self.loops[loop.var] = self.unique(identifier(loop.var.name, "pid"))
            if loop.step != 1:
                text = f"{_factor(text)} * {loop.step}"
            text = f"{loop.start} + {text}" if loop.start else text
            self.header.append(f"    {self.loops[loop.var]} = {text}")
        if any(b in self.program.locals for b in self.pointers):
            self.block = self.unique("block")
            ids = zip(("tl.program_id(0)", "tl.program_id(1)", "tl.program_id(2)"), (1, *grid), strict=False)
            terms = [_product(text, math.prod(grid[:i])) for i, (text, _) in enumerate(ids) if grid[i] > 1]
            self.header.append(f"    {self.block} = {' + '.join(reversed(terms)) or 'tl.program_id(0)'}")
        return grid

    def grouped(self, loops: Sequence[Loop]) -> bool:
        """Whether blocks that run at once should be a square of tiles rather than a row of them.

        So it is where a product streams rows that one of the innermost two grid dimensions picks, and columns
        that the other picks: a square of blocks shares more of what it reads in the L2 cache.
        """
        if not 2 <= len(loops) <= 4 or _trips(loops[-2]) <= _GROUP or _trips(loops[-1]) <= _GROUP:
            return False
        if math.prod(map(_trips, loops[:-2])) > _GRID_LIMIT:
            return False
        rows, columns = loops[-2].var, loops[-1].var
        products = any(isinstance(s, Compute) and s.op == "matmul" for s in self.program.statements())
        picked = [
            {var for w in s.windows for var, _ in w.terms} & {rows, columns}
            for s in self.program.statements()
            if isinstance(s, Load) and self.in_memory(s.buffer)
        ]
        return products and {rows} in picked and {columns} in picked

    def groups(self, trips: Sequence[int]) -> tuple[list[str], tuple[int, int, int]]:
        """Texts of the grid's indices, in groups of rows, and the grid."""
        *outer, rows, columns = trips
        pid = self.unique("pid")
        self.header.append(f"    # In groups of {_GROUP} rows: blocks that run at once share what they read.")
        self.header.append(f"    {pid} = tl.program_id(0)")
        size = _GROUP * columns
        group, inside = f"{pid} // {size}", f"{pid} % {size}"
        name = self.unique("rows")  # of this group: the last one may have fewer
        self.header.append(f"    {name} = min({rows} - {group} * {_GROUP}, {_GROUP})")
        texts = [f"{group} * {_GROUP} + {inside} % {name}", f"{inside} // {name}"]
        return _unravelled("tl.program_id(1)", outer) + texts, (rows * columns, math.prod(outer), 1)

    # --- text ---

    def unique(self, name: str) -> str:
        text, i = name, 1
        while text in self.used:
            text, i = f"{name}_{i}", i + 1
        self.used.add(text)
        return text

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def shape(self, owner: Owner, dims: Sequence[int]) -> str:
        pads = [self.axes.pad(owner, d) for d in dims]
        if math.prod(pads) > 1 << 20:
            raise UnsupportedProgram(f"expected tiles of at most 2^20 elements, got {pads}")
        return "[" + ", ".join(map(str, pads)) + "]"

    # --- statements ---

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
                self.compute(statement, following)

    def loop(self, loop: Loop) -> None:
        inside = list(flat(loop.body))
        stored = {self.memory(s.buffer) for s in inside if isinstance(s, Store) and self.in_memory(s.buffer)}
        loaded = {self.memory(s.buffer) for s in inside if isinstance(s, Load) and self.in_memory(s.buffer)}
        var = self.loops[loop.var] = self.unique(identifier(loop.var.name, "i"))
        self.sequential.add(loop.var)
        trips = _trips(loop)
        tiles = [
            f"{_by(s.result.shape)} of {s.buffer.name}"
            for s in loop.body
            if isinstance(s, Load) and self.in_memory(s.buffer)
        ]
        reads = f", each reads {' and '.join(dict.fromkeys(tiles))}" if tiles else ""
        moving = self.moving_pointers(loop)
        self.line(f"# {trips} trips{reads}.")
        bounds = f"{loop.start}, {loop.stop}" + (f", {loop.step}" if loop.step != 1 else "")
        if stored & loaded:
            # What one trip stores a later one loads: no load may be moved ahead by the software pipeline.
            self.line(f"for {var} in tl.range({bounds}, num_stages=1):")
            self.dirty |= stored & loaded
            self.read |= stored & loaded
        else:
            self.line(f"for {var} in range({bounds}):")
        self.indent += 1
        self.spans.append({})
        self.body(loop.body)
        for name, step in moving.items():
            self.line(f"{name} += {step}")
        self.spans.pop()
        self.indent -= 1

    # --- memory ---

    def moving_pointers(self, loop: Loop) -> dict[str, int]:
        """Pointers of the tiles that each trip reads, set in front of the loop, and how far a trip moves them.

        Their offsets are then added once, not in every trip.
        """
        steps: dict[str, int] = {}
        names: dict[str, str] = {}
        for s in loop.body:
            if not isinstance(s, Load) or not self.in_memory(s.buffer):
                continue
            shape = s.buffer.type.shape
            scales = [sum(scale for var, scale in w.terms if var is loop.var) for w in s.windows]
            strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
            step = sum(a * b for a, b in zip(scales, strides, strict=True)) * loop.step
            if not step:
                continue
            first = [
                Window(
                    w.size,
                    w.base + scale * loop.start,
                    tuple(t for t in w.terms if t[0] is not loop.var),
                    w.stride,
                )
                for w, scale in zip(s.windows, scales, strict=True)
            ]
            text = self.pointer(s.buffer, first, s.result)
            if text not in names:
                names[text] = self.unique(f"{s.buffer.name}_ptrs")
                self.line(f"{names[text]} = {text}")
                steps[names[text]] = step
            self.moved[s.result] = names[text]
        return steps

    def in_memory(self, buffer: Buffer) -> bool:
        return buffer.placement == "device"

    def memory(self, buffer: Buffer) -> Buffer:
        return self.views.get(buffer, buffer)

    def barrier(self) -> None:
        """All threads of the block have stored and loaded what stands above."""
        self.line("tl.debug_barrier()")
        self.dirty.clear()
        self.read.clear()

    def load(self, statement: Load, following: Sequence[Statement]) -> None:
        buffer, result = statement.buffer, statement.result
        if not self.in_memory(buffer):
            self.read_variable(statement, following)
            return
        if self.memory(buffer) in self.dirty:
            self.barrier()
        self.read.add(self.memory(buffer))
        dims = self.axes.live(result)
        pointer = self.moved.get(result) or self.pointer(buffer, statement.windows, result)
        mask = self.mask(buffer, statement.windows, result)
        text = f"tl.load({pointer}{f', mask={mask}, other=0.0' if mask else ''})"
        dtype = buffer.type.dtype
        users = self.users[result]
        if dtype != "f32" and users and all(isinstance(u, Compute) and self.is_pointwise(u) for u in users):
            text, dtype = f"{text}.to(tl.float32)", "f32"
        name = self.assign(result, text, buffer.name)
        padding = {d: 0.0 for d in dims if self.axes.pad(result, d) > result.shape[d]}
        self.tiles[result] = _Tile(name, dtype, dims, padding)

    def store(self, statement: Store) -> None:
        buffer, value = statement.buffer, statement.value
        dims = self.axes.live(value)
        if not self.in_memory(buffer):
            tile = self.tile(value)
            name = self.variables.get(buffer) or self.unique(identifier(buffer.name, "tile"))
            self.variables[buffer] = name
            if tile.constant is not None:
                zero = tile.constant == 0.0
                shape = self.shape(value, dims)
                text = (
                    f"tl.zeros({shape}, tl.float32)" if zero else f"tl.full({shape}, {tile.text}, tl.float32)"
                )
                self.line(f"{name} = {text}")
            elif tile.text != name:
                self.line(f"{name} = {self.full(value, self.as_f32(tile), dims)}")
            return
        tile = self.tile(value)
        memory = self.memory(buffer)
        if memory in self.read or (memory in self.dirty and memory in self.program.locals):
            self.barrier()
        self.dirty.add(memory)
        pointer = self.pointer(buffer, statement.windows, value)
        mask = self.mask(buffer, statement.windows, value)
        text = tile.text
        if tile.dtype != buffer.type.dtype and tile.constant is None:
            text = f"{_atom(text)}.to({TRITON_DTYPES[buffer.type.dtype]})"
        text += expansion(tile.dims, dims)
        self.line(f"tl.store({pointer}, {text}{f', mask={mask}' if mask else ''})")

    def read_variable(self, statement: Load, following: Sequence[Statement]) -> None:
        """A buffer on chip is a variable; what outlives its next assignment is kept under another name."""
        buffer, result = statement.buffer, statement.result
        if buffer not in self.variables:
            raise UnsupportedProgram(
                f"expected '{buffer.name}' to be stored before it is loaded, got neither"
            )
        name = self.variables[buffer]
        dims = self.axes.live(result)
        stored = False
        for s in following:
            operands = s.operands if isinstance(s, Compute) else (s.value,) if isinstance(s, Store) else ()
            if isinstance(s, Loop):
                inner = list(flat(s.body))
                stored |= any(isinstance(t, Store) and t.buffer is buffer for t in inner)
                operands = [v for t in inner if isinstance(t, Compute) for v in t.operands]
            delayed = any(v is result for v in operands)
            if stored and delayed:
                name = self.assign(result, name, f"old_{buffer.name}")
                break
            if isinstance(s, Store) and s.buffer is buffer:
                stored = True
        self.tiles[result] = _Tile(name, "f32", dims)

    def pointer(self, buffer: Buffer, windows: Sequence[Window], value: Value) -> str:
        """Pointers to the elements that `windows` cut out."""
        dims = self.axes.live(value)
        shape = buffer.type.shape
        wide = buffer.type.elements > _INT32_MAX or (
            buffer in self.program.locals and self.scratch_elements(buffer) > _INT32_MAX
        )
        offsets: list[str] = []
        if buffer in self.program.locals:
            block = f"{self.block}.to(tl.int64)" if wide else self.block
            offsets.append(f"{block} * {buffer.type.elements}")
        for d, window in enumerate(windows):
            stride = math.prod(shape[d + 1 :])
            if d not in dims:
                text = self.start(window, wide=wide)
                if text != "0":
                    offsets.append(_product(text, stride))
                continue
            span = self.span(window, self.axes.pad(value, d))
            index = f"{span}.to(tl.int64)" if wide else span
            offsets.append(_product(index + expansion((d,), dims), stride))
        return " + ".join([self.pointers[buffer], *offsets])

    def mask(self, buffer: Buffer, windows: Sequence[Window], value: Value) -> str:
        """Which of the elements that `windows` cut out exist; empty where all do."""
        dims = self.axes.live(value)
        masks: list[str] = []
        for d in dims:
            window, extent, pad = windows[d], buffer.type.shape[d], self.axes.pad(value, d)
            end = self.last(window) + (window.size - 1) * window.stride
            bounds: list[str] = []
            if pad > window.size and (end < extent or window.terms):
                bounds.append(f"({self.span(Window(window.size), pad)} < {window.size})")
            if end >= extent:
                bounds.append(f"({self.span(window, pad)} < {extent})")
            masks += [b + expansion((d,), dims) for b in bounds]
        text = " & ".join(masks)
        return text[1:-1] if len(masks) == 1 and text.endswith(")") else text

    def scratch_elements(self, buffer: Buffer) -> int:
        return buffer.type.elements * math.prod(_trips(loop) for loop in _parallel(self.program.body))

    def last(self, window: Window) -> int:
        """The largest start that a window takes."""
        ranges = {
            s.var: s.start + (_trips(s) - 1) * s.step
            for s in self.program.statements()
            if isinstance(s, Loop)
        }
        return window.base + sum(scale * ranges[var] for var, scale in window.terms)

    def start(self, window: Window, *, wide: bool = False) -> str:
        """The first index of a window, as text."""
        parts = [
            (f"{self.loops[var]}.to(tl.int64)" if wide else self.loops[var])
            + (f" * {scale}" if scale != 1 else "")
            for var, scale in window.terms
        ]
        if window.base or not parts:
            parts.append(str(window.base))
        return " + ".join(parts)

    def span(self, window: Window, pad: int) -> str:
        """The name of the vector of a window's indices, made where first needed, outside loops if it can."""
        lanes = f"tl.arange(0, {pad})" + (f" * {window.stride}" if window.stride != 1 else "")
        start = self.start(window)
        text = lanes if start == "0" else f"{start} + {lanes}"
        for scope in self.spans:
            if text in scope:
                return scope[text]
        moving = [var for var, _ in window.terms if var in self.sequential]
        variables = "_".join(self.loops[var] for var, _ in window.terms)
        name = self.unique(f"{variables}_span" if variables else f"span_{pad}")
        if moving:
            self.line(f"{name} = {text}")
            self.spans[-1][text] = name
        else:
            self.header.append(f"    {name} = {text}")
            self.spans[0][text] = name
        return name

    # --- tiles ---

    def assign(self, value: Value, text: str, default: str) -> str:
        name = self.named.get(value) or self.unique(identifier(value.name, default))
        self.line(f"{name} = {text}")
        return name

    def tile(self, value: Value) -> _Tile:
        if value in self.delayed:
            self.matmul(self.delayed.pop(value), None)
        return self.tiles[value]

    def as_f32(self, tile: _Tile) -> _Tile:
        if tile.dtype == "f32" or tile.constant is not None:
            return tile
        return _Tile(f"{_atom(tile.text)}.to(tl.float32)", "f32", tile.dims, tile.padding)

    def full(self, value: Value, tile: _Tile, dims: Sequence[int]) -> str:
        """The tile with all of `dims`, for operations that do not broadcast by themselves."""
        if tile.constant is not None:
            return f"tl.full({self.shape(value, dims)}, {tile.text}, tl.float32)"
        if list(tile.dims) == list(dims):
            return tile.text
        return f"tl.broadcast_to({tile.text}{expansion(tile.dims, dims)}, {self.shape(value, dims)})"

    def masked(self, value: Value, tile: _Tile, dims: Iterable[int], neutral: float) -> _Tile:
        """The tile with `neutral` in the padding along `dims`."""
        for d in dims:
            extent, pad = value.shape[d], self.axes.pad(value, d)
            if d in tile.dims and pad > extent and tile.padding.get(d) != neutral:
                lane = self.span(Window(extent), pad)
                mask = f"({lane} < {extent})" + expansion((d,), tile.dims)
                if len(tile.dims) == 1:
                    mask = mask[1:-1]
                text = f"tl.where({mask}, {tile.text}, {number(neutral)})"
                tile = _Tile(text, tile.dtype, tile.dims, {**tile.padding, d: neutral})
        return tile

    def collapsed(self, value: Value, tile: _Tile, keep: Sequence[int]) -> _Tile:
        """The tile without its dimensions outside `keep`: of extent 1, padded for a product, now broadcast."""
        gone = [d for d in tile.dims if d not in keep]
        if not gone:
            return tile
        tile = self.masked(value, self.as_f32(tile), gone, 0.0)
        text = tile.text
        for d in reversed(gone):
            text = f"tl.sum({text}, axis={tile.dims.index(d)})"
        dims = tuple(d for d in tile.dims if d in keep)
        return _Tile(text, "f32", dims, {d: p for d, p in tile.padding.items() if d in dims})

    # --- operators ---

    def is_pointwise(self, statement: Compute) -> bool:
        return OPERATORS[statement.op].elementwise and statement.op != "cast"

    def compute(self, statement: Compute, following: Statement | None) -> None:
        result = statement.result
        if (
            isinstance(following, Store)
            and following.value is result
            and not self.in_memory(following.buffer)
            and following.buffer in self.variables
            and self.uses[result] == 1
        ):
            self.named[result] = self.variables[following.buffer]
        entry = OPERATORS[statement.op]
        if statement.op == "constant":
            self.constant(statement)
        elif statement.op == "matmul":
            if self.uses[result] == 1 and self.accumulates(self.users[result][0], result):
                self.delayed[result] = statement
            else:
                self.matmul(statement, None)
        elif statement.op == "reshape":
            self.reshape(statement)
        elif (
            statement.op == "sub"
            and isinstance(following, Compute)
            and following.op == "exp"
            and following.operands == (result,)
            and self.uses[result] == 1
        ):
            self.differences[result] = statement
        elif statement.op == "exp" and statement.operands[0] in self.differences:
            self.exponential(statement, self.differences.pop(statement.operands[0]))
        elif entry.elementwise:
            self.pointwise(statement)
        elif entry.combiner is not None:
            self.reduce(statement)
        else:
            self.move(statement)

    def constant(self, statement: Compute) -> None:
        value = statement.attrs["value"]
        if isinstance(value, np.ndarray) or not isinstance(value, int | float):
            raise UnsupportedProgram("expected dense constants as arguments of a kernel, got one inside")
        self.tiles[statement.result] = _Tile(number(value), "f32", (), constant=float(value))

    def accumulates(self, user: Compute | Store, product: Value) -> bool:
        """Whether `user` adds the product to something of its shape, which `tl.dot` does by itself."""
        if not isinstance(user, Compute) or user.op != "add":
            return False
        (other,) = [v for v in user.operands if v is not product] or [product]
        return other is not product and other.shape == product.shape

    def pointwise(self, statement: Compute) -> None:
        result = statement.result
        for value in statement.operands:
            product = self.delayed.pop(value, None)
            if product is not None:
                (other,) = (v for v in statement.operands if v is not value)
                tile = self.tile(other)
                if tile.dims == self.axes.live(other) and tile.constant is None:
                    self.matmul(product, self.as_f32(tile).text, result)
                    return
                self.matmul(product, None)
        body = OPERATORS[statement.op].body
        assert body is not None
        self.apply(statement, body(statement.attrs), self.aligned(statement))

    def exponential(self, statement: Compute, difference: Compute) -> None:
        """`exp(x - m)`: where m is the same along a dimension, `exp2(x * log2(e) - m * log2(e))`.

        The hardware has powers of two only: one fused multiply-add for each x then replaces a difference and a
        product.
        """
        x, m = self.aligned(difference)
        if not set(m.dims) < set(x.dims) or m.constant is not None:
            self.pointwise(difference)
            self.pointwise(statement)
            return
        scaled = dataclasses.replace(m, text=f"({m.text} * {_LOG2_E})")
        self.apply(statement, _EXP_OF_DIFFERENCE, [x, scaled], f"tl.exp2({{0}} * {_LOG2_E} - {{1}})")

    def aligned(self, statement: Compute) -> list[_Tile]:
        """The operands of an elementwise operator in f32, by the result's dimensions."""
        nest = nest_of(statement)
        assert nest is not None
        tiles: list[_Tile] = []
        for value, maps in zip(statement.operands, nest.operands, strict=True):
            keep = [d for d, index in enumerate(maps) if index.dim is not None]
            tile = self.collapsed(value, self.as_f32(self.tile(value)), keep)
            shift = len(statement.result.shape) - len(value.shape)
            dims = tuple(d + shift for d in tile.dims)
            padding = {d + shift: p for d, p in tile.padding.items()}
            tiles.append(_Tile(tile.text, tile.dtype, dims, padding, tile.constant))
        return tiles

    def apply(self, statement: Compute, scalar: Scalar, tiles: Sequence[_Tile], text: str = "") -> None:
        """`scalar` on tiles that are aligned with the result's dimensions; `text` is another spelling of it."""
        result = statement.result
        dims = tuple(sorted({d for t in tiles for d in t.dims}))
        numbers = [t.constant for t in tiles]
        known = [n for n in numbers if n is not None]
        foldable = len(known) == len(tiles) or scalar.head == "const"
        if foldable and (folded := evaluate(scalar, known)) is not None:
            self.tiles[result] = _Tile(number(folded), "f32", (), constant=folded)
            return
        padding: dict[int, float] = {}
        for d in dims:
            if self.axes.pad(result, d) > result.shape[d]:
                at = [t.constant if t.constant is not None else t.padding.get(d) for t in tiles]
                there = [p for p in at if p is not None]
                if len(there) == len(at) and (p := evaluate(scalar, there)) is not None:
                    padding[d] = p
        texts = [t.text + expansion(t.dims, dims) for t in tiles]
        texts = [t.text if t.dims == dims else x for t, x in zip(tiles, texts, strict=True)]
        if scalar == arg(0):  # a cast: numbers on chip keep their f32 bits
            self.tiles[result] = _Tile(tiles[0].text, tiles[0].dtype, dims, padding)
            return
        name = self.assign(result, text.format(*texts) if text else spell(scalar, texts), statement.op)
        self.tiles[result] = _Tile(name, "f32", dims, padding)

    def reduce(self, statement: Compute) -> None:
        entry = OPERATORS[statement.op]
        (value,), result = statement.operands, statement.result
        nest = nest_of(statement)
        assert nest is not None
        assert entry.combiner is not None
        call, neutral = _REDUCTIONS[entry.combiner]
        tile = self.as_f32(self.tile(value))
        present = [d for d in nest.reductions if d in tile.dims]
        absent = math.prod(value.shape[d] for d in nest.reductions if d not in tile.dims)
        tile = self.masked(value, tile, present, neutral)
        text, dims = tile.text, list(tile.dims)
        for d in reversed(present):
            text = f"{call}({text}, axis={dims.index(d)})"
            dims.remove(d)
        if entry.combiner == "add" and absent > 1:
            text = f"{text} * {absent}"
        place = {dim: d for d, dim in enumerate(nest.result) if dim is not None}
        padding = {place[d]: p for d, p in tile.padding.items() if d in dims and p == 0.0 == neutral}
        kept = tuple(place[d] for d in dims)
        if entry.finish is not None:
            text = spell(entry.finish(nest.reduced), [f"({text})" if absent > 1 else text])
        if tile.constant is not None:
            text = f"tl.full([], {text}, tl.float32)"
        self.tiles[result] = _Tile(self.assign(result, text, statement.op), "f32", kept, padding)

    def move(self, statement: Compute) -> None:
        """`transpose` and `broadcast`: dimensions get other places; those broadcast along are left out."""
        (value,), result = statement.operands, statement.result
        nest = nest_of(statement)
        assert nest is not None
        (maps,) = nest.operands
        place = {d: index.dim for d, index in enumerate(maps) if index.dim is not None}
        tile = self.collapsed(value, self.tile(value), list(place))
        moved = [place[d] for d in tile.dims]
        order = sorted(range(len(moved)), key=lambda i: moved[i])
        text = tile.text
        if order != list(range(len(moved))):
            text = f"tl.trans({text})" if len(order) == 2 else f"tl.permute({text}, {tuple(order)})"
            text = self.assign(result, text, statement.op)
        padding = {place[d]: p for d, p in tile.padding.items()}
        self.tiles[result] = _Tile(text, tile.dtype, tuple(sorted(moved)), padding, tile.constant)

    def reshape(self, statement: Compute) -> None:
        (value,), result = statement.operands, statement.result
        tile = self.tile(value)
        if tile.constant is not None:
            self.tiles[result] = tile
            return
        plain = [d for d, e in enumerate(value.shape) if e > 1]
        tile = self.collapsed(value, tile, plain)
        if (pairs := same_dimensions(statement)) is not None:
            moved = dict(pairs)
            padding = {moved[d]: p for d, p in tile.padding.items()}
            kept = tuple(moved[d] for d in tile.dims)
            self.tiles[result] = _Tile(tile.text, tile.dtype, kept, padding)
            return
        target = [d for d, e in enumerate(result.shape) if e > 1]
        if any(self.axes.pad(value, d) > value.shape[d] for d in plain):
            tile = self.as_f32(tile)
        text = self.unpadded(value, self.full(value, tile, plain), plain)
        text = f"tl.reshape({text}, {[result.shape[d] for d in target]})"
        text = self.padded(result, text, target)
        self.tiles[result] = _Tile(self.assign(result, text, "reshape"), tile.dtype, tuple(target))

    def unpadded(self, value: Value, text: str, dims: Sequence[int]) -> str:
        """A tensor with `dims` of a value whose extents are powers of two, without their padding."""
        shape = [self.axes.pad(value, d) for d in dims]
        for i, d in enumerate(dims):
            extent = value.shape[d]
            if shape[i] == extent:
                continue
            parts = shape[i] // extent
            lane = self.span(Window(parts), parts)
            first = "[" + ", ".join([*["None"] * i, ":", *["None"] * (len(dims) - i)]) + "]"
            apart = f"tl.reshape({text}, {[*shape[:i], parts, extent, *shape[i + 1 :]]})"
            text = f"tl.sum(tl.where(({lane} == 0){first}, {apart}, 0.0), axis={i})"
            shape[i] = extent
        return text

    def padded(self, value: Value, text: str, dims: Sequence[int]) -> str:
        """A tensor with `dims` of a value, repeated up to their padded extents."""
        shape = [value.shape[d] for d in dims]
        for i, d in enumerate(dims):
            pad = self.axes.pad(value, d)
            if shape[i] == pad:
                continue
            repeated = [*shape[:i], pad // shape[i], *shape[i:]]
            text = f"tl.broadcast_to(tl.expand_dims({text}, {i}), {repeated})"
            shape[i] = pad
            text = f"tl.reshape({text}, {shape})"
        return text

    def matmul(self, statement: Compute, accumulator: str | None, result: Value | None = None) -> None:
        """`tl.dot`, to which leading dimensions are one batch dimension."""
        target = result or statement.result
        nest = nest_of(statement)
        assert nest is not None
        batch = [d for d in range(len(nest.extents) - 3) if nest.extents[d] > 1]
        dot = statement.result
        texts: list[str] = []
        dtype = statement.operands[0].dtype
        for value, maps, key in zip(
            statement.operands, nest.operands, ("transpose_a", "transpose_b"), strict=True
        ):
            rank = len(value.shape)
            inner = [rank - 2, rank - 1]
            contracted = next(d for d in inner if maps[d].dim == len(nest.extents) - 1)
            tile = self.tile(value)
            text = self.full(value, tile, [d for d in range(rank) if d in inner or d in tile.dims])
            dims = tuple(d for d in range(rank) if d in inner or d in tile.dims)
            tile = _Tile(text, tile.dtype if tile.constant is None else "f32", dims, tile.padding)
            tile = self.masked(value, tile, [contracted], 0.0)
            text = tile.text
            if tile.dtype != dtype:
                text = f"{_atom(text)}.to({TRITON_DTYPES[dtype]})"
            here = [maps[d].dim for d in dims[:-2]]
            if batch and here != batch:
                shape = [nest.extents[d] for d in batch] + [self.axes.pad(value, d) for d in inner]
                index = "[" + ", ".join([*(":" if d in here else "None" for d in batch), ":", ":"]) + "]"
                text = f"tl.broadcast_to({_atom(text)}{index}, {shape})"
            if len(batch) > 1:
                shape = [math.prod(nest.extents[d] for d in batch), *(self.axes.pad(value, d) for d in inner)]
                text = f"tl.reshape({text}, {shape})"
            if statement.attrs.get(key):
                text = f"tl.permute({text}, (0, 2, 1))" if batch else f"tl.trans({text})"
            texts.append(text)
        pads = [self.axes.pad(dot, d) for d in range(len(dot.shape) - 2, len(dot.shape))]
        if any(e & (e - 1) for e in (nest.extents[d] for d in batch)):
            raise UnsupportedProgram("expected batch extents of a product inside a block to be powers of two")
        extra = ', input_precision="ieee"' if dtype == "f32" else ""
        dims = self.axes.live(dot)
        if accumulator is not None and len(batch) <= 1:
            text = f"tl.dot({', '.join(texts)}, {accumulator}{extra})"
        else:
            text = f"tl.dot({', '.join(texts)}{extra})"
            if len(batch) > 1:
                text = f"tl.reshape({text}, {[*(nest.extents[d] for d in batch), *pads]})"
            if accumulator is not None:
                text = f"{accumulator} + {text}"
        self.tiles[target] = _Tile(self.assign(target, text, "product"), "f32", dims)


def _parallel(body: Sequence[Statement]) -> list[Loop]:
    """The parallel loops of a program, outermost first."""
    if len(body) == 1 and isinstance(body[0], Loop) and body[0].parallel:
        return [body[0], *_parallel(body[0].body)]
    return []


def _unravelled(text: str, trips: Sequence[int]) -> list[str]:
    """The indices that make up a flat one, the last fastest."""
    out: list[str] = []
    for i, n in enumerate(trips):
        inner = math.prod(trips[i + 1 :])
        index = text + (f" // {inner}" if inner > 1 else "")
        out.append(index + (f" % {n}" if i else ""))
    return out


def _factor(text: str) -> str:
    """`text` as the factor of a product."""
    return f"({text})" if " " in text else text


def _trips(loop: Loop) -> int:
    return -(-(loop.stop - loop.start) // loop.step)


def _product(text: str, stride: int) -> str:
    if stride == 1:
        return text
    return f"({text}) * {stride}" if " " in text and "[" not in text else f"{text} * {stride}"


def _atom(text: str) -> str:
    return (
        text
        if text.replace("_", "").isalnum() or (text.endswith(")") and text.startswith("tl."))
        else f"({text})"
    )


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "single"
