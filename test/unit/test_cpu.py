"""Lowered programs compiled for the CPU compute what the operator table says, and a crash takes nobody along."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import interpreter
import numpy as np
import pytest
import test_interpreter
from certify_support import program
from random_programs import random_kernel
from test_bands import fused, reference
from test_in_place import updated_cache
from test_mutants import whole_numbers
from test_nests import cases
from test_ragged import attention, linear

from superopt.numerics.child import ChildFailed
from superopt.numerics.cpu import Bound, Cpu, run
from superopt.program import (
    UNBOUNDED,
    Band,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    Statement,
    Store,
    TensorType,
    TileProgram,
    Value,
    Window,
)
from superopt.spec import check_kernel
from superopt.transforms.cpu.source import CpuKernel
from superopt.transforms.derivation.mutants.guards import guarded
from superopt.transforms.lower import lower
from superopt.verify.domains import FloatDomain, round_to
from superopt.verify.evaluate import evaluate

Array = np.ndarray[Any, Any]

# The programs that Triton's interpreter is tried on: every operator, and random block graphs among them.
globals().update({name: test for name, test in vars(test_interpreter).items() if name.startswith("test_")})


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def interpret(graph: KernelGraph, inputs: Sequence[Array]) -> list[Array]:
        return run(lower(graph), inputs)

    monkeypatch.setattr(interpreter, "interpret", interpret)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_numbers_are_rounded_to_the_nearest(dtype: str) -> None:
    """On every CPU: most lack instructions for bf16."""
    ends = [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        1 + 2.0**-8,
        1 + 3 * 2.0**-8,
        1 + 2.0**-11,
        2.0**-149,
        3.3895e38,
        65519.0,
    ]
    drawn = np.random.default_rng(0).normal(size=54) * 10.0 ** np.arange(-27, 27)
    x = np.concatenate([np.array(ends), drawn]).astype(np.float32)
    graph = program([x.shape], lambda f, given: f("cast", given, dtype=dtype))
    (got,) = run(lower(graph), [x])
    with np.errstate(over="ignore"):
        assert np.array_equal(got, round_to(x, dtype))


@pytest.fixture
def cpu() -> Iterator[Cpu]:
    process = Cpu(timeout=3)
    yield process
    process.close()


def kernel(text: str) -> CpuKernel:
    return CpuKernel("planted", text, (4,), (True,), ())


ADDS_ONE = """func.func @kernel(%x: memref<1xf32>) {
  %one = arith.constant 1.0 : f32
  %before = affine.load %x[0] : memref<1xf32>
  %after = arith.addf %before, %one : f32
  affine.store %after, %x[0] : memref<1xf32>
  return
}"""
ABORTS = """func.func private @abort()
func.func @kernel(%x: memref<1xf32>) {
  func.call @abort() : () -> ()
  return
}"""
HANGS = """func.func @kernel(%x: memref<1xf32>) {
  cf.br ^again
^again:
  cf.br ^again
}"""
WRITES_ANYWHERE = """func.func @kernel(%x: memref<1xf32>) {
  %far = arith.constant 1099511627776 : index
  %one = arith.constant 1.0 : f32
  memref.store %one, %x[%far] : memref<1xf32>
  return
}"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ABORTS, "the compiled kernel's process ended with SIGABRT"),
        (HANGS, "the compiled kernel took more than 3 s"),
        (WRITES_ANYWHERE, "the compiled kernel's process ended with SIGSEGV"),
        ("func.func @kernel(", "MLIRError"),
    ],
    ids=["abort", "hang", "crash", "text"],
)
def test_what_ends_a_kernel_is_an_error_and_the_next_one_runs(cpu: Cpu, text: str, says: str) -> None:
    with pytest.raises(ChildFailed, match=says):
        cpu.launch(Bound([np.zeros(1, np.float32)], [(kernel(text), [0])]))
    x = np.full(1, 41, np.float32)
    cpu.launch(Bound([x], [(kernel(ADDS_ONE), [0])]))
    assert x[0] == 42


def compared(graph: KernelGraph, seed: int) -> None:
    """Compiled results of the lowered program against those of the program in fp64."""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    domain = FloatDomain()
    expected = evaluate(graph, [domain.tensor(x.astype(np.float64)) for x in inputs], domain)
    for got, want in zip(run(lower(graph), inputs), expected, strict=True):
        close = np.isfinite(want.planes[0])
        np.testing.assert_allclose(got[close], want.planes[0][close], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed: int) -> None:
    compared(random_kernel(random.Random(seed)), seed)


