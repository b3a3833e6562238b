"""Programs as people write them: sizes that divide badly, every kind of layer, three dtypes.

    PROGRAMS["attention_577"].module() -> a torch.nn.Module and its inputs

Weights are arguments of `forward`. Beside each program stands what an expert would write for it: kernels that
read their operands once and write their results once (`experts.py`), priced by the same model as ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from benchmarks.ordinary.experts import Expert, Kernels

from superopt.cost.library import Share

Tensor: TypeAlias = torch.Tensor
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


class Call(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        """What the function makes of its tensors."""
        return self.function(*tensors)


@dataclass(frozen=True)
class Program:
    """A program, and what an expert writes for it; shapes that end with "int" or "bool" are no numbers."""

    name: str
    dtype: str
    shapes: tuple[tuple[Any, ...], ...]
    function: Callable[..., Any]
    expert: Callable[[Expert], Kernels]

    def module(self) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
        """The module, and inputs of its shapes."""
        generator = torch.Generator().manual_seed(0)

        def made(shape: tuple[Any, ...]) -> Tensor:
            if shape and isinstance(shape[-1], str):
                *extents, kind = shape
                if kind == "bool":
                    return torch.rand(extents, generator=generator) < 0.8
                return torch.randint(0, int(kind.removeprefix("below ")), extents, generator=generator)
            return torch.randn(shape, generator=generator).to(DTYPES[self.dtype])

        return Call(self.function).eval(), tuple(map(made, self.shapes))


PROGRAMS: dict[str, Program] = {}


def add(
    name: str,
    dtype: str,
    shapes: Sequence[tuple[Any, ...]],
    expert: Callable[[Expert], Kernels],
    function: Any,
) -> None:
    """Add one."""
    assert name not in PROGRAMS, name
    PROGRAMS[name] = Program(name, dtype, tuple(shapes), function, expert)


# --- attention ------------------------------------------------------------------------------------------


def _seen(tokens: int, window: int) -> Share:
    """The share of the tiles of scores in which a query sees one of the `window` keys up to its own."""

    def share(rows: int, keys: int) -> float:
        starts = range(0, tokens, rows)
        last = [min(i + rows, tokens) - 1 for i in starts]
        first = [max(i - window + 1, 0) for i in starts]
        seen = sum(b // keys - a // keys + 1 for a, b in zip(first, last, strict=True))
        return seen / (len(starts) * -(-tokens // keys))

    return share


def _attention(
    name: str,
    dtype: str,
    batch: int,
    heads: int,
    tokens: int,
    width: int,
    *,
    queries: int = 0,
    key_heads: int = 0,
    causal: bool = False,
    window: int = 0,
    alibi: bool = False,
    padded: bool = False,
) -> None:
    q, kv = queries or tokens, key_heads or heads
    shapes: list[tuple[Any, ...]] = [(batch, heads, q, width), *[(batch, kv, tokens, width)] * 2]
    share = _seen(tokens, window or tokens) if causal or window else 1.0
    mask: list[tuple[Any, ...]] = [(batch, 1, 1, tokens, "bool")] if padded else []

    def attend(q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> Tensor:
        bias = given[0] if given else None
        if window or alibi:
            at = torch.arange(tokens)
            apart = at[:, None] - at[None, :]
            if window:
                bias = (apart >= 0) & (apart < window)
            else:
                slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)])
                bias = (-slopes[:, None, None] * apart.abs()).to(q.dtype)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=kv != heads
        )

    def expert(e: Expert) -> Kernels:
        return e.attention(batch * heads, q, tokens, width, key_heads=batch * kv, share=share)

    add(name, dtype, [*shapes, *mask], expert, attend)


_attention("attention_197", "f16", 1, 12, 197, 64)
_attention("attention_197_b7", "bf16", 7, 12, 197, 64)
_attention("attention_197_f32", "f32", 1, 5, 197, 96)
_attention("attention_577", "f16", 1, 16, 577, 64)
_attention("attention_577_b3", "bf16", 3, 16, 577, 64)
_attention("attention_577_width80", "f16", 1, 9, 577, 80)
_attention("attention_577_f32", "f32", 1, 7, 577, 64)
_attention("attention_577_padded", "f16", 3, 12, 577, 64, padded=True)
_attention("attention_1500", "f16", 1, 12, 1500, 64)
_attention("attention_1500_causal", "bf16", 1, 12, 1500, 64, causal=True)
_attention("attention_1500_window", "f16", 1, 12, 1500, 64, window=256)
_attention("attention_1500_alibi", "f16", 1, 12, 1500, 64, alibi=True)
_attention("attention_4097", "bf16", 1, 5, 4097, 80)
_attention("attention_4097_causal", "f16", 1, 7, 4097, 96, causal=True)
_attention("attention_4097_window", "f16", 1, 9, 4097, 64, window=512)
_attention("decode_577", "f16", 1, 12, 577, 64, queries=1)
_attention("decode_1500_grouped", "f16", 3, 12, 1500, 64, queries=1, key_heads=4)
_attention("decode_4097_grouped", "bf16", 7, 32, 4097, 128, queries=1, key_heads=8)
_attention("cross_1500", "f16", 1, 12, 1500, 64, queries=3)


# --- norms and products ---------------------------------------------------------------------------------


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)


def _norm_linear(name: str, dtype: str, rows: int, width: int, columns: int, *, layer: bool = False) -> None:
    norm: list[tuple[Any, ...]] = [(width,)] * (2 if layer else 1)

    def layer_norm(x: Tensor, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return F.linear(F.layer_norm(x, (width,), a, b), w)

    def rms_norm(x: Tensor, a: Tensor, w: Tensor) -> Tensor:
        return F.linear(_rms(x, a), w)

    add(
        name,
        dtype,
        [(rows, width), *norm, (columns, width)],
        lambda e: e.best(
            e.product(rows, columns, width, vector=(8.0 if layer else 4.0) * rows * width),
            e.rows(rows, width, 1, 1) + e.product(rows, columns, width),
        ),
        layer_norm if layer else rms_norm,
    )


_norm_linear("rmsnorm_gpt2_head", "f16", 1, 768, 50257)
_norm_linear("rmsnorm_gpt2_head_b7", "f16", 7, 768, 50257)
_norm_linear("layernorm_gpt2_head_b3", "bf16", 3, 768, 50257, layer=True)
_norm_linear("rmsnorm_llama_head", "bf16", 1, 4096, 128256)
_norm_linear("rmsnorm_linear_6913", "f16", 7, 4096, 6913)
_norm_linear("layernorm_linear_197", "f16", 197, 768, 3072, layer=True)

add(
    "linear_bert_head", "f16", [(7, 768), (30522, 768), (30522,)],
    lambda e: e.product(7, 30522, 768, more=30522), F.linear,
)  # fmt: skip
add(
    "linear_bert_head_f32", "f32", [(3, 768), (30522, 768), (30522,)],
    lambda e: e.product(3, 30522, 768, more=30522), F.linear,
)  # fmt: skip
add(
    "norm_qkv", "f16", [(3, 4096), (4096,), (4096, 4096), (1024, 4096), (1024, 4096)],
    lambda e: e.product(3, 6144, 4096, vector=4.0 * 3 * 4096),
    lambda x, a, q, k, v: tuple(F.linear(_rms(x, a), w) for w in (q, k, v)),
)  # fmt: skip
add("rmsnorm_577", "f16", [(577, 576), (576,)], lambda e: e.rows(577, 576, 1, 1), _rms)
add("rmsnorm_4097", "bf16", [(4097, 6913), (6913,)], lambda e: e.rows(4097, 6913, 1, 1), _rms)
add(
    "layernorm_6913", "f32", [(7, 6913), (6913,), (6913,)],
    lambda e: e.rows(7, 6913, 1, 1), lambda x, a, b: F.layer_norm(x, (6913,), a, b),
)  # fmt: skip


def _residual(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, _rms(total, weight)


add(
    "residual_rmsnorm", "bf16", [(1500, 768), (1500, 768), (768,)],
    lambda e: e.rows(1500, 768, 2, 2), _residual,
)  # fmt: skip


# --- gates and feed-forward layers ----------------------------------------------------------------------


def _swiglu(name: str, dtype: str, rows: int, width: int, inner: int) -> None:
    add(
        name,
        dtype,
        [(rows, width), (inner, width), (inner, width), (width, inner)],
        lambda e: e.gated(rows, inner, width) + e.product(rows, width, inner),
        lambda x, gate, up, down: F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down),
    )


_swiglu("swiglu_6913", "f16", 1, 4096, 6913)
_swiglu("swiglu_6913_b7", "bf16", 7, 576, 6913)
_swiglu("swiglu_mistral_b3", "f16", 3, 4096, 14336)


def _feed_forward(
    name: str, dtype: str, rows: int, width: int, inner: int, act: Callable[[Tensor], Tensor]
) -> None:
    add(
        name,
        dtype,
        [(rows, width), (inner, width), (inner,), (width, inner), (width,)],
        lambda e: e.product(rows, inner, width, more=inner) + e.product(rows, width, inner, more=width),
        lambda x, a, b, c, d: F.linear(act(F.linear(x, a, b)), c, d),
    )


_feed_forward("mlp_gelu_197", "f16", 197, 768, 3072, F.gelu)
_feed_forward("mlp_gelu_1500", "bf16", 1500, 768, 3072, F.gelu)
_feed_forward("mlp_relu2_b3", "f16", 3, 768, 3072, lambda x: F.relu(x) ** 2)
_feed_forward("mlp_tanh_577", "f32", 577, 96, 384, lambda x: F.gelu(x, approximate="tanh"))
add(
    "geglu", "f16", [(197, 6144)], lambda e: e.elementwise(197 * 3072, 2, 1),
    lambda x: F.gelu(x[:, :3072]) * x[:, 3072:],
)  # fmt: skip
add(
    "bias_gelu", "bf16", [(577, 3072), (3072,)], lambda e: e.elementwise(577 * 3072, 1, 1),
    lambda x, b: F.gelu(x + b),
)  # fmt: skip


# --- losses and softmax ---------------------------------------------------------------------------------


def _cross_entropy(x: Tensor, at: Tensor) -> Tensor:
    return F.cross_entropy(x, at)


def _mean_of(e: Expert, parts: int) -> Kernels:
    """Of what each block has summed: a block sees nothing of what the others store."""
    return e.elementwise(parts, 1, 0)


add("softmax_577", "f16", [(7, 577, 577)], lambda e: e.rows(7 * 577, 577, 1, 1), lambda x: x.softmax(-1))
add("log_softmax_gpt2", "f32", [(7, 50257)], lambda e: e.rows(7, 50257, 1, 1), lambda x: x.log_softmax(-1))
add("logsumexp_llama", "f32", [(3, 128256)], lambda e: e.rows(3, 128256, 1, 0), lambda x: x.logsumexp(-1))
add(
    "cross_entropy_gpt2", "f32", [(512, 50257), (512, "below 50257")],
    lambda e: e.rows(512, 50257, 1, 0) + _mean_of(e, 512), _cross_entropy,
)  # fmt: skip
add(
    "cross_entropy_bert", "f32", [(197, 30522), (197, "below 30522")],
    lambda e: e.rows(197, 30522, 1, 0) + _mean_of(e, 197), _cross_entropy,
)  # fmt: skip
add(
    "sigmoid_cross_entropy", "f32", [(1500, 80), (1500, 80)],
    lambda e: e.elementwise(1500 * 80, 2, 0) + _mean_of(e, 1500), F.binary_cross_entropy_with_logits,
)  # fmt: skip
add("softplus", "f32", [(4097, 96)], lambda e: e.elementwise(4097 * 96, 1, 1), F.softplus)
add(
    "variance", "f32", [(1500, 6913)], lambda e: e.rows(1500, 6913, 1, 0), lambda x: x.var(-1),
)  # fmt: skip


# --- positions, gates of experts, gradients, other norms ------------------------------------------------


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


add(
    "rope_577", "f16", [(1, 9, 577, 80), (1, 9, 577, 80), (577, 80), (577, 80)],
    lambda e: e.elementwise(9 * 577 * 80, 2, 2),
    lambda q, k, c, s: (_rope(q, c, s), _rope(k, c, s)),
)  # fmt: skip
add(
    "rope_decode", "bf16", [(7, 32, 1, 128), (7, 8, 1, 128), (1, 128), (1, 128)],
    lambda e: e.elementwise(7 * 40 * 128, 1, 1),
    lambda q, k, c, s: (_rope(q, c, s), _rope(k, c, s)),
)  # fmt: skip


def _gate(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    values, at = F.linear(x, w).softmax(-1).topk(2)
    return values / values.sum(-1, keepdim=True), at


add(
    "moe_gate_mixtral", "f32", [(7, 4096), (8, 4096)],
    lambda e: e.product(7, 8, 4096, vector=10.0 * 7 * 8), _gate,
)  # fmt: skip
add(
    "moe_gate_sigmoid", "f32", [(197, 576), (64, 576)], lambda e: e.product(197, 64, 576, vector=4.0 * 197 * 64),
    lambda x, w: F.linear(x, w).sigmoid(),
)  # fmt: skip


def _layer_norm_gradient(x: Tensor, g: Tensor, a: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    scale = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
    h, d = (x - mean) * scale, g * a
    return scale * (d - d.mean(-1, keepdim=True) - h * (d * h).mean(-1, keepdim=True))


def _rms_norm_gradient(x: Tensor, g: Tensor, a: Tensor) -> Tensor:
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    h, d = x * scale, g * a
    return scale * (d - h * (d * h).mean(-1, keepdim=True))


add(
    "layernorm_backward", "f32", [(197, 768), (197, 768), (768,)],
    lambda e: e.rows(197, 768, 2, 1), _layer_norm_gradient,
)  # fmt: skip
add(
    "rmsnorm_backward", "f32", [(577, 576), (577, 576), (576,)],
    lambda e: e.rows(577, 576, 2, 1), _rms_norm_gradient,
)  # fmt: skip
add(
    "softmax_backward", "f16", [(7, 577, 577), (7, 577, 577)],
    lambda e: e.rows(7 * 577, 577, 2, 1), lambda y, g: y * (g - (y * g).sum(-1, keepdim=True)),
)  # fmt: skip
add(
    "group_norm", "f16", [(3, 96, 577), (96,), (96,)],
    lambda e: e.rows(3 * 12, 8 * 577, 1, 1), lambda x, a, b: F.group_norm(x, 12, a, b),
)  # fmt: skip
add(
    "batch_norm", "bf16", [(7, 80, 1500), (80,), (80,), (80,), (80,)],
    lambda e: e.elementwise(7 * 80 * 1500, 1, 1), lambda x, m, v, a, b: F.batch_norm(x, m, v, a, b),
)  # fmt: skip
add(
    "cosine_similarity", "f16", [(197, 768), (197, 768)],
    lambda e: e.rows(197, 768, 2, 0), lambda x, y: F.cosine_similarity(x, y, -1),
)  # fmt: skip
add(
    "clip_head", "f16", [(7, 768), (512, 768)],
    lambda e: e.product(7, 512, 768) + e.rows(7, 512, 1, 1), lambda x, w: F.normalize(F.linear(x, w), dim=-1),
)  # fmt: skip
add("cumsum", "f32", [(577, 96)], lambda e: e.rows(577, 96, 1, 1), lambda x: x.cumsum(-1))


# --- layers ---------------------------------------------------------------------------------------------


def _block(x: Tensor, a: Tensor, qkv: Tensor, out: Tensor) -> Tensor:
    tokens, width = x.shape
    heads = width // 64
    q, k, v = F.linear(_rms(x, a), qkv).view(tokens, 3, heads, 64).permute(1, 2, 0, 3)
    made = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    return x + F.linear(made.transpose(0, 1).reshape(tokens, width), out)


def _attention_block(name: str, dtype: str, tokens: int, width: int) -> None:
    add(
        name,
        dtype,
        [(tokens, width), (width,), (3 * width, width), (width, width)],
        lambda e: (
            e.best(
                e.product(tokens, 3 * width, width, vector=4.0 * tokens * width),
                e.rows(tokens, width, 1, 1) + e.product(tokens, 3 * width, width),
            )
            + e.attention(width // 64, tokens, tokens, 64)
            + e.product(tokens, width, width, more=tokens * width)
        ),
        _block,
    )


_attention_block("attention_layer_197", "f16", 197, 768)
_attention_block("attention_layer_577", "bf16", 577, 576)
