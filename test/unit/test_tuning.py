"""Searching choices: spaces whose sites depend on choices, strategies, phases, and what is never delivered."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest

from superopt.diagnostics import Diagnostics
from superopt.errors import BadOption, UnsupportedProgram
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.store import Store
from superopt.store.records import read_key
from superopt.transforms.tunable import Pick, Site
from superopt.tuning import strategies
from superopt.tuning.confstore import ConfStore
from superopt.tuning.evaluators import PRICED, Evaluation
from superopt.tuning.log import Log
from superopt.tuning.loop import BATCH, EXHAUSTED, REPEATS, SPENT, STOPPED, Trials, phases, search
from superopt.tuning.space import Question, Space
from superopt.tuning.strategies.strategy import Trial

DIGITS = tuple(map(str, range(6)))
X = Value(TensorType((1,), "f32"), "x")


@dataclass(frozen=True)
class Digits:
    """A step that appends a chosen digit; after an even first digit, it asks for one more."""

    name: str
    sites: int

    def called(self) -> str:
        return self.name

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        nodes = list(graph.nodes)

        def append(at: str, choices: Sequence[str]) -> str:
            taken = pick(Site(at, choices[0], lambda: choices))
            value = nodes[-1].result if nodes else X
            nodes.append(Node("slice", (value,), (Value(value.type),), {"digit": int(taken)}))
            return taken

        first = [append(f"site {i}", DIGITS) for i in range(self.sites)]
        if int(first[0]) % 2 == 0:
            append("even", ("7", "8"))
        if first[0] == "5":
            raise UnsupportedProgram("no fives")
        return KernelGraph("f", [X], nodes, [nodes[-1].result])


def digits(graph: KernelGraph) -> list[int]:
    return [int(str(n.attrs["digit"])) for n in graph.nodes]


@dataclass
class Priced:
    """Seconds by a formula over the digits; None is a rejection."""

    formula: Callable[[list[int]], float | None]
    name: str = "test"
    blind: frozenset[str] = frozenset()
    seen: list[list[int]] = field(default_factory=list[list[int]])

    def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        self.seen += map(digits, programs)
        found = [self.formula(digits(p)) for p in programs]
        return [Evaluation(s, PRICED if s is not None else "too odd", self.name) for s in found]


def space(*steps: Digits) -> Space:
    return Space(KernelGraph("f", [X], [], [X]), steps)


def hills(found: list[int]) -> float:
    """One valley far from the start, where digits are near 3, 1, 4; even ones cost more."""
    wanted = (3, 1, 4)
    return 1.0 + sum(abs(d - w) for d, w in zip(found, wanted, strict=False)) + 0.1 * (len(found) > 3)


def test_every_program_is_asked_for_once() -> None:
    evaluator = Priced(hills)
    trials = Trials(space(Digits("a", 2)), evaluator)
    best = search(trials, [Question({})], [frozenset("a")], evaluations=1000, strategy="exhaustive")
    # Of six first digits one is not supported; three are even, and have two programs each.
    assert len(evaluator.seen) == len({tuple(s) for s in evaluator.seen}) == 6 * (3 * 2 + 2)
    assert trials.rejected == {"a: no fives": 6}
    assert digits(best.traced.program) == [3, 1]
    assert len(trials.done) == len({repr(t.traced.config) for t in trials.done}) + 1, "the start twice"
    assert trials.ended == EXHAUSTED


@pytest.mark.parametrize("name", strategies.names())
def test_a_search_goes_on_until_nothing_is_left(name: str) -> None:
    """Strategies repeat themselves in a small space; what is left is found all the same, and no end is made up."""
    for evaluations in (20, 53, 54, 1000):
        trials = Trials(space(Digits("a", 2)), Priced(hills))
        search(trials, [Question({})], [frozenset("a")], evaluations=evaluations, strategy=name)
        assert trials.evaluations == min(evaluations, 54), "48 programs, and six that fail"
        assert trials.ended == (EXHAUSTED if evaluations > 54 else SPENT)


def test_choices_that_make_the_same_programs_do_not_keep_a_search_forever() -> None:
    class Alike(Digits):
        def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
            for i in range(12):
                pick(Site(f"no matter {i}", "0", lambda: DIGITS))
            return Digits("a", 1).decided(graph, lambda site: site.default, diagnostics)

    trials = Trials(space(Alike("a", 1)), Priced(hills))
    search(trials, [Question({})], [frozenset("a")], evaluations=10, strategy="random")
    assert (trials.evaluations, trials.ended) == (1, REPEATS)
    assert len(trials.done) < 300 * BATCH


@pytest.mark.parametrize("name", strategies.names())
def test_strategies_find_the_valley(name: str) -> None:
    found = [
        search(
            Trials(space(Digits("a", 3)), Priced(hills)), [Question({})], [frozenset("a")],
            evaluations=200, strategy=name, seed=seed,
        ).seconds
        for seed in range(5)
    ]  # fmt: skip
    start = hills([0, 0, 0, 7])
    assert max(found) <= start - 3
    if name not in ("random", "exhaustive"):
        assert sorted(found)[2] == 1.0, "the median is the best of 540 programs"


@pytest.mark.parametrize("name", strategies.names())
def test_the_same_seed_gives_the_same_trials(name: str) -> None:
    def run(seed: int) -> list[str]:
        trials = Trials(space(Digits("a", 3)), Priced(hills))
        search(trials, [Question({})], [frozenset("a")], evaluations=60, strategy=name, seed=seed)
        return [repr(t.traced.config) for t in trials.done]

    assert run(1) == run(1)
    if name != "exhaustive":
        assert run(1) != run(2)


@pytest.mark.parametrize("name", strategies.names())
def test_a_result_is_never_slower_than_the_start(name: str) -> None:
    start = {"a": {"site 0": "3", "site 1": "1", "site 2": "4"}}
    trials = Trials(space(Digits("a", 3)), Priced(hills))
    best = search(trials, [Question(start)], [frozenset("a")], evaluations=30, strategy=name)
    assert digits(best.traced.program) == [3, 1, 4]
    assert trials.evaluations <= 30


def test_starts_are_priced_while_evaluations_are_left() -> None:
    starts = [Question({"a": {"site 0": digit}}) for digit in ("1", "3", "4")]
    for evaluations in range(1, 5):
        trials = Trials(space(Digits("a", 3)), Priced(hills))
        search(trials, starts, [frozenset("a")], evaluations=evaluations, strategy="evolution")
        assert trials.evaluations == evaluations
    again = Trials(space(Digits("a", 3)), Priced(hills))
    search(again, [starts[0], starts[0], starts[1]], [], evaluations=2, strategy="evolution")
    assert again.evaluations == 2, "what is known costs nothing"


@pytest.mark.parametrize("name", strategies.names())
def test_programs_that_take_no_time(name: str) -> None:
    """Nothing runs where only reshapes are left."""
    trials = Trials(space(Digits("a", 2)), Priced(lambda d: float(sum(d) > 9)))
    best = search(trials, [Question({})], [frozenset("a")], evaluations=60, strategy=name)
    assert best.seconds == 0.0


@pytest.mark.parametrize("name", strategies.names())
def test_only_what_may_move_moves(name: str) -> None:
    trials = Trials(space(Digits("a", 2), Digits("b", 2)), Priced(lambda d: float(sum(d)) + 1))
    start = {"a": {"site 0": "3", "site 1": "2"}}
    search(trials, [Question(start)], [frozenset("b")], evaluations=20, strategy=name)
    assert {digits(t.traced.graphs["a"])[0] for t in trials.done} == {3}
    blind = Trials(space(Digits("a", 2)), Priced(hills, blind=frozenset("a")))
    search(blind, [Question(start)], [frozenset("a")], evaluations=20, strategy=name)
    assert blind.evaluations == 1, "who cannot tell choices apart does not try them"


def test_what_interacts_is_found_together_only() -> None:
    def both(found: list[int]) -> float:
        """A digit pays only with the other pass's."""
        a, b = found[0], found[1 + (found[0] % 2 == 0)]
        return 0.5 if (a, b) == (3, 4) else 1.0 + 0.1 * (a != 0) + 0.1 * (b != 0)

    def run(schedule: str) -> float:
        moving = phases("sequential" if schedule == "sequential" else "joint", ("a", "b"), ())
        steps = space(Digits("a", 1), Digits("b", 1))
        return search(
            Trials(steps, Priced(both)), [Question({})], moving, evaluations=200, strategy="exhaustive"
        ).seconds

    assert run("sequential") == 1.0
    assert run("joint") == 0.5


