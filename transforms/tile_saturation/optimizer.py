"""Equality saturation of tile loops as an optimizer: its options, and the entry that every caller uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt.errors import BadOption
from superopt.transforms.core import _egraph
from superopt.transforms.optimizers import Optimizer, Proposals, never

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.program import KernelGraph


@dataclass(frozen=True)
class SaturationOptimizer(Optimizer):
    """Rewrite the program as tile loops in every way that the rules allow (Trinity, ASPLOS 2026).

    Raises BadOption for values out of range or unknown rules.
    """

    name: ClassVar[str] = "saturation"

    iterations: int = 20
    """Maximum number of iterations of all rules."""
    nodes: int = 20_000
    """Maximum number of nodes in an e-graph."""
    memory_mb: int = 3072
    """Maximum memory of an e-graph, in MiB."""
    inline: tuple[Literal["all", "single"], ...] = ("all", "single")
    """How values with several users start: inlined into every user (all) or stored (single), an e-graph each."""
    rules: tuple[str, ...] = ()
    """Rules to add to the default ones; a leading minus removes a rule."""
    kernels: int = 12
    """Maximum number of kernels in a candidate."""
    best: int = 12
    """Terms to extract for each number of kernels."""
    candidates: int = 8
    """Maximum number of candidates to return, cheapest first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("iterations", "nodes", "memory_mb", "kernels", "best", "candidates"):
            if getattr(self, name) < 1:
                raise BadOption(f"expected a positive {name.replace('_', '-')}, got {getattr(self, name)}")
        enabled_rules(self.rules)

    def refusal(self, program: KernelGraph) -> str:
        """Refuses nothing: what tile loops cannot express is reported when they are written."""
        return ""

    def propose(
        self,
        program: KernelGraph,
        target: Target,
        *,
        budget: float,
        seed: int = 0,
        stop: Callable[[], bool] = never,
    ) -> Proposals:
        """See `search.propose`; deterministic, so `seed` has no effect."""
        del seed
        from superopt.transforms.tile_saturation.search import propose

        return propose(program, target, budget=budget, options=self, stop=stop)


def enabled_rules(changes: Sequence[str] = ()) -> list[str]:
    """The default rules with `changes` (`name` adds, `-name` removes); BadOption for an unknown name."""
    known = [(name, on) for name, *_, on in _egraph.rules()]
    names = {name for name, _ in known}
    for change in changes:
        if change.removeprefix("-") not in names:
            raise BadOption(f"expected the name of a rule, got '{change.removeprefix('-')}'")
    off = {c[1:] for c in changes if c.startswith("-")}
    return [name for name, on in known if (on or name in changes) and name not in off]
