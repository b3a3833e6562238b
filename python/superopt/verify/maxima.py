"""How the checks of kernels compared maxima and minima, for their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

from superopt.diagnostics import counted

Maxima: TypeAlias = Literal["none", "sets", "order"]
"""By the sets of what they join, or by one random order, which seldom tells that a number is left out."""


def said_of(maxima: Iterable[Maxima]) -> str:
    """What a summary adds on those of its kernels."""
    counts = Counter(maxima)
    if counts["order"]:
        return (
            f", maxima in {counts['order']} of {counted(counts.total(), 'kernel')} by one random order only"
        )
    return ", maxima as sets" if counts["sets"] else ""
