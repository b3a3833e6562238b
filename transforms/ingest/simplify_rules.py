"""Rules that simplify operators while a graph is built, by the operator that is emitted.

A rule looks at the operator about to be emitted and at the nodes that define its operands; it returns the value
to use instead, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from superopt.errors import IllegalProgram
from superopt.operators import infer_type
from superopt.program import Attr, TensorType, Value
from superopt.transforms.ingest.builder import GraphBuilder

Attrs: TypeAlias = dict[str, Attr]
Operands: TypeAlias = tuple[Value, ...]
Rule: TypeAlias = Callable[[GraphBuilder, str, tuple[Value, ...], Attrs], "Value | None"]


class Rules:
    """The rules of a file, tried in source order."""

    def __init__(self) -> None:
        self._of: dict[str, list[Rule]] = {}

    def rule(self, *ops: str) -> Callable[[Rule], Rule]:
        """Register a rule for the operators `ops`."""

        def register(function: Rule) -> Rule:
            for op in ops:
                self._of.setdefault(op, []).append(function)
            return function

        return register

    def apply(self, build: GraphBuilder, op: str, operands: Operands, attrs: Attrs) -> Value | None:
        """The value that a rule gives for `op`, or None."""
        for function in self._of.get(op, ()):
            if (value := function(build, op, operands, attrs)) is not None:
                return value
        return None


def ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    """An attribute that is a list of numbers."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def type_of(op: str, operands: Sequence[Value], attrs: Attrs) -> TensorType | None:
    """The type of an operator's result, None where it refuses the operands."""
    try:
        return infer_type(op, [v.type for v in operands], attrs)
    except IllegalProgram:
        return None
