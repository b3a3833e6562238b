"""Pointers, descriptors, loads and stores of a batch; each access is checked by the buffer (`memory`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from superopt.errors import IllegalProgram
from superopt.verify.domains import Array, Shape
from superopt.verify.infinities import Number
from superopt.verify.ttir.batch import Batch
from superopt.verify.ttir.descriptors import boxed, described
from superopt.verify.ttir.parser import Operation
from superopt.verify.ttir.values import Descriptor, Held, Pointer, Whole, integers, number

_BYTES = {"f16": 2, "bf16": 2, "f32": 4}
_WHOLE = frozenset({"i8", "i16", "i32", "i64"})


def _addptr(batch: Batch, op: Operation) -> list[Held]:
    pointer, offset = (batch.env[v] for v in op.operands)
    assert isinstance(pointer, Pointer)
    return [Pointer(pointer.buffer, pointer.offsets + integers(offset))]


def _access(batch: Batch, op: Operation, mask: int | None) -> tuple[Pointer, Shape, Array, Array]:
    """Pointer, full shape, which lanes are active (in the common shape of pointer and mask), instances."""
    pointer = batch.env[op.operands[0]]
    assert isinstance(pointer, Pointer)
    shape = (len(batch.programs), *op.types[0].shape)
    rank = len(shape) - 1
    lanes = batch.active.reshape(-1, *(1,) * rank)
    if mask is not None:
        lanes = lanes & integers(batch.env[mask]).astype(np.bool_)
    common = np.broadcast_shapes(pointer.offsets.shape, lanes.shape)
    instances = np.broadcast_to(batch.programs.reshape(-1, *(1,) * rank), common)
    return pointer, shape, np.broadcast_to(lanes, common), instances


def _load(batch: Batch, op: Operation) -> list[Held]:
    mask = op.operands[1] if len(op.operands) > 1 else None
    element = op.types[0].element
    if element not in _BYTES and element not in _WHOLE:
        raise batch.unsupported(f"a load of {element}")
    pointer, _, lanes, instances = _access(batch, op, mask)
    other = batch.env[op.operands[2]] if len(op.operands) > 2 else None
    if element in _BYTES:
        return [_read(batch, pointer, lanes, instances, None if other is None else number(other))]
    truth = pointer.buffer.dtype == "i1"
    fill: Number | None = None
    if other is not None:
        least = integers(other)
        if least.size != 1:
            raise batch.unsupported("a load of integers with several numbers in place of those left out")
        fill = batch.numbers.constant(float(least.reshape(-1)[0]), least.ndim)
        truth = truth and int(least.reshape(-1)[0]) in (0, 1)
    return [Whole(_read(batch, pointer, lanes, instances, fill), element, truth)]


def _bitcast(batch: Batch, op: Operation) -> list[Held]:
    """Truth values are bytes in memory."""
    pointer, (first, last) = batch.env[op.operands[0]], op.types
    if not isinstance(pointer, Pointer) or (first.element, last.element) != ("i1", "i8") or not last.pointer:
        raise batch.unsupported(f"a bitcast of {first.element} to {last.element}")
    return [pointer]


def _read(batch: Batch, pointer: Pointer, lanes: Array, instances: Array, other: Number | None) -> Number:
    """The memory contents in the marked `lanes`; `other`, or unknowns, elsewhere."""
    buffer = pointer.buffer
    offsets = np.broadcast_to(pointer.offsets, lanes.shape)
    batch.told(lanes, buffer, offsets)
    whole = bool(lanes.all())
    used, by = (offsets.reshape(-1), instances.reshape(-1)) if whole else (offsets[lanes], instances[lanes])
    buffer.load(used, by, batch.epoch, batch.where)
    if not lanes.any() or buffer.contents is None:
        read = batch.numbers.unknown(lanes.shape)
    else:
        places = offsets if whole else np.where(lanes, offsets, 0)
        read = batch.opened(batch.domain.move(lambda x: x[places], buffer.contents))
    if whole:
        return read
    return batch.numbers.select(lanes, read, other or batch.numbers.unknown(lanes.shape))


def _make_descriptor(batch: Batch, op: Operation) -> list[Held]:
    base, *numbers = (batch.env[v] for v in op.operands)
    assert isinstance(base, Pointer)
    return [described(op, base, numbers, _BYTES.get(base.buffer.dtype), batch.where)]


def _descriptor_load(batch: Batch, op: Operation) -> list[Held]:
    """The box at some coordinates, zero past the tensor's edges."""
    first, *at = (batch.env[v] for v in op.operands)
    assert isinstance(first, Descriptor)
    pointer, lanes = boxed(op, first, at, batch.active, batch.compared, batch.where)
    rank = len(first.box)
    instances = np.broadcast_to(batch.programs.reshape(-1, *(1,) * rank), lanes.shape)
    return [_read(batch, pointer, lanes, instances, batch.numbers.constant(0.0, rank + 1))]


def _store(batch: Batch, op: Operation) -> list[Held]:
    _, stored, *mask = op.operands
    pointer, shape, lanes, instances = _access(batch, op, mask[0] if mask else None)
    value = number(batch.env[stored])
    lanes = np.broadcast_to(lanes, shape)
    if value.undefined is not None and (np.broadcast_to(value.undefined, shape) & lanes).any():
        raise IllegalProgram(f"{batch.where}: expected a number to be stored, got one that is undefined")
    batch.told(lanes, pointer.buffer, pointer.offsets)
    offsets = np.broadcast_to(pointer.offsets, shape)[lanes]
    numbers = batch.numbers.move(lambda x: np.broadcast_to(x, shape)[lanes], value)
    values = batch.closed(numbers)
    pointer.buffer.store(
        offsets, values, np.broadcast_to(instances, shape)[lanes], batch.epoch, batch.where, batch.domain
    )
    return []


ACCESSES: Mapping[str, Callable[[Batch, Operation], list[Held]]] = {
    "tt.addptr": _addptr,
    "tt.load": _load,
    "tt.bitcast": _bitcast,
    "tt.make_tensor_descriptor": _make_descriptor,
    "tt.descriptor_load": _descriptor_load,
    "tt.store": _store,
}
"""The function that runs each such operation."""
