"""
Equality saturation of tile programs: the e-graph, its rules and guards, extraction.
"""

from collections.abc import Sequence

import superopt.transforms.core._cost


def rules() -> list[tuple[str, str, str, list[tuple[str, str]], str, bool]]:
    """
    (name, before, after, guards, source, on by default) of every rule; of a guard its name and what it asks.
    """

def guards() -> list[str]:
    """Names of the guards that `weaken` takes."""

class EGraph:
    """Tile programs, equal ones in one class; ids are numbers of classes."""

    def __init__(self) -> None: ...

    def add_var(self, name: str, end: int, step: int, nominal: int, grid: bool = True) -> int:
        """A loop variable over range(0, end, step); step 0 is a parameter."""

    def add_tensor(self, name: str, shape: Sequence[int], kind: int, members: Sequence[int] = [], bytes: int = 4) -> int:
        """
        A tensor (kind 0 input, 1 output, 2 temporary), or a bundle of the members; bytes of an element.
        """

    def access(self, tensor: int, dims: Sequence[tuple[int, int, int]]) -> int:
        """
        A region: per dimension (0,0,0) all, (1,v,base) tile, (2,v,base) element, (3,base,size) range,
        (4,v,size) block.
        """

    def loop_head(self, var: int, inits: Sequence[tuple[int, int]]) -> int:
        """
        A loop and the regions filled before it, with 0 (0) or minus infinity (1).
        """

    def constant(self, arg0: float, arg1: Sequence[int], /) -> int: ...

    def ints(self, arg: Sequence[int], /) -> int: ...

    def shape(self, arg: Sequence[int], /) -> int: ...

    def name(self, name: str, flops: float = 1, special: float = 0) -> int:
        """
        An operator that rules do not know; operations on an element, and those of them for the special function units.
        """

    def add(self, op: str, payload: int = 0, a: int = -1, b: int = -1) -> int:
        """The class of a node; ValueError where the operands do not fit."""

    def weaken(self, guard: str) -> None:
        """Switch a guard off: unsound, for tests that show what it stops."""

    def saturate(self, rules: Sequence[str], iterations: int, nodes: int, bytes: int, seconds: float, stop: object | None = None) -> None:
        """
        Apply the rules until nothing new appears, a limit is met, or `stop`, asked now and then, says so.
        """

    @property
    def stopped(self) -> str:
        """Why the last saturation ended."""

    @property
    def iterations(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def statistics(self) -> list[tuple[str, int, int, int]]:
        """(rule, matched, refused by the guard, fired) of the last saturation."""

    @property
    def classes(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    def same(self, arg0: int, arg1: int, /) -> bool: ...

    def find(self, arg: int, /) -> int:
        """The class that an id belongs to now."""

    def count(self, root: int) -> float:
        """
        Programs that the class represents; a lower bound where classes are cyclic.
        """

    def sample(self, arg0: int, arg1: int, /) -> list[tuple[str, int, int, int]]: ...

    def best(self, root: int, kernels: int, k: int, target: superopt.transforms.core._cost.TargetNumbers, widths: Sequence[int], seconds: float, stop: object | None = None, library: Sequence[float] = []) -> list[tuple[int, float, list[tuple[str, int, int, int]]]]:
        """
        At most k (kernels, predicted seconds, term) for each number of kernels, tiles having those of the
        `widths` that divide their extents and suit each kernel best;
        nothing where time is up or `stop` says so. `library`: what the library takes for the statements
        that were noted, in that order.
        """

    def note_library(self, id: int) -> None:
        """
        The library has a kernel for this statement, of which there is one form yet.
        """

    def access_at(self, arg: int, /) -> tuple[int, list[tuple[int, int, int]]]: ...

    def loop_at(self, arg: int, /) -> tuple[int, list[tuple[int, int]]]: ...

    def constant_at(self, arg: int, /) -> tuple[float, list[int]]: ...

    def ints_at(self, arg: int, /) -> list[int]: ...

    def shape_at(self, arg: int, /) -> list[int]: ...

    def name_at(self, arg: int, /) -> str: ...

    def dump(self) -> list[tuple[int, str, int, int, int]]:
        """(class, operator, payload, children) of every node."""
