"""Tensors that are loaded once for products and once for all else: what is written, that it is right, who asks."""

from __future__ import annotations

import dataclasses
import random

import pytest
from programs import ATTENTION_ONLINE, RMSNORM_LINEAR_CUSTOM
from test_bench_space import matmul, tile_body, with_body

from superopt import cost
from superopt.cost.counted import CONFLICTS, KernelCounts, Transactions, conflicts, counted
from superopt.cost.counted import text as counts_text
from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.program import Compute, KernelGraph, Load
from superopt.report import launches
from superopt.separate_loads import separable, separated
from superopt.transforms.emit.compile import Compiled, compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.emit.triton_source import TritonKernel, emit_kernel
from superopt.transforms.lower import lower
from superopt.transforms.schedule import fit as schedule
from superopt.transforms.schedule.choose_launch import LAUNCH, other_launches
from superopt.transforms.schedule.fit import Compiler, fit
from superopt.verify import certify, program_hash
from superopt.verify.primes import drawn
from superopt.verify.ptx.check import PtxText, verify_kernel
from superopt.verify.ttir import verify_compiled
from superopt.verify.ttir.artifact import kernel_texts

H100 = cost.target("sm_90")


def separate(lowered: KernelGraph) -> KernelGraph:
    return with_body(lowered, dataclasses.replace(tile_body(lowered), separate_loads=True))


def normed(dtype: str = "f16", rows: int = 16, columns: int = 128, depth: int = 256) -> KernelGraph:
    """x @ w, divided by the root of the sums of squares of x's rows: one kernel that loads x for both."""
    text = RMSNORM_LINEAR_CUSTOM.replace("f16", dtype).replace("4096.0", f"{depth}.0")
    for old, new in (("16x", f"{rows}x"), ("4096", str(depth)), ("6144", str(columns))):
        text = text.replace(old, new)
    return read(
        text.replace("array<i64: 96>", f"array<i64: {columns // 64}>").replace(
            "array<i64: 64>", f"array<i64: {depth // 64}>"
        )
    )


def test_products_load_apart_from_what_else_uses_a_tensor() -> None:
    lowered = lower(read(RMSNORM_LINEAR_CUSTOM), "sm_90")
    loads = [
        line.strip()
        for line in emit_kernel(tile_body(separate(lowered))).source.splitlines()
        if "tl.load" in line
    ]
    assert loads == [
        "x = tl.load(x_ptrs)",
        'x_1 = tl.load(x_ptrs, cache_modifier=".ca").to(tl.float32)',
        "w = tl.load(w_ptrs)",
    ]
    assert "tl.dot(x, w, acc)" in emit_kernel(tile_body(separate(lowered))).source
    hinted = dataclasses.replace(tile_body(separate(lowered)), cache_hints=True)
    assert '(x_ptrs, cache_modifier=".ca", eviction_policy="evict_last")' in emit_kernel(hinted).source


def test_only_inputs_of_products_and_of_others_are_loaded_twice() -> None:
    body = tile_body(lower(read(RMSNORM_LINEAR_CUSTOM)))
    changed, added = separated(dataclasses.replace(body, separate_loads=True))
    (x,) = {s.buffer for s in added}
    assert x is body.params[0]
    first, second = (s.result for s in changed.statements() if isinstance(s, Load) and s.buffer is x)
    uses = {
        v: [s.op for s in changed.statements() if isinstance(s, Compute) and v in s.operands]
        for v in (first, second)
    }
    assert uses[first] == ["matmul"]
    assert uses[second]
    assert "matmul" not in uses[second]
    assert separated(body) == (body, frozenset())
    for other in (matmul(64, 128, 256), read(ATTENTION_ONLINE)):
        body = tile_body(lower(other))
        assert not separable(body)
        assert emit_kernel(dataclasses.replace(body, separate_loads=True)).source == emit_kernel(body).source


def test_the_flag_is_part_of_the_program() -> None:
    lowered = lower(normed())
    changed = separate(lowered)
    assert program_hash(lowered) != program_hash(changed)
    assert tile_body(read(to_text(changed))).separate_loads
    assert [launch.separate_loads for launch in launches(changed).values()] == [True]
    assert certify(lowered, changed).equivalent


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100"])
def test_bank_conflicts_go_and_the_kernel_is_verified(gpu: str) -> None:
    """Triton swizzles what products alone use: counted on the PTX, which computes what the program does."""
    graph = normed()
    lowered = lower(graph, gpu)
    ratios: list[float] = []
    for made in (lowered, separate(lowered)):
        emitted = emit_program(made)
        compiled = compile_all(emitted.kernels, [gpu])
        verify_compiled(graph, made, emitted, compiled)
        (node,), (text,) = made.nodes, kernel_texts(emitted, compiled)
        text_of = PtxText(compiled[0].ptx, compiled[0].shared_bytes)
        assert not verify_kernel(node, text, text_of, drawn(compiled[0].ptx)).unverified
        ratios.append(counted(emitted.kernels[0], compiled[0]).shared.ratio)
    assert ratios[0] > CONFLICTS > ratios[1]


def test_counts_of_what_cannot_be_launched_say_so() -> None:
    """Triton compiles whatever shared memory a kernel needs."""
    emitted = emit_program(lower(matmul(64, 64, 64)))
    (made,) = compile_all(emitted.kernels, ["sm_90"])
    assert "launched" not in counts_text(emitted.kernels[0], made)
    larger = counts_text(emitted.kernels[0], dataclasses.replace(made, shared_bytes=232_449))
    assert "// it cannot be launched: expected at most 232448 bytes of shared memory, got 232449\n" in larger


