"""Translates tile loops to the native e-graph and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from superopt.operators import OPERATORS, normalize_attrs
from superopt.program import DTYPE_BYTES
from superopt.transforms.core import _egraph
from superopt.transforms.tile_saturation.terms import (
    FULL,
    STARTS,
    LoopTerm,
    StatementTerm,
    StoreTerm,
    TermIndex,
    TermProgram,
    TermRegion,
    TermTensor,
    TermVar,
    ValueTerm,
)

NativeTerm: TypeAlias = "list[tuple[str, int, int, int]]"

_KINDS = ("input", "output", "temporary")
_STARTS = tuple(STARTS.values())
_INDEX = ("full", "tile", "elem", "range")
# The graph's names of the operators in its rules, and the attribute that is the payload; others are "unary".
_NATIVE = {
    "add": ("+", ""), "sub": ("-", ""), "mul": ("*", ""), "div": ("/", ""), "max": ("max", ""),
    "min": ("min", ""), "exp": ("exp", ""), "matmul": ("matmul", ""), "reduce_sum": ("rsum", "dims"),
    "reduce_max": ("rmax", "dims"), "transpose": ("permute", "perm"), "reshape": ("reshape", "shape"),
    "broadcast": ("bcast", "shape"), "concat": ("concat", "dim"),
}  # fmt: skip
_TERM = {native: (op, attr) for op, (native, attr) in _NATIVE.items()}


def grid_vars(body: Sequence[StatementTerm]) -> set[TermVar]:
    """Variables of the outermost loops, through perfect nests: those that form grids."""
    out: set[TermVar] = set()
    for statement in body:
        while isinstance(statement, LoopTerm) and not statement.starts:
            out.add(statement.var)
            if len(statement.body) != 1:
                break
            (statement,) = statement.body
    return out


class Encoder:
    """An e-graph with the tables that map its numbers back to variables and tensors."""

    def __init__(self, program: TermProgram) -> None:
        self.graph = _egraph.EGraph()
        self.vars: list[TermVar] = []
        self.tensors: list[TermTensor] = []
        self.var_ids: dict[TermVar, int] = {}
        self.tensor_ids: dict[TermTensor, int] = {}
        self._exprs: dict[ValueTerm, int] = {}
        self.grid = grid_vars(program.body)
        for tensor in program.tensors:
            self.tensor(tensor)
        self.root = self.sequence(program.body)
        for statement in program.library:
            self.graph.note_library(self.statement(statement))

    # --- to the graph ---

    def var(self, var: TermVar) -> int:
        """The number of a variable."""
        if var not in self.var_ids:
            self.var_ids[var] = self.graph.add_var(
                var.name, var.end, var.step, max(var.width, 1), var in self.grid
            )
            self.vars.append(var)
        return self.var_ids[var]

    def tensor(self, tensor: TermTensor) -> int:
        """The number of a tensor; a bundle's lanes first."""
        if tensor not in self.tensor_ids:
            lanes = [self.tensor(t) for t in tensor.lanes]
            kind = _KINDS.index(tensor.kind)
            self.tensor_ids[tensor] = self.graph.add_tensor(
                tensor.name, list(tensor.shape), kind, lanes, DTYPE_BYTES[tensor.dtype]
            )
            self.tensors.append(tensor)
        return self.tensor_ids[tensor]

    def region(self, region: TermRegion) -> int:
        """The number of a region."""
        dims: list[tuple[int, int, int]] = []
        for index in region.dims:
            if index.kind == "range":
                dims.append((3, index.base, index.size))
            elif index.var is None:
                dims.append((0, 0, 0))
            elif index.kind == "block":
                dims.append((4, self.var(index.var), index.size))
            else:
                dims.append((_INDEX.index(index.kind), self.var(index.var), index.base))
        return self.graph.access(self.tensor(region.tensor), dims)

    def extents(self, shape: Sequence[int | TermVar]) -> list[int]:
        """Extents as the graph writes them: -1 - v for the width of a tile at v."""
        return [e if isinstance(e, int) else e.step or -1 - self.var(e) for e in shape]

    def expr(self, expr: ValueTerm) -> int:
        """The class of a value."""
        if expr in self._exprs:
            return self._exprs[expr]
        g = self.graph
        attrs = dict(expr.attrs)
        args = [self.expr(a) for a in expr.args]
        if expr.region is not None:
            out = g.add("load", self.region(expr.region))
        elif expr.op == "const":
            out = g.add("const", g.constant(float(attrs["value"]), self.extents(attrs["shape"])))
        elif expr.op in _NATIVE:
            native, attr = _NATIVE[expr.op]
            out = g.add(native, self._payload(attr, attrs), *args)
        else:
            entry, point = OPERATORS[expr.op], [(1,)] * len(args)
            values = normalize_attrs(entry, attrs)
            name = json.dumps([expr.op, attrs], sort_keys=True)
            number = g.name(name, entry.flops(point, values), entry.special(point, values))
            out = g.add("unary", number, *args)
        self._exprs[expr] = out
        return out

    def _payload(self, attr: str, attrs: dict[str, Any]) -> int:
        if attr == "shape":
            return self.graph.shape(self.extents(attrs["shape"]))
        if attr in ("dims", "perm"):
            return self.graph.ints(list(attrs[attr]))
        return attrs[attr] if attr else 0

    def statement(self, statement: StatementTerm) -> int:
        """The class of a statement."""
        if isinstance(statement, StoreTerm):
            return self.graph.add("store", self.region(statement.region), self.expr(statement.value))
        for _, value in statement.starts:
            if value not in _STARTS:
                raise ValueError(f"expected a start of 0 or minus infinity, got {value:g}")
        starts = [(self.region(r), _STARTS.index(value)) for r, value in statement.starts]
        head = self.graph.loop_head(self.var(statement.var), starts)
        return self.graph.add("loop", head, self.sequence(statement.body))

    def sequence(self, body: Sequence[StatementTerm]) -> int:
        """The class of a sequence of statements."""
        out = self.statement(body[-1])
        for statement in reversed(body[:-1]):
            out = self.graph.add("seq", 0, self.statement(statement), out)
        return out

    # --- from the graph ---

    def decode(self, term: NativeTerm) -> tuple[StatementTerm, ...]:
        """A term as statements."""
        values: list[Any] = []
        for op, payload, a, b in term:
            x = values[a] if a >= 0 else None
            y = values[b] if b >= 0 else None
            values.append(self._node(op, payload, x, y))
        return values[-1]

    def _node(self, op: str, payload: int, a: Any, b: Any) -> Any:
        if op == "seq":
            return (*a, *b)
        if op == "store":
            return (StoreTerm(self._region(payload), a),)
        if op == "loop":
            var, starts = self.graph.loop_at(payload)
            regions = tuple((self._region(r), _STARTS[kind]) for r, kind in starts)
            return (LoopTerm(self.vars[var], regions, a),)
        if op == "load":
            return ValueTerm("load", region=self._region(payload))
        args = tuple(x for x in (a, b) if x is not None)
        g = self.graph
        if op == "const":
            value, shape = g.constant_at(payload)
            return ValueTerm("const", (), (("shape", self._shape(shape)), ("value", value)))
        if op == "unary":
            name, attrs = json.loads(g.name_at(payload))
            return ValueTerm(name, args, tuple(sorted(attrs.items())))
        name, attr = _TERM[op]
        return ValueTerm(name, args, ((attr, self._attr(attr, payload)),) if attr else ())

    def _attr(self, attr: str, payload: int) -> Any:
        if attr == "shape":
            return self._shape(self.graph.shape_at(payload))
        return tuple(self.graph.ints_at(payload)) if attr in ("dims", "perm") else payload

    def _shape(self, extents: Sequence[int]) -> tuple[int | TermVar, ...]:
        return tuple(e if e >= 0 else self.vars[-1 - e] for e in extents)

    def region_text(self, number: int) -> str:
        """A region as text."""
        return str(self._region(number))

    def _region(self, number: int) -> TermRegion:
        tensor, dims = self.graph.access_at(number)
        out: list[TermIndex] = []
        for kind, a, b in dims:
            if kind == 0:
                out.append(FULL)
            elif kind == 3:
                out.append(TermIndex("range", None, a, b))
            elif kind == 4:
                out.append(TermIndex("block", self.vars[a], 0, b))
            else:
                out.append(TermIndex("tile" if kind == 1 else "elem", self.vars[a], b))
        return TermRegion(self.tensors[tensor], tuple(out))
