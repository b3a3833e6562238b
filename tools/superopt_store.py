"""`superopt-store`: lists the results that superopt keeps, checks them, and moves them between machines."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from superopt.diagnostics import counted
from superopt.driver.arguments import Parser, said
from superopt.errors import SuperoptError
from superopt.store import Store, chosen_folder, listing

_DESCRIPTION = """List the results that superopt keeps, check them, and move them between machines. Exit codes: 0;
1: something is damaged; 2: bad input. A result is proved again when it is used, wherever it comes from."""


def main(argv: Sequence[str] | None = None) -> int:
    """The console entry; `argv` is `sys.argv` without the program's name, the result the exit code."""
    parser = Parser(prog="superopt-store", description=_DESCRIPTION)
    about_store = "the store (default: $SUPEROPT_STORE, or superopt in the user's cache folder)"
    parser.add_argument("--store", default="default", metavar="FOLDER", help=about_store)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shown = commands.add_parser("list", help="one line for each result, the last used first")
    shown.add_argument("--all", action="store_true", help="searches and readings, too")
    shown.add_argument("--json", action="store_true", help="all, with whole keys, one JSON object a line")
    commands.add_parser("check", help="read every file of every result, and name what is damaged")
    for name, about in (
        ("export", "write every result to FILE, a zip"),
        ("merge", "add the results of FILE"),
    ):
        commands.add_parser(name, help=about).add_argument("file", metavar="FILE.zip")
    for command in commands.choices.values():  # before the command or behind it
        command.add_argument("--store", default=argparse.SUPPRESS, metavar="FOLDER", help=about_store)
    options = parser.parse_args(argv)
    folder = chosen_folder(options.store)
    if folder is None:
        print("superopt-store: error: expected a store, got none: name one by --store", file=sys.stderr)
        return 2
    try:
        return _run(Store(folder), options)
    except SuperoptError as error:
        print(said("superopt-store", error), file=sys.stderr)
        return 2


def _run(store: Store, options: argparse.Namespace) -> int:
    match options.command:
        case "list":
            found = listing.rows(store)
            if options.json:
                print("".join(json.dumps(row.record, sort_keys=True) + "\n" for row in found), end="")
            else:
                print("".join(line + "\n" for line in listing.table(found, everything=options.all)), end="")
            print(f"{store.folder}: {listing.summary(found)}", file=sys.stderr)
        case "check":
            damaged = store.check()
            print("\n".join([*(f"damaged: {name}" for name in damaged), f"{len(damaged)} damaged"]))
            return 1 if damaged else 0
        case "export":
            print(f"{counted(store.export(options.file), 'result')} written to {options.file}")
        case _:
            merged, dropped = store.merge(options.file)
            print(f"{counted(merged, 'result')} merged into {store.folder}, {dropped} damaged")
            return 1 if dropped else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
