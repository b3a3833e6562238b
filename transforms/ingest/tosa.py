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
    if not has_tosa(function):
        return
    _run(
        f"builtin.module(func.func({PASSES}))", module, function, filename, "MLIR cannot lower TOSA to linalg"
    )
    for op in reversed(_tosa(function)):
        if op.name == "tosa.const_shape" and not any(True for _ in op.results[0].uses):
            op.erase()  # who read it holds the extents
    if left := _tosa(function):
        raise UnsupportedProgram(
            f"expected TOSA that MLIR lowers to linalg, got {left[0].name}", locate(left[0], filename)
        )


def has_tosa(function: Any) -> bool:
    """Whether there is TOSA in the function."""
    return bool(_tosa(function))


def infer_shapes(module: Any, function: Any) -> None:
    """Carry the extents of a function's arguments to all that TOSA computes of them, in place.

    Raises UnsupportedProgram, located, where an operation is not defined for them.
    """
    _run("builtin.module(func.func(tosa-infer-shapes))", module, function, "", "TOSA has no such extents")


def _run(passes: str, module: Any, function: Any, filename: str, what: str) -> None:
    root = getattr(module, "operation", module)
    where = locate(function, filename)
    try:
        passmanager.PassManager.parse(passes, root.context).run(root)
    except ir.MLIRError as error:
        first = next(iter(error.error_diagnostics), None)
        said = (first.message if first else str(error)).split(": %")[0]  # the operation is printed behind it
        place = locate(first.location, filename) if first else where
        raise UnsupportedProgram(f"{what}: {said}", place if place.line else where) from None


def _tosa(function: Any) -> list[Any]:
    found = [op.operation for op in function.regions[0].blocks[0].operations]
    return [op for op in found if op.name.startswith("tosa.")]
