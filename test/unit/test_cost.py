"""The analytic cost model: what it counts, and that it ranks as a roofline must."""

from __future__ import annotations

import dataclasses
import math

import pytest
from programs import RMSNORM_LINEAR_CUSTOM, TILED_SCALE

from superopt.cost import (
    Target,
    Traffic,
    compiled_cost,
    compiled_seconds,
    cost,
    kernel_cost,
    kernel_seconds,
    node_traffic,
    target,
    target_names,
)
from superopt.dialects.reader import read
from superopt.operators import OPERATORS
from superopt.program import (
    Buffer,
    KernelGraph,
    Loop,
    LoopVar,
    Node,
    Statement,
    TensorType,
    TileProgram,
    Value,
    Window,
)
from superopt.transforms.core import _cost
from superopt.transforms.emit.compile import Compiled
from superopt.transforms.lower.builder import compute, constant, load, store, whole

TARGETS = [target(name) for name in target_names()]


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


def test_a_short_side_costs_as_much_as_the_least_that_matrix_units_multiply() -> None:
    def flops(rows: int, columns: int, depth: int) -> float:
        a, b = Value(TensorType((rows, depth), "f16")), Value(TensorType((depth, columns), "f16"))
        node = Node("matmul", (a, b), (Value(TensorType((rows, columns), "f16")),))
        return node_traffic(node, TARGETS[0]).tensor_flops

    assert flops(1, 64, 64) == flops(8, 64, 64) == flops(16, 64, 64) < flops(32, 64, 64)
    assert flops(1, 64, 32) == flops(64, 1, 32)  # transposed, it is the same work
    assert flops(64, 64, 2) == flops(64, 64, 16) < flops(64, 64, 32)


def test_products_count_as_many_flops_as_the_table_says() -> None:
    for dtype, units in (("f16", "tensor_flops"), ("bf16", "tensor_flops"), ("f32", "vector_flops")):
        a, b = TensorType((3, 32, 48), dtype), TensorType((3, 48, 80), dtype)
        node = Node("matmul", (Value(a), Value(b)), (Value(TensorType((3, 32, 80), dtype)),))
        traffic = node_traffic(node, TARGETS[0])
        assert getattr(traffic, units) == OPERATORS["matmul"].flops(
            [a.shape, b.shape], {"transpose_a": False, "transpose_b": False}
        )
        assert traffic.tensor_flops + traffic.vector_flops == getattr(traffic, units)


def test_what_does_not_stay_in_the_cache_is_read_by_every_wave() -> None:
    gpu = TARGETS[0]
    numbers, large = gpu.numbers(), 2 * gpu.l2_capacity
    kernel = _cost.KernelTraffic()
    kernel.blocks, kernel.shared_bytes = 3 * gpu.multiprocessors, gpu.shared_per_multiprocessor  # three waves
    kernel.move(numbers, large, 5 * large)
    assert (kernel.dram_bytes, kernel.l2_bytes) == (3 * large, 5 * large)
    kernel.move(numbers, large, 2 * large)  # fewer reads than waves
    assert kernel.dram_bytes == 5 * large
    kernel.move(numbers, gpu.l2_capacity, 100 * large)  # stays
    assert kernel.dram_bytes == 5 * large + gpu.l2_capacity


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


# --- what the compiler's report adds


def streaming(rows: int = 16, columns: int = 64, depth: int = 64, blocks: int = 64, trips: int = 64) -> Node:
    """`blocks` columns of tiles, each adding up `trips` products; all of them read the same rows."""
    x, acc = LoopVar("x"), Buffer(TensorType((rows, columns), "f16"), "acc", "chip")
    a = Buffer(TensorType((rows, depth * trips), "f16"), "a")
    b = Buffer(TensorType((depth * trips, columns * blocks), "f16"), "b")
    c = Buffer(TensorType((rows, columns * blocks), "f16"), "c")
    k = LoopVar("k")
    inner: list[Statement] = []
    left = load(inner, a, (Window(rows), Window(depth, 0, ((k, depth),))), "left")
    right = load(inner, b, (Window(depth, 0, ((k, depth),)), Window(columns, 0, ((x, columns),))), "right")
    part = compute(inner, "matmul", [left, right], {})
    store(inner, acc, whole(acc), compute(inner, "add", [load(inner, acc, whole(acc), "old"), part], {}))
    body: list[Statement] = []
    store(body, acc, whole(acc), constant(body, 0.0, acc.type.shape, "f16"))
    body.append(Loop(k, 0, trips, 1, False, inner))
    store(body, c, (Window(rows), Window(columns, 0, ((x, columns),))), load(body, acc, whole(acc), "all"))
    program = TileProgram("p", [a, b, c], 2, [acc], [Loop(x, 0, blocks, 1, True, body)])
    values = [Value(v.type) for v in (a, b, c)]
    return Node("tiled", (values[0], values[1]), (values[2],), body=program)


