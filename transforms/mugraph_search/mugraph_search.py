"""`--mugraph-search`: replace each segment by the best muGraph found, by predicted cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from superopt.transforms.mugraph_search.optimizer import MugraphOptimizer
from superopt.transforms.search_pass import SearchPass


@dataclass(frozen=True)
class MugraphSearch(MugraphOptimizer, SearchPass):
    """Search for fused kernels for each segment of the program and take the candidate predicted to be fastest.

    The result is certified (unless `certify=false`); `--superoptimize` also compiles it and checks numerics.
    """

    flag: ClassVar[str] = "mugraph-search"
