"""Integers and truth values that are loaded and become numbers: from PyTorch and linalg down to PTX, and what is
refused because their bits are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ptx_texts import FIELD, HEAD

from superopt.errors import IllegalProgram, NotEquivalent, SuperoptError, UnsupportedProgram
from superopt.numerics.checking import make_inputs
from superopt.numerics.cpu import run as run_on_cpu
from superopt.numerics.float_gate import INTEGERS_SCALE, input_specs
from superopt.operators import infer_type
from superopt.program import KernelGraph, Node, TensorType, Value, producers
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.checker.check import check_certificate
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ptx.decode import decode
from superopt.verify.ptx.launch import Launch
from superopt.verify.ptx.parser import parse as parse_ptx
from superopt.verify.ttir import Buffer, launch, parse, verify_ttir
from superopt.verify.ttir.artifact import kernel_texts

SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
NUMPY: dict[str, Any] = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
}  # fmt: skip


def scaled(dtype: str, shape: tuple[int, ...] = (12, 40)) -> KernelGraph:
    """x times integers, one for each row."""
    x, n = Value(TensorType(shape, "f32"), "x"), Value(TensorType((shape[0],), dtype), "n")
    numbers, column = Value(TensorType((shape[0],), "f32")), Value(TensorType((shape[0], 1), "f32"))
    out = Value(TensorType(shape, "f32"))
    nodes = [
        Node("cast", (n,), (numbers,), {"dtype": "f32"}),
        Node("reshape", (numbers,), (column,), {"shape": column.shape}),
        Node("mul", (x, column), (out,)),
    ]
    return KernelGraph("scaled", [x, n], nodes, [out])


def drawn(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    rng: Any = np.random.default_rng(seed)
    if dtype == "i1":
        return np.asarray(rng.random(shape) > 0.5)
    most = min(np.iinfo(NUMPY[dtype]).max, 1 << 20)
    return np.asarray(rng.integers(-most, most, shape, dtype=NUMPY[dtype]))


def test_only_casts_and_reshapes_take_integers():
    for dtype in SIZES:
        assert infer_type("cast", [TensorType((3,), dtype)], {"dtype": "f16"}) == TensorType((3,), "f16")
        assert infer_type("reshape", [TensorType((4,), dtype)], {"shape": (2, 2)}) == TensorType(
            (2, 2), dtype
        )
        for op, count in (("add", 2), ("neg", 1), ("step", 1)):
            with pytest.raises(SuperoptError, match=f"got {dtype}"):
                infer_type(op, [TensorType((3,), dtype)] * count, {})
    with pytest.raises(SuperoptError, match="of kind dtype, got 'i32'"):
        infer_type("cast", [TensorType((3,), "f32")], {"dtype": "i32"})


@pytest.mark.parametrize("dtype", SIZES)
def test_a_kernel_with_integers_is_proved_down_to_ptx(dtype: str):
    graph = scaled(dtype)
    lowered = lower(graph, "sm_90")
    assert certify(graph, lowered).equivalent
    x, n = np.random.default_rng(1).standard_normal((12, 40)).astype(np.float32), drawn(dtype, (12,))
    expected = x * n.astype(np.float32)[:, None]
    (reference,) = evaluate(
        graph, [FloatDomain().tensor(v, d) for v, d in ((x, "f32"), (n, dtype))], FloatDomain()
    )
    assert np.allclose(reference.planes[0], expected)
    (made,) = run_on_cpu(lowered, [x, n])
    assert np.array_equal(made, expected)
    emitted = emit_program(lowered)
    compiled = compile_all(emitted.kernels, ["sm_90"])
    texts = kernel_texts(emitted, compiled)
    verify_ttir(graph, lowered, texts)
    ptx = [PtxText(c.ptx, c.shared_bytes) for c in compiled]
    report = verify_ptx(lowered, texts, ptx)
    assert report.verified, report.kernels[0].unverified
    # The next row's integer is another one.
    wrong = [replace(ptx[0], ptx=_later(ptx[0].ptx, SIZES[dtype])), *ptx[1:]]
    with pytest.raises((NotEquivalent, IllegalProgram)):
        verify_ptx(lowered, texts, wrong)


def _later(ptx: str, size: int) -> str:
    """PTX whose loads of integers are one element later."""
    lines = ptx.splitlines()
    loads = [i for i, line in enumerate(lines) if re.search(rf"ld\.global\S*\.b{8 * size} ", line)]
    at = loads[-1]
    lines[at] = lines[at].replace("+ 0 ]", f"+ {size} ]")
    return "\n".join(lines)


# --- TTIR

_TTIR = """module {
  tt.func public @k(%x: !tt.ptr<ELEMENT>, %o: !tt.ptr<f32>) attributes {noinline = false} {
    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %xp = tt.splat %x : !tt.ptr<ELEMENT> -> tensor<4x!tt.ptr<ELEMENT>>
    %xi = tt.addptr %xp, %r : tensor<4x!tt.ptr<ELEMENT>>, tensor<4xi32>
    %op = tt.splat %o : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>
    %oi = tt.addptr %op, %r : tensor<4x!tt.ptr<f32>>, tensor<4xi32>
    %zero = arith.constant dense<0> : tensor<4xi8>
    %two = arith.constant dense<2> : tensor<4xi8>
    %three = arith.constant dense<3> : tensor<4xi32>
    %some = arith.cmpi slt, %r, %three : tensor<4xi32>
BODY
    tt.store %oi, %f : tensor<4x!tt.ptr<f32>>
    tt.return
  }
}
"""
_BYTES = "%b = tt.bitcast %xi : tensor<4x!tt.ptr<i1>> -> tensor<4x!tt.ptr<i8>>\n"
_TRUTHS = _BYTES + "%l = tt.load %b : tensor<4x!tt.ptr<i8>>\n%t = arith.cmpi ne, %l, %zero : tensor<4xi8>\n"


def run_ttir(body: str, dtype: str, x: np.ndarray[Any, Any]) -> list[float]:
    domain = FloatDomain()
    source, out = Buffer("x", 4, dtype, writable=False), Buffer("o", 4, "f32", writable=True)
    source.fill(domain.tensor(x, dtype))
    launch(parse(_TTIR.replace("ELEMENT", dtype).replace("BODY", body)), (1, 1, 1), [source, out], domain)
    assert out.contents is not None
    return out.contents.planes[0].tolist()


def test_ttir_makes_numbers_of_what_it_loads():
    truths = np.array([True, False, False, True])
    assert run_ttir(_TRUTHS + "%f = arith.uitofp %t : tensor<4xi1> to tensor<4xf32>", "i1", truths) == [
        1,
        0,
        0,
        1,
    ]
    masked = _TRUTHS.replace("%b :", "%b, %some, %zero :")
    assert run_ttir(masked + "%f = arith.uitofp %t : tensor<4xi1> to tensor<4xf32>", "i1", truths) == [
        1,
        0,
        0,
        0,
    ]
    for dtype in ("i8", "i16", "i32", "i64"):
        body = (
            f"%l = tt.load %xi : tensor<4x!tt.ptr<{dtype}>>\n"
            f"%f = arith.sitofp %l : tensor<4x{dtype}> to tensor<4xf32>"
        )
        assert run_ttir(body, dtype, np.array([-3, 0, 5, 127], NUMPY[dtype])) == [-3, 0, 5, 127]


@pytest.mark.parametrize(
    ("dtype", "body"),
    [
        # One bit with a sign is 0 or -1.
        ("i1", _TRUTHS + "%f = arith.sitofp %t : tensor<4xi1> to tensor<4xf32>"),
        # Without a sign, what is below zero is another number.
        ("i8", "%l = tt.load %xi : tensor<4x!tt.ptr<i8>>\n%f = arith.uitofp %l : tensor<4xi8> to tensor<4xf32>"),
        # Bytes that are not zeros and ones.
        ("i8", "%l = tt.load %xi : tensor<4x!tt.ptr<i8>>\n%t = arith.cmpi ne, %l, %zero : tensor<4xi8>\n"
               "%f = arith.uitofp %t : tensor<4xi1> to tensor<4xf32>"),
        ("i1", _TRUTHS.replace("%b :", "%b, %some, %two :") + "%f = arith.uitofp %t : tensor<4xi1> to tensor<4xf32>"),
        ("i1", _TRUTHS.replace("cmpi ne", "cmpi eq") + "%f = arith.uitofp %t : tensor<4xi1> to tensor<4xf32>"),
        ("i1", _TRUTHS.replace("%l, %zero", "%l, %two") + "%f = arith.uitofp %t : tensor<4xi1> to tensor<4xf32>"),
        # Their bits.
        ("i8", "%l = tt.load %xi : tensor<4x!tt.ptr<i8>>\n%n = arith.addi %l, %l : tensor<4xi8>\n"
               "%f = arith.sitofp %n : tensor<4xi8> to tensor<4xf32>"),
        ("i64", "%l = tt.load %xi : tensor<4x!tt.ptr<i64>>\n%n = arith.trunci %l : tensor<4xi64> to tensor<4xi32>\n"
                "%f = arith.sitofp %n : tensor<4xi32> to tensor<4xf32>"),
        ("i32", "%b = tt.bitcast %xi : tensor<4x!tt.ptr<i32>> -> tensor<4x!tt.ptr<f32>>\n"
                "%f = tt.load %b : tensor<4x!tt.ptr<f32>>"),
        ("i32", "%l = tt.load %xi : tensor<4x!tt.ptr<i32>>\n"
                "%p = tt.addptr %op, %l : tensor<4x!tt.ptr<f32>>, tensor<4xi32>\n"
                "%f = arith.sitofp %l : tensor<4xi32> to tensor<4xf32>"),
    ],
)  # fmt: skip
def test_ttir_does_nothing_else_with_integers(dtype: str, body: str):
    with pytest.raises((UnsupportedProgram, IllegalProgram)):
        run_ttir(body, dtype, np.array([1, 0, 1, 1], NUMPY[dtype]))


# --- PTX


def run_ptx(body: str, dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The residues that 64 threads store in %r10 after `body`, and those that they are given at %rd6."""
    size = SIZES[dtype]
    lines = f"mul.wide.u32 %rd6, %r1, {size};\nadd.s64 %rd6, %rd1, %rd6;\n{body}\nst.global.b32 [%rd5], {{%r10}};\n"
    text = HEAD.replace("THREADS", "64") + lines + "ret;\n}\n"
    given, made = Buffer("x", 64, dtype, writable=False), Buffer("o", 64, "f32", writable=True)
    given.fill(FIELD.random("x", (64,)))
    stored = Launch(decode(parse_ptx(text, "k.ptx")), (1, 1, 1), [given, made], FIELD, 1024).run(0)[1]
    assert given.contents is not None
    return stored.values, given.contents.planes[0]


