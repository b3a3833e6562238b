"""Cutting a kernel graph into subprograms that a search can take whole, and putting its findings back.

A segment is a convex, connected set of nodes that can be told over named axes together: no path leaves it and
comes back, so it can become any other graph with the same inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from superopt.operators import OPERATORS
from superopt.program import KernelGraph, Node, Value
from superopt.transforms.mugraph_search.axes import VIEWS, Unsearchable, name_axes, searchable

MAX_VALUES = 25


@dataclass(frozen=True, eq=False)
class Segment:
    """Nodes of a graph, as a graph of its own that shares their values.

    `whole` says whether it is the whole program.
    """

    graph: KernelGraph
    whole: bool = False


def partition(graph: KernelGraph, max_values: int = MAX_VALUES) -> list[Segment]:
    """The segments of `graph`, in topological order; nodes that no search can improve are in none.

    A program that fits is one segment. Otherwise each node joins the segments of its operands as long as the
    result is convex, has at most `max_values` values and can be told over named axes; splat constants belong to
    every segment that uses them.
    """
    if _counted(graph.nodes) <= max_values and _tellable(graph):
        return [Segment(graph, whole=True)] if _worthwhile(graph.nodes) else []
    context = _Context(graph)
    groups = _Grouping(context, max_values).run()
    return [Segment(context.subgraph(nodes)) for nodes in groups if _worthwhile(nodes)]


def _is_splat(node: Node) -> bool:
    return node.op == "constant" and searchable(node)


def _counted(nodes: Iterable[Node]) -> int:
    return sum(not _is_splat(n) and n.op not in VIEWS for n in nodes)


def _worthwhile(nodes: Sequence[Node]) -> bool:
    return any(n.op not in VIEWS and n.op != "constant" for n in nodes)


def _tellable(graph: KernelGraph) -> bool:
    try:
        name_axes(graph)
    except Unsearchable:
        return False
    return True


def _live(nodes: Sequence[Node], outputs: Iterable[Value]) -> set[Node]:
    """The nodes that an output needs, and all opaque ones with what they need."""
    needed = set(outputs)
    live: set[Node] = set()
    for node in reversed(nodes):
        if node.op == "extern" or not needed.isdisjoint(node.results):
            live.add(node)
            needed.update(node.operands)
    return live


class _Context:
    """What is looked up often in a large graph."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.splats = {n.result: n for n in graph.nodes if _is_splat(n)}
        self.outputs = set(graph.outputs)
        self.users: dict[Value, list[Node]] = {}  # among the nodes that an output needs
        self.live = _live(graph.nodes, graph.outputs)
        for node in graph.nodes:
            for operand in node.operands if node in self.live else ():
                self.users.setdefault(operand, []).append(node)

    def subgraph(self, nodes: Sequence[Node]) -> KernelGraph:
        """`nodes` as a graph that shares the values, with the splat constants they use."""
        inside = {v for n in nodes for v in n.results}
        constants: dict[Value, Node] = {}
        inputs: dict[Value, None] = {}
        for operand in (v for n in nodes for v in n.operands if v not in inside):
            if operand in self.splats:
                constants[operand] = self.splats[operand]
            else:
                inputs[operand] = None
        chosen = set(map(id, nodes))
        outputs = [
            v
            for n in nodes
            for v in n.results
            if v in self.outputs or any(id(user) not in chosen for user in self.users.get(v, ()))
        ]
        where = nodes[0].location
        return KernelGraph(self.graph.name, list(inputs), [*constants.values(), *nodes], outputs, where)


