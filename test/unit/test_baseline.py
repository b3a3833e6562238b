"""What a user has already, by the same model: which kernels it is, and that none of them is forgotten."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from superopt.cost import baselines, best_baseline, cost, target
from superopt.cost.baseline import Baseline
from superopt.cost.library import attention_cost, product_cost
from superopt.dialects.reader import read
from superopt.program import Attr, KernelGraph, Node, TensorType, Value

H100 = target("sm_90")

SOFTMAX = """
  %m = "kernel.reduce_max"(%s) {dims = array<i64: 3>, keepdims = true} : (tensor<SxT>) -> tensor<RxT>
  %d = "kernel.sub"(%s, %m) : (tensor<SxT>, tensor<RxT>) -> tensor<SxT>
  %e = "kernel.exp"(%d) : (tensor<SxT>) -> tensor<SxT>
  %t = "kernel.reduce_sum"(%e) {dims = array<i64: 3>, keepdims = true} : (tensor<SxT>) -> tensor<RxT>
  %p = "kernel.div"(%e, %t) : (tensor<SxT>, tensor<RxT>) -> tensor<SxT>
"""


def attention(batch: int, heads: int, rows: int, keys: int, width: int, *, also: str = "") -> KernelGraph:
    """Softmax attention; with `also`, another value is an output, too."""
    q, k = f"{batch}x{heads}x{rows}x{width}", f"{batch}x{heads}x{keys}x{width}"
    scores, sums = f"{batch}x{heads}x{rows}x{keys}", f"{batch}x{heads}x{rows}x1"
    softmax = SOFTMAX.replace("SxT", f"{scores}xf16").replace("RxT", f"{sums}xf16")
    more, kind = (f", %{also}", f", tensor<{scores}xf16>") if also else ("", "")
    return read(f"""
func.func @f(%q: tensor<{q}xf16>, %k: tensor<{k}xf16>, %v: tensor<{k}xf16>) -> (tensor<{q}xf16>{kind}) {{
  %s = "kernel.matmul"(%q, %k) {{transpose_b = true}} : (tensor<{q}xf16>, tensor<{k}xf16>) -> tensor<{scores}xf16>
  {softmax}
  %o = "kernel.matmul"(%p, %v) : (tensor<{scores}xf16>, tensor<{k}xf16>) -> tensor<{q}xf16>
  return %o{more} : tensor<{q}xf16>{kind}
}}""")


def named(graph: KernelGraph, name: str) -> Baseline:
    return next(b for b in baselines(graph, H100) if b.name == name)


def names(baseline: Baseline) -> list[str]:
    return [str(p.name) for p in baseline.parts]


def test_attention_is_one_kernel_or_two_with_split_keys() -> None:
    prefill = best_baseline(attention(4, 32, 1024, 1024, 64), H100)
    assert names(prefill) == ["attention"]
    decode = best_baseline(attention(1, 8, 1, 8192, 128), H100)
    assert names(decode) == ["attention", "join"]
    assert decode.parts[0].traffic.blocks > 8 * 4


@pytest.mark.parametrize("also", ["s", "p"])
def test_attention_whose_scores_others_read_is_none(also: str) -> None:
    assert {b.name for b in baselines(attention(1, 8, 128, 1024, 64, also=also), H100)} == {
        "eager",
        "inductor",
    }


def test_queries_that_share_keys_read_them_once() -> None:
    def read_bytes(key_heads: int) -> float:
        parts = attention_cost(H100, 32, 1, 8192, 128, key_heads=key_heads)
        return parts[0].traffic.dram_bytes

    assert read_bytes(4) < 1.1 * 4 * 8192 * 256 * 2 < read_bytes(32) / 7


def test_composites_are_one_kernel_of_eager_pytorch() -> None:
    graph = read("""
