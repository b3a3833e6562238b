"""What `superopt.optimize` found, and what `superopt.load` finds in a bundle."""

from __future__ import annotations

from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.diagnostics import counted
from superopt.dialects.writer import to_text
from superopt.driver import output
from superopt.driver.emission import summary
from superopt.errors import BadInput
from superopt.page import page
from superopt.report import Report, Schedule
from superopt.transforms.emit import load_launcher, read_bundle, save_bundle
from superopt.transforms.emit.bundle import bundle_launcher
from superopt.transforms.emit.bundle_buckets import read_buckets
from superopt.transforms.emit.dispatch import Dispatcher, places_of
from superopt.transforms.emit.launcher import Launcher
from superopt.transforms.emit.program_source import ExtentPlace
from superopt.verify import Certificate

if TYPE_CHECKING:
    from superopt.run.outcome import Outcome


class Optimized:
    """A verified program: its text at every level, its proof, and the kernels, ready to call."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    @property
    def outcome(self) -> Outcome:
        """Programs, proof, kernels, report and schedule of the run."""
        return self._outcome

    @property
    def mlir(self) -> str:
        """The optimized program in superopt's dialects."""
        return to_text(self.outcome.optimized)

    @property
    def triton(self) -> str:
        """Source of the Triton kernels."""
        return self.outcome.emitted.kernels_source

    @property
    def ptx(self) -> str:
        """PTX of the kernels, one after the other."""
        return "\n".join(kernel.ptx for kernel in self.outcome.compiled)

    @property
    def certificate(self) -> Certificate:
        """The proof of equivalence; `superopt-verify --replay` checks it again."""
        return self.outcome.certificate

    @property
    def report(self) -> Report:
        """The funnel, the candidates, predicted costs and times."""
        return self.outcome.report

    @property
    def schedule(self) -> Schedule:
        """What replays this result without a search."""
        return self.outcome.schedule

    def save(self, folder: str | Path) -> Path:
        """Write a bundle that runs without superopt; returns its folder. An existing one is replaced."""
        return save_bundle(Path(folder), self.outcome)

    def save_report(self, path: str | Path) -> Path:
        """Write what `--report` writes: a page for people where the name ends in .html, else JSON."""
        output.write(
            str(path), page(self.outcome) if str(path).endswith(".html") else self.report.model_dump_json()
        )
        return Path(path)

    def _repr_html_(self) -> str:
        return f'<iframe width="100%" height="600" srcdoc="{escape(page(self.outcome))}"></iframe>'

    @cached_property
    def launcher(self) -> Launcher | Dispatcher:
        """The kernels, called with the tensors that the program takes."""
        if not (buckets := self.outcome.buckets):
            return load_launcher(self.outcome)
        bounds = [{axis.name: (axis.low, axis.high) for axis in each.axes} for each in buckets]
        launchers = [load_launcher(each.outcome) for each in buckets]
        return Dispatcher(list(zip(bounds, launchers, strict=True)), places_of(buckets[0].axes))

    @property
    def summary(self) -> str:
        """Kernels, predicted time and guarantee, in one line; of buckets, those of the last one."""
        return summary(self.outcome)

    def __call__(self, *inputs: Any) -> Any:
        """Run the kernels on torch tensors: on their GPU, or, for tensors of the CPU, in Triton's interpreter.

        Takes the program's inputs and returns its output, or a tuple of the outputs, without gradients. A tensor
        is overwritten only where the program says so, by `superopt.aliasing_output` of an argument. Raises
        BadInput for arguments that the program was not made for.
        """
        return self.launcher(*inputs)

    def __repr__(self) -> str:
        return f"<superopt.Optimized {self.report.program}: {self.summary}>"


class Kept(Optimized):
    """What there is where nothing could be proved: the report of the run, and the reason."""

    def __init__(self, reason: str, report: Report) -> None:
        self.reason, self._report = reason, report

    @property
    def outcome(self) -> Outcome:
        """Raises BadInput: there are no kernels."""
        raise BadInput(f"expected a program with kernels, got one that is kept as it was: {self.reason}")

    @property
    def report(self) -> Report:
        """The funnel and the candidates; the last remark is the reason."""
        return self._report

    @property
    def summary(self) -> str:
        """Why the original runs."""
        return f"the original: {self.reason}"

    def __repr__(self) -> str:
        return f"<superopt.Optimized {self.report.program}: {self.summary}>"


class Saved(Optimized):
    """What a bundle holds of a result; its report is not among it. Texts of buckets are those of the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.buckets = folder, read_buckets(folder)
        self.bundle = read_bundle(folder / self.buckets.buckets[-1].folder if self.buckets else folder)

    def holds(self, name: str) -> bool:
        """Whether a file lies in the folder, which holds a module besides kernels where one was saved."""
        return name in (self.buckets.files if self.buckets else self.bundle.description["files"])

    def _text(self, name: str) -> str:
        path = self.bundle.folder / name
        if name not in self.bundle.description["files"]:
            raise BadInput(f"expected a bundle with the file '{name}', got none: {self.bundle.folder}")
        return path.read_text()

    @property
    def outcome(self) -> Outcome:
        """Raises BadInput: a bundle lacks the record of the run."""
        raise BadInput(f"expected the result of a run, got what a bundle keeps of it: {self.bundle.folder}")

    @property
    def mlir(self) -> str:
        """The optimized program in superopt's dialects."""
        return self._text("optimized.mlir")

    @property
    def triton(self) -> str:
        """Source of the Triton kernels."""
        return self._text("kernels.py")

    @property
    def ptx(self) -> str:
        """PTX of the kernels, one after the other."""
        return "\n".join(self._text(n) for n in self.bundle.description["files"] if n.endswith(".ptx"))

    @property
    def certificate(self) -> Certificate:
        """The proof of equivalence; `superopt-verify --replay` checks it again."""
        return Certificate.model_validate_json(self._text("certificate.json"))

    @property
    def schedule(self) -> Schedule:
        """What replays this result without a search."""
        return Schedule.model_validate_json(self._text("schedule.json"))

    @property
    def summary(self) -> str:
        """Kernels and targets, in one line."""
        described = self.bundle.description
        return f"{counted(len(described['grids']), 'kernel')} for {', '.join(described['targets'])}"

    @cached_property
    def launcher(self) -> Launcher | Dispatcher:
        """The kernels, called with the tensors that the program takes: the bundle's files run then."""
        if self.buckets is None:
            return bundle_launcher(self.bundle)
        bounds = [{n: (low, high) for n, (low, high) in b.bounds.items()} for b in self.buckets.buckets]
        launchers = [bundle_launcher(read_bundle(self.folder / b.folder)) for b in self.buckets.buckets]
        places = {name: ExtentPlace(*place) for name, place in self.buckets.places.items()}
        return Dispatcher(list(zip(bounds, launchers, strict=True)), places)

    def save(self, folder: str | Path) -> Path:
        """Raises BadInput: a bundle is copied as a folder."""
        raise BadInput(f"expected the result of a run to save, got a bundle: copy {self.folder}")

    def __repr__(self) -> str:
        return f"<superopt.Optimized {self.bundle.description['name']}: {self.summary}>"
