"""Choices that were good before, by the fingerprint of their site: entries of the store.

Every result of a search adds entries and none is changed, so that stores of several machines merge by union, in
any order. What is best is decided when it is read: compiled prices before prices by tiles, and of one evaluator
the choice that left the least share of its program's seconds. An entry is a hint where to start: a choice that a
site lacks is repaired, and what comes of it passes every gate. Entries belong to the code that made them: with
other rules or prices, a choice means something else at a site of the same name.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from superopt.run.reuse import own_code
from superopt.store import Key, Store, StoreUnavailable, versions
from superopt.transforms import registry
from superopt.tuning.space import Step
from superopt.tuning.strategies.strategy import Trial

# Evaluators, the most trusted first.
_TRUST = ("device", "kernels", "tiles")
_FILE = "choice.json"


@dataclass(frozen=True)
class Remembered:
    """A choice and the search that made it: seconds of its program with all choices of the search, and before."""

    choice: str
    seconds: float
    before_seconds: float
    evaluator: str
    seed: int
    program: str

    @property
    def order(self) -> tuple[int, float, str, str]:
        """The smaller, the better; a total order, so that stores that hold the same answer the same."""
        return _TRUST.index(self.evaluator), self.seconds / self.before_seconds, self.choice, self.program


class ConfStore:
    """The remembered choices for the sites of `steps` on one target; `folder` None keeps and finds nothing."""

    def __init__(self, folder: Path | None, target: str, steps: Sequence[Step]) -> None:
        self._store = None if folder is None else Store(folder)
        self._target = target
        self._steps = {step.called(): type(step) for step in steps}
        self._found: dict[tuple[str, str], str | None] = {}

    def choice(self, flag: str, at: str) -> str | None:
        """The best choice for a site; None where nothing is remembered, or the store cannot be read."""
        if (flag, at) not in self._found:
            found = self.remembered(flag, at)
            self._found[flag, at] = min(found, key=lambda r: r.order).choice if found else None
        return self._found[flag, at]

    def remembered(self, flag: str, at: str) -> list[Remembered]:
        """All that is remembered for a site."""
        if self._store is None:
            return []
        try:
            entries = self._store.entries(self._key(flag, at))
        except StoreUnavailable:
            return []
        return [r for entry in entries if (r := _parsed(entry.files.get(_FILE, b""))) is not None]

    def keep(self, trial: Trial, before_seconds: float, *, program: str, seed: int) -> None:
        """Remember the choices of a trial; raises StoreUnavailable."""
        if self._store is None or trial.evaluation.seconds is None:
            return
        if (
            not 0 < before_seconds < math.inf
        ):  # nothing to compare with: nothing runs, or the start has no price
            return
        for decision in trial.traced.decisions:
            kept = Remembered(
                decision.choice,
                trial.evaluation.seconds,
                before_seconds,
                trial.evaluation.evaluator,
                seed,
                program,
            )
            data = json.dumps(asdict(kept), sort_keys=True).encode()
            key = self._key(*decision.key)
            self._store.publish(key, {_FILE: data}, seconds=kept.seconds / kept.before_seconds)

    def _key(self, flag: str, at: str) -> Key:
        what = {"what": "conf", "pass": flag, "pass-code": self._code(flag), "code": own_code()}
        return Key(at, self._target, versions(), what)

    def _code(self, flag: str) -> str:
        """A digest of the pass's module, which may stand outside of superopt.

        A step may ask for decisions of a pass that is not a step itself.
        """
        return _digest(self._steps.get(flag) or registry.load(flag))


@cache
def _digest(of: type) -> str:
    return hashlib.sha256(Path(inspect.getfile(of)).read_bytes()).hexdigest()[:16]


def _parsed(data: bytes) -> Remembered | None:
    """What an entry says; None where it says something else."""
    try:
        record = cast("dict[str, Any]", json.loads(data))
        found = Remembered(
            str(record["choice"]),
            float(record["seconds"]),
            float(record["before_seconds"]),
            str(record["evaluator"]),
            int(record["seed"]),
            str(record["program"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    timed = math.isfinite(found.seconds) and 0 < found.before_seconds < math.inf
    return found if timed and found.evaluator in _TRUST else None
