"""How the flow chooses: the cheapest candidate that passes every check, of parts or of the whole, or the input."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.trinity import programs
from search_programs import Program

from superopt import cost, pipeline
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.errors import BadOption, NotEquivalent, UnsupportedProgram
from superopt.pipeline import Superoptimize, replay, superoptimize
from superopt.program import KernelGraph, Node, Value
from superopt.run import check, propose
from superopt.run.budget import Budget
from superopt.run.context import Run
from superopt.run.outcome import Outcome
from superopt.run.propose import parts
from superopt.run.settings import UNBOUNDED
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.optimizers import Proposal, Proposals, names
from superopt.transforms.schedule.fit import Scheduled
from superopt.transforms.tile_saturation.optimizer import SaturationOptimizer
from superopt.verify import Verdict
from superopt.verify.certificate import Counterexample

SMALL = programs.Config(hidden=64, heads=2, ffn=128, groups=2, prefix=48)


def run(graph: KernelGraph, **settings: Any) -> Outcome:
    return superoptimize(graph, Superoptimize(budget=20, **settings), Diagnostics())


def product(op: str = "relu") -> KernelGraph:
    return read(
        f"""
func.func @f(%x: tensor<16x64xf16>, %w: tensor<64x128xf16>) -> tensor<16x128xf16> {{
  %0 = "kernel.matmul"(%x, %w) : (tensor<16x64xf16>, tensor<64x128xf16>) -> tensor<16x128xf16>
  %1 = "kernel.{op}"(%0) : (tensor<16x128xf16>) -> tensor<16x128xf16>
  return %1 : tensor<16x128xf16>
}}""",
        "f.mlir",
    )


def attention() -> KernelGraph:
    graph = programs.attention(SMALL, "vanilla_safe", safe=True)
    assert any(n.op == "concat" for n in graph.nodes), (
        "expected a program that the muGraph search takes in parts"
    )
    return graph


def test_a_program_in_parts_is_also_saturated_whole() -> None:
    outcome = run(attention())
    report = outcome.report
    assert report.segments > 1
    chosen = [c for c in report.candidates if c.outcome == "chosen"]
    assert chosen[-1].segment is None
    assert report.predicted_seconds == chosen[-1].compiled_seconds
    whole = [c for c in report.candidates if c.segment is None]
    assert chosen[-1].compiled_seconds == min(c.compiled_seconds or c.predicted_seconds for c in whole)


def test_what_is_refused_whole_is_stitched_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = attention()
    refuse_whole(graph, monkeypatch)
    outcome = run(graph, optimizers=("mugraph",))
    (whole,) = [c for c in outcome.report.candidates if c.segment is None]
    assert (whole.optimizer, whole.outcome) == ("segments", "chosen")
    assert outcome.report.improved
    assert "remark: mugraph did not search the whole program: too much" in outcome.report.remarks


def refuse_whole(graph: KernelGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(_: object, given: KernelGraph) -> str:
        return "too much" if given is graph else ""

    monkeypatch.setattr(MugraphOptimizer, "refusal", refusal)


def test_what_the_whole_promises_in_vain_the_parts_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong candidate for the whole, predicted to be the fastest, is refused, and the segments are used."""
    graph = attention()
    refuse_whole(graph, monkeypatch)
    stitched = run(graph, optimizers=("mugraph",))
    assert stitched.report.improved, stitched.report
    whole = found_of([_without_attending(stitched.optimized)])

    def found(_: object, given: KernelGraph, *__: object, **___: object) -> Proposals:
        return whole if given is graph else Proposals()

    monkeypatch.setattr(SaturationOptimizer, "propose", found)
    outcome = run(graph)
    tried = [(c.optimizer, c.outcome) for c in outcome.report.candidates if c.segment is None]
    assert tried == [("saturation", "not equivalent"), ("segments", "chosen")], outcome.report


