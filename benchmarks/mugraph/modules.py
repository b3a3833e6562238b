"""The programs of `programs.py` as PyTorch modules, which their `.mlir` files are made from.

    python -m benchmarks.mugraph.modules                                       writes every file anew
    superopt-import benchmarks/mugraph/modules.py:gqa_decode_b1 -o gqa.mlir    one, as linalg on tensors

Weights are arguments of `forward`; example inputs are memory that nobody has touched.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.mugraph.programs import BLOCKS, FOLDER, OWN, names

Tensor = torch.Tensor
Made = tuple[torch.nn.Module, tuple[Tensor, ...]]
KEYS = 4096
QUERIES = {"decode": 1, "spec": 32, "prefill": 512}
# (query heads, key heads, width of a head)
HEADS = {"mha": (32, 32, 128), "gqa": (16, 2, 128), "mqa": (71, 1, 64)}


def _softmax(x: Tensor, *, safe: bool) -> Tensor:
    if safe:
        return torch.softmax(x, -1)
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)


def _rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def _repeated(x: Tensor, times: int) -> Tensor:
    return x.repeat_interleave(times, 1) if times > 1 else x


class Attention(torch.nn.Module):
    """softmax(Q K' / sqrt(d)) V for q (b, heads, queries, d), k and v (b, key heads, keys, d)."""

    def __init__(self, *, safe: bool) -> None:
        super().__init__()
        self.safe = safe

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention's output, of q's shape."""
        each = q.shape[1] // k.shape[1]
        scores = q @ _repeated(k, each).transpose(-1, -2) / math.sqrt(q.shape[-1])
        return _softmax(scores, safe=self.safe) @ _repeated(v, each)


class PublicAttention(torch.nn.Module):
    """softmax(Q K) V for q (heads, queries, d), k (heads, d, keys), v (heads, keys, d)."""

    def __init__(self, *, safe: bool, qk_norm: bool) -> None:
        super().__init__()
        self.safe, self.qk_norm = safe, qk_norm

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention's output, of q's shape."""
        if self.qk_norm:
            q, k = _rms(q), _rms(k.transpose(1, 2)).transpose(1, 2)
        return _softmax(q @ k, safe=self.safe) @ v


class Function(torch.nn.Module):
    """A module of a function of tensors."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """`function` of the inputs."""
        return self.function(*inputs)


def attention_block(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    """Grouped-query self-attention with its four projections; heads of 128."""
    tokens, hidden = x.shape

    def heads(w: Tensor) -> Tensor:
        return (x @ w).reshape(tokens, -1, 128).transpose(0, 1)[None]

    q, k, v = heads(wq), heads(wk), heads(wv)
    each = q.shape[1] // k.shape[1]
    scores = q @ _repeated(k, each).transpose(-1, -2) / math.sqrt(128)
    o = torch.softmax(scores, -1) @ _repeated(v, each)
    return o[0].transpose(0, 1).reshape(tokens, hidden) @ wo


def mlp(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """An adapter: two thin layers with ReLU, and a residual."""
    return torch.relu(x @ a) @ b + x


def moe(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Experts of two layers with SiLU, each on its own tokens; experts first."""
    return torch.nn.functional.silu(x @ a) @ b


def lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A linear layer with a low-rank adaptation."""
    return x @ w + x @ a @ b


def gated_mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """The gated half of a feed-forward network."""
    return torch.nn.functional.silu(x @ w1) * (x @ w2)


def rmsnorm_linear(x: Tensor, w: Tensor) -> Tensor:
    """RMS normalisation without weights, then a linear layer."""
    return _rms(x) @ w


def norm_transformer(h: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """A step on the hypersphere: norm(h + alpha (norm(x) - h))."""
    return _rms(h + alpha * (_rms(x) - h))


def bilinear_form(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Rows of x W y' over the norms of the rows of x and y."""
    form = ((x @ w) * y).sum(-1, keepdim=True)
    return form / torch.sqrt((x * x).sum(-1, keepdim=True) * (y * y).sum(-1, keepdim=True))


def gated_attention(q: Tensor, k: Tensor, v: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Attention of one head, its output gated by a sigmoid of a projection."""
    return (_softmax(q @ k.T, safe=False) @ v) * torch.sigmoid(x @ w)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with relu features: phi(Q) (phi(K)' V) over its normaliser, heads first."""
    a, b = torch.relu(q), torch.relu(k)
    total = a @ b.sum(1, keepdim=True).transpose(1, 2)
    return (a @ (b.transpose(1, 2) @ v)) / (total + 1e-3)


def cosine_scores(x: Tensor, w: Tensor) -> Tensor:
    """Cosines between rows of x and columns of w."""
    xn = x * torch.rsqrt((x * x).sum(-1, keepdim=True))
    return xn @ (w * torch.rsqrt((w * w).sum(0, keepdim=True)))


def layernorm_linear(x: Tensor, w: Tensor) -> Tensor:
    """Layer normalisation without weights, then a linear layer."""
    centred = x - x.mean(-1, keepdim=True)
    return (centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)) @ w


def pooled_mlp(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """The mean over tokens of a two-layer network with GELU; batch first."""
    return (torch.nn.functional.gelu(x @ w) @ u).mean(1)


def rbf_regression(x: Tensor, c: Tensor, y: Tensor) -> Tensor:
    """Nadaraya-Watson regression with Gaussian weights of scale 1/256."""
    distance = (x * x).sum(-1, keepdim=True) + (c * c).sum(-1)[None] - 2 * (x @ c.T)
    e = torch.exp(distance * (-1 / 256))
    return (e @ y) / e.sum(-1, keepdim=True)


def low_rank_chain(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """A residual through three factors, of which the two inner ranks are small."""
    return ((x @ a) @ b) @ c + x


def squeeze_excite(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """Channels gated by a small network of their means over tokens; batch first."""
    gate = torch.sigmoid(torch.relu(x.mean(1) @ w) @ u)
    return x * gate[:, None]


def rational_features(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x A over one plus the square of x B, each row scaled to unit norm."""
    p, q = x @ a, x @ b
    f = p / (1 + q * q)
    return f * torch.rsqrt((f * f).sum(-1, keepdim=True) + 1e-5)


def _half(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float16)


def _function(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Made:
    return Function(function), tuple(_half(*s) for s in shapes)


def _paper_attention(family: str, b: int, *, safe: bool) -> Made:
    kind, mode = family.split("_")
    heads, groups, d = HEADS[kind]
    keys = _half(b, groups, KEYS, d), _half(b, groups, KEYS, d)
    return Attention(safe=safe), (_half(b, heads, QUERIES[mode], d), *keys)


def _public_attention(family: str, b: int, *, safe: bool) -> Made:
    heads, queries = {"gqa": (2, 256), "qknorm": (2, 256), "mha": (32, 16), "mqa": (1, 1024)}[
        family.removesuffix("_public")
    ]
    module = PublicAttention(safe=safe, qk_norm=family.startswith("qknorm"))
    return module, (_half(heads * b, queries, 64), _half(heads * b, 64, KEYS), _half(heads * b, KEYS, 64))


def _other(family: str, b: int) -> Made:
    big = (4096, 4096)
    function, shapes = {
        "mlp": (mlp, [(b, 4096), (4096, 16), (16, 4096)]),
        "moe": (moe, [(8, b, 4096), (8, *big), (8, *big)]),
        "lora": (lora, [(2 * b, 256), (256, 4096), (256, 16), (16, 4096)]),
        "gated_mlp": (gated_mlp, [(b, 4096), big, big]),
        "norm_transformer": (norm_transformer, [(8 * b, 4096)] * 3),
        "rmsnorm_linear": (rmsnorm_linear, [(2 * b, 4096), (4096, 6144)]),
    }[family]
    return _function(function, *shapes)


_OWN: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "attention_block": (
        attention_block, [(512, 4096), (4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096)],
    ),
    "bilinear_form": (bilinear_form, [(64, 4096), (4096, 4096), (64, 4096)]),
    "gated_attention": (gated_attention, [(64, 64), (4096, 64), (4096, 64), (64, 1024), (1024, 64)]),
    "linear_attention": (linear_attention, [(32, 1024, 64), (32, 1024, 64), (32, 1024, 64)]),
    "cosine_scores": (cosine_scores, [(16, 4096), (4096, 4096)]),
    "layernorm_linear": (layernorm_linear, [(16, 4096), (4096, 4096)]),
    "pooled_mlp": (pooled_mlp, [(8, 128, 1024), (1024, 64), (64, 1024)]),
    "rbf_regression": (rbf_regression, [(64, 64), (4096, 64), (4096, 64)]),
    "low_rank_chain": (low_rank_chain, [(64, 4096), (4096, 16), (16, 16), (16, 4096)]),
    "squeeze_excite": (squeeze_excite, [(8, 1024, 512), (512, 32), (32, 512)]),
    "rational_features": (rational_features, [(16, 1024), (1024, 512), (1024, 512)]),
}  # fmt: skip


def module(name: str) -> Made:
    """The module called `name` and its example inputs."""
    if name in _OWN:
        function, shapes = _OWN[name]
        return _function(function, *shapes)
    safe = name.endswith("_safe")
    family, batch = name.removesuffix("_safe").rsplit("_b", 1)
    if family.endswith("_public"):
        return _public_attention(family, int(batch), safe=safe)
    if family.split("_")[0] in HEADS:
        return _paper_attention(family, int(batch), safe=safe)
    return _other(family, int(batch))


def _factory(name: str) -> Callable[[], Made]:
    return lambda: module(name)


for _name in [*names(), *BLOCKS, *OWN]:
    globals()[f"make_{_name}" if _name in globals() else _name] = _factory(_name)


def text(name: str) -> str:
    """A program's kernel graph; its inputs are x0, x1, ..., whatever its module calls them."""
    from superopt.dialects.writer import to_text
    from superopt.transforms.ingest import from_torch

    graph = from_torch(*module(name), name=name).graph
    for i, value in enumerate(graph.inputs):
        value.name = f"x{i}"
    return to_text(graph)


def main() -> None:
    """Write every program beside this file, as its kernel graph."""
    for name in sys.argv[1:] or [*names(), *BLOCKS, *OWN]:
        (FOLDER / f"{name}.mlir").write_text(text(name))
        print(name, flush=True)


if __name__ == "__main__":
    main()
