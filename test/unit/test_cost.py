"""The analytic cost model: what it counts, and that it ranks as a roofline must."""

from __future__ import annotations

import dataclasses
import math

import pytest
from programs import RMSNORM_LINEAR_CUSTOM, TILED_SCALE

from superopt.cost import (
    CompiledCost,
    Target,
    Traffic,
    best_baseline,
    compiled_cost,
    compiled_seconds,
    cost,
    kernel_cost,
    kernel_seconds,
    node_traffic,
    target,
    target_names,
)
from superopt.cost.counted import KernelCounts, Transactions
from superopt.cost.traffic import run_bytes
from superopt.dialects.reader import read
from superopt.operators import OPERATORS
from superopt.program import (
    DTYPE_BYTES,
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
from superopt.transforms.lower import lower
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
    assert traffic.tensor_flops == 2 * 2 * 16 * 4096 * 6144  # 16 rows, at half the rate


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


def product(rows: int, depth: int, columns: int, dtype: str = "f16", batch: int = 1) -> Node:
    a, b = TensorType((batch, rows, depth), dtype), TensorType((batch, depth, columns), dtype)
    return Node("matmul", (Value(a), Value(b)), (Value(TensorType((batch, rows, columns), dtype)),))


@pytest.mark.parametrize("gpu", TARGETS, ids=target_names())
def test_products_count_as_many_flops_as_the_table_says(gpu: Target) -> None:
    for dtype, units in (("f16", "tensor_flops"), ("bf16", "tensor_flops"), ("f32", "vector_flops")):
        node = product(256, 512, 1024, dtype, batch=3)
        traffic = node_traffic(node, gpu)
        flops = OPERATORS["matmul"].flops(
            [v.shape for v in node.operands], {"transpose_a": False, "transpose_b": False}
        )
        assert getattr(traffic, units) == (2 * flops if gpu.matrix_rows == 128 and units[0] == "t" else flops)
        assert traffic.tensor_flops + traffic.vector_flops == getattr(traffic, units)


def test_padding_is_charged_where_it_is_computed() -> None:
    a100 = target("sm_80")
    kernel = _cost.KernelTraffic()
    kernel.product(a100.numbers(), 142, 64, 64, 1, 2)
    assert kernel.tensor_flops == 2 * 256 * 64 * 64
    node = streaming(rows=142)
    assert node_traffic(node, a100).tensor_flops == node_traffic(streaming(rows=256), a100).tensor_flops
    assert node_traffic(node, a100).vector_flops == node_traffic(streaming(rows=256), a100).vector_flops
    assert node_traffic(node, a100).l2_bytes < node_traffic(streaming(rows=256), a100).l2_bytes


def test_tiles_with_too_few_rows_for_wide_instructions_run_at_half_the_rate() -> None:
    def busy(rows: int, gpu: str) -> float:
        kernel = _cost.KernelTraffic()
        kernel.product(target(gpu).numbers(), rows, 64, 64, 1, 2)
        return kernel.tensor_flops / (2 * 64 * 64)

    assert [busy(r, "sm_80") for r in (1, 16, 32, 64, 128)] == [16, 16, 32, 64, 128]
    assert [busy(r, "sm_90") for r in (1, 16, 32, 64, 128)] == [32, 32, 64, 64, 128]
    assert [busy(r, "sm_100") for r in (1, 16, 32, 64, 128)] == [32, 32, 64, 128, 128]


def test_short_rows_and_strided_loads_pay_by_sectors() -> None:
    h100 = target("sm_90")

    def moved(columns: int, tile: int, stride: int = 1) -> float:
        """Bytes of L2 for a copy of every element, or of every second one, by tiles of 64 rows."""
        i, j = LoopVar("i"), LoopVar("j")
        source = Buffer(TensorType((4096, columns * stride), "f32"), "x")
        to = Buffer(TensorType((4096, columns), "f32"), "y")
        body: list[Statement] = []
        rows = Window(64, 0, ((i, 64),))
        value = load(body, source, (rows, Window(tile, 0, ((j, tile * stride),), stride)), "v")
        store(body, to, (rows, Window(tile, 0, ((j, tile),))), value)
        inner = Loop(j, 0, columns // tile, 1, True, body)
        program = TileProgram("copy", [source, to], 1, [], [Loop(i, 0, 64, 1, True, [inner])])
        return node_traffic(
            Node("tiled", (Value(source.type),), (Value(to.type),), {}, body=program), h100
        ).l2_bytes

    once = 2 * 4096 * 1024 * 4
    assert moved(1024, 32) == moved(1024, 8) == once  # whole sectors
    assert moved(1024, 2) == 4 * once
    assert moved(2, 2) == 2 * 4096 * 2 * 4  # short rows that lie one after the other
    for stride in (2, 3, 4, 5, 8, 16):  # of a sector of 8 numbers, every stride-th is used
        assert moved(1024, 32, stride=stride) == pytest.approx(once / 2 + min(stride, 8) * once / 2)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("row", [1, 2, 4, 16])
@pytest.mark.parametrize("stride", [2, 3, 5, 7, 14, 40])
def test_strided_rows_cost_the_sectors_that_they_touch(dtype: str, row: int, stride: int) -> None:
    """`run_bytes` against the sectors of the addresses: rows of so many elements, every stride-th of a tensor."""
    rows, size = 840, DTYPE_BYTES[dtype]
    tensor = TensorType((rows * stride, row), dtype)
    run = run_bytes(tensor, (rows, row), (stride, 1))
    touched = {(i * stride * row + j) * size // 32 for i in range(rows) for j in range(row)}
    assert math.ceil(run / 32) * 32 / run == pytest.approx(len(touched) * 32 / (rows * row * size), rel=0.01)


def test_special_functions_are_issued_beside_the_rest() -> None:
    def traffic(op: str) -> Traffic:
        x = Value(TensorType((4096, 4096), "f32"))
        return node_traffic(Node(op, (x,), (Value(x.type),)), TARGETS[0])

    for op, count in (("exp", 1), ("relu", 0), ("sigmoid", 2), ("rsqrt", 2), ("log", 1), ("gelu", 1)):
        assert traffic(op).special_operations == count * 4096 * 4096, op
    base = Traffic(tensor_flops=1e11, vector_flops=1e10, blocks=4 * 132)
    h100 = target("sm_90")
    more = dataclasses.replace(base, special_operations=1e9)
    added = 1e9 / h100.special_operations
    assert kernel_seconds(more, h100) - kernel_seconds(base, h100) == pytest.approx(added, rel=0.05)


def test_loops_one_after_the_other_add_up() -> None:
    x, source = Buffer(TensorType((64, 64), "f32"), "x"), Buffer(TensorType((64,), "f32"), "s")

    def trips(*shape: tuple[int, ...]) -> int:
        """Of one block with a nest of loops for each entry, one after the other."""
        body: list[Statement] = []
        for extents in shape:
            nest: list[Statement] = []
            store(nest, x, whole(x), load(nest, x, whole(x), "v"))
            for extent in reversed(extents):
                nest = [Loop(LoopVar("k"), 0, extent, 1, False, nest)]
            body += nest
        program = TileProgram("p", [source, x], 1, [], [Loop(LoopVar("i"), 0, 8, 1, True, body)])
        node = Node("tiled", (Value(source.type),), (Value(x.type),), {}, body=program)
        return node_traffic(node, TARGETS[0]).loop_trips

    assert trips((7,)) == 7
    assert trips((7,), (5,)) == 12
    assert trips((7, 3), (5,)) == 26
    assert trips() == 0


def test_few_blocks_cannot_pull_all_of_the_memory() -> None:
    h100 = target("sm_90")
    one = Traffic(1e8, 1e8, blocks=1)
    assert kernel_seconds(one, h100) >= 1e8 / h100.multiprocessor_bytes_per_second
    halved = dataclasses.replace(one, blocks=2)
    assert kernel_seconds(one, h100) == pytest.approx(2 * kernel_seconds(halved, h100), rel=0.01)
    cached = dataclasses.replace(one, dram_bytes=0)
    assert kernel_seconds(cached, h100) == kernel_seconds(one, h100)  # L2 does not help one multiprocessor


def test_small_kernels_have_a_floor_and_less_work_is_less_time() -> None:
    h100 = target("sm_90")
    sizes = [kernel_seconds(Traffic(b, b, blocks=528), h100) for b in (1e6, 2e6, 4e6, 8e6)]
    assert sizes == sorted(set(sizes))
    assert sizes[0] >= h100.launch_seconds + h100.floor_seconds
    large = kernel_seconds(Traffic(1e9, 1e9, blocks=528), h100)
    assert large == pytest.approx(h100.launch_seconds + 1e9 / h100.dram_bytes_per_second, rel=1e-4)


def test_one_part_is_loaded_before_it_is_computed() -> None:
    h100 = target("sm_90")
    whole = Traffic(1.32e8, 1.32e8, tensor_flops=3e10, blocks=132, loop_trips=0)
    memory = kernel_seconds(dataclasses.replace(whole, tensor_flops=0), h100)
    parts = dataclasses.replace(whole, loop_trips=16)
    assert kernel_seconds(whole, h100) == pytest.approx(memory + 3e10 / h100.tensor_flops, rel=0.01)
    assert kernel_seconds(parts, h100) < memory + 4e-6 < kernel_seconds(whole, h100)


def test_library_products_are_priced_as_they_are_emitted() -> None:
    h100 = target("sm_90")
    traffic = node_traffic(product(2048, 512, 1024), h100)  # 128 tiles of 128 x 128 on 132 multiprocessors
    assert (traffic.blocks, traffic.loop_trips) == (128, 8)
    assert traffic.l2_bytes == 8 * 2048 * 512 * 2 + 16 * 512 * 1024 * 2 + 2048 * 1024 * 2
    deep = node_traffic(product(16, 65536, 32), h100)  # nothing splits it
    assert deep.blocks == 1
    assert kernel_seconds(deep, h100) > 1e-4
    wide = node_traffic(product(8192, 8192, 8192), h100)
    assert wide.l2_bytes < 8192 * 8192 * 2 * 100  # 128 x 256 tiles


def convolution(name: str, image: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...]) -> Traffic:
    values = [Value(TensorType(s, "f16")) for s in (image, weight)]
    attrs = {"target": name, "reason": "no affine nest"}
    node = Node("extern", tuple(values), (Value(TensorType(out, "f16")),), dict(attrs))
    return node_traffic(node, target("sm_90"))


def test_opaque_convolutions_cost_flops() -> None:
    plain = convolution("aten.convolution.default", (8, 64, 56, 56), (128, 64, 3, 3), (8, 128, 54, 54))
    assert plain.tensor_flops == pytest.approx(2 * 8 * 128 * 54 * 54 * 64 * 9, rel=2e-3)
    turned = convolution("aten.conv_transpose2d.input", (8, 64, 54, 54), (64, 128, 4, 4), (8, 128, 110, 110))
    assert turned.tensor_flops == pytest.approx(2 * 8 * 64 * 54 * 54 * 128 * 16, rel=1e-3)
    assert convolution("aten.sort", (64, 64), (64, 64), (64, 64)).tensor_flops == 0


def test_what_does_not_stay_in_the_cache_is_read_by_every_wave() -> None:
    gpu = TARGETS[0]
    numbers, large = gpu.numbers(), 2 * gpu.l2_capacity
    kernel = _cost.KernelTraffic()
    kernel.blocks, kernel.shared_bytes = 3 * gpu.multiprocessors, gpu.shared_per_multiprocessor  # three waves
    kernel.move(numbers, large, 5 * large, 128)
    assert (kernel.dram_bytes, kernel.l2_bytes) == (3 * large, 5 * large)
    kernel.move(numbers, large, 2 * large, 128)  # fewer reads than waves
    assert kernel.dram_bytes == 5 * large
    kernel.move(numbers, gpu.l2_capacity, 100 * large, 128)  # stays
    assert kernel.dram_bytes == 5 * large + gpu.l2_capacity


def test_views_and_constants_are_free() -> None:
    x = Value(TensorType((8, 8), "f16"))
    y = Value(TensorType((64,), "f16"))
    graph = KernelGraph("f", [x], [Node("reshape", (x,), (y,), {"shape": (64,)})], [y])
    assert cost(graph, TARGETS[0]).seconds == 0


@pytest.mark.parametrize("gpu", TARGETS, ids=target_names())
def test_opaque_views_are_free(gpu: Target) -> None:
    """PyTorch launches nothing for a slice or an expansion of integers, and Inductor neither."""
    x, y, z = (Value(TensorType(shape, "i64")) for shape in ((1, 64), (1, 16), (2, 16)))
    targets = ("aten.slice.Tensor", "aten.expand.default")
    nodes = [
        Node("extern", (a,), (b,), {"target": name, "args": "[]", "reason": ""})
        for name, a, b in zip(targets, (x, y), (y, z), strict=True)
    ]
    graph = KernelGraph("f", [x], nodes, [z])
    assert cost(graph, gpu).seconds == 0
    assert best_baseline(graph, gpu).seconds == 0


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
    tiny = dataclasses.replace(
        h100,
        l2_capacity=small_bytes(small) // 2,
        l2_bytes_per_second=1e15,
        multiprocessor_bytes_per_second=1e13,
    )
    slow = compiled_cost(launched(small), facts, tiny).seconds
    assert compiled_cost(launched(small, hints=True), facts, tiny).seconds < slow


def small_bytes(node: Node) -> int:
    return sum(v.type.bytes for v in node.operands)


def counted_cost(node: Node, wavefronts: int = 0, loads: int = 0, copies: int = 0) -> CompiledCost:
    """The price of a kernel on an H100 whose first block has so many wavefronts and sectors."""
    sectors = {"loads": Transactions(loads, loads), "copies": Transactions(copies, copies)}
    counts = KernelCounts({"loads": Transactions(wavefronts, wavefronts)}, sectors, {}, 0)
    return compiled_cost(node, dataclasses.replace(report(), counts=counts), target("sm_90"))


def test_sectors_take_a_quarter_of_a_cycle_and_copies_come_from_l2() -> None:
    h100, node = target("sm_90"), launched(streaming())
    traffic, none = node_traffic(node, h100), counted_cost(node)
    assert counted_cost(node, loads=1, copies=1) == none
    blocks = math.ceil(traffic.blocks / h100.multiprocessors)
    loads = counted_cost(node, loads=4 * 10**6)
    assert loads == counted_cost(node, wavefronts=10**6)
    assert loads.seconds > blocks * 1e6 / h100.clock_hertz
    needed = math.ceil(traffic.l2_bytes / traffic.blocks / 32)
    assert counted_cost(node, copies=needed) == none
    assert counted_cost(node, copies=100 * needed).seconds > none.seconds
    assert counted_cost(node, copies=100 * needed).limit == "memory"


def test_what_is_loaded_twice_does_not_come_faster() -> None:
    """Few bytes are under way: a second load adds to them, and to what has to come."""
    h100, (once,) = target("sm_90"), lower(read(RMSNORM_LINEAR_CUSTOM), "sm_90").nodes
    once = launched(once, stages=2)
    assert isinstance(once.body, TileProgram)
    twice = dataclasses.replace(once, body=dataclasses.replace(once.body, separate_loads=True))
    assert node_traffic(twice, h100).l2_bytes > node_traffic(once, h100).l2_bytes
    assert node_traffic(twice, h100).dram_bytes == node_traffic(once, h100).dram_bytes
    for gpu in TARGETS:
        assert compiled_cost(twice, report(), gpu).seconds >= compiled_cost(once, report(), gpu).seconds


def test_wavefronts_of_shared_memory_take_a_cycle_each() -> None:
    h100, node = target("sm_90"), launched(streaming())
    none, few, many, twice = (counted_cost(node, n) for n in (0, 1, 10**6, 2 * 10**6))
    assert none == few
    blocks = math.ceil(node_traffic(node, h100).blocks / h100.multiprocessors)
    assert many.limit == "L1 and shared memory"
    assert many.seconds > blocks * 1e6 / h100.clock_hertz
    assert twice.seconds - many.seconds == pytest.approx(blocks * 1e6 / h100.clock_hertz, rel=0.01)


def test_a_program_costs_what_its_kernels_do() -> None:
    h100, node = target("sm_90"), launched(streaming())
    graph = KernelGraph("f", list(node.operands), [node], list(node.results))
    one = compiled_cost(node, report(), h100).seconds
    assert compiled_seconds(graph, [report()], h100) == one


def test_what_a_product_adds_to_is_added_by_its_own_instruction() -> None:
    """A tile program's accumulator costs no vector operation where `tl.dot` adds it."""
    a, b, c = "256x1024xf16", "1024x256xf16", "256x256xf16"
    lowered = lower(
        read(f"""
func.func @f(%x: tensor<{a}>, %w: tensor<{b}>) -> tensor<{c}> {{
  %y = "kernel.matmul"(%x, %w) : (tensor<{a}>, tensor<{b}>) -> tensor<{c}>
  return %y : tensor<{c}>
}}"""),
        "sm_90",
    )
    (node,) = (n for n in lowered.nodes if isinstance(n.body, TileProgram))
    traffic = node_traffic(node, target("sm_90"))
    assert traffic.loop_trips > 1
    assert traffic.vector_flops == 0
    assert traffic.tensor_flops >= 2 * 256 * 256 * 1024


def test_a_quotient_by_a_number_is_a_product() -> None:
    text = """
func.func @f(%x: tensor<4096x128xf16>, %y: tensor<4096x128xf16>) -> tensor<4096x128xf16> {
  %c = "kernel.constant"() {value = 11.3125 : f64} : () -> tensor<f16>
  %d = "kernel.div"(%x, BY) : (tensor<4096x128xf16>, TYPE) -> tensor<4096x128xf16>
  return %d : tensor<4096x128xf16>
}"""
    for by, kind, special in (("%c", "tensor<f16>", 0), ("%y", "tensor<4096x128xf16>", 4096 * 128)):
        lowered = lower(read(text.replace("BY", by).replace("TYPE", kind)), "sm_90")
        (node,) = (n for n in lowered.nodes if isinstance(n.body, TileProgram))
        assert node_traffic(node, target("sm_90")).special_operations == special


def test_of_what_an_opaque_operation_picks_from_a_sector_for_each_is_read() -> None:
    """A loss picks the logit of its class from each of 512 rows of 50,257, and leaves the others."""
    x, at, picked = (
        Value(TensorType(s, d)) for s, d in [((512, 50257), "f32"), ((512,), "i64"), ((512,), "f32")]
    )
    args = '[{"tensor": 0}, {"tensor": 1}, null, 0, -100]'
    loss = Node(
        "extern", (x, at), (picked,), {"target": "aten.nll_loss_nd.default", "reason": "", "args": args}
    )
    other = dataclasses.replace(loss, attrs={**loss.attrs, "target": "aten.sort.default"})
    read = [node_traffic(node, target("sm_90")).dram_bytes for node in (loss, other)]
    assert read == [512 * 32 + 512 * (8 + 4), 4 * 512 * 50257 + 512 * (8 + 4)]
