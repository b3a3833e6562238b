"""A tile program with other tile sizes: the same statements, other windows, steps and trip counts.

    for k in 0..8: x = X[k * 512 : +512]      ->      for k in 0..16: x = X[k * 256 : +256]

Dimensions that operators iterate together form a class; a loop that steps over one dimension of a class by
exactly its extent makes that extent a parameter; where a reshape merges several dimensions, the result follows
the one that a loop steps over. So the program defines the space, without a list of tile sizes. What a class of
dimensions cannot express (a written-out remainder, a whole tensor on one side) is fixed. A result is a guess that
the verifier has to confirm: a mean within a tile, for instance, changes its meaning in a smaller one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.axes import Classes, reshape_groups
from superopt.operators import Move, is_constant, is_contraction, move_of, nest_of
from superopt.program import (
    Attr,
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
from superopt.transforms.schedule.triton_limits import SMALLEST_DOT

# Operators whose dimensions are not a loop nest that this module can follow.

Slot = tuple[int, int]


class CannotRetile(Exception):
    """The program cannot have the requested extents."""


@dataclass(frozen=True)
class Parameter:
    """One tile extent that may change.

    `name` is its loop's; `extent` is the current tile, `total` what the loop covers; `smallest` is the least
    that a matrix product in it accepts; `parallel` says that blocks, not trips, share the total.
    """

    name: str
    extent: int
    total: int
    smallest: int
    parallel: bool

    def choices(self) -> list[int]:
        """The current tile, and powers of two that divide the total, from `smallest` on; where the current one
        does not divide it, the others need not either."""
        found = {self.extent}
        size = 1
        while size <= self.total:
            if size >= self.smallest and (self.total % size == 0 or self.total % self.extent):
                found.add(size)
            size *= 2
        return sorted(found)


class Tiling:
    """The tile parameters of a program; `apply` gives it other extents."""

    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self._joined: Classes[object] = Classes()
        self._extent: dict[Slot, int] = {}
        self._fixed: set[object] = set()
        self._dots: list[Slot] = []
        self._merges: list[tuple[list[Slot], Slot]] = []  # dimensions that a reshape merges, and the result
        self._times: dict[Slot, int] = {}  # multiple of its class's extent that a slot has, where not 1
        self._nested: set[tuple[LoopVar, LoopVar]] = (
            set()
        )  # an outer loop, and the inner one that covers its step
        self._loops = {s.var: s for s in program.statements() if isinstance(s, Loop)}
        for statement in program.statements():
            self._visit(statement)
        for parts, whole in self._merges:
            self._merge(parts, whole)
        self.parameters: dict[str, Parameter] = {}
        self._classes: dict[object, str] = {}
        for var, loop in self._loops.items():
            self._add(var, loop)

    # --- classes ---------------------------------------------------------------------------------------------

    def _find(self, key: object) -> object:
        return self._joined.find(key)

    def _join(self, a: object, b: object) -> None:
        self._joined.join(a, b)

    def _slots(self, owner: Value | Buffer) -> list[Slot]:
        slots = [(id(owner), d) for d in range(len(owner.type.shape))]
        for slot, extent in zip(slots, owner.type.shape, strict=True):
            self._extent[slot] = extent
        return slots

    def _fix(self, keys: Sequence[object]) -> None:
        self._fixed.update(keys)

    def _visit(self, statement: Statement) -> None:
        if isinstance(statement, Loop):
            return
        if isinstance(statement, Compute):
            self._compute(statement)
            return
        value = statement.result if isinstance(statement, Load) else statement.value
        slots = self._slots(value)
        if statement.buffer.is_tile:
            for a, b in zip(slots, self._slots(statement.buffer), strict=True):
                self._join(a, b)
            return
        if (
            statement.buffer in self.program.locals and statement.buffer.view is None
        ):  # scratch: its shape would have to change too
            self._fix(slots)
        for slot, window in zip(slots, statement.windows, strict=True):
            self._window(slot, window)

    def _window(self, slot: Slot, window: Window) -> None:
        """Tie the loops of a window to the class of its dimension."""
        if not window.terms:
            self._fix([slot])
            return
        covered = window.size * window.stride
        order = sorted(window.terms, key=lambda t: t[1] * self._loops[t[0]].step)
        inner: LoopVar | None = None
        for var, scale in order:
            loop = self._loops[var]
            if loop.step * scale == covered and loop.start == 0:
                if inner is None:
                    self._join(var, slot)
                else:
                    self._nested.add((var, inner))
            else:
                self._fix([var, slot])
            covered = scale * loop.stop
            inner = var

    def _compute(self, statement: Compute) -> None:
        result = self._slots(statement.result)
        operands = [self._slots(v) for v in statement.operands]
        if move_of(statement) is Move.RESHAPE:
            (source,) = operands
            for kept, made in reshape_groups(statement.operands[0].shape, statement.result.shape):
                before, after = [source[d] for d in kept], [result[d] for d in made]
                if len(before) == len(after) == 1:
                    self._join(before[0], after[0])
                elif len(before) == 1 or len(after) == 1:
                    self._merges.append((before, after[0]) if len(after) == 1 else (after, before[0]))
                else:
                    self._fix([*before, *after])
            return
        if is_constant(statement):  # one number everywhere: it takes the shape of what it initializes
            return
        for bound in statement.bounds:
            self._window(result[bound.dim], bound.window)
        nest = nest_of(statement)
        if nest is None or move_of(statement) is Move.SLICE:
            self._fix([*result, *(s for o in operands for s in o)])
            return
        axes = [(id(statement), d) for d in range(len(nest.extents))]
        for slots, maps in zip(operands, nest.operands, strict=True):
            for slot, index in zip(slots, maps, strict=True):
                if index.dim is not None:
                    self._join(slot, axes[index.dim])
        for slot, dim in zip(result, nest.result, strict=True):
            if dim is not None:
                self._join(slot, axes[dim])
        if is_contraction(statement):
            self._dots += [slots[-i] for slots in operands for i in (1, 2)]

    def _merge(self, parts: Sequence[Slot], whole: Slot) -> None:
        """Let `whole` change with the one of its `parts` that a loop cuts; fix all unless exactly one is."""
        stepped = {self._find(var) for var in self._loops}
        moving = [s for s in parts if self._find(s) in stepped]
        if len(moving) != 1:
            self._fix([*parts, whole])
            return
        (part,) = moving
        self._fix([s for s in parts if s is not part])
        times = self._extent[whole] // self._extent[part] * self._times.get(part, 1)
        if self._find(part) == self._find(whole):
            if times != self._times.get(whole, 1):
                self._fix([whole])
            return
        if self._find(whole) in stepped or self._times.get(whole, 1) != 1:
            self._fix([*parts, whole])
            return
        for slot in self._extent:
            if self._find(slot) == self._find(whole):
                self._times[slot] = times
        self._join(whole, part)

    # --- parameters ------------------------------------------------------------------------------------------

    def _add(self, var: LoopVar, loop: Loop) -> None:
        root = self._find(var)
        slots = [s for s in self._extent if self._find(s) == root]
        extents = {self._extent[s] // self._times.get(s, 1) for s in slots}
        if root in {self._find(k) for k in self._fixed} or len(extents) != 1 or extents == {1}:
            return
        if root in self._classes:
            return
        (extent,) = extents
        members = [v for v in self._loops if self._find(v) == root]
        spans = {-(-self._loops[v].stop // self._loops[v].step) * extent for v in members}
        if len(spans) != 1:
            return
        name, i = var.name, 1
        while name in self.parameters:
            name, i = f"{var.name}_{i}", i + 1
        least = (-(-SMALLEST_DOT // self._times.get(s, 1)) for s in self._dots if self._find(s) == root)
        smallest = min(extent, max(least, default=1))
        total = loop.stop if loop.step > 1 else loop.stop * extent
        self.parameters[name] = Parameter(name, extent, total, smallest, loop.parallel)
        self._classes[root] = name

    # --- another program -------------------------------------------------------------------------------------

    def apply(self, extents: Mapping[str, int]) -> TileProgram:
        """The program with these tile extents, by the parameters' names; raises CannotRetile."""
        return _Rewrite(self, dict(extents)).run()

    def parameter_of(self, key: object) -> str | None:
        """The name of the parameter that a loop variable or a dimension belongs to."""
        return self._classes.get(self._find(key))

    def outer_loops(self, var: LoopVar) -> list[LoopVar]:
        """Loops one step of which `var` covers."""
        return [outer for outer, inner in self._nested if inner is var]

    def loop(self, var: LoopVar) -> Loop:
        """The loop of a variable."""
        return self._loops[var]


