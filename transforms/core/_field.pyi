"""superopt field core: what certificates rest on"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


DEPTH: int = 2048

class Field:
    """
    Arithmetic on arrays of residues modulo one odd prime of 61 or 62 bits.
    """

    def __init__(self, modulus: int) -> None: ...

    @property
    def modulus(self) -> int: ...

    def add(self, arg0: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def sub(self, arg0: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def mul(self, arg0: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def neg(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def inverse(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def power(self, arg0: int, arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """base to the exponents (which are not reduced)"""

    def sum(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """sum over the last dimension"""

    def matmul(self, a: Annotated[NDArray[numpy.uint64], dict(shape=(None, None, None), device='cpu', writable=False)], b: Annotated[NDArray[numpy.uint64], dict(shape=(None, None, None), device='cpu', writable=False)], threads: int = 1) -> NDArray[numpy.uint64]:
        """(batch, m, k) x (batch, k, n), any strides"""

    def digits(self, a: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)]) -> NDArray[numpy.float64]:
        """
        three digits of each residue, and their sums by two, as float64: shape (6, ...)
        """

    def join(self, products: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)]) -> NDArray[numpy.uint64]:
        """what products of at most DEPTH terms of such digits are as residues"""

    def uniform(self, key: int, count: int) -> NDArray[numpy.uint64]:
        """independent uniform residues, a function of key and position"""

    def uniform_at(self, key: int, places: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)]) -> NDArray[numpy.uint64]:
        """the elements of `uniform` at these positions"""

    def keyed(self, key: int, a: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)]) -> NDArray[numpy.uint64]:
        """a random function of the residues, chosen by the key"""

class Semilattice:
    """max or min as an associative, commutative, idempotent join."""

    def __init__(self, modulus: int, key: int, bottom: int, limit: int, work: int) -> None: ...

    def join(self, arg0: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def reduce(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """join over the last dimension"""

    def __len__(self) -> int: ...

class VectorLattice:
    """max and min as the joins and meets of a vector lattice."""

    def __init__(self, modulus: int, key: int, infinity: int, limit: int, not_negative: Sequence[int], scales: Sequence[int]) -> None: ...

    def join(self, largest: bool, a: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], b: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], linear_a: Annotated[NDArray[numpy.bool_], dict(order='C', device='cpu', writable=False)] | None, linear_b: Annotated[NDArray[numpy.bool_], dict(order='C', device='cpu', writable=False)] | None) -> NDArray[numpy.uint64]:
        """maxima or minima; flags say which numbers may be shifted and scaled"""

    def reduce(self, largest: bool, a: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], linear: Annotated[NDArray[numpy.bool_], dict(order='C', device='cpu', writable=False)] | None) -> NDArray[numpy.uint64]:
        """join over the last dimension"""

    def products(self, a: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], b: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)]) -> tuple[NDArray[numpy.bool_], NDArray[numpy.uint64]]:
        """
        where a and b are the maximum and the minimum of two numbers, and there the product of these
        """

    @property
    def most(self) -> int:
        """the most leaves of any join so far"""

    @property
    def compared(self) -> int:
        """look-ups so far: each could hit by chance"""

    def __len__(self) -> int: ...

class FormalPool:
    """Quotients of sums f [h]; arrays hold the numbers of its elements."""

    def __init__(self, p: int, q: int, root: int, cap: int, work: int) -> None: ...

    def constants(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """elements f [0]"""

    def exponentials(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """elements 1 [h]"""

    def add(self, arg0: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def sub(self, arg0: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def mul(self, arg0: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def div(self, arg0: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def sum(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """sum over the last dimension"""

    def matmul(self, arg0: Annotated[NDArray[numpy.uint64], dict(shape=(None, None, None), device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(shape=(None, None, None), device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """(batch, m, k) x (batch, k, n), any strides"""

    def images(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """residues with [h] = root^h"""

    def plain(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.bool_]:
        """which elements are numbers without exponentials"""

    def labels(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """a residue for each class of equal elements"""

    def labelled(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """elements with these labels, or constants"""

    def equal(self, arg0: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.bool_]:
        """by cross multiplication"""

    def __len__(self) -> int: ...

    @property
    def widest(self) -> int:
        """most terms of any sum so far"""

    @property
    def work(self) -> int:
        """terms that may still be written; then OverflowError"""

    @property
    def fallbacks(self) -> int:
        """elements replaced by their image for want of terms"""
