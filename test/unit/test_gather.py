"""Gathers at places that strides give, against numpy."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from superopt.diagnostics import Diagnostics
from superopt.errors import Location
from superopt.program import TensorType
from superopt.transforms.ingest.builder import GraphBuilder, NotExpressible
from superopt.transforms.ingest.gather import strides
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate


def taken(shape: tuple[int, ...], dim: int, places: list[int]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """What the graph of a gather gives, what numpy does, and its operators."""
    build = GraphBuilder("f", Diagnostics())
    x = build.add_input("x", TensorType(shape, "f32"))
    graph = build.finish([build.take(x, dim, places)], Location())
    array, domain = np.arange(float(np.prod(shape))).reshape(shape), FloatDomain()
    (found,) = evaluate(graph, [domain.tensor(array)], domain)
    return found.planes[0], array.take(places, dim), [n.op for n in graph.nodes]


def test_random_strides() -> None:
    rng, given_up = random.Random(0), 0
    for _ in range(150):
        counts = [(rng.randint(1, 12), rng.randint(1, 20)) for _ in range(rng.randint(1, 3))]
        start = rng.randint(0, 3)
        places = [
            start + sum(i * s for i, (_, s) in zip(at, counts, strict=True))
            for at in itertools.product(*(range(n) for n, _ in counts))
        ]
        shape = [rng.randint(1, 2), max(places) + 1 + rng.randint(0, 5), rng.randint(1, 2)]
        try:
            found, expected, _ = taken(tuple(shape), 1, places)
        except NotExpressible:
            given_up += 1
            continue
        np.testing.assert_array_equal(found, expected)
    assert given_up < 60


def test_windows_of_a_few_steps_are_slices_of_blocks() -> None:
    places = [4 * i + j for i in range(20) for j in range(8)]
    found, expected, ops = taken((2, 84, 3), 1, places)
    np.testing.assert_array_equal(found, expected)
    assert ops.count("slice") == 2


@pytest.mark.parametrize("places", [[3, 2, 1, 0] * 9, [0, 1, 2, 4, 5, 7] * 9, [0, 0, 0, 1, 1, 1] * 9])
def test_other_places_have_no_strides(places: list[int]) -> None:
    assert strides(places) is None
    with pytest.raises(NotExpressible, match="more than 8 runs"):
        taken((9,), 0, places)
