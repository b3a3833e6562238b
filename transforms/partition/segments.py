"""Cuts a kernel graph into subprograms that a search can take whole, and inserts the results.

A segment is a convex, connected set of nodes that can be expressed over named axes together: no path leaves it
and comes back, so it can become any other graph with the same inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from superopt.aliasing import pairs
from superopt.operators import Move, computed_of, is_constant, is_contraction, move_of, splat_of
from superopt.program import KernelGraph, Node, Value, live_nodes, producers, users
from superopt.transforms.fingerprints import fingerprints, named
from superopt.transforms.named_axes.axis_table import Unsearchable
from superopt.transforms.named_axes.name_axes import name_axes
from superopt.transforms.named_axes.operations import is_view, searchable
from superopt.transforms.named_axes.unfold import unfold
from superopt.transforms.partition.grouping import CROSSES, STAYS, Stays, group
from superopt.transforms.tunable import Pick, Site
from superopt.transforms.window_groups import window_groups

MAX_VALUES = 25
# What becomes of a program that fits a search: it is one segment, or cut like any other.
WHOLE, CUT = "whole", "cut"
# How far around a value its fingerprint looks.
HOPS = 2


@dataclass(frozen=True, eq=False)
class Segment:
    """Nodes of a graph, as a separate graph that shares their values.

    `whole` says whether it is the whole program.
    """

    graph: KernelGraph
    whole: bool = False

    @property
    def described(self) -> str:
        """Its name in messages."""
        return "the whole program" if self.whole else f"the segment at '{self.graph.nodes[0].op}'"


def partition(
    graph: KernelGraph, max_values: int = MAX_VALUES, *, copies: bool = True, pick: Pick | None = None
) -> list[Segment]:
    """The segments of `graph`, in topological order; nodes that no search can improve are in none.

    A program that fits is one segment. Otherwise segments grow from single nodes, joined first where it saves
    most (`grouping.py`), as long as the result is convex, has at most `max_values` values and can be
    expressed over named axes; so cuts fall where they cost least. Splats and bands belong to every segment that
    uses them. Without `copies`, a segment duplicates nothing: a value that is sliced, concatenated or used in
    two roles stays between segments. `pick` is asked for each cut, and whether a program that fits has any.
    """
    if counted(graph.nodes) <= max_values and _expressible(graph, max_values, copies=copies):
        if not _worthwhile(graph.nodes):
            return []
        if pick is None or pick(Site(named(graph), WHOLE, lambda: [CUT], graph.location)) == WHOLE:
            return [Segment(graph, whole=True)]
    context = _Context(graph)
    chains = window_groups([n for n in graph.nodes if n in context.live], graph.outputs)
    taken = {id(n) for chain in chains for n in chain}
    if len(taken) == sum(not _is_free(n) and not is_view(n) for n in context.live) and len(chains) == 1:
        return [Segment(graph, whole=True)]
    eligible = [
        n in context.live and id(n) not in taken and not _is_free(n) and searchable(n) for n in graph.nodes
    ]
    groups = group(
        graph.nodes,
        eligible,
        context.outputs,
        few=lambda nodes: counted(nodes) <= max_values,
        # What moves elements is expressed together with what computes them.
        expressible=lambda nodes: (
            all(map(_moves, nodes)) or _expressible(context.subgraph(nodes), max_values, copies=copies)
        ),
        stays=None if pick is None else _asking(pick, graph),
    )
    place = {id(n): i for i, n in enumerate(graph.nodes)}
    groups = sorted([*groups, *chains], key=lambda nodes: place[id(nodes[-1])])
    return [Segment(context.subgraph(nodes)) for nodes in groups if _worthwhile(nodes)]


def before_products(graph: KernelGraph) -> list[Segment]:
    """`graph` in two: what products multiply and no product gave, and the rest. Empty where one lacks work.

    Several products that read one value, as queries, keys and values do, may then share a kernel that loads it.
    """
    context = _Context(graph)
    made_by = producers(graph.nodes)
    behind: set[Node] = set()  # a product
    for node in graph.nodes:
        if is_contraction(node) or any(made_by.get(v) in behind for v in node.operands):
            behind.add(node)
    needed: set[Value] = set()
    for node in reversed(graph.nodes):
        if (is_contraction(node) and node in behind) or not needed.isdisjoint(node.results):
            needed.update(node.operands)
    live = [n for n in graph.nodes if n in context.live and not _is_free(n)]
    first = [n for n in live if n not in behind and not needed.isdisjoint(n.results)]
    chosen = set(first)
    rest = [n for n in live if n not in chosen]
    if not _worthwhile(first) or not _worthwhile(rest):
        return []
    return [Segment(context.subgraph(first)), Segment(context.subgraph(rest))]


def _asking(pick: Pick, graph: KernelGraph) -> Stays:
    """Cuts as decisions, by the fingerprint of what computes a value and by what savings say of it."""
    made_by, at = producers(graph.nodes), fingerprints(graph, HOPS)

    def stays(value: Value, saves: bool, other: Callable[[], bool]) -> bool:
        node = made_by[value]
        default, different = (STAYS, CROSSES) if saves else (CROSSES, STAYS)
        name = f"{at[node]}.{node.results.index(value)}.{default}"
        return pick(Site(name, default, lambda: [different] * other(), node.location)) == STAYS

    return stays


def _is_free(node: Node) -> bool:
    """Whether `node` is a constant that needs no memory: one number everywhere, or a band."""
    return splat_of(node) is not None or computed_of(node) is not None


def counted(nodes: Iterable[Node]) -> int:
    """Values that a search has to find: views, splats and bands do not count."""
    return sum(not _is_free(n) and not _moves(n) for n in nodes)


def _moves(node: Node) -> bool:
    """Whether `node` computes nothing."""
    return is_view(node) or move_of(node) in (Move.SLICE, Move.CONCAT)


def _worthwhile(nodes: Sequence[Node]) -> bool:
    return any(not _moves(n) and not is_constant(n) for n in nodes)


def _expressible(graph: KernelGraph, max_values: int, *, copies: bool) -> bool:
    try:
        unfolded = unfold(graph)
        axes = name_axes(unfolded.graph)
    except Unsearchable:
        return False
    if unfolded.copies <= 0 and axes.copies == 0:
        return True
    return copies and counted(axes.graph.nodes) <= max_values


class _Context:
    """Frequent look-ups in a large graph."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.free = {n.result: n for n in graph.nodes if _is_free(n)}
        self.outputs = set(graph.outputs)
        live = live_nodes(graph.nodes, graph.outputs)
        self.live, self.users = set(live), users(live)

    def subgraph(self, nodes: Sequence[Node]) -> KernelGraph:
        """`nodes` as a graph that shares the values, with the splats and bands that they use."""
        inside = {v for n in nodes for v in n.results}
        constants: dict[Value, Node] = {}
        inputs: dict[Value, None] = {}
        for operand in (v for n in nodes for v in n.operands if v not in inside):
            if operand in self.free:
                constants[operand] = self.free[operand]
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
        aliases = self.aliases(list(inputs), outputs, chosen)
        held = {self.graph.inputs[i] for i in self.graph.weights}
        weights = tuple(i for i, v in enumerate(inputs) if v in held)
        return KernelGraph(
            self.graph.name, list(inputs), [*constants.values(), *nodes], outputs, where, aliases, weights
        )

    def aliases(self, inputs: list[Value], outputs: list[Value], chosen: set[int]) -> tuple[int, ...]:
        """The program's aliases between these inputs and outputs, where nothing else reads the input."""
        found = [-1] * len(outputs)
        for i, j in pairs(self.graph.aliases).items():
            source, result = self.graph.inputs[j], self.graph.outputs[i]
            inside = all(id(user) in chosen for user in self.users.get(source, ()))
            if source in inputs and result in outputs and inside:
                found[outputs.index(result)] = inputs.index(source)
        return tuple(found) if pairs(tuple(found)) else ()


