"""Decides whether two programs are equivalent, and with what confidence.

Both programs are evaluated at one random point, exponentials kept formal (`superopt.verify.fields`). Each
output element is then a quotient of two sums of f [h]; the difference of the two programs' elements has the
numerator N = f_1 [h_1] + ... + f_k [h_k], where the f are polynomials over Z_p in the inputs' first components,
the h rational functions over Z_q in the second ones. Evaluation at a point is a homomorphism, so equal programs
give equal values. If N is not zero:

- some f_1 is not zero, and vanishes at a random point with probability at most deg_p / p (Schwartz, Zippel);
- if it does not, N vanishes only where h_1 meets another h_j: at most k deg_q / q.

k counts the terms of N, but only the terms that remain at the point are seen. So fix a bound K in advance: if N
has more than K terms, at a random point more than K remain, unless one of the first K + 1
coefficients vanishes or two of their exponents meet, K deg_p / p + K^2 deg_q / q in all. Taking K as a power of
two at least twice what was seen makes the sum over all K that could have been reported less than

    delta = (K deg_p + K^2 deg_q) / q

Denominators are kept as powers of sums, and N is the numerator over the least common one. It divides the
numerator N' over the product of all: N' = N d, where d is made of denominators, which are not zero. So N'
vanishes at the point where N does, and each term of N has factors of a term of N', no others: deg_p and deg_q,
which are those of N', hold for both. Denominators that are equal for all inputs are equal at the point, and
those that meet there by chance make N a divisor of what it is elsewhere, which then vanishes, too. So a test
passes no more often than one that multiplies denominators out. K counts the terms of N, which are fewer.

(Theorem 3 of Mirage, section 5, bounds the test with [h] mapped to w^h by 1 - 1/k only: with k terms it takes
about k ln(1/delta) tests.) Uninterpreted operators add u^2 (K deg_u + K^2 deg_v + 1) / q for u applications below
an output element: two different arguments may meet, with coefficients of degree deg_u and exponents of degree
deg_v, and two random results. (They are told apart by cross multiplication, like outputs.) Independent tests
multiply.

This proves an identity over Z_p, where each constant is the exact rational number. p and q are drawn by the
hash of both texts (`superopt.verify.primes`). If an identity over Z_p fails over the rationals, p divides the
numerator of some coefficient, a rational number that both texts fix: of the 10^14 primes, at most B / 61 divide
one of B bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.aliasing import check_aliases, pairs
from superopt.errors import IllegalProgram, NotEquivalent, SuperoptError
from superopt.program import KernelGraph, NodeKind, opaque_key
from superopt.spec import check_kernel
from superopt.verify.certificate import (
    Certificate,
    Counterexample,
    Extents,
    NormalFormRecord,
    ProgramRecord,
    RelationRecord,
    TestRecord,
)
from superopt.verify.dense import without_dense
from superopt.verify.hashing import canonical_text, parse, program_hash
from superopt.verify.maxima import takes_maxima
from superopt.verify.one_point import (
    LATTICE_WORK,
    RULES_WORK,
    Kind,
    Outcome,
    failure_of,
    outcomes_of,
)
from superopt.verify.opaque import without_opaque
from superopt.verify.pieces import CUT_WORK, Piece, cut, finest_first
from superopt.verify.primes import Primes, drawn
from superopt.verify.reduce import elements, fewer_blocks, ways_to_reduce, work
from superopt.verify.relation import Abstained, difference, equal_sizes
from superopt.verify.symbolic import prove

# Scalar operations up to which the formal test runs at full extents.
FORMAL_WORK = 50_000
# Beyond this at reduced extents (tiles of several sizes that reach past an end keep 20 to 80 elements), pieces
# are tested formally before the whole, which takes long and may have too many exponentials in the end.
PIECES_FIRST = 50_000
# Beyond this, or this many elements of tensors (about a gigabyte), two blocks along each dimension of the grids
# are computed instead of all of them.
BLOCKS_WORK = 1_000_000_000
BLOCKS_ELEMENTS = 60_000_000
# The same for a piece of the programs, where even that takes too long for the whole.
PIECE_WORK = 50_000_000
# Up to this many, tests at full extents take a second at most: a check of a certificate makes them again.
CHEAP_WORK = 100_000_000
MOST_TESTS = 8
REDUCED_NUMBERS = "numbers that a mean divides by were reduced with its extent"


@dataclass(frozen=True)
class Verdict:
    """The answer: a certificate where the programs are equivalent, a counterexample where they are not."""

    equivalent: bool
    certificate: Certificate | None = None
    counterexample: Counterexample | None = None


@dataclass(frozen=True)
class Replay:
    """What is wrong with a certificate: `faults` is empty where it holds.

    `trusted` of its tests were not made again; `bounding` says that its delta is of such tests.
    """

    faults: tuple[str, ...] = ()
    trusted: int = 0
    bounding: bool = False


def certify(a: KernelGraph, b: KernelGraph, *, delta: float = 1e-9, seed: int = 0) -> Verdict:
    """Whether `a` and `b` compute the same outputs, in the same order, from the same inputs.

    Tests continue until different programs would pass with probability at most `delta`, or until the formal
    argument fails (the certificate then says so, with `delta` null). Deterministic for a `seed`.
    """
    cut = without_opaque(a, b)
    if cut and (verdict := _verdict(a, b, cut, delta, seed)).equivalent:
        return verdict
    return _verdict(a, b, (a, b), delta, seed)


def _verdict(
    a: KernelGraph, b: KernelGraph, tested: Sequence[KernelGraph], delta: float, seed: int
) -> Verdict:
    question = _Question(a, b, tested, delta, seed)
    _full_tests([question], seed)
    return question.verdict()


def certify_lowered(
    a: KernelGraph, b: KernelGraph, lowered: KernelGraph, *, delta: float = 1e-9, seed: int = 0
) -> tuple[Verdict, Verdict]:
    """The verdict of `certify(a, b)`, and that on `lowered`, which is equivalent only where it is to both.

    Tests as much as `certify(a, b)` and `certify(b, lowered)`, with three evaluations at full extents instead of
    four: at one point, what equals a equals b.
    """
    cut = without_opaque(a, b, lowered)
    if not cut and without_opaque(a, b):
        return _one_by_one(a, b, lowered, delta, seed)
    tested = cut or [a, b, lowered]
    question = _Question(a, b, tested[:2], delta, seed)
    questions = [question] if question.failure else [question, _Question(b, lowered, tested[1:], delta, seed)]
    _full_tests([q for q in questions if not q.failure], seed)
    first, second = question.verdict(), questions[-1].verdict()
    if cut and not (first.equivalent and second.equivalent):
        return _one_by_one(a, b, lowered, delta, seed)
    return first, second if first.equivalent else first


def _one_by_one(
    a: KernelGraph, b: KernelGraph, lowered: KernelGraph, delta: float, seed: int
) -> tuple[Verdict, Verdict]:
    verdict = certify(a, b, delta=delta, seed=seed)
    return verdict, certify(b, lowered, delta=delta, seed=seed) if verdict.equivalent else verdict


class _Question:
    """Whether two programs are equivalent: the tests made of these two alone, and which are still needed.

    Those are made of `a` and `b`, which are `programs` or what is left of them without opaque operations.
    """

    def __init__(
        self, a: KernelGraph, b: KernelGraph, tested: Sequence[KernelGraph], delta: float, seed: int
    ) -> None:
        self.programs, (self.a, self.b), self.delta, self.seed = (a, b), tested, delta, seed
        self.arbitrary = len(self.a.inputs) - len(a.inputs)
        self.notes: list[str] = []
        self.outcomes: list[Outcome] = []
        self.reduced: tuple[KernelGraph, KernelGraph] | None = None
        self.wants_full = False
        self.agreed = False  # on max and min by sets, at reduced extents
        self.undefined = self.differed = False  # at reduced extents
        self.full_delta = delta
        self.failure: Counterexample | None = None
        texts = canonical_text(a), canonical_text(b)
        self.primes = drawn(*texts)
        if mismatch := _interface(a, b):
            self.failure = Counterexample(reason=mismatch)
        elif texts[0] == texts[1]:
            self.notes.append("the programs are the same")
        else:
            if self.arbitrary:
                self.notes.append("results of opaque operations are inputs, and their operands outputs")
            self._formally()

    def _formally(self) -> None:
        a, b = self.a, self.b
        small = max(work(a), work(b)) <= FORMAL_WORK
        if small:
            self.outcomes = self._formal_tests(a, b, "full")
            self.failure = failure_of(self.outcomes)
        if not small or (not self.failure and all(o.imaged for o in self.outcomes)):
            self._where_reduced()
        self.full_delta = self.delta if not self.outcomes else 1.0

    def _where_reduced(self) -> None:
        """Formal tests at reduced extents; what full ones gave, without a bound, stays where these give none."""
        full, self.outcomes, self.wants_full = self.outcomes, [], True
        notes = list(self.notes)
        self._reduced()
        if not self.differed and (not self.outcomes or any(o.imaged for o in self.outcomes)):
            self._reduced_without_dense()
        if full and all(o.imaged for o in self.outcomes):
            self.outcomes, self.notes, self.wants_full = full, notes, False

    def _reduced(self) -> None:
        """Formal tests at reduced extents, where there are any; only full extents decide what differs there."""
        for numbers, pair in ways_to_reduce(self.a, self.b):
            large = max(map(work, pair)) > PIECES_FIRST
            alike = not large or self._alike(pair)
            outcomes = self._formal_tests(*pair, "reduced") if alike else []
            if not failure_of(outcomes):
                agreed = bool(outcomes) or (alike and (large or self._alike(pair)))
                if agreed or not self.reduced:
                    self.outcomes, self.reduced, self.agreed = outcomes, pair, agreed
                if agreed:
                    if numbers and outcomes:
                        self.notes.append(REDUCED_NUMBERS)
                    return
                continue  # numbers in the programs may belong to the full extents
            self.undefined |= any(o.undefined for o in outcomes)
            self.differed = True
            if not numbers:
                self.notes.append(
                    "reduced extents do not decide: numbers in the programs belong to the full ones"
                )

    def _alike(self, pair: tuple[KernelGraph, KernelGraph]) -> bool:
        """Whether programs with reduced extents agree where exponentials are powers of a random root."""
        rest = self.seed, 0, self.primes, self.arbitrary
        return not failure_of(outcomes_of(pair[0], [pair[1]], "image", "reduced", *rest))

    def _reduced_without_dense(self) -> None:
        """The same for all numbers that dense constants may hold: their extents shrink, too."""
        general = without_dense(self.a, self.b)
        for numbers, pair in ways_to_reduce(general[0], general[1]) if general else ():
            arbitrary = self.arbitrary + len(pair[0].inputs) - len(self.a.inputs)
            outcomes: list[Outcome] = []
            try:
                while not _enough(outcomes, self.delta):
                    number = len(outcomes)
                    outcomes += outcomes_of(
                        pair[0], [pair[1]], "formal", "reduced", self.seed, number, self.primes, arbitrary
                    )
            except OverflowError:
                outcomes = outcomes_of(
                    pair[0], [pair[1]], "image", "reduced", self.seed, 0, self.primes, arbitrary
                )
            if failure_of(outcomes):
                continue
            self.agreed = True
            if all(o.record and o.record.kind == "formal" and not o.imaged for o in outcomes):
                self.outcomes = outcomes
                self.notes.append("at reduced extents dense constants were inputs")
                if numbers:
                    self.notes.append(REDUCED_NUMBERS)
            return

    def _formal_tests(self, a: KernelGraph, b: KernelGraph, extents: Extents) -> list[Outcome]:
        """Tests until they suffice; tests pieces too where there are more exponentials than are kept formal."""
        outcomes: list[Outcome] = []
        several = min(len(a.nodes), len(b.nodes)) > 1
        if several and extents == "reduced" and max(work(a), work(b)) > PIECES_FIRST:
            outcomes = self._formal_pieces(a, b, extents, alike=True)
            if outcomes:
                return outcomes
        try:
            while not _enough(outcomes, self.delta):
                number = len(outcomes)
                outcomes += outcomes_of(
                    a, [b], "formal", extents, self.seed, number, self.primes, self.arbitrary
                )
        except OverflowError:
            self.notes.append(f"at {extents} extents there are too many exponentials to keep them formal")
            outcomes = []
        if not outcomes or (any(o.imaged for o in outcomes) and not failure_of(outcomes)):
            outcomes += self._formal_pieces(a, b, extents, alike=not outcomes)
        return outcomes

    def _formal_pieces(
        self, a: KernelGraph, b: KernelGraph, extents: Extents, *, alike: bool
    ) -> list[Outcome]:
        """Formal tests of all pieces, with `alike` of those of one text, too; empty where they would not help."""
        found = _cut(a, b, (a, b), self.seed, self.primes, alike=alike)
        parts = [p for p in found if not p.alike]
        try:
            made = self._tests_of_pieces([([p.first, p.second], extents) for p in parts], "formal")
        except OverflowError:
            return []
        if not made or any(o.imaged for o in made) or not self._defined(found):
            return []
        self.notes.append(f"at {extents} extents there is a bound for each of {len(parts)} pieces")
        return made

    def in_pieces(self) -> bool:
        """Whether tests of all pieces passed, tried where the whole would take long: if so, nothing else is
        needed.

        Pieces with the same text may be undefined, and are tested where the whole was not compared at reduced
        extents, where that shows up.
        """
        most = max(map(work, _affordable([self.a, self.b], BLOCKS_WORK)[0]))
        pairs = [self.reduced] if self.reduced else []
        one = min(len(self.a.nodes), len(self.b.nodes)) == 1  # a piece would be the whole
        if (one or most <= BLOCKS_WORK) and not any(map(takes_maxima, (self.a, self.b))):
            self.agreed = True  # on none: no order picks anything
            return False
        if not pairs and most > LATTICE_WORK:
            pairs = self._agreed_when_reduced()
        if most <= BLOCKS_WORK or self.undefined:
            return False
        compared = bool(self.outcomes) or self.agreed
        cuts = [_cut(self.a, self.b, small, self.seed, self.primes, alike=not compared) for small in pairs]
        for found in finest_first(cuts):
            parts = [p for p in found if not p.alike]
            whole, self.agreed = self.agreed, self.agreed or all(map(self._agrees_when_reduced, parts))
            made = self._tests_of_pieces(
                [_affordable([p.first, p.second], PIECE_WORK) for p in parts], "image"
            )
            if made and self._defined(found):
                self.outcomes += made
                self.notes.append(f"at full extents the programs were compared in {len(parts)} pieces")
                return True
            self.agreed = whole
        return False

    def _agreed_when_reduced(self) -> list[tuple[KernelGraph, KernelGraph]]:
        """Programs that are too large for formal tests when reduced, compared there with max and min by sets.

        Of several ways to reduce them the one in which they agree, else all: networks have too many numbers for
        sets, and exponentials of what exponentials gave; their pieces do not.
        """
        found: list[tuple[KernelGraph, KernelGraph]] = []
        for _, small in ways_to_reduce(self.a, self.b, CUT_WORK):
            rest = self.seed, 0, self.primes, self.arbitrary
            made = outcomes_of(small[0], [small[1]], "image", "reduced", *rest)
            self.undefined |= any(o.undefined for o in made)
            if not failure_of(made):
                self.agreed = True
                return [small]
            found.append(small)
        return found

    def _agrees_when_reduced(self, piece: Piece) -> bool:
        """Whether the programs of a piece agree there."""
        for _, small in ways_to_reduce(piece.first, piece.second, CUT_WORK):
            rest = self.seed, 0, self.primes, len(small[0].inputs)
            if not failure_of(outcomes_of(small[0], [small[1]], "image", "reduced", *rest)):
                return True
        return False

    def _defined(self, pieces: Sequence[Piece]) -> bool:
        """Whether those of one text are defined: else they equal nothing."""
        for number, piece in enumerate(p for p in pieces if p.alike):
            (first, *others), extents = _affordable([piece.first, piece.second], PIECE_WORK)
            rest = self.seed, number, self.primes, len(first.inputs), True
            if failure_of(outcomes_of(first, others, "image", extents, *rest)):
                return False
        return True

    def _tests_of_pieces(
        self, parts: Sequence[tuple[list[KernelGraph], Extents]], kind: Kind
    ) -> list[Outcome]:
        """Tests of all pieces until they suffice for each; empty where one differs."""
        made: list[Outcome] = []
        delta = self.delta if kind == "formal" else self.full_delta
        for piece, ((first, second), extents) in enumerate(parts):
            tests: list[Outcome] = []
            while not _enough(tests, delta):
                number = MOST_TESTS * (2 + 2 * piece + (kind == "formal")) + len(tests)
                rest = self.seed, number, self.primes, len(first.inputs), self.agreed
                tests += outcomes_of(first, [second], kind, extents, *rest)
            if failure_of(tests):
                return []
            made += [o.of_piece(piece) for o in tests]
        return made

    def verdict(self) -> Verdict:
        if failure := self.failure or failure_of(self.outcomes):
            return Verdict(False, counterexample=failure)
        related = _related(*self.programs) if self.outcomes else None
        if isinstance(related, Counterexample):
            return Verdict(False, counterexample=related)
        return Verdict(True, _certificate(self, related))


def replay(certificate: Certificate) -> list[str]:
    """What is wrong with a certificate: everything in it is recomputed from the texts of its programs.

    Empty where it holds; raises BadInput where a text is not a program.
    """
    return list(replay_cheap(certificate, most_work=math.inf).faults)


def replay_cheap(certificate: Certificate, *, most_work: float = CHEAP_WORK) -> Replay:
    """The same; tests at full extents of more than `most_work` scalar operations are taken as stated."""
    programs: list[KernelGraph] = []
    for name, record in (("first", certificate.first), ("second", certificate.second)):
        if hashlib.sha256(record.text.encode()).hexdigest() != record.sha256:
            return Replay((f"the text of the {name} program does not have its hash",))
        graph = parse(record.text)
        check_kernel(graph)
        programs.append(graph)
    a, b = programs
    cut = without_opaque(a, b)
    found = _replayed(certificate, a, b, cut, most_work) if cut else None
    return found if found and not found.faults else _replayed(certificate, a, b, (a, b), most_work)


def _replayed(
    stated: Certificate, a: KernelGraph, b: KernelGraph, tested: Sequence[KernelGraph], most_work: float
) -> Replay:
    """The same of the programs without opaque operations, or as they are."""
    question = _Question(a, b, tested, stated.requested_delta, stated.seed)
    trusted: list[TestRecord] = []
    if question.failure:
        return Replay((f"not equivalent: {question.failure}",))
    if question.wants_full and max(map(work, _affordable([question.a, question.b])[0])) > most_work:
        trusted = stated.tests[len(question.outcomes) :]
        if not any(t.kind == "image" and t.extents != "reduced" for t in trusted):
            return Replay(("no test at full extents",))
        assumed = frozenset(stated.uninterpreted)
        question.outcomes += [Outcome(record, None, assumed) for record in trusted]
        # Those tests left notes of their own.
        question.notes += [note for note in stated.notes if note not in question.notes]
    else:
        _full_tests([question], stated.seed)
    verdict = question.verdict()
    if verdict.certificate is None:
        return Replay((f"not equivalent: {verdict.counterexample}",))
    again, said = verdict.certificate.model_dump(), stated.model_dump()
    faults = tuple(f"{k}: stated {said[k]}, found {again[k]}" for k in said if said[k] != again[k])
    bounding = any(t.delta is not None and t.extents == stated.delta_extents for t in trusted)
    return Replay(faults, len(trusted), bounding)


def check_each(before: KernelGraph, after: KernelGraph, where: str) -> None:
    """Raise NotEquivalent, naming the pass `where`, unless it preserved the program's meaning."""
    verdict = certify(before, after)
    if not verdict.equivalent:
        raise NotEquivalent(
            f"expected '{where}' to give an equivalent program, got {verdict.counterexample}", after.location
        )


