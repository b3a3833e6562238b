"""Normal forms: sums of products of indexed atoms, each product summed over its own axes.

    sum over k of  3/2 * x[i,k] * w[k,j] / sqrt(...)[i]

A `Var` runs over one factor of one axis (see `superopt.verify.axes`), whose size is a symbol. A `Form` is a
sum of terms with rational coefficients; a term is a product of atoms with rational exponents, summed over its
bound variables, whose names are canonical: forms that are equal up to these names, and the order of sums and
products, are the same object. An atom is an element of an input, the size of a factor, an exponential of one
term, a sum to a negative power, a maximum over variables, or a function known only to respect equality.

Rules used, all identities of real functions where these are defined: the axioms of a field with sums distributed,
exp(a + b) = exp(a) exp(b), max and min associative, commutative and idempotent, a sum over a variable that its
summand lacks is its size times the summand. Equal forms mean equal functions; the converse is not
claimed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

MOST_TERMS = 200
MOST_ORDERS = 720
# Terms and atoms created in one proof: forms of nested functions grow with every operator above them.
MOST_STEPS = 50_000


class NoNormalForm(Exception):
    """The program, or the size of its form, is beyond this method."""


class Steps:
    """Counts the work of one proof, so that its outcome depends on the programs alone, not on time."""

    left = 0

    @classmethod
    def start(cls) -> None:
        """Begin to count."""
        cls.left = MOST_STEPS

    @classmethod
    def take(cls) -> None:
        """One more step; raises NoNormalForm after too many."""
        cls.left -= 1
        if cls.left < 0:
            raise NoNormalForm(f"more than {MOST_STEPS} steps")


class Var(NamedTuple):
    """A variable over the factor numbered `factor`; `height` is 0 for free ones, the nesting for bound ones.

    Free variables never get the names of bound ones inside, whose heights are smaller.
    """

    factor: int
    height: int
    serial: int


Renaming: TypeAlias = Mapping[Var, Var]


@dataclass(frozen=True)
class Atom:
    """`kind` says what it is: "input", "size", "exp", "sum", "max of", "max over", or a function's name."""

    kind: str
    payload: str = ""
    index: tuple[Var, ...] = ()
    args: tuple[Form, ...] = ()
    bound: tuple[Var, ...] = ()

    @cached_property
    def key(self) -> str:
        """Equal for equal atoms, and ordered."""
        args = ",".join(a.key for a in self.args)
        return f"{self.kind}:{self.payload}{_spell(self.index)}{_spell(self.bound)}({args})"

    @cached_property
    def free(self) -> frozenset[Var]:
        """The variables that it depends on."""
        inside = frozenset[Var]().union(*(a.free for a in self.args))
        return (inside | frozenset(self.index)) - frozenset(self.bound)

    @cached_property
    def height(self) -> int:
        """How deep sums and maxima nest in it."""
        return bool(self.bound) + max((a.height for a in self.args), default=0)


@dataclass(frozen=True)
class Term:
    """A product of atoms with exponents, summed over `bound`."""

    bound: tuple[Var, ...]
    atoms: tuple[tuple[Atom, Fraction], ...]

    @cached_property
    def key(self) -> str:
        """Equal for equal terms, and ordered."""
        return _spell(self.bound) + "*".join(f"{a.key}^{e}" for a, e in self.atoms)

    @cached_property
    def free(self) -> frozenset[Var]:
        """The variables that it depends on."""
        return frozenset[Var]().union(*(a.free for a, _ in self.atoms)) - frozenset(self.bound)

    @cached_property
    def height(self) -> int:
        """How deep sums and maxima nest in it."""
        return bool(self.bound) + max((a.height for a, _ in self.atoms), default=0)


@dataclass(frozen=True)
class Form:
    """A sum of terms with coefficients other than zero, ordered by the terms' keys."""

    terms: tuple[tuple[Term, Fraction], ...]

    @cached_property
    def key(self) -> str:
        """Equal for equal forms."""
        return "+".join(f"{c}*{t.key}" for t, c in self.terms)

    @cached_property
    def free(self) -> frozenset[Var]:
        """The variables that it depends on."""
        return frozenset[Var]().union(*(t.free for t, _ in self.terms))

    @cached_property
    def height(self) -> int:
        """How deep sums and maxima nest in it."""
        return max((t.height for t, _ in self.terms), default=0)