def stitch(graph: KernelGraph, segment: Segment, candidate: KernelGraph) -> KernelGraph:
    """`graph` with the nodes of `segment` replaced by those of `candidate`.

    The candidate has the segment's inputs and outputs, in order. The segment's output values stay the same
    objects, so other segments of the same partition can be stitched afterwards; what else the candidate computes
    are new values, as it may share its own with `graph`, which keeps splats that other segments use.
    """
    replaced = set(map(id, segment.graph.nodes))
    mapping: dict[Value, Value] = dict(zip(candidate.inputs, segment.graph.inputs, strict=True))
    extra: list[Node] = []
    for inner, outer in zip(candidate.outputs, segment.graph.outputs, strict=True):
        if inner in mapping:  # an input, or one value for two outputs: a view provides the second name
            extra.append(Node("reshape", (mapping[inner],), (outer,), {"shape": outer.shape}))
        else:
            mapping[inner] = outer
    for value in (v for n in candidate.nodes for v in n.results):
        mapping.setdefault(value, Value(value.type, value.name))
    new = [
        Node(
            n.op,
            tuple(mapping[v] for v in n.operands),
            tuple(mapping[v] for v in n.results),
            n.attrs,
            n.location,
            n.body,
        )
        for n in candidate.nodes
    ]
    kept = [n for n in graph.nodes if id(n) not in replaced or _is_free(n)]
    # Dead nodes may use values that are gone.
    return replace(graph, nodes=live_nodes(in_order([*kept, *new, *extra]), graph.outputs))


def in_order(nodes: Sequence[Node]) -> list[Node]:
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
