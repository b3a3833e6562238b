"""Attention in a program, as libraries take it: two products with a softmax between them.

    scores = Q K^T; whatever is done to them; exponentials and their sums; times V, divided before or after

Whatever is done to the scores comes for free, as with FlexAttention; so do tiles that a mask hides, which
FlashAttention-2 (its causal mask) and FlexAttention (its block masks) leave out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from superopt.cost.fusion import Fusion, Group
from superopt.cost.library import attention_cost
from superopt.cost.model import KernelCost
from superopt.operators import (
    OPERATORS,
    Move,
    is_contraction,
    is_conversion,
    move_of,
    nest_of,
    normalize_attrs,
    primitive_of,
)
from superopt.program import KernelGraph, Node, Value
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate

# What is added to a score whose exponential is then zero, and the tiles of scores that are left out whole.
HIDDEN, TILE = -1e4, (128, 64)
# Elements of a mask that are looked at.
MOST_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Attention:
    """Scores, what is done to them, and the product with the values; what only they used goes, too."""

    scores: Node
    group: Group
    weighted: Node
    gone: frozenset[Node]

    def cost(self, fusion: Fusion) -> tuple[KernelCost, ...]:
        """Its kernels: one, or two with the keys split."""
        first, second = nest_of(self.scores), nest_of(self.weighted)
        assert first is not None
        assert second is not None
        *batch, rows, keys, width = first.extents
        heads = math.prod(batch)
        value, key = (n.operands[1] for n in (self.weighted, self.scores))
        source = _moved_from(fusion, key)
        key_heads = max(heads * source.type.elements // max(key.type.elements, 1), 1)
        if key.type.elements < heads * keys * width:  # the product itself broadcasts
            key_heads = max(key_heads * key.type.elements // (heads * keys * width), 1)
        inside = set(self.group.nodes)
        share, free = self._masked(fusion, rows, keys)
        extra = {
            v: v.type.bytes
            for n in inside
            for v in fusion.inputs(n)
            if fusion.made.get(v) not in inside and v is not self.scores.result and v not in free
        }
        rows_written = [v for v in fusion.written(inside, self.gone) if v.type.elements < self.group.full]
        return attention_cost(
            fusion.target, heads, rows, keys, width, dtype=value.dtype, value_width=second.extents[-2],
            key_heads=key_heads, extra_bytes=sum(extra.values()) + sum(v.type.bytes for v in rows_written),
            share=share, early=True,
        )  # fmt: skip

    def _masked(self, fusion: Fusion, rows: int, keys: int) -> tuple[float, set[Value]]:
        """The share of the tiles that some mask leaves, and what only says which: indices do, in the kernel."""
        share, free = 1.0, set[Value]()
        for node in self.group.nodes:
            if primitive_of(node) != "add":
                continue
            for value in node.operands:
                if (mask := _known(fusion, value)) is None or mask.ndim < 2 or not (mask <= HIDDEN).any():
                    continue
                seen = mask > HIDDEN
                share = min(share, _tiles_seen(seen, rows, keys))
                if not mask[seen].any():
                    free |= _before(fusion, fusion.root(value))
        return share, free


def attentions(fusion: Fusion) -> list[Attention]:
    """Two products with a softmax between them, and nothing else that uses the scores."""
    found: list[Attention] = []
    taken: set[Node] = set()
    for node in fusion.nodes:
        if is_contraction(node) and (match := _match(fusion, node)) and taken.isdisjoint(match.gone):
            found.append(match)
            taken |= match.gone
    return found


def _match(fusion: Fusion, scores: Node) -> Attention | None:
    groups = {fusion.group[u] for u in fusion.uses.get(scores.result, ())}
    if len(groups) != 1 or scores.result in fusion.outputs:
        return None
    (group,) = groups
    large = scores.result.type.elements
    softmax = any("exp" in primitives(n) for n in group.nodes) and group.reduced is not None
    weights = [v for v in fusion.written(group.nodes) if v.type.elements == large]
    if not softmax or group.full != large or len(weights) != 1 or weights[0] in fusion.outputs:
        return None
    users = fusion.uses.get(weights[0], [])
    if len(users) != 1 or not is_contraction(users[0]):
        return None
    (user,) = users
    if fusion.root(user.operands[0]) is not weights[0]:
        return None
    gone = {scores, user, *group.nodes, *_division(fusion, user, group)}
    for value in (*scores.operands, user.operands[1]):  # moves that only they read
        node = fusion.made.get(fusion.root(value))
        while node is not None and move_of(node) in (Move.BROADCAST, Move.TRANSPOSE):
            if fusion.root(node.result) in fusion.outputs or not gone.issuperset(fusion.uses[node.result]):
                break
            gone.add(node)
            node = fusion.made.get(fusion.root(node.operands[0]))
    return Attention(scores, group, user, frozenset(gone))


def _division(fusion: Fusion, product: Node, group: Group) -> list[Node]:
    """What divides the product by what the softmax's kernel makes for each row, and conversions around it."""
    rows = {v for v in fusion.written(group.nodes) if v.type.elements < group.full}
    chain, value = list[Node](), product.result
    while value not in fusion.outputs and len(users := fusion.uses.get(value, [])) == 1:
        (node,) = users
        chain.append(node)
        if is_conversion(node):
            value = node.result
            continue
        operands = [fusion.root(v) for v in node.operands]
        places = {"div": 1, "mul": 2}.get(primitive_of(node) or "", 0)
        if value not in operands[:places] or not rows & set(operands):
            return []
        after = fusion.uses.get(node.result, [])
        rounded = len(after) == 1 and is_conversion(after[0]) and node.result not in fusion.outputs
        return [*chain, *after] if rounded else chain
    return []


