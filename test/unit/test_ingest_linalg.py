"""Linalg text to kernel graphs, checked against numpy: maps, initial values, folding, what must not be folded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ingest_support import ops, read_text

from superopt.errors import UnsupportedProgram
from superopt.program import KernelGraph
from superopt.transforms.ingest.against_source import graph_values
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate


def run(graph: KernelGraph, *inputs: Any) -> list[Any]:
    domain = FloatDomain()
    return [t.planes[0] for t in evaluate(graph, [domain.tensor(x) for x in inputs], domain)]


def data(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-2, 2, shape)


def generic(
    maps: list[str],
    kinds: str,
    ins: list[tuple[str, str]],
    out: str,
    init: str,
    body: str,
    scalars: str = "f32",
) -> str:
    """A function with one generic; `kinds` spells the iterators as p and r."""
    spelled = ", ".join(f"affine_map<{m}>" for m in maps)
    iterators = ", ".join('"parallel"' if k == "p" else '"reduction"' for k in kinds)
    names = ", ".join(n for n, _ in ins)
    types = ", ".join(t for _, t in ins)
    arguments = ", ".join(f"{n}: {t}" for n, t in ins)
    block = ", ".join(f"%b{i}: f32" for i in range(len(ins)))
    return f"""
func.func @f({arguments}, %init: {out}) -> {out} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {out}
  %zeros = linalg.fill ins(%zero : f32) outs(%e : {out}) -> {out}
  %r = linalg.generic {{indexing_maps = [{spelled}], iterator_types = [{iterators}]}}
      ins({names} : {types}) outs({init} : {out}) {{
  ^bb0({block}, %acc: f32):
    {body}
  }} -> {out}
  return %r : {out}
}}"""


A, B = data(3, 4, 5), data(3, 4, 6)
SUM_OF_PRODUCTS = "%m = arith.mulf %b0, %b1 : f32\n %s = arith.addf %acc, %m : f32\n linalg.yield %s : f32"

CONTRACTIONS = {
    # name: maps of a, b and the result, iterators, shapes, einsum
    "matmul": (["(m, n, k) -> (m, k)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"], "ppr", (4, 5), (5, 6), "mk,kn->mn"),
    "transposed_result": (["(m, n, k) -> (m, k)", "(m, n, k) -> (k, n)", "(m, n, k) -> (n, m)"], "ppr", (4, 5), (5, 6), "mk,kn->nm"),
    "both_transposed": (["(m, n, k) -> (k, m)", "(m, n, k) -> (n, k)", "(m, n, k) -> (m, n)"], "ppr", (5, 4), (6, 5), "km,nk->mn"),
    "batch_in_the_middle": (["(m, b, n, k) -> (m, b, k)", "(m, b, n, k) -> (k, b, n)", "(m, b, n, k) -> (b, n, m)"], "pppr", (4, 3, 5), (5, 3, 6), "mbk,kbn->bnm"),
    "two_reductions": (["(m, n, k, l) -> (k, m, l)", "(m, n, k, l) -> (l, n, k)", "(m, n, k, l) -> (m, n)"], "pprr", (5, 4, 3), (3, 6, 5), "kml,lnk->mn"),
    "several_rows_and_columns": (["(a, m, n, o, k) -> (a, m, k)", "(a, m, n, o, k) -> (n, k, o)", "(a, m, n, o, k) -> (n, a, o, m)"], "ppppr", (2, 4, 5), (3, 5, 6), "amk,nko->naom"),
    "reduction_in_one_operand": (["(m, n, k, l) -> (m, k, l)", "(m, n, k, l) -> (k, n)", "(m, n, k, l) -> (m, n)"], "pprr", (4, 5, 3), (5, 6), "mkl,kn->mn"),
    "vector": (["(m, k) -> (m, k)", "(m, k) -> (k)", "(m, k) -> (m)"], "pr", (4, 5), (5,), "mk,k->m"),
    "dot": (["(k) -> (k)", "(k) -> (k)", "(k) -> ()"], "r", (5,), (5,), "k,k->"),
    "outer_sum": (["(m, n, k) -> (m)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"], "ppr", (4,), (5, 6), "m,kn->mn"),
}  # fmt: skip


def type_of(shape: tuple[int, ...]) -> str:
    return f"tensor<{'x'.join([*map(str, shape), 'f32'])}>"


@pytest.mark.parametrize("name", CONTRACTIONS)
@pytest.mark.parametrize("init", ["%zeros", "%init"])
def test_contractions(name: str, init: str) -> None:
    maps, kinds, left, right, equation = CONTRACTIONS[name]
    a, b = data(*left), data(*right) + 0.25
    product = np.einsum(equation, a, b)
    start = data(*product.shape)
    text = generic(
        maps,
        kinds,
        [("%a", type_of(left)), ("%b", type_of(right))],
        type_of(product.shape),
        init,
        SUM_OF_PRODUCTS,
    )
    graph, diagnostics = read_text(text)
    assert diagnostics.messages == []
    (result,) = run(graph, a, b, start)
    expected = product + start if init == "%init" else product
    assert result.shape == product.shape
    assert np.allclose(result, expected, rtol=1e-12)
    # Without rows or columns of its own, an operand is summed, not multiplied.
    assert ops(graph).count("matmul") == (name not in ("outer_sum", "dot"))


REDUCTIONS = {
    "sum": ("arith.addf", np.sum, np.add), "max": ("arith.maximumf", np.max, np.maximum),
    "min": ("arith.minnumf", np.min, np.minimum),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("init", ["%zeros", "%init"])
def test_a_reduction_starts_from_its_initial_value(name: str, init: str) -> None:
    operation, reduce, join = REDUCTIONS[name]
    body = f"%s = {operation} %b0, %acc : f32\n linalg.yield %s : f32"
    maps = ["(d0, d1) -> (d0, d1)", "(d0, d1) -> (d1)"]
    graph, _ = read_text(generic(maps, "rp", [("%x", "tensor<4x5xf32>")], "tensor<5xf32>", init, body))
    x, start = data(4, 5) - 3, data(5)
    expected = join(reduce(x, axis=0), start if init == "%init" else 0)
    assert np.allclose(run(graph, x, start)[0], expected)


def test_a_maximum_by_comparison_and_selection_either_way_round() -> None:
    for kind, takes, larger in (
        ("ogt", "%b0, %acc", True),
        ("olt", "%b0, %acc", False),
        ("ole", "%acc, %b0", True),
    ):
        body = f"%c = arith.cmpf {kind}, %b0, %acc : f32\n %s = arith.select %c, {takes} : f32\n linalg.yield %s : f32"
        maps = ["(d0, d1) -> (d0, d1)", "(d0, d1) -> (d0)"]
        graph, _ = read_text(generic(maps, "pr", [("%x", "tensor<4x5xf32>")], "tensor<4xf32>", "%init", body))
        x, start = data(4, 5), data(4)
        expected = np.maximum(x.max(1), start) if larger else np.minimum(x.min(1), start)
        assert np.allclose(run(graph, x, start)[0], expected), kind


def test_elementwise_operands_are_permuted_held_and_spread() -> None:
    maps = ["(i, j, k) -> (k, i)", "(i, j, k) -> (0, j)", "(i, j, k) -> (j, i, k)"]
    body = "%s = arith.subf %b0, %b1 : f32\n linalg.yield %s : f32"
    ins = [("%x", "tensor<5x3xf32>"), ("%y", "tensor<1x4xf32>")]
    graph, _ = read_text(generic(maps, "ppp", ins, "tensor<4x3x5xf32>", "%e", body))
    x, y = data(5, 3), data(1, 4)
    expected = x.T[None, :, :] - y[0][:, None, None]
    assert np.allclose(run(graph, x, y, data(4, 3, 5))[0], expected)


def test_an_output_that_the_body_reads_is_an_operand() -> None:
    body = "%s = arith.divf %b0, %acc : f32\n linalg.yield %s : f32"
    maps = ["(d0) -> (d0)", "(d0) -> (d0)"]
    graph, _ = read_text(generic(maps, "p", [("%x", "tensor<4xf32>")], "tensor<4xf32>", "%init", body))
    x, y = data(4), data(4) + 5
    assert ops(graph) == ["div"]
    assert np.allclose(run(graph, x, y)[0], x / y)


def test_an_output_that_the_body_reads_must_have_been_written() -> None:
    body = "%s = arith.divf %b0, %acc : f32\n linalg.yield %s : f32"
    maps = ["(d0) -> (d0)", "(d0) -> (d0)"]
    with pytest.raises(UnsupportedProgram, match=r"input.mlir:6:\d+.*nothing has written"):
        read_text(generic(maps, "p", [("%x", "tensor<4xf32>")], "tensor<4xf32>", "%e", body))


def test_a_slice_is_written_into_a_tensor() -> None:
    graph, _ = read_text("""
