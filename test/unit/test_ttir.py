"""The reader, evaluator and check of Triton IR: on texts, on kernels that Triton compiled, and on broken ones."""

from __future__ import annotations

import math
import re
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_programs import Builder, value

from superopt.errors import BadInput, IllegalProgram, NotEquivalent, SuperoptError, UnsupportedProgram
from superopt.program import KernelGraph, Loop, Node, TensorType, TileProgram, Value
from superopt.verify.domains import FloatDomain
from superopt.verify.fields import ImageField
from superopt.verify.ttir import Buffer, KernelText, launch, parse, verify_ttir
from superopt.verify.ttir.check import FULL_WORK
from superopt.verify.ttir.parser import same_ttir
from superopt.verify.ttir.points import ImageTriton
from superopt.verify.ttir.sampling import some_blocks


def kernel(body: str, params: str = "%x: !tt.ptr<f32>, %o: !tt.ptr<f32>") -> str:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    head = f"  tt.func public @k({params}) attributes {{noinline = false}} {{"
    return f"module {{\n{head}\n{lines}\n    tt.return\n  }}\n}}\n"


ADDRESS = """
%c4 = arith.constant 4 : i32
%pid = tt.get_program_id x : i32
%base = arith.muli %pid, %c4 : i32
%r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
%b = tt.splat %base : i32 -> tensor<4xi32>
%i = arith.addi %b, %r : tensor<4xi32>
%xp = tt.splat %x : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>
%xi = tt.addptr %xp, %i : tensor<4x!tt.ptr<f32>>, tensor<4xi32>
%op = tt.splat %o : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>
%oi = tt.addptr %op, %i : tensor<4x!tt.ptr<f32>>, tensor<4xi32>
"""
COPY = ADDRESS + "%v = tt.load %xi : tensor<4x!tt.ptr<f32>>\ntt.store %oi, %v : tensor<4x!tt.ptr<f32>>\n"


def run(text: str, x: Any, size: int, grid: tuple[int, int, int]) -> Buffer:
    domain = FloatDomain()
    source = Buffer("x", len(x), "f32", writable=False)
    source.fill(domain.tensor(np.asarray(x, np.float64)))
    out = Buffer("o", size, "f32", writable=True)
    launch(parse(text), grid, [source, out], domain)
    return out


def test_a_copy_copies():
    out = run(kernel(COPY), np.arange(12.0), 12, (3, 1, 1))
    assert out.initialised.all()
    assert out.contents is not None
    assert out.contents.planes[0].tolist() == list(range(12))


@pytest.mark.parametrize(
    ("body", "grid", "message"),
    [
        (COPY.replace("4x!tt.ptr<f32>>, tensor", "4x!tt.ptr<f16>>, tensor"), (3, 1, 1), "expected operands of types"),
        (COPY, (4, 1, 1), "out of bounds: instance 3 does a load of element 12 of 'x'"),
        (COPY.replace("%pid, %c4", "%pid, %pid"), (3, 1, 1), "expected one store of element 1 of 'o'"),
        (COPY.replace("tt.load %xi", "tt.load %oi"), (3, 1, 1), "expected a load of what was stored"),
        (COPY + "%w = tt.load %oi : tensor<4x!tt.ptr<f32>>\n", (3, 1, 1), "expected a barrier"),
        (COPY + COPY.splitlines()[-1], (3, 1, 1), "expected a barrier before element 0 of 'o'"),
        (
            COPY + "gpu.barrier\n%w = tt.load %op : tensor<4x!tt.ptr<f32>>\n", (3, 1, 1),
            "race: instance 1 loads element 0 of 'o', which instance 0 stores",
        ),
        (COPY.replace("tt.store %oi", "tt.store %xi"), (3, 1, 1), "got one to input 'x'"),
        (COPY.replace("muli %pid, %c4", "divsi %c4, %pid"), (3, 1, 1), "expected a divisor, got zero"),
    ],
)  # fmt: skip
def test_faults_of_memory_are_named(body: str, grid: tuple[int, int, int], message: str):
    with pytest.raises(IllegalProgram, match=message.replace("(", r"\(")):
        run(kernel(body), np.arange(12.0), 12, grid)


