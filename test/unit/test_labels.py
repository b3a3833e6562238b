"""Sets of labels against Python's sets."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.verify.labels import Labels


@pytest.mark.parametrize("seed", range(5))
def test_labels_are_a_set(seed: int) -> None:
    draw = np.random.default_rng(seed)
    labels, expected = Labels(), set[int]()
    asked = draw.integers(0, 400, (3, 50), np.uint64)
    assert not labels.hold(asked).any()
    for _ in range(20):
        more = draw.integers(0, 400, draw.integers(0, 30), np.uint64)
        labels.add(more)
        expected |= {int(x) for x in more}
        assert labels.hold(asked).tolist() == [[int(x) in expected for x in row] for row in asked]


def test_few_runs_hold_many_labels() -> None:
    """Else each look-up, and each addition, would take as long as all before it."""
    labels = Labels()
    for i in range(1000):
        labels.add(np.arange(100 * i, 100 * i + 100, dtype=np.uint64))
    assert len(labels.runs) <= 1 + int(np.log2(1000))
    assert all(len(a) >= 2 * len(b) for a, b in zip(labels.runs, labels.runs[1:], strict=False))
