"""Real modules at real widths, random weights: both entrances against eager, and against each other."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Modules that derive from one of an untyped package.

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")
from ingest_support import run_imported  # noqa: E402

from superopt.transforms.ingest import from_torch  # noqa: E402
from superopt.verify import certify  # noqa: E402

pytestmark = pytest.mark.models

SEQUENCE = 16


def modeling(name: str) -> Any:
    """The file of transformers that defines a model."""
    return import_module(f"transformers.models.{name}.modeling_{name}")


class First(torch.nn.Module):
    """The first output of a module."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        made = self.module(x)
        return made[0] if isinstance(made, tuple) else made


class Causal(torch.nn.Module):
    """A module on rotary embeddings of the model's own at positions 0, 1, ..., and a causal mask."""

    def __init__(self, module: Any, rotary: Any, **fixed: Any) -> None:
        super().__init__()
        self.module = module
        self.rotary = rotary
        self.fixed = fixed

    def forward(self, x: Any) -> Any:
        length = x.shape[1]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        mask = torch.zeros(length, length).masked_fill(hidden, torch.finfo(x.dtype).min)[None, None]
        embeddings = self.rotary(x, torch.arange(length)[None])
        made = self.module(x, position_embeddings=embeddings, attention_mask=mask, **self.fixed)
        return made[0] if isinstance(made, tuple) else made


def grouped(config: Any, width: int, **more: Any) -> Any:
    """A configuration with heads of 128 and a fourth as many heads of keys, as in Llama-3-8B and Qwen3-8B."""
    heads = width // 128
    return eager(config(hidden_size=width, num_attention_heads=heads, num_key_value_heads=heads // 4, **more))


def eager(config: Any) -> Any:
    config._attn_implementation = "eager"
    return config


def llama_attention(width: int) -> Any:
    hf = modeling("llama")
    config = grouped(hf.LlamaConfig, width)
    return Causal(hf.LlamaAttention(config, 0), hf.LlamaRotaryEmbedding(config))


def llama_mlp(width: int) -> Any:
    hf = modeling("llama")
    return hf.LlamaMLP(hf.LlamaConfig(hidden_size=width, intermediate_size=width * 7 // 2))


def llama_layer(width: int) -> Any:
    hf = modeling("llama")
    config = grouped(hf.LlamaConfig, width, intermediate_size=width * 7 // 2)
    return Causal(hf.LlamaDecoderLayer(config, 0), hf.LlamaRotaryEmbedding(config))


def qwen3_attention(width: int) -> Any:
    hf = modeling("qwen3")
    config = grouped(hf.Qwen3Config, width, head_dim=128)
    return Causal(hf.Qwen3Attention(config, 0), hf.Qwen3RotaryEmbedding(config))


def falcon_attention(width: int) -> Any:
    hf = modeling("falcon")
    config = eager(hf.FalconConfig(hidden_size=width, num_attention_heads=width // 64, multi_query=True))
    return Causal(hf.FalconAttention(config, 0), hf.FalconRotaryEmbedding(config), alibi=None)


def bert_layer(width: int) -> Any:
    hf = modeling("bert")
    config = hf.BertConfig(hidden_size=width, num_attention_heads=width // 64, intermediate_size=4 * width)
    return First(hf.BertLayer(eager(config)))


# name: (builder, real width)
MODULES: dict[str, tuple[Callable[[int], Any], int]] = {
    "llama3-8b-attention": (llama_attention, 4096),
    "llama3-8b-mlp": (llama_mlp, 4096),
    "llama3-8b-layer": (llama_layer, 4096),
    "falcon-7b-attention": (falcon_attention, 4544),
    "bert-base-layer": (bert_layer, 768),
    "qwen3-8b-attention": (qwen3_attention, 4096),
}


def build(name: str, width: int) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return MODULES[name][0](width).eval(), (torch.randn(1, SEQUENCE, width),)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("via", ["torch", "linalg"])
def test_against_eager(name: str, via: Any) -> None:
    module, inputs = build(name, MODULES[name][1])
    with torch.no_grad():
        eager = module(*inputs)
    imported = from_torch(module, inputs, via=via)
    assert imported.externs == 0, imported.diagnostics.messages
    assert imported.operators <= 90
    (ours,) = run_imported(imported, inputs)
    error = float((ours - eager.double()).abs().max())
    print(f"{name} via {via}: {imported.operators} operators, 0 extern, max error {error:.1e}")
    assert error < 2e-6 * max(1.0, float(eager.abs().max()))


@pytest.mark.parametrize("name", MODULES)
def test_entrances_agree(name: str) -> None:
    module, inputs = build(name, MODULES[name][1])
    verdict = certify(from_torch(module, inputs).graph, from_torch(module, inputs, via="linalg").graph)
    assert verdict.equivalent, verdict.counterexample


def test_the_verifier_tells_a_changed_import_apart() -> None:
    name = "qwen3-8b-attention"
    module, inputs = build(name, 512)
    good, other = from_torch(module, inputs).graph, from_torch(module, inputs, via="linalg").graph
    node = next(n for n in other.nodes if n.op == "reduce_mean")
    node.op = "reduce_sum"
    assert not certify(good, other).equivalent
