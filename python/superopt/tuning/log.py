"""The trials of a search, appended to a file as they are priced: a killed run goes on from it.

Strategies ask the same questions for the same seed and the same prices, so a run that starts again takes the
prices that it had from the log, and prices what is missing. Lines are written whole; one that a kill cut off is
left out, and its program priced again. Runs of one search at the same time take turns, batch by batch, and each
reads what the other added: no program is priced twice.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

from superopt.alone import alone
from superopt.tuning.evaluators import Evaluation

# Logs that nobody wrote to for so long are removed.
_STALE_SECONDS = 30 * 24 * 3600


class Log:
    """The prices in `folder/trials/NAME.jsonl`, by program; without a folder, none are kept."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self.path = None if folder is None else folder / "trials" / f"{name}.jsonl"
        self.known: dict[tuple[str, str], Evaluation] = {}
        self._end = 0  # of the last line that was read whole
        if self.path is not None:
            _clean(self.path.parent)
            with contextlib.suppress(OSError):
                self._catch_up(self.path)

    @contextlib.contextmanager
    def alone(self) -> Generator[None]:
        """Nobody else adds trials meanwhile, and all that were added are known."""
        with contextlib.ExitStack() as held:
            if self.path is not None:
                try:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self.path.touch()
                    held.enter_context(alone(self.path))
                    self._catch_up(self.path)
                except OSError:
                    self.path = None
            yield

    def get(self, evaluator: str, key: str) -> Evaluation | None:
        """What an evaluator said of a program."""
        return self.known.get((evaluator, key))

    def add(self, key: str, evaluation: Evaluation, config: dict[str, dict[str, str]]) -> None:
        """Append a trial; a file system that refuses it loses the log, and nothing else."""
        self.known[evaluation.evaluator, key] = evaluation
        if self.path is None:
            return
        record = {
            "key": key,
            "seconds": evaluation.seconds,
            "status": evaluation.status,
            "evaluator": evaluation.evaluator,
            "work": round(evaluation.work, 6),
            **({"interval": evaluation.interval} if evaluation.interval else {}),
            "config": config,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = os.fstat(handle).st_size  # after a line that was cut off, a new one begins
                cut = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
                os.write(handle, b"\n" * cut + json.dumps(record).encode() + b"\n")
            finally:
                os.close(handle)
        except OSError:
            self.path = None

    def _catch_up(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._end)
            added = file.read()
        self._end += added.rfind(b"\n") + 1
        for line in added.splitlines():
            self._read(line)

    def _read(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, LookupError, TypeError, OverflowError, RecursionError):
            record = cast("dict[str, Any]", json.loads(line))
            seconds = record["seconds"]
            if seconds is not None and not 0 <= float(seconds) < math.inf:
                return
            interval = record.get("interval")
            evaluation = Evaluation(
                None if seconds is None else float(seconds),
                str(record["status"]),
                str(record["evaluator"]),
                float(record["work"]),
                interval=interval and (float(interval[0]), float(interval[1])),
            )
            self.known.setdefault((evaluation.evaluator, str(record["key"])), evaluation)


def _clean(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()
