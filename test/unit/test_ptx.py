"""Kernels as PTX: values, bounds and the order of accesses, on text written by hand and on compiled kernels."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
from ptx_texts import COPY, FIELD, HEAD, LOAD, STORE, run

from superopt.cost.gpus import target
from superopt.errors import BadInput, IllegalProgram, NotEquivalent, SuperoptError, UnsupportedProgram
from superopt.program import KernelGraph, Node, TensorType, TileProgram, Value
from superopt.transforms.emit.compile import Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.lower import lower
from superopt.transforms.schedule.fit import Compiler, Scheduled, ordered
from superopt.verify.ptx.check import PtxText, order_fault, verify_ptx
from superopt.verify.ptx.decode import Decoded, decode
from superopt.verify.ptx.launch import Launch
from superopt.verify.ptx.parser import parse
from superopt.verify.ttir.artifact import kernel_texts
from superopt.verify.ttir.check import KernelText
from superopt.verify.ttir.memory import Buffer
from superopt.verify.ttir.sampling import blocks_of


def test_numbers_and_memory():
    # A sum with the other warp's number, through shared memory.
    stored, x = run(
        LOAD
        + "st.shared.b32 [%r4], %r10;\nbar.sync 0;\nld.shared.b32 %r11, [%r6];\nadd.f32 %r10, %r10, %r11;\n"
        + STORE
    )
    assert stored.places.tolist() == list(range(64))
    other = x[np.arange(64) ^ 32]
    assert np.array_equal(stored.values, FIELD.fields[0].add(x, other))


def test_what_a_pragma_calls_unused_is_undefined():
    """Of 16 bytes those of the first and the third register: the others may hold anything."""
    body = (
        LOAD
        + "mul.lo.s32 %r30, %r1, 16;\nadd.s32 %r30, %r30, %r2;\nst.shared.v4.b32 [%r30], {%r10, %r10, %r10, %r10};\n"
        "PRAGMA\nld.shared.v4.b32 {%r11, %r12, %r13, %r14}, [%r30];\nmov.b32 %r10, %rUSED;\n" + STORE
    )
    for pragma, used, unused in (
        ('.pragma "used_bytes_mask 0xf0f";', (11, 13), (12, 14)),
        ("", (11, 12, 13, 14), ()),
    ):
        for register in used:
            stored, x = run(body.replace("PRAGMA", pragma).replace("USED", str(register)), shared=2048)
            assert np.array_equal(stored.values, x)
        for register in unused:
            with pytest.raises(IllegalProgram, match="undefined"):
                run(body.replace("PRAGMA", pragma).replace("USED", str(register)), shared=2048)


@pytest.mark.parametrize(
    ("pragma", "load"),
    [
        ("used_bytes_mask 0xf07", "ld.shared.v4.b32 {%r11, %r12, %r13, %r14}, [%r4];"),
        ("used_bytes_mask 0x1", "ld.shared.b32 %r11, [%r4];"),
        ("used_bytes_mask 0xf0f", "mov.b32 %r11, %r10;"),
        ("used_bytes_mask 0xf0f", "$here:\nld.shared.v4.b32 {%r11, %r12, %r13, %r14}, [%r4];"),
        ("used_bytes_mask 0xf0f", ""),
        ("used_bytes_mask 0xf0f0f0f0f", "ld.shared.v4.b32 {%r11, %r12, %r13, %r14}, [%r4];"),
    ],
)
def test_other_bytes_that_are_unused_are_refused(pragma: str, load: str):
    with pytest.raises(UnsupportedProgram):
        run(LOAD + f'.pragma "{pragma}";\n{load}\n' + STORE)


def test_a_copy_is_there_once_it_was_waited_for():
    stored, x = run(COPY + "cp.async.wait_group 0;\nld.shared.b32 %r10, [%r4];\n" + STORE)
    assert np.array_equal(stored.values, x)


def test_a_trap_is_illegal_where_it_is_reached():
    stored, x = run(LOAD + "setp.lt.u32 %p1, %r1, 0;\n@%p1 trap;\n" + STORE)
    assert np.array_equal(stored.values, x)
    with pytest.raises(IllegalProgram, match="got a trap"):
        run(LOAD + STORE + "trap;")


def test_warps_that_part_meet_again():
    body = LOAD + "setp.lt.u32 %p1, %r1, 40;\n@%p1 bra $L;\nadd.f32 %r10, %r10, %r10;\n$L:\n" + STORE
    stored, x = run(body)
    twice = FIELD.fields[0].add(x, x)
    assert np.array_equal(stored.values, np.where(np.arange(64) < 40, x, twice))


@pytest.mark.parametrize(("shift", "wavefronts"), [(2, 2), (3, 4), (6, 32), (7, 64), (12, 64)])
def test_bank_conflicts_are_counted(shift: int, wavefronts: int):
    """Two warps that store words 1, 2, 16, 32 and 1024 words apart."""
    text = HEAD.replace("THREADS", "64") + f"shl.b32 %r20, %r1, {shift};\nadd.s32 %r20, %r20, %r2;\n"
    text += "st.shared.b32 [%r20], %r1;\nret;\n}\n"
    launch = Launch(decode(parse(text, "k.ptx")), (1, 1, 1), [], FIELD, 1 << 18)
    launch.run(0)
    assert launch.counts["wavefronts"][1] == wavefronts
    assert launch.counts["ideal_wavefronts"][1] == 2


def test_bytes_under_way_are_counted():
    """Two groups of copies of 64 threads, of four bytes each; one is left by the first wait."""
    body = COPY + COPY.replace("%r4 + 0", "%r6 + 256") + "cp.async.wait_group 1;\ncp.async.wait_group 0;\n"
    text = HEAD.replace("THREADS", "64") + body + LOAD + STORE + "\nret;\n}\n"
    given, made = Buffer("x", 64, "f32", writable=False), Buffer("o", 64, "f32", writable=True)
    given.fill(FIELD.random("x", (64,)))
    launch = Launch(decode(parse(text, "k.ptx")), (1, 1, 1), [given, made], FIELD, 1024)
    launch.run(0)
    found = zip(launch.decoded.opcodes, launch.counts["waits"], launch.counts["in_flight"], strict=True)
    assert [(n, b) for o, n, b in found if o == "cp.async.wait_group"] == [(1, 512), (1, 256)]


DEAD = (
    LOAD
    + "add.s32 %r20, %r3, 4;\nand.b32 %r21, %r1, 31;\nand.b32 %r22, %r20, 0;\nadd.f32 %r23, %r10, %r10;\n"
    + STORE
)


@pytest.mark.parametrize(
    ("old", "new", "differences"),
    [
        ("%r3, 4", "%r3, 8", 64),  # what is read by and with 0 only
        ("%r1, 31", "%r1, 63", 32),  # read by none, different in one warp
        ("%r1, 31", "%r1, 95", 0),  # there is no such bit
        ("add.f32 %r23, %r10, %r10;", "", 64),
    ],
)
def test_what_dead_faults_change_may_be_undefined(old: str, new: str, differences: int):
    launch, mutant = planted(DEAD, DEAD.replace(old, new))
    launch.plant(mutant)
    launch.run(0)
    assert launch.differences == differences


@pytest.mark.parametrize(("old", "new"), [("%r3, 4", "%r3, 8"), ("st.global", "@%p1 st.global")])
def test_what_a_fault_changes_is_undefined(old: str, new: str):
    body = DEAD.replace("and.b32 %r22, %r20, 0", "add.s64 %rd5, %rd5, %rd8").replace(
        "add.f32", "setp.eq.s32 %p1, %r1, 0;\ncvt.u64.u32 %rd8, %r20;\nadd.s64 %rd5, %rd5, %rd8;\nadd.f32"
    )
    body = body.replace("add.s64 %rd5, %rd5, %rd8;\nsetp", "setp")
    launch, mutant = planted(body, body.replace(old, new))
    launch.plant(mutant)
    with pytest.raises(SuperoptError):
        launch.run(0)


def planted(body: str, mutant: str) -> tuple[Launch, Decoded]:
    """A launch of 64 threads, and the mutant to plant in it."""
    head = HEAD.replace("THREADS", "64")
    kernel = decode(parse(head + body + "ret;\n}\n", "k.ptx"))
    given, made = Buffer("x", 64, "f32", writable=False), Buffer("o", 96, "f32", writable=True)
    given.fill(FIELD.random("x", (64,)))
    launch = Launch(kernel, (1, 1, 1), [given, made], FIELD, 1024)
    return launch, decode(parse(head + mutant + "ret;\n}\n", "k.ptx"), kernel.numbers)


SHARED = LOAD + "st.shared.b32 [%r4], %r10;\nBARRIER\nld.shared.b32 %r10, [%r6];\n" + STORE
ILLEGAL = {
    "no barrier": (SHARED.replace("BARRIER", ""), "race: .*read"),
    "a barrier of warps only": (SHARED.replace("BARRIER", "bar.warp.sync -1;"), "race: .*read"),
    "a read before": (
        LOAD + "st.shared.b32 [%r4], 0;\nbar.sync 0;\nld.shared.b32 %r11, [%r6];\nst.shared.b32 [%r4], %r10;\n" + STORE,
        "race: .*a write and a read",
    ),
    "two writes": (LOAD + "st.shared.b32 [%r2], %r10;\n", "race: .*a write and a write"),
    "no wait": (COPY + "ld.shared.b32 %r10, [%r4];\n" + STORE, "expected a wait for cp.async"),
    "another group": (
        COPY + "cp.async.wait_group 1;\nld.shared.b32 %r10, [%r4];\n" + STORE, "expected a wait for cp.async",
    ),
    "another thread's copy": (
        COPY + "cp.async.wait_group 0;\nld.shared.b32 %r10, [%r6];\n" + STORE, "race: .*read",
    ),
    "out of bounds": (LOAD + "st.global.b32 [%rd5 + 16], {%r10};\n", "out of bounds"),
    "shared out of bounds": (LOAD + "st.shared.b32 [%r4+900], %r10;\n", "out of bounds"),
    "an input is written": (LOAD + "st.global.b32 [%rd4 + 0], {%r10};\n", "got one to input"),
    "misaligned": ("ld.global.v2.b32 {%r10, %r11}, [%rd4 + 0];\n" + STORE, "multiple of 8"),
    "undefined": (STORE, "undefined"),
    "uninitialised": ("ld.shared.b32 %r10, [%r4];\n" + STORE, "undefined"),
    "an undefined address": ("ld.shared.b32 %r10, [%r39];\n" + STORE, "never written"),
    "one store of several": (LOAD + "st.global.b32 [%rd2 + 0], {%r10};\n", "race: .*a store"),
    "a barrier of some": ("setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $L;\nbar.sync 0;\n$L:\n", "barrier"),
    "half a number": (LOAD + "mov.b32 {%rs1, %rs2}, %r10;\nmov.b32 %r10, {%rs2, %rs1};\n" + STORE, "parts of others"),
}  # fmt: skip


@pytest.mark.parametrize("name", ILLEGAL)
def test_faults_of_memory_and_order_are_found(name: str):
    body, message = ILLEGAL[name]
    with pytest.raises(IllegalProgram, match=message):
        run(body)


@pytest.mark.parametrize(
    "line", ["vote.sync.all.pred %p1, %p2, -1;", "add.rz.f32 %r10, %r10, %r10;", "bar.red.popc.u32 %r11, 0, %p1;", "red.global.inc.u32 [%rd5], %r10;"]
)  # fmt: skip
def test_unknown_opcodes_are_named(line: str):
    with pytest.raises(UnsupportedProgram, match=re.escape(line.split()[0])):
        run(LOAD + line + "\n" + STORE)


@pytest.mark.parametrize(
    "line", ["and.b32 %r10, %r10, 7;", "shl.b32 %r10, %r10, 1;", "add.s32 %r10, %r10, 1;"]
)
def test_bits_of_numbers_are_not_computed_with(line: str):
    with pytest.raises(UnsupportedProgram, match="bits"):
        run(LOAD + line + "\n" + STORE)


# What no assembler takes, and what the core has no room for: nothing that is read may end the process.
MALFORMED = {
    "eight words": "ld.shared.v8.b64 {%rd1, %rd2, %rd3, %rd4, %rd5, %rd6, %rd7, %rd8}, [%r2];",
    "four of 128 bits": "ld.shared.v4.b128 {%r10, %r11, %r12, %r13}, [%r2];",
    "128 bits": "mov.b128 {%rd6, %rd7}, %rd4;",
    "no width": "add.u0 %r1, %r1, 1;",
    "another width": "add.u999 %r1, %r1, 1;",
    "a copy of nothing": "cp.async.ca.shared.global [%r4], [%rd4], 0;",
    "a copy of 32 bytes": "cp.async.ca.shared.global [%r4], [%rd4], 32;",
    "a copy of fewer": "cp.async.ca.shared.global [%r4], [%rd4], -4;",
    "groups in a register": "cp.async.wait_group %r1;",
    "bulk groups in a register": "cp.async.bulk.wait_group %r1;",
    "an mbarrier of nobody": "mbarrier.init.shared::cta.b64 [%r2];",
    "three halves": "mov.b32 %r11, {%rs1, %rs2, %rs3};",
    "twelve columns": "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%r20, %r21, %r22, %r23, %r24, %r25}, "
    "%rd1, %rd2, 0, 1, 1, 0, 0;",
    "far away": "ld.global.b32 {%r10}, [%rd4 + 99999999999999999999999];",
    "another parameter": "ld.param.b64 %rd1, [k_param_0+8];",
    "a parameter as memory": "ld.global.b32 {%r10}, [k_param_0];",
    "no opcode": "foo::bar %r1;",
    "no count": ".reg .b32 %q<abc>;",
    "no label": "bra;",
    "no operand": "mov.b32 %r10;",
    "a wide sum": "add.wide.s32 %rd1, %r1, %r1;",
    "no number of matrices": "ldmatrix.sync.aligned.m8n8.shared.b16 {%r10}, [%r2];",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_text_is_unknown(name: str):
    with pytest.raises(UnsupportedProgram, match="line 26"):
        run(MALFORMED[name] + "\n" + LOAD + STORE)


def test_the_read_only_cache_is_for_what_is_only_read():
    stored, x = run(LOAD.replace("global", "global.nc") + STORE)
    assert np.array_equal(stored.values, x)
    with pytest.raises(UnsupportedProgram, match="read-only"):
        run(LOAD + STORE + "ld.global.nc.b32 {%r10}, [%rd5];\n" + STORE)


def test_more_bytes_than_shared_memory_has_are_not_copied():
    alone = "setp.eq.s32 %p1, %r1, 0;\n@!%p1 bra $L;\n"
    init = "mbarrier.init.shared::cta.b64 [%r2], 1;\nmbarrier.arrive.expect_tx.shared.b64 _, [%r2], 16;\n"
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+16], [%rd1], -16, [%r2];\n"
    with pytest.raises(IllegalProgram, match="a bulk copy of 4294967280 bytes of 1024"):
        run(alone + init + copy + "$L:\n")


def test_other_text_is_refused():
    with pytest.raises(BadInput, match="expected PTX"):
        parse("func.func @f() {}", "k.ptx")
    with pytest.raises(BadInput, match="states its threads"):
        run("", threads=99999968)
    with pytest.raises(UnsupportedProgram, match="whole warps, got 40"):
        run("", threads=40)


# --- compiled kernels -----------------------------------------------------------------------------------------

TARGETS = ("sm_80", "sm_90", "sm_100")


@pytest.fixture(scope="module")
def matmul() -> tuple[KernelGraph, EmittedProgram, list[Compiled]]:
    """A product for all targets: mma.sync, wgmma and tcgen05."""
    a, b = Value(TensorType((2048, 128), "f16"), "a"), Value(TensorType((128, 2048), "f16"), "b")
    c = Value(TensorType((2048, 2048), "f16"), "c")
    lowered = lower(KernelGraph("matmul", [a, b], [Node("matmul", (a, b), (c,))], [c]))
    for node in lowered.nodes:
        node.body = replace(node.body, num_warps=4, num_stages=1)  # pyright: ignore
    emitted = emit_program(lowered)
    return lowered, emitted, compile_all(emitted.kernels, TARGETS)


def verified(
    made: tuple[KernelGraph, EmittedProgram, list[Compiled]], index: int, old: str = "", new: str = ""
) -> None:
    lowered, emitted, compiled = made
    (kernel,) = kernel_texts(emitted, [compiled[index]])
    changed = compiled[index].ptx.replace(old, new) if old else compiled[index].ptx
    text = PtxText(changed, compiled[index].shared_bytes)
    record = verify_ptx(lowered, [kernel], [text])
    if not record.verified:
        raise UnsupportedProgram(record.kernels[0].unverified)


@pytest.mark.parametrize("index", range(3), ids=TARGETS)
def test_what_triton_makes_is_verified(
    matmul: tuple[KernelGraph, EmittedProgram, list[Compiled]], index: int
):
    verified(matmul, index)


FAULTS = [
    *((i, "bar.sync", "// bar.sync") for i in range(3)),
    *((i, "ld.global.v4.b32", "ld.global.v2.b32") for i in range(3)),
    *((i, "shl.b32", "shr.u32") for i in range(3)),
    *((i, "and.b32", "or.b32") for i in range(3)),
    (0, "mma.sync", "// mma.sync"),
    (1, "wgmma.wait_group", "// wgmma.wait_group"),
    (1, "wgmma.fence", "// wgmma.fence"),
    (1, "fence.proxy.async", "// fence.proxy.async"),
    (2, "fence.proxy.async", "// fence.proxy.async"),
    (2, "tcgen05.wait::ld", "// tcgen05.wait::ld"),
    (2, "@!complete bra.uni", "// bra.uni"),
]


@pytest.mark.parametrize(("index", "old", "new"), FAULTS)
def test_faults_in_compiled_kernels_are_found(
    matmul: tuple[KernelGraph, EmittedProgram, list[Compiled]], index: int, old: str, new: str
):
    if old not in matmul[2][index].ptx:
        pytest.skip(f"the kernel lacks {old}")
    with pytest.raises(SuperoptError) as caught:
        verified(matmul, index, old, new)
    assert isinstance(caught.value, (IllegalProgram, NotEquivalent, UnsupportedProgram))


@pytest.mark.parametrize(
    ("index", "opcode"),
    [(1, "wgmma.wait_group"), (1, "wgmma.commit_group"), (1, "wgmma.fence"), (2, "tcgen05.wait::ld")],
)
def test_what_a_warp_waits_for_the_others_do_not_have(
    matmul: tuple[KernelGraph, EmittedProgram, list[Compiled]], index: int, opcode: str
):
    """The other three warps go on without it, and wait before tensor memory is freed."""
    ptx = matmul[2][index].ptx
    first = "{ .reg .pred %one; .reg .b32 %me; mov.u32 %me, %tid.x; setp.lt.u32 %one, %me, 32; @%one "
    line = re.search(rf"{opcode}[^;]*;", ptx)
    assert line is not None
    late = re.sub(r"(bar\.sync[^;]*;[^;]*tcgen05\.dealloc)", rf"{line[0]}\n\1", ptx)
    with pytest.raises(IllegalProgram):
        verified(matmul, index, ptx, late.replace(line[0], f"{first}{line[0]} }}", 1))


def test_a_store_of_another_warp_is_before_tensor_memory_is_freed(
    matmul: tuple[KernelGraph, EmittedProgram, list[Compiled]],
):
    """Else it may come after that, and change what another block has allocated since."""
    ptx = matmul[2][2].ptx
    stored = re.findall(r"tcgen05\.st\.[^;]*;", ptx)[0] + "\ntcgen05.wait::st.sync.aligned;\n"
    (free,) = re.findall(r"[^\n]*tcgen05\.dealloc[^;]*;", ptx)
    verified(matmul, 2, free, f"{stored}bar.sync 0;\n{free}")
    with pytest.raises(IllegalProgram, match="expected a wait before tensor memory is freed"):
        verified(matmul, 2, free, stored + free)


def test_whom_elect_sync_elects_is_named_only_where_it_matters(
    matmul: tuple[KernelGraph, EmittedProgram, list[Compiled]],
):
    """Who issues products may be any thread of its warp; copies of boxes race with any but the first (`test_ptx_bulk`)."""
    lowered, emitted, compiled = matmul
    (kernel,) = kernel_texts(emitted, compiled[2:])

    def ordering(ptx: str) -> list[str]:
        (record,) = verify_ptx(lowered, [kernel], [PtxText(ptx, compiled[2].shared_bytes)]).kernels
        assert not record.unverified
        return record.ordering

    ptx = compiled[2].ptx
    assert "elect.sync" in ptx
    assert {"tcgen05", "mbarrier"} <= set(ordering(ptx))
    assert "elect.sync" not in ordering(ptx)


def test_what_is_stored_is_the_same_whomever_elect_sync_elects(
    matmul: tuple[KernelGraph, EmittedProgram, list[Compiled]],
):
    ptx = matmul[2][2].ptx
    declared = ptx.replace(".reg .pred", ".reg .b32 %who;\n.reg .pred %any;\n.reg .pred", 1)
    doubled = "elect.sync %who|%any, -1;\nsetp.ne.s32 %any, %who, 0;\n@%any add.f32 "
    changed = re.sub(
        r"(cvt\.rn\.f16x2\.f32\s+%r\d+, (%r\d+))", doubled + r"\2, \2, \2;\n\1", declared, count=1
    )
    with pytest.raises(NotEquivalent, match="another value"):
        verified(matmul, 2, ptx, changed)


@pytest.mark.parametrize("lane", [0, 5, 31])
def test_another_thread_is_elected(lane: int):
    body = "mov.b32 %r10, 0f00000000;\nelect.sync %r20|%p1, -1;\n@%p1 st.global.b32 [%rd5 + 0], {%r10};\nret;\n}\n"
    text = HEAD.replace("THREADS", "64") + body
    buffers = [Buffer("x", 64, "f32", writable=False), Buffer("o", 64, "f32", writable=True)]
    decoded = decode(parse(text, "k.ptx"))
    launch = Launch(decoded.electing(lane) if lane else decoded, (1, 1, 1), buffers, FIELD, 1024)
    assert launch.run(0)[1].places.tolist() == [lane, 32 + lane]


@pytest.mark.parametrize("grid", [(2, 2, 32), (7, 1, 3), (5, 1, 1), (1, 1, 1)])
def test_the_blocks_tell_their_numbers_apart(grid: tuple[int, int, int]):
    """Some block has each number at its end and the others at 0: an offset by another one's is seen."""
    x, y, _ = grid
    found = {(b % x, b // x % y, b // (x * y)) for b in blocks_of(KernelText("k", "", grid, ()), 0)}
    ends = [n - 1 for n in grid]
    assert {(0, 0, 0), tuple(ends)} <= found
    assert {tuple(ends[i] if i == d else 0 for i in range(3)) for d in range(3)} <= found


def test_a_pipelined_product_has_its_fence_or_is_refused():
    """Triton 3.6 leaves it out between `cp.async` and wgmma, later ones do not: another launch is delivered."""
    a, b, o = (Value(TensorType((512, 512), "f16"), name) for name in "abo")
    lowered = lower(KernelGraph("product", [a, b], [Node("matmul", (a, b), (o,))], [o]), "sm_90")
    (node,) = lowered.nodes
    assert isinstance(node.body, TileProgram)
    staged = replace(lowered, nodes=[replace(node, body=replace(node.body, num_warps=4, num_stages=3))])
    emitted = emit_program(staged)
    compiled = compile_all(emitted.kernels, ("sm_90",))
    (kernel,), (made,) = emitted.kernels, compiled
    assert {"wgmma", "cp.async"} <= set(re.findall(r"wgmma|cp\.async", made.ptx))
    lacks = version("triton").startswith("3.6.")
    text = PtxText(made.ptx, made.shared_bytes)
    assert ("fence.proxy.async" in order_fault(text, kernel.grid, kernel.memory)) == lacks
    if lacks:
        with pytest.raises(IllegalProgram, match=r"fence\.proxy\.async"):
            verify_ptx(staged, kernel_texts(emitted, compiled), [text])
    mended = ordered(Scheduled(staged, emitted, tuple(compiled)), Compiler(target("sm_90")))
    assert ("fence.proxy.async" in mended.reason) == lacks
    texts = [PtxText(c.ptx, c.shared_bytes) for c in mended.compiled]
    assert verify_ptx(mended.lowered, kernel_texts(mended.emitted, mended.compiled), texts).verified


def test_order_alone(matmul: tuple[KernelGraph, EmittedProgram, list[Compiled]]):
    kernel, made = matmul[1].kernels[0], matmul[2][1]
    given = kernel.memory
    assert order_fault(PtxText(made.ptx, made.shared_bytes), kernel.grid, given) == ""
    without = made.ptx.replace("fence.proxy.async.shared::cta;", "")
    if without != made.ptx:
        assert "fence.proxy.async" in order_fault(PtxText(without, made.shared_bytes), kernel.grid, given)
    inputs = [(name, elements, dtype, False) for name, elements, dtype, _ in given]
    assert "to input" in order_fault(PtxText(made.ptx, made.shared_bytes), kernel.grid, inputs)


@pytest.mark.parametrize("threads", ["all", "one"])
def test_a_maximum_leaves_nothing_out(threads: str):
    """A random order would pick another number in most rows."""
    x, o = Value(TensorType((4, 512), "f32"), "x"), Value(TensorType((4,), "f32"), "o")
    lowered = lower(
        KernelGraph("largest", [x], [Node("reduce_max", (x,), (o,), {"dims": (1,), "keepdims": False})], [o])
    )
    emitted = emit_program(lowered)
    made = lowered, emitted, compile_all(emitted.kernels, ["sm_90"])
    verified(made, 0)
    line = re.search(r"max\.f32\s+(%r\d+), (%r\d+), (%r\d+);", made[2][0].ptx)
    assert line is not None
    for kept in line[2], line[3]:
        other = f"mov.b32 {line[1]}, {kept};"
        if threads == "one":
            other = "{ .reg .pred %out; .reg .b32 %me; mov.u32 %me, %tid.x; setp.eq.u32 %out, %me, 5; " + (
                f"{line[0]} @%out {other} }}"
            )
        with pytest.raises(NotEquivalent, match="another value"):
            verified(made, 0, line[0], other)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_two_comparisons_in_one_instruction(dtype: str):
    """`setp.gt.f16x2`, and constants of 16 bits that it selects."""
    x, o = (Value(TensorType((32, 64), dtype), n) for n in "xo")
    lowered = lower(KernelGraph("step", [x], [Node("step", (x,), (o,))], [o]))
    emitted = emit_program(lowered)
    made = lowered, emitted, compile_all(emitted.kernels, ["sm_90"])
    verified(made, 0)
    (both, *_) = re.findall(r"%p\d+\|%p\d+", made[2][0].ptx)
    with pytest.raises(NotEquivalent):
        verified(made, 0, f"{both},", f"{'|'.join(reversed(both.split('|')))},")


DOUBLED = "add.f32 %r10, %r10, %r10;"


@pytest.mark.parametrize(
    "text",
    [
        f".loc 1 2 3 /*\n{DOUBLED}\n// */",
        f'.pragma "nounroll" /*\n{DOUBLED}\n// */ ;',
        f".loc 1 2 3 {DOUBLED}",
        f'.pragma "nounroll" {DOUBLED}',
        f"// here\r{DOUBLED}",
        "{ .reg .b32 %r10;\nmov.b32 %r10, 0f00000000; }",
        f"bra $in;\n{{ $in: bra $out; }}\n$in: {DOUBLED}\n$out:",
        "st.shared.b16 [%r4], -1;\nld.shared.s16 %r11, [%r4];",
        "setp.eq.b32 %p1, %r1, %r1;\ncp.async.ca.shared.global [%r4], [%rd4], 4, %p1;",
    ],
    ids=["loc", "pragma", "location", "unended", "return", "scope", "label", "signed", "left out"],
)
def test_a_text_that_ptxas_reads_otherwise_is_refused(text: str):
    with pytest.raises(UnsupportedProgram):
        run(LOAD + text + "\n" + STORE)


def test_a_pragma_hides_nothing():
    stored, x = run(LOAD + f'.pragma "nounroll"; {DOUBLED}\n' + STORE)
    assert np.array_equal(stored.values, FIELD.fields[0].add(x, x))
    with pytest.raises(UnsupportedProgram, match="pragma"):
        run(LOAD + f'.pragma "//"; {DOUBLED}\n' + STORE)


@pytest.mark.parametrize("other", [".entry k2 () { ret; }", ".visible .entry k2 () { ret; }"])
def test_a_second_kernel_is_refused(other: str):
    with pytest.raises(BadInput, match="one kernel"):
        run(LOAD + STORE + "ret;\n}\n" + other + "\n.visible .entry\nk3(){")
    run(LOAD + "// .entry\n" + STORE)


def test_the_ptx_of_another_kernel_is_refused(matmul: tuple[KernelGraph, EmittedProgram, list[Compiled]]):
    name = matmul[2][0].name
    with pytest.raises(NotEquivalent, match=f"expected the PTX of kernel '{name}'"):
        verified(matmul, 0, f".entry {name}(", ".entry other(")


def test_an_arrival_is_no_commit(matmul: tuple[KernelGraph, EmittedProgram, list[Compiled]]) -> None:
    """A phase that ends waits for the products that tcgen05.commit names, and for no others."""
    ptx = matmul[2][2].ptx
    commit = re.search(r"tcgen05\.commit[^\[]*(\[[^\]]*\]);", ptx)
    assert commit
    with pytest.raises(IllegalProgram, match="race"):
        verified(matmul, 2, commit[0], f"mbarrier.arrive.expect_tx.shared::cta.b64 _, {commit[1]}, 0;")


def test_constants_that_a_loop_joins_are_folded():
    """As the TTIR's are: no order is drawn for numbers that are known."""
    for op, wanted in (("max", 0), ("min", -2)):
        body = LOAD + f"mov.b32 %r30, 0fC0000000;\nmov.b32 %r31, 0f00000000;\n{op}.f32 %r10, %r30, %r31;\n"
        stored, _ = run(body + STORE)
        assert (stored.values == wanted % FIELD.fields[0].modulus).all()
