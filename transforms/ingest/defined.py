"""Whether a value is a number wherever its inputs are: roots, logarithms and quotients may not be.

A selection protects what it does not choose: `where(m != 0, x / m, 0)` is defined where `x / m` is not. A program
whose kernels compute both sides cannot be proved to do so, and the importer leaves such a selection to PyTorch.
What is not known to be positive counts as zero somewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from superopt.operators import OPERATORS, is_contraction, normalize_attrs, reduction_of, splat_of
from superopt.program import Node, Value
from superopt.scalars import Scalar

# Signs that are known: positive, not negative, and nothing.
POSITIVE, NOT_NEGATIVE, ANY = 2, 1, 0
Producer = Callable[[Value], Node | None]


def is_defined(value: Value, producer: Producer) -> bool:
    """Whether `value` is defined for all finite inputs of the program, as far as signs tell."""
    signs: dict[Value, int] = {}
    left, seen = [value], set[Value]()
    while left:
        value = left.pop()
        node = producer(value)
        if value in seen or node is None:
            continue
        seen.add(value)
        left += node.operands
        entry = OPERATORS[node.op]
        if entry.body is not None:
            body = entry.body(normalize_attrs(entry, node.attrs))
            if not _defined(body, [_sign(v, producer, signs) for v in node.operands]):
                return False
    return True


def is_not_negative(value: Value, producer: Producer) -> bool:
    """Whether `value` is nowhere negative where it is a number, as far as signs tell."""
    return _sign(value, producer, {}) >= NOT_NEGATIVE


def _sign(value: Value, producer: Producer, signs: dict[Value, int]) -> int:
    if value not in signs:
        signs[value] = ANY
        node = producer(value)
        if node is not None:
            signs[value] = _of_node(node, [_sign(v, producer, signs) for v in node.operands])
    return signs[value]


def _of_node(node: Node, operands: list[int]) -> int:
    entry = OPERATORS[node.op]
    if (number := splat_of(node)) is not None:
        return POSITIVE if number > 0 else NOT_NEGATIVE if number == 0 else ANY
    if is_contraction(node):
        return min(*operands, NOT_NEGATIVE)
    if entry.body is not None and reduction_of(node) is None:
        return _of_scalar(entry.body(normalize_attrs(entry, node.attrs)), operands)
    return min(operands, default=ANY)  # moves, joins, and sums and extremes of what has one sign


def _of_scalar(e: Scalar, operands: list[int]) -> int:
    if e.head == "arg":
        return operands[int(e.payload)]
    if e.head == "const":
        return POSITIVE if e.payload > 0 else NOT_NEGATIVE if e.payload == 0 else ANY
    parts = [_of_scalar(a, operands) for a in e.args]
    if e.head == "exp":
        return POSITIVE
    if e.head == "add":
        return max(parts) if min(parts) > ANY else ANY
    if e.head == "mul" and e.args[0] == e.args[1]:
        return max(parts[0], NOT_NEGATIVE)
    if e.head in ("mul", "div", "sqrt", "min"):
        return min(parts)
    return max(parts) if e.head == "max" else ANY


def _defined(e: Scalar, operands: list[int]) -> bool:
    if not all(_defined(a, operands) for a in e.args):
        return False
    if e.head == "div":
        below = e.args[1]
        return (below.head == "const" and below.payload != 0) or _of_scalar(below, operands) == POSITIVE
    if e.head in ("log", "pow"):
        return _of_scalar(e.args[0], operands) == POSITIVE
    return e.head not in ("log1p", "sqrt") or _of_scalar(e.args[0], operands) > ANY
