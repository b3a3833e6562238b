"""Matrix products that are alike as one: equal where the rules fit, and where they do not."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from superopt.operators import infer_type
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.transforms.derivation.rules import RULES
from superopt.verify import certify
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate

Shape = tuple[int, ...]


def program(pairs: list[tuple[int, int]], shapes: list[Shape], attrs: dict[str, Attr]) -> KernelGraph:
    """A product for each pair of inputs."""
    inputs = [Value(TensorType(s, "f32"), f"x{i}") for i, s in enumerate(shapes)]
    nodes: list[Node] = []
    for pair in pairs:
        operands = tuple(inputs[i] for i in pair)
        result = Value(infer_type("matmul", [v.type for v in operands], attrs))
        nodes.append(Node("matmul", operands, (result,), dict(attrs)))
    return KernelGraph("f", inputs, nodes, [n.result for n in nodes])


def same(graph: KernelGraph, made: KernelGraph) -> None:
    rng, domain = np.random.default_rng(0), FloatDomain()
    arrays = [domain.tensor(rng.standard_normal(v.shape)) for v in graph.inputs]
    for x, y in zip(evaluate(graph, arrays, domain), evaluate(made, arrays, domain), strict=True):
        np.testing.assert_allclose(y.planes[0], x.planes[0], rtol=1e-10, atol=1e-10)
    assert certify(graph, made).equivalent
    assert [n.op for n in made.nodes].count("matmul") < len(graph.nodes)


def test_merged_products_are_equal() -> None:
    rng, fits = random.Random(0), Counter[str]()
    for _ in range(30):
        m, k, n = (rng.randint(1, 5) for _ in range(3))
        more, batch = rng.randint(1, 4), tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 1)))
        attrs: dict[str, Attr] = {f"transpose_{x}": rng.random() < 0.5 for x in "ab"}
        a = (k, m) if attrs["transpose_a"] else (m, k)
        wide = [(w, k) if attrs["transpose_b"] else (k, w) for w in (n, more)]
        columns = program([(0, 1), (0, 2)], [(*batch, *a), *((*batch, *w) for w in wide)], attrs)
        b, tall = wide[0], [(k, r) if attrs["transpose_a"] else (r, k) for r in (m, more)]
        rows = program([(0, 2), (1, 2)], [*((*batch, *r) for r in tall), (*batch, *b)], attrs)
        apart = program([(0, 1), (2, 3), (0, 3)], [(*batch, *a), (*batch, *b)] * 2, attrs)
        for graph, name in ((columns, "one-matmul"), (rows, "one-matmul"), (apart, "batched-matmul")):
            made = RULES[name](graph, graph.nodes[0])
            assert made is not None
            fits[name] += 1
            same(graph, made)
    assert len(fits) == 2


def test_three_products_of_one_matrix_are_one_batch() -> None:
    """PET, section 8.3: 3 x ([512, 768] x [768, 768])."""
    graph = program([(0, 1), (0, 2), (0, 3)], [(512, 768), *[(768, 768)] * 3], {})
    made = RULES["batched-matmul"](graph, graph.nodes[0])
    assert made is not None
    assert [n.result.shape for n in made.nodes if n.op == "matmul"] == [(3, 512, 768)]
    assert certify(graph, made).equivalent


@pytest.mark.parametrize("rule", ["one-matmul", "batched-matmul"])
def test_products_that_need_each_other_stay_apart(rule: str) -> None:
    graph = program([(0, 1)], [(4, 4), (4, 4)], {})
    (first,) = graph.nodes
    result = Value(first.result.type)
    graph.nodes.append(Node("matmul", (graph.inputs[0], first.result), (result,), {}))
    graph.outputs = [first.result, result]
    assert RULES[rule](graph, first) is None
