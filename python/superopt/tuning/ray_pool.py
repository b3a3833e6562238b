"""Jobs on the machines of a Ray cluster, or on this one. Only this module imports ray (`superopt[ray]`).

A job travels with the text of its program; the machine that does it has superopt installed, and its own store.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from superopt.errors import BadInput, Location, UnsupportedProgram
from superopt.tuning.pool import ATTEMPTS, WORKER, Answer, Job, LocalPool

# What a cluster of our own may hold in its store of objects: jobs and answers are small.
_OBJECT_BYTES = 80 << 20


@dataclass(frozen=True)
class RayPool:
    """Jobs as tasks of the cluster at `address`, ray://HOST:PORT; without one, of one on the loopback address.

    Such a cluster has `workers` workers, is shut down with the pool, and leaves no file behind. A task whose
    machine dies is done once more elsewhere. Raises UnsupportedProgram without ray, or where no cluster begins.
    """

    timeout: float
    address: str = ""
    workers: int = 1
    command: tuple[str, ...] = WORKER

    def answers(self, jobs: Sequence[Job]) -> Iterator[Answer]:
        """One answer for each job, as they come."""
        # Ray writes to the home folder of a cluster of our own, which jobs need as it is.
        own = () if self.address else ("env", f"HOME={Path.home()}")
        with self._cluster() as ray:
            task = ray.remote(max_retries=ATTEMPTS - 1, num_cpus=1)(answered)
            waiting = {
                task.remote(job, _text(job.file), self.timeout, (*own, *self.command)): job for job in jobs
            }
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                job = waiting.pop(done)
                try:
                    answer: Answer = ray.get(done)
                except ray.exceptions.RayError as error:
                    answer = Answer(job, None, f"its machine ended: {str(error).splitlines()[0]}", ATTEMPTS)
                yield replace(answer, job=job)

    @contextmanager
    def _cluster(self) -> Generator[Any]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError:
            raise UnsupportedProgram(
                "expected ray for workers of a cluster, got none: pip install 'superopt[ray]'"
            ) from None
        if self.address:
            try:
                _begin(ray, address=self.address)
                yield ray
            finally:
                ray.shutdown()
            return
        folder, home = tempfile.mkdtemp(prefix="superopt-"), os.environ.get("HOME")
        try:
            os.environ["HOME"] = folder
            _begin(
                ray, num_cpus=self.workers, include_dashboard=False, _node_ip_address="127.0.0.1",
                _temp_dir=folder, object_store_memory=_OBJECT_BYTES,
            )  # fmt: skip
            yield ray
        finally:
            ray.shutdown()
            os.environ.pop("HOME")
            if home is not None:
                os.environ["HOME"] = home
            shutil.rmtree(folder, ignore_errors=True)


def _begin(ray: Any, **settings: Any) -> None:
    """Begin or join a cluster; raises UnsupportedProgram."""
    try:
        ray.init(**settings, log_to_driver=False, logging_level="error")
    except Exception as error:  # ray raises what its parts do: of the network, of processes, its own
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsupportedProgram(f"expected a Ray cluster, got none: {said}") from error


def answered(job: Job, text: str, timeout: float, command: tuple[str, ...]) -> Answer:
    """The answer to a job, by a process on the machine that this runs on."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, Path(job.file).name)
        file.write_text(text)
        (answer,) = LocalPool(1, timeout, command).answers([replace(job, file=str(file))])
    return answer


def _text(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read: {error}", Location(file)) from None