_BYTE = "ld.global.b8 {%rs1}, [%rd6];\n"
_HALF = "ld.global.b16 {%rs1}, [%rd6];\ncvt.u32.u16 %r9, %rs1;\n"
_WORD = "ld.global.b32 {%r9}, [%rd6];\n"
_FP8 = "cvt.rn.f16x2.{type} %r9, %rs1;\nmov.b32 {{%rs3, %rs4}}, %r9;\ncvt.f32.f16 %r10, %rs3;"


@pytest.mark.parametrize(
    ("dtype", "body"),
    [
        ("i1", _BYTE + "setp.ne.b16 %p1, %rs1, 0;\nselp.f32 %r10, 0f3F800000, 0f00000000, %p1;"),
        ("i1", _BYTE + "and.b16 %rs2, %rs1, 255;\nsetp.eq.b16 %p1, %rs2, 0;\n"
                       "selp.f32 %r10, 0f00000000, 0f3F800000, %p1;"),
        ("i1", _BYTE + "and.b16 %rs2, %rs1, 1;\nsetp.eq.b16 %p1, %rs2, 1;\n"
                       "selp.f32 %r10, 0f3F800000, 0f00000000, %p1;"),
        ("i1", _BYTE + "cvt.u32.u16 %r9, %rs1;\ncvt.rn.f32.u32 %r10, %r9;"),
        ("i8", _BYTE + "cvt.s16.s8 %rs2, %rs1;\ncvt.rn.f32.s16 %r10, %rs2;"),
        ("i8", _BYTE + "cvt.u32.u16 %r9, %rs1;\ncvt.s8.s32 %rs2, %r9;\ncvt.rn.f32.s16 %r10, %rs2;"),
        ("i8", _BYTE + "cvt.u32.u16 %r9, %rs1;\nprmt.b32 %r9, %r9, 0, 0x8880;\ncvt.rn.f32.s32 %r10, %r9;"),
        ("i16", "ld.global.b16 {%rs1}, [%rd6];\ncvt.rn.f32.s16 %r10, %rs1;"),
        ("i16", "ld.global.b16 {%rs1}, [%rd6];\ncvt.s32.s16 %r9, %rs1;\ncvt.rn.f32.s32 %r10, %r9;"),
        ("i16", _HALF + "prmt.b32 %r9, %r9, 0, 0x9910;\ncvt.rn.f32.s32 %r10, %r9;"),
        ("i32", _WORD + "cvt.rn.f32.s32 %r10, %r9;"),
        ("i32", _WORD + "cvt.s64.s32 %rd7, %r9;\ncvt.rn.f32.s64 %r10, %rd7;"),
        ("i32", "mov.b32 %r8, 4;\ncp.async.ca.shared.global [%r4], [%rd6], 0x4, %r8;\ncp.async.commit_group;\n"
                "cp.async.wait_group 0;\nld.shared.b32 %r9, [%r4];\ncvt.rn.f32.s32 %r10, %r9;"),
        ("i64", "ld.global.b64 {%rd7}, [%rd6];\ncvt.rn.f32.s64 %r10, %rd7;"),
    ],
)  # fmt: skip
def test_ptx_makes_numbers_of_integers(dtype: str, body: str):
    stored, given = run_ptx(body, dtype)
    assert np.array_equal(stored, given)


