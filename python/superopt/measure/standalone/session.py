"""Measures the programs of a prepared folder, one after the other.

Of one program, every row with several parameter points is tuned first, each point in a process of its own.
Then all rows run side by side: in each round every row is timed once, in another order, with and without a
CUDA graph, so that what drifts (clocks, temperature) drifts for all. A program's rows are recorded together,
or not at all where time runs out: a speedup always compares rows of the same rounds. What fails is
recorded at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .clocks import Clocks
from .floor import floor_seconds
from .intervals import interval
from .processes import Ended, Worker
from .results import ResultsFile
from .tune import available, search
from .worker import repeats_for

# Fewer rounds than this say nothing about spread.
FEWEST_ROUNDS = 3
# The share of a program's time that tuning may take.
TUNING_SHARE = 0.5
# The share of what is left after that, that setting up the rows may take; the rest is for the rounds.
SETUP_SHARE = 0.7
# A program gets at least this long while there is time; the last ones are then left for the next run.
LEAST_SECONDS = 120.0


@dataclass
class Settings:
    """How to measure; `repeats` is chosen from a call's length where None."""

    device: str = "cuda"
    minutes: float | None = None
    rounds: int = 20
    repeats: int | None = None
    warmup: int = 3
    seed: int = 0
    strategy: str = "auto"
    points: int = 64
    setup_timeout: float = 300.0
    round_timeout: float = 60.0
    jobs: int = 4


@dataclass
class _Running:
    """A row whose worker is ready."""

    row: dict[str, Any]
    point: dict[str, Any]
    worker: Worker
    ready: dict[str, Any]
    samples: dict[str, list[float]] = field(default_factory=dict[str, "list[float]"])
    fastest: dict[str, float] = field(default_factory=dict[str, float])
    ratio: float = 0.0


class OutOfTime(Exception):
    """The minutes are used up."""


