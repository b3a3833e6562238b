"""Finished programs to inject faults into, small enough that thousands can be judged: block graphs as the search
writes them (found by it, or written by hand), what lowering makes of them, and the TTIR of their kernels."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt.operators import infer_type
from superopt.program import (
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    Statement,
    Store,
    TensorType,
    TileProgram,
    Value,
    Window,
)
from superopt.verify.ttir import KernelText

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))


@dataclass(frozen=True)
class Subject:
    """A program at one level, and what it must compute; `kernels` is the TTIR of its nodes at the last level."""

    name: str
    level: str
    original: KernelGraph
    program: KernelGraph
    kernels: tuple[KernelText, ...] = ()


class Build:
    """A kernel graph: `b(op, operands...)` adds an operator."""

    def __init__(self, dtype: str = "f16") -> None:
        self.dtype, self.inputs, self.nodes = dtype, list[Value](), list[Node]()

    def input(self, *shape: int) -> Value:
        self.inputs.append(Value(TensorType(shape, self.dtype)))
        return self.inputs[-1]

    def __call__(self, op: str, *operands: Value, **attrs: Any) -> Value:
        self.nodes.append(
            Node(op, operands, (Value(infer_type(op, [v.type for v in operands], attrs)),), attrs)
        )
        return self.nodes[-1].result

    def graph(self, name: str, *outputs: Value) -> KernelGraph:
        return KernelGraph(name, self.inputs, self.nodes, list(outputs))


def gated_mlp() -> KernelGraph:
    b = Build()
    x, w1, w2 = b.input(8, 64), b.input(64, 32), b.input(64, 32)
    return b.graph("gated_mlp", b("mul", b("silu", b("matmul", x, w1)), b("matmul", x, w2)))


def rmsnorm_linear() -> KernelGraph:
    b = Build()
    x, w = b.input(4, 64), b.input(64, 48)
    mean = b("reduce_mean", b("square", x), dims=(1,), keepdims=True)
    eps = b("constant", value=1e-5, shape=(), dtype="f16")
    return b.graph("rmsnorm_linear", b("matmul", b("mul", x, b("rsqrt", b("add", mean, eps))), w))


def lora() -> KernelGraph:
    b = Build()
    x, w, a, c = b.input(8, 32), b.input(32, 64), b.input(32, 4), b.input(4, 64)
    return b.graph("lora", b("add", b("matmul", x, w), b("matmul", b("matmul", x, a), c)))


def attention() -> KernelGraph:
    b = Build()
    q, k, v = b.input(2, 4, 8), b.input(2, 8, 32), b.input(2, 32, 8)
    s = b("matmul", q, k)
    e = b("exp", b("sub", s, b("reduce_max", s, dims=(2,), keepdims=True)))
    p = b("div", e, b("reduce_sum", e, dims=(2,), keepdims=True))
    return b.graph("attention", b("matmul", p, v))


def layernorm_gelu() -> KernelGraph:
    b = Build()
    x, g = b.input(6, 40), b.input(40)
    c = b("sub", x, b("reduce_mean", x, dims=(1,), keepdims=True))
    var = b("reduce_mean", b("square", c), dims=(1,), keepdims=True)
    return b.graph("layernorm_gelu", b("gelu", b("mul", b("mul", c, b("rsqrt", var)), g)))


ORIGINALS = (gated_mlp, rmsnorm_linear, lora, attention, layernorm_gelu)


def subjects(*, ttir: bool = True, search_seconds: float = 3.0) -> list[Subject]:
    """Every original at every level that it reaches."""
    from superopt.cost import target
    from superopt.errors import SuperoptError
    from superopt.transforms.lower import lower
    from superopt.transforms.mugraph_search.plans import search_plans

    found: list[Subject] = []
    gpu = target("sm_90")
    for make in ORIGINALS:
        graph = make()
        found.append(Subject(graph.name, "kernel", graph, graph))
        found.append(Subject(graph.name, "tile", graph, lower(graph)))
        try:
            candidates = search_plans(graph, gpu, budget=search_seconds, seed=0).graphs
        except SuperoptError:
            candidates = []
        for number, candidate in enumerate(candidates[:2]):
            found.append(Subject(f"{graph.name}/{number}", "block", graph, candidate))
            found.append(Subject(f"{graph.name}/{number}", "tile", graph, lower(candidate)))
    found += [*_written(lower), _scratch()]
    if ttir:
        found += [c for s in found if s.level == "tile" and (c := compiled(s)) is not None]
    return found


def _written(lower: Any) -> list[Subject]:
    from superopt.dialects.reader import read

    programs: Any = importlib.import_module("programs")  # of the unit tests

    out: list[Subject] = []
    for name in ("attention_online", "fused_and_concat"):
        graph = read(programs.ALL_TEXTS[name])
        out.append(Subject(name, "block", graph, graph))
        out.append(Subject(name, "tile", graph, lower(graph)))
    return out


def _scratch() -> Subject:
    """A block that stores a tile to device memory in halves and reads it back across them: it needs a barrier."""
    b = Build()
    x = b.input(32, 16)
    original = b.graph("scratch", b("add", b("neg", x), b("square", x)))
    kind, half, whole = (TensorType(s, "f16") for s in ((32, 16), (8, 16), (16, 16)))
    source, out, held = Buffer(kind, "x"), Buffer(kind, "o"), Buffer(whole, "held")
    block, columns = LoopVar("i"), Window(16)

    def rows(size: int, base: int = 0) -> tuple[Window, Window]:
        return Window(size, base, ((block, 1),)), columns

    body: list[Statement] = []
    for base in (0, 8):
        tile, negated = Value(half), Value(half)
        body += [Load(tile, source, rows(8, base)), Compute("neg", (tile,), negated)]
        body.append(Store(held, (Window(8, base), columns), negated))
    again, tile, square, total = (Value(whole) for _ in range(4))
    body += [
        Load(again, held, (Window(16), columns)),
        Load(tile, source, rows(16)),
        Compute("square", (tile,), square),
        Compute("add", (again, square), total),
        Store(out, rows(16), total),
    ]
    loop = Loop(block, 0, 32, 16, True, body)
    node = Node(
        "tiled",
        (y := Value(kind),),
        (Value(kind),),
        {},
        body=TileProgram("scratch", [source, out], 1, [held], [loop]),
    )
    return Subject("scratch", "tile", original, KernelGraph("scratch", [y], [node], [node.result]))


def compiled(subject: Subject) -> Subject | None:
    """The program with the TTIR of its kernels; None where it cannot be emitted."""
    from superopt.errors import SuperoptError
    from superopt.transforms.emit.compile import compile_all
    from superopt.transforms.emit.program_source import emit_program
    from superopt.verify.ttir.artifact import kernel_texts

    try:
        emitted = emit_program(subject.program)
        texts = kernel_texts(emitted, compile_all(emitted.kernels, ["sm_90"], jobs=1))
    except SuperoptError as error:
        print(f"{subject.name}: {error.message}", file=sys.stderr)
        return None
    return Subject(subject.name, "ttir", subject.original, subject.program, tuple(texts))
