"""What is searched: the decisions of a chain of passes, each program being an answer to a question."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeAlias

from typing_extensions import TypeIs

from superopt.cost import Target
from superopt.diagnostics import Diagnostics
from superopt.errors import SuperoptError
from superopt.program import KernelGraph
from superopt.transforms.fingerprints import named
from superopt.transforms.lower.lower import lower
from superopt.transforms.tunable import Config, Pick, Site

# Lowered programs that are kept: those of graphs that are asked for again.
_MOST_LOWERED = 64


class Step(Protocol):
    """One pass of a chain; a `Tunable`, or one without decisions."""

    def called(self) -> str:
        """Its name in configurations."""
        ...

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """The graph after it, `pick` having been asked for each decision."""
        ...


@dataclass(frozen=True)
class Lower:
    """Lowering, between the decisions on graphs and those on kernels."""

    target: Target

    def called(self) -> str:
        """lower"""
        return "lower"

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """Tile programs for all that runs."""
        return lower(graph, self.target, diagnostics)


# The choice that was good before at a site of a pass, if any.
Known: TypeAlias = Callable[[str, str], str | None]


def nothing(flag: str, at: str) -> None:
    """Remember nothing."""


@dataclass(frozen=True)
class Question:
    """The choices of a program: those of `config`; elsewhere random ones for the flags of `free`, or the default.

    A choice that does not exist behind other choices is repaired so, too. With `remembered`, what was good before
    stands for the default.
    """

    config: Config
    free: frozenset[str] = frozenset()
    seed: int = 0
    remembered: bool = False

    def pick(self, flag: str, site: Site, known: Known) -> str:
        """The choice at a site; `known` is what was good before."""
        if _valid(wanted := self.config.get(flag, {}).get(site.at), site):
            return wanted
        if flag in self.free:
            return random.Random(f"{self.seed} {flag} {site.at}").choice(site.choices)
        if self.remembered and _valid(good := known(flag, site.at), site):
            return good
        return site.default


def _valid(choice: str | None, site: Site) -> TypeIs[str]:
    return choice is not None and (choice == site.default or choice in site.choices)


@dataclass(frozen=True)
class Decision:
    """What was chosen at a site of a pass."""

    flag: str
    site: Site
    choice: str

    @property
    def key(self) -> tuple[str, str]:
        """The site's name in configurations."""
        return self.flag, self.site.at


@dataclass(frozen=True)
class Traced:
    """The answer to a question: the decisions that were asked for, in order, and the program after each step.

    `error` says why there is none.
    """

    decisions: tuple[Decision, ...]
    graphs: Mapping[str, KernelGraph] = field(default_factory=dict[str, KernelGraph])
    error: str = ""

    @property
    def program(self) -> KernelGraph:
        """The program after the last step."""
        return list(self.graphs.values())[-1]

    @cached_property
    def key(self) -> str:
        """What a price belongs to: the program, or the choices that led to none."""
        return repr([(*d.key, d.choice) for d in self.decisions]) if self.error else named(self.program)

    @property
    def config(self) -> dict[str, dict[str, str]]:
        """All of its choices."""
        found: dict[str, dict[str, str]] = {}
        for decision in self.decisions:
            found.setdefault(decision.flag, {})[decision.site.at] = decision.choice
        return found


class Traceable(Protocol):
    """What is searched: a `Space`, or a table of one."""

    def trace(self, question: Question) -> Traced:
        """The program that answers a question."""
        ...


# What was chosen until some point: pass, site and choice, in the order in which they were asked for.
_Path: TypeAlias = tuple[tuple[str, str, str], ...]


class Space:
    """The programs that `graph` may become by the decisions of `steps`, in their order.

    Strategies ask for the same choices again and again. So the decisions that were asked for are kept as a tree,
    whose leaves are the answers.
    """

    def __init__(self, graph: KernelGraph, steps: Sequence[Step], known: Known = nothing) -> None:
        self.graph, self.steps, self.known = graph, steps, known
        self._lowered: dict[_Path, KernelGraph] = {}
        self._asked: dict[_Path, tuple[str, Site] | Traced] = {}

    def trace(self, question: Question) -> Traced:
        """The program that answers a question."""
        path: _Path = ()
        while (place := self._asked.get(path)) is not None:
            if isinstance(place, Traced):
                return place
            flag, site = place
            path = (*path, (flag, site.at, question.pick(flag, site, self.known)))
        traced = self._traced(question)
        path = ()
        for decision in traced.decisions:
            self._asked.setdefault(path, (decision.flag, decision.site))
            path = (*path, (*decision.key, decision.choice))
        self._asked[path] = traced
        return traced

    def _traced(self, question: Question) -> Traced:
        decisions: dict[tuple[str, str], Decision] = {}
        graphs: dict[str, KernelGraph] = {}
        graph = self.graph
        for step in self.steps:

            def pick(site: Site, name: str = step.called()) -> str:
                flag = site.of or name
                known = decisions.get((flag, site.at))
                if known is not None:
                    return known.choice if known.choice in site.choices else site.default
                decision = Decision(flag, site, question.pick(flag, site, self.known))
                decisions[decision.key] = decision
                return decision.choice

            try:
                if isinstance(step, Lower):
                    graph = self._once(step, graph, tuple((*d.key, d.choice) for d in decisions.values()))
                else:
                    graph = step.decided(graph, pick, Diagnostics())
            except SuperoptError as error:
                return Traced(tuple(decisions.values()), graphs, f"{step.called()}: {error.message}")
            graphs[step.called()] = graph
        return Traced(tuple(decisions.values()), graphs)

    def _once(self, step: Lower, graph: KernelGraph, key: _Path) -> KernelGraph:
        if key not in self._lowered:
            if len(self._lowered) == _MOST_LOWERED:
                del self._lowered[next(iter(self._lowered))]
            self._lowered[key] = lower(graph, step.target)
        return self._lowered[key]
