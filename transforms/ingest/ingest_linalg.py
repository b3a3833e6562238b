"""Linalg-on-tensors to the kernel dialect: `--ingest-linalg`.

    func.func @f(%x: tensor<16x64xf32>, ...) {              func.func @f(%x: tensor<16x64xf32>, ...) {
      %0 = linalg.generic {... arith.maximumf ...}     ->     %0 = "kernel.relu"(%x) : ...

Every structured operation is read from its indexing maps, iterator types and body (named operations have them
too); nothing depends on which front end wrote it. What the operator table cannot express becomes
`superopt.extern`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from superopt.diagnostics import Diagnostics
from superopt.errors import UnsupportedProgram
from superopt.program import KernelGraph
from superopt.transforms.ingest.locate import locate
from superopt.transforms.passes import ModulePass


@dataclass(frozen=True)
class IngestLinalg(ModulePass):
    """Turn linalg, tensor, arith and math operations into a graph of kernel operators."""

    flag: ClassVar[str] = "ingest-linalg"

    narrow_f64: bool = False
    """Compute f64 intermediates in f32; otherwise, operations that touch them stay opaque."""

    def run(self, module: Any, diagnostics: Diagnostics) -> None:
        """Replace the module's function; a program in the kernel dialect is left as it is."""
        from superopt.dialects import reader, writer
        from superopt.dialects.mlir import ir

        function = the_function(module)
        if reader.is_kernel_function(function):
            return
        graph = read_linalg(module, diagnostics, narrow_f64=self.narrow_f64)
        with module.context, ir.Location.unknown():
            written = writer.to_module(graph, module.context)
            # Linalg's own attributes must not outlive the operations that understand them.
            for operation in list(module.body.operations):
                operation.operation.erase()
            for operation in list(written.body.operations):
                module.body.append(operation.operation.clone())


def the_function(module: Any, filename: str = "") -> Any:
    """The module's only function; raises UnsupportedProgram for zero or several."""
    root = getattr(module, "operation", module)
    functions = [op for op in root.regions[0].blocks[0].operations if op.operation.name == "func.func"]
    bodies = [f for f in functions if len(f.regions[0].blocks)]
    if len(bodies) != 1:
        where = locate(bodies[1] if bodies else root, filename)
        raise UnsupportedProgram(f"expected one function with a body, got {len(bodies)}", where)
    return bodies[0].operation


def read_linalg(
    module: Any, diagnostics: Diagnostics, *, narrow_f64: bool = False, filename: str = ""
) -> KernelGraph:
    """The kernel graph of the only function of an MLIR module in linalg on tensors, TOSA, or the kernel dialect.

    Inputs are the function's arguments, in order, then one for each `dense_resource` too large to keep as a
    constant, named by its key. Dtypes are f16, bf16 and f32; other tensors occur only around `extern` nodes.
    Raises UnsupportedProgram, located, for dynamic shapes, control flow, and values that are not tensors.
    """
    from superopt.dialects import reader
    from superopt.transforms.ingest.against_execution import check_reading
    from superopt.transforms.ingest.linalg_reader import LinalgReader
    from superopt.transforms.ingest.tosa import lower_tosa

    function = the_function(module, filename)
    if reader.is_kernel_function(function):
        return reader.read_function(function, filename)
    lower_tosa(module, function, filename)
    reading = LinalgReader(function, diagnostics, narrow_f64, filename)
    graph = reading.read()
    check_reading(reading, graph, diagnostics)
    return graph
