"""TOSA, lowered to linalg by MLIR's own passes before it is read."""

from __future__ import annotations

from typing import Any

from superopt.dialects.mlir import ir, passmanager
from superopt.errors import UnsupportedProgram
from superopt.transforms.ingest.locate import locate

PASSES = "tosa-to-linalg-named,tosa-to-linalg,tosa-to-arith,tosa-to-tensor"


def lower_tosa(module: Any, function: Any, filename: str = "") -> None:
    """Turn the TOSA operations of `function`, if it has any, into linalg, in place.

    Raises UnsupportedProgram, located, for an operation that MLIR does not lower.
    """
    if not _tosa(function):
        return
    root = getattr(module, "operation", module)
    try:
        pipeline = f"builtin.module(func.func({PASSES}))"
        passmanager.PassManager.parse(pipeline, root.context).run(root)
    except ir.MLIRError as error:
        first = next((d.message for d in error.error_diagnostics), str(error))
        said = first.split(": %")[0]  # the operation is printed behind it
        where = locate(function, filename)
        raise UnsupportedProgram(f"MLIR cannot lower TOSA to linalg: {said}", where) from None
    if left := _tosa(function):
        raise UnsupportedProgram(
            f"expected TOSA that MLIR lowers to linalg, got {left[0].name}", locate(left[0], filename)
        )


def _tosa(function: Any) -> list[Any]:
    found = [op.operation for op in function.regions[0].blocks[0].operations]
    return [op for op in found if op.name.startswith("tosa.")]
