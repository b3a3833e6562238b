"""PTX, TTIR, Triton's interpreter and numpy on random kernels; `make agree` is the whole run."""

from __future__ import annotations

import importlib
import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.verify.domains import FloatDomain, round_to
from superopt.verify.evaluate import evaluate

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[1] / "random"))

agreement: Any = importlib.import_module("agreement")


@pytest.fixture(scope="module")
def campaign() -> Any:
    return agreement.Campaign(0)


def test_two_programs_agree_and_their_faults_are_found(campaign: Any):
    found = agreement.total([campaign.row(n) for n in (0, 2)])
    assert found["different"] == []
    counts = found["counts"]
    assert counts["TTIR: agrees"] == counts["interpreter: programs"] == counts["faults in programs"] == 2
    for gpu in agreement.TARGETS:
        assert counts[f"PTX {gpu}: agrees"] == found["kernels"]
    assert sum(n for what, n in counts.items() if what.startswith("fault in PTX")) >= 2


@pytest.mark.parametrize("blind", ["TTIR", "interpreter"])
def test_a_check_that_sees_nothing_is_noticed(campaign: Any, monkeypatch: pytest.MonkeyPatch, blind: str):
    """The planted faults tell: each comparison is replaced by one that accepts everything."""

    def accept(*_: object) -> bool:
        return False

    if blind == "TTIR":
        monkeypatch.setattr(agreement, "verify_compiled", accept)
    else:
        monkeypatch.setattr(campaign, "_wrong", accept)
    assert campaign.row(0)["different"] != []


def test_ptx_that_stores_less_than_its_ttir_is_noticed(campaign: Any, monkeypatch: pytest.MonkeyPatch):
    def without_stores(made: Any, _: Any) -> Any:
        changed = (replace(c, ptx=re.sub(r".*st\.global.*\n", "", c.ptx)) for c in made.compiled)
        return replace(made, compiled=tuple(changed))

    monkeypatch.setattr(agreement, "ordered", without_stores)
    assert len(campaign.row(0)["different"]) >= len(agreement.TARGETS)


def test_programs_are_what_numpy_says():
    """superopt's evaluator in fp64 gives numpy's numbers, and dtypes round alike."""
    operators: set[str] = set()
    for number in range(60):
        program = agreement.drawn(random.Random(f"numpy {number}"))
        domain = FloatDomain()
        (made,) = evaluate(program.graph(), [domain.tensor(x) for x in program.inputs], domain)
        np.testing.assert_allclose(made.planes[0], program.values()[-1], rtol=1e-9, atol=1e-9)
        operators |= {s.op for s in program.steps}
        wrong = agreement.faulty(program, random.Random(number))
        if wrong is not None:
            off: Any = np.abs(wrong.values()[-1] - program.values()[-1]).max()
            assert off > 4 * agreement.tolerance(program)
    assert operators >= {"matmul", "transpose", "concat", "select", "reduce_sum", "add", "tanh"}
    x = np.random.default_rng(0).normal(size=999)
    for dtype in ("f16", "bf16"):
        assert np.array_equal(agreement.rounded(x, dtype), round_to(x, dtype))