@pytest.mark.parametrize(
    ("dtype", "body"),
    [
        ("i8", _BYTE + "setp.ne.b16 %p1, %rs1, 0;\nselp.f32 %r10, 0f3F800000, 0f00000000, %p1;"),
        ("i8", _BYTE + "cvt.rn.f32.u16 %r10, %rs1;"),  # without its sign
        ("i8", _BYTE + "cvt.rn.f32.s16 %r10, %rs1;"),  # a byte, filled by zeros
        ("i8", _BYTE + "cvt.s16.s8 %rs2, %rs1;\ncvt.rn.f32.u16 %r10, %rs2;"),
        ("i8", _BYTE + "and.b16 %rs2, %rs1, 1;\ncvt.rn.f32.s16 %r10, %rs2;"),
        ("i8", _BYTE + "cvt.u32.u16 %r9, %rs1;\nprmt.b32 %r9, %r9, 0, 0x8808;\ncvt.rn.f32.s32 %r10, %r9;"),
        ("i1", _BYTE + "setp.ne.b16 %p1, %rs1, 2;\nselp.f32 %r10, 0f3F800000, 0f00000000, %p1;"),
        ("i1", _BYTE + "setp.gt.s16 %p1, %rs1, 0;\nselp.f32 %r10, 0f3F800000, 0f00000000, %p1;"),
        ("i16", _BYTE + "cvt.s16.s8 %rs2, %rs1;\ncvt.rn.f32.s16 %r10, %rs2;"),  # half of it
        ("i16", _HALF + "prmt.b32 %r9, %r9, 0, 0x8810;\ncvt.rn.f32.s32 %r10, %r9;"),  # its lower byte's sign
        ("i32", "ld.global.b16 {%rs1}, [%rd6];\ncvt.rn.f32.s16 %r10, %rs1;"),
        ("i32", _WORD + "mov.b32 %r10, %r9;"),  # its bits as those of an fp32 number
        ("i32", _WORD + "add.s32 %r9, %r9, 1;\ncvt.rn.f32.s32 %r10, %r9;"),
        ("i32", _WORD + "cvt.rn.f32.u32 %r10, %r9;"),
        ("i64", "ld.global.b64 {%rd7}, [%rd6];\ncvt.u32.u64 %r9, %rd7;\ncvt.rn.f32.s32 %r10, %r9;"),
        ("i64", "ld.global.b64 {%rd7}, [%rd6];\ncvt.rn.f32.u64 %r10, %rd7;"),
        ("i1", _BYTE + "st.global.b8 [%rd6], {%rs1};\nmov.b32 %r10, 0;"),
        # As an fp8 number a byte that is one is 2^-9 or 2^-16.
        ("i1", _BYTE + _FP8.format(type="e4m3x2")),
        ("i1", _BYTE + _FP8.format(type="e5m2x2")),
        ("i8", _BYTE + _FP8.format(type="e4m3x2")),
        ("i8", _BYTE + _FP8.format(type="e5m2x2")),
    ],
)  # fmt: skip
def test_ptx_does_nothing_else_with_integers(dtype: str, body: str):
    with pytest.raises((UnsupportedProgram, IllegalProgram)):
        run_ptx(body, dtype)


