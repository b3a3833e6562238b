"""Linalg or TOSA whose tensors have dynamic extents, as the program at some: every `?` is a number.

    func.func @f(%x: tensor<?x64xf32>) { %d = tensor.dim %x, %c0 ... tensor.empty(%d) ... }
    ->  func.func @f(%x: tensor<37x64xf32>) { ... tensor.empty() : tensor<37x64xf32> ... }

Where there are several extents, the attribute `superopt.extents` of an argument names those of its `?`, in order:
`%x: tensor<?x?x64xf32> {superopt.extents = ["b", "2 * n"]}`. MLIR's own passes carry the extents from the
arguments to everything that is computed from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superopt.dialects.mlir import ir, passmanager
from superopt.errors import BadInput
from superopt.transforms.ingest.ingest_linalg import read_linalg, the_function
from superopt.transforms.ingest.locate import locate
from superopt.transforms.ingest.tosa import has_tosa, infer_shapes, lower_tosa

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph

EXTENTS = "superopt.extents"
_MULTIPLE = re.compile(r"(?:(\d{1,9})\s*\*\s*)?([A-Za-z_]\w*)")
_PROPAGATE = (
    "builtin.module(canonicalize,cse,func.func(resolve-ranked-shaped-type-result-dims),canonicalize,cse)"
)


@dataclass(frozen=True)
class DynamicProgram:
    """A module in linalg or TOSA whose function takes tensors with dynamic extents."""

    module: Any

    def places(self, names: Sequence[str]) -> dict[str, list[tuple[int, int, int]]]:
        """`dynamic_places` of the module."""
        return dynamic_places(self.module, names)

    def at(self, extents: Mapping[str, int], diagnostics: Diagnostics) -> KernelGraph:
        """The program at these extents, by name, read anew; raises as `dynamic_places` and `at_extents`."""
        places = self.places(tuple(extents))
        sizes = {(i, d): k * extents[name] for name, found in places.items() for i, d, k in found}
        return read_linalg(at_extents(self.module, sizes), diagnostics)


def is_dynamic(module: Any) -> bool:
    """Whether the module's function takes a tensor with a dynamic extent."""
    inputs = ir.TypeAttr(the_function(module).attributes["function_type"]).value.inputs
    return any(isinstance(t, ir.RankedTensorType) and not t.has_static_shape for t in inputs)


def dynamic_places(module: Any, names: Sequence[str]) -> dict[str, list[tuple[int, int, int]]]:
    """Where the extents of these names stand: (argument, dimension, k), which is k extents.

    Raises BadInput where an argument has a dynamic extent that is none of them, and for a name without a place.
    """
    function = the_function(module)
    found: dict[str, list[tuple[int, int, int]]] = {name: [] for name in names}
    given = function.attributes.get("arg_attrs", None)
    for i, type_ in enumerate(ir.TypeAttr(function.attributes["function_type"]).value.inputs):
        rank = type_.rank if isinstance(type_, ir.RankedTensorType) else 0
        dims = [d for d in range(rank) if type_.is_dynamic_dim(d)]
        for d, (name, times) in zip(
            dims, _named(function, given and given[i], names, len(dims)), strict=True
        ):
            found[name].append((i, d, times))
    for name, places in found.items():
        if not places:
            raise BadInput(
                f"expected an argument with a dynamic extent, written '?', got none for {name}",
                locate(function),
            )
    return found


def _named(function: Any, attributes: Any, names: Sequence[str], count: int) -> list[tuple[str, int]]:
    """What the dynamic extents of an argument are called, and how many times that they are."""
    if attributes is None or EXTENTS not in attributes:
        if count and len(names) > 1:
            expected = f'{EXTENTS} = ["{names[0]}", ...] at each argument with a dynamic extent'
            raise BadInput(f"expected {expected}, as there are {len(names)}, got none", locate(function))
        return [(names[0], 1)] * count
    texts = [ir.StringAttr(a).value for a in attributes[EXTENTS]]
    if len(texts) != count:
        raise BadInput(f"expected {count} names in {EXTENTS}, got {len(texts)}", locate(function))
    found: list[tuple[str, int]] = []
    for text in texts:
        parts = _MULTIPLE.fullmatch(text)
        if parts is None or parts[2] not in names or parts[1] == "0":
            expected = " or ".join(f'"{name}", "2 * {name}"' for name in names)
            raise BadInput(f"expected {EXTENTS} such as {expected}, got '{text}'", locate(function))
        found.append((parts[2], int(parts[1] or 1)))
    return found


def at_extents(module: Any, sizes: Mapping[tuple[int, int], int]) -> Any:
    """A copy of a module in which the dynamic extents of its function, by argument and dimension, are `sizes`.

    Raises BadInput where a result's extents do not follow from the arguments'.
    """
    copy = module.operation.clone()
    function = the_function(copy)

    def fixed(i: int, type_: Any) -> Any:
        if not isinstance(type_, ir.RankedTensorType):
            return type_
        shape = [sizes[i, d] if type_.is_dynamic_dim(d) else type_.get_dim_size(d) for d in range(type_.rank)]
        return ir.RankedTensorType.get(shape, type_.element_type)

    with copy.context, ir.Location.unknown():
        type_ = ir.TypeAttr(function.attributes["function_type"]).value
        inputs = [fixed(i, t) for i, t in enumerate(type_.inputs)]
        block = function.regions[0].blocks[0]
        tosa = has_tosa(function)  # whose own pass knows what its operations make of extents
        for argument, old, new in zip(block.arguments, type_.inputs, inputs, strict=True):
            if tosa:
                argument.set_type(new)
            elif old != new:
                argument.set_type(new)
                with ir.InsertionPoint.at_block_begin(block):
                    cast = ir.Operation.create("tensor.cast", results=[old], operands=[argument])
                argument.replace_all_uses_except(cast.result, cast)
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, type_.results))
        if tosa:
            infer_shapes(copy, function)
            lower_tosa(copy, function)
        manager = passmanager.PassManager.parse(_PROPAGATE, copy.context)
        manager.run(copy)
        returned = block.operations[len(block.operations) - 1].operation
        for i, value in enumerate(returned.operands):
            made = value.owner
            if isinstance(made, ir.Operation | ir.OpView) and made.name == "tensor.cast":
                returned.operands[i] = made.operands[0]
        results = [value.type for value in returned.operands]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
        manager.run(copy)
    for operation in function.regions[0].blocks[0].operations:
        dynamic = [v for v in operation.operation.results if not getattr(v.type, "has_static_shape", True)]
        if operation.operation.name == "tensor.cast" or dynamic:
            where = locate(operation.operation)
            raise BadInput(
                "expected results whose extents follow from the arguments', got one that does not",
                where if where.line else locate(function),
            )
    return copy
