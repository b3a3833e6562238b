"""A program over named axes: what `name_axes` makes of a kernel graph, and the input of the native search."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from superopt.operators import OPERATORS, computed_of, primitive_of
from superopt.program import Attr, KernelGraph, Node, Value
from superopt.scalars import COMMUTATIVE

# A reduced axis at least this long may be looped over, tile by tile.
LOOP_EXTENT = 128


@dataclass(frozen=True)
class Role:
    """One use (or several merged ones) of a graph input: per dimension its axes, outermost first."""

    source: Value
    dims: tuple[tuple[int, ...], ...]

    @property
    def axes(self) -> tuple[int, ...]:
        """Every axis, in the order of the dimensions."""
        return tuple(a for dim in self.dims for a in dim)


@dataclass(frozen=True)
class Function:
    """An operator that the search does not look into, with its attributes."""

    op: str
    attrs: tuple[tuple[str, Attr], ...] = ()
    over: tuple[int, ...] = ()
    """For an exponential relative to a maximum: the axes that the maximum does not vary along."""
    group: int = 0
    """Distinguishes such exponentials of one program."""
    along: tuple[int, ...] = ()
    """The axes that the maximum varies along."""

    @property
    def reduction(self) -> bool:
        """Whether it reduces axes (maximum, minimum)."""
        return OPERATORS[self.op].combiner is not None

    @property
    def commutative(self) -> bool:
        """Whether its two operands may be exchanged."""
        return primitive_of(self) in COMMUTATIVE

    @property
    def ordered(self) -> bool:
        """Whether it has two operands that may not be exchanged."""
        return OPERATORS[self.op].arity == 2 and not self.commutative

    @property
    def flops(self) -> int:
        """Scalar operations per element."""
        body = OPERATORS[self.op].body
        own = len(body(dict(self.attrs)).primitives()) if body else 0
        return own + (2 if self.over else 0)  # the maximum, and the difference to it

    @property
    def special(self) -> int:
        """Those of them that only the special function units do."""
        body = OPERATORS[self.op].body
        return body(dict(self.attrs)).special() if body else 0


@dataclass(frozen=True)
class Operation:
    """An operation that the native search knows (`kind`) on earlier ones, roles or constants (by number)."""

    kind: str
    args: tuple[int, ...]
    function: int = 0
    reduced: tuple[int, ...] = ()
    aside: bool = False
    """The program's own way to a value that the search reaches otherwise: used unchanged, or not at all."""
    same: int | None = None
    """The earlier operation that this one, aside, computes in another way."""


@dataclass
class AxisProgram:
    """The program over named axes. Numbers of operands: roles first, then constants, then operations."""

    graph: KernelGraph
    extents: list[int]
    roles: list[Role]
    constants: list[float]
    functions: list[Function]
    operations: list[Operation]
    outputs: list[int]
    output_dims: list[tuple[tuple[int, ...], ...]]
    reduced_sets: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    dot_dtype: str | None = None
    """Widest dtype of the operands of the program's matrix products; None without such products."""
    copies: int = 0
    """Extra nodes in `graph`, for intermediates in two roles."""

    @property
    def bands(self) -> list[Node]:
        """What makes the roles' sources that are not inputs."""
        read = {role.source for role in self.roles}
        return [n for n in self.graph.nodes if computed_of(n) is not None and n.result in read]

    @property
    def looped(self) -> set[int]:
        """Axes that a kernel may loop over: long reduced ones, and the outermost of long reduced groups."""
        found: set[int] = set()
        for axes in self.reduced_sets:
            found |= {a for a in axes if self.extents[a] >= LOOP_EXTENT}
            if math.prod(self.extents[a] for a in axes) >= LOOP_EXTENT and not found & set(axes):
                found.add(axes[0])
        return found
