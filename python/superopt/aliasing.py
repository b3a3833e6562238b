"""Which results of a program share the memory of its arguments, and that nothing notices.

Values never change: `%keys = update_slice(%cache, %new)` differs from `%cache`. A program may state
that it returns an output in an argument's memory (`superopt.aliasing_output` of the argument), as a decoder does
that appends to its cache; the caller's tensor is then overwritten. Kernels may use that: an output of a
tile program that has an alias starts as that operand and is changed where it is stored. Where no kernel does, the
launcher copies the output into the argument at the end. What an opaque operation returns is in memory of its own:
the launcher copies what PyTorch returns in the memory of an argument that is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.errors import IllegalProgram
from superopt.operators import Move, move_of
from superopt.program import KernelGraph, Node, NodeKind, TileProgram, Value


def pairs(aliases: tuple[int, ...]) -> dict[int, int]:
    """The outputs that lie in an input's memory, with that input."""
    return {i: j for i, j in enumerate(aliases) if j >= 0}


def check_aliases(graph: KernelGraph) -> dict[Value, int]:
    """The inputs in whose memory values lie, by value; raises IllegalProgram where an alias would be noticed.

    Only an input that the graph declares may be overwritten, by one kernel after the other; later reads must see
    the newest contents; and a node that overwrites an operand may not take it as another operand, too.
    """
    stated = pairs(graph.aliases)
    _check_stated(graph, stated)
    memory: dict[Value, int] = {v: i for i, v in enumerate(graph.inputs)}
    version: dict[Value, int] = dict.fromkeys(graph.inputs, 0)
    newest = [0] * len(graph.inputs)

    def put(value: Value, place: int) -> None:
        memory[value], version[value] = place, newest[place]

    def check_new(value: Value, node: Node | None) -> None:
        if value in memory and version[value] != newest[memory[value]]:
            name = graph.inputs[memory[value]].name or memory[value]
            raise IllegalProgram(
                f"expected the newest contents of argument '{name}', got those before an update in place",
                node.location if node else graph.location,
            )

    for node in graph.nodes:
        for operand in node.operands:
            check_new(operand, node)
        move = move_of(node)
        view = move is Move.RESHAPE or (move is Move.SLICE and node.result not in graph.outputs)
        if view and node.operands[0] in memory:
            put(node.result, memory[node.operands[0]])
        elif isinstance(node.body, TileProgram):
            for out, at in pairs(node.body.aliases).items():
                place = _overwritten(graph, node, at, memory, set(stated.values()))
                newest[place] += 1
                put(node.results[out], place)
    for i, value in enumerate(graph.outputs):
        check_new(value, None)
        place = memory.get(value)
        if place is not None and place in stated.values() and stated.get(i) != place:
            raise IllegalProgram(
                f"expected argument {place}, which is updated in place, to be returned as the output that it is "
                f"stated to be, got output {i}",
                graph.location,
            )
        if place is not None and i in stated and place != stated[i]:
            raise IllegalProgram(
                f"expected output {i} to be computed or argument {stated[i]}, got argument {place}",
                graph.location,
            )
    return memory


def _check_stated(graph: KernelGraph, stated: dict[int, int]) -> None:
    if graph.aliases and len(graph.aliases) != len(graph.outputs):
        raise IllegalProgram(
            f"expected an alias for each of {len(graph.outputs)} outputs, got {len(graph.aliases)}",
            graph.location,
        )
    if len(set(stated.values())) < len(stated):
        raise IllegalProgram("expected one output in the memory of an argument, got several", graph.location)
    for out, at in stated.items():
        if at >= len(graph.inputs):
            raise IllegalProgram(f"expected one of {len(graph.inputs)} arguments, got {at}", graph.location)
        if graph.inputs[at].type != graph.outputs[out].type:
            raise IllegalProgram(
                f"expected an output of type {graph.inputs[at].type} in the memory of argument {at}, got "
                f"{graph.outputs[out].type}",
                graph.location,
            )


def _overwritten(graph: KernelGraph, node: Node, at: int, memory: dict[Value, int], stated: set[int]) -> int:
    """The input whose memory operand `at` of `node` is, if it may be overwritten."""
    place = memory.get(node.operands[at])
    if place is None or place not in stated:
        raise IllegalProgram(
            "expected to update an argument with 'superopt.aliasing_output', got another value", node.location
        )
    if sum(memory.get(v) == place for v in node.operands) > 1:
        raise IllegalProgram("expected what is updated in place as one operand, got it twice", node.location)
    return place


def read_before(nodes: Sequence[Node]) -> dict[int, set[int]]:
    """For every node that overwrites an operand, by number: the nodes before it that read the same memory."""
    if not any(isinstance(n.body, TileProgram) and n.body.aliases for n in nodes):
        return {}
    memory: dict[Value, set[Value]] = {}
    readers: dict[Value, set[int]] = {}
    found: dict[int, set[int]] = {}
    for i, node in enumerate(nodes):
        overwritten = pairs(node.body.aliases) if isinstance(node.body, TileProgram) else {}
        places = [memory.get(v, {v}) for v in node.operands]
        for at in overwritten.values():
            found.setdefault(i, set()).update(*(readers.get(p, ()) for p in places[at]))
        for place in set[Value]().union(*places):
            readers.setdefault(place, set()).add(i)
        memory.update({node.results[out]: places[at] for out, at in overwritten.items()})
        # An opaque operation may return a view of any of its operands.
        if move_of(node) in (Move.RESHAPE, Move.SLICE) or node.op == NodeKind.EXTERN:
            memory.update(dict.fromkeys(node.results, set[Value]().union(*places)))
    return found


def updates_in_place(graph: KernelGraph) -> set[Node]:
    """The updates that may write into their argument's memory: nothing else reads the argument."""
    out: set[Node] = set()
    for i, j in pairs(graph.aliases).items():
        cache, result = graph.inputs[j], graph.outputs[i]
        users = [n for n in graph.nodes if cache in n.operands]
        if (
            len(users) == 1
            and move_of(users[0]) is Move.UPDATE
            and users[0].result is result
            and users[0].operands.index(cache) == 0
            and users[0].operands[1] is not cache
            and cache not in graph.outputs
        ):
            out.add(users[0])
    return out


def copied(graph: KernelGraph) -> list[int]:
    """The outputs that the launcher copies into their argument: no kernel has written them there."""
    memory = check_aliases(graph)
    return [i for i, j in pairs(graph.aliases).items() if memory.get(graph.outputs[i]) != j]
