"""Layers of transformers' models at their real widths through the whole flow, as a user's modules, and models.

    python -m benchmarks.layers                          every layer, kept in benchmarks/results/layers.json
    python -m benchmarks.layers --programs gpt2_decode   some of them
    python -m benchmarks.layers --table                  put what is kept into docs/benchmarking.md

Weights are random, in f16. A `prefill` takes whole sequences, causal where the model generates; a `decode` takes
one token and a cache of 1,023, and returns the caches with the token's keys and values. A `model` has 12 layers,
and takes an image or the embeddings of 128 tokens. `benchmarks.networks` says what the columns are.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUntypedBaseClass=false
# Modules of an untyped package.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.campaign import Campaign
from benchmarks.networks import measured, table

CACHED = 1023
"""Tokens before the one that is decoded."""


class Cache:
    """Keys and values of one layer, as transformers' caches are called."""

    is_compileable = False

    def __init__(self, keys: Any, values: Any) -> None:
        self.keys, self.values = keys, values

    def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """All keys and values, the new ones last."""
        self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        return self.keys, self.values


class Layer(torch.nn.Module):
    """A layer whose arguments are tensors; `rotary` makes the embeddings of positions from `first` on."""

    def __init__(self, layer: Any, rotary: Any = None, *, causal: bool = False) -> None:
        super().__init__()
        self.layer, self.rotary, self.causal = layer, rotary, causal

    def forward(self, x: Any, keys: Any = None, values: Any = None) -> Any:
        """The layer of states (batch, tokens, width), and the caches (batch, heads, cached, depth) if given."""
        length, first = x.shape[1], 0 if keys is None else keys.shape[2]
        given: dict[str, Any] = {"attention_mask": None}
        if self.causal and keys is None:
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            mask = torch.zeros(length, length, dtype=x.dtype).masked_fill(hidden, -1e4)
            given["attention_mask"] = mask[None, None]
        if self.rotary is not None:
            given["position_embeddings"] = self.rotary(x, torch.arange(first, first + length)[None])
        cache = None if keys is None else Cache(keys, values)
        if cache is not None:
            given["past_key_values"] = cache
        made = self.layer(x, **given)
        made = made[0] if isinstance(made, tuple) else made
        return made if cache is None else (made, cache.keys, cache.values)


