"""From kernel graphs to loops: how reshapes split, which statements bundle, what of a program is dead."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tile_terms import accumulate, agrees, at, load, loop, program, put, run, tensor

from superopt.nests import Shape
from superopt.operators import OPERATORS, Attrs, Index, Nest, Operator, arg
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.transforms.tile_saturation.cut_axes import CutAxes
from superopt.transforms.tile_saturation.extracted import canonical, opened, without_dead
from superopt.transforms.tile_saturation.term_bundles import bundled
from superopt.transforms.tile_saturation.terms import TermVar, ValueTerm, render
from superopt.transforms.tile_saturation.to_kernels import retiled
from superopt.transforms.tile_saturation.unmerge import unmerged

sys.path.insert(0, str(Path(__file__).parents[2]))

N, K = TermVar("n", 8, 0, 4), TermVar("k", 8, 0, 4)
X, Y = tensor("x", 8, kind="input"), tensor("y", 8, kind="input")
A, B, C = (tensor(name, 8) for name in "abc")
OUT = tensor("out", 8, kind="output")


def test_statements_of_one_form_are_bundled() -> None:
    p = program(loop(N, put(at(A, N), load(at(X, N)))), loop(N, put(at(B, N), load(at(Y, N)))))
    together = bundled(p)
    assert render(together.body) == "for n in 0..8 by tile_n:\n  (a,b)[n] = (x,y)[n]\n"
    assert agrees(run(p, p.body, 0, {N: 4}), run(p, opened(together.body), 0, {N: 4}))
    assert agrees(run(p, p.body, 0, {N: 4}), run(p, together.body, 0, {N: 4}))


def test_dependent_statements_are_not_bundled() -> None:
    chain = program(loop(N, put(at(A, N), load(at(X, N)))), loop(N, put(at(B, N), load(at(A, N)))))
    assert bundled(chain).body == chain.body
    between = program(
        loop(N, put(at(A, N), load(at(X, N)))),
        put(at(Y, ":"), load(at(A, ":"))),
        loop(N, put(at(B, N), load(at(Y, N)))),
    )
    assert bundled(between).body == between.body


def test_stores_that_nobody_needs_are_dead() -> None:
    dead = loop(K, accumulate(at(B, ":"), load(at(X, ":"))), starts=[(at(B, ":"), 0.0)])
    used = put(at(A, ":"), load(at(X, ":")))
    last = put(at(OUT, ":"), load(at(A, ":")))
    assert without_dead([dead, used, last], [OUT]) == (used, last)
    assert without_dead([dead, used, put(at(OUT, ":"), load(at(B, ":")))], [OUT])[0] == dead


def test_orders_that_differ_in_nothing_else_are_one() -> None:
    a, b = put(at(A, ":"), load(at(X, ":"))), put(at(B, ":"), load(at(Y, ":")))
    c = put(at(OUT, ":"), ValueTerm("add", (load(at(A, ":")), load(at(B, ":")))))
    assert canonical([a, b, c]) == canonical([b, a, c])
    d = put(at(A, ":"), load(at(Y, ":")))
    assert canonical([a, d, c]) != canonical([d, a, c])


def test_widths_are_free_where_no_reshape_is() -> None:
    fixed = TermVar("p", 8, 4, 4)
    free = retiled(loop(fixed, put(at(A, fixed), load(at(X, fixed)))))
    assert next(iter([free])).var.step == 0  # type: ignore[union-attr]
    view = ValueTerm("reshape", (load(at(X, fixed)),), (("shape", (4,)),))
    kept = loop(fixed, put(at(A, fixed), view))
    assert retiled(kept) == kept


@pytest.mark.parametrize("name", ["vanilla", "pre_norm", "qk_norm", "roco", "keyformer"])
@pytest.mark.parametrize("safe", [False, True])
def test_groups_and_the_heads_in_them_are_dimensions_of_their_own(name: str, safe: bool) -> None:
    from benchmarks.trinity.programs import PROGRAMS, Config

    from superopt.verify.domains import FloatDomain
    from superopt.verify.evaluate import evaluate

    config = Config(hidden=32, heads=4, ffn=32, groups=2, tokens=4, prefix=12, dtype="f32")
    graph = PROGRAMS[name](config, name, safe=safe, grouped=True)
    apart = unmerged(graph).graph
    products = [n.result.shape for n in apart.nodes if n.op == "matmul"]
    assert (2, 2, 4, 16) in products  # scores: group, head in it, tokens, keys
    domain, rng = FloatDomain(), np.random.default_rng(0)
    inputs = [rng.standard_normal(v.shape) for v in graph.inputs]
    want = evaluate(graph, [domain.tensor(x) for x in inputs], domain)
    views = [domain.tensor(x.reshape(v.shape)) for x, v in zip(inputs, apart.inputs, strict=True)]
    for a, b in zip(want, evaluate(apart, views, domain), strict=True):
        np.testing.assert_allclose(a.planes[0].ravel(), b.planes[0].ravel(), rtol=1e-9)


def test_what_is_cut_in_two_at_most_is_left_alone() -> None:
    from benchmarks.trinity.programs import Builder, Config, attention

    graph = attention(Config(hidden=32, heads=4, ffn=32, groups=2, tokens=4, prefix=12), "f")
    assert unmerged(graph).graph is graph
    b = Builder("f", "f32")
    x = b.op("reshape", b.input("x", 4, 6), shape=(6, 4))  # no part of one divides the other
    crossing = b.outputs(b.op("reshape", x, shape=(2, 3, 2, 2)))
    assert unmerged(crossing).graph is crossing


def test_the_axes_of_an_operator_are_those_of_its_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    """a + transpose(b), of which nothing but the table's entry knows."""

    def nest(shapes: Sequence[Shape], attrs: Attrs) -> Nest:
        return Nest(tuple(shapes[0]), ((Index(0), Index(1)), (Index(1), Index(0))), (0, 1))

    entry = Operator("add_turned", 2, "a + transpose(b)", nest=nest, body=lambda _: arg(0) + arg(1))
    monkeypatch.setitem(OPERATORS, "add_turned", entry)
    a, b, c = (Value(TensorType(shape, "f32")) for shape in [(128, 256), (256, 128), (128, 256)])
    node = Node("add_turned", (a, b), (c,), {})
    axes = CutAxes(KernelGraph("turned", [a, b], [node], [c]))
    assert axes.of(a, 0) is axes.of(b, 1) is axes.of(c, 0)
    assert axes.of(a, 1) is axes.of(b, 0) is axes.of(c, 1)
    assert axes.of(a, 0) is not axes.of(a, 1)


