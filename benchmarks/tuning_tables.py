"""Spaces of programs, measured whole on the CPU, and strategies that search them again.

python -m benchmarks.tuning_tables --measure [--programs mlp,rmsnorm_linear,gqa_decode]
python -m benchmarks.tuning_tables --describe
python -m benchmarks.tuning_tables [--seeds 30]

--measure lowers every program that the choices of a space make, compiles it for one thread of the CPU and times
it in turns with an anchor (`superopt.tuning.by_cpu`). The tables are kept in benchmarks/results/tuning/, with the
commit. A space has choices of the plan, layouts, splits and tiles: some candidates, from the first to the last of
the searches' ranking, and some choices of each other site. Which is fast on a CPU says nothing of a GPU: the
tables are there to judge strategies and the analytic model by.

Without --measure, each strategy searches each table, from the rules of the passes on, and what counts is after
how many evaluations it has a program within 1 % and 5 % of the best: median and 90th percentile over the seeds.
`model` is the order of the analytic model. Results are in benchmarks/results/tuning_tables.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from benchmarks.record import RESULTS, commit, keep, load

from superopt import cost
from superopt.cost import host
from superopt.cost.features import LOWERED, lowered_features
from superopt.cost.learned import spearman
from superopt.diagnostics import Diagnostics
from superopt.dialects.reader import read
from superopt.program import KernelGraph
from superopt.run import context, propose
from superopt.run.settings import Settings
from superopt.transforms.tunable import Pick, Site, Tunable
from superopt.tuning import strategies
from superopt.tuning.by_cpu import ByCpu
from superopt.tuning.evaluators import Evaluation
from superopt.tuning.improve import steps_of
from superopt.tuning.learned import Learned
from superopt.tuning.loop import BATCH, Trials, search
from superopt.tuning.plan import Plan
from superopt.tuning.space import Question, Space, Step, Traced
from superopt.tuning.strategies.exhaustive import Exhaustive
from superopt.tuning.table import Table, read_table, recorded

FOLDER = RESULTS / "tuning"
# What counts as near the best program.
SHARES = (1.01, 1.05)
MOVING = frozenset({"plan", "choose-layouts", "choose-splits", "choose-tiles"})


def _mlp() -> str:
    """A gated residual of two products through 16 features, 512 rows."""
    x, w1, w2, h = "tensor<512x4096xf16>", "tensor<4096x16xf16>", "tensor<16x4096xf16>", "tensor<512x16xf16>"
    return f"""func.func @mlp(%x: {x}, %a: {w1}, %b: {w2}) -> {x} {{
  %h = "kernel.matmul"(%x, %a) : ({x}, {w1}) -> {h}
  %r = "kernel.relu"(%h) : ({h}) -> {h}
  %o = "kernel.matmul"(%r, %b) : ({h}, {w2}) -> {x}
  %s = "kernel.add"(%o, %x) : ({x}, {x}) -> {x}
  return %s : {x}
}}"""


def _rmsnorm_linear() -> str:
    x, w, o, n = "tensor<16x2048xf16>", "tensor<2048x2048xf16>", "tensor<16x2048xf16>", "tensor<16x1xf16>"
    return f"""func.func @rmsnorm_linear(%x: {x}, %w: {w}) -> {o} {{
  %s = "kernel.square"(%x) : ({x}) -> {x}
  %m = "kernel.reduce_mean"(%s) {{dims = array<i64: 1>, keepdims = true}} : ({x}) -> {n}
  %r = "kernel.rsqrt"(%m) : ({n}) -> {n}
  %y = "kernel.mul"(%x, %r) : ({x}, {n}) -> {x}
  %o = "kernel.matmul"(%y, %w) : ({x}, {w}) -> {o}
  return %o : {o}
}}"""


def _gqa_decode() -> str:
    return (Path(__file__).parent / "mugraph" / "gqa_decode_b1_safe.mlir").read_text()


# The program, and how many candidates of the plan and choices of another site its space has.
PROGRAMS = {
    "mlp": (_mlp, 16, 3),
    "rmsnorm_linear": (_rmsnorm_linear, 12, 4),
    "gqa_decode": (_gqa_decode, 16, 3),
}


@dataclass(frozen=True)
class Fewer:
    """A step whose sites have at most `most` choices: the default, and others evenly from first to last."""

    step: Step
    most: int

    def called(self) -> str:
        """The step's own name."""
        return self.step.called()

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """The step with fewer choices."""

        def asked(site: Site) -> str:
            others = list(site.choices[1:])
            return pick(replace(site, others=lambda: _spread(others, self.most - 1)))

        return self.step.decided(graph, asked, diagnostics)


