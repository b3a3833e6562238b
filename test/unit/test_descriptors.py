"""Tensor descriptors: which loads take one, what is compiled of them, what the check of TTIR makes of them."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable

import numpy as np
import pytest
from programs import ATTENTION_ONLINE, RMSNORM_LINEAR_CUSTOM
from test_bench_space import matmul, tile_body
from test_interpreter import Build, tensor

from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.errors import IllegalProgram, UnsupportedProgram
from superopt.program import KernelGraph, Load, Store, TensorType, TileProgram
from superopt.transforms.emit import descriptors
from superopt.transforms.emit.compile import Compiled, compile_all
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.emit.triton_source import emit_kernel
from superopt.transforms.lower import lower
from superopt.verify import certify, program_hash
from superopt.verify.domains import FloatDomain
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ptx.record import PtxKernelRecord
from superopt.verify.ttir import Buffer, launch, parse, verify_compiled
from superopt.verify.ttir.artifact import kernel_texts

TARGETS = ("sm_90", "sm_100")


def described(graph: KernelGraph) -> KernelGraph:
    """The lowered program with descriptors wherever they may be."""
    lowered = lower(graph)
    nodes = [
        dataclasses.replace(n, body=dataclasses.replace(n.body, descriptors=True))
        if isinstance(n.body, TileProgram)
        else n
        for n in lowered.nodes
    ]
    return KernelGraph(lowered.name, lowered.inputs, nodes, lowered.outputs)


def batched(batch: int, m: int, n: int, k: int) -> KernelGraph:
    a, b = tensor((batch, m, k), "f16", "a"), tensor((batch, k, n), "f16", "b")
    build = Build()
    return KernelGraph("f", [a, b], build.nodes, [build("matmul", a, b)])


GRAPHS: dict[str, Callable[[], KernelGraph]] = {
    "matmul": lambda: matmul(64, 128, 256),
    "transposed": lambda: matmul(64, 128, 256, transpose_b=True),
    "edges": lambda: matmul(40, 72, 256),
    "f32": lambda: matmul(64, 96, 128, "f32"),
    "batch": lambda: batched(3, 32, 48, 256),
    "rmsnorm": lambda: read(RMSNORM_LINEAR_CUSTOM),
    "attention": lambda: read(ATTENTION_ONLINE),
}


def compiled(emitted: EmittedProgram) -> list[Compiled]:
    return compile_all(emitted.kernels, TARGETS)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_kernels_with_descriptors_are_compiled_and_verified(name: str) -> None:
    """The copy engine is used on both targets, and the TTIR, descriptors included, computes the program."""
    graph = GRAPHS[name]()
    changed = described(graph)
    emitted = emit_program(changed)
    assert "_desc.load([" in emitted.kernels_source
    assert "triton.set_allocator(scratch)" in emitted.launcher_source
    kernels = compiled(emitted)
    for kernel in kernels:
        assert "cp.async.bulk.tensor" in kernel.ptx
        assert kernel.spill_bytes == 0
    records = verify_compiled(graph, changed, emitted, kernels)
    assert set(records) == set(TARGETS)


def test_blocks_do_not_share_scratch() -> None:
    """Those of one box, and those of two: the first four blocks are a box of their own here."""
    graph = GRAPHS["matmul"]()
    changed = described(graph)
    emitted = emit_program(changed)
    made = compile_all(emitted.kernels, ("sm_90",))
    kernels, ptx = kernel_texts(emitted, made), made[0].ptx

    def check(ptx: str) -> PtxKernelRecord:
        return verify_ptx(changed, kernels, [PtxText(ptx, made[0].shared_bytes)]).kernels[0]

    found = check(ptx)
    assert found.blocks == found.addressed == 16
    # Of the block's number, which Triton 3.9 has in 64 bits: two maps for each.
    at = re.search(r"shl\.b(32|64)\s+%rd?\d+, (%rd?\d+), 8;", ptx)
    assert at is not None
    bits, block = at[1], at[2]
    other = (
        f".reg .pred %pa;\n.reg .b{bits} %ra<3>;\nsetp.lt.s{bits} %pa, {block}, 4;\n"
        f"add.s{bits} %ra1, {block}, -4;\nselp.b{bits} %ra2, {block}, %ra1, %pa;\n"
    )
    for fault in (other + at[0].replace(block, "%ra2"), at[0].replace(" 8;", " 7;")):
        with pytest.raises(IllegalProgram, match="scratch of each block's own"):
            check(ptx.replace(at[0], fault))


@pytest.mark.parametrize("name", ["matmul", "edges", "batch", "attention"])
def test_the_interpreter_computes_the_same_with_descriptors(name: str) -> None:
    pytest.importorskip("torch")
    from superopt.numerics.interpreter import Interpreter

    graph = GRAPHS[name]()
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(v.shape).astype(np.float16).astype(np.float32) for v in graph.inputs]
    dtypes = [v.dtype for v in graph.inputs]
    interpreter = Interpreter()
    plain = interpreter.run(emit_program(lower(graph)), inputs, dtypes)
    made = interpreter.run(emit_program(described(graph)), inputs, dtypes)
    for a, b in zip(plain, made, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_flag_is_part_of_the_program() -> None:
    lowered, changed = lower(matmul(64, 128, 256)), described(matmul(64, 128, 256))
    assert program_hash(lowered) != program_hash(changed)
    assert tile_body(read(to_text(changed))).descriptors
    assert certify(lowered, changed).equivalent
    assert "set_allocator" not in emit_program(lowered).launcher_source


# --- guards: each shape is taken until one condition fails


def loads(body: TileProgram) -> list[str]:
    return [line.strip() for line in emit_kernel(body).source.splitlines() if "_desc.load" in line]


def test_guards_refuse_what_the_hardware_does() -> None:
    assert len(loads(tile_body(described(matmul(64, 128, 256))))) == 2
    # Rows of b (4 elements of 2 bytes) that do not begin at multiples of 16 bytes; those of a still do.
    assert loads(tile_body(described(matmul(64, 124, 256)))) == ["a = a_desc.load([i0, k])"]
    # Rows of a: 250 elements.
    assert not loads(tile_body(described(matmul(64, 250, 250))))
    body = tile_body(described(matmul(64, 128, 256)))
    # The tile has padding that lies within the tensor: a box would read it, a mask does not.
    narrow = tile_body(described(matmul(8, 128, 256)))
    a = next(s for s in narrow.statements() if isinstance(s, Load) and s.buffer is narrow.params[0])
    assert "a = a_desc.load([0, k])" in loads(narrow)  # 8 rows, padded to 16: past the edge
    taller = dataclasses.replace(a.buffer, type=TensorType((9, 256), "f16"))
    inner = dataclasses.replace(narrow, params=[taller, *narrow.params[1:]])
    for statement in inner.statements():
        if isinstance(statement, Load) and statement.buffer is a.buffer:
            statement.buffer = taller
    assert "a = a_desc.load([0, k])" not in loads(inner)
    # An output is written by other means than the copy engine: no descriptor reads it.
    assert loads(dataclasses.replace(body, n_inputs=0)) == []


@pytest.mark.parametrize(
    ("limit", "value", "left"),
    [
        ("MOST_BOX", 63, []),
        ("MOST_BOX", 64, ["a", "b"]),
        ("ALIGNMENT", 128, ["a"]),
        ("RANKS", range(3, 6), []),
    ],
)
def test_every_limit_counts(
    limit: str, value: object, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits of another copy engine: what it could not do is loaded by pointers."""
    monkeypatch.setattr(descriptors, limit, value)
    found = [line.split(" = ")[0] for line in loads(tile_body(described(matmul(64, 128, 512))))]
    assert found == left