def _interface(a: KernelGraph, b: KernelGraph) -> str | None:
    for what, x, y in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)):
        if len(x) != len(y):
            return f"expected {len(x)} {what}, got {len(y)}"
        for i, (v, w) in enumerate(zip(x, y, strict=True)):
            if v.type != w.type:
                return f"expected {what[:-1]} {i} of type {v.type}, got {w.type}"
    if pairs(a.aliases) != pairs(b.aliases):
        return f"expected outputs in the memory of arguments {pairs(a.aliases)}, got {pairs(b.aliases)}"
    if not set(b.weights) <= set(a.weights):
        return f"expected weights among arguments {list(a.weights)}, got {list(b.weights)}"
    for graph in (a, b):  # the comparison assumes that no value is overwritten
        try:
            check_aliases(graph)
        except IllegalProgram as error:
            return f"a program is undefined: {error.message}"
    return None


def _cut(
    a: KernelGraph,
    b: KernelGraph,
    reduced: tuple[KernelGraph, KernelGraph],
    seed: int,
    primes: Primes,
    *,
    alike: bool = False,
) -> list[Piece]:
    """The pieces of both, or an empty list."""
    try:
        return cut(a, b, reduced, seed, primes, alike=alike) or []
    except (ZeroDivisionError, MemoryError, SuperoptError):
        return []