def _spread(of: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of a sequence, evenly from first to last."""
    if len(of) <= count:
        return list(of)
    return [of[round(i * (len(of) - 1) / max(count - 1, 1))] for i in range(count)]


def space_of(name: str) -> Space:
    """The space of a program."""
    text, kept, choices = PROGRAMS[name]
    graph = read(text())
    run = context.start(graph, Settings(store=None, budget=12), Diagnostics())
    parts = propose.parts(graph)
    candidates = propose.propose(run, parts, lambda stage, share: None)
    plan = Plan(parts, [_spread(found, kept) for found in candidates], run.target)
    steps = [s for s in steps_of(plan, run.target) if s.called() != "choose-launch"]
    return Space(graph, [plan, *(Fewer(s, choices) if isinstance(s, Tunable) else s for s in steps[1:])])


def _whole(trials: Trials) -> None:
    """Every program of a space."""
    (start,) = trials.run([Question({})])
    strategy = Exhaustive(start, MOVING, 0)
    while questions := strategy.ask(BATCH):
        strategy.tell(trials.run(questions))


def measure(name: str) -> dict[str, Any]:
    """The table of one program."""
    begun, work = time.perf_counter(), time.process_time()
    space = space_of(name)
    evaluator = ByCpu(space.graph)
    trials = Trials(space, evaluator)
    _whole(trials)
    table = recorded(trials.done, MOVING)
    traced = {id(t.evaluation): t.traced for t in trials.done}
    for row, found in zip(table["programs"], traced.values(), strict=True):
        row["predicted"] = None if found.error else cost.cost(found.program, host()).seconds
        row["features"] = None if found.error else _features(found.program)
    return {
        "anchor_seconds": evaluator.anchor_seconds,
        "cpu_seconds": round(time.process_time() - work + evaluator.cpu.seconds, 1),
        "wall_seconds": round(time.perf_counter() - begun, 1),
        **table,
    }


def _features(program: KernelGraph) -> list[float]:
    found = lowered_features(program, host())
    return [found[feature] for feature in LOWERED]


class _Unpriced:
    """Prices nothing: a space is only walked."""

    name, blind = "none", frozenset[str]()

    def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        return [Evaluation(1.0, "not priced", self.name) for _ in programs]


def made(name: str, table: dict[str, Any]) -> dict[int, Traced]:
    """The programs of a measured table, by number; raises ValueError where its space can no longer be made."""
    trials = Trials(space_of(name), _Unpriced())
    _whole(trials)
    known = {
        frozenset((d.site.at, d.choice) for d in t.traced.decisions if d.flag in MOVING): t.traced
        for t in trials.done
    }
    found: dict[int, Traced] = {}
    for number, *chosen in table["points"]:
        sites = ((table["sites"][place], choice) for place, choice in chosen)
        if (traced := known.get(frozenset((s["site"], s["choices"][c]) for s, c in sites))) is None:
            raise ValueError(f"{name}: expected a space that can still be made, got one with other choices")
        found[number] = traced
    return found


def describe(name: str) -> None:
    """Add features to a measured table, where its space can still be made; raises ValueError where it cannot."""
    table = json.loads((FOLDER / f"{name}.json").read_bytes())
    for number, traced in made(name, table).items():
        table["programs"][number]["features"] = None if traced.error else _features(traced.program)
    _write(name, table)


def save(name: str, table: dict[str, Any]) -> None:
    """Write a table with the commit and day."""
    head = {"commit": commit(), "date": time.strftime("%Y-%m-%d", time.gmtime()), "cpu": _cpu()}
    _write(name, head | table)


def _write(name: str, table: dict[str, Any]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    lists = {k: table.pop(k) for k in ("sites", "programs", "points")}
    lines = [json.dumps(table)[:-1]]
    for key, rows in lists.items():
        lines.append(f', "{key}": [\n' + ",\n".join(json.dumps(_short(row)) for row in rows) + "\n]")
    (FOLDER / f"{name}.json").write_text("".join(lines) + "}\n")


def _short(row: Any) -> Any:
    """Seconds to five digits."""
    if isinstance(row, float):
        return float(f"{row:.5g}")
    if isinstance(row, dict):
        return {k: _short(v) for k, v in cast("dict[str, Any]", row).items()}
    return [_short(v) for v in cast("list[Any]", row)] if isinstance(row, list | tuple) else row


def _cpu() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else "unknown"


# --- replay -----------------------------------------------------------------------------------------------


def replay(name: str, seeds: int) -> dict[str, Any]:
    """How soon strategies, and the order of the model, are near the best program of a table."""
    path = FOLDER / f"{name}.json"
    data, table = json.loads(path.read_bytes()), read_table(path)
    rows = [r for r in data["programs"] if r["seconds"] is not None]
    seconds = [r["seconds"] for r in rows]
    widths = [(r["interval"][1] - r["interval"][0]) / 2 / r["seconds"] for r in rows]
    found: dict[str, Any] = {
        "programs": len(data["programs"]),
        "rejected": len(data["programs"]) - len(rows),
        "best_ms": round(1e3 * min(seconds), 4),
        "rules_ms": round(1e3 * data["programs"][0]["seconds"], 4),
        "median_ms": round(1e3 * statistics.median(seconds), 4),
        "worst_ms": round(1e3 * max(seconds), 4),
        "half_interval": round(statistics.median(widths), 4),
        "rank_correlation": round(spearman([(r["seconds"], r["predicted"]) for r in rows]) or 0.0, 3),
    }
    ranked = [r["seconds"] for r in sorted(rows, key=lambda r: r["predicted"])]
    found["model"] = _summary([ranked], min(seconds))
    for method in strategies.names():
        runs = 1 if method == "exhaustive" else seeds
        courses = [course(table, method, seed, min(SHARES)) for seed in range(runs)]
        found[method] = _summary(courses, min(seconds))
    return found


def course(table: Table, method: str, seed: int, share: float, screen: Learned | None = None) -> list[float]:
    """Seconds in the order in which a strategy asks for them, until some are within `share` times the best."""
    trials = Trials(table, table, screen=screen)
    found: list[float] = []

    def near() -> bool:
        found.extend(
            math.inf if e.seconds is None else e.seconds for e in [*trials.known.values()][len(found) :]
        )
        return min(found) <= share * table.best

    most = len(table.evaluations)
    search(trials, [Question({})], [MOVING], evaluations=most, strategy=method, seed=seed, stop=near)
    near()
    return found


def _summary(courses: Sequence[Sequence[float]], best: float) -> dict[str, list[int | None]]:
    """Evaluations until 1 % and 5 % from the best: median and 90th percentile; None where that is never."""
    found: dict[str, list[int | None]] = {}
    for share in SHARES:
        needed = sorted(
            next((i + 1 for i, s in enumerate(course) if s <= share * best), math.inf) for course in courses
        )
        at = statistics.median_high(needed), needed[math.ceil(0.9 * len(needed)) - 1]
        found[f"within_{share:.2f}"] = [None if n == math.inf else int(n) for n in at]
    return found


def main() -> None:
    """Measure tables, or replay them."""
    parser = argparse.ArgumentParser(description="Spaces measured whole, and strategies that search them.")
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--measure", action="store_true", help="measure the tables again")
    parser.add_argument("--describe", action="store_true", help="add features to the tables")
    parser.add_argument("--seeds", type=int, default=30)
    given = parser.parse_args()
    rows = load("tuning_tables")
    for name in given.programs.split(","):
        if given.measure:
            table = measure(name)
            print(f"{name}: {len(table['programs'])} programs, {table['cpu_seconds']} CPU s", flush=True)
            save(name, table)
        elif given.describe:
            describe(name)
        else:
            rows[name] = {"seeds": given.seeds, **replay(name, given.seeds)}
            keep("tuning_tables", rows, target="cpu")
            print(f"{name:16} {json.dumps(rows[name])}", flush=True)


if __name__ == "__main__":
    main()
