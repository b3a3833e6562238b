"""The muGraph search as an optimizer: its options, and the entry that every caller uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt.errors import BadOption
from superopt.transforms.optimizers import Optimizer, Proposals, never

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.program import KernelGraph

PRUNE = ("normal-form", "smt", "none")
CANONICAL = ("values", "graphs")
# Values of a program that is searched whole, at most; a larger one is searched in segments alone.
MOST_VALUES = 50


@dataclass(frozen=True)
class MugraphOptimizer(Optimizer):
    """Search fused kernels that no rule named in advance (Mirage, section 4); a search cut off is done in parts.

    Raises BadOption for values out of range.
    """

    name: ClassVar[str] = "mugraph"

    prune: Literal["normal-form", "smt", "none"] = "normal-form"
    """Who says whether a value can contribute to the program: the normal form of its abstract expression, z3
    asked the same question, or nobody (for tests: the space is then bounded by `max_value_operators` alone)."""
    axis_test: bool = True
    """Also require that the axes of a value can still be bound by what remains to be computed."""
    canonical: Literal["values", "graphs"] = "values"
    """What is enumerated. "values": what has equal evaluations is one value with all its derivations. "graphs":
    every operator on the same operands is a node, as in Mirage's algorithm, and graphs of at most
    `max_block_operators` are told apart (for comparison: equal values are then found again and again)."""
    rescale: bool = True
    """Compute sums of exponentials relative to a running maximum where nothing depends on it: softmax in its
    online form, and partial results with their maxima."""
    max_block_operators: int = 24
    """Operators in one custom kernel at most, accumulators included, loads and stores not."""
    max_custom: int = 2
    """Custom kernels in one candidate at most."""
    max_loops: int = 2
    """Axes that one custom kernel loops over at most."""
    max_attempts: int = 100_000
    """Derivations of values that are tried at most, those found pruned included."""
    max_states: int = 2_000_000
    """States that one pass over the kernels may visit, a fifth of them for kernels with the same outputs; what
    is then left out is counted as pruned, and the result not complete. Kernels that compute what they need come
    before those that load it."""
    branch_and_bound: bool = True
    """Leave out what cannot be part of a plan as cheap as those that are known already; off, everything cheaper
    than the program itself is looked at, with the same result."""
    dominance: int = 4
    """Of partial kernels with the same left to do, how many are continued that others surpass in operators and
    work; 0 continues all."""
    threads: int = 0
    """Threads that choose the extents of kernels, or 0 for one a core; the result does not depend on it."""
    max_value_operators: int = 64
    """Operators that a value may need at most; what bounds a search without pruning."""
    max_found: int = 20_000
    """Values that are found at most."""
    candidates: int = 12
    """Candidates to return at most, cheapest first."""
    margin: float = 0.25
    """Plans predicted to take up to this share longer than the best are looked for; others are returned where
    they were met on the way. Of no effect without `branch_and_bound`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("prune", PRUNE), ("canonical", CANONICAL)):
            if getattr(self, name) not in known:
                raise BadOption(
                    f"expected {name} to be one of {', '.join(known)}, got '{getattr(self, name)}'"
                )
        for name in (
            "max_block_operators",
            "max_custom",
            "max_attempts",
            "max_states",
            "max_value_operators",
            "max_found",
            "candidates",
        ):
            if getattr(self, name) < 1:
                raise BadOption(f"expected a positive {name.replace('_', '-')}, got {getattr(self, name)}")
        for name in ("max_loops", "threads", "dominance", "margin"):
            if getattr(self, name) < 0:
                raise BadOption(
                    f"expected a non-negative {name.replace('_', '-')}, got {getattr(self, name)}"
                )

    def refusal(self, program: KernelGraph) -> str:
        """Refused are programs of so many values that no budget would let a search of them end."""
        from superopt.transforms.partition.segments import counted

        if (values := counted(program.nodes)) > MOST_VALUES:
            return f"{values} values, more than the {MOST_VALUES} that one search takes"
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
        """See `descend.propose`."""
        from superopt.transforms.mugraph_search.descend import propose

        return propose(program, target, budget=budget, seed=seed, options=self, stop=stop)
