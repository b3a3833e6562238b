"""What the checks of all levels share."""

from __future__ import annotations

from collections.abc import Iterable

from superopt.errors import IllegalProgram
from superopt.operators import OPERATORS, Level, infer_type
from superopt.program import Node, TensorType, Value


def expect(condition: bool, expected: str, got: object, node: Node) -> None:
    """Raise IllegalProgram at `node` unless the condition holds."""
    if not condition:
        raise IllegalProgram(f"'{node.op}' expected {expected}, got {got}", node.location)


def check_defined(node: Node, defined: set[Value]) -> None:
    """Every operand of `node` is among `defined`."""
    for i, operand in enumerate(node.operands):
        expect(operand in defined, "operands defined before", f"operand {i} that is not", node)


def define(node: Node, defined: set[Value]) -> None:
    """Add the results of `node`, which nothing else defines, to `defined`."""
    again = len(node.results) - len({*node.results} - defined)
    expect(not again, "results that nothing else defines", f"{again} that are", node)
    defined.update(node.results)


def check_table(node: Node, level: Level) -> None:
    """`node` is an operator of the table, of this level, and has the result type that the table says."""
    entry = OPERATORS.get(node.op)
    if entry is None or level not in entry.levels:
        raise IllegalProgram(f"expected an operator of the {level} level, got '{node.op}'", node.location)
    expect(len(node.results) == 1, "one result", len(node.results), node)
    try:
        inferred = infer_type(node.op, [v.type for v in node.operands], node.attrs)
    except IllegalProgram as error:
        raise IllegalProgram(error.message, node.location) from None
    expect(inferred == node.result.type, f"result type {inferred}", node.result.type, node)


def types_text(types: Iterable[TensorType]) -> str:
    """Types in parentheses, as errors show them."""
    return f"({', '.join(map(str, types))})"
