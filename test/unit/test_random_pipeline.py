"""Random programs through lowering and emission: proved at every step, and in floats compared with numpy.

SUPEROPT_TEST_PROGRAMS says how many.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from superopt.operators import infer_type
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.verify import certify
from superopt.verify.checker import check_certificate
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.ttir import verify_compiled

pytest.importorskip("triton")
PROGRAMS = int(os.environ.get("SUPEROPT_TEST_PROGRAMS", "15"))

UNARY = ("neg", "exp", "square", "sigmoid", "relu", "tanh", "silu", "gelu", "erf")
BINARY = ("add", "sub", "mul", "max", "min")


@st.composite
def programs(draw: st.DrawFn) -> KernelGraph:
    """Up to seven operators on matrices whose extents are drawn too, few of them powers of two."""
    extents = draw(st.lists(st.sampled_from([1, 3, 8, 17, 40]), min_size=2, max_size=2))
    kind = TensorType(tuple(extents), "f16")
    inputs = [Value(kind, f"x{i}") for i in range(draw(st.integers(1, 2)))]
    nodes: list[Node] = []
    values = list(inputs)

    def add(op: str, *operands: Value, **attrs: Any) -> None:
        result = Value(infer_type(op, [v.type for v in operands], attrs))
        nodes.append(Node(op, operands, (result,), attrs))
        values.append(result)

    for _ in range(draw(st.integers(1, 7))):
        x = draw(st.sampled_from(values))
        choice = draw(st.integers(0, 5))
        if choice == 0:
            add(draw(st.sampled_from(UNARY)), x)
        elif choice == 1:
            same = [v for v in values if v.shape == x.shape]
            add(draw(st.sampled_from(BINARY)), x, draw(st.sampled_from(same)))
        elif choice == 2:
            op = draw(st.sampled_from(["reduce_sum", "reduce_max", "reduce_mean"]))
            add(op, x, dims=(draw(st.integers(0, 1)),), keepdims=True)
        elif choice == 3:
            partners = [v for v in values if v.shape[0] == x.shape[0]]
            add("matmul", x, draw(st.sampled_from(partners)), transpose_a=True)
        elif choice == 4:
            add("transpose", x, perm=(1, 0))
        else:
            add("concat", x, x, dim=draw(st.integers(0, 1)))
    return KernelGraph("random", inputs, nodes, [values[-1]])


@settings(
    max_examples=PROGRAMS, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(graph=programs())
def test_random_programs_are_proved_down_to_their_ttir(graph: KernelGraph):
    lowered = lower(graph)
    verdict = certify(graph, lowered)
    assert verdict.certificate is not None, verdict.counterexample
    assert check_certificate(verdict.certificate.model_dump_json(), elements=2).faults == []
    emitted = emit_program(lowered)
    compiled = compile_all(emitted.kernels, ["sm_90"], jobs=1)
    verify_compiled(graph, lowered, emitted, compiled)
    domain, generator = FloatDomain(), np.random.default_rng(0)
    inputs = [domain.tensor(generator.standard_normal(v.shape)) for v in graph.inputs]
    first, second = evaluate(graph, inputs, domain)[0], evaluate(lowered, inputs, domain)[0]
    np.testing.assert_allclose(first.planes[0], second.planes[0], rtol=1e-9, atol=1e-9)
