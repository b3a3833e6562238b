"""TOSA is lowered to linalg by MLIR's passes, and read like any other linalg."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch_mlir")

from superopt.diagnostics import Diagnostics
from superopt.errors import UnsupportedProgram
from superopt.inputs.programs import read_program, read_text

PROGRAM = """func.func @mlp(%x: tensor<1x16x64xf32>, %w: tensor<1x64x32xf32>) -> tensor<1x16x32xf32> {
  %z = "tosa.const"() <{values = dense<0.0> : tensor<1xf32>}> : () -> tensor<1xf32>
  %0 = tosa.matmul %x, %w, %z, %z : (tensor<1x16x64xf32>, tensor<1x64x32xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x16x32xf32>
  %1 = tosa.exp %0 : (tensor<1x16x32xf32>) -> tensor<1x16x32xf32>
  %2 = tosa.reduce_sum %1 {axis = 2 : i32} : (tensor<1x16x32xf32>) -> tensor<1x16x1xf32>
  %3 = tosa.add %1, %2 : (tensor<1x16x32xf32>, tensor<1x16x1xf32>) -> tensor<1x16x32xf32>
  return %3 : tensor<1x16x32xf32>
}
"""
FOREIGN = PROGRAM.replace(
    "tosa.exp %0 :",
    'tosa.custom %0 {domain_name = "d", operator_name = "n", implementation_attrs = ""} :',
)


def test_tosa_is_read() -> None:
    graph = read_text(PROGRAM, Diagnostics())
    assert [n.op for n in graph.nodes] == ["matmul", "exp", "reduce_sum", "add"]
    assert [str(v.name) for v in graph.inputs] == ["x", "w"]


def test_what_is_not_lowered_is_said(tmp_path: Path) -> None:
    file = tmp_path / "x.mlir"
    file.write_text(FOREIGN)
    with pytest.raises(UnsupportedProgram, match=r"MLIR cannot lower TOSA.*'tosa.custom'$") as caught:
        read_program(str(file), Diagnostics())
    assert caught.value.location.line == 1
