"""Equality saturation of tile loops as an optimizer: its options, and the entry that every caller uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt.errors import BadOption
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
    """Iterations of all rules at most."""
    nodes: int = 20_000
    """Nodes in one e-graph at most."""
    memory_mb: int = 3072
    """Memory of one e-graph at most, in MiB."""
    inline: tuple[Literal["all", "single"], ...] = ("all", "single")
    """How values with several users start, an e-graph each: written into each (all) or stored (single)."""
    rules: tuple[str, ...] = ()
    """Rules to apply besides the default ones; those to leave out have a minus in front."""
    kernels: int = 12
    """Kernels in one candidate at most."""
    best: int = 12
    """Terms to extract for each number of kernels."""
    candidates: int = 8
    """Candidates to return at most, cheapest first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("iterations", "nodes", "memory_mb", "kernels", "best", "candidates"):
            if getattr(self, name) < 1:
                raise BadOption(f"expected a positive {name.replace('_', '-')}, got {getattr(self, name)}")
        enabled_rules(self.rules)

    def refusal(self, program: KernelGraph) -> str:
        """None: what tile loops do not express is told while they are written."""
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
        """See `search.propose`; deterministic, so that `seed` changes nothing."""
        del seed
        from superopt.transforms.tile_saturation.search import propose

        return propose(program, target, budget=budget, options=self, stop=stop)


def enabled_rules(changes: Sequence[str] = ()) -> list[str]:
    """The default rules with `changes` (`name` adds, `-name` removes); BadOption for an unknown name."""
    from superopt.transforms.core import _egraph

    known = [(name, on) for name, *_, on in _egraph.rules()]
    names = {name for name, _ in known}
    for change in changes:
        if change.removeprefix("-") not in names:
            raise BadOption(f"expected the name of a rule, got '{change.removeprefix('-')}'")
    off = {c[1:] for c in changes if c.startswith("-")}
    return [name for name, on in known if (on or name in changes) and name not in off]