def _enough(outcomes: Sequence[Outcome], delta: float) -> bool:
    """Whether to stop: a test failed, no bound can be had, or the bound is reached."""
    bounds = [o.record.delta if o.record else None for o in outcomes]
    if any(o.failure or o.imaged for o in outcomes) or None in bounds or len(outcomes) == MOST_TESTS:
        return True
    return bool(bounds) and math.prod(b for b in bounds if b is not None) <= delta


def _full_tests(questions: Sequence[_Question], seed: int) -> None:
    """Tests of the first program with all sums whole, added to the outcomes of the questions that need them."""
    if not questions:
        return
    a = questions[0].a
    questions = [q for q in questions if q.wants_full and not q.in_pieces()]
    made: dict[int, list[Outcome]] = {id(q): [] for q in questions}
    for number in range(MOST_TESTS):
        open_ = [q for q in questions if not (o := made[id(q)]) or not _enough(o, q.full_delta)]
        if not open_:
            break
        for agreed in {q.agreed for q in open_}:  # one interpretation of max and min for each
            group = [q for q in open_ if q.agreed == agreed]
            programs = [a, *(q.b for q in group)]
            rest = seed, MOST_TESTS + number, questions[0].primes, questions[0].arbitrary, agreed
            found = _with_sums_whole(programs, BLOCKS_WORK, *rest)
            by_rules = any(o.ruled for q in group for o in q.outcomes)
            if by_rules and any(o.failure and not o.undefined for o in found):
                if len(group) > 1:  # the others may not need rules, and so be compared whole
                    for question in open_:
                        _full_tests([question], seed)
                    return
                found = _with_sums_whole(programs, RULES_WORK, *rest)
            for question, outcome in zip(group, found, strict=False):
                made[id(question)].append(outcome)
                question.outcomes.append(outcome)
            if any(o.failure for o in found):
                return