def test_passes_with_nothing_to_decide_have_no_share() -> None:
    found: list[list[list[int]]] = []
    for moving in ("ab", "abcd"):
        evaluator = Priced(hills)
        trials = Trials(space(Digits("a", 3), Digits("b", 3)), evaluator)
        search(trials, [Question({})], list(map(frozenset, moving)), evaluations=40, strategy="evolution")
        assert trials.ended == SPENT
        found.append(evaluator.seen)
    assert found[0] == found[1]


def test_phases() -> None:
    graph, kernel = ("plan", "layouts"), ("tiles", "launch")
    assert phases("sequential", graph, kernel) == [frozenset((f,)) for f in (*graph, *kernel)]
    assert phases("joint", graph, kernel) == [frozenset(graph), frozenset(("tiles",)), frozenset(("launch",))]
    alone = [frozenset((f,)) for f in (*graph, *kernel)]
    assert phases("all", graph, kernel) == [*alone, frozenset((*graph, *kernel))]
    assert phases("joint", (), ()) == []


def test_rejections_are_counted_by_reason_and_never_best() -> None:
    trials = Trials(space(Digits("a", 2)), Priced(lambda d: None if d[0] == 1 else hills(d)))
    best = search(trials, [Question({})], [frozenset("a")], evaluations=100, strategy="exhaustive")
    assert trials.rejected == {"too odd": 6, "a: no fives": 6}
    assert math.isfinite(best.seconds)
    assert all(digits(t.traced.program)[0] != 1 for t in trials.best())


