"""What the search makes of masks, whose price its native part does not know, and what the import drops of them."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.cost import best_baseline, cost, target
from superopt.dialects.reader import read
from superopt.program import BlockGraph, KernelGraph, Node
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.schedule.choose_extents import suited_to_masks
from superopt.verify import certify

H100 = target("sm_90")


def attention(heads: int, tokens: int, lower: int) -> KernelGraph:
    """Of queries that see `-lower` keys before theirs, and none after it."""
    scores, one = f"tensor<{heads}x{tokens}x{tokens}xf16>", f"tensor<{heads}x{tokens}x1xf16>"
    x, mask = f"tensor<{heads}x{tokens}x64xf16>", f"tensor<{tokens}x{tokens}xf16>"
    return read(f"""
func.func @f(%q: {x}, %k: {x}, %v: {x}) -> {x} {{
  %s = "kernel.matmul"(%q, %k) {{transpose_b = true}} : ({x}, {x}) -> {scores}
  %b = "kernel.band"() {{inside = 0.0 : f64, lower = {lower} : i64, outside = 0xFFF0000000000000 : f64, upper = 0 : i64}} : () -> {mask}
  %h = "kernel.add"(%s, %b) : ({scores}, {mask}) -> {scores}
  %m = "kernel.reduce_max"(%h) {{dims = array<i64: 2>, keepdims = true}} : ({scores}) -> {one}
  %d = "kernel.sub"(%h, %m) : ({scores}, {one}) -> {scores}
  %e = "kernel.exp"(%d) : ({scores}) -> {scores}
  %t = "kernel.reduce_sum"(%e) {{dims = array<i64: 2>, keepdims = true}} : ({scores}) -> {one}
  %w = "kernel.div"(%e, %t) : ({scores}, {one}) -> {scores}
  %o = "kernel.matmul"(%w, %v) : ({scores}, {x}) -> {x}
  return %o : {x}
}}""")


def blocks(graph: KernelGraph) -> list[Node]:
    return [n for n in graph.nodes if isinstance(n.body, BlockGraph)]


@pytest.mark.parametrize("lower", [-2147483647, -255])
def test_masked_attention_is_one_kernel_though_splits_look_cheaper_without_the_mask(lower: int) -> None:
    """The mask cuts the loop of the one kernel short, and no grid of parts; at 12 heads parts crowded it out."""
    graph = attention(12, 1500, lower)
    first = search_plans(graph, H100, budget=60).found[0]
    assert len(blocks(first.graph)) == 1
    assert first.seconds < best_baseline(graph, H100).seconds


def test_extents_suit_the_mask() -> None:
    """Tiles of 128 keys compute more that a window hides than tiles of 32; both compute the same."""
    graph = attention(2, 256, -31)
    coarse = next(
        p.graph
        for p in search_plans(graph, H100, budget=20).found
        if len(blocks(p.graph)) == 1 and suited_to_masks(p.graph, H100).nodes != p.graph.nodes
    )
    suited = suited_to_masks(coarse, H100)
    assert cost(suited, H100).seconds < cost(coarse, H100).seconds
    assert certify(graph, suited).equivalent
    assert suited_to_masks(suited, H100).nodes == suited.nodes


def test_kernels_without_masks_keep_their_extents() -> None:
    graph = read("""
func.func @f(%a: tensor<64x256xf16>, %b: tensor<256x512xf16>) -> tensor<64x512xf16> {
  %c = "kernel.matmul"(%a, %b) : (tensor<64x256xf16>, tensor<256x512xf16>) -> tensor<64x512xf16>
  %d = "kernel.relu"(%c) : (tensor<64x512xf16>) -> tensor<64x512xf16>
  return %d : tensor<64x512xf16>
}""")
    found = search_plans(graph, H100, budget=20).found[0].graph
    assert suited_to_masks(found, H100) is found


# --- import -----------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize(("further", "needed"), [(6, False), (5, True)], ids=["as hidden", "fewer"])
def test_weights_that_a_mask_hides_are_not_zeroed_again(further: int, needed: bool) -> None:
    """As PyTorch's attention does for rows of which everything is hidden; other zeros stay."""
    torch = pytest.importorskip("torch")
    from superopt.transforms.ingest import from_torch

    class Window(torch.nn.Module):  # pyright: ignore[reportUnknownMemberType]
        def forward(self, scores: Any) -> Any:
            at = torch.arange(24)
            apart = at[:, None] - at[None, :]
            hidden = (apart < 0) | (apart >= 6)
            weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
            return weights * ((apart >= 0) & (apart < further))

    nodes = from_torch(Window(), (torch.randn(2, 24, 24),)).graph.nodes
    division = next(i for i, n in enumerate(nodes) if n.op == "div")
    assert any(n.op == "mul" for n in nodes[division:]) == needed
