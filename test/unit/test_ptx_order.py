"""Barriers with numbers, atomics and griddepcontrol in PTX, on text written by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ptx_texts import FIELD, LOAD, STORE, run

from superopt.errors import IllegalProgram, SuperoptError, UnsupportedProgram

PRIME = FIELD.fields[0].modulus


def others(x: np.ndarray) -> np.ndarray:
    """Each thread's number plus that of the thread 32 further on or back."""
    return FIELD.fields[0].add(x, x[np.arange(x.size) ^ 32])


PAIR = "st.shared.b32 [%r4], %r10;\nBARRIER\nld.shared.b32 %r11, [%r6];\nadd.f32 %r10, %r10, %r11;\n"
# The first 64 of 128 threads exchange numbers, or all do by halves.
SOME = LOAD + "setp.lt.u32 %p1, %r1, 64;\n@!%p1 bra $L;\n" + PAIR + "$L:\n" + STORE
HALVES = LOAD + "shr.u32 %r20, %r1, 6;\nadd.s32 %r20, %r20, 1;\n" + PAIR + STORE


@pytest.mark.parametrize("barrier", ["bar.sync 1;", "bar.sync 3, 64;", "barrier.cta.sync.aligned 2;"])
def test_a_barrier_with_a_number_orders_all(barrier: str) -> None:
    stored, x = run(LOAD + PAIR.replace("BARRIER", barrier) + STORE)
    assert np.array_equal(stored.values, others(x))


def test_a_barrier_orders_the_warps_that_take_part() -> None:
    stored, x = run(SOME.replace("BARRIER", "bar.sync 1, 64;"), threads=128)
    assert np.array_equal(stored.values, np.where(np.arange(128) < 64, others(x), x))


# The upper half writes, the lower one reads.
ARRIVE = (
    LOAD
    + "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $READ;\nst.shared.b32 [%r4], %r10;\nARRIVE\nAFTER\nbra $L;\n"
    + "$READ:\nWAIT\nld.shared.b32 %r10, [%r6];\n$L:\n"
    + STORE
)


def arriving(arrive: str = "bar.arrive 1, 64;", wait: str = "bar.sync 1, 64;", after: str = "") -> str:
    return ARRIVE.replace("ARRIVE", arrive).replace("WAIT", wait).replace("AFTER", after)


def test_threads_that_only_arrive_are_ordered_before() -> None:
    stored, x = run(arriving())
    assert np.array_equal(stored.values, np.concatenate([x[32:], x[32:]]))


# Each half of 128 threads takes its own way, and exchanges numbers there.
WAYS = (
    LOAD
    + "setp.lt.u32 %p1, %r1, 64;\n@!%p1 bra $UP;\n"
    + PAIR.replace("BARRIER", "bar.sync 1, 64;")
    + "bra $L;\n$UP:\n"
    + PAIR.replace("BARRIER", "bar.sync 2, 64;")
    + "$L:\n"
    + STORE
)
# One warp writes twice, the other reads twice: each tells the other by a barrier of its own.
TURNS = (
    LOAD
    + "mov.b32 %r20, 0;\nsetp.lt.u32 %p1, %r1, 32;\n@%p1 bra $READ;\n"
    + "$WRITE:\nst.shared.b32 [%r4], %r10;\nbar.arrive 1, 64;\nbar.sync 2, 64;\n"
    + "add.s32 %r20, %r20, 1;\nsetp.lt.s32 %p2, %r20, 2;\n@%p2 bra $WRITE;\nbra $L;\n"
    + "$READ:\nbar.sync 1, 64;\nld.shared.b32 %r10, [%r6];\nbar.arrive 2, 64;\n"
    + "add.s32 %r20, %r20, 1;\nsetp.lt.s32 %p2, %r20, 2;\n@%p2 bra $READ;\n$L:\n"
    + STORE
)


def test_halves_with_barriers_of_their_own() -> None:
    stored, x = run(WAYS, threads=128)
    assert np.array_equal(stored.values, others(x))


def test_turns_are_taken() -> None:
    stored, x = run(TURNS)
    assert np.array_equal(stored.values, np.concatenate([x[32:], x[32:]]))