def written_before() -> Buffer:
    """Scratch of four elements that an earlier launch stored."""
    memory = Buffer("o", 4, "f32", writable=True)
    memory.fill(FloatDomain().tensor(np.zeros(4)))
    memory.begin_launch()
    return memory


def store(memory: Buffer, instance: int, *, epoch: int) -> None:
    domain = FloatDomain()
    memory.store(np.array([0]), domain.tensor(np.ones(1)), np.array([instance]), epoch, "k", domain)


def test_what_two_instances_read_at_once_none_of_them_stores():
    """The one that was noted last is no better than the other."""
    for instance in (0, 1):
        memory = written_before()
        memory.load(np.array([0, 0]), np.array([0, 1]), 0, "k")
        with pytest.raises(IllegalProgram, match="which another instance loads"):
            store(memory, instance, epoch=1)


def test_a_store_behind_a_load_waits_for_a_barrier():
    memory = written_before()
    memory.load(np.array([0]), np.array([0]), 0, "k")
    with pytest.raises(IllegalProgram, match="expected a barrier before element 0"):
        store(memory, 0, epoch=0)
    store(memory, 0, epoch=1)


def test_a_barrier_that_some_instances_skip_is_refused():
    body = """
%pid = tt.get_program_id x : i32
%c0 = arith.constant 0 : i32
%first = arith.cmpi eq, %pid, %c0 : i32
scf.if %first {
gpu.barrier
}
"""
    assert run(kernel(body), np.arange(4.0), 4, (1, 1, 1))
    with pytest.raises(UnsupportedProgram, match="a barrier that not every instance reaches"):
        run(kernel(body), np.arange(4.0), 4, (2, 1, 1))


def test_what_watches_a_launch_is_gone_after_it():
    """A kernel of 10^8 elements has several such buffers; the check of all its kernels keeps them."""
    size = 1 << 20
    memory = Buffer("o", size, "f32", writable=True)
    memory.fill(FloatDomain().tensor(np.zeros(size)))
    tracemalloc.start()
    memory.begin_launch()
    during, _ = tracemalloc.get_traced_memory()
    memory.end_launch()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert during > 16 * size > 5 * size > after
    assert not memory.stored.any()


@pytest.mark.parametrize("barrier", ["gpu.barrier", "ttg.barrier all"])
def test_an_instance_may_read_back_after_a_barrier(barrier: str):
    body = COPY + f"{barrier}\n%w = tt.load %oi : tensor<4x!tt.ptr<f32>>\n{barrier}\n"
    body += "%y = arith.addf %w, %w : tensor<4xf32>\ntt.store %oi, %y : tensor<4x!tt.ptr<f32>>\n"
    out = run(kernel(body), np.arange(12.0), 12, (3, 1, 1))
    assert out.contents is not None
    assert out.contents.planes[0].tolist() == [2 * i for i in range(12)]


@pytest.mark.parametrize(
    "value",
    [
        "%v = tt.load %xi, %m : tensor<4x!tt.ptr<f32>>",  # masked, with no other value
        "%u = tt.load %xi, %m : tensor<4x!tt.ptr<f32>>\n%v = arith.subf %u, %u : tensor<4xf32>",
        "%i = arith.constant dense<0xFF800000> : tensor<4xf32>\n%v = arith.subf %i, %i : tensor<4xf32>",
        "%i = arith.constant dense<0x7F800000> : tensor<4xf32>\n%e = math.exp %i : tensor<4xf32>\n"
        "%v = arith.subf %e, %i : tensor<4xf32>",
        "%i = arith.constant dense<0xFF800000> : tensor<4xf32>\n%v = math.sqrt %i : tensor<4xf32>",
        "%u = tt.load %xi : tensor<4x!tt.ptr<f32>>\n%z = arith.constant dense<0.000000e+00> : tensor<4xf32>\n"
        "%s = arith.select %m, %u, %z : tensor<4xi1>, tensor<4xf32>\n%v = arith.divf %u, %s : tensor<4xf32>",
    ],
)
def test_what_is_no_number_is_not_stored(value: str):
    body = ADDRESS + "%c1 = arith.constant dense<1> : tensor<4xi32>\n"
    body += (
        f"%m = arith.cmpi sle, %r, %c1 : tensor<4xi32>\n{value}\ntt.store %oi, %v : tensor<4x!tt.ptr<f32>>\n"
    )
    field = ImageField(0)
    source, out = Buffer("x", 12, "f32", writable=False), Buffer("o", 12, "f32", writable=True)
    source.fill(field.random("x", (12,)))
    with pytest.raises(IllegalProgram, match="got one that is undefined"):
        launch(parse(kernel(body)), (3, 1, 1), [source, out], field)


