"""The programs of Trinity's evaluation (section 6.1) as kernel graphs, at any size.

A block of tokens is verified against a cache of earlier ones: X holds `tokens` rows, the caches `prefix` rows for
each head; the new keys and values are appended, and the grown caches are results. With `in_place` the caches have
room for the new rows, which are written behind the prefix into the caller's own tensors, as in the paper. As
there, `safe=False` takes exponentials without subtracting the maximum; `safe=True` is softmax as every framework
computes it. With `groups`, keys and values have that many heads and each serves heads / groups query heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from superopt.operators import OPERATORS, infer_type, normalize_attrs
from superopt.program import Attr, KernelGraph, Node, TensorType, Value


@dataclass(frozen=True)
class Config:
    """Sizes of a model; `ffn` is the width between the two layers of its feed-forward network."""

    hidden: int
    heads: int
    ffn: int
    groups: int
    tokens: int = 16
    prefix: int = 1008
    dtype: str = "f16"

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


LLAMA3_8B = Config(4096, 32, 14336, 8)
FALCON_7B = Config(4544, 71, 18176, 1)
CONFIGS = {"llama3_8b": LLAMA3_8B, "falcon_7b": FALCON_7B}


class Builder:
    """Writes a kernel graph operator by operator."""

    def __init__(self, name: str, dtype: str) -> None:
        self.graph = KernelGraph(name, [], [], [])
        self.dtype = dtype

    def input(self, name: str, *shape: int) -> Value:
        value = Value(TensorType(shape, self.dtype), name)
        self.graph.inputs.append(value)
        return value

    def op(self, op: str, *operands: Value, name: str = "", **attrs: Attr) -> Value:
        values = normalize_attrs(OPERATORS[op], attrs)
        result = Value(infer_type(op, [v.type for v in operands], values), name)
        self.graph.nodes.append(Node(op, operands, (result,), values))
        return result

    def number(self, value: float) -> Value:
        return self.op("constant", value=value, shape=(), dtype=self.dtype)

    def outputs(self, *values: Value) -> KernelGraph:
        self.graph.outputs = list(values)
        return self.graph


def _normalized(b: Builder, x: Value, name: str) -> Value:
    """RMS normalization over the last dimension, without weights."""
    squares = b.op("square", x)
    mean = b.op("reduce_mean", squares, dims=(len(x.shape) - 1,), keepdims=True, name=f"{name}_mean")
    shifted = b.op("add", mean, b.number(1e-5))
    return b.op("mul", x, b.op("rsqrt", shifted), name=name)


def _heads(b: Builder, x: Value, heads: int, name: str) -> Value:
    """tokens x (heads * width) -> heads x tokens x width."""
    tokens, hidden = x.shape
    split = b.op("reshape", x, shape=(tokens, heads, hidden // heads))
    return b.op("transpose", split, perm=(1, 0, 2), name=name)


def _grouped(b: Builder, x: Value, groups: int, each: int, name: str) -> Value:
    """tokens x hidden -> groups x (each * tokens) x width: the query heads of a group as rows of one product."""
    tokens, hidden = x.shape
    split = b.op("reshape", x, shape=(tokens, groups, each, hidden // groups // each))
    moved = b.op("transpose", split, perm=(1, 2, 0, 3))
    return b.op("reshape", moved, shape=(groups, each * tokens, hidden // groups // each), name=name)


def _ungrouped(b: Builder, o: Value, tokens: int, name: str) -> Value:
    groups, rows, width = o.shape
    each = rows // tokens
    split = b.op("reshape", o, shape=(groups, each, tokens, width))
    moved = b.op("transpose", split, perm=(2, 0, 1, 3))
    return b.op("reshape", moved, shape=(tokens, groups * each * width), name=name)


def attention(
    config: Config,
    name: str,
    *,
    pre_norm: bool = False,
    qk_norm: bool = False,
    extra: str = "",
    safe: bool = False,
    grouped: bool = False,
    in_place: bool = False,
) -> KernelGraph:
    """From the embedded tokens to the attention's output, before the output projection."""
    b = Builder(name, config.dtype)
    x = b.input("x", config.tokens, config.hidden)
    _attention(b, config, x, pre_norm, qk_norm, extra, safe, grouped, in_place)
    return b.graph


