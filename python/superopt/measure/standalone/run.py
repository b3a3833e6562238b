"""The command line of the measure step: one prepared folder in, one JSON file out."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .clocks import Clocks
from .processes import Ended, Processes, Worker
from .results import CannotMeasure, CannotWrite, ResultsFile
from .session import FEWEST_ROUNDS, Session, Settings
from .tune import STRATEGIES

PREPARED = "superopt-bench prepared"
PREPARED_VERSION = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. 0: all measured; 3: time ran out, run again; 2: measuring is impossible."""
    args = _parser().parse_args(argv)
    try:
        return 0 if measure(args) else 3
    except CannotMeasure as error:
        print(f"superopt-bench: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("superopt-bench: interrupted; what was measured is in the results file", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="measure.py", description="Measures a folder written by `superopt-bench prepare`."
    )
    parser.add_argument("folder", help="the prepared folder")
    parser.add_argument(
        "-o", dest="output", required=True, metavar="FILE", help="results file (JSON), resumed if it exists"
    )
    parser.add_argument(
        "--minutes", type=_positive, help="stop after this many minutes; the next run measures the rest"
    )
    parser.add_argument(
        "--device", choices=("cuda", "interpreter"), default="cuda", help="where to run (default: cuda)"
    )
    parser.add_argument("--programs", help="programs to measure, comma-separated (default: all)")
    parser.add_argument(
        "--rows", help="rows to measure, comma-separated, as prepared.json names them (default: all)"
    )
    parser.add_argument(
        "--rounds", type=_rounds, default=20, help="interleaved rounds per program (default: 20)"
    )
    parser.add_argument("--repeats", type=_count, help="calls per round (default: about 30 ms of calls)")
    parser.add_argument(
        "--points", type=_count, default=64, help="maximum number of points measured per row (default: 64)"
    )
    parser.add_argument(
        "--strategy",
        choices=("auto", *STRATEGIES),
        default="auto",
        help="how to choose points (default: auto)",
    )
    parser.add_argument(
        "--timeout", type=_positive, default=300.0, help="seconds to set up one candidate (default: 300)"
    )
    parser.add_argument(
        "--round-timeout", type=_positive, default=60.0, help="seconds for one round (default: 60)"
    )
    parser.add_argument(
        "--jobs", type=_count, default=4, help="candidates to set up at the same time (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default: 0)")
    parser.add_argument("--fresh", action="store_true", help="replace the results file instead of resuming")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return value