def test_layers_that_repeat_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Program("layers")
    x = p.input(16, 64, name="x")
    for _ in range(3):
        x = p("relu", p("matmul", x, p.input(64, 64)))
    graph = p.graph(p("exp", x))
    monkeypatch.setattr(propose, "parts", lambda graph: parts(graph, 2))  # pyright: ignore
    refuse_whole(graph, monkeypatch)
    searched: list[list[str]] = []
    search = MugraphOptimizer.propose

    def counted(self: MugraphOptimizer, program: KernelGraph, *args: Any, **named: Any) -> Proposals:
        searched.append([n.op for n in program.nodes])
        return search(self, program, *args, **named)

    monkeypatch.setattr(MugraphOptimizer, "propose", counted)
    outcome = run(graph, optimizers=("mugraph",), against="operators")
    assert sorted(searched) == [["exp"], ["matmul", "relu"]]
    assert outcome.report.segments == 4
    assert "2 segments repeat others and take their results" in outcome.report.remarks
    made = [n for n in outcome.optimized.nodes if n.op == "custom"]
    assert len(made) == 4
    assert len({id(n.body) for n in made}) == 4


def _without_attending(graph: KernelGraph) -> KernelGraph:
    """`graph`, but its first output is its first input."""
    x, output = graph.inputs[0], graph.outputs[0]
    assert x.type == output.type
    copy = Value(output.type)
    needed = set(graph.outputs[1:])
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.results):
            needed.update(node.operands)
    nodes = [n for n in graph.nodes if not needed.isdisjoint(n.results)]
    nodes.append(Node("reshape", (x,), (copy,), {"shape": output.shape}))
    return KernelGraph(graph.name, graph.inputs, nodes, [copy, *graph.outputs[1:]])


