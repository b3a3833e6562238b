"""Reductions of much to few numbers as two, against numpy."""

from __future__ import annotations

import random

import numpy as np
import pytest

from superopt.operators import infer_type
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.spec import check_kernel
from superopt.transforms import split_reductions
from superopt.transforms.split_reductions import split
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate

NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def reduction(op: str, shape: tuple[int, ...], dims: tuple[int, ...], keepdims: bool) -> KernelGraph:
    x, attrs = Value(TensorType(shape, "f32"), "x"), dict[str, Attr](dims=dims, keepdims=keepdims)
    made = Value(infer_type(op, [x.type], attrs), "y")
    return KernelGraph("reduction", [x], [Node(op, (x,), (made,), attrs)], [made])


@pytest.mark.parametrize("seed", range(60))
def test_random_reductions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(seed)
    monkeypatch.setattr(split_reductions, "FEW", chosen.choice([2, 5, 1000]))
    monkeypatch.setattr(split_reductions, "MUCH", 1)
    shape = tuple(chosen.choice([1, 2, 3, 5]) for _ in range(chosen.randint(1, 4)))
    dims = tuple(sorted(chosen.sample(range(len(shape)), chosen.randint(1, len(shape)))))
    name, keepdims = chosen.choice([*NUMPY]), chosen.random() < 0.5
    graph = reduction(f"reduce_{name}", shape, dims, keepdims)
    made = split(graph)
    check_kernel(made)
    many = [d for d in dims if shape[d] > 1]
    few = graph.outputs[0].type.elements < split_reductions.FEW
    assert len(made.nodes) == (2 if len(many) > 1 and few else 1)
    x = np.random.default_rng(seed).standard_normal(shape)
    (found,) = evaluate(made, [FloatDomain().tensor(x)], FloatDomain())
    np.testing.assert_allclose(found.planes[0], NUMPY[name](x, axis=dims, keepdims=keepdims), rtol=1e-12)


def test_what_a_user_meets() -> None:
    """Losses are split; what has little to read, or blocks enough, is as it was."""
    assert len(split(reduction("reduce_mean", (1500, 80), (0, 1), False)).nodes) == 2
    for shape, dims in (((200, 200), (0, 1)), ((64, 32, 64), (1, 2)), ((1, 1 << 20), (0, 1))):
        graph = reduction("reduce_sum", shape, dims, False)
        assert split(graph) is graph
