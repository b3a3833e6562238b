"""The pruning question, answered by z3: is one abstract expression a subexpression of another?

The axioms are those of Mirage (OSDI'25, Table 2): A_eq, equality of abstract expressions, and A_sub, the
subexpression relation. Sums are expressed over factors rather than by their sizes, so `sum(i, sum(j, x))
= sum(i * j, x)` says that sums commute. The native normal form decides the same question exactly; this is an
alternative, slower by three orders of magnitude and incomplete: where z3 gives up, the answer is "may be", so
nothing useful is pruned.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal

# A term from the native search: operation, symbol, reduced factors, operands.
Term = tuple[str, int, list[int], tuple[Any, ...]]

RESOURCE_LIMIT = 100_000
"""z3's own deterministic measure of effort for one question (some 30 ms)."""


def _z3() -> Any:
    import z3

    return z3


@contextmanager
def _signals_later() -> Generator[None]:
    """Defer signals; their handlers run at the end of the context.

    z3's bindings are Python called through ctypes. An exception that a handler raises within them may be lost:
    `__del__`, which releases objects, swallows exceptions, and the conversion of arguments replaces any exception
    by its own. An interrupt would be lost, and the search would go on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread only
        return
    arrived: list[int] = []
    handlers = {n: h for n in signal.valid_signals() if callable(h := signal.getsignal(n))}

    def note(number: int, _frame: object) -> None:
        arrived.append(number)

    for number in handlers:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


class Solver:
    """Answers questions about terms; keeps the solver, its axioms and its symbols."""

    def __init__(self, resource_limit: int = RESOURCE_LIMIT) -> None:
        z3 = _z3()
        self.z3 = z3
        self.sort = z3.DeclareSort("Expression")
        e = self.sort
        self.binary = {op: z3.Function(op, e, e, e) for op in ("add", "mul", "div")}
        self.subexpr = z3.Function("subexpr", e, e, z3.BoolSort())
        self.functions: dict[tuple[Any, ...], Any] = {}
        self.resource_limit = resource_limit
        self.questions = 0
        self.unknown = 0

    def subexpression(self, part: Term, targets: tuple[Term, ...]) -> bool:
        """Whether `part` may be a subexpression of one of `targets`: proved, or undecided."""
        with _signals_later():
            return self.decide(part, targets) != "no"

    def decide(self, part: Term, targets: tuple[Term, ...]) -> Literal["yes", "no", "unknown"]:
        """Whether the axioms entail that `part` is a subexpression of one of `targets`."""
        z3 = self.z3
        self.questions += 1
        e = self.term(part)
        wholes = [self.term(t) for t in targets]
        solver = z3.SolverFor("UF")
        solver.set("rlimit", self.resource_limit)
        solver.set("ctrl_c", False)  # an interrupt is the caller's to see
        solver.add(*self._axioms())
        solver.add(*(z3.Not(self.subexpr(e, whole)) for whole in wholes))
        verdict = solver.check()
        if verdict == z3.unsat:
            return "yes"
        if verdict == z3.sat:
            return "no"
        self.unknown += 1
        return "unknown"

    def equal(self, a: Term, b: Term) -> bool:
        """Whether A_eq proves two terms equal, within the resource limit."""
        z3 = self.z3
        x, y = self.term(a), self.term(b)
        solver = z3.SolverFor("UF")
        solver.set("rlimit", self.resource_limit)
        solver.set("ctrl_c", False)  # an interrupt is the caller's to see
        solver.add(*self._equality(), x != y)
        return solver.check() == z3.unsat

    def term(self, term: Term) -> Any:
        """The term as a z3 expression."""
        kind, symbol, reduced, args = term
        below = [self.term(a) for a in args]
        if kind in self.binary:
            return self.binary[kind](*(below if len(below) == 2 else below * 2))
        if kind == "sub":  # a + (-1) * b
            return self.binary["add"](
                below[0], self.binary["mul"](self._function("minus_one", 0, 0)(), below[-1])
            )
        if kind == "contract":
            below = [self.binary["mul"](below[0], below[-1])]
        if kind in ("sum", "contract"):
            result = below[0]
            for factor in reduced:
                result = self._function("sum", factor, 1)(result)
            return result
        if kind == "reduce":
            result = below[0]
            for factor in reduced:
                result = self._function("reduce", (symbol, factor), 1)(result)
            return result
        return self._function(kind, symbol, len(below))(*below)

    def _function(self, op: str, symbol: Any, arity: int) -> Any:
        key = (op, symbol)
        if key not in self.functions:
            sorts = [self.sort] * (arity + 1)
            self.functions[key] = self.z3.Function(f"{op}_{symbol}", *sorts)
        return self.functions[key]

    def _sums(self) -> list[Any]:
        return [f for (op, _), f in self.functions.items() if op == "sum"]

    def _equality(self) -> list[Any]:
        z3 = self.z3
        x, y, w = z3.Consts("x y w", self.sort)
        add, mul, div = (self.binary[op] for op in ("add", "mul", "div"))
        laws = [
            (add(x, y), add(y, x)),
            (mul(x, y), mul(y, x)),
            (add(x, add(y, w)), add(add(x, y), w)),
            (mul(x, mul(y, w)), mul(mul(x, y), w)),
            (add(mul(x, w), mul(y, w)), mul(add(x, y), w)),
            (add(div(x, w), div(y, w)), div(add(x, y), w)),
            (mul(x, div(y, w)), div(mul(x, y), w)),
            (div(div(x, y), w), div(x, mul(y, w))),
        ]
        sums = self._sums()
        for i, f in enumerate(sums):
            laws += [
                (f(add(x, y)), add(f(x), f(y))),
                (f(mul(x, y)), mul(f(x), y)),
                (f(div(x, y)), div(f(x), y)),
            ]
            laws += [(f(g(x)), g(f(x))) for g in sums[:i]]
        return [z3.ForAll([x, y, w], a == b) for a, b in laws]

    def _axioms(self) -> list[Any]:
        z3 = self.z3
        x, y, w = z3.Consts("x y w", self.sort)
        add, mul, div = (self.binary[op] for op in ("add", "mul", "div"))
        sub = self.subexpr
        facts = [sub(x, add(x, y)), sub(x, mul(x, y)), sub(x, div(x, y)), sub(y, div(x, y)), sub(x, x)]
        for (op, _), f in self.functions.items():
            arity = f.arity()
            if op in ("sum", "reduce", "unary"):
                facts.append(sub(x, f(x)))
            elif arity == 2:
                facts += [sub(x, f(x, y)), sub(y, f(x, y))]
        transitive = z3.ForAll([x, y, w], z3.Implies(z3.And(sub(x, y), sub(y, w)), sub(x, w)))
        return [*self._equality(), *(z3.ForAll([x, y], fact) for fact in facts), transitive]
