"""Which dimensions run along one axis: by the operators' nests, and through reshapes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from superopt.axes import Classes, reshape_groups, same_dimensions, walked_together
from superopt.operators import infer_type
from superopt.program import Attr, Node, TensorType, Value


def applied(op: str, *shapes: tuple[int, ...], **attrs: Attr) -> Node:
    operands = tuple(Value(TensorType(s, "f32")) for s in shapes)
    return Node(op, operands, (Value(infer_type(op, [v.type for v in operands], attrs)),), attrs)


def axes(node: Node) -> list[list[int]]:
    """A number for the axis of each dimension, operand after operand, then of the result."""
    classes: Classes[tuple[Value, int]] = Classes()
    for a, b in walked_together(node):
        classes.join(a, b)
    numbers: dict[tuple[Value, int], int] = {}
    values = [*node.operands, node.result]
    return [
        [numbers.setdefault(classes.find((v, d)), len(numbers)) for d in range(len(v.shape))] for v in values
    ]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (applied("matmul", (2, 3, 4), (4, 5)), [[0, 1, 2], [2, 3], [0, 1, 3]]),
        (applied("matmul", (4, 3), (5, 4), transpose_a=True, transpose_b=True), [[0, 1], [2, 0], [1, 2]]),
        (applied("add", (2, 3), (1, 3)), [[0, 1], [2, 1], [0, 1]]),
        (applied("add", (2, 3), (3,)), [[0, 1], [1], [0, 1]]),
        (applied("transpose", (2, 3, 4), perm=(2, 0, 1)), [[0, 1, 2], [2, 0, 1]]),
        (applied("reduce_sum", (2, 3, 4), dims=(1,)), [[0, 1, 2], [0, 2]]),
        (applied("reduce_max", (2, 3), dims=(1,), keepdims=True), [[0, 1], [0, 2]]),
        (applied("broadcast", (1, 3), shape=(5, 2, 3)), [[0, 1], [2, 3, 1]]),
        (applied("concat", (2, 3), (2, 3), dim=0), [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_dimensions_that_a_nest_walks_together_are_one_axis(node: Node, expected: list[list[int]]) -> None:
    assert axes(node) == expected


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ((16, 4096), (16, 32, 128), [([0], [0]), ([1], [1, 2])]),
        ((16, 32, 128), (16, 4096), [([0], [0]), ([1, 2], [1])]),
        ((6, 4), (4, 6), [([0, 1], [0, 1])]),
        ((16, 1), (16,), [([0], [0])]),
        ((1, 71, 4, 64), (284, 64), [([1, 2], [0]), ([3], [1])]),
    ],
)
def test_reshapes_split_into_groups(before: tuple[int, ...], after: tuple[int, ...], groups: object) -> None:
    assert reshape_groups(before, after) == groups


@pytest.mark.parametrize("seed", range(40))
def test_groups_of_a_reshape_are_its_smallest_parts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    factors = [int(f) for f in rng.choice([1, 2, 3, 4], size=5)]

    def shape() -> tuple[int, ...]:
        cuts = sorted({0, 5, *(int(c) for c in rng.integers(0, 6, size=3))})
        return tuple(math.prod(factors[a:b]) for a, b in itertools.pairwise(cuts))

    before, after = shape(), shape()
    groups = reshape_groups(before, after)
    assert [d for left, _ in groups for d in left] == [d for d, e in enumerate(before) if e > 1]
    assert [d for _, right in groups for d in right] == [d for d, e in enumerate(after) if e > 1]
    for left, right in groups:
        assert math.prod(before[d] for d in left) == math.prod(after[d] for d in right)
        begun = {math.prod(before[d] for d in left[:i]) for i in range(1, len(left))}
        assert not begun & {math.prod(after[d] for d in right[:i]) for i in range(1, len(right))}
    same = same_dimensions(before, after)
    assert (same is None) == ([e for e in before if e > 1] != [e for e in after if e > 1])
    assert all(before[d] == after[e] for d, e in same or ())