def test_an_interrupt_ends_the_search() -> None:
    trials = Trials(space(Digits("a", 3)), Priced(hills))
    search(
        trials,
        [Question({})],
        [frozenset("a")],
        evaluations=100,
        strategy="random",
        stop=lambda: bool(trials.done),
    )
    assert trials.evaluations == 1
    assert trials.ended == STOPPED


def test_a_change_lists_the_choices_of_its_site_only() -> None:
    """To list what the tiles of a kernel may be takes longer than a price."""
    listed: list[str] = []

    class Dear(Digits):
        def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
            def asked(site: Site) -> str:
                return pick(Site(site.at, site.default, lambda: listed.append(site.at) or site.choices))

            return super().decided(graph, asked, diagnostics)

    trials = Trials(space(Dear("a", 8)), Priced(hills))
    (start,) = trials.run([Question({})])
    strategy = strategies.load("mcmc")(start, frozenset("a"), 0)
    (question,) = strategy.ask(1)
    assert len(listed) == 1
    (changed,) = trials.run([question])
    differ = [
        a.key
        for a, b in zip(start.traced.decisions, changed.traced.decisions, strict=True)
        if a.choice != b.choice
    ]
    assert differ == [("a", listed[0])]


def test_choices_that_no_longer_exist_are_repaired() -> None:
    traced = space(Digits("a", 1)).trace(Question({"a": {"site 0": "1", "even": "8"}}))
    assert traced.config == {"a": {"site 0": "1"}}
    assert digits(space(Digits("a", 1)).trace(Question({"a": {"site 0": "99"}})).program) == [0, 7]


def test_an_unknown_strategy() -> None:
    with pytest.raises(
        BadOption, match=r"expected a strategy of evolution, .* got 'evolutoin' .did you mean"
    ):
        strategies.load("evolutoin")


def test_a_killed_run_goes_on_from_its_log(tmp_path: Path) -> None:
    """Cut off after any number of trials, and in the middle of a line: the same best, no trial lost or repeated."""

    def run(log: Log) -> tuple[float, list[list[int]], list[str]]:
        evaluator = Priced(hills)
        trials = Trials(space(Digits("a", 3)), evaluator, log)
        best = search(trials, [Question({})], [frozenset("a")], evaluations=60, strategy="evolution")
        return best.seconds, evaluator.seen, [repr(t.traced.config) for t in trials.done]

    whole = Log(tmp_path, "whole")
    best, seen, done = run(whole)
    assert whole.path is not None
    lines = whole.path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 60 == len({json.loads(line)["key"] for line in lines})
    for kept in (0, 1, 17, 59, 60):
        for torn in (b"", b'{"key": "0123'):
            part = Log(tmp_path, f"part {kept} {bool(torn)}")
            assert part.path is not None
            part.path.write_bytes(b"".join(lines[:kept]) + torn)
            again = Log(tmp_path, part.path.stem)
            found = run(again)
            assert (found[0], found[2]) == (best, done)
            assert sorted(found[1]) == sorted(seen[len(seen) - len(found[1]) :])
            assert again.path is not None
            read = Log(tmp_path, part.path.stem).known
            assert read.keys() == whole.known.keys(), "each trial is in the log once"
            assert len(again.path.read_bytes().splitlines()) == 60 + bool(torn)


