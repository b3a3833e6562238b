"""How a tensor value of the program being read is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from superopt.program import Value

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Piece:
    """A block of a tensor: its offsets and its contents."""

    offsets: tuple[int, ...]
    value: Value


@dataclass(frozen=True)
class Unwritten:
    """A tensor of `shape` and `dtype` of which only `pieces` have been written, in this order."""

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...] = ()


Held: TypeAlias = "Value | Array | Unwritten"
"""A value of the graph, an array (of an element type that the kernel dialect lacks), or unwritten memory."""
