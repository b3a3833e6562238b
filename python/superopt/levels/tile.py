"""The rules of tile programs."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.aliasing import pairs
from superopt.errors import IllegalProgram
from superopt.levels.common import check_defined, check_table, define, expect, types_text
from superopt.operators import is_mask
from superopt.program import (
    Attr,
    Bound,
    Buffer,
    Compute,
    Load,
    Loop,
    LoopVar,
    Node,
    Statement,
    Store,
    TensorType,
    TileProgram,
    Value,
    Window,
)

# How many warps a block may have: what Triton takes.
WARPS = (1, 2, 4, 8, 16, 32)


def check_tiled(node: Node) -> None:
    """A `tiled` node: a legal tile program with the node's operands and results as parameters."""
    program = node.body
    if not isinstance(program, TileProgram):
        raise IllegalProgram("'tiled' expected a region with tile loops, got none", node.location)
    types = [b.type for b in program.params]
    wanted = [v.type for v in (*node.operands, *node.results)]
    expect(types == wanted, f"region arguments {types_text(wanted)}", types_text(types), node)
    expect(program.n_inputs == len(node.operands), f"{len(node.operands)} inputs", program.n_inputs, node)
    try:
        check_tile(program)
    except IllegalProgram as error:
        raise IllegalProgram(error.message, node.location) from None


def check_tile(program: TileProgram) -> None:
    """Check a tile program: its launch, loops, windows within their buffers, stores only to outputs and locals,
    types.
    """
    if program.num_warps not in WARPS:
        raise IllegalProgram(f"expected num_warps of {', '.join(map(str, WARPS))}, got {program.num_warps}")
    if program.num_stages < 1:
        raise IllegalProgram(f"expected num_stages of at least 1, got {program.num_stages}")
    inputs, outputs = program.params[: program.n_inputs], program.params[program.n_inputs :]
    if program.aliases and len(program.aliases) != len(outputs):
        raise IllegalProgram(
            f"expected an alias for each of {len(outputs)} outputs, got {len(program.aliases)}"
        )
    aliases = pairs(program.aliases)
    for out, at in aliases.items():
        if at >= len(inputs) or inputs[at].type != outputs[out].type or program.aliases.count(at) > 1:
            raise IllegalProgram(f"expected an input of output {out}'s type for it alone, got input {at}")
    # An output starts as the input that it overwrites: what both names meant would depend on the order.
    buffers = {*program.params, *program.locals} - {inputs[at] for at in aliases.values()}
    for buffer in program.params:
        if buffer.placement == "view" or buffer.view is not None:
            raise IllegalProgram(f"expected a local as view, got the parameter '{buffer.name}'")
    for buffer in program.locals:
        _check_view(buffer, inputs, set(aliases.values()))
    checker = _TileChecker(buffers, set(inputs), guarded_loads(program))
    checker.body(program.body, {}, set(), outermost=True)


def _check_view(buffer: Buffer, inputs: Sequence[Buffer], overwritten: set[int]) -> None:
    """A view shows an input that nothing overwrites, with an index for each of its dimensions."""
    view, shape = buffer.view, buffer.type.shape
    if (view is None) is (buffer.placement == "view"):
        raise IllegalProgram(
            f"expected a view at '{buffer.name}', placement 'view', got '{buffer.placement}'"
        )
    if view is None:
        return
    if view.read.rank != len(shape):
        raise IllegalProgram(f"expected a view of {len(shape)} dimensions, got one of {view.read.rank}")
    if view.source >= len(inputs) or view.source in overwritten:
        raise IllegalProgram(f"expected a view of an input that stays as it is, got number {view.source}")
    wanted = len(inputs[view.source].type.shape) if view.source >= 0 else 0
    if len(view.read.index) != wanted:
        raise IllegalProgram(f"expected {wanted} indices of what a view reads, got {view.read.place_text}")
    if view.source >= 0 and inputs[view.source].type.dtype != buffer.type.dtype:
        raise IllegalProgram(f"expected a view of {buffer.type.dtype}, got {inputs[view.source].type.dtype}")


def guarded_loads(program: TileProgram) -> set[Load]:
    """The loads that only masks use whose bounds lie within the buffer: their windows may start outside."""
    loads = {s.result: s for s in program.statements() if isinstance(s, Load)}
    guarded = set(loads.values())
    for statement in program.statements():
        if isinstance(statement, Compute):
            for load in (loads[v] for v in statement.operands if v in loads):
                bounds = {b.dim: b for b in statement.bounds}
                read = zip(load.windows, load.buffer.type.shape, strict=True)
                if not all(d in bounds and _within(bounds[d], *end) for d, end in enumerate(read)):
                    guarded.discard(load)
        elif isinstance(statement, Store) and statement.value in loads:
            guarded.discard(loads[statement.value])
    return guarded


