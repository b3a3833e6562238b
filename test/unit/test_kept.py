"""Kernels that keep bank conflicts or sectors beyond need: what was tried instead and its price, said once a cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_bench_space import matmul, tile_body
from test_early import two_kernels
from test_separate_loads import normed

from superopt import cost
from superopt.cost.counted import KernelCounts, Transactions
from superopt.early import early_launches
from superopt.program import KernelGraph
from superopt.report import Kept
from superopt.transforms.emit.compile import Compiled
from superopt.transforms.emit.triton_source import TritonKernel
from superopt.transforms.lower import lower
from superopt.transforms.schedule import fit as schedule
from superopt.transforms.schedule.fit import Compiler, Scheduled, fit
from superopt.transforms.schedule.kept import remarks

H100 = cost.target("sm_90")
Counter = Callable[[TritonKernel], tuple[tuple[int, int], tuple[int, int]]]


def fitted(
    monkeypatch: pytest.MonkeyPatch,
    graph: KernelGraph,
    count: Counter,
    *,
    fixed: bool = False,
    stop: bool = False,
) -> Scheduled:
    """Where `count` says the wavefronts and sectors of a kernel, each made and needed."""

    def counted(kernel: TritonKernel, compiled: Compiled) -> KernelCounts:
        wavefronts, sectors = (Transactions(*n) for n in count(kernel))
        none = Transactions(0, 0)
        return KernelCounts({"matrices": wavefronts}, {"loads": sectors, "copies": none}, {}, 0)

    monkeypatch.setattr(schedule, "counted", counted)
    return fit(lower(graph, "sm_90"), Compiler(H100), fixed=fixed, stop=lambda: stop)


def only(made: Scheduled) -> Kept:
    (why,) = made.kept.values()
    return why


def test_too_little_to_gain_is_said_with_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    why = only(fitted(monkeypatch, matmul(64, 128, 256), lambda _: ((20, 10), (10, 10))))
    assert why.cause == "cheap"
    assert "2.00 times the wavefronts of shared memory that suffice, which costs 0.00 of " in why.why
    assert (
        ", 0.0 % where it is launched by itself; other launches and tiles are tried from 5 % on; " in why.why
    )
    assert "no input feeds both a product and another operator" in why.why


def test_prices_are_those_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that starts while the one before it runs takes less there than by itself."""
    made = fitted(monkeypatch, two_kernels(), lambda _: ((10**6, 10**5), (10, 10)))
    assert early_launches(made.lowered.nodes)
    for priced in cost.priced_kernels(made.lowered, made.compiled, H100):
        assert priced.compiled is not None
        assert f" of {priced.seconds * 1e6:.2f} us" in made.kept[priced.compiled.name].why


def test_few_are_no_reason_to_say_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fitted(monkeypatch, matmul(64, 128, 256), lambda _: ((14, 10), (14, 10))).kept


def test_sectors_are_said_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    why = only(fitted(monkeypatch, matmul(64, 128, 256), lambda _: ((10, 10), (70, 10))))
    assert "needs 7.00 times the sectors of device memory that suffice" in why.why
    assert "wavefronts" not in why.why


def test_what_was_compiled_instead_has_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """All variants conflict alike: each is named with its price, and other tiles as a whole."""
    made = fitted(monkeypatch, normed(), lambda _: ((10**6, 10**5), (10, 10)))
    why = only(made)
    assert why.cause == "tried"
    assert " us, 10.00 times the wavefronts" in why.why
    assert "what products and other operators use is loaded for each: " in why.why
    assert f"warps where it had {tile_body(made.lowered).num_warps}: " in why.why
    assert "tilings of the program: " in why.why or "no other tiles that compile promise less" in why.why


def test_what_was_chosen_is_compared_with_what_it_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Separate loads leave fewer conflicts, and still too many: the report has the price without them."""

    def count(kernel: TritonKernel) -> tuple[tuple[int, int], tuple[int, int]]:
        return ((20, 10) if "cache_modifier" in kernel.source else (40, 10)), (10, 10)

    made = fitted(monkeypatch, normed(), count)
    assert tile_body(made.lowered).separate_loads
    assert "what products and other operators use is loaded once for both: " in only(made).why
    assert " us, 4.00 times the wavefronts" in only(made).why


def test_sectors_alone_ask_for_another_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of few warps read ten times what they need, which costs time; the others do not."""
    graph = matmul(256, 512, 256)
    few = tile_body(lower(graph, "sm_90")).num_warps

    def count(kernel: TritonKernel) -> tuple[tuple[int, int], tuple[int, int]]:
        return (10, 10), (10**6 if kernel.num_warps <= few else 10**5, 10**5)

    made = fitted(monkeypatch, graph, count)
    assert tile_body(made.lowered).num_warps > few
    assert not made.kept


def test_a_given_schedule_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fitted(monkeypatch, matmul(64, 128, 256), lambda _: ((20, 10), (10, 10)), fixed=True)
    assert only(made).cause == "given"
    assert "its schedule was given, and no other was tried" in only(made).why


def test_a_budget_that_ends_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fitted(monkeypatch, matmul(64, 128, 256), lambda _: ((10**6, 10), (10, 10)), stop=True)
    assert "the budget ended before other tiles" in only(made).why


def test_one_remark_for_each_cause() -> None:
    why = [
        Kept(cause="cheap", why="is cheap"),
        Kept(cause="tried", why="was tried"),
        Kept(cause="cheap", why="too"),
    ]
    assert remarks(dict(zip("abc", why, strict=True))) == [
        "kernel 'a' is cheap; the report says the same, with their own numbers, of c",
        "kernel 'b' was tried",
    ]