func.func @mish(%x: tensor<4096x4096xf16>) -> tensor<4096x4096xf16> {
  %e = "kernel.exp"(%x) : (tensor<4096x4096xf16>) -> tensor<4096x4096xf16>
  %l = "kernel.log1p"(%e) : (tensor<4096x4096xf16>) -> tensor<4096x4096xf16>
  %t = "kernel.tanh"(%l) : (tensor<4096x4096xf16>) -> tensor<4096x4096xf16>
  %y = "kernel.mul"(%x, %t) : (tensor<4096x4096xf16>, tensor<4096x4096xf16>) -> tensor<4096x4096xf16>
  return %y : tensor<4096x4096xf16>
}""")
    eager = named(graph, "eager")
    assert len(eager.parts) == 1
    assert eager.parts[0].traffic.dram_bytes == 2 * 4096 * 4096 * 2
    assert 4 * eager.seconds < 1.5 * cost(graph, H100).seconds


def rms_norm(rows: int, columns: int) -> KernelGraph:
    full, one = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x1xf32>"
    return read(f"""
func.func @norm(%x: {full}) -> {full} {{
  %q = "kernel.square"(%x) : ({full}) -> {full}
  %m = "kernel.reduce_mean"(%q) {{dims = array<i64: 1>, keepdims = true}} : ({full}) -> {one}
  %r = "kernel.rsqrt"(%m) : ({one}) -> {one}
  %y = "kernel.mul"(%x, %r) : ({full}, {one}) -> {full}
  return %y : {full}
}}""")


@pytest.mark.parametrize(
    ("columns", "rate"), [(1024, H100.l2_bytes_per_second), (16384, H100.dram_bytes_per_second)]
)
def test_norms_of_eager_pytorch_read_their_rows_twice(columns: int, rate: float) -> None:
    """The second time from L2, where the rows of all resident blocks fit."""
    graph = rms_norm(4096, columns)
    (eager,), (inductor,) = named(graph, "eager").parts, named(graph, "inductor").parts
    assert eager.seconds == pytest.approx(inductor.seconds + 4096 * columns * 4 / rate)


def test_elementwise_operators_of_two_tensors_are_one_kernel_of_inductor_only() -> None:
    graph = read("""
func.func @f(%x: tensor<1024x1024xf16>, %y: tensor<1024x1024xf16>) -> tensor<1024x1024xf16> {
  %a = "kernel.silu"(%x) : (tensor<1024x1024xf16>) -> tensor<1024x1024xf16>
  %b = "kernel.mul"(%a, %y) : (tensor<1024x1024xf16>, tensor<1024x1024xf16>) -> tensor<1024x1024xf16>
  return %b : tensor<1024x1024xf16>
}""")
    assert names(named(graph, "eager")) == ["silu", "mul"]
    assert names(named(graph, "inductor")) == ["silu+mul"]


def test_inductor_puts_an_epilogue_into_a_product_but_no_reduction() -> None:
    text = """
func.func @f(%x: tensor<4096x4096xf16>, %w: tensor<4096x4096xf16>) -> tensor<OUTxf16> {
  %a = "kernel.matmul"(%x, %w) : (tensor<4096x4096xf16>, tensor<4096x4096xf16>) -> tensor<4096x4096xf16>
  %b = OP : (tensor<4096x4096xf16>) -> tensor<OUTxf16>
  return %b : tensor<OUTxf16>
}"""
    relu = read(text.replace("OUT", "4096x4096").replace("OP", '"kernel.relu"(%a)'))
    assert names(named(relu, "inductor")) == ["matmul"]
    total = '"kernel.reduce_sum"(%a) {dims = array<i64: 1>, keepdims = true}'
    reduced = read(text.replace("OUT", "4096x1").replace("OP", total))
    assert names(named(reduced, "inductor")) == ["matmul", "reduce_sum"]


def test_what_would_need_and_feed_a_product_is_not_one_kernel_with_it() -> None:
    graph = read("""
