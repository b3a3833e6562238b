"""Progress on a terminal, and silence everywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator

from superopt.diagnostics import Diagnostics


@contextlib.contextmanager
def progress(diagnostics: Diagnostics, *, show: bool) -> Generator[None]:
    """Show what passes report to `diagnostics.progress` as a bar, if standard error is a terminal."""
    if not (show and sys.stderr.isatty()):
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)

        def advance(stage: str, fraction: float | None) -> None:
            bar.update(task, description=stage, total=None if fraction is None else 1.0,
                       completed=fraction or 0.0, visible=True)  # fmt: skip

        before, diagnostics.progress = diagnostics.progress, advance
        try:
            yield
        finally:
            diagnostics.progress = before