def _spell(variables: Sequence[Var]) -> str:
    return "[" + ",".join(f"{v.factor}.{v.height}.{v.serial}" for v in variables) + "]"


# --- making forms -----------------------------------------------------------------------------------------


def number(value: Fraction | int) -> Form:
    """A constant."""
    return Form(((Term((), ()), Fraction(value)),) if value else ())


def atom(one: Atom, exponent: Fraction | int = 1) -> Form:
    """An atom to a power."""
    return Form(((Term((), ((one, Fraction(exponent)),)), Fraction(1)),))


def total(parts: Iterable[tuple[Term, Fraction]]) -> Form:
    """The sum of terms in any order."""
    found: dict[str, tuple[Term, Fraction]] = {}
    for term, c in parts:
        found[term.key] = (term, found[term.key][1] + c if term.key in found else c)
    kept = [found[key] for key in sorted(found) if found[key][1]]
    if len(kept) > MOST_TERMS:
        raise NoNormalForm(f"more than {MOST_TERMS} terms")
    return Form(tuple(kept))


def add(*forms: Form) -> Form:
    """The sum."""
    return total(t for f in forms for t in f.terms)


def scale(form: Form, by: Fraction | int) -> Form:
    """A multiple."""
    return Form(tuple((t, c * by) for t, c in form.terms)) if by else Form(())


def mul(a: Form, b: Form) -> Form:
    """The product, distributed."""
    if len(a.terms) * len(b.terms) > MOST_TERMS**2:
        raise NoNormalForm("a product of too many terms")
    return add(*(_product(s, t, c * d) for s, c in a.terms for t, d in b.terms))


def _product(s: Term, t: Term, coefficient: Fraction) -> Form:
    first, second = _apart(s), _apart(t)
    return _normal([*first.bound, *second.bound], [*first.atoms, *second.atoms], coefficient)


_serials = itertools.count()


def _new(v: Var) -> Var:
    """A fresh variable like `v`; it is named canonically before it leaves this module."""
    return Var(v.factor, -1, next(_serials))


def _apart(term: Term) -> Term:
    """The term with bound variables of its own."""
    names = {v: _new(v) for v in term.bound}
    return Term(tuple(names.values()), tuple((rename_atom(a, names), e) for a, e in term.atoms))


def bind(form: Form, variables: Sequence[Var], size: Callable[[int], Form]) -> Form:
    """The sum over variables; `size` gives the number of values of one that nothing depends on."""
    out: list[Form] = []
    for term, c in form.terms:
        there = [v for v in variables if v in term.free]
        summed = _normal([*term.bound, *there], list(term.atoms), c)
        for v in variables:
            if v not in term.free:
                summed = mul(summed, size(v.factor))
        out.append(summed)
    return add(*out)


def _normal(bound: Sequence[Var], atoms: Sequence[tuple[Atom, Fraction]], coefficient: Fraction) -> Form:
    """A term in canonical form: powers collected, sums to positive powers multiplied out, variables named."""
    Steps.take()
    powers: dict[str, tuple[Atom, Fraction]] = {}
    for a, e in atoms:
        powers[a.key] = (a, powers[a.key][1] + e if a.key in powers else e)
    kept = [(a, e) for a, e in powers.values() if e]
    for i, (a, e) in enumerate(kept):
        if a.kind == "sum" and e > 0 and e.denominator == 1:
            rest = kept[:i] + kept[i + 1 :]
            if a.free & set(bound):  # its terms belong under the sum
                return add(
                    *(
                        _normal([*bound, *t.bound], [*rest, *t.atoms, (a, e - 1)], c * coefficient)
                        for t, c in ((_apart(t), c) for t, c in a.args[0].terms)
                    )
                )
            return mul(a.args[0], _normal(bound, [*rest, (a, e - 1)], coefficient))
    used = frozenset[Var]().union(*(a.free for a, _ in kept)) if kept else frozenset[Var]()
    if not set(bound) <= used:
        raise NoNormalForm("a summed variable was cancelled")
    height = 1 + max((a.height for a, _ in kept), default=0)

    def renamed(names: Renaming) -> tuple[tuple[Atom, Fraction], ...]:
        return tuple(sorted(((rename_atom(a, names), e) for a, e in kept), key=lambda x: (x[0].key, x[1])))

    names, chosen = _canonical(
        bound, height, renamed, lambda found: "*".join(f"{a.key}^{e}" for a, e in found)
    )
    return Form(((Term(names, chosen), coefficient),)) if coefficient else Form(())


