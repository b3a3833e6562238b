"""Helpers of tests on PyTorch modules: a function as a module, numbers, and how far results are off."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")


class Fn(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def rand(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.rand(*shape, generator=generator) * 4 - 2


def close(ours: list[Any], eager: Any) -> float:
    expected = [eager] if isinstance(eager, torch.Tensor) else list(eager)
    assert [tuple(o.shape) for o in ours] == [tuple(e.shape) for e in expected]
    return max(float((o - e.double()).abs().max()) for o, e in zip(ours, expected, strict=True))