def _with_sums_whole(
    programs: list[KernelGraph],
    limit: int,
    seed: int,
    number: int,
    primes: Primes,
    arbitrary: int,
    agreed: bool,
) -> list[Outcome]:
    """A test of the first program against the others, by two blocks where all would take more than the limit."""
    (left, *others), extents = _affordable(programs, limit)
    return outcomes_of(left, others, "image", extents, seed, number, primes, arbitrary, agreed)


def _affordable(programs: list[KernelGraph], limit: int = BLOCKS_WORK) -> tuple[list[KernelGraph], Extents]:
    """The programs themselves, or their first blocks where all would cost too much and a few cost less."""
    most = max(map(work, programs))
    large = most > limit or max(map(elements, programs)) > BLOCKS_ELEMENTS
    if large and (fewer := fewer_blocks(*programs)) and max(map(work, fewer)) < most:
        return list(fewer), "blocks"
    return programs, "full"


def _related(a: KernelGraph, b: KernelGraph) -> RelationRecord | Counterexample:
    """What the relations of programs that passed all tests say; an element at which they differ."""
    found = difference(a, b)
    if isinstance(found, Abstained):
        return RelationRecord(sizes=[], abstained=found.reason)
    if (place := found.first()) is not None:
        return Counterexample(
            reason="the relations of the programs differ", output=place[0], position=place[1]
        )
    return RelationRecord(sizes=equal_sizes(a, b), abstained=None)


