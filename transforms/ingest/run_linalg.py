"""Executing an opaque linalg operation from its source, with numpy.

A structured operation is evaluated as linalg defines it: at every point of the iteration space, with the
reduced dimensions one after the other and all others at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from superopt.dialects.mlir import binding, ir
from superopt.errors import UnsupportedProgram
from superopt.transforms.ingest.builder import NotExpressible
from superopt.transforms.ingest.held import Array
from superopt.transforms.ingest.interpret import scalar_operation, to_dtype
from superopt.transforms.ingest.tensor_ops import dense_array, static_numbers


@lru_cache(maxsize=16)
def _parsed(source: str) -> Any:
    return ir.Module.parse(source, ir.Context())


def run_source(node: Any, arrays: Sequence[Array]) -> list[Array]:
    """The results of an `extern` node with a `source`, as numbers of the results' types.

    Raises UnsupportedProgram where the source contains an operation that is not implemented here.
    """
    target = node.attrs["target"]
    try:
        function = _parsed(str(node.attrs["source"])).body.operations[0]
    except ir.MLIRError:
        what = f"'{target}' cannot be executed: its source does not parse"
        raise UnsupportedProgram(what, node.location) from None
    block = function.regions[0].blocks[0]
    env: dict[Any, Array] = {
        a: np.asarray(x, np.float64 if np.issubdtype(x.dtype, np.floating) else None)
        for a, x in zip(block.arguments, arrays, strict=True)
    }
    returned: list[Array] = []
    try:
        for op in block.operations:
            if op.operation.name == "func.return":
                returned = [env[v] for v in op.operation.operands]
            else:
                env.update(zip(op.operation.results, _run(op.operation, env), strict=True))
    except NotExpressible as reason:
        raise UnsupportedProgram(f"'{target}' cannot be executed: {reason}", node.location) from None
    return [to_dtype(a, r.dtype) for a, r in zip(returned, node.results, strict=True)]


def _run(operation: Any, env: Mapping[Any, Array]) -> list[Array]:
    name = operation.name
    operands = [env.get(v) for v in operation.operands]
    result = operation.results[0].type
    if name == "arith.constant":
        attribute = operation.attributes["value"]
        if not hasattr(result, "element_type"):
            return [to_dtype(np.asarray(attribute.value), str(result))]
        return [
            to_dtype(dense_array(attribute, result.shape, str(result.element_type)), str(result.element_type))
        ]
    if name == "tensor.empty":
        return [to_dtype(np.zeros(result.shape), str(result.element_type))]
    if name == "tensor.pad":
        return [_padded(operation, env)]
    if name in ("tensor.expand_shape", "tensor.collapse_shape"):
        return [env[operation.operands[0]].reshape(tuple(result.shape))]
    if name == "tensor.extract_slice":
        return [env[operation.operands[0]][_cut(operation)].reshape(tuple(result.shape))]
    if name == "tensor.insert_slice":
        return [_inserted(operation, operands[0], operands[1])]
    if name.startswith("linalg.") and len(operation.regions) == 1:
        return _structured(operation, env)
    if name.split(".")[0] in ("arith", "math"):
        element = str(getattr(result, "element_type", result))
        return [to_dtype(scalar_operation(operation, [o for o in operands if o is not None]), element)]
    raise NotExpressible(f"'{name}' lacks an evaluation in numpy")


def _padded(operation: Any, env: Mapping[Any, Array]) -> Array:
    source = env[operation.operands[0]]
    yielded = list(operation.regions[0].blocks[0].operations)[-1].operation.operands[0]
    number = env[yielded] if yielded in env else np.asarray(yielded.owner.attributes["value"].value)
    amounts = list(zip(static_numbers(operation, "low"), static_numbers(operation, "high"), strict=True))
    return np.pad(source, amounts, constant_values=number.item())


def _cut(operation: Any) -> tuple[slice, ...]:
    offsets, sizes, strides = (static_numbers(operation, n) for n in ("offsets", "sizes", "strides"))
    return tuple(slice(o, o + n * s, s) for o, n, s in zip(offsets, sizes, strides, strict=True))


def _inserted(operation: Any, source: Array | None, target: Array | None) -> Array:
    assert source is not None
    out = np.array(target)
    out[_cut(operation)] = source.reshape(static_numbers(operation, "sizes"))
    return out


def _index(expression: Any, dims: Sequence[Array]) -> Array:
    """The value of an affine expression at every point."""
    kind = type(expression).__name__
    if kind == "AffineDimExpr":
        return np.asarray(dims[int(expression.position)])
    if kind == "AffineConstantExpr":
        return np.asarray(expression.value)
    left, right = _index(expression.lhs, dims), _index(expression.rhs, dims)
    combine: dict[str, Callable[..., Any]] = {
        "AffineAddExpr": np.add, "AffineMulExpr": np.multiply, "AffineModExpr": np.mod,
        "AffineFloorDivExpr": np.floor_divide, "AffineCeilDivExpr": _ceil_divide,
    }  # fmt: skip
    return np.asarray(combine[kind](left, right))


def _ceil_divide(a: Array, b: Array) -> Array:
    return -(-a // b)


def _extents(maps: Sequence[Any], arrays: Sequence[Array]) -> list[int]:
    extents = [0] * maps[0].n_dims
    for map, array in zip(maps, arrays, strict=True):
        for expression, extent in zip(map.results, array.shape, strict=True):
            if type(expression).__name__ == "AffineDimExpr":
                extents[expression.position] = extent
    if 0 in extents:
        raise NotExpressible("an iteration dimension without an operand axis of its own")
    return extents


def _structured(operation: Any, env: Mapping[Any, Array]) -> list[Array]:
    maps: list[Any] = list(binding("dialects.linalg").get_indexing_maps(operation) or ())
    maps = [getattr(m, "value", m) for m in maps]
    if not maps:
        raise NotExpressible(f"'{operation.name}' lacks indexing maps")
    block = operation.regions[0].blocks[0]
    n_out = len(operation.results)
    arrays = [env[v] for v in operation.operands]
    outs = [np.array(a) for a in arrays[-n_out:]]
    extents = _extents(maps, arrays)
    parallel = {e.position for m in maps[-n_out:] for e in m.results if type(e).__name__ == "AffineDimExpr"}
    loops = [d for d in range(len(extents)) if d not in parallel]
    grid = [
        np.arange(e).reshape([e if i == d else 1 for i in range(len(extents))]) for d, e in enumerate(extents)
    ]
    for point in itertools.product(*(range(extents[d]) for d in loops)):
        dims = [np.asarray(point[loops.index(d)]) if d in loops else g for d, g in enumerate(grid)]
        where = [tuple(_index(e, dims) for e in m.results) for m in maps]
        known: dict[Any, Array] = {}
        for argument, array, at in zip(block.arguments, [*arrays[:-n_out], *outs], where, strict=True):
            known[argument] = array[at] if at else array
        space = [1 if d in loops else e for d, e in enumerate(extents)]
        for out, at, value in zip(outs, where[-n_out:], _body(block, known, dims, env), strict=True):
            spread = [np.broadcast_to(i, space) for i in at]
            out[tuple(spread)] = np.broadcast_to(value, space) if spread else value.reshape(())
    return outs


def _body(
    block: Any, known: dict[Any, Array], dims: Sequence[Array], env: Mapping[Any, Array]
) -> list[Array]:
    """What the body yields at the points `dims`."""
    for op in block.operations:
        operation = op.operation
        if not len(operation.results) and operation.name != "linalg.yield":  # an assertion on an index
            continue
        args = [known[v] if v in known else env[v] for v in operation.operands if v in known or v in env]
        if operation.name == "linalg.yield":
            return args
        if operation.name == "linalg.index":
            made = dims[int(operation.attributes["dim"].value)]
        elif operation.name == "tensor.extract":
            made = args[0][tuple(args[1:])] if len(args) > 1 else args[0]
        elif operation.name == "arith.constant":
            made = np.asarray(operation.attributes["value"].value)
        else:
            made = scalar_operation(operation, args)
        known[operation.results[0]] = made
    raise NotExpressible("a body without a yield")
