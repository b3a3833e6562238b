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
from benchmarks.trinity.programs import CONFIGS, PROGRAMS, Config

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
    ) -> None:
        super().__init__()
        self.config, self.pre_norm, self.qk_norm, self.extra, self.safe = (
            config,
            pre_norm,
            qk_norm,
            extra,
            safe,
        )

    def forward(
        self, x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, k_cache: Tensor, v_cache: Tensor, *noise: Tensor
    ) -> tuple[Tensor, ...]:
        """The attention's output, the grown caches, and what the variant adds."""
        if self.pre_norm:
            x = _normalized(x)
        q, k, v = (self._heads(x @ w) for w in (wq, wk, wv))
        if self.qk_norm:
            q, k = _normalized(q), _normalized(k)
        keys, values = torch.cat([k_cache, k], 1), torch.cat([v_cache, v], 1)
        c = q @ keys.transpose(1, 2)
        extras: list[Tensor] = []
        if self.extra == "keyformer":
            extras.append(_softmax((c + noise[0]) / 1.5, safe=self.safe).sum(1))
        p = _softmax(c, safe=self.safe)
        if self.extra == "roco":
            extras += [p.sum(1), (p * p).sum(1)]
        o = (p @ values).transpose(0, 1).reshape(x.shape[0], -1)
        return o, keys, values, *extras

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.config.heads, self.config.head).transpose(0, 1)


class SwigluFfn(torch.nn.Module):
    """RMS normalization, gate and up projections, their gated product, down projection, residual."""

    def forward(self, x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
        """`x` after the feed-forward network."""
        n = _normalized(x)
        return (torch.nn.functional.silu(n @ w_gate) * (n @ w_up)) @ w_down + x


_OPTIONS: dict[str, dict[str, Any]] = {
    "vanilla": {}, "pre_norm": {"pre_norm": True}, "qk_norm": {"qk_norm": True},
    "roco": {"extra": "roco"}, "keyformer": {"extra": "keyformer"},
}  # fmt: skip


def module(name: str, config: Config, *, safe: bool = False) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """A module and example inputs, in the order of the kernel graph's inputs."""
    graph = PROGRAMS[name](config, name) if name == "swiglu_ffn" else PROGRAMS[name](config, name, safe=safe)
    generator = torch.Generator().manual_seed(0)
    dtype = {"f16": torch.float16, "f32": torch.float32}[config.dtype]
    inputs = tuple(0.1 * torch.randn(v.shape, generator=generator).to(dtype) for v in graph.inputs)
    made = SwigluFfn() if name == "swiglu_ffn" else Attention(config, safe=safe, **_OPTIONS[name])
    return made, inputs


def _factory(name: str, config: Config) -> Callable[[], tuple[torch.nn.Module, tuple[Tensor, ...]]]:
    return lambda: module(name, config)


for _name in [*_OPTIONS, "swiglu_ffn"]:
    for _size, _config in CONFIGS.items():
        globals()[f"{_name}_{_size}"] = _factory(_name, _config)
