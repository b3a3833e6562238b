"""Runs every test, pytest's and lit's, and ends with the line `N passed, N failed`.

    python test/run.py [-m EXPRESSION]    # EXPRESSION as of `pytest -m`

The exit code is 0 only if all of them ran and none failed. Whatever keeps a suite from running (an error at
import, a crash, no test at all) counts as a failure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
# A test that runs for longer hangs: it fails by its name, and the others go on. The slowest took 248 s on a machine
# whose cores were all busy.
MOST_SECONDS = 900


@dataclass(frozen=True)
class Counts:
    """How the tests of one suite ended."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


def counts(report: Path, exit_code: int) -> Counts:
    """The counts of a JUnit report; one failure where it is missing, empty, or better than the exit code."""
    cases = []
    if report.exists():
        try:
            cases = list(ElementTree.parse(report).iter("testcase"))
        except ElementTree.ParseError:
            cases = []
    failed = sum(1 for c in cases if c.find("failure") is not None or c.find("error") is not None)
    skipped = sum(1 for c in cases if c.find("skipped") is not None)
    passed = len(cases) - failed - skipped
    if not cases or (exit_code != 0 and failed == 0):
        failed += 1
    return Counts(passed, failed, skipped)


def run(command: list[str], report: Path) -> Counts:
    """Run one suite, its output shown as it comes."""
    sys.stdout.write(f"$ {' '.join(command)}\n")
    sys.stdout.flush()
    return counts(report, subprocess.run(command, cwd=ROOT, check=False).returncode)


def main(arguments: list[str]) -> int:
    """Both suites, then the line that sums them up."""
    # Started in the background, this process ignores Ctrl-C, and so would every tool under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs = str(min(os.cpu_count() or 1, 8))
    with tempfile.TemporaryDirectory() as folder:
        junit, xunit = Path(folder) / "pytest.xml", Path(folder) / "lit.xml"
        # By a thread, which ends native code, too; the worker that is lost with it is replaced.
        limit = [f"--timeout={MOST_SECONDS}", "--timeout-method=thread"]
        pytest = [sys.executable, "-m", "pytest", "-n", jobs, *limit, f"--junitxml={junit}", *arguments]
        pytest += ["--durations=40", "--durations-min=5"]  # what to make shorter first
        lit = [sys.executable, "-c", "from lit.main import main; main()", "-sv", f"-j{jobs}"]
        lit += [f"--timeout={MOST_SECONDS}", "test"]
        total = run(pytest, junit) + run([*lit, f"--xunit-xml-output={xunit}"], xunit)
    if total.skipped:
        sys.stdout.write(f"{total.skipped} skipped: they need what this machine lacks\n")
    sys.stdout.write(f"{total.passed} passed, {total.failed} failed\n")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
