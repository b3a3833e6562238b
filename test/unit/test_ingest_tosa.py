"""TOSA is lowered to linalg by MLIR's passes, and read like any other linalg."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch_mlir")

import superopt
from superopt.diagnostics import Diagnostics
from superopt.editor.inspect import inspect
from superopt.errors import UnsupportedProgram
from superopt.inputs.programs import read_any, read_program, read_text
from superopt.transforms.ingest.at_extent import DynamicProgram

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


def _of_shapes(operation: str, result: str, *shapes: str) -> str:
    """A program of one operation on `%x`, whose other operands `%s0`, ... are these shapes."""
    lines = [
        f"  %s{i} = tosa.const_shape {{values = dense<[{shape}]> : tensor<{shape.count(',') + 1}xindex>}} : () -> "
        f"!tosa.shape<{shape.count(',') + 1}>\n"
        for i, shape in enumerate(shapes)
    ]
    zero = '  %z = "tosa.const"() <{values = dense<0.0> : tensor<1xf32>}> : () -> tensor<1xf32>\n'
    body = "".join(lines) + zero + f"  %0 = {operation} -> {result}\n  return %0 : {result}\n"
    return f"func.func @shaped(%x: tensor<4x6xf32>) -> {result} {{\n{body}}}\n"


@pytest.mark.parametrize(
    ("program", "ops"),
    [
        (
            _of_shapes("tosa.reshape %x, %s0 : (tensor<4x6xf32>, !tosa.shape<1>)", "tensor<24xf32>", "24"),
            ["reshape"],
        ),
        (
            _of_shapes(
                "tosa.slice %x, %s0, %s1 : (tensor<4x6xf32>, !tosa.shape<2>, !tosa.shape<2>)",
                "tensor<2x3xf32>",
                "1, 2",
                "2, 3",
            ),
            ["slice"],
        ),
        (
            _of_shapes("tosa.tile %x, %s0 : (tensor<4x6xf32>, !tosa.shape<2>)", "tensor<8x18xf32>", "2, 3"),
            ["reshape", "broadcast", "reshape"],
        ),
        (
            _of_shapes(
                "tosa.pad %x, %s0, %z : (tensor<4x6xf32>, !tosa.shape<4>, tensor<1xf32>)",
                "tensor<5x8xf32>",
                "1, 0, 0, 2",
            ),
            ["constant", "concat", "constant", "concat"],
        ),
    ],
)
def test_operands_that_are_shapes_are_read(program: str, ops: list[str]) -> None:
    assert [n.op for n in read_text(program, Diagnostics()).nodes] == ops


DYNAMIC = """func.func @grows(%x: tensor<?x64xf32>, %y: tensor<1x64xf32>) -> tensor<?x64xf32> {
  %0 = tosa.exp %x : (tensor<?x64xf32>) -> tensor<?x64xf32>
  %1 = tosa.add %0, %y : (tensor<?x64xf32>, tensor<1x64xf32>) -> tensor<?x64xf32>
  return %1 : tensor<?x64xf32>
}
"""
SPECIAL = DYNAMIC.replace(
    "  return",
    "  %s = tosa.const_shape {values = dense<[8, 128]> : tensor<2xindex>} : () -> !tosa.shape<2>\n"
    "  %2 = tosa.reshape %0, %s : (tensor<?x64xf32>, !tosa.shape<2>) -> tensor<8x128xf32>\n  return",
)


def test_extents_may_be_dynamic(tmp_path: Path) -> None:
    file = tmp_path / "x.mlir"
    file.write_text(DYNAMIC)
    program = read_any(file, Diagnostics())
    assert isinstance(program, DynamicProgram)
    for n in (3, 13):
        graph = program.at({"n": n}, Diagnostics())
        assert [n.op for n in graph.nodes if n.op != "reshape"] == ["exp", "add"]
        assert graph.outputs[0].shape == (n, 64)
    file.write_text(SPECIAL)
    with pytest.raises(UnsupportedProgram, match=r"'tosa.reshape' op cannot reshape") as caught:
        superopt.optimize(file, dynamic="n=1..16", store=None)
    assert caught.value.location.file == str(file)


def test_an_editor_prices_it() -> None:
    found = inspect(PROGRAM, "x.mlir", "sm_90")
    assert not found.messages
    assert any("us predicted" in said for said in found.operations.values())
