# pyright: basic, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
"""Attention with the keys split between blocks, for few queries (after FlashDecoding).

Each block takes BLOCK_M queries of one head and one of SPLITS parts of the keys, and writes its unnormalised sum,
maximum and total; a second kernel joins the parts. The constants are set where this file is copied to.
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
SPLITS = tl.constexpr(2)
WARPS = 4
STAGES = 2


@triton.jit
def split_attention(q_ptr, k_ptr, v_ptr, part_ptr, largest_ptr, total_ptr):
    """One block of queries of one head over one part of the keys."""
    head = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inner = tl.arange(0, D)
    q = tl.load(q_ptr + head * M * D + rows[:, None] * D + inner[None, :], mask=rows[:, None] < M, other=0.0)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    factor: tl.constexpr = SCALE * 1.4426950408889634
    part: tl.constexpr = N // SPLITS
    for start in range(0, part, BLOCK_N):
        keys = split * part + start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + head * N * D + keys[None, :] * K_STRIDE + inner[:, None] * K_INNER)
        scores = tl.dot(q, k) * factor
        new = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new[:, None])
        rescale = tl.exp2(largest - new)
        total = total * rescale + tl.sum(weights, axis=1)
        v = tl.load(v_ptr + head * N * D + keys[:, None] * D + inner[None, :])
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None])
        largest = new
    at = (head * SPLITS + split) * M + rows
    tl.store(part_ptr + at[:, None] * D + inner[None, :], acc, mask=rows[:, None] < M)
    tl.store(largest_ptr + at, largest, mask=rows < M)
    tl.store(total_ptr + at, total, mask=rows < M)


@triton.jit
def join_parts(part_ptr, largest_ptr, total_ptr, o_ptr):
    """One query of one head."""
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0)
    inner = tl.arange(0, D)
    at = (head * SPLITS + tl.arange(0, SPLITS)) * M + row
    largest = tl.load(largest_ptr + at)
    weight = tl.exp2(largest - tl.max(largest, axis=0))
    total = tl.sum(tl.load(total_ptr + at) * weight, axis=0)
    parts = tl.load(part_ptr + at[:, None] * D + inner[None, :])
    out = tl.sum(parts * weight[:, None], axis=0) / total
    tl.store(o_ptr + (head * M + row) * D + inner, out.to(o_ptr.dtype.element_ty))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of q (..., M, D) over k and v; all contiguous."""
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    parts = (HEADS.value, SPLITS.value, M.value)
    part = torch.empty((*parts, D.value), dtype=torch.float32, device=q.device)
    largest = torch.empty(parts, dtype=torch.float32, device=q.device)
    total = torch.empty(parts, dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(M.value, BLOCK_M.value), SPLITS.value, HEADS.value)
    split_attention[grid](q, k, v, part, largest, total, num_warps=WARPS, num_stages=STAGES)
    join_parts[(M.value, HEADS.value)](part, largest, total, out, num_warps=1, num_stages=1)
    return out
