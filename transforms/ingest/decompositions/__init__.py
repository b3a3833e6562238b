"""Our own decompositions of PyTorch operators, applied to an exported program before either importer reads it.

They keep programs in the form that a search needs: two-pass mean and variance for every norm (the default
`var_mean` goes through f64 and computes the mean twice), plain scaled-dot-product attention, a softplus that does
not overflow, contractions of two operands. What is computed in f32 inside PyTorch's kernels for f16 and bf16
tensors is computed in f32 here. Every function has the signature of the operator that it replaces.

norms.py      norms, statistics and means, in two passes
functions.py  functions of elements and rows, attention, contractions of several operands
losses.py     losses, of each element or by classes
moves.py      borders and triangles
cells.py      cells of recurrent networks
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# torch is not typed strictly enough for these.

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Any, TypeAlias

import torch

from superopt.transforms.ingest.decompositions import cells, functions, losses, moves, norms

Table: TypeAlias = "dict[Any, Callable[..., Any]]"


def table(kept: Container[str] = ()) -> Table:
    """The decompositions, by operator overload, but for operators that are `kept` as they are."""
    a = torch.ops.aten
    most_picked = 0 if str(a.nll_loss_nd.default) in kept else losses.MOST_PICKED
    found: Table = {
        a.layer_norm.default: norms.layer_norm,
        a.native_layer_norm.default: norms.native_layer_norm,
        a.rms_norm.default: norms.rms_norm,
        a.group_norm.default: norms.group_norm,
        a.native_group_norm.default: norms.native_group_norm,
        a.instance_norm.default: norms.instance_norm,
        a.batch_norm.default: norms.batch_norm,
        a._native_batch_norm_legit_no_training.default: norms.native_batch_norm_no_training,
        a.var.correction: norms.var_correction,
        a.var.dim: norms.var_dim,
        a.var.default: lambda x, unbiased=True: norms.var_correction(x, correction=int(unbiased)),
        a.std.correction: norms.std_correction,
        a.std.dim: lambda x, dim, unbiased=True, keepdim=False: norms.std_correction(
            x, dim, correction=int(unbiased), keepdim=keepdim
        ),
        a.std.default: lambda x, unbiased=True: norms.std_correction(x, correction=int(unbiased)),
        a.var_mean.correction: norms.var_mean_correction,
        a.softmax.int: functions.softmax,
        a._softmax.default: lambda x, dim, half_to_float: functions.softmax(
            x, dim, torch.float32 if half_to_float else None
        ),
        a.log_softmax.int: functions.log_softmax,
        a._log_softmax.default: lambda x, dim, half: functions.log_softmax(
            x, dim, torch.float32 if half else None
        ),
        a.logsumexp.default: functions.logsumexp,
        a.scaled_dot_product_attention.default: functions.attention,
        a.softplus.default: functions.softplus,
        a.log_sigmoid.default: functions.log_sigmoid,
        a.logaddexp.default: functions.logaddexp,
        a.binary_cross_entropy_with_logits.default: losses.binary_cross_entropy_with_logits,
        a.gelu.default: functions.gelu,
        a.leaky_relu.default: functions.leaky_relu,
        a.elu.default: functions.elu,
        a.selu.default: functions.selu,
        a.celu.default: functions.celu,
        a.prelu.default: functions.prelu,
        a.rrelu.default: lambda x, low=1 / 8, high=1 / 3, training=False, generator=None: (
            NotImplemented if training else functions.leaky_relu(x, (low + high) / 2)
        ),
        a.hardswish.default: functions.hardswish,
        a.hardsigmoid.default: functions.hardsigmoid,
        a.mish.default: functions.mish,
        a.glu.default: functions.glu,
        a.einsum.default: functions.einsum,
        a.linalg_vector_norm.default: norms.vector_norm,
        a.cosine_similarity.default: norms.cosine_similarity,
        a.mse_loss.default: losses.mse_loss,
        a.l1_loss.default: losses.l1_loss,
        a.adaptive_avg_pool1d.default: norms.adaptive_average,
        a.adaptive_avg_pool2d.default: norms.adaptive_average,
        a.cross_entropy_loss.default: partial(losses.cross_entropy, most_picked=most_picked),
        a.pad.default: moves.pad,
        **{
            getattr(a, f"{kind}_pad{rank}d").default: lambda x, amounts, mode=mode: moves.pad(
                x, amounts, mode
            )
            for kind, mode in (("reflection", "reflect"), ("replication", "replicate"))
            for rank in (1, 2, 3)
        },
        a.rnn_tanh_cell.default: cells.rnn_cell(torch.tanh),
        a.rnn_relu_cell.default: cells.rnn_cell(torch.relu),
        a.gru_cell.default: cells.gru_cell,
        a.lstm_cell.default: cells.lstm_cell,
        a.triu.default: moves.triu,
        a.tril.default: moves.tril,
        a.dropout.default: lambda x, p, train: NotImplemented if train and p else moves.identity(x),
        a.feature_dropout.default: lambda x, p, train: NotImplemented if train and p else moves.identity(x),
    }
    return {op: function for op, function in found.items() if str(op) not in kept}
