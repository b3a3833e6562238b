"""The text view of each level."""

from __future__ import annotations

import re

import programs
import pytest

from superopt import render
from superopt.dialects.reader import read
from superopt.program import BlockGraph, KernelGraph, Node, TensorType, ThreadGraph, Value

TILED = """f(x: f16[30, 64])
  t0 = tiled0(x)    f16[30, 64]
  return t0

tiled0: scale(in0: f16[30, 64], out0: f16[30, 64]), 4 warps, 2 stages
  buf0 = buffer                    f16[16, 64]    placement chip
  parallel i0 in 0..30 step 16:
    t0 = in0[i0 : +16, 0 : 64]     f16[16, 64]
    t1 = square(t0)                f16[16, 64]
    out0[i0 : +16, 0 : 64] = t1    f16[16, 64]
"""

FUSED = """f(x: f32[8, 16], y: f32[8, 32])
  t0 = concat(x, y)    f32[8, 48]    dim=1
  t1 = extern(t0)      f32[8, 48]    reason=not in the operator table, target=aten.cumsum.default
  t2 = custom0(t1)     f32[8, 48]
  return t2

custom0: grid {x: 4}, 1024 bytes of shared memory
  t0 = iterator(in0)    f32[8, 12]    imap {x ↔ 1}, fmap {}
  t1 = fused(t0)        f32[8, 12]
    t2 = neg(t0)        f32[8, 12]
    t3 = clamp(t2)      f32[8, 12]    high=1, low=-1
    yield t3
  save(t1)                            omap {x ↔ 1}
"""


@pytest.mark.parametrize(("name", "expected"), [("tiled_scale", TILED), ("fused_and_concat", FUSED)])
def test_levels(name: str, expected: str) -> None:
    assert render.text(read(programs.ALL_TEXTS[name])) == expected


@pytest.mark.parametrize("name", programs.ALL_TEXTS)
def test_every_node_is_shown_once(name: str) -> None:
    graph = read(programs.ALL_TEXTS[name])
    text = render.text(graph)
    for node in graph.nodes:
        if isinstance(node.body, BlockGraph):
            constants = sum(n.op == "constant" for n in node.body.nodes)
            loops = len(node.body.loops)
            section = text.split("\n\n")[-1].rstrip().splitlines()
            inner = sum(len(n.body.nodes) + 1 for n in node.body.nodes if isinstance(n.body, ThreadGraph))
            assert len(section) == 1 + loops + len(node.body.nodes) - constants + inner


def test_nested_loops_and_scalars() -> None:
    def value(*shape: int) -> Value:
        return Value(TensorType(shape, "f32"))

    whole, tile, scaled, half = value(16, 8), value(4, 2), value(4, 2), value()
    inner, outer, after, result = value(4, 2), value(4, 2), value(4, 2), value(4, 2)
    nodes = [
        Node("constant", (), (half,), {"value": 0.5, "shape": (), "dtype": "f32"}),
        Node("iterator", (whole,), (tile,), {"imap": (), "fmap": (0, 1)}),
        Node("mul", (tile, half), (scaled,)),
        Node("accumulate", (scaled,), (inner,), {"kind": "sum", "loop": 1}),
        Node("exp", (inner,), (after,)),
        Node("accumulate", (after,), (outer,), {"kind": "sum", "loop": 0}),
        Node("neg", (outer,), (result,)),
        Node("save", (result,), (), {"omap": ()}),
    ]
    kernel_input, kernel_output = value(16, 8), value(4, 2)
    custom = Node("custom", (kernel_input,), (kernel_output,), body=BlockGraph((1,), (4, 4), [whole], nodes))
    text = render.text(KernelGraph("nest", [kernel_input], [custom], [kernel_output]))
    shape = [re.split(r"(?<=\S) {4}", line)[0] for line in text.split("\n\n")[1].splitlines()[1:]]
    assert shape == [
        "  for i in 0..4:",
        "    for j in 0..4:",
        "      t0 = iterator(in0)",
        "      t1 = mul(t0, 0.5)",
        "      t2 = accumulate(t1)",
        "    t3 = exp(t2)",
        "    t4 = accumulate(t3)",
        "  t5 = neg(t4)",
        "  save(t5)",
    ]


def test_names_of_values_are_kept_and_unique() -> None:
    kind = TensorType((2,), "f32")
    x, y, z = Value(kind, "x"), Value(kind, "x"), Value(kind)
    graph = KernelGraph("f", [x], [Node("exp", (x,), (y,)), Node("neg", (y,), (z,))], [z])
    assert render.text(graph) == (
        "f(x: f32[2])\n  t0 = exp(x)     f32[2]\n  t1 = neg(t0)    f32[2]\n  return t1\n"
    )
