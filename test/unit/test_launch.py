"""Warps and stages: chosen by one rule from the tiles, written into the schedule, and taken from it again."""

from __future__ import annotations

from search_programs import gated_mlp

from superopt.cost import target
from superopt.diagnostics import Diagnostics
from superopt.pipeline import Superoptimize, replay, superoptimize
from superopt.program import Buffer as TileBuffer
from superopt.program import KernelGraph, Loop, LoopVar, Statement, TensorType, TileProgram
from superopt.report import Launch, launches
from superopt.transforms.lower.builder import compute, constant, load, store, whole
from superopt.transforms.schedule.launch import choose_launch, registers, streamed_bytes


def product(rows: int, columns: int, depth: int, *, trips: int = 8) -> TileProgram:
    """acc[rows, columns] += a[rows, depth] @ b[depth, columns], `trips` times."""
    types = [(rows, depth), (depth, columns), (rows, columns)]
    a, b, c = (TileBuffer(TensorType(t, "f16"), n) for t, n in zip(types, "abc", strict=True))
    acc = TileBuffer(TensorType((rows, columns), "f16"), "acc", "chip")
    body: list[Statement] = []
    store(body, acc, whole(acc), constant(body, 0.0, acc.type.shape, "f16"))
    inner: list[Statement] = []
    x, y = load(inner, a, whole(a), "x"), load(inner, b, whole(b), "y")
    part = compute(inner, "matmul", [x, y], {})
    store(inner, acc, whole(acc), compute(inner, "add", [load(inner, acc, whole(acc), "old"), part], {}))
    body.append(Loop(LoopVar("k"), 0, trips, 1, False, inner))
    store(body, c, whole(c), load(body, acc, whole(acc), "all"))
    return TileProgram("product", [a, b, c], 2, [acc], body)


def chosen(program: TileProgram, gpu: str = "sm_90") -> tuple[int, int]:
    choose_launch(program, target(gpu), None, None)
    return program.num_warps, program.num_stages


def test_warps_follow_the_registers_that_tiles_take() -> None:
    assert (
        registers(product(64, 64, 64), 4) == 64 * 64 / 128
    )  # the accumulator; what is added to it is summed there
    assert chosen(product(16, 16, 16))[0] == 1
    assert chosen(product(64, 64, 64))[0] == 4
    assert chosen(product(128, 64, 64))[0] == 4
    assert chosen(product(128, 128, 64))[0] == 8


def test_stages_follow_the_shared_memory_of_the_target() -> None:
    wide = product(128, 256, 128)
    assert streamed_bytes(wide.body) == (128 * 128 + 128 * 256) * 2
    assert chosen(wide, "sm_90")[1] == 2
    assert chosen(wide, "sm_80")[1] == 1
    assert chosen(product(64, 64, 64))[1] == 4


def test_what_is_given_is_taken() -> None:
    program = product(64, 64, 64)
    choose_launch(program, target("sm_90"), 2, 3)
    assert (program.num_warps, program.num_stages) == (2, 3)


def optimized() -> tuple[KernelGraph, Superoptimize]:
    return gated_mlp(16, 64, 128), Superoptimize(
        target="sm_80", budget=5, store=None, optimizers=("mugraph",)
    )


def test_schedules_hold_the_launches_and_replay_them() -> None:
    graph, settings = optimized()
    outcome = superoptimize(graph, settings, Diagnostics())
    found = outcome.schedule.launches
    assert found == launches(outcome.lowered)
    assert found
    other = {name: Launch(warps=8, stages=1) for name in found}
    again = replay(graph, outcome.schedule.model_copy(update={"launches": other}), Diagnostics())
    assert launches(again.lowered) == other == again.schedule.launches
    assert {(k.num_warps, k.num_stages) for k in again.emitted.kernels} == {(8, 1)}
    assert all('"ttg.num-warps" = 8' in k.ttgir for k in again.compiled)
