"""Kernels that the compiler says are badly scheduled get another launch or other tiles, and the schedule says so."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from search_programs import gated_mlp
from test_bench_space import matmul, tile_body, with_body
from test_emission import INTERLEAVED

from superopt import cost
from superopt.cost.counted import KernelCounts, Transactions
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.errors import UnsupportedProgram
from superopt.pipeline import Superoptimize, replay, superoptimize
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.report import Launch
from superopt.transforms.emit import compile as compiling
from superopt.transforms.emit.compile import CompilationFailed, Compiled
from superopt.transforms.emit.triton_source import TritonKernel
from superopt.transforms.lower import lower
from superopt.transforms.schedule import fit as schedule
from superopt.transforms.schedule import tilings
from superopt.transforms.schedule.fit import Compiler, Scheduled, as_scheduled, fit, ordered
from superopt.transforms.schedule.launch import registers
from superopt.transforms.schedule.races import packed_early
from superopt.transforms.schedule.retile import Tiling
from superopt.verify import certify
from superopt.verify.reduce import reduce_extents

H100, A100 = cost.target("sm_90"), cost.target("sm_80")


def with_tiles(graph: KernelGraph, warps: int, stages: int = 4, **extents: int) -> KernelGraph:
    lowered = lower(graph)
    body = Tiling(tile_body(lowered)).apply(extents)
    return with_body(lowered, dataclasses.replace(body, num_warps=warps, num_stages=stages))


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> list[TritonKernel]:
    """A compiler that spills what takes more than 200 registers by the estimate; what it was asked for."""
    asked: list[TritonKernel] = []

    def compile_all(kernels: Sequence[TritonKernel], targets: Sequence[str]) -> list[Compiled]:
        asked.extend(kernels)
        return [report(k) for k in kernels]

    def report(kernel: TritonKernel) -> Compiled:
        rows, columns = (int(n) for n in kernel.source.split("acc = tl.zeros([")[1].split("]")[0].split(","))
        needed = rows * columns // (32 * kernel.num_warps)
        spilled = 4 * max(needed - 200, 0)
        return Compiled(kernel.name, "sm_90", "", "", "", "cp.async", b"", 0, min(needed, 255), spilled)

    monkeypatch.setattr("superopt.transforms.schedule.fit.compile_all", compile_all)
    return asked


def test_of_a_kernel_of_many_statements_the_nearest_tilings_are_priced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lowered = lower(matmul(512, 1024, 512))
    (node,), body = lowered.nodes, tile_body(lowered)
    monkeypatch.setattr(tilings, "_MOST_STATEMENTS", 9 * sum(1 for _ in body.statements()))
    found = tilings.kernel_tiles(node, H100, funnel := Counter[str]())
    assert funnel["tilings"] == 9
    own = tuple((name, p.extent) for name, p in Tiling(body).parameters.items())
    assert own in {tiles.extents for tiles in found}
    assert max(tiles.order for tiles in found) <= 2


def test_what_does_not_spill_stays(limited: list[TritonKernel]) -> None:
    graph = matmul(512, 512, 512)
    lowered = with_tiles(graph, 8, i0=128, i1=128)
    made = fit(lowered, Compiler(H100))
    assert (made.lowered, made.parameters, made.reason) == (lowered, {}, "")
    assert len(limited) == 1


def test_more_warps_come_before_other_tiles(limited: list[TritonKernel]) -> None:
    graph = matmul(512, 512, 512)
    made = fit(with_tiles(graph, 4, i0=128, i1=256), Compiler(H100))
    assert made.compiled[0].spill_bytes == 0
    assert "4 warps, 4 stages: 224 bytes spilled" in made.reason
    assert {k.num_warps for k in limited[:2]} == {4, 8}


@pytest.mark.parametrize("warps", [4, 8])
def test_a_kernel_slower_than_its_tiles_promise_gets_the_best_launch(
    monkeypatch: pytest.MonkeyPatch, warps: int
) -> None:
    """Here the compiler pipelines with so many warps only, as it may where a layout suits its copies."""

    def compile_all(kernels: Sequence[TritonKernel], targets: Sequence[str]) -> list[Compiled]:
        return [
            Compiled(k.name, "sm_90", "", "", "", "cp.async" * (k.num_warps == warps), b"", 0, 64, 0)
            for k in kernels
        ]

    monkeypatch.setattr("superopt.transforms.schedule.fit.compile_all", compile_all)
    graph = matmul(512, 4096, 512)
    lowered = with_tiles(graph, 4, i0=64, i1=64)
    made = fit(lowered, compiler := Compiler(H100))
    seconds = [
        cost.compiled_seconds(s.lowered, s.compiled, H100) for s in (compiler.scheduled(lowered), made)
    ]
    assert tile_body(made.lowered).num_warps == warps
    assert not made.parameters
    assert bool(made.reason) == (warps != 4) == (seconds[1] < seconds[0])


def test_nearly_as_many_tiles_as_multiprocessors_are_enough() -> None:
    """128 blocks of 128 x 128 on 132 multiprocessors take less than 256 of 128 x 64."""
    assert [t.blocks for t in map(traffic, ((512, 4096, 4096), (512, 2048, 4096)))] == [128, 128]
    assert traffic((512, 4096, 4096)).l2_bytes < 300e6


@pytest.mark.parametrize(
    ("first", "second", "dim"),
    [((2048, 1), (2048, 2047), 1), ((16, 511, 512), (16, 1, 512), 1), ((1, 4096, 128), (8, 4096, 128), 0)],
)
def test_a_narrow_piece_does_not_narrow_the_copies_of_others(
    first: tuple[int, ...], second: tuple[int, ...], dim: int
) -> None:
    x, y = Value(TensorType(first, "f16")), Value(TensorType(second, "f16"))
    shape = tuple(a + b if d == dim else a for d, (a, b) in enumerate(zip(first, second, strict=True)))
    made = Value(TensorType(shape, "f16"))
    graph = KernelGraph("f", [x, y], [Node("concat", (x, y), (made,), {"dim": dim})], [made])
    lowered = lower(graph)
    assert cost.cost(lowered, H100).seconds < 2 * cost.cost(graph, H100).seconds
    assert certify(graph, lowered).equivalent


@pytest.mark.parametrize(
    ("heads", "rows", "width"), [(1, (1008, 16), 64), (8, (1008, 16), 128), (8, (1021, 3), 80)]
)
def test_a_cache_of_few_heads_is_copied_at_once_by_many_blocks(
    heads: int, rows: tuple[int, ...], width: int
) -> None:
    """Each block copies all rows of a sector's width: one block with 64 trips took 21 us."""
    pieces = [Value(TensorType((heads, n, width), "f16")) for n in rows]
    made = Value(TensorType((heads, sum(rows), width), "f16"))
    graph = KernelGraph("f", pieces, [Node("concat", tuple(pieces), (made,), {"dim": 1})], [made])
    lowered = lower(graph)
    (copied,) = (cost.node_traffic(n, H100) for n in lowered.nodes)
    assert copied.blocks == heads * width // 16
    assert copied.loop_trips == 0
    assert copied.l2_bytes < 1.05 * 2 * made.type.bytes
    assert cost.cost(lowered, H100).seconds == pytest.approx(cost.cost(graph, H100).seconds, rel=0.05)
    assert cost.cost(lowered, H100).seconds < 5e-6
    assert reduce_extents(graph, lowered) is not None
    assert certify(graph, lowered).equivalent


