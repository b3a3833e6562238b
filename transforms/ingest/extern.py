"""Opaque operations: what an `extern` node carries, and how it is executed.

From PyTorch, `target` is an overload ("aten.convolution.default") and `args` its arguments as JSON, with
`{"tensor": i}` for operand i. From linalg, `target` is the operation's name and `source` an MLIR function that
holds it; it is evaluated with numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from superopt.dialects.mlir import binding, func, ir
from superopt.program import KernelGraph, NodeKind
from superopt.transforms.ingest.held import Array
from superopt.transforms.ingest.run_linalg import run_source
from superopt.transforms.ingest.torch_dialect import run_aten
from superopt.transforms.ingest.torch_types import DTYPE_NAMES, held_as, torch_module


def targets(graph: KernelGraph) -> list[str]:
    """The operations that a graph keeps as they are, one for each node."""
    return [str(n.attrs["target"]) for n in graph.nodes if n.op == NodeKind.EXTERN]


def linalg_source(operation: Any, known: Callable[[Any], Array | None]) -> tuple[str, list[Any]]:
    """MLIR text of a function that holds only `operation`, and the outside values that are its arguments.

    Constants and empty tensors that the operation uses are copied into the function, as are the arrays that
    `known` gives for a value.
    """
    with operation.context, ir.Location.unknown():
        outside = list(dict.fromkeys(_outside_values(operation)))
        copied = {
            v: v.owner for v in outside if getattr(v.owner, "name", "") in ("arith.constant", "tensor.empty")
        }
        copied = {v: o for v, o in copied.items() if "dense_resource<" not in str(o.attributes)[:200]}
        arrays = {v: a for v in outside if v not in copied and (a := known(v)) is not None}
        captured = [v for v in outside if v not in copied and v not in arrays]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            kind = ir.FunctionType.get([v.type for v in captured], [r.type for r in operation.results])
            function = func.FuncOp("extern", kind)
        block = function.add_entry_block()
        inside: dict[Any, Any] = dict(zip(captured, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for value, owner in copied.items():
                inside[value] = owner.clone().results[0]
            for value, array in arrays.items():
                inside[value] = _array_constant(value.type, array)
            clone = operation.clone()
            _replace_operands(clone, inside)
            func.ReturnOp(list(clone.results))
        return str(module.operation.get_asm(enable_debug_info=False)), captured


def _array_constant(mlir_type: Any, array: Array) -> Any:
    arith = binding("dialects.arith")
    if hasattr(mlir_type, "element_type"):
        attribute = ir.DenseElementsAttr.get(np.ascontiguousarray(array), type=mlir_type)
        return arith.ConstantOp(mlir_type, attribute).result
    number = array.item()
    attribute = ir.FloatAttr if isinstance(number, float) else ir.IntegerAttr
    return arith.ConstantOp(mlir_type, attribute.get(mlir_type, number)).result


def _nested(operation: Any) -> list[Any]:
    """`operation` and every operation inside it."""
    out = [operation]
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                out.extend(_nested(inner.operation))
    return out


def _outside_values(operation: Any) -> list[Any]:
    inner = _nested(operation)
    results = {r for op in inner[1:] for r in op.results}
    arguments = {
        a for op in inner for region in op.regions for block in region.blocks for a in block.arguments
    }
    return [v for op in inner for v in op.operands if v not in results and v not in arguments]


def _replace_operands(operation: Any, inside: dict[Any, Any]) -> None:
    for op in _nested(operation):
        for i, value in enumerate(op.operands):
            if value in inside:
                op.operands[i] = inside[value]


def run_extern(node: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The results of an `extern` node on `tensors`, as torch tensors.

    Raises UnsupportedProgram for an operation that cannot be executed.
    """
    if "source" in node.attrs:
        arrays = [t.double().numpy() if t.is_floating_point() else t.numpy() for t in tensors]
        made = zip(run_source(node, arrays), node.results, strict=True)
        return tuple(torch_module().from_numpy(np.array(a)).to(DTYPE_NAMES[r.dtype]) for a, r in made)

    return run_aten(node, tensors)


def run_extern_arrays(node: Any, arrays: Sequence[Array]) -> list[Array]:
    """As `run_extern`, from arrays to arrays of numbers; without PyTorch where the operation is one of linalg."""
    if "source" in node.attrs:
        return run_source(node, arrays)

    from_numpy = torch_module().from_numpy
    tensors = [held_as(from_numpy(np.array(a)), v.dtype) for a, v in zip(arrays, node.operands, strict=True)]
    results = (t.cpu() for t in run_extern(node, tensors))
    return [t.double().numpy() if t.is_floating_point() else t.numpy() for t in results]