def _within(bound: Bound, window: Window, extent: int) -> bool:
    """Whether what exists by `bound` is within `extent` in `window`: that of the bound itself, or of a slice of
    the buffer, whose places i are `first + stride * i`.
    """
    own = bound.window
    stride = window.stride // own.stride
    scaled = Window(own.size, window.base, tuple((v, stride * s) for v, s in own.terms), stride * own.stride)
    first = window.base - stride * own.base
    return window == scaled and first >= 0 and first + stride * (bound.extent - 1) < extent


class _TileChecker:
    def __init__(self, buffers: set[Buffer], inputs: set[Buffer], guarded: set[Load]) -> None:
        self.buffers, self.inputs, self.guarded = buffers, inputs, guarded

    def body(
        self,
        body: Sequence[Statement],
        ranges: dict[LoopVar, tuple[int, int]],
        defined: set[Value],
        *,
        outermost: bool,
    ) -> None:
        defined = set(defined)
        for statement in body:
            if isinstance(statement, Loop):
                self.loop(statement, ranges, defined, outermost=outermost)
            elif isinstance(statement, Compute):
                self.compute(statement, ranges, defined)
            elif isinstance(statement, Load):
                self.access(statement, ranges, statement.result.type)
                define(Node("tile.load", (), (statement.result,)), defined)
            else:
                if statement.buffer in self.inputs or statement.buffer.view is not None:
                    what = "input" if statement.buffer in self.inputs else "view"
                    raise IllegalProgram(
                        f"expected a store to an output or a local, got {what} '{statement.buffer.name}'"
                    )
                if statement.value not in defined:
                    raise IllegalProgram("'tile.store' expected a value defined before, got one that is not")
                self.access(statement, ranges, statement.value.type)

    def loop(
        self, loop: Loop, ranges: dict[LoopVar, tuple[int, int]], defined: set[Value], *, outermost: bool
    ) -> None:
        if loop.step < 1 or loop.stop <= loop.start:
            raise IllegalProgram(
                f"expected a loop with trips, got {loop.start} to {loop.stop} by {loop.step}"
            )
        if loop.parallel and not outermost:
            raise IllegalProgram(
                "expected parallel loops outermost, got one inside a sequential loop or other statements"
            )
        inner = {**ranges, loop.var: (loop.start, loop.start + (loop.trips - 1) * loop.step)}
        self.body(loop.body, inner, defined, outermost=outermost and loop.parallel)

    def compute(
        self, statement: Compute, ranges: dict[LoopVar, tuple[int, int]], defined: set[Value]
    ) -> None:
        attrs: dict[str, Attr] = dict(statement.attrs)
        node = Node(statement.op, statement.operands, (statement.result,), attrs)
        check_defined(node, defined)
        check_table(node, "tile")
        masks = is_mask(statement)
        expect(
            masks == bool(statement.bounds),
            f"{'bounds' if masks else 'no bounds'}",
            len(statement.bounds),
            node,
        )
        dims = [b.dim for b in statement.bounds]
        rank = len(statement.result.shape)
        distinct = len({*dims}) == len(dims) and all(0 <= d < rank for d in dims)
        expect(distinct, f"bounds of distinct dimensions in [0, {rank})", dims, node)
        for bound in statement.bounds:
            extent = statement.result.shape[bound.dim]
            expect(bound.window.size == extent, f"a window of {extent} elements", bound.window.size, node)
            expect(bound.extent >= 1, "a positive extent", bound.extent, node)
            self.window(bound.window, ranges)
        define(node, defined)

    def access(
        self, statement: Load | Store, ranges: dict[LoopVar, tuple[int, int]], tile: TensorType
    ) -> None:
        buffer, windows = statement.buffer, statement.windows
        if buffer not in self.buffers:
            raise IllegalProgram(f"expected a buffer of this kernel, got '{buffer.name}'")
        if len(windows) != len(buffer.type.shape):
            raise IllegalProgram(f"expected {len(buffer.type.shape)} windows, got {len(windows)}")
        for window, extent in zip(windows, buffer.type.shape, strict=True):
            first, last = self.window(window, ranges)
            # The last tile of an extent that the step does not divide may reach past it: its rest is masked.
            if (first < 0 or last >= extent) and statement not in self.guarded:
                got = f"{first} to {last} of size {window.size}"
                raise IllegalProgram(
                    f"expected windows that start within extent {extent} of '{buffer.name}', got {got}"
                )
        wanted = TensorType(tuple(w.size for w in windows), buffer.type.dtype)
        if wanted != tile:
            raise IllegalProgram(f"expected a tile of type {wanted}, got {tile}")

    def window(self, window: Window, ranges: dict[LoopVar, tuple[int, int]]) -> tuple[int, int]:
        """The least and the largest index at which a window starts."""
        first = last = window.base
        for var, scale in window.terms:
            if var not in ranges:
                raise IllegalProgram(f"expected the variable of an enclosing loop, got '{var.name}'")
            low, high = sorted(scale * v for v in ranges[var])
            first, last = first + low, last + high
        if window.size < 1 or window.stride < 1:
            got = f"{window.size} elements {window.stride} apart"
            raise IllegalProgram(f"expected windows of at least one element, at least 1 apart, got {got}")
        return first, last
