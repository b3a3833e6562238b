"""The muGraph search as an optimizer: its options, and the entry that every caller uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from superopt.errors import BadOption
from superopt.transforms.optimizers import Optimizer, Proposals, never
from superopt.transforms.partition.segments import counted

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.program import KernelGraph

PRUNE = ("normal-form", "smt", "none")
CANONICAL = ("values", "graphs")
# Values of a program that is searched whole, at most; a larger one is searched in segments alone.
MOST_VALUES = 50


@dataclass(frozen=True)
class MugraphOptimizer(Optimizer):
    """Search for fused kernels without rules that name them (Mirage, section 4); in parts where it is cut off.

    Raises BadOption for values out of range.
    """

    name: ClassVar[str] = "mugraph"

    prune: Literal["normal-form", "smt", "none"] = "normal-form"
    """What decides whether a value can contribute to the program: the normal form of its abstract expression, z3
    asked the same question, or nothing (for tests: then only `max-value-operators` bounds the space)."""
    axis_test: bool = True
    """Also require that the rest of the computation can still bind the axes of a value."""
    canonical: Literal["values", "graphs"] = "values"
    """What to enumerate. "values": values with equal evaluations are one value with all its derivations.
    "graphs": every operator on the same operands is a node, as in Mirage's algorithm, and graphs of up to
    `max-block-operators` are kept apart (for comparison: this finds equal values again and again)."""
    rescale: bool = True
    """Compute sums of exponentials relative to a running maximum where the result does not depend on it: online
    softmax, and partial results with their maxima."""
    max_block_operators: int = 24
    """Maximum number of operators in a custom kernel, counting accumulators but not loads and stores."""
    max_custom: int = 2
    """Maximum number of custom kernels in a candidate."""
    max_loops: int = 2
    """Maximum number of axes that a custom kernel loops over."""
    max_attempts: int = 100_000
    """Maximum number of derivations of values to try, including those found pruned."""
    max_states: int = 2_000_000
    """Maximum number of states that one pass over the kernels visits, a fifth of them for kernels with the same
    outputs. What is left out counts as pruned, and the result as incomplete. Kernels that compute what they need
    come before those that load it."""
    branch_and_bound: bool = True
    """Skip what cannot be part of a plan as cheap as the known ones. When off, the search examines everything
    cheaper than the program itself, with the same result."""
    dominance: int = 4
    """Among partial kernels with the same work left, how many to continue that others surpass in operators and
    work; 0 continues all."""
    threads: int = 0
    """Threads that choose the extents of kernels, or 0 for one per core; the result does not depend on it."""
    max_value_operators: int = 64
    """Maximum number of operators that a value may need; this bounds a search without pruning."""
    max_found: int = 20_000
    """Maximum number of values to find."""
    candidates: int = 12
    """Maximum number of candidates to return, cheapest first."""
    margin: float = 0.25
    """Look for plans predicted to take up to this share longer than the best; others are returned if met on the
    way. Has no effect without `branch-and-bound`."""

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
        """Refuses programs with so many values that no budget would let their search end."""
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
