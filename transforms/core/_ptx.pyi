"""superopt PTX core: runs blocks of a kernel over prime fields"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Illegal(RuntimeError):
    pass

class Unknown(RuntimeError):
    pass

class TooManyLeaves(MemoryError):
    pass

def ops() -> dict[str, int]:
    """the operations by name"""

class Launch:
    """A kernel with a point of the fields and its memory."""

    def __init__(self, code: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], args: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], registers: int, threads: int, shared: int, p: int, q: int, root: int, order: int, functions: Sequence[Sequence[int]], buffers: Sequence[tuple[int, int, bool, Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, Sequence[int]]], pointers: Sequence[tuple[int, int]], shared_start: int, joins: Sequence[Sequence[int]]) -> None: ...

    def run(self, preset: Sequence[tuple[int, Sequence[int]]]) -> None:
        """runs one block; registers start as given"""

    def run_region(self, preset: Sequence[tuple[int, Sequence[int]]], axes: Sequence[Sequence[int]], slopes: Sequence[tuple[int, Sequence[int]]]) -> tuple[int, int, int, int] | None:
        """
        runs one block, and finds those around it that do the same: by axis first, this and last coordinate, how many there are, and which axis carries on; returns an axis to split, and by what, or nothing; with 0 two coordinates between which blocks are to have axes of their own
        """

    @property
    def region(self) -> list[tuple[int, int]]:
        """
        by axis, the first and the last block that do the same as the last one that ran
        """

    def reached(self, buffer: int) -> tuple[Annotated[NDArray[numpy.uint64], dict(shape=(None,))], Annotated[NDArray[numpy.uint32], dict(shape=(None,))]]:
        """
        places of a buffer that the last block accessed, and which of `slopes` they move along
        """

    @property
    def slopes(self) -> list[list[int]]:
        """elements or bytes by axis, by number"""

    @property
    def scratch_slope(self) -> list[int]:
        """by how many bytes scratch moves along each axis"""

    def plant(self, places: Sequence[int], code: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], args: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        makes undefined what other instructions at these places would compute differently
        """

    @property
    def differences(self) -> int:
        """
        how many registers and cells of memory planted faults have changed so far
        """

    def stored(self, buffer: int) -> tuple[Annotated[NDArray[numpy.uint64], dict(shape=(None,))], Annotated[NDArray[numpy.uint64], dict(shape=(None,))], Annotated[NDArray[numpy.uint64], dict(shape=(None,))]]:
        """
        places of a buffer, the residues that the last block stored there, and which atomic did, from one
        """

    @property
    def left(self) -> int:
        """operations of threads that blocks may take from now on"""

    @left.setter
    def left(self, arg: int, /) -> None: ...

    @property
    def scratch(self) -> tuple[int, int]:
        """
        the bytes of scratch that the last block used: the first, and the one after the last
        """

    @property
    def counts(self) -> dict[str, list[int]]:
        """what all blocks so far did, by kind of access"""