def traffic(shape: tuple[int, int, int]) -> cost.Traffic:
    (node,) = (n for n in lower(matmul(*shape)).nodes if n.body is not None)
    return cost.node_traffic(node, H100)


def test_other_tiles_are_taken_where_no_launch_helps(limited: list[TritonKernel]) -> None:
    graph = matmul(512, 512, 512)
    lowered = with_tiles(graph, 16, i0=512, i1=512)
    made = fit(lowered, Compiler(H100))
    assert made.compiled[0].spill_bytes == 0
    assert made.parameters
    assert registers(tile_body(made.lowered), 16) < registers(tile_body(lowered), 16)
    assert certify(graph, made.lowered).equivalent
    assert fit(lowered, Compiler(H100), fixed=True).lowered is lowered


def test_cache_hints_are_taken_where_they_are_predicted_to_pay(limited: list[TritonKernel]) -> None:
    graph = matmul(1024, 1024, 1024)
    lowered = with_tiles(graph, 8, i0=128, i1=128)
    few = dataclasses.replace(H100, multiprocessors=4, l2_bytes_per_second=1e15)
    made = fit(lowered, Compiler(few))
    assert (tile_body(made.lowered).cache_hints, made.reason) == (False, "")
    small = dataclasses.replace(
        few, l2_capacity=3e6, dram_bytes_per_second=1e10
    )  # one operand fits, not both
    made = fit(lowered, Compiler(small))
    assert not tile_body(made.lowered).cache_hints  # both are read again: hints tell nothing apart
    streamed = matmul(64, 8192, 1024)  # the rows are read again, the columns once
    small = dataclasses.replace(small, l2_capacity=1e6, multiprocessors=1)
    made = fit(with_tiles(streamed, 8, i0=128), Compiler(small))
    assert tile_body(made.lowered).cache_hints
    assert "cache hints, as waves read again more than L2 keeps" in made.reason
    assert fit(with_tiles(streamed, 8, i0=128), Compiler(small), fixed=True).reason == ""


