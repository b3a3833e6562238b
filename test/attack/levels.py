"""Pairs with block graphs and tile programs, and random programs, rewritten and with a fault."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "mutation"))
sys.path.insert(1, str(Path(__file__).parent.parent / "unit"))

import arithmetic
import layout
from pairs import EQUAL, FAMILIES, NEAR, Draw, Pair, family

from superopt.errors import SuperoptError
from superopt.operators import OPERATORS
from superopt.program import KernelGraph
from superopt.spec import check_kernel
from superopt.transforms.lower import lower
from superopt.verify.hashing import canonical_text, parse

assert arithmetic, layout
made: Any = importlib.import_module("random_programs")  # of the unit tests
faults: Any = importlib.import_module("mutate_graph")  # of the mutation tests


def faulty(graph: KernelGraph, rng: random.Random) -> tuple[str, KernelGraph] | None:
    """The program with one fault that the rules of its level allow."""
    for _ in range(20):
        kind, _, text = faults.mutate(canonical_text(graph), rng)
        try:
            mutant = parse(text)
            check_kernel(mutant)
            return kind, mutant
        except (SuperoptError, ValueError, KeyError, IndexError, TypeError):
            continue
    return None


@family("random programs", weight=3)
def random_programs(d: Draw) -> Pair:
    graph = made.random_kernel(d.rng)
    second = made.rewritten(graph, d.rng)
    if d.rng.random() < 0.5:
        return Pair("rewritten", EQUAL, graph, second)
    wrong, what = made.mutated(second if d.rng.random() < 0.5 else graph, d.rng)
    return Pair(f"mutated: {what.split(':')[0]}", NEAR, graph, wrong)


@family("block graphs", weight=2)
def block_graphs(d: Draw) -> Pair:
    rng = d.rng
    if rng.random() < 0.3:
        scale, trips, rows = d.pick(1.0, 0.5), d.pick(2, 4), d.pick(2, 4)
        first, second = (
            made.attention(d.pick("naive", "stable"), scale),
            made.attention("online", scale, trips, rows),
        )
    else:
        graph = made.random_kernel(rng)
        first, second = graph, _blocks(graph, rng)
    if rng.random() < 0.4:
        return Pair("kernels of blocks", EQUAL, first, second)
    found = faulty(second, rng)
    return (
        Pair(f"fault: {found[0]}", NEAR, first, found[1])
        if found
        else Pair("kernels of blocks", EQUAL, first, second)
    )


def _blocks(graph: KernelGraph, rng: random.Random) -> KernelGraph:
    """Every operator that can be a block graph of its own, by chance."""
    inputs = [made.value(*v.shape, dtype=v.dtype) for v in graph.inputs]
    env, build = dict(zip(graph.inputs, inputs, strict=True)), made.Builder()
    for node in graph.nodes:
        xs = [env[v] for v in node.operands]
        square = all(x.shape == (4, 4) for x in xs)
        if square and node.op == "matmul":
            out = made.block_matmul(build, xs[0], xs[1], rng)
        elif square and node.op in ("reduce_sum", "reduce_max"):
            out = made.block_reduction(build, node.op, xs[0], rng)
        elif square and xs and OPERATORS[node.op].elementwise:
            out = made.block_pointwise(build, node.op, xs, rng)
        else:
            out = build(node.op, *xs, **node.attrs)
        env[node.result] = out
    return KernelGraph("main", inputs, build.nodes, [env[v] for v in graph.outputs])


_LOWERED = ("masked softmax", "infinities", "unrelated cuts", "several cuts", "slices and pads", "squares and transposes",
            "equal extents", "operands", "maxima", "quotients", "exponentials", "in-place outputs", "casts")  # fmt: skip


@family("tile programs", weight=2)
def tile_programs(d: Draw) -> Pair:
    """A pair of any class, the second program lowered; by chance with a fault."""
    for _ in range(10):
        pair = d.rng.choice(FAMILIES[d.rng.choice(_LOWERED)])(d)
        try:
            lowered = lower(pair.second)
        except SuperoptError:
            continue
        if pair.claim == EQUAL and d.rng.random() < 0.5 and (found := faulty(lowered, d.rng)):
            return Pair(f"fault: {found[0]}", NEAR, pair.first, found[1])
        return Pair(f"lowered: {pair.name}", pair.claim, pair.first, lowered)
    return random_programs(d)


@family("lowered random programs")
def lowered_random(d: Draw) -> Pair:
    graph = made.random_kernel(d.rng)
    lowered = lower(made.rewritten(graph, d.rng))
    found = faulty(lowered, d.rng) if d.rng.random() < 0.6 else None
    return (
        Pair(f"fault: {found[0]}", NEAR, graph, found[1]) if found else Pair("lowered", EQUAL, graph, lowered)
    )
