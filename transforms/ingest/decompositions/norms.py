"""Norms, statistics and means, in two passes: the mean, then the mean of squares."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# torch is not typed strictly enough for these.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = Any


def wide(x: Tensor) -> Tensor:
    """`x` in the precision in which PyTorch's kernels compute on it: f32 for f16 and bf16."""
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _normalized(x: Tensor, dims: Sequence[int], eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over `dims`, the mean first and then the mean of squares."""
    centered = x - x.mean(dims, keepdim=True)
    return centered * torch.rsqrt((centered * centered).mean(dims, keepdim=True) + eps)


def _scaled(y: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: Any) -> Tensor:
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(dtype)


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    """Over the last dimensions."""
    return _scaled(_normalized(wide(x), list(range(-len(shape), 0)), eps), weight, bias, x.dtype)


def native_layer_norm(x, shape, weight, bias, eps):
    """`layer_norm`, with the mean and the reciprocal deviation as extra results."""
    y = wide(x)
    dims = list(range(-len(shape), 0))
    mean = y.mean(dims, keepdim=True)
    rstd = torch.rsqrt(((y - mean) * (y - mean)).mean(dims, keepdim=True) + eps)
    return layer_norm(x, shape, weight, bias, eps), mean, rstd


def rms_norm(x, shape, weight=None, eps=None):
    """x / sqrt(mean of squares + eps), over the last dimensions."""
    y = wide(x)
    eps = torch.finfo(y.dtype).eps if eps is None else eps
    scale = torch.rsqrt((y * y).mean(list(range(-len(shape), 0)), keepdim=True) + eps)
    return _scaled(y * scale, weight, None, x.dtype)


def _per_channel(p: Tensor | None, x: Tensor) -> Tensor | None:
    return None if p is None else p.reshape([1, -1, *([1] * (x.dim() - 2))])


def group_norm(x, groups, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    """Over each group of channels and all positions."""
    grouped = wide(x).reshape([x.shape[0], groups, -1])
    y = _normalized(grouped, [2], eps).reshape(x.shape)
    return _scaled(y, _per_channel(weight, x), _per_channel(bias, x), x.dtype)


def native_group_norm(x, weight, bias, n, c, hw, groups, eps):
    """`group_norm`, with statistics as extra results."""
    grouped = wide(x).reshape([n, groups, -1])
    mean = grouped.mean([2])
    rstd = torch.rsqrt(((grouped - mean[..., None]) * (grouped - mean[..., None])).mean([2]) + eps)
    return group_norm(x, groups, weight, bias, eps), mean, rstd


def instance_norm(x, weight, bias, mean, var, use_input_stats, momentum, eps, cudnn_enabled):
    """Over all positions of a channel."""
    if not use_input_stats:
        return batch_norm(x, weight, bias, mean, var, False, momentum, eps, False)
    y = _normalized(wide(x), list(range(2, x.dim())), eps)
    return _scaled(y, _per_channel(weight, x), _per_channel(bias, x), x.dtype)


def batch_norm(x, weight, bias, mean, var, training, momentum, eps, cudnn_enabled):
    """By running statistics, or over the batch and all positions."""
    y = wide(x)
    if training or mean is None:
        y = _normalized(y, [0, *range(2, x.dim())], eps)
    else:
        y = (y - _per_channel(mean, x)) * _per_channel(torch.rsqrt(var + eps), x)
    return _scaled(y, _per_channel(weight, x), _per_channel(bias, x), x.dtype)


def native_batch_norm_no_training(x, weight, bias, mean, var, momentum, eps):
    """`batch_norm` by running statistics, with two empty, unused results."""
    empty = x.new_empty([0])
    return batch_norm(x, weight, bias, mean, var, False, momentum, eps, False), empty, empty


def _variance(x: Tensor, dim: Any, correction: float, keepdim: bool) -> tuple[Tensor, Tensor]:
    y = wide(x)
    dims = list(range(x.dim())) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    mean = y.mean(dims, keepdim=True)
    count = math.prod(x.shape[d] for d in dims)
    if count <= correction:
        raise ValueError(f"a variance of {count} elements with correction {correction}")
    squares = ((y - mean) * (y - mean)).sum(dims, keepdim=keepdim) / (count - correction)
    kept = (
        mean
        if keepdim
        else mean.reshape([e for d, e in enumerate(x.shape) if d not in {k % x.dim() for k in dims}])
    )
    return squares.to(x.dtype), kept.to(x.dtype)


def var_correction(x, dim=None, *, correction=None, keepdim=False):
    """Two passes: the mean, then the mean of squares."""
    return _variance(x, dim, 1 if correction is None else correction, keepdim)[0]


def var_dim(x, dim, unbiased=True, keepdim=False):
    """As `var_correction`."""
    return _variance(x, dim, int(unbiased), keepdim)[0]


def std_correction(x, dim=None, *, correction=None, keepdim=False):
    """The root of the variance, computed in f32, as f16 may hold the root but not the variance."""
    return var_correction(wide(x), dim, correction=correction, keepdim=keepdim).sqrt().to(x.dtype)


def var_mean_correction(x, dim=None, *, correction=None, keepdim=False):
    """The variance and the mean."""
    return _variance(x, dim, 1 if correction is None else correction, keepdim)


def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    """The 1-, 2- and infinity-norms."""
    dims = list(range(x.dim())) if dim is None else dim
    y = wide(x if dtype is None else x.to(dtype))
    norms = {
        1: lambda: torch.abs(y).sum(dims, keepdim=keepdim),
        2: lambda: (y * y).sum(dims, keepdim=keepdim).sqrt(),
        math.inf: lambda: torch.abs(y).amax(dims, keepdim=keepdim),
    }
    return norms[ord]().to(x.dtype if dtype is None else dtype) if ord in norms else NotImplemented


def cosine_similarity(x, y, dim=1, eps=1e-8):
    """The product of both, each divided by its 2-norm, which is at least `eps`."""
    x, y = torch.broadcast_tensors(x, y)
    norms = [torch.clamp_min((v * v).sum(dim, keepdim=True).sqrt(), eps) for v in (x, y)]
    return (x / norms[0] * (y / norms[1])).sum(dim)


def adaptive_average(x, size):
    """The mean over all positions, where the output has one position."""
    if any(s != 1 for s in size):
        return NotImplemented
    return x.mean(list(range(-len(size), 0)), keepdim=True)