# Numbers that nothing holds are dropped after half a million, and those that stay get other places.
_LOOP = """mov.b32 %r11, 0f3F800000;
mov.b32 %r12, 0;
$again:
add.f32 %r11, %r11, %r11;
add.s32 %r12, %r12, 1;
setp.lt.s32 %p2, %r12, 9000;
@%p2 bra $again;
"""


@pytest.mark.parametrize("place", ["register", "shared"])
@pytest.mark.parametrize(
    ("dtype", "bits", "register", "made"),
    [
        ("i1", 8, "%rs", "setp.ne.b16 %p1, %rs1, 0;\nselp.f32 %r10, 0f3F800000, 0f00000000, %p1;"),
        ("i8", 8, "%rs", "cvt.s16.s8 %rs2, %rs1;\ncvt.rn.f32.s16 %r10, %rs2;"),
        ("i16", 16, "%rs", "cvt.rn.f32.s16 %r10, %rs1;"),
        ("i32", 32, "%r", "cvt.rn.f32.s32 %r10, %r15;"),
        ("i64", 64, "%rd", "cvt.rn.f32.s64 %r10, %rd1;"),
    ],
    ids=SIZES,
)
def test_integers_outlive_numbers_that_are_dropped(
    dtype: str, bits: int, register: str, made: str, place: str
):
    """Those before them are dropped, too."""
    one, before = ("%r15", "%r16") if bits == 32 else (f"{register}1", f"{register}8")
    loads = "".join(f"ld.global.b{bits} {{{r}}}, [%rd6];\n" for r in (before, one))
    address = "%r4"
    if bits == 64:
        address = "%r13"
        loads += "add.s32 %r13, %r4, %r3;\n"
    if place == "shared":
        loads += f"st.shared.b{bits} [{address}], {{{one}}};\nmov.b{max(bits, 16)} {one}, 0;\n"
        made = f"ld.shared.b{bits} {{{one}}}, [{address}];\n{made}"
    stored, given = run_ptx(f"{loads}mov.b{max(bits, 16)} {before}, 0;\n{_LOOP}{made}", dtype)
    assert np.array_equal(stored, given)


