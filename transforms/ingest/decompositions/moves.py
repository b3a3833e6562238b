"""Borders and triangles."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# torch is not typed strictly enough for these.

from __future__ import annotations

import torch

# Elements of a mirrored border, each of them a slice.
_MOST_MIRRORED = 8


def pad(x, amounts, mode="constant", value=None):
    """What lies around `x`: a number, or elements of it: mirrored, those of its edge, or of its other end.

    Slices side by side, so that nothing is looked up; a wide mirror stays with PyTorch.
    """
    if mode == "constant":
        return torch.ops.aten.constant_pad_nd(x, amounts, 0.0 if value is None else value)
    if min(amounts) < 0 or (mode == "reflect" and max(amounts) > _MOST_MIRRORED):
        return NotImplemented
    for number in range(len(amounts) // 2):
        dim, (low, high) = x.dim() - 1 - number, amounts[2 * number : 2 * number + 2]
        last = x.shape[dim] - 1
        if mode == "reflect":
            before = [x.narrow(dim, i, 1) for i in range(low, 0, -1)]
            behind = [x.narrow(dim, last - i, 1) for i in range(1, high + 1)]
        elif mode == "replicate":
            shape = [-1] * x.dim()
            before, behind = (
                [x.narrow(dim, at, 1).expand(*shape[:dim], n, *shape[dim + 1 :])] if n else []
                for at, n in ((0, low), (last, high))
            )
        elif mode == "circular":
            before = [x.narrow(dim, last + 1 - low, low)] if low else []
            behind = [x.narrow(dim, 0, high)] if high else []
        else:
            return NotImplemented
        if before or behind:
            x = torch.cat([*before, x, *behind], dim)
    return x


def triu(x, diagonal=0):
    """Zero below the diagonal."""
    rows = torch.arange(x.shape[-2], device=x.device)[:, None]
    return x.masked_fill(torch.arange(x.shape[-1], device=x.device) - rows < diagonal, 0)


def tril(x, diagonal=0):
    """Zero above the diagonal."""
    rows = torch.arange(x.shape[-2], device=x.device)[:, None]
    return x.masked_fill(torch.arange(x.shape[-1], device=x.device) - rows > diagonal, 0)


def identity(x, *args, **kwargs):
    """Dropout in evaluation mode."""
    return x.clone()
