"""Tests share no store, with each other or with the user: those that want one name a folder of their own."""

from __future__ import annotations

import os

os.environ["SUPEROPT_STORE"] = "none"
