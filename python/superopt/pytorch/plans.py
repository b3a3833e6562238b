"""What became of a region in an earlier process, so that a second one starts without reading or proving anything.

A region is known by the operations of its graph, their constants, and the shapes, strides and dtypes of every
tensor in it: weights are not among them. What this very code, of these versions, found for it is kept in the
store: why it was not read or not replaced, or the kernels' tile programs, and everything is sealed
(`superopt.store.seal`). What lacks the seal is read, searched and proved as if the store did not hold it. Kernels
are written anew from their tile programs, so that no text of the store ever runs, and must be those that were
proved.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from superopt import store
from superopt.computed import mark_computed
from superopt.diagnostics import Diagnostics
from superopt.naming import give_names, names_of
from superopt.pytorch.regions import Region
from superopt.report import Report, StoredProgram
from superopt.run.reuse import code
from superopt.transforms.emit.launcher import Launcher, launcher_of, load_launcher
from superopt.transforms.emit.program_source import EmittedProgram, emit_program
from superopt.transforms.emit.ranged import ranged_interface, written
from superopt.verify.hashing import canonical_text, parse
from superopt.verify.ranges import Family, RangeRecord

if TYPE_CHECKING:
    from superopt.program import KernelGraph
    from superopt.run.outcome import Outcome
    from superopt.run.settings import Settings


@dataclass(frozen=True)
class Kernels:
    """The kernels for a region, and the report of the run that found and proved them."""

    report: Report
    launcher: Launcher


class Plans:
    """Regions of earlier processes with these settings; without a store, it finds and keeps nothing."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.folder = store.chosen_folder(settings.store)

    def reading(self, cut: Region) -> str | None:
        """Why the region cannot be read, empty where it can; None where that is not known."""
        files = self._lookup(cut, self._reading())
        return None if files is None else files["reason"].decode()

    def keep_reading(self, cut: Region, reason: str) -> None:
        """Keep what `reading` tells."""
        self._publish(cut, self._reading(), {"reason": reason.encode()})

    def made(self, cut: Region) -> Kernels | str | None:
        """The kernels for the region, or why it has none; None where that is not known."""
        files = self._lookup(cut, self._making())
        if files is None:
            return None
        return files["reason"].decode() if "reason" in files else _restored(cut, files)

    def keep_made(self, cut: Region, made: Outcome | str) -> None:
        """Keep what `made` tells."""
        self._publish(
            cut, self._making(), {"reason": made.encode()} if isinstance(made, str) else _kept(made)
        )

    # --- the store

    def _reading(self) -> dict[str, str | int | float | bool]:
        versions = {"torch": version("torch"), "python": sys.version}
        return {"what": "region", "code": code(), **versions}

    def _making(self) -> dict[str, str | int | float | bool]:
        options = [o for o in self.settings.options() if o.field != "store"]
        settings = {o.name: str(getattr(self.settings, o.field)) for o in options}
        optimizers = code(*self.settings.optimizers)
        return {**self._reading(), **settings, "what": "kernels of a region", "code": optimizers}

    def _lookup(self, cut: Region, policy: dict[str, str | int | float | bool]) -> dict[str, bytes] | None:
        if self.folder is None or not cut.portable:
            return None
        diagnostics = Diagnostics()
        entry = store.lookup(
            cut.key, self.settings.target, policy, diagnostics, folder=self.folder, sealed=True
        )
        self._said(diagnostics)
        return None if entry is None else dict(entry.files)

    def _publish(
        self, cut: Region, policy: dict[str, str | int | float | bool], files: dict[str, bytes]
    ) -> None:
        if self.folder is None or not cut.portable:
            return
        diagnostics = Diagnostics()
        store.publish(
            cut.key, self.settings.target, policy, files, diagnostics,
            seconds=0.0, folder=self.folder, sealed=True,
        )  # fmt: skip
        self._said(diagnostics)

    def _said(self, diagnostics: Diagnostics) -> None:
        for message in diagnostics.messages:
            warnings.warn(f"superopt: {message.message}", stacklevel=2)
            self.folder = None  # said once


def kernels(outcome: Outcome) -> Kernels:
    """Those that a run of this process found."""
    return Kernels(outcome.report, load_launcher(outcome))


def _kept(outcome: Outcome) -> dict[str, bytes]:
    files = {
        "report.json": outcome.report.model_dump_json().encode(),
        "certificate.json": outcome.certificate.model_dump_json().encode(),
        "original.json": _program(outcome.original),
        "lowered.json": _program(outcome.lowered),
        "kernels.sha256": _digest(outcome.emitted),
    }
    if outcome.ranged is not None:
        files["range.json"] = outcome.ranged.record.model_dump_json().encode()
    if not isinstance(outcome.artifact, str):
        records = {target: record.model_dump(mode="json") for target, record in outcome.artifact.items()}
        files["artifact.json"] = json.dumps(records).encode()
    return files


def _restored(cut: Region, files: dict[str, bytes]) -> Kernels | None:
    """The kernels that `_kept` kept; None where another text comes of their programs."""
    report = Report.model_validate_json(files["report.json"])
    original, lowered = (_parsed(files[f"{n}.json"], report.program) for n in ("original", "lowered"))
    ranged = None
    if not cut.over:
        emitted = emit_program(lowered)
    else:
        family = Family(original, lowered, cut.over)
        emitted = written(family)
        ranged = ranged_interface(family, RangeRecord.model_validate_json(files["range.json"]))
    if _digest(emitted) != files["kernels.sha256"]:
        return None
    return Kernels(report, launcher_of(emitted, original, lowered, ranged))


def _program(graph: KernelGraph) -> bytes:
    return StoredProgram(program=canonical_text(graph), names=names_of(graph)).model_dump_json().encode()


def _parsed(data: bytes, name: str) -> KernelGraph:
    kept: Any = StoredProgram.model_validate_json(data)
    graph = parse(kept.program)
    give_names(graph, kept.names)
    graph.name = name
    mark_computed(graph)
    return graph


def _digest(emitted: EmittedProgram) -> bytes:
    """sha256 of all that runs."""
    digest = hashlib.sha256(emitted.kernels_source.encode() + b"\0" + emitted.launcher_source.encode())
    for name, array in sorted(emitted.constants.items()):
        digest.update(f"\0{name} {array.dtype} {array.shape}\0".encode() + array.tobytes())
    return digest.hexdigest().encode()
