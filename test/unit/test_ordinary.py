"""Ordinary programs: what is kept of them is in the page, and experts are bound by the hardware, too."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

pytest.importorskip("torch")
from benchmarks.campaign import PAGE
from benchmarks.ordinary.__main__ import CLOSE, WHY, seconds, table
from benchmarks.ordinary.experts import Expert
from benchmarks.ordinary.programs import PROGRAMS, _seen  # pyright: ignore[reportPrivateUsage]
from benchmarks.prices import ASKED, gain
from benchmarks.prices import table as table_of_prices
from benchmarks.record import RESULTS, load

from superopt.cost import target


def test_the_page_has_what_is_kept() -> None:
    text = PAGE.read_text()
    assert table(load("ordinary")) in text
    assert table_of_prices(load("prices")) in text


@pytest.mark.parametrize("name", ["ordinary", "prices"])
def test_rows_name_no_place_of_a_machine(name: str) -> None:
    assert not re.search(r"/\S+:\d+:\d+", (RESULTS / f"{name}.json").read_text())


def test_each_price_that_gains_less_than_asked_has_a_reason() -> None:
    rows = {name: row for name, row in load("prices").items() if "failed" not in row}
    lines = [line.split("|")[1:-1] for line in table_of_prices(rows).splitlines()]
    reasons = {cells[0].strip(): cells[-1].strip() for cells in lines if cells}
    assert {name for name in rows if reasons[name]} == {name for name in rows if gain(rows[name]) < ASKED}


def test_printed_prices_are_those_of_the_delivered_kernels() -> None:
    """Of all kernels of a report, and of those read from the text of the lowered program and compiled anew."""
    for name, row in load("prices").items():
        if "failed" not in row:
            assert row["kernels_us"] == pytest.approx(row["delivered_us"], rel=0.01), name
            assert row.get("again_us", row["delivered_us"]) == pytest.approx(row["delivered_us"], rel=0.01), (
                name
            )


@pytest.mark.parametrize(
    ("best", "least", "kernels", "reason"),
    [
        (10.0, 9.0, 1, "the best a user has is at 90% of the limit, which allows a gain of 1.11"),
        (9.0, 9.9, 1, "the best a user has is at 110% of the limit"),
        (9.0, 5.0, 2, "a gain of 1.3 asks for 6.92 us, two launches take 7.50 us"),
        (
            30.0,
            20.0,
            3,
            "3 launches, one after the other, take 10.50 us at least; the slowest kernel is bound by",
        ),
        (30.0, 20.0, 1, "the slowest kernel is bound by memory"),
    ],
)
def test_reasons_follow_from_the_figures(best: float, least: float, kernels: int, reason: str) -> None:
    row: dict[str, Any] = {
        "delivered_us": best, "best_us": best, "best": "eager", "operators_us": best, "least_us": least,
        "launch_us": 4.5, "further_us": 3.0, "improved": True, "spilled_bytes": 0, "kernels": kernels,
        "limit": "memory", "remarks": [], "commit": "abc",
    }  # fmt: skip
    assert f"| {reason}" in table_of_prices({"lora_b1": row})
    assert reason not in table_of_prices({"lora_b1": row | {"delivered_us": best / ASKED - 0.01}})


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_expert_takes_no_less_than_the_launches_and_the_inputs(name: str) -> None:
    """Inputs that are read once: masks by position, indices and the columns that a gather leaves out aside."""
    gpu, program = target("sm_90"), PROGRAMS[name]
    kernels = program.expert(Expert(gpu, program.dtype))
    read = sum(math.prod(s) for s in program.shapes if not isinstance(s[-1], str))
    size = {"f32": 4}.get(program.dtype, 2) * read
    assert all(seconds >= gpu.launch_seconds + gpu.floor_seconds for seconds in kernels)
    assert sum(kernels) >= gpu.launch_seconds + size / gpu.dram_bytes_per_second


def test_kernels_of_an_expert_start_early_but_the_first() -> None:
    expert = Expert(target("sm_90"), "f32")
    (one,) = expert.elementwise(1 << 20, 1, 1)
    assert expert.seconds((one,)) == one
    assert expert.seconds((one, one)) == pytest.approx(2 * one - expert.target.early_seconds)
    slower = one + 1.1 * expert.target.early_seconds
    assert expert.best((2 * slower,), (one, one, one)) == (2 * slower,)
    assert expert.best((2 * slower,), (slower, slower)) == (slower, slower)


@pytest.mark.parametrize("window", [1, 64, 197])
@pytest.mark.parametrize("tile", [(16, 32), (64, 64), (128, 64)])
def test_an_expert_computes_the_tiles_of_scores_of_which_something_is_seen(
    window: int, tile: tuple[int, int]
) -> None:
    tokens, (rows, keys) = 197, tile
    seen = {
        (q // rows, k // keys) for q in range(tokens) for k in range(tokens) if 0 <= q - k < window
    }  # fmt: skip
    all_of_them = -(-tokens // rows) * -(-tokens // keys)
    assert _seen(tokens, window)(rows, keys) == pytest.approx(len(seen) / all_of_them)


def test_a_split_product_has_its_epilogue_in_a_kernel_of_its_own() -> None:
    expert = Expert(target("sm_90"), "f16")
    assert len(expert.product(3, 768, 3072)) == 1
    plain, biased = (sum(expert.product(3, 768, 3072, more=more)) for more in (0, 768))
    assert biased >= plain
    assert sum(expert.product(3, 768, 3072, more=768)) <= plain + sum(expert.elementwise(3 * 768, 1, 1))


def test_each_program_that_an_expert_does_better_has_a_reason() -> None:
    rows = load("ordinary")
    dearer = {name for name, row in rows.items() if seconds(row) > CLOSE * row["expert_us"]}
    assert dearer <= set(WHY)
    assert set(WHY) <= dearer
