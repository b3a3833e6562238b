"""Which nodes become one segment: joins groups where that saves most, until nothing more can be saved.

Savings are counted in bytes of device memory: the launch of a kernel and the traffic between the two, read and
written, less what would be recomputed. What several groups read is written unless all of them join, so each has
a share of that: what rotates a value stays with what is done to both of its halves. A product passes its whole
left operand to every column tile; if it were computed in the same kernel, each tile would compute it. Nor does a
product join a norm of its rows, which few blocks could hold (`blocks.py`). So a normalisation joins the products
after it, scores join the softmax and the product with the values, and two layers stay two segments.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Sequence
from functools import cache
from typing import TypeAlias

from superopt.cost.traffic import LIBRARY_TILE, ceil_div
from superopt.operators import OPERATORS, is_contraction
from superopt.program import Node, Value
from superopt.transforms.partition.blocks import (
    L2_SHARE,
    computed_again,
    free_extent,
    shares_sums,
    whole_rows,
)

Check: TypeAlias = Callable[[Sequence[Node]], bool]

# The cost of a launch in bytes of device memory: about 3 us at about 3 TB/s.
LAUNCH_BYTES = 8 << 20

# What becomes of a value that one group computes and another reads: it stays inside a segment, or crosses a cut.
STAYS, CROSSES = "stays", "crosses"
# Whether a value stays: asked with what savings say, and with whether the other choice is valid.
Stays: TypeAlias = Callable[[Value, bool, Callable[[], bool]], bool]


def group(
    nodes: Sequence[Node],
    eligible: Sequence[bool],
    outputs: Container[Value],
    few: Check,
    expressible: Check,
    stays: Stays | None = None,
) -> list[list[Node]]:
    """Disjoint convex groups of the eligible nodes, in topological order, each `few` and `expressible`.

    `outputs` are those of the program. Savings say where the cuts are, or `stays`, value by value.
    """
    return _Grouping(nodes, eligible, outputs, few, expressible, stays).run()


class _Grouping:
    """Groups are named by one of their nodes; `members` are sorted."""

    def __init__(
        self,
        nodes: Sequence[Node],
        eligible: Sequence[bool],
        outputs: Container[Value],
        few: Check,
        expressible: Check,
        stays: Stays | None,
    ) -> None:
        self.nodes, self.outputs = nodes, outputs
        self.few, self.expressible, self.stays = few, expressible, stays
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
        self._join_what_saves()
        while self.stays is not None and self._join_otherwise():
            self._join_what_saves()
        groups = sorted((self.members[g] for g in self.open), key=lambda m: m[-1])
        return [[self.nodes[i] for i in members] for members in groups]

    def _join_what_saves(self) -> None:
        """Join pairs of groups, what saves most first."""
        while self.heap:
            offered, a, b = heapq.heappop(self.heap)
            if a not in self.open or b not in self.open:
                continue  # one of them is part of another by now
            saved = self._saved(a, b)
            if saved < -offered:  # they have grown since
                self._push(saved, a, b)
            elif self._joinable(a, b) and self._uncut(a, b, saves=True):
                self._join(a, b)

    def _join_otherwise(self) -> bool:
        """Join a pair that saves nothing, if that is asked for; gives whether there was one."""
        for a in sorted(self.open):
            for b in sorted(
                {self.group[u] for i in self.members[a] for u in self.users[i]} & self.open - {a}
            ):
                if self._saved(a, b) <= 0 and self._uncut(a, b, saves=False):
                    self._join(a, b)
                    return True
        return False

    def _uncut(self, a: int, b: int, *, saves: bool) -> bool:
        """Whether every value that crosses from `a` to `b` is to stay inside; by itself, where that saves."""
        if self.stays is None:
            return saves
        valid = cache(lambda: self._joinable(a, b))
        return all(self.stays(v, saves, lambda: saves or valid()) for v in self._crossing(a, b))

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

    def _joinable(self, a: int, b: int) -> bool:
        members = sorted(self.members[a] + self.members[b])
        return self._convex(members) and self._fits(members, added=self.members[b])

    def _join(self, a: int, b: int) -> None:
        members = sorted(self.members[a] + self.members[b])
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
        saved, again = 0.0 if self._joins_parts(a, b) else float(LAUNCH_BYTES), 0.0
        read = {v for i in self.members[b] for v in self.nodes[i].operands}
        for value in self._crossing(a, b):
            saved += value.type.bytes * (1 + self._unwritten(value, a))
            inputs, products = self._behind(self.producer[value], a)
            if (times := self._times(value, b)) > 1:
                loaded = sum(v.type.bytes for v in inputs - read)
                saved -= (times - 1) * max(loaded - value.type.bytes, 0) * L2_SHARE
            again = max([again, *(computed_again(products, n, k) for n, k in self._multiplied(value, b))])
        if saved <= again:
            return saved - again
        # Blocks compute while they load.
        return saved - max(again, whole_rows(self._nodes(a), self._nodes(b), self._leaving(a, b)))

    def _joins_parts(self, a: int, b: int) -> bool:
        """Whether blocks share the sums of the product that `a` is, so that a kernel joins their parts anyway.

        Then `b`, which is elementwise, saves no launch; with a norm behind it, it does.
        """
        if len(self.members[a]) > 1 or not is_contraction(product := self.nodes[a]):
            return False
        return shares_sums(product) and all(OPERATORS[n.op].elementwise for n in self._nodes(b))

    def _nodes(self, g: int) -> list[Node]:
        return [self.nodes[i] for i in self.members[g]]

    def _leaving(self, a: int, b: int) -> set[Value]:
        """The values of two groups that others read."""
        return {
            v
            for i in self.members[a] + self.members[b]
            for v in self.nodes[i].results
            if v in self.outputs or any(self.group[u] not in (a, b) for u in self.users[i])
        }

    def _crossing(self, a: int, b: int) -> list[Value]:
        """The values of group `a` that group `b` reads."""
        found = {v for i in self.members[b] for v in self.nodes[i].operands if self._in(v, a)}
        return sorted(found, key=lambda v: self.producer[v])

    def _unwritten(self, value: Value, a: int) -> float:
        """The share of not writing `value`, which group `a` computes, in one more group that reads it."""
        if value in self.outputs:
            return 0
        return 1 / len({self.group[u] for u in self.users[self.producer[value]]} - {a})

    def _in(self, value: Value, g: int) -> bool:
        return value in self.producer and self.group[self.producer[value]] == g

    def _times(self, value: Value, g: int) -> int:
        """How often group `g`, as one kernel, would compute `value`: once for each tile multiplied with it."""
        return max(
            (ceil_div(free_extent(n, k), LIBRARY_TILE) for n, k in self._multiplied(value, g)), default=1
        )

    def _multiplied(self, value: Value, g: int) -> list[tuple[Node, int]]:
        """The products of group `g` that take `value`, or what follows of it, and the number of the operand."""
        reached = {value}
        found: list[tuple[Node, int]] = []
        for i in self.members[g]:
            node = self.nodes[i]
            taken = [k for k, v in enumerate(node.operands) if v in reached]
            if taken:
                reached.update(node.results)
            if is_contraction(node):
                found += [(node, k) for k in taken]
        return found

    def _behind(self, node: int, g: int) -> tuple[set[Value], list[Node]]:
        """What group `g` loads to compute the results of `node`, and the products that it computes for them."""
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
        return inputs, [n for n in map(self.nodes.__getitem__, sorted(seen)) if is_contraction(n)]

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
