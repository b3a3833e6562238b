"""The analytic cost of a program: the traffic of each kernel, put through the native cost formula.

The formula (transforms/core/cost/) is a roofline with waves, launches and loop latency. Predictions rank
programs; they do not promise seconds.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.aliasing import copied, updates_in_place
from superopt.computed import computed_values
from superopt.cost.gpus import Target
from superopt.cost.traffic import Traffic, kernel_seconds, moved, node_traffic, tile_traffic
from superopt.early import early_launches
from superopt.moves import moves_in_place
from superopt.operators import (
    OPERATORS,
    Move,
    is_constant,
    move_of,
)
from superopt.program import (
    Computed,
    KernelGraph,
    Node,
    NodeKind,
    TileProgram,
    Value,
)
from superopt.twins import twins
from superopt.weights import main_part

# Kernels become one for at least so much: a longer block may need more registers than the model knows.
WORTH_MERGING = 0.95
# Operators of PyTorch whose results lie in their operand's memory; others that are views are in the table.
OPAQUE_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("alias", "as_strided", "detach", "diagonal", "expand", "permute", "select", "slice", "split"),
        *("split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view"),
    )
)


@dataclass(frozen=True)
class KernelCost:
    """One kernel's predicted seconds and what they were computed from."""

    name: str
    seconds: float
    traffic: Traffic


@dataclass(frozen=True)
class Cost:
    """A program's predicted seconds, kernel by kernel."""

    kernels: tuple[KernelCost, ...]

    @property
    def seconds(self) -> float:
        """Sum over the kernels, launches included; infinity where one does not fit the target."""
        return sum(k.seconds for k in self.kernels)


def is_view(node: Node) -> bool:
    """Whether `node` moves nothing: a row-major view, or values known at compile time."""
    return move_of(node) is Move.RESHAPE or is_constant(node)


def is_opaque_view(node: Node) -> bool:
    """Whether an opaque operation only shows its operand in another way, for which PyTorch launches nothing."""
    return node.op == NodeKind.EXTERN and str(node.attrs["target"]).rpartition(".")[0] in OPAQUE_VIEWS


def launches_nothing(node: Node) -> bool:
    """Whether no kernel runs for `node`, ours or PyTorch's."""
    return is_view(node) or is_opaque_view(node)


def cost(graph: KernelGraph, target: Target, known: dict[Hashable, KernelCost] | None = None) -> Cost:
    """Predicted cost of a call of `graph` on `target`; views, constants, what is read in place (`superopt.moves`)
    and what is prepared (`superopt.weights`) cost nothing.

    An output that is returned in an argument's memory is copied there where no kernel wrote it there. `known` are
    the costs of nodes that many graphs share, or have alike (`_alike`); it grows.
    """
    graph = main_part(graph)
    costs, in_place = costs_alone(graph, target, known), updates_in_place(graph)
    for group in twins(graph):
        if together := _together([costs[n] for n in group], target):
            for node in group[:-1]:
                del costs[node]
            costs[group[-1]] = together
    for node in early_launches(n for n in graph.nodes if n in costs):
        costs[node] = replace(costs[node], seconds=costs[node].seconds - target.early_seconds)
    return Cost((*costs.values(), *copy_costs(graph, target, {node.result for node in in_place})))


def costs_alone(
    graph: KernelGraph, target: Target, known: dict[Hashable, KernelCost] | None = None
) -> dict[Node, KernelCost]:
    """What each node that launches a kernel costs by itself; `known` as for `cost`."""
    known, computed = {} if known is None else known, computed_values(graph)

    def alone(node: Node) -> KernelCost:
        key = _alike(node)
        if key not in known:
            known[key] = kernel_cost(node, target, computed)
        return known[key]

    in_place, free = updates_in_place(graph), moves_in_place(graph)
    priced = [n for n in graph.nodes if not launches_nothing(n) and free.keys().isdisjoint(n.results)]
    return {n: update_cost(n, target) if n in in_place else alone(n) for n in priced}


def _alike(node: Node) -> Hashable:
    """What the cost of a node depends on: the same for operators that differ in their tensors alone."""
    if isinstance(node.body, TileProgram):
        return node.body
    attrs = node.attrs.items()
    if node.body is not None or node.op not in OPERATORS or any(isinstance(v, np.ndarray) for _, v in attrs):
        return node
    return node.op, tuple(v.type for v in (*node.operands, *node.results)), tuple(sorted(attrs))


def _together(costs: Sequence[KernelCost], target: Target) -> KernelCost | None:
    """The cost of one kernel whose blocks do what the blocks of all these do, if that is worth while."""
    summed = ("dram_bytes", "l2_bytes", "tensor_flops", "vector_flops", "special_operations", "loop_trips")
    sums = {name: sum(getattr(c.traffic, name) for c in costs) for name in summed}
    traffic = replace(costs[0].traffic, **sums)
    seconds = kernel_seconds(traffic, target)
    worth_while = seconds < WORTH_MERGING * sum(c.seconds for c in costs)
    return KernelCost(costs[0].name, seconds, traffic) if worth_while else None


def merged_twins(graph: KernelGraph, target: Target) -> list[list[Node]]:
    """The twins in `graph` that are priced as one kernel."""
    graph, computed, in_place = main_part(graph), computed_values(graph), updates_in_place(graph)

    def alone(node: Node) -> KernelCost:
        return update_cost(node, target) if node in in_place else kernel_cost(node, target, computed)

    return [group for group in twins(graph) if _together([alone(n) for n in group], target)]


def copy_costs(graph: KernelGraph, target: Target, done: Container[Value] = ()) -> list[KernelCost]:
    """The copies of outputs, but for those `done` already, into the arguments whose memory they share."""
    found: list[KernelCost] = []
    for i in copied(graph):
        if (value := graph.outputs[i]) not in done:
            traffic = moved(2 * value.type.bytes, target)
            found.append(KernelCost("copy", kernel_seconds(traffic, target), traffic))
    return found


def update_cost(node: Node, target: Target) -> KernelCost:
    """An `update_slice` in the memory of its first operand: only the second is moved."""
    traffic = moved(2 * node.operands[1].type.bytes, target)
    return KernelCost(node.op, kernel_seconds(traffic, target), traffic)


def kernel_cost(node: Node, target: Target, computed: Mapping[Value, Computed] | None = None) -> KernelCost:
    """Predicted cost of one kernel-level node; `computed` are operands that its blocks need not load."""
    traffic = node_traffic(node, target, computed)
    return KernelCost(_kernel_name(node), kernel_seconds(traffic, target), traffic)


def program_seconds(program: TileProgram, target: Target) -> float:
    """Seconds of one lowered kernel by the native formula."""
    return kernel_seconds(tile_traffic(program, target), target)


def _kernel_name(node: Node) -> str:
    return node.body.name if isinstance(node.body, TileProgram) else node.op
