"""What every test shares, and what none does.

Tests share no store, with each other or with the user: those that want one name a folder of their own. Random
examples are the same ones in each run, and have the time that they need, on whatever machine. So are the inputs of the
numeric gate, which a user's runs draw afresh (`test_numerics_seeds.py` and `test_numerics.py` draw many).
"""

from __future__ import annotations

import os
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

from superopt.numerics import float_gate

os.environ["SUPEROPT_STORE"] = "none"
settings.register_profile(
    "superopt",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("superopt")


@pytest.fixture(autouse=True)
def same_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    monkeypatch.setattr(float_gate, "fresh_nonce", lambda: f"{next(numbers):016x}")
