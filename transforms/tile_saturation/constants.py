"""Constants of many numbers as inputs, which tile loops load; kernels compute those that an index decides.

%m = band ...                      %m: an input
%y = add(%x, %m)          ->       %y = add(%x, %m)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.computed import mark_computed
from superopt.operators import is_constant, splat_of
from superopt.program import KernelGraph, Node, live_nodes


def lifted(graph: KernelGraph) -> tuple[KernelGraph, list[Node]]:
    """`graph` with an input, after its own, for each such constant, and the constants; what it returns stays."""
    found = [
        n for n in graph.nodes if is_constant(n) and splat_of(n) is None and n.result not in graph.outputs
    ]
    nodes = [n for n in graph.nodes if n not in found]
    return replace(graph, inputs=[*graph.inputs, *(n.result for n in found)], nodes=nodes), found


def restored(kernels: KernelGraph, constants: Sequence[Node]) -> KernelGraph:
    """Kernels on the inputs of a lifted program, with the constants that they use in place of the last inputs."""
    inputs = kernels.inputs[: len(kernels.inputs) - len(constants)]
    nodes = live_nodes([*constants, *kernels.nodes], kernels.outputs)
    whole = replace(kernels, inputs=inputs, nodes=nodes)
    mark_computed(whole)
    return whole