def test_two_runs_at_once_share_a_log(tmp_path: Path) -> None:
    """Both price nothing that the other has: each program is in the log once, and both find the same."""
    both = Barrier(2)

    class Slow(Priced):
        def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
            with suppress(BrokenBarrierError):  # the other waits for its turn
                both.wait(0.05)
            return super().evaluate(programs)

    evaluators = [Slow(hills), Slow(hills)]

    def run(evaluator: Slow) -> tuple[float, list[str]]:
        trials = Trials(space(Digits("a", 3)), evaluator, Log(tmp_path, "log"))
        best = search(trials, [Question({})], [frozenset("a")], evaluations=60, strategy="evolution")
        return best.seconds, [repr(t.traced.config) for t in trials.done]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(run, evaluators)
    assert first == second
    path = Log(tmp_path, "log").path
    assert path is not None
    keys = [json.loads(line)["key"] for line in path.read_bytes().splitlines()]
    assert len(keys) == 60 == len(set(keys))
    assert sum(len(e.seen) for e in evaluators) == len({tuple(s) for e in evaluators for s in e.seen})


def trial(choice: str, seconds: float, evaluator: str) -> Trial:
    question = Question({"a": {"site 0": choice}})
    return Trial(question, space(Digits("a", 1)).trace(question), Evaluation(seconds, PRICED, evaluator))


@pytest.mark.parametrize("interval", ["[1]", "{}", "5", '"ab"', "[[], []]", "[1e-6, null]"])
def test_intervals_that_cannot_be_are_not_read_from_a_log(tmp_path: Path, interval: str) -> None:
    (tmp_path / "trials").mkdir()
    line = (
        '{"key": "k", "seconds": 1e-6, "status": "", "evaluator": "tiles", "work": 0.0, "interval": INTERVAL}'
    )
    (tmp_path / "trials" / "log.jsonl").write_text(line.replace("INTERVAL", interval))
    assert Log(tmp_path, "log").known.keys() <= {("tiles", "k")}


@pytest.mark.parametrize("seconds", ["NaN", "-1.0", "-Infinity", "Infinity", '"fast"'])
def test_prices_that_cannot_be_are_not_read_from_a_log(tmp_path: Path, seconds: str) -> None:
    (tmp_path / "trials").mkdir()
    line = '{"key": "k", "seconds": SECONDS, "status": "", "evaluator": "tiles", "work": 0.0, "config": {}}\n'
    texts = [line.replace("SECONDS", seconds), line.replace('"k"', '"good"').replace("SECONDS", "1e-6")]
    (tmp_path / "trials" / "log.jsonl").write_text("".join(texts))
    assert list(Log(tmp_path, "log").known) == [("tiles", "good")]


def test_what_was_good_before(tmp_path: Path) -> None:
    steps = [Digits("a", 1)]
    store = ConfStore(tmp_path, "sm_90", steps)
    assert store.choice("a", "site 0") is None
    store.keep(trial("1", 2.0, "tiles"), 8.0, program="p", seed=0)
    store.keep(trial("3", 6.0, "kernels"), 8.0, program="p", seed=0)
    store.keep(trial("4", 5.0, "kernels"), 8.0, program="q", seed=0)
    again = ConfStore(tmp_path, "sm_90", steps)
    assert again.choice("a", "site 0") == "4", "compiled prices before those by tiles"
    assert len(again.remembered("a", "site 0")) == 3
    assert again.choice("a", "even") in ("7", "8")
    assert ConfStore(tmp_path, "sm_100", steps).choice("a", "site 0") is None
    assert ConfStore(None, "sm_90", steps).choice("a", "site 0") is None
    for before in (0.0, math.inf):  # nothing to compare with
        again.keep(trial("1", 0.0, "kernels"), before, program="r", seed=0)
    assert len(ConfStore(tmp_path, "sm_90", steps).remembered("a", "site 0")) == 3
    known = Space(KernelGraph("f", [X], [], [X]), steps, again.choice)
    assert digits(known.trace(Question({}, remembered=True)).program)[0] == 4
    assert digits(known.trace(Question({})).program)[0] == 0
    assert digits(known.trace(Question({"a": {"site 0": "3"}}, remembered=True)).program) == [3]