def _rounds(text: str) -> int:
    value = int(text)
    if value < FEWEST_ROUNDS:
        raise argparse.ArgumentTypeError(f"expected at least {FEWEST_ROUNDS} rounds, got {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return value


def measure(args: argparse.Namespace) -> bool:
    """Whether everything is measured; raises CannotMeasure."""
    folder = Path(args.folder)
    prepared, digest = read_prepared(folder)
    programs = _chosen(prepared["programs"], args.programs, args.rows)
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            raise CannotMeasure(f"expected '{name}' to be installed, got none: pip install {name}")
    if args.device == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"  # before the server of processes imports triton
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    interpreted = args.device == "interpreter"
    settings = Settings(
        device=args.device,
        minutes=args.minutes,
        rounds=args.rounds,
        repeats=args.repeats or (1 if interpreted else None),
        warmup=1 if interpreted else 3,
        seed=args.seed,
        strategy=args.strategy,
        points=args.points,
        setup_timeout=args.timeout,
        round_timeout=args.round_timeout,
        jobs=args.jobs,
    )
    processes = Processes()
    clocks = Clocks()
    try:
        facts = probe(processes.start, str(folder.resolve()), programs[0], settings)
        identity = {
            "prepared": {
                "sha256": digest,
                "superopt": prepared["superopt"],
                "target": prepared["target"],
                "date": prepared["date"],
            },
            "device": {**_of_clocks(clocks), **{k: v for k, v in facts["device"].items() if v}},
            "versions": facts["versions"],
            "seed": args.seed,
        }
        file = ResultsFile(Path(args.output), identity, fresh=args.fresh)
        file.data.setdefault("date", datetime.now(UTC).strftime("%Y-%m-%d"))
        _save(file)
        session = Session(str(folder.resolve()), programs, file, settings, processes.start, clocks)
        try:
            complete = session.run()
        except CannotWrite:
            # The rows that the disk did not take are not lost where somebody reads standard output.
            print(json.dumps(file.data))
            raise
    finally:
        processes.close()
    print(
        f"{args.output}: {len(file.data['rows'])} rows"
        + ("" if complete else "; time ran out, run again for the rest")
    )
    return complete


def _save(file: ResultsFile) -> None:
    if not file.path.parent.is_dir():
        raise CannotWrite(f"cannot write {file.path}: no such folder {file.path.parent}")
    file.save()


def probe(start: Any, folder: str, program: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """What the device is, asked in a process of its own; raises CannotMeasure where there is none."""
    request = {
        "folder": folder,
        "program": {k: v for k, v in program.items() if k != "rows"},
        "point": program["rows"][0]["points"][0],
        "device": settings.device,
        "seed": settings.seed,
    }
    worker: Worker = start(request)
    try:
        reply = worker.ask({"do": "facts"}, settings.setup_timeout)
    except Ended as error:
        raise CannotMeasure(f"the device could not be identified: {error}") from None
    finally:
        worker.close()
    if "error" in reply:
        raise CannotMeasure(reply["error"])
    return reply


def _of_clocks(clocks: Clocks) -> dict[str, Any]:
    facts = clocks.facts()
    if facts.get("memory_mhz_max") and facts.get("memory_bus_bits"):
        facts["memory_bytes_per_second"] = 2e6 * facts["memory_mhz_max"] * facts["memory_bus_bits"] / 8
    if facts.get("sm_mhz_max"):
        facts["clock_hz"] = 1e6 * facts["sm_mhz_max"]
    return facts


def read_prepared(folder: Path) -> tuple[dict[str, Any], str]:
    """`prepared.json` and its SHA-256, once all files it lists are there, whole; raises CannotMeasure."""
    path = folder / "prepared.json"
    if not folder.is_dir():
        raise CannotMeasure(f"expected a prepared folder, got no such folder: {folder}")
    if not path.is_file():
        raise CannotMeasure(f"expected a prepared folder, got one without prepared.json: {folder}")
    text = path.read_bytes()
    try:
        data = json.loads(text)
        kind, version, files = data["format"], data["version"], dict(data["files"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CannotMeasure(
            f"expected the description of a prepared folder in {path}, got something else"
        ) from None
    if (kind, version) != (PREPARED, PREPARED_VERSION):
        raise CannotMeasure(f"expected {PREPARED} {PREPARED_VERSION} in {path}, got {kind} {version}")
    for name, digest in files.items():
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()) or not file.is_file():
            raise CannotMeasure(f"expected the file '{name}' in the prepared folder, got none: {folder}")
        if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            raise CannotMeasure(f"expected the file '{name}' as it was prepared, got another: {folder}")
    return data, hashlib.sha256(text).hexdigest()


def _chosen(programs: Sequence[dict[str, Any]], names: str | None, rows: str | None) -> list[dict[str, Any]]:
    known = {p["name"]: p for p in programs}
    chosen = _named("programs", names, known)
    if rows is None:
        return chosen
    everywhere = {r["id"]: r for p in chosen for r in p["rows"]}
    wanted = {r["id"] for r in _named("rows", rows, everywhere)}
    kept = [{**p, "rows": [r for r in p["rows"] if r["id"] in wanted]} for p in chosen]
    return [p for p in kept if p["rows"]]


def _named(what: str, names: str | None, known: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    for name in names.split(",") if names else ():
        if name not in known:
            raise CannotMeasure(f"expected {what} of {', '.join(known)}, got '{name}'")
    return [known[name] for name in names.split(",")] if names else list(known.values())


if __name__ == "__main__":
    sys.exit(main())
