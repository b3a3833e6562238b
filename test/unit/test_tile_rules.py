"""Every rule on statements: where it fires, what it gives, and a program in which its guard refuses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tile_terms import (
    INFINITY,
    accumulate,
    at,
    holds,
    load,
    loop,
    program,
    put,
    saturated,
    tensor,
    wrong_samples,
)

from superopt.transforms.core import _egraph
from superopt.transforms.tile_saturation.loops import Expr, Statement, Var

N, K, H = Var("n", 8, 0, 4), Var("k", 8, 0, 4), Var("h", 4, 1, 1)
M = Var("m", 8, 2, 2)  # four trips, as H
A, B, C, D = (tensor(name, 8) for name in "abcd")
X, Y, Z = tensor("x", 8, kind="input"), tensor("y", 8, kind="input"), tensor("z", 1, kind="input")
S, R = tensor("s", 1), tensor("r", 1)
OUT = tensor("out", 8, kind="output")


def unary(name: str, *args: Expr) -> Expr:
    return Expr(name, args)


def total(part: Expr) -> Expr:
    return Expr("reduce_sum", (part,), (("dims", (-1,)),))


def most(part: Expr) -> Expr:
    return Expr("reduce_max", (part,), (("dims", (-1,)),))


def copy(target: Any, source: Any, v: Var | str) -> Statement:
    return put(at(target, v), load(at(source, v)))


def square(target: Any, source: Any, v: Var | str) -> Statement:
    return put(at(target, v), unary("square", load(at(source, v))))


a, b, c = copy(A, X, N), square(B, Y, N), copy(C, X, N)
first, second = copy(A, X, ":"), square(B, Y, ":")
last = put(at(OUT, ":"), load(at(Y, ":")))
norm = put(at(S, ":"), unary("sqrt", load(at(Z, ":"))))
half = Expr("div", (load(at(X, K)), load(at(Z, ":"))))
twice = Expr("mul", (load(at(X, K)), load(at(Z, ":"))))
zero = [(at(S, ":"), 0.0)]
sums = accumulate(at(S, ":"), total(load(at(X, K))))
maximum = put(at(R, ":"), Expr("max", (load(at(R, ":")), most(load(at(X, K))))))
low = [(at(R, ":"), -INFINITY)]
weight = Expr("exp", (Expr("sub", (load(at(X, K)), load(at(R, ":")))),))
running = Expr("max", (load(at(R, ":")), most(load(at(X, K)))))
online = put(
    at(S, ":"),
    Expr(
        "add",
        (
            Expr("mul", (load(at(S, ":")), Expr("exp", (Expr("sub", (load(at(R, ":")), running)),)))),
            total(Expr("exp", (Expr("sub", (load(at(X, K)), running)),))),
        ),
    ),
)


def divided(part: Expr) -> Expr:
    return Expr("div", (total(part), load(at(Z, ":"))))


def scaled(part: Expr) -> Expr:
    return Expr("mul", (total(part), load(at(Z, ":"))))


by_div = accumulate(at(S, ":"), divided(load(at(X, K))))
by_mul = accumulate(at(S, ":"), scaled(load(at(X, K))))
then_div = put(at(S, ":"), Expr("div", (load(at(S, ":")), load(at(Z, ":")))))
then_mul = put(at(S, ":"), Expr("mul", (load(at(S, ":")), load(at(Z, ":")))))
G4, T4 = tensor("g4", 4, 2, kind="input"), tensor("t4", 4, 2)
by_elem = put(at(T4, ("elem", H), ":"), load(at(G4, ("elem", H), ":")))
by_tile = put(at(T4, ("elem", M), ":"), load(at(G4, ("elem", M), ":")))
uses_m = loop(M, copy(D, Y, M))


@dataclass(frozen=True)
class Case:
    rule: str
    before: Sequence[Statement]
    after: Sequence[Statement]
    refused: Sequence[Statement]


CASES = [
    Case("seq-comm", [first, second], [second, first], [first, copy(B, A, ":")]),
    Case("seq-comm-tail", [first, second, last], [second, first, last], [first, copy(B, A, ":"), last]),
    Case("loop-fusion", [loop(N, a), loop(N, b)], [loop(N, a, b)],
         [loop(N, square(B, A, N)), loop(N, put(at(A, ":"), load(at(X, ":"))))]),
    Case("loop-fusion-tail", [loop(N, a), loop(N, b), last], [loop(N, a, b), last],
         [loop(N, a), loop(N, put(at(B, N), Expr("add", (load(at(X, N)), total(load(at(A, ":"))))))), last]),
    Case("loop-fission", [loop(N, a, b)], [loop(N, a), loop(N, b)],
         [loop(N, a, put(at(B, N), Expr("add", (load(at(X, N)), total(load(at(A, ":")))))))]),
    Case("loop-fission-tail", [loop(N, a, b), last], [loop(N, a), loop(N, b), last],
         [loop(N, accumulate(at(S, ":"), load(at(Z, ":"))), put(at(B, N), Expr("add", (load(at(X, N)),
          load(at(S, ":")))))), last]),
    Case("loop-insertion1", [loop(N, a), norm], [loop(N, a, norm)],
         [loop(N, put(at(A, N), Expr("add", (load(at(X, N)), load(at(S, ":")))))), norm]),
    Case("loop-insertion1-tail", [loop(N, a), norm, last], [loop(N, a, norm), last],
         [loop(N, a), accumulate(at(S, ":"), load(at(Z, ":"))), last]),
    Case("loop-insertion2", [norm, loop(N, a)], [loop(N, norm, a)],
         [accumulate(at(S, ":"), load(at(Z, ":"))), loop(N, a)]),
    Case("loop-insertion2-tail", [norm, loop(N, a), last], [loop(N, norm, a), last],
         [put(at(S, ":"), load(at(R, ":"))), loop(N, put(at(R, ":"), total(load(at(X, N))))), last]),
    Case("loop-invar-code-motion", [loop(N, norm)], [norm], [loop(N, accumulate(at(S, ":"), load(at(Z, ":"))))]),
    Case("alge-factor-loop-body-div", [loop(K, by_div, starts=zero)], [loop(K, sums, starts=zero), then_div],
         [loop(K, by_div)]),
    Case("alge-factor-loop-body-div-tail", [loop(K, by_div, starts=zero), last],
         [loop(K, sums, starts=zero), then_div, last],
         [loop(K, accumulate(at(S, ":"), total(half)), starts=zero), last]),
    Case("alge-factor-loop-body-mul", [loop(K, by_mul, starts=zero)], [loop(K, sums, starts=zero), then_mul],
         [loop(K, by_mul, starts=low)]),
    Case("alge-factor-loop-body-mul-tail", [loop(K, by_mul, starts=zero), last],
         [loop(K, sums, starts=zero), then_mul, last],
         [loop(K, accumulate(at(S, ":"), Expr("mul", (total(load(at(X, K))), load(at(S, ":"))))), starts=zero), last]),
    Case("expression-propagation", [first, square(B, A, ":")], [first, square(B, X, ":")],
         [put(at(S, ":"), Expr("add", (load(at(S, ":")), load(at(Z, ":"))))),
          put(at(R, ":"), load(at(S, ":")))]),
    Case("loop-propagation", [loop(N, a), loop(N, square(B, A, N))], [loop(N, a), loop(N, square(B, X, N))],
         [loop(N, a), loop(N, put(at(B, N), Expr("add", (load(at(A, N)), total(load(at(A, ":")))))))]),
    Case("iteration-space-reindexing", [loop(H, by_elem), uses_m], [loop(M, by_tile), uses_m],
         [loop(N, a), loop(H, by_elem), loop(Var("w", 8, 4, 4), last)]),
    Case("online-rescaling", [loop(K, maximum, starts=low), loop(K, accumulate(at(S, ":"), total(weight)), starts=zero)],
         [loop(K, online, maximum, starts=[*low, *zero])],
         [loop(K, maximum, starts=low), loop(K, accumulate(at(S, ":"), total(Expr("mul", (weight, weight)))),
          starts=zero)]),
    Case("online-rescaling-tail",
         [loop(K, maximum, starts=low), loop(K, accumulate(at(S, ":"), total(weight)), starts=zero), last],
         [loop(K, online, maximum, starts=[*low, *zero]), last],
         [loop(K, maximum, starts=low), loop(K, accumulate(at(S, ":"), total(weight))), last]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[c.rule for c in CASES])
def test_fires(case: Case) -> None:
    p = program(*case.before)
    encoder = saturated(p, [case.rule], iterations=3)
    assert holds(encoder, *case.after)
    assert {name: fired for name, _, _, fired in encoder.graph.statistics}[case.rule] > 0
    assert wrong_samples(encoder, p, 25) == 0


@pytest.mark.parametrize("case", CASES, ids=[c.rule for c in CASES])
def test_guard_refuses(case: Case) -> None:
    p = program(*case.refused)
    encoder = saturated(p, [case.rule], iterations=3)
    assert {name: fired for name, _, _, fired in encoder.graph.statistics}[case.rule] == 0
    if case.rule != "online-rescaling-tail":  # which does not get so far as to ask its guard
        assert encoder.graph.count(encoder.root) == 1


def test_sequences_are_flattened() -> None:
    p = program(loop(K, by_div, starts=zero), last)
    encoder = saturated(p, ["alge-factor-loop-body-div", "sequence-canonicalization"])
    assert holds(encoder, loop(K, sums, starts=zero), then_div, last)


def test_every_rule_on_statements_is_tested() -> None:
    statements = {name for name, before, *_ in _egraph.rules() if ";" in before or "for " in before}
    assert statements == {c.rule for c in CASES} | {"sequence-canonicalization"}


@pytest.mark.parametrize("seed", range(3))
def test_all_rules_together_stay_sound(seed: int) -> None:
    from superopt.transforms.tile_saturation.search import enabled_rules

    body = [*CASES[18].before, *CASES[11].before, *CASES[2].before, norm]
    p = program(*body[seed:])
    encoder = saturated(p, enabled_rules(["loop-fission", "loop-fission-tail"]), iterations=6, nodes=4000)
    assert wrong_samples(encoder, p, 150, seed) == 0