def test_the_compiler_itself_is_satisfied_with_more_warps() -> None:
    graph = matmul(256, 512, 256)
    lowered = with_tiles(graph, 4, i0=128, i1=256)
    (first,) = compiling.compile_all(_kernels(lowered), ["sm_80"])
    assert first.spill_bytes > 0
    made = fit(lowered, Compiler(cost.target("sm_80")))
    assert made.compiled[0].spill_bytes == 0


def counts_of(wavefronts: int) -> KernelCounts:
    none = Transactions(0, 0)
    return KernelCounts(
        {"matrices": Transactions(wavefronts, 10)}, dict.fromkeys(("loads", "copies"), none), {}, 0
    )


def counts_by_warps(monkeypatch: pytest.MonkeyPatch, wavefronts: dict[int, int]) -> None:
    """Kernels that have as many wavefronts of shared memory as their number of warps says; others are unknown."""

    def counted(kernel: TritonKernel, compiled: Compiled) -> Any:
        if kernel.num_warps not in wavefronts:
            raise UnsupportedProgram("expected what can be verified, got something else")
        return counts_of(wavefronts[kernel.num_warps])

    monkeypatch.setattr(schedule, "counted", counted)


@pytest.mark.parametrize(
    ("wavefronts", "warps", "kept"),
    [
        ({4: 10**6, 2: 10, 8: 10**5}, 2, 10),
        ({4: 10**6, 8: 10**5}, 8, 10**5),
        ({4: 10**6, 2: 10**6, 8: 10**6}, 4, 10**6),
        ({4: 10, 2: 0, 8: 0}, 4, 10),
        ({2: 0, 8: 0}, 4, 0),
    ],
)
def test_bank_conflicts_ask_for_other_warps(
    monkeypatch: pytest.MonkeyPatch, wavefronts: dict[int, int], warps: int, kept: int
) -> None:
    """Those with the fewest conflicts are taken, of those that can be counted; on sm_80 none of them races."""
    graph = matmul(256, 512, 256)
    plain = fit(with_tiles(graph, 4, i0=64, i1=64), Compiler(A100))
    assert tile_body(plain.lowered).num_warps == 4
    counts_by_warps(monkeypatch, wavefronts)
    made = fit(with_tiles(graph, 4, i0=64, i1=64), Compiler(A100))
    assert tile_body(made.lowered).num_warps == warps
    assert [k.counts.shared.made if k.counts else 0 for k in made.compiled] == [kept]
    assert ("wavefronts that suffice" in made.reason) == (warps != 4)


