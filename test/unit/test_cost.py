"""The analytic cost model: what it counts, and that it ranks as a roofline must."""

from __future__ import annotations

import dataclasses
import math

import pytest
from programs import RMSNORM_LINEAR_CUSTOM, TILED_SCALE

from superopt.cost import Target, Traffic, cost, kernel_seconds, node_traffic, target, target_names
from superopt.dialects.reader import read
from superopt.errors import BadOption
from superopt.program import KernelGraph, Node, TensorType, Value

TARGETS = [target(name) for name in target_names()]


def test_targets_are_sorted_and_unknown_ones_are_named() -> None:
    assert target_names() == ["sm_80", "sm_90", "sm_100"]
    with pytest.raises(BadOption, match="expected a target of sm_80, sm_90, sm_100, got 'sm_70'"):
        target("sm_70")


def test_counts_of_a_block_graph() -> None:
    (node,) = read(RMSNORM_LINEAR_CUSTOM).nodes
    traffic = node_traffic(node, target("sm_90"))
    x, w, o = 16 * 4096 * 2, 4096 * 6144 * 2, 16 * 6144 * 2
    assert traffic.blocks == 96
    assert traffic.loop_trips == 64
    assert traffic.l2_bytes == 96 * x + w + o  # every block reads X, one reads each part of W
    assert traffic.dram_bytes == x + w + o
    assert traffic.tensor_flops == 2 * 16 * 4096 * 6144


def test_counts_of_a_tile_program() -> None:
    (node,) = read(TILED_SCALE).nodes
    traffic = node_traffic(node, target("sm_80"))
    assert traffic.blocks == 2
    assert traffic.l2_bytes == 2 * 2 * 16 * 64 * 2
    assert traffic.dram_bytes == 2 * 30 * 64 * 2  # the last tile reaches past the end; the tensor does not


def test_few_rows_cost_as_much_as_a_fragment() -> None:
    def flops(rows: int) -> float:
        a, b = Value(TensorType((rows, 64), "f16")), Value(TensorType((64, 64), "f16"))
        node = Node("matmul", (a, b), (Value(TensorType((rows, 64), "f16")),))
        return node_traffic(node, TARGETS[0]).tensor_flops

    assert flops(1) == flops(8) == flops(16) < flops(32)


def test_views_and_constants_are_free() -> None:
    x = Value(TensorType((8, 8), "f16"))
    y = Value(TensorType((64,), "f16"))
    graph = KernelGraph("f", [x], [Node("reshape", (x,), (y,), {"shape": (64,)})], [y])
    assert cost(graph, TARGETS[0]).seconds == 0


@pytest.mark.parametrize("gpu", TARGETS, ids=target_names())
def test_more_of_anything_is_never_faster(gpu: Target) -> None:
    base = Traffic(1e8, 2e8, 1e11, 1e9, blocks=gpu.multiprocessors, shared_bytes=40000, loop_trips=16)
    before = kernel_seconds(base, gpu)
    assert before > gpu.launch_seconds
    for name in ("dram_bytes", "l2_bytes", "tensor_flops", "vector_flops", "loop_trips"):
        value = getattr(base, name)
        assert kernel_seconds(dataclasses.replace(base, **{name: value * 100}), gpu) > before
    assert kernel_seconds(dataclasses.replace(base, blocks=1), gpu) > before
    assert kernel_seconds(dataclasses.replace(base, shared_bytes=gpu.shared_per_block + 1), gpu) == math.inf
