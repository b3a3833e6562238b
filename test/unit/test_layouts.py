"""Layouts between kernels: random views between random kernels, before and after, lowered, and in the interpreter."""

from __future__ import annotations

import random

import pytest
from test_interpreter import check, tensor

from superopt.cost import cost, target
from superopt.operators import infer_type
from superopt.program import Attr, BlockGraph, KernelGraph, Node, TensorType, Value
from superopt.spec import check_kernel
from superopt.transforms.lower import lower
from superopt.transforms.lower.choose_layouts import choose_layouts
from superopt.verify import certify

H100 = target("sm_90")


def applied(op: str, value: Value, **attrs: Attr) -> Node:
    return Node(op, (value,), (Value(infer_type(op, [value.type], attrs)),), attrs)


def by_blocks(value: Value, op: str, rng: random.Random) -> Node:
    """An elementwise kernel whose grid cuts some dimensions."""
    shape = value.shape
    cuts = rng.sample(range(len(shape)), rng.randint(1, min(2, len(shape))))
    grid = tuple(rng.choice([g for g in (1, 2, 3, 4) if shape[d] % g == 0]) for d in cuts)
    tile = list(shape)
    for d, g in zip(cuts, grid, strict=True):
        tile[d] //= g
    argument = Value(value.type)
    inside, made = (Value(TensorType(tuple(tile), value.dtype)) for _ in range(2))
    nodes = [
        Node("iterator", (argument,), (inside,), {"imap": tuple(cuts), "fmap": ()}),
        Node(op, (inside,), (made,)),
        Node("save", (made,), (), {"omap": tuple(cuts)}),
    ]
    block = BlockGraph(grid, (), [argument], nodes)
    return Node("custom", (value,), (Value(value.type),), {}, body=block)


def views(value: Value, rng: random.Random) -> list[Node]:
    """Reshapes that join or split dimensions, with a transpose among them."""
    nodes: list[Node] = []

    def reshaped(value: Value) -> Value:
        shape = list(value.shape)
        d = rng.randrange(len(shape))
        if rng.random() < 0.5 and d + 1 < len(shape):
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
        else:
            part = rng.choice([p for p in (1, 2, 3) if shape[d] % p == 0])
            shape[d : d + 1] = [shape[d] // part, part] if rng.random() < 0.5 else [part, shape[d] // part]
        nodes.append(applied("reshape", value, shape=tuple(shape)))
        return nodes[-1].result

    if rng.random() < 0.6:
        value = reshaped(value)
    perm = list(range(len(value.shape)))
    rng.shuffle(perm)
    nodes.append(applied("transpose", value, perm=tuple(perm)))
    if rng.random() < 0.6:
        reshaped(nodes[-1].result)
    return nodes


def sample(seed: int) -> KernelGraph:
    rng = random.Random(seed)
    x = tensor(tuple(rng.choice((2, 4, 6, 12, 32)) for _ in range(rng.randint(2, 3))), "f32", "x")
    nodes = [by_blocks(x, "exp", rng)] if rng.random() < 0.8 else [applied("exp", x)]
    nodes += views(nodes[-1].result, rng)
    between = nodes[-1].result
    nodes.append(by_blocks(between, "neg", rng) if rng.random() < 0.7 else applied("neg", between))
    outputs = [nodes[-1].result]
    if rng.random() < 0.3:  # somebody else wants the value as it was
        outputs.append(nodes[0].result)
    return KernelGraph("views", [x], nodes, outputs)


def test_random_layouts_change_no_value() -> None:
    fired = 0
    for seed in range(150):
        graph = sample(seed)
        made = choose_layouts(graph, H100)
        if made is graph:
            continue
        fired += 1
        check_kernel(made)
        assert cost(made, H100).seconds < cost(graph, H100).seconds
        assert sum(n.op == "transpose" for n in made.nodes) < sum(n.op == "transpose" for n in graph.nodes)
        assert certify(graph, made).equivalent, seed
        assert certify(graph, lower(made)).equivalent, seed
    assert fired > 40


@pytest.mark.parametrize("seed", [3, 4, 8, 12, 17])
def test_layouts_in_the_interpreter(seed: int) -> None:
    found = (choose_layouts(sample(n), H100) for n in range(100 * seed, 100 * seed + 100))
    check(next(g for g in found if all(n.op != "transpose" for n in g.nodes)))


@pytest.mark.parametrize("saved", [True, False])
def test_a_permutation_is_not_its_inverse(saved: bool) -> None:
    """Three dimensions, all cut: a map that is permuted the wrong way is refused."""
    x = tensor((32, 32, 32), "f32", "x")
    rng = random.Random(0)
    first = by_blocks(x, "exp", rng) if saved else applied("exp", x)
    moved = applied("transpose", first.result, perm=(1, 2, 0))
    second = applied("neg", moved.result) if saved else by_blocks(moved.result, "neg", rng)
    graph = KernelGraph("cycle", [x], [first, moved, second], [second.result])
    made = choose_layouts(graph, H100)
    assert "transpose" not in [n.op for n in made.nodes]
    assert certify(graph, made).equivalent


def test_unused_orders_are_not_saved() -> None:
    rng = random.Random(1)
    x = tensor((32, 64), "f32", "x")
    maker = by_blocks(x, "exp", rng)
    moved = applied("transpose", maker.result, perm=(1, 0))
    alone = choose_layouts(KernelGraph("f", [x], [maker, moved], [moved.result]), H100)
    assert [len(n.results) for n in alone.nodes] == [1]
    both = choose_layouts(KernelGraph("f", [x], [maker, moved], [maker.result, moved.result]), H100)
    assert [len(n.results) for n in both.nodes] == [2]
