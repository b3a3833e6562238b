"""Comparisons, operators on truth values, and selections by them, of PyTorch.

A truth value is a tensor of zeros and ones in the graph: `step(a - b)` for a > b. Integers are compared as f32,
which is right beside constants that f32 holds with both their neighbours: rounding keeps the order, and moves no
integer onto them or across. A number compared with itself is a question about NaN, which the graph cannot ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from superopt.operators import broadcast_shapes
from superopt.program import COMPUTE_DTYPES, Value
from superopt.transforms.ingest.aten.table import Args, Handler, dim_of, handles
from superopt.transforms.ingest.builder import GraphBuilder, NotExpressible
from superopt.transforms.ingest.torch_dialect import TorchReader

_EXACT = 1 << 24  # integers up to it are f32 numbers, the next one is rounded to it
_WIDTH = {"f16": 0, "bf16": 0, "f32": 1}


def _operands(r: TorchReader, args: Args) -> list[Value]:
    """Two numbers in one dtype in which they compare as they do in PyTorch."""
    held = [a.dtype for a in args[:2] if isinstance(a, Value) and a not in r.truths]
    floats = [d for d in held if d in COMPUTE_DTYPES]
    constants = [np.asarray(a, np.float64) for a in args[:2] if not isinstance(a, Value)]
    fits = bool(constants) and all((np.abs(c) < _EXACT).all() for c in constants)
    if len(floats) < len(held) and (floats or not fits):
        raise NotExpressible("a comparison of integers with others than constants that f32 holds")
    dtype = max(floats, key=_WIDTH.__getitem__, default="f32")
    if len({*floats}) > 1:
        dtype = "f32"
    operands = [r.tensor(a, dtype) for a in args[:2]]
    r.build.check_comparable(*operands)
    return operands


def _negated(build: GraphBuilder, truth: Value) -> Value:
    return build.emit("sub", build.constant(1.0, truth.dtype, ()), truth)


def _larger(build: GraphBuilder, a: Value, b: Value) -> Value:
    return build.emit("step", build.emit("sub", a, b))


_KINDS: dict[str, Callable[[GraphBuilder, Value, Value], Value]] = {
    "gt": _larger,
    "lt": lambda build, a, b: _larger(build, b, a),
    "le": lambda build, a, b: _negated(build, _larger(build, a, b)),
    "ge": lambda build, a, b: _negated(build, _larger(build, b, a)),
    "ne": lambda build, a, b: build.emit("max", _larger(build, a, b), _larger(build, b, a)),
    "eq": lambda build, a, b: _negated(build, build.emit("max", _larger(build, a, b), _larger(build, b, a))),
}


def _is_whole(r: TorchReader, held: Any) -> bool:
    """Whether all its numbers are integers."""
    if isinstance(held, Value):
        return held.dtype not in COMPUTE_DTYPES and held not in r.truths
    return bool(np.all(np.asarray(held) == np.rint(np.asarray(held))))


def _same_integers(build: GraphBuilder, a: Value, b: Value) -> Value:
    """1 where two integers are equal: where the square of their difference is below 1."""
    square = build.emit("square", build.emit("sub", a, b))
    return build.emit("step", build.emit("sub", build.constant(1.0, a.dtype, ()), square))


def _comparison(kind: str) -> Handler:
    def handler(r: TorchReader, args: Args) -> Value:
        left, right = _operands(r, args)
        if left is right:
            raise NotExpressible("a number compared with itself, to find NaN")
        whole = kind in ("eq", "ne") and all(_is_whole(r, a) for a in args[:2])
        made = (_same_integers if whole else _KINDS[kind])(r.build, left, right)
        if whole and kind == "ne":
            made = _negated(r.build, made)
        r.comparisons[made] = (kind, args[0], args[1])
        return made

    return handler


for _kind in _KINDS:
    handles(f"{_kind}.Tensor", f"{_kind}.Scalar")(_comparison(_kind))


def truth(r: TorchReader, held: Any, dtype: str = "f32") -> Value:
    """A truth value, or whether a number is not zero."""
    if isinstance(held, Value) and held.dtype != "i1" and held not in r.truths:
        return r.build.cast(_KINDS["ne"](r.build, *_operands(r, [held, 0])), dtype)
    if not isinstance(held, Value):
        held = np.asarray(held) != 0
        return r.build.constant(held.astype(np.float64), dtype)
    return r.build.cast(held if held in r.truths else r.as_float(held), dtype)


@handles("any.dim", "any.dims", "any")
def _any(r: TorchReader, args: Args) -> Value:
    """The largest of zeros and ones: (x, dim or none, keepdim)"""
    return _joined("max", truth(r, args[0]), r, args)


@handles("all.dim", "all.dims", "all")
def _all(r: TorchReader, args: Args) -> Value:
    """The smallest of zeros and ones."""
    return _joined("min", truth(r, args[0]), r, args)


def _joined(kind: str, x: Value, r: TorchReader, args: Args) -> Value:
    dims = args[1] if len(args) > 1 and args[1] is not None else list(range(len(x.shape)))
    listed = [dims] if isinstance(dims, int) else dims
    return r.build.reduce(kind, x, [dim_of(x, d) for d in listed], len(args) > 2 and args[2] is True)


@handles("sign", "sgn")
def _sign(r: TorchReader, args: Args) -> Value:
    x = r.tensor(args[0], r.element)
    r.build.check_comparable(x)
    return r.build.emit("sub", r.build.emit("step", x), r.build.emit("step", r.build.emit("neg", x)))


@handles("threshold")
def _threshold(r: TorchReader, args: Args) -> Value:
    x = r.tensor(args[0], r.element)
    return r.build.emit("select", _above(r, x, args[1]), x, other=float(args[2]))


@handles("threshold_backward")
def _threshold_backward(r: TorchReader, args: Args) -> Value:
    x = r.tensor(args[1], r.element)
    return r.build.emit("select", _above(r, x, args[2]), r.tensor(args[0], r.element), other=0.0)


def _above(r: TorchReader, x: Value, bound: float) -> Value:
    """What is positive where x > bound."""
    number = r.tensor(bound, x.dtype)
    r.build.check_comparable(x, number)
    return r.build.emit("sub", x, number) if bound else x


@handles("logical_not", "bitwise_not")
def _not(r: TorchReader, args: Args) -> Value:
    _require_truths(r, args)
    return _negated(r.build, truth(r, args[0]))


@handles("logical_and", "bitwise_and.Tensor", "__and__.Tensor", "logical_and_")
def _and(r: TorchReader, args: Args) -> Value:
    _require_truths(r, args)
    return r.build.emit("mul", truth(r, args[0]), truth(r, args[1]))


@handles("logical_or", "bitwise_or.Tensor", "__or__.Tensor")
def _or(r: TorchReader, args: Args) -> Value:
    _require_truths(r, args)
    return r.build.emit("max", truth(r, args[0]), truth(r, args[1]))


@handles("logical_xor", "bitwise_xor.Tensor", "__xor__.Tensor")
def _xor(r: TorchReader, args: Args) -> Value:
    _require_truths(r, args)
    return r.build.emit("square", r.build.emit("sub", truth(r, args[0]), truth(r, args[1])))


def _require_truths(r: TorchReader, args: Args) -> None:
    if r.types[0].dtype != "i1":
        raise NotExpressible("an operation on the bits of integers")


@handles("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(r: TorchReader, args: Args) -> Value:
    mask, x, y = args
    values = r.tensor(x, r.element), r.tensor(y, r.element)
    shape = broadcast_shapes([r.shape_of(a) for a in args])
    if not isinstance(mask, Value):
        return r.build.where_constant(np.asarray(mask.numpy(), np.bool_), *values, shape)
    if (larger := _extremum(r, mask, *values)) is not None:
        return larger
    return r.build.broadcast(r.build.where(truth(r, mask, r.element), *values), shape)


def _extremum(r: TorchReader, mask: Value, first: Value, second: Value) -> Value | None:
    """where(a > b, a, b) -> max(a, b), and its variants; a number that equals the bound may be either."""
    if mask not in r.comparisons:
        return None
    kind, *sides = r.comparisons[mask]
    swapped = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
    if kind not in swapped or any(isinstance(s, Value) and s.dtype != r.element for s in sides):
        return None
    left, right = (r.tensor(s, r.element) for s in sides)
    for order, a, b in ((kind, left, right), (swapped[kind], right, left)):
        if first is a and second is b:
            return r.build.emit("max" if order[0] == "g" else "min", a, b)
    return None


@handles("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(r: TorchReader, args: Args) -> Value:
    x, mask, number = args
    return _where(r, [mask, number, x])