def test_what_other_code_remembered_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites of one name, and their prices, mean something else in another version."""
    steps = [Digits("a", 1)]
    with monkeypatch.context() as older:
        older.setattr("superopt.tuning.confstore.own_code", lambda: "an older version")
        ConfStore(tmp_path, "sm_90", steps).keep(trial("4", 1.0, "kernels"), 8.0, program="p", seed=0)
        assert ConfStore(tmp_path, "sm_90", steps).choice("a", "site 0") == "4"
    assert ConfStore(tmp_path, "sm_90", steps).choice("a", "site 0") is None


def test_a_remembered_choice_that_a_site_lacks_is_repaired(tmp_path: Path) -> None:
    steps = [Digits("a", 1)]
    store = ConfStore(tmp_path, "sm_90", steps)
    store.keep(trial("4", 1.0, "kernels"), 8.0, program="p", seed=0)
    keys = Store(tmp_path).keys()
    (key,) = (k for k in keys if k["program"] == "site 0")
    gone = {"choice": "99", "seconds": 0.1, "before_seconds": 8.0, "evaluator": "kernels", "seed": 0}
    data = json.dumps({**gone, "program": "p"}).encode()
    Store(tmp_path).publish(read_key(key), {"choice.json": data}, seconds=0.0)
    again = ConfStore(tmp_path, "sm_90", steps)
    assert again.choice("a", "site 0") == "99"
    known = Space(KernelGraph("f", [X], [], [X]), steps, again.choice)
    assert digits(known.trace(Question({}, remembered=True)).program)[0] == 0


def test_stores_merge_in_either_order(tmp_path: Path) -> None:
    steps, files = [Digits("a", 1)], list[Path]()
    for number, (choice, seconds) in enumerate((("1", 2.0), ("3", 2.0))):
        folder = tmp_path / str(number)
        ConfStore(folder, "sm_90", steps).keep(trial(choice, seconds, "kernels"), 8.0, program="p", seed=0)
        files.append(tmp_path / f"{number}.zip")
        Store(folder).export(files[-1])
    found: list[tuple[bytes, str | None]] = []
    for name, order in (("ab", files), ("ba", files[::-1]), ("aba", [*files, *files])):
        merged = Store(tmp_path / name)
        for file in order:
            merged.merge(file)
        merged.export(tmp_path / f"{name}.zip")
        best = ConfStore(tmp_path / name, "sm_90", steps).choice("a", "site 0")
        found.append(((tmp_path / f"{name}.zip").read_bytes(), best))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == "1"


def test_a_store_that_holds_nonsense(tmp_path: Path) -> None:
    steps = [Digits("a", 1)]
    store = ConfStore(tmp_path, "sm_90", steps)
    store.keep(trial("1", 2.0, "kernels"), 8.0, program="p", seed=0)
    keys = Store(tmp_path).keys()
    (key,) = (k for k in keys if k["program"] == "site 0")
    record = {
        "choice": "2",
        "seconds": 1.0,
        "before_seconds": 8.0,
        "evaluator": "kernels",
        "seed": 0,
        "program": "p",
    }
    wrong = [
        {"seconds": "x"},
        {"seconds": math.nan},
        {"seconds": -math.inf},
        {"seed": math.inf},
        {"seconds": 10**400},
    ]
    changed = [json.dumps({**record, **w}).encode() for w in wrong]
    for data in (b"", b"[]", b"{}", b"[" * 100_000, *changed):
        Store(tmp_path).publish(read_key(key), {"choice.json": data}, seconds=0.0)
    assert ConfStore(tmp_path, "sm_90", steps).choice("a", "site 0") == "1"
