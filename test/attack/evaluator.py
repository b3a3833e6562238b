"""Direct evaluation of programs over exact numbers, fp64 or floats of 60 digits, element by element.

It follows the documentation of the operators, and shares no code with what the attack judges.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Literal

import mpmath
import numpy as np

from superopt.program import (
    BlockGraph,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    Statement,
    ThreadGraph,
    TileProgram,
    Value,
    Window,
)

Array = Any
NAN = math.nan
_HIGH: Any = mpmath.mp.clone()
_HIGH.dps = 60
_MOST_EXPONENT = 1_000_000


class Inexact(Exception):
    """A function that rational numbers lack."""


class TooLarge(Exception):
    """An exponential that is too large to be computed."""


# --- numbers ----------------------------------------------------------------------------------------------


def _divide(a: Any, b: Any) -> Any:
    if b == 0:
        return NAN
    return Fraction(a, b) if isinstance(a, int) and isinstance(b, int) else a / b


def _pick(larger: bool) -> Callable[[Any, Any], Any]:
    def pick(a: Any, b: Any) -> Any:
        return a if a != a else b if b != b else (max(a, b) if larger else min(a, b))

    return pick


def _function(name: str) -> Callable[[Any], Any]:
    """A function of one number, NaN outside its domain; at infinities its limit."""

    def apply(x: Any) -> Any:
        if isinstance(x, int | Fraction):
            raise Inexact(name)
        if x != x:
            return NAN
        if isinstance(x, float):
            return _float_function(name, x)
        if name in ("sqrt", "log") and x < 0:
            return _HIGH.mpf(0) if name == "sqrt" and x > -1e-30 else NAN  # 0 but for rounding
        if name == "log1p":
            return _function("log")(x + 1)
        if name == "log" and x == 0:
            return -_HIGH.inf
        if name in ("exp", "expm1") and _MOST_EXPONENT < abs(x) < _HIGH.inf:
            raise TooLarge(name)
        if name in ("sin", "cos") and abs(x) == _HIGH.inf:
            return NAN
        return _HIGH.mpf(getattr(_HIGH, name)(x))

    return apply


def _float_function(name: str, x: float) -> float:
    if (name == "log" and x == 0) or (name == "log1p" and x == -1):
        return -math.inf
    if name == "sqrt" and -1e-9 < x < 0:  # 0 but for rounding
        return 0.0
    try:
        return getattr(math, name)(x)
    except OverflowError:
        return math.inf
    except ValueError:
        return NAN


class Numbers:
    """Arithmetic on arrays of one kind of number: "exact", "float" or "high".

    `limits`: silu and gelu have their limit at minus infinity. `total`: roots and logarithms are of absolute values.
    """

    def __init__(
        self, kind: Literal["exact", "float", "high"], *, limits: bool = True, total: bool = False
    ) -> None:
        self.kind, self.limits, self.total = kind, limits, total
        self.dtype: Any = np.float64 if kind == "float" else object

    def number(self, value: Any) -> Any:
        """A constant; an infinite one is inexact among fractions."""
        value = float(value)
        if self.kind == "float":
            return value
        if self.kind == "high":
            return _HIGH.mpf(value)
        if not math.isfinite(value):
            raise Inexact("infinity")
        return int(value) if value.is_integer() else Fraction(value)

    def array(self, values: Any, shape: Sequence[int]) -> Array:
        """Numbers (nested or one for all) of that shape."""
        given = np.asarray(values)
        out = np.empty(given.shape, self.dtype)
        for index in np.ndindex(given.shape):
            out[index] = self.number(given[index])
        return np.broadcast_to(out, tuple(shape))

    def map(self, function: Callable[..., Any], *xs: Array) -> Array:
        """A function of numbers, element by element; operands broadcast."""
        ufunc: Any = np.frompyfunc(function, len(xs), 1)
        return np.asarray(ufunc(*xs), self.dtype)

    def binary(self, op: str, a: Array, b: Array) -> Array:
        """An operator of two operands."""
        with np.errstate(all="ignore"):
            if op == "add":
                return np.asarray(np.add(a, b), self.dtype)
            if op == "sub":
                return np.asarray(np.subtract(a, b), self.dtype)
            if op == "mul":
                return np.asarray(np.multiply(a, b), self.dtype)
            if op == "div":
                return self.map(_divide, a, b)
            return self.map(_pick(op == "max"), a, b)

    def unary(self, op: str, x: Array, attrs: dict[str, Any]) -> Array:
        """An operator of one operand, as its documentation says."""
        one = self.number(1)

        def f(name: str, v: Array) -> Array:
            if self.total and name in ("sqrt", "log", "log1p"):
                v = self.map(abs, v)
            return self.map(_function(name), v)

        def quotient(a: Array, b: Array) -> Array:
            return self.binary("div", a, b)

        with np.errstate(all="ignore"):
            if op in ("exp", "log", "sqrt", "erf", "sin", "cos", "expm1", "log1p"):
                return f(op, x)
            if op == "neg":
                return np.asarray(-x, self.dtype)
            if op == "square":
                return np.asarray(x * x, self.dtype)
            if op == "reciprocal":
                return quotient(one, x)
            if op == "rsqrt":
                return quotient(one, f("sqrt", x))
            if op == "relu":
                return self.binary("max", x, self.number(0))
            if op == "step":
                return np.asarray(x > 0, self.dtype)
            if op == "clamp":
                return self.binary(
                    "min", self.binary("max", x, self.number(attrs["low"])), self.number(attrs["high"])
                )
            if op == "cast":
                return x
            if op == "tanh":
                return self._tanh(x)
            if op == "sigmoid":
                return self._sigmoid(x)
            if op == "silu":
                return self._at_minus_infinity(x, np.asarray(x * self._sigmoid(x), self.dtype))
            if op == "gelu":
                scaled = np.asarray(x * self.map(_function("sqrt"), self.array(0.5, ())), self.dtype)
                return self._at_minus_infinity(
                    x, np.asarray(self.number(0.5) * x * (one + f("erf", scaled)), self.dtype)
                )
            if op == "pow":
                return self._power(x, float(attrs["exponent"]))
        raise AssertionError(f"no unary operator: {op}")

    def _sigmoid(self, x: Array) -> Array:
        one = self.number(1)
        return self.binary("div", one, one + self.map(_function("exp"), np.asarray(-x, self.dtype)))

    def _tanh(self, x: Array) -> Array:
        if self.kind == "exact":
            raise Inexact("tanh")
        return self.map(_function("tanh"), x)

    def _at_minus_infinity(self, x: Array, value: Array) -> Array:
        """0 at minus infinity, which the formula makes a product of 0 and infinity."""
        if not self.limits:
            return value

        def limit(at: Any, v: Any) -> Any:
            return self.number(0) if at == -math.inf else v

        return self.map(limit, x, value)

    def _power(self, x: Array, exponent: float) -> Array:
        if exponent == int(exponent):
            product = x
            for _ in range(int(abs(exponent)) - 1):
                product = np.asarray(product * x, self.dtype)
            if exponent == 0:
                return np.broadcast_to(self.array(1.0, ()), np.shape(x))
            return product if exponent > 0 else self.binary("div", self.number(1), product)
        root = self.map(_function("sqrt"), x)
        if abs(exponent) == 0.5:
            return root if exponent > 0 else self.binary("div", self.number(1), root)
        log = self.map(_function("log"), x)
        return self.map(_function("exp"), np.asarray(log * self.number(exponent), self.dtype))

    def fold(self, op: str, x: Array, dims: Sequence[int], keep: bool) -> Array:
        """A reduction, one element after the other."""
        moved = np.moveaxis(x, list(dims), range(len(dims)))
        flat = moved.reshape(-1, *moved.shape[len(dims) :])
        total = np.asarray(flat[0], self.dtype)
        for part in flat[1:]:
            total = self.binary(op, total, part)
        return np.expand_dims(total, tuple(sorted(dims))) if keep else total

    def matmul(self, a: Array, b: Array) -> Array:
        """Rows by columns; leading dimensions broadcast."""
        with np.errstate(all="ignore"):
            products = np.asarray(a[..., :, :, None] * b[..., None, :, :])
        return self.fold("add", products, (products.ndim - 2,), False)


# --- operators and graphs ---------------------------------------------------------------------------------


def operator(op: str, xs: Sequence[Array], attrs: dict[str, Any], shape: Sequence[int], n: Numbers) -> Array:
    """What a library operator computes; `shape` is that of its result."""
    if op == "constant":
        return n.array(attrs["value"], attrs["shape"])
    if op == "matmul":
        a = xs[0].swapaxes(-1, -2) if attrs.get("transpose_a") else xs[0]
        b = xs[1].swapaxes(-1, -2) if attrs.get("transpose_b") else xs[1]
        return n.matmul(a, b)
    if op == "select":
        other = n.number(attrs["other"])
        return np.asarray(np.where(xs[0] > 0, xs[1], np.asarray(other, n.dtype)), n.dtype)
    if op in ("add", "sub", "mul", "div", "max", "min"):
        return n.binary(op, xs[0], xs[1])
    if op.startswith("reduce_"):
        dims, keep = attrs["dims"], bool(attrs.get("keepdims", False))
        if op != "reduce_mean":
            return n.fold({"sum": "add"}.get(op[7:], op[7:]), xs[0], dims, keep)
        count = math.prod(xs[0].shape[d] for d in dims)
        return n.binary("div", n.fold("add", xs[0], dims, keep), n.number(count))
    if op == "broadcast":
        return np.broadcast_to(xs[0], attrs["shape"])
    if op == "transpose":
        return xs[0].transpose(attrs["perm"])
    if op == "slice":
        cuts = zip(attrs["offsets"], attrs["sizes"], attrs["strides"], strict=True)
        return xs[0][tuple(slice(o, o + (c - 1) * s + 1, s) for o, c, s in cuts)]
    if op == "reshape":
        return np.ascontiguousarray(xs[0]).reshape(attrs["shape"])
    if op == "repeat":
        return np.concatenate([xs[0]] * attrs["times"], axis=attrs["dim"])
    if op == "concat":
        return np.concatenate(list(xs), axis=attrs["dim"])
    if op == "update_slice":
        out = np.array(xs[0])
        at = [slice(None)] * out.ndim
        at[attrs["dim"]] = slice(attrs["offset"], attrs["offset"] + xs[1].shape[attrs["dim"]])
        out[tuple(at)] = xs[1]
        return out
    return n.unary(op, xs[0], attrs)


def evaluate(graph: KernelGraph, inputs: Sequence[Array], n: Numbers, draw: int = 0) -> list[Array]:
    """The outputs. `draw` names one interpretation of opaque operations."""
    env: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        xs = [env[v] for v in node.operands]
        body = node.body
        if isinstance(body, BlockGraph):
            results = _block(body, xs, [v.shape for v in node.results], n)
        elif isinstance(body, TileProgram):
            results = _Tiles(body, xs, n).run()
        elif node.op == "extern":
            results = [_opaque(node, xs, i, v.shape, draw, n) for i, v in enumerate(node.results)]
        else:
            results = [operator(node.op, xs, dict(node.attrs), node.result.shape, n)]
        env.update(zip(node.results, results, strict=True))
    return [env[v] for v in graph.outputs]


def _opaque(
    node: Node, xs: Sequence[Array], result: int, shape: Sequence[int], draw: int, n: Numbers
) -> Array:
    """Some function of all elements of the operands, another one for each target and attributes."""
    named = sorted((k, repr(v)) for k, v in node.attrs.items() if k != "reason")
    key = repr((draw, named, result, [x.shape for x in xs])).encode()
    rng = random.Random(hashlib.sha256(key).digest())
    total: Any = n.number(rng.randrange(1, 8))
    for x in xs:
        for element in x.reshape(-1):
            total = total + n.number(rng.randrange(1, 100)) * element * (
                element + n.number(rng.randrange(1, 9))
            )
    out = np.empty(tuple(shape), object)
    for index in np.ndindex(*shape):
        out[index] = total * n.number(rng.randrange(1, 50)) + n.number(rng.randrange(50))
    return out.astype(n.dtype)


# --- block graphs -----------------------------------------------------------------------------------------


def _block(
    graph: BlockGraph, inputs: Sequence[Array], shapes: Sequence[tuple[int, ...]], n: Numbers
) -> list[Array]:
    """Every block by itself, every value at every trip of the loops that it varies over."""
    outputs = [np.full(s, NAN, n.dtype) for s in shapes]
    for place in itertools.product(*map(range, graph.grid)):
        block = _Block(graph, inputs, place, n)
        for out, saver in zip(outputs, graph.savers, strict=True):
            tile = block.value(saver.operands[0], {})
            at = [slice(None)] * out.ndim
            for i, dim in zip(place, _ints(saver.attrs["omap"]), strict=True):
                if dim >= 0:
                    at[dim] = slice(i * tile.shape[dim], (i + 1) * tile.shape[dim])
            out[tuple(at)] = tile
    return outputs


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(value)


class _Block:
    def __init__(
        self, graph: BlockGraph, inputs: Sequence[Array], place: tuple[int, ...], n: Numbers
    ) -> None:
        self.graph, self.place, self.n = graph, place, n
        self.whole = dict(zip(graph.inputs, inputs, strict=True))
        self.maker = {v: node for node in graph.nodes for v in node.results}
        self.known: dict[tuple[Value, tuple[tuple[int, int], ...]], Array] = {}

    def value(self, v: Value, trips: dict[int, int]) -> Array:
        """The tile at these trips of loops."""
        key = v, tuple(sorted(trips.items()))
        if key not in self.known:
            self.known[key] = self.compute(self.maker[v], v, trips)
        return self.known[key]

    def compute(self, node: Node, v: Value, trips: dict[int, int]) -> Array:
        n, attrs = self.n, dict(node.attrs)
        if node.op == "iterator":
            x = self.whole[node.operands[0]]
            for extents, entries, index in (
                (self.graph.grid, _ints(attrs["imap"]), dict(enumerate(self.place))),
                (self.graph.loops, _ints(attrs["fmap"]), trips),
            ):
                for d, (extent, dim) in enumerate(zip(extents, entries, strict=True)):
                    if dim >= 0:
                        size = x.shape[dim] // extent
                        at = [slice(None)] * x.ndim
                        at[dim] = slice(index[d] * size, (index[d] + 1) * size)
                        x = x[tuple(at)]
            return x
        if node.op in ("accumulate", "running_max"):
            loop = int(str(attrs["loop"]))
            last = trips[loop] + 1 if node.op == "running_max" else self.graph.loops[loop]
            parts = [self.value(node.operands[0], {**trips, loop: t}) for t in range(last)]
            kind = "max" if node.op == "running_max" else attrs["kind"]
            if kind == "concat":
                along: Any = attrs["dim"]
                return np.concatenate(parts, axis=along)
            if kind == "rescaled":
                top = [self.value(node.operands[1], {**trips, loop: t}) for t in range(last)]
                parts = [
                    n.binary("mul", p, n.unary("exp", n.binary("sub", m, top[-1]), {}))
                    for p, m in zip(parts, top, strict=True)
                ]
            total = parts[0]
            for part in parts[1:]:
                total = n.binary("max" if kind == "max" else "add", total, part)
            return total
        xs = [self.value(x, trips) for x in node.operands]
        if isinstance(node.body, ThreadGraph):
            env = dict(zip(node.body.inputs, xs, strict=True))
            for inner in node.body.nodes:
                env[inner.result] = operator(
                    inner.op, [env[x] for x in inner.operands], dict(inner.attrs), inner.result.shape, n
                )
            return env[node.body.outputs[node.results.index(v)]]
        return operator(node.op, xs, attrs, v.shape, n)


# --- tile programs ----------------------------------------------------------------------------------------


class _Tiles:
    """A tile program, one statement after the other, parallel loops in order."""

    def __init__(self, program: TileProgram, inputs: Sequence[Array], n: Numbers) -> None:
        self.program, self.n = program, n
        self.memory: dict[Buffer, Array] = {}
        for i, buffer in enumerate(program.params):
            if i < program.n_inputs:
                self.memory[buffer] = np.array(inputs[i])
                continue
            out = i - program.n_inputs
            at = program.aliases[out] if program.aliases else -1
            self.memory[buffer] = np.array(inputs[at]) if at >= 0 else self.empty(buffer)
        self.values: dict[Value, Array] = {}
        self.vars: dict[LoopVar, int] = {}

    def empty(self, buffer: Buffer) -> Array:
        return np.full(buffer.type.shape, NAN, self.n.dtype)

    def run(self) -> list[Array]:
        """The contents of the outputs."""
        for buffer in self.program.locals:
            self.memory[buffer] = self.empty(buffer)
        for statement in self.program.body:
            self.statement(statement)
        return [self.memory[b] for b in self.program.params[self.program.n_inputs :]]

    def statement(self, s: Statement) -> None:
        if isinstance(s, Loop):
            for i in range(s.start, s.stop, s.step):
                self.vars[s.var] = i
                if s.parallel and not any(isinstance(x, Loop) and x.parallel for x in s.body):
                    for buffer in self.program.locals:  # one block's own
                        self.memory[buffer] = self.empty(buffer)
                for inner in s.body:
                    self.statement(inner)
        elif isinstance(s, Compute):
            xs = [self.values[v] for v in s.operands]
            self.values[s.result] = operator(s.op, xs, dict(s.attrs), s.result.shape, self.n)
        elif isinstance(s, Load):
            memory = self.memory[s.buffer]
            tile = np.full(
                s.result.shape, self.n.number(1237), memory.dtype
            )  # any number outside of the buffer
            here, there = self.places(s.windows, memory.shape)
            tile[here] = memory[there]
            self.values[s.result] = tile
        else:
            memory, tile = self.memory[s.buffer], self.values[s.value]
            here, there = self.places(s.windows, memory.shape)
            memory[there] = tile[here]

    def places(self, windows: Sequence[Window], shape: Sequence[int]) -> tuple[Any, Any]:
        """The elements of a tile that lie in the buffer, and where."""
        here: list[list[int]] = []
        there: list[list[int]] = []
        for w, extent in zip(windows, shape, strict=True):
            first = w.base + sum(scale * self.vars[var] for var, scale in w.terms)
            inside = [i for i in range(w.size) if first + i * w.stride < extent]
            here.append(inside)
            there.append([first + i * w.stride for i in inside])
        return np.ix_(*here), np.ix_(*there)


def converted(x: Array, n: Numbers) -> Array:
    """Integers and fractions as numbers of another kind."""
    if n.kind == "exact":
        return x
    return np.asarray(x, np.float64) if n.kind == "float" else n.map(_quotient, x)


def _quotient(x: int | Fraction) -> Any:
    return _HIGH.mpf(x.numerator) / x.denominator
