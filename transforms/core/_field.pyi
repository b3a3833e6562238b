"""superopt field core: what certificates rest on"""

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

    def keyed(self, key: int, a: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)]) -> NDArray[numpy.uint64]:
        """a random function of the residues, chosen by the key"""

class Semilattice:
    """max or min as an associative, commutative, idempotent join."""

    def __init__(self, modulus: int, key: int, bottom: int, limit: int) -> None: ...

    def join(self, arg0: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]: ...

    def reduce(self, arg: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], /) -> NDArray[numpy.uint64]:
        """join over the last dimension"""

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