def report(
    registers: int = 64, shared: int = 32 << 10, spills: int = 0, ptx: str = "cp.async", name: str = "p"
) -> Compiled:
    return Compiled(name, "sm_90", "", "", "", ptx, b"", shared, registers, spills)


def launched(node: Node, warps: int = 4, stages: int = 4, hints: bool = False) -> Node:
    assert isinstance(node.body, TileProgram)
    body = dataclasses.replace(node.body, num_warps=warps, num_stages=stages, cache_hints=hints)
    return dataclasses.replace(node, body=body)


@pytest.mark.parametrize("gpu", TARGETS, ids=target_names())
def test_a_compiled_kernel_is_never_faster_than_the_analytic_model_says(gpu: Target) -> None:
    node = streaming()
    least = kernel_cost(node, gpu).seconds
    for warps, stages, registers in ((1, 1, 32), (4, 4, 64), (8, 3, 255), (16, 2, 40)):
        facts = report(registers, ptx="" if stages == 1 else "cp.async")
        assert compiled_cost(launched(node, warps, stages), facts, gpu).seconds >= least


@pytest.mark.parametrize("gpu", TARGETS, ids=target_names())
def test_what_the_compiler_reports_orders_launches(gpu: Target) -> None:
    def seconds(facts: Compiled, stages: int = 4) -> float:
        return compiled_cost(launched(streaming(), stages=stages), facts, gpu).seconds

    best = seconds(report())
    assert seconds(report(spills=400)) > best
    assert seconds(report(spills=800)) > seconds(report(spills=400))
    assert seconds(report(), stages=2) > seconds(report(), stages=3) >= best  # fewer bytes under way
    assert seconds(report(ptx=""), stages=4) > seconds(report(), stages=3)  # nothing is copied ahead
    assert seconds(report(ptx="cp.async tensormap")) > best  # descriptors are made first


def test_occupancy_follows_the_programming_guide() -> None:
    h100 = target("sm_90")

    def resident(warps: int, registers: int, shared: int) -> int:
        return compiled_cost(launched(streaming(), warps), report(registers, shared), h100).resident

    assert resident(4, registers=64, shared=0) == 8  # 65536 / (64 * 128)
    assert resident(4, registers=65, shared=0) == 7  # 72 are given
    assert resident(8, registers=255, shared=0) == 1
    assert resident(4, registers=32, shared=75 << 10) == 3  # 76 KiB each of 228
    assert resident(16, registers=16, shared=0) == 4  # 64 warps
    assert resident(1, registers=16, shared=0) == 32  # blocks


def test_hints_matter_where_waves_read_again_what_l2_cannot_keep() -> None:
    h100, facts = target("sm_90"), report(registers=128, shared=200 << 10)
    small = launched(streaming(blocks=4 * h100.multiprocessors, trips=4))  # everything stays in L2
    assert compiled_cost(small, facts, h100) == compiled_cost(launched(small, hints=True), facts, h100)
    tiny = dataclasses.replace(h100, l2_capacity=small_bytes(small) // 2, l2_bytes_per_second=1e15)
    slow = compiled_cost(launched(small), facts, tiny).seconds
    assert compiled_cost(launched(small, hints=True), facts, tiny).seconds < slow


def small_bytes(node: Node) -> int:
    return sum(v.type.bytes for v in node.operands)


def test_a_program_costs_what_its_kernels_do() -> None:
    h100, node = target("sm_90"), launched(streaming())
    graph = KernelGraph("f", list(node.operands), [node], list(node.results))
    one = compiled_cost(node, report(), h100).seconds
    assert compiled_seconds(graph, [report()], h100) == one
