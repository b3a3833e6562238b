"""One outermost loop of an extracted program as one kernel: grid, placement, statements.

    parallel    a loop is a grid dimension if an iteration's writes are disjoint from what others read and write;
                what an iteration writes before reading, and nobody reads later, is private (privatisation)
    on chip     a tensor that is always accessed at one region, by the block or within the loops that move it
    device      the rest: outputs that are read again (with a barrier, which the emitter sets), and scratch;
                what is updated in place, an operand of the kernel with a result in its memory

Values are computed once per scope and as far out as their operands allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt import program as ir
from superopt.operators import Move, infer_type, is_contraction, move_of, reduction_of, splat_of
from superopt.transforms.lower.builder import compute, constant, identifier, load, store, whole
from superopt.transforms.lower.masks import Masks
from superopt.transforms.tile_saturation.accesses import (
    Access,
    Rejected,
    accesses,
    apart,
    common_loops,
    grid,
)
from superopt.transforms.tile_saturation.after_loops import after_loops
from superopt.transforms.tile_saturation.exposed import exposed
from superopt.transforms.tile_saturation.terms import (
    StatementTerm,
    StoreTerm,
    TermRegion,
    TermTensor,
    TermVar,
    ValueTerm,
    concrete,
    written,
)


@dataclass
class _Frame:
    """A scope: the statements so far, the loop's variable, what the loop writes, available values."""

    out: list[ir.Statement]
    var: TermVar | None = None
    writes: set[TermTensor] = field(default_factory=set[TermTensor])
    values: dict[Any, ir.Value] = field(default_factory=dict[Any, ir.Value])


