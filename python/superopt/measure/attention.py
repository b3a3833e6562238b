"""Where a program holds attention: `softmax(scale * Q K^T) V`, with or without the maximum subtracted.

A program is rewritten so that libraries can be asked for that part: the matched operators become one opaque
operation, the rest stays as it is. Baselines only; no search sees this.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from superopt.operators import OPERATORS, normalize_attrs
from superopt.program import KernelGraph, Node, TensorType, Value

TARGET = "attention"


@dataclass(frozen=True)
class Attention:
    """One match: q (..., M, D), k (..., N, D), or (..., D, N) where `k_transposed`, v (..., N, D).

    All are of one dtype. Where keys and values are repeated for groups of query heads, k and v are those before
    that: the heads of a group are then more queries of one head, as they lie one after the other.
    """

    q: Value
    k: Value
    v: Value
    out: Value
    scale: float
    k_transposed: bool
    nodes: tuple[Node, ...]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(heads of the keys, queries of each, keys, width)."""
        heads = math.prod(self.v.shape[:-2])
        *_, keys, width = self.v.shape
        return heads, math.prod(self.q.shape[:-1]) // heads, keys, width


def find(graph: KernelGraph) -> list[Attention]:
    """Every attention in the program whose intermediate values nobody else uses."""
    return [
        found for node in graph.nodes if node.op == "exp" and (found := _Match(graph, node).run()) is not None
    ]


def replaced(graph: KernelGraph, found: Attention) -> KernelGraph:
    """The program with the matched operators as one opaque operation named `attention`."""
    gone = set(found.nodes)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node not in gone:
            nodes.append(node)
        elif node.result is found.out:
            attrs = {"target": TARGET, "reason": "a library is asked"}
            nodes.append(Node("extern", (found.q, found.k, found.v), (found.out,), dict(attrs)))
    kept: list[Node] = []  # without what only the matched operators used, such as repeated keys
    used = set(graph.outputs)
    for node in reversed(nodes):
        if used.intersection(node.results):
            kept.append(node)
            used.update(node.operands)
    return KernelGraph(graph.name, graph.inputs, kept[::-1], graph.outputs, graph.location, graph.aliases)


class _No(Exception):
    """Not this pattern."""


