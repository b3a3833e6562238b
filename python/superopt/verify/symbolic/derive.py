"""The normal form of each output of a program, by running it once with variables in place of numbers.

Every dimension is a list of factors that grids, loops, reshapes and slices cut it into, tied over both
programs (`superopt.verify.reduce`); an element of a tensor is a `Form` in one variable a factor. Grids, loops
and tiles are variables like the others, and an accumulator is a sum, or a maximum, over its loop. If the
derivation succeeds, the forms hold for all sizes of the factors that the programs do not fix.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from superopt.errors import SuperoptError
from superopt.operators import OPERATORS, Operator, Scalar, arg, normalize_attrs
from superopt.program import (
    Attr,
    BlockGraph,
    Buffer,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    Statement,
    Store,
    ThreadGraph,
    TileProgram,
    Value,
    Window,
)
from superopt.verify.axes import Dim, Factor, Irreducible, leaves
from superopt.verify.extents import Axes
from superopt.verify.symbolic import form as f
from superopt.verify.symbolic.form import Form, NoNormalForm, Var


@dataclass(frozen=True)
class Proof:
    """Two programs have the same normal forms.

    extents   "all": for all sizes of the factors of axes that the programs do not fix; "these": with their
              actual sizes
    factors   how many such factors the inputs have
    terms     of all outputs together
    """

    extents: Literal["all", "these"]
    factors: int
    terms: int


def prove(a: KernelGraph, b: KernelGraph) -> Proof | None:
    """Whether both programs have the same normal forms; None where they differ or the method does not apply."""
    try:
        axes = Axes()
        for graph in (a, b):
            axes.graph(graph)
        for x, y in zip([*a.inputs, *a.outputs], [*b.inputs, *b.outputs], strict=True):
            axes.same(axes.of(x), axes.of(y))
        axes.finish()
        for symbolic in (True, False):
            f.Steps.start()
            forms = [_Derivation(axes, symbolic=symbolic).outputs(graph) for graph in (a, b)]
            if forms[0] != forms[1]:
                continue
            free = {id(x) for v in a.inputs for d in axes.of(v) for x in leaves(d) if not x.fixed}
            terms = sum(len(form.terms) for form in forms[0])
            return Proof("all" if symbolic and free else "these", len(free), terms)
    except (NoNormalForm, Irreducible, SuperoptError, RecursionError):
        pass
    return None


@dataclass(frozen=True)
class _Tensor:
    """The element at `index` (one variable per factor of each dimension) is `form`."""

    index: tuple[tuple[Var, ...], ...]
    form: Form

    def at(self, index: Sequence[Sequence[Var]]) -> Form:
        """The element at other variables over the same factors."""
        names: dict[Var, Var] = {}
        for mine, theirs in zip(self.index, index, strict=True):
            if [v.factor for v in mine] != [v.factor for v in theirs]:
                raise NoNormalForm("two cuts of one dimension")
            names.update(zip(mine, theirs, strict=True))
        return f.rename(self.form, names)


class _Derivation:
    """One program; factors are numbered by their place in `axes`, so that both programs number them the same."""

    def __init__(self, axes: Axes, *, symbolic: bool) -> None:
        self.axes, self.symbolic = axes, symbolic
        self.factors: dict[Factor, int] = axes.numbered
        self.sizes: dict[int, Form] = {}
        self.serials = itertools.count(1)
        self.env: dict[Value, _Tensor] = {}

    def outputs(self, graph: KernelGraph) -> list[Form]:
        """The form of each output, in variables that depend only on its factors."""
        for n, value in enumerate(graph.inputs):
            self.env[value] = self.opaque(f"input {n}", value)
        for node in graph.nodes:
            self.node(node)
        found: list[Form] = []
        for value in graph.outputs:
            names = itertools.count()
            index = [[Var(v.factor, 0, -next(names)) for v in self.variables(d)] for d in self.axes.of(value)]
            form = f.finite(self.env[value].at(index))
            if f.names_in(form, "held") or not form.free <= {v for d in index for v in d}:
                raise NoNormalForm("an output that depends on where a loop is")
            found.append(form)
        return found

    def variables(self, factors: Dim) -> tuple[Var, ...]:
        """New variables over the factors of a dimension."""
        return tuple(Var(self.number(x), 0, next(self.serials)) for x in leaves(factors))

    def number(self, factor: Factor) -> int:
        number = self.factors.setdefault(factor, len(self.factors))
        if number not in self.sizes:
            if self.symbolic and not factor.fixed:
                self.sizes[number] = f.atom(f.Atom("size", str(number)))
            else:
                self.sizes[number] = f.number(factor.size)
        return number

    def opaque(self, name: str, value: Value) -> _Tensor:
        """A tensor about which nothing is known."""
        index = tuple(self.variables(d) for d in self.axes.of(value))
        return _Tensor(index, f.atom(f.Atom("input", name, tuple(v for d in index for v in d))))

    # --- graphs

    def node(self, node: Node) -> None:
        body = node.body
        if isinstance(body, BlockGraph):
            self.block(node, body)
        elif isinstance(body, ThreadGraph):
            for inner, outer in zip(body.inputs, node.operands, strict=True):
                self.env[inner] = self.env[outer]
            for below in body.nodes:
                self.node(below)
            for inner, outer in zip(body.outputs, node.results, strict=True):
                self.env[outer] = self.env[inner]
        elif isinstance(body, TileProgram):
            found = _TileRun(self, body).run([self.env[v] for v in node.operands])
            self.env.update(zip(node.results, found, strict=True))
        elif node.op in OPERATORS:
            operands = [self.env[v] for v in node.operands]
            self.env[node.result] = self.operator(node.op, node.attrs, node.operands, operands, node.result)
        else:
            raise NoNormalForm(f"an opaque '{node.op}'")

    def block(self, node: Node, graph: BlockGraph) -> None:
        grid, loops = ([self.variables(d) for d in dims] for dims in self.axes.extents[graph])
        for inner, outer in zip(graph.inputs, node.operands, strict=True):
            self.env[inner] = self.env[outer]
        results = iter(node.results)
        for below in graph.nodes:
            if below.op == "iterator":
                own = [self.variables(d) for d in self.axes.of(below.result)]
                outer = _around(len(own), ((below.attrs["imap"], grid), (below.attrs["fmap"], loops)))
                whole = [[*o, *i] for o, i in zip(outer, own, strict=True)]
                self.env[below.result] = _Tensor(tuple(own), self.env[below.operands[0]].at(whole))
            elif below.op == "accumulate":
                self.env[below.result] = self.accumulated(below, loops)
            elif below.op == "save":
                self.env[next(results)] = self.saved(self.env[below.operands[0]], below.attrs["omap"], grid)
            elif below.op == "running_max":
                raise NoNormalForm("a running maximum")
            else:
                self.node(below)

    def accumulated(self, node: Node, loops: Sequence[tuple[Var, ...]]) -> _Tensor:
        kind, over = node.attrs.get("kind"), loops[int(str(node.attrs["loop"]))]
        tile = self.env[node.operands[0]]
        if kind == "sum":
            return _Tensor(tile.index, f.bind(f.finite(tile.form), over, self.sizes.__getitem__))
        if kind == "max":
            return _Tensor(tile.index, f.join_over("max", tile.form, over))
        if kind == "concat":
            along = int(str(node.attrs["dim"]))
            new = tuple(Var(v.factor, 0, next(self.serials)) for v in over)
            index = tuple((*new, *d) if i == along else d for i, d in enumerate(tile.index))
            return _Tensor(index, f.rename(tile.form, dict(zip(over, new, strict=True))))
        raise NoNormalForm(f"an accumulator of kind '{kind}'")

    def saved(self, tile: _Tensor, omap: Attr, grid: Sequence[tuple[Var, ...]]) -> _Tensor:
        outer = _around(len(tile.index), ((omap, grid),))
        names = {v: Var(v.factor, 0, next(self.serials)) for d in outer for v in d}
        index = tuple((*(names[v] for v in o), *i) for o, i in zip(outer, tile.index, strict=True))
        found = f.rename(tile.form, names)
        if any(v in found.free for d in grid for v in d):
            raise NoNormalForm("blocks that save different tiles to one place")
        return _Tensor(index, found)

    # --- table operators

    def operator(
        self,
        name: str,
        attrs: Mapping[str, Attr],
        values: Sequence[Value],
        operands: Sequence[_Tensor],
        result: Value,
    ) -> _Tensor:
        entry = OPERATORS[name]
        given = normalize_attrs(entry, attrs)
        if entry.nest is None:
            return self.arranged(name, given, operands, result)
        nest = entry.nest([v.shape for v in values], given)
        if not nest.plain:
            raise NoNormalForm(f"the windows of '{name}'")
        space: dict[int, tuple[Var, ...]] = {}
        for value, maps in zip(values, nest.operands, strict=True):
            for d, index in zip(self.axes.of(value), maps, strict=True):
                if index.dim is None:
                    if leaves(d):
                        raise NoNormalForm("a fixed place of a dimension")
                elif (index.stride, index.offset) != (1, 0):
                    raise NoNormalForm("a strided window")
                elif math.prod(x.size for x in leaves(d)) == nest.extents[index.dim]:
                    space.setdefault(index.dim, self.variables(d))
                else:
                    raise NoNormalForm("a part of a dimension")
        for d, source in zip(self.axes.of(result), nest.result, strict=True):
            if source is not None:
                space.setdefault(source, self.variables(d))
        picked = [
            tensor.at([() if i.dim is None else space[i.dim] for i in maps])
            for tensor, maps in zip(operands, nest.operands, strict=True)
        ]
        body = entry.body(given) if entry.body else arg(0)
        found = self.scalar(body, picked)
        if nest.reductions:
            over = [v for d in nest.reductions for v in space[d]]
            if (entry.combiner or "add") == "add":
                found = f.bind(f.finite(found), over, self.sizes.__getitem__)
            else:
                found = f.join_over(str(entry.combiner), found, over)
            if entry.finish is not None:
                found = self.finished(entry, nest.reduced, over, found)
        return _Tensor(tuple(() if d is None else space[d] for d in nest.result), found)

    def finished(self, entry: Operator, count: int, over: Sequence[Var], total: Form) -> Form:
        """The result of a reduction; a mean divides by the number of elements, a product of sizes."""
        assert entry.finish is not None
        if entry.finish(count) != arg(0) / count:
            raise NoNormalForm("a reduction that does not end in a mean")
        sizes = f.number(1)
        for v in over:
            sizes = f.mul(sizes, self.sizes[v.factor])
        return f.mul(total, f.inverse(sizes))

    def scalar(self, body: Scalar, operands: Sequence[Form]) -> Form:
        if body.head == "arg":
            return operands[int(body.payload)]
        if body.head == "const":
            return _constant(float(body.payload))
        args = [self.scalar(a, operands) for a in body.args]
        if body.head in ("max", "min"):
            return f.join(body.head, *args)
        args = [f.finite(a) for a in args]
        if body.head in ("add", "sub"):
            return f.add(args[0], args[1] if body.head == "add" else f.scale(args[1], -1))
        if body.head == "mul":
            return f.mul(*args)
        if body.head == "div":
            return f.mul(args[0], f.inverse(args[1]))
        if body.head == "neg":
            return f.scale(args[0], -1)
        if body.head == "exp":
            return f.exponential(args[0])
        if body.head == "log1p":
            return f.function("log", [f.add(_constant(1.0), args[0])])
        return f.function(body.head, args)

    def arranged(
        self, name: str, attrs: Mapping[str, Attr], operands: Sequence[_Tensor], result: Value
    ) -> _Tensor:
        index = tuple(self.variables(d) for d in self.axes.of(result))
        if (elements := OPERATORS[name].elements) is not None:
            held = elements(attrs)
            if isinstance(held, int | float):
                return _Tensor(index, _constant(float(held)))
            if isinstance(held, np.ndarray):
                digest = hashlib.sha256(repr((held.shape, held.dtype.str)).encode() + held.tobytes())
                held = digest.hexdigest()
            return self.opaque(f"constant {held}", result)
        if name == "reshape":
            flat = iter([v for d in index for v in d])
            (operand,) = operands
            try:
                parts = [[next(flat) for _ in d] for d in operand.index]
            except StopIteration:
                raise NoNormalForm("a reshape across factors") from None
            return _Tensor(index, operand.at(parts))
        if name == "repeat":
            (operand,), along = operands, int(str(attrs["dim"]))
            kept = len(operand.index[along])
            own = [d[len(d) - kept :] if i == along else d for i, d in enumerate(index)]
            return _Tensor(index, operand.at(own))
        raise NoNormalForm(f"'{name}'")


def _around(rank: int, maps: Sequence[tuple[Attr, Sequence[tuple[Var, ...]]]]) -> list[list[Var]]:
    """For each dimension of a tile the grid's and loops' variables that cut it, outermost first."""
    out: list[list[Var]] = [[] for _ in range(rank)]
    for entries, variables in maps:
        assert isinstance(entries, tuple)
        for d, group in zip(entries, variables, strict=True):
            if d >= 0:
                out[d] += group
    return out


def _constant(value: float) -> Form:
    if math.isnan(value):
        raise NoNormalForm("a constant that is not a number")
    return f.number(Fraction(value)) if math.isfinite(value) else f.infinity(1 if value > 0 else -1)


# --- tile programs ----------------------------------------------------------------------------------------


class _TileRun:
    """Loops run once, with variables for their trips; what a loop adds to a buffer is summed over them.

    A store whose windows move with a loop is taken as one store of the whole buffer, with variables for
    positions. All trips together do that if nothing else in the loop touches the buffer at other windows.
    """

    def __init__(self, outer: _Derivation, program: TileProgram) -> None:
        self.outer, self.program = outer, program
        self.memory: dict[Buffer, _Tensor | None] = {}  # None: written in a way that is not understood
        self.values: dict[Value, _Tensor] = {}
        self.trips: dict[LoopVar, tuple[Var, ...]] = {}

    def run(self, operands: Sequence[_Tensor]) -> list[_Tensor]:
        self.memory.update(zip(self.program.params, operands, strict=False))
        self.statements(self.program.body)
        return [self.read(b) for b in self.program.params[self.program.n_inputs :]]

    def read(self, buffer: Buffer) -> _Tensor:
        found = self.memory.get(buffer)
        if found is None:
            raise NoNormalForm(f"what '{buffer.name}' holds")
        return found

    def statements(self, body: Sequence[Statement]) -> None:
        for s in body:
            if isinstance(s, Loop):
                self.loop(s)
            elif isinstance(s, Load) and s.buffer.view is not None:
                raise NoNormalForm(f"'{s.buffer.name}' is a view")
            elif isinstance(s, Load):
                index = tuple(self.outer.variables(d) for d in self.outer.axes.of(s.result))
                held = self.read(s.buffer).at(self.whole(s.buffer, s.windows, index))
                self.values[s.result] = _Tensor(index, held)
            elif isinstance(s, Store):
                self.store(s)
            elif s.bounds:
                raise NoNormalForm("a mask")
            else:
                operands = [self.values[v] for v in s.operands]
                found = self.outer.operator(s.op, s.attrs, s.operands, operands, s.result)
                self.values[s.result] = found

    def store(self, s: Store) -> None:
        value = self.values[s.value]
        whole = self.whole(s.buffer, s.windows, value.index)
        flat = [v for d in whole for v in d]
        names = {v: Var(v.factor, 0, next(self.outer.serials)) for v in flat}
        if len(names) != len(flat):
            raise NoNormalForm("a loop that moves a window along two dimensions")
        index = tuple(tuple(names[v] for v in d) for d in whole)
        self.memory[s.buffer] = _Tensor(index, f.rename(value.form, names))

    def whole(
        self, buffer: Buffer, windows: Sequence[Window], index: Sequence[Sequence[Var]]
    ) -> list[list[Var]]:
        """The variables of a buffer's dimensions where windows traverse all of it."""
        out: list[list[Var]] = []
        for w, extent, own in zip(windows, buffer.type.shape, index, strict=True):
            first, moves = self.outer.axes.travel(w)
            covered = w.size
            outer: list[Var] = []
            for var, stride in moves:
                if stride != covered:
                    raise NoNormalForm("windows that are not side by side")
                covered *= math.prod(x.size for x in leaves(self.outer.axes.trips[var]))
                outer = [*self.trips[var], *outer]
            if first or covered != extent or w.stride != 1:
                raise NoNormalForm("windows that do not go through all of a buffer")
            out.append([*outer, *own])
        return out

    def loop(self, s: Loop) -> None:
        if math.prod(x.size for x in leaves(self.outer.axes.trips[s.var])) < 1:
            raise NoNormalForm("a loop of no trips")
        own = self.trips[s.var] = self.outer.variables(self.outer.axes.trips[s.var])
        if not own:  # one trip
            self.statements(s.body)
            return
        moved = self.moved(s)
        before = {b: self.memory.get(b) for b in _accesses(s.body, Store)}
        for buffer, held in before.items():
            if held is not None:
                name = str(next(self.outer.serials))
                place = f.Atom("held", name, tuple(v for d in held.index for v in d))
                self.memory[buffer] = _Tensor(held.index, f.atom(place))
        entered = {b: self.memory.get(b) for b in before}
        self.statements(s.body)
        names = frozenset[str]().union(*(f.names_in(t.form, "held") for t in entered.values() if t))
        for buffer, first in before.items():
            left = self.memory.get(buffer)
            if left is not None and buffer not in moved and not s.parallel:
                left = self.grown(own, first, entered[buffer], left)
            if left is not None and (
                names & f.names_in(left.form, "held") or any(v in left.form.free for v in own)
            ):
                left = None
            self.memory[buffer] = left
        del self.trips[s.var]

    def moved(self, s: Loop) -> set[Buffer]:
        """The buffers that the trips of a loop store in parts; nothing else in the loop may touch them."""
        found: set[Buffer] = set()
        loads = _accesses(s.body, Load)
        for buffer, stored in _accesses(s.body, Store).items():
            if any(var is s.var for windows in stored for w in windows for var, _ in w.terms):
                found.add(buffer)
                if len(stored | loads.get(buffer, set())) > 1:
                    raise NoNormalForm(f"several windows of '{buffer.name}' in one loop")
        return found

    def grown(
        self, own: Sequence[Var], before: _Tensor | None, entered: _Tensor | None, left: _Tensor
    ) -> _Tensor:
        """What a buffer holds after a loop each of whose trips adds or joins the same form, up to `own`."""
        if before is None or entered is None:
            return left
        held = entered.at(left.index)
        mark = f.names_in(held, "held")
        if not mark & f.names_in(left.form, "held"):
            return left
        added = f.add(left.form, f.scale(held, -1))
        if not mark & f.names_in(added, "held"):
            total = f.bind(f.finite(added), own, self.outer.sizes.__getitem__)
            return _Tensor(left.index, f.add(f.finite(before.at(left.index)), total))
        for kind in ("max", "min"):
            if (rest := f.without(kind, left.form, held)) is not None:
                joined = f.join(kind, before.at(left.index), f.join_over(kind, rest, own))
                return _Tensor(left.index, joined)
        return left


def _accesses(
    body: Sequence[Statement], kind: type[Load] | type[Store]
) -> dict[Buffer, set[tuple[Window, ...]]]:
    """The buffers that statements of one kind touch, with the windows."""
    found: dict[Buffer, set[tuple[Window, ...]]] = {}
    for s in body:
        if isinstance(s, Loop):
            for buffer, windows in _accesses(s.body, kind).items():
                found.setdefault(buffer, set()).update(windows)
        elif isinstance(s, Load | Store) and isinstance(s, kind):
            found.setdefault(s.buffer, set()).add(s.windows)
    return found