func.func @f(%x: tensor<2x3xf32>, %y: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %r = tensor.insert_slice %x into %y[1, 2] [2, 3] [1, 1] : tensor<2x3xf32> into tensor<4x6xf32>
  return %r : tensor<4x6xf32>
}""")
    x, y = data(2, 3), data(4, 6)
    expected = y.copy()
    expected[1:3, 2:5] = x
    assert np.array_equal(run(graph, x, y)[0], expected)


def test_a_strided_slice_that_drops_a_dimension() -> None:
    graph, _ = read_text("""
func.func @f(%x: tensor<4x7xf32>) -> tensor<3xf32> {
  %r = tensor.extract_slice %x[2, 1] [1, 3] [1, 2] : tensor<4x7xf32> to tensor<3xf32>
  return %r : tensor<3xf32>
}""")
    x = data(4, 7)
    assert np.array_equal(run(graph, x)[0], x[2, 1:7:2])


def test_softmax() -> None:
    graph, _ = read_text("""
func.func @f(%x: tensor<4x7xf32>) -> tensor<4x7xf32> {
  %e = tensor.empty() : tensor<4x7xf32>
  %r = linalg.softmax dimension(1) ins(%x : tensor<4x7xf32>) outs(%e : tensor<4x7xf32>) -> tensor<4x7xf32>
  return %r : tensor<4x7xf32>
}""")
    x = data(4, 7)
    assert np.allclose(run(graph, x)[0], np.exp(x) / np.exp(x).sum(1, keepdims=True))


def test_f64_in_between_is_narrowed_only_where_asked() -> None:
    text = """
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.extf %x : tensor<4xf32> to tensor<4xf64>
  %1 = math.exp %0 : tensor<4xf64>
  %2 = arith.truncf %1 : tensor<4xf64> to tensor<4xf32>
  return %2 : tensor<4xf32>
}"""
    graph, diagnostics = read_text(text)
    assert ops(graph) == ["extern"] * 3
    assert "narrow-f64" in diagnostics.messages[0].message
    assert ops(read_text(text, narrow_f64=True)[0]) == ["exp"]


def test_constants_are_rounded_to_their_dtype() -> None:
    graph, _ = read_text("""
