"""Networks of equal layers: each layer is checked once, and a fault in any of them is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from random_programs import Builder, value
from test_choose import started
from test_kernel_maxima import compiled

from superopt.diagnostics import Diagnostics
from superopt.errors import IllegalProgram, NotEquivalent
from superopt.numerics import float_gate, gate
from superopt.program import KernelGraph
from superopt.run import choose, propose
from superopt.run.budget import Budget
from superopt.run.context import Run
from superopt.run.propose import Candidate
from superopt.transforms.lower import lower
from superopt.transforms.optimizers import SEGMENTS
from superopt.transforms.partition.segments import Segment
from superopt.verify import certifier, certify_lowered
from superopt.verify.certifier import replay
from superopt.verify.hashing import canonical_text
from superopt.verify.pieces import cut
from superopt.verify.primes import drawn
from superopt.verify.ptx import check as ptx_check
from superopt.verify.ptx.check import PtxText, verify_ptx
from superopt.verify.ttir import KernelText, verify_ttir
from superopt.verify.ttir import check as ttir_check

LAYERS = 4


def network(layers: int = LAYERS, ops: Sequence[str] = (), *, largest: bool = True) -> KernelGraph:
    """Layers of a product and a softmax of its rows; an activation in each, sigmoid unless `ops` says."""
    x, *weights = inputs = [value(16, 32), *(value(32, 32) for _ in range(layers))]
    f = Builder()
    for number, weight in enumerate(weights):
        y = f("matmul", x, weight)
        if largest:
            y = f("sub", y, f("reduce_max", y, dims=(1,), keepdims=True))
        e = f("exp", y)
        p = f("div", e, f("reduce_sum", e, dims=(1,), keepdims=True))
        x = f(ops[number] if number < len(ops) else "sigmoid", p)
    return KernelGraph("main", inputs, f.nodes, [x])


@pytest.fixture(scope="module")
def made() -> tuple[KernelGraph, list[KernelText], list[PtxText]]:
    return compiled(network())


def test_each_kernel_is_checked_once(
    made: tuple[KernelGraph, list[KernelText], list[PtxText]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered, kernels, texts = made
    points = counted_calls(monkeypatch, ttir_check, "at_some_point")
    record = verify_ttir(network(), lowered, kernels, full_work=1)
    assert len(points) == len(set(kernels)) < len(kernels) == len(record.kernels)
    assert all(k.evaluated for k in record.kernels)
    ran = counted_calls(monkeypatch, ptx_check, "verify_kernel")
    checked = verify_ptx(lowered, kernels, texts)
    assert len(ran) == len(set(kernels))
    assert checked.verified
    assert [k.name for k in checked.kernels] == [k.name for k in kernels]


def counted_calls(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[str]:
    """A list that grows with every call of a function of a module."""
    calls: list[str] = []
    function = getattr(module, name)

    def counting(*args: Any, **settings: Any) -> Any:
        calls.append(name)
        return function(*args, **settings)

    monkeypatch.setattr(module, name, counting)
    return calls


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_fault_in_any_layer_is_found(
    made: tuple[KernelGraph, list[KernelText], list[PtxText]], layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its TTIR, in its PTX, and in the program that a kernel is said to compute."""
    monkeypatch.setattr(ttir_check, "check_floats", lambda *_: "")  # pyright: ignore
    lowered, kernels, texts = made
    exponentials = [i for i, k in enumerate(kernels) if "math.exp2" in k.ttir]
    at = exponentials[layer * len(exponentials) // LAYERS]
    wrong = list(kernels)
    wrong[at] = replace(kernels[at], ttir=kernels[at].ttir.replace("math.exp2", "math.sqrt"))
    with pytest.raises(NotEquivalent):
        verify_ttir(network(), lowered, wrong, full_work=1)
    other = list(texts)
    other[at] = replace(texts[at], ptx=texts[at].ptx.replace("ex2.approx", "lg2.approx"))
    assert other[at] != texts[at]
    with pytest.raises((NotEquivalent, IllegalProgram)):
        verify_ptx(lowered, kernels, other)
    claimed = lower(network(ops=["sigmoid"] * layer + ["exp"]))
    with pytest.raises(NotEquivalent):
        verify_ttir(network(), claimed, kernels, full_work=1)


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORMAL_WORK", "BLOCKS_WORK", "PIECE_WORK"):
        monkeypatch.setattr(certifier, name, 1)
    monkeypatch.setattr(float_gate, "PIECES_WORK", 1)


@pytest.mark.usefixtures("everything_is_large")
def test_equal_layers_are_proved_once() -> None:
    pieces: list[int] = []
    for layers in (2, 4):
        graph = network(layers)
        first, second = certify_lowered(graph, graph, lower(graph))
        assert first.equivalent
        assert second.certificate is not None
        assert replay(second.certificate) == []
        pieces.append(len({t.piece for t in second.certificate.tests if t.piece is not None}))
    assert pieces[0] == pieces[1] > 0


def test_layers_that_are_written_otherwise_are_no_equal_pieces() -> None:
    """x + x and 2 x both are what the first program has in each of its layers."""
    graphs: list[KernelGraph] = []
    for otherwise in (False, True):
        x = value(8, 8)
        f = Builder()
        y = f("exp", f("mul", f("matmul", x, x), f.constant(2.0)))
        z = f("matmul", y, x)
        z = f("exp", f("add", z, z) if otherwise else f("mul", z, f.constant(2.0)))
        graphs.append(KernelGraph("main", [x], f.nodes, [z]))
    counts: list[int] = []
    for lowered in map(lower, graphs):
        primes = drawn(canonical_text(graphs[0]), canonical_text(lowered))
        pieces = cut(graphs[0], lowered, (graphs[0], lowered), 0, primes) or []
        counts.append(sum(p.first.nodes[-1].op == "exp" for p in pieces))
    assert counts == [1, 2]


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("layer", range(LAYERS))
def test_another_layer_is_no_equal_one(layer: int) -> None:
    graph, other = network(), network(ops=["sigmoid"] * layer + ["exp"])
    assert not certify_lowered(graph, graph, lower(other))[1].equivalent
    assert not gate(graph, lower(other)).passed


@pytest.mark.usefixtures("everything_is_large")
def test_numbers_of_a_network_are_compared_layer_by_layer() -> None:
    graph = network()
    report = gate(graph, lower(graph))
    assert report.passed
    assert "pieces, one by one" in report.summary
    assert not gate(graph, lower(network(largest=False))).passed, "its exponentials overflow"


@pytest.mark.usefixtures("everything_is_large")
def test_where_a_piece_is_undefined_the_whole_decides() -> None:
    """The root of a positive number: alone, the piece has any numbers whose largest one is negated."""
    x = value(16, 32)
    f = Builder()
    y = f("neg", f("square", x))
    root = f("sqrt", f("neg", f("reduce_max", y, dims=(0, 1), keepdims=True)))
    graph = KernelGraph("main", [x], f.nodes, [f("matmul", f("mul", root, y), x, transpose_b=True)])
    report = gate(graph, lower(graph))
    assert report.passed
    assert "pieces" not in report.summary


def test_what_repeats_a_segment_takes_its_result_however_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what promises most comes first: here the layers, of which there are many."""
    graph = network(3)
    run = started(graph)
    parts = propose.parts(graph, max_values=6)
    first = propose.repeats(parts[:-1])
    assert len(set(first)) < len(first)
    *found, _ = propose.propose(run, parts, Diagnostics().progress)
    monkeypatch.setattr(Budget, "late_for_the_whole", lambda budget: bool(budget.checks))  # pyright: ignore
    choose.choose(run, graph, parts, [*found, []])
    raced = list(dict.fromkeys(c.segment for c in run.report.candidates if c.segment is not None))
    best = max(set(first), key=lambda n: promised(run, parts[n], found[n], first.count(n)))
    assert raced[0] == best
    assert run.budget.missed["segment not optimized"] == sum(n not in raced for n in first if found[n])
    (whole,) = (c for c in run.report.candidates if c.segment is None)
    assert whole.optimizer == SEGMENTS
    saved = run.predicted(graph) - whole.predicted_seconds
    own = run.predicted(parts[best].graph) - min(c.seconds for c in found[best])
    assert saved > 0.9 * own * first.count(best), "in every layer"


def promised(run: Run, part: Segment, candidates: Sequence[Candidate], times: int) -> float:
    saved = run.predicted(part.graph) - min((c.seconds for c in candidates), default=1.0)
    return saved * times
