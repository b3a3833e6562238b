"""What is priced is what is delivered: candidates are compared, printed and reported by their compiled kernels."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from benchmarks.trinity import programs
from search_programs import (
    Program,
    attention,
    gated_mlp,
    grouped_attention,
    lora,
    matmul_bias_gelu,
    rmsnorm_linear,
    safe_attention,
)
from test_pipeline import SMALL, product

from superopt import cost, pipeline
from superopt.cost.counted import counted
from superopt.diagnostics import Diagnostics
from superopt.driver.emission import summary
from superopt.errors import UnsupportedProgram
from superopt.pipeline import Superoptimize, superoptimize
from superopt.program import BlockGraph, KernelGraph
from superopt.report import TIE
from superopt.run import check, choose, context, outcome, propose
from superopt.run.context import Run
from superopt.run.lost_bits import lost_bits
from superopt.run.propose import Candidate, parts
from superopt.run.reuse import Known
from superopt.transforms.emit.compile import compile_all
from superopt.transforms.mugraph_search.plans import search_plans
from superopt.transforms.optimizers import SEGMENTS, Proposals
from superopt.transforms.schedule.fit import Scheduled

H100 = cost.target("sm_90")
PROGRAMS: dict[str, Callable[[], KernelGraph]] = {
    "product": product,
    "gated MLP": lambda: gated_mlp(8, 128, 256),
    "RMSNorm, linear": lambda: rmsnorm_linear(16, 256, 512),
    "GELU": lambda: matmul_bias_gelu(32, 128, 256),
    "LoRA": lora,
    "attention": attention,
    "safe attention": safe_attention,
    "grouped attention": grouped_attention,
    "attention and cache": lambda: programs.attention(SMALL, "vanilla_safe", safe=True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_printed_is_the_price_of_the_delivered_kernels(name: str) -> None:
    made = superoptimize(PROGRAMS[name](), Superoptimize(budget=10, store=None), Diagnostics())
    report = made.report
    kernels = made.emitted.kernels
    compiled = zip(kernels, compile_all(kernels, ["sm_90"]), strict=True)
    again = [replace(c, counts=counted(k, c)) for k, c in compiled]
    delivered = cost.compiled_seconds(made.lowered, again, H100)
    assert report.predicted_seconds == pytest.approx(delivered, rel=0.01)
    assert sum(k.predicted_seconds for k in report.kernels) == pytest.approx(delivered, rel=0.01)
    assert f"{delivered * 1e6:.1f} us predicted on sm_90" in summary(made)
    chosen = [c for c in report.candidates if c.outcome == "chosen" and c.segment is None]
    assert [c.compiled_seconds for c in chosen] == ([report.predicted_seconds] if report.improved else [])
    assert not report.improved or report.predicted_seconds <= TIE * report.baseline_seconds


def started(graph: KernelGraph, budget: float = 20, least: float = 1.0) -> Run:
    run = context.start(graph, Superoptimize(budget=budget, store=None), Diagnostics())
    return dataclasses.replace(
        run, baseline=cost.Baseline("a library", (cost.KernelCost("all", least, cost.Traffic()),))
    )


def chosen(run: Run, graph: KernelGraph, found: list[KernelGraph]) -> choose.Accepted:
    candidates = [Candidate(g, run.predicted(g), "mugraph") for g in found]
    return choose.choose(run, graph, parts(graph), [candidates])


def prices(monkeypatch: pytest.MonkeyPatch, of_exp: float, of_relu: float) -> None:
    def price(_: Run, scheduled: Scheduled) -> float:
        return of_exp if "exp" in scheduled.emitted.kernels_source else of_relu

    monkeypatch.setattr(Run, "price", price)


def plan(op: str) -> KernelGraph:
    return search_plans(product(op), H100, budget=5).graphs[0]


def test_the_price_after_compilation_decides_what_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """By tiles, a wrong candidate and a right one are alike: the one with cheaper kernels is proved, first."""
    for of_exp, outcomes in (
        (2e-3, ["ranked below the chosen one", "chosen"]),
        (1e-4, ["not equivalent", "chosen"]),
    ):
        prices(monkeypatch, of_exp, 1e-3)
        run = started(product())
        accepted = chosen(run, product(), [plan("exp"), right := plan("relu")])
        assert accepted.graph is right
        assert [c.outcome for c in run.report.candidates] == outcomes
        assert [c.compiled_seconds for c in run.report.candidates] == [of_exp, 1e-3]
        assert len(run.budget.checks) == len({*outcomes} & {"not equivalent", "chosen"})


def test_what_cannot_be_the_cheapest_is_not_even_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    run = started(product())
    prices(monkeypatch, 1e-7, 1e-7)
    accepted = chosen(run, product(), [right := plan("relu"), plan("exp")])
    assert accepted.graph is right
    assert [c.compiled_seconds for c in run.report.candidates] == [1e-7, None]
    assert run.report.funnel.compiled == 1


def test_candidates_like_those_that_failed_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five that promise the same and are wrong, then one that promises less: it is reached after three of them."""
    prices(monkeypatch, 1e-4, 2e-4)
    run = started(product())
    wrong, right = plan("exp"), plan("relu")

    def predicted(_: Run, graph: KernelGraph) -> float:
        return 1.5e-4 if graph is right else 5e-5

    monkeypatch.setattr(Run, "predicted", predicted)
    accepted = chosen(run, product(), [*(copy.deepcopy(wrong) for _ in range(5)), right])
    assert accepted.graph is right
    outcomes = [c.outcome for c in run.report.candidates]
    assert outcomes[:3] == ["not equivalent"] * 3
    assert outcomes[3:5] == ["not compiled: 3 like it failed or cost more than they promised"] * 2
    assert run.report.funnel.compiled == 4


