"""Verdicts of the numeric gate do not depend on the luck of its inputs, however few elements a program has."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.dialects.reader import read
from superopt.numerics import float_gate, gate
from superopt.numerics.checking import MOST_MODELS, farthest, model_runs
from superopt.transforms.lower import lower

# Of its 512 elements, the two blocks that the gate computes have 4.
ATTENTION = """
func.func @attention(%q: tensor<16x32xf32>, %k: tensor<32x32xf32>, %v: tensor<32x32xf32>) -> tensor<16x32xf32> {
  %s = "kernel.matmul"(%q, %k) {transpose_b = true} : (tensor<16x32xf32>, tensor<32x32xf32>) -> tensor<16x32xf32>
  %m = "kernel.reduce_max"(%s) {dims = array<i64: 1>, keepdims = true} : (tensor<16x32xf32>) -> tensor<16x1xf32>
  %d = "kernel.sub"(%s, %m) : (tensor<16x32xf32>, tensor<16x1xf32>) -> tensor<16x32xf32>
  %e = "kernel.exp"(%d) : (tensor<16x32xf32>) -> tensor<16x32xf32>
  %l = "kernel.reduce_sum"(%e) {dims = array<i64: 1>, keepdims = true} : (tensor<16x32xf32>) -> tensor<16x1xf32>
  %p = "kernel.div"(%e, %l) : (tensor<16x32xf32>, tensor<16x1xf32>) -> tensor<16x32xf32>
  %o = "kernel.matmul"(%p, %v) : (tensor<16x32xf32>, tensor<32x32xf32>) -> tensor<16x32xf32>
  return %o : tensor<16x32xf32>
}
"""
NONCES = range(80)


def failures() -> list[int]:
    graph = read(ATTENTION)
    lowered = lower(graph)
    return [n for n in NONCES if not gate(graph, lowered, nonce=str(n)).passed]


def test_a_right_program_of_few_elements_passes_whatever_is_drawn() -> None:
    assert failures() == []


def test_of_one_draw_of_the_model_some_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(_: int) -> int:
        return 1

    monkeypatch.setattr(float_gate, "model_runs", once)
    assert failures()


def test_a_model_of_few_elements_is_drawn_often() -> None:
    assert [model_runs(n) for n in (0, 1, 4, 64, 256, 10**9)] == [
        MOST_MODELS,
        MOST_MODELS,
        MOST_MODELS,
        4,
        1,
        1,
    ]


def test_the_farthest_of_several_draws_counts() -> None:
    reference = np.array([0.0, 0.0, 0.0, 0.0])
    models = [np.array([1.0, -1, np.nan, 2]), np.array([-2.0, 0.5, 1, np.inf])]
    np.testing.assert_array_equal(farthest(reference, models), [-2.0, -1.0, np.nan, 2.0])