@pytest.mark.parametrize(
    ("races", "warps", "stages"),
    [({4: 2}, 4, 1), ({4: 1}, 2, 2), (dict.fromkeys((1, 2, 4, 8, 16, 32), 1), 4, 2)],
)
def test_a_kernel_that_races_gets_another_launch(
    monkeypatch: pytest.MonkeyPatch, races: dict[int, int], warps: int, stages: int
) -> None:
    """`races` are the fewest stages with which a kernel of so many warps races. Where no launch helps, it stays."""

    def race(kernel: TritonKernel, facts: Compiled) -> str:
        return "a race" if kernel.num_stages >= races.get(kernel.num_warps, 99) else ""

    monkeypatch.setattr(schedule, "race", race)
    lowered = with_tiles(matmul(256, 512, 256), 4, i0=64, i1=64)
    for node in lowered.nodes:
        node.body = dataclasses.replace(tile_body(lowered), num_stages=2)
    compiler = Compiler(H100)
    made = ordered(compiler.scheduled(lowered), compiler)
    body = tile_body(made.lowered)
    assert body.num_stages == stages
    assert (body.num_warps != 4) == (warps != 4)
    assert ("as with" in made.reason) == ((body.num_warps, stages) != (4, 2))


@pytest.mark.parametrize(("extent", "described"), [(4096, True), (256, False)])
def test_a_pipelined_kernel_that_races_gets_descriptors_where_they_are_cheaper(
    monkeypatch: pytest.MonkeyPatch, extent: int, described: bool
) -> None:
    """Each block makes its descriptors first, which few trips do not pay for."""

    def race(kernel: TritonKernel, facts: Compiled) -> str:
        return "a race" if kernel.num_stages > 1 and not kernel.descriptors else ""

    monkeypatch.setattr(schedule, "race", race)
    lowered = with_tiles(matmul(extent, extent, extent), 4, i0=64, i1=64)
    for node in lowered.nodes:
        node.body = dataclasses.replace(tile_body(lowered), num_stages=3)
    compiler = Compiler(H100)
    made = ordered(compiler.scheduled(lowered), compiler)
    body = tile_body(made.lowered)
    assert (body.descriptors, body.num_stages) == ((True, 2) if described else (False, 1))
    assert ("tensor descriptors" if described else "one stage") in made.reason


@pytest.mark.parametrize(
    ("between", "early"), [("", False), ("add.s32 %r9, %r8, 1;", False), ("mov.b64 %rd1, {%r1, %r2};", True)]
)
def test_what_is_packed_before_it_is_waited_for(between: str, early: bool) -> None:
    text = (
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r3];\n"
        + between
        + "\ntcgen05.wait::ld.sync.aligned;"
    )
    assert packed_early(text + "\nmov.b64 %rd2, {%r1, %r2};") == early


def _kernels(lowered: KernelGraph) -> Sequence[TritonKernel]:
    from superopt.transforms.emit.program_source import emit_program

    return emit_program(lowered).kernels


