"""Simplifications applied while a graph is built, one rule per function, keyed by the operator emitted.

The rules (`simplify_rules`) are equalities of real numbers. They also assume that a constant within one unit in
the last place of float32 is the irrational number it rounds (sqrt 2 in gelu), and that no comparison ever meets a
NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from superopt.program import Value
from superopt.transforms.ingest.builder import GraphBuilder
from superopt.transforms.ingest.defined import is_not_negative
from superopt.transforms.ingest.simplify_moves import MOVES
from superopt.transforms.ingest.simplify_rules import Attrs, Operands, Rules, ints, type_of

_COMPUTING = Rules()


def simplify(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """The value that a rule gives for `op`, or None."""
    made = MOVES.apply(build, op, operands, attrs)
    return made if made is not None else _COMPUTING.apply(build, op, operands, attrs)


def _close(value: float | None, target: float) -> bool:
    """Whether `value` is `target` up to the rounding of a float16 or wider constant."""
    return value is not None and abs(value - target) <= 2.0**-23 * abs(target)


@_COMPUTING.rule("cast")
def _cast(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """cast to x's dtype -> x; narrow -> f32 -> narrow -> x; a wide matmul of narrow operands -> a narrow one.

    A matmul of f16 operands accumulates in f32 and rounds once: cast(matmul(cast a, cast b)) is matmul(a, b).
    """
    (x,) = operands
    dtype = attrs["dtype"]
    if dtype == x.dtype:
        return x
    inner = build.defined_by(x, "cast")
    if inner is not None and inner.operands[0].dtype == dtype and x.dtype == "f32":
        return inner.operands[0]
    product = build.defined_by(x, "matmul")
    if product is not None and x.dtype == "f32":
        narrow = [build.defined_by(v, "cast") for v in product.operands]
        sources = [n.operands[0] for n in narrow if n is not None and n.operands[0].dtype == dtype]
        if len(sources) == 2:
            return build.emit("matmul", *sources, **product.attrs)
    return None


# --- operands that broadcast by themselves ----------------------------------------------------------------


@_COMPUTING.rule("add", "sub", "mul", "div", "max", "min", "matmul")
def _strip_broadcasts(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """add(x, broadcast(y)) -> add(x, y), and likewise for leading unit extents and splat constants.

    A tensor that is not broadcast at all keeps its unit extents, so that all operands of a chain have one rank.
    """
    whole = type_of(op, operands, attrs)
    if whole is None:
        return None
    for i, value in enumerate(operands):
        spread = (
            whole.elements
            if op != "matmul"
            else math.prod(whole.shape[:-2]) * value.shape[-1] * value.shape[-2]
        )
        if value.type.elements == spread and build.defined_by(value, "reshape") is not None:
            continue
        if (source := _unspread(build, value)) is None:
            continue
        narrowed = (*operands[:i], source, *operands[i + 1 :])
        if type_of(op, narrowed, attrs) == whole:
            return build.emit(op, *narrowed, **attrs)
    return None


def _unspread(build: GraphBuilder, value: Value) -> Value | None:
    """A smaller value that numpy broadcasts to `value`, given another operand of that shape."""
    if (node := build.defined_by(value, "broadcast")) is not None:
        return node.operands[0]
    if (number := build.scalar(value)) is not None and value.shape:
        return build.constant(number, value.dtype, ())
    node = build.defined_by(value, "reshape")
    if node is None or not value.shape or value.shape[0] != 1:
        return None
    lead = next((i for i, e in enumerate(value.shape) if e != 1), len(value.shape))
    return build.reshape(node.operands[0], value.shape[lead:])


@_COMPUTING.rule("matmul")
def _matmul(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """matmul(a, transpose(b)) -> matmul(a, b) {transpose_b}; likewise for a and through merged batches."""
    for i, name in enumerate(("transpose_a", "transpose_b")):
        if (source := _transposed_source(build, operands[i])) is not None:
            swapped = (*operands[:i], source, *operands[i + 1 :])
            return build.emit("matmul", *swapped, **{**attrs, name: not attrs.get(name, False)})
    return None


def _transposed_source(build: GraphBuilder, value: Value) -> Value | None:
    """`x` where `value` is x with its last two dimensions exchanged."""
    rank = len(value.shape)
    node = build.defined_by(value, "transpose")
    if node is not None and ints(node.attrs, "perm") == (*range(rank - 2), rank - 1, rank - 2):
        return node.operands[0]
    joined = build.defined_by(value, "reshape")
    inner = joined.operands[0] if joined is not None else value
    if inner is value or len(inner.shape) < 3 or inner.shape[-2:] != value.shape[-2:]:
        return None
    if build.defined_by(inner, "transpose") is None or (source := _transposed_source(build, inner)) is None:
        return None
    return build.reshape(source, (*value.shape[:-2], *source.shape[-2:]))


@_COMPUTING.rule("matmul")
def _flat_matmul(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """A matmul of batches of one matrix -> the product of the matrices, reshaped."""
    whole = type_of(op, operands, attrs)
    if whole is None or len(whole.shape) == 2 or math.prod(whole.shape[:-2]) != 1:
        return None
    flat: list[Value] = []
    for value in operands:
        node = build.defined_by(value, "reshape")
        if len(value.shape) > 2 and (node is None or len(node.operands[0].shape) != 2):
            return None
        flat.append(build.reshape(value, value.shape[-2:]))
    return build.reshape(build.emit("matmul", *flat, **attrs), whole.shape)


# --- arithmetic -------------------------------------------------------------------------------------------


@_COMPUTING.rule("add", "mul", "max", "min")
def _constant_second(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """op(constant, x) -> op(x, constant)"""
    a, b = operands
    return build.emit(op, b, a) if a in build.constants and b not in build.constants else None


@_COMPUTING.rule("add", "sub")
def _add_zero(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """x + 0 -> x, x - 0 -> x"""
    x, y = operands
    return _same_shape(build, x, y) if build.scalar(y) == 0 else None


@_COMPUTING.rule("sub")
def _sub_from_zero(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """0 - x -> -x"""
    zero, x = operands
    return build.emit("neg", x) if build.scalar(zero) == 0 and not zero.shape else None


@_COMPUTING.rule("mul", "div")
def _times_one(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """x * 1 -> x, x / 1 -> x"""
    x, y = operands
    return _same_shape(build, x, y) if build.scalar(y) == 1 else None


def _same_shape(build: GraphBuilder, x: Value, y: Value) -> Value | None:
    """`x`, broadcast to the common shape of `x` and `y`."""
    whole = type_of("add", (x, y), {})
    return None if whole is None else build.broadcast(x, whole.shape)


@_COMPUTING.rule("mul")
def _mul(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """x * x -> square(x), x * -1 -> -x, x * sigmoid(x) -> silu(x)"""
    a, b = operands
    if a is b:
        return build.emit("square", a)
    if build.scalar(b) == -1 and not b.shape:
        return build.emit("neg", a)
    for x, y in ((a, b), (b, a)):
        sigmoid = build.defined_by(y, "sigmoid")
        if sigmoid is not None and sigmoid.operands[0] is x:
            return build.emit("silu", x)
    return None


@_COMPUTING.rule("mul")
def _gelu(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """The factors x, 1/2 and 1 + erf(x / sqrt 2), in any order and nesting -> gelu(x)"""
    for one_plus in _factors(build, operands, None):
        if (x := _erf_argument(build, one_plus)) is None:
            continue
        rest = [f for f in _factors(build, operands, x) if f is not one_plus]
        if len(rest) == 2 and x in rest:
            (half,) = [f for f in rest if f is not x] or [x]
            if build.scalar(half) == 0.5 and not half.shape:
                return build.emit("gelu", x)
    return None


def _factors(
    build: GraphBuilder, operands: Sequence[Value], whole: Value | None, depth: int = 2
) -> list[Value]:
    """The factors of a product of products, to some depth; `whole` stays one factor."""
    out: list[Value] = []
    for value in operands:
        node = build.defined_by(value, "mul") if depth and value is not whole else None
        out.extend([value] if node is None else _factors(build, node.operands, whole, depth - 1))
    return out


def _erf_argument(build: GraphBuilder, value: Value) -> Value | None:
    """`x` where `value` is erf(x / sqrt 2) + 1."""
    plus = build.defined_by(value, "add")
    if plus is None or build.scalar(plus.operands[1]) != 1:
        return None
    erf = build.defined_by(plus.operands[0], "erf")
    if erf is None:
        return None
    for op, number in (("div", math.sqrt(2)), ("mul", math.sqrt(0.5))):
        scaled = build.defined_by(erf.operands[0], op)
        if scaled is not None and _close(build.scalar(scaled.operands[1]), number):
            return scaled.operands[0]
    return None


@_COMPUTING.rule("div")
def _div(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """1 / x -> reciprocal(x); sum / n -> mean; x / (1 + exp(-x)) -> silu(x)"""
    x, y = operands
    number = build.scalar(y)
    total = build.defined_by(x, "reduce_sum")
    if total is not None and number is not None and not y.shape:
        (source,) = total.operands
        dims = ints(total.attrs, "dims")
        if number == math.prod(source.shape[d] for d in dims):
            return build.emit("reduce_mean", source, **total.attrs)
    if build.scalar(x) == 1 and not x.shape:
        return build.emit("reciprocal", y)
    if _logistic_argument(build, y) is x:
        return build.emit("silu", x)
    return None


def _logistic_argument(build: GraphBuilder, value: Value) -> Value | None:
    """`x` where `value` is exp(-x) + 1."""
    plus = build.defined_by(value, "add")
    if plus is None or build.scalar(plus.operands[1]) != 1:
        return None
    power = build.defined_by(plus.operands[0], "exp")
    negative = build.defined_by(power.operands[0], "neg") if power is not None else None
    return negative.operands[0] if negative is not None else None


@_COMPUTING.rule("reciprocal")
def _reciprocal(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """1 / sqrt(x) -> rsqrt(x); 1 / (1 + exp(-x)) -> sigmoid(x)"""
    (x,) = operands
    if (root := build.defined_by(x, "sqrt")) is not None:
        return build.emit("rsqrt", root.operands[0])
    if (logistic := _logistic_argument(build, x)) is not None:
        return build.emit("sigmoid", logistic)
    return None


@_COMPUTING.rule("pow")
def _pow(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """x^1 -> x, x^2 -> square, x^(1/2) -> sqrt, x^(-1/2) -> rsqrt, x^-1 -> reciprocal"""
    (x,) = operands
    exponent = attrs["exponent"]
    if exponent == 1:
        return x
    named = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    assert isinstance(exponent, int | float)
    return build.emit(named[float(exponent)], x) if float(exponent) in named else None


# --- bounds -----------------------------------------------------------------------------------------------


@_COMPUTING.rule("max")
def _relu(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """max(x, 0) -> relu(x); max(x, -inf) -> x; max(min(x, high), low) -> clamp(x) for low <= high"""
    x, bound = operands
    low = build.scalar(bound)
    if low is None or bound.shape:
        return None
    if low == -math.inf:
        return x
    upper = build.defined_by(x, "min")
    high = build.scalar(upper.operands[1]) if upper is not None else None
    if upper is not None and high is not None and not upper.operands[1].shape and low <= high < math.inf:
        return build.emit("clamp", upper.operands[0], low=low, high=high)
    return build.emit("relu", x) if low == 0 else None


@_COMPUTING.rule("min")
def _clamp(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """min(max(x, low), high) -> clamp(x); min(relu(x), high) -> clamp(x, 0, high); min(x, inf) -> x"""
    x, bound = operands
    high = build.scalar(bound)
    if high is None or bound.shape:
        return None
    if high == math.inf:
        return x
    lower = build.defined_by(x, "max")
    if lower is not None and not lower.operands[1].shape:
        low = build.scalar(lower.operands[1])
        if low is not None:
            return build.emit("clamp", lower.operands[0], low=low, high=high)
    if (relu := build.defined_by(x, "relu")) is not None:
        return build.emit("clamp", relu.operands[0], low=0.0, high=high)
    return None


@_COMPUTING.rule("relu")
def _not_negative(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """relu(x) -> x, if x is nowhere negative: a norm in f16, kept above 1e-12, say, which f16 rounds to 0"""
    return operands[0] if is_not_negative(operands[0], build.node_of) else None


# --- selections -------------------------------------------------------------------------------------------

LOWEST = {"f16": -65504.0, "bf16": -float.fromhex("0x1.fep127"), "f32": -float.fromhex("0x1.fffffep127")}


@_COMPUTING.rule("select", "step")
def _by_sign(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """select(step(t), x) -> select(t, x); step(step(t)) -> step(t)"""
    truth, *rest = operands
    number = build.defined_by(truth, "cast")
    inner = build.defined_by(truth if number is None else number.operands[0], "step")
    if inner is None or inner.operands[0].dtype != truth.dtype:
        return None
    return build.emit(op, inner.operands[0], *rest, **attrs)


@_COMPUTING.rule("add")
def _hidden_sum(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """select(t, y; -inf) + x -> select(t, y + x; -inf)"""
    for hidden, x in (operands, operands[::-1]):
        node = build.defined_by(hidden, "select")
        if node is not None and node.attrs["other"] == -math.inf and x.dtype == hidden.dtype:
            t, y = node.operands
            return build.emit("select", t, build.emit("add", y, x), other=-math.inf)
    return None


@_COMPUTING.rule("exp")
def _hidden_exponential(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """exp(S - max S) for S = select(t, x; -inf) -> the same with the lowest finite number

    What is hidden underflows to zero either way; a row of which everything is hidden was undefined. Numbers that
    the program selects are finite then, as proofs need. Masks that are constant stay: what they hide is known.
    """
    difference = build.defined_by(operands[0], "sub")
    top = build.defined_by(difference.operands[1], "reduce_max") if difference is not None else None
    if difference is None or top is None or top.operands[0] is not difference.operands[0]:
        return None
    finite = _finite(build, difference.operands[0])
    if finite is difference.operands[0]:
        return None
    return build.emit("exp", build.emit("sub", finite, build.emit("reduce_max", finite, **top.attrs)))


@_COMPUTING.rule("mul")
def _hidden_weights(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """(e / sum e) t -> e / sum e, for e = exp(S - max S), S = x + (0 where t is 1, -inf where it is 0)

    If t, a constant, shows something in each row: what it hides is zero already.
    """
    for weights, shown in (operands, operands[::-1]):
        truth = build.elements(shown)
        quotient = build.defined_by(weights, "div")
        if truth is None or quotient is None or truth.size > weights.type.elements:
            continue
        numerator, denominator = quotient.operands
        e, total = build.defined_by(numerator, "exp"), build.defined_by(denominator, "reduce_sum")
        if e is None or total is None or total.operands != (numerator,):
            continue
        difference = build.defined_by(e.operands[0], "sub")
        top = build.defined_by(difference.operands[1], "reduce_max") if difference is not None else None
        if difference is None or top is None or top.operands[0] is not difference.operands[0]:
            continue
        added = build.defined_by(difference.operands[0], "add")
        biases = [] if added is None else [b for v in added.operands if (b := build.elements(v)) is not None]
        rank = len(weights.shape)
        shown_in_row = truth.reshape((1,) * (rank - truth.ndim) + truth.shape).any(ints(total.attrs, "dims"))
        hidden = np.where(truth == 1, 0.0, -math.inf)
        if len(biases) == 1 and np.isin(truth, (0, 1)).all() and shown_in_row.all():
            return weights if (biases[0] == hidden).all() else None
    return None


def _finite(build: GraphBuilder, x: Value) -> Value:
    """`x` with the lowest number for minus infinity under masks that are not constant."""
    node = build.defined_by(x, "select")
    if node is None or node.attrs["other"] != -math.inf:
        return x
    t, inner = node.operands
    lowest = -math.inf if _constant(build, t) else LOWEST[x.dtype]
    return build.emit("select", t, _finite(build, inner), other=lowest)


def _constant(build: GraphBuilder, x: Value) -> bool:
    """Whether a value depends on constants alone."""
    node = build.node_of(x)
    return x in build.constants or (node is not None and all(_constant(build, v) for v in node.operands))


@_COMPUTING.rule("sub")
def _twice_negated(build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
    """1 - (1 - x) -> x"""
    number, x = operands
    inner = build.defined_by(x, "sub")
    ones = inner is not None and build.scalar(number) == 1 and build.scalar(inner.operands[0]) == 1
    return inner.operands[1] if inner is not None and ones and x.shape == inner.operands[1].shape else None