def test_candidates_of_a_kind_that_counts_made_dear_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Proofs count memory accesses, and five times the price of one speaks of the others of its kind."""
    right, *dear = (copy.deepcopy(plan("relu")) for _ in range(4))
    of, proved = dict[int, KernelGraph](), set[int]()

    def through(run: Run, attempt: check.Attempt, gates: Sequence[check.Gate]) -> str:
        outcome = check.passes(run, attempt, gates)
        of[id(attempt.scheduled)] = attempt.candidate
        if gates is check.PROVED:
            proved.add(id(attempt.scheduled))
        return outcome

    def price(_: Run, scheduled: Scheduled) -> float:
        if of[id(scheduled)] is right:
            return 2e-4
        return 5e-4 if id(scheduled) in proved else 1e-4

    monkeypatch.setattr(choose, "passes", through)
    monkeypatch.setattr(Run, "price", price)
    run = started(product(), budget=60)
    found = [*(Candidate(g, 1e-4, "mugraph") for g in dear), Candidate(right, 2e-4, "saturation")]
    assert choose.choose(run, product(), parts(product()), [found]).graph is right
    assert len(run.budget.checks) == 2
    assert [c.outcome.split(":")[0] for c in run.report.candidates] == [
        "ranked below the chosen one", "not tried", "not tried", "chosen",
    ]  # fmt: skip


def test_candidates_of_other_loops_are_not_like_those_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All promise the same: what three of one kind cost is no reason to leave out another kind."""
    prices(monkeypatch, 1e-4, 2e-4)
    run = started(product())
    wrong = plan("exp")
    plans = search_plans(product("relu"), H100, budget=5).graphs
    right = next(p for p in plans if block_loops(p) != block_loops(wrong))

    def predicted(_run: Run, _graph: KernelGraph) -> float:
        return 5e-5

    monkeypatch.setattr(Run, "predicted", predicted)
    assert chosen(run, product(), [*(copy.deepcopy(wrong) for _ in range(4)), right]).graph is right


