"""Selections of what may be undefined where it is not chosen, and comparisons of it, stay PyTorch's; others are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from superopt.transforms.ingest import from_torch  # noqa: E402

X, M = torch.randn(8, 16), torch.randn(8, 16)
GUARDED: dict[str, Callable[[Any, Any], Any]] = {
    "quotient": lambda x, m: torch.where(m != 0, x / m, 0.0),
    "logarithm": lambda x, m: torch.where(x > 0, torch.log(x), m),
    "root": lambda x, m: torch.sqrt(x).masked_fill(x < 0, 0.0),
    "root within": lambda x, m: torch.where(x > 0, torch.sqrt(x) * 2 + m, m),
    "power": lambda x, m: torch.where(x > 0, x**1.5, m),
    "constant mask": lambda x, m: torch.where(torch.ones(8, 16).tril().bool(), torch.log(x), 0.0),
    "mean of quotients": lambda x, m: torch.where(m > 0, (x / m).mean(-1, keepdim=True), m),
}
ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "comparison of a logarithm": lambda x, m: torch.where(torch.log(x) > 0, x, m),
    "larger than a quotient": lambda x, m: torch.where(x / m > x, x / m, x),
    "threshold of a root": lambda x, m: torch.nn.functional.threshold(torch.sqrt(x), 0.5, 2.0) + m,
    "sign of a quotient": lambda x, m: torch.sign(x / m),
    "a quotient as a truth value": lambda x, m: torch.where((x / m).bool(), x, m),
}
DEFINED: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda x, m: torch.where(m > 0, torch.softmax(x, -1), 0.0),
    "norm": lambda x, m: torch.where(m > 0, x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5), x),
    "root of a square": lambda x, m: torch.sqrt(x * x).masked_fill(m > 0, 0.0),
    "comparison of a norm": lambda x, m: torch.where((x * x).sum(-1, keepdim=True).sqrt() > 1, x, m),
    "constant mask": lambda x, m: (
        torch.where(torch.arange(16) < 8, torch.log(x), m) + torch.where(m > 0, x, m)
    ),
    "quotient by a number": lambda x, m: torch.where(m > 0, x / 3, m),
    "sigmoid": lambda x, m: torch.where(m > 0, x * torch.sigmoid(x), m),
}


def operators(body: Callable[[Any, Any], Any]) -> list[str]:
    class Module(torch.nn.Module):
        def forward(self, x: Any, m: Any) -> Any:
            return body(x, m)

    return [n.op for n in from_torch(Module(), (X, M)).graph.nodes]


@pytest.mark.parametrize("name", GUARDED)
def test_what_may_be_undefined_is_not_selected(name: str):
    found = operators(GUARDED[name])
    assert "select" not in found
    assert "extern" in found


@pytest.mark.parametrize("name", ASKED)
def test_what_may_be_undefined_is_not_compared(name: str):
    found = operators(ASKED[name])
    assert not {"step", "max"} & {*found}
    assert "extern" in found


@pytest.mark.parametrize("name", DEFINED)
def test_what_is_defined_is(name: str):
    found = operators(DEFINED[name])
    assert "select" in found
    assert "extern" not in found
