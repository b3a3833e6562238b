"""Medians and distribution-free intervals of few, dependent-looking, skewed samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

CONFIDENCE = 0.95


def interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """(median, low, high): the interval of order statistics that holds the median with `confidence`.

    Makes no assumption on the distribution. With fewer than six samples no such interval exists at 95%; the range
    of all samples is given then. Raises ValueError for no samples.
    """
    if not samples:
        raise ValueError("expected samples, got none")
    ordered = sorted(samples)
    n = len(ordered)
    rank = 0  # the largest k with P(fewer than k of n samples lie below the median) <= (1 - confidence) / 2
    tail = 0.0
    for k in range(n // 2):
        tail += math.comb(n, k) / 2.0**n
        if tail > (1 - confidence) / 2:
            break
        rank = k + 1
    low = max(rank - 1, 0)
    return median(ordered), ordered[low], ordered[n - 1 - low]


def paired_ratio(
    above: Sequence[float], below: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Interval of the ratio of two rows that were timed in the same rounds; drift of the clock cancels in it."""
    pairs = [a / b for a, b in zip(above, below, strict=False) if b > 0 and a > 0]
    return interval(pairs, confidence)