def test_what_loses_the_same_bits_as_two_that_were_unsafe_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A norm's weight is multiplied by the rows, or by the columns of the product: of one kind, two are proved."""
    program = rmsnorm_linear(16, 256, 512)
    plans = search_plans(program, H100, budget=5).graphs

    def lost(graph: KernelGraph) -> object:
        attempt = check.Attempt(program, graph)
        assert not check.lowered(started(program), attempt)
        assert attempt.lowered is not None
        return lost_bits(attempt.lowered)

    kinds = {lost(p): p for p in plans if len(p.nodes) == 1}
    (wrong, bad), (_, good), *_ = kinds.items()
    prices(monkeypatch, 1e-6, 1e-6)

    def refuse(run: Run, attempt: check.Attempt, gates: Sequence[check.Gate]) -> str:
        if gates is check.PROVED and attempt.lowered is not None and lost_bits(attempt.lowered) == wrong:
            return f"{check.UNSAFE}: error 4"
        return check.passes(run, attempt, gates)

    monkeypatch.setattr(choose, "passes", refuse)
    run = started(program, budget=60)
    # They differ in what they promise, or they would count as alike and not even be compiled.
    tried = [Candidate(copy.deepcopy(bad), s, "mugraph") for s in (1e-7, 2e-7, 3e-7, 2e-6, 3e-6)]
    found = [*tried, Candidate(good, 4e-6, "mugraph")]
    assert choose.choose(run, program, parts(program), [found]).graph is good
    outcomes = [c.outcome for c in run.report.candidates]
    assert outcomes[:2] == [f"{check.UNSAFE}: error 4"] * 2
    same = "2 that round and sum the same were numerically unsafe"
    assert outcomes[2:] == [f"not tried: {same}", *[f"not compiled: {same}"] * 2, "chosen"]


def test_what_is_unsafe_on_tiny_inputs_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what loses the same bits, those are tried until one passes, or two do not."""
    program = rmsnorm_linear(16, 256, 512)
    plans = [p for p in search_plans(program, H100, budget=5).graphs if len(p.nodes) == 1]
    tried: list[tuple[Sequence[check.Gate], object]] = []

    def lost(graph: KernelGraph) -> object:
        attempt = check.Attempt(program, graph)
        assert not check.lowered(started(program), attempt)
        assert attempt.lowered is not None
        return lost_bits(attempt.lowered)

    (wrong, bad), (right, good), *_ = {lost(p): p for p in plans}.items()
    prices(monkeypatch, 1e-6, 1e-6)

    def refuse(run: Run, attempt: check.Attempt, gates: Sequence[check.Gate]) -> str:
        if gates is check.LOWERED:
            return check.passes(run, attempt, gates)
        assert attempt.lowered is not None
        tried.append((gates, lost_bits(attempt.lowered)))
        if gates is check.DRAFTED:
            return f"{check.UNSAFE}: error 4" if tried[-1][1] == wrong else ""
        return (
            "not equivalent"
            if gates is check.PROVED and len(tried) < 6
            else check.passes(run, attempt, gates)
        )

    monkeypatch.setattr(choose, "passes", refuse)
    run = started(program, budget=60)
    found = [(bad, 1e-7), (bad, 2e-7), (bad, 3e-7), (good, 4e-7), (good, 5e-7)]
    candidates = [Candidate(copy.deepcopy(graph), seconds, "mugraph") for graph, seconds in found]
    accepted = choose.choose(run, program, parts(program), [candidates])
    assert accepted.graph is candidates[3].graph
    drafted, built = ([bits for gates, bits in tried if gates is g] for g in (check.DRAFTED, check.BUILT))
    assert drafted == [wrong, wrong, right]
    assert built == [right, right]
    unsafe = f"{check.UNSAFE}: error 4"
    same = "not compiled: 2 that round and sum the same were numerically unsafe"
    outcomes = [c.outcome for c in run.report.candidates]
    assert outcomes == [unsafe, unsafe, same, "chosen", "ranked below the chosen one"]


def test_a_draft_is_as_exact_as_the_program_on_tiny_inputs() -> None:
    """What is stored as f16 a thousandth as large is right to its last bits, unless it was tiny."""
    original, scaled = Program("f"), Program("f")
    x, w = original.input(16, 64), original.input(64, 128)
    program = original.graph(original("matmul", x, w))
    x, w = scaled.input(16, 64), scaled.input(64, 128)
    less = scaled("mul", x, scaled.constant(2.0**-10))
    candidate = scaled.graph(scaled("mul", scaled("matmul", less, w), scaled.constant(2.0**10)))
    for graph, safe in ((program, True), (candidate, False)):
        run, attempt = started(program), check.Attempt(program, graph)
        assert not check.lowered(run, attempt)
        assert (check.exact_when_tiny(run, attempt) == "") == safe
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(check, "DRAFT_WORK", 1_000)
            assert check.exact_when_tiny(run, attempt) == "", "too large to be tried twice"
        unchecked = dataclasses.replace(run, settings=replace(run.settings, numerics=False))
        assert check.exact_when_tiny(unchecked, attempt) == ""


@pytest.mark.parametrize("factor", [2.0**11, -(2.0**10)])
def test_a_draft_leaves_what_differs_in_fp64_to_the_proof(factor: float) -> None:
    """What loses bits and computes something else, too, is wrong and not unsafe."""
    original, scaled = Program("f"), Program("f")
    x, w = original.input(16, 64), original.input(64, 128)
    program = original.graph(original("matmul", x, w))
    x, w = scaled.input(16, 64), scaled.input(64, 128)
    less = scaled("mul", x, scaled.constant(2.0**-10))
    other = scaled.graph(scaled("mul", scaled("matmul", less, w), scaled.constant(factor)))
    run, attempt = started(program), check.Attempt(program, other)
    assert not check.lowered(run, attempt)
    assert check.passes(run, attempt, check.DRAFTED) == ""
    assert check.passes(run, attempt, (*check.BUILT, check.equivalent)).startswith("not equivalent")


def block_loops(graph: KernelGraph) -> list[object]:
    bodies = (n.body for n in graph.nodes)
    return [(b.grid, b.loops) for b in bodies if isinstance(b, BlockGraph)]


def test_each_optimizer_has_candidates_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    prices(monkeypatch, 1e-4, 2e-4)
    run = context.start(product(), Superoptimize(budget=20, store=None, candidates=1), Diagnostics())
    wrong, right = plan("exp"), plan("relu")
    made = [("mugraph", wrong, 1e-5), ("mugraph", copy.deepcopy(wrong), 2e-5), ("saturation", right, 3e-5)]
    candidates = [Candidate(graph, seconds, optimizer) for optimizer, graph, seconds in made]
    run = dataclasses.replace(run, baseline=started(product()).baseline)
    assert choose.choose(run, product(), parts(product()), [candidates]).graph is right
    assert [c.outcome for c in run.report.candidates] == [
        "not equivalent",
        "not compiled: enough candidates were",
        "chosen",
    ]


def test_nothing_dearer_than_the_input_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that promises to be faster by its tiles, and as compiled is not, leaves the input as it is."""
    graph = product()
    for price, improved in ((3e-4, True), (4.03e-4, True), (4.05e-4, False)):
        prices(monkeypatch, price, price)
        run = started(graph, least=4e-4)
        accepted = chosen(run, graph, [plan("relu")])
        said = [
            m for m in run.diagnostics.messages if m.message.startswith("the input is returned: a library")
        ]
        assert bool(said) != improved
        assert (accepted.graph is not graph) == improved
        assert [c.outcome for c in run.report.candidates] == ["chosen" if improved else choose.NOT_FASTER]


