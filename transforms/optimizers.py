"""The protocol of optimizers, which propose programs, and the one dictionary of all of them.

An optimizer is a folder with a class that derives from `Optimizer`, and one line in `_OPTIMIZERS`; the pipeline,
`superopt-bench prepare`, benchmarks, reports, the store's keys and the random tests find it there. From outside
the package it is registered by `--load-pass-plugin=FILE.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, TypeVar

from superopt.errors import UNKNOWN, BadOption, Location
from superopt.options import Configured, did_you_mean

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.program import KernelGraph
    from superopt.report import EGraphReport

T = TypeVar("T")

# name -> "module:class", in the order in which they run: the last, an exhaustive search, can use whatever seconds
# the others leave.
_OPTIMIZERS: dict[str, str] = {
    "derivation": "superopt.transforms.derivation.optimizer:DerivationOptimizer",
    "saturation": "superopt.transforms.tile_saturation.optimizer:SaturationOptimizer",
    "mugraph": "superopt.transforms.mugraph_search.optimizer:MugraphOptimizer",
}
DEFAULT = tuple(_OPTIMIZERS)
# What reports call the program that is made of the best of each segment.
SEGMENTS = "segments"


@dataclass(frozen=True)
class Proposal:
    """A program that may replace another one, and the seconds it is predicted to take."""

    graph: KernelGraph
    seconds: float


@dataclass
class Proposals:
    """What an optimizer found, fewest predicted seconds first, and how it went."""

    found: list[Proposal] = field(default_factory=list[Proposal])
    funnel: dict[str, int] = field(default_factory=dict[str, int])
    """Counts by stage and reason."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds by stage: wall time within the native muGraph search, work elsewhere."""
    complete: bool = True
    """Whether the space was searched to its end; False where a limit, the budget or `stop` ended it, and where
    the program cannot be searched.
    """
    remark: str = ""
    """Why nothing was found, where that is so, and what would help; without the place, which is `location`."""
    location: Location = UNKNOWN
    """Where in the program the cause is."""

    @property
    def graphs(self) -> list[KernelGraph]:
        """The programs."""
        return [p.graph for p in self.found]

    @property
    def predicted(self) -> list[float]:
        """Their predicted seconds."""
        return [p.seconds for p in self.found]

    def remarks(self, *, statistics: bool = False) -> list[str]:
        """The remarks of a pass that runs only this optimizer; with `statistics`, every count."""
        return [f"{name}: {count}" for name, count in self.funnel.items() if count] if statistics else []

    def egraphs(self) -> list[EGraphReport]:
        """Reports of the e-graphs that were saturated."""
        return []


def in_turns(lists: Sequence[Sequence[T]]) -> list[T]:
    """The first of each, then the second of each, and so on."""
    longest = max(map(len, lists), default=0)
    return [items[i] for i in range(longest) for items in lists if i < len(items)]


def never() -> bool:
    """A `stop` that never stops."""
    return False


@dataclass(frozen=True)
class Optimizer(Configured, ABC):
    """Proposes programs that compute what a given one computes; the fields of a subclass are its options.

    Its proposals are not trusted: each one goes through the gates of `superopt.run.check`.
    """

    name: ClassVar[str]

    @classmethod
    def called(cls) -> str:
        """The name."""
        return cls.name

    @abstractmethod
    def refusal(self, program: KernelGraph) -> str:
        """Why it does not accept `program`, a segment or a whole, as a clause; empty where it does."""

    @abstractmethod
    def propose(
        self,
        program: KernelGraph,
        target: Target,
        *,
        budget: float,
        seed: int = 0,
        stop: Callable[[], bool] = never,
    ) -> Proposals:
        """Programs that may replace `program`, within `budget` seconds of work (`superopt.clock`).

        `stop` is polled and ends the search early; what was found by then is returned. The same seed gives the
        same proposals. `program` is read-only, as proofs are about it; changing it is an error.
        """


def names() -> tuple[str, ...]:
    """The names of all optimizers, in the order in which they run."""
    return tuple(_OPTIMIZERS)


def register(name: str, target: str) -> None:
    """Add an optimizer from outside the package; `target` is "module:Class".

    Raises BadOption on a clash, and for a name that lists and reports could not hold.
    """
    if not re.fullmatch(r"[A-Za-z][\w\-]*", name) or name == SEGMENTS:
        raise BadOption(f"expected an optimizer's name of letters, digits, '-' and '_', got '{name}'")
    if _OPTIMIZERS.get(name, target) != target:
        raise BadOption(f"an optimizer named '{name}' is registered already")
    _OPTIMIZERS[name] = target


def load(text: str) -> Optimizer:
    """The optimizer of `name` or `name{option=value ...}`; raises BadOption for an unknown name or option."""
    name, brace, options = text.partition("{")
    if name not in _OPTIMIZERS or (brace and not options.endswith("}")):
        hint = did_you_mean(name, _OPTIMIZERS)
        have = ", ".join(_OPTIMIZERS)
        raise BadOption(f"expected an optimizer of {have}, with its options in braces, got '{text}'{hint}")
    module, _, attribute = _OPTIMIZERS[name].partition(":")
    loaded: type[Optimizer] = getattr(import_module(module), attribute)
    if loaded.name != name:
        raise ImportError(f"{_OPTIMIZERS[name]} calls itself '{loaded.name}' and is registered as '{name}'")
    return loaded.parse(options.removesuffix("}"))
