"""Values are defined once, at every level."""

from __future__ import annotations

import pytest
from random_programs import Builder, value

from superopt.errors import IllegalProgram
from superopt.program import (
    BlockGraph,
    Compute,
    KernelGraph,
    Load,
    Loop,
    Node,
    NodeKind,
    Statement,
    ThreadGraph,
    TileProgram,
    Value,
)
from superopt.spec import check_kernel
from superopt.transforms.lower import lower

AGAIN = "results that nothing else defines, got 1 that are"


def square(x: Value, result: Value) -> Node:
    return Node("square", (x,), (result,), {})


def block_level(times: int) -> KernelGraph:
    """A block's tile, squared so many times by one name."""
    x, y, whole, tile, result = value(4, 8), value(4, 8), value(4, 8), value(2, 8), value(2, 8)
    load = Node(NodeKind.ITERATOR, (whole,), (tile,), {"imap": (0,), "fmap": ()})
    save = Node(NodeKind.SAVE, (result,), (), {"omap": (0,)})
    graph = BlockGraph((2,), (), [whole], [load, *[square(tile, result)] * times, save])
    return KernelGraph("main", [x], [Node(NodeKind.CUSTOM, (x,), (y,), {}, body=graph)], [y])


def thread_level(times: int) -> KernelGraph:
    """The same in registers."""
    found = block_level(1)
    graph = found.nodes[0].body
    assert isinstance(graph, BlockGraph)
    node = graph.nodes[1]
    x, y = value(2, 8), value(2, 8)
    body = ThreadGraph([x], [square(x, y)] * times, [y])
    graph.nodes[1] = Node(NodeKind.FUSED, node.operands, node.results, {}, body=body)
    return found


def tile_level(times: int, kind: type[Statement]) -> KernelGraph:
    """A tile that is loaded and squared, with one of these statements so many times."""
    f = Builder()
    x = value(4, 8)
    found = lower(KernelGraph("main", [x], f.nodes, [f("square", x)]))
    program = found.nodes[0].body
    assert isinstance(program, TileProgram)

    def repeated(body: list[Statement]) -> list[Statement]:
        for s in body:
            if isinstance(s, Loop):
                s.body = repeated(s.body)
        return [s for s in body for _ in range(times if isinstance(s, kind) else 1)]

    program.body = repeated(program.body)
    return found


@pytest.mark.parametrize("level", ["block", "thread", "tile", "load"])
def test_a_value_is_defined_once(level: str) -> None:
    def program(times: int) -> KernelGraph:
        if level == "block":
            return block_level(times)
        if level == "thread":
            return thread_level(times)
        return tile_level(times, Compute if level == "tile" else Load)

    check_kernel(program(1))
    with pytest.raises(IllegalProgram, match=AGAIN):
        check_kernel(program(2))
