"""Cells of recurrent networks, one step each."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# torch is not typed strictly enough for these.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from superopt.transforms.ingest.decompositions.norms import wide

Tensor: TypeAlias = Any


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
