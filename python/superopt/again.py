"""The commands that do a run again, to be pasted into a shell; what only Python can do is a comment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superopt.options import Configured
    from superopt.pipeline import Superoptimize
    from superopt.run.outcome import Outcome

MOST_TEXT = 20_000
"""Characters of a program from memory beyond which no command holds it."""


def flag(settings: Configured) -> str:
    """`--superoptimize=...`, with what differs from the defaults."""
    name, _, options = str(settings).partition("{")
    return f"--{name}" + (f"={options.removesuffix('}')}" if options else "")


def command(file: str, *flags: str, text: str | None = None) -> str:
    """`superopt-opt` on a file, or on a text: then it is empty where there is none, or a long one."""
    if text is None:
        return shlex.join(["superopt-opt", file, *flags])
    if not text or len(text) > MOST_TEXT:
        return ""
    return shlex.join(["superopt-opt", "-", *flags]) + " <<'END'\n" + text.rstrip("\n") + "\nEND"


def commands(outcome: Outcome) -> list[tuple[str, str]]:
    """Commands in their order, and what each of them does; the later ones take the bundle of the first."""
    from superopt.dialects.writer import to_text  # not for every command line

    report = outcome.report
    folder = re.sub(r"[^\w.-]", "_", report.program) or "result"
    fixed = outcome.ranged is None and not outcome.buckets
    again = report.command
    if not again and fixed:
        again = command("-", _search(report.settings), text=to_text(outcome.original))
    head, newline, text = again.partition("\n")
    verify = f"superopt-verify {folder}"
    if again:
        found = [(f"{head} --emit=bundle -o {folder}{newline}{text}", "the same search")]
        if not fixed:  # a bundle has the program at one extent alone
            program = shlex.split(head)[1]
            given = f" <<'END'\n{text}" if program == "-" else ""
            verify = f"superopt-verify {shlex.quote(program)} {folder}{given}"
    else:
        found = [(f'# in Python: result.save("{folder}")', "the bundle that the next commands take")]
        if not fixed:
            found.insert(0, _in_python(outcome))
    if fixed:
        replayed = f"{folder}/original.mlir --schedule={folder}/schedule.json"
        found += [
            (f"superopt-opt {replayed} --emit=text", "the same result, without a search"),
            (f"superopt-verify --replay {folder}/certificate.json", "the proof again"),
        ]
    return [
        *found,
        (verify, "everything that the bundle says, checked"),
        (f"superopt-run {folder} --check", "the kernels against fp64"),
    ]


def _in_python(outcome: Outcome) -> tuple[str, str]:
    """The search for a range of a PyTorch program, which no file holds."""
    settings = _settings(outcome.report.settings)
    other = [
        f"{o.field}={value!r}"
        for o in settings.options()
        if (value := getattr(settings, o.field)) != o.default
    ]
    called = ", ".join(["module", "inputs", "dynamic_shapes=...", *other])
    parts = [bucket.axes for bucket in outcome.buckets]
    if outcome.ranged is not None and not parts:
        parts = [outcome.ranged.record.axes]
    marked = "; ".join(" and ".join(map(str, axes)) for axes in parts)
    return f"# in Python: superopt.optimize({called})", f"the same search, for {marked}"


def _search(settings: Mapping[str, Any]) -> str:
    return flag(_settings(settings))


def _settings(reported: Mapping[str, Any]) -> Superoptimize:
    from superopt.pipeline import Superoptimize

    return Superoptimize(**{name.replace("-", "_"): value for name, value in reported.items()})