class _Rewrite:
    def __init__(self, tiling: Tiling, extents: dict[str, int]) -> None:
        self.tiling, self.extents = tiling, extents
        self.values: dict[Value, Value] = {}
        self.buffers: dict[Buffer, Buffer] = {b: b for b in tiling.program.params}
        for name, extent in extents.items():
            parameter = tiling.parameters.get(name)
            if parameter is None:
                raise CannotRetile(f"expected parameters of {', '.join(tiling.parameters)}, got '{name}'")
            if extent < 1 or extent > parameter.total:
                raise CannotRetile(f"expected '{name}' in 1..{parameter.total}, got {extent}")

    def run(self) -> TileProgram:
        program = self.tiling.program
        for buffer in program.locals:
            made = Buffer(self.type(buffer), buffer.name, buffer.placement)
            self.buffers[buffer] = buffer if buffer.view is not None else made
        body = self.body(program.body)
        return dataclasses.replace(program, locals=[self.buffers[b] for b in program.locals], body=body)

    def changed(self, key: object) -> tuple[int, int]:
        """(new, old) extent of the parameter that `key` belongs to; (1, 1) for none."""
        name = self.tiling.parameter_of(key)
        if name is None or name not in self.extents:
            return 1, 1
        return self.extents[name], self.tiling.parameters[name].extent

    def type(self, owner: Value | Buffer) -> TensorType:
        shape = list(owner.type.shape)
        for d in range(len(shape)):
            new, old = self.changed((id(owner), d))
            shape[d] = shape[d] * new // old
        return TensorType(tuple(shape), owner.type.dtype)

    def value(self, value: Value) -> Value:
        if value not in self.values:
            self.values[value] = Value(self.type(value), value.name)
        return self.values[value]

    def body(self, body: Sequence[Statement]) -> list[Statement]:
        return [self.statement(s) for s in body]

    def statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return self.loop(statement)
        if isinstance(statement, Compute):
            result = self.value(statement.result)
            attrs: dict[str, Attr] = dict(statement.attrs)
            if "shape" in attrs:
                attrs["shape"] = result.shape
            bounds = (
                dataclasses.replace(b, window=self.window(b.window, result.shape[b.dim]))
                for b in statement.bounds
            )
            operands = tuple(self.value(v) for v in statement.operands)
            return Compute(statement.op, operands, result, attrs, tuple(bounds))
        if isinstance(statement, Load):
            result = self.value(statement.result)
            return Load(result, self.buffers[statement.buffer], self.windows(statement, result))
        value = self.value(statement.value)
        return Store(self.buffers[statement.buffer], self.windows(statement, value), value)

    def windows(self, statement: Load | Store, value: Value) -> tuple[Window, ...]:
        if statement.buffer.is_tile:
            return tuple(Window(n) for n in value.shape)
        return tuple(self.window(w, n) for w, n in zip(statement.windows, value.shape, strict=True))

    def window(self, window: Window, size: int) -> Window:
        terms = tuple((var, self.scale(var, scale)) for var, scale in window.terms)
        return Window(size, window.base, terms, window.stride)

    def scale(self, var: LoopVar, scale: int) -> int:
        """The advance of a loop of step 1 is in its scale; that of others is in their step."""
        new, old = self.changed(var)
        return _exactly(scale * new, old) if self.tiling.loop(var).step == 1 else scale

    def loop(self, loop: Loop) -> Loop:
        new, old = self.changed(loop.var)
        step, stop = loop.step, loop.stop
        for outer in self.tiling.outer_loops(loop.var):  # it now covers another step of the outer loop
            more, less = self.changed(outer)
            stop = _exactly(stop * more, less)
        if step == 1:
            stop = _exactly(stop * old, new)
        else:
            step = _exactly(step * new, old)
            ragged = loop.stop % loop.step  # what it computes beyond is masked
            if not loop.parallel and stop % step and not ragged:
                raise CannotRetile(f"expected a tile that divides {stop}, got {step}")
        return Loop(loop.var, loop.start, stop, step, loop.parallel, self.body(loop.body))


def _exactly(product: int, divisor: int) -> int:
    if product % divisor:
        raise CannotRetile(f"expected {divisor} to divide {product}")
    return product // divisor
