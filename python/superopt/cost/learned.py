"""A learned correction of the analytic model, from measurements; without data, the analytic model itself.

The correction is the logarithm of measured over analytic seconds, by gradient-boosted trees (scikit-learn)
over the features of `features.py`; a model corrected this way cannot forget the roofline it starts from (XTAT
learns costs of whole configurations; here the formula stays). Its confidence comes from leaving out one
program at a time: the quantiles of those errors are the interval of a prediction.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeGuard

from superopt.cost.features import NAMES
from superopt.errors import UnsupportedProgram

FORMAT = "superopt-bench results"
# Fewer rows or programs than this cannot support a correction: its errors could be mere luck.
FEWEST_ROWS = 20
FEWEST_PROGRAMS = 3
COVERAGE = 0.8


@dataclass(frozen=True)
class Sample:
    """One measured row: the program it belongs to, its features, and seconds."""

    program: str
    device: str
    features: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds; `low` and `high` hold the measured time of a left-out program in `COVERAGE` of cases.

    Both are None for the analytic model, whose error is unknown; `source` says which model it was.
    """

    seconds: float
    low: float | None
    high: float | None
    source: str


@dataclass(frozen=True)
class Errors:
    """How far predictions are off, as the median of |ln(predicted / measured)|, and Spearman's rank correlation
    within programs (the mean over those with three rows or more)."""

    log_error: float
    rank: float | None


class Model:
    """Predicts seconds of a finished program from its features."""

    def __init__(self, samples: Sequence[Sample] = ()) -> None:
        self.samples = list(samples)
        self.analytic: Errors | None = None
        self.left_out: Errors | None = None
        self._trees: Any = None
        self._quantiles = (0.0, 0.0)
        self.programs = sorted({s.program for s in self.samples})
        if self.samples:
            self.analytic = errors(self.samples, [_analytic(s.features) for s in self.samples])
        if len(self.samples) >= FEWEST_ROWS and len(self.programs) >= FEWEST_PROGRAMS:
            self._train()

    @property
    def source(self) -> str:
        """Which model predicts: "analytic", or "learned" with what it was trained on."""
        if self._trees is None:
            return "analytic"
        return f"learned from {len(self.samples)} rows of {len(self.programs)} programs"

    def predict(self, features: dict[str, float]) -> Prediction:
        """Seconds, and their interval."""
        seconds = _analytic(features)
        if self._trees is None:
            return Prediction(seconds, None, None, self.source)
        seconds *= math.exp(float(self._trees.predict([_row(features)])[0]))
        low, high = self._quantiles
        return Prediction(seconds, seconds * math.exp(low), seconds * math.exp(high), self.source)

    def _train(self) -> None:
        left = [_analytic(s.features) for s in self.samples]
        for program in self.programs:
            others = [s for s in self.samples if s.program != program]
            trees = _fit(others)
            for i, sample in enumerate(self.samples):
                if sample.program == program:
                    left[i] *= math.exp(float(trees.predict([_row(sample.features)])[0]))
        self.left_out = errors(self.samples, left)
        assert self.analytic is not None
        if self.left_out.log_error >= self.analytic.log_error:
            return  # a correction that does not help on unseen programs is not used
        off = sorted(math.log(s.seconds / p) for s, p in zip(self.samples, left, strict=True))
        tail = (1 - COVERAGE) / 2
        self._quantiles = (off[int(tail * (len(off) - 1))], off[math.ceil((1 - tail) * (len(off) - 1))])
        self._trees = _fit(self.samples)


def load(folder: Path | str) -> Model:
    """The model of every results file in `folder` (and below); the analytic one if there is none.

    Raises UnsupportedProgram where there are enough results and scikit-learn is not installed.
    """
    return Model([s for path in sorted(Path(folder).rglob("*.json")) for s in samples(path)])


def samples(path: Path) -> list[Sample]:
    """The measured rows of a results file that have features; none for any other file.

    Only rows measured on a GPU whose outputs were right, by their median with a CUDA graph (plain without).
    """
    try:
        data: Any = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return []
    if not _is_record(data) or data.get("format") != FORMAT or data["device"].get("kind") != "cuda":
        return []
    found: list[Sample] = []
    for row in data["rows"]:
        modes = row.get("modes", {})
        best = next((modes[m]["seconds"] for m in ("graph", "plain") if "seconds" in modes.get(m, {})), None)
        if row["status"] == "ok" and row["features"] and best is not None:
            found.append(Sample(row["program"], data["device"]["name"], row["features"], best))
    return found


def _is_record(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def errors(measured: Sequence[Sample], predicted: Sequence[float]) -> Errors:
    """The error of predictions of these samples, in their order."""
    off = [abs(math.log(p / s.seconds)) for p, s in zip(predicted, measured, strict=True)]
    ranks: list[float] = []
    for program in sorted({s.program for s in measured}):
        pairs = [(s.seconds, p) for s, p in zip(measured, predicted, strict=True) if s.program == program]
        if len(pairs) >= 3 and (rank := spearman(pairs)) is not None:
            ranks.append(rank)
    return Errors(median(off), sum(ranks) / len(ranks) if ranks else None)


def _analytic(features: dict[str, float]) -> float:
    return math.exp(features["log_seconds"])


def _row(features: dict[str, float]) -> list[float]:
    return [features.get(name, 0.0) for name in NAMES]


def _fit(rows: Sequence[Sample]) -> Any:
    return boosted_trees(
        [_row(s.features) for s in rows], [math.log(s.seconds / _analytic(s.features)) for s in rows]
    )


def boosted_trees(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> Any:
    """Gradient-boosted trees from rows of features to numbers; raises UnsupportedProgram without scikit-learn."""
    try:
        ensemble: Any = importlib.import_module("sklearn.ensemble")
    except ModuleNotFoundError:
        raise UnsupportedProgram(
            "expected scikit-learn to learn from measurements, got none: pip install 'superopt[bench]'"
        ) from None
    trees = ensemble.GradientBoostingRegressor(
        n_estimators=120,
        max_depth=3,
        learning_rate=0.08,
        subsample=0.8,
        min_samples_leaf=3,
        loss="huber",
        random_state=0,
    )
    return trees.fit(rows, wanted)


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Rank correlation with the mean rank for ties; None where one side is all ties."""

    def ranks(values: Sequence[float]) -> list[float]:
        ordered = sorted(values)
        return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]

    a, b = ranks([p[0] for p in pairs]), ranks([p[1] for p in pairs])
    mean = (len(pairs) - 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    spread = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return top / spread if spread else None
