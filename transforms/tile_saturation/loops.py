"""Programs of tile loops as terms: what the e-graph rewrites, readable, printable and executable.

    for n in 0..4096 by 128:
      start Q1[:, n] = 0
      for k in 0..4096 by tile_k:
        Q1[:, n] = Q1[:, n] + matmul(X[:, k], W[k, n])

Values are tiles whose rank is that of the tensors (an element is a tile of extent 1). A tensor may be a bundle:
tensors indexed alike by statements of one form, written once and meant once for each lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from superopt.operators import OPERATORS, normalize_attrs
from superopt.program import Attr

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(eq=False)
class Var:
    """A loop variable over range(0, end, step); `step` 0 is a tile parameter, chosen after extraction.

    `nominal` is the width that costs are estimated with; `axis` numbers the axis it cuts.
    """

    name: str
    end: int
    step: int = 0
    nominal: int = 1

    @property
    def width(self) -> int:
        """The step, or the nominal one."""
        return self.step or self.nominal


TensorKind: TypeAlias = Literal["input", "output", "temporary"]


@dataclass(eq=False)
class Tensor:
    """A tensor of the program, or a bundle of `lanes`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind
    lanes: tuple[Tensor, ...] = ()

    @property
    def members(self) -> tuple[Tensor, ...]:
        """The single tensors."""
        return self.lanes or (self,)


@dataclass(frozen=True)
class Index:
    """What a region takes of one dimension.

    "full": all; "tile": `var.step` elements from `base + var` on; "elem": the one at `base + var / var.step`;
    "range": `size` elements from `base` on; "block": `size` elements from `size * (var / var.step)` on.
    """

    kind: Literal["full", "tile", "elem", "range", "block"] = "full"
    var: Var | None = None
    base: int = 0
    size: int = 0

    def __str__(self) -> str:
        shift = f"+{self.base}" if self.base and self.kind != "range" else ""
        if self.kind == "full":
            return ":"
        if self.kind == "range":
            return f"{self.base}:{self.base + self.size}"
        assert self.var is not None
        if self.kind == "block":
            return f"block {self.var.name} of {self.size}"
        return f"elem {self.var.name}{shift}" if self.kind == "elem" else f"{self.var.name}{shift}"


FULL = Index()


@dataclass(frozen=True)
class Region:
    """A part of a tensor."""

    tensor: Tensor
    dims: tuple[Index, ...]
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.tensor, self.dims)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(str, self.dims))}]"

    @property
    def vars(self) -> frozenset[Var]:
        """The variables it moves with."""
        return frozenset(i.var for i in self.dims if i.var is not None)


@dataclass(frozen=True)
class Expr:
    """A value: "load" of `region`, "const", or an operator of the table applied to values.

    `attrs` are the operator's, sorted; shapes among them hold a `Var` where the extent is a tile's width.
    Reductions keep their dimensions, which count from the end. `regions` is all that it loads.
    """

    op: str
    args: tuple[Expr, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()
    region: Region | None = None
    regions: tuple[Region, ...] = field(default=(), init=False, repr=False, compare=False)
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Values share much; hashing each of them anew would visit shared parts again and again.
        object.__setattr__(self, "_hash", hash((self.op, self.args, self.attrs, self.region)))
        own = () if self.region is None else (self.region,)
        found = dict.fromkeys([*own, *(r for a in self.args for r in a.regions)])
        object.__setattr__(self, "regions", tuple(found))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if self.region is not None:
            return str(self.region)
        infix = {"add": "+", "sub": "-", "mul": "*", "div": "/"}.get(self.op)
        if infix:
            return f"({self.args[0]} {infix} {self.args[1]})"
        if self.op == "const":
            return f"{dict(self.attrs)['value']:g}"
        shown = [
            f"{k}={_shown(v)}"
            for k, v in self.attrs
            if not (k == "keepdims" or (self.op == "matmul" and not v))
        ]
        return f"{self.op}({', '.join([*map(str, self.args), *shown])})"

    def walk(self) -> Iterator[Expr]:
        """This value and those in it, once each, operands first."""
        seen: set[int] = set()

        def visit(expr: Expr) -> Iterator[Expr]:
            if id(expr) in seen:
                return
            seen.add(id(expr))
            for arg in expr.args:
                yield from visit(arg)
            yield expr

        return visit(self)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        parts = cast("tuple[int | Var, ...]", value)
        return "x".join(v.name if isinstance(v, Var) else str(v) for v in parts)
    return str(value)


@dataclass(frozen=True)
class Store:
    """`region = value`."""

    region: Region
    value: Expr


@dataclass(frozen=True)
class Loop:
    """`for var`; before it, every region of `starts` is filled with its number (0 or minus infinity)."""

    var: Var
    starts: tuple[tuple[Region, float], ...]
    body: tuple[Statement, ...]
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.var, self.starts, self.body)))

    def __hash__(self) -> int:
        return self._hash


