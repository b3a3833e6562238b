"""Progress on a terminal, and silence everywhere else."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING

from superopt.diagnostics import Diagnostics

if TYPE_CHECKING:
    from rich.progress import Progress


@contextlib.contextmanager
def progress(diagnostics: Diagnostics, *, show: bool) -> Generator[None]:
    """Show what passes report to `diagnostics.progress` as a bar, if standard error is a terminal."""
    if not (show and sys.stderr.isatty()):
        yield
        return
    with _bar() as bar:
        task = bar.add_task("", total=None, visible=False)

        def advance(stage: str, fraction: float | None) -> None:
            # Drawn at once where the stage changes: a short one would end before the bar's next turn.
            changed = stage != bar.tasks[0].description
            bar.update(task, description=stage, total=None if fraction is None else 1.0,
                       completed=fraction or 0.0, visible=True, refresh=changed)  # fmt: skip

        before, diagnostics.progress = diagnostics.progress, advance
        try:
            yield
        finally:
            diagnostics.progress = before


@contextlib.contextmanager
def doing(what: str) -> Generator[None]:
    """Show a spinner that says what is being done, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with _bar() as bar:
        bar.add_task(what, total=None)
        yield


def run(command: Sequence[str], environment: Mapping[str, str], what: str) -> int:
    """Run a command, whose output is this process's; on a terminal a spinner says what it is doing.

    The exit status, negative for a signal.
    """
    if not sys.stderr.isatty():
        return subprocess.run(command, env=environment, check=False).returncode
    with (
        doing(what),
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sys.stdout.write(line)  # above the spinner, which redirects it
            return process.wait()
        except BaseException:  # an interrupt may have been sent to this process alone
            process.kill()
            raise


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()
    )
