"""Modules with one guard taken out, for tests that show what it stops."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType


def weakened(name: str, guard: str, instead: str) -> ModuleType:
    """A copy of the module `name`, in which `instead` stands for the only occurrence of the text `guard`."""
    module = importlib.import_module(name)
    source = inspect.getsource(module)
    assert source.count(guard) == 1, f"{name} has {source.count(guard)} times: {guard}"
    copy = ModuleType(name)
    copy.__file__ = module.__file__
    exec(compile(source.replace(guard, instead), f"{name} without '{guard}'", "exec"), copy.__dict__)
    return copy
