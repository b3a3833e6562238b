"""Random programs through lowering and emission: proved at every step, and in floats compared with numpy; and
through every optimizer, compared with torch.

SUPEROPT_TEST_PROGRAMS says how many.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.errors import IllegalProgram
from superopt.operators import infer_type
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms import optimizers
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


@settings(max_examples=PROGRAMS)
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


# --- every optimizer, against torch -----------------------------------------------------------------------


def in_torch(graph: KernelGraph, inputs: list[Any]) -> list[Any]:
    """The outputs in fp64, operator by operator, by nothing that superopt has."""
    torch: Any = pytest.importorskip("torch")
    nn = torch.nn.functional
    table: dict[str, Any] = {
        "silu": nn.silu, "gelu": nn.gelu, "max": torch.maximum, "min": torch.minimum,
        **{name: getattr(torch, name) for name in UNARY if name not in ("silu", "gelu")},
        **{name: getattr(torch, name) for name in ("add", "sub", "mul")},
    }  # fmt: skip

    def apply(op: str, attrs: dict[str, Any], x: Any, *more: Any) -> Any:
        if op == "transpose":
            return x.permute(attrs["perm"])
        if op == "concat":
            return torch.cat((x, *more), attrs["dim"])
        if op == "matmul":
            return (x.mT if attrs.get("transpose_a") else x) @ more[0]
        if op.startswith("reduce_"):
            reduce = {"reduce_sum": x.sum, "reduce_mean": x.mean, "reduce_max": x.amax}[op]
            return reduce(attrs["dims"], attrs["keepdims"])
        return table[op](x, *more)

    env: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        env[node.result] = apply(node.op, node.attrs, *(env[v] for v in node.operands))
    return [env[v] for v in graph.outputs]


# Those that take programs without convolutions.
TAKERS = [n for n in optimizers.names() if not optimizers.load(n).refusal(KernelGraph("none", [], [], []))]


@pytest.mark.parametrize("optimizer", TAKERS)
def test_what_optimizers_propose_is_the_program(optimizer: str):
    from superopt.cost import target
    from superopt.spec import check_kernel

    torch: Any = pytest.importorskip("torch")
    propose = optimizers.load(optimizer).propose
    accepted = proposed = 0

    @settings(max_examples=2 * PROGRAMS)
    @given(graph=programs())
    def each(graph: KernelGraph) -> None:
        nonlocal accepted, proposed
        check_kernel(graph)
        generator = np.random.default_rng(1)
        inputs = [generator.standard_normal(v.shape) for v in graph.inputs]
        expected = in_torch(graph, [torch.tensor(x) for x in inputs])
        for candidate in propose(graph, target("sm_90"), budget=1.0).graphs[:2]:
            proposed += 1
            same = agrees(candidate, inputs, expected)
            # What an optimizer proposes is screened, not proved: with one element, max(x, -x) may pass for -x.
            assert certify(graph, candidate).equivalent == same
            if same:
                accepted += 1
                lowered = lower(candidate)
                assert certify(graph, lowered).equivalent
                assert agrees(lowered, inputs, expected)

    each()
    assert proposed > PROGRAMS // 3
    assert accepted > proposed // 2


def agrees(graph: KernelGraph, inputs: list[Any], expected: list[Any]) -> bool:
    """Whether a program computes what is expected, in fp64; one that reads what nobody wrote does not."""
    domain = FloatDomain()
    try:
        found = evaluate(graph, [domain.tensor(x) for x in inputs], domain)
    except IllegalProgram:
        return False
    return all(
        np.allclose(got.planes[0], wanted.numpy(), rtol=1e-9, atol=1e-9)
        for wanted, got in zip(expected, found, strict=True)
    )