@pytest.mark.parametrize("seed", range(12))
def test_random_extents_and_tiles_that_divide_nothing(seed: int) -> None:
    draw = random.Random(seed)
    rows, keys, depth = (draw.randint(1, 50) for _ in range(3))
    compared(attention(rows, keys, depth, draw.randint(1, rows), draw.randint(1, keys)), seed)
    tiles = draw.randint(1, rows), draw.randint(1, depth), draw.randint(1, keys)
    for whole in (False, True):
        compared(linear(rows, depth, keys, tiles, whole), seed)


def test_rows_updated_in_the_memory_of_an_input() -> None:
    """A cache of which every block writes some rows: the others stay."""
    graph = updated_cache()
    lowered = lower(graph)
    assert any(isinstance(n.body, TileProgram) and n.body.aliases for n in lowered.nodes)
    compared(graph, 0)


@pytest.mark.parametrize("tiles", [(16, 8), (8, 16)])
@pytest.mark.parametrize(
    ("lower_", "upper", "outside"),
    [(-UNBOUNDED, 0, -math.inf), (-30, 16, -math.inf), (3, UNBOUNDED, -1e4), (-UNBOUNDED, -5, -2.0)],
)
def test_bands_are_computed(tiles: tuple[int, int], lower_: int, upper: int, outside: float) -> None:
    """Kernels take no tensor for a mask by column - row: every row sees one of the first eight keys."""
    band = Band(lower_, upper, 0.0, outside)
    graph = fused(37, 53, 16, tiles, band)
    drawn = np.random.default_rng(0)
    arrays = [drawn.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    (made,) = run(lower(graph), arrays)
    np.testing.assert_allclose(made, reference(arrays, band), atol=1e-5)


def test_a_kernel_that_reads_only_a_band() -> None:
    x, out = Buffer(SQUARE, "x", computed=Band(-1, 1, 0.5, math.inf)), Buffer(SQUARE, "out")
    (a,) = [Value(SQUARE)]
    body: list[Statement] = [Load(a, x, ALL), Store(out, ALL, a)]
    made = written_by(body, Buffer(SQUARE, "tile", "chip"), x, out)
    np.testing.assert_array_equal(made, Band(-1, 1, 0.5, math.inf).elements((4, 4)))


# --- tile programs whose statements must not be reordered -------------------------------------------------


def written_by(body: Sequence[Statement], local: Buffer, x: Buffer, out: Buffer) -> Array:
    """What a program of one block leaves in `out`, given 0 to 15 as a matrix."""
    program = TileProgram("f", [x, out], 1, [local], list(body))
    given, result = Value(x.type), Value(out.type)
    node = Node("tiled", (given,), (result,), body=program)
    graph = KernelGraph("f", [given], [node], [result])
    check_kernel(graph)
    return run(graph, [np.arange(16, dtype=np.float32).reshape(4, 4)])[0]


SQUARE = TensorType((4, 4), "f32")
ALL = (Window(4), Window(4))


def test_what_was_read_of_a_tile_stays_when_the_tile_changes() -> None:
    x, out, local = Buffer(SQUARE, "x"), Buffer(SQUARE, "out"), Buffer(SQUARE, "tile", "chip")
    values = [Value(SQUARE) for _ in range(7)]
    a, old, turned, new, total, trip, both = values
    turning: list[Statement] = [
        Load(a, x, ALL),
        Store(local, ALL, a),
        Load(old, local, ALL),
        Compute("transpose", (old,), turned, {"perm": (1, 0)}),
        Store(local, ALL, turned),  # in place, element by element, it would read what it has written
        Load(new, local, ALL),
        Compute("sub", (new, old), total),
        Store(out, ALL, total),
    ]
    matrix = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(written_by(turning, local, x, out), matrix.T - matrix)
    again: list[Statement] = [
        Load(trip, local, ALL),
        Compute("add", (trip, old), both),
        Store(local, ALL, both),
    ]
    adding: list[Statement] = [
        *turning[:3],
        Loop(LoopVar("i"), 0, 3, 1, parallel=False, body=again),
        Load(new, local, ALL),
        Store(out, ALL, new),
    ]
    np.testing.assert_array_equal(written_by(adding, local, x, out), 4 * matrix)


@pytest.mark.parametrize("case", cases())
def test_corrections_in_one_kernel(case: str) -> None:
    """Guards on loads and on the store, floors and second passes: what the source computes, exactly."""
    mutant, _ = cases()[case]
    for name, made in guarded(mutant.source, mutant.graph):
        arrays = [np.asarray(x, np.float32) % 11 for x in whole_numbers(mutant.source)]
        (found,) = run(lower(made), arrays)
        domain = FloatDomain()
        (expected,) = evaluate(mutant.source, [domain.tensor(x.astype(np.float64)) for x in arrays], domain)
        np.testing.assert_array_equal(found, expected.planes[0], err_msg=name)