def test_minus_infinity_is_neutral_for_max_and_its_exponential_is_zero():
    body = COPY.replace(
        "tt.store %oi, %v",
        "%c = arith.constant dense<0xFF800000> : tensor<4xf32>\n"
        "%m = arith.maxnumf %v, %c : tensor<4xf32>\n"
        "%d = arith.subf %c, %m : tensor<4xf32>\n"
        "%e = math.exp %d : tensor<4xf32>\n"
        "%y = arith.addf %m, %e : tensor<4xf32>\n"
        "tt.store %oi, %y",
    )
    field = ImageField(0)
    x = field.random("x", (12,))
    source, out = Buffer("x", 12, "f32", writable=False), Buffer("o", 12, "f32", writable=True)
    source.fill(x)
    launch(parse(kernel(body)), (3, 1, 1), [source, out], field)
    assert out.contents is not None
    assert not field.differs(x, out.contents).any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 'module', got 'nothing'"),
        ("module {", "expected more lines"),
        (kernel("%v = tt.load %nowhere : !tt.ptr<f32>"), "ttir:3:1: error: expected values defined before"),
        (kernel("what is this"), "expected an operation, got 'what is this'"),
        (kernel("scf.for %i = %x to %x step {"), "expected 'scf.for' as Triton prints it"),
    ],
)
def test_what_is_no_ttir_is_refused(text: str, message: str):
    with pytest.raises(BadInput, match=message):
        parse(text)


LOOPS = """module {
  tt.func public @f(%a: i32, %b: i32) {
    %c = arith.constant 1 : i32 loc(#loc1)
    %r:2 = scf.for %i = %a to %b step %c iter_args(%s = %a, %t = %b) -> (i32, i32)  : i32 {
      %x = arith.addi %s, %t : i32
      scf.yield %x, %s : i32, i32
    }
    %q = scf.for %j = %a to %b step %c iter_args(%s = %r#1) -> (i32)  : i32 {
      %x = arith.muli %s, %s : i32
      scf.yield %x : i32
    }
    tt.return
  }
}
#loc1 = loc("f.py":3:4)
"""


def test_texts_that_differ_in_names_and_locations_are_the_same() -> None:
    other = LOOPS.replace("%s = %r#1", "%u = %r#1").replace("%s, %s : i32\n", "%u, %u : i32\n")
    other = (
        other.replace("%r", "%pair").replace("#loc1", "#loc7").replace('"f.py":3:4', 'callsite("g" at "h")')
    )
    assert other != LOOPS
    assert same_ttir(LOOPS, other)
    assert same_ttir(other, LOOPS)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("%s = %r#1", "%s = %r#0"),
        ("%s = %a, %t = %b", "%s = %b, %t = %a"),
        ("muli", "addi"),
        ("    tt.return", "    %more = arith.constant 2 : i32\n    tt.return"),
        # What one reader sees, another does not: a second operation in a line, or in a location.
        ("loc(#loc1)", 'loc("x\\"") %more = arith.constant 2 : i32'),
        ('#loc1 = loc("f.py":3:4)', '#loc1 = loc("f.py":3:4) module {}'),
        ("    tt.return", "    // \r %more = arith.constant 2 : i32\n    tt.return"),
        ("loc(#loc1)", 'loc("\u2028")'),
        ("loc(#loc1)", 'loc("\v")'),
    ],
)
def test_texts_that_compute_something_else_are_not(text: str, wrong: str) -> None:
    other = LOOPS.replace(text, wrong)
    assert other != LOOPS
    assert not same_ttir(LOOPS, other)
    assert not same_ttir(other, LOOPS)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%v = tt.atomic_rmw fadd, acq_rel, gpu, %x, %x : (!tt.ptr<f32>, f32) -> f32", "got 'tt.atomic_rmw'"),
        (COPY.replace("%v = ", "%z = arith.cmpf oeq, %w, %w : tensor<4xf32>\n%v = ").replace(
            "%z", "%w = tt.load %xi : tensor<4x!tt.ptr<f32>>\n%z"), "a comparison of floating-point numbers"),
        ("%v = tt.splat %x {tt.divisibility = 16 : i32} : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>", "unchecked hint"),
    ],
)  # fmt: skip
def test_what_cannot_be_verified_is_refused(body: str, message: str):
    field = ImageField(0)
    buffers = [Buffer("x", 12, "f32", writable=False), Buffer("o", 12, "f32", writable=True)]
    buffers[0].fill(field.random("x", (12,)))
    with pytest.raises(UnsupportedProgram, match=message):
        launch(parse(kernel(body)), (1, 1, 1), buffers, field)


