"""
The muGraph search: expressions, values over named axes, kernels, sizes.
"""

from collections.abc import Sequence

import superopt.transforms.core._cost


class Algebra:
    """Abstract expressions in normal form; equal ones have equal numbers."""

    def __init__(self) -> None: ...

    def input(self, symbol: int, mask: int = 0) -> int: ...

    def apply(self, function: int, args: Sequence[int]) -> int: ...

    def add(self, a: int, b: int) -> int: ...

    def mul(self, a: int, b: int) -> int: ...

    def div(self, a: int, b: int) -> int: ...

    def sum(self, factor: int, a: int) -> int: ...

    def subexpression(self, part: int, whole: int) -> bool:
        """Whether `part` is an abstract subexpression of `whole`."""

class Problem:
    """A program over named axes."""

    def __init__(self) -> None: ...

    def add_axis(self, extent: int, split: bool, loop: bool) -> int:
        """
        Add an axis with a tile factor and, where wanted, a split and a loop factor; its number.
        """

    def add_input(self, tensor: int, dims: Sequence[Sequence[int]], element_bytes: int) -> None:
        """Add one use of input `tensor` with the axes of its dims."""

    def add_constant(self, value: float) -> None: ...

    def add_function(self, key: int, commutative: bool, ordered: bool, reduction: bool, flops: float, special: float, over: Sequence[int] = [], along: Sequence[int] = []) -> None:
        """
        Add an uninterpreted function; of an exponential taken relative to a maximum, `over` are the axes that the maximum ranges over, `along` those it varies along.
        """

    def add_node(self, op: str, args: Sequence[int], function: int, reduced: Sequence[int], aside: bool = False, same: int | None = None) -> int:
        """
        Add an operation (all inputs and constants are there already); its number. What stands aside is computed as it is or not at all; `same` is the operation that it computes in another way.
        """

    def set_outputs(self, refs: Sequence[int], dims: Sequence[Sequence[Sequence[int]]] = []) -> None:
        """
        The outputs, and the axes of each of their dimensions, by which memory holds them; without these, any layout will do.
        """

    @property
    def factors(self) -> list[tuple[int, int]]:
        """Per factor its axis and level (0 split, 1 loop, 2 tile)."""

class Options:
    """How far to look."""

    def __init__(self) -> None: ...

    @property
    def prune(self) -> int:
        """0 normal form, 1 smt, 2 none"""

    @prune.setter
    def prune(self, arg: int, /) -> None: ...

    @property
    def axis_test(self) -> bool: ...

    @axis_test.setter
    def axis_test(self, arg: bool, /) -> None: ...

    @property
    def canonical(self) -> int:
        """0 values, 1 graphs"""

    @canonical.setter
    def canonical(self, arg: int, /) -> None: ...

    @property
    def max_block_operators(self) -> int: ...

    @max_block_operators.setter
    def max_block_operators(self, arg: int, /) -> None: ...

    @property
    def max_custom(self) -> int: ...

    @max_custom.setter
    def max_custom(self, arg: int, /) -> None: ...

    @property
    def max_loops(self) -> int: ...

    @max_loops.setter
    def max_loops(self, arg: int, /) -> None: ...

    @property
    def branch_and_bound(self) -> bool: ...

    @branch_and_bound.setter
    def branch_and_bound(self, arg: bool, /) -> None: ...

    @property
    def dominance(self) -> int: ...

    @dominance.setter
    def dominance(self, arg: int, /) -> None: ...

    @property
    def threads(self) -> int: ...

    @threads.setter
    def threads(self, arg: int, /) -> None: ...

    @property
    def max_states(self) -> int: ...

    @max_states.setter
    def max_states(self, arg: int, /) -> None: ...

    @property
    def max_value_operators(self) -> int: ...

    @max_value_operators.setter
    def max_value_operators(self, arg: int, /) -> None: ...

    @property
    def max_found(self) -> int: ...

    @max_found.setter
    def max_found(self, arg: int, /) -> None: ...

    @property
    def max_attempts(self) -> int: ...

    @max_attempts.setter
    def max_attempts(self, arg: int, /) -> None: ...

    @property
    def candidates(self) -> int: ...

    @candidates.setter
    def candidates(self, arg: int, /) -> None: ...

    @property
    def margin(self) -> float: ...

    @margin.setter
    def margin(self, arg: float, /) -> None: ...

    @property
    def budget_seconds(self) -> float: ...

    @budget_seconds.setter
    def budget_seconds(self, arg: float, /) -> None: ...

    @property
    def seed(self) -> int: ...

    @seed.setter
    def seed(self, arg: int, /) -> None: ...

    @property
    def intermediate_bytes(self) -> int: ...

    @intermediate_bytes.setter
    def intermediate_bytes(self, arg: int, /) -> None: ...

    @property
    def target(self) -> superopt.transforms.core._cost.TargetNumbers: ...

    @target.setter
    def target(self, arg: superopt.transforms.core._cost.TargetNumbers, /) -> None: ...

class Step:
    """One operation of a kernel."""

    @property
    def value(self) -> int: ...

    @property
    def op(self) -> str: ...

    @property
    def function(self) -> int: ...

    @property
    def reduced(self) -> list[int]: ...

    @property
    def args(self) -> list[int]: ...

class Kernel:
    """One kernel of a plan; extents are per factor."""

    @property
    def custom(self) -> bool: ...

    @property
    def outputs(self) -> list[int]: ...

    @property
    def leaves(self) -> list[int]: ...

    @property
    def steps(self) -> list[Step]: ...

    @property
    def loops(self) -> list[int]: ...

    @property
    def tile(self) -> list[int]: ...

    @property
    def full(self) -> list[int]: ...

    @property
    def shared(self) -> list[list[int]]: ...

    @property
    def seconds(self) -> float: ...

class Plan:
    """A whole program: kernels in the order they run."""

    @property
    def seconds(self) -> float: ...

    @property
    def split(self) -> int: ...

    @property
    def kernels(self) -> list[Kernel]: ...

class ValueInfo:
    """A value that some plan may use."""

    @property
    def factors(self) -> list[int]: ...

    @property
    def degrees(self) -> dict[int, int]: ...

    @property
    def leaf(self) -> str: ...

    @property
    def symbol(self) -> int: ...

    @property
    def derivations(self) -> int: ...

class Result:
    """Plans, cheapest first, and how the search went."""

    @property
    def plans(self) -> list[Plan]: ...

    @property
    def values(self) -> dict[int, ValueInfo]: ...

    @property
    def outputs(self) -> list[int]: ...

    @property
    def funnel(self) -> dict[str, float]: ...

    @property
    def program_seconds(self) -> float: ...

    @property
    def complete(self) -> bool: ...

def search(problem: Problem, options: Options, stop: object | None, oracle: object | None) -> Result:
    """
    Search plans with custom kernels. `stop()` ends it early; `oracle(term, targets)` answers the pruning question where `options.prune` is 1.
    """

def enumerate_kernels(problem: Problem, options: Options, oracle: object | None, every: bool = False) -> Result:
    """
    Every graph of one kernel that computes the outputs, or (`every`) any value that can be stored, as a plan each, without sizes.
    """
