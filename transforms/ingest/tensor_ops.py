"""Operations of the tensor and arith dialects, and the linalg operations without a body, as kernel operators.

One function each; `OPERATIONS` maps names to them. They raise NotExpressible for what the operator table lacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from superopt.dialects.mlir import ir
from superopt.errors import UnsupportedProgram
from superopt.nests import MOST_SPATIAL
from superopt.program import COMPUTE_DTYPES, TensorType, Value
from superopt.transforms.ingest.builder import NotExpressible
from superopt.transforms.ingest.held import Array, Held, Piece, Unwritten
from superopt.transforms.ingest.interpret import NUMPY_DTYPES, scalar_operation, to_dtype

if TYPE_CHECKING:
    from superopt.transforms.ingest.linalg_reader import LinalgReader

Handler: TypeAlias = Callable[["LinalgReader", Any], Held]

_DYNAMIC = -(1 << 63)  # marks an operand in the static_* attributes of tensor operations
RESOURCE_LIMIT = 1 << 14
"""A `dense_resource` of more elements than this becomes an argument instead of a constant."""


def _empty(reader: LinalgReader, operation: Any) -> Held:
    type = reader.result_type(operation)
    return Unwritten(type.shape, type.dtype)


# --- constants --------------------------------------------------------------------------------------------


def _constant(reader: LinalgReader, operation: Any) -> Held:
    attribute = operation.attributes["value"]
    result = operation.results[0].type
    if not hasattr(result, "element_type"):
        return to_dtype(np.asarray(attribute.value), str(result))
    element, type = str(result.element_type), reader.result_type(operation)
    if type_name(attribute) == "resource":
        return _resource(reader, attribute, type, element)
    array = dense_array(attribute, type.shape, element)
    if type.dtype in COMPUTE_DTYPES:
        return reader.build.constant(array, type.dtype, type.shape)
    return to_dtype(array, element)


def type_name(attribute: Any) -> str:
    """ "resource" for `dense_resource` attributes, "dense" for others."""
    # This prints only the handle, never the data.
    return "resource" if str(attribute)[:15] == "dense_resource<" else "dense"


def dense_array(attribute: Any, shape: Sequence[int], element: str) -> Array:
    """The elements of a dense attribute, or a resource; a splat's are not copied."""
    if type_name(attribute) == "resource":
        return _resource_data(attribute, shape, element)
    if attribute.is_splat:
        return np.broadcast_to(np.asarray(attribute.get_splat_value().value), tuple(shape))
    if element == "bf16":
        raw = np.array([x for x in attribute], dtype=np.float64)  # noqa: C416 - the attribute is not a list
        return raw.reshape(tuple(shape))
    return np.array(attribute).reshape(tuple(shape))


def _resource(reader: LinalgReader, attribute: Any, type: TensorType, element: str) -> Held:
    """Small data becomes a constant; large data an argument named by the resource's key."""
    key = str(attribute).partition("<")[2].partition(">")[0]
    if type.elements <= RESOURCE_LIMIT:
        array = dense_array(attribute, type.shape, element)
        if type.dtype in COMPUTE_DTYPES:
            return reader.build.constant(array, type.dtype, type.shape)
        return to_dtype(array, element)
    if type.dtype not in COMPUTE_DTYPES:
        raise UnsupportedProgram(
            f"expected a dense_resource of f16, bf16 or f32, got '{key}' of {type}", reader.build.location
        )
    if key not in reader.resources:
        reader.build.diagnostics.remark(
            f"dense_resource '{key}' ({type}) is passed as argument {len(reader.build.inputs)}",
            reader.build.location,
        )
        name = re.sub(r"[^A-Za-z0-9_]", "_", key)
        reader.resources[key] = reader.build.add_input(name, type)
    return reader.resources[key]


def _resource_data(attribute: Any, shape: Sequence[int], element: str) -> Array:
    """The elements of a small resource.

    The bindings cannot access a resource's bytes, so a module that holds nothing else is printed to memory.
    """
    with attribute.context, ir.Location.unknown():
        holder = ir.Module.create()
        holder.operation.attributes["superopt.data"] = attribute
        text = holder.operation.get_asm(large_elements_limit=1, large_resource_limit=1 << 30)
    found = re.search(r': "0x([0-9A-Fa-f]+)"', text)
    if found is None:
        raise NotExpressible("a dense_resource without data")
    raw = bytes.fromhex(found.group(1))[4:]  # the first four bytes hold the alignment
    if element == "bf16":
        wide = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(tuple(shape))
    floats: dict[str, Any] = {"f16": np.float16, "f32": np.float32}
    return np.frombuffer(raw, floats.get(element) or NUMPY_DTYPES[element]).reshape(tuple(shape))


# --- shapes -----------------------------------------------------------------------------------------------


