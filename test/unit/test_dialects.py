"""Reading, writing and the rules of each level, on MLIR text."""

from __future__ import annotations

import numpy as np
import pytest
from programs import ALL_TEXTS, ATTENTION_ONLINE, FUSED_AND_CONCAT, RMSNORM_LINEAR_CUSTOM, TILED_SCALE

from superopt.dialects import base, reader, writer
from superopt.dialects.mlir import ir
from superopt.errors import SuperoptError
from superopt.operators import OPERATORS, infer_type
from superopt.program import BlockGraph, KernelGraph, Node, TensorType, Value


@pytest.mark.parametrize("name", ALL_TEXTS)
def test_round_trip(name: str) -> None:
    graph = reader.read(ALL_TEXTS[name])
    text = writer.to_text(graph)
    assert writer.to_text(reader.read(text)) == writer.to_text(reader.read(writer.to_text(reader.read(text))))
    assert text.count("\n") == writer.to_text(reader.read(text)).count("\n")


def test_locations_survive_modules() -> None:
    graph = reader.read(RMSNORM_LINEAR_CUSTOM, "p.mlir")
    again = reader.read(writer.to_module(graph))
    (before,), (after,) = graph.nodes, again.nodes
    assert str(before.location) == str(after.location) == "p.mlir:3:8"
    assert isinstance(before.body, BlockGraph)
    assert isinstance(after.body, BlockGraph)
    assert [n.location for n in before.body.nodes] == [n.location for n in after.body.nodes]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_dense_and_odd_constants_round_trip_exactly(dtype: str) -> None:
    rng = np.random.default_rng(0)
    dense = rng.integers(-8, 8, (2, 3)).astype(np.float32) / 4
    for value in (dense, 0.1, 1e-30, 1e300, float("-inf"), 3.0, -0.0):
        shape = dense.shape if isinstance(value, np.ndarray) else ()
        result = Value(TensorType(shape, dtype))
        node = Node("constant", (), (result,), {"value": value, "shape": shape, "dtype": dtype})
        read = reader.read(writer.to_text(KernelGraph("f", [], [node], [result]))).nodes[0].attrs["value"]
        assert np.array_equal(np.asarray(read), np.asarray(value)), value


REJECTED = [
    # (program, before, after, place and message)
    (RMSNORM_LINEAR_CUSTOM, "imap = array<i64: 1>", "imap = array<i64: 2>", "7:11: error: 'iterator' expected 'imap' entries"),
    (RMSNORM_LINEAR_CUSTOM, "fmap = array<i64: 0>", "fmap = array<i64: -2>", "'fmap' entries in [-1, 2), got -2"),
    (RMSNORM_LINEAR_CUSTOM, "imap = array<i64: 1>", "imap = array<i64: 1, 0>", "'imap' of 1 entries, got 2"),
    (RMSNORM_LINEAR_CUSTOM, "grid = array<i64: 96>", "grid = array<i64: 95>", "cover its extent 6144"),
    (RMSNORM_LINEAR_CUSTOM, "loops = array<i64: 64>", "loops = array<i64: 63>", "cover its extent 4096"),
    (RMSNORM_LINEAR_CUSTOM, "loops = array<i64: 64>", "loops = array<i64: 0>", "positive loop extents"),
    (RMSNORM_LINEAR_CUSTOM, "grid = array<i64: 96>", "grid = array<i64: 2, 2, 2, 12>", "one to three dimensions, got 4"),
    (RMSNORM_LINEAR_CUSTOM, "omap = array<i64: 1>", "omap = array<i64: -1>", "two blocks write one output"),
    (RMSNORM_LINEAR_CUSTOM, "omap = array<i64: 1>", "omap = array<i64: 0>", "a result of type tensor<1536x64xf16>"),
    (RMSNORM_LINEAR_CUSTOM, "(%acc, %r)", "(%p, %r)", "operands of one stage, got values inside and after loop 0"),
    (RMSNORM_LINEAR_CUSTOM, "block.save\"(%y)", "block.save\"(%p)", "a value after every loop it varies over"),
    (RMSNORM_LINEAR_CUSTOM, 'kind = "sum", loop = 0} : (tensor<16x64', 'kind = "sum", loop = 1} : (tensor<16x64', "'loop' in [0, 1), got 1"),
    (RMSNORM_LINEAR_CUSTOM, 'kind = "sum"', 'kind = "product"', "'kind' of sum, max, concat, rescaled, got product"),
    (RMSNORM_LINEAR_CUSTOM, '"block.iterator"(%a)', '"block.iterator"(%x)', "expected a value of this region"),
    (RMSNORM_LINEAR_CUSTOM, "4096xf16", "?xf16", "expected static extents"),
    (RMSNORM_LINEAR_CUSTOM, "xf16", "xf64", "expected bf16, f16, f32, got f64"),
    (RMSNORM_LINEAR_CUSTOM, "block.rsqrt", "block.frobnicate", "unregistered operation 'block.frobnicate'"),
    (RMSNORM_LINEAR_CUSTOM, "superopt.custom", "superopt.costum", "got 'superopt.costum'"),
    (RMSNORM_LINEAR_CUSTOM, "keepdims = true", "keepdims = 3", "'keepdims' of kind bool, got 3"),
    (RMSNORM_LINEAR_CUSTOM, "dims = array<i64: 1>", "dims = array<i64: 2>", "distinct reduction dims in [0, 2), got [2]"),
    (RMSNORM_LINEAR_CUSTOM, "value = 4096.0 : f64", "valu = 4096.0 : f64", "expected attribute 'value'"),
    (ATTENTION_ONLINE, "(%z, %m)", "(%z, %rm)", "a 'running_max' of the same loop as second operand, got reduce_max"),
    (ATTENTION_ONLINE, "(%n, %m) {kind = \"rescaled\", loop = 0} : (tensor<32x64xf16>, tensor<32x1xf16>)", "(%n) {kind = \"rescaled\", loop = 0} : (tensor<32x64xf16>)", "'accumulate' expected 2 operands, got 1"),
    (FUSED_AND_CONCAT, "dim = 1", "dim = 0", "expected shapes equal but for dimension 0"),
    (FUSED_AND_CONCAT, 'reason = "not in the operator table"', "reason = 3", "attribute 'reason' (a string), got 3"),
    (FUSED_AND_CONCAT, "thread.neg", "block.neg", "expected an operation of the thread dialect, got 'block.neg'"),
    (TILED_SCALE, "stop = 30", "stop = 40", "windows that start within extent 30"),
    (TILED_SCALE, '"tile.store"(%u, %o, %i)', '"tile.store"(%u, %a, %i)', "a store to an output or a local, got input"),
    (TILED_SCALE, "step = 16", "step = 0", "expected a loop with trips"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "before", "after", "message"), REJECTED, ids=[r[2][:40] for r in REJECTED])