def _certificate(question: _Question, relation: RelationRecord | None) -> Certificate:
    (a, b), outcomes, notes = question.programs, question.outcomes, question.notes
    tests = [o.record for o in outcomes if o.record]
    at, bound = _best_bound(tests, question.delta) if tests else ("full", 0.0)
    if bound is None:
        notes.append(
            "no bound: exponentials were mapped to powers of a random root, max picked by a random order, "
            "or a sum outgrew the formal terms"
        )
    assumed = frozenset[str]().union(*(o.assumed for o in outcomes))
    if question.arbitrary and outcomes:
        assumed |= {opaque_key(n) for n in a.nodes if n.op == NodeKind.EXTERN}
    proof = prove(a, b)
    form = proof and NormalFormRecord(extents=proof.extents, factors=proof.factors, terms=proof.terms)
    return Certificate(
        first=ProgramRecord(sha256=program_hash(a), text=canonical_text(a)),
        second=ProgramRecord(sha256=program_hash(b), text=canonical_text(b)),
        p=question.primes[0], q=question.primes[1], seed=question.seed, requested_delta=question.delta,
        delta=bound, delta_extents=at,
        guarantee="congruence" if assumed or bound is None else "bound",
        uninterpreted=sorted(assumed), tests=tests, normal_form=form, relation=relation,
        notes=notes,
    )  # fmt: skip