def _reshape(reader: LinalgReader, operation: Any) -> Held:
    shape = reader.result_type(operation).shape
    held = reader.held.get(operation.operands[0])
    if isinstance(held, np.ndarray):
        return held.reshape(shape)
    if isinstance(held, Unwritten) and not held.pieces:
        return Unwritten(shape, held.dtype)
    if isinstance(held, Value) and held.dtype == "i1":
        reader.true = reader.build.reshape(reader.truth(held), shape)
    return reader.build.reshape(reader.value(operation.operands[0]), shape)


def _same(reader: LinalgReader, operation: Any) -> Held:
    """`tensor.cast` between static types: nothing to do."""
    held = reader.held.get(operation.operands[0])
    return reader.value(operation.operands[0]) if held is None else held


_SEGMENTS = {"low": -2, "high": -1, "offsets": -3, "sizes": -2, "strides": -1}
"""Which group of an operation's operands has those numbers that are not in its attribute."""


def static_numbers(operation: Any, name: str) -> tuple[int, ...]:
    """The `low`, `offsets` or the like of an operation; raises NotExpressible where one is no constant."""
    counts = [int(n) for n in operation.attributes["operandSegmentSizes"]]
    start = sum(counts[: _SEGMENTS[name]])
    operands = iter(list(operation.operands)[start:])
    return tuple(
        _number(operation, next(operands), name) if int(n) == _DYNAMIC else int(n)
        for n in operation.attributes[f"static_{name}"]
    )


def _number(operation: Any, value: Any, name: str) -> int:
    made = value.owner
    if getattr(made, "name", "") != "arith.constant":  # a block has none
        raise NotExpressible(f"'{operation.name}' with {name} that are not constant")
    return int(made.attributes["value"].value)