# --- programs against the kernels that Triton makes of them -------------------------------------------------


def rmsnorm_linear() -> KernelGraph:
    """x w / sqrt(mean x^2), with extents that no power of two divides."""

    def t(*shape: int) -> TensorType:
        return TensorType(shape, "f16")

    def node(op: str, operands: tuple[Value, ...], shape: TensorType, **attrs: Any) -> Node:
        return Node(op, operands, (Value(shape),), attrs)

    x, w = Value(t(6, 48), "x"), Value(t(48, 40), "w")
    square = node("square", (x,), t(6, 48))
    mean = node("reduce_mean", (square.result,), t(6, 1), dims=(1,), keepdims=True)
    root = node("rsqrt", (mean.result,), t(6, 1))
    product = node("matmul", (x, w), t(6, 40))
    scaled = node("mul", (product.result, root.result), t(6, 40))
    return KernelGraph("rms", [x, w], [square, mean, root, product, scaled], [scaled.result])


def compiled(graph: KernelGraph) -> tuple[KernelGraph, list[KernelText]]:
    pytest.importorskip("triton")
    from superopt.transforms.emit.compile import compile_kernel
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.lower import lower

    lowered = lower(graph)
    texts = [
        KernelText(
            k.name,
            compile_kernel(k).ttir,
            k.grid,
            tuple((p.name, p.type.elements, p.type.dtype) for p in k.parameters),
        )
        for k in emit_program(lowered).kernels
    ]
    return lowered, texts


@pytest.fixture(scope="module")
def artifact() -> tuple[KernelGraph, KernelGraph, list[KernelText]]:
    graph = rmsnorm_linear()
    return graph, *compiled(graph)


def test_the_kernels_of_a_program_are_accepted(artifact: tuple[KernelGraph, KernelGraph, list[KernelText]]):
    record = verify_ttir(*artifact)
    assert record.end_to_end
    assert record.formal
    assert all(k.evaluated == k.instances == k.addressed for k in record.kernels)


def test_instances_are_sampled_where_all_take_too_long():
    x = Value(TensorType((512, 256), "f16"))
    negated = Node("neg", (x,), (Value(TensorType((512, 256), "f16")),), {})
    graph = KernelGraph("negate", [x], [negated], [negated.result])
    lowered, texts = compiled(graph)
    record = verify_ttir(graph, lowered, texts, full_work=1)
    (kernel_record,) = record.kernels
    assert not record.end_to_end
    assert 4 <= kernel_record.evaluated < kernel_record.addressed == kernel_record.instances


def test_of_a_large_kernel_the_corners_and_others_are_run():
    """One wrong block at a corner is found; blocks are found by what they store, whatever their number."""
    x = Value(TensorType((512, 256), "f16"))
    negated = Node("neg", (x,), (Value(TensorType((512, 256), "f16")),), {})
    graph = KernelGraph("negate", [x], [negated], [negated.result])
    lowered, (text,) = compiled(graph)
    body = lowered.nodes[0].body
    assert isinstance(body, TileProgram)
    corners = some_blocks(body, None)
    assert corners
    loops = [s for s in corners.statements() if isinstance(s, Loop)]
    assert [len(range(s.start, s.stop, s.step)) for s in loops] == [2] * len(loops)
    for at in (0, math.prod(text.grid) - 1):
        wrong = _wrong_at(text, at)
        with pytest.raises(NotEquivalent, match="another value"):
            verify_ttir(graph, lowered, [wrong], full_work=1)


