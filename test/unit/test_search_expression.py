"""The normal form against the axioms themselves: their brute-force closure, and z3."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from superopt.transforms.core._search import Algebra

# ("in", i) | ("f", t) | ("sum", i, t) | ("add" | "mul", a, b) with a <= b | ("div", a, b)
Term = tuple[Any, ...]


def binary(op: str, a: Term, b: Term) -> Term:
    return (op, *sorted((a, b), key=repr)) if op != "div" else (op, a, b)


def random_term(rng: random.Random, size: int) -> Term:
    if size == 1:
        return ("in", rng.randrange(3))
    kind = rng.choice(["add", "mul", "mul", "div", "sum", "f"])
    if kind == "sum":
        return ("sum", rng.randrange(2), random_term(rng, size - 1))
    if kind == "f":
        return ("f", random_term(rng, size - 1))
    if size < 3:
        return random_term(rng, size)
    left = rng.randrange(1, size - 1)
    return binary(kind, random_term(rng, left), random_term(rng, size - 1 - left))


def rewrites(t: Term) -> Iterator[Term]:
    """Every term that one axiom of A_eq, applied once at the root, makes of `t`; commutativity is built in."""
    op = t[0]
    if op in ("add", "mul"):
        for a, b in ((t[1], t[2]), (t[2], t[1])):
            if a[0] == op:
                yield binary(op, a[1], binary(op, a[2], b))
                yield binary(op, a[2], binary(op, a[1], b))
    if op == "add":
        a, b = t[1], t[2]
        if a[0] == b[0] == "mul":
            for x, z in ((a[1], a[2]), (a[2], a[1])):
                for y, w in ((b[1], b[2]), (b[2], b[1])):
                    if z == w:
                        yield binary("mul", binary("add", x, y), z)
        if a[0] == b[0] == "div" and a[2] == b[2]:
            yield ("div", binary("add", a[1], b[1]), a[2])
        if a[0] == b[0] == "sum" and a[1] == b[1]:
            yield ("sum", a[1], binary("add", a[2], b[2]))
    if op == "mul":
        for a, b in ((t[1], t[2]), (t[2], t[1])):
            if a[0] == "add":
                yield binary("add", binary("mul", a[1], b), binary("mul", a[2], b))
            if a[0] == "div":
                yield ("div", binary("mul", a[1], b), a[2])
            if a[0] == "sum":
                yield ("sum", a[1], binary("mul", a[2], b))
    if op == "div":
        a, b = t[1], t[2]
        if a[0] == "add":
            yield binary("add", ("div", a[1], b), ("div", a[2], b))
        if a[0] == "mul":
            yield binary("mul", a[1], ("div", a[2], b))
            yield binary("mul", a[2], ("div", a[1], b))
        if a[0] == "div":
            yield ("div", a[1], binary("mul", a[2], b))
        if a[0] == "sum":
            yield ("sum", a[1], ("div", a[2], b))
        if b[0] == "mul":
            yield ("div", ("div", a, b[1]), b[2])
            yield ("div", ("div", a, b[2]), b[1])
    if op == "sum":
        i, a = t[1], t[2]
        if a[0] == "sum":
            yield ("sum", a[1], ("sum", i, a[2]))
        if a[0] == "add":
            yield binary("add", ("sum", i, a[1]), ("sum", i, a[2]))
        if a[0] == "mul":
            yield binary("mul", ("sum", i, a[1]), a[2])
            yield binary("mul", ("sum", i, a[2]), a[1])
        if a[0] == "div":
            yield ("div", ("sum", i, a[1]), a[2])


def everywhere(t: Term) -> Iterator[Term]:
    yield from rewrites(t)
    if t[0] in ("sum", "f"):
        for inner in everywhere(t[-1]):
            yield (*t[:-1], inner)
    elif t[0] != "in":
        for inner in everywhere(t[1]):
            yield binary(t[0], inner, t[2])
        for inner in everywhere(t[2]):
            yield binary(t[0], t[1], inner)


def children(t: Term) -> tuple[Term, ...]:
    return () if t[0] == "in" else (t[-1],) if t[0] in ("sum", "f") else (t[1], t[2])


class TooMany(Exception):
    pass


def equal_terms(t: Term, limit: int = 4000) -> set[Term]:
    seen, stack = {t}, [t]
    while stack:
        for other in everywhere(stack.pop()):
            if other not in seen:
                seen.add(other)
                stack.append(other)
        if len(seen) > limit:
            raise TooMany
    return seen


def subexpressions(t: Term) -> set[Term]:
    """The closure of {t} under A_eq and A_sub."""
    seen: set[Term] = set()
    stack = [t]
    while stack:
        u = stack.pop()
        if u in seen:
            continue
        equal = equal_terms(u)
        seen |= equal
        if len(seen) > 8000:
            raise TooMany
        stack += {c for e in equal for c in children(e)} - seen
    return seen


def form(algebra: Algebra, t: Term) -> int:
    if t[0] == "in":
        return algebra.input(t[1])
    if t[0] == "f":
        return algebra.apply(0, [form(algebra, t[1])])
    if t[0] == "sum":
        return algebra.sum(t[1], form(algebra, t[2]))
    return getattr(algebra, t[0])(form(algebra, t[1]), form(algebra, t[2]))


def cases(seed: int, count: int, size: int) -> Iterator[tuple[random.Random, Term, set[Term]]]:
    rng = random.Random(seed)
    while count:
        target = random_term(rng, rng.randrange(2, size + 1))
        try:
            closure = subexpressions(target)
        except TooMany:
            continue
        count -= 1
        yield rng, target, closure


def test_equal_terms_have_one_normal_form_and_others_another():
    compared = 0
    for rng, target, closure in cases(1, 90, 8):
        algebra = Algebra()
        equal = equal_terms(target)
        wanted = form(algebra, target)
        assert {form(algebra, t) for t in equal} == {wanted}
        others = [t for t in closure if t not in equal] + [random_term(rng, 6) for _ in range(20)]
        for other in others[:200]:
            assert (form(algebra, other) == wanted) == (other in equal), (target, other)
            compared += 1
    assert compared > 2000


def test_the_subexpression_test_is_the_closure_under_the_axioms():
    yes = no = 0
    for rng, target, closure in cases(2, 120, 8):
        algebra = Algebra()
        whole = form(algebra, target)
        for part in sorted(closure, key=repr)[:150]:
            assert algebra.subexpression(form(algebra, part), whole), (target, part)
            yes += 1
        # Random terms, and near misses: a part of the target with one operator more.
        parts = sorted(closure, key=repr)
        queries = [random_term(rng, rng.randrange(1, 6)) for _ in range(30)]
        queries += [
            binary(rng.choice(["add", "mul", "div"]), rng.choice(parts), rng.choice(parts)) for _ in range(30)
        ]
        queries += [("sum", rng.randrange(2), rng.choice(parts)) for _ in range(10)]
        for query in queries:
            expected = query in closure
            assert algebra.subexpression(form(algebra, query), whole) == expected, (target, query)
            no += not expected
    assert yes > 1000
    assert no > 3000


def test_what_z3_proves_the_normal_form_affirms():
    pytest.importorskip("z3")
    from superopt.transforms.mugraph_search.smt import Solver

    def told(t: Term) -> Any:
        if t[0] == "in":
            return ("input", t[1], [], ())
        if t[0] == "f":
            return ("unary", 0, [], (told(t[1]),))
        if t[0] == "sum":
            return ("sum", 0, [t[1]], (told(t[2]),))
        return (t[0], 0, [], (told(t[1]), told(t[2])))

    solver = Solver(resource_limit=150_000)
    proved = affirmed = 0
    for rng, target, closure in cases(3, 12, 6):
        algebra = Algebra()
        whole = form(algebra, target)
        for part in [*sorted(closure, key=repr)[:3], random_term(rng, 3), random_term(rng, 4)]:
            native = algebra.subexpression(form(algebra, part), whole)
            verdict = solver.decide(told(part), (told(target),))
            assert verdict != ("no" if native else "yes"), (target, part)
            affirmed += native
            proved += verdict == "yes"
    assert affirmed > 25
    assert proved >= 0.8 * affirmed


def test_denominators_divide_exactly():
    a = Algebra()
    x, y, z, w = (a.input(i) for i in range(4))
    product = a.mul(a.add(x, y), a.add(z, w))
    whole = a.div(x, product)
    assert a.subexpression(a.div(x, a.add(x, y)), whole)
    assert a.subexpression(a.div(x, a.add(z, w)), whole)
    assert not a.subexpression(a.div(x, a.add(x, z)), whole)
    assert not a.subexpression(a.div(y, a.add(x, y)), whole)
