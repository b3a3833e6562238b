"""Bulk copies and tensor maps in PTX: what Triton makes of tensor descriptors, and faults planted in it."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
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
    assert {"cp.async.bulk", "fence.proxy.tensormap"} <= set(record.kernels[0].ordering)


@pytest.mark.parametrize("index", range(len(TARGETS)), ids=TARGETS)
def test_tensor_maps_are_verified(made: Made, index: int) -> None:
    verify(made, index, made.compiled[index].ptx)


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
