"""Programs of tile loops as terms: what the e-graph rewrites, and its text.

The tile level (`superopt.program`) describes one kernel. Terms describe what a whole program of such loops
computes; which loops are kernels, where tensors live, and most tile widths are chosen after extraction.

    for n in 0..4096 by 128:
      start Q1[:, n] = 0
      for k in 0..4096 by tile_k:
        Q1[:, n] = Q1[:, n] + matmul(X[:, k], W[k, n])

Values are tiles whose rank is that of the tensors (an element is a tile of extent 1). A tensor may be a bundle:
tensors with the same indices in statements of one form, written once for all lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from superopt.operators import Combiner


@dataclass(eq=False)
class TermVar:
    """A loop variable over range(0, end, step); `step` 0 is a tile parameter, chosen after extraction.

    `nominal` is the width at which costs are estimated.
    """

    name: str
    end: int
    step: int = 0
    nominal: int = 1

    @property
    def width(self) -> int:
        """The step, or the nominal width."""
        return self.step or self.nominal


TermTensorKind: TypeAlias = Literal["input", "output", "temporary"]


@dataclass(eq=False)
class TermTensor:
    """A tensor of the program, or a bundle of `lanes`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: TermTensorKind
    lanes: tuple[TermTensor, ...] = ()

    @property
    def members(self) -> tuple[TermTensor, ...]:
        """The single tensors."""
        return self.lanes or (self,)


@dataclass(frozen=True)
class TermIndex:
    """The part of one dimension that a region covers.

    "full": all; "tile": `var.step` elements from `base + var` on; "elem": the one at `base + var / var.step`;
    "range": `size` elements from `base` on; "block": `size` elements from `size * (var / var.step)` on.
    """

    kind: Literal["full", "tile", "elem", "range", "block"] = "full"
    var: TermVar | None = None
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


FULL = TermIndex()


@dataclass(frozen=True)
class TermRegion:
    """A part of a tensor."""

    tensor: TermTensor
    dims: tuple[TermIndex, ...]
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.tensor, self.dims)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(str, self.dims))}]"

    @property
    def vars(self) -> frozenset[TermVar]:
        """The variables it moves with."""
        return frozenset(i.var for i in self.dims if i.var is not None)


@dataclass(frozen=True)
class ValueTerm:
    """A value: "load" of `region`, "const", or an operator of the table applied to values.

    `attrs` are the operator's, sorted; shapes among them hold a `Var` where the extent is a tile's width.
    Reductions keep their dimensions, which count from the end. `regions` is everything it loads.
    """

    op: str
    args: tuple[ValueTerm, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()
    region: TermRegion | None = None
    regions: tuple[TermRegion, ...] = field(default=(), init=False, repr=False, compare=False)
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Values share parts, which hashing each value anew would visit again and again.
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
        shown = [f"{k}={_shown(v)}" for k, v in self.attrs]
        return f"{self.op}({', '.join([*map(str, self.args), *shown])})"

    def walk(self) -> Iterator[ValueTerm]:
        """This value and those inside it, once each, operands first."""
        seen: set[int] = set()

        def visit(expr: ValueTerm) -> Iterator[ValueTerm]:
            if id(expr) in seen:
                return
            seen.add(id(expr))
            for arg in expr.args:
                yield from visit(arg)
            yield expr

        return visit(self)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        parts = cast("tuple[int | TermVar, ...]", value)
        return "x".join(v.name if isinstance(v, TermVar) else str(v) for v in parts)
    return str(value)


def number(value: float) -> ValueTerm:
    """A scalar."""
    return ValueTerm("const", (), (("shape", ()), ("value", value)))


STARTS: dict[Combiner, float] = {"add": 0.0, "max": -math.inf}
"""Initial values of accumulators, by the combiner of their parts."""


@dataclass(frozen=True)
class StoreTerm:
    """`region = value`."""

    region: TermRegion
    value: ValueTerm


@dataclass(frozen=True)
class LoopTerm:
    """`for var`; before it, every region of `starts` is filled with its number (0 or minus infinity)."""

    var: TermVar
    starts: tuple[tuple[TermRegion, float], ...]
    body: tuple[StatementTerm, ...]
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.var, self.starts, self.body)))

    def __hash__(self) -> int:
        return self._hash


