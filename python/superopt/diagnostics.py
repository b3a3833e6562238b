"""Located messages that do not stop a run: remarks, warnings and notes.

The MLIR bindings can only emit errors, so passes report the rest here, and tools print it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from superopt.errors import UNKNOWN, Location

if TYPE_CHECKING:
    from superopt.program import KernelGraph
    from superopt.report import SearchReport


@dataclass(frozen=True)
class Diagnostic:
    """One message; `str` gives `file:line:col: severity: message`."""

    severity: Literal["remark", "warning", "note", "error"]
    message: str
    location: Location = UNKNOWN

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location != UNKNOWN else ""
        return f"{where}{self.severity}: {self.message}"


def _silent(stage: str, fraction: float | None) -> None:
    """Show no progress."""


@dataclass
class Diagnostics:
    """The messages of one run's passes, in order, and what the passes hand over besides the program.

    `artifacts` carries what is not IR from a pass to its tool: "report", "certificate" and "schedule" are JSON
    text. `source` is the ingested program; what is emitted after passes is proved against it.
    `command` is the command line that makes the run (`superopt.again`), empty where there is none.
    `file` names places in a text that was parsed from memory, as MLIR drops the name.
    `searches` are the reports of passes that search. `progress(stage, fraction)` is called by long passes; a tool
    on a terminal replaces it by a progress bar (fraction in [0, 1], None where unknown).
    """

    messages: list[Diagnostic] = field(default_factory=list[Diagnostic])
    artifacts: dict[str, Any] = field(default_factory=dict[str, Any])
    source: KernelGraph | None = None
    searches: list[SearchReport] = field(default_factory=list["SearchReport"])
    progress: Callable[[str, float | None], None] = _silent
    file: str = ""
    command: str = ""

    def remark(self, message: str, location: Location = UNKNOWN) -> None:
        """Record something worth knowing, such as an operation kept opaque."""
        self.messages.append(Diagnostic("remark", message, location.named(self.file)))

    def part(self, name: str) -> Diagnostics:
        """Those of a part of a run, whose progress is shown as that of `name`."""

        def shown(stage: str, fraction: float | None) -> None:
            self.progress(f"{name}: {stage}", fraction)

        return Diagnostics(progress=shown, file=self.file)

    def warning(self, message: str, location: Location = UNKNOWN) -> None:
        """Record something that may surprise the user."""
        self.messages.append(Diagnostic("warning", message, location.named(self.file)))


def counted(number: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`, `2 searches`."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"
