"""Defining dialect operations from the operator table.

Every level's dialect holds the table's operators that exist at that level, each with the verifier that the
entry implies, and the level's own operations, each with a checker written beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from superopt.dialects.attributes import read_attrs, tensor_type
from superopt.dialects.mlir import ext, ir
from superopt.errors import IllegalProgram, SuperoptError
from superopt.operators import OPERATORS, Level, infer_type

Checker = Callable[[Any], None]

# Where operations live that IRDL cannot define (see `superopt.dialects.base`).
VARIADIC_NAMESPACE = "superopt"
# The operator of the table whose operation holds windows, and takes the variables that move them.
MASK = "mask"
_VARIADIC_NAMES = {"custom", "tiled", "extern", "fused", "yield"} | {
    e.name for e in OPERATORS.values() if e.arity is None
}
VARIADIC = frozenset(f"{VARIADIC_NAMESPACE}.{name}" for name in _VARIADIC_NAMES)


def mlir_name(level: str, op: str) -> str:
    """The MLIR name of operation `op` of a level's graph."""
    variadic = f"{VARIADIC_NAMESPACE}.{op}"
    return variadic if variadic in VARIADIC else f"{level}.{op}"


def make_dialect(namespace: str) -> Any:
    """A new, empty dialect class of the bindings."""
    return type(namespace.capitalize(), (ext.Dialect,), {"__module__": __name__}, name=namespace)


def define(
    dialect: Any,
    name: str,
    *,
    operands: int = 0,
    results: int = 0,
    region: bool = False,
    indices: bool = False,
    optional: bool = False,
    pure: bool = True,
    isolated: bool = True,
    check: Checker | None = None,
) -> None:
    """Add an operation: its numbers of operands and results, whether it has a region, trailing
    indices or an optional last operand.

    `check` raises a SuperoptError where an operation breaks a rule; the message is located by the operation.
    """
    hints: dict[str, Any] = {}
    # A type variable each: the operands of one operation need not have one type.
    for i in range(operands):
        hints[f"operand{i}"] = ext.Operand[Any]
    if indices:
        hints["indices"] = _sequence(ext.Operand[Any])
    if optional:
        hints["last"] = ext.Operand[Any] | None
    for i in range(results):
        hints[f"result{i}"] = ext.Result[Any]
    if region:
        hints["body"] = ext.Region

    def verify_invariants(op: Any) -> bool:
        if check is None:
            return True
        try:
            check(op)
        except SuperoptError as error:
            op.location.emit_error(error.message)
            return False
        return True

    traits: list[Any] = []
    if region:
        traits.append(ir.NoTerminatorTrait)
        if isolated:
            traits.append(ir.IsIsolatedFromAboveTrait)
    elif pure:
        traits.append(ext.Pure)
    members = {
        "__annotations__": hints,
        "__module__": __name__,
        "verify_invariants": staticmethod(verify_invariants),
    }
    # The bindings make the class an attribute of the dialect: "Op" keeps `load` from hiding the method.
    class_name = "".join(part.capitalize() for part in name.split("_")) + "Op"
    type(class_name, (dialect.Operation,), members, name=name, traits=traits)


def _sequence(item: Any) -> Any:
    from collections.abc import Sequence

    return Sequence[item]


def define_table(dialect: Any, level: Level) -> None:
    """Add every operator of the table that exists at `level` and has a fixed number of operands."""
    for entry in OPERATORS.values():
        if level in entry.levels and entry.arity is not None:
            define(
                dialect,
                entry.name,
                operands=entry.arity,
                indices=entry.name == MASK,
                results=1,
                check=partial(_check_entry, entry.name),
            )


def _check_entry(name: str, op: Any) -> None:
    if len(op.results) != 1:
        raise IllegalProgram(f"'{name}' expected one result, got {len(op.results)}")
    types = [tensor_type(v.type) for v in list(op.operands)[: OPERATORS[name].arity]]
    result = tensor_type(op.results[0].type)
    attrs = read_attrs(op, result)
    if name == MASK:  # its other attributes are windows, which `spec` checks
        attrs = {k: v for k, v in attrs.items() if k == "fill"}
    inferred = infer_type(name, types, attrs)
    if inferred != result:
        raise IllegalProgram(f"expected result type {inferred}, got {result}")
