"""Helpers of the ingest tests: evaluating a kernel graph on torch tensors, opaque operations included."""

from __future__ import annotations

from typing import Any

import numpy as np

from superopt.diagnostics import Diagnostics
from superopt.dialects import base
from superopt.dialects.mlir import ir
from superopt.program import KernelGraph, Value
from superopt.transforms.ingest import run_extern
from superopt.transforms.ingest.import_torch import Imported
from superopt.transforms.ingest.ingest_linalg import read_linalg
from superopt.transforms.ingest.torch_types import DTYPE_NAMES
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate_operator import evaluate_operator


def read_text(text: str, **options: Any) -> tuple[KernelGraph, Diagnostics]:
    """The kernel graph of linalg text, and what was said about it."""
    diagnostics = Diagnostics()
    module = ir.Module.parse(text, base.context())
    return read_linalg(module, diagnostics, filename="input.mlir", **options), diagnostics


def ops(graph: KernelGraph) -> list[str]:
    """The graph's operators in order, constants left out."""
    return [n.op for n in graph.nodes if n.op != "constant"]


def run_graph(graph: KernelGraph, inputs: list[Any]) -> list[Any]:
    """The graph's outputs as torch tensors, computed in fp64; opaque operations run as they would."""
    import torch as _torch

    torch: Any = _torch

    domain = FloatDomain()
    env: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    last = {v: i for i, node in enumerate(graph.nodes) for v in node.operands}
    for i, node in enumerate(graph.nodes):
        operands = [env[v] for v in node.operands]
        if node.op == "extern":
            typed = [o.to(DTYPE_NAMES[v.dtype]) for o, v in zip(operands, node.operands, strict=True)]
            env.update(zip(node.results, run_extern(node, typed), strict=True))
        else:
            planes = [domain.tensor(o.double().numpy()) for o in operands]
            dtypes = [v.dtype for v in node.operands]
            made = evaluate_operator(node.op, node.attrs, planes, dtypes, domain, 0)
            assert made.shape == node.result.shape
            env[node.result] = torch.from_numpy(np.ascontiguousarray(made.planes[0]).reshape(made.shape))
        for v in node.operands:
            if last[v] == i and v not in graph.outputs:
                env.pop(v, None)
    return [env[v] for v in graph.outputs]


def run_imported(imported: Imported, inputs: tuple[Any, ...]) -> list[Any]:
    """The outputs of an imported module on its own weights."""
    return run_graph(imported.graph, [*inputs, *imported.weights])