class Session:
    """One run over a prepared folder; `start` makes the worker of a request, `now` is the clock."""

    def __init__(
        self,
        folder: str,
        programs: Sequence[dict[str, Any]],
        file: ResultsFile,
        settings: Settings,
        start: Callable[[dict[str, Any]], Worker],
        clocks: Clocks,
        *,
        now: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = print,
    ) -> None:
        self.folder, self.programs, self.file, self.settings = folder, programs, file, settings
        self.start, self.clocks, self.now, self.say = start, clocks, now, say
        self.device: dict[str, Any] = file.data["device"]
        self.end = now() + 60 * settings.minutes if settings.minutes else float("inf")
        self.strategy = available(settings.strategy)

    # --- the whole -------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Measure what is not measured yet; returns whether nothing is left."""
        todo = sorted((p for p in self.programs if self._left(p) or self._was_late(p)), key=self._was_late)
        for number, program in enumerate(todo):
            left = self.end - self.now()
            share = max(left / (len(todo) - number), min(left, LEAST_SECONDS))
            try:
                self._program(program, self.now() + share)
            except OutOfTime:
                self.say(f"{program['name']}: not measured, out of time")
        self.file.data["skipped"] = [
            {"program": p["name"], "row": r["id"], "why": "out of time"}
            for p in self.programs
            for r in self._left(p)
        ]
        self.file.data["complete"] = not self.file.data["skipped"]
        self.file.save()
        return self.file.data["complete"]

    def _left(self, program: dict[str, Any]) -> list[dict[str, Any]]:
        done = {r["row"] for r in self.file.data["rows"] if r["program"] == program["name"]}
        return [r for r in program["rows"] if r["id"] not in done]

    def _was_late(self, program: dict[str, Any]) -> bool:
        return any(r["status"] == "late" for r in self.file.data["rows"] if r["program"] == program["name"])

    def _program(self, program: dict[str, Any], end: float) -> None:
        # Where a row was late, all are measured again: those of one round are compared.
        rows = program["rows"] if self._was_late(program) else self._left(program)
        tuned = {r["id"]: self._tuned(program, r, rows, end) for r in rows}
        running, late = self._set_up(program, [(r, tuned[r["id"]]) for r in rows], end)
        try:
            rounds = self._rounds(program, running, end)
            if running and rounds < FEWEST_ROUNDS:
                raise OutOfTime
        finally:
            for one in running:
                one.worker.close()
        self._record([self._verdict(program, one) for one in running] + late)
        self._summary(program)

    # --- tuning ----------------------------------------------------------------------------------------------

    def _tuned(
        self, program: dict[str, Any], row: dict[str, Any], rows: Sequence[dict[str, Any]], end: float
    ) -> dict[str, Any]:
        """The best of the row's points; the one that the model ranks first where none could be measured."""
        points = row["points"]
        if len(points) == 1:
            return points[0]
        for known in self.file.data["tuning"]:
            if (known["program"], known["row"]) == (program["name"], row["id"]):
                return next((p for p in points if p["id"] == known["best"]), points[0])
        several = sum(len(r["points"]) > 1 for r in rows)
        share = self.now() + TUNING_SHARE * (end - self.now()) / max(several, 1)
        floor = {p["id"]: floor_seconds(program, p, self.device) for p in points}

        started = self.now()
        at: list[float] = []  # seconds of tuning after which each point was known

        def measure(index: int) -> tuple[float | None, str]:
            result = timed(index)
            at.append(round(self.now() - started, 2))
            return result

        def timed(index: int) -> tuple[float | None, str]:
            seconds, status = self._quick(program, points[index], share)
            if seconds is not None and seconds < floor[points[index]["id"]]:
                return None, "impossible"
            return seconds, status

        found = search(
            points,
            measure,
            strategy=self.strategy,
            most=self.settings.points,
            seed=self.settings.seed,
            stop=lambda: self.now() >= share,
        )
        best = (
            points[found.best]
            if found.best is not None
            else min(points, key=lambda p: p["predicted_seconds"])
        )
        self.file.data["tuning"].append(
            {
                "program": program["name"],
                "row": row["id"],
                "strategy": found.strategy,
                "points": len(points),
                "best": best["id"],
                "tried": [
                    {"point": points[i]["id"], "seconds": s, "status": t, "at": a}
                    for (i, s, t), a in zip(found.tried, at, strict=True)
                ],
            }
        )
        self.file.save()
        return best

    def _quick(self, program: dict[str, Any], point: dict[str, Any], end: float) -> tuple[float | None, str]:
        """One round of one point: (seconds or None, status)."""
        worker = self.start(self._request(program, point))
        try:
            ready = self._ask(worker, {"do": "prepare"}, self.settings.setup_timeout, end)
            mode = "plain" if ready["modes"].get("graph", "absent") else "graph"
            repeats = self.settings.repeats or repeats_for(ready["seconds"])
            made = self._ask(
                worker, {"do": "round", "mode": mode, "repeats": repeats}, self.settings.round_timeout, end
            )
        except Ended as error:
            return None, error.status
        except OutOfTime:
            return None, "out of time"
        finally:
            worker.close()
        return median(made["times"]), "ok"

    # --- rounds ----------------------------------------------------------------------------------------------

    def _request(self, program: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "program": {k: v for k, v in program.items() if k != "rows"},
            "point": point,
            "device": self.settings.device,
            "seed": self.settings.seed,
            "warmup": self.settings.warmup,
        }

    def _ask(self, worker: Worker, question: dict[str, Any], timeout: float, end: float) -> dict[str, Any]:
        """The answer; raises Ended with the row's status, OutOfTime where the time was cut short by `end`."""
        left = end - self.now()
        if left <= 0:
            raise OutOfTime
        try:
            reply = worker.ask(question, min(timeout, left))
        except Ended as error:
            if error.status == "timeout" and left < timeout:
                raise OutOfTime from None
            raise
        if "error" in reply:
            raise Ended(reply["status"], reply["error"])
        return reply

    def _set_up(
        self, program: dict[str, Any], chosen: Sequence[tuple[dict[str, Any], dict[str, Any]]], end: float
    ) -> tuple[list[_Running], list[dict[str, Any]]]:
        """A ready worker for every row that can have one, and the rows that were not ready in time.

        Compilers that time kernels get the device alone, and come last: they take longest. Raises OutOfTime where
        no row was ready.
        """
        alone = [c for c in chosen if "max-autotune" in (c[1].get("compile") or "")]
        together = [c for c in chosen if c not in alone]
        ready: list[_Running] = []
        failed: list[dict[str, Any]] = []
        late: list[dict[str, Any]] = []
        until = self.now() + SETUP_SHARE * (end - self.now())

        def one(choice: tuple[dict[str, Any], dict[str, Any]]) -> None:
            row, point = choice
            worker = self.start(self._request(program, point))
            try:
                made = self._ask(worker, {"do": "prepare"}, self.settings.setup_timeout, until)
            except Ended as error:
                worker.close()
                failed.append(self._failed(program, row, point, error))
            except OutOfTime:
                worker.close()
                late.append({**self._row(program, row, point, "late"), "error": "not ready within its time"})
            else:
                ready.append(_Running(row, point, worker, made, ratio=made["ratio"]))

        with ThreadPoolExecutor(self.settings.jobs) as pool:
            list(pool.map(one, together))
        for choice in alone:
            one(choice)
        if failed:
            self._record(failed)
        if late and not ready:
            raise OutOfTime
        return ready, late

    def _rounds(self, program: dict[str, Any], running: list[_Running], end: float) -> int:
        """Interleaved rounds; what fails in one leaves `running`. The number of whole rounds."""
        order = random.Random(self.settings.seed)
        readings = [self.clocks.now()]
        for number in range(self.settings.rounds):
            made: list[tuple[_Running, str, list[float], float]] = []
            for one in order.sample(running, len(running)):
                for mode, missing in one.ready["modes"].items():
                    if missing:
                        continue
                    repeats = self.settings.repeats or repeats_for(one.ready["seconds"])
                    question = {"do": "round", "mode": mode, "repeats": repeats}
                    try:
                        reply = self._ask(one.worker, question, self.settings.round_timeout, end)
                    except OutOfTime:
                        self._clocks(program, readings)
                        return number
                    except Ended as error:
                        running.remove(one)
                        one.worker.close()
                        self._record([self._failed(program, one.row, one.point, error)])
                        break
                    made.append((one, mode, reply["times"], reply["ratio"]))
            for one, mode, times, ratio in made:
                one.samples.setdefault(mode, []).append(median(times))
                one.fastest[mode] = min(one.fastest.get(mode, float("inf")), *times)
                one.ratio = max(one.ratio, ratio)
            readings.append(self.clocks.now())
        self._clocks(program, readings)
        return self.settings.rounds

    def _clocks(self, program: dict[str, Any], readings: Sequence[dict[str, Any]]) -> None:
        """Range of every reading over the program's rounds."""
        found = {
            name: [min(values), max(values)]
            for name in readings[0]
            if (values := [r[name] for r in readings if name in r])
        }
        self.file.data.setdefault("clocks", {})[program["name"]] = found

    # --- rows ------------------------------------------------------------------------------------------------

    def _record(self, rows: Sequence[dict[str, Any]]) -> None:
        """Save rows in place of what was known of them."""
        again = {(r["program"], r["row"]) for r in rows}
        kept = [r for r in self.file.data["rows"] if (r["program"], r["row"]) not in again]
        self.file.data["rows"] = [*kept, *rows]
        self.file.save()

    def _row(
        self, program: dict[str, Any], row: dict[str, Any], point: dict[str, Any], status: str
    ) -> dict[str, Any]:
        return {
            "program": program["name"],
            "row": row["id"],
            "kind": row["kind"],
            "label": row["label"],
            "point": point["id"],
            "fingerprint": point.get("fingerprint", ""),
            "parameters": point["parameters"],
            "predicted_seconds": point.get("predicted_seconds"),
            "features": point.get("features", {}),
            "floor_seconds": floor_seconds(program, point, self.device),
            "status": status,
        }

    def _failed(
        self, program: dict[str, Any], row: dict[str, Any], point: dict[str, Any], error: Ended
    ) -> dict[str, Any]:
        first = str(error).partition("\n")[0][:160]
        self.say(f"{program['name']}: {row['label']}: {error.status}: {first}")
        return {**self._row(program, row, point, error.status), "error": str(error)}

    def _verdict(self, program: dict[str, Any], one: _Running) -> dict[str, Any]:
        made = self._row(program, one.row, one.point, "ok")
        made["ratio"] = one.ratio
        made["setup_seconds"] = one.ready["setup_seconds"]
        made["modes"] = {}
        for mode, missing in one.ready["modes"].items():
            if missing:
                made["modes"][mode] = {"missing": missing}
                continue
            middle, low, high = interval(one.samples[mode])
            made["modes"][mode] = {
                "seconds": middle,
                "low": low,
                "high": high,
                "fastest": one.fastest[mode],
                "samples": one.samples[mode],
            }
            if middle < made["floor_seconds"]:
                made["status"] = "impossible"
                made["error"] = (
                    f"{middle * 1e6:.2f} us in mode {mode}, where no program can take less than "
                    f"{made['floor_seconds'] * 1e6:.2f} us"
                )
        return made

    def _summary(self, program: dict[str, Any]) -> None:
        rows = [r for r in self.file.data["rows"] if r["program"] == program["name"]]
        self.say(f"{program['name']}:")
        for row in sorted(rows, key=lambda r: (r["status"] != "ok", _best(r))):
            if "modes" not in row:
                self.say(f"  {row['label']:<34} {row['status']}")
                continue
            times = ", ".join(
                f"{mode} {m['seconds'] * 1e6:9.2f} us" for mode, m in row["modes"].items() if "seconds" in m
            )
            flag = "" if row["status"] == "ok" else f"  {row['status'].upper()}"
            self.say(f"  {row['label']:<34} {times}{flag}")


def _best(row: dict[str, Any]) -> float:
    return min((m["seconds"] for m in row.get("modes", {}).values() if "seconds" in m), default=float("inf"))