def _wrong_at(text: KernelText, instance: int) -> KernelText:
    """The kernel with one instance (of a grid along x) that stores what it loads."""
    assert text.grid[1:] == (1, 1)
    # Triton 3.8 has an operation of its own for what it was a difference from zero before.
    line = re.search(r"^ *(%\w+) = arith.(?:subf %\w+,|negf) (%\w+) : (\S+).*$", text.ttir, re.MULTILINE)
    assert line
    result, operand, kind = line.groups()
    made = f"""%here = tt.get_program_id x : i32
      %number = arith.constant {instance} : i32
      %chosen = arith.cmpi eq, %here, %number : i32
      %mask = tt.splat %chosen : i1 -> {kind.replace("f32", "i1")}
      %other = arith.negf {operand} : {kind}
      {result} = arith.select %mask, {operand}, %other : {kind.replace("f32", "i1")}, {kind}"""
    return replace(text, ttir=text.ttir[: line.start()] + made + text.ttir[line.end() :])


SWAPS = [
    ("arith.addf", "arith.subf"), ("arith.mulf", "arith.addf"), ("arith.divf", "arith.mulf"),
    ("math.rsqrt", "math.sqrt"), ("arith.addi", "arith.subi"), ("arith.muli", "arith.addi"), ("slt", "sle"),
    ("slt", "sgt"), ("start = 0", "start = 1"), ("get_program_id x", "get_program_id y"), ("addf", "maxnumf"),
    ("4.800000e+01", "4.700000e+01"), ("axis = 1", "axis = 0"),
    (" 48 : i32", " 47 : i32"), ("dense<40>", "dense<41>"), ("dense<48>", "dense<49>"), ("tt.store", "#tt.store"),
    ("step %c16_i32", "step %c32_i32"), ("xf32> to tensor<8", "xbf16> to tensor<8"), (" to tensor<8x64xf32>", " to tensor<8x64xbf16>"),
    ("xf16>", "xf32>"), ("xf32>", "xf16>"), ("xi1>", "xi32>"),
]  # fmt: skip


@pytest.mark.parametrize("full_work", [FULL_WORK, 1])
@pytest.mark.parametrize(("old", "new"), SWAPS)
def test_wrong_kernels_are_refused(
    artifact: tuple[KernelGraph, KernelGraph, list[KernelText]], old: str, new: str, full_work: int
):
    """Every occurrence, one at a time, with all instances run and with some of each kernel's."""
    graph, lowered, texts = artifact
    tried = survived = 0
    for n, text in enumerate(texts):
        at = text.ttir.find(old)
        while at >= 0:
            mutant = text.ttir[:at] + new + text.ttir[at + len(old) :]
            changed = [*texts[:n], KernelText(text.name, mutant, text.grid, text.arguments), *texts[n + 1 :]]
            tried += 1
            try:
                verify_ttir(graph, lowered, changed, full_work=full_work)
                survived += 1
            except SuperoptError:
                pass
            at = text.ttir.find(old, at + 1)
    if not tried:
        pytest.skip("nothing to change")
    assert survived == 0


def test_arguments_are_those_of_the_program(
    artifact: tuple[KernelGraph, KernelGraph, list[KernelText]],
):
    graph, lowered, (text, *others) = artifact
    (name, elements, dtype), *rest = text.arguments
    for wrong in ((name, elements + 1, dtype), (name, elements, "f32")):
        with pytest.raises(NotEquivalent, match="expected arguments"):
            verify_ttir(graph, lowered, [replace(text, arguments=(wrong, *rest)), *others])


def test_an_output_that_is_stored_in_part_is_refused():
    x = Value(TensorType((512, 256), "f16"))
    negated = Node("neg", (x,), (Value(TensorType((512, 256), "f16")),), {})
    graph = KernelGraph("negate", [x], [negated], [negated.result])
    lowered, (text,) = compiled(graph)
    fewer = replace(text, grid=(text.grid[0] - 1, *text.grid[1:]))
    for full_work in (FULL_WORK, 1):
        with pytest.raises(NotEquivalent, match=r"expected all of .* to be stored, got nothing at"):
            verify_ttir(graph, lowered, [fewer], full_work=full_work)


