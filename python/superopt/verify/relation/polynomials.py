"""Polynomials in the elements of inputs, one for each point of a space, as integer relations.

A value of a multilinear program is, at each position, a sum of products of input elements. A `Polynomial`
holds all of them at once: for each list of inputs and each coefficient, the relation {position -> indices in
these inputs} whose pairs are the monomials with that coefficient. No monomial of a position occurs twice, neither
in one relation nor under two coefficients. So equal polynomials have equal relations; and polynomials over the
rationals that differ are different functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import islpy as isl

Monomials: TypeAlias = "dict[Fraction, isl.Map]"
# By the numbers of the inputs whose elements are multiplied, in ascending order: an input twice is there twice.
Polynomial: TypeAlias = "dict[tuple[int, ...], Monomials]"


# Terms that a sum may be written out as.
MOST_UNROLLED = 64


class Abstains(Exception):
    """The argument does not hold, or takes too long; the message says why."""


def put(into: Monomials, coefficient: Fraction, relation: isl.Map) -> None:
    """Add monomials that `into` has under no coefficient."""
    if coefficient and not relation.is_empty():
        into[coefficient] = into[coefficient].union(relation) if coefficient in into else relation


def join(into: Monomials, coefficient: Fraction, relation: isl.Map) -> None:
    """Add monomials; coefficients of those that are there already add up."""
    for known in list(into):
        if (there := into.get(known)) is None or (both := there.intersect(relation)).is_empty():
            continue
        into[known] = there.subtract(both)
        if into[known].is_empty():
            del into[known]
        relation = relation.subtract(both)
        put(into, known + coefficient, both)
    put(into, coefficient, relation)


def parts(p: Polynomial) -> Iterator[tuple[tuple[int, ...], Fraction, isl.Map]]:
    """Its relations, each with its inputs and its coefficient."""
    return ((inputs, c, m) for inputs, found in p.items() for c, m in found.items())


def total(polynomials: Sequence[Polynomial]) -> Polynomial:
    """Their sum."""
    out: Polynomial = {}
    for p in polynomials:
        for inputs, coefficient, relation in parts(p):
            join(out.setdefault(inputs, {}), coefficient, relation)
    return out


def scaled(p: Polynomial, factor: Fraction) -> Polynomial:
    """Every coefficient times a number that is not 0."""
    return {inputs: {c * factor: m for c, m in found.items()} for inputs, found in p.items()}


def pulled(p: Polynomial, along: isl.Map) -> Polynomial:
    """`p` at the position that a single-valued map gives for each point; 0 where it gives none or one outside."""
    return {
        inputs: {c: there for c, m in found.items() if not (there := along.apply_range(m)).is_empty()}
        for inputs, found in p.items()
    }


def summed(p: Polynomial, result: isl.Map, sums: Mapping[int, int]) -> Polynomial:
    """The sum over all points that `result` maps to one position: `sums` are the dimensions that it lacks, with
    their extents.

    Where two such points have the same monomial, the shortest of these dimensions is written out, so that
    coefficients add up. Raises Abstains where that takes more than `MOST_UNROLLED` terms.
    """
    out: Polynomial = {}
    for inputs, c, m in parts(p):
        into = out.setdefault(inputs, {})
        for part in _injective(result, m, sorted(sums, key=sums.__getitem__), sums, MOST_UNROLLED):
            join(into, c, part)
    return out


def _injective(
    result: isl.Map, m: isl.Map, dims: Sequence[int], sums: Mapping[int, int], most: int
) -> list[isl.Map]:
    """Relations that add up to the sum of one: in each, a position and a monomial tell the point."""
    if result.flat_range_product(m).is_injective():
        return [m.apply_domain(result)]
    if not dims or (most := most // sums[dims[0]]) < 1:
        raise Abstains("a sum adds one product too many times")
    fixed = [m.fix_input_si(dims[0], n) for n in range(sums[dims[0]])]
    return [x for f in fixed for x in _injective(result, f, dims[1:], sums, most)]


def product(p: Polynomial, q: Polynomial, ranks: Sequence[int]) -> Polynomial:
    """The product at each point; `ranks` are those of the inputs."""
    out: Polynomial = {}
    for a, c, m in parts(p):
        for b, d, n in parts(q):
            inputs = (*a, *b)
            order = sorted(range(len(inputs)), key=lambda i: inputs[i])
            both = m.flat_range_product(n)
            if order != list(range(len(inputs))):
                both = both.apply_range(_blocks(both, [ranks[i] for i in inputs], order))
            inputs = tuple(inputs[i] for i in order)
            for e, relation in _ordered({c * d: both}, inputs, ranks).items():
                join(out.setdefault(inputs, {}), e, relation)
    return out


def _ordered(found: Monomials, inputs: Sequence[int], ranks: Sequence[int]) -> Monomials:
    """Factors of one input in lexicographic order, as products commute: bubble sort."""
    sizes = [ranks[i] for i in inputs]
    for end in range(len(inputs) - 1, 0, -1):
        for i in range(end):
            if inputs[i] != inputs[i + 1]:
                continue
            turned: Monomials = {}
            order = [*range(i), i + 1, i, *range(i + 2, len(inputs))]
            for c, m in found.items():
                swap, later = _blocks(m, sizes, order), _later(m, sum(sizes[:i]), sizes[i])
                join(turned, c, m.subtract_range(later))
                join(turned, c, m.intersect_range(later).apply_range(swap))
            found = turned
    return found


def _blocks(m: isl.Map, sizes: Sequence[int], order: Sequence[int]) -> isl.Map:
    """The map on the range of `m` that brings blocks of dimensions into an order."""
    import islpy as isl

    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    names = [f"i{starts[b] + k}" for b in order for k in range(sizes[b])]
    text = f"{{ [{', '.join(f'i{k}' for k in range(sum(sizes)))}] -> [{', '.join(names)}] }}"
    return isl.Map.read_from_str(m.get_ctx(), text)


def _later(m: isl.Map, start: int, rank: int) -> isl.Set:
    """Where the block of `rank` dimensions from `start` on is lexicographically after the next one."""
    import islpy as isl

    x, y = ([f"i{s + k}" for k in range(rank)] for s in (start, start + rank))
    cases = [" and ".join([*(f"{x[j]} = {y[j]}" for j in range(k)), f"{x[k]} > {y[k]}"]) for k in range(rank)]
    names = ", ".join(f"i{k}" for k in range(m.dim(isl.dim_type.out)))
    return isl.Set.read_from_str(m.get_ctx(), f"{{ [{names}] : {' or '.join(cases) or 'false'} }}")


def differing(p: Polynomial, q: Polynomial, nowhere: isl.Set) -> isl.Set:
    """The positions at which two polynomials differ; `nowhere` is the empty set of positions."""
    found = nowhere
    for inputs in {**p, **q}:
        left, right = p.get(inputs, {}), q.get(inputs, {})
        for c in {**left, **right}:
            found = found.union(_unlike(left, right, c))
    return found.coalesce()


def _unlike(left: Mapping[Fraction, isl.Map], right: Mapping[Fraction, isl.Map], c: Fraction) -> isl.Set:
    x, y = left.get(c), right.get(c)
    if x is None or y is None:
        one = x if x is not None else y
        assert one is not None
        return one.domain()
    if x.plain_is_equal(y):
        return x.domain().subtract(x.domain())
    return x.subtract(y).domain().union(y.subtract(x).domain())
