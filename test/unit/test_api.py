"""The Python API on programs of PyTorch and MLIR."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.api import optimize

torch: Any = pytest.importorskip("torch")


def test_an_optimized_module_is_callable() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.SiLU())
    x = torch.randn(16, 32)
    result = optimize(module, inputs=(x,), interpret=True, against="operators")
    assert result.report.improved
    assert result.certificate.delta is not None
    with torch.no_grad():
        assert torch.allclose(result(x), module(x), atol=1e-5)
    assert result.calls["kernels"] == 1
