"""What of a program depends on its weights alone, so that it is made once instead of in every call.

A program may state that arguments are weights (`superopt.weight`): they stay as they are from call to call, and
who calls says when one changes. What moves or computes elements of weights and constants alone is *prepared*: the
launcher has it in a function of its own, `prepare`, whose results `run` takes. A program is still all of it, in
order: that is what is proved, and what `run` does where nothing was prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from superopt.aliasing import pairs
from superopt.errors import IllegalProgram
from superopt.operators import OPERATORS, Move, is_constant, is_windowed, move_of, splat_of
from superopt.program import Compute, KernelGraph, Node, TileProgram, Value, live_nodes, producers, users

# A tensor is prepared that takes at most this many times the bytes of the weights that it is made of,
MOST_GROWTH = 2
# or, unless it repeats elements, which kernels do for nothing, at most this many bytes: tables of rotary
# embeddings are larger than the frequencies.
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Split:
    """A program in two parts: the nodes that are prepared, in order, the values that `main` takes of them, and
    the nodes of each call. Views and constants may be in both."""

    prepare: tuple[Node, ...]
    held: tuple[Value, ...]
    main: tuple[Node, ...]


def check_weights(graph: KernelGraph) -> None:
    """Raise IllegalProgram where a weight is not an argument, is stated twice, or is overwritten."""
    stated = graph.weights
    if list(stated) != sorted(set(stated)) or not all(0 <= i < len(graph.inputs) for i in stated):
        raise IllegalProgram(
            f"expected weights as numbers of {len(graph.inputs)} arguments in order, got {list(stated)}",
            graph.location,
        )
    if changed := sorted(set(stated) & set(pairs(graph.aliases).values())):
        name = graph.inputs[changed[0]].name or changed[0]
        raise IllegalProgram(
            f"expected a weight that stays as it is, got argument '{name}', which is overwritten",
            graph.location,
        )


def split(graph: KernelGraph) -> Split:
    """What is prepared of `graph`: moves and arithmetic on weights and constants alone whose results have at most
    `MOST_GROWTH` times the bytes of these, or `MOST_BYTES` that are not repeated, and are not returned, as
    callers may write to what they get. Nor are layouts of weights that operators on windows read as they are.
    """
    sources: dict[Value, frozenset[Value]] = {
        graph.inputs[i]: frozenset([graph.inputs[i]]) for i in graph.weights
    }
    if not sources and not any(map(_is_dense, graph.nodes)):
        return Split((), (), tuple(graph.nodes))
    made, used = producers(graph.nodes), users(graph.nodes)
    returned = {_root(v, made) for v in graph.outputs}
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if is_constant(node):
            sources[node.result] = frozenset([node.result] if _is_dense(node) else [])
        elif _is_layout(node, used) or not _is_prepared_alike(node):
            continue
        elif node.operands and all(v in sources for v in node.operands):
            of = frozenset[Value]().union(*(sources[v] for v in node.operands))
            most = MOST_GROWTH * _bytes(of)
            if of and not _repeats(node):
                most = max(most, MOST_BYTES)
            if _is_view(node) or (_bytes(node.results) <= most and returned.isdisjoint(node.results)):
                sources.update(dict.fromkeys(node.results, of))
                found[node] = None
    moved = {n for n in found if not _is_view(n)}
    if not moved:
        return Split((), (), tuple(graph.nodes))
    results = {v for n in moved for v in n.results}
    main = live_nodes([n for n in graph.nodes if results.isdisjoint(n.results)], graph.outputs)
    held = tuple(dict.fromkeys(v for n in main for v in n.operands if v in results))
    prepare = live_nodes(
        [n for n in graph.nodes if n in moved or is_constant(n) or _is_view(n)], held, opaque=False
    )
    return Split(tuple(prepare), held, tuple(main))


def of_weights(graph: KernelGraph) -> set[Value]:
    """The weights and constants of `graph`, and what moves and computes elements of these alone."""
    found = {graph.inputs[i] for i in graph.weights}
    for node in graph.nodes:
        if _is_prepared_alike(node) and found.issuperset(node.operands):
            found.update(node.results)
    return found


def main_part(graph: KernelGraph) -> KernelGraph:
    """`graph` as each call runs it: the values that are prepared are weights after its own inputs."""
    parts = split(graph)
    if not parts.held:
        return graph
    inputs = [*graph.inputs, *parts.held]
    weights = (*graph.weights, *range(len(graph.inputs), len(inputs)))
    return replace(graph, inputs=inputs, nodes=list(parts.main), weights=weights)


def apart(graph: KernelGraph, change: Callable[[KernelGraph], KernelGraph]) -> KernelGraph:
    """`graph` with both of its parts changed by themselves, so that no kernel computes what is prepared."""
    parts = split(graph)
    if not parts.held:
        return change(graph)
    name = f"{graph.name}_prepare"
    prepare = replace(graph, name=name, nodes=list(parts.prepare), outputs=list(parts.held), aliases=())
    main = change(main_part(graph))
    prepared = change(prepare)
    assert prepared.outputs == list(parts.held), "the part that is changed keeps its outputs"
    known = {v for n in prepared.nodes for v in n.results}
    rest = [n for n in main.nodes if known.isdisjoint(n.results)]  # views and constants may be in both
    return replace(main, inputs=graph.inputs, nodes=[*prepared.nodes, *rest], weights=graph.weights)


def _is_layout(node: Node, used: dict[Value, list[Node]]) -> bool:
    """Whether a node is a transposition that operators on windows alone read, as a weight."""
    if move_of(node) is not Move.TRANSPOSE:
        return False
    uses = used.get(node.result, ())
    return bool(uses) and all(is_windowed(n) and n.operands[0] is not node.result for n in uses)


def _is_prepared_alike(node: Node) -> bool:
    """Whether a node moves elements or computes with them one by one, in no argument's memory."""
    if isinstance(node.body, TileProgram):
        computed = [s for s in node.body.statements() if isinstance(s, Compute)]
        return not pairs(node.body.aliases) and all(OPERATORS[s.op].combiner is None for s in computed)
    entry = OPERATORS.get(node.op)
    return entry is not None and entry.combiner is None


def _is_dense(node: Node) -> bool:
    """Whether a node is a constant of several numbers, which a program holds as a tensor."""
    return is_constant(node) and splat_of(node) is None


def _repeats(node: Node) -> bool:
    """Whether a node moves elements to more places than they come from."""
    return move_of(node) is not None and _bytes(node.results) > _bytes(node.operands)


def _bytes(values: Iterable[Value]) -> int:
    return sum(v.type.bytes for v in values)


def _is_view(node: Node) -> bool:
    return move_of(node) is Move.RESHAPE


def _root(value: Value, made: dict[Value, Node]) -> Value:
    """The value whose elements are seen through views."""
    while value in made and _is_view(made[value]):
        value = made[value].operands[0]
    return value
