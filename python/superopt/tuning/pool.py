"""Programs tuned in processes of their own. What one does follows from its job, so doing it twice is harmless."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, cast

# How often a job is begun, where its process ends without an answer.
ATTEMPTS = 2
# What does a job: it reads it from standard input.
WORKER = (sys.executable, "-P", "-m", "superopt.tuning.worker")


@dataclass(frozen=True)
class Job:
    """A program by its file, and the settings of its run by name."""

    file: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Answer:
    """What came of a job: the report of its run as JSON, or why there is none; `attempts` is how often it ran.

    `warnings` are what its run warned of, such as a store that cannot be written.
    """

    job: Job
    report: dict[str, Any] | None
    error: str = ""
    attempts: int = 1
    warnings: tuple[str, ...] = ()


class Pool(Protocol):
    """Does jobs, in any order."""

    def answers(self, jobs: Sequence[Job]) -> Iterator[Answer]:
        """One answer for each job, as they come."""
        ...


@dataclass(frozen=True)
class LocalPool:
    """Processes on this machine, `workers` at once; one that takes longer than `timeout` seconds is ended.

    They end with the process that began them.
    """

    workers: int
    timeout: float
    command: tuple[str, ...] = WORKER

    def answers(self, jobs: Sequence[Job]) -> Iterator[Answer]:
        """One answer for each job, as they come; a process that dies or hangs is tried once more.

        Where nobody waits for answers any longer, processes are ended and jobs left.
        """
        processes = _Processes()
        with ThreadPoolExecutor(self.workers) as threads:
            try:
                for done in as_completed([threads.submit(self._answer, job, processes) for job in jobs]):
                    yield done.result()
            finally:
                threads.shutdown(wait=False, cancel_futures=True)
                processes.end()

    def _answer(self, job: Job, processes: _Processes) -> Answer:
        reason = ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                done = processes.run(
                    self.command, json.dumps(asdict(job) | {"parent": os.getpid()}), self.timeout
                )
            except subprocess.TimeoutExpired:
                reason = f"took longer than {self.timeout:g} s"
                continue
            if processes.ended:
                return Answer(job, None, "interrupted", attempt)
            if done.returncode == 0:
                with suppress(ValueError, KeyError, TypeError):
                    found = cast("dict[str, Any]", json.loads(done.stdout))
                    warnings = tuple(map(str, found.get("warnings", ())))
                    return Answer(job, found["report"], found["error"], attempt, warnings)
                reason = f"expected an answer as JSON, got '{done.stdout[:40]}'"
                continue
            said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
            reason = f"its process ended with {done.returncode}: {said[0]}"
        return Answer(job, None, f"{reason} ({ATTEMPTS} times)", ATTEMPTS)


@dataclass
class _Processes:
    """Processes that run now; they have a session of their own, so that a terminal interrupts the tool alone."""

    running: set[subprocess.Popen[str]] = field(default_factory=set["subprocess.Popen[str]"])
    ended: bool = False

    def run(self, command: Sequence[str], text: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a command on an input; raises TimeoutExpired, the process being ended."""
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as process:
            self.running.add(process)
            try:
                if self.ended:
                    process.kill()
                out, err = process.communicate(text, timeout)
            finally:
                process.kill()
                self.running.discard(process)
            return subprocess.CompletedProcess(command, process.returncode, out, err)

    def end(self) -> None:
        """End them, and those that begin."""
        self.ended = True
        for process in list(self.running):
            process.kill()
