"""The block level: what one thread block does, over a grid and for-loops; all values live on chip.

block.iterator     tile of a kernel operand; `imap`: data dimension (or -1) of each grid dimension, `fmap`: of
                   each loop
block.accumulate   ends loop `loop`; `kind`: "sum", "max", "concat" (along `dim`) or "rescaled", which takes
                   the running maximum as second operand: a <- a * exp(m_old - m_new) + y
block.running_max  in an iteration of `loop`, the elementwise maximum so far
block.save         writes a result of the kernel; `omap`: data dimension of each grid dimension
superopt.fused     a thread graph: steps that stay in registers
block.<operator>   every operator of the table at this level
"""

from __future__ import annotations

from functools import cache
from typing import Any

from superopt.dialects.define import define, define_table, make_dialect

NAMESPACE = "block"


@cache
def dialect_class() -> Any:
    """The dialect, defined on first use."""
    dialect = make_dialect(NAMESPACE)
    define_table(dialect, "block")
    define(dialect, "iterator", operands=1, results=1)
    define(dialect, "accumulate", operands=1, optional=True, results=1, pure=False)
    define(dialect, "running_max", operands=1, results=1, pure=False)
    define(dialect, "save", operands=1, pure=False)
    return dialect
