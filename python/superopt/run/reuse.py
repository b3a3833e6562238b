"""What earlier runs found, used again: whole results, and the candidates of each completed search.

A second run of a program is answered from the store in the time that its proof takes; a run that was killed
resumes at the first search that it had not finished. The store's contents are not trusted: a program read from
it goes through every check of a fresh candidate, so that it can be slow, never wrong.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

import superopt
from superopt import cost, store
from superopt.errors import SuperoptError
from superopt.naming import give_names, names_of
from superopt.program import KernelGraph
from superopt.report import Schedule, StoredProgram
from superopt.spec import check_kernel
from superopt.transforms import optimizers
from superopt.transforms.core import _cost, _egraph, _field, _ptx, _search
from superopt.verify import program_hash
from superopt.verify.hashing import canonical_text, parse

if TYPE_CHECKING:
    from superopt.cost import Target
    from superopt.diagnostics import Diagnostics
    from superopt.run.outcome import Outcome
    from superopt.run.settings import Settings

# Seconds recorded for a search that ended by itself: more of them would find nothing more.
COMPLETE = 1e9
# A search that used less than this share of its seconds ended by itself.
_ENDED = 0.9
MOST_CANDIDATES = 256


@dataclass(frozen=True)
class Known:
    """A program found by an earlier run, the seconds predicted for it, and whether they searched long enough.

    `schedule` has its tiles and launches, so that they need not be found again; None where none can be had.
    """

    graph: KernelGraph
    seconds: float
    enough: bool
    schedule: Schedule | None = None


class Earlier:
    """What the store holds for runs with these settings; without a store, it finds and keeps nothing."""

    def __init__(self, settings: Settings, target: Target, diagnostics: Diagnostics) -> None:
        self.settings, self.target, self.diagnostics = settings, target, diagnostics
        self.folder = store.chosen_folder(settings.store)
        self._hashes: dict[KernelGraph, str] = {}

    # --- whole results

    def result(self, graph: KernelGraph) -> Known | None:
        """The best program that a run with these settings, or a shorter one, found for `graph`."""
        if (entry := self._lookup(graph, self._result_policy())) is None:
            return None
        enough = self._lookup(graph, self._result_policy(), self.settings.budget) is not None
        found = self._read(graph, entry.files.get("program.json"))
        if found is None:
            return None
        return Known(found, entry.seconds, enough, self._schedule(entry.files.get("schedule.json")))

    def keep_result(
        self, graph: KernelGraph, optimized: KernelGraph, outcome: Outcome | None, *, finished: bool
    ) -> None:
        """Keep the best program so far; `outcome` is given once all of it is proved.

        `finished` means that the searches had the whole budget, so that a run with the same budget
        need not search again.
        """
        files = {"program.json": _written(optimized)}
        seconds = cost.cost(optimized, self.target).seconds  # more, once it is compiled
        if outcome is not None:
            files["schedule.json"] = outcome.schedule.model_dump_json(indent=2).encode()
            files["certificate.json"] = outcome.certificate.model_dump_json(indent=2).encode()
            files["report.json"] = outcome.report.model_dump_json(indent=2).encode()
            seconds = outcome.report.predicted_seconds
        self._publish(
            graph, self._result_policy(), files, seconds,
            self.settings.budget if finished else 0.0,
        )  # fmt: skip

    # --- candidates of one search

    def candidates(self, segment: KernelGraph, optimizer: str, seconds: float) -> list[KernelGraph] | None:
        """What `optimizer`, named with its options, found in at least `seconds`; None if it has not run."""
        entry = self._lookup(segment, self._search_policy(optimizer), seconds)
        if entry is None or len(entry.files) > MOST_CANDIDATES:
            return None
        found = [self._read(segment, entry.files[name]) for name in sorted(entry.files)]
        return [graph for graph in found if graph is not None]

    def keep_candidates(
        self,
        segment: KernelGraph,
        optimizer: str,
        candidates: Sequence[KernelGraph],
        *,
        allowed: float,
        used: float,
    ) -> None:
        """Keep what a search found, with the seconds that it was allowed and those that it used."""
        files = {f"{i:03}.json": _written(c) for i, c in enumerate(candidates[:MOST_CANDIDATES])}
        best = min((cost.cost(c, self.target).seconds for c in candidates), default=0.0)
        effort = COMPLETE if used < _ENDED * allowed else allowed
        self._publish(segment, self._search_policy(optimizer), files, best, effort)

    # --- the store

    def _result_policy(self) -> dict[str, str | int | float | bool]:
        s = self.settings
        return {
            "what": "result", "seed": s.seed, "delta": s.delta, "allow": s.allow, "against": s.against,
            "optimizers": ",".join(s.optimizers), "candidates": s.candidates, "numerics": s.numerics,
            "tune": s.tune, "tune-by": s.tune_by, "code": code(*s.optimizers),
        }  # fmt: skip

    def _search_policy(self, optimizer: str) -> dict[str, str | int | float | bool]:
        s = self.settings
        return {
            "what": "search", "optimizer": optimizer, "seed": s.seed, "code": code(optimizer)
        }  # fmt: skip

    def _lookup(
        self, graph: KernelGraph, policy: dict[str, str | int | float | bool], effort: float = 0.0
    ) -> store.Entry | None:
        if self.folder is None:
            return None
        said = len(self.diagnostics.messages)
        entry = store.lookup(
            self._hash(graph), self.target.name, policy, self.diagnostics, effort=effort, folder=self.folder
        )
        if len(self.diagnostics.messages) > said:
            self.folder = None  # said once
        return entry

    def _publish(
        self,
        graph: KernelGraph,
        policy: dict[str, str | int | float | bool],
        files: dict[str, bytes],
        seconds: float,
        effort: float,
    ) -> None:
        if self.folder is None:
            return
        kept = store.publish(
            self._hash(graph), self.target.name, policy, files, self.diagnostics,
            seconds=seconds, effort=effort, folder=self.folder,
        )  # fmt: skip
        if not kept:
            self.folder = None  # said once; a store that is full stays full

    def _hash(self, graph: KernelGraph) -> str:
        if graph not in self._hashes:
            self._hashes[graph] = program_hash(graph)
        return self._hashes[graph]

    def _read(self, graph: KernelGraph, data: bytes | None) -> KernelGraph | None:
        """A stored program that may stand for `graph`, with the names that `graph` has; None for any other."""
        try:
            kept = StoredProgram.model_validate_json(data or b"")
            found = parse(kept.program)
            check_kernel(found, self.target.shared_per_block)
        except (ValidationError, SuperoptError) as error:
            said = error.message if isinstance(error, SuperoptError) else str(error)
            self.diagnostics.warning(f"a stored result is not used: {said.splitlines()[0]}")
            return None
        for mine, theirs in ((graph.inputs, found.inputs), (graph.outputs, found.outputs)):
            if [v.type for v in mine] != [v.type for v in theirs]:
                return None
        give_names(found, kept.names)
        found.name = graph.name
        for mine, theirs in zip(graph.inputs, found.inputs, strict=True):
            theirs.name = mine.name
        return found

    def _schedule(self, data: bytes | None) -> Schedule | None:
        """A stored schedule; None for one that is none, or whose reason would not be one line of text."""
        if data is None:  # of a run that was killed
            return None
        try:
            kept = Schedule.model_validate_json(data)
        except ValidationError as error:
            self.diagnostics.warning(f"a stored schedule is not used: {str(error).splitlines()[0]}")
            return None
        said = [kept.reason, *(k.why for k in kept.kept.values())]
        return kept if all(s.isprintable() for s in said) else None


def _written(graph: KernelGraph) -> bytes:
    stored = StoredProgram(program=canonical_text(graph), names=names_of(graph))
    return stored.model_dump_json().encode()


def code(*asked: str) -> str:
    """A digest of superopt, and of the files of the optimizers `asked`, which may stand outside of it.

    A changed search does not answer from what the old one found; one without a file never does.
    """
    digest = hashlib.sha256(own_code().encode())
    for text in asked:
        module = sys.modules.get(type(optimizers.load(text)).__module__)
        file = getattr(module, "__file__", None)
        digest.update(Path(file).read_bytes() if file else os.urandom(16))
    return digest.hexdigest()[:16]


@cache
def own_code() -> str:
    """A digest of superopt's own code and data."""
    digest = hashlib.sha256()
    for native in (_cost, _egraph, _field, _ptx, _search):
        digest.update(Path(str(native.__file__)).read_bytes())
    for folder, folders, files in os.walk(Path(superopt.__file__ or "").parent, followlinks=True):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(files):
            if name.endswith((".py", ".json")):
                digest.update(name.encode() + b"\0" + (Path(folder) / name).read_bytes())
    return digest.hexdigest()
