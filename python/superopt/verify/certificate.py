"""The record of a proof: what was compared, how, with which seeds, and how reliable the result is."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Extents = Literal["full", "blocks", "reduced"]
"""The sizes at which programs were compared: their own; two blocks along each dimension of the grids, with loops,
tiles and sums whole; or two iterations of every grid, loop and tile."""

_SPOKEN: dict[Extents, str] = {
    "full": "full extents", "blocks": "full extents of two blocks a grid dimension", "reduced": "reduced extents",
}  # fmt: skip


class Record(BaseModel):
    """Base of the parts: immutable, rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ProgramRecord(Record):
    """A program: its canonical text (`superopt.verify.hashing`) and the text's sha256."""

    sha256: str
    text: str


class TestRecord(Record):
    """One random test that both programs passed.

    kind          "formal": exponentials kept as formal terms; "image": mapped to powers of a random root
    seed          of the inputs, with the numbers of the test and the attempt
    extents       at which the programs were compared
    inputs        shapes of the inputs in this test
    terms         k of the bound; degree_p, degree_q: degrees of coefficients and exponents
    applications  of uninterpreted operators that one output element may depend on
    argument      degree of the coefficients of their arguments; argument_q: of the exponents there
    delta         bound on the probability that different programs pass; null where no bound is proved
    piece         which piece of the programs was tested (`superopt.verify.pieces`), null for whole programs;
                  inputs and bound are then those of the piece
    """

    kind: Literal["formal", "image"]
    seed: tuple[int, int, int]
    extents: Extents
    inputs: list[tuple[int, ...]]
    terms: int
    degree_p: int
    degree_q: int
    applications: int
    argument: int
    argument_q: int
    delta: float | None
    piece: int | None = None


class NormalFormRecord(Record):
    """Both programs have the same normal forms (`superopt.verify.symbolic`): a proof, not a random test.

    extents   "all": for all sizes of the axes' factors that the programs do not fix; "these": for their actual
              sizes
    factors   how many such factors the inputs have
    terms     of the forms of all outputs
    """

    extents: Literal["all", "these"]
    factors: int
    terms: int


class RelationRecord(Record):
    """Both programs are the same polynomials in their inputs (`superopt.verify.relation`): a proof, not a test.

    sizes       dimensions of inputs for all sizes of which it holds, as "input.dimension", tied ones joined
                by " = "; empty where it holds for the actual sizes
    abstained   why relations do not decide; null where they do
    """

    sizes: list[str]
    abstained: str | None

    @property
    def spoken(self) -> str:
        """What it says, in a few words."""
        if self.abstained is not None:
            return f"relation abstained: {self.abstained}"
        return "equal relations for " + (
            f"all sizes of {', '.join(self.sizes)}" if self.sizes else "these sizes"
        )


class Certificate(Record):
    """States that two programs compute the same function over the reals, with the evidence.

    guarantee  "bound": only sums, products, quotients and one exp on a path occur, and different programs pass
               with probability at most `delta`. "congruence": the operators in `uninterpreted` occur too;
               all that is assumed about them is that equal arguments give equal results (about max and min also
               that they are associative, commutative and idempotent). Acceptance is as sound, but more equal
               programs may be refused.
    delta      the bound over all tests at `delta_extents`, null where none holds (see `notes`); 0 where the
               programs are identical. Below full extents it applies to the programs at those extents. The worst
               test of a piece gives the bound for all: programs that differ do so in some piece.

    normal_form  where present, a second proof of the same equality by other means, often at all extents
    relation     where the programs' texts differ: what a third proof says, of multilinear programs

    Programs are compared as functions over a field: casts between dtypes are the identity; the numeric check
    deals with rounding.
    """

    version: Literal[1] = 1
    first: ProgramRecord
    second: ProgramRecord
    p: int
    q: int
    seed: int
    requested_delta: float
    delta: float | None
    delta_extents: Extents
    guarantee: Literal["bound", "congruence"]
    uninterpreted: list[str]
    tests: list[TestRecord]
    normal_form: NormalFormRecord | None = None
    relation: RelationRecord | None = None
    notes: list[str]

    @property
    def same(self) -> bool:
        """Whether they are one program, operator by operator, so that there is nothing to prove."""
        return self.first.sha256 == self.second.sha256

    @property
    def bound(self) -> str:
        """The bound, or that there is none, and at which extents; of one program, that it is one."""
        if self.same:
            return "the same program"
        delta = "no bound" if self.delta is None else f"delta {self.delta:.1e}"
        return f"{delta} at {_SPOKEN[self.delta_extents]}"

    @property
    def summary(self) -> str:
        """A summary in one line."""
        if self.same:
            return "the same program, operator by operator"
        assumed = f" of {', '.join(self.uninterpreted)}" if self.uninterpreted else ""
        tests = ", ".join(f"{t.kind} at {_SPOKEN[t.extents]}" for t in self.tests)
        form = f"; normal form for {self.normal_form.extents} extents" if self.normal_form else ""
        form += f"; {self.relation.spoken}" if self.relation else ""
        return f"{self.guarantee}{assumed}, {self.bound} ({tests}){form}"


class Counterexample(Record):
    """Where two programs differ: the seed of the inputs, output number, element, extents of the test."""

    reason: str
    seed: tuple[int, int, int] | None = None
    output: int | None = None
    position: tuple[int, ...] | None = None
    extents: Extents = "full"
    inputs: list[tuple[int, ...]] | None = None

    def __str__(self) -> str:
        if self.output is None:
            return self.reason
        place = f"output {self.output} at {list(self.position or ())}"
        return f"{self.reason}: {place}, seed {'/'.join(map(str, self.seed or ()))}, {_SPOKEN[self.extents]}"
