"""Bulk copies and tensor maps in PTX: what Triton makes of tensor descriptors, and faults planted in it."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pytest
from ptx_texts import LOAD, STORE, run
from test_bench_space import matmul
from test_descriptors import TARGETS, described

from superopt.errors import IllegalProgram, NotEquivalent, UnsupportedProgram
from superopt.program import KernelGraph
from superopt.transforms.emit.compile import Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ttir.artifact import kernel_texts


class Made(NamedTuple):
    """A program with tensor descriptors, and its kernel for both targets."""

    lowered: KernelGraph
    emitted: EmittedProgram
    compiled: list[Compiled]


@pytest.fixture(scope="module")
def made() -> Made:
    """A product whose tiles reach over the edges of both operands."""
    lowered = described(matmul(40, 72, 256))
    emitted = emit_program(lowered)
    return Made(lowered, emitted, compile_all(emitted.kernels, TARGETS))


def verify(made: Made, index: int, ptx: str) -> None:
    """Verify the kernel with this text."""
    (text,) = kernel_texts(made.emitted, [made.compiled[index]])
    record = verify_ptx(made.lowered, [text], [PtxText(ptx, made.compiled[index].shared_bytes)])
    if reason := record.kernels[0].unverified:
        raise UnsupportedProgram(reason)
    assert {"cp.async.bulk", "fence.proxy.tensormap", "elect.sync"} <= set(record.kernels[0].ordering)


@pytest.mark.parametrize("index", range(len(TARGETS)), ids=TARGETS)
def test_tensor_maps_are_verified(made: Made, index: int) -> None:
    verify(made, index, made.compiled[index].ptx)


@pytest.mark.parametrize("index", range(len(TARGETS)), ids=TARGETS)
@pytest.mark.parametrize("behind", ["", r"tensormap\.cp_fenceproxy[^;]*;", r"fence\.proxy\.tensormap[^;]*;"])
def test_tensor_maps_are_copied_after_the_grid_before(made: Made, index: int, behind: str) -> None:
    """Scratch may be memory that the kernel before still reads."""
    ptx = made.compiled[index].ptx
    if behind:
        place = [m.end() for m in re.finditer(behind, ptx)][-1]
        with pytest.raises(IllegalProgram, match=r"before griddepcontrol\.wait"):
            verify(made, index, f"{ptx[:place]}\n\tgriddepcontrol.wait;\n{ptx[place:]}")
    else:
        place = ptx.rindex("\n", 0, ptx.index("tensormap.replace"))
        verify(made, index, f"{ptx[:place]}\n\tgriddepcontrol.wait;\n{ptx[place:]}")


# What is replaced, by what, and which occurrence of it (-1: the last).
FAULTS = {
    "no fence of the map": (r"@%p\d+ fence\.proxy\.tensormap[^;]*;", "", 0, "expected fence.proxy.tensormap"),
    "no copy of the map": (r"(@%p\d+ )?tensormap\.cp_fenceproxy[^;]*;", "", 0, "expected a tensor map"),
    "no bytes expected": (r"@%p\d+ mbarrier\.arrive\.expect_tx[^;]*;", "", 0, "race|bytes"),
    "fewer bytes": (r"(expect_tx[^;]*\], )\d+;", r"\g<1>16;", 0, "bytes"),
    "more bytes": (r"(expect_tx[^;]*\], )\d+;", r"\g<1>16384;", 0, "wait for ever|race"),
    "no wait": (r"@!complete bra\.uni waitLoop;", "", 0, "race"),
    "another phase": (r"(try_wait\.parity[^;]*, )%r\d+;", r"\g<1>1;", 0, "race|for ever"),
    "a swizzle": (r"(swizzle_mode[^;]*, )0x3;", r"\g<1>0x2;", 0, "swizzle|another value"),
    "no swizzle": (r"(swizzle_mode[^;]*, )0x2;", r"\g<1>0x0;", 0, "another value"),
    "a box": (r"(box_dim[^;]*0x1, )%r\d+;", r"\g<1>4;", 0, "wait for ever|another value|race"),
    "an extent": (r"(global_dim[^;]*0x1, )%r\d+;", r"\g<1>39;", 0, "another value"),
    "a stride": (r"(global_stride[^;]*0x0, )%rd\d+;", r"\g<1>256;", 0, "another value|of element"),
    "a stride to another argument": (
        r"(global_stride[^;]*0x0, )%rd\d+;", rf"\g<1>{1 << 40};", 0, "a box that leaves its argument",
    ),
    "a rank": (r"(rank[^;]*, )0x1;", r"\g<1>0x0;", 0, "dimensions"),
    "swapped coordinates": (r"\{(%r\d+), (%r\d+)\}\], \[", r"{\2, \1}], [", 0, "another value"),
    "another place": (r"(tensor\.2d[^;]*bytes )\[(%r\d+)\]", r"\1[\2+128]", 0, "another value|race"),
    "another mbarrier": (r"(tensor\.2d[^;]*, \[%r\d+)\];", r"\1+8];", 0, "race|bytes|for ever|mbarrier"),
    "no init": (r"@%p\d+ mbarrier\.init[^;]*;", "", 0, "mbarrier"),
    "no fence of the proxy": (r"fence\.proxy\.async\.shared::cta;", "", 0, "expected fence.proxy.async"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("index", range(len(TARGETS)), ids=TARGETS)
def test_faults_in_bulk_copies_are_found(made: Made, index: int, name: str) -> None:
    old, new, place, message = FAULTS[name]
    text = made.compiled[index].ptx
    found = list(re.finditer(old, text))
    assert found, "the kernel has what the fault changes"
    at = found[place]
    changed = text[: at.start()] + at.expand(new) + text[at.end() :]
    with pytest.raises((IllegalProgram, NotEquivalent, UnsupportedProgram), match=message):
        verify(made, index, changed)


@pytest.mark.parametrize("index", range(len(TARGETS)), ids=TARGETS)
@pytest.mark.parametrize("away", [16, 1 << 20], ids=["another element", "out of bounds"])
def test_whom_elect_sync_elects_decides_nothing_but_the_order(made: Made, index: int, away: int) -> None:
    """Its number is in an address. Another thread than the first also uses mbarriers that are not made yet."""
    ptx = made.compiled[index].ptx
    number = re.search(r"elect\.sync\s+(%r\d+)\|", ptx)
    address = re.search(r"(@%p\d+ )?st\.global[^\[]*\[\s*(%rd\d+)", ptx)
    assert number is not None
    assert address is not None
    register = address[2]
    moved = f"mad.wide.u32 {register}, {number[1]}, {away}, {register};\n{address[0]}"
    verify(made, index, ptx.replace(address[0], moved.replace(f"{away},", "0,"), 1))
    with pytest.raises((IllegalProgram, NotEquivalent), match=r"of element|out of bounds|the elements of"):
        verify(made, index, ptx.replace(address[0], moved, 1))


# --- copies of bytes, written by hand ---------------------------------------------------------------------

INIT = "setp.eq.s32 %p1, %r1, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%r2+512], 1;\nbar.sync 0;\n"
EXPECT = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2+512], 256;\n"
BULK = (
    "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 256, [%r2+512];\n"
)
WAIT = "$W:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2+512], 0;\n@!%p2 bra $W;\n"
TEST = WAIT.split("\n")[1] + "\n"
TWICE = "mov.b32 %r20, 0;\n$W:\n" + TEST + "add.s32 %r20, %r20, 1;\nsetp.lt.s32 %p3, %r20, 2;\n@%p3 bra $W;\n"
READ = "ld.shared.b32 %r10, [%r4];\n"
GOT = INIT + EXPECT + BULK + WAIT + READ + STORE
FENCE = "fence.proxy.async.shared::cta;\n"
OUT = LOAD + "st.shared.b32 [%r4], %r10;\n" + FENCE + "bar.sync 0;\nsetp.eq.s32 %p1, %r1, 0;\n"
SEND = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 256;\n"
COMMIT, DONE = "cp.async.bulk.commit_group;\n", "cp.async.bulk.wait_group.read 0;\n"
SENT = OUT + SEND + COMMIT + DONE
INVAL = "@%p1 mbarrier.inval.shared::cta.b64 [%r2+512];\n"
OVER = "st.shared.b32 [%r4], 0;\n"
GOOD = {
    "a load": GOT,
    "a store": SENT,
    "one thread waits for all": INIT + EXPECT + BULK + "@!%p1 bra $X;\n" + WAIT + "$X:\nbar.sync 0;\n" + READ + STORE,
    "over what was written": OVER + FENCE + GOT,
    "a fence by who issues": OUT.replace(FENCE + "bar.sync 0;\n", "bar.sync 0;\n" + FENCE) + SEND + COMMIT + DONE,
    "what was read is written": SENT + "bar.sync 0;\n" + OVER,
    "the mbarrier ends": GOT + "bar.sync 0;\n" + INVAL,
    "in halves": INIT + EXPECT + BULK.replace("256,", "128,")
    + BULK.replace("[%r2], [%rd1], 256,", "[%r2+128], [%rd1+128], 128,") + WAIT + READ + STORE,
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_copies_of_bytes_are_followed(name: str) -> None:
    stored, x = run(GOOD[name])
    assert np.array_equal(stored.values, x)


WRONG = {
    "an mbarrier between words": (GOT.replace("512", "516"), "a multiple of 8"),
    "an mbarrier in the data": (GOT.replace("%r2+512", "%r2+248"), "mbarrier"),
    "part of 16 bytes": (GOT.replace(", 256,", ", 248,"), "multiples of 16 bytes"),
    "fewer bytes than expected": (GOT.replace("[%rd1], 256", "[%rd1], 128"), "wait for ever"),
    "two arrivals": (INIT + EXPECT + GOT.removeprefix(INIT), "got another one"),
    "no bytes expected yet": (INIT + BULK + EXPECT + WAIT + READ + STORE, "race: .*expect_tx"),
    "expected by none": (GOT.replace(EXPECT, EXPECT.replace("256", "0")), "no more bytes"),
    "bytes that wrap around": (GOT.replace(EXPECT, EXPECT.replace("256", "-256")), "wait for ever"),
    "no barrier after the init": (GOT.replace("bar.sync 0;\n", "", 1), "race: .*mbarrier.init"),
    "an arrival too few": (GOT.replace("+512], 1;", "+512], 2;"), "wait for ever"),
    "another phase": (GOT.replace("+512], 0;\n@!", "+512], 1;\n@!"), "race"),
    "no wait": (INIT + EXPECT + BULK + READ + STORE, "race"),
    "a test that may fail": (GOT.replace("@!%p2 bra $W;\n", ""), "race"),
    "two tests that may fail": (GOT.replace(WAIT, TEST + TEST), "race: .*repeated"),
    "a test that is repeated whatever it says": (GOT.replace(WAIT, TWICE), "race: .*repeated"),
    "a test that only some repeat": (GOT.replace("$W:\n", "$W:\n@%p1 ", 1), "race: .*repeated"),
    "others do not wait": (INIT + EXPECT + BULK + "@!%p1 bra $X;\n" + WAIT + "$X:\n" + READ + STORE, "race"),
    "no fence behind a write": (OVER + GOT, "expected fence.proxy.async"),
    "a write meanwhile": (INIT + EXPECT + BULK + "@%p1 " + OVER + WAIT + READ + STORE, "race"),
    "two to one place": (INIT + EXPECT.replace("256", "512") + BULK + BULK + WAIT + READ + STORE, "race"),
    "beyond the argument": (GOT.replace("256", "272"), "out of bounds"),
    "beyond shared memory": (GOT.replace("[%r2], [%rd1]", "[%r2+896], [%rd1]"), "out of bounds"),
    "from what is stored": (GOT.replace("[%r2], [%rd1]", "[%r2], [%rd2]"), "may store to"),
    "an mbarrier that ends early": (INIT + EXPECT + BULK + INVAL + WAIT + READ + STORE, "race"),
    "an mbarrier that others test": (GOT + INVAL, "race"),
    "an mbarrier twice": (GOT + "bar.sync 0;\n@%p1 mbarrier.init.shared::cta.b64 [%r2+512], 1;\n", "another mbarrier"),
    "an mbarrier that is overwritten": (INIT + "@%p1 st.shared.b32 [%r2+512], 0;\n" + GOT.removeprefix(INIT), "mbarrier"),
    "to other blocks": (GOT.replace("::bytes", "::bytes.multicast::cluster"), "multicast"),
    "no fence before it is sent": (SENT.replace(FENCE, ""), "expected fence.proxy.async"),
    "no barrier before it is sent": (SENT.replace("bar.sync 0;\n", ""), "race"),
    "no group": (OUT + SEND + DONE, "race"),
    "no wait for the group": (OUT + SEND + COMMIT, "race"),
    "a wait for another group": (SENT.replace("read 0", "read 1"), "race"),
    "the group of another thread": (SENT.replace(COMMIT, "@!%p1 " + COMMIT), "race"),
    "a write before it was read": (OUT + SEND + COMMIT + OVER + DONE, "race"),
    "a write by those who did not wait": (SENT + OVER, "race"),
    "a store to the same place": (SENT + STORE, "race"),
    "a store before": (STORE.replace("%r10", "%r1") + SENT, "race"),
    "sent twice": (OUT + SEND + SEND + COMMIT + DONE, "race"),
    "sent by all": (SENT.replace("@%p1 cp", "cp"), "race"),
    "read again": (SENT + "ld.global.b32 {%r11}, [%rd5+0];\n", "what a bulk copy stor"),
    "to an input": (SENT.replace("[%rd2]", "[%rd1]"), "to input"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_faults_in_copies_of_bytes_are_found(name: str) -> None:
    body, message = WRONG[name]
    with pytest.raises((IllegalProgram, UnsupportedProgram), match=message):
        run(body)