@pytest.mark.parametrize("other", ["exp", None], ids=["a wrong candidate", "no candidate"])
def test_the_input_is_returned_where_nothing_passes(
    other: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = product("relu")
    fused = search_plans(product(other), cost.target("sm_90"), budget=5).graphs if other else []
    for optimizer in (MugraphOptimizer, SaturationOptimizer):
        monkeypatch.setattr(optimizer, "propose", _constant(found_of(fused[:1])))
    outcome = run(graph)
    assert outcome.optimized is graph
    assert not outcome.report.improved
    assert outcome.report.funnel.rejected == ({"not equivalent": 2} if other else {})


def test_a_replay_of_an_unchanged_program_improved_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = product("relu")
    for optimizer in (MugraphOptimizer, SaturationOptimizer):
        monkeypatch.setattr(optimizer, "propose", _constant(Proposals()))
    again = replay(graph, run(graph).schedule, Diagnostics())
    assert not again.report.improved


def test_one_remark_for_each_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each part; it is where the first of them is."""
    p = Program("parts")
    x = p.input(64, 64, name="x")
    for op in ("exp", "relu", "square", "tanh", "relu", "exp", "relu"):
        x = p(op, x)
    graph = p.graph(x)
    monkeypatch.setattr(propose, "parts", lambda graph: parts(graph, 2))  # pyright: ignore
    diagnostics = Diagnostics()
    superoptimize(graph, Superoptimize(budget=1e-9, store=None, numerics=False), diagnostics)
    said = [m.message for m in diagnostics.messages if "did not search" in m.message]
    assert len(said) == len(names())
    assert all(
        re.search(r"did not search the segment at 'exp' and [2-9] other parts: the budget is spent", m)
        for m in said
    )


def test_a_spent_budget_is_told() -> None:
    remarks = superoptimize(
        product("relu"), Superoptimize(budget=1e-9, store=None, numerics=False), Diagnostics()
    ).report.remarks
    *others, last = remarks
    searches = [r for r in others if "did not search" in r]
    assert len(searches) == len(names())
    assert all(r.endswith("did not search the whole program: the budget is spent") for r in searches)
    assert last == f"warning: the budget of 1e-09 s ran out: {len(names())} searches not made"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"budget": float("inf")}, "expected a positive budget in seconds, got inf"),
        ({"seed": 2**31}, "expected a seed of at most 2147483647, got 2147483648"),
    ],
)
def test_what_reports_or_searches_could_not_take_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        Superoptimize(**wrong)


def test_the_budget_bounds_the_proofs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best candidate is always tried, the next ones in the time that is left."""
    graph = product("relu")
    wrong = search_plans(product("exp"), cost.target("sm_90"), budget=5).graphs[:1]
    right = search_plans(graph, cost.target("sm_90"), budget=5).graphs[:1]
    monkeypatch.setattr(SaturationOptimizer, "propose", _constant(Proposals()))
    order = {id(found): 1e-9 * place for place, found in enumerate([*wrong, *right])}

    def predicted(_: Run, given: KernelGraph) -> float:
        return order.get(id(given), 9.0)

    def price(_: Run, scheduled: Scheduled) -> float:
        return 1e-9 if "exp" in scheduled.emitted.kernels_source else 2e-9

    monkeypatch.setattr(Run, "predicted", predicted)
    monkeypatch.setattr(Run, "price", price)
    for found, left, outcomes in (
        ([*wrong, *right], 60.0, ["not equivalent", "chosen"]),
        ([*wrong, *right], 0.0, ["not equivalent", "not compiled: the budget is spent"]),
        (right, 0.0, ["chosen"]),
    ):
        monkeypatch.setattr(MugraphOptimizer, "propose", _constant(found_of(found)))
        monkeypatch.setattr(Budget, "left", left)
        outcome = run(graph)
        assert [c.outcome for c in outcome.report.candidates] == outcomes
        assert outcome.report.improved == ("chosen" in outcomes)


def test_what_was_found_before_an_interrupt_is_still_used(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = attention()
    refuse_whole(graph, monkeypatch)
    interrupted: list[bool] = []

    @contextmanager
    def interrupts() -> Generator[Callable[[], bool]]:
        yield lambda: bool(interrupted)

    def whole(_: object, given: KernelGraph, *__: object, **___: object) -> Proposals:
        if given is graph:
            interrupted.append(True)  # during the last search
        return Proposals()

    monkeypatch.setattr(pipeline, "first_interrupt_stops", interrupts)
    monkeypatch.setattr(SaturationOptimizer, "propose", whole)
    outcome = run(graph)
    assert any("interrupted" in remark for remark in outcome.report.remarks)
    assert outcome.report.improved
    assert [c.outcome for c in outcome.report.candidates if c.optimizer == "segments"] == ["chosen"]


def test_what_cannot_be_lowered_costs_one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = product("relu")
    real = check.lower

    def refuse(given: KernelGraph, *arguments: Any, **options: Any) -> KernelGraph:
        if given is not graph:
            raise UnsupportedProgram("expected something else")
        return real(given, *arguments, **options)

    monkeypatch.setattr(check, "lower", refuse)
    outcome = run(graph, candidates=2, optimizers=("saturation",))
    assert outcome.optimized is graph
    assert outcome.report.funnel.rejected["cannot be lowered: expected something else"] == 2


def only_a_slow_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are not left for their price."""
    slow = cost.Baseline("a slow library", (cost.KernelCost("all", 1.0, cost.Traffic()),))
    monkeypatch.setattr(cost, "best_baseline", _constant(slow))


def test_what_a_user_has_is_beaten_or_the_operators_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = cost.Baseline("a fast library", (cost.KernelCost("all", 1e-9, cost.Traffic()),))
    monkeypatch.setattr(cost, "best_baseline", _constant(fast))
    kept = run(product(), store=None).report
    assert not kept.improved
    (remark,) = [r for r in kept.remarks if "a fast library" in r]
    assert remark.endswith("us; against=operators takes what beats the operators one by one")
    own = run(product(), store=None, against="operators").report
    assert own.improved
    assert own.predicted_seconds < own.input_predicted_seconds
    assert own.baseline_seconds == 1e-9


def found_of(graphs: list[KernelGraph]) -> Proposals:
    return Proposals([Proposal(g, cost.cost(g, cost.target("sm_90")).seconds) for g in graphs])


def _constant(found: object) -> Callable[..., object]:
    def propose(*_: object, **__: object) -> object:
        return found

    return propose


def test_a_program_that_is_finite_nowhere_is_returned_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    only_a_slow_library(monkeypatch)
    graph = read(
        """
func.func @f(%x: tensor<16x64xf32>) -> tensor<16x64xf32> {
  %0 = "kernel.square"(%x) : (tensor<16x64xf32>) -> tensor<16x64xf32>
  %1 = "kernel.neg"(%0) : (tensor<16x64xf32>) -> tensor<16x64xf32>
  %2 = "kernel.log"(%1) : (tensor<16x64xf32>) -> tensor<16x64xf32>
  return %2 : tensor<16x64xf32>
}""",
        "f.mlir",
    )
    outcome = run(graph)
    assert outcome.optimized is graph
    assert "nothing compared" in outcome.report.numerics
    assert any("nothing compared" in reason for reason in outcome.report.funnel.rejected)


def test_ptx_that_differs_from_its_triton_ir_is_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate on the PTX runs what was compiled: a fault in every candidate's leaves the program as it is."""
    graph = product("relu")
    real, seen = check.checked_ptx, list[KernelGraph]()

    def faulty(records: Any, lowered: KernelGraph, emitted: Any, compiled: Any, **shared: Any) -> Any:
        seen.append(lowered)
        if len(seen) == 1:
            compiled = [replace(k, ptx=k.ptx.replace("bar.sync", "// bar.sync")) for k in compiled]
        return real(records, lowered, emitted, compiled, **shared)

    monkeypatch.setattr(check, "checked_ptx", faulty)
    outcome = run(graph, optimizers=("mugraph",), candidates=1)
    assert outcome.optimized is graph
    assert any("the PTX differs" in reason for reason in outcome.report.funnel.rejected)
    assert isinstance(outcome.artifact, dict)
    assert all(record.ptx_verified for record in outcome.artifact.values())


def test_a_kernel_that_the_compiler_made_wrong_is_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate on the Triton IR decides: a candidate that it refuses leaves the program as it is."""
    only_a_slow_library(monkeypatch)
    graph = product("relu")
    real, seen = check.checked, list[KernelGraph]()

    def refuse_first(original: KernelGraph, lowered: KernelGraph, *rest: Any) -> Any:
        seen.append(lowered)
        if len(seen) == 1:
            raise NotEquivalent("expected another number")
        return real(original, lowered, *rest)

    monkeypatch.setattr(check, "checked", refuse_first)
    outcome = run(graph, optimizers=("mugraph",), candidates=1)
    assert outcome.optimized is graph
    assert outcome.report.funnel.rejected["the compiled kernels differ: expected another number"] == 1
    assert isinstance(outcome.artifact, dict)


def test_a_program_that_no_test_decides_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "max and min of too many numbers to tell them apart, and no test at reduced extents"
    real = check.certify_lowered

    def certified(a: KernelGraph, b: KernelGraph, lowered: KernelGraph, **options: Any) -> Any:
        return real(a, b, lowered, **options)[0], Verdict(False, counterexample=Counterexample(reason=reason))

    monkeypatch.setattr(check, "certify_lowered", certified)
    with pytest.raises(UnsupportedProgram, match=f"got one where: its lowered form is not proved: {reason}"):
        run(product())


@pytest.mark.parametrize("delta", [None, 1e-6])
def test_without_the_bound_asked_for_the_program_is_kept(
    monkeypatch: pytest.MonkeyPatch, delta: float | None
) -> None:
    real = check.certify_lowered

    def certified(a: KernelGraph, b: KernelGraph, lowered: KernelGraph, **options: Any) -> Any:
        verdict, kept = real(a, b, lowered, **options)
        if a is b or verdict.certificate is None:
            return verdict, kept
        weak = verdict.certificate.model_copy(update={"delta": delta, "guarantee": "congruence"})
        return replace(verdict, certificate=weak), kept

    monkeypatch.setattr(check, "certify_lowered", certified)
    kept = run(product())
    assert not kept.report.improved
    assert kept.certificate.delta == 0.0
    (remark,) = [r for r in kept.report.remarks if "allow=congruence-without-bound" in r]
    assert remark.startswith(f"the program is kept, though a candidate is {UNBOUNDED}: ")
    assert ("no bound" if delta is None else "delta 1.0e-06") in remark
    allowed = run(product(), allow="congruence-without-bound")
    assert allowed.report.improved
    assert allowed.report.delta == delta
    replayed = replay(product(), allowed.schedule, Diagnostics())
    assert replayed.report.delta == delta
