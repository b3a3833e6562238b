"""`superopt-bench prepare`: programs to a folder that is measured elsewhere; needs no GPU.

measure.py  superopt_measure/      the measure step; needs torch and triton
calibrate.py                       what the GPU does at best: launches, copies, products of its library
prepared.json                      programs, rows, points, predictions, proofs; files with their SHA-256
programs/NAME/original.mlir        the program
programs/NAME/reference.py         the program in plain PyTorch: what every row is checked against
programs/NAME/<candidate>/<point>/ kernels.py and launch.py of one parameter point
programs/NAME/<candidate>/bundle/  the best predicted point as a whole bundle, with PTX, cubin and TTIR
programs/NAME/baselines/           what it is compared with
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from superopt import __version__, cost
from superopt.cost import Target
from superopt.cost.gpus import DEFAULT_TARGET
from superopt.diagnostics import Diagnostics
from superopt.dialects.writer import to_text
from superopt.errors import BadInput
from superopt.measure import baselines, tuned
from superopt.measure.baselines import Row
from superopt.measure.modules import Module
from superopt.measure.space import Point, Space
from superopt.measure.standalone.run import PREPARED, PREPARED_VERSION
from superopt.numerics.float_gate import input_specs
from superopt.program import KernelGraph
from superopt.run import choose, context, propose
from superopt.run.budget import SEARCHES
from superopt.run.check import Accepted, check
from superopt.run.settings import Settings as RunSettings
from superopt.transforms.emit.bundle import write_bundle
from superopt.transforms.emit.program_source import save_constants, write_program
from superopt.transforms.emit.reference_source import reference_source
from superopt.transforms.optimizers import SEGMENTS, in_turns
from superopt.verify import program_hash

_SCRIPT = '''#!/usr/bin/env python3
"""{about}; needs torch and triton. See `python {name}.py --help`."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from superopt_measure.{module} import main

if __name__ == "__main__":
    sys.exit(main([{first}*sys.argv[1:]]))