def _before(fusion: Fusion, value: Value) -> set[Value]:
    """`value`, and all that it is made of."""
    found, left = set[Value](), [value]
    while left:
        value = left.pop()
        if value not in found:
            found.add(value)
            node = fusion.made.get(value)
            left += map(fusion.root, node.operands) if node is not None else ()
    return found


def _known(fusion: Fusion, value: Value) -> np.ndarray | None:
    """The elements of a value that depends on no input; None for others, and for large ones."""
    made = _before(fusion, fusion.root(value))
    if value.type.elements > MOST_ELEMENTS or made & set(fusion.graph.inputs):
        return None
    # Roots stand for reshapes, which are nodes of the program, too.
    wanted, nodes = {value}, list[Node]()
    for node in reversed(fusion.graph.nodes):
        if wanted & set(node.results):
            nodes.insert(0, node)
            wanted |= set(node.operands)
    if wanted & set(fusion.graph.inputs) or any(n.op not in OPERATORS for n in nodes):
        return None
    known = KernelGraph("mask", [], nodes, [value])
    return np.asarray(evaluate(known, [], FloatDomain())[0].planes[0])


def _tiles_seen(seen: np.ndarray, rows: int, keys: int) -> float:
    """The share of the tiles of (rows, keys) scores of which something is seen."""
    whole = np.broadcast_to(seen, (*seen.shape[:-2], rows, keys))
    down, across = (min(tile, extent) for tile, extent in zip(TILE, (rows, keys), strict=True))
    ends = [range(0, rows, down), range(0, keys, across)]
    tiles = np.logical_or.reduceat(np.logical_or.reduceat(whole, list(ends[0]), -2), list(ends[1]), -1)
    return float(tiles.mean())


def _moved_from(fusion: Fusion, value: Value) -> Value:
    node = fusion.made.get(fusion.root(value))
    while node is not None and move_of(node) in (Move.BROADCAST, Move.TRANSPOSE):
        value = fusion.root(node.operands[0])
        node = fusion.made.get(value)
    return fusion.root(value)


def primitives(node: Node) -> list[str]:
    """The primitives that a node applies to each element; none where it only moves elements, or is opaque."""
    entry = OPERATORS.get(node.op)
    return entry.body(normalize_attrs(entry, node.attrs)).primitives() if entry and entry.body else []