StatementTerm: TypeAlias = "LoopTerm | StoreTerm"


@dataclass(frozen=True)
class LibraryOperator:
    """`result = op(operands)`, on whole tensors, each in a given shape: all that a statement does."""

    op: str
    result: TermTensor
    operands: tuple[tuple[TermTensor, tuple[int, ...]], ...]
    attrs: tuple[tuple[str, Any], ...]


@dataclass(eq=False)
class TermProgram:
    """Tile loops over the tensors of a kernel graph; `inputs` and `outputs` in the graph's order.

    A tensor that is both is updated in place.
    """

    name: str
    inputs: list[TermTensor]
    outputs: list[TermTensor]
    body: tuple[StatementTerm, ...]
    tensors: list[TermTensor] = field(default_factory=list[TermTensor])
    library: dict[StatementTerm, tuple[LibraryOperator, ...]] = field(
        default_factory=dict["StatementTerm", "tuple[LibraryOperator, ...]"]
    )
    """Statements that are just matrix products or concatenations, which a library kernel may replace."""
    multiplied: str | None = None
    """The dtype of 16 bits that all matrix products of the program multiply; None where there is none."""

    def __str__(self) -> str:
        return render(self.body)

    @property
    def updated(self) -> set[TermTensor]:
        """The tensors that are both input and output."""
        return set(self.inputs) & set(self.outputs)

    @property
    def vars(self) -> list[TermVar]:
        """The variables, in order of appearance."""
        return list(dict.fromkeys(loop.var for loop in loops(self.body)))


def loops(body: Sequence[StatementTerm]) -> Iterator[LoopTerm]:
    """Every loop, outer ones first."""
    for statement in body:
        if isinstance(statement, LoopTerm):
            yield statement
            yield from loops(statement.body)


def stores(body: Sequence[StatementTerm]) -> Iterator[StoreTerm]:
    """Every store, in program order."""
    for statement in body:
        if isinstance(statement, LoopTerm):
            yield from stores(statement.body)
        else:
            yield statement


def written(body: Sequence[StatementTerm]) -> set[TermTensor]:
    """Tensors that the statements store or start."""
    out = {s.region.tensor for s in stores(body)}
    return out | {r.tensor for loop in loops(body) for r, _ in loop.starts}


def loaded(body: Sequence[StatementTerm]) -> set[TermTensor]:
    """Tensors that the statements load."""
    return {r.tensor for s in stores(body) for r in s.value.regions}


def with_regions(
    value: ValueTerm, region: Callable[[TermRegion], TermRegion], done: dict[ValueTerm, ValueTerm]
) -> ValueTerm:
    """The value on other regions; `done` remembers parts that values share."""
    if value not in done:
        args = tuple(with_regions(a, region, done) for a in value.args)
        loads = None if value.region is None else region(value.region)
        done[value] = ValueTerm(value.op, args, value.attrs, loads)
    return done[value]


def rebuilt(
    statement: StatementTerm,
    region: Callable[[TermRegion], TermRegion],
    var: Callable[[TermVar], TermVar] = lambda v: v,
) -> StatementTerm:
    """The statement on other regions, and over other variables."""
    done: dict[ValueTerm, ValueTerm] = {}

    def visit(s: StatementTerm) -> StatementTerm:
        if isinstance(s, StoreTerm):
            return StoreTerm(region(s.region), with_regions(s.value, region, done))
        starts = tuple((region(r), number) for r, number in s.starts)
        return LoopTerm(var(s.var), starts, tuple(map(visit, s.body)))

    return visit(statement)


def render(body: Sequence[StatementTerm], indent: str = "") -> str:
    """The program as text, one statement per line."""
    out: list[str] = []
    for s in body:
        if isinstance(s, StoreTerm):
            out.append(f"{indent}{s.region} = {s.value}\n")
            continue
        out += [f"{indent}start {region} = {value:g}\n" for region, value in s.starts]
        step = s.var.step or f"tile_{s.var.name}"
        out.append(f"{indent}for {s.var.name} in 0..{s.var.end} by {step}:\n{render(s.body, indent + '  ')}")
    return "".join(out)


def concrete(shape: Sequence[int | TermVar], width: Any) -> tuple[int, ...]:
    """`shape` with tile widths filled in."""
    return tuple(width(e) if isinstance(e, TermVar) else e for e in shape)
