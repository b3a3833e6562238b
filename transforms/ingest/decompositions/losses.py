"""Losses, of each element or by classes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# torch is not typed strictly enough for these.

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from superopt.transforms.ingest.decompositions.functions import log_softmax, stable_softplus
from superopt.transforms.ingest.decompositions.norms import wide

Tensor: TypeAlias = Any

# Elements of which one is picked by a sum, for which no kernel loads more: the numbers of the classes are a ramp.
# 1,024 rows of 50,257 take 66 CPU s in all.
MOST_PICKED = 1 << 27


def binary_cross_entropy_with_logits(x, target, weight=None, pos_weight=None, reduction=1):
    """(1 - target) x + (1 + (pos_weight - 1) target) log(1 + exp(-x)), weighted, its mean or its sum."""
    y = wide(x)
    share = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * y + share * stable_softplus(-y)
    loss = loss if weight is None else loss * weight
    return {0: lambda: loss, 1: loss.mean, 2: loss.sum}[reduction]().to(x.dtype)


def l1_loss(x, target, reduction=1):
    """The absolute difference, its mean or its sum."""
    off = torch.abs(x - target)
    return {0: off, 1: off.mean(), 2: off.sum()}[reduction]


def mse_loss(x, target, reduction=1):
    """The square of the difference, its mean or its sum."""
    square = (x - target) * (x - target)
    return {0: square, 1: square.mean(), 2: square.sum()}[reduction]


def _picked(x: Tensor, target: Tensor, classes: int, ignored: int, most: int) -> Tensor:
    """x[target], the sum over all `classes` of x where the class is the target, beside whatever else reads x.

    Zero for a target that is no class. PyTorch picks from more than `most` elements.
    """
    if x.numel() > most:
        return -torch.ops.aten.nll_loss_nd(x, target, None, 0, ignored)
    shape = [-1 if d == classes else 1 for d in range(x.dim())]
    number = torch.arange(x.shape[classes], device=x.device).reshape(shape)
    return torch.where(number == target.unsqueeze(classes), wide(x), 0).sum(classes)


def _loss(off: Tensor, target: Tensor, weight: Tensor | None, like: Tensor, reduction: int, ignored: int):
    """What each of `target` costs, all, their (weighted) mean, or their sum; `off` is 0 where it is `ignored`."""
    counted = (target != ignored).to(off.dtype)
    if weight is not None:
        classes = 1 if like.dim() > 1 else 0
        each = wide(weight).reshape([-1 if d == classes else 1 for d in range(like.dim())])
        counted = counted * _picked(each, target, classes, ignored, like.numel())
        off = off * counted
    return {0: off, 1: off.sum() / counted.sum(), 2: off.sum()}[reduction].to(like.dtype)


def cross_entropy(
    x, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0, *, most_picked=MOST_PICKED
):
    """log(sum of exp(x - max)) + (max - x[target]).

    `nll_loss`, of what mostly is a logarithm, is left to PyTorch: a proof knows nothing of a selection from what
    may be undefined.

    Picked from the logits, and not from their `log_softmax`, which nothing else needs and no memory then holds.
    With `label_smoothing`, that share of it is the mean over all classes. PyTorch picks from more than
    `most_picked` logits.
    """
    if target.is_floating_point() or (label_smoothing and weight is not None):
        return NotImplemented
    classes = 1 if x.dim() > 1 else 0
    if weight is not None and x.numel() > most_picked:
        return torch.ops.aten.nll_loss_nd(log_softmax(x, classes), target, weight, reduction, ignore_index)
    y = wide(x)
    top = y.amax(classes, keepdim=True)
    centered = y - top
    # Rows that are ignored may hold anything, such as nan: they are left out, before the logarithm.
    counted = target != ignore_index
    total = torch.log(torch.where(counted, torch.exp(centered).sum(classes), 1))
    below = top.squeeze(classes) - _picked(x, target, classes, ignore_index, most_picked)
    off = total + torch.where(counted, below, 0)
    if label_smoothing:
        mean = torch.where(counted, centered.mean(classes), 0)
        off = off * (1 - label_smoothing) + (total - mean) * label_smoothing
    return _loss(off, target, weight, x, reduction, ignore_index)
