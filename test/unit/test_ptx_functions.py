"""Library functions inlined in PTX: found in compiled kernels, refused where the text differs, right as functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from superopt.errors import NotEquivalent
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.emit.compile import Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.lower import lower
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ptx.functions import fold
from superopt.verify.ptx.parser import parse
from superopt.verify.ttir.artifact import kernel_texts

TARGETS = ("sm_80", "sm_90", "sm_100")
Made = tuple[KernelGraph, EmittedProgram, list[Compiled]]


def elementwise(operator: str) -> KernelGraph:
    x, o = (Value(TensorType((32, 64), "f32"), n) for n in "xo")
    return KernelGraph(operator, [x], [Node(operator, (x,), (o,))], [o])


def product() -> KernelGraph:
    """A product and a gelu of it, in f16."""
    a, b = Value(TensorType((64, 64), "f16"), "a"), Value(TensorType((64, 64), "f16"), "b")
    c, o = (Value(TensorType((64, 64), "f16"), n) for n in "co")
    return KernelGraph("product", [a, b], [Node("matmul", (a, b), (c,)), Node("gelu", (c,), (o,))], [o])


def rotary() -> KernelGraph:
    """x sin(angle) + y cos(angle), of which both functions reduce the same arguments."""
    angle, x, y, s, c, a, b, o = (Value(TensorType((16, 64), "f32"), n) for n in "txyscabo")
    nodes = [Node("sin", (angle,), (s,)), Node("cos", (angle,), (c,))]
    nodes += [Node("mul", (x, s), (a,)), Node("mul", (y, c), (b,)), Node("add", (a, b), (o,))]
    return KernelGraph("rotary", [angle, x, y], nodes, [o])


PROGRAMS: dict[str, Callable[[], KernelGraph]] = {
    "gelu": lambda: elementwise("gelu"),
    "log": lambda: elementwise("log"),
    "sin": lambda: elementwise("sin"),
    "cos": lambda: elementwise("cos"),
    "rotary": rotary,
    "product": product,
}


@pytest.fixture(scope="module", params=PROGRAMS)
def made(request: Any) -> Made:
    lowered = lower(PROGRAMS[request.param]())
    emitted = emit_program(lowered)
    return lowered, emitted, compile_all(emitted.kernels, TARGETS)


def texts(made: Made, index: int) -> list[PtxText]:
    count = len(made[1].kernels)
    return [PtxText(c.ptx, c.shared_bytes) for c in made[2][index * count : (index + 1) * count]]


def unverified(made: Made, index: int, old: str = "", new: str = "") -> list[str]:
    lowered, emitted, compiled = made
    count = len(emitted.kernels)
    kernels = kernel_texts(emitted, compiled[index * count : (index + 1) * count])
    given = [PtxText(t.ptx.replace(old, new) if old else t.ptx, t.shared_bytes) for t in texts(made, index)]
    return [k.unverified for k in verify_ptx(lowered, kernels, given).kernels if k.unverified]


@pytest.mark.parametrize("index", range(3), ids=TARGETS)
def test_they_are_found(made: Made, index: int):
    assert not unverified(made, index)
    folded = [n.opcode for t in texts(made, index) for n in fold(parse(t.ptx, "k.ptx")).lines]
    assert any(o.startswith("@") for o in folded)
    assert not any(o.startswith("setp.") and o.endswith(".f32") for o in folded)


def test_another_coefficient_is_refused(made: Made):
    all_of_them = (
        "0f3E1CF906",
        "0f3DE718AF",
        "0f3F8060FE",
        "0f3E1039F6",
        "0f4B000000",
        "0fB3A22168",
        "0f3D2AAABB",
    )
    present = [c for c in all_of_them if any(c in t.ptx for t in texts(made, 0))]
    assert present
    for coefficient in present:
        assert "expected an instruction" in unverified(made, 0, coefficient, f"{coefficient[:-1]}7")[0]


REDUCTION = [
    ("{65, 144,", "{66, 144,"),  # the table of 2/pi
    ("mad.lo.cc", "mad.lo"),
    ("madc.hi", "mad.hi"),
    ("setp.ne.b64", "setp.eq.b64"),  # one trip
    (", 24;", ", 20;"),  # five
    ("shf.l.wrap", "shf.r.wrap"),
    ("+16]", "+12]"),
    (", 224;", ", 192;"),
    (", -128;", ", -124;"),
    (", 260046848;", ", 260046849;"),
    (", 30;", ", 29;"),
    ("0d3BF921FB54442D19", "0d3BF921FB54442D18"),
    ("0f47CE4780", "0f47CE4781"),
    ("0f7F800000", "0f7F7FFFFF"),
]


@pytest.mark.parametrize("made", ["sin", "cos"], indirect=True)
@pytest.mark.parametrize(("old", "new"), REDUCTION)
def test_another_reduction_is_refused(made: Made, old: str, new: str):
    assert old in texts(made, 0)[0].ptx
    assert "expected" in unverified(made, 0, old, new)[0]


WITHIN = "cvt.rn.f64.s64"
END_OF_KERNEL = "ret;"
MORE = {
    "a barrier within": (WITHIN, "bar.sync 0;"),
    "a store within": (WITHIN, "st.global.b32 [%rd1 + 0], {OPERAND};"),
    "a predicate within": (WITHIN, "@%p1 mov.b32 OPERAND, 0;"),
    "an inner value read after it": (END_OF_KERNEL, "st.global.b32 [%rd1 + 0], {OPERAND};"),
    "a branch into it": (END_OF_KERNEL, "setp.eq.s32 %p1, INDEX, 0;\n@%p1 bra LABEL;"),
}


@pytest.mark.parametrize("made", ["sin", "cos"], indirect=True)
@pytest.mark.parametrize("name", MORE)
def test_a_reduction_that_does_more_is_refused(made: Made, name: str):
    place, line = MORE[name]
    text = texts(made, 0)[0].ptx
    inner = re.search(r"shf\.l\.wrap\.b32\s+(%r\d+)", text)
    loop = re.search(r"(\$L__BB\w+):(?:(?!\$L).)*?mad\.lo\.cc", text, re.DOTALL)
    index = re.search(r"(%r\d+), %tid\.x", text)
    assert inner
    assert loop
    assert index
    line = line.replace("OPERAND", inner[1]).replace("LABEL", loop[1]).replace("INDEX", index[1])
    assert "expected an instruction" in unverified(made, 0, place, f"{line}\n{place}")[0]


@pytest.mark.parametrize("made", ["rotary"], indirect=True)
def test_another_function_of_the_same_argument_is_not_it(made: Made):
    """The polynomials of the other one are chosen: of the sine for the cosine."""
    text = texts(made, 0)[0].ptx
    turned = re.findall(r"add\.s32\s+%r\d+, %r\d+, 1;", text)
    assert turned
    assert "expected" in unverified(made, 0, turned[0], turned[0].replace(", 1;", ", 2;"))[0]


@pytest.mark.parametrize("made", ["gelu"], indirect=True)
def test_a_scale_of_the_argument_is_not_the_functions(made: Made):
    (half,) = set(re.findall(r"0f3F3504F.", texts(made, 0)[0].ptx))  # 1/sqrt(2)
    with pytest.raises(NotEquivalent):
        unverified(made, 0, half, "0f3F000000")


# --- what reads a function's inner values keeps the text as it is ------------------------------------------------

HEAD = """.version 8.7
.target sm_90a
.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1)
.reqntid 32
{
  .reg .pred %p<9>;
  .reg .b32 %r<60>;
  .reg .b64 %rd<9>;
  ld.param.b64 %rd1, [k_param_0];
  ld.param.b64 %rd2, [k_param_1];
  ld.global.b32 {%r1}, [%rd1 + 0];
"""
COEFFICIENTS = [
    "3E1039F6",
    "BDF8CDCC",
    "3E0F2955",
    "BE2AD8B9",
    "3E4CED0B",
    "BE7FFF22",
    "3EAAAA78",
    "BF000000",
]
LOG = """  setp.lt.f32 %p1, %r1, 0f00800000;
  mul.f32 %r5, %r1, 0f4B000000;
  selp.f32 %r2, %r5, %r1, %p1;
  selp.f32 %r6, 0fC1B80000, 0f00000000, %p1;
  add.s32 %r7, %r2, -1059760811;
  and.b32 %r8, %r7, -8388608;
  sub.s32 %r9, %r2, %r8;
  cvt.rn.f32.s32 %r10, %r8;
  mov.b32 %r11, 0f34000000;
  fma.rn.ftz.f32 %r12, %r10, %r11, %r6;
  add.f32 %r13, %r9, 0fBF800000;
  mov.b32 %r14, 0fBE055027;
""" + "".join(
    f"  fma.rn.f32 %r{15 + i}, %r{14 + i}, %r13, 0f{c};\n"
    for i, c in enumerate(COEFFICIENTS)
) + """  mul.f32 %r31, %r13, %r22;
  fma.rn.f32 %r32, %r31, %r13, %r13;
  fma.rn.f32 %r36, %r12, 0f3F317218, %r32;
  setp.lt.u32 %p2, %r2, 2139095040;
  @%p2 bra $L;
  mov.b32 %r34, 0f7F800000;
INSIDE  fma.rn.f32 %r36, %r2, %r34, %r34;
$L:
  setp.eq.f32 %p3, %r2, 0f00000000;
  selp.f32 %r35, 0fFF800000, %r36, %p3;
"""  # fmt: skip
END = "  st.global.b32 [%rd2 + 0], {%r35};\nAFTER  ret;\n}\n"


def opcodes(text: str, inside: str = "", after: str = "") -> list[str]:
    return [
        n.opcode for n in fold(parse(text.replace("INSIDE", inside).replace("AFTER", after), "k.ptx")).lines
    ]


def test_text_by_hand():
    assert "@log.f32" in opcodes(HEAD + LOG + END)
    assert not any(o.startswith(("bra", "setp", "selp")) for o in opcodes(HEAD + LOG + END))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "setp.lt.u32 %p2, %r2, 2139095040",
            "setp.ge.u32 %p2, %r2, 2139095040",
        ),  # the other way, of integers
        ("selp.f32 %r35, 0fFF800000", "selp.b32 %r35, -8388607"),
        ("setp.eq.f32", "setp.equ.f32"),
    ],
)
def test_another_choice_is_not_the_function(old: str, new: str):
    assert old in LOG
    assert "@log.f32" not in opcodes(HEAD + LOG.replace(old, new) + END)


def test_choices_are_written_in_several_ways():
    """As Triton 3.8 does: selections of words, and conditions that are negated, NaN included."""
    words = LOG.replace("selp.f32 %r35, 0fFF800000, %r36", "selp.b32 %r35, -8388608, %r36")
    negated = words.replace("setp.eq.f32 %p3", "setp.neu.f32 %p3").replace("-8388608, %r36", "%r36, -8388608")
    for text in (words, negated):
        assert text != LOG
        assert "@log.f32" in opcodes(HEAD + text + END)


STORE = "  st.global.b32 [%rd2 + 128], {{{}}};\n"
CHANGED = {
    "a choice read after": {"after": STORE.format("%r36")},
    "a register set on one way": {"after": STORE.format("%r34")},
    "a store on one way": {"inside": STORE.format("%r1")},
    "a barrier on one way": {"inside": "  bar.sync 0;\n"},
    "another register set on one way": {"inside": "  mov.b32 %r40, 0;\n", "after": STORE.format("%r40")},
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_else_depends_on_the_branch_refuses(name: str):
    assert opcodes(HEAD + LOG + END, **CHANGED[name]) == opcodes(HEAD + LOG.replace("4B000000", "4B000001") + END,
                                                                 **CHANGED[name])  # fmt: skip


INNER = {
    "an inner value": STORE.format("%r13"),
    "its sign": "  neg.f32 %r41, %r32;\n" + STORE.format("%r41"),
    "a copy of it": "  mov.b32 %r41, %r32;\n" + STORE.format("%r41"),
    "in a choice": "  setp.eq.s32 %p5, %r8, 0;\n  mov.b32 %r41, %r32;\n  @%p5 bra $M;\n  mov.b32 %r41, 0;\n$M:\n"
    + STORE.format("%r41"),
    "in a loop": "  mov.b32 %r42, 0;\n$M:\n" + STORE.format("%r32")
    + "  add.s32 %r42, %r42, 1;\n  setp.lt.s32 %p5, %r42, 4;\n  @%p5 bra $M;\n",
}  # fmt: skip


@pytest.mark.parametrize("name", INNER)
def test_what_is_read_elsewhere_stays(name: str):
    """Everything that the new text reads was set before."""
    kernel = fold(parse((HEAD + LOG + END).replace("INSIDE", "").replace("AFTER", INNER[name]), "k.ptx"))
    known = {r for n in kernel.lines for r in re.findall(r"%rd?\d+", n.operands[0] if n.operands else "")
             if not n.operands[0].startswith("[")}  # fmt: skip
    read = {r for n in kernel.lines for o in n.operands for r in re.findall(r"%rd?\d+", o)}
    assert read <= known
    assert any(n.opcode == "@log.f32" for n in kernel.lines)


def test_what_a_loop_sets_again_is_another_number():
    """The second half of the text, in a loop, reads an argument that every trip sets."""
    half = "  mul.f32 %r31"
    again = "  add.f32 %r2, %r2, %r13;\n  setp.lt.s32 %p5, %r8, 4;\n  @%p5 bra $N;\n"
    assert "@log.f32" in opcodes(HEAD + LOG.replace(half, "$N:\n" + half) + END)
    assert "@log.f32" not in opcodes(HEAD + LOG.replace(half, "$N:\n" + half) + END, after=again)


def test_a_loop_whose_end_comes_first():
    """The text enters the loop in its middle; what reads the function stands before it."""
    end = STORE.format("%r35") + "  add.s32 %r42, %r42, 1;\n  setp.ge.s32 %p5, %r42, 4;\n  @%p5 bra $END;\n"
    text = "  mov.b32 %r42, 0;\n  bra.uni $B;\n$A:\n" + end + "$B:\n" + LOG + "  bra.uni $A;\n$END:\n"
    kernel = fold(parse((HEAD + text + "  ret;\n}\n").replace("INSIDE", ""), "k.ptx"))
    found = [n.opcode for n in kernel.lines]
    assert found.index("@log.f32") < found.index("st.global.b32")
    assert not any(o.startswith("setp.") and o.endswith(".f32") for o in found)
    backward = [
        n for i, n in enumerate(kernel.lines) if "bra" in n.opcode and kernel.labels[n.operands[0]] <= i
    ]
    assert len(backward) == 1
