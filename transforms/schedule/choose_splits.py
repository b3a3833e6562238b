"""`--choose-splits`: how many blocks share a reduction that a later kernel completes, as decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt.program import KernelGraph
from superopt.transforms.fingerprints import named
from superopt.transforms.schedule.splits import Split, Splits
from superopt.transforms.tunable import Choices, Pick, Picked, Site, Tunable

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics


@dataclass(frozen=True)
class ChooseSplits(Tunable):
    """Give the reductions that several blocks of a lowered program share the numbers of parts of `config`.

    By itself it changes nothing: the search has chosen. Other numbers of parts are guesses to be proved.
    """

    flag: ClassVar[str] = "choose-splits"
    level: ClassVar[Literal["graph", "kernel"]] = "graph"

    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """64 blocks, each 64 keys -> parts[64] -> summed  ->  32 blocks, each 128 keys -> parts[32] -> summed"""
        return _decided(graph, pick)[0]


def split_parameters(lowered: KernelGraph, choices: Choices) -> dict[str, int]:
    """The numbers of parts that `choices` give a lowered program, named as a schedule names them."""
    return _decided(lowered, Picked(choices))[1]


def with_splits(lowered: KernelGraph, parts: Mapping[str, int]) -> KernelGraph | None:
    """`lowered` with these numbers of parts, by name; None where that is impossible."""
    graph: KernelGraph | None = lowered
    for name, number in parts.items():
        graph = Splits(graph).apply(name, number)
        if graph is None:
            return None
    return graph


def _decided(graph: KernelGraph, pick: Pick) -> tuple[KernelGraph, dict[str, int]]:
    """The program, and the numbers of parts that are not as before."""
    program, taken = named(graph), dict[str, int]()
    splits = _splits(graph)
    for name in list(splits.found):
        if (split := splits.found.get(name)) is None:  # it went with another's parts
            continue

        def others(splits: Splits = splits, split: Split = split) -> list[str]:
            return [str(p) for p in split.choices() if _applied(splits, split.name, p) is not None]

        parts = int(pick(Site(f"{program}.{name}", str(split.parts), others, graph.location)))
        if parts != split.parts and (made := _applied(splits, name, parts)) is not None:
            taken[name] = parts
            splits = _splits(made)
    return splits.lowered, taken


# A search asks for few lowered programs again and again, by identity, and to resize one takes milliseconds.
@lru_cache(maxsize=256)
def _splits(graph: KernelGraph) -> Splits:
    return Splits(graph)


@lru_cache(maxsize=1024)
def _applied(splits: Splits, name: str, parts: int) -> KernelGraph | None:
    return splits.apply(name, parts)
