"""Linalg whose tensors have a dynamic extent, as the program at one: every `?` of the function is that number.

    func.func @f(%x: tensor<?x64xf32>) { %d = tensor.dim %x, %c0 ... tensor.empty(%d) ... }
    ->  func.func @f(%x: tensor<37x64xf32>) { ... tensor.empty() : tensor<37x64xf32> ... }

MLIR's own passes carry the extent from the arguments to everything that is computed from them.
"""

from __future__ import annotations

from typing import Any

from superopt.dialects.mlir import ir, passmanager
from superopt.errors import BadInput
from superopt.transforms.ingest.ingest_linalg import the_function
from superopt.transforms.ingest.locate import locate

_PROPAGATE = (
    "builtin.module(canonicalize,cse,func.func(resolve-ranked-shaped-type-result-dims),canonicalize,cse)"
)


def dynamic_dimension(module: Any) -> tuple[int, int]:
    """The first argument with a dynamic extent, and its dimension; raises BadInput where none has one."""
    function = the_function(module)
    for i, type_ in enumerate(ir.TypeAttr(function.attributes["function_type"]).value.inputs):
        for d in range(type_.rank if isinstance(type_, ir.RankedTensorType) else 0):
            if type_.is_dynamic_dim(d):
                return i, d
    raise BadInput("expected an argument with a dynamic extent, written '?', got none", locate(function))


def at_extent(module: Any, extent: int) -> Any:
    """A copy of a module in which every dynamic extent of its function is `extent`.

    Raises BadInput where a result's extent does not follow from the arguments'.
    """
    copy = module.operation.clone()
    function = the_function(copy)

    def fixed(type_: Any) -> Any:
        if not isinstance(type_, ir.RankedTensorType):
            return type_
        sizes = [extent if type_.is_dynamic_dim(d) else type_.get_dim_size(d) for d in range(type_.rank)]
        return ir.RankedTensorType.get(sizes, type_.element_type)

    with copy.context, ir.Location.unknown():
        type_ = ir.TypeAttr(function.attributes["function_type"]).value
        inputs, results = list(map(fixed, type_.inputs)), list(map(fixed, type_.results))
        block = function.regions[0].blocks[0]
        for argument, old, new in zip(block.arguments, type_.inputs, inputs, strict=True):
            if old != new:
                argument.set_type(new)
                with ir.InsertionPoint.at_block_begin(block):
                    cast = ir.Operation.create("tensor.cast", results=[old], operands=[argument])
                argument.replace_all_uses_except(cast.result, cast)
        returned = block.operations[len(block.operations) - 1].operation
        for i, (old, new) in enumerate(zip(type_.results, results, strict=True)):
            if old != new:
                with ir.InsertionPoint(returned):
                    cast = ir.Operation.create("tensor.cast", results=[new], operands=[returned.operands[i]])
                returned.operands[i] = cast.result
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
        passmanager.PassManager.parse(_PROPAGATE, copy.context).run(copy)
    for operation in function.regions[0].blocks[0].operations:
        if operation.operation.name == "tensor.cast":
            raise BadInput(
                "expected results whose extents follow from the arguments', got one that does not",
                locate(operation.operation),
            )
    return copy
