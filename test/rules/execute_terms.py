"""Terms of tile loops executed on arrays of float64: what rules are judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from superopt.operators import OPERATORS, normalize_attrs
from superopt.program import Attr
from superopt.transforms.tile_saturation.terms import (
    StatementTerm,
    StoreTerm,
    TermRegion,
    TermTensor,
    TermVar,
    ValueTerm,
    concrete,
)

Array: TypeAlias = "np.ndarray[Any, Any]"


class Unbound(Exception):
    """A term uses a variable outside its loop."""


def execute(
    body: Sequence[StatementTerm], memory: dict[TermTensor, Array], steps: Mapping[TermVar, int]
) -> None:
    """Run the statements on `memory` (an array for every single tensor), with `steps` for the parameters."""
    _Run(memory, steps).body(body, {})


class _Run:
    def __init__(self, memory: dict[TermTensor, Array], steps: Mapping[TermVar, int]) -> None:
        self.memory, self.steps = memory, steps

    def step(self, var: TermVar) -> int:
        return var.step or self.steps[var]

    def body(self, body: Sequence[StatementTerm], at: dict[TermVar, int]) -> None:
        for statement in body:
            if isinstance(statement, StoreTerm):
                for lane, tensor in enumerate(statement.region.tensor.members):
                    value = self.value(statement.value, at, lane, {})
                    self.memory[tensor][self.slices(statement.region, at)] = value
                continue
            for region, number in statement.starts:
                for tensor in region.tensor.members:
                    self.memory[tensor][self.slices(region, at)] = number
            for value in range(0, statement.var.end, self.step(statement.var)):
                self.body(statement.body, {**at, statement.var: value})

    def slices(self, region: TermRegion, at: dict[TermVar, int]) -> tuple[slice, ...]:
        out: list[slice] = []
        for index in region.dims:
            if index.kind == "full":
                out.append(slice(None))
            elif index.kind == "range":
                out.append(slice(index.base, index.base + index.size))
            else:
                assert index.var is not None
                if index.var not in at:
                    raise Unbound(index.var.name)
                step = self.step(index.var)
                if index.kind == "block":
                    start = at[index.var] // step * index.size
                    out.append(slice(start, start + index.size))
                    continue
                low = index.base + (at[index.var] if index.kind == "tile" else at[index.var] // step)
                high = low + min(step, index.var.end - at[index.var]) if index.kind == "tile" else low + 1
                out.append(slice(low, high))
        return tuple(out)

    def value(
        self, expr: ValueTerm, at: dict[TermVar, int], lane: int, done: dict[ValueTerm, Array]
    ) -> Array:
        if expr in done:
            return done[expr]
        if expr.region is not None:
            members = expr.region.tensor.members
            out = self.memory[members[lane if len(members) > 1 else 0]][self.slices(expr.region, at)].copy()
        else:
            args = [self.value(a, at, lane, done) for a in expr.args]

            def width(v: TermVar) -> int:
                return min(self.step(v), v.end - at.get(v, 0))

            out = apply(expr, args, width)
        done[expr] = out
        return out


_FUNCTIONS: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "exp": np.exp, "sqrt": np.sqrt, "log": np.log, "log1p": np.log1p, "neg": np.negative,
    "sin": np.sin, "cos": np.cos,
}  # fmt: skip


def apply(expr: ValueTerm, args: list[Array], width: Any) -> Array:
    """The operator of `expr` on arrays; `width(var)` is the extent of a tile."""
    attrs = dict(expr.attrs)
    if expr.op == "const":
        return np.full(concrete(attrs["shape"], width), attrs["value"])
    if expr.op == "matmul":
        return args[0] @ args[1]
    if expr.op == "reduce_sum":
        return args[0].sum(axis=attrs["dims"], keepdims=True)
    if expr.op == "reduce_max":
        return args[0].max(axis=attrs["dims"], keepdims=True)
    if expr.op == "transpose":
        return args[0].transpose(attrs["perm"])
    if expr.op == "reshape":
        return args[0].reshape(concrete(attrs["shape"], width))
    if expr.op == "broadcast":
        return np.broadcast_to(args[0], concrete(attrs["shape"], width))
    if expr.op == "concat":
        return np.concatenate(args, axis=attrs["dim"])
    if expr.op in _FUNCTIONS:
        with np.errstate(invalid="ignore", divide="ignore"):
            return _FUNCTIONS[expr.op](*args)
    return _scalar(OPERATORS[expr.op].body, attrs, expr.op, args)


def _scalar(body: Any, attrs: dict[str, Attr], op: str, args: list[Array]) -> Array:
    def run(s: Any) -> Any:
        if s.head == "arg":
            return args[int(s.payload)]
        if s.head == "const":
            return np.float64(s.payload)
        if s.head == "erf":
            return _erf(run(s.args[0]))
        if s.head == "pow":
            return np.power(run(s.args[0]), run(s.args[1]))
        return _FUNCTIONS[s.head](*map(run, s.args))

    return run(body(normalize_attrs(OPERATORS[op], attrs)))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[float])(x)
