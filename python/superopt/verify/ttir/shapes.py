"""Constants, and operations that only arrange the elements of a value: extents of 1 stay so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from superopt.errors import IllegalProgram
from superopt.verify.domains import Array
from superopt.verify.ttir.batch import Batch
from superopt.verify.ttir.parser import Operation
from superopt.verify.ttir.values import Held, float_literal, number, wrapped


def _constant(batch: Batch, op: Operation) -> list[Held]:
    kind, literal = op.types[0], op.literal
    if literal.startswith("dense<") and literal.endswith(">"):
        literal = literal[6:-1]
    rank = 1 + len(kind.shape)
    try:
        if kind.floating:
            return [batch.numbers.constant(float_literal(literal, kind.element), rank)]
        number = {"true": 1, "false": 0}.get(literal)
        value = int(literal, 0) if number is None else number
    except ValueError:
        raise batch.unsupported(f"the constant {literal[:40]}") from None
    return [wrapped(np.full((1,) * rank, value, np.int64), kind)]


def _splat(batch: Batch, op: Operation) -> list[Held]:
    rank = len(op.result_type.shape)
    return [batch.moved(lambda x: x.reshape(x.shape[0], *(1,) * rank), op.operands[0])]


def _unsplat(batch: Batch, op: Operation) -> list[Held]:
    return [batch.moved(lambda x: x.reshape(x.shape[0]), op.operands[0])]


def _expand_dims(batch: Batch, op: Operation) -> list[Held]:
    axis = 1 + int(op.attrs["axis"].split(":")[0])
    return [batch.moved(lambda x: np.expand_dims(x, axis), op.operands[0])]


def _broadcast(batch: Batch, op: Operation) -> list[Held]:
    source, target = op.types[0].shape, op.result_type.shape
    if len(source) != len(target) or any(s not in (1, t) for s, t in zip(source, target, strict=True)):
        raise IllegalProgram(f"{batch.where}: expected shapes that broadcast, got {source} and {target}")
    return [batch.env[op.operands[0]]]  # values keep extents of 1


def _reshape(batch: Batch, op: Operation) -> list[Held]:
    if "allow_reorder" in op.words or "allow_reorder" in op.attrs:
        raise batch.unsupported("a reshape that may reorder elements")
    source, target = op.types[0].shape, op.result_type.shape

    def arrange(x: Array) -> Array:
        return np.broadcast_to(x, (x.shape[0], *source)).reshape(x.shape[0], *target)

    return [batch.moved(arrange, op.operands[0])]


def _transpose(batch: Batch, op: Operation) -> list[Held]:
    order = [int(i) for i in op.attrs["order"].partition(":")[2].rstrip(">").split(",")]
    return [batch.moved(lambda x: x.transpose(0, *(1 + i for i in order)), op.operands[0])]


def _join(batch: Batch, op: Operation) -> list[Held]:
    shape = op.types[0].shape
    a, b = (number(batch.env[v]) for v in op.operands)
    count = max(a.shape[0], b.shape[0])
    full = [batch.numbers.move(lambda x: np.broadcast_to(x, (count, *shape))[..., None], v) for v in (a, b)]
    return [batch.numbers.select(np.asarray([True, False]), full[0], full[1])]


def _split(batch: Batch, op: Operation) -> list[Held]:
    shape = op.types[0].shape

    def half(x: Array, i: int) -> Array:
        return np.broadcast_to(x, (x.shape[0], *shape))[..., i]

    return [batch.moved(lambda x, i=i: half(x, i), op.operands[0]) for i in (0, 1)]


SHAPES: Mapping[str, Callable[[Batch, Operation], list[Held]]] = {
    "arith.constant": _constant,
    "tt.splat": _splat,
    "tt.unsplat": _unsplat,
    "tt.expand_dims": _expand_dims,
    "tt.broadcast": _broadcast,
    "tt.reshape": _reshape,
    "tt.trans": _transpose,
    "tt.join": _join,
    "tt.split": _split,
}
"""The function that runs each such operation."""