func.func @f(%x: tensor<512x512xf16>, %w: tensor<512x512xf16>) -> tensor<512x512xf16> {
  %a = "kernel.exp"(%x) : (tensor<512x512xf16>) -> tensor<512x512xf16>
  %b = "kernel.matmul"(%a, %w) : (tensor<512x512xf16>, tensor<512x512xf16>) -> tensor<512x512xf16>
  %c = "kernel.add"(%a, %b) : (tensor<512x512xf16>, tensor<512x512xf16>) -> tensor<512x512xf16>
  return %c : tensor<512x512xf16>
}""")
    assert sorted(names(named(graph, "inductor"))) == ["exp", "matmul"]


def test_libraries_split_deep_products() -> None:
    deep = product_cost(H100, 16, 256, 65536)
    assert deep.traffic.blocks >= 64
    assert deep.seconds < product_cost(H100, 16, 256, 65536, split=False).seconds / 3


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "h200", "sm_100"])
def test_a_library_is_never_slower_than_what_is_emitted_for_one_product(gpu: str) -> None:
    for rows, columns, depth in ((1, 4096, 4096), (16, 6144, 4096), (512, 512, 512), (4096, 4096, 4096)):
        a, b, c = f"{rows}x{depth}xf16", f"{depth}x{columns}xf16", f"{rows}x{columns}xf16"
        graph = read(f"""
func.func @f(%x: tensor<{a}>, %w: tensor<{b}>) -> tensor<{c}> {{
  %y = "kernel.matmul"(%x, %w) : (tensor<{a}>, tensor<{b}>) -> tensor<{c}>
  return %y : tensor<{c}>
}}""")
        assert best_baseline(graph, target(gpu)).seconds <= 1.01 * cost(graph, target(gpu)).seconds


def masked(window: int, rows: int = 2048) -> KernelGraph:
    """Attention of eight heads whose rows see the last `window` keys before them, by what a constant adds."""
    graph = attention(1, 8, rows, rows, 64)
    product, *rest = graph.nodes
    at = np.arange(rows)
    hidden = (at[None] > at[:, None]) | (at[None] <= at[:, None] - window)
    mask = Value(TensorType((rows, rows), "f16"))
    array = np.where(hidden, -6e4, 0).astype(np.float32)
    attrs: dict[str, Attr] = {"value": array, "shape": (rows, rows), "dtype": "f16"}
    added = Value(product.result.type)
    swap = {product.result: added}
    rest = [replace(n, operands=tuple(swap.get(v, v) for v in n.operands)) for n in rest]
    nodes = [Node("constant", (), (mask,), attrs), product]
    return replace(graph, nodes=[*nodes, Node("add", (product.result, mask), (added,), {}), *rest])


def test_tiles_that_a_mask_hides_are_not_computed() -> None:
    whole, causal, window = (
        named(g, "attention") for g in (attention(1, 8, 2048, 2048, 64), masked(2048), masked(256))
    )
    flops = [b.parts[0].traffic.tensor_flops for b in (whole, causal, window)]
    assert 0.5 < flops[1] / flops[0] < 0.56
    assert 0.15 < flops[2] / flops[0] < 0.25
    assert causal.parts[0].traffic.dram_bytes == whole.parts[0].traffic.dram_bytes  # nor is the mask read
    assert window.seconds < causal.seconds < whole.seconds


def test_a_bias_is_read_and_hides_nothing() -> None:
    graph = masked(2048)
    (mask,) = (n for n in graph.nodes if n.op == "constant")
    mask.attrs["value"] = np.maximum(np.asarray(mask.attrs["value"]), -8.0)
    biased, whole = (named(g, "attention").parts[0].traffic for g in (graph, attention(1, 8, 2048, 2048, 64)))
    assert biased.tensor_flops == whole.tensor_flops
    assert biased.dram_bytes == whole.dram_bytes + 2048 * 2048 * 2


DEFERRED = """
func.func @f(%q: tensor<8x512x64xf16>, %k: tensor<8x512x64xf16>, %v: tensor<8x512x64xf16>) -> tensor<8x512x64xf16> {
  %s = "kernel.matmul"(%q, %k) {transpose_b = true} : (tensor<8x512x64xf16>, tensor<8x512x64xf16>) -> tensor<8x512x512xf16>
  %c = "kernel.cast"(%s) {dtype = "f32"} : (tensor<8x512x512xf16>) -> tensor<8x512x512xf32>
  %e = "kernel.exp"(%c) : (tensor<8x512x512xf32>) -> tensor<8x512x512xf32>
  %t = "kernel.reduce_sum"(%e) {dims = array<i64: 2>, keepdims = true} : (tensor<8x512x512xf32>) -> tensor<8x512x1xf32>
  %w = "kernel.cast"(%e) {dtype = "f16"} : (tensor<8x512x512xf32>) -> tensor<8x512x512xf16>
  %u = "kernel.matmul"(%w, %v) : (tensor<8x512x512xf16>, tensor<8x512x64xf16>) -> tensor<8x512x64xf16>
  %x = "kernel.cast"(%u) {dtype = "f32"} : (tensor<8x512x64xf16>) -> tensor<8x512x64xf32>
  %y = "kernel.div"(%x, DIVISOR) : (tensor<8x512x64xf32>, tensor<8x512xWIDTHxf32>) -> tensor<8x512x64xf32>
  %z = "kernel.cast"(%y) {dtype = "f16"} : (tensor<8x512x64xf32>) -> tensor<8x512x64xf16>
  return %z : tensor<8x512x64xf16>
}"""


def test_a_softmax_divided_after_the_product_is_attention() -> None:
    graph = read(DEFERRED.replace("DIVISOR", "%t").replace("WIDTH", "1"))
    found = named(graph, "attention")
    assert names(found) == ["attention"]
    assert found.parts[0].traffic.dram_bytes == 4 * 8 * 512 * 64 * 2
    other = read(
        DEFERRED.replace("DIVISOR", "%x").replace("WIDTH", "64")
    )  # by something else: a kernel of its own
    assert names(named(other, "attention")) == ["attention", "cast+div"]


def test_inductor_has_products_write_their_part_of_a_concatenation() -> None:
    graph = read("""