def test_schedules_hold_tiles_and_launches_and_replay_them() -> None:
    graph = gated_mlp(16, 64, 128)
    settings = Superoptimize(target="sm_80", budget=5, store=None, optimizers=("mugraph",))
    outcome = superoptimize(graph, settings, Diagnostics())
    tiling = Tiling(tile_body(outcome.lowered))
    name, parameter = next((n, p) for n, p in tiling.parameters.items() if len(p.choices()) > 1)
    other = next(e for e in parameter.choices() if e != parameter.extent)
    launch = Launch(warps=2, stages=1, cache_hints=True)
    kernel = tile_body(outcome.lowered).name
    changed = outcome.schedule.model_copy(
        update={"parameters": {name: other}, "launches": {kernel: launch}, "reason": "as somebody wished"}
    )
    again = replay(graph, changed, Diagnostics())
    body = tile_body(again.lowered)
    assert Tiling(body).parameters[name].extent == other
    assert (body.num_warps, body.num_stages, body.cache_hints) == (2, 1, True)
    assert again.schedule.parameters == {name: other}
    assert again.schedule.reason == "as somebody wished"
    assert "schedule of the kernels: as somebody wished" in again.report.remarks
    missing = changed.model_copy(update={"parameters": {"nothing": 2}})
    assert as_scheduled(outcome.lowered, missing, H100) is None


def test_a_kernel_with_more_warps_than_any_choice_keeps_them(limited: list[TritonKernel]) -> None:
    """Programs may come with launches that no choice has: what spills then gets other tiles, or stays."""
    graph = matmul(512, 512, 512)
    lowered = with_tiles(graph, 32, i0=512, i1=512)
    made = fit(lowered, Compiler(H100))
    assert len(limited) > 1
    assert "bytes spilled" in made.reason


def test_a_kernel_that_fits_in_no_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_all(kernels: Sequence[TritonKernel], targets: Sequence[str]) -> list[Compiled]:
        return [Compiled(k.name, "sm_90", "", "", "", "", b"", 1 << 20, 32, 0) for k in kernels]

    monkeypatch.setattr("superopt.transforms.schedule.fit.compile_all", compile_all)
    graph = matmul(256, 256, 256)
    for fixed in (False, True):
        with pytest.raises(
            CompilationFailed, match="expected at most 232448 bytes of shared memory, got one"
        ):
            fit(lower(graph), Compiler(H100), fixed=fixed)


@pytest.mark.parametrize("spills", [True, False])
def test_a_little_time_is_given_for_no_spills(monkeypatch: pytest.MonkeyPatch, spills: bool) -> None:
    """What spills is predicted to be fastest; what does not takes a little longer, or much."""

    def tilings(*_: object) -> Iterator[tuple[dict[str, int], KernelGraph]]:
        yield {"i1": 32}, with_tiles(graph, 4, i1=32)

    def seconds(scheduled: Scheduled, _: cost.Target) -> float:
        return 1.0 if scheduled.compiled[0].spill_bytes else (1.3 if spills else 1.1)

    def launches(*_: object) -> list[tuple[int, int]]:
        return []

    monkeypatch.setattr("superopt.transforms.schedule.fit._tilings", tilings)
    monkeypatch.setattr("superopt.transforms.schedule.fit._launches", launches)
    monkeypatch.setattr("superopt.transforms.schedule.fit._seconds", seconds)
    asked: dict[TritonKernel, int] = {}

    def compile_all(kernels: Sequence[TritonKernel], targets: Sequence[str]) -> list[Compiled]:
        made: list[Compiled] = []
        for kernel in kernels:
            first = asked.setdefault(kernel, len(asked)) == 0
            made.append(Compiled(kernel.name, "sm_90", "", "", "", "cp.async", b"", 0, 64, 8 * first))
        return made

    monkeypatch.setattr("superopt.transforms.schedule.fit.compile_all", compile_all)
    graph = matmul(512, 512, 64)
    made = fit(with_tiles(graph, 4, i1=64), Compiler(H100))
    assert bool(made.compiled[0].spill_bytes) == spills


def test_a_kernel_whose_scratch_would_fill_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = lower(read(INTERLEAVED))
    assert fit(lowered, Compiler(H100)).compiled
    monkeypatch.setattr("superopt.transforms.schedule.fit.MOST_SCRATCH", 31999)
    with pytest.raises(CompilationFailed, match="at most 31999 bytes of scratch, got one that needs 32000"):
        fit(lowered, Compiler(H100))
