"""A second reading of what orders accesses (`test/mutation/ptx_orders.py`), and the check of PTX: both say the same."""

from __future__ import annotations

import contextlib
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in (".", "mutation", "gpu")]

import mutate_ptx  # noqa: E402
import ptx_harness  # noqa: E402
import ptx_orders  # noqa: E402
from ptx_texts import HEAD, LOAD, STORE, run  # noqa: E402

from superopt.errors import IllegalProgram  # noqa: E402

SAMPLE = 60


@pytest.fixture(scope="module")
def subjects() -> list[ptx_harness.Subject]:
    """Kernels of the second reading's opcodes: mma.sync and wgmma, with copies and swizzles."""
    return [s for s in ptx_harness.families() if re.search(r"sm_[89]0 (f16|tf32|bf16|copies)", s.name)]


def test_nothing_races_in_what_triton_makes(subjects: list[ptx_harness.Subject]):
    assert {s.name: ptx_orders.races(s.ptx, s.shared_bytes) for s in subjects} == {
        s.name: set() for s in subjects
    }
    assert {"test/gpu sm_80 f16", "test/gpu sm_90 f16", "test/gpu sm_90 tf32x3"} <= {s.name for s in subjects}


def test_both_say_the_same_of_each_order_that_is_dropped(subjects: list[ptx_harness.Subject]):
    """Waits, fences and barriers; what the check calls illegal races in the second reading, and nothing else does."""
    mutants = [(s, text) for s in subjects for text in mutate_ptx.without_orders(s.ptx)]
    said = Counter[tuple[bool, bool]]()
    for subject, text in random.Random(7).sample(mutants, SAMPLE):
        raced = bool(ptx_orders.races(text, subject.shared_bytes))
        said[subject.fate(text, subject.first) != "", raced] += 1
    assert set(said) == {(True, True), (False, False)}, said


def test_a_warp_waits_for_its_own_part_of_a_product(subjects: list[ptx_harness.Subject]):
    """Others of its group may still be reading what it is to overwrite: without a barrier this is a race."""
    for subject in subjects:
        if "wgmma" in subject.ptx:
            last = subject.ptx.rindex("wgmma.wait_group")
            text = subject.ptx[:last] + subject.ptx[last:].replace("bar.sync", "// bar.sync", 1)
            assert subject.fate(text, subject.first) == "illegal", subject.name


