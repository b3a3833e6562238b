"""Lowering and emission without running anything: text, compilation, PTX, passes."""

from __future__ import annotations

import dataclasses

import pytest
from programs import ALL_TEXTS, ATTENTION_ONLINE, RMSNORM_LINEAR_CUSTOM
from test_interpreter import Build, attention, single, tensor

from superopt.cost import target, target_names
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.errors import BadOption, UnsupportedProgram
from superopt.program import BlockGraph, KernelGraph, Node, TensorType, TileProgram, Value
from superopt.spec import check_kernel
from superopt.transforms.emit import compile_graph, emit_text
from superopt.transforms.emit.compile import CompilationFailed, Compiled, compile_all, compile_kernel
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.emit.spelling import spell
from superopt.transforms.emit.triton_source import TritonKernel, emit_kernel
from superopt.transforms.lower import lower
from superopt.transforms.lower.fuse_thread_graphs import FuseThreadGraphs
from superopt.verify.ttir import checked


def triton(graph: KernelGraph) -> str:
    text = emit_text(graph, "triton")
    assert isinstance(text, str)
    return text


TARGETS = target_names()


def matmul_program(m: int, n: int, k: int, grid: int, loop: int, kind: str) -> KernelGraph:
    """One fused kernel: an accumulated product with what `kind` adds."""
    x, w = tensor((m, k), name="x"), tensor((k, n), name="w")
    inputs = [x, w]
    build = Build()
    xt = build.tile(x, (m, k // loop), (-1,), (1,))
    acc = build.accumulate(build("matmul", xt, build.tile(w, (k // loop, n // grid), (1,), (0,))))
    if kind == "rmsnorm":
        squares = build.accumulate(build("reduce_sum", build("square", xt), dims=(1,), keepdims=True))
        extent = build("constant", value=float(k), shape=(), dtype="f16")
        out = build("mul", acc, build("rsqrt", build("div", squares, extent)))
    elif kind == "gelu":
        bias = tensor((n,), name="bias")
        inputs.append(bias)
        out = build("gelu", build("add", acc, build.tile(bias, (n // grid,), (0,), (-1,))))
    elif kind == "lora":
        a, b = tensor((k, 16), name="a"), tensor((16, n), name="b")
        inputs += [a, b]
        low = build.accumulate(build("matmul", xt, build.tile(a, (k // loop, 16), (-1,), (0,))))
        out = build("add", acc, build("matmul", low, build.tile(b, (16, n // grid), (1,), (-1,))))
    else:
        v = tensor((k, n), name="v")
        inputs.append(v)
        up = build.accumulate(build("matmul", xt, build.tile(v, (k // loop, n // grid), (1,), (0,))))
        out = build("mul", build("silu", acc), up)
    build.save(out, 1)
    return build.custom(inputs, (grid,), (loop,), (m, n))


FULL_SIZE = {
    "rmsnorm": (16, 6144, 4096, 96, 64),
    "gelu": (16, 4096, 4096, 64, 64),
    "lora": (16, 4096, 256, 64, 4),
    "gated_mlp": (8, 4096, 4096, 64, 64),
}


@pytest.mark.parametrize("kind", FULL_SIZE)
def test_full_size_programs_on_every_target(kind: str) -> None:
    """Matrix units, asynchronous copies of 128 bits, no spills."""
    kernels = emit_program(lower(matmul_program(*FULL_SIZE[kind], kind))).kernels
    for compiled in compile_all(kernels, TARGETS):
        assert compiled.spill_bytes == 0
        assert compiled.cubin[:4] == b"\x7fELF"
        assert f".target sm_{target(compiled.target).capability}" in compiled.ptx
        assert any(unit in compiled.ptx for unit in ("mma.sync", "wgmma", "tcgen05"))
        assert "cp.async.cg.shared.global" in compiled.ptx
        assert ", 0x10, 0x10" in compiled.ptx or ", 16, 16" in compiled.ptx or " 0x10" in compiled.ptx


def test_masks_only_where_extents_need_them() -> None:
    assert "mask" not in triton(matmul_program(16, 128, 64, 2, 4, "rmsnorm"))
    assert "mask" in triton(matmul_program(16, 120, 64, 2, 4, "rmsnorm"))
    assert "mask" in triton(matmul_program(8, 128, 64, 2, 4, "rmsnorm"))  # rows of tl.dot


def test_source_of_rmsnorm_linear() -> None:
    """What a person would write; a change of it should be a decision."""
    graph = read(RMSNORM_LINEAR_CUSTOM)
    assert triton(graph) == (
        "import triton\nimport triton.language as tl\n\n\n"
        "@triton.jit\n"
        "def f_0(x_ptr, w_ptr, out0_ptr):\n"
        "    # 96 blocks, each computes its tile of out0.\n"
        "    block_x = tl.program_id(0)\n"
        "    span_16 = tl.arange(0, 16)\n"
        "    span_64 = tl.arange(0, 64)\n"
        "    block_x_span = block_x * 64 + tl.arange(0, 64)\n"
        "    acc = tl.zeros([16, 64], tl.float32)\n"
        "    acc_1 = tl.zeros([16], tl.float32)\n"
        "    x_ptrs = x_ptr + span_16[:, None] * 4096 + span_64[None, :]\n"
        "    w_ptrs = w_ptr + span_64[:, None] * 6144 + block_x_span[None, :]\n"
        "    # 64 trips, each reads 16x64 of x and 64x64 of w.\n"
        "    for k in range(0, 4096, 64):\n"
        "        x = tl.load(x_ptrs)\n"
        "        w = tl.load(w_ptrs)\n"
        "        acc = tl.dot(x, w, acc)\n"
        "        square = x.to(tl.float32) * x.to(tl.float32)\n"
        "        reduce_sum = tl.sum(square, axis=1)\n"
        "        acc_1 = acc_1 + reduce_sum\n"
        "        x_ptrs += 64\n"
        "        w_ptrs += 393216\n"
        "    div = acc_1 / 4096.0\n"
        "    rsqrt = tl.rsqrt(div)\n"
        "    mul = acc * rsqrt[:, None]\n"
        "    tl.store(out0_ptr + span_16[:, None] * 6144 + block_x_span[None, :], mul.to(tl.float16))\n"
    )


@pytest.mark.parametrize("name", list(ALL_TEXTS))
def test_emission_is_deterministic_and_survives_printing(name: str) -> None:
    graph = lower(read(ALL_TEXTS[name]))
    check_kernel(graph)
    first = [emit_program(lower(read(ALL_TEXTS[name]))) for _ in range(2)]
    assert first[0].kernels_source == first[1].kernels_source
    assert first[0].launcher_source == first[1].launcher_source
    again = read(to_text(graph))
    check_kernel(again)
    assert len(emit_program(again).kernels) == len(emit_program(graph).kernels)


def test_large_tensors_take_64_bit_offsets() -> None:
    big = single("neg", [TensorType((70000, 32768), "f16")], {})
    small = single("neg", [TensorType((60000, 32768), "f16")], {})
    assert "tl.int64" in triton(big)
    assert "tl.int64" not in triton(small)


def test_f32_products_say_their_precision() -> None:
    types = [TensorType((32, 64), "f32"), TensorType((64, 32), "f32")]
    assert 'input_precision="ieee"' in triton(single("matmul", types, {}))
    assert "input_precision" not in triton(
        single("matmul", [TensorType((32, 64), "f16"), TensorType((64, 32), "f16")], {})
    )


def test_barriers_where_a_kernel_reads_what_it_stored() -> None:
    x = tensor((6, 24), "f32")
    build = Build()
    parts = build.accumulate(build.tile(x, (3, 6), (0,), (1,)), kind="concat", dim=1, shape=(3, 24))
    build.save(build("neg", parts), 0)
    text = emit_text(build.custom([x], (2,), (4,), (6, 24)), "triton")
    assert isinstance(text, str)
    store, barrier, load = (text.index(t) for t in ("tl.store(parts", "tl.debug_barrier()", "tl.load(parts"))
    assert store < barrier < load


def test_four_dimensional_grids_are_flat() -> None:
    graph = single("square", [TensorType((3, 4, 5, 6, 2000), "f16")], {})
    kernel = emit_program(lower(graph)).kernels[0]
    assert kernel.grid[1:] == (1, 1)
    assert "// 2 % " in kernel.source or "// " in kernel.source


def test_spelling_keeps_precedence() -> None:
    from superopt.operators import arg, exp, sqrt

    a, b, c = arg(0), arg(1), arg(2)
    names = ["a", "b", "c"]
    assert spell(a - (b - c), names) == "a - (b - c)"
    assert spell(a / (b * c), names) == "a / (b * c)"
    assert spell((a + b) * -c, names) == "(a + b) * -c"
    assert spell(-(a + b), names) == "-(a + b)"
    assert spell(1 / sqrt(a), names) == "tl.rsqrt(a)"
    assert spell(1 / (1 + exp(-a)), names) == "1.0 / (1.0 + tl.exp2(-a * 1.4426950408889634))"


def test_fuse_thread_graphs_keeps_stages_apart() -> None:
    graph = matmul_program(8, 128, 64, 2, 4, "gated_mlp")
    fused = FuseThreadGraphs().apply(graph, Diagnostics())
    check_kernel(fused)
    block = fused.nodes[0].body
    assert isinstance(block, BlockGraph)
    ops = [n.op for n in block.nodes]
    assert ops.count("fused") == 1
    assert "silu" not in ops
    assert triton(fused) == triton(graph)


def test_compile_errors_are_reported_and_cost_one_kernel() -> None:
    good = emit_program(lower(read(ATTENTION_ONLINE))).kernels[0]
    bad = dataclasses.replace(good, source=good.source.replace("tl.program_id(0)", "tl.no_such_thing(0)"))
    with pytest.raises(CompilationFailed, match=r"(?s)attention_0.*no_such_thing"):
        compile_kernel(bad)
    hangs = TritonKernel(
        "hangs", "import time\ntime.sleep(60)\n" + good.source.replace("attention_0", "hangs"),
        good.parameters, good.grid, 4, 1,
    )  # fmt: skip
    with pytest.raises(CompilationFailed, match="took more than 1 s"):
        compile_kernel(hangs, timeout=1)
    dies = dataclasses.replace(hangs, source="import os\nos.abort()\n" + good.source)
    with pytest.raises(CompilationFailed, match="SIGABRT"):
        compile_kernel(dies)
    assert isinstance(compile_kernel(good), Compiled)


def test_text_of_every_kind() -> None:
    compiled = compile_graph(lower(read(ATTENTION_ONLINE)), "sm_90")
    for kind, mark in (
        ("ttir", "tt.func"),
        ("ttgir", "ttg."),
        ("llir", "define"),
        ("ptx", ".visible .entry"),
    ):
        assert mark in str(compiled.artifact(kind))
    assert isinstance(compiled.artifact("cubin"), bytes)
    with pytest.raises(BadOption, match="expected one of triton, ttir"):
        compiled.artifact("sass")
    two = compile_graph(lower(read(ALL_TEXTS["fused_and_concat"])), "sm_80")
    with pytest.raises(BadOption, match="one kernel for a cubin, got 2"):
        two.artifact("cubin")
    assert str(two.artifact("ptx")).count(".visible .entry") == 2


def test_unlowered_and_inexpressible_programs_are_refused() -> None:
    with pytest.raises(UnsupportedProgram, match="expected a lowered program, got 'custom'"):
        emit_program(read(ATTENTION_ONLINE))
    with pytest.raises(BadOption, match="expected a target of"):
        lower(read(ATTENTION_ONLINE), "sm_12")


def test_pipeline_stages_fit_shared_memory() -> None:
    for name in TARGETS:
        for compiled in compile_all(
            emit_program(lower(attention(2, 128, 2048, 128, 2, 16), name)).kernels, [name]
        ):
            assert compiled.shared_bytes <= target(name).shared_per_block


SUM_OF_SQUARES = """
func.func @f(%x: tensor<2048x4096xf16>) -> tensor<2048x1xf16> {
  %o = "superopt.custom"(%x) ({
  ^bb0(%a: tensor<2048x4096xf16>):
    %xt = "block.iterator"(%a) {imap = array<i64: 0>, fmap = array<i64: 1>}
        : (tensor<2048x4096xf16>) -> tensor<16x128xf16>
    %sq = "block.square"(%xt) : (tensor<16x128xf16>) -> tensor<16x128xf16>
    %s = "block.reduce_sum"(%sq) {dims = array<i64: 1>, keepdims = true} : (tensor<16x128xf16>) -> tensor<16x1xf16>
    %sa = "block.accumulate"(%s) {kind = "sum", loop = 0} : (tensor<16x1xf16>) -> tensor<16x1xf16>
    "block.save"(%sa) {omap = array<i64: 0>} : (tensor<16x1xf16>) -> ()
  }) {grid = array<i64: 128>, loops = array<i64: 32>} : (tensor<2048x4096xf16>) -> tensor<2048x1xf16>
  return %o : tensor<2048x1xf16>
}
"""


@pytest.mark.parametrize("gpu", target_names())
def test_loops_without_products_are_pipelined(gpu: str) -> None:
    """Triton does that where the loop says so; its trips then copy asynchronously, stages ahead."""
    (kernel,) = emit_program(lower(read(SUM_OF_SQUARES), gpu)).kernels
    assert f"in tl.range(0, 4096, 128, num_stages={kernel.num_stages}):" in kernel.source
    (compiled,) = compile_all([kernel], [gpu])
    assert compiled.ptx.count("cp.async.cg.shared.global") >= kernel.num_stages > 1
    plain = dataclasses.replace(kernel, source=kernel.source.replace("tl.range(", "range(").replace(
        f", num_stages={kernel.num_stages}):", "):"
    ))  # fmt: skip
    assert "cp.async" not in compile_all([plain], [gpu])[0].ptx


INTERLEAVED = """
func.func @f(%x: tensor<4000x1xf32>, %y: tensor<4000x1xf32>) -> tensor<4000x2xf32> {
  %o = "superopt.tiled"(%x, %y) ({
  ^bb0(%a: memref<4000x1xf32>, %b: memref<4000x1xf32>, %c: memref<4000x2xf32>):
    %both = "tile.alloc"() {placement = "device"} : () -> memref<4000x2xf32>
    "tile.parallel"() ({
    ^bb0(%n: index):
      %s = "tile.load"(%a, %n) {base = array<i64: 0, 0>, dims = array<i64: 0>, scale = array<i64: 1>,
          sizes = array<i64: 16, 1>} : (memref<4000x1xf32>, index) -> tensor<16x1xf32>
      "tile.store"(%s, %both, %n) {base = array<i64: 0, 0>, dims = array<i64: 0>, scale = array<i64: 1>,
          sizes = array<i64: 16, 1>} : (tensor<16x1xf32>, memref<4000x2xf32>, index) -> ()
      %t = "tile.load"(%b, %n) {base = array<i64: 0, 0>, dims = array<i64: 0>, scale = array<i64: 1>,
          sizes = array<i64: 16, 1>} : (memref<4000x1xf32>, index) -> tensor<16x1xf32>
      "tile.store"(%t, %both, %n) {base = array<i64: 0, 1>, dims = array<i64: 0>, scale = array<i64: 1>,
          sizes = array<i64: 16, 1>} : (tensor<16x1xf32>, memref<4000x2xf32>, index) -> ()
      %u = "tile.load"(%both, %n) {base = array<i64: 0, 0>, dims = array<i64: 0>, scale = array<i64: 1>,
          sizes = array<i64: 16, 2>} : (memref<4000x2xf32>, index) -> tensor<16x2xf32>
      %v = "tile.neg"(%u) : (tensor<16x2xf32>) -> tensor<16x2xf32>
      "tile.store"(%v, %c, %n) {base = array<i64: 0, 0>, dims = array<i64: 0>, scale = array<i64: 1>,
          sizes = array<i64: 16, 2>} : (tensor<16x2xf32>, memref<4000x2xf32>, index) -> ()
    }) {start = 0, stop = 4000, step = 16} : () -> ()
  }) {name = "interleave"} : (tensor<4000x1xf32>, tensor<4000x1xf32>) -> tensor<4000x2xf32>
  return %o : tensor<4000x2xf32>
}
"""


def test_a_block_has_only_the_scratch_that_it_uses() -> None:
    """16 of 4000 rows, and the compiler's own IR still computes the program."""
    lowered = lower(read(INTERLEAVED))
    emitted = emit_program(lowered)
    (kernel,) = emitted.kernels
    (scratch,) = [p for p in kernel.parameters if p.role == "scratch"]
    assert scratch.type.shape == (250, 16, 2)
    record = checked(lowered, lowered, emitted, compile_all(emitted.kernels, ["sm_90"]))
    assert isinstance(record, dict)
    assert record["sm_90"].end_to_end


def test_values_stored_twice_in_a_loop_are_kept() -> None:
    """A tile program whose variable is read before and used after its next assignment."""
    program = lower(attention(1, 16, 64, 16, 1, 4)).nodes[0].body
    assert isinstance(program, TileProgram)
    source = emit_kernel(program).source
    assert source.index("old_running_max = running_max") < source.index("running_max = new_running_max")


def test_constants_reach_kernels_as_literals() -> None:
    build = Build()
    x = tensor((4, 4), "f32", "x")
    half = build("constant", value=0.5, shape=(), dtype="f32")
    out = build("mul", x, half)
    graph = KernelGraph("scaled", [x], build.nodes, [out])
    assert "x * 0.5" in triton(graph)
    only = Value(TensorType((3,), "f32"))
    alone = KernelGraph(
        "c", [], [Node("constant", (), (only,), {"value": 2.0, "shape": (3,), "dtype": "f32"})], [only]
    )
    assert "2.0" in triton(alone)
