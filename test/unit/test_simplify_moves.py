"""What moves data is simplified while a graph is built, and gives the same elements, against numpy."""

from __future__ import annotations

import math
import random

import numpy as np

from superopt.diagnostics import Diagnostics
from superopt.errors import Location
from superopt.program import Node, TensorType
from superopt.transforms.ingest.builder import GraphBuilder
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate


def reshaped_slice(
    shape: tuple[int, ...], dim: int, start: int, size: int, to: tuple[int, ...]
) -> list[Node]:
    """The operators of a slice that is reshaped, once they give what numpy does."""
    build = GraphBuilder("f", Diagnostics())
    x = build.add_input("x", TensorType(shape, "f32"))
    graph = build.finish([build.reshape(build.slice(x, dim, start, size), to)], Location())
    array, domain = np.arange(float(math.prod(shape))).reshape(shape), FloatDomain()
    (found,) = evaluate(graph, [domain.tensor(array)], domain)
    np.testing.assert_array_equal(found.planes[0], array.take(range(start, start + size), dim).reshape(to))
    return graph.nodes


def test_heads_of_joint_projections_are_slices_of_all_heads() -> None:
    first, second = reshaped_slice((1, 1, 4800), 2, 1600, 1600, (1, 25, 1, 64))
    assert (first.op, second.op) == ("reshape", "slice")
    assert first.result.shape == (1, 75, 1, 64)
    assert second.attrs["offsets"] == (0, 25, 0, 0)


def test_slices_that_begin_or_end_within_a_part_stay() -> None:
    for start, columns in ((3, 24), (8, 27)):
        first, _ = reshaped_slice((2, columns), 1, start, 16, (2, 2, 8))
        assert first.op == "slice"


def test_dimensions_that_are_merged_are_cut_before() -> None:
    first, _ = reshaped_slice((6, 4), 0, 2, 3, (12,))
    assert first.op == "slice"


def test_random_slices() -> None:
    rng, turned = random.Random(0), 0
    for _ in range(300):
        shape = [rng.choice([1, 2, 3, 4, 6, 8, 12]) for _ in range(rng.randint(1, 4))]
        dim = rng.randrange(len(shape))
        size = rng.randint(1, shape[dim])
        start = rng.randint(0, shape[dim] - size)
        left = math.prod(size if d == dim else n for d, n in enumerate(shape))
        to: list[int] = []
        while left > 1 or (not to and rng.random() < 0.5):
            to.append(rng.choice([n for n in range(1, left + 1) if left % n == 0]))
            left //= to[-1]
        made = reshaped_slice(tuple(shape), dim, start, size, tuple(to))
        turned += [n.op for n in made] == ["reshape", "slice"]
    assert turned > 10
