"""Comparisons of linalg at the edges: with NaN, infinities, and what may be undefined, against MLIR's execution.

Whatever the reader makes of a comparison (an extremum, a selection, zeros and ones, or the operation as it
stands), it computes what the file does wherever the inputs are finite; and a comparison that asks for NaN or an
infinity answers for these too.
"""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import numpy as np
import pytest
from ingest_support import ops, read_text

from superopt.dialects import base
from superopt.dialects.mlir import ir
from superopt.transforms.ingest.against_source import graph_values
from superopt.transforms.ingest.interpret import FLOAT_PREDICATES
from superopt.transforms.ingest.run_in_llvm import Tensor, execute

N = 64
FINITE = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 2.0**-100, -7.0]
ANY = [*FINITE, math.inf, -math.inf, math.nan]
# What is compared: how it is computed, left, right
OPERANDS = {
    "two inputs": ("", "%a", "%b"),
    "an input and itself": ("", "%a", "%a"),
    "an input and a number": ("", "%a", "%one"),
    "an input and infinity": ("", "%a", "%inf"),
    "minus infinity and an input": ("", "%ninf", "%a"),
    "an input and NaN": ("", "%a", "%nan"),
    "a logarithm": ("%l = math.log %a : f32", "%l", "%one"),
    "a root and an input": ("%l = math.sqrt %a : f32", "%l", "%b"),
    "an input and a quotient": ("%l = arith.divf %one, %b : f32", "%a", "%l"),
    "a logarithm and itself": ("%l = math.log %a : f32", "%l", "%l"),
}
USES = {
    "larger": ("arith.select %c, {0}, {1} : f32", ""),
    "smaller": ("arith.select %c, {1}, {0} : f32", ""),
    "selection": ("arith.select %c, %a, %b : f32", ""),
    "number": ("arith.uitofp %c : i1 to f32", ""),
    "negated": ("arith.uitofp %n : i1 to f32", "%t = arith.constant true\n %n = arith.xori %c, %t : i1"),
}
MAP = "affine_map<(d0) -> (d0)>"


def source(operands: str, use: str) -> str:
    """A function with a result for each predicate."""
    made, left, right = OPERANDS[operands]
    result, before = USES[use]
    kind = f"tensor<{N}xf32>"
    generics = "".join(
        f"""
  %r{i} = linalg.generic {{indexing_maps = [{MAP}, {MAP}, {MAP}], iterator_types = ["parallel"]}}
      ins(%x, %y : {kind}, {kind}) outs(%e : {kind}) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %one = arith.constant 1.0 : f32
    %inf = arith.constant 0x7F800000 : f32
    %ninf = arith.constant 0xFF800000 : f32
    %nan = arith.constant 0x7FC00000 : f32
    {made}
    %c = arith.cmpf {predicate}, {left}, {right} : f32
    {before}
    %s = {result.format(left, right)}
    linalg.yield %s : f32
  }} -> {kind}"""
        for i, predicate in enumerate(FLOAT_PREDICATES)
    )
    kinds = ", ".join([kind] * len(FLOAT_PREDICATES))
    names = ", ".join(f"%r{i}" for i in range(len(FLOAT_PREDICATES)))
    return f"""
func.func @f(%x: {kind}, %y: {kind}) -> ({kinds}) {{
  %e = tensor.empty() : {kind}{generics}
  return {names} : {kinds}
}}"""


def executed(text: str, inputs: list[Any]) -> Any:
    buffer = io.BytesIO()
    with base.context() as context:
        ir.Module.parse(text, context).operation.write_bytecode(buffer)
    kind = Tensor((N,), "f32")
    results = [kind] * len(FLOAT_PREDICATES)
    ((wide, _),) = execute(buffer.getvalue(), "f", results, [kind] * 2, [inputs], seconds=20)
    return wide


def pairs(numbers: list[float]) -> list[Any]:
    """Numbers for both inputs: each pair of `numbers`, up to N of them drawn."""
    drawn: Any = np.random.default_rng(0)
    each: Any = np.array(list(itertools.product(numbers, numbers)))
    rows = drawn.permutation(np.resize(np.arange(len(each)), max(N, len(each))))[:N]
    return list(each[rows].T)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("operands", OPERANDS)
