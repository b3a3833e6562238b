"""Pairs of programs, and a short way to write them: `T` is a tensor of a program with Python's operators."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from superopt.operators import infer_type
from superopt.program import KernelGraph, Node, TensorType, Value

Claim = Literal["equal", "near"]
EQUAL: Claim = "equal"
NEAR: Claim = "near"
Array = Any


@dataclass(frozen=True)
class T:
    """A tensor of a program, whose nodes operators are added to."""

    nodes: list[Node]
    value: Value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def f(self, op: str, *others: T, **attrs: Any) -> T:
        """An operator of the table."""
        return self._made(op, (self.value, *(t.value for t in others)), attrs)

    def _made(self, op: str, operands: tuple[Value, ...], attrs: dict[str, Any]) -> T:
        result = Value(infer_type(op, [v.type for v in operands], attrs))
        self.nodes.append(Node(op, operands, (result,), attrs))
        return T(self.nodes, result)

    def const(self, value: float | Array, *shape: int) -> T:
        """A constant of this tensor's dtype; an array has its own shape."""
        array: Any = value
        at: tuple[int, ...] = tuple(array.shape) if isinstance(value, np.ndarray) else shape
        return self._made("constant", (), {"value": value, "shape": at, "dtype": self.value.dtype})

    def two(self, op: str, other: T | float | Array) -> T:
        return self.f(op, other if isinstance(other, T) else self.const(other))

    def __add__(self, other: T | float | Array) -> T:
        return self.two("add", other)

    def __sub__(self, other: T | float | Array) -> T:
        return self.two("sub", other)

    def __mul__(self, other: T | float | Array) -> T:
        return self.two("mul", other)

    def __truediv__(self, other: T | float | Array) -> T:
        return self.two("div", other)

    def __matmul__(self, other: T) -> T:
        return self.f("matmul", other)

    def __neg__(self) -> T:
        return self.f("neg")

    def exp(self) -> T:
        return self.f("exp")

    def top(self, other: T | float | Array) -> T:
        """The larger of both."""
        return self.two("max", other)

    def low(self, other: T | float | Array) -> T:
        """The smaller of both."""
        return self.two("min", other)

    def over(self, op: str, *dims: int, keep: bool = True) -> T:
        """A reduction: "sum", "mean", "max", "min"."""
        return self.f(f"reduce_{op}", dims=dims, keepdims=keep)

    def sum(self, *dims: int, keep: bool = True) -> T:
        return self.over("sum", *dims, keep=keep)

    def t(self, *perm: int) -> T:
        """Transposed; by default the last two dimensions."""
        r = len(self.shape)
        return self.f("transpose", perm=perm or (*range(r - 2), r - 1, r - 2))

    def cut(self, dim: int, offset: int, size: int, stride: int = 1) -> T:
        """A slice of one dimension."""
        r = len(self.shape)
        offsets = tuple(offset if d == dim else 0 for d in range(r))
        sizes = tuple(size if d == dim else e for d, e in enumerate(self.shape))
        strides = tuple(stride if d == dim else 1 for d in range(r))
        return self.f("slice", offsets=offsets, sizes=sizes, strides=strides)

    def cat(self, dim: int, *others: T) -> T:
        return self.f("concat", *others, dim=dim)

    def reshape(self, *shape: int) -> T:
        return self.f("reshape", shape=shape)

    def to(self, *shape: int) -> T:
        return self.f("broadcast", shape=shape)

    def cast(self, dtype: str) -> T:
        return self.f("cast", dtype=dtype)

    def softmax(self, dim: int, *, stable: bool = False) -> T:
        x = self - self.over("max", dim) if stable else self
        e = x.exp()
        return e / e.sum(dim)

    def extern(
        self, target: str, *others: T, shape: tuple[int, ...] = (), dtype: str = "", **attrs: Any
    ) -> T:
        """An opaque operation."""
        kind = TensorType(shape or self.shape, dtype or self.value.dtype)
        operands = (self.value, *(t.value for t in others))
        node = Node("extern", operands, (Value(kind),), {"target": target, "reason": "opaque", **attrs})
        self.nodes.append(node)
        return T(self.nodes, node.result)


Out: TypeAlias = "T | tuple[T, ...]"
Body: TypeAlias = "Callable[..., Out]"
# What a pair is called and is by construction, and its two programs.
Form: TypeAlias = "tuple[str, Claim, Body, Body]"
Two: TypeAlias = "tuple[str, Claim, Callable[[T, T], Out], Callable[[T, T], Out]]"
Three: TypeAlias = "tuple[str, Claim, Callable[[T, T, T], Out], Callable[[T, T, T], Out]]"
Four: TypeAlias = "tuple[str, Claim, Callable[[T, T, T, T], Out], Callable[[T, T, T, T], Out]]"


@dataclass(frozen=True)
class Pair:
    """Two programs, and what they are by construction. `twin`: the same pair at small extents, for the oracle."""

    name: str
    claim: Claim
    first: KernelGraph
    second: KernelGraph
    twin: tuple[KernelGraph, KernelGraph] | None = None