@pytest.mark.parametrize(("target", "values"), [("sm_80", {0}), ("sm_90", {0, 1})])
def test_descriptors_are_a_parameter_where_the_target_has_them(target: str, values: set[int]) -> None:
    from superopt import cost
    from superopt.measure.space import Space

    graph = matmul(64, 128, 256)
    space = Space(graph, lower(graph, target), cost.target(target))
    assert {p["descriptors"] for p, _ in space.launches(space.lowered)} == values
    ragged = matmul(64, 250, 250)  # no load may take one
    space = Space(ragged, lower(ragged, target), cost.target(target))
    assert {p["descriptors"] for p, _ in space.launches(space.lowered)} == {0}


def test_random_products_with_descriptors_compute_what_they_should() -> None:
    """Random extents, aligned or not: whatever the guard takes, the check of the TTIR confirms."""
    draw = random.Random(3)
    taken = 0
    for _ in range(6):
        m, n, k = (draw.choice(x) for x in ((8, 24, 40, 64), (24, 72, 100, 128), (128, 192, 320)))
        graph = matmul(m, n, k, draw.choice(("f16", "bf16")), transpose_b=draw.random() < 0.5)
        changed = described(graph)
        emitted = emit_program(changed)
        taken += emitted.kernels_source.count("make_tensor_descriptor")
        verify_compiled(graph, changed, emitted, compile_all(emitted.kernels, ["sm_90"]))
    assert taken >= 4


