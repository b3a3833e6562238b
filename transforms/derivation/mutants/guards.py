"""Repairs of a mutant in one kernel: guards on what it loads or stores, or a second pass where it is wrong.

Mutant and source are folded into nests (`fold.py`), whose terms are integer points: where a term of the mutant is
one of the source, and at which positions the two have other terms, are sets, exactly. From them guards are made:

    load guard     the mutant has all terms of the source, and others, which are not loaded
    store guard    the source has no term wherever the two differ: zero is stored there
    second pass    terms of the mutant where it is right, terms of the source elsewhere, in one accumulator

What is garbage is never loaded, or not stored: a guard is at the operands that vary with all that it depends on.
As everywhere, zero times the other factor is taken for zero. Nothing here is trusted: repairs are proved whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superopt.program import KernelGraph
from superopt.quasi_affine import ALWAYS, Condition, Expressions, Guard, Linear, Read
from superopt.transforms.derivation.fold import Folded, Unfoldable, folded
from superopt.verify.relation.region import spent
from superopt.verify.relation.sizes import spelled, spelled_guard

if TYPE_CHECKING:
    import islpy as isl

# Operations of isl for the guards of one mutant, and cases of one guard.
_OPERATIONS, _MOST_CASES = 1_000_000, 64


def guarded(source: KernelGraph, mutant: KernelGraph) -> Iterator[tuple[str, KernelGraph]]:
    """Programs of one nest for the source; none where one of the two is no nest, or where isl gives up."""
    import islpy as isl

    context = isl.Context()
    context.set_max_operations(_OPERATIONS)
    try:
        yield from _Guards(source, mutant, context).repairs()
    except Unfoldable:
        return
    except isl.Error:
        if not spent(context):
            raise


class _Guards:
    """The terms of both nests as maps from their points to positions of the result and indices of the inputs."""

    def __init__(self, source: KernelGraph, mutant: KernelGraph, context: isl.Context) -> None:
        self.source, self.context = source, context
        self.nests = [folded(mutant), folded(source)]
        self.shapes = [v.shape for v in source.inputs]
        wanted = self.numbers(self.nests[1])
        if self.numbers(self.nests[0]) != wanted or len({*wanted}) < len(wanted):
            raise Unfoldable("expected products of the same inputs, each once")
        self.terms = [self.term(nest) for nest in self.nests]
        self.free = [self.points(nest) for nest in self.nests]

    def numbers(self, nest: Folded) -> list[int]:
        (term,) = nest.terms
        return sorted(n for n, _ in term)

    def points(self, nest: Folded, *conditions: str) -> isl.Set:
        """The points of a nest that read within all inputs, where more holds."""
        import islpy as isl

        names = [f"d{d}" for d in range(len(nest.extents))]
        held = [f"0 <= {d} < {e}" for d, e in zip(names, nest.extents, strict=True)]
        for number, read in nest.terms[0]:
            for x, extent in zip(read.index, self.shapes[number], strict=True):
                held.append(f"0 <= {spelled(read, x)} < {extent}")
        text = f"{{ [{', '.join(names)}] : {' and '.join([*held, *conditions])} }}"
        return isl.Set.read_from_str(self.context, text)

    def term(self, nest: Folded) -> isl.Map:
        """From the points that have a term to its position, and its indices in order of the inputs."""
        import islpy as isl

        reads = sorted(nest.terms[0], key=lambda pair: pair[0])
        guards = [f"({spelled_guard(read)})" for _, read in reads]
        domain = self.points(nest, *guards, f"({spelled_guard(nest.where)})")
        names = [f"d{d}" for d in range(len(nest.extents))]
        images = names[: nest.rank] + [spelled(read, x) for _, read in reads for x in read.index]
        text = f"{{ [{', '.join(names)}] -> [{', '.join(images)}] }}"
        return isl.Map.read_from_str(self.context, text).intersect_domain(domain)

    def repairs(self) -> Iterator[tuple[str, KernelGraph]]:
        (mutant, source), rank = self.nests, self.nests[0].rank
        if not all(term.is_injective() for term in self.terms):
            return
        made, wanted = (term.range() for term in self.terms)
        places = [self.positions(made.subtract(wanted)), self.positions(wanted.subtract(made))]
        wrong = places[0].union(places[1]).coalesce()
        if wrong.is_empty():
            return
        if wanted.is_subset(made):
            kept = self.terms[0].intersect_range(wanted).domain()
            yield "load guard", self.program(replace(mutant, where=_always(mutant), terms=self.cut(0, kept)))
        there = self.positions(wanted)
        box = self.box(source.extents[:rank])
        if there.intersect(wrong).is_empty():
            where = _with(_always(mutant), there.gist(box))
            cut = self.cut(0, self.terms[0].domain())
            yield "store guard", self.program(replace(mutant, where=where, terms=cut))
        elif mutant.extents == source.extents:
            more = len(source.extents) - rank
            right = self.raised(box.subtract(wrong), more)
            terms = (
                *self.cut(0, self.terms[0].domain().intersect(right)),
                *self.cut(1, self.terms[1].domain().intersect(self.raised(wrong, more))),
            )
            yield "second pass", self.program(replace(mutant, where=_always(mutant), terms=terms))

    def program(self, nest: Folded) -> KernelGraph:
        return nest.program(self.source)

    def positions(self, terms: isl.Set) -> isl.Set:
        import islpy as isl

        kind, rank = isl.dim_type.set, self.nests[0].rank
        return terms.project_out(kind, rank, terms.dim(kind) - rank).coalesce()

    def box(self, extents: Sequence[int]) -> isl.Set:
        import islpy as isl

        names = [f"d{d}" for d in range(len(extents))]
        held = " and ".join(f"0 <= {d} < {e}" for d, e in zip(names, extents, strict=True))
        return isl.Set.read_from_str(self.context, f"{{ [{', '.join(names)}] : {held} }}")

    def raised(self, positions: isl.Set, dims: int) -> isl.Set:
        """The points of these positions."""
        import islpy as isl

        return positions.add_dims(isl.dim_type.set, dims)

    def cut(self, number: int, kept: isl.Set) -> tuple[tuple[tuple[int, Read], ...], ...]:
        """The only term of a nest, which reads at the points `kept` alone."""
        (term,) = self.nests[number].terms
        simple = kept.gist(self.free[number]).coalesce()
        plain = [(n, replace(read, guard=ALWAYS)) for n, read in term]
        found = [(n, _with(read, simple)) for n, read in plain]
        needed = set(Read(found[0][1].rank, found[0][1].floors, (), found[0][1].guard).dims)
        vary = [needed <= set(read.dims) for _, read in plain]
        vary = vary if any(vary) else [True] * len(plain)
        return (tuple(g if v else p for p, g, v in zip(plain, found, vary, strict=True)),)


def _always(nest: Folded) -> Read:
    return Read(len(nest.extents))


def _with(read: Read, points: isl.Set) -> Read:
    """The read, guarded by these points."""
    write = Expressions(read.rank)
    write.floors = list(read.floors)
    return write.read(read.index, _guard(points, write))


def _guard(points: isl.Set, write: Expressions) -> Guard:
    """A set as a guard: each of its pieces a case, its existential variables floors."""
    import islpy as isl

    kind, cases = isl.dim_type, list[tuple[Condition, ...]]()
    for piece in points.compute_divs().get_basic_sets():
        rank, space = piece.dim(kind.set), piece.get_local_space()
        known = [write.dim(d) for d in range(rank)]
        for n in range(piece.dim(kind.div)):
            div = space.get_div(n)
            q = div.get_denominator_val()
            of = Linear(_whole(div.get_constant_val() * q))
            for d, x in enumerate(known):
                at = (kind.in_, d) if d < rank else (kind.div, d - rank)
                of = of.plus(x, _whole(div.get_coefficient_val(*at) * q))
            known.append(write.floor(of, _whole(q)))
        case: list[Condition] = []
        for constraint in piece.get_constraints():
            of = Linear(_whole(constraint.get_constant_val()))
            for d, x in enumerate(known):
                at = (kind.set, d) if d < rank else (kind.div, d - rank)
                of = of.plus(x, _whole(constraint.get_coefficient_val(*at)))
            if of.terms or of.constant < 0:  # that a floor is one says nothing
                case.append(Condition(of, bool(constraint.is_equality())))
        cases.append(tuple(case))
    if len(cases) > _MOST_CASES:
        raise Unfoldable(f"expected a guard of at most {_MOST_CASES} cases, got {len(cases)}")
    return tuple(cases)


def _whole(number: isl.Val) -> Any:
    """A number that is an integer."""
    return int(number.to_python())