def test_where_the_input_is_returned_a_refused_candidate_is_not_called_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What promised less than the input and was refused is said with the reason, not as what lost to it."""
    prices(monkeypatch, 1e-4, 5e-4)
    run = started(product(), least=4e-4)
    chosen(run, product(), [plan("exp"), plan("relu")])
    assert [c.outcome for c in run.report.candidates] == ["not equivalent", choose.NOT_FASTER]
    (said,) = (m.message for m in run.diagnostics.messages if m.message.startswith("the input is returned"))
    assert said.startswith(
        "the input is returned: a library is predicted to take 400.0 us, and what promises less (100.0 us at best) "
        "was refused: not equivalent; the best other candidate 500.0 us"
    )


def test_a_refusal_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    prices(monkeypatch, 1e-4, 1e-4)
    unsafe = "numerically unsafe: error 4 (2.00 of it) at worst, on 'tiny' inputs"

    def refuse(run: Run, attempt: check.Attempt, gates: Sequence[check.Gate]) -> str:
        return f"{unsafe}; and more" if gates is check.PROVED else check.passes(run, attempt, gates)

    monkeypatch.setattr(choose, "passes", refuse)
    run = started(product(), least=4e-4)
    chosen(run, product(), [plan("relu")])
    (said,) = (m.message for m in run.diagnostics.messages if m.message.startswith("the input is returned"))
    assert said.endswith(f"was refused: {unsafe}")
    run = started(product(), least=4e-4)
    chosen(run, product(), [plan("relu"), plan("relu")])
    (said,) = (m.message for m in run.diagnostics.messages if m.message.startswith("the input is returned"))
    assert said.endswith(f"was refused: numerically unsafe (2); the first: {unsafe}")


def test_what_the_verifier_cannot_express_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection between a logarithm and a number by an unknown sign, say: the run goes on."""

    def certify_lowered(
        original: KernelGraph, candidate: KernelGraph, lowered: KernelGraph, **others: int
    ) -> object:
        if candidate is not original:
            raise UnsupportedProgram("expected numbers that are defined everywhere")
        return check_lowered(original, candidate, lowered, **others)

    check_lowered = check.certify_lowered
    monkeypatch.setattr(check, "certify_lowered", certify_lowered)
    made = superoptimize(rmsnorm_linear(16, 256, 512), Superoptimize(budget=5, store=None), Diagnostics())
    assert not made.report.improved
    assert "not proved to be equivalent: expected numbers" in " ".join(made.report.remarks)


