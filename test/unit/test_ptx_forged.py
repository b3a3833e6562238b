"""PTX made to be read otherwise than it runs: what depends on where memory lies, on bits that no register has, on
directives and on what the hardware chooses is refused, whatever the block stores here."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_texts import FIELD, HEAD, LOAD, STORE, launched, run

from superopt.errors import BadInput, IllegalProgram, SuperoptError, UnsupportedProgram
from superopt.verify.ptx.decode import decode
from superopt.verify.ptx.launch import Launch, Stored
from superopt.verify.ptx.parser import parse
from superopt.verify.ttir.memory import Buffer

# Stores what it should where %p1 holds, twice as much elsewhere.
GUARDED = "@!%p1 add.f32 %r10, %r10, %r10;\n" + STORE
ADDRESSES = {
    "a bit": "shr.u64 %rd6, %rd1, 40;\nsetp.eq.s64 %p1, %rd6, 1;",
    "some bits": "and.b64 %rd6, %rd1, 65535;\nsetp.eq.s64 %p1, %rd6, 0;",
    "a word": "cvt.u32.u64 %r20, %rd1;\nsetp.eq.s32 %p1, %r20, 0;",
    "words": "mov.b64 {%r20, %r21}, %rd1;\nsetp.eq.s32 %p1, %r20, 0;",
    "a difference": "sub.s64 %rd6, %rd2, %rd1;\nsetp.gt.s64 %p1, %rd6, 0;",
    "an order": "setp.lt.u64 %p1, %rd1, %rd2;",
    "null": "setp.ne.s64 %p1, %rd1, 0;",
    "a product": "mul.lo.s64 %rd6, %rd1, 0;\nsetp.eq.s64 %p1, %rd6, 0;",
    "a sum": "add.s64 %rd6, %rd1, %rd2;\nsub.s64 %rd6, %rd6, %rd1;\nsub.s64 %rd6, %rd6, %rd2;\nsetp.eq.s64 %p1, %rd6, 0;",
    "the other buffer": "mov.b64 %rd6, 1099511627776;\nadd.s64 %rd5, %rd4, %rd6;\nsetp.eq.s32 %p1, %r1, %r1;",
    "a word in memory": "st.shared.b64 [%r2], %rd1;\nld.shared.b32 %r20, [%r2];\nsetp.eq.s32 %p1, %r20, 0;",
    "a constant": "mov.b64 %rd5, 2199023255552;\nadd.s64 %rd5, %rd5, %rd3;\nsetp.eq.s32 %p1, %r1, %r1;",
    "shared memory": "setp.eq.s32 %p1, %r2, 1024;",
    "an order in shared memory": "setp.lt.u32 %p1, %r2, %r6;",
    "null in shared memory": "setp.ne.s32 %p1, %r2, 0;",
    "bits of shared memory": "and.b32 %r20, %r2, 1024;\nsetp.eq.s32 %p1, %r20, 1024;",
    "higher bits": "and.b32 %r20, %r2, 2048;\nsetp.eq.s32 %p1, %r20, 0;",
    "bits that carry": "add.s32 %r20, %r2, 1048576;\nand.b32 %r20, %r20, 1056768;\nsetp.eq.s32 %p1, %r20, 1048576;",
    "all bits but some": "and.b32 %r20, %r2, -2049;\nsub.s32 %r20, %r2, %r20;\nsetp.eq.s32 %p1, %r20, 0;",
    "bits that are set": "or.b32 %r20, %r2, 2048;\nsub.s32 %r20, %r20, %r2;\nsetp.ne.s32 %p1, %r20, 0;",
    "kilobytes": "shr.u32 %r20, %r2, 10;\nand.b32 %r20, %r20, 2;\nsetp.eq.s32 %p1, %r20, 0;",
    "kilobytes by two": "shr.u32 %r20, %r2, 11;\nsetp.eq.s32 %p1, %r20, 0;",
    "half a kilobyte": "shr.u32 %r20, %r2, 9;\nmad.lo.s32 %r20, %r20, -512, %r2;\nsetp.eq.s32 %p1, %r20, 0;",
    "what wraps around": "add.s32 %r20, %r2, -2048;\nshr.u32 %r20, %r20, 4;\nbfe.u32 %r21, %r2, 4, 14;\nsub.s32 %r20, %r21, %r20;\nsetp.eq.s32 %p1, %r20, 128;",
    "what wraps around in a wider word": "add.s32 %r20, %r2, -2048;\ncvt.u64.u32 %rd6, %r20;\ncvt.u64.u32 %rd7, %r2;\nsub.s64 %rd6, %rd7, %rd6;\nsetp.eq.s64 %p1, %rd6, 2048;",
    "a sign": "add.s32 %r20, %r2, 2147481600;\ncvt.s64.s32 %rd6, %r20;\ncvt.u64.u32 %rd7, %r20;\nsub.s64 %rd6, %rd7, %rd6;\nsetp.eq.s64 %p1, %rd6, 0;",
    "a field too narrow": "bfe.u32 %r20, %r2, 4, 10;\nbfe.u32 %r21, %r2, 4, 14;\nsub.s32 %r20, %r21, %r20;\nsetp.eq.s32 %p1, %r20, 0;",
    "a product that moves": "mad.lo.s32 %r20, %r2, 2, %r2;\nsub.s32 %r20, %r20, %r2;\nsetp.eq.s32 %p1, %r20, 0;",
    "a multiple": "mul.lo.s32 %r20, %r2, 3;\nand.b32 %r20, %r20, 4096;\nsetp.eq.s32 %p1, %r20, 0;",
    "a sum of places": "add.s32 %r20, %r2, %r2;\nand.b32 %r20, %r20, 4096;\nsetp.eq.s32 %p1, %r20, 0;",
    "a remainder": "rem.u32 %r20, %r2, 3;\nsetp.eq.s32 %p1, %r20, 1;",
    "a maximum": "max.u32 %r20, %r2, 4096;\nsub.s32 %r20, %r20, 4096;\nsetp.eq.s32 %p1, %r20, 0;",
    "bits that differ": "xor.b32 %r20, %r2, 1024;\nsetp.lt.u32 %p1, %r20, 1024;",
    "a place in memory": "st.shared.b32 [%r4], %r2;\nld.shared.b32 %r20, [%r4];\nsetp.eq.s32 %p1, %r20, 1024;",
    "a place by halves": "mov.b32 {%rs1, %rs2}, %r2;\nsetp.eq.s16 %p1, %rs1, 1024;",
    "bytes of a place": "prmt.b32 %r20, %r2, 0, 0x4441;\nsetp.eq.s32 %p1, %r20, 4;",
    "a place from another thread": "shfl.sync.idx.b32 %r20, %r2, 0, 31, -1;\nsetp.eq.s32 %p1, %r20, 1024;",
    "a place as a number": "cvt.rn.f32.u32 %r10, %r2;\nsetp.eq.s32 %p1, %r1, %r1;",
    "an address in shared memory": "st.shared.b32 [1024], %r10;\nsetp.eq.s32 %p1, %r1, %r1;",
    "an offset in shared memory": "st.shared.b32 [%r3+1024], %r10;\nsetp.eq.s32 %p1, %r1, %r1;",
    "a double place": "add.s32 %r20, %r4, %r2;\nst.shared.b32 [%r20], %r10;\nsetp.eq.s32 %p1, %r1, %r1;",
    "the size of a copy": "shr.u32 %r20, %r2, 8;\ncp.async.ca.shared.global [%r4], [%rd4], 4, %r20;\nsetp.eq.s32 %p1, %r1, %r1;",
    "a barrier": "shr.u32 %r20, %r2, 10;\nbar.sync %r20, 64;\nsetp.eq.s32 %p1, %r1, %r1;",
}  # fmt: skip


@pytest.mark.parametrize("name", ADDRESSES)
def test_nothing_depends_on_where_memory_lies(name: str):
    with pytest.raises((UnsupportedProgram, IllegalProgram)):
        run(LOAD + ADDRESSES[name] + "\n" + GUARDED)


# How far a place is from the start of shared memory, or the field of a descriptor from that of the start.
PLACES = {
    "a difference": ("sub.s32 %r20, %r4, %r2;", 4),
    "a field": ("bfe.u32 %r20, %r4, 4, 14;\nbfe.u32 %r21, %r2, 4, 14;\nsub.s32 %r20, %r20, %r21;", 0.25),
    "a shift": ("shr.u32 %r20, %r4, 4;\nand.b32 %r20, %r20, 16383;\nshr.u32 %r21, %r2, 4;\nsub.s32 %r20, %r20, %r21;", 0.25),
    "a descriptor": (
        "bfe.u32 %r20, %r4, 4, 14;\ncvt.u64.u32 %rd6, %r20;\nor.b64 %rd6, %rd6, 4611756662049472512;\n"
        "add.s64 %rd6, %rd6, -4611756662049472512;\ncvt.u32.u64 %r20, %rd6;\nshr.u32 %r21, %r2, 4;\nsub.s32 %r20, %r20, %r21;",
        0.25,
    ),
    "a choice": ("setp.eq.s32 %p1, %r1, %r1;\nselp.b32 %r20, %r4, %r2, %p1;\nsub.s32 %r20, %r20, %r2;", 4),
    "a product": ("mad.lo.s32 %r20, %r1, 12, %r2;\nsub.s32 %r20, %r20, %r2;", 12),
    "below the start": ("add.s32 %r20, %r2, -64;\nadd.s32 %r20, %r20, %r3;\nsub.s32 %r20, %r20, %r2;\nadd.s32 %r20, %r20, 64;", 4),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_places_in_shared_memory_are_followed(name: str):
    body, step = PLACES[name]
    stored, _ = run(body + "\ncvt.rn.f32.s32 %r10, %r20;\n" + STORE)
    assert list(stored.values) == [int(step * t) for t in range(64)]


def test_a_descriptor_is_a_place():
    """Whatever its number is: where shared memory starts differs."""
    head = "mov.b32 %r10, 0;\nmov.b32 %r11, 0;\nmov.b32 %r12, 0;\nmov.b32 %r13, 0;\n"
    body = "wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
    body = head + body + "{%r10, %r11, %r12, %r13}, %rd6, %rd6, 1, 1, 1, 0, 0;\n"
    for made in (
        "mov.b64 %rd6, 64;",
        "cvt.u64.u32 %rd6, %r2;",
        "shr.u32 %r20, %r2, 5;\ncvt.u64.u32 %rd6, %r20;",
        "bfe.u32 %r20, %r2, 4, 14;\nadd.s32 %r20, %r20, 12288;\ncvt.u64.u32 %rd6, %r20;",
    ):
        with pytest.raises((UnsupportedProgram, IllegalProgram), match="matrix descriptor"):
            run(made + "\n" + body, 128)


MOVED = {
    "a sum": "add.s64 %rd6, %rd3, %rd1;\nld.global.b32 {%r10}, [%rd6];",
    "a difference": "add.s64 %rd6, %rd4, 4096;\nsub.s64 %rd6, %rd6, 4096;\nld.global.b32 {%r10}, [%rd6];",
    "an offset": "add.s64 %rd6, %rd4, 4096;\nld.global.b32 {%r10}, [%rd6+-4096];",
    "a product": "mad.wide.u32 %rd6, %r1, 4, %rd1;\nld.global.b32 {%r10}, [%rd6];",
    "a choice": "setp.eq.s32 %p1, %r1, %r1;\nselp.b64 %rd6, %rd4, %rd5, %p1;\nld.global.b32 {%r10}, [%rd6];",
    "a cast": "cvta.to.global.u64 %rd6, %rd4;\nld.global.b32 {%r10}, [%rd6];",
}


@pytest.mark.parametrize("name", MOVED)
def test_addresses_that_move_are_followed(name: str):
    stored, x = run(MOVED[name] + "\n" + STORE)
    assert np.array_equal(stored.values, x)


def test_memory_is_aligned_no_further_than_the_launcher_promises():
    with pytest.raises(IllegalProgram, match="in memory at multiples of 16"):
        run("ld.global.v8.b32 {%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}, [%rd1];\n" + STORE)


# What each computes is the load's number over the fields before it was refused, and is not on a GPU.
BITS = {
    "a NaN is a number": "setp.num.f32 %p1, %r39, %r39;",
    "a NaN is none": "setp.nan.f32 %p2, %r39, %r39;\nnot.pred %p1, %p2;",
    "a byte of a number": "cvt.u8.u32 %rs1, %r10;\nsetp.eq.s16 %p1, %rs1, 0;",
    "a sign that a load extends": "st.shared.b32 [%r4], -1;\nld.shared.s32 %rd6, [%r4];\nsetp.gt.s64 %p1, %rd6, 0;",
}


@pytest.mark.parametrize("name", BITS)
def test_bits_that_are_not_there_decide_nothing(name: str):
    with pytest.raises((UnsupportedProgram, IllegalProgram)):
        run(LOAD + BITS[name] + "\n" + GUARDED)


@pytest.mark.parametrize(("bits", "value"), [(8, 200), (16, 40000)])
def test_a_sign_fills_a_register(bits: int, value: int):
    """What is cut is filled by its sign (PTX ISA, "Operand Size Exceeding Instruction-Type Size")."""
    body = f"mov.b32 %r20, {value};\ncvt.s{bits}.s32 %r21, %r20;\nsetp.eq.s32 %p1, %r21, {value - (1 << bits)};\n"
    stored, x = run(LOAD + body + GUARDED)
    assert np.array_equal(stored.values, x)


@pytest.mark.parametrize(
    ("kind", "register", "most"), [("f32", "%r21", 1 << 24), ("f16", "%rs1", 2048), ("bf16", "%rs1", 256)]
)
def test_integers_are_those_that_a_type_holds(kind: str, register: str, most: int):
    body = "mov.b32 %r20, VALUE;\ncvt.rn.KIND.s32 REGISTER, %r20;\n" + LOAD + STORE
    body = body.replace("KIND", kind).replace("REGISTER", register)
    run(body.replace("VALUE", str(-most)))
    with pytest.raises(UnsupportedProgram, match="an integer"):
        run(body.replace("VALUE", str(most + 1)))


def test_a_number_is_one():
    stored, x = run(LOAD + "setp.num.f32 %p1, %r10, %r10;\n" + GUARDED)
    assert np.array_equal(stored.values, x)


# Threads that store the same, one of which stores something else next: another one's store may come after.
EQUAL = LOAD + "setp.eq.s32 %p2, %r1, LAST;\nand.b32 %r20, %r1, 31;\nsetp.le.u32 %p1, %r20, 1;\n"
AGAIN = {
    "shared": "@%p1 st.shared.b32 [%r2], 0;\nORDER\n@%p2 st.shared.b32 [%r2], %r10;\nbar.sync 0;\n"
    "ld.shared.b32 %r10, [%r2];\n" + STORE,
    "global": "@%p1 st.global.b32 [%rd2], 0;\nORDER\n@%p2 st.global.b32 [%rd2], %r10;\n",
}


@pytest.mark.parametrize(
    ("threads", "order", "legal"),
    [
        (64, "", False),
        (64, "bar.warp.sync -1;", False),
        (64, "bar.sync 0;", True),
        (32, "", False),
        (32, "bar.warp.sync -1;", True),
    ],
)
@pytest.mark.parametrize("name", AGAIN)
def test_equal_stores_are_all_ordered(name: str, threads: int, order: str, legal: bool):
    body = (EQUAL + AGAIN[name]).replace("ORDER", order).replace("LAST", str(threads - 31))
    if legal:
        assert run(body, threads)[0].places.size
    else:
        with pytest.raises(IllegalProgram, match="race"):
            run(body, threads)


@pytest.mark.parametrize(("threads", "legal"), [(32, True), (48, False), (33, False)])
def test_a_warp_stays_together_where_the_text_says_so(threads: int, legal: bool):
    body = (
        LOAD + f"setp.lt.u32 %p1, %r1, {threads};\n@%p1 bra.uni $L;\nadd.f32 %r10, %r10, %r10;\n$L:\n" + STORE
    )
    if legal:
        run(body)
    else:
        with pytest.raises(IllegalProgram, match=r"bra\.uni"):
            run(body)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".reqntid THREADS", ".reqntid THREADS\n.reqnctapercluster 2"),
        (".reqntid THREADS", ".reqntid THREADS\n.explicitcluster"),
        (".reqntid THREADS", ".reqntid THREADS\n.minnctapersm 2"),
        (".reqntid THREADS", ".reqntid THREADS\n.maxntid 32"),
        (".reqntid THREADS", ".reqntid THREADS, 2"),
        (".reqntid THREADS", ".reqntid THREADS, 1, 2"),
        (".param .u64 .ptr .global .align 1 k_param_0", ".param .u32 k_param_0"),
        (".param .u64 .ptr .global .align 1 k_param_0", ".param .u64 .ptr .global .align 256 k_param_0"),
        (".param .u64 .ptr .global .align 1 k_param_0", ".param .u64 .ptr .shared .align 1 k_param_0"),
        (".param .u64 .ptr .global .align 1 k_param_0", ".param .align 64 .b8 k_param_0[128]"),
        (".address_size 64", ".address_size 32"),
        (".target sm_90a", ".target sm_90a, map_f64_to_f32"),
        (".align 16 .b8 global_smem[];", ".align 1 .b8 global_smem[];"),
        (".visible", ".shared .align 16 .b8 more[1024];\n.visible"),
        (".visible", ".func f () { ret; }\n.visible"),
        (".visible", ".alias f, g;\n.visible"),
        (".reg .b64", ".reg .b64 k_param_0;\n.reg .b64"),
        (".reg .b64", ".reg .b32 global_smem;\n.reg .b64"),
        (".reg .b64", '.pragma "used_bytes_mask 1";\n.reg .b64'),
        ("ld.param.b64 %rd1, [k_param_0]", "ld.param.b32 %r1, [k_param_0]"),
        ("ld.param.b64 %rd1, [k_param_0]", "ld.param.u8 %rs1, [k_param_0]"),
    ],
)  # fmt: skip
def test_directives_and_arguments_are_those_that_are_launched(old: str, new: str):
    assert old in HEAD
    launched(LOAD + STORE).run(0)
    with pytest.raises((UnsupportedProgram, IllegalProgram, BadInput)):
        launched(LOAD + STORE, head=HEAD.replace(old, new)).run(0)


@pytest.mark.parametrize("after", [".func f () { ret; }", ".alias f, g;", ".global .b32 x = 1;"])
def test_nothing_follows_a_kernel_but_debug_sections(after: str):
    text = HEAD.replace("THREADS", "64") + LOAD + STORE + "ret;\n}\n"
    parse(
        text + '\t.file 1 "k.py"\n.section .debug_info\n{\n.b32 33\n.b8 0\n}\n.section .debug_loc {\t}\n',
        "k.ptx",
    )
    with pytest.raises(UnsupportedProgram, match="after its kernel"):
        parse(text + after, "k.ptx")


def test_what_a_kernel_stores_is_not_copied_meanwhile():
    """The copy may come before or after the second store."""
    both = LOAD + STORE + "cp.async.ca.shared.global [%r4], [%rd5], 4;\ncp.async.commit_group;\n"
    with pytest.raises(UnsupportedProgram, match="asynchronous copy"):
        run(both + "st.global.b32 [%rd5], 0;\ncp.async.wait_group 0;\nld.shared.b32 %r10, [%r4];\n" + STORE)


def test_an_extent_is_a_word():
    """The launcher gives pointers as 64 bits and extents as 32."""
    head = HEAD.replace(".align 1 k_param_1\n", ".align 1 k_param_1,\n  .param .u32 k_param_2\n")
    text = head.replace("THREADS", "64") + "ld.param.b32 %r20, [k_param_2];\n" + LOAD + STORE + "ret;\n}\n"
    assert stored_with_extent(text).values.size == 64
    for old, new in (
        (".u32 k_param_2", ".u64 k_param_2"),
        ("b32 %r20, [k_param_2]", "u16 %rs1, [k_param_2]"),
    ):
        with pytest.raises(SuperoptError):
            stored_with_extent(text.replace(old, new))


def stored_with_extent(text: str) -> Stored:
    """What a kernel of one extent stores."""
    given, made = Buffer("x", 64, "f32", writable=False), Buffer("o", 64, "f32", writable=True)
    given.fill(FIELD.random("x", (64,)))
    return Launch(decode(parse(text, "k.ptx")), (1, 1, 1), [given, made], FIELD, 1024, [300]).run(0)[1]


PRODUCT = """
bfe.u32 %r20, %r2, 4, 14;
cvt.u64.u32 %rd6, %r20;
or.b64 %rd6, %rd6, 68719542272;
mov.b32 %r30, 0f00000000;
mov.b32 %r31, 0f00000000;
mov.b32 %r32, 0f00000000;
mov.b32 %r33, 0f00000000;
setp.eq.s32 %p1, %r1, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r2+4096], 1;
fence.proxy.async.shared::cta;
bar.sync 0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r30, %r31, %r32, %r33}, %rd6, %rd6, 1, 1, 1;
wgmma.commit_group.sync.aligned;
"""
WAITED = "wgmma.wait_group.sync.aligned 0;\nbar.sync 0;\n"
SEEN = """
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2+4096], 0;
$W:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2+4096], 0;
@!%p2 bra $W;
bar.sync 0;
"""


@pytest.mark.parametrize(
    ("order", "legal"), [(WAITED, True), ("", False), (SEEN, False), (SEEN + WAITED, True)]
)
def test_an_mbarrier_that_ends_says_nothing_of_wgmma(order: str, *, legal: bool) -> None:
    """An operand is overwritten behind a wait for the product, or for something else."""
    filled = LOAD + "".join(f"st.shared.b32 [%r4+{512 * i}], %r10;\n" for i in range(5))
    rest = "" if WAITED in order else WAITED
    body = f"{filled}{PRODUCT}{order}st.shared.b32 [%r4], 0;\n{rest}{STORE}"
    if legal:
        run(body, 128, 8192)
        return
    with pytest.raises(IllegalProgram, match="race"):
        run(body, 128, 8192)


def product(n: int, registers: str, depth: int = 8) -> str:
    kind = "tf32.tf32" if depth == 8 else "f16.f16"
    flags = "1, 1, 1" + ", 0, 0" * (depth == 16)
    shape = f"m64n{n}k{depth}.f32.{kind}"
    return f"wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, %rd6, %rd6, {flags};\n"


FENCE, COMMIT = "wgmma.fence.sync.aligned;\n", "wgmma.commit_group.sync.aligned;\n"
WAIT = COMMIT + "wgmma.wait_group.sync.aligned 0;\n"
FOUR, OTHERS = "%r30, %r31, %r32, %r33", "%r34, %r35, %r36, %r37"
EIGHT = f"{FOUR}, {OTHERS}"
READ = "mov.b32 %r20, %r31;\n"
# Two products that have a register in common, and whether the ISA orders their accesses to it.
PRODUCTS: dict[str, tuple[str, bool]] = {
    "of one shape": (product(8, FOUR) + product(8, FOUR), True),
    "of fewer columns": (product(16, EIGHT) + product(8, FOUR), False),
    "of more columns": (product(8, FOUR) + product(16, EIGHT), False),
    "of another depth": (product(8, FOUR) + product(8, FOUR, 16), False),
    "of one shape, shifted": (product(8, FOUR) + product(8, "%r32, %r33, %r34, %r35"), False),
    "of one shape, turned": (product(8, FOUR) + product(8, "%r31, %r30, %r33, %r32"), False),
    "of other registers": (product(8, FOUR) + product(8, OTHERS), True),
    "one register twice": (product(8, "%r30, %r31, %r32, %r30"), False),
    "a fence while the first is in flight": (product(16, EIGHT) + FENCE + product(8, FOUR), False),
    "a fence between equal ones": (product(8, FOUR) + COMMIT + FENCE + product(8, FOUR), True),
    "a wait without a fence": (product(16, EIGHT) + WAIT + product(8, FOUR), False),
    "a wait and a fence": (product(16, EIGHT) + WAIT + FENCE + product(8, FOUR), True),
    "a wait between equal ones": (product(8, FOUR) + WAIT + product(8, FOUR), True),
    "a read between equal ones": (product(8, FOUR) + WAIT + READ + product(8, FOUR), False),
    "a read and a fence": (product(8, FOUR) + WAIT + READ + FENCE + product(8, FOUR), True),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_one_register_are_ordered_by_their_shape_or_a_fence(name: str):
    """PTX ISA, "wgmma.fence": only accumulators of products of one shape are ordered by themselves."""
    products, legal = PRODUCTS[name]
    head, _, _ = PRODUCT.partition(FENCE)
    more = "".join(f"mov.b32 %r{r}, 0f00000000;\n" for r in range(34, 38))
    filled = LOAD + "".join(f"st.shared.b32 [%r4+{512 * i}], %r10;\n" for i in range(5))
    if ".f16" in products:
        filled = filled.replace("%r10;", "0;")
    body = filled + more + head + FENCE + products + WAIT + STORE
    if legal:
        run(body, 128, 8192)
        return
    with pytest.raises(IllegalProgram, match=r"expected (wgmma\.fence|a wait for wgmma)"):
        run(body, 128, 8192)


def test_a_fence_of_one_warp_group_says_nothing_of_another() -> None:
    """Writes of the second warp group, behind a product of the first, still need a fence."""
    filled = LOAD + "".join(f"st.shared.b32 [%r4+{1024 * i}], %r10;\n" for i in range(3))
    head, _, _ = PRODUCT.partition(FENCE)
    one = f"setp.lt.u32 %p3, %r1, 128;\n@%p3 bra $ONE;\n{FENCE}mov.b32 %r30, 0f00000000;\nbar.sync 1, 256;\n"
    body = one + product(8, FOUR) + WAIT + "bra.uni $END;\n$ONE:\n" + FENCE + product(8, FOUR) + WAIT
    with pytest.raises(IllegalProgram, match=r"expected wgmma\.fence between a write"):
        run(filled + head + body + "bar.sync 1, 256;\n$END:\n" + STORE, 256, 16384)
