"""The tile level: loops, loads and stores of tiles, operators on tiles; the only level that is emitted.

tile.parallel   a grid dimension: `start`, `stop`, `step`; the region's argument is the loop variable
tile.for        a sequential loop, likewise
tile.alloc      a local buffer; `placement`: "chip", "device" or "open"; or "view": at each index d0, d1, ... what
                `map` reads of input number `of`, where `guard` holds, else 0; of none (-1), 1 where it holds
tile.load       tile of a buffer: per dimension `sizes` elements, `stride` apart (default 1), from `base` on;
                operand i after the buffer is a loop variable that moves dimension `dims[i]` by `scale[i]`
tile.store      the same, of a tile into a buffer
tile.mask       the elements of a tile that exist, and `fill` in place of the others: along dimension `bounded[i]`
                those whose index in window i (`sizes[i]`, `base[i]`, ... as above) is in [0, `extents[i]`)
tile.<operator> every other operator of the table at this level
"""

from __future__ import annotations

from functools import cache
from typing import Any

from superopt.dialects.define import define, define_table, make_dialect

NAMESPACE = "tile"


@cache
def dialect_class() -> Any:
    """The dialect, defined on first use."""
    dialect = make_dialect(NAMESPACE)
    define_table(dialect, "tile")
    define(dialect, "parallel", region=True, isolated=False)
    define(dialect, "for", region=True, isolated=False)
    define(dialect, "alloc", results=1, pure=False)
    define(dialect, "load", operands=1, indices=True, results=1, pure=False)
    define(dialect, "store", operands=2, indices=True, pure=False)
    return dialect
