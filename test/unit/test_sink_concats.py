"""Concatenations behind elementwise operators: nothing changes, and rotary embeddings are one kernel."""

from __future__ import annotations

import random

import pytest
from random_programs import Builder, agreement, value

from superopt import cost
from superopt.operators import Move, move_of
from superopt.program import KernelGraph, Node, Value
from superopt.spec import check_kernel
from superopt.transforms import sink_concats
from superopt.transforms.sink_concats import sunk
from superopt.transforms.tile_saturation.search import propose


def cut(f: Builder, x: Value, start: int, size: int) -> Value:
    sizes = (*x.shape[:-1], size)
    offsets = (*(0 for _ in x.shape[:-1]), start)
    return f("slice", x, offsets=offsets, sizes=sizes, strides=(1,) * len(sizes))


def rotary() -> KernelGraph:
    """Queries and fewer keys, both rotated by the same angles."""
    f, angles = Builder(), [value(16, 64, dtype="f16") for _ in range(2)]
    heads = [value(1, n, 16, 64, dtype="f16") for n in (8, 2)]
    outputs: list[Value] = []
    for x in heads:
        turned = f("concat", f("neg", cut(f, x, 32, 32)), cut(f, x, 0, 32), dim=3)
        outputs.append(f("add", f("mul", x, angles[0]), f("mul", turned, angles[1])))
    return KernelGraph("rotary", [*heads, *angles], f.nodes, outputs)


def test_rotary_embeddings_of_queries_and_keys_are_one_kernel() -> None:
    best = propose(rotary(), cost.target("sm_90"), budget=20).graphs[0]
    assert len(cost.cost(best, cost.target("sm_90")).kernels) == 1


def drawn(rng: random.Random) -> KernelGraph:
    """Elementwise operators, concatenations, transpositions and reshapes of a few inputs, in any order."""
    f = Builder()
    inputs = [value(2, 3, 4), value(2, 3, 4), value(3, 1), value(1, 4)]
    pool = list(inputs)
    for _ in range(rng.randint(3, 9)):
        a, b = rng.choice(pool), rng.choice(pool[-4:])
        kind = rng.choice(
            ("concat", "concat", "mul", "add", "sub", "exp", "transpose", "reshape", "reduce_sum")
        )
        if kind == "concat":
            dim = rng.randrange(len(a.shape))
            others = [x for x in pool if len(x.shape) == len(a.shape)]
            fits = [
                x for x in others if x.shape[:dim] + x.shape[dim + 1 :] == a.shape[:dim] + a.shape[dim + 1 :]
            ]
            pool.append(f("concat", a, *rng.choices(fits, k=rng.randint(1, 4)), dim=dim))
        elif kind == "exp":
            pool.append(f("exp", a))
        elif kind == "transpose":
            pool.append(f("transpose", a, perm=tuple(rng.sample(range(len(a.shape)), len(a.shape)))))
        elif kind == "reshape":
            shape = (1, *a.shape) if rng.random() < 0.5 else (a.shape[0], -(-_size(a) // a.shape[0]))
            pool.append(f("reshape", a, shape=shape))
        elif kind == "reduce_sum":
            pool.append(f("reduce_sum", a, dims=(len(a.shape) - 1,), keepdims=True))
        elif _broadcast(a.shape, b.shape):
            pool.append(f(kind, a, b))
    return KernelGraph("drawn", inputs, f.nodes, rng.sample(pool[-3:], rng.randint(1, 2)))


def _size(x: Value) -> int:
    size = 1
    for extent in x.shape:
        size *= extent
    return size


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1], strict=False))


def changed(count: int, seed: int) -> list[tuple[KernelGraph, KernelGraph]]:
    rng, found = random.Random(seed), list[tuple[KernelGraph, KernelGraph]]()
    for _ in range(count):
        graph = drawn(rng)
        after = sunk(graph)
        if after is not graph:
            check_kernel(after, 1 << 20)
            assert [v.type for v in after.outputs] == [v.type for v in graph.outputs]
            found.append((graph, after))
    return found


def test_random_programs_keep_their_values() -> None:
    pairs = changed(2500, 0)
    assert len(pairs) > 150
    assert not [a for a, b in pairs if agreement(a, b) is False]
    assert sum(agreement(a, b) is True for a, b in pairs) > len(pairs) // 2


def test_what_else_reads_a_concatenation_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were any reader taken for an elementwise one, sums over the cut dimension would be taken of its parts."""

    def anything(node: Node) -> bool:
        return move_of(node) is not Move.CONCAT

    monkeypatch.setattr(sink_concats, "_is_elementwise", anything)
    f, x = Builder(), value(4, 6)
    total = f("reduce_sum", f("concat", x, x, dim=1), dims=(1,), keepdims=True)
    graph = KernelGraph("summed", [x], f.nodes, [total])
    assert sunk(graph).outputs[0].shape != (4, 1) or agreement(graph, sunk(graph)) is not True
