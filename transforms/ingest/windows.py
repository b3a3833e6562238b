"""Structured operations of linalg that read windows: convolutions and pooling in any layout, read off their maps.

An operand is read at `stride * position + dilation * offset` along each spatial dimension. What its other
dimensions are follows from where else they occur: in the other operand, the result, both, or neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from superopt.program import Value
from superopt.transforms.ingest.builder import GraphBuilder, NotExpressible

if TYPE_CHECKING:
    from superopt.transforms.ingest.linalg_reader import LinalgReader

Terms: TypeAlias = "tuple[dict[int, int], int]"


def linear(expression: Any) -> Terms:
    """The factor of each dimension in an affine expression, and its constant."""
    kind = type(expression).__name__
    if kind == "AffineDimExpr":
        return {expression.position: 1}, 0
    if kind == "AffineConstantExpr":
        return {}, int(expression.value)
    if kind in ("AffineAddExpr", "AffineMulExpr"):
        (left, a), (right, b) = linear(expression.lhs), linear(expression.rhs)
        if kind == "AffineAddExpr":
            return {d: left.get(d, 0) + right.get(d, 0) for d in [*left, *right]}, a + b
        if not left or not right:
            factor, terms = (a, right) if not left else (b, left)
            return {d: k * factor for d, k in terms.items()}, a * b
    raise NotExpressible(f"an operand is read at {expression}")


def reads_windows(maps: Sequence[Any]) -> bool:
    """Whether an operand is read at a sum of several dimensions."""
    try:
        return any(len(linear(e)[0]) > 1 for m in maps for e in m.results)
    except NotExpressible:
        return False


def read_windows(
    reader: LinalgReader, operation: Any, maps: Sequence[Any], extents: Sequence[int], kind: str, term: Any
) -> Value:
    """The sum or maximum, from its neutral element, of what `term` computes at each point of the windows."""
    block = operation.regions[0].blocks[0]
    arguments = list(block.arguments)
    names = factors(term)
    numbers = [arguments.index(v) for v in names if v in arguments]
    if len(numbers) != len(names) or len(names) > 2 or (kind != "sum" and len(names) > 1) or kind == "min":
        raise NotExpressible("windows of which anything but a product is summed")
    element = reader.result_type(operation).dtype
    read = {n: [linear(e) for e in maps[n].results] for n in numbers}
    result = [d for terms, _ in map(linear, maps[-1].results) for d in terms]
    windowed = [n for n in numbers if any(len(t) > 1 for t, _ in read[n])]
    if len(windowed) != 1 or any(c for m in read.values() for _, c in m):
        raise NotExpressible("windows of more than one operand, or from an offset on")
    (x,) = windowed
    if len(numbers) == 2 and kind == "sum":
        others = {d for n in numbers if n != x for t, _ in read[n] for d in t}
        if any(len(others.intersection(t, result)) == 1 for t, _ in read[x] if len(t) > 1):
            return _band_product(reader, operation, read, extents, result, x)
    spatial = [i for i, (t, _) in enumerate(read[x]) if len(t) > 1]
    places = [_window(read[x][i][0], result) for i in spatial]
    outside = 0.0 if kind == "sum" else -math.inf
    value, low, _ = _peeled(reader.build, reader.value(operation.operands[x]), spatial, outside)
    high = (0,) * len(spatial)
    for i, (o, stride, k, dilation), before in zip(range(len(spatial)), places, low, strict=True):
        # What is read may end before the pads, or before the operand.
        end = (extents[o] - 1) * stride + dilation * (extents[k] - 1) + 1 - before
        high = (*high[:i], max(end - value.shape[spatial[i]], 0), *high[i + 1 :])
        if end < value.shape[spatial[i]]:
            value = reader.build.slice(value, spatial[i], 0, end)
    shape = {
        "strides": tuple(s for _, s, _, _ in places),
        "dilations": tuple(s for _, _, _, s in places),
        "low": low,
        "high": high,
    }
    positions, taps = [o for o, _, _, _ in places], [k for _, _, k, _ in places]
    own = {d: i for i, (t, _) in enumerate(read[x]) if len(t) == 1 for d in t}
    build, value = reader.build, reader.build.cast(value, element)
    if len(numbers) == 1:
        if set(own) | set(positions) != set(result):
            raise NotExpressible("pooling that joins channels")
        batch, channels = _two([d for d in result if d in own])
        source = _laid_out(build, value, own, [batch, channels], spatial)
        op = "pool_sum" if kind == "sum" else "pool_max"
        made = build.emit(op, source, **shape, sizes=tuple(extents[k] for k in taps))
        return _back(build, made, [*batch, *channels, *positions], extents, result)
    (w,) = [n for n in numbers if n != x]
    if any(len(t) != 1 for t, _ in read[w]):
        raise NotExpressible("a weight that is read along a diagonal")
    weight = {d: i for i, (t, _) in enumerate(read[w]) for d in t}
    batch = [d for d in result if d in own and d not in weight]
    groups = [d for d in result if d in own and d in weight]
    columns = [d for d in result if d not in own and d in weight]
    depth = [d for d in own if d in weight and d not in result]
    if {*batch, *groups, *depth} != set(own) or {*groups, *columns, *depth, *taps} != set(weight):
        raise NotExpressible("windows that sum over a dimension of one operand alone")
    source = _laid_out(build, value, own, [batch, [*groups, *depth]], spatial)
    kernel = build.cast(reader.value(operation.operands[w]), element)
    kernel = _laid_out(build, kernel, weight, [[*groups, *columns], depth], [weight[k] for k in taps])
    made = build.emit("conv", source, kernel, **shape, groups=math.prod(extents[d] for d in groups))
    return _back(build, made, [*batch, *groups, *columns, *positions], extents, result)


def _band_product(
    reader: LinalgReader,
    operation: Any,
    read: Mapping[int, Sequence[Terms]],
    extents: Sequence[int],
    result: Sequence[int],
    x: int,
) -> Value:
    """A product with one operand read at rows `m + dilation * w`, where the other operand has the rows m as well.

    The places w are dimensions of the result (`g2bmm`), or summed as dimensions of the other operand (`gbmm`).
    """
    (a,) = [n for n in read if n != x]
    rows = {d: i for i, (t, _) in enumerate(read[a]) for d in t}
    at, *more = [i for i, (t, _) in enumerate(read[x]) if len(t) > 1]
    own = {d: i for i, (t, _) in enumerate(read[x]) if len(t) == 1 for d in t}
    terms = read[x][at][0]
    batch = [d for d in result if d in own and d in rows]
    (m, *second), (w, *third) = (
        [d for d in terms if (d in rows and d in result) is whole] for whole in (True, False)
    )
    if more or second or third or len(rows) != len(read[a]) or terms[m] != 1 or terms[w] < 1:
        raise NotExpressible("windows that are not a row and its places in a band")
    columns = [d for d in own if d not in batch]
    last = [w] if w in rows else columns
    if {*batch, m, *last} != set(rows) or (w in rows) != set(columns).issubset(result):
        raise NotExpressible("a band product that sums over more, or less, than one product")
    build, element = reader.build, reader.result_type(operation).dtype
    value, (low,), _ = _peeled(build, reader.value(operation.operands[x]), [at], 0.0)
    left = build.cast(reader.value(operation.operands[a]), element)
    left = _laid_out(build, left, rows, [batch, [m], last], [])
    right = _laid_out(build, build.cast(value, element), {**own, m: at}, [batch, [m], columns], [])
    attrs = {"dilation": terms[w], "low": low}
    if w in rows:
        made = build.emit("gbmm", left, right, **attrs)
        return _back(build, made, [*batch, m, *columns], extents, result)
    made = build.emit("g2bmm", left, right, width=extents[w], **attrs)
    return _back(build, made, [*batch, m, w], extents, result)


def factors(term: Any) -> list[Any]:
    """The factors of a product, or what is not one; conversions to wider numbers do not count."""
    owner = term.owner
    name = getattr(owner, "name", "")
    if name == "arith.mulf":
        return [f for v in owner.operands for f in factors(v)]
    return factors(owner.operands[0]) if name == "arith.extf" else [term]


def _window(terms: Mapping[int, int], result: Sequence[int]) -> tuple[int, int, int, int]:
    """The position and its stride, the offset and its dilation."""
    outer = [d for d in terms if d in result]
    inner = [d for d in terms if d not in result]
    if len(outer) != 1 or len(inner) != 1 or min(terms.values()) < 1:
        raise NotExpressible("windows that are not a position and an offset")
    return outer[0], terms[outer[0]], inner[0], terms[inner[0]]


def _two(dims: list[int]) -> tuple[list[int], list[int]]:
    """The batch and the channels: the first dimension, and the others."""
    return dims[:1], dims[1:]


def _peeled(
    build: GraphBuilder, value: Value, dims: Sequence[int], outside: float
) -> tuple[Value, tuple[int, ...], tuple[int, ...]]:
    """`value` without constants `outside` before and after it along `dims`, and how many of them there were."""
    low, high = dict.fromkeys(dims, 0), dict.fromkeys(dims, 0)
    last, rank = len(dims), len(value.shape)
    view = build.defined_by(value, "reshape")
    if view is not None and list(dims) == list(range(rank - last, rank)):
        (source,) = view.operands
        if source.shape[-last:] == value.shape[-last:]:  # the other dimensions alone are cut or joined
            behind = range(len(source.shape) - last, len(source.shape))
            inner, before, after = _peeled(build, source, behind, outside)
            return build.reshape(inner, [*value.shape[:-last], *inner.shape[-last:]]), before, after
    while (node := build.defined_by(value, "concat")) is not None and node.attrs["dim"] in low:
        dim = int(str(node.attrs["dim"]))
        parts = list(node.operands)
        inner = [i for i, v in enumerate(parts) if build.scalar(v) != outside]
        if len(inner) != 1:
            break
        low[dim] += sum(v.shape[dim] for v in parts[: inner[0]])
        high[dim] += sum(v.shape[dim] for v in parts[inner[0] + 1 :])
        value = parts[inner[0]]
    return value, tuple(low.values()), tuple(high.values())


def _laid_out(
    build: GraphBuilder,
    value: Value,
    own: Mapping[int, int],
    groups: Sequence[Sequence[int]],
    last: Sequence[int],
) -> Value:
    """`value` with one dimension for each of `groups` of iteration dimensions, then its dimensions `last`."""
    order = [own[d] for group in groups for d in group]
    shape = [math.prod(value.shape[own[d]] for d in group) for group in groups]
    turned = build.transpose(value, [*order, *last])
    return build.reshape(turned, [*shape, *(value.shape[i] for i in last)])


def _back(
    build: GraphBuilder, value: Value, dims: Sequence[int], extents: Sequence[int], result: Sequence[int]
) -> Value:
    """`value`, of which `dims` are the iteration dimensions in order, as the result has them."""
    apart = build.reshape(value, [extents[d] for d in dims])
    return build.transpose(apart, [dims.index(d) for d in result])