func.func @f(%x: tensor<4xf16>) -> tensor<4xf16> {
  %c = arith.constant dense<1.0e-1> : tensor<4xf16>
  %0 = arith.addf %x, %c : tensor<4xf16>
  return %0 : tensor<4xf16>
}""")
    (constant,) = [n for n in graph.nodes if n.op == "constant"]
    assert constant.attrs["value"] == float(np.float16(0.1))
    assert constant.result.shape == ()


def test_a_scaling_that_is_not_a_mean_stays() -> None:
    for number, expected in (("5.0", "reduce_mean"), ("5.01", "div")):
        graph, _ = read_text(f"""
func.func @f(%x: tensor<4x5xf32>) -> tensor<4xf32> {{
  %zero = arith.constant 0.0 : f32
  %n = arith.constant dense<{number}> : tensor<4xf32>
  %e = tensor.empty() : tensor<4xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %s = linalg.reduce {{ arith.addf }} ins(%x : tensor<4x5xf32>) outs(%z : tensor<4xf32>) dimensions = [1]
  %r = arith.divf %s, %n : tensor<4xf32>
  return %r : tensor<4xf32>
}}""")
        assert ops(graph)[-1] == expected


def test_gelu_is_recognized_by_its_constants_only() -> None:
    for root, expected in (("1.41421354", ["gelu"]), ("1.4142", ["div", "erf", "add", "mul", "mul"])):
        body = f"""%root = arith.constant {root} : f32
    %one = arith.constant 1.0 : f32
    %half = arith.constant 0.5 : f32
    %0 = arith.divf %b0, %root : f32
    %1 = math.erf %0 : f32
    %2 = arith.addf %1, %one : f32
    %3 = arith.mulf %2, %half : f32
    %4 = arith.mulf %b0, %3 : f32
    linalg.yield %4 : f32"""
        maps = ["(d0) -> (d0)", "(d0) -> (d0)"]
        graph, _ = read_text(generic(maps, "p", [("%x", "tensor<4xf32>")], "tensor<4xf32>", "%e", body))
        assert ops(graph) == expected


def test_selection_between_tensors_by_index_is_a_concatenation() -> None:
    body = """%two = arith.constant 2 : index
    %i = linalg.index 1 : index
    %c = arith.cmpi ult, %i, %two : index
    %s = arith.select %c, %b0, %b1 : f32
    linalg.yield %s : f32"""
    maps = ["(d0, d1) -> (d0, d1)"] * 3
    ins = [("%x", "tensor<3x5xf32>"), ("%y", "tensor<3x5xf32>")]
    graph, _ = read_text(generic(maps, "pp", ins, "tensor<3x5xf32>", "%e", body))
    x, y = data(3, 5), data(3, 5) + 9
    assert np.array_equal(run(graph, x, y, x)[0], np.concatenate([x[:, :2], y[:, 2:]], 1))
    assert "concat" in ops(graph)


def test_nothing_is_imported_of_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.path.insert(0, 'test/unit'); from ingest_support import read_text;"
        "read_text('func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# an operation on %b and %c (i8: 1, -1, 3, -128 and 2), and what it gives, with -1 as i1 for truth
INTEGERS: dict[str, tuple[str, list[float]]] = {
    "ult": ("%r = arith.cmpi ult, %b, %c : i8\n %s = arith.uitofp %r : i1 to f32", [1, 0, 0, 0]),
    "slt": ("%r = arith.cmpi slt, %b, %c : i8\n %s = arith.sitofp %r : i1 to f32", [-1, -1, 0, -1]),
    "uitofp": ("%s = arith.uitofp %b : i8 to f32", [1, 255, 3, 128]),
    "sitofp": ("%s = arith.sitofp %b : i8 to f32", [1, -1, 3, -128]),
    "extui": ("%r = arith.extui %b : i8 to i32\n %s = arith.sitofp %r : i32 to f32", [1, 255, 3, 128]),
    "trunci": ("%r = arith.trunci %b : i8 to i1\n %s = arith.uitofp %r : i1 to f32", [1, 1, 1, 0]),
    "truth as a sign": ("%t = arith.trunci %b : i8 to i1\n %r = arith.extsi %t : i1 to i8\n"
                        " %s = arith.sitofp %r : i8 to f32", [-1, -1, -1, 0]),
    "i1 slt": ("%t = arith.trunci %b : i8 to i1\n %n = arith.constant false\n %r = arith.cmpi slt, %t, %n : i1\n"
               " %s = arith.uitofp %r : i1 to f32", [1, 1, 1, 0]),
    "i1 ugt": ("%t = arith.trunci %b : i8 to i1\n %n = arith.constant false\n %r = arith.cmpi ugt, %t, %n : i1\n"
               " %s = arith.uitofp %r : i1 to f32", [1, 1, 1, 0]),
    "i1 addi": ("%t = arith.trunci %b : i8 to i1\n %r = arith.addi %t, %t : i1\n %s = arith.uitofp %r : i1 to f32",
                [0, 0, 0, 0]),
    "shrui": ("%r = arith.shrui %b, %c : i8\n %s = arith.uitofp %r : i8 to f32", [0, 63, 0, 32]),
    "shrsi": ("%r = arith.shrsi %b, %c : i8\n %s = arith.sitofp %r : i8 to f32", [0, -1, 0, -32]),
    "divsi": ("%r = arith.divsi %b, %c : i8\n %s = arith.sitofp %r : i8 to f32", [0, 0, 1, -64]),
    "divui": ("%r = arith.divui %b, %c : i8\n %s = arith.uitofp %r : i8 to f32", [0, 127, 1, 64]),
    "floordivsi": ("%r = arith.floordivsi %b, %c : i8\n %s = arith.sitofp %r : i8 to f32", [0, -1, 1, -64]),
    "ceildivsi": ("%r = arith.ceildivsi %b, %c : i8\n %s = arith.sitofp %r : i8 to f32", [1, 0, 2, -64]),
    "ceildivui": ("%r = arith.ceildivui %b, %c : i8\n %s = arith.uitofp %r : i8 to f32", [1, 128, 2, 64]),
    "remui": ("%r = arith.remui %b, %c : i8\n %s = arith.uitofp %r : i8 to f32", [1, 1, 1, 0]),
    "maxui": ("%r = arith.maxui %b, %c : i8\n %s = arith.uitofp %r : i8 to f32", [2, 255, 3, 128]),
    "maxsi": ("%r = arith.maxsi %b, %c : i8\n %s = arith.sitofp %r : i8 to f32", [2, 2, 3, 2]),
    "wrapping": ("%r = arith.muli %b, %c : i8\n %s = arith.sitofp %r : i8 to f32", [2, -2, 6, 0]),
    "index_castui": ("%r = arith.index_castui %b : i8 to index\n %i = arith.index_cast %r : index to i32\n"
                     " %s = arith.sitofp %i : i32 to f32", [1, 255, 3, 128]),
    "never": ("%r = arith.cmpf false, %a, %a : f32\n %s = arith.uitofp %r : i1 to f32", [0, 0, 0, 0]),
    "round half away": ("%p = arith.constant -2.5 : f32\n %s = math.round %p : f32", [-3, -3, -3, -3]),
    "round half even": ("%p = arith.constant -2.5 : f32\n %s = math.roundeven %p : f32", [-2, -2, -2, -2]),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_have_the_sign_that_the_operation_gives_them(name: str) -> None:
    body, expected = INTEGERS[name]
    graph, _ = read_text(f"""
    #v = affine_map<(i) -> (i)>
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %e = tensor.empty() : tensor<4xf32>
      %k = arith.constant dense<[1, -1, 3, -128]> : tensor<4xi8>
      %y = linalg.generic {{indexing_maps = [#v, #v, #v], iterator_types = ["parallel"]}}
        ins(%x, %k : tensor<4xf32>, tensor<4xi8>) outs(%e : tensor<4xf32>) {{
      ^bb0(%a: f32, %b: i8, %o: f32):
        %c = arith.constant 2 : i8
        {body}
        %sum = arith.addf %a, %s : f32
        linalg.yield %sum : f32
      }} -> tensor<4xf32>
      return %y : tensor<4xf32>
    }}""")
    np.testing.assert_array_equal(run(graph, np.zeros(4))[0], expected)


def test_what_writes_a_part_of_its_result_and_what_rounds_down_stay_opaque() -> None:
    part, said = read_text("""
    func.func @f(%x: tensor<4x4xf32>, %o: tensor<4x4xf32>) -> tensor<4x4xf32> {
      %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, 0)>],
        iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4x4xf32>) outs(%o : tensor<4x4xf32>) {
      ^bb0(%a: f32, %b: f32):
        %1 = arith.addf %a, %b : f32
        linalg.yield %1 : f32
      } -> tensor<4x4xf32>
      return %y : tensor<4x4xf32>
    }""")
    assert ops(part) == ["extern"]
    assert "only partly written" in said.messages[0].message
    down, said = read_text("""
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf16> {
      %y = arith.truncf %x downward : tensor<4xf32> to tensor<4xf16>
      return %y : tensor<4xf16>
    }""")
    assert ops(down) == ["extern"]
    assert "rounding mode" in said.messages[0].message


MASKED = """
#all = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (0, d1)>
func.func @f(%x: tensor<3x4xf32>, %m: tensor<4xi1>, %n: tensor<3x4xi1>) -> (tensor<3x4xf32>, tensor<3x4xf32>) {
  %low = arith.constant -7.0 : f32
  %yes = arith.constant true
  %e = tensor.empty() : tensor<3x4xf32>
  %t = tensor.empty() : tensor<1x4xi1>
  %row = tensor.expand_shape %m [[0, 1]] output_shape [1, 4] : tensor<4xi1> into tensor<1x4xi1>
  %not = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel"]}
      ins(%row : tensor<1x4xi1>) outs(%t : tensor<1x4xi1>) {
  ^bb0(%b: i1, %out: i1):
    %0 = arith.xori %b, %yes : i1
    linalg.yield %0 : i1
  } -> tensor<1x4xi1>
  %r = linalg.generic {indexing_maps = [#row, #all, #all, #all], iterator_types = ["parallel", "parallel"]}
      ins(%not, %n, %x : tensor<1x4xi1>, tensor<3x4xi1>, tensor<3x4xf32>) outs(%e : tensor<3x4xf32>) {
  ^bb0(%b: i1, %c: i1, %a: f32, %out: f32):
    %0 = arith.andi %b, %c : i1
    %1 = arith.select %0, %a, %low : f32
    linalg.yield %1 : f32
  } -> tensor<3x4xf32>
  %s = arith.uitofp %n : tensor<3x4xi1> to tensor<3x4xf32>
  %p = arith.mulf %s, %x : tensor<3x4xf32>
  return %r, %p : tensor<3x4xf32>, tensor<3x4xf32>
}
"""


def test_truth_values_that_are_inputs_are_converted_once() -> None:
    """Reshaped, combined, selected by and multiplied with: all else is operators of the table."""
    graph, diagnostics = read_text(MASKED)
    converted = [n.operands[0] for n in graph.nodes if n.op == "cast" and n.operands[0].dtype == "i1"]
    assert converted == graph.inputs[1:]
    assert not [n for n in graph.nodes if n.op == "extern"]
    assert not diagnostics.messages
    random = np.random.default_rng(7)
    x, m, n = random.uniform(-2, 2, (3, 4)), random.random(4) > 0.5, random.random((3, 4)) > 0.5
    values = graph_values(graph, [x, m, n], faithful=False)
    wanted = np.where(~m[None] & n, x, -7.0), np.where(n, x, 0.0)
    for output, numbers in zip(graph.outputs, wanted, strict=True):
        np.testing.assert_allclose(values[output], numbers)


@pytest.mark.parametrize("chosen", ["i1", "i32"])
def test_selections_of_other_than_floats_stay_opaque(chosen: str) -> None:
    graph, _ = read_text(f"""
func.func @f(%m: tensor<4xi1>) -> tensor<4x{chosen}> {{
  %one = arith.constant 1 : {chosen}
  %none = arith.constant 0 : {chosen}
  %e = tensor.empty() : tensor<4x{chosen}>
  %r = linalg.generic {{indexing_maps = [affine_map<(d) -> (d)>, affine_map<(d) -> (d)>], iterator_types = ["parallel"]}}
      ins(%m : tensor<4xi1>) outs(%e : tensor<4x{chosen}>) {{
  ^bb0(%b: i1, %out: {chosen}):
    %0 = arith.select %b, %one, %none : {chosen}
    linalg.yield %0 : {chosen}
  }} -> tensor<4x{chosen}>
  return %r : tensor<4x{chosen}>
}}""")
    assert [n.op for n in graph.nodes] == ["extern"]
    assert graph.outputs[0].dtype == chosen


def test_of_several_results_each_keeps_its_own_truth() -> None:
    graph, _ = read_text("""
#id = affine_map<(d) -> (d)>
func.func @f(%x: tensor<4xf32>, %m: tensor<4xi1>) -> (tensor<4xf32>, tensor<4xf32>) {
  %low = arith.constant -7.0 : f32
  %yes = arith.constant true
  %e = tensor.empty() : tensor<4xf32>
  %t = tensor.empty() : tensor<4xi1>
  %both:2 = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
      ins(%m : tensor<4xi1>) outs(%t, %t : tensor<4xi1>, tensor<4xi1>) {
  ^bb0(%b: i1, %o: i1, %p: i1):
    %0 = arith.xori %b, %yes : i1
    linalg.yield %yes, %0 : i1, i1
  } -> (tensor<4xi1>, tensor<4xi1>)
  %first = arith.uitofp %both#0 : tensor<4xi1> to tensor<4xf32>
  %second = arith.uitofp %both#1 : tensor<4xi1> to tensor<4xf32>
  %r = arith.mulf %first, %x : tensor<4xf32>
  %s = arith.mulf %second, %x : tensor<4xf32>
  return %r, %s : tensor<4xf32>, tensor<4xf32>
}""")
    x, m = np.arange(1.0, 5.0), np.array([True, False, True, False])
    values = graph_values(graph, [x, m], faithful=False)
    for output, numbers in zip(graph.outputs, (x, np.where(m, 0.0, x)), strict=True):
        np.testing.assert_allclose(values[output], numbers)