def _best_bound(tests: Sequence[TestRecord], delta: float) -> tuple[Extents, float | None]:
    """The bound over the tests at the largest extents where it is at most `delta`, else the smallest bound.

    The bounds of tests of one thing at the same extents multiply. For pieces the largest bound counts, and each
    needs one: the pieces of the reduced programs, or else the others, at the smallest of their extents.
    """
    order: tuple[Extents, ...] = ("full", "blocks", "reduced")
    found: dict[Extents, float] = {}
    for test in tests:
        if test.piece is None and test.delta is not None:
            found[test.extents] = found.get(test.extents, 1.0) * test.delta
    for small in (False, True):
        parts = [t for t in tests if t.piece is not None and (t.extents == "reduced") == small]
        bounds: dict[int | None, float] = {}
        for test in parts:
            if test.delta is not None:
                bounds[test.piece] = bounds.get(test.piece, 1.0) * test.delta
        if parts and len(bounds) == len({t.piece for t in parts}):
            places: list[Extents] = [t.extents for t in parts]
            at = max(places, key=order.index)
            found[at] = min(found.get(at, 1.0), max(bounds.values()))
    ranked: list[Extents] = [extents for extents in order if extents in found]
    if not ranked:
        return "full", None
    for extents in ranked:
        if found[extents] <= delta:
            return extents, found[extents]
    smallest = sorted(ranked, key=lambda extents: found[extents])[0]
    return smallest, found[smallest]
