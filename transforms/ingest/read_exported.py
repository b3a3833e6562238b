"""From an exported program to a kernel graph, through the torch dialect or through linalg."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import numpy as np

from superopt.diagnostics import Diagnostics
from superopt.dialects.mlir import binding, ir, passmanager
from superopt.errors import Location, UnsupportedProgram
from superopt.program import KernelGraph
from superopt.transforms.ingest.ingest_linalg import read_linalg, the_function
from superopt.transforms.ingest.locate import locate
from superopt.transforms.ingest.torch_dialect import TorchReader, find_overload, refuse_random
from superopt.transforms.ingest.torch_types import torch_module


@contextmanager
def quiet() -> Generator[None]:
    """Silence the exporter's output and warnings: its errors contain what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _constants_as_inputs(exported: Any) -> dict[int, Any]:
    """Make every constant of the program an input; returns the tensors by the positions of their arguments.

    This keeps constants out of the importer's literals, which pass through Python lists, and out of lists of
    operands, which it refuses with a constant among them.
    """
    from torch.export.graph_signature import InputKind

    tensors: dict[int, Any] = {}
    for i, spec in enumerate(exported.graph_signature.input_specs):
        if spec.kind != InputKind.USER_INPUT:
            held = exported.state_dict if spec.target in exported.state_dict else exported.constants
            tensors[i] = held[spec.target].detach()
            spec.kind, spec.target, spec.persistent = InputKind.USER_INPUT, None, None
    return tensors


def _torch_module(exported: Any, name: str, location: Location) -> Any:
    """The torch dialect's module of a program whose constants are inputs."""
    context = ir.Context()
    binding("dialects.torch").register_dialect(context)
    importer = binding("extras.fx_importer").FxImporter(context=context)
    try:
        with quiet():
            importer.import_frozen_program(exported, func_name=name)
    except Exception as error:
        # The importer fails assertions on what it cannot express.
        raise UnsupportedProgram(f"torch-mlir cannot import the program: {error}", location) from error
    return importer.module


def read_through_torch(
    exported: Any, lifted: Any, name: str, diagnostics: Diagnostics, narrow_f64: bool, location: Location
) -> KernelGraph:
    """The graph of a decomposed program, called `name`, through the torch dialect, operator by operator.

    `lifted` has the names of its arguments. The program's constants become inputs of it: it cannot be read again.
    Raises UnsupportedProgram, located where possible, for what the dialect or the reader does not take.
    """
    constants = _constants_as_inputs(exported)
    module = _torch_module(exported, name, location)
    names = [*lifted.input_names, *lifted.weight_names]
    return TorchReader(the_function(module), diagnostics, constants, names).read()


def read_through_linalg(
    exported: Any, lifted: Any, name: str, diagnostics: Diagnostics, narrow_f64: bool, location: Location
) -> KernelGraph:
    """The graph of a decomposed program, called `name`, through linalg on tensors, as torch-mlir lowers it.

    `lifted` has the names of its arguments. The program's constants become inputs of it: it cannot be read again.
    Raises UnsupportedProgram, located where possible, for what the dialect or the reader does not take.
    """
    constants = _constants_as_inputs(exported)
    module = _torch_module(exported, name, location)
    _check_lowered(the_function(module))
    _literals(the_function(module), constants)
    pipeline = (
        "builtin.module(torchdynamo-export-to-torch-backend-pipeline,"
        "torch-backend-to-linalg-on-tensors-backend-pipeline)"
    )
    try:
        passmanager.PassManager.parse(pipeline, module.context).run(module.operation)
    except ir.MLIRError as error:
        first = next((d.message for d in error.error_diagnostics), str(error).strip())
        where = next((locate(d.location) for d in error.error_diagnostics), location)
        raise UnsupportedProgram(f"torch-mlir cannot lower the program to linalg: {first}", where) from error
    graph = read_linalg(module, diagnostics, narrow_f64=narrow_f64)
    for value, given in zip(graph.inputs, [*lifted.input_names, *lifted.weight_names], strict=False):
        value.name = given
    return graph


def _check_lowered(function: Any) -> None:
    """Raise UnsupportedProgram, located, for the first tensor of dynamic shape, on which lowering may crash, and
    for operators that draw random numbers."""
    for op in function.regions[0].blocks[0].operations:
        operation = op.operation
        name = operation.name.removeprefix("torch.")
        if name.startswith("aten."):
            refuse_random(name, find_overload(name), locate(operation))
        for result in operation.results:
            text = str(result.type)
            if text.startswith("!torch.vtensor<[") and "?" in text:
                got = text.removeprefix("!torch.vtensor<[").rstrip(">").replace("],", ",").replace(",", "x")
                raise UnsupportedProgram(
                    f"expected static extents for the result of '{name}', got {got}", locate(operation)
                )


def _literals(function: Any, constants: dict[int, Any]) -> None:
    """Replace the arguments that represent constants by literals in the function's body."""
    block = function.regions[0].blocks[0]
    with function.context, ir.Location.unknown(), ir.InsertionPoint.at_block_begin(block):
        for i, tensor in sorted(constants.items(), reverse=True):
            kind = ir.Type.parse(_builtin(str(block.arguments[i].type)))
            literal = ir.Operation.create(
                "torch.vtensor.literal",
                results=[block.arguments[i].type],
                attributes={"value": _dense(tensor, kind)},
            )
            block.arguments[i].replace_all_uses_with(literal.results[0])
            block.erase_argument(i)
        types = [a.type for a in block.arguments]
        old = function.attributes["function_type"].value
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, old.results))


def _builtin(vtensor: str) -> str:
    """The builtin tensor type of a `!torch.vtensor<[2,3],f32>`."""
    shape, _, element = vtensor.removeprefix("!torch.vtensor<[").rstrip(">").partition("],")
    return f"tensor<{'x'.join([*(e for e in shape.split(',') if e), element])}>"


def _dense(tensor: Any, kind: Any) -> Any:
    torch = torch_module()
    if tensor.dtype == torch.bfloat16:
        return ir.DenseElementsAttr.get(tensor.contiguous().view(torch.int16).numpy(), type=kind)
    array = np.ascontiguousarray(tensor.numpy()).reshape(tuple(tensor.shape))
    return ir.DenseElementsAttr.get(array, type=kind)
