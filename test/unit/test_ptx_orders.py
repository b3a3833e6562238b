"""A second reading of what orders accesses (`test/mutation/ptx_orders.py`), and the check of PTX: both say the same."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in (".", "mutation", "gpu")]

import ptx_harness  # noqa: E402
import ptx_orders  # noqa: E402
from mutate_ptx import without_orders  # noqa: E402
from ptx_texts import HEAD  # noqa: E402

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
    mutants = [(s, text) for s in subjects for text in without_orders(s.ptx)]
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
