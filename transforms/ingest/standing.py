"""Modules with kernels that stand in a module that is read: what is read is what they stand for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_READ: ContextVar[bool] = ContextVar("superopt.read", default=False)


class Standing:
    """A module that computes what its `original` does, and shares its parameters, buffers and children.

    Its `forward` is that of the original while a module around it `is_read`.
    """

    original: Any


@contextmanager
def read() -> Generator[None]:
    """Within it, a module is called to be read."""
    before = _READ.set(True)
    try:
        yield
    finally:
        _READ.reset(before)


def is_read() -> bool:
    """Whether a module is being called to be read, and not for its results."""
    return _READ.get()


# A graph of torch.compile is not one that is read.
is_read._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def stood_for(module: Any) -> Any:
    """The module that this one stands for, by itself or by another one; else it is the module itself."""
    while isinstance(module, Standing):
        module = module.original
    return module