def _canonical(
    bound: Sequence[Var], height: int, renamed: Callable[[Renaming], T], key: Callable[[T], str]
) -> tuple[tuple[Var, ...], T]:
    """The names of bound variables for which `renamed` has the least key.

    The factors distinguish their variables; variables over one factor are tried in every order.
    """
    groups: dict[int, list[Var]] = {}
    for v in bound:
        groups.setdefault(v.factor, []).append(v)
    orders = [list(itertools.permutations(group)) for group in groups.values() if len(group) <= 6]
    count = 1
    for order in orders:
        count *= len(order)
    if len(orders) < len(groups) or count > MOST_ORDERS:
        raise NoNormalForm("too many sums over one axis")
    best: tuple[str, tuple[Var, ...], T] | None = None
    for choice in itertools.product(*orders):
        names = {v: Var(v.factor, height, i) for group in choice for i, v in enumerate(group)}
        found = renamed(names)
        spelled = key(found)
        if best is None or spelled < best[0]:
            best = spelled, tuple(sorted(names.values())), found
    assert best is not None
    return best[1], best[2]


# --- functions --------------------------------------------------------------------------------------------


def inverse(form: Form) -> Form:
    """1 / form, with the factors common to all terms taken out."""
    if not form.terms:
        raise NoNormalForm("a division by zero")
    if len(form.terms) == 1 and not form.terms[0][0].bound:
        ((term, c),) = form.terms
        return _normal((), [(a, -e) for a, e in term.atoms], 1 / c)
    common = _content(form)
    rest = mul(form, _normal((), [(a, -e) for a, e in common], Fraction(1)))
    if len(rest.terms) == 1 and not rest.terms[0][0].bound:
        return _normal((), [*((a, -e) for a, e in common), *((a, -e) for a, e in rest.terms[0][0].atoms)],
                       1 / rest.terms[0][1])  # fmt: skip
    # Independent of names, so that renaming keeps it: the coefficients add up to 1 where they can.
    lead = sum((c for _, c in rest.terms), Fraction(0)) or max(abs(c) for _, c in rest.terms)
    whole = Atom("sum", args=(scale(rest, 1 / lead),))
    return _normal((), [*((a, -e) for a, e in common), (whole, Fraction(-1))], 1 / lead)


def _content(form: Form) -> list[tuple[Atom, Fraction]]:
    """The powers of atoms that every term has as a factor."""
    least: dict[str, tuple[Atom, Fraction]] = {}
    outside = [{a.key: (a, e) for a, e in t.atoms if not a.free & set(t.bound)} for t, _ in form.terms]
    for a, _ in (pair for powers in outside for pair in powers.values()):
        least[a.key] = (a, min(powers[a.key][1] if a.key in powers else Fraction(0) for powers in outside))
    return [(a, e) for a, e in least.values() if e]


def exponential(form: Form) -> Form:
    """exp(form): a product of exponentials of its terms."""
    powers = [(Atom("exp", args=(Form(((t, Fraction(1)),)),)), c) for t, c in form.terms]
    return _normal((), powers, Fraction(1))


def function(name: str, args: Sequence[Form]) -> Form:
    """A function known only to respect equality."""
    return atom(Atom(name, args=tuple(args)))


