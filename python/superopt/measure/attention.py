"""Where a program holds attention: `softmax(scale * Q K^T) V`, with or without the maximum subtracted.

A program is rewritten so that libraries can be asked for that part: the matched operators become one opaque
operation, the rest stays as it is. Baselines only; no search sees this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from superopt.operators import (
    OPERATORS,
    Move,
    is_contraction,
    is_conversion,
    move_of,
    normalize_attrs,
    primitive_of,
    reduction_of,
    splat_of,
)
from superopt.program import KernelGraph, Node, TensorType, Value, live_nodes, producers, users

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
    """Every attention in the program whose intermediate values nothing else uses."""
    return [
        found
        for node in graph.nodes
        if primitive_of(node) == "exp" and (found := _Match(graph, node).run()) is not None
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
    # Without what only the matched operators used, such as repeated keys.
    return replace(graph, nodes=live_nodes(nodes, graph.outputs))


def _applies(primitive: str) -> Callable[[Node], bool]:
    return lambda node: primitive_of(node) == primitive


_difference, _product, _quotient = map(_applies, ("sub", "mul", "div"))


def _maximum(node: Node) -> bool:
    return reduction_of(node) == "max"


def _sum(node: Node) -> bool:
    return reduction_of(node) == "add" and OPERATORS[node.op].finish is None


class _No(Exception):
    """The pattern does not match."""


class _Match:
    def __init__(self, graph: KernelGraph, exp: Node) -> None:
        self.exp = exp
        self.made, self.users = producers(graph.nodes), users(graph.nodes)
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
                used = all(u in inner for u in self.users.get(value, ())) and value not in self.outputs
                self._want(value is out or used)
        before, groups = self._ungrouped(k), self._ungrouped(v)
        if before is not None and groups is not None and before.shape[:-2] == groups.shape[:-2]:
            k, v = before, groups
        return Attention(q, k, v, out, scale, k_transposed, tuple(self.nodes))

    def _ungrouped(self, value: Value) -> Value | None:
        """Keys before they were repeated: (..., H, N, D) as (..., H, 1, N, D), broadcast to (..., H, G, N, D)."""
        chain: list[Node] = []
        for move in (Move.RESHAPE, Move.BROADCAST, Move.RESHAPE):
            node = self.made.get(value)
            if node is None or move_of(node) is not move:
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

    def _take(self, value: Value, fits: Callable[[Node], bool]) -> Node:
        node = self.made.get(value)
        if node is None or not fits(node):
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
        while (node := self.made.get(value)) is not None and is_conversion(node):
            value = self._take(value, is_conversion).operands[0]
        return value

    def _scores(self) -> Value:
        """What the exponential is taken of, without its maximum."""
        argument = self.exp.operands[0]
        node = self.made.get(argument)
        if node is None or not _difference(node):
            return self._uncast(argument)
        self._take(argument, _difference)
        scores, largest = node.operands
        top = self._take(self._uncast(largest), _maximum)
        self._last(top)
        scores = self._uncast(scores)
        self._want(self._uncast(top.operands[0]) is scores)
        return scores

    def _scale(self, scores: Value) -> tuple[Node, float]:
        """The product of queries and keys, and the constant that it is multiplied with."""
        node = self.made.get(scores)
        if node is None or not (_product(node) or _quotient(node)):
            return self._take(scores, is_contraction), 1.0
        self._take(scores, lambda _: True)
        for value, other in (node.operands, node.operands[::-1]):
            made = self.made.get(other)
            number = splat_of(made) if made is not None else None
            if number is None or (_quotient(node) and other is node.operands[0]):
                continue
            product = self._take(self._uncast(value), is_contraction)
            return product, float(number if _product(node) else 1 / number)
        raise _No

    def _weighted(self) -> tuple[Value, Value]:
        """(output, values), the sum divided out before or after the second product."""
        weights = self.exp.result
        sums = [n for n in self._users(weights) if _sum(n)]
        self._want(len(sums) == 1)
        total = self._take(sums[0].result, _sum)
        self._last(total)
        after = self._users(total.result)
        self._want(
            len(after) == 1 and _quotient(after[0]) and self._uncast(after[0].operands[1]) is total.result
        )
        divided = self._take(after[0].result, _quotient)
        over = self._uncast(divided.operands[0])
        if over is weights:
            following = self._users(divided.result)
            self._want(len(following) == 1 and is_contraction(following[0]))
            product = self._take(following[0].result, is_contraction)
            self._want(self._uncast(product.operands[0]) is divided.result)
            out = product.result
        else:
            product = self._take(over, is_contraction)
            self._want(self._uncast(product.operands[0]) is weights)
            out = divided.result
            if out.dtype != product.operands[1].dtype:
                (*_, last) = [n for n in self.users.get(out, ()) if is_conversion(n)] or [None]
                self._want(last is not None)
                out = last.result if last is not None else out
                self._take(out, is_conversion)
        self._want(not self._attr(product, "transpose_a") and not self._attr(product, "transpose_b"))
        return out, product.operands[1]

    def _users(self, value: Value) -> list[Node]:
        """The users of `value`, or of a cast of it."""
        found: list[Node] = []
        for node in self.users.get(value, ()):
            found += self._users(node.result) if is_conversion(node) else [node]
        return found
