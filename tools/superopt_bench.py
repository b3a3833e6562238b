"""`superopt-bench`: prepare what to measure, measure it, report it; see `superopt-bench --help`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from superopt import cost
from superopt.cost.gpus import DEFAULT_TARGET, target_names
from superopt.diagnostics import Diagnostics
from superopt.driver import output
from superopt.driver.arguments import Parser, said
from superopt.driver.isolation import isolated
from superopt.errors import BadInput, BadOption, SuperoptError
from superopt.inputs.programs import read_program

if TYPE_CHECKING:
    from superopt.measure.modules import Module
    from superopt.program import KernelGraph

_DESCRIPTION = """\
prepare   programs -> a folder with verified candidates, parameter points and baselines; needs no GPU
measure   such a folder -> results; needs torch and triton (`python FOLDER/measure.py` does the same elsewhere)
report    results, or a prepared folder, -> tables and plots
model     how accurate the cost model is, from all results in a folder
store     the best points of results -> the store, which `prepare` reads"""

_EXIT_CODES = (
    "exit codes: 0 done; 1 a program was refused or something failed; 2 bad command line; 3 time ran out"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (`sys.argv` by default); returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["measure"]:
        return _measure(arguments[1:])

    return isolated(lambda: run(arguments), "superopt-bench")


def run(arguments: Sequence[str]) -> int:
    """As `main`, in this process."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as stop:  # argparse has said why
        return int(stop.code or 0)
    commands = {"prepare": _prepare, "report": _report, "model": _model, "store": _store}
    try:
        commands[options.command](options)
    except BadOption as error:
        print(said("superopt-bench", error), file=sys.stderr)
        return 2
    except SuperoptError as error:
        print(said("superopt-bench", error), file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser("superopt-bench", description=_DESCRIPTION, epilog=_EXIT_CODES, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    prepare = commands.add_parser("prepare", help="prepare a folder of programs; needs no GPU")
    prepare.add_argument(
        "programs",
        nargs="+",
        metavar="FILE.mlir|FILE.py:FACTORY",
        help="MLIR programs, or PyTorch modules given by their factories (see superopt-import)",
    )
    prepare.add_argument("-o", dest="output", required=True, metavar="FOLDER", help="folder to write")
    targets = f"{', '.join(target_names())} (default: {DEFAULT_TARGET})"
    prepare.add_argument("--target", default=DEFAULT_TARGET, help=targets)
    prepare.add_argument(
        "--candidates", type=_count, default=2, help="superopt's candidates per program (default: 2)"
    )
    prepare.add_argument(
        "--points", type=_count, default=16, help="maximum number of parameter points per row (default: 16)"
    )
    prepare.add_argument(
        "--budget", type=_seconds, default=30.0, help="seconds of search per program (default: 30)"
    )
    prepare.add_argument(
        "--tuning",
        type=_seconds,
        default=120.0,
        help="seconds to compile and prove a candidate's points (default: 120)",
    )
    prepare.add_argument(
        "--results", metavar="FOLDER", help="fit the cost model to the results in this folder"
    )
    prepare.add_argument("--seed", type=int, default=0, help="seed of everything random (default: 0)")
    commands.add_parser(
        "measure", help="measure a prepared folder; see `superopt-bench measure --help`", add_help=False
    )
    report = commands.add_parser("report", help="turn results into tables and plots")
    report.add_argument(
        "results", metavar="RESULTS.json|FOLDER", help="results, or a prepared folder to report predictions"
    )
    report.add_argument("--html", metavar="FILE", help="write one self-contained page")
    report.add_argument(
        "--markdown", metavar="FILE", default="-", help="write tables (default: -, standard output)"
    )
    model = commands.add_parser("model", help="show how far predictions are from measurements")
    model.add_argument("results", metavar="FOLDER", help="folder of results files")
    store = commands.add_parser("store", help="put the best points of results into the store")
    store.add_argument("results", metavar="RESULTS.json", help="results of `superopt-bench measure`")
    store.add_argument("prepared", metavar="FOLDER", help="the folder that was measured")
    store.add_argument(
        "--store",
        metavar="FOLDER",
        help="folder of the store (default: $SUPEROPT_STORE, or the user's cache)",
    )
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return value


def _prepare(options: argparse.Namespace) -> None:
    from superopt.inputs import factories
    from superopt.measure.prepare import Settings, prepare

    options.target = cost.target(options.target).name  # an unknown one is the command line's fault
    diagnostics = Diagnostics()
    programs: list[tuple[str, KernelGraph]] = []
    modules: dict[str, Module] = {}
    for text in options.programs:
        if factories.is_factory(text):
            name, graph, modules[name] = _imported(text, diagnostics)
            programs.append((name, graph))
        else:
            programs.append((Path(text).stem, read_program(text, diagnostics)))
    settings = Settings(
        options.target, options.candidates, options.points, options.budget, options.tuning, options.seed
    )
    model = cost.load(options.results) if options.results else cost.Model()
    made = prepare(programs, Path(options.output), settings, model, diagnostics, modules)
    for message in diagnostics.messages:
        print(message, file=sys.stderr)
    points = sum(len(r["points"]) for p in made["programs"] for r in p["rows"])
    print(
        f"{options.output}: {len(made['programs'])} programs, {points} points; "
        f"measure with `python {options.output}/measure.py -o results.json`",
        file=sys.stderr,
    )


def _imported(text: str, diagnostics: Diagnostics) -> tuple[str, KernelGraph, Module]:
    """The name, the program and the module of `FILE.py:FACTORY`."""
    from superopt.inputs import factories
    from superopt.measure.modules import Module
    from superopt.transforms.ingest.import_torch import from_torch

    made = factories.load(factories.split(text))
    imported = from_torch(
        made.module, made.inputs, name=made.name, diagnostics=diagnostics, location=made.location
    )
    return made.name, imported.graph, Module(made, imported.weight_names)


def _measure(arguments: Sequence[str]) -> int:
    """Run the prepared folder's own measure step, so that the same code runs here and elsewhere."""
    if not arguments or arguments[0].startswith("-"):
        from superopt.measure.standalone import run as standalone

        return _parsed(standalone.main, arguments)
    script = Path(arguments[0]) / "measure.py"
    if not script.is_file():
        print(
            f"superopt-bench: error: expected a prepared folder, got none: {arguments[0]}",
            file=sys.stderr,
        )
        return 2
    try:
        return subprocess.run([sys.executable, str(script), *arguments[1:]], check=False).returncode
    except KeyboardInterrupt:
        return 130


def _parsed(function: object, arguments: Sequence[str]) -> int:
    assert callable(function)
    try:
        return int(str(function(arguments)))
    except SystemExit as stop:
        return int(stop.code or 0)


def _report(options: argparse.Namespace) -> None:
    from superopt.measure import report

    for path in (options.html, options.markdown):
        if path is not None:
            output.check_writable(path)
    data = report.load(Path(options.results))
    html = report.html(data) if options.html else None
    output.write(options.markdown, report.markdown(data))
    if html is not None:
        output.write(options.html, html)


def _model(options: argparse.Namespace) -> None:
    from superopt.measure import report

    if not Path(options.results).is_dir():
        raise BadInput(f"expected a folder of results, got none: {options.results}")
    print(report.model_table(cost.load(options.results)), end="")


def _store(options: argparse.Namespace) -> None:
    from superopt.measure import tuned

    count = tuned.publish(Path(options.results), Path(options.prepared), options.store)
    print(f"{count} results stored", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
