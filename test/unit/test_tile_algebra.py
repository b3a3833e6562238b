"""Every algebraic rule: it fires, both sides are the same numbers, and its guard refuses what it must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tile_terms import at, program, saturated, tensor, value

from superopt.transforms.core import _egraph
from superopt.transforms.tile_saturation.loops import Expr, Store, execute

COLUMN, ROW = {"b": (4, 1)}, {"b": (1, 4)}

# rule, before, after, shapes
FIRES: list[tuple[str, str, str, dict[str, tuple[int, ...]]]] = [
    ("comm-add", "(+ a b)", "(+ b a)", {}),
    ("assoc-add", "(+ a (+ b c))", "(+ (+ a b) c)", {}),
    ("assoc-add2", "(+ (+ a b) c)", "(+ a (+ b c))", {}),
    ("comm-mul", "(* a b)", "(* b a)", {}),
    ("assoc-mul", "(* a (* b c))", "(* (* a b) c)", {}),
    ("assoc-mul2", "(* (* a b) c)", "(* a (* b c))", {}),
    ("assoc-matmul", "(matmul a (matmul b c))", "(matmul (matmul a b) c)", {"a": (2, 4)}),
    ("assoc-matmul2", "(matmul (matmul a b) c)", "(matmul a (matmul b c))", {"c": (4, 3)}),
    ("assoc-div-matmul", "(matmul (/ a b) c)", "(/ (matmul a c) b)", COLUMN),
    ("dist-mul-add", "(* a (+ b c))", "(+ (* a b) (* a c))", {"b": (1, 4)}),
    ("dist-mul-sub", "(* a (- b c))", "(- (* a b) (* a c))", {}),
    ("dist-matmul-add", "(matmul a (+ b c))", "(+ (matmul a b) (matmul a c))", {}),
    ("dist-matmul-sub", "(matmul a (- b c))", "(- (matmul a b) (matmul a c))", {}),
    ("factor-mul-add", "(+ (* a b) (* a c))", "(* a (+ b c))", {}),
    ("factor-mul-sub", "(- (* a b) (* a c))", "(* a (- b c))", {}),
    ("factor-matmul-add", "(+ (matmul a b) (matmul a c))", "(matmul a (+ b c))", {}),
    ("factor-matmul-sub", "(- (matmul a b) (matmul a c))", "(matmul a (- b c))", {}),
    ("exp-mul", "(* (exp a) (exp b))", "(exp (+ a b))", {}),
    ("exp-div", "(/ (exp a) (exp b))", "(exp (- a b))", {}),
    ("exp0", "(exp 0)", "1", {}),
    ("recip-mul-div", "(* (exp a) (/ 1 (exp a)))", "1", {}),
    ("geometry-of-concat", "(concat:-1 (concat:-2 x z) (concat:-2 y w))",
     "(concat:-2 (concat:-1 x y) (concat:-1 z w))", {"x": (2, 4), "y": (2, 4)}),
    ("geometry-of-concat-inv", "(concat:-2 (concat:-1 x y) (concat:-1 z w))",
     "(concat:-1 (concat:-2 x z) (concat:-2 y w))", {"x": (4, 2), "z": (4, 2)}),
    ("operator-comm6", "(+ (concat:-1 x z) (concat:-1 y w))", "(concat:-1 (+ x y) (+ z w))", {}),
    ("operator-comm6-inv", "(concat:-2 (+ x y) (+ z w))", "(+ (concat:-2 x z) (concat:-2 y w))", {}),
    ("operator-comm7", "(* (concat:-2 x z) (concat:-2 y w))", "(concat:-2 (* x y) (* z w))", {}),
    ("operator-comm7-inv", "(concat:-1 (* x y) (* z w))", "(* (concat:-1 x z) (concat:-1 y w))", {}),
    ("concat-and-matmul0", "(matmul x (concat:-1 y z))", "(concat:-1 (matmul x y) (matmul x z))", {"y": (4, 2)}),
    ("concat-and-matmul0-inv", "(concat:-1 (matmul x y) (matmul x z))", "(matmul x (concat:-1 y z))", {}),
    ("concat-and-matmul1", "(+ (matmul a b) (matmul c d))", "(matmul (concat:-1 a c) (concat:-2 b d))",
     {"a": (4, 2), "b": (2, 4)}),
    ("concat-and-matmul1-inv", "(matmul (concat:-1 a c) (concat:-2 b d))", "(+ (matmul a b) (matmul c d))", {}),
    ("mul-matmul", "(matmul (* a b) c)", "(* (matmul a c) b)", COLUMN),
    ("matmul-mul", "(matmul a (* c b))", "(* (matmul a c) b)", ROW),
    ("matmul-div", "(matmul a (/ c b))", "(/ (matmul a c) b)", ROW),
    ("mul-div", "(* (/ a b) c)", "(/ (* a c) b)", {}),
    ("div-mul", "(/ (* a b) c)", "(* (/ a c) b)", {}),
    ("comm-max", "(max a b)", "(max b a)", {}),
    ("assoc-max", "(max a (max b c))", "(max (max a b) c)", {}),
]  # fmt: skip

# rule, before, what must not become equal, shapes: only the guard (or the shapes) stands between
REFUSED: list[tuple[str, str, str, dict[str, tuple[int, ...]]]] = [
    ("assoc-div-matmul", "(matmul (/ a b) c)", "(/ (matmul a c) b)", ROW),
    ("assoc-div-matmul", "(matmul (/ a b) c)", "(/ (matmul a c) b)", {}),
    ("mul-matmul", "(matmul (* a b) c)", "(* (matmul a c) b)", ROW),
    ("matmul-mul", "(matmul a (* c b))", "(* (matmul a c) b)", COLUMN),
    ("matmul-div", "(matmul a (/ c b))", "(/ (matmul a c) b)", COLUMN),
    ("recip-mul-div", "(* a (/ 1 a))", "1", {}),
    ("exp0", "(exp 1)", "1", {}),
    ("factor-mul-add", "(+ (* a b) (* c d))", "(* a (+ b d))", {}),
    ("exp-mul", "(* (exp a) b)", "(exp (+ a b))", {}),
]

# rule, before, shapes: the right side does not exist, and nothing may be built for it
IMPOSSIBLE: list[tuple[str, str, dict[str, tuple[int, ...]]]] = [
    ("dist-matmul-add", "(matmul a (+ b c))", {"b": (1, 4)}),
    ("dist-matmul-sub", "(matmul a (- b c))", {"c": (4, 1)}),
    ("operator-comm6", "(+ (concat:-1 x z) (concat:-1 y w))", {"x": (4, 2), "w": (4, 2)}),
    ("operator-comm6-inv", "(concat:-1 (+ x y) (+ z w))", {"x": (4, 1)}),
    ("operator-comm7", "(* (concat:-2 x z) (concat:-2 y w))", {"x": (2, 4), "w": (2, 4)}),
    ("operator-comm7-inv", "(concat:-2 (* x y) (* z w))", {"y": (1, 4)}),
    ("geometry-of-concat", "(concat:-1 (concat:-2 x z) (concat:-2 y w))", {"x": (2, 4), "w": (2, 4)}),
    ("geometry-of-concat-inv", "(concat:-2 (concat:-1 x y) (concat:-1 z w))", {"x": (4, 2), "w": (4, 2)}),
    ("concat-and-matmul0-inv", "(concat:-2 (matmul x y) (matmul x z))", {}),
    ("concat-and-matmul1", "(+ (matmul a b) (matmul c d))", {"a": (1, 4)}),
    ("concat-and-matmul1-inv", "(matmul (concat:-1 a c) (concat:-2 b d))", {"a": (4, 3), "d": (3, 4)}),
]


def _shape(expr: Expr) -> tuple[int, ...]:
    from superopt.transforms.tile_saturation.loops import apply

    def run(e: Expr) -> Any:
        if e.region is not None:
            return np.ones(e.region.tensor.shape)
        return apply(e, [run(a) for a in e.args], int)

    return run(expr).shape


def _graph(rule: str, before: Expr) -> Any:
    out = tensor("out", *_shape(before), kind="output")
    return saturated(program(Store(at(out, *":" * len(out.shape)), before)), [rule], iterations=2)


@pytest.mark.parametrize(("rule", "before", "after", "shapes"), FIRES, ids=[f[0] for f in FIRES])
def test_fires(rule: str, before: str, after: str, shapes: dict[str, tuple[int, ...]]) -> None:
    env: dict[str, Any] = {}
    left, right = value(before, shapes, env), value(after, shapes, env)
    encoder = _graph(rule, left)
    assert encoder.graph.same(encoder.expr(left), encoder.expr(right))
    fired = {name: n for name, _, _, n in encoder.graph.statistics}
    assert fired[rule] > 0


@pytest.mark.parametrize(("rule", "before", "after", "shapes"), FIRES, ids=[f[0] for f in FIRES])
def test_both_sides_are_the_same_numbers(
    rule: str, before: str, after: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    env: dict[str, Any] = {}
    left, right = value(before, shapes, env), value(after, shapes, env)
    results: list[Any] = []
    rng = np.random.default_rng(0)
    inputs: dict[Any, Any] = {r.tensor: rng.uniform(0.5, 1.5, r.tensor.shape) for r in env.values()}
    for side in (left, right):
        out = tensor("out", *_shape(left), kind="output")
        memory: dict[Any, Any] = {**inputs, out: np.zeros(out.shape)}
        execute([Store(at(out, *":" * len(out.shape)), side)], memory, {})
        results.append(memory[out])
    np.testing.assert_allclose(results[0], results[1])


@pytest.mark.parametrize(("rule", "before", "after", "shapes"), REFUSED)
def test_refuses(rule: str, before: str, after: str, shapes: dict[str, tuple[int, ...]]) -> None:
    env: dict[str, Any] = {}
    left, right = value(before, shapes, env), value(after, shapes, env)
    encoder = _graph(rule, left)
    assert not encoder.graph.same(encoder.expr(left), encoder.expr(right))


@pytest.mark.parametrize(("rule", "before", "shapes"), IMPOSSIBLE)
def test_shapes_refuse(rule: str, before: str, shapes: dict[str, tuple[int, ...]]) -> None:
    encoder = _graph(rule, value(before, shapes))
    statistics = {
        name: (matched, refused, fired) for name, matched, refused, fired in encoder.graph.statistics
    }
    matched, refused, fired = statistics[rule]
    assert fired == 0
    assert matched == refused


def test_every_algebraic_rule_is_tested() -> None:
    patterns = {
        name for name, before, *_ in _egraph.rules() if before.startswith("(") and "for" not in before
    }
    assert patterns - {"sequence-canonicalization"} == {f[0] for f in FIRES}
    assert len([r for r in _egraph.rules() if r[4] == "A.2"]) == 31