func.func @f(%x: tensor<512x512xf16>, %w: tensor<512x512xf16>, %c: tensor<4096x512xf16>) -> tensor<4608x512xf16> {
  %a = "kernel.matmul"(%x, %w) : (tensor<512x512xf16>, tensor<512x512xf16>) -> tensor<512x512xf16>
  %y = "superopt.concat"(%c, %a) {dim = 0 : i64} : (tensor<4096x512xf16>, tensor<512x512xf16>) -> tensor<4608x512xf16>
  return %y : tensor<4608x512xf16>
}""")

    def copied(name: str) -> float:
        return next(p.traffic.dram_bytes for p in named(graph, name).parts if p.name == "concat")

    assert copied("eager") == 2 * 4608 * 512 * 2
    assert copied("inductor") == 2 * 4096 * 512 * 2


def test_a_product_that_an_opaque_operation_reads_has_a_baseline() -> None:
    scores = "(tensor<13x29xf32>) -> tensor<13x29xf32>"
    graph = read(f"""
func.func @f(%x: tensor<13x29xf32>, %w: tensor<29x29xf32>) -> tensor<13x29xf32> {{
  %p = "kernel.matmul"(%x, %w) : (tensor<13x29xf32>, tensor<29x29xf32>) -> tensor<13x29xf32>
  %o = "superopt.extern"(%p) {{target = "aten.flip.default", reason = "", args = ""}} : {scores}
  return %o : tensor<13x29xf32>
}}""")
    assert best_baseline(graph, H100).seconds > 0