class _Match:
    def __init__(self, graph: KernelGraph, exp: Node) -> None:
        self.exp = exp
        self.made = {v: n for n in graph.nodes for v in n.results}
        self.users: dict[Value, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for v in node.operands:
                self.users[v].append(node)
        self.outputs = set(graph.outputs)
        self.nodes: list[Node] = []

    def run(self) -> Attention | None:
        try:
            return self._run()
        except _No:
            return None

    def _run(self) -> Attention:
        self.nodes.append(self.exp)
        product, scale = self._scale(self._scores())
        q, k = product.operands
        turned = self._attr(product, "transpose_a")
        k_transposed = not self._attr(product, "transpose_b")
        out, v = self._weighted()
        self._want(not turned and v.shape[-1] == q.shape[-1] and out.type == TensorType(q.shape, q.dtype))
        self._want(q.dtype in ("f16", "bf16") and q.shape[:-2] == k.shape[:-2] == v.shape[:-2])
        inner = set(self.nodes)
        for node in inner:
            for value in node.results:
                used = all(u in inner for u in self.users[value]) and value not in self.outputs
                self._want(value is out or used)
        before, groups = self._ungrouped(k), self._ungrouped(v)
        if before is not None and groups is not None and before.shape[:-2] == groups.shape[:-2]:
            k, v = before, groups
        return Attention(q, k, v, out, scale, k_transposed, tuple(self.nodes))

    def _ungrouped(self, value: Value) -> Value | None:
        """Keys before they were repeated: (..., H, N, D) as (..., H, 1, N, D), broadcast to (..., H, G, N, D)."""
        chain: list[Node] = []
        for op in ("reshape", "broadcast", "reshape"):
            node = self.made.get(value)
            if node is None or node.op != op:
                return None
            chain.append(node)
            value = node.operands[0]
        _, repeated, split = chain
        *batch, heads, rows, width = value.shape
        grouped = (*batch, heads, repeated.result.shape[-3], rows, width)
        same = repeated.result.shape == grouped and split.result.shape == (*batch, heads, 1, rows, width)
        return value if same and chain[0].result.shape == (*batch, heads * grouped[-3], rows, width) else None

    def _want(self, condition: bool) -> None:
        if not condition:
            raise _No

    def _take(self, value: Value, op: str) -> Node:
        node = self.made.get(value)
        if node is None or node.op != op:
            raise _No
        if node not in self.nodes:
            self.nodes.append(node)
        return node

    def _attr(self, node: Node, name: str) -> object:
        return normalize_attrs(OPERATORS[node.op], node.attrs)[name]

    def _last(self, node: Node) -> None:
        """A reduction over the last dimension that keeps it."""
        dims = self._attr(node, "dims")
        rank = len(node.operands[0].shape)
        self._want(dims in ((rank - 1,), (-1,)) and bool(self._attr(node, "keepdims")))

    def _uncast(self, value: Value) -> Value:
        """What `value` was before it was rounded or widened."""
        while (node := self.made.get(value)) is not None and node.op == "cast":
            value = self._take(value, "cast").operands[0]
        return value

    def _scores(self) -> Value:
        """What the exponential is taken of, without its maximum."""
        argument = self.exp.operands[0]
        node = self.made.get(argument)
        if node is None or node.op != "sub":
            return self._uncast(argument)
        self._take(argument, "sub")
        scores, largest = node.operands
        top = self._take(self._uncast(largest), "reduce_max")
        self._last(top)
        scores = self._uncast(scores)
        self._want(self._uncast(top.operands[0]) is scores)
        return scores

    def _scale(self, scores: Value) -> tuple[Node, float]:
        """The product of queries and keys, and the constant that it is multiplied with."""
        node = self.made.get(scores)
        if node is None or node.op not in ("mul", "div"):
            return self._take(scores, "matmul"), 1.0
        self._take(scores, node.op)
        for value, other in (node.operands, node.operands[::-1]):
            made = self.made.get(other)
            if made is None or made.op != "constant" or (node.op == "div" and other is node.operands[0]):
                continue
            number = made.attrs["value"]
            if isinstance(number, int | float):
                product = self._take(self._uncast(value), "matmul")
                return product, float(number if node.op == "mul" else 1 / number)
        raise _No

    def _weighted(self) -> tuple[Value, Value]:
        """(output, values), the sum divided out before or after the second product."""
        weights = self.exp.result
        sums = [n for n in self._users(weights) if n.op == "reduce_sum"]
        self._want(len(sums) == 1)
        total = self._take(sums[0].result, "reduce_sum")
        self._last(total)
        users = self._users(total.result)
        self._want(
            len(users) == 1 and users[0].op == "div" and self._uncast(users[0].operands[1]) is total.result
        )
        divided = self._take(users[0].result, "div")
        over = self._uncast(divided.operands[0])
        if over is weights:
            following = self._users(divided.result)
            self._want(len(following) == 1 and following[0].op == "matmul")
            product = self._take(following[0].result, "matmul")
            self._want(self._uncast(product.operands[0]) is divided.result)
            out = product.result
        else:
            product = self._take(over, "matmul")
            self._want(self._uncast(product.operands[0]) is weights)
            out = divided.result
            if out.dtype != product.operands[1].dtype:
                (*_, last) = [n for n in self.users[out] if n.op == "cast"] or [None]
                self._want(last is not None)
                out = last.result if last is not None else out
                self._take(out, "cast")
        self._want(not self._attr(product, "transpose_a") and not self._attr(product, "transpose_b"))
        return out, product.operands[1]

    def _users(self, value: Value) -> list[Node]:
        """Who uses `value`, or a cast of it."""
        found: list[Node] = []
        for node in self.users[value]:
            found += self._users(node.result) if node.op == "cast" else [node]
        return found
