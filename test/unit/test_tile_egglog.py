"""The e-graph against egglog: the same rules on the same small programs saturate to the same number of nodes."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from tile_terms import at, load, program, put, saturated, tensor, value

from superopt.transforms.core import _egraph
from superopt.transforms.tile_saturation.terms import StoreTerm, ValueTerm

egglog: Any = pytest.importorskip("egglog.bindings")

_NAMES = {"+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "max": "Max", "exp": "Exp", "matmul": "Matmul"}
_VALUES = "(datatype M (V String) (Exp M) " + " ".join(
    f"({n} M M)" for n in ("Add", "Sub", "Mul", "Div", "Max", "Matmul")
) + ")\n"  # fmt: skip

CASES = [
    ("(+ a (+ b (+ c d)))", ["comm-add", "assoc-add", "assoc-add2"]),
    ("(* a (* b (* c (* d e))))", ["comm-mul", "assoc-mul", "assoc-mul2"]),
    ("(* a (+ b (+ c d)))", ["comm-add", "comm-mul", "dist-mul-add", "factor-mul-add"]),
    ("(- (* a b) (* a c))", ["factor-mul-sub", "dist-mul-sub", "comm-mul"]),
    ("(matmul (matmul a b) (matmul c (matmul d e)))", ["assoc-matmul", "assoc-matmul2"]),
    ("(matmul a (+ b (matmul c d)))", ["dist-matmul-add", "factor-matmul-add", "comm-add", "assoc-matmul"]),
    (
        "(* (exp a) (* (exp b) (exp c)))",
        ["exp-mul", "comm-mul", "assoc-mul", "assoc-mul2", "comm-add", "assoc-add"],
    ),
    ("(/ (* (exp a) (exp b)) (exp c))", ["exp-mul", "exp-div", "comm-mul", "div-mul", "mul-div"]),
    ("(max a (max b (max c a)))", ["comm-max", "assoc-max"]),
]


def _translated(text: str, *, pattern: bool) -> str:
    def word(match: re.Match[str]) -> str:
        found = match.group(0)
        if found in _NAMES:
            return _NAMES[found]
        return found.removeprefix("?") if pattern else f'(V "{found}")'

    return re.sub(r"[^\s()]+", word, text)


def _sizes(text: str) -> dict[str, int]:
    graph = egglog.EGraph()
    *_, printed = graph.run_program(
        *graph.parse_program(text + "(run-schedule (saturate (run)))\n(print-size)\n")
    )
    return dict(printed.sizes)


@pytest.mark.parametrize(("text", "rules"), CASES)
def test_values(text: str, rules: list[str]) -> None:
    table = {name: (before, after) for name, before, after, *_ in _egraph.rules()}
    rewrites = "".join(
        f"(rewrite {_translated(table[r][0], pattern=True)} {_translated(table[r][1], pattern=True)})\n"
        for r in rules
    )
    want = _sizes(f"{_VALUES}{rewrites}(let $e {_translated(text, pattern=False)})\n")
    out = tensor("out", 4, 4, kind="output")
    encoder = saturated(program(StoreTerm(at(out, ":", ":"), value(text))), rules, iterations=40)
    assert encoder.graph.stopped == "saturated"
    assert encoder.graph.nodes - 1 == sum(want.values())  # the store is ours


@pytest.mark.parametrize(
    "edges", [[], [(0, 1)], [(0, 2), (1, 2)], [(0, 1), (1, 2), (0, 3)], [(0, 4), (3, 4)]]
)
def test_orders_of_statements(edges: list[tuple[int, int]]) -> None:
    """Sequences in canonical form commute where neither statement reads what the other writes."""
    count = 5
    x = tensor("x", 4, kind="input")
    stored = [tensor(f"t{i}", 4) for i in range(count)]

    def stores(i: int) -> StoreTerm:
        out: ValueTerm = ValueTerm("square", (load(at(x, ":")),)) if i % 2 else load(at(x, ":"))
        for a, b in edges:
            if b == i:
                out = ValueTerm("add", (out, load(at(stored[a], ":"))))
        return put(at(stored[i], ":"), out)

    body = [stores(i) for i in range(count)]
    encoder = saturated(program(*body), ["seq-comm", "seq-comm-tail"], iterations=40)
    assert encoder.graph.stopped == "saturated"
    sequences = sum(op == "seq" for _, op, *_ in encoder.graph.dump())
    dependent = {frozenset(e) for e in edges}
    free = "".join(
        f"(free (S {i}) (S {j}))\n"
        for i, j in itertools.permutations(range(count), 2)
        if frozenset((i, j)) not in dependent
    )
    chain = "(S 4)"
    for i in reversed(range(count - 1)):
        chain = f"(Seq (S {i}) {chain})"
    want = _sizes(
        "(datatype P (S i64) (Seq P P))\n(relation free (P P))\n"
        "(rule ((= e (Seq a b)) (free a b)) ((union e (Seq b a))))\n"
        "(rule ((= e (Seq a (Seq b t))) (free a b)) ((union e (Seq b (Seq a t)))))\n"
        f"{free}(let $e {chain})\n"
    )
    assert sequences == want["Seq"]
