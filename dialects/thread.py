"""The thread level: operators whose steps stay in registers, the region of `superopt.fused`.

thread.<operator>  every elementwise operator of the table, reductions, constants
superopt.yield     the chain's results
"""

from __future__ import annotations

from functools import cache
from typing import Any

from superopt.dialects.define import define_table, make_dialect

NAMESPACE = "thread"


@cache
def dialect_class() -> Any:
    """The dialect, defined on first use."""
    dialect = make_dialect(NAMESPACE)
    define_table(dialect, "thread")
    return dialect
