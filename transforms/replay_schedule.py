"""`--replay-schedule`: reproduces a saved result without a search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from superopt.errors import BadInput, Location
from superopt.pipeline import replay
from superopt.transforms.ingest.ingest_linalg import read_linalg
from superopt.transforms.passes import ModulePass

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.report import Schedule


@dataclass(frozen=True)
class ReplaySchedule(ModulePass):
    """Apply a saved schedule instead of a search; prove and compile the result again.

    A bundle holds its schedule as schedule.json; the input is the program that was optimized.
    """

    flag: ClassVar[str] = "replay-schedule"

    file: str
    """The schedule's file."""

    def run(self, module: Any, diagnostics: Diagnostics) -> None:
        """Replace the module's function; raises BadInput for a schedule of another program."""
        from superopt.run.outcome import deliver

        schedule = self._read()
        deliver(module, replay(read_linalg(module, diagnostics), schedule, diagnostics), diagnostics)

    def _read(self) -> Schedule:
        from pydantic import ValidationError

        from superopt.report import Schedule

        try:
            return Schedule.model_validate_json(Path(self.file).read_bytes())
        except OSError as error:
            raise BadInput(f"cannot read: {error.strerror}", Location(self.file)) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the document"
            raise BadInput(f"expected a schedule, got {where}: {first['msg']}", Location(self.file)) from None
