"""Each guard, switched off, lets a wrong program in; as it is, none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tile_terms import accumulate, at, holds, load, loop, program, put, saturated, tensor, wrong_samples
from try_rules import programs, trial

from superopt.cost import target
from superopt.transforms.core import _egraph
from superopt.transforms.schedule.widths import WIDTHS
from superopt.transforms.tile_saturation.encode import Encoder
from superopt.transforms.tile_saturation.terms import StatementTerm, TermVar, ValueTerm

N, K = TermVar("n", 8, 0, 4), TermVar("k", 8, 0, 4)
H, M = TermVar("h", 4, 1, 1), TermVar("m", 8, 2, 2)
WIDE = TermVar("w", 8, 4, 4)  # two trips
A, B, C = (tensor(name, 8) for name in "abc")
X, Y, Z = tensor("x", 8, kind="input"), tensor("y", 8, kind="input"), tensor("z", 1, kind="input")
S = tensor("s", 1)
P, Q = tensor("p", 4, 8, kind="input"), tensor("q", 4, 8)
LAST = tensor("last", 1, kind="output")


def total(part: ValueTerm) -> ValueTerm:
    return ValueTerm("reduce_sum", (part,), (("dims", (-1,)),))


@dataclass(frozen=True)
class Case:
    guard: str
    rules: Sequence[str]
    body: Sequence[StatementTerm]


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
    Case("reindexable", ["iteration-space-reindexing"],
         [loop(H, put(at(Q, ("elem", H), ":"), load(at(P, ("elem", H), ":")))),
          loop(WIDE, put(at(A, WIDE), load(at(X, WIDE))))]),
    Case("capture", ["iteration-space-reindexing"],
         [loop(H, loop(M, put(at(Q, ("elem", H), M), load(at(P, ("elem", H), M)))))]),
]  # fmt: skip

RULES = Path(__file__).parents[1] / "rules"
ASKED = [(rule, guard) for rule, _, _, guards, *_ in _egraph.rules() for guard, _ in guards]
# Guards that ask for more than soundness needs, or for what the numbers of a trial never violate.
HARMLESS = {"same-shape", "nonzero"}


@pytest.mark.parametrize(("rule", "guard"), ASKED)
def test_a_rule_asks_each_of_its_guards(rule: str, guard: str) -> None:
    """A program of its file that the rule does not touch is rewritten, wrongly, where the guard says yes to all."""
    fired = wrong = 0
    for title, p in programs((RULES / f"{rule}.loops").read_text()):
        if trial(title, p, [rule]).fired == 0:
            without = trial(title, p, [rule], without=guard)
            fired += without.fired
            wrong += without.wrong
    assert fired > 0
    assert wrong > 0 or guard in HARMLESS


def test_guards_are_known_by_name() -> None:
    graph = Encoder(program(put(at(A, N), load(at(X, N))))).graph
    with pytest.raises(ValueError, match="the name of a guard, got 'fusable'"):
        graph.weaken("fusable")


@pytest.mark.parametrize("case", CASES, ids=[c.guard for c in CASES])
def test_without_the_guard_wrong_programs_appear(case: Case) -> None:
    p = program(*case.body)
    sound = saturated(p, case.rules)
    assert wrong_samples(sound, p, 40) == 0
    assert sum(refused for _, _, refused, _ in sound.graph.statistics) > 0
    weak = saturated(p, case.rules, weaken=case.guard)
    assert wrong_samples(weak, p, 40) > 0


def test_without_flattening_all_sequences_programs_are_lost() -> None:
    a, b, c = (put(at(t, N), load(at(X, N))) for t in (A, B, C))
    p = program(loop(N, a, b), loop(N, c))
    rules = ["seq-comm", "loop-fusion"]  # without -tail, which would find the program in another way
    assert holds(saturated(p, rules), loop(N, b, a, c))
    assert not holds(saturated(p, rules, weaken="flattening"), loop(N, b, a, c))


def test_classes_become_cyclic_and_everything_ends() -> None:
    only = put(at(LAST, ":"), load(at(Z, ":")))
    p = program(loop(N, only))
    sound = saturated(p, ["loop-invar-code-motion"])
    assert sound.graph.same(sound.root, sound.statement(only))
    assert sound.graph.count(sound.root) == 1
    assert wrong_samples(sound, p, 10) == 0
    kernels, _, term = sound.graph.best(sound.root, 3, 4, target("sm_90").numbers(), WIDTHS, 10.0)[0]
    assert kernels == 1
    assert [op for op, *_ in term] == ["load", "store"]
    weak = saturated(p, ["loop-invar-code-motion"], weaken="cycles")
    with pytest.raises(RuntimeError, match="cycle"):
        weak.graph.count(weak.root)


def test_every_guard_is_tested() -> None:
    asked = {guard for _, guard in ASKED}
    assert set(_egraph.guards()) == asked | {c.guard for c in CASES} | {"flattening", "cycles"}
