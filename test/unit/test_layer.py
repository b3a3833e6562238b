"""A decoder layer, too large for one search and with operators that none takes, from module to running kernels."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Modules that derive from one of an untyped package.

from __future__ import annotations

from typing import Any

import pytest

from superopt import optimize

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

WIDTH, HEADS, TOKENS, HIDDEN = 64, 4, 16, 128


def rotated(x: Any) -> Any:
    """Halves turned against each other, as rotary embeddings do: slices and a concatenation."""
    left, right = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat([-right, left], -1)


class Layer(torch.nn.Module):
    """Pre-norm attention with rotary embeddings and a causal mask, and a gated network, both with residuals."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shapes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, HIDDEN)] * 2 + [(HIDDEN, WIDTH)]
        self.weights = torch.nn.ParameterList(
            [torch.randn(s, generator=generator) / s[0] ** 0.5 for s in shapes]
        )
        angles = torch.outer(torch.arange(TOKENS), 0.5 ** torch.arange(WIDTH // HEADS))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.full((TOKENS, TOKENS), -1e4).triu(1))

    def forward(self, x: Any) -> Any:
        q, k, v, o, gate, up, down = self.weights
        n = self.normalized(x)
        queries, keys, values = ((n @ w).reshape(TOKENS, HEADS, -1).transpose(0, 1) for w in (q, k, v))
        queries, keys = (t * self.cos + rotated(t) * self.sin for t in (queries, keys))
        scores = queries @ keys.transpose(1, 2) * 0.25 + self.mask
        mixed = (torch.softmax(scores, -1) @ values).transpose(0, 1).reshape(TOKENS, WIDTH)
        x = x + mixed @ o
        n = self.normalized(x)
        return x + (torch.nn.functional.silu(n @ gate) * (n @ up)) @ down

    def normalized(self, x: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def test_a_layer_is_cut_searched_proved_stitched_and_run() -> None:
    layer = Layer().eval()
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
    found = optimize(layer, (x,), budget=120, store=None, optimizers=("mugraph",))
    assert found.report.segments > 1
    assert found.report.improved
    assert found.report.predicted_seconds < 0.6 * found.report.input_predicted_seconds
    assert sum(n.op == "custom" for n in found.outcome.optimized.nodes) >= 3
    with torch.no_grad():
        expected = layer(x)
        assert torch.allclose(found(x), expected, rtol=0, atol=2e-5 * float(expected.abs().max()))
