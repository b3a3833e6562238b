"""A set of 64-bit labels that grows by thousands at a time, up to tens of millions."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


def distinct(numbers: Array) -> Array:
    """Sorted, each once; `np.unique` hashes, which takes fifty times as long for millions."""
    numbers = np.sort(numbers)
    return numbers[np.concatenate([np.ones(min(numbers.size, 1), bool), numbers[1:] != numbers[:-1]])]


class Labels:
    """Sorted runs, each at least twice as long as the next: n labels are sorted log(n) times."""

    def __init__(self) -> None:
        self.runs: list[Array] = []

    def add(self, labels: Array) -> None:
        """Add all of an array."""
        run = distinct(labels.reshape(-1))
        while self.runs and len(self.runs[-1]) < 2 * len(run):
            run = distinct(np.concatenate([self.runs.pop(), run]))
        if len(run):
            self.runs.append(run)

    def hold(self, labels: Array) -> Array:
        """Which elements of an array are in the set: truth values of its shape."""
        if not self.runs:
            return np.zeros(labels.shape, np.bool_)
        order = np.argsort(labels, axis=None)  # neighbours are near each other in memory
        asked = labels.reshape(-1)[order]
        found = np.zeros(asked.shape, np.bool_)
        for run in self.runs:
            at = np.searchsorted(run, asked)
            found |= run[np.minimum(at, len(run) - 1)] == asked
        held: Array = np.zeros(found.shape, np.bool_)
        held[order] = found
        return held.reshape(labels.shape)
