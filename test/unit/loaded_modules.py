"""Modules that a test loads, and that no other test is to see."""

from __future__ import annotations

import sys

import pytest


def forget_modules(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Until the end of a test, modules of these names are not loaded; what it loads of them goes with it.

    `delitem` alone restores nothing where there was nothing.
    """
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