def test_random_programs_compute_what_they_should() -> None:
    """Random extents and types: the check of the TTIR, and numpy on the tile program with its second loads."""
    draw = random.Random(7)
    for _ in range(6):
        graph = normed(
            draw.choice(("f16", "bf16")),
            draw.choice((8, 16, 24, 40)),
            draw.choice((64, 128, 192)),
            draw.choice((64, 128, 320)),
        )
        changed = separate(lower(graph))
        assert separable(tile_body(changed))
        emitted = emit_program(changed)
        assert 'cache_modifier=".ca"' in emitted.kernels_source
        verify_compiled(graph, changed, emitted, compile_all(emitted.kernels, ["sm_90"]))
        apart = with_body(changed, separated(tile_body(changed))[0])
        assert certify(graph, apart).equivalent


def test_separate_loads_are_a_choice_where_they_change_a_kernel() -> None:
    at = LAUNCH.index("separate")
    assert {launch[at] for launch in other_launches(tile_body(lower(normed())), H100)} == {False, True}
    assert {launch[at] for launch in other_launches(tile_body(lower(matmul(64, 128, 256))), H100)} == {False}


@pytest.mark.parametrize(
    ("together", "apart", "copies", "chosen"),
    [
        ((10**5, 10**4), (10**4, 10**4), 0, True),  # conflicts cost time
        ((16, 10), (10, 10), 0, True),  # they cost none, but go
        ((10, 10), (10, 10), 0, False),  # there are none
        ((16, 10), (10, 10), 10**6, False),  # what is loaded again costs more than they do
        ((10**5, 10**4), (10**5, 10**4), 0, False),  # they stay
    ],
)
def test_the_price_decides(
    monkeypatch: pytest.MonkeyPatch,
    together: tuple[int, int],
    apart: tuple[int, int],
    copies: int,
    *,
    chosen: bool,
) -> None:
    def counts(kernel: TritonKernel, compiled: Compiled) -> KernelCounts:
        again = "cache_modifier" in kernel.source
        sectors = {"copies": Transactions(copies if again else 0, 0)}
        return KernelCounts({"matrices": Transactions(*(apart if again else together))}, sectors, {}, 0)

    monkeypatch.setattr(schedule, "counted", counts)
    made = fit(lower(normed(), "sm_90"), Compiler(H100))
    assert tile_body(made.lowered).separate_loads == chosen
    assert ("is loaded for each" in made.reason) == chosen
    assert conflicts(made.compiled[0]) == (apart[0] / apart[1] if chosen else together[0] / together[1])


@pytest.mark.parametrize("rows", [16, 12])
def test_what_is_moved_or_masked_first_is_moved_for_each(rows: int) -> None:
    """x[0] @ w over the sums of x[0]'s rows, its last loop trip ragged: reshaped and masked before both."""
    graph = ragged(rows, 150)
    lowered = lower(graph, "sm_90")
    assert any(isinstance(s, Compute) and s.bounds for s in tile_body(lowered).statements())
    changed = separate(lowered)
    emitted = emit_program(changed)
    assert emitted.kernels_source.count("cache_modifier") == 1
    verify_compiled(graph, changed, emitted, compile_all(emitted.kernels, ["sm_90"]))
    assert certify(graph, with_body(changed, separated(tile_body(changed))[0])).equivalent


def ragged(rows: int, depth: int) -> KernelGraph:
    trips = -(-depth // 64)
    return read(f"""
func.func @f(%x: tensor<1x{rows}x{depth}xf16>, %w: tensor<{depth}x64xf16>) -> tensor<{rows}x64xf16> {{
  %o = "superopt.custom"(%x, %w) ({{
  ^bb0(%a: tensor<1x{rows}x{depth}xf16>, %b: tensor<{depth}x64xf16>):
    %xt = "block.iterator"(%a) {{imap = array<i64: -1>, fmap = array<i64: 2>}}
        : (tensor<1x{rows}x{depth}xf16>) -> tensor<1x{rows}x64xf16>
    %wt = "block.iterator"(%b) {{imap = array<i64: 1>, fmap = array<i64: 0>}}
        : (tensor<{depth}x64xf16>) -> tensor<64x64xf16>
    %r = "block.reshape"(%xt) {{shape = array<i64: {rows}, 64>}} : (tensor<1x{rows}x64xf16>) -> tensor<{rows}x64xf16>
    %p = "block.matmul"(%r, %wt) : (tensor<{rows}x64xf16>, tensor<64x64xf16>) -> tensor<{rows}x64xf16>
    %acc = "block.accumulate"(%p) {{kind = "sum", loop = 0}} : (tensor<{rows}x64xf16>) -> tensor<{rows}x64xf16>
    %s = "block.reduce_sum"(%r) {{dims = array<i64: 1>, keepdims = true}} : (tensor<{rows}x64xf16>) -> tensor<{rows}x1xf16>
    %sa = "block.accumulate"(%s) {{kind = "sum", loop = 0}} : (tensor<{rows}x1xf16>) -> tensor<{rows}x1xf16>
    %y = "block.div"(%acc, %sa) : (tensor<{rows}x64xf16>, tensor<{rows}x1xf16>) -> tensor<{rows}x64xf16>
    "block.save"(%y) {{omap = array<i64: 1>}} : (tensor<{rows}x64xf16>) -> ()
  }}) {{grid = array<i64: 1>, loops = array<i64: {trips}>}}
      : (tensor<1x{rows}x{depth}xf16>, tensor<{depth}x64xf16>) -> tensor<{rows}x64xf16>
  return %o : tensor<{rows}x64xf16>
}}""")
