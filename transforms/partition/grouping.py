"""Which nodes become one segment: joins groups where that saves most, until nothing more can be saved.

Savings are counted in bytes of device memory: the launch of a kernel and the traffic between the two, read and
written, less what would be recomputed. What several groups read is written unless all of them join, so each has
a share of that: what rotates a value stays with what is done to both of its halves. A product passes its whole
left operand to every column tile; if it were computed in the same kernel, each tile would compute it. So a
normalisation joins the products after it, scores join the softmax and the product with the values, and two
layers stay two segments.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

from superopt.cost.model import LIBRARY_TILE
from superopt.operators import OPERATORS, is_contraction, nest_of
from superopt.program import Node, Value

Check: TypeAlias = Callable[[Sequence[Node]], bool]

# The cost of a launch in bytes of device memory: about 3 us at about 3 TB/s.
LAUNCH_BYTES = 8 << 20
# Bytes from L2 count half.
L2_SHARE = 0.5


def group(
    nodes: Sequence[Node], eligible: Sequence[bool], outputs: Container[Value], few: Check, expressible: Check
) -> list[list[Node]]:
    """Disjoint convex groups of the eligible nodes, in topological order, each `few` and `expressible`.

    `outputs` are those of the program.
    """
    return _Grouping(nodes, eligible, outputs, few, expressible).run()


class _Grouping:
    """Groups are named by one of their nodes; `members` are sorted."""

    def __init__(
        self,
        nodes: Sequence[Node],
        eligible: Sequence[bool],
        outputs: Container[Value],
        few: Check,
        expressible: Check,
    ) -> None:
        self.nodes, self.outputs = nodes, outputs
        self.few, self.expressible = few, expressible
        self.producer = {v: i for i, n in enumerate(nodes) for v in n.results}
        self.operands = [sorted({self.producer[v] for v in n.operands if v in self.producer}) for n in nodes]
        self.users: list[list[int]] = [[] for _ in nodes]
        for i, operands in enumerate(self.operands):
            for p in operands:
                self.users[p].append(i)
        self.group = list(range(len(nodes)))
        self.members = {i: [i] for i in range(len(nodes))}
        self.open = {i for i, good in enumerate(eligible) if good and self._fits([i])}
        self.heap: list[tuple[float, int, int]] = []

    def run(self) -> list[list[Node]]:
        for g in sorted(self.open):
            self._offer(g, before=False)
        while self.heap:
            offered, a, b = heapq.heappop(self.heap)
            if a not in self.open or b not in self.open:
                continue  # one of them is part of another by now
            saved = self._saved(a, b)
            if saved < -offered:  # they have grown since
                self._push(saved, a, b)
            else:
                self._join(a, b)
        groups = sorted((self.members[g] for g in self.open), key=lambda m: m[-1])
        return [[self.nodes[i] for i in members] for members in groups]

    def _offer(self, g: int, *, before: bool = True) -> None:
        """Put the pairs of `g` and the groups that it feeds, and with `before` that feed it, on the heap."""
        after = {self.group[u] for i in self.members[g] for u in self.users[i]}
        pairs = [(g, h) for h in after]
        if before:
            pairs += [(self.group[p], g) for i in self.members[g] for p in self.operands[i]]
        for a, b in sorted(set(pairs)):
            if a != b and a in self.open and b in self.open:
                self._push(self._saved(a, b), a, b)

    def _push(self, saved: float, a: int, b: int) -> None:
        if saved > 0:
            heapq.heappush(self.heap, (-saved, a, b))

    def _join(self, a: int, b: int) -> None:
        members = sorted(self.members[a] + self.members[b])
        if not self._convex(members) or not self._fits(members, added=self.members[b]):
            return
        new = members[-1]
        for old in {a, b} - {new}:
            self.open.discard(old)
            del self.members[old]
        # A group keeps the name of its last node; pairs offered under that name are offered again.
        self.members[new] = members
        self.open.add(new)
        for i in members:
            self.group[i] = new
        self._offer(new)

    def _fits(self, members: Sequence[int], added: Sequence[int] = ()) -> bool:
        nodes = [self.nodes[i] for i in members]
        # Adding one operand's axes unchanged cannot contradict anything.
        last = self.nodes[(added or members)[0]]
        sure = len(added or members) == 1 and len(last.operands) == 1 and OPERATORS[last.op].elementwise
        return self.few(nodes) and (sure or self.expressible(nodes))

    # --- savings ---

    def _saved(self, a: int, b: int) -> float:
        """Bytes of device memory that one kernel in place of two saves, where group `a` feeds group `b`."""
        crossing = {v for i in self.members[b] for v in self.nodes[i].operands if self._in(v, a)}
        saved = float(LAUNCH_BYTES)
        for value in sorted(crossing, key=lambda v: self.producer[v]):
            saved += value.type.bytes * (1 + self._unwritten(value, a))
            if (times := self._times(value, b)) > 1:
                loaded = self._loaded(self.producer[value], a)
                saved -= (times - 1) * max(loaded - value.type.bytes, 0) * L2_SHARE
        return saved

    def _unwritten(self, value: Value, a: int) -> float:
        """The share of not writing `value`, which group `a` computes, in one more group that reads it."""
        if value in self.outputs:
            return 0
        return 1 / len({self.group[u] for u in self.users[self.producer[value]]} - {a})

    def _in(self, value: Value, g: int) -> bool:
        return value in self.producer and self.group[self.producer[value]] == g

    def _times(self, value: Value, g: int) -> int:
        """How often group `g`, as one kernel, would compute `value`: once for each tile multiplied with it."""
        reached = {value}
        times = 1
        for i in self.members[g]:
            node = self.nodes[i]
            taken = [k for k, v in enumerate(node.operands) if v in reached]
            if not taken:
                continue
            reached.update(node.results)
            if is_contraction(node):
                times = max(times, *(math.ceil(_columns(node, k) / LIBRARY_TILE) for k in taken))
        return times

    def _loaded(self, node: int, g: int) -> int:
        """Bytes that group `g` loads to compute `node`'s result."""
        stack, seen = [node], {node}
        inputs: set[Value] = set()
        while stack:
            for value in self.nodes[stack.pop()].operands:
                producer = self.producer.get(value)
                if producer is None or self.group[producer] != g:
                    inputs.add(value)
                elif producer not in seen:
                    seen.add(producer)
                    stack.append(producer)
        return sum(v.type.bytes for v in inputs)

    # --- convexity ---

    def _convex(self, members: Sequence[int]) -> bool:
        """Whether no path leaves `members` and comes back, with other groups as one node each."""
        inside = set(members)
        first = members[0]
        stack = [p for i in members for p in self.operands[i] if p not in inside]
        seen: set[int] = set()
        while stack:
            g = self.group[stack.pop()]
            if g in seen:
                continue
            seen.add(g)
            for i in self.members[g]:
                for p in self.operands[i]:
                    if p in inside:
                        return False
                    if self.members[self.group[p]][-1] >= first:
                        stack.append(p)
        return True


def _columns(matmul: Node, operand: int) -> int:
    """Elements of one row of the result that come from the other operand: its free extent."""
    nest = nest_of(matmul)
    assert nest is not None
    *_, rows, columns, _depth = nest.extents
    return columns if operand == 0 else rows