def test_no_store_goes_through_a_descriptor() -> None:
    body = tile_body(described(matmul(64, 128, 256)))
    assert any(isinstance(s, Store) for s in body.statements())
    assert "_desc.store" not in emit_kernel(body).source


# --- the check of the TTIR

MAKE = """
%c8 = arith.constant 8 : i32
%c24 = arith.constant 24 : i32
%r0 = arith.constant 0 : i32
%s = arith.constant 24 : i64
%one = arith.constant 1 : i64
%zero = arith.constant 0 : i32
%pid = tt.get_program_id x : i32
%c16 = arith.constant 16 : i32
%at = arith.muli %pid, %c16 : i32
%d = tt.make_tensor_descriptor %x, [%c8, %c24], [%s, %one] : <f16>, <tensor<4x16xf16>>
%v = tt.descriptor_load %d[%zero, %at] : !tt.tensordesc<tensor<4x16xf16>> -> tensor<4x16xf16>
%r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
%q = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
%re = tt.expand_dims %r {axis = 1 : i32} : tensor<4xi32> -> tensor<4x1xi32>
%qe = tt.expand_dims %q {axis = 0 : i32} : tensor<16xi32> -> tensor<1x16xi32>
%w = arith.constant dense<32> : tensor<4x1xi32>
%rw = arith.muli %re, %w : tensor<4x1xi32>
%rb = tt.broadcast %rw : tensor<4x1xi32> -> tensor<4x16xi32>
%qb = tt.broadcast %qe : tensor<1x16xi32> -> tensor<4x16xi32>
%i0 = arith.addi %rb, %qb : tensor<4x16xi32>
%ab = tt.splat %at : i32 -> tensor<4x16xi32>
%i = arith.addi %i0, %ab : tensor<4x16xi32>
%op = tt.splat %o : !tt.ptr<f16> -> tensor<4x16x!tt.ptr<f16>>
%oi = tt.addptr %op, %i : tensor<4x16x!tt.ptr<f16>>, tensor<4x16xi32>
tt.store %oi, %v : tensor<4x16x!tt.ptr<f16>>
"""


def run(
    body: str, size: int = 192, *, writable: bool = False
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    head = "  tt.func public @k(%x: !tt.ptr<f16>, %o: !tt.ptr<f16>) attributes {noinline = false} {"
    text = f"module {{\n{head}\n{lines}\n    tt.return\n  }}\n}}\n"
    domain = FloatDomain()
    source = Buffer("x", size, "f16", writable=writable)
    source.fill(domain.tensor(np.arange(1.0, size + 1)))
    out = Buffer("o", 128, "f16", writable=True)
    launch(parse(text), (2, 1, 1), [source, out], domain)
    assert out.contents is not None
    return out.contents.planes[0].reshape(4, 32)


@pytest.mark.parametrize("box", ["<tensor<4x16xf16>>", "<4x16xf16>"], ids=["3.7", "3.8"])
def test_a_box_past_the_edge_reads_zeros(box: str) -> None:
    """As Triton 3.7 writes a box, and as 3.8 does."""
    wanted = np.zeros((4, 32))
    wanted[:, :24] = np.arange(1.0, 193.0).reshape(8, 24)[:4]
    np.testing.assert_array_equal(run(MAKE.replace("<tensor<4x16xf16>>", box)), wanted)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%s = arith.constant 24", "%s = arith.constant 20", "multiples of 16 bytes"),
        ("%one = arith.constant 1", "%one = arith.constant 2", "contiguous"),
        ("%r0 = arith.constant 0 : i32", "%p = tt.addptr %x, %c1 : !tt.ptr<f16>, i32", "multiples of 16"),
        ("%c8 = arith.constant 8", "%c8 = arith.constant 0", "a descriptor's box"),
        ("[%zero, %at]", "[%at]", "expected 2 coordinates"),
    ],
)
def test_descriptors_that_the_hardware_does_not_take_are_refused(old: str, new: str, message: str) -> None:
    body = MAKE.replace(old, new)
    if "addptr %x" in new:
        body = "%c1 = arith.constant 1 : i32\n" + body.replace("descriptor %x,", "descriptor %p,")
    with pytest.raises(IllegalProgram, match=message):
        run(body)


def test_a_descriptor_may_not_reach_outside_its_buffer() -> None:
    with pytest.raises(IllegalProgram, match="out of bounds"):
        run(MAKE, size=64)


def test_a_descriptor_of_what_kernels_store_is_not_verified() -> None:
    with pytest.raises(UnsupportedProgram, match="memory that is not an input"):
        run(MAKE, writable=True)
