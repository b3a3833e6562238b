"""A fault that ordinary inputs never show, planted where a masked attention of 8192 x 8192 comes from elsewhere.

relu(q - 1000) is zero for every input that a numeric check draws. It is planted in a schedule, in an entry of the
store and in a bundle.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.errors import NotEquivalent
from superopt.naming import names_of
from superopt.program import KernelGraph
from superopt.verify import program_hash

EXTENT, WIDTH = 8192, 64
PLANTED = """
  %t = "kernel.constant"() {value = 1000.0 : f64, shape = array<i64>, dtype = "f32"} : () -> tensor<f32>
  %far = "kernel.sub"(%q, %t) : (QUERIES, tensor<f32>) -> QUERIES
  %r = "kernel.relu"(%far) : (QUERIES) -> QUERIES
  %p = "kernel.add"(%q, %r) : (QUERIES, QUERIES) -> QUERIES
"""
ATTENTION = """
func.func @attention(%q: QUERIES, %k: QUERIES, %v: QUERIES, %mask: SCORES) -> QUERIES {FAULT
  %s = "kernel.matmul"(%OPERAND, %k) {transpose_b = true} : (QUERIES, QUERIES) -> SCORES
  %a = "kernel.add"(%s, %mask) : (SCORES, SCORES) -> SCORES
  %m = "kernel.reduce_max"(%a) {dims = array<i64: 1>, keepdims = true} : (SCORES) -> ROWS
  %d = "kernel.sub"(%a, %m) : (SCORES, ROWS) -> SCORES
  %e = "kernel.exp"(%d) : (SCORES) -> SCORES
  %l = "kernel.reduce_sum"(%e) {dims = array<i64: 1>, keepdims = true} : (SCORES) -> ROWS
  %w = "kernel.div"(%e, %l) : (SCORES, ROWS) -> SCORES
  %o = "kernel.matmul"(%w, %v) : (SCORES, QUERIES) -> QUERIES
  return %o : QUERIES
}
"""


def attention(*, planted: bool) -> KernelGraph:
    text = ATTENTION.replace("FAULT", PLANTED if planted else "").replace("OPERAND", "p" if planted else "q")
    shapes = {"QUERIES": (EXTENT, WIDTH), "SCORES": (EXTENT, EXTENT), "ROWS": (EXTENT, 1)}
    for name, (rows, columns) in shapes.items():
        text = text.replace(name, f"tensor<{rows}x{columns}xf32>")
    return read(text)


def test_in_a_schedule():
    from superopt.dialects.writer import to_text
    from superopt.pipeline import replay
    from superopt.report import Schedule

    graph, planted = attention(planted=False), attention(planted=True)
    schedule = Schedule(
        superopt="0", target="sm_90", seed=0, program_sha256=program_hash(graph),
        optimized=to_text(planted), names=names_of(planted),
    )  # fmt: skip
    with pytest.raises(NotEquivalent, match="not equivalent"):
        replay(graph, schedule, Diagnostics())


def test_in_an_entry_of_the_store():
    from superopt.pipeline import (
        Superoptimize,
        _reused,  # pyright: ignore[reportPrivateUsage]
    )
    from superopt.run import context
    from superopt.run.reuse import Known

    graph, planted = attention(planted=False), attention(planted=True)
    run = context.start(graph, Superoptimize(store=None), Diagnostics(), lambda: False)
    assert _reused(graph, Known(planted, 1e-9, enough=True), run) is None
    assert "was dropped: not equivalent" in run.report.remarks[-1]


def test_in_a_bundle(tmp_path: Path):
    from superopt.dialects.writer import to_text
    from superopt.transforms.emit import write_bundle
    from superopt.transforms.emit.compile import compile_all
    from superopt.transforms.emit.program_source import emit_program
    from superopt.transforms.lower import lower
    from superopt.verify.bundle import verify_bundle

    graph, lowered = attention(planted=False), lower(attention(planted=True))
    folder = write_bundle(
        tmp_path / "b",
        original=graph,
        lowered=lowered,
        compiled=compile_all(emit_program(lowered).kernels, ["sm_90"]),
        original_mlir=to_text(graph),
        lowered_mlir=to_text(lowered),
        artifact={},
    )
    with pytest.raises(NotEquivalent, match="computes the program: the programs differ"):
        verify_bundle(graph, folder)