'''
_SCRIPTS = (
    {"name": "measure", "module": "run", "first": "str(FOLDER), ", "about": "Measures this folder"},
    {"name": "calibrate", "module": "calibrate", "first": "", "about": "Measures what this GPU does at best"},
)


@dataclass(frozen=True)
class Settings:
    """How much to prepare: candidates of each program, points of each row, seconds of each step."""

    target: str = DEFAULT_TARGET
    candidates: int = 2
    points: int = 16
    budget: float = 30.0
    """Seconds of search for each program, shared by the optimizers."""
    tuning: float = 120.0
    """Seconds for the points of each candidate: compiling and proving."""
    seed: int = 0


def prepare(
    programs: Sequence[tuple[str, KernelGraph]],
    folder: Path,
    settings: Settings,
    model: cost.Model,
    diagnostics: Diagnostics,
    modules: Mapping[str, Module] | None = None,
) -> dict[str, Any]:
    """Write the folder, whole or not at all, and return what `prepared.json` holds.

    `modules` are the PyTorch modules that programs were imported from, by the programs' names.
    Raises BadInput for a folder that holds something else or cannot be written, and for two programs of one name.
    """
    target = cost.target(settings.target)
    names = [name for name, _ in programs]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"expected programs of different names, got '{name}' twice")
    _refuse_others(folder)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    try:
        described: dict[str, Any] = {
            "format": PREPARED,
            "version": PREPARED_VERSION,
            "superopt": __version__,
            "versions": {n: _version(n) for n in ("triton", "torch-mlir")},
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "target": target.name,
            "gpu": target.gpu,
            "model": model.source,
            "settings": asdict(settings),
            "programs": [
                Program(n, g, place, target, settings, model, diagnostics, (modules or {}).get(n)).described()
                for n, g in programs
            ],
        }
        seal(place, described)
        place.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        place.rename(folder)
    except OSError as error:
        raise BadInput(f"expected to write the folder '{folder}', got: {error.strerror or error}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return described


def seal(place: Path, described: dict[str, Any]) -> None:
    """Add the measure step, and `prepared.json` with every file's SHA-256."""
    for script in _SCRIPTS:
        (place / f"{script['name']}.py").write_text(_SCRIPT.format(**script))
    (place / "superopt_measure").mkdir()
    for source in files("superopt.measure.standalone").iterdir():
        if source.name.endswith(".py"):
            (place / "superopt_measure" / source.name).write_text(source.read_text())
    listed = sorted(p for p in place.rglob("*") if p.is_file())
    described["files"] = {
        str(p.relative_to(place)): hashlib.sha256(p.read_bytes()).hexdigest() for p in listed
    }
    (place / "prepared.json").write_text(json.dumps(described, indent=1) + "\n")


def _refuse_others(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise BadInput(f"expected a folder to write into, got a file: {folder}")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "prepared.json").is_file():
        raise BadInput(
            f"expected an empty folder or a prepared one to replace, got a folder with other files: {folder}"
        )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


class Program:
    """One program on its way into the folder."""

    def __init__(
        self,
        name: str,
        graph: KernelGraph,
        folder: Path,
        target: Target,
        settings: Settings,
        model: cost.Model,
        diagnostics: Diagnostics,
        module: Module | None = None,
    ) -> None:
        self.module = module
        self.name, self.graph, self.folder, self.target = name, graph, folder, target
        self.settings, self.model, self.diagnostics = settings, model, diagnostics
        self.where = f"programs/{name}"
        self.funnel: Counter[str] = Counter()

    def described(self) -> dict[str, Any]:
        """Everything about the program that the measure step needs."""
        place = self.folder / self.where
        place.mkdir(parents=True)
        (place / "original.mlir").write_text(to_text(self.graph))
        constants: dict[str, Any] = {}
        (place / "reference.py").write_text(reference_source(self.graph, constants))
        if constants:
            save_constants(place, constants)
        rows = self._candidates()
        made = baselines.rows(
            self.graph,
            self.folder,
            f"{self.where}/baselines",
            self.target,
            self.settings.points,
            self.funnel,
            self.module,
        )
        used = {v for n in self.graph.nodes for v in n.operands} | set(self.graph.outputs)
        return {
            "name": self.name,
            "sha256": program_hash(self.graph),
            "reference": f"{self.where}/reference.py",
            "inputs": [asdict(s) for s in input_specs(self.graph)],
            "outputs": [
                {"name": v.name or f"out{i}", "shape": v.shape, "dtype": v.dtype}
                for i, v in enumerate(self.graph.outputs)
            ],
            "read_bytes": sum(v.type.bytes for v in self.graph.inputs if v in used),
            "written_bytes": sum(v.type.bytes for v in self.graph.outputs),
            "predicted_seconds": cost.cost(self.graph, self.target).seconds,
            "funnel": dict(sorted(self.funnel.items())),
            "rows": [asdict(row) for row in [*made, *rows]],
        }

    # --- ours ------------------------------------------------------------------------------------------------

    def _candidates(self) -> list[Row]:
        """What a run delivers, then the best other candidates that pass every gate, each with its points."""
        rows: list[Row] = []
        for optimizer, accepted in self.accepted():
            if len(rows) == self.settings.candidates:
                break
            started = time.monotonic()
            lowered = accepted.scheduled.lowered
            space = Space(self.graph, lowered, self.target)
            candidate = program_hash(lowered)
            known = tuned.lookup(program_hash(self.graph), self.target.name, candidate, self.diagnostics)
            points = space.points(self.settings.points, self.settings.tuning, self.model, known)
            self.funnel.update(space.funnel)
            if not points:
                self.funnel["candidates rejected: no point"] += 1
                continue
            rows.append(self._row(f"{optimizer}-{len(rows)}", accepted.graph, points, candidate))
            self.diagnostics.remark(
                f"{self.name}: {optimizer}: {len(points)} points in {time.monotonic() - started:.0f} s, "
                f"best predicted {points[0].predicted_seconds * 1e6:.1f} us"
            )
        return rows

    def accepted(self) -> Iterator[tuple[str, Accepted]]:
        """(optimizer, program): first what `superoptimize` delivers, then others; the optimizers take turns."""
        settings = RunSettings(
            target=self.target.name,
            budget=self.settings.budget / SEARCHES,
            seed=self.settings.seed,
            against="operators",  # what a user has is measured beside it
            store=None,
        )
        started = context.start(self.graph, settings, self.diagnostics)
        parts = propose.parts(self.graph)
        found = propose.propose(started, parts, self.diagnostics.progress)
        best = choose.choose(started, self.graph, parts, found)
        wholes = found[-1]
        for optimizer, count in Counter(c.optimizer for c in wholes).items():
            self.funnel[f"candidates proposed: {optimizer}"] += count
        self.funnel.update(
            {f"candidates rejected: {r}": n for r, n in started.report.funnel.rejected.items()}
        )
        if best.graph is not self.graph:
            yield next((c.optimizer for c in wholes if c.graph is best.graph), SEGMENTS), best
        by_optimizer = [
            [c for c in wholes if c.optimizer == o] for o in sorted({c.optimizer for c in wholes})
        ]
        for candidate in in_turns(by_optimizer):
            if candidate.graph in started.refused or candidate.graph is best.graph:
                continue
            if candidate.seconds > started.most_seconds:
                self.funnel[f"candidates rejected: {choose.NOT_FASTER}"] += 1
                continue
            accepted, outcome = check(started, self.graph, candidate.graph)
            if accepted is None:
                self.funnel[f"candidates rejected: {outcome}"] += 1
            else:
                yield candidate.optimizer, accepted

    def _row(self, name: str, graph: KernelGraph, points: Sequence[Point], candidate: str) -> Row:
        where = f"{self.where}/{name}"
        (self.folder / where).mkdir(parents=True)
        (self.folder / where / "candidate.mlir").write_text(to_text(graph))
        best = points[0]
        write_bundle(
            self.folder / where / "bundle",
            original=self.graph,
            lowered=best.lowered,
            emitted=best.emitted,
            compiled=best.compiled,
            original_mlir=to_text(self.graph),
            optimized_mlir=to_text(graph),
            lowered_mlir=to_text(best.lowered),
        )
        return Row(
            name,
            "superopt",
            f"superopt, {name.rpartition('-')[0]}",
            [self._point(where, i, p) for i, p in enumerate(points)],
        )

    def _point(self, where: str, number: int, point: Point) -> dict[str, Any]:
        path = f"{where}/{number}"
        (self.folder / path).mkdir()
        write_program(point.emitted, self.folder / path)
        text = "".join(k.ptx for k in point.compiled) + point.emitted.launcher_source
        prediction = self.model.predict(point.features)
        return {
            "id": str(number),
            "path": path,
            "compile": None,
            "fingerprint": hashlib.sha256(text.encode()).hexdigest(),
            "parameters": point.parameters,
            "predicted_seconds": prediction.seconds,
            "predicted_low": prediction.low,
            "predicted_high": prediction.high,
            "known": point.known,
            "features": point.features,
            "matrix_flops": point.matrix_flops,
            "proof": point.proof,
            "compiled": [
                {
                    "name": k.name,
                    "shared_bytes": k.shared_bytes,
                    "registers": k.registers,
                    "spill_bytes": k.spill_bytes,
                }
                for k in point.compiled
            ],
        }
