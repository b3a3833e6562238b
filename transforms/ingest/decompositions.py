"""Our own decompositions of PyTorch operators, applied to an exported program before either importer reads it.

They keep programs in the form that a search needs: two-pass mean and variance for every norm (the default
`var_mean` goes through f64 and computes the mean twice), plain scaled-dot-product attention, a softplus that does
not overflow, contractions of two operands. What is computed in f32 inside PyTorch's kernels for f16 and bf16
tensors is computed in f32 here. Every function has the signature of the operator that it replaces.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# torch is not typed strictly enough for these.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = Any
Table: TypeAlias = "dict[Any, Callable[..., Any]]"

# Elements of which one is picked by a sum: each of them is an unknown truth value for a proof, which takes 2 us.
_MOST_PICKED = 1 << 22
# Elements of a mirrored border, each of them a slice.
_MOST_MIRRORED = 8


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


def _softplus(y: Tensor) -> Tensor:
    """log(1 + exp(y)) = max(y, 0) + log1p(exp(-|y|)), which neither overflows nor loses small terms next to 1."""
    return torch.relu(y) + torch.log1p(torch.exp(-torch.abs(y)))


def softplus(x, beta=1, threshold=20):
    """log(1 + exp(beta x)) / beta.

    Where beta x exceeds `threshold` PyTorch returns x itself. This case may be dropped where both differ by less
    than exp(-threshold) / beta, which is below the f32 rounding of x.
    """
    if math.exp(-threshold) > threshold * 2.0**-25:
        return NotImplemented
    return (_softplus(wide(x) * beta) / beta).to(x.dtype)


def log_sigmoid(x):
    """-log(1 + exp(-x))"""
    return (-_softplus(-wide(x))).to(x.dtype)


def logaddexp(x, y):
    """log(exp(x) + exp(y)) = max(x, y) + log1p(exp(-|x - y|))"""
    a, b = wide(x), wide(y)
    difference = torch.abs(a - b)
    return (torch.maximum(a, b) + torch.log1p(torch.exp(-difference))).to(torch.result_type(x, y))


def binary_cross_entropy_with_logits(x, target, weight=None, pos_weight=None, reduction=1):
    """(1 - target) x + (1 + (pos_weight - 1) target) log(1 + exp(-x)), weighted, its mean or its sum."""
    y = wide(x)
    share = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * y + share * _softplus(-y)
    loss = loss if weight is None else loss * weight
    return {0: lambda: loss, 1: loss.mean, 2: loss.sum}[reduction]().to(x.dtype)


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
    return (y * torch.tanh(_softplus(y))).to(x.dtype)


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


def l1_loss(x, target, reduction=1):
    """The absolute difference, its mean or its sum."""
    off = torch.abs(x - target)
    return {0: off, 1: off.mean(), 2: off.sum()}[reduction]


def adaptive_average(x, size):
    """The mean over all positions, where the output has one position."""
    if any(s != 1 for s in size):
        return NotImplemented
    return x.mean(list(range(-len(size), 0)), keepdim=True)


def mse_loss(x, target, reduction=1):
    """The square of the difference, its mean or its sum."""
    square = (x - target) * (x - target)
    return {0: square, 1: square.mean(), 2: square.sum()}[reduction]


def _picked(x: Tensor, target: Tensor, classes: int, ignored: int) -> Tensor:
    """x[target] along `classes`: a sum over all classes, of which one counts, beside whatever else reads them.

    Zero for a target that is no class. PyTorch picks where there are too many elements.
    """
    if x.numel() > _MOST_PICKED:
        return -torch.ops.aten.nll_loss_nd(x, target, None, 0, ignored)
    shape = [-1 if d == classes else 1 for d in range(x.dim())]
    number = torch.arange(x.shape[classes], device=x.device).reshape(shape)
    return torch.where(number == target.unsqueeze(classes), wide(x), 0).sum(classes)


def _loss(off: Tensor, target: Tensor, weight: Tensor | None, like: Tensor, reduction: int, ignored: int):
    """What each of `target` costs, those of class `ignored` nothing: all, their (weighted) mean, or their sum."""
    counted = (target != ignored).to(off.dtype)
    if weight is not None:
        classes = 1 if like.dim() > 1 else 0
        each = wide(weight).reshape([-1 if d == classes else 1 for d in range(like.dim())])
        counted = counted * _picked(each.expand(like.shape), target, classes, ignored)
    off = off * counted
    return {0: off, 1: off.sum() / counted.sum(), 2: off.sum()}[reduction].to(like.dtype)


def nll_loss(x, target, weight=None, reduction=1, ignore_index=-100):
    """-x[target]."""
    if x.numel() > _MOST_PICKED:
        return NotImplemented
    off = -_picked(x, target, 1 if x.dim() > 1 else 0, ignore_index)
    return _loss(off, target, weight, x, reduction, ignore_index)


def cross_entropy(x, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0):
    """log(sum of exp(x - max)) + (max - x[target]).

    Picked from the logits, and not from their `log_softmax`, which nothing else needs and no memory then holds.
    With `label_smoothing`, that share of it is the mean over all classes.
    """
    if target.is_floating_point() or (label_smoothing and weight is not None):
        return NotImplemented
    classes = 1 if x.dim() > 1 else 0
    if weight is not None and x.numel() > _MOST_PICKED:
        return torch.ops.aten.nll_loss_nd(log_softmax(x, classes), target, weight, reduction, ignore_index)
    y = wide(x)
    top = y.amax(classes, keepdim=True)
    centered = y - top
    total = torch.log(torch.exp(centered).sum(classes))
    off = total + (top.squeeze(classes) - _picked(x, target, classes, ignore_index))
    if label_smoothing:
        off = off * (1 - label_smoothing) + (total - centered.mean(classes)) * label_smoothing
    return _loss(off, target, weight, x, reduction, ignore_index)


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


def _gates(x, h, w_ih, w_hh, b_ih, b_hh) -> tuple[Tensor, Tensor]:
    """What a recurrent cell adds up, of its input and its state, in the precision of its gates."""
    linear = torch.nn.functional.linear
    return wide(linear(x, w_ih, b_ih)), wide(linear(h, w_hh, b_hh))


def rnn_cell(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """An Elman cell: function(W x + U h)."""

    def cell(x, h, w_ih, w_hh, b_ih=None, b_hh=None):
        of_input, of_state = _gates(x, h, w_ih, w_hh, b_ih, b_hh)
        return function(of_input + of_state).to(x.dtype)

    return cell


def gru_cell(x, h, w_ih, w_hh, b_ih=None, b_hh=None):
    """Reset and update gates, and a new state that the latter mixes with the old one (Cho et al., 2014)."""
    of_input, of_state = _gates(x, h, w_ih, w_hh, b_ih, b_hh)
    (r, z, n), (reset, update, new) = of_input.chunk(3, -1), of_state.chunk(3, -1)
    n = torch.tanh(n + torch.sigmoid(r + reset) * new)
    return ((wide(h) - n) * torch.sigmoid(z + update) + n).to(x.dtype)


def lstm_cell(x, state, w_ih, w_hh, b_ih=None, b_hh=None):
    """Input, forget, cell and output gates: the next h and c (Hochreiter and Schmidhuber, 1997)."""
    h, c = state
    of_input, of_state = _gates(x, h, w_ih, w_hh, b_ih, b_hh)
    i, f, g, o = (of_input + of_state).chunk(4, -1)
    c = torch.sigmoid(f) * wide(c) + torch.sigmoid(i) * torch.tanh(g)
    return (torch.sigmoid(o) * torch.tanh(c)).to(x.dtype), c.to(x.dtype)


def identity(x, *args, **kwargs):
    """Dropout in evaluation mode."""
    return x.clone()


def table() -> Table:
    """The decompositions, by operator overload."""
    a = torch.ops.aten
    return {
        a.layer_norm.default: layer_norm,
        a.native_layer_norm.default: native_layer_norm,
        a.rms_norm.default: rms_norm,
        a.group_norm.default: group_norm,
        a.native_group_norm.default: native_group_norm,
        a.instance_norm.default: instance_norm,
        a.batch_norm.default: batch_norm,
        a._native_batch_norm_legit_no_training.default: native_batch_norm_no_training,
        a.var.correction: var_correction,
        a.var.dim: var_dim,
        a.var.default: lambda x, unbiased=True: _variance(x, None, int(unbiased), False)[0],
        a.std.correction: std_correction,
        a.std.dim: lambda x, dim, unbiased=True, keepdim=False: std_correction(
            x, dim, correction=int(unbiased), keepdim=keepdim
        ),
        a.std.default: lambda x, unbiased=True: std_correction(x, correction=int(unbiased)),
        a.var_mean.correction: var_mean_correction,
        a.softmax.int: softmax,
        a._softmax.default: lambda x, dim, half_to_float: softmax(
            x, dim, torch.float32 if half_to_float else None
        ),
        a.log_softmax.int: log_softmax,
        a._log_softmax.default: lambda x, dim, half: log_softmax(x, dim, torch.float32 if half else None),
        a.logsumexp.default: logsumexp,
        a.scaled_dot_product_attention.default: attention,
        a.softplus.default: softplus,
        a.log_sigmoid.default: log_sigmoid,
        a.logaddexp.default: logaddexp,
        a.binary_cross_entropy_with_logits.default: binary_cross_entropy_with_logits,
        a.gelu.default: gelu,
        a.leaky_relu.default: leaky_relu,
        a.elu.default: elu,
        a.selu.default: selu,
        a.celu.default: celu,
        a.prelu.default: prelu,
        a.rrelu.default: lambda x, low=1 / 8, high=1 / 3, training=False, generator=None: (
            NotImplemented if training else leaky_relu(x, (low + high) / 2)
        ),
        a.hardswish.default: hardswish,
        a.hardsigmoid.default: hardsigmoid,
        a.mish.default: mish,
        a.glu.default: glu,
        a.einsum.default: einsum,
        a.linalg_vector_norm.default: vector_norm,
        a.cosine_similarity.default: cosine_similarity,
        a.mse_loss.default: mse_loss,
        a.l1_loss.default: l1_loss,
        a.adaptive_avg_pool1d.default: adaptive_average,
        a.adaptive_avg_pool2d.default: adaptive_average,
        a.cross_entropy_loss.default: cross_entropy,
        a.nll_loss_nd.default: nll_loss,
        a.nll_loss.default: nll_loss,
        a.nll_loss2d.default: nll_loss,
        a.pad.default: pad,
        **{
            getattr(a, f"{kind}_pad{rank}d").default: lambda x, amounts, mode=mode: pad(x, amounts, mode)
            for kind, mode in (("reflection", "reflect"), ("replication", "replicate"))
            for rank in (1, 2, 3)
        },
        a.rnn_tanh_cell.default: rnn_cell(torch.tanh),
        a.rnn_relu_cell.default: rnn_cell(torch.relu),
        a.gru_cell.default: gru_cell,
        a.lstm_cell.default: lstm_cell,
        a.triu.default: triu,
        a.tril.default: tril,
        a.dropout.default: lambda x, p, train: NotImplemented if train and p else identity(x),
        a.feature_dropout.default: lambda x, p, train: NotImplemented if train and p else identity(x),
    }