BROKEN = {
    "one barrier for two groups": (WAYS.replace("bar.sync 2", "bar.sync 1"), 128, "take their place"),
    "a turn too early": (TURNS.replace("bar.sync 2, 64;", "bar.arrive 2, 64;"), 64, "race|more"),
    "no barrier": (SOME.replace("BARRIER", ""), 128, "race: .*read"),
    "too few threads": (SOME.replace("BARRIER", "bar.sync 1, 96;"), 128, "wait for ever"),
    "too many threads": (SOME.replace("BARRIER", "bar.sync 1, 32;"), 128, "got more|race"),
    "a number that there is not": (SOME.replace("BARRIER", "bar.sync 16, 64;"), 128, "from 0 to 15"),
    "all threads, some wait": (SOME.replace("BARRIER", "bar.sync 1;"), 128, "barrier"),
    "other barriers": (HALVES.replace("BARRIER", "bar.sync 1, 32;"), 64, "race|got more"),
    "nobody waits": (arriving(wait=""), 64, "race|wait for ever"),
    "nobody arrives": (arriving(arrive=""), 64, "wait for ever|race"),
    "a write after it": (arriving(after="st.shared.b32 [%r4], %r10;"), 64, "race|some warps"),
    "another number": (arriving(arrive="bar.arrive 2, 64;"), 64, "wait for ever"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_faults_of_barriers_are_found(name: str) -> None:
    body, threads, message = BROKEN[name]
    with pytest.raises(SuperoptError, match=message):
        run(body, threads)


# --- atomics -------------------------------------------------------------------------------------------------

ZERO = "setp.eq.s32 %p1, %r1, 0;\n@%p1 st.shared.b32 [%r2], 0;\nbar.sync 0;\n"
SUM = LOAD + ZERO + "red.shared.add.f32 [%r2], %r10;\nbar.sync 0;\nld.shared.b32 %r10, [%r2];\n" + STORE
COUNT = (
    ZERO
    + "atom.shared.add.u32 %r20, [%r2], 1;\nbar.sync 0;\nld.shared.b32 %r20, [%r2];\ncvt.rn.f32.u32 %r10, %r20;\n"
    + STORE
)


def test_sums_in_shared_memory() -> None:
    stored, x = run(SUM)
    assert set(stored.values.tolist()) == {sum(map(int, x)) % PRIME}


@pytest.mark.parametrize(
    ("opcode", "operand", "result"),
    [
        ("add.u32", "1", 64),
        ("max.u32", "%r1", 63),
        ("min.s32", "-3", -3),
        ("or.b32", "%r1", 63),
        ("xor.b32", "%r1", 0),
    ],
)
def test_integers_in_shared_memory(opcode: str, operand: str, result: int) -> None:
    body = (
        COUNT.replace("add.u32", opcode)
        .replace("[%r2], 1;", f"[%r2], {operand};")
        .replace("f32.u32", "f32.s32")
    )
    assert set(run(body)[0].values.tolist()) == {result % PRIME}


def test_sums_in_device_memory_are_contributions() -> None:
    stored, x = run(LOAD + "and.b32 %r20, %r1, 1;\nmul.wide.u32 %rd6, %r20, 4;\nadd.s64 %rd6, %rd2, %rd6;\n"
                    "red.global.add.f32 [%rd6], %r10;\n")  # fmt: skip
    assert stored.places.tolist() == [0, 1]
    assert stored.atomics.tolist() == [1, 1]
    assert stored.values.tolist() == [sum(map(int, x[i::2])) % PRIME for i in range(2)]


RED = "red.global.add.f32 [%rd5], %r10;\n"
ORDERED = {
    "the old value": (COUNT.replace("bar.sync 0;\nld.shared.b32 %r20, [%r2];\n", "").replace("%r20;", "%r20;"), "integer"),
    "the old number": (LOAD + "atom.global.add.f32 %r10, [%rd2], %r10;\nst.global.b32 [%rd5 + 0], {%r10};\n", "order of threads"),
    "read too early": (SUM.replace("%r10;\nbar.sync 0;", "%r10;"), "race"),
    "start too late": (SUM.replace("0;\nbar.sync 0;\nred", "0;\nred"), "race"),
    "two operations": (SUM.replace("bar.sync 0;\nld", "red.shared.max.f32 [%r2], %r10;\nbar.sync 0;\nld"), "race|red.shared"),
    "a store as well": (LOAD + RED + STORE, "order of threads"),
    "a load as well": (LOAD + RED + "ld.global.b32 {%r10}, [%rd5 + 0];\n", "order of threads"),
    "two in device memory": (LOAD + RED + RED.replace("add", "max"), "order of threads"),
    "an input": (LOAD + RED.replace("%rd5", "%rd4"), "got one to input"),
    "of this block alone": (LOAD + RED.replace(".add", ".relaxed.cta.add"), "red.global.relaxed.cta.add.f32"),
    "integers in device memory": (LOAD + "red.global.add.u32 [%rd5], 1;\n", "integers"),
    "an exchange": (LOAD + "atom.global.exch.b32 %r11, [%rd5], %r10;\n", "exch.b32', whose outcome depends on the order"),
    "a compare and swap": (LOAD + "atom.global.cas.b32 %r11, [%rd5], %r10, %r10;\n", "order of threads"),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERED)
def test_what_depends_on_the_order_is_refused(name: str) -> None:
    body, message = ORDERED[name]
    with pytest.raises((IllegalProgram, UnsupportedProgram), match=message):
        run(body)


def test_device_memory_is_touched_after_the_grid_before() -> None:
    stored, x = run("griddepcontrol.wait;\n" + LOAD + "griddepcontrol.launch_dependents;\n" + STORE)
    assert np.array_equal(stored.values, x)
    with pytest.raises(IllegalProgram, match=re.escape("before griddepcontrol.wait")):
        run(LOAD + "griddepcontrol.wait;\n" + STORE)
