"""Verdicts of the numeric gate do not depend on the luck of its inputs, nor on that of a rounding.

`gate_programs.py` tries the same programs on as many nonces as one likes.
"""

from __future__ import annotations

import numpy as np
import pytest
from gate_programs import FAULTY, RIGHT, passed, product

from superopt.numerics import checking, float_gate
from superopt.numerics.checking import FACTOR, FACTOR_DRAWN, compare, drawn, farthest, make_inputs
from superopt.numerics.float_gate import input_specs
from superopt.numerics.rounding import RoundingModel
from superopt.program import KernelGraph
from superopt.transforms.lower import lower
from superopt.verify.domains import Array, FloatDomain, round_to

# Of one draw of the model, these fail on a few nonces in a hundred.
LUCK = ("over mean, one column f16", "over mean, one column bf16", "softmax f32", "online attention f32")


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_passes_whatever_is_drawn(name: str) -> None:
    nonces = range(100 if name in LUCK else 8)
    assert passed(RIGHT[name], nonces) == list(nonces)


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_program_fails_whatever_is_drawn(name: str) -> None:
    assert passed(FAULTY[name], range(3)) == []


@pytest.mark.parametrize("name", LUCK)
def test_of_one_draw_of_the_model_some_right_programs_fail(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "MODELS", 1)
    assert len(passed(RIGHT[name], range(100))) < 100


def test_what_overflows_by_luck_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotients of a mean that nearly vanishes reach the largest f16, in the program or in the candidate."""
    pair = RIGHT["quotients f16"]
    assert len(passed(pair, range(150))) == 150
    monkeypatch.setattr(checking, "MODELS", 1)
    monkeypatch.setitem(checking.LARGEST, "f16", 2 * 65504.0)
    assert len(passed(pair, range(150))) < 150


def test_accumulation_in_f16_is_refused() -> None:
    graph = product("f16", depth=2048)
    for seed in range(10):
        x, w = (round_to(i, "f16") for i in make_inputs(input_specs(graph), "ordinary", seed))
        reference = float_gate.run(graph, [x, w], FloatDomain())
        total = np.zeros(reference[0].shape, np.float16)
        for i in range(x.shape[1]):
            total = (total + (x[:, i : i + 1] * w[i : i + 1]).astype(np.float16)).astype(np.float16)
        (row,) = drawn(
            lambda models, total=total, reference=reference: [
                compare("ordinary", "o", "f16", total, reference[0], models[0])
            ],
            reference,
            lambda draw, x=x, w=w: float_gate.run(graph, [x, w], RoundingModel(draw=draw)),
        )
        assert not row.passed


def test_the_draw_that_allows_most_counts() -> None:
    reference = np.zeros(5)
    first = np.array([1.0, -1, np.nan, 2, 3])
    other = np.array([-4.0, 0.5, 1, np.inf, 5])
    share = FACTOR_DRAWN / FACTOR
    np.testing.assert_array_equal(
        farthest(reference, first, other), [-4.0 * share, -1.0, np.nan, np.inf, 3.0]
    )


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_random_rounding_gives_a_neighbour_and_the_number_on_average(dtype: str) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(50).astype(np.float32) * np.float32(10.0) ** rng.integers(-7, 4, 50)
    x = np.repeat(numbers[:, None], 4000, axis=1)
    made = RoundingModel(draw=3).stored(FloatDomain(faithful=True).tensor(x), dtype).planes[0]
    np.testing.assert_array_equal(made, round_to(made, dtype))
    for number, row in zip(numbers, made, strict=True):
        found = np.unique(row)
        gap = np.ptp(found)
        assert len(found) <= 2
        assert found[0] <= number <= found[-1] or len(found) == 1
        assert abs(row.mean() - number) <= 0.04 * gap + 1e-3 * abs(number)
    exact = round_to(x, dtype)
    again = RoundingModel(draw=3).stored(FloatDomain(faithful=True).tensor(exact), dtype).planes[0]
    np.testing.assert_array_equal(again, exact)


def test_inputs_are_others_in_each_run_and_those_of_a_nonce_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, given = float_gate.run, list[bytes]()

    def run(graph: KernelGraph, inputs: list[Array], domain: FloatDomain) -> list[Array]:
        given.append(inputs[0].tobytes())
        return kept(graph, inputs, domain)

    monkeypatch.setattr(float_gate, "run", run)
    original = product("f32")
    lowered, first = lower(original), list[bytes]()
    nonces: list[str] = []
    for nonce in (None, None, "again", "again"):
        given.clear()
        nonces.append(float_gate.gate(original, lowered, nonce=nonce, distributions=["ordinary"]).nonce)
        first.append(given[0])
    assert len({*nonces}) == 3
    assert len({*first}) == 3
    assert first[2] == first[3]
