"""What one kernel computes around an operator on windows: one answer for segments and for lowering."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.axes import same_dimensions
from superopt.operators import Move, is_elementwise, is_windowed, move_of, nest_of, splat_of
from superopt.program import Node, Value, producers, users


def window_groups(nodes: Sequence[Node], outputs: Sequence[Value]) -> list[list[Node]]:
    """Disjoint groups in the order of `nodes`, each an operator on windows with what joins its kernel.

    Behind it those are elementwise operators on whole results that nothing else uses; before them, elementwise
    operators on at most one number for each channel (the scale and shift of a norm), which every block computes
    again. Layouts are part of the group: transpositions of its operands from channels last, of weights from any
    order, that nothing else uses, and one of its result to channels last, wherever behind it. What a group takes
    from outside cannot come from it, so groups are convex.
    """
    used, produced, ends = users(nodes), producers(nodes), set(outputs)
    groups: list[list[Node]] = []
    taken: set[Node] = set()
    for node in nodes:
        if not is_windowed(node):
            continue
        chain, last = [node], False
        while chain[-1].result not in ends and len(uses := used.get(chain[-1].result, ())) == 1:
            (then,), shape = uses, chain[-1].result.shape
            turns = not last and is_channels_last(then)
            if then in taken or not (turns or (is_elementwise(then) and then.result.shape == shape)):
                break
            chain.append(then)
            last |= turns
        taken.update(chain)
        chain = [*_sides(chain, used, produced, ends, taken), *chain]
        taken.update(chain)
        chain = [*_turned(chain, node, used, produced, ends, taken), *chain]
        taken.update(chain)
        groups.append(chain)
    return groups


def is_channels_last(node: Node) -> bool:
    """Whether it puts dimension 1 behind all others."""
    rank = len(node.results[0].shape)
    return move_of(node) is Move.TRANSPOSE and node.attrs["perm"] == (0, *range(2, rank), 1)


def _turned(
    chain: Sequence[Node],
    node: Node,
    used: dict[Value, list[Node]],
    produced: dict[Value, Node],
    ends: set[Value],
    taken: set[Node],
) -> list[Node]:
    """The transpositions of operands for the chain alone: from channels last, of weights from any order."""
    if (nest := nest_of(node)) is not None and nest.reads:
        return []  # it reads its operands as they lie
    inside, weights = set(chain), set(node.operands[1:])
    found = dict.fromkeys(
        n
        for value in dict.fromkeys(v for c in chain for v in c.operands)
        if (n := produced.get(value)) is not None
        and move_of(n) is Move.TRANSPOSE
        and n not in taken
        and value not in ends
        and inside.issuperset(used[value])
        and (value in weights or (value.shape and n.attrs["perm"] == _first(len(value.shape))))
    )
    return list(found)


def _first(rank: int) -> tuple[int, ...]:
    """The permutation from channels last to channels first."""
    return (0, rank - 1, *range(1, rank - 1))


def _sides(
    chain: Sequence[Node],
    used: dict[Value, list[Node]],
    produced: dict[Value, Node],
    ends: set[Value],
    taken: set[Node],
) -> list[Node]:
    """The nodes on few numbers that only the chain needs, in order."""
    few = chain[0].result.shape[1] if len(chain[0].result.shape) > 1 else 1
    inside, found = set(chain), list[Node]()
    waiting = [v for n in chain[1:] for v in n.operands]
    while waiting:
        value = waiting.pop()
        node = produced.get(value)
        if node is None or node in inside or node in taken or value in ends or splat_of(node) is not None:
            continue
        kept = is_elementwise(node) or (
            move_of(node) is Move.RESHAPE and same_dimensions(node.operands[0].shape, value.shape) is not None
        )
        if kept and value.type.elements <= few and inside.issuperset(used[value]):
            inside.add(node)
            found.append(node)
            waiting += node.operands
    place = {node: i for i, node in enumerate(produced.values())}
    return sorted(found, key=place.__getitem__)