class Model(torch.nn.Module):
    """A model whose argument, called `name`, and result are one tensor each."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Any) -> Any:
        """The states of an image or of embeddings."""
        return self.model(**{self.name: x})[0]


def _llama() -> tuple[Any, Any]:
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as models

    config: Any = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8
    )
    config._attn_implementation = "eager"
    return models.LlamaDecoderLayer(config, 0), models.LlamaRotaryEmbedding(config)


def _qwen3() -> tuple[Any, Any]:
    from transformers import Qwen3Config
    from transformers.models.qwen3 import modeling_qwen3 as models

    config: Any = Qwen3Config(
        hidden_size=4096, intermediate_size=12288, num_attention_heads=32, num_key_value_heads=8, head_dim=128
    )
    config._attn_implementation = "eager"
    return models.Qwen3DecoderLayer(config, 0), models.Qwen3RotaryEmbedding(config)


def _mixtral() -> tuple[Any, Any]:
    from transformers import MixtralConfig
    from transformers.models.mixtral import modeling_mixtral as models

    config: Any = MixtralConfig(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8
    )
    config._attn_implementation = "eager"
    # The loop over the experts that were chosen depends on data.
    config._experts_implementation = "batched_mm"
    return models.MixtralDecoderLayer(config, 0), models.MixtralRotaryEmbedding(config)


def _gpt2() -> tuple[Any, Any]:
    from transformers import GPT2Config
    from transformers.models.gpt2 import modeling_gpt2 as models

    config: Any = GPT2Config(n_embd=1600, n_head=25)
    config._attn_implementation = "eager"
    return models.GPT2Block(config, 0), None


def _bert() -> tuple[Any, Any]:
    from transformers import BertConfig
    from transformers.models.bert import modeling_bert as models

    config: Any = BertConfig(hidden_size=1024, intermediate_size=4096, num_attention_heads=16)
    config._attn_implementation = "eager"
    return models.BertLayer(config, 0), None


def _whisper() -> tuple[Any, Any]:
    from transformers import WhisperConfig
    from transformers.models.whisper import modeling_whisper as models

    config: Any = WhisperConfig(d_model=1280, encoder_attention_heads=20, encoder_ffn_dim=5120)
    config._attn_implementation = "eager"
    return models.WhisperEncoderLayer(config), None


def _clip() -> tuple[Any, Any]:
    from transformers import CLIPVisionConfig
    from transformers.models.clip import modeling_clip as models

    config: Any = CLIPVisionConfig(hidden_size=1024, intermediate_size=4096, num_attention_heads=16)
    config._attn_implementation = "eager"
    return models.CLIPEncoderLayer(config), None


def _vit() -> tuple[Any, Any]:
    from transformers import ViTConfig
    from transformers.models.vit import modeling_vit as models

    config: Any = ViTConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12)
    config._attn_implementation = "eager"
    return models.ViTLayer(config), None


# Name: layer and rotary embedding, width, tokens, heads of the cache, their depth, whether it is causal.
LAYERS: dict[str, tuple[Callable[[], tuple[Any, Any]], int, int, int, int, bool]] = {
    "llama3_8b": (_llama, 4096, 512, 8, 128, True),
    "qwen3_8b": (_qwen3, 4096, 512, 8, 128, True),
    "gpt2_xl": (_gpt2, 1600, 1024, 25, 64, True),
    "mixtral_8x7b": (_mixtral, 4096, 16, 8, 128, True),
    "bert_large": (_bert, 1024, 512, 0, 0, False),
    "whisper_large": (_whisper, 1280, 1500, 0, 0, False),
    "clip_large": (_clip, 1024, 577, 0, 0, False),
    "vit_base": (_vit, 768, 197, 0, 0, False),
}


def _vit_model() -> Any:
    from transformers import ViTConfig, ViTModel

    return Model(ViTModel(ViTConfig(), add_pooling_layer=False), "pixel_values")


def _bert_model() -> Any:
    from transformers import BertConfig, BertModel

    return Model(BertModel(BertConfig(), add_pooling_layer=False), "inputs_embeds")


def _gpt2_model() -> Any:
    from transformers import GPT2Config, GPT2Model

    return Model(GPT2Model(GPT2Config(use_cache=False)), "inputs_embeds")


# Name: model, and the shape of its input.
MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "vit_base": (_vit_model, (1, 3, 224, 224)),
    "bert_base": (_bert_model, (1, 128, 768)),
    "gpt2": (_gpt2_model, (1, 128, 768)),
}
NAMES = [
    f"{name}_{phase}"
    for name, (*_, heads, _, _) in LAYERS.items()
    for phase in (("prefill", "decode") if heads else ("prefill",))
] + [f"{name}_model" for name in MODELS]


def layer(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The module of a name and its inputs, in f16."""
    family, _, phase = name.rpartition("_")
    if phase == "model":
        torch.manual_seed(0)
        whole, shape = MODELS[family]
        return whole().eval().half(), (torch.randn(shape).half(),)
    build, width, tokens, heads, depth, causal = LAYERS[family]
    torch.manual_seed(0)
    made, rotary = build()
    for weight in made.parameters():  # some are allocated only
        torch.nn.init.normal_(weight, std=0.02)
    module = Layer(made, rotary, causal=causal).eval().half()
    if phase == "prefill":
        return module, (torch.randn(1, tokens, width).half(),)
    caches = (torch.randn(1, heads, CACHED, depth).half() for _ in range(2))
    return module, (torch.randn(1, 1, width).half(), *caches)


def measure(name: str, gpu: str, budget: float) -> dict[str, Any]:
    """The row of a layer."""
    module, inputs = layer(name)
    return measured(module, inputs, gpu, budget, "best")


if __name__ == "__main__":
    campaign = Campaign("layers", NAMES, measure, table, limit=540)
    campaign.run(campaign.parser(__doc__).parse_args())
