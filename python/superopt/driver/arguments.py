"""The command lines of the tools beside `superopt-opt`, which has a parser of its own."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn, cast

from superopt.errors import UNKNOWN, SuperoptError
from superopt.options import did_you_mean

_UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """Answers a wrong command line in one line: what is wrong, what may have been meant, where help is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if " " not in self.prog:  # a tool, and none of its commands
            self.add_argument("--version", action=_Version, nargs=0, help="print versions")

    @property
    def options(self) -> set[str]:
        """The options of the tool, with those of its commands."""
        known = {o for o in self._option_string_actions if o.startswith("--")}
        for action in self._actions:
            commands = cast("object", action.choices)  # of a tool with commands, their parsers
            if isinstance(commands, dict):
                parsers = cast("dict[str, object]", commands).values()
                known.update(*(parser.options for parser in parsers if isinstance(parser, Parser)))
        return known

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        tool = self.prog.split()[0]
        if message.startswith(_UNKNOWN):
            given = message.removeprefix(_UNKNOWN).split()[0]
            message += did_you_mean(given.partition("=")[0], self.options) if given.startswith("-") else ""
        self.exit(2, f"{tool}: error: {message}; see {tool} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = None if action.choices is None else list(map(str, action.choices))
        if choices is not None and str(value) not in choices:
            expected = f"expected one of {', '.join(choices)}, got '{value}'"
            raise argparse.ArgumentError(action, expected + did_you_mean(str(value), choices))


def said(tool: str, error: SuperoptError) -> str:
    """An error as `tool` says it: where it is or, where it is nowhere, by whom it is said."""
    return str(error) if error.location != UNKNOWN else f"{tool}: {error}"


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.exit(0, versions())


def versions() -> str:
    """superopt's version, and those of what it stands on."""
    from importlib.metadata import version

    others = ", ".join(f"{name} {version(name)}" for name in ("torch-mlir", "triton"))
    return f"superopt {version('superopt')} ({others})\n"
