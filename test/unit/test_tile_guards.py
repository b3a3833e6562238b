"""Each guard, weakened by its switch, lets a wrong program in; as it is, none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tile_terms import accumulate, at, holds, load, loop, program, put, saturated, tensor, wrong_samples

from superopt.cost import target
from superopt.transforms.core import _egraph
from superopt.transforms.tile_saturation.terms import StatementTerm, TermVar, ValueTerm

N, K = TermVar("n", 8, 0, 4), TermVar("k", 8, 0, 4)
H, M = TermVar("h", 4, 1, 1), TermVar("m", 8, 2, 2)
WIDE = TermVar("w", 8, 4, 4)  # two trips
A, B, C = (tensor(name, 8) for name in "abc")
X, Y, Z = tensor("x", 8, kind="input"), tensor("y", 8, kind="input"), tensor("z", 1, kind="input")
S, R = tensor("s", 1), tensor("r", 1)
P, Q = tensor("p", 4, 8, kind="input"), tensor("q", 4, 8)
U, V = tensor("u", 4, 4, kind="input"), tensor("v", 4, 4, kind="input")
ROW = tensor("row", 1, 4, kind="input")
T = tensor("t", 4, 4)
LAST = tensor("last", 1, kind="output")


def total(part: ValueTerm) -> ValueTerm:
    return ValueTerm("reduce_sum", (part,), (("dims", (-1,)),))


@dataclass(frozen=True)
class Case:
    guard: str
    rules: Sequence[str]
    body: Sequence[StatementTerm]


by_columns = ValueTerm(
    "matmul", (ValueTerm("div", (load(at(U, ":", ":")), load(at(ROW, ":", ":")))), load(at(V, ":", ":")))
)
CASES = [
    # B = A + rsum(A[:]); A = X: what Trinity's no_raw_waw lets pass (there is a W/A dependence only)
    Case("dependence", ["loop-fusion"],
         [loop(N, put(at(B, N), ValueTerm("add", (load(at(A, N)), total(load(at(A, ":"))))))),
          loop(N, put(at(A, N), load(at(X, N))))]),
    Case("idempotence", ["loop-invar-code-motion"], [loop(K, accumulate(at(S, ":"), load(at(Z, ":"))))]),
    Case("insertion", ["loop-insertion2"],
         [accumulate(at(S, ":"), load(at(Z, ":"))), loop(N, put(at(A, N), load(at(X, N))))]),
    Case("zero-start", ["alge-factor-loop-body-div"],
         [loop(K, accumulate(at(S, ":"), ValueTerm("div", (total(load(at(X, K))), load(at(Z, ":"))))))]),
    Case("division-axis", ["assoc-div-matmul"], [put(at(T, ":", ":"), by_columns)]),
    Case("propagation", ["expression-propagation"],
         [accumulate(at(S, ":"), load(at(Z, ":"))), put(at(R, ":"), load(at(S, ":")))]),
    Case("reindexing", ["iteration-space-reindexing"],
         [loop(H, put(at(Q, ("elem", H), ":"), load(at(P, ("elem", H), ":")))),
          loop(WIDE, put(at(A, WIDE), load(at(X, WIDE))))]),
    Case("capture", ["iteration-space-reindexing"],
         [loop(H, loop(M, put(at(Q, ("elem", H), M), load(at(P, ("elem", H), M)))))]),
]  # fmt: skip


def _number(guard: str) -> int:
    return _egraph.guards().index(guard)


@pytest.mark.parametrize("case", CASES, ids=[c.guard for c in CASES])
def test_without_the_guard_wrong_programs_appear(case: Case) -> None:
    p = program(*case.body)
    sound = saturated(p, case.rules)
    assert wrong_samples(sound, p, 40) == 0
    assert sum(refused for _, _, refused, _ in sound.graph.statistics) > 0
    weak = saturated(p, case.rules, weaken=_number(case.guard))
    assert wrong_samples(weak, p, 40) > 0


def test_without_flattening_all_sequences_programs_are_lost() -> None:
    a, b, c = (put(at(t, N), load(at(X, N))) for t in (A, B, C))
    p = program(loop(N, a, b), loop(N, c))
    rules = ["seq-comm", "loop-fusion"]  # without -tail, which would find the program in another way
    assert holds(saturated(p, rules), loop(N, b, a, c))
    assert not holds(saturated(p, rules, weaken=_number("flattening")), loop(N, b, a, c))


def test_classes_become_cyclic_and_everything_ends() -> None:
    only = put(at(LAST, ":"), load(at(Z, ":")))
    p = program(loop(N, only))
    sound = saturated(p, ["loop-invar-code-motion"])
    assert sound.graph.same(sound.root, sound.statement(only))
    assert sound.graph.count(sound.root) == 1
    assert wrong_samples(sound, p, 10) == 0
    kernels, _, term = sound.graph.best(sound.root, 3, 4, target("sm_90").numbers(), 10.0)[0]
    assert kernels == 1
    assert [op for op, *_ in term] == ["load", "store"]
    weak = saturated(p, ["loop-invar-code-motion"], weaken=_number("cycles"))
    with pytest.raises(RuntimeError, match="cycle"):
        weak.graph.count(weak.root)


def test_every_guard_is_tested() -> None:
    assert set(_egraph.guards()) == {c.guard for c in CASES} | {"flattening", "cycles"}
