# pyright: basic, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false
"""Attention in one pass over the keys, the queries of a block kept on chip (after FlashAttention-2).

Each block takes BLOCK_M queries of one head and walks over all keys, BLOCK_N at a time, with a running
maximum and sum. The constants are set where this file is copied to.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

HEADS = tl.constexpr(1)
M = tl.constexpr(16)
N = tl.constexpr(64)
D = tl.constexpr(16)
SCALE = tl.constexpr(1.0)
# Strides of a key and of an element of it: keys may be stored as columns.
K_STRIDE = tl.constexpr(16)
K_INNER = tl.constexpr(1)
BLOCK_M = tl.constexpr(16)
BLOCK_N = tl.constexpr(16)
WARPS = 4
STAGES = 2


@triton.jit
def flash_attention(q_ptr, k_ptr, v_ptr, o_ptr):
    """One block of queries of one head."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inner = tl.arange(0, D)
    at = head * M * D + rows[:, None] * D + inner[None, :]
    q = tl.load(q_ptr + at, mask=rows[:, None] < M, other=0.0)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    factor: tl.constexpr = SCALE * 1.4426950408889634
    for start in range(0, N, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = tl.load(
            k_ptr + head * N * D + keys[None, :] * K_STRIDE + inner[:, None] * K_INNER,
            mask=keys[None, :] < N,
            other=0.0,
        )
        scores = tl.where(keys[None, :] < N, tl.dot(q, k) * factor, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new[:, None])
        rescale = tl.exp2(largest - new)
        total = total * rescale + tl.sum(weights, axis=1)
        v = tl.load(
            v_ptr + head * N * D + keys[:, None] * D + inner[None, :], mask=keys[:, None] < N, other=0.0
        )
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None])
        largest = new
    out = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + at, out, mask=rows[:, None] < M)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of q (..., M, D) over k and v; all contiguous."""
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    grid = (triton.cdiv(M.value, BLOCK_M.value), HEADS.value)
    flash_attention[grid](q, k, v, out, num_warps=WARPS, num_stages=STAGES)
    return out
