"""The process behind a job of `superopt.tuning.pool`: JSON on standard input, the answer on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any, cast

from superopt.api import settings_of
from superopt.diagnostics import Diagnostics
from superopt.driver.isolation import die_with
from superopt.errors import SuperoptError
from superopt.inputs.programs import read_program
from superopt.pipeline import superoptimize


def main() -> int:
    """Do the job; a user's mistake is an answer, too."""
    job = cast("dict[str, Any]", json.loads(sys.stdin.read()))
    # A worker that outlived the tool would write to the log beside the one that a resumed run begins.
    die_with(job["parent"])
    report, error, diagnostics = None, "", Diagnostics()
    try:
        settings = settings_of(job["settings"])
        outcome = superoptimize(read_program(job["file"], Diagnostics()), settings, diagnostics)
        report = outcome.report.model_dump(mode="json")
    except SuperoptError as mistake:
        error = str(mistake)
    warnings = [m.message for m in diagnostics.messages if m.severity == "warning"]
    sys.stdout.write(json.dumps({"report": report, "error": error, "warnings": warnings}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