def join(kind: str, *forms: Form) -> Form:
    """The maximum ("max") or minimum of several forms."""
    flat: dict[str, Form] = {}
    for form in forms:
        inner = _only(form)
        parts = inner.args if inner is not None and inner.kind == f"{kind} of" else (form,)
        flat |= {p.key: p for p in parts if not _is_infinite(p, "-" if kind == "max" else "+")}
    args = tuple(flat[k] for k in sorted(flat))
    if not args:
        return forms[0]
    return args[0] if len(args) == 1 else atom(Atom(f"{kind} of", args=args))


def join_over(kind: str, form: Form, variables: Sequence[Var]) -> Form:
    """The maximum or minimum over the values of variables; a form that does not depend on one is its own."""
    inside, bound = form, [v for v in variables if v in form.free]
    if not bound:
        return form
    inner = _only(form)
    if inner is not None and inner.kind == f"{kind} over":
        names = {v: _new(v) for v in inner.bound}
        inside, bound = rename(inner.args[0], names), [*bound, *names.values()]
    own, chosen = _canonical(bound, 1 + inside.height, lambda n: rename(inside, n), lambda f: f.key)
    return atom(Atom(f"{kind} over", args=(chosen,), bound=own))


def without(kind: str, form: Form, part: Form) -> Form | None:
    """The rest of a maximum or minimum that joins `part` to others; None where the form is not one."""
    only = _only(form)
    if only is None or only.kind != f"{kind} of" or part not in only.args:
        return None
    return join(kind, *(a for a in only.args if a != part))


def infinity(sign: int) -> Form:
    """An infinity: the neutral element of max or min, allowed nowhere else (`finite`)."""
    return atom(Atom("infinity", payload="+" if sign > 0 else "-"))


def finite(form: Form) -> Form:
    """The form, unless it contains an infinity, which must not cancel like a number."""
    if any(a.kind == "infinity" for t, _ in form.terms for a, _ in t.atoms):
        raise NoNormalForm("arithmetic on infinities")
    return form


def names_in(form: Form, kind: str) -> set[str]:
    """The payloads of all atoms of a kind that a form depends on."""
    found: set[str] = set()
    waiting: list[Form] = [form]
    while waiting:
        for term, _ in waiting.pop().terms:
            for one, _ in term.atoms:
                found |= {one.payload} if one.kind == kind else set()
                waiting += one.args
    return found


def _is_infinite(form: Form, sign: str) -> bool:
    inner = _only(form)
    return inner is not None and inner.kind == "infinity" and inner.payload == sign


def _only(form: Form) -> Atom | None:
    """The atom that the form is, if it is one."""
    if len(form.terms) == 1 and form.terms[0][1] == 1:
        term = form.terms[0][0]
        if not term.bound and len(term.atoms) == 1 and term.atoms[0][1] == 1:
            return term.atoms[0][0]
    return None


# --- renaming ---------------------------------------------------------------------------------------------


def rename(form: Form, names: Renaming) -> Form:
    """The form with free variables renamed, in canonical form again."""
    if not any(v in form.free for v in names):
        return form
    return add(*(_rename_term(t, c, names) for t, c in form.terms))


def _rename_term(term: Term, coefficient: Fraction, names: Renaming) -> Form:
    own = {v: _new(v) for v in term.bound}
    names = {**names, **own}  # at once: new variables are no one's names, and bound ones hide free ones
    return _normal(tuple(own.values()), [(rename_atom(a, names), e) for a, e in term.atoms], coefficient)


def rename_atom(one: Atom, names: Renaming) -> Atom:
    """The atom with free variables renamed; the heights of bound ones differ from those of all new names."""
    if not any(v in one.free for v in names):
        return one
    Steps.take()
    index = tuple(names.get(v, v) for v in one.index)
    if not one.bound:
        args = tuple(rename(a, names) for a in one.args)
        if one.kind in ("max of", "min of"):
            args = tuple(sorted(args, key=lambda a: a.key))
        return Atom(one.kind, one.payload, index, args)
    own = {v: _new(v) for v in one.bound}
    inside = rename(one.args[0], {**names, **own})
    bound, chosen = _canonical(
        list(own.values()), 1 + inside.height, lambda n: rename(inside, n), lambda f: f.key
    )
    return Atom(one.kind, one.payload, index, (chosen,), bound)