def test_what_is_read_is_what_the_file_computes(operands: str, use: str) -> None:
    text = source(operands, use)
    graph, _ = read_text(text)
    opaque = {v for node in graph.nodes if node.op == "extern" for v in node.results}
    made = {
        numbers: (graph_values(graph, inputs, faithful=False), executed(text, inputs))
        for numbers, inputs in (("finite", pairs(FINITE)), ("any", pairs(ANY)))
    }
    for i, (predicate, output) in enumerate(zip(FLOAT_PREDICATES, graph.outputs, strict=True)):
        exact = predicate in ("true", "false")
        asks = predicate in ("ord", "uno") or ("infinity" in operands and use not in ("larger", "smaller"))
        assert exact or output in opaque or not asks, predicate
        for numbers, (found, expected) in made.items():
            if numbers == "finite" or exact or output in opaque:
                near = np.allclose(found[output], expected[i], rtol=1e-6, atol=0, equal_nan=True)
                assert near, (predicate, numbers)


@pytest.mark.parametrize(
    ("predicate", "slope", "operator"),
    [("ogt", 0.25, "max"), ("uge", 0.75, "max"), ("ogt", 3.0, "min"), ("ogt", -0.25, "select")],
)
def test_a_leaky_rectifier_needs_no_selection(predicate: str, slope: float, operator: str) -> None:
    """It is read of numbers that may be undefined, too, as those that a norm over an input's variance gives."""
    text = f"""
func.func @f(%x: tensor<{N}xf32>, %y: tensor<{N}xf32>) -> tensor<{N}xf32> {{
  %e = tensor.empty() : tensor<{N}xf32>
  %r = linalg.generic {{indexing_maps = [{MAP}, {MAP}, {MAP}], iterator_types = ["parallel"]}}
      ins(%x, %y : tensor<{N}xf32>, tensor<{N}xf32>) outs(%e : tensor<{N}xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %zero = arith.constant 0.0 : f32
    %slope = arith.constant {slope:e} : f32
    %n = math.rsqrt %b : f32
    %v = arith.mulf %a, %n : f32
    %w = arith.mulf %v, %slope : f32
    %c = arith.cmpf {predicate}, %v, %zero : f32
    %s = arith.select %c, %v, %w : f32
    linalg.yield %s : f32
  }} -> tensor<{N}xf32>
  return %r : tensor<{N}xf32>
}}"""
    graph, _ = read_text(text)
    if operator == "select":
        assert ops(graph) == ["extern"]
        return
    assert operator in ops(graph)
    assert not {"select", "extern"} & set(ops(graph))
    x, y = pairs(FINITE)
    v = x / np.sqrt(np.abs(y) + 1)
    found = graph_values(graph, [x, np.abs(y) + 1], faithful=False)[graph.outputs[0]]
    negative = np.signbit(v)
    assert np.allclose(found, v * (slope * negative + ~negative))


@pytest.mark.parametrize("divisor", [3, -3])
@pytest.mark.parametrize("name", ["divsi", "remsi", "floordivsi", "ceildivsi"])
def test_integers_are_divided_exactly_to_the_least_one(name: str, divisor: int) -> None:
    graph, _ = read_text(f"""
    func.func @f(%x: tensor<6xi64>) -> tensor<6xi64> {{
      %d = arith.constant dense<{divisor}> : tensor<6xi64>
      %r = arith.{name} %x, %d : tensor<6xi64>
      return %r : tensor<6xi64>
    }}""")
    numbers = [-(2**63), 2**63 - 1, -(2**53) - 1, -7, 0, 8]
    down = [n // divisor for n in numbers]
    toward_zero = [
        int(math.copysign(1, n) * math.copysign(1, divisor)) * (abs(n) // abs(divisor)) for n in numbers
    ]
    expected = {
        "divsi": toward_zero,
        "remsi": [n - q * divisor for n, q in zip(numbers, toward_zero, strict=True)],
        "floordivsi": down,
        "ceildivsi": [-(-n // divisor) for n in numbers],
    }[name]
    (made,) = [graph_values(graph, [np.array(numbers)], faithful=False)[v] for v in graph.outputs]
    assert made.tolist() == expected