# --- from the user's program to a kernel


def _padded(q: Any, k: Any, v: Any, mask: Any) -> Any:
    functional: Any = pytest.importorskip("torch.nn.functional")
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _positions(x: Any, n: Any) -> Any:
    return x * n.float()[:, None] + n.to(x.dtype)[:, None]


def _quantized(x: Any, w: Any, scale: Any) -> Any:
    return x @ (w.to(x.dtype) * scale).T


def _truths(x: Any, m: Any, n: Any) -> Any:
    return (x * (m & ~n) - x * (m | n)).sum(-1)


def _extended(x: Any, mask: Any) -> Any:
    """As transformers extends masks of integers."""
    wide = mask[:, None, :].expand(6, 33, 33).to(x.dtype)
    return (x[:, None] * (1.0 - wide) * -10.0).softmax(-1)


def _lengths(x: Any, n: Any) -> Any:
    torch: Any = pytest.importorskip("torch")
    return x.masked_fill(torch.arange(33) >= n[:, None], 0.0).sum(1)


def _product(x: Any, n: Any) -> Any:
    return x * n


MODULES: dict[str, Callable[..., Any]] = {
    "a padding mask": _padded, "positions": _positions, "weights of 8 bits": _quantized, "truth values": _truths,
    "a mask of integers": _extended, "lengths": _lengths, "16 bits": _product,
}  # fmt: skip


def inputs_of(name: str) -> tuple[Any, ...]:
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(0)
    half = torch.float16
    if name == "a padding mask":
        return *(torch.randn(1, 2, 19, 16, dtype=half) for _ in range(3)), torch.rand(1, 1, 1, 19) > 0.3
    if name == "weights of 8 bits":
        weight = torch.randint(-127, 127, (48, 64), dtype=torch.int8)
        return torch.randn(16, 64, dtype=half), weight, torch.rand(48, 1, dtype=half) / 100
    x = torch.randn(6, 33)
    if name == "truth values":
        return (x, *(torch.rand(2, 6, 33) > 0.5))
    whole = {
        "positions": lambda: torch.randint(-99, 99, (6,)), "a mask of integers": lambda: torch.randint(0, 2, (6, 33)),
        "lengths": lambda: torch.randint(0, 33, (6,)), "16 bits": lambda: torch.randint(-9, 9, (33,)).short(),
    }  # fmt: skip
    return x, whole[name]()