def _window(operation: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return (
        static_numbers(operation, "offsets"),
        static_numbers(operation, "sizes"),
        static_numbers(operation, "strides"),
    )


def _extract_slice(reader: LinalgReader, operation: Any) -> Held:
    offsets, sizes, strides = _window(operation)
    shape = reader.result_type(operation).shape
    held = reader.held.get(operation.operands[0])
    if isinstance(held, np.ndarray):
        cut = tuple(slice(o, o + n * s, s) for o, n, s in zip(offsets, sizes, strides, strict=True))
        return held[cut].reshape(shape)
    if isinstance(held, Unwritten) and not held.pieces:
        return Unwritten(shape, held.dtype)
    source = reader.value(operation.operands[0])
    piece = reader.build.emit("slice", source, offsets=offsets, sizes=sizes, strides=strides)
    return reader.build.reshape(piece, shape)


def _insert_slice(reader: LinalgReader, operation: Any) -> Held:
    """insert_slice into written memory, or the one that completes unwritten memory, as concatenations."""
    source, target = operation.operands[0], operation.operands[1]
    offsets, sizes, strides = _window(operation)
    if any(s != 1 for s in strides):
        return _inserted_with_gaps(reader, operation)
    piece = reader.build.reshape(reader.value(source), sizes)
    held = reader.held.get(target)
    if isinstance(held, Unwritten):
        grown = Unwritten(held.shape, held.dtype, (*held.pieces, Piece(offsets, piece)))
        return _completed(reader, grown)
    return _overwritten(reader, reader.value(target), Piece(offsets, piece))


def _inserted_with_gaps(reader: LinalgReader, operation: Any) -> Held:
    """insert_slice with strides into zeros: a transposed convolution by 1 puts zeros between, pads around."""
    (source, target), (offsets, _, strides) = list(operation.operands)[:2], _window(operation)
    build, piece, zeros = reader.build, reader.value(source), reader.value(target)
    rank = len(piece.shape) - 2
    if len(zeros.shape) != rank + 2 or not 1 <= rank <= MOST_SPATIAL or strides[:2] != (1, 1):
        raise NotExpressible("'tensor.insert_slice' with gaps between channels")
    if build.scalar(zeros) != 0.0:
        raise NotExpressible("'tensor.insert_slice' with gaps that are not zeros")
    one = build.constant(1.0, piece.dtype, (piece.shape[1], 1, *(1,) * rank))
    none = (0,) * rank
    spread = build.emit(
        "conv_transpose", piece, one, strides=strides[2:], dilations=(1,) * rank, low=none, high=none, extra=none,
        groups=piece.shape[1],
    )  # fmt: skip
    after = [e - o - n for e, o, n in zip(zeros.shape, offsets, spread.shape, strict=True)]
    return _padded(reader, spread, offsets, after, 0.0)


def _completed(reader: LinalgReader, memory: Unwritten) -> Held:
    """The concatenation of the pieces if they tile the memory along one dimension, else the memory."""
    for dim, extent in enumerate(memory.shape):
        pieces = sorted(memory.pieces, key=lambda p: p.offsets[dim])
        ends = np.cumsum([0, *(p.value.shape[dim] for p in pieces)]).tolist()
        whole = all(
            p.value.shape[d] == memory.shape[d] for p in pieces for d in range(len(memory.shape)) if d != dim
        )
        if whole and ends[-1] == extent and [p.offsets[dim] for p in pieces] == ends[:-1]:
            return reader.build.emit("concat", *(p.value for p in pieces), dim=dim)
    return memory


def _overwritten(reader: LinalgReader, target: Value, piece: Piece) -> Value:
    """`target` with a block replaced: before, the block (in a slab of the target), after."""
    build = reader.build
    for dim, extent in enumerate(target.shape):
        start, size = piece.offsets[dim], piece.value.shape[dim]
        if size == extent:
            continue
        slab = build.slice(target, dim, start, size)
        parts = [_overwritten(reader, slab, piece)]  # the piece now spans `dim` of the slab, which is skipped
        if start > 0:
            parts.insert(0, build.slice(target, dim, 0, start))
        if start + size < extent:
            parts.append(build.slice(target, dim, start + size, extent - start - size))
        return build.emit("concat", *parts, dim=dim)
    return piece.value


def _pad(reader: LinalgReader, operation: Any) -> Held:
    """A constant padding: concatenations with constants."""
    low, high = static_numbers(operation, "low"), static_numbers(operation, "high")
    padding = list(operation.regions[0].blocks[0].operations)[-1].operation.operands[0]
    held = reader.held.get(padding)
    if isinstance(padding.owner, type(operation)) and held is None:
        held = _constant(reader, padding.owner) if padding.owner.name == "arith.constant" else None
    if not isinstance(held, np.ndarray):
        raise NotExpressible("'tensor.pad' with a value that is not constant")
    value = reader.value(operation.operands[0])
    if min(*low, *high, 0) < 0:
        raise NotExpressible("'tensor.pad' by a negative amount")
    return _padded(reader, value, low, high, float(held))


def _padded(
    reader: LinalgReader, value: Value, low: Sequence[int], high: Sequence[int], number: float
) -> Value:
    """`value` with constants before and after it along each dimension."""
    for dim, (before, after) in enumerate(zip(low, high, strict=True)):
        parts = [value]
        for size, at in ((before, 0), (after, len(parts) + 1)):
            if size:
                shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
                parts.insert(at, reader.build.constant(number, value.dtype, shape))
        value = reader.build.emit("concat", *parts, dim=dim)
    return value


def _concat(reader: LinalgReader, operation: Any) -> Held:
    dim = int(operation.attributes["dim"].value)
    return reader.build.emit("concat", *(reader.value(v) for v in operation.operands), dim=dim)


def _extract(reader: LinalgReader, operation: Any) -> Held:
    """One element at constant indices, as a tensor of rank 0."""
    source, *indices = operation.operands
    held = [reader.held.get(i) for i in indices]
    at = tuple(int(h) for h in held if isinstance(h, np.ndarray) and h.ndim == 0)
    if len(at) != len(indices):
        raise NotExpressible("'tensor.extract' at indices that are not constant")
    if any(i < 0 or i >= e for i, e in zip(at, source.type.shape, strict=True)):
        raise NotExpressible("'tensor.extract' out of bounds")
    tensor = reader.held.get(source)
    if isinstance(tensor, np.ndarray):
        return np.asarray(tensor[at])
    value = reader.value(source)
    ones = (1,) * len(at)
    return reader.build.reshape(reader.build.emit("slice", value, offsets=at, sizes=ones, strides=ones), ())


def _splat(reader: LinalgReader, operation: Any) -> Held:
    return reader.build.broadcast(reader.value(operation.operands[0]), reader.result_type(operation).shape)


def _dim(reader: LinalgReader, operation: Any) -> Held:
    index = reader.held.get(operation.operands[1])
    if not isinstance(index, np.ndarray):
        raise NotExpressible("'tensor.dim' of a dimension that is not constant")
    return np.asarray(operation.operands[0].type.shape[int(index)])


def _softmax(reader: LinalgReader, operation: Any) -> Held:
    """exp(x - max x) / sum exp(x - max x), as linalg defines it."""
    build, x = reader.build, reader.value(operation.operands[0])
    dim = (int(operation.attributes["dimension"].value),)
    e = build.emit("exp", build.emit("sub", x, build.reduce("max", x, dim, keepdims=True)))
    return build.emit("div", e, build.reduce("sum", e, dim, keepdims=True))


def _index_constant(reader: LinalgReader, operation: Any) -> Held:
    """A cast between integer types of a known value."""
    held = reader.held.get(operation.operands[0])
    if not isinstance(held, np.ndarray):
        raise NotExpressible(f"'{operation.name}' of something that is not constant")
    return scalar_operation(operation, [held])


OPERATIONS: dict[str, Handler] = {
    "arith.constant": _constant,
    "arith.index_cast": _index_constant,
    "tensor.empty": _empty,
    "tensor.cast": _same,
    "tensor.expand_shape": _reshape,
    "tensor.collapse_shape": _reshape,
    "tensor.reshape": _reshape,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
    "tensor.pad": _pad,
    "tensor.concat": _concat,
    "tensor.extract": _extract,
    "tensor.splat": _splat,
    "tensor.dim": _dim,
    "linalg.softmax": _softmax,
}
