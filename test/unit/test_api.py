"""A PyTorch module, optimized from Python, gives what eager gives."""

from __future__ import annotations

import pytest

from superopt.api import optimize

torch = pytest.importorskip("torch")


def test_an_optimized_module_is_callable() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.SiLU())
    x = torch.randn(16, 32)
    result = optimize(module, inputs=(x,))
    assert result.report.improved
    assert result.certificate.delta is not None
    assert torch.allclose(result(x), module(x), atol=1e-5)