@dataclass
class Draw:
    """Random choices for a pair; `large` makes extents so large that programs are tested in parts."""

    rng: random.Random
    large: bool = False
    dtypes: tuple[str, ...] = ("f32", "f32", "f16", "bf16")
    plain: bool = False
    used: list[str] = field(default_factory=list[str])

    def extent(self, low: int = 2, high: int = 6, scale: int = 1) -> int:
        """A small extent; `scale` times that where extents are large."""
        return self.rng.randint(low, high) * (scale if self.large else 1)

    def number(self) -> float:
        """A constant that is neither 0 nor 1."""
        return self.rng.choice((-3.0, -2.0, -0.5, 0.25, 0.5, 1.5, 2.0, 3.0, 5.0, 7.0))

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def table(self, shapes: Sequence[tuple[int, ...]], forms: Sequence[Form]) -> Pair:
        """One of `forms` on inputs of these shapes, on either side, and something after it that both do."""
        name, claim, first, second = self.rng.choice(list(forms))
        return self.pair(name, claim, shapes, first, second)

    def pair(
        self,
        name: str,
        claim: Claim,
        shapes: Sequence[tuple[int, ...]],
        first: Body,
        second: Body,
        *,
        dtypes: Sequence[str] = (),
        aliases: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    ) -> Pair:
        """The two programs, swapped by chance."""
        dtype = self.rng.choice(self.dtypes)
        kinds = [
            TensorType(tuple(s), d) for s, d in zip(shapes, dtypes or [dtype] * len(shapes), strict=True)
        ]
        after, more = (
            self._after(kinds, first) if not (dtypes or any(aliases) or self.plain) else (_same, None)
        )
        if more is not None:
            kinds.append(more)
        sides = [
            _graph(kinds, body, after, more is not None, al)
            for body, al in zip((first, second), aliases, strict=True)
        ]
        if self.rng.random() < 0.5:
            sides.reverse()
        return Pair(name, claim, sides[0], sides[1])

    def _after(self, kinds: Sequence[TensorType], body: Body) -> tuple[Callable[..., T], TensorType | None]:
        """What is done with the only output, and the type of one more input that it needs."""
        outputs = _graph(kinds, body, _same, False, ()).outputs
        shape, dtype = outputs[0].shape, outputs[0].dtype
        if len(outputs) > 1 or len(shape) != 2 or self.large:
            return _same, None
        choice, dim = self.rng.randrange(10), self.rng.randrange(2)

        def after(y: T, *more: T) -> T:
            if choice == 3:
                return y.sum(dim)
            if choice == 4:
                return y.t()
            (w,) = more
            if choice == 0:
                return y * w
            if choice == 1:
                return y @ w
            return w + y if choice == 2 else y.cat(0, w)

        shapes = {0: (shape[1],), 1: (shape[1], 2), 2: shape, 5: (2, shape[1])}
        if choice in shapes:
            return after, TensorType(shapes[choice], dtype)
        return (after if choice in (3, 4) else _same), None


def _same(y: T, *_: T) -> T:
    return y


def _graph(
    kinds: Sequence[TensorType], body: Body, after: Callable[..., T], more: bool, aliases: tuple[int, ...]
) -> KernelGraph:
    nodes, inputs = list[Node](), [Value(k) for k in kinds]
    given = [T(nodes, v) for v in inputs]
    made = body(*given[:-1]) if more else body(*given)
    outputs = made if isinstance(made, tuple) else (after(made, given[-1]) if more else after(made),)
    return KernelGraph("main", inputs, nodes, [t.value for t in outputs], aliases=aliases)


FAMILIES: dict[str, list[Callable[[Draw], Pair]]] = {}
LARGE: dict[str, list[Callable[[Draw], Pair]]] = {}


def family(
    name: str, *, weight: int = 1, large: bool = False
) -> Callable[[Callable[[Draw], Pair]], Callable[[Draw], Pair]]:
    """Registers a generator under a class of pairs; `large` ones are also tried at large extents."""

    def register(make: Callable[[Draw], Pair]) -> Callable[[Draw], Pair]:
        FAMILIES.setdefault(name, []).extend([make] * weight)
        if large:
            LARGE.setdefault(name, []).append(make)
        return make

    return register


def with_twin(make: Callable[[Draw], Pair], seed: object) -> Pair:
    """A pair at large extents, with its twin at small ones: the same choices, other extents.

    Small extents may meet where large ones do not, so that a near miss becomes equal: then others are drawn.
    """
    for attempt in range(100):
        big, small = (
            make(Draw(random.Random(repr((seed, attempt))), large=large)) for large in (True, False)
        )
        if (big.name, big.claim) == (small.name, small.claim):
            return replace(big, twin=(small.first, small.second))
    raise AssertionError(f"{make.__name__}: no twin of a large pair")
