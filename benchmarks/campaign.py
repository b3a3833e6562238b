"""Campaigns: a row for each program, made in a process of its own and kept in `results/`, and a table in a page.

Rows of an earlier run are kept, so that an interrupted run goes on; `--again` repeats them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import keep, load

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarking.md"


def without_places(remark: str) -> str:
    """What a remark says, without the places in files, which have other names on each machine."""
    said = re.sub(r"^.*?(?:remark|warning): ", "", remark)
    return re.sub(r" \(\S+:\d+:\d+\)|\S+:\d+:\d+: ", "", said)


@dataclass(frozen=True)
class Campaign:
    """`python -m benchmarks.NAME`: its rows are in `results/NAME.json`, the table is in the page."""

    name: str
    programs: Sequence[str]
    measure: Callable[[str, str, float], dict[str, Any]]
    """The row of a program, for a target, with so many seconds of work."""
    table: Callable[[dict[str, Any]], str]
    limit: float
    """Seconds that a program may take."""

    def parser(self, doc: str | None) -> argparse.ArgumentParser:
        """The options of all campaigns."""
        made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
        made.add_argument("--programs", default=",".join(self.programs), help="comma-separated")
        made.add_argument("--budget", type=float, default=60.0, help="seconds of work for each")
        made.add_argument("--limit", type=float, default=self.limit, help="seconds that a program may take")
        made.add_argument("--target", default="sm_90")
        made.add_argument("--again", action="store_true", help="measure again what is kept already")
        made.add_argument("--table", action="store_true", help="write the table of what is kept")
        made.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
        return made

    def run(self, arguments: argparse.Namespace) -> None:
        """Measure what is asked for, print and keep it, and write the table."""
        if arguments.child:
            print(json.dumps(self.measure(arguments.programs, arguments.target, arguments.budget)))
            return
        rows = load(self.name)
        asked: list[str] = [] if arguments.table else arguments.programs.split(",")
        for program in asked:
            if program in rows and not arguments.again:
                continue
            made = self._in_child(program, arguments)
            rows = load(self.name) | {program: made}  # another run may have kept some meanwhile
            print(f"{program}: {rows[program]}", flush=True)
            self.keep(rows, arguments)
        self.write(rows)

    def keep(self, rows: dict[str, Any], arguments: argparse.Namespace) -> None:
        """Keep the rows."""
        keep(self.name, rows, target=arguments.target, budget_seconds=arguments.budget)

    def write(self, rows: dict[str, Any]) -> None:
        """Put the table of these rows into the page."""
        begin, end = f"<!-- {self.name} -->", f"<!-- /{self.name} -->"
        before, _, rest = PAGE.read_text().partition(begin)
        _, _, after = rest.partition(end)
        PAGE.write_text(f"{before}{begin}\n\n{self.table(rows)}\n\n{end}{after}")

    def _in_child(self, program: str, arguments: argparse.Namespace) -> dict[str, Any]:
        command = [sys.executable, "-m", f"benchmarks.{self.name}", "--child", "--programs", program]
        command += ["--budget", str(arguments.budget), "--target", arguments.target]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=arguments.limit, cwd=ROOT
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"took more than {arguments.limit:g} s"}
        if done.returncode:
            return {"failed": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
        return json.loads(done.stdout)