Statement: TypeAlias = "Loop | Store"


@dataclass(frozen=True)
class LibraryOperator:
    """`result = op(operands)`, of whole tensors, each in a shape: what a statement does, and nothing else."""

    op: str
    result: Tensor
    operands: tuple[tuple[Tensor, tuple[int, ...]], ...]
    attrs: tuple[tuple[str, Any], ...]


@dataclass(eq=False)
class LoopProgram:
    """Tile loops over the tensors of a kernel graph; `inputs` and `outputs` in the graph's order.

    A tensor that is both is updated in place.
    """

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    body: tuple[Statement, ...]
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    library: dict[Statement, tuple[LibraryOperator, ...]] = field(
        default_factory=dict["Statement", "tuple[LibraryOperator, ...]"]
    )
    """Statements that are matrix products or concatenations alone: a library's kernel may take their place."""

    def __str__(self) -> str:
        return render(self.body)

    @property
    def updated(self) -> set[Tensor]:
        """The tensors that are input and output at once."""
        return set(self.inputs) & set(self.outputs)

    @property
    def vars(self) -> list[Var]:
        """The variables, in order of appearance."""
        return list(dict.fromkeys(loop.var for loop in loops(self.body)))


def loops(body: Sequence[Statement]) -> Iterator[Loop]:
    """Every loop, outer ones first."""
    for statement in body:
        if isinstance(statement, Loop):
            yield statement
            yield from loops(statement.body)


def stores(body: Sequence[Statement]) -> Iterator[Store]:
    """Every store, in program order."""
    for statement in body:
        if isinstance(statement, Loop):
            yield from stores(statement.body)
        else:
            yield statement


def render(body: Sequence[Statement], indent: str = "") -> str:
    """The program as text, one statement a line."""
    out: list[str] = []
    for s in body:
        if isinstance(s, Store):
            out.append(f"{indent}{s.region} = {s.value}\n")
            continue
        out += [f"{indent}start {region} = {value:g}\n" for region, value in s.starts]
        step = s.var.step or f"tile_{s.var.name}"
        out.append(f"{indent}for {s.var.name} in 0..{s.var.end} by {step}:\n{render(s.body, indent + '  ')}")
    return "".join(out)


# --- execution --------------------------------------------------------------------------------------------


class Unbound(Exception):
    """A term uses a variable outside its loop."""


def execute(body: Sequence[Statement], memory: dict[Tensor, Array], steps: Mapping[Var, int]) -> None:
    """Run the statements on `memory` (an array for every single tensor), with `steps` for the parameters."""
    _Run(memory, steps).body(body, {})


class _Run:
    def __init__(self, memory: dict[Tensor, Array], steps: Mapping[Var, int]) -> None:
        self.memory, self.steps = memory, steps

    def step(self, var: Var) -> int:
        return var.step or self.steps[var]

    def body(self, body: Sequence[Statement], at: dict[Var, int]) -> None:
        for statement in body:
            if isinstance(statement, Store):
                for lane, tensor in enumerate(statement.region.tensor.members):
                    value = self.value(statement.value, at, lane, {})
                    self.memory[tensor][self.slices(statement.region, at)] = value
                continue
            for region, number in statement.starts:
                for tensor in region.tensor.members:
                    self.memory[tensor][self.slices(region, at)] = number
            for value in range(0, statement.var.end, self.step(statement.var)):
                self.body(statement.body, {**at, statement.var: value})

    def slices(self, region: Region, at: dict[Var, int]) -> tuple[slice, ...]:
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

    def value(self, expr: Expr, at: dict[Var, int], lane: int, done: dict[Expr, Array]) -> Array:
        if expr in done:
            return done[expr]
        if expr.region is not None:
            members = expr.region.tensor.members
            out = self.memory[members[lane if len(members) > 1 else 0]][self.slices(expr.region, at)].copy()
        else:
            args = [self.value(a, at, lane, done) for a in expr.args]

            def width(v: Var) -> int:
                return min(self.step(v), v.end - at.get(v, 0))

            out = apply(expr, args, width)
        done[expr] = out
        return out


_FUNCTIONS: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "exp": np.exp, "sqrt": np.sqrt, "log": np.log, "neg": np.negative, "sin": np.sin, "cos": np.cos,
}  # fmt: skip


def apply(expr: Expr, args: list[Array], width: Any) -> Array:
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
    import math

    return np.vectorize(math.erf, otypes=[float])(x)


def concrete(shape: Sequence[int | Var], width: Any) -> tuple[int, ...]:
    """`shape` with tile widths filled in."""
    return tuple(width(e) if isinstance(e, Var) else e for e in shape)
