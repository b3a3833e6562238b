"""Thread graphs: what joins them, that they change no value, and that their steps are in registers once compiled."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import numpy as np
import pytest
from programs import RMSNORM_LINEAR_CUSTOM
from test_emission import matmul_program
from test_interpreter import Build, check, tensor

from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.errors import IllegalProgram
from superopt.program import BlockGraph, KernelGraph, ThreadGraph, Value
from superopt.spec import block_bytes, check_kernel
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.transforms.lower.fuse_thread_graphs import FuseThreadGraphs
from superopt.transforms.lower.refine_loops import RefineLoops
from superopt.verify import certify


def fused(graph: KernelGraph) -> KernelGraph:
    return FuseThreadGraphs().apply(graph, Diagnostics())


def blocks(graph: KernelGraph) -> Iterator[BlockGraph]:
    for node in graph.nodes:
        if isinstance(node.body, BlockGraph):
            yield node.body


def steps(graph: KernelGraph) -> list[list[str]]:
    """The operators of the thread graphs."""
    inside = (n.body for block in blocks(graph) for n in block.nodes)
    return [[n.op for n in body.nodes] for body in inside if isinstance(body, ThreadGraph)]


def test_a_value_that_somebody_else_needs_ends_a_thread_graph() -> None:
    build = Build()
    x, w = tensor((16, 32)), tensor((32, 16))
    xt, wt = build.tile(x, (16, 32), (-1,), ()), build.tile(w, (32, 16), (1,), ())
    e = build("exp", build("neg", xt))
    p = build("matmul", e, wt)
    build.save(build("div", p, build("reduce_sum", e, dims=(1,), keepdims=True)), 1)
    graph = build.custom([x, w], (1,), (), (16, 16))
    assert steps(fused(graph)) == [["neg", "exp"]]


def test_stages_are_kept_apart() -> None:
    build = Build()
    x = tensor((16, 32))
    total = build.accumulate(build("exp", build("neg", build.tile(x, (16, 8), (-1,), (1,)))))
    build.save(build("exp", build("neg", total)), -1)
    graph = build.custom([x], (1,), (4,), (16, 8))
    assert steps(fused(graph)) == [["neg", "exp"], ["neg", "exp"]]


def test_what_no_trip_changes_is_not_computed_in_each() -> None:
    build = Build()
    x, y = tensor((16, 32)), tensor((16, 8))
    still = build("exp", build.tile(y, (16, 8), (-1,), (-1,)))
    moving = build("neg", build("mul", build.tile(x, (16, 8), (-1,), (1,)), still))
    build.save(build.accumulate(moving), -1)
    assert steps(fused(build.custom([x, y], (1,), (4,), (16, 8)))) == [["mul", "neg"]]


def test_dense_constants_are_operands() -> None:
    build = Build()
    x = tensor((16,))
    table = build("constant", value=np.arange(16.0), shape=(16,), dtype="f16")
    build.save(build("exp", build("add", build.tile(x, (16,), (-1,), ()), table)), -1)
    made = fused(build.custom([x], (1,), (), (16,)))
    assert steps(made) == [["add", "exp"]]
    assert [len(n.operands) for b in blocks(made) for n in b.nodes if n.op == "fused"] == [2]


def test_what_is_fused_takes_no_shared_memory() -> None:
    build = Build()
    x = tensor((16, 64))
    moved = build("neg", build.tile(x, (16, 64), (-1,), ()))
    build.save(build("mul", moved, build("sigmoid", moved)), -1)
    graph = build.custom([x], (1,), (), (16, 64))
    (before,), (after,) = blocks(graph), blocks(fused(graph))
    assert block_bytes(before) == 3 * x.type.bytes  # both factors and their product
    assert block_bytes(after) == 2 * x.type.bytes  # what is read, and what is made of it


def test_tiles_take_the_memory_that_they_are_padded_to() -> None:
    build = Build()
    x = tensor((50, 1000), "f32")
    build.save(build("exp", build.tile(x, (5, 1000), (0,), ())), 0)
    graph = build.custom([x], (10,), (), (50, 1000))
    (body,) = blocks(graph)
    assert block_bytes(body) == 2 * 8 * 1024 * 4
    with pytest.raises(IllegalProgram, match="at most 65535 bytes of shared memory, got 65536"):
        check_kernel(graph, 65535)


def sample(seed: int) -> KernelGraph:
    """A random graph of elementwise operators, row values, reductions and constants."""
    rng = random.Random(seed)
    build = Build()
    x = tensor((8, 16), "f32", "x")
    loop = rng.choice((1, 2))
    values = [build.tile(x, (4, 16 // loop), (0,), (1,))]
    rows: list[Value] = []
    for _ in range(rng.randint(3, 10)):
        a, b = rng.choice(values), rng.choice(values + rows)
        kind = rng.random()
        if kind < 0.2:
            rows.append(build("reduce_sum", a, dims=(1,), keepdims=True))
        elif kind < 0.35 and rows:
            rows.append(build("neg", rng.choice(rows)))
        elif kind < 0.5:
            values.append(build("mul", a, build("constant", value=0.5, shape=(), dtype="f32")))
        elif kind < 0.75:
            values.append(build(rng.choice(("add", "mul", "sub")), a, b))
        else:
            values.append(build(rng.choice(("neg", "sigmoid", "square")), a))
    total = build.accumulate(values[-1])
    build.save(build("add", build("neg", total), build("square", total)), 0)
    return build.custom([x], (2,), (loop,), (8, 16 // loop))


def test_random_thread_graphs_change_no_value() -> None:
    found = 0
    for seed in range(120):
        graph = sample(seed)
        made = fused(graph)
        check_kernel(made)
        found += len(steps(made))
        assert all(len([op for op in ops if op != "constant"]) >= 2 for ops in steps(made))
        assert certify(graph, made).equivalent, seed
    assert found > 150


@pytest.mark.parametrize("seed", range(4))
def test_random_thread_graphs_in_the_interpreter(seed: int) -> None:
    check(sample(seed))


# --- compiled ---------------------------------------------------------------------------------------------------

_EXCHANGES = re.compile(r"ttg\.(local_alloc|local_store|convert_layout)|ttng\.|tt\.store")


def named(graph: KernelGraph, names: str) -> KernelGraph:
    """`graph` as `lower` fuses it, every step but the last of its thread graphs called by `names`."""
    made = fused(RefineLoops().apply(graph, Diagnostics()))
    for block in blocks(made):
        for node in block.nodes:
            for step in node.body.nodes[:-1] if isinstance(node.body, ThreadGraph) else ():
                step.result.name = names
    return made


def exchanged(ttgir: str, name: str) -> tuple[int, list[str]]:
    """How many values of a name there are, and the operations that take one of them out of registers."""
    made: set[str] = set()
    out: list[str] = []
    for line in ttgir.splitlines():
        result, _, operation = line.rpartition(" = ") if re.match(r"\s*%", line) else ("", "", line)
        used = set(re.findall(rf"%{name}(?:_\d+)?\b", operation))
        if result.strip().startswith(f"%{name}"):
            made.add(result.strip())
        if used and _EXCHANGES.search(operation):
            out.append(line.strip())
    return len(made), out


def row_chain() -> KernelGraph:
    build = Build()
    x = tensor((256, 1024), name="x")
    t = build.tile(x, (4, 1024), (0,), ())
    d = build("sub", t, build("constant", value=0.5, shape=(), dtype="f16"))
    gate = build("mul", d, build("sigmoid", d))
    build.save(build("reduce_sum", build("square", build("exp", gate)), dims=(1,), keepdims=True), 0)
    return build.custom([x], (64,), (), (256, 1))


@pytest.mark.parametrize("kind", ["rmsnorm", "gated_mlp", "row_chain"])
def test_steps_are_in_registers_once_compiled(kind: str) -> None:
    graph = {
        "rmsnorm": lambda: read(RMSNORM_LINEAR_CUSTOM),
        "gated_mlp": lambda: matmul_program(16, 256, 128, 2, 4, "gated_mlp"),
        "row_chain": row_chain,
    }[kind]()
    kernels = emit_program(lower(named(graph, "step"))).kernels
    for compiled in compile_all(kernels, ["sm_80", "sm_90", "sm_100"]):
        count, out = exchanged(compiled.ttgir, "step")
        assert count >= 2, compiled.target
        assert out == [], compiled.target


def test_what_leaves_registers_is_noticed() -> None:
    """The last step's result is stored: that is found in the same text."""
    (compiled,) = compile_all(emit_program(lower(row_chain())).kernels, ["sm_90"])
    (stored,) = (line for line in compiled.ttgir.splitlines() if "tt.store" in line)
    name = re.findall(r"%(\w+)", stored)[1]
    assert exchanged(compiled.ttgir, name)[1] == [stored.strip()]