def test_short_dimensions_of_every_output_are_cut_one_by_one() -> None:
    """Rotary embeddings of queries and keys: one loop along both batches, and along their heads if as many."""
    from benchmarks.trinity.programs import Builder

    for heads in (8, 2):
        b = Builder("f", "f32")
        q, k, c = b.input("q", 7, 8, 16), b.input("k", 7, heads, 16), b.input("c", 16)
        graph = b.outputs(b.op("mul", q, c), b.op("mul", k, c))
        axes = CutAxes(graph)
        batch, ours, theirs = axes.of(q, 0), axes.of(q, 1), axes.of(k, 1)
        assert batch is not None
        assert batch is axes.of(k, 0)
        assert batch.cut == "elem"
        assert (ours is theirs) == (heads == 8)
        assert ours is not None
        assert ours.cut == ("elem" if heads == 8 else "full")
        assert (width := axes.of(q, 2)) is not None
        assert width.cut == "full"  # contiguous


def test_short_dimensions_that_are_reduced_or_multiplied_stay_whole() -> None:
    from benchmarks.trinity.programs import Builder

    b = Builder("f", "f32")
    x, w = b.input("x", 8, 16, 32), b.input("w", 32, 128)
    total = b.op("reduce_sum", x, dims=(1,))
    axes = CutAxes(b.outputs(b.op("matmul", total, w)))
    assert [axis.cut for d in range(3) if (axis := axes.of(x, d))] == ["full"] * 3


def test_outputs_share_no_loop_where_a_tensor_would_have_one_axis_twice() -> None:
    from benchmarks.trinity.programs import Builder

    b = Builder("f", "f32")
    x = b.input("x", 4, 4, 16)
    one, other = b.op("neg", x), b.op("exp", b.op("transpose", x, perm=(1, 0, 2)))
    axes = CutAxes(b.outputs(one, other))
    assert axes.of(one, 0) is axes.of(other, 1) is not axes.of(other, 0)