def _attention(
    b: Builder,
    config: Config,
    x: Value,
    pre_norm: bool,
    qk_norm: bool,
    extra: str,
    safe: bool,
    grouped: bool,
    in_place: bool,
) -> Value:
    heads = config.groups if grouped else config.heads
    each = config.heads // heads
    width = config.head
    room = config.prefix + config.tokens if in_place else config.prefix
    weights = [
        b.input("wq", config.hidden, config.hidden),
        b.input("wk", config.hidden, heads * width),
        b.input("wv", config.hidden, heads * width),
    ]
    k_cache = b.input("k_cache", heads, room, width)
    v_cache = b.input("v_cache", heads, room, width)
    if pre_norm:
        x = _normalized(b, x, "xn")
    q1, k1, v1 = (b.op("matmul", x, w, name=n) for w, n in zip(weights, ("q1", "k1", "v1"), strict=True))
    # One head of keys for all serves every query head by broadcasting; more make a product for each group.
    by_group = grouped and heads > 1
    q = _grouped(b, q1, heads, each, "q") if by_group else _heads(b, q1, config.heads, "q")
    k, v = _heads(b, k1, heads, "k"), _heads(b, v1, heads, "v")
    if qk_norm:
        q, k = _normalized(b, q, "qn"), _normalized(b, k, "kn")
    keys, values = (
        b.op("update_slice", cache, new, dim=1, offset=config.prefix, name=label)
        if in_place
        else b.op("concat", cache, new, dim=1, name=label)
        for cache, new, label in ((k_cache, k, "keys"), (v_cache, v, "values"))
    )
    c = b.op("matmul", q, keys, transpose_b=True, name="c")
    extras: list[Value] = []
    if extra == "keyformer":
        noise = b.input("noise", *c.shape)
        perturbed = b.op("div", b.op("add", c, noise), b.number(1.5), name="c_perturb")
        p = _softmax(b, perturbed, safe, "perturb")
        extras.append(b.op("reduce_sum", p, dims=(1,), keepdims=False, name="c_out"))
    p = _softmax(b, c, safe, "c")
    if extra == "roco":
        extras.append(b.op("reduce_sum", p, dims=(1,), keepdims=False, name="c_out1"))
        extras.append(b.op("reduce_sum", b.op("square", p), dims=(1,), keepdims=False, name="c_out2"))
    o = b.op("matmul", p, values, name="o")
    if by_group:
        out = _ungrouped(b, o, config.tokens, "o2")
    else:
        moved = b.op("transpose", o, perm=(1, 0, 2))
        out = b.op("reshape", moved, shape=(config.tokens, config.hidden), name="o2")
    b.outputs(out, keys, values, *extras)
    if in_place:
        b.graph.aliases = (
            -1,
            b.graph.inputs.index(k_cache),
            b.graph.inputs.index(v_cache),
            *[-1] * len(extras),
        )
    return out


def _softmax(b: Builder, x: Value, safe: bool, name: str) -> Value:
    if safe:
        largest = b.op("reduce_max", x, dims=(2,), keepdims=True, name=f"{name}_max")
        x = b.op("sub", x, largest)
    e = b.op("exp", x, name=f"{name}_exp")
    total = b.op("reduce_sum", e, dims=(2,), keepdims=True, name=f"{name}_sum")
    return b.op("div", e, total, name=f"{name}_p")


def swiglu_ffn(config: Config, name: str) -> KernelGraph:
    """RMS normalization, gate and up projections, their gated product, down projection, residual."""
    b = Builder(name, config.dtype)
    x = b.input("x", config.tokens, config.hidden)
    b.outputs(_ffn(b, config, x))
    return b.graph


def _ffn(b: Builder, config: Config, x: Value) -> Value:
    w1, w3 = (b.input(n, config.hidden, config.ffn) for n in ("w_gate", "w_up"))
    w2 = b.input("w_down", config.ffn, config.hidden)
    xn = _normalized(b, x, "ffn_in")
    gate = b.op("matmul", xn, w1, name="gate")
    up = b.op("matmul", xn, w3, name="up")
    h = b.op("mul", b.op("silu", gate), up, name="h")
    return b.op("add", b.op("matmul", h, w2, name="down"), x, name="y")


def decoder_layer(config: Config, name: str, *, safe: bool = True) -> KernelGraph:
    """Pre-norm attention, its output projection, residual, and the feed-forward network."""
    b = Builder(name, config.dtype)
    x = b.input("x", config.tokens, config.hidden)
    o = _attention(b, config, x, True, False, "", safe, False, False)
    caches = b.graph.outputs[1:]
    wo = b.input("wo", config.hidden, config.hidden)
    mid = b.op("add", b.op("matmul", o, wo, name="proj"), x, name="mid")
    b.outputs(_ffn(b, config, mid), *caches)
    return b.graph


PROGRAMS: dict[str, Callable[..., KernelGraph]] = {
    "vanilla": lambda c, n, **k: attention(c, n, **k),
    "pre_norm": lambda c, n, **k: attention(c, n, pre_norm=True, **k),
    "qk_norm": lambda c, n, **k: attention(c, n, qk_norm=True, **k),
    "roco": lambda c, n, **k: attention(c, n, extra="roco", **k),
    "keyformer": lambda c, n, **k: attention(c, n, extra="keyformer", **k),
    "swiglu_ffn": lambda c, n, **_: swiglu_ffn(c, n),
}

# What stands behind a plus sign in the name of an attention, and the option that it is.
VARIANTS = {"safe": "safe", "gqa": "grouped", "inplace": "in_place"}


def names() -> list[str]:
    """Every program and variant."""
    suffixes = ["", *(f"+{v}" for v in VARIANTS)]
    variants = [p + v for p in PROGRAMS for v in suffixes if p != "swiglu_ffn" or not v]
    return [*variants, "layer"]


def build(name: str, config: Config) -> KernelGraph:
    """A program by name, with its variants after plus signs."""
    base, *variants = name.split("+")
    label = name.replace("+", "_")
    if base == "layer":
        return decoder_layer(config, label)
    return PROGRAMS[base](config, label, **{VARIANTS[v]: True for v in variants})
