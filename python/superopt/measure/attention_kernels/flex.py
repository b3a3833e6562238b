# pyright: basic, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false
"""PyTorch's FlexAttention, compiled."""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import flex_attention

SCALE = 1.0
K_TRANSPOSED = False
COMPILED = torch.compile(flex_attention, dynamic=False)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of q (..., M, D) over k and v; the heads of a group are rows of one head."""
    k = k.mT.contiguous() if K_TRANSPOSED else k
    k4, v4 = (x.reshape(1, -1, *x.shape[-2:]) for x in (k, v))
    q4 = q.reshape(1, v4.shape[1], -1, q.shape[-1])
    return COMPILED(q4, k4, v4, scale=SCALE).reshape(q.shape)
