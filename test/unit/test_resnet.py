"""A whole ResNet-18: what derivation and layouts make of it."""

from __future__ import annotations

import pytest

from superopt import from_torch
from superopt.cost import target
from superopt.operators import Move, move_of
from superopt.program import Compute, Node, TileProgram
from superopt.transforms.derivation.optimizer import DerivationOptimizer
from superopt.verify import certify
from superopt.weights import main_part

pytestmark = pytest.mark.models

RESIDUALS, SHORTCUTS = 8, 3


def test_a_whole_resnet_moves_nothing_and_has_one_kernel_for_each_convolution() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.expressions.modules import resnet18

    module, _ = resnet18()
    graph = from_torch(module, (torch.randn(1, 3, 64, 64).half(),)).graph
    assert not any(n.op == "extern" for n in graph.nodes)
    found = DerivationOptimizer(limit=2, candidates=1).propose(graph, target("sm_90"), budget=600).found
    made = main_part(found[0].graph)  # batch norms are in the weights, which are prepared
    moved = [n for n in made.nodes if move_of(n) is not None and move_of(n) is not Move.RESHAPE]
    assert len(moved) <= 2
    assert sorted(n.op for n in made.nodes if n.body is None and n not in moved and n.op != "reshape") == [
        "add",
        "matmul",
        "reduce_mean",
    ]
    images = {v for n in made.nodes for v in n.results} | {made.inputs[0]}
    kernels = [(n, operators(n)) for n in made.nodes if n.body is not None]
    convolutions = [(n, ops) for n, ops in kernels if "matmul" in ops]
    assert len(convolutions) == 1 + 2 * RESIDUALS + SHORTCUTS == len(kernels) - 1  # and the maximum
    joined = [n for n, ops in convolutions if "relu" in ops and len(images.intersection(n.operands)) == 2]
    assert len(joined) == RESIDUALS  # convolution, bias, residual and activation are one kernel
    assert sum("relu" in ops for _, ops in convolutions) == 1 + 2 * RESIDUALS
    assert certify(graph, found[0].graph).equivalent


def operators(node: Node) -> set[str]:
    """What a kernel computes."""
    assert isinstance(node.body, TileProgram)
    return {s.op for s in node.body.statements() if isinstance(s, Compute)}