def test_instances_that_store_more_than_a_block_are_compared_whole():
    """Each instance negates two blocks of the program; the first, which has a corner, does not negate its other."""
    x = Value(TensorType((512, 256), "f16"))
    negated = Node("neg", (x,), (Value(TensorType((512, 256), "f16")),), {})
    graph = KernelGraph("negate", [x], [negated], [negated.result])
    lowered, (text,) = compiled(graph)
    body = lowered.nodes[0].body
    assert isinstance(body, TileProgram)
    count = math.prod(text.grid)
    size = 512 * 256 * 2 // count
    wide = f"""module {{
  tt.func public @{text.name}(%x: !tt.ptr<f16>, %o: !tt.ptr<f16>) attributes {{noinline = false}} {{
    %size = arith.constant {size} : i32
    %half = arith.constant dense<{size // 2}> : tensor<{size}xi32>
    %pid = tt.get_program_id x : i32
    %base = arith.muli %pid, %size : i32
    %r = tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{size}xi32>
    %b = tt.splat %base : i32 -> tensor<{size}xi32>
    %i = arith.addi %b, %r : tensor<{size}xi32>
    %xp = tt.splat %x : !tt.ptr<f16> -> tensor<{size}x!tt.ptr<f16>>
    %xi = tt.addptr %xp, %i : tensor<{size}x!tt.ptr<f16>>, tensor<{size}xi32>
    %op = tt.splat %o : !tt.ptr<f16> -> tensor<{size}x!tt.ptr<f16>>
    %oi = tt.addptr %op, %i : tensor<{size}x!tt.ptr<f16>>, tensor<{size}xi32>
    %v = tt.load %xi : tensor<{size}x!tt.ptr<f16>>
    %n = arith.negf %v : tensor<{size}xf16>
    %low = arith.cmpi slt, %r, %half : tensor<{size}xi32>
    %zero = arith.constant 0 : i32
    %later = arith.cmpi ne, %pid, %zero : i32
    %all = tt.splat %later : i1 -> tensor<{size}xi1>
    %right = arith.ori %low, %all : tensor<{size}xi1>
    %s = arith.select %right, %n, WRONG : tensor<{size}xi1>, tensor<{size}xf16>
    tt.store %oi, %s : tensor<{size}x!tt.ptr<f16>>
    tt.return
  }}
}}
"""
    for other, accepted in (("%n", True), ("%v", False)):
        kernels = [replace(text, ttir=wide.replace("WRONG", other), grid=(count // 2, 1, 1))]
        if accepted:
            verify_ttir(graph, lowered, kernels, full_work=1)
        else:
            with pytest.raises(NotEquivalent, match="another value"):
                verify_ttir(graph, lowered, kernels, full_work=1)


def test_a_kernel_too_few_is_refused(artifact: tuple[KernelGraph, KernelGraph, list[KernelText]]):
    with pytest.raises(NotEquivalent, match="kernels, got"):
        verify_ttir(artifact[0], artifact[1], artifact[2][:-1])


# --- floats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", ["all instances", "some instances", "some blocks"])
def test_a_maximum_that_is_added_is_found_in_floats(runs: str, monkeypatch: pytest.MonkeyPatch):
    """exp(x + max) / sum exp(x + max) is the same function, and infinity by infinity on large inputs."""
    from test_interpreter import Build, tensor

    from superopt.transforms.emit.compile import compile_all
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.lower import lower
    from superopt.verify.ttir import floats
    from superopt.verify.ttir.artifact import kernel_texts

    if runs == "some instances":  # whose blocks alone are evaluated, as nothing reads the others
        monkeypatch.setattr(floats, "FULL_WORK", 0)
        monkeypatch.setattr(floats, "evaluate", None)
    if runs == "some blocks":  # as for programs that are too large: of kernels of the inputs
        monkeypatch.setattr(floats, "MOST_WORK", 0)
    x, build = tensor((64, 256), "f32", "x"), Build()
    t = build.tile(x, (4, 256), (0,), ())
    e = build("exp", build("sub", t, build("reduce_max", t, dims=(1,), keepdims=True)))
    build.save(build("div", e, build("reduce_sum", e, dims=(1,), keepdims=True)), 0)
    graph = build.custom([x], (16,), (), (64, 256))
    lowered = lower(graph)
    emitted = emit_program(lowered)
    (text,) = kernel_texts(emitted, compile_all(emitted.kernels, ["sm_90"], jobs=1))
    assert verify_ttir(graph, lowered, [text]).notes == []
    wrong = replace(text, ttir=text.ttir.replace("arith.subf", "arith.addf"))
    with pytest.raises(NotEquivalent, match="in fp64"):
        verify_ttir(graph, lowered, [wrong])


def test_a_maximum_that_leaves_out_the_last_key_is_found_in_floats():
    """That key is alone in a ragged tile: only where its logit is the largest by far is the kernel's result NaN."""
    from test_ragged import attention

    graph = attention(20, 25, 8, 8, 8)
    lowered, (text,) = compiled(graph)
    taken = re.search(r"\n( *)%reduce_max = arith.select (%\w+), ([^\n]*)", text.ttir)
    keys = re.search(r"%in1 = arith.cmpi slt, (%\w+), %\w+ : tensor<(\d+)xi32>", text.ttir)
    kind = re.search(r"%reduce_max = arith.select .* : tensor<(\d+x\d+)xi1>", text.ttir)
    assert taken
    assert keys
    assert kind
    indent, mask, rest = taken.groups()
    span, width = keys.groups()

    def until(last: int) -> KernelText:
        lines = (
            f"%last = arith.constant dense<{last}> : tensor<{width}xi32>",
            f"%seen = arith.cmpi slt, {span}, %last : tensor<{width}xi32>",
            f"%row = tt.expand_dims %seen {{axis = 0 : i32}} : tensor<{width}xi1> -> tensor<1x{width}xi1>",
            f"%rows = tt.broadcast %row : tensor<1x{width}xi1> -> tensor<{kind[1]}xi1>",
            f"%both = arith.andi {mask}, %rows : tensor<{kind[1]}xi1>",
            f"%reduce_max = arith.select %both, {rest}",
        )
        made = "".join(f"\n{indent}{line}" for line in lines)
        return replace(text, ttir=text.ttir[: taken.start()] + made + text.ttir[taken.end() :])

    verify_ttir(graph, lowered, [until(25)])
    for seed in range(6):
        with pytest.raises(NotEquivalent, match="in fp64"):
            verify_ttir(graph, lowered, [until(24)], seed=seed)


@pytest.mark.parametrize("exponent", [9.0, 12.0, -13.0, 64.0])
def test_whole_powers_are_products_that_are_verified(exponent: float):
    from superopt.program import Node, TensorType, Value
    from superopt.transforms.emit.compile import compile_all
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.lower import lower
    from superopt.verify.ttir import verify_compiled

    x = Value(TensorType((16, 32), "f32"), "x")
    node = Node("pow", (x,), (Value(x.type),), {"exponent": exponent})
    graph = KernelGraph("power", [x], [node], [node.result])
    lowered = lower(graph)
    emitted = emit_program(lowered)
    records = verify_compiled(graph, lowered, emitted, compile_all(emitted.kernels, ["sm_90"], jobs=1))
    assert records["sm_90"].end_to_end


def test_kernels_of_a_program_that_needs_identities_of_real_numbers() -> None:
    """The kernels compute the lowered program, and that this is the program's is proved with these identities."""

    def clamped(first: str, bounds: tuple[float, float]) -> KernelGraph:
        b, x = Builder(), value(16, 16)
        steps = [("max", bounds[0]), ("min", bounds[1])]
        y = x
        for op, bound in steps if first == "max" else steps[::-1]:
            y = b(op, y, b.constant(bound))
        return KernelGraph("clamped", [x], b.nodes, [y])

    lowered, texts = compiled(clamped("max", (-1.0, 2.0)))
    assert verify_ttir(clamped("max", (-1.0, 2.0)), lowered, texts).end_to_end
    assert not verify_ttir(clamped("min", (-1.0, 2.0)), lowered, texts).end_to_end
    with pytest.raises(NotEquivalent):
        verify_ttir(clamped("min", (-1.0, 3.0)), lowered, texts)


def folded(op: str, *numbers: float) -> KernelGraph:
    """x times what an operator gives of constants: Triton folds that in fp32."""
    b, x = Builder(), value(16, 16)
    return KernelGraph("folded", [x], b.nodes, [b("mul", x, b(op, *map(b.constant, numbers)))])


@pytest.mark.parametrize(
    "given", [("exp", 2.0), ("sqrt", 2.0), ("log", 3.0), ("mul", 0.1, 0.7), ("add", 0.1, 0.7)]
)
def test_what_constants_alone_give_is_folded(given: tuple[Any, ...]) -> None:
    graph = folded(*given)
    lowered, texts = compiled(graph)
    assert verify_ttir(graph, lowered, texts).end_to_end
    with pytest.raises(NotEquivalent):
        verify_ttir(folded(given[0], *(x + 2.0**-18 for x in given[1:])), lowered, texts)


def test_only_what_is_constant_everywhere_is_folded() -> None:
    field = ImageTriton(0)
    two, x = field.constant(2.0), field.random("x", (1,))
    both = field.move(lambda a, b: np.concatenate([a.reshape(1), b]), two, x)
    made = field.apply("exp", both)
    assert not field.differs(field.apply("exp", x), field.move(lambda a: a[1:], made)).any()
    assert field.differs(made, field.move(lambda a: a.reshape(1)[[0, 0]], field.apply("exp", two))).any()


def test_what_turns_out_to_be_constant_is_not_folded() -> None:
    """No compiler makes a constant of exp(x - x + 1)."""
    field = ImageTriton(0)
    x, one = field.random("x", (4,)), field.constant(1.0)
    made = field.apply("add", field.apply("sub", x, x), one)
    assert not field.differs(made, field.move(lambda a: a.reshape(1)[[0] * 4], one)).any()
    folded = field.move(lambda a: a.reshape(1)[[0] * 4], field.apply("exp", one))
    assert field.differs(field.apply("exp", made), folded).all()


def test_a_choice_of_one_constant_is_that_constant() -> None:
    field = ImageTriton(0)
    x, two = field.random("x", (4,)), field.constant(2.0)
    made = field.apply("max", field.apply("where", x, two, two), field.constant(0.0))
    assert not field.differs(made, field.move(lambda a: a.reshape(1)[[0] * 4], two)).any()


# --- infinities ---------------------------------------------------------------------------------------------


def masked(op: str, *, fault: bool = False) -> KernelGraph:
    """op(s + mask) v, or a softmax of it, with a causal mask of minus infinity."""
    b, s, v = Builder(), value(16, 16), value(16, 16)
    mask = np.where(np.tril(np.ones((16, 16))) > 0, 0.0, -np.inf)
    x = b("add", s, b("constant", value=mask.T if fault else mask, shape=(16, 16), dtype="f32"))
    if op == "softmax":
        e = b("exp", b("sub", x, b("reduce_max", x, dims=(1,), keepdims=True)))
        x = b("div", e, b("reduce_sum", e, dims=(1,), keepdims=True))
    elif op != "mask":
        x = b(op, x)
    out = x if op == "mask" else b("matmul", x, v)
    return KernelGraph("masked", [s, v], b.nodes, [out])


@pytest.mark.parametrize("op", ["softmax", "sigmoid", "tanh", "exp", "mask"])
def test_kernels_of_masked_programs_are_accepted(op: str):
    """Minus infinity is stored to memory, loaded from it, and is 0 or -1 after what has a limit there."""
    graph = masked(op)
    lowered, texts = compiled(graph)
    assert verify_ttir(graph, lowered, texts).end_to_end
    with pytest.raises(NotEquivalent):
        verify_ttir(masked(op, fault=True), lowered, texts)


@pytest.mark.parametrize("op", ["silu", "gelu", "square"])
def test_kernels_that_are_undefined_are_refused(op: str):
    """A field would cancel what a GPU makes NaN: kernel and program agree there, and prove nothing."""
    graph = masked(op)
    lowered, texts = compiled(graph)
    with pytest.raises((IllegalProgram, NotEquivalent), match="undefined"):
        verify_ttir(graph, lowered, texts)