def test_rejected_with_a_located_message(text: str, before: str, after: str, message: str) -> None:
    assert before in text
    with pytest.raises(SuperoptError) as caught:
        reader.read(text.replace(before, after), "p.mlir")
    assert message in str(caught.value)
    assert str(caught.value).startswith("p.mlir:")


def test_shared_memory_beyond_the_limit() -> None:
    wide = (
        RMSNORM_LINEAR_CUSTOM.replace("96>", "2>")
        .replace("64x64xf16", "64x3072xf16")
        .replace("16x64", "16x3072")
    )
    wide = wide.replace(
        "tensor<16x4096xf16>) -> tensor<16x3072xf16>", "tensor<16x4096xf16>) -> tensor<16x64xf16>"
    )
    wide = wide.replace(
        "(tensor<16x3072xf16>, tensor<64x3072xf16>)", "(tensor<16x64xf16>, tensor<64x3072xf16>)"
    )
    wide = wide.replace(
        'square"(%xt) : (tensor<16x3072xf16>) -> tensor<16x3072xf16>',
        'square"(%xt) : (tensor<16x64xf16>) -> tensor<16x64xf16>',
    )
    wide = wide.replace("true} : (tensor<16x3072xf16>)", "true} : (tensor<16x64xf16>)")
    with pytest.raises(SuperoptError, match="expected at most 232448 bytes of shared memory, got"):
        reader.read(wide)


def test_every_fixed_arity_operator_is_verified_when_parsed() -> None:
    """The registered verifier of each entry refuses a result type that the table does not infer."""
    context = base.context()
    for entry in OPERATORS.values():
        if not entry.arity or not entry.elementwise or entry.attrs:
            continue
        types = ", ".join(["tensor<2x3xf32>"] * entry.arity)
        args = ", ".join(f"%a{i}: tensor<2x3xf32>" for i in range(entry.arity))
        names = ", ".join(f"%a{i}" for i in range(entry.arity))
        good = f'func.func @f({args}) {{ %0 = "kernel.{entry.name}"({names}) : ({types}) -> tensor<2x3xf32> return }}'
        ir.Module.parse(good, context)
        with pytest.raises(ir.MLIRError, match="parse"):
            ir.Module.parse(good.replace("-> tensor<2x3xf32>", "-> tensor<2x4xf32>"), context)


def test_infer_type_of_matmul_broadcasts_batch() -> None:
    a, b = TensorType((5, 1, 2, 3), "f16"), TensorType((4, 7, 3), "f16")
    assert infer_type("matmul", [a, b], {"transpose_b": True}).shape == (5, 4, 2, 7)


@pytest.mark.parametrize("name", ["x; import os", "", "a\\0Ab", "x" * 201])
def test_a_name_that_is_none_is_left_out(name: str):
    """Names of arguments come from text that anybody may have written, and end up in sources."""
    text = """func.func @f(%arg0: tensor<4xf32> {{superopt.name = "{}"}}) -> tensor<4xf32> {{
      %0 = "kernel.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }}"""
    assert reader.read(text.format(name)).inputs[0].name == "arg0"
    good = reader.read(text.format("weight"))
    assert reader.read(writer.to_text(good)).inputs[0].name == "weight"