class KernelBuilder:
    """Writes one kernel; `steps` are the widths of its parameters, `updated` the tensors updated in place.

    Matrix products multiply numbers of the dtype `multiplied`, where one is given: what is computed on chip keeps
    its bits until then.
    """

    def __init__(
        self,
        statement: StatementTerm,
        live_after: set[TermTensor],
        updated: set[TermTensor],
        steps: Mapping[TermVar, int],
        name: str,
        multiplied: str | None = None,
    ) -> None:
        self.steps = steps
        self.multiplied = multiplied
        self.live_after = live_after
        self.grid, self.body = grid(statement, live_after)
        self.written = written((statement,))
        self.outer = exposed((statement,))
        self.updated = updated & self.written
        self.inputs = list(
            dict.fromkeys(
                a.region.tensor
                for a in accesses((statement,))
                if a.region.tensor not in self.written
                or a.region.tensor in self.outer
                or a.region.tensor in self.updated
            )
        )
        self.results = [t for t in self._in_order() if t in live_after]
        self.names: set[str] = set()
        self.by_elem = {
            i.var
            for a in accesses((statement,))
            for i in a.region.dims
            if i.kind in ("elem", "block") and i.var is not None
        }
        self.loop_vars: dict[TermVar, ir.LoopVar] = {}
        self.out_buffers = {t: self._buffer(t) for t in self.results}
        self.in_buffers = {t: self._buffer(t) for t in self.inputs}
        self.locals: list[ir.Buffer] = []
        self.chip: dict[TermTensor, ir.Buffer] = {}
        self.scratch: dict[TermTensor, ir.Buffer] = {}
        self.direct: set[TermTensor] = set()
        self.version: dict[TermTensor, int] = {}
        self.masks = Masks()
        self.frames: list[_Frame] = []
        self.program = self._build(name)

    def _in_order(self) -> list[TermTensor]:
        return list(
            dict.fromkeys(a.region.tensor for a in accesses(self.body) if a.region.tensor in self.written)
        )

    def _buffer(self, tensor: TermTensor) -> ir.Buffer:
        return ir.Buffer(ir.TensorType(tensor.shape, tensor.dtype), self._name(tensor))

    def _name(self, tensor: TermTensor) -> str:
        base = name = identifier(tensor.name, "t")
        suffix = 2
        while name in self.names:
            name, suffix = f"{base}_{suffix}", suffix + 1
        self.names.add(name)
        return name

    # --- sizes and windows ---

    def step(self, var: TermVar) -> int:
        """The width of a variable's tiles."""
        return var.step or self.steps[var]

    def trips(self, var: TermVar) -> int:
        """How many tiles there are; the last may reach past the extent where elements are not taken alone."""
        if var in self.by_elem and self.ragged(var):
            raise Rejected("a tile does not divide its extent")
        return -(-var.end // self.step(var))

    def ragged(self, var: TermVar) -> bool:
        """Whether the last tile of a loop reaches past its end."""
        return var.end % self.step(var) != 0

    def bounds(self, region: TermRegion) -> list[ir.Bound]:
        """What exists of a region's tile, where not all of it does."""
        out: list[ir.Bound] = []
        for d, (window, index) in enumerate(zip(self.windows(region), region.dims, strict=True)):
            if index.kind == "tile" and index.var is not None and self.ragged(index.var):
                if index.base or region.tensor.shape[d] != index.var.end:
                    raise Rejected("a ragged tile of a part of a tensor")
                out.append(ir.Bound(d, window, index.var.end))
        return out

    def shape(self, region: TermRegion) -> tuple[int, ...]:
        """The shape of a region's tile."""
        out: list[int] = []
        for index, extent in zip(region.dims, region.tensor.shape, strict=True):
            if index.kind == "full":
                out.append(extent)
            elif index.kind in ("range", "block"):
                out.append(index.size)
            else:
                assert index.var is not None
                out.append(1 if index.kind == "elem" else self.step(index.var))
        return tuple(out)

    def windows(self, region: TermRegion) -> tuple[ir.Window, ...]:
        """The windows of a region."""
        out: list[ir.Window] = []
        for size, index in zip(self.shape(region), region.dims, strict=True):
            if index.var is None:
                out.append(ir.Window(size, index.base))
                continue
            if index.var not in self.loop_vars:
                raise Rejected("a variable is used outside its loop")
            scale = 1
            if index.var in self.by_elem and index.kind == "tile":
                scale = self.step(index.var)
            elif index.kind == "block":
                scale = index.size
            out.append(ir.Window(size, index.base, ((self.loop_vars[index.var], scale),)))
        return tuple(out)

    def loop(self, var: TermVar, body: list[ir.Statement], *, parallel: bool) -> ir.Loop:
        """A loop over tiles; it counts trips where elements are taken one at a time."""
        if var in self.by_elem:
            return ir.Loop(self.loop_vars[var], 0, self.trips(var), 1, parallel, body)
        return ir.Loop(self.loop_vars[var], 0, var.end, self.step(var), parallel, body)

    # --- placement ---

    def _place(self) -> None:
        mine = {loop.var for loop in self.grid}
        by_tensor: dict[TermTensor, list[Access]] = {}
        for access in accesses(self.body):
            by_tensor.setdefault(access.region.tensor, []).append(access)
        for tensor in self._in_order():
            found = by_tensor[tensor]
            regions = {a.region for a in found}
            inner = {v for r in regions for v in r.vars} - mine
            together = inner <= common_loops(found)
            live = tensor in self.live_after
            stored = [a for a in found if a.kind != "load"]
            if tensor in self.updated:
                self.direct.add(tensor)
            elif live and len(found) == len(stored) and all(a.kind == "store" for a in found):
                self.direct.add(tensor)  # written but never read here
            elif len(regions) == 1 and (not inner or (together and tensor not in self.outer)):
                (region,) = regions
                buffer = ir.Buffer(
                    ir.TensorType(self.shape(region), tensor.dtype), self._name(tensor), "chip"
                )
                self.chip[tensor] = buffer
                self.locals.append(buffer)
                if inner and live:
                    self.direct.add(tensor)
            elif tensor in self.outer:
                raise Rejected("what an earlier kernel wrote is updated in pieces")
            elif live:
                self.direct.add(tensor)
            elif any(not apart(regions, tensor, loop.var) for loop in self.grid):
                raise Rejected("two blocks write one element of scratch")
            else:
                # As large as the tensor, so that every block writes its own part.
                buffer = ir.Buffer(ir.TensorType(tensor.shape, tensor.dtype), self._name(tensor), "device")
                self.scratch[tensor] = buffer
                self.locals.append(buffer)

    # --- statements ---

    def _build(self, name: str) -> ir.TileProgram:
        for loop in self.grid:
            self.loop_vars[loop.var] = ir.LoopVar(loop.var.name)
        self._place()
        top = _Frame([], None, self.written)
        self.frames.append(top)
        regions = {a.region.tensor: a.region for a in accesses(self.body)}
        for tensor in self.chip:
            if tensor in self.outer:
                buffer = self.in_buffers[tensor]
                tile = load(top.out, buffer, self.windows(regions[tensor]), buffer.name)
                store(top.out, self.chip[tensor], whole(self.chip[tensor]), tile)
        self.statements(self.body)
        for tensor, buffer in self.chip.items():
            if tensor in self.live_after and tensor not in self.direct:
                tile = load(top.out, buffer, whole(buffer), buffer.name)
                store(top.out, self.out_buffers[tensor], self.windows(regions[tensor]), tile)
        body: list[ir.Statement] = top.out if self.updated else after_loops(top.out)
        for loop in reversed(self.grid):
            body = [self.loop(loop.var, body, parallel=True)]
        params = [*self.in_buffers.values(), *self.out_buffers.values()]
        program = ir.TileProgram(name, params, len(self.in_buffers), self.locals, body)
        if self.updated:
            program.aliases = tuple(self.inputs.index(t) if t in self.updated else -1 for t in self.results)
        return program

    def statements(self, body: Sequence[StatementTerm]) -> None:
        """Write statements into the current scope."""
        for statement in body:
            if isinstance(statement, StoreTerm):
                self.put(statement.region, self.value(statement.value))
                continue
            for region, number in statement.starts:
                tensor = region.tensor
                tile = constant(self.frames[-1].out, number, self.shape(region), tensor.dtype)
                self.put(region, tile)
            if statement.var in self.loop_vars:
                raise Rejected("a loop inside one over the same variable")
            self.loop_vars[statement.var] = ir.LoopVar(statement.var.name)
            inner = _Frame([], statement.var, written(statement.body))
            for tensor in inner.writes:  # values loaded before the loop differ from what its trips read
                self.version[tensor] = self.version.get(tensor, 0) + 1
            self.frames.append(inner)
            self.statements(statement.body)
            self.frames.pop()
            for tensor in inner.writes:
                self.version[tensor] = self.version.get(tensor, 0) + 1
            loop = self.loop(statement.var, inner.out, parallel=False)
            self.frames[-1].out.append(loop)
            del self.loop_vars[statement.var]

    def put(self, region: TermRegion, value: ir.Value) -> None:
        """Store a tile where its tensor lives."""
        tensor = region.tensor
        out = self.frames[-1].out
        shape = self.shape(region)
        value = self.cast(value, tensor.dtype, out)
        if value.shape != shape:
            value = self.masks.apply(out, "broadcast", [value], {"shape": shape})
        self.version[tensor] = self.version.get(tensor, 0) + 1
        if tensor in self.chip:
            store(out, self.chip[tensor], whole(self.chip[tensor]), value)
        elif tensor in self.scratch:
            store(out, self.scratch[tensor], self.windows(region), value)
        if tensor in self.direct:
            store(out, self.out_buffers[tensor], self.windows(region), value)

    # --- values ---

    def level(self, expr: ValueTerm, known: dict[ValueTerm, int]) -> int:
        """The outermost scope in which a value is the same as here."""
        if expr in known:
            return known[expr]
        if expr.region is None:
            out = max((self.level(a, known) for a in expr.args), default=0)
        else:
            out = 0
            for i, frame in enumerate(self.frames):
                if frame.var in expr.region.vars or expr.region.tensor in frame.writes:
                    out = i
        known[expr] = out
        return out

    def value(self, expr: ValueTerm, known: dict[ValueTerm, int] | None = None) -> ir.Value:
        """The tile of an expression, computed where it is not available."""
        known = {} if known is None else known
        level = self.level(expr, known)
        key = (expr, tuple(self.version.get(t, 0) for t in self.tensors(expr)))
        for frame in self.frames:
            if key in frame.values:
                return frame.values[key]
        out = self.frames[level].out
        value = self.load(expr.region, out) if expr.region is not None else self.apply(expr, out, known)
        self.frames[level].values[key] = value
        return value

    def tensors(self, expr: ValueTerm) -> tuple[TermTensor, ...]:
        """The tensors that a value is computed from."""
        return tuple(dict.fromkeys(r.tensor for r in expr.regions))

    def load(self, region: TermRegion, out: list[ir.Statement]) -> ir.Value:
        """Load a tile from where its tensor lives."""
        tensor = region.tensor
        if tensor in self.chip:
            buffer, windows = self.chip[tensor], whole(self.chip[tensor])
        else:
            kept = self.out_buffers if tensor in self.written else self.in_buffers
            buffer, windows = self.scratch.get(tensor) or kept[tensor], self.windows(region)
        value = load(out, buffer, windows, buffer.name)
        if value.dtype not in ir.COMPUTE_DTYPES:
            value = compute(out, "cast", [value], {"dtype": "f32"})
        return self.masks.bound(value, self.bounds(region))

    def cast(self, value: ir.Value, dtype: str, out: list[ir.Statement]) -> ir.Value:
        """The value in another dtype."""
        return value if value.dtype == dtype else self.masks.apply(out, "cast", [value], {"dtype": dtype})

    def apply(self, expr: ValueTerm, out: list[ir.Statement], known: dict[ValueTerm, int]) -> ir.Value:
        """Compute an operator on tiles."""
        attrs: dict[str, Any] = dict(expr.attrs)
        widths = self.step
        if expr.op == "const":
            return constant(out, float(attrs["value"]), concrete(attrs["shape"], widths), "f32")
        flags: dict[str, Any] = {}
        inner = list(expr.args)
        contraction = is_contraction(expr)
        if contraction:
            for i, flag in enumerate(("transpose_a", "transpose_b")):
                if _swaps(inner[i]):
                    inner[i], flags[flag] = inner[i].args[0], True
        values = [self.value(a, known) for a in inner]
        if reduction_of(expr) is not None:
            rank = len(values[0].shape)
            flags = {"dims": tuple(sorted(d + rank for d in attrs["dims"])), "keepdims": True}
        elif move_of(expr) in (Move.RESHAPE, Move.BROADCAST):
            flags = {"shape": concrete(attrs["shape"], widths)}
        elif move_of(expr) is Move.CONCAT:
            flags = {"dim": attrs["dim"] + len(values[0].shape)}
        elif not contraction:
            flags = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}  # pyright: ignore
        dtypes = {v.dtype for v in values if not _is_number(v)}
        dtype = "f32" if len(dtypes) != 1 else dtypes.pop()
        if contraction and self.multiplied is not None:
            dtype = self.multiplied
        values = [self._number(v, dtype, out) if _is_number(v) else self.cast(v, dtype, out) for v in values]
        infer_type(expr.op, [v.type for v in values], flags)
        return self.masks.apply(out, expr.op, values, flags)

    def _number(self, value: ir.Value, dtype: str, out: list[ir.Statement]) -> ir.Value:
        """A splat in the dtype of the other operands."""
        if value.dtype == dtype:
            return value
        for frame in self.frames:
            for statement in frame.out:
                if not isinstance(statement, ir.Compute) or statement.result is not value:
                    continue
                if (number := splat_of(statement)) is not None:  # it may also be computed from others
                    return constant(out, float(number), value.shape, dtype)
        return self.cast(value, dtype, out)


def _is_number(value: ir.Value) -> bool:
    return value.shape == ()


def _swaps(expr: ValueTerm) -> bool:
    if move_of(expr) is not Move.TRANSPOSE:
        return False
    perm = dict(expr.attrs)["perm"]
    n = len(perm)
    return n >= 2 and tuple(perm) == (*range(n - 2), n - 1, n - 2)
