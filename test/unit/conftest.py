"""What every test shares, and what none does.

Tests share no store, with each other or with the user: those that want one name a folder of their own. Nor have
they the user's secret. Random
examples are the same ones in each run, and have the time that they need, on whatever machine.
"""

from __future__ import annotations

import os
import tempfile

from hypothesis import HealthCheck, settings

os.environ["SUPEROPT_STORE"] = "none"
_STATE = tempfile.TemporaryDirectory(prefix="superopt-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name
settings.register_profile(
    "superopt",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("superopt")
