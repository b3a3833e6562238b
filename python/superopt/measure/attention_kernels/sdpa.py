# pyright: basic, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false
"""PyTorch's scaled_dot_product_attention by one of its backends, or by the one that it chooses."""

from __future__ import annotations

import contextlib

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SCALE = 1.0
BACKEND = ""
K_TRANSPOSED = False


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of q (..., M, D) over k and v; the heads of a group are rows of one head."""
    k = k.mT if K_TRANSPOSED else k
    k4, v4 = (x.reshape(1, -1, *x.shape[-2:]) for x in (k, v))
    q4 = q.reshape(1, v4.shape[1], -1, q.shape[-1])
    chosen = sdpa_kernel(getattr(SDPBackend, BACKEND)) if BACKEND else contextlib.nullcontext()
    with chosen:
        return scaled_dot_product_attention(q4, k4, v4, scale=SCALE).reshape(q.shape)
