"""What a program costs as a user would run it without superopt, by the same model.

    best_baseline(graph, target)    the fastest of
        eager       operator by operator; what PyTorch has as one operator (softmax, norms, mish) is one kernel
        inductor    chains of elementwise operators and reductions fused, epilogues in products where that pays
        attention   the same, `softmax(...) V` by FlashAttention-2, FlashDecoding, or with the queries that share
                    keys packed and the keys split (FlashInfer); whatever is done to the scores comes for free, as
                    with FlexAttention

Products are priced as cuBLAS runs them: the best of its tiles, the depth split over blocks where that pays
(split-K, stream-K). Opaque convolutions are priced by their flops, as cuDNN does them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.cost.attention import Attention, attentions
from superopt.cost.fusion import Fusion, Group, is_fusible, is_product, total_seconds
from superopt.cost.gpus import Target
from superopt.cost.library import contraction_cost
from superopt.cost.model import KernelCost, kernel_cost, update_cost
from superopt.cost.traffic import Traffic
from superopt.operators import Move, move_of
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.weights import main_part

# Of a block that PyTorch's norms give a row to.
ROW_WARPS = 4


@dataclass(frozen=True)
class Baseline:
    """One way to run a program: its kernels and their predicted seconds."""

    name: str
    parts: tuple[KernelCost, ...]

    @property
    def seconds(self) -> float:
        """Of all kernels, launches included."""
        return sum(p.seconds for p in self.parts)


def best_baseline(graph: KernelGraph, target: Target) -> Baseline:
    """The fastest of the ways that a user has."""
    return min(baselines(graph, target), key=lambda b: b.seconds)


def baselines(graph: KernelGraph, target: Target) -> list[Baseline]:
    """Every way that a user has: eager and Inductor; with attention kernels where the program has attention.

    What superopt prepares of weights (`superopt.weights`), a user has prepared, too, as Inductor's freezing does.
    """
    plan = _Plan(main_part(graph), target)
    found = attentions(plan.fusion)
    made = [Baseline("eager", plan.eager()), Baseline("inductor", plan.inductor([]))]
    if found:
        made.append(Baseline("attention", plan.inductor(found)))
    return made


def copy_seconds(size: int, target: Target) -> float:
    """What PyTorch takes to copy so many bytes of a tensor, such as `contiguous` does."""
    x, y = (Value(TensorType((max(size // 2, 1),), "f16")) for _ in range(2))
    return best_baseline(KernelGraph("copy", [x], [Node("neg", (x,), (y,))], [y]), target).seconds


class _Plan:
    """A program as the kernels that a user runs."""

    def __init__(self, graph: KernelGraph, target: Target) -> None:
        self.fusion, self.target = Fusion(graph, target), target

    def eager(self) -> tuple[KernelCost, ...]:
        """Operator by operator; a group with one large input and one output is one operator of PyTorch."""
        parts: list[KernelCost] = []
        for group in self.fusion.order():
            if len(group.nodes) > 1 and self._composite(group):
                parts += self._library(group)
                continue
            for node in group.nodes:
                parts += self.fusion.fused([node]) if is_fusible(node) else self._single(node)
        return tuple(parts)

    def _library(self, group: Group) -> list[KernelCost]:
        """One kernel of PyTorch; a norm reads its rows again once their statistics are known.

        They are still in L2 if those of all resident blocks, a row each, fit into the half of it that is near.
        """
        parts = self.fusion.fused(group.nodes)
        full = [v for v in self.fusion.written(group.nodes) if v.type.elements == group.full]
        if not parts or not group.reduced or not full:
            return parts
        size = full[0].type.bytes
        resident = self.target.multiprocessors * self.target.most_warps // ROW_WARPS
        near = resident * size / group.reduced <= self.target.l2_capacity / 2
        rate = self.target.l2_bytes_per_second if near else self.target.dram_bytes_per_second
        return [replace(parts[0], seconds=parts[0].seconds + size / rate), *parts[1:]]

    def _composite(self, group: Group) -> bool:
        inside = set(group.nodes)
        read = {v for n in inside for v in self.fusion.inputs(n) if self.fusion.made.get(v) not in inside}
        large = [v for v in read if v.type.elements * 2 > group.full]
        return len(large) <= 1 and len(self.fusion.written(inside)) == 1

    def inductor(self, found: Sequence[Attention]) -> tuple[KernelCost, ...]:
        """Groups as one kernel each, or as the epilogue of a product where that is faster."""
        parts: list[KernelCost] = []
        gone = frozenset(n for a in found for n in a.gone)
        for attention in found:
            parts += attention.cost(self.fusion)
        done: set[Group] = set()
        for group in self.fusion.order():
            nodes = [n for n in group.nodes if n not in gone]
            if group in done or not nodes:
                continue
            if not is_product(nodes[0]):
                continue
            node = nodes[0]
            alone = self._single(node)
            epilogue = self._epilogue(node, gone)
            if epilogue is not None and epilogue not in done:
                apart = [*alone, *self.fusion.fused(epilogue.nodes, gone, placing=True)]
                extra = self.fusion.traffic(epilogue.nodes, gone, without=node.result)
                together = [self._product(node, extra)]
                if total_seconds(together) <= total_seconds(apart):
                    parts += together
                    done.add(epilogue)
                    continue
            parts += alone
        for group in self.fusion.order():
            nodes = [n for n in group.nodes if n not in gone]
            if group in done or not nodes or is_product(nodes[0]):
                continue
            if is_fusible(nodes[0]):
                parts += self.fusion.fused(nodes, gone, placing=True)
            else:
                parts += self._single(nodes[0])
        return tuple(parts)

    def _epilogue(self, node: Node, gone: frozenset[Node]) -> Group | None:
        """The elementwise operators that are all that uses a product."""
        groups = {self.fusion.group[u] for u in self.fusion.uses.get(node.result, ())}
        if len(groups) != 1 or node.result in self.fusion.outputs:
            return None
        (group,) = groups
        elementwise = (
            group.reduced is None and all(map(is_fusible, group.nodes)) and gone.isdisjoint(group.nodes)
        )
        return group if elementwise and group.full == node.result.type.elements else None

    def _single(self, node: Node) -> list[KernelCost]:
        if node in self.fusion.in_place:
            return [update_cost(node, self.target)]
        if is_product(node):
            return [self._product(node, None)]
        return [kernel_cost(node, self.target)]

    def _product(self, node: Node, extra: Traffic | None) -> KernelCost:
        a, b = (self._source(v).type.bytes for v in node.operands)
        return contraction_cost(node, self.target, operands=(a, b), extra=extra)

    def _source(self, value: Value) -> Value:
        """What a product reads where it can read strided: PyTorch transposes, slices and expands by strides."""
        node = self.fusion.made.get(self.fusion.root(value))
        if node is not None and move_of(node) is Move.BROADCAST and value.type.elements:
            return self._source(node.operands[0])
        return value