BODIES = {
    "a read of what another warp writes": (
        "st.shared.b32 [%r4], %r1;\nBAR\nld.shared.b32 %r10, [%r6];",
        True,
    ),
    "a write of what another warp reads": (
        "ld.shared.b32 %r10, [%r6];\nBAR\nst.shared.b32 [%r4], %r1;",
        True,
    ),
    "two writes": ("st.shared.b32 [%r4], %r1;\nBAR\nst.shared.b32 [%r6], %r1;", True),
    "two reads": ("ld.shared.b32 %r10, [%r4];\nBAR\nld.shared.b32 %r10, [%r6];", False),
    "its own": ("st.shared.b32 [%r4], %r1;\nBAR\nld.shared.b32 %r10, [%r4];", False),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_barrier_orders_two_warps(name: str):
    body, needed = BODIES[name]
    for barrier, raced in (("bar.sync 0;", False), ("", needed), ("bar.warp.sync -1;", needed)):
        text = HEAD.replace("THREADS", "64") + body.replace("BAR", barrier) + "\nret;\n}\n"
        assert bool(ptx_orders.races(text, 1024)) == raced, barrier


def copies() -> Iterator[tuple[str, bool]]:
    """A copy, what waits for it, and whether a read afterwards races."""
    copy = "mov.b32 %r9, 4;\ncp.async.ca.shared.global [%r4 + 0], [%rd4 + 0], 0x4, %r9;\n"
    yield copy + "cp.async.commit_group;\ncp.async.wait_group 0;\nld.shared.b32 %r10, [%r4];", False
    yield copy + "cp.async.wait_group 0;\nld.shared.b32 %r10, [%r4];", True
    yield copy + "cp.async.commit_group;\ncp.async.wait_group 1;\nld.shared.b32 %r10, [%r4];", True
    yield (
        copy
        + "cp.async.commit_group;\ncp.async.commit_group;\ncp.async.wait_group 1;\nld.shared.b32 %r10, [%r4];",
        False,
    )
    yield copy + "cp.async.commit_group;\ncp.async.wait_group 0;\nld.shared.b32 %r10, [%r6];", True
    yield (
        copy + "cp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;\nld.shared.b32 %r10, [%r6];",
        False,
    )
    yield (
        copy + "cp.async.commit_group;\nbar.sync 0;\ncp.async.wait_group 0;\nld.shared.b32 %r10, [%r6];",
        True,
    )


@pytest.mark.parametrize(("body", "raced"), list(copies()))
def test_copies_are_waited_for(body: str, raced: bool):
    text = HEAD.replace("THREADS", "64") + body + "\nret;\n}\n"
    assert bool(ptx_orders.races(text, 1024)) == raced


@pytest.mark.parametrize(
    "line", ["red.shared.add.u32 [%r4], 1;", "@%p1 bra $L;\n$L:", "mbarrier.init.shared::cta.b64 [%r2], 1;"]
)
def test_what_is_not_followed_is_said(line: str):
    with pytest.raises(ptx_orders.Undecided):
        ptx_orders.races(HEAD.replace("THREADS", "64") + line + "\nret;\n}\n", 1024)


def test_a_wait_for_an_mbarrier_that_ends_after_some_tests_is_found():
    """Unrolled or counted, whatever the tests say."""
    for subject in [s for s in ptx_harness.families() if s.name == "test/gpu sm_90 mbarriers"]:
        lines = subject.ptx.splitlines()
        mutants = list(mutate_ptx.bounded_waits(lines))
        assert len(mutants) >= 5
        for changed in mutants:
            text = "\n".join(changed.get(n, line) for n, line in enumerate(lines))
            assert subject.fate(text, subject.first) == "illegal", changed


STARTED = "griddepcontrol.wait;\n" + LOAD + "griddepcontrol.launch_dependents;\n" + STORE


def test_faults_of_early_starts_are_found_by_both():
    """Waits that are dropped, come late or in some threads; where the next kernel may start changes nothing."""
    lines = (HEAD.replace("THREADS", "64") + STARTED + "ret;\n}\n").splitlines()
    said = Counter[bool]()
    for changed in mutate_ptx.early_starts(lines):
        text = "\n".join(changed.get(n, line) for n, line in enumerate(lines))
        raced = bool(ptx_orders.races(text, 1024, early=True))
        said[raced] += 1
        if "griddepcontrol.wait" not in text:  # refused for early kernels before it runs
            assert raced
            continue
        with pytest.raises(IllegalProgram) if raced else contextlib.nullcontext():
            run(text.partition(HEAD.splitlines()[-1])[2].rpartition("ret;")[0])
    assert said == {True: 6, False: 2}


def test_the_next_kernel_waits_though_the_text_does_not():
    body = HEAD.replace("THREADS", "64") + LOAD + STORE + "ret;\n}\n"
    assert not ptx_orders.races(body, 1024)
    assert ptx_orders.races(body, 1024, early=True)


FOUR, EIGHT = "%r30, %r31, %r32, %r33", "%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37"


@pytest.mark.parametrize(
    ("first", "between", "second", "raced"),
    [
        (FOUR, "", FOUR, False),
        (EIGHT, "", FOUR, True),
        (EIGHT, "wgmma.fence.sync.aligned;", FOUR, True),
        (FOUR, "", "%r32, %r33, %r34, %r35", True),
        (EIGHT, "WAIT", FOUR, True),
        (EIGHT, "WAIT wgmma.fence.sync.aligned;", FOUR, False),
        (FOUR, "WAIT mov.b32 %r20, %r31;", FOUR, True),
    ],
)
def test_products_of_another_shape_are_ordered_by_fences(first: str, between: str, second: str, raced: bool):
    wait = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"

    def product(registers: str) -> str:
        shape = f"m64n{2 * len(registers.split())}k8.f32.tf32.tf32"
        return f"wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, %rd6, %rd6, 1, 1, 1;\n"

    place = "bfe.u32 %r20, %r2, 4, 14;\ncvt.u64.u32 %rd6, %r20;\nor.b64 %rd6, %rd6, 68719542272;\n"
    zeros = "".join(f"mov.b32 %r{r}, 0f00000000;\n" for r in range(30, 38))
    products = product(first) + between.replace("WAIT", wait) + product(second)
    body = place + zeros + "wgmma.fence.sync.aligned;\n" + products + wait
    text = HEAD.replace("THREADS", "128") + body + "ret;\n}\n"
    assert bool(ptx_orders.races(text, 8192)) == raced


def test_orders_that_are_moved_or_left_out_once_are_found_or_needless(subjects: list[ptx_harness.Subject]):
    """Both readings agree on each: what the one lets pass, the other finds no race in."""
    kinds = frozenset({mutate_ptx.ONCE, mutate_ptx.MOVED})
    result = ptx_harness.campaign(subjects, 40, 5, 600, kinds)
    assert result["mutants"] == 40
    assert result["wrong"] == []
    assert "unexplained" not in result["fates"]
    assert {kind.partition(":")[0] for kind in result["by_kind"]} == kinds
    assert result["fates"]["illegal"] > 10
    assert result["fates"]["redundant order"] > 0


def test_offsets_in_32_bits_are_found_where_they_are_too_large():
    """Rows of 96 KiB of a tensor of 6 GB: from the 43,691st on, their offsets need more."""
    (subject,) = ptx_harness.large(["sm_90"])
    lines = subject.ptx.splitlines()
    fates = [
        subject.fate("\n".join([*lines[:at], changed, *lines[at + 1 :]]), subject.first)
        for at, line in enumerate(lines)
        for changed in mutate_ptx.wrong_widths(line)
        if "mul.lo" in changed
    ]
    assert fates
    assert set(fates) == {"different"}
