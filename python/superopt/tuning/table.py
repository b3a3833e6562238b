"""Tables: spaces of programs that were measured once, whole, and are searched again by looking seconds up.

A table has the sites of a space that moved, and its points: what was chosen at each that was asked for, in order,
and what the program takes. Other sites kept what their passes do by themselves; sites that exist only behind
other choices are where the points say. Strategies search a table as they search a `Space`; nothing is lowered or
run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from superopt.cost.features import LOWERED
from superopt.program import Attr, KernelGraph, Node, TensorType, Value
from superopt.transforms.tunable import Site
from superopt.tuning.evaluators import Evaluation
from superopt.tuning.space import Decision, Question, Traced, nothing
from superopt.tuning.strategies.strategy import Trial


@dataclass
class _Fork:
    """The site that is asked for next, and where each choice leads: to another one or to a program."""

    flag: str
    site: Site
    next: dict[str, _Fork | KernelGraph] = field(default_factory=dict[str, "_Fork | KernelGraph"])


@dataclass
class Table:
    """A measured space, and its evaluator: `evaluations` and `features` (`cost.features.LOWERED`) by program."""

    root: _Fork | KernelGraph
    evaluations: dict[KernelGraph, Evaluation]
    features: dict[KernelGraph, dict[str, float]] = field(
        default_factory=dict[KernelGraph, "dict[str, float]"]
    )
    name: str = "table"
    blind: frozenset[str] = frozenset()

    def trace(self, question: Question) -> Traced:
        """The point that answers a question."""
        decisions: list[Decision] = []
        place = self.root
        while isinstance(place, _Fork):
            choice = question.pick(place.flag, place.site, nothing)
            decisions.append(Decision(place.flag, place.site, choice))
            place = place.next[choice]
        return Traced(tuple(decisions), {"table": place})

    def evaluate(self, programs: Sequence[KernelGraph]) -> list[Evaluation]:
        """What was measured."""
        return [self.evaluations[program] for program in programs]

    @property
    def best(self) -> float:
        """The fewest seconds of all programs."""
        return min(e.seconds for e in self.evaluations.values() if e.seconds is not None)


def recorded(trials: Sequence[Trial], moving: Collection[str]) -> dict[str, Any]:
    """The trials of a whole space, as JSON: sites of the passes that moved, points, and seconds by program."""
    sites: dict[tuple[str, str], dict[str, Any]] = {}
    numbers: dict[tuple[str, str], int] = {}
    programs: dict[int, int] = {}
    rows: list[dict[str, Any]] = []
    points: list[list[Any]] = []
    for trial in trials:
        chosen: list[list[int]] = []
        for d in trial.traced.decisions:
            if d.flag not in moving:
                continue
            key = d.site.at, d.flag
            known = sites.setdefault(
                key, {"pass": d.flag, "site": d.site.at, "choices": list(d.site.choices)}
            )
            chosen.append([numbers.setdefault(key, len(numbers)), known["choices"].index(d.choice)])
        number = programs.setdefault(id(trial.evaluation), len(programs))
        if number == len(rows):
            e = trial.evaluation
            rows.append({"seconds": e.seconds, "interval": e.interval, "status": e.status})
        points.append([number, *chosen])
    return {"sites": list(sites.values()), "programs": rows, "points": points}


def read_table(path: Path) -> Table:
    """A table from what `recorded` gave, in a file; raises ValueError for a space that is not whole."""
    data: dict[str, Any] = json.loads(path.read_bytes())
    sites = [_site(s) for s in data["sites"]]
    graphs = [_stand_in(i) for i in range(len(data["programs"]))]
    rows = zip(graphs, data["programs"], strict=True)
    evaluations = {graph: Evaluation(row["seconds"], row["status"], "table") for graph, row in rows}
    features = {
        graph: dict[str, float](zip(LOWERED, row["features"], strict=True))
        for graph, row in zip(graphs, data["programs"], strict=True)
        if row.get("features")
    }
    top: dict[str, _Fork | KernelGraph] = {}
    points: list[list[Any]] = data["points"]
    for number, *chosen in points:
        inner, at = top, ""
        for place in chosen:
            flag, found = sites[int(place[0])]
            fork = inner.setdefault(at, _Fork(flag, found))
            if not isinstance(fork, _Fork) or fork.site is not found:
                raise ValueError(f"{path}: expected one site behind the same choices, got two")
            inner, at = fork.next, found.choices[int(place[1])]
        inner[at] = graphs[number]
    _check_whole(top[""], path)
    return Table(top[""], evaluations, features)


def _site(data: dict[str, Any]) -> tuple[str, Site]:
    """The pass that asks, and what it asks."""
    choices: list[str] = data["choices"]
    return data["pass"], Site(data["site"], choices[0], lambda: choices)


def _check_whole(place: _Fork | KernelGraph, path: Path) -> None:
    if isinstance(place, _Fork):
        if missing := set(place.site.choices) - set(place.next):
            raise ValueError(f"{path}: expected every choice of site {place.site.at}, got none for {missing}")
        for inner in place.next.values():
            _check_whole(inner, path)


def _stand_in(number: int) -> KernelGraph:
    """A graph that stands for a program, unlike the others'."""
    kind = TensorType((), "f32")
    value = Value(kind)
    attrs: dict[str, Attr] = {"value": float(number), "shape": (), "dtype": "f32"}
    return KernelGraph("point", [], [Node("constant", (), (value,), attrs)], [value])