def test_a_budget_that_ran_out_is_said_and_hides_no_check_of_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prices(monkeypatch, 5e-4, 5e-4)
    run = started(product(), budget=1e-6)
    accepted = chosen(run, product(), [right := plan("relu"), plan("exp")])
    assert accepted.graph is right
    assert [c.outcome for c in run.report.candidates] == ["chosen", "not compiled: the budget is spent"]
    assert run.budget.said() == "the budget of 1e-06 s ran out: 1 candidate not compiled"


def test_results_of_segments_together_are_priced_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kernels are compiled: what is left is their price, and the proof of the cheapest."""
    prices(monkeypatch, 3e-4, 2e-4)
    run, (wrong, right) = started(product(), budget=1e-6), (plan("exp"), plan("relu"))

    def predicted(_: Run, graph: KernelGraph) -> float:
        return 1e-4 if graph is wrong else 1.5e-4 if graph is right else 1.0

    monkeypatch.setattr(Run, "predicted", predicted)
    found = [Candidate(wrong, 1e-4, "mugraph"), Candidate(right, 1.5e-4, SEGMENTS)]
    assert choose.choose(run, product(), parts(product()), [found]).graph is right
    assert [c.outcome for c in run.report.candidates] == ["ranked below the chosen one", "chosen"]


def test_a_spill_is_said_with_the_reason() -> None:
    run = started(product())
    accepted = chosen(run, product(), [plan("relu")])
    (kernel,) = accepted.scheduled.compiled
    spilling = dataclasses.replace(
        accepted.scheduled,
        compiled=(dataclasses.replace(kernel, spill_bytes=40),),
        reason="others are dearer",
    )
    outcome.finish(product(), dataclasses.replace(accepted, scheduled=spilling), run, run.diagnostics)
    said = [m.message for m in run.diagnostics.messages if m.severity == "warning"]
    assert said == [f"kernel '{kernel.name}' spills 40 bytes of registers: others are dearer"]


def test_a_stored_result_dearer_than_the_input_is_dropped() -> None:
    for least, kept in ((1.0, True), (1e-9, False)):
        run = started(graph := product(), least=least)
        found = pipeline._reused(graph, Known(plan("relu"), 0.0, enough=True), run)  # pyright: ignore[reportPrivateUsage]
        assert (found is not None) == kept
    assert run.report.remarks[-1].endswith(f"was dropped: {choose.NOT_FASTER}")


def test_an_optimizer_that_overruns_leaves_the_others_a_part_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, now, given = plan("exp"), [0.0], list[float]()

    class Slow:
        name = "slow"

        def refusal(self, _: KernelGraph) -> str:
            return ""

        def propose(self, _: KernelGraph, *__: object, budget: float, **___: object) -> Proposals:
            given.append(budget)
            now[0] += 7.0
            return Proposals()

    monkeypatch.setattr(propose.optimizers, "load", lambda _: Slow())  # type: ignore[reportUnknownLambdaType]
    run = started(graph)
    monkeypatch.setattr(propose.clock, "now", lambda: now[0])
    run.budget.started = 0.0
    propose.propose_for(parts(graph)[-1], run, 6.0, 6.0)
    assert given == [2.0, 1.0, 1.0]
