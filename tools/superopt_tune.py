"""`superopt-tune`: tunes programs in several processes, which share what they learn through the store."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from superopt.alone import alone
from superopt.api import settings_of
from superopt.driver.arguments import Parser, said
from superopt.errors import BadInput, BadOption, Location, SuperoptError
from superopt.run.reuse import own_code
from superopt.store import versions
from superopt.tuning.pool import Answer, Job, LocalPool, Pool
from superopt.tuning.ray_pool import RayPool

_DESCRIPTION = """Tune the choices of all passes for each program, in processes of their own. Results are proved
like any others, and kept in the store, where superopt-opt and superopt.optimize with the same settings find them.
Run again, it goes on where it ended. All seconds are predictions. Exit codes: 0 all done; 1 a program failed
or cannot be read; 2 bad command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """The console entry; `argv` is `sys.argv` without the program's name, the result the exit code."""
    options = _parser().parse_args(argv)
    try:
        return run(options, _pool(options.workers, options.timeout))
    except BadOption as error:
        print(said("superopt-tune", error), file=sys.stderr)
        return 2
    except SuperoptError as error:
        print(said("superopt-tune", error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("superopt-tune: interrupted; run again, it goes on where it ended", file=sys.stderr)
        return 128 + signal.SIGINT


def _pool(workers: str, timeout: float) -> Pool:
    """Processes on this machine, or tasks of a Ray cluster; raises BadOption."""
    kind, colon, rest = workers.partition(":")
    if kind != "ray":
        if not workers.isdecimal() or int(workers) < 1:
            raise BadOption(
                f"expected --workers as a positive number, ray:NUMBER or ray://HOST:PORT, got '{workers}'"
            )
        return LocalPool(int(workers), timeout)
    if rest.startswith("//"):
        return RayPool(timeout, workers)
    if colon and (not rest.isdecimal() or int(rest) < 1):
        raise BadOption(f"expected a positive number of workers behind 'ray:', got '{rest}'")
    return RayPool(timeout, workers=int(rest) if rest else 1)


def _parser() -> Parser:
    parser = Parser(prog="superopt-tune", description=_DESCRIPTION)
    parser.add_argument(
        "files", nargs="+", metavar="FILE.mlir", help="linalg on tensors or the kernel dialect"
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.json", help="write, and go on from, the results so far"
    )
    parser.add_argument(
        "--evaluations", type=_natural, default=256, metavar="N", help="tune=N (default: 256)"
    )
    parser.add_argument(
        "--workers",
        default="1",
        metavar="W",
        help="processes on this machine (default: 1), ray:N for N of a Ray cluster on it, or ray://HOST:PORT",
    )
    parser.add_argument(
        "--timeout",
        type=_natural,
        default=3600,
        metavar="S",
        help="seconds until a process is ended (default: 3600)",
    )
    parser.add_argument(
        "--settings", action="append", default=[], metavar="NAME=VALUE",
        help="other settings of --superoptimize, such as budget=20; may be repeated",
    )  # fmt: skip
    return parser


def run(options: argparse.Namespace, pool: Pool) -> int:
    """Tune what has no result yet, with the processes of `pool`; gives the exit code. Raises SuperoptError."""
    settings = _settings(options)
    output = Path(options.output) if options.output else None
    done = _done(output)
    _write(output, done)  # a mistake in its name is found before hours of work
    jobs = {file: _key(file, settings) for file in dict.fromkeys(options.files)}
    failed = 0
    missing: dict[str, str] = {}  # files that hold the same are one job
    for file, key in jobs.items():
        if key not in done:
            missing.setdefault(key, file)
    for answer in pool.answers([Job(file, settings) for file in missing.values()]):
        failed += answer.report is None
        print(_said(answer), flush=True)
        for warning in answer.warnings:
            print(f"{answer.job.file}: warning: {warning}", file=sys.stderr, flush=True)
        if answer.report is not None:
            done[jobs[answer.job.file]] = {"file": answer.job.file, "report": answer.report}
            _write(output, done)
    print(f"{sum(key in done for key in jobs.values())} of {len(jobs)} programs are tuned")
    return 1 if failed else 0


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of every run, checked; raises BadOption."""
    given = {"tune": str(options.evaluations)}
    for text in options.settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadOption(f"expected a setting as NAME=VALUE, got '{text}'")
        given[name] = value
    parsed = type(settings_of({})).parse(" ".join(f"{n.replace('_', '-')}={v}" for n, v in given.items()))
    if parsed.tune != options.evaluations:
        raise BadOption(f"expected the number of programs to price as --evaluations, got tune={parsed.tune}")
    chosen = {o.field: getattr(parsed, o.field) for o in parsed.options()}
    return {name: value for name, value in chosen.items() if value != getattr(settings_of({}), name)}


def _key(file: str, settings: dict[str, Any]) -> str:
    """What a result belongs to: the file's contents, the settings and superopt itself; raises BadInput."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read: {error.strerror}", Location(file)) from None
    by = [settings, own_code(), versions()]
    return hashlib.sha256(data + json.dumps(by, sort_keys=True).encode()).hexdigest()


def _done(output: Path | None) -> dict[str, Any]:
    if output is None or not output.exists():
        return {}
    try:
        found = cast("object", json.loads(output.read_bytes()))
    except (OSError, ValueError):
        found = None
    tuned = cast("dict[str, Any]", found).get("tuned") if isinstance(found, dict) else None
    if not isinstance(tuned, dict):
        raise BadInput("expected results of superopt-tune, or no file", Location(str(output)))
    return cast("dict[str, Any]", tuned)


def _write(output: Path | None, done: dict[str, Any]) -> None:
    """Add the results so far to the file, whole or not at all; raises BadInput.

    Another superopt-tune may write to the same file; neither loses the other's results.
    """
    if output is not None:
        draft = output.with_name(f".{output.name}.{os.getpid()}")
        try:
            with alone(output.parent):
                draft.write_text(json.dumps({"tuned": _done(output) | done}, indent=1) + "\n")
                draft.replace(output)
        except OSError as error:
            raise BadInput(f"cannot write: {error.strerror}", Location(str(output))) from None


def _said(answer: Answer) -> str:
    if answer.report is None:
        return f"{answer.job.file}: failed: {answer.error}"
    report, tuning = answer.report, answer.report["tuning"]
    us = f"predicted {report['predicted_seconds'] * 1e6:.2f} us"
    if tuning is None:
        return f"{answer.job.file}: {us}, from the store"
    prices = ", ".join(f"{count} prices by {name}" for name, count in tuning["evaluations"].items())
    before = f"{tuning['before_seconds'] * 1e6:.2f} us before tuning"
    if tuning["measured"]:
        before = f"on the CPU {tuning['after_seconds'] * 1e6:.2f} us, {before}"
    return f"{answer.job.file}: {us}, {before} ({prices})"


def _natural(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got '{text}'")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
