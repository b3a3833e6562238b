"""The store in the pipeline: what an earlier run found is used again, and never believed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_pipeline import only_a_slow_library

from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.errors import BadInput
from superopt.naming import give_names, names_of
from superopt.pipeline import Superoptimize, superoptimize
from superopt.report import StoredProgram
from superopt.run import choose, reuse
from superopt.run.outcome import Outcome
from superopt.store import Key, Store
from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.verify.hashing import canonical_text, parse

for _module in ("torch_mlir", "triton"):
    pytest.importorskip(_module)

PROGRAM = """
func.func @f(%x: tensor<16x64xf16>, %w: tensor<64x64xf16>) -> tensor<16x64xf16> {
  %0 = "kernel.matmul"(%x, %w) : (tensor<16x64xf16>, tensor<64x64xf16>) -> tensor<16x64xf16>
  %1 = "kernel.relu"(%0) : (tensor<16x64xf16>) -> tensor<16x64xf16>
  return %1 : tensor<16x64xf16>
}
"""
WRONG = PROGRAM.replace("kernel.relu", "kernel.neg")
WITH_EXTERN = PROGRAM.replace(
    "  return",
    '  %2 = "superopt.extern"(%x) {target = "aten.fill", reason = ""} : (tensor<16x64xf16>) -> tensor<4xf32>\n  return',
)


def run(
    store: Path | str | None,
    text: str = PROGRAM,
    budget: float = 20.0,
    optimizer: str = "mugraph",
    **more: Any,
) -> Outcome:
    settings = Superoptimize(
        budget=budget,
        numerics=False,
        store=None if store is None else str(store),
        optimizers=(optimizer,),
        **more,
    )
    return superoptimize(read(text), settings, Diagnostics())


@pytest.fixture(autouse=True)
def slow_library(monkeypatch: pytest.MonkeyPatch) -> None:
    only_a_slow_library(monkeypatch)


class Searched(Exception):
    """A search was started."""


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise Searched

    monkeypatch.setattr(MugraphOptimizer, "propose", refuse)


def bytes_of(outcome: Outcome) -> list[str]:
    return [
        outcome.schedule.model_dump_json(), outcome.certificate.model_dump_json(),
        outcome.emitted.kernels_source, outcome.emitted.launcher_source, *(k.ptx for k in outcome.compiled),
    ]  # fmt: skip


def test_the_second_run_does_not_search_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = run(tmp_path)
    assert first.report.improved
    search = MugraphOptimizer.propose
    monkeypatch.setattr(MugraphOptimizer, "propose", None)
    second = run(tmp_path)
    assert "the result of an earlier run, from the store, was proved again" in second.report.remarks
    assert bytes_of(first) == bytes_of(second)
    assert second.report.funnel.verified == 1, "it is proved again, not believed"
    monkeypatch.setattr(MugraphOptimizer, "propose", search)
    assert bytes_of(run(None)) == bytes_of(first)


def rescheduled(store: Path, **changes: Any) -> None:
    """Change the stored schedule of the result, and nothing else."""
    kept = Store(store)
    made: Any
    for made in list(kept.keys()):
        key = Key(made["program"], made["target"], made["versions"], made["policy"])
        if (entry := kept.lookup(key)) is not None and "schedule.json" in entry.files:
            schedule = json.loads(entry.files["schedule.json"]) | changes
            files = {**entry.files, "schedule.json": json.dumps(schedule).encode()}
            kept.publish(key, files, seconds=entry.seconds, effort=2e9)


@pytest.mark.parametrize(
    "changes",
    [
        {"launches": {"f_0": {"warps": 32, "stages": 8}}},
        {"launches": {"f_0": {"warps": 3, "stages": 1}}},
        {"parameters": {"no such tile": 16}},
        {"library": [7]},
        {"reason": "two\nlines"},
        {"kept": {"f_0": {"cause": "tried", "why": "two\nlines"}}},
        {"more": 1},
    ],
    ids=[
        "slow",
        "warps that no block has",
        "tiles that are none",
        "products that are none",
        "reason",
        "why conflicts stay",
        "field",
    ],
)
def test_a_stored_schedule_that_does_not_fit_is_found_again(tmp_path: Path, changes: dict[str, Any]):
    first = run(tmp_path)
    rescheduled(tmp_path, **changes)
    second = run(tmp_path)
    assert "the result of an earlier run, from the store, was proved again" in second.report.remarks
    assert bytes_of(first) == bytes_of(second)


def test_names_of_the_program_are_its_own(tmp_path: Path):
    run(tmp_path)
    renamed = run(tmp_path, PROGRAM.replace("@f", "@other"))
    assert renamed.report.remarks
    assert "def other" in renamed.emitted.kernels_source


@pytest.mark.usefixtures("no_search")
def test_without_a_store_nothing_is_reused(tmp_path: Path):
    with pytest.raises(Searched):
        run(tmp_path)
    with pytest.raises(Searched):
        run(None)


def test_another_seed_policy_target_or_longer_budget_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run(tmp_path, budget=5.0)
    seen: list[float] = []
    search = MugraphOptimizer.propose

    def watched(*arguments: Any, budget: float, **options: Any) -> Any:
        seen.append(budget)
        return search(*arguments, budget=budget, **options)

    monkeypatch.setattr(MugraphOptimizer, "propose", watched)
    run(tmp_path, budget=4.0)
    assert not seen
    run(tmp_path, seed=1)
    run(tmp_path, target="sm_80")
    run(tmp_path, optimizer="mugraph{prune=none}")
    assert len(seen) == 3


def test_a_run_that_died_goes_on_behind_its_last_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def die(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(choose, "choose", die)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    monkeypatch.setattr(MugraphOptimizer, "propose", None)
    resumed = run(tmp_path)
    assert resumed.report.improved
    assert resumed.report.funnel.search["store.mugraph"] > 0


def test_what_the_cpu_decided_is_no_answer_for_the_model(tmp_path: Path) -> None:
    from superopt.cost import target

    def earlier(**settings: Any) -> reuse.Earlier:
        return reuse.Earlier(Superoptimize(store=str(tmp_path), **settings), target("sm_90"), Diagnostics())

    graph = read(PROGRAM)
    earlier(tune=4, tune_by="cpu").keep_result(graph, graph, None, finished=True)
    assert earlier(tune=4, tune_by="cpu").result(graph) is not None
    assert earlier(tune=4).result(graph) is None
    assert earlier(tune=8, tune_by="cpu").result(graph) is None


def publish_result(folder: Path, text: str, seconds: float = 1e-9, effort: float = 1e9) -> None:
    """What a hostile store may hold: any program under the key of ours, said to be very fast."""
    settings = Superoptimize(budget=20.0, numerics=False, optimizers=("mugraph",), store=str(folder))
    from superopt.cost import target

    earlier = reuse.Earlier(settings, target("sm_90"), Diagnostics())
    graph = read(text)
    stored = StoredProgram(program=canonical_text(graph), names=names_of(graph))
    from superopt.store import publish
    from superopt.verify import program_hash

    assert publish(
        program_hash(read(PROGRAM)), "sm_90", earlier._result_policy(),  # pyright: ignore[reportPrivateUsage]
        {"program.json": stored.model_dump_json().encode()}, Diagnostics(), seconds=seconds,
        effort=effort, folder=folder,
    )  # fmt: skip


@pytest.mark.parametrize("text", [WRONG, WITH_EXTERN], ids=["wrong", "with an opaque operation of its own"])
def test_a_stored_program_that_is_another_is_dropped(tmp_path: Path, text: str):
    publish_result(tmp_path, text)
    outcome = run(tmp_path)
    assert any("was dropped" in r for r in outcome.report.remarks)
    assert outcome.report.improved
    assert bytes_of(outcome) == bytes_of(run(None))


def test_what_a_store_says_of_a_programs_time_is_not_believed(tmp_path: Path):
    """The program itself, said to take a nanosecond, is right; but what the search finds is faster."""
    publish_result(tmp_path, PROGRAM, effort=0.0)
    outcome = run(tmp_path)
    dropped = "the result of an earlier run, from the store, was dropped: not predicted to be faster"
    assert dropped in outcome.report.remarks
    assert outcome.report.improved
    assert bytes_of(outcome) == bytes_of(run(None))


def test_a_stored_grid_holds_numbers(tmp_path: Path):
    found = canonical_text(run(None).optimized)
    (grid,) = re.findall(r'"grid":\[[\d,]*\]', found)
    for wrong in ('"grid":["x"]', '"grid":[1.5]', '"grid":[null]', '"grid":{"x":1}'):
        with pytest.raises(BadInput):
            parse(found.replace(grid, wrong))


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"program": "[]"}', b'{"program": "{}", "names": []}', b'{"version": 7, "program": ""}'],
)
def test_a_stored_program_that_is_none_is_dropped(tmp_path: Path, data: bytes):
    publish_result(tmp_path, PROGRAM)
    store = Store(tmp_path)
    (key,) = store.keys()
    made: Any = key
    store.publish(
        Key(made["program"], made["target"], made["versions"], made["policy"]),
        {"program.json": data}, seconds=1e-12, effort=1e9,
    )  # fmt: skip
    outcome = run(tmp_path)
    assert outcome.report.improved
    assert any("a stored result is not used" in r for r in outcome.report.remarks)


def test_a_store_that_cannot_be_used_costs_one_warning(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    outcome = run(tmp_path / "file")
    assert outcome.report.improved
    assert sum("store" in r for r in outcome.report.remarks) == 1


def test_where_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from superopt.store import chosen_folder

    assert chosen_folder("default") is None, "of the tests: conftest.py"
    assert chosen_folder(None) is None
    assert chosen_folder("none") is None, "as on the command line, not a folder of that name"
    assert chosen_folder(str(tmp_path)) == tmp_path
    monkeypatch.setenv("SUPEROPT_STORE", str(tmp_path / "x"))
    assert chosen_folder("default") == tmp_path / "x"
    monkeypatch.delenv("SUPEROPT_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert chosen_folder("default") == tmp_path / "cache" / "superopt"


def test_names_from_a_file_are_only_names():
    graph = read(PROGRAM)
    names = names_of(graph)
    give_names(graph, ["x\nimport os", "w" * 1000, *names[2:]])
    assert names_of(graph) == names
    give_names(graph, ["only one"])
    assert names_of(graph) == names
