"""Linalg beside its execution: a fault planted in the reader is found, at its place, and nothing is silent."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
# Faults are planted inside.

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ingest_support import ops, read_text

from superopt.errors import UnsupportedProgram
from superopt.program import TensorType, Value
from superopt.transforms.ingest import against_execution, against_source, bodies, run_linalg
from superopt.transforms.ingest.linalg_reader import LinalgReader
from superopt.transforms.ingest.run_in_llvm import Tensor, execute

CHAIN = """
func.func @f(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) {
  %0 = math.tanh %x : tensor<4x8xf32>
  %e = tensor.empty() : tensor<4x8xf32>
  %z = arith.constant 0.0 : f32
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = linalg.matmul ins(%0, %w : tensor<4x8xf32>, tensor<8x8xf32>) outs(%i : tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = linalg.softmax dimension(1) ins(%1 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %e1 = tensor.empty() : tensor<4xf32>
  %i1 = linalg.fill ins(%z : f32) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
  %r = linalg.reduce ins(%0 : tensor<4x8xf32>) outs(%i1 : tensor<4xf32>) dimensions = [1]
    (%a: f32, %b: f32) { %q = arith.addf %a, %b : f32 linalg.yield %q : f32 }
  return %s, %r : tensor<4x8xf32>, tensor<4xf32>
}
"""


def test_a_faithful_reading_of_linalg_is_not_remarked_on() -> None:
    graph, said = read_text(CHAIN)
    assert ops(graph)[:2] == ["tanh", "matmul"]
    assert said.messages == []


def test_a_fault_of_the_linalg_reader_is_an_error_at_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bodies._UNARY, "math.tanh", "erf")
    with pytest.raises(
        UnsupportedProgram, match=r"expected to read what the linalg program computes"
    ) as raised:
        read_text(CHAIN)
    assert (raised.value.location.file, raised.value.location.line) == ("input.mlir", 3)


def test_what_is_lost_by_rounding_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
      %c = arith.constant dense<1.0e-6> : tensor<8xf32>
      %0 = arith.mulf %x, %c : tensor<8xf32>
      %1 = math.log1p %0 : tensor<8xf32>
      return %1 : tensor<8xf32>
    }"""
    assert ops(read_text(text)[0]) == ["mul", "log1p"]

    def lossy(self: Any, name: str, args: Any, element: str, forms: Any) -> Any:
        if name == "math.log1p":
            one = bodies.Aligned(self.build.constant(1.0, "f32", ()), ())
            return self.space.apply("log", self.space.apply("add", args[0], one))
        return kept(self, name, args, element, forms)

    kept = bodies.Body._apply
    monkeypatch.setattr(bodies.Body, "_apply", lossy)
    with pytest.raises(UnsupportedProgram, match=r"result 0 is off by \S+ in its own dtypes"):
        read_text(text)


# The sum nearly cancels what it starts from; rounding the terms in another order loses most of it.
CANCELS = """
func.func @f(%x: tensor<1x3xf16>) -> tensor<1xf16> {
  %h = arith.constant dense<-0.5> : tensor<1x3xf16>
  %0 = arith.mulf %x, %h : tensor<1x3xf16>
  %e = tensor.empty() : tensor<1xf16>
  %c = arith.constant 0.5 : f16
  %i = linalg.fill ins(%c : f16) outs(%e : tensor<1xf16>) -> tensor<1xf16>
  %r = linalg.reduce ins(%0 : tensor<1x3xf16>) outs(%i : tensor<1xf16>) dimensions = [1]
    (%a: f16, %b: f16) { %q = arith.addf %a, %b : f16 linalg.yield %q : f16 }
  return %r : tensor<1xf16>
}
"""


def test_a_sum_that_cancels_has_the_tolerance_of_its_roundings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_text(CANCELS)[1].messages == []
    with monkeypatch.context() as patch:
        patch.setattr(against_execution, "DRAWS", 0)  # one run of this source happens to lose nothing
        with pytest.raises(UnsupportedProgram, match=r"in its own dtypes on 'ordinary' inputs"):
            read_text(CANCELS)
    kept = bodies.Body._apply

    def wrong(self: Any, name: str, args: Any, *rest: Any) -> Any:
        scaled = kept(self, name, args, *rest)
        near = bodies.Aligned(self.build.constant(1.02, "f16", ()), ())
        return self.space.apply("mul", scaled, near) if name == "arith.mulf" else scaled

    monkeypatch.setattr(bodies.Body, "_apply", wrong)
    with pytest.raises(UnsupportedProgram, match=r"expected to read what the linalg program computes"):
        read_text(CANCELS)


def test_a_fault_in_an_opaque_operation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = math.floor %x : tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    graph, said = read_text(text)
    assert ops(graph) == ["extern"]
    assert len(said.messages) == 1
    monkeypatch.setattr(run_linalg, "scalar_operation", lambda operation, args: np.ceil(args[0]))
    with pytest.raises(UnsupportedProgram, match=r"expected to read what the linalg program computes"):
        read_text(text)


def test_programs_in_bf16_are_compared() -> None:
    """On every CPU: most lack instructions for it, and LLVM's own function is in no library of ours."""
    text = """func.func @f(%x: tensor<4xbf16>) -> tensor<4xbf16> {
      %e = tensor.empty() : tensor<4xbf16>
      %0 = linalg.exp ins(%x : tensor<4xbf16>) outs(%e : tensor<4xbf16>) -> tensor<4xbf16>
      %1 = linalg.add ins(%0, %x : tensor<4xbf16>, tensor<4xbf16>) outs(%e : tensor<4xbf16>) -> tensor<4xbf16>
      return %1 : tensor<4xbf16>
    }"""
    assert not read_text(text)[1].messages


def test_what_is_not_compared_is_remarked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, reason in (("MOST_WORK", "operations, of at most"), ("MOST_ELEMENTS", "elements, of at most")):
        with monkeypatch.context() as patch:
            patch.setattr(against_execution, name, 10)
            (message,) = read_text(CHAIN)[1].messages
        assert "not compared with an execution of the source" in message.message
        assert reason in message.message
    monkeypatch.setattr(against_execution, "SECONDS", 0.0)
    (message,) = read_text(CHAIN)[1].messages
    assert message.message.endswith("it takes more than 0 s")


def test_the_execution_is_that_of_mlir() -> None:
    """Signs, ties, every float type; and what kills a process kills none of ours."""

    def run(body: str, x: Any, element: str, result: str) -> Any:
        text = f"""func.func @f(%x: tensor<4x{element}>) -> tensor<4x{result}> {{
            {body}
            return %r : tensor<4x{result}>
        }}"""
        ((wide, narrow),) = execute(
            text.encode(), "f", [Tensor((4,), result)], [Tensor((4,), element)], [[np.array(x)]], seconds=20
        )
        return wide[0].tolist(), narrow[0].tolist()

    unsigned = "%r = arith.uitofp %x : tensor<4xi8> to tensor<4xf32>"
    assert run(unsigned, [1, -1, 3, -128], "i8", "f32")[0] == [1, 255, 3, 128]
    for element in ("f16", "bf16", "f32"):
        wide, narrow = run(
            f"%r = math.roundeven %x : tensor<4x{element}>", [0.5, 1.5, -2.5, 3], element, element
        )
        assert wide == narrow == [0, 2, -2, 3]
    third = "%c = arith.constant dense<3.0> : tensor<4xbf16>\n%r = arith.divf %x, %c : tensor<4xbf16>"
    wide, narrow = run(third, [1, 2, 4, 8], "bf16", "bf16")
    np.testing.assert_allclose(wide, np.array([1, 2, 4, 8]) / 3, rtol=1e-15)
    np.testing.assert_allclose(narrow, np.array([1, 2, 4, 8]) / 3, rtol=2**-8)
    assert max(abs(np.subtract(wide, narrow))) > 1e-4
    divided = "%c = arith.constant dense<7> : tensor<4xi32>\n%r = arith.divsi %c, %x : tensor<4xi32>"
    with pytest.raises(UnsupportedProgram, match=r"it ends with SIGFPE"):
        run(divided, [1, 2, 0, 3], "i32", "i32")
    with pytest.raises(UnsupportedProgram, match=r"MLIR does not lower it"):
        run('%r = "other.op"(%x) : (tensor<4xf32>) -> tensor<4xf32>', [1, 2, 0, 3], "f32", "f32")


# The mean of 4096 features, heads of 256, a square weight: more than is executed.
LARGE = """
#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
func.func @f(%x: tensor<512x4096xf32>, %w: tensor<4096x4096xf32>) -> tensor<512x16x256xf32> {
  %z = arith.constant 0.0 : f32
  %n = arith.constant 4096.0 : f32
  %e1 = tensor.empty() : tensor<512xf32>
  %i1 = linalg.fill ins(%z : f32) outs(%e1 : tensor<512xf32>) -> tensor<512xf32>
  %s = linalg.reduce ins(%x : tensor<512x4096xf32>) outs(%i1 : tensor<512xf32>) dimensions = [1]
    (%a: f32, %b: f32) { %q = arith.addf %a, %b : f32 linalg.yield %q : f32 }
  %e = tensor.empty() : tensor<512x4096xf32>
  %c = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
    ins(%x, %s : tensor<512x4096xf32>, tensor<512xf32>) outs(%e : tensor<512x4096xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.divf %b, %n : f32
      %d = arith.subf %a, %m : f32
      linalg.yield %d : f32
  } -> tensor<512x4096xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<512x4096xf32>) -> tensor<512x4096xf32>
  %p = linalg.matmul ins(%c, %w : tensor<512x4096xf32>, tensor<4096x4096xf32>)
    outs(%i : tensor<512x4096xf32>) -> tensor<512x4096xf32>
  %t = math.tanh %p : tensor<512x4096xf32>
  %r = tensor.expand_shape %t [[0], [1, 2]] output_shape [512, 16, 256]
    : tensor<512x4096xf32> into tensor<512x16x256xf32>
  return %r : tensor<512x16x256xf32>
}
"""


def test_a_large_source_is_compared_at_smaller_extents() -> None:
    graph, said = read_text(LARGE)
    assert ops(graph)[:2] == ["reduce_mean", "sub"]
    (message,) = said.messages
    assert "the reading is compared with an execution of the source at smaller extents" in message.message
    assert "(5 for 16, 7 for 256, 11 for 512, 35 for 4096)" in message.message


@pytest.mark.parametrize("fault", ["tanh", "sum for difference"])
def test_a_fault_of_the_reader_is_found_on_a_large_source(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "tanh":
        monkeypatch.setitem(bodies._UNARY, "math.tanh", "erf")
    else:
        kept = bodies.Body._apply
        monkeypatch.setattr(
            bodies.Body,
            "_apply",
            lambda self, name, args, *rest: kept(
                self, "arith.addf" if name == "arith.subf" else name, args, *rest
            ),
        )
    with pytest.raises(UnsupportedProgram, match="expected to read what the linalg program") as raised:
        read_text(LARGE)
    before = LARGE.partition("%t = " if fault == "tanh" else "%c = ")[0]
    assert raised.value.location.line == before.count("\n") + 1


def test_a_fault_at_large_extents_alone_is_not_called_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read as something else at smaller extents says nothing of the large source."""
    kept = LinalgReader._read

    def wrong(self: Any, operation: Any) -> Any:
        if operation.name == "math.tanh" and operation.results[0].type.shape[0] > 100:
            return [self.build.emit("erf", self.value(operation.operands[0]))]
        return kept(self, operation)

    monkeypatch.setattr(LinalgReader, "_read", wrong)
    (message,) = read_text(LARGE)[1].messages
    assert "not compared with an execution of the source" in message.message
    assert "at smaller extents, it is read as other operators" in message.message


def test_what_depends_on_an_extent_keeps_it() -> None:
    """Here 400, as the body asks for the index."""
    text = """
    #map = affine_map<(i, j) -> (i, j)>
    func.func @f(%x: tensor<900x400xf32>, %y: tensor<64x800x800xf32>)
        -> (tensor<900x400xf32>, tensor<64x800x800xf32>) {
      %e = tensor.empty() : tensor<900x400xf32>
      %0 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<900x400xf32>) outs(%e : tensor<900x400xf32>) {
        ^bb0(%a: f32, %o: f32):
          %j = linalg.index 1 : index
          %c = arith.constant 200 : index
          %z = arith.constant 0.0 : f32
          %b = arith.cmpi slt, %j, %c : index
          %s = arith.select %b, %a, %z : f32
          linalg.yield %s : f32
      } -> tensor<900x400xf32>
      %1 = math.tanh %y : tensor<64x800x800xf32>
      return %0, %1 : tensor<900x400xf32>, tensor<64x800x800xf32>
    }"""
    (message,) = read_text(text)[1].messages
    assert "(5 for 64, 7 for 800, 11 for 900)" in message.message


def test_an_infinity_of_the_source_is_compared() -> None:
    """The tolerance ignores what is not finite; a finite number, or the other infinity, in its place is a fault."""
    of, source = Value(TensorType((3,), "f32")), np.array([1.0, np.inf, -np.inf])
    assert against_source.judge(of, source, "ordinary", source, source).ratio <= 1
    for wrong in ([1.0, 5.0, -np.inf], [1.0, np.inf, np.inf], [1.0, np.inf, np.nan]):
        assert against_source.judge(of, np.array(wrong), "ordinary", source, source).ratio > 1
