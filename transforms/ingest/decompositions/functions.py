"""Functions of elements and rows, attention, and contractions of several operands."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# torch is not typed strictly enough for these.

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from superopt.transforms.ingest.decompositions.norms import wide

Tensor: TypeAlias = Any


def softmax(x, dim, dtype=None):
    """exp(x - max) / sum, with `amax` (the default is an argmax with an unused index)."""
    y = wide(x) if dtype is None else x.to(dtype)
    e = torch.exp(y - y.amax(dim, keepdim=True))
    return (e / e.sum(dim, keepdim=True)).to(x.dtype if dtype is None else dtype)


def log_softmax(x, dim, dtype=None):
    """(x - max) - log(sum of exp(x - max))"""
    y = wide(x) if dtype is None else x.to(dtype)
    centered = y - y.amax(dim, keepdim=True)
    out = centered - torch.log(torch.exp(centered).sum(dim, keepdim=True))
    return out.to(x.dtype if dtype is None else dtype)


def logsumexp(x, dim, keepdim=False):
    """max + log(sum of exp(x - max)), with a finite number for an infinite maximum: inf - inf is nan."""
    dims = [dim] if isinstance(dim, int) else list(dim)
    y = wide(x)
    most = torch.finfo(y.dtype).max
    top = y.amax(dims, keepdim=True).clamp(-most, most)
    out = (torch.log(torch.exp(y - top).sum(dims, keepdim=True)) + top).to(x.dtype)
    return out if keepdim else out.squeeze(dims)


def attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    """softmax(scale * query key^T + mask) value, as the operator's documentation defines it.

    A causal mask adds -inf: it never hides a whole row.
    """
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = wide(torch.matmul(query, key.transpose(-2, -1))) * scale
    rows, columns = scores.shape[-2:]
    if is_causal:
        hidden = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril().logical_not()
        bias = torch.zeros(rows, columns, dtype=scores.dtype, device=query.device)
        scores = scores + bias.masked_fill(hidden, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = softmax(scores, -1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # a row of which everything is hidden is zero
        weights = weights * attn_mask
    weights = weights.to(query.dtype)
    if dropout_p:
        weights = torch.dropout(weights, dropout_p, True)
    return torch.matmul(weights, value)


def stable_softplus(y: Tensor) -> Tensor:
    """log(1 + exp(y)) = max(y, 0) + log1p(exp(-|y|)), which neither overflows nor loses small terms next to 1."""
    return torch.relu(y) + torch.log1p(torch.exp(-torch.abs(y)))


def softplus(x, beta=1, threshold=20):
    """log(1 + exp(beta x)) / beta.

    Where beta x exceeds `threshold` PyTorch returns x itself. This case may be dropped where both differ by less
    than exp(-threshold) / beta, which is below the f32 rounding of x.
    """
    if math.exp(-threshold) > threshold * 2.0**-25:
        return NotImplemented
    return (stable_softplus(wide(x) * beta) / beta).to(x.dtype)


def log_sigmoid(x):
    """-log(1 + exp(-x))"""
    return (-stable_softplus(-wide(x))).to(x.dtype)


def logaddexp(x, y):
    """log(exp(x) + exp(y)) = max(x, y) + log1p(exp(-|x - y|))"""
    a, b = wide(x), wide(y)
    difference = torch.abs(a - b)
    return (torch.maximum(a, b) + torch.log1p(torch.exp(-difference))).to(torch.result_type(x, y))


def gelu(x, *, approximate="none"):
    """The tanh form; the other form is an operator of the table."""
    if approximate == "none":
        return NotImplemented
    y = wide(x)
    inner = (y + y * y * y * 0.044715) * math.sqrt(2 / math.pi)
    return (y * 0.5 * (torch.tanh(inner) + 1)).to(x.dtype)


def leaky_relu(x, negative_slope=0.01):
    """max(x, 0) + slope * min(x, 0)"""
    return torch.relu(x) + torch.clamp_max(x, 0) * negative_slope


def elu(x, alpha: float = 1, scale: float = 1, input_scale: float = 1):
    """scale * (max(x, 0) + alpha * (exp(input_scale * min(x, 0)) - 1))"""
    y = wide(x)
    low = torch.expm1(torch.clamp_max(y, 0) * input_scale) * alpha
    return ((torch.relu(y) + low) * scale).to(x.dtype)


def selu(x):
    """`elu` with the constants that keep mean and variance."""
    return elu(x, 1.6732632423543772, 1.0507009873554805)


def celu(x, alpha=1.0):
    """max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)"""
    return elu(x, alpha, 1, 1 / alpha)


def prelu(x, weight):
    """`leaky_relu` with a slope for each channel, or one."""
    slope = weight.reshape([1, -1, *([1] * (x.dim() - 2))] if x.dim() > 1 else [])
    return torch.relu(x) + torch.clamp_max(x, 0) * slope


def hardswish(x):
    """x * clamp(x + 3, 0, 6) / 6"""
    y = wide(x)
    return (y * torch.clamp(y + 3, 0, 6) / 6).to(x.dtype)


def hardsigmoid(x):
    """clamp(x + 3, 0, 6) / 6"""
    return torch.clamp(x + 3, 0, 6) / 6


def mish(x):
    """x * tanh(log(1 + exp(x)))"""
    y = wide(x)
    return (y * torch.tanh(stable_softplus(y))).to(x.dtype)


def glu(x, dim=-1):
    """The first half times the sigmoid of the second."""
    a, b = x.chunk(2, dim)
    return a * torch.sigmoid(b)


def einsum(equation, operands, *, path=None):
    """Contractions of two operands at a time, from left to right."""
    if len(operands) <= 2 or "..." in equation or "->" not in equation:
        return NotImplemented
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    result, term = operands[0], terms[0]
    for i in range(1, len(terms)):
        later = set(output).union(*terms[i + 1 :])
        joined = (
            output
            if i == len(terms) - 1
            else "".join(c for c in dict.fromkeys(term + terms[i]) if c in later)
        )
        result = torch.einsum(f"{term},{terms[i]}->{joined}", result, operands[i])
        term = joined
    return result