class _Grouping:
    def __init__(self, context: _Context, max_values: int) -> None:
        self.context = context
        self.graph = graph = context.graph
        self.max_values = max_values
        self.producer = {v: i for i, n in enumerate(graph.nodes) for v in n.results}
        self.group: list[int] = list(range(len(graph.nodes)))  # node -> group, named by one of its nodes
        self.members: dict[int, list[int]] = {}
        self.open: set[int] = set()  # groups that are segments

    def run(self) -> list[list[Node]]:
        for index, node in enumerate(self.graph.nodes):
            self.members[index] = [index]
            if node not in self.context.live or _is_splat(node) or not searchable(node):
                continue
            candidates = sorted({self.group[p] for p in self._operands(index)} & self.open)
            # All operands' segments at once, or the largest that works.
            tries = [candidates] + [[c] for c in sorted(candidates, key=lambda c: (-len(self.members[c]), c))]
            for groups in tries:
                if self._merge(index, groups):
                    break
            else:
                if self._merge(index, []):
                    continue
        return [[self.graph.nodes[i] for i in self.members[g]] for g in sorted(self.open)]

    def _operands(self, index: int) -> list[int]:
        return [self.producer[v] for v in self.graph.nodes[index].operands if v in self.producer]

    def _merge(self, index: int, groups: Sequence[int]) -> bool:
        members = sorted({i for g in groups for i in self.members[g]} | {index})
        nodes = [self.graph.nodes[i] for i in members]
        if groups and (_counted(nodes) > self.max_values or not self._convex(members)):
            return False
        # One operand's axes more, taken as they are, cannot contradict anything.
        node = self.graph.nodes[index]
        unary = len(node.operands) == 1 and OPERATORS[node.op].elementwise
        if not unary and not _tellable(self.context.subgraph(nodes)):
            return False
        for g in groups:
            self.open.discard(g)
            del self.members[g]
        self.members[index] = members
        self.open.add(index)
        for i in members:
            self.group[i] = index
        return True

    def _convex(self, members: Sequence[int]) -> bool:
        """Whether no path leaves `members` and comes back, other segments being taken as one node each."""
        inside = set(members)
        first = members[0]
        stack = [p for i in members for p in self._operands(i) if p not in inside]
        seen: set[int] = set()
        while stack:
            group = self.group[stack.pop()]
            if group in seen:
                continue
            seen.add(group)
            for i in self.members.get(group, [group]):
                for p in self._operands(i):
                    if p in inside:
                        return False
                    if p >= first or self.members.get(self.group[p], [p])[-1] >= first:
                        stack.append(p)
        return True


def stitch(graph: KernelGraph, segment: Segment, candidate: KernelGraph) -> KernelGraph:
    """`graph` with the nodes of `segment` replaced by those of `candidate`.

    The candidate has the segment's inputs and outputs, in order. The segment's output values stay the same
    objects, so other segments of the same partition can be stitched afterwards.
    """
    replaced = set(map(id, segment.graph.nodes))
    mapping: dict[Value, Value] = dict(zip(candidate.inputs, segment.graph.inputs, strict=True))
    extra: list[Node] = []
    for inner, outer in zip(candidate.outputs, segment.graph.outputs, strict=True):
        if inner in mapping:  # an input, or one value for two outputs: a view gives it the second name
            extra.append(Node("reshape", (mapping[inner],), (outer,), {"shape": outer.shape}))
        else:
            mapping[inner] = outer
    new = [
        Node(
            n.op,
            tuple(mapping.get(v, v) for v in n.operands),
            tuple(mapping.get(v, v) for v in n.results),
            n.attrs,
            n.location,
            n.body,
        )
        for n in candidate.nodes
    ]
    kept = [n for n in graph.nodes if id(n) not in replaced or _is_splat(n)]
    nodes = _sorted([*kept, *new, *extra])
    live = _live(nodes, graph.outputs)  # what was dead may use values that are gone
    return KernelGraph(
        graph.name, graph.inputs, [n for n in nodes if n in live], graph.outputs, graph.location
    )


def _sorted(nodes: Sequence[Node]) -> list[Node]:
    """The nodes in topological order, otherwise in the order given."""
    producer = {v: i for i, n in enumerate(nodes) for v in n.results}
    out: list[Node] = []
    done: set[int] = set()
    for root in range(len(nodes)):
        stack = [root]
        while stack:
            i = stack[-1]
            waiting = [p for v in nodes[i].operands if (p := producer.get(v)) is not None and p not in done]
            if i in done or not waiting:
                stack.pop()
                if i not in done:
                    done.add(i)
                    out.append(nodes[i])
            else:
                stack += reversed(waiting)
    return out
