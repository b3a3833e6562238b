"""The kernel level: a graph of library operators on whole tensors in device memory.

kernel.<operator>  every operator of the table at this level
superopt.custom    a kernel of our own: its region is a block graph (see `superopt.dialects.base`)
superopt.tiled     a kernel of our own as tile loops
superopt.extern    something that superopt cannot express
"""

from __future__ import annotations

from functools import cache
from typing import Any

from superopt.dialects.define import define_table, make_dialect

NAMESPACE = "kernel"


@cache
def dialect_class() -> Any:
    """The dialect, defined on first use."""
    dialect = make_dialect(NAMESPACE)
    define_table(dialect, "kernel")
    return dialect