@pytest.mark.parametrize("name", MODULES)
def test_modules_convert_integers_in_their_kernel(name: str):
    torch: Any = pytest.importorskip("torch")
    import superopt

    function, inputs = MODULES[name], inputs_of(name)

    class Given(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    made: Any = superopt.optimize(
        Given(), inputs, budget=15, against="operators", store="none", interpret=True, optimizers="saturation"
    )
    report = made.report
    assert report.improved
    assert len(report.kernels) == 1
    assert not report.others, "PyTorch converts nothing"
    expected = function(*inputs)
    assert torch.allclose(made(*inputs).float(), expected.float(), rtol=1e-2, atol=1e-2)


_CONVERSIONS = ("aten.to.dtype", "aten._to_copy.default")


def _cast(x: Any, n: Any) -> Any:
    return x * n.to(x.dtype)


def _reshaped(x: Any, n: Any) -> Any:
    return x * n.reshape(-1).to(x.dtype)


def _chunk(x: Any, n: Any) -> Any:
    return x[:6] * n.chunk(2)[0].to(x.dtype)


def _unbound(x: Any, n: Any) -> Any:
    return x[0] * n.reshape(6, 2).unbind(1)[0].to(x.dtype)


def _signed(x: Any, n: Any) -> Any:
    return x * n.to(pytest.importorskip("torch").int8).to(x.dtype)


def _unsigned(x: Any, n: Any) -> Any:
    torch: Any = pytest.importorskip("torch")
    return x * n.to(torch.uint8).to(x.dtype) + n.to(x.dtype)


@pytest.mark.parametrize("function", [_cast, _reshaped, _chunk, _unbound, _signed, _unsigned])
def test_bytes_without_a_sign_stay_pytorchs(function: Callable[..., Any]):
    """No kernel reads them, nor takes them for bytes with a sign, and what an example does not show holds, too."""
    torch: Any = pytest.importorskip("torch")
    from superopt.transforms.ingest import from_torch

    class Given(torch.nn.Module):
        def forward(self, x: Any, n: Any) -> Any:
            return function(x, n)

    signed = function is _unsigned
    n = torch.randint(0, 99, (12,), dtype=torch.int8 if signed else torch.uint8)
    graph = from_torch(Given(), (torch.randn(12), n)).graph
    of = producers(graph.nodes)
    for node in graph.nodes:
        if node.op == "cast" and node.operands[0].dtype == "i8":
            made = of.get(node.operands[0])
            assert signed if made is None else made.attrs.get("target") in _CONVERSIONS
            assert function in (_signed, _unsigned)
    opaque = [m for m in graph.nodes if m.op == "extern"]
    assert any(m.attrs["target"] in _CONVERSIONS for m in opaque)
    if function in (_signed, _unsigned):
        assert any(m.result.dtype == "i8" for m in opaque), "the other bytes are numbers of their own"


def test_numbers_of_integers_are_drawn_wide_and_indices_are_not():
    graph = scaled("i64")
    assert [s.scale for s in input_specs(graph)] == [1.0, INTEGERS_SCALE]
    _, numbers = make_inputs(input_specs(graph), "ordinary")
    assert numbers.min() < -20
    assert numbers.max() > 20
    index = Node(
        "extern", (graph.inputs[1],), (Value(TensorType((12,), "f32")),), {"target": "t", "reason": "r"}
    )
    graph.nodes.insert(0, index)
    assert [s.scale for s in input_specs(graph)] == [1.0, 1.0]
    _, numbers = make_inputs(input_specs(graph), "ordinary")
    assert set(numbers.astype(int).tolist()) == {0, 1}


def test_a_selection_by_a_truth_value_is_a_product_with_it():
    """step(m) is m, as m is 0 or 1; of a number it is not."""

    def chosen(dtype: str, *, product: bool) -> KernelGraph:
        m, x = Value(TensorType((8,), dtype), "m"), Value(TensorType((8,), "f32"), "x")
        number, out = Value(TensorType((8,), "f32")), Value(TensorType((8,), "f32"))
        last = (
            Node("mul", (number, x), (out,))
            if product
            else Node("select", (number, x), (out,), {"other": 0.0})
        )
        return KernelGraph("chosen", [m, x], [Node("cast", (m,), (number,), {"dtype": "f32"}), last], [out])

    pair = chosen("i1", product=False), chosen("i1", product=True)
    found = certify(*pair)
    assert found.equivalent
    assert found.certificate is not None
    check = check_certificate(found.certificate.model_dump_json())
    assert check.faults == []
    assert check.comparison is not None
    assert check.comparison.different is None
    assert not certify(chosen("i8", product=False), chosen("i8", product=True)).equivalent
