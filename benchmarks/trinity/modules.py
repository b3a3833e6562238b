"""The programs of `programs.py` as PyTorch modules, for `superopt-import` and `superopt.from_torch`.

    superopt-import benchmarks/trinity/modules.py:vanilla_llama3_8b -o vanilla.mlir

Weights are arguments of `forward`, so that a module at full size holds no memory before it is run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.trinity.programs import CONFIGS, VARIANTS, Config, build, names

Tensor = torch.Tensor


def _normalized(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def _softmax(x: Tensor, *, safe: bool) -> Tensor:
    if safe:
        x = x - x.amax(-1, keepdim=True)
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)


class Attention(torch.nn.Module):
    """Attention of a block of tokens against a cache; see `programs.attention`."""

    def __init__(
        self,
        config: Config,
        *,
        pre_norm: bool = False,
        qk_norm: bool = False,
        extra: str = "",
        safe: bool = False,
        grouped: bool = False,
        in_place: bool = False,
    ) -> None:
        super().__init__()
        self.config, self.extra, self.safe = config, extra, safe
        self.pre_norm, self.qk_norm, self.in_place = pre_norm, qk_norm, in_place
        self.groups = config.groups if grouped else config.heads

    def forward(
        self, x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, k_cache: Tensor, v_cache: Tensor, *noise: Tensor
    ) -> tuple[Tensor, ...]:
        """The attention's output, the grown caches, and what the variant adds."""
        if self.pre_norm:
            x = _normalized(x)
        # One group of keys for all serves every query head by broadcasting; more make a product for each group.
        by_group = 1 < self.groups < self.config.heads
        q = self._grouped(x @ wq) if by_group else self._heads(x @ wq)
        k, v = self._heads(x @ wk), self._heads(x @ wv)
        if self.qk_norm:
            q, k = _normalized(q), _normalized(k)
        if self.in_place:
            k_cache[:, self.config.prefix :], v_cache[:, self.config.prefix :] = k, v
            keys, values = k_cache, v_cache
        else:
            keys, values = torch.cat([k_cache, k], 1), torch.cat([v_cache, v], 1)
        c = q @ keys.transpose(1, 2)
        extras: list[Tensor] = []
        if self.extra == "keyformer":
            extras.append(_softmax((c + noise[0]) / 1.5, safe=self.safe).sum(1))
        p = _softmax(c, safe=self.safe)
        if self.extra == "roco":
            extras += [p.sum(1), (p * p).sum(1)]
        o = p @ values
        if by_group:
            o = o.reshape(self.config.heads, x.shape[0], self.config.head)
        return o.transpose(0, 1).reshape(x.shape[0], -1), keys, values, *extras

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], -1, self.config.head).transpose(0, 1)

    def _grouped(self, x: Tensor) -> Tensor:
        """The query heads of a group as rows of one product."""
        return self._heads(x).reshape(self.groups, -1, self.config.head)


class SwigluFfn(torch.nn.Module):
    """RMS normalization, gate and up projections, their gated product, down projection, residual."""

    def forward(self, x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
        """`x` after the feed-forward network."""
        n = _normalized(x)
        return (torch.nn.functional.silu(n @ w_gate) * (n @ w_up)) @ w_down + x


class DecoderLayer(torch.nn.Module):
    """Pre-norm attention, its output projection, residual, and the feed-forward network."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention, self.ffn = Attention(config, pre_norm=True, safe=True), SwigluFfn()

    def forward(
        self,
        x: Tensor,
        wq: Tensor,
        wk: Tensor,
        wv: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        """`x` after the layer, and the grown caches."""
        wo, w_gate, w_up, w_down = weights
        o, keys, values = self.attention(x, wq, wk, wv, k_cache, v_cache)
        return self.ffn(o @ wo + x, w_gate, w_up, w_down), keys, values


_OPTIONS: dict[str, dict[str, Any]] = {
    "vanilla": {}, "pre_norm": {"pre_norm": True}, "qk_norm": {"qk_norm": True},
    "roco": {"extra": "roco"}, "keyformer": {"extra": "keyformer"},
}  # fmt: skip


def module(name: str, config: Config) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """A module and example inputs, in the order of the kernel graph's inputs.

    `name` is a program's, with its variants after plus signs: "vanilla+gqa", "roco+safe", "layer".
    """
    generator = torch.Generator().manual_seed(0)
    dtype = {"f16": torch.float16, "f32": torch.float32}[config.dtype]
    graph = build(name, config)
    inputs = tuple(0.1 * torch.randn(v.shape, generator=generator).to(dtype) for v in graph.inputs)
    base, *variants = name.split("+")
    if base == "layer":
        return DecoderLayer(config), inputs
    if base == "swiglu_ffn":
        return SwigluFfn(), inputs
    chosen: dict[str, Any] = {VARIANTS[v]: True for v in variants}
    return Attention(config, **_OPTIONS[base], **chosen), inputs


def _factory(name: str, config: Config) -> Callable[[], tuple[torch.nn.Module, tuple[Tensor, ...]]]:
    return lambda: module(name, config)


for _name in names():
    for _size, _config in CONFIGS.items():
        globals()[f"{_name.replace('+', '_')}_{_size}"] = _factory(_name, _config)
