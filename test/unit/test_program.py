"""Traversal of programs at every level, and what the operator table says of nodes."""

from __future__ import annotations

import pytest

from superopt.operators import (
    OPERATORS,
    Move,
    is_constant,
    is_contraction,
    is_conversion,
    is_elementwise,
    is_windowed,
    move_of,
    primitive_of,
    reduction_of,
    splat_of,
)
from superopt.program import (
    BlockGraph,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    NodeKind,
    Statement,
    Store,
    TensorType,
    TileProgram,
    Value,
    Window,
    executions,
    live_nodes,
    producers,
    rebuild,
    rebuild_statements,
    users,
    walk,
    within_loops,
)

VECTOR = TensorType((4,), "f32")


def applied(op: str, *operands: Value) -> Node:
    return Node(op, operands, (Value(VECTOR),))


def copy() -> tuple[TileProgram, list[Statement]]:
    """parallel i: (load, for k: (exp), store), its statements in the order of their text."""
    source, target, i, k = Buffer(VECTOR, "x"), Buffer(VECTOR, "y"), LoopVar("i"), LoopVar("k")
    window = (Window(1, 0, ((i, 1),)),)
    one, two = Value(TensorType((1,), "f32")), Value(TensorType((1,), "f32"))
    load, compute, store = Load(one, source, window), Compute("exp", (one,), two), Store(target, window, one)
    inner = Loop(k, 0, 7, 2, False, [compute])
    outer = Loop(i, 0, 4, 1, True, [load, inner, store])
    return TileProgram("copy", [source, target], 1, [], [outer]), [outer, load, inner, compute, store]


def test_a_walk_meets_every_node_and_statement_in_order() -> None:
    program, statements = copy()
    x = Value(VECTOR)
    inner = applied("neg", x)
    block = Node(NodeKind.CUSTOM, (x,), (Value(VECTOR),), body=BlockGraph((1,), (), [x], [inner]))
    tiled = Node(NodeKind.TILED, (x,), (Value(VECTOR),), body=program)
    last = applied("exp", x)
    graph = KernelGraph("f", [x], [block, tiled, last], [])
    assert list(walk(graph)) == [block, inner, tiled, *statements, last]
    assert list(program.statements()) == statements


def test_statements_run_once_a_trip_of_every_loop_around_them() -> None:
    program, (outer, load, inner, compute, store) = copy()
    times = {id(s): executions(around) for s, around in within_loops(program.body)}
    assert times == {id(outer): 1, id(load): 4, id(inner): 4, id(compute): 16, id(store): 4}


def test_statements_are_rebuilt_in_their_loops_and_the_old_ones_left_alone() -> None:
    program, _ = copy()
    assert isinstance(program.body[0], Loop)
    made = rebuild_statements(program.body, lambda s: [] if isinstance(s, Load) else [s, s])
    kinds = [type(s) for s, _ in within_loops(made)]
    assert kinds == 2 * [Loop, *2 * [Loop, Compute, Compute], Store, Store]
    assert len(program.body[0].body) == 3


def test_a_graph_is_rebuilt_node_by_node() -> None:
    x = Value(VECTOR)
    kept, doubled, gone = applied("exp", x), applied("neg", x), applied("sqrt", x)
    graph = KernelGraph("f", [x], [kept, doubled, gone], [x], aliases=(0,))
    change = {doubled: [kept, doubled], gone: []}
    made = rebuild(graph, lambda n: change.get(n, n))
    assert made.nodes == [kept, kept, doubled]
    assert (made.name, made.inputs, made.outputs, made.aliases) == ("f", [x], [x], (0,))
    assert graph.nodes == [kept, doubled, gone]


def test_live_nodes_are_what_outputs_need_and_opaque_ones() -> None:
    x = Value(VECTOR)
    a = applied("exp", x)
    b, dead = applied("neg", a.result), applied("sqrt", a.result)
    fed = applied("sin", x)
    opaque = Node(NodeKind.EXTERN, (fed.result,), (Value(VECTOR),))
    nodes = [a, dead, b, fed, opaque]
    assert live_nodes(nodes, [b.result]) == [a, b, fed, opaque]
    assert live_nodes(nodes, [b.result], opaque=False) == [a, b]


def test_what_is_trimmed_no_longer_needs_what_it_lost() -> None:
    x = Value(VECTOR)
    a, b = applied("exp", x), applied("neg", x)
    both = applied("add", a.result, b.result)
    half = Node("neg", (a.result,), both.results)
    assert live_nodes([a, b, both], [both.result], trim=lambda n, _: half if n is both else n) == [a, half]


def test_producers_and_users() -> None:
    x = Value(VECTOR)
    a = applied("exp", x)
    twice = applied("mul", a.result, a.result)
    assert producers([a, twice]) == {a.result: a, twice.result: twice}
    assert users([a, twice]) == {x: [a], a.result: [twice, twice]}


@pytest.mark.parametrize("name", [*OPERATORS, *NodeKind])
def test_a_node_is_of_at_most_one_class(name: str) -> None:
    """Every entry computes point by point, joins, moves or holds numbers; operations of the levels' own do none."""
    node = applied(name)
    found = [
        is_elementwise(node),
        is_contraction(node),
        is_constant(node),
        reduction_of(node) is not None,
        move_of(node) is not None,
        is_windowed(node),
    ]
    assert sum(found) == (name in OPERATORS)
    assert is_elementwise(node) or not (is_conversion(node) or primitive_of(node))


@pytest.mark.parametrize("move", Move)
def test_every_move_is_that_of_one_operator(move: Move) -> None:
    assert [e.name for e in OPERATORS.values() if e.move is move]


@pytest.mark.parametrize(
    ("name", "primitive"), [("sub", "sub"), ("exp", "exp"), ("silu", None), ("cast", None), ("matmul", None)]
)
def test_primitives(name: str, primitive: str | None) -> None:
    assert primitive_of(applied(name)) == primitive


def test_parts_of_a_mean_are_sums() -> None:
    partial = {
        name: OPERATORS[name].partial for name in ("reduce_mean", "reduce_sum", "reduce_max", "matmul")
    }
    assert partial == {
        "reduce_mean": "reduce_sum", "reduce_sum": "reduce_sum", "reduce_max": "reduce_max", "matmul": "matmul"
    }  # fmt: skip


def test_a_splat_is_one_number() -> None:
    assert splat_of(Node("constant", (), (Value(VECTOR),), {"value": 2.5})) == 2.5
    assert splat_of(Node("exp", (), (Value(VECTOR),), {"value": 2.5})) is None
